//! The clock: programs whose time follows from a chip's figures by hand.

use crate::rig::{Rig, ptx};
use kiln_emulator::{Checks, ChipFile, DeviceConfig, Timing, chip_file, chip_files};

fn chip() -> &'static ChipFile {
    chip_file("h100-sxm").unwrap()
}

/// A rig whose launches are timed as on a chip.
fn timed(chip: &'static ChipFile, body: &str) -> Rig {
    let mut rig = Rig::new(&ptx(75, body));
    rig.config = DeviceConfig { step_limit: Some(1 << 30), ..DeviceConfig::clocked(chip) };
    rig
}

impl Rig {
    pub(crate) fn time(&self, kernel: &str, grid: u32, block: u32, params: &[u64]) -> Timing {
        self.launch(kernel, grid, block, params).unwrap().timing.unwrap()
    }
}

/// Clocks of a time.
fn clocks(nanoseconds: f64) -> f64 {
    nanoseconds * chip().clock.value
}

fn near(found: f64, expected: f64, share: f64) {
    let off = (found / expected - 1.0).abs();
    assert!(off <= share, "{found} is {:.1} % off {expected}", 100.0 * off);
}

const PERMUTE: &str = r#"
.visible .entry permute(.param .u64 to, .param .u32 steps)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [steps];
    mov.u32 %r2, %tid.x;
LOOP:
    prmt.b32 %r3, %r2, %r1, 0x2103;
    prmt.b32 %r4, %r2, %r1, 0x1032;
    prmt.b32 %r5, %r2, %r1, 0x0321;
    prmt.b32 %r6, %r2, %r1, 0x3021;
    prmt.b32 %r7, %r2, %r1, 0x0213;
    add.u32 %r1, %r1, -1;
    setp.ne.u32 %p, %r1, 0;
    @%p bra LOOP;
    st.global.u32 [%rd1], %r3;
    st.global.u32 [%rd1+4], %r4;
    st.global.u32 [%rd1+8], %r5;
    st.global.u32 [%rd1+12], %r6;
    st.global.u32 [%rd1+16], %r7;
    ret;
}
"#;

/// Sixteen warps of a multiprocessor have its four quarters in turn, whether they are one block, eight or sixteen.
#[test]
fn warps_of_small_blocks_are_spread_over_quarters() {
    let rig = timed(chip(), PERMUTE);
    let to = rig.memory.alloc(64).unwrap();
    let all = chip().multiprocessors;
    let [whole, pairs, single] =
        [1, 8, 16].map(|blocks| rig.time("permute", all * blocks, 512 / blocks, &[to, 200]).nanoseconds);
    near(pairs, whole, 0.1);
    near(single, whole, 0.1);
}

/// A list in memory whose elements are `stride` bytes apart and lead to each other in turn.
fn list(rig: &Rig, elements: u64, stride: u64) -> u64 {
    let start = rig.memory.alloc(elements * stride).unwrap();
    for i in 0..elements {
        let next = start + (i + 1) % elements * stride;
        rig.memory.write(start + i * stride, &next.to_le_bytes()).unwrap();
    }
    start
}

const CHASE: &str = r#"
.visible .entry chase(.param .u64 list, .param .u32 steps)
{
    .reg .pred %p;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [list];
    ld.param.u32 %r1, [steps];
LOOP:
    ld.global.HINT.u64 %rd1, [%rd1];
    add.u32 %r1, %r1, -1;
    setp.ne.u32 %p, %r1, 0;
    @%p bra LOOP;
    st.global.u64 [%rd1+8], %rd1;
    ret;
}
"#;

#[test]
fn dependent_loads_take_the_latency_of_where_they_hit() {
    let rig = timed(chip(), &CHASE.replace("HINT", "ca"));
    let passing = timed(chip(), &CHASE.replace("HINT", "cg"));
    // 64 KB fit L1.
    let small = list(&rig, 512, 128);
    let cold = clocks(rig.time("chase", 1, 1, &[small, 512]).nanoseconds) / 512.0;
    near(cold, clocks(chip().dram.value), 0.05);
    let twice = clocks(rig.time("chase", 1, 1, &[small, 4096]).nanoseconds);
    let l2 = (chip().l2[0].value + chip().l2[1].value) / 2.0;
    near(twice, 512.0 * clocks(l2) + (4096.0 - 512.0) * chip().l1.value, 0.05);
    // Past L1, the second time round.
    let list = list(&passing, 4096, 128);
    passing.time("chase", 1, 1, &[list, 4096]);
    near(passing.time("chase", 1, 1, &[list, 4096]).nanoseconds / 4096.0, l2, 0.05);
    // L2 that was filled long ago holds nothing of it.
    let large = self::list(&passing, 60 << 20 >> 13, 8192);
    near(passing.time("chase", 1, 1, &[large, 2048]).nanoseconds / 2048.0, chip().dram.value, 0.05);
}

#[test]
fn what_a_burst_of_memory_brings_stays_in_l2() {
    let rig = timed(chip(), &CHASE.replace("HINT", "cg"));
    // A sector a load: two of them are a burst.
    let list = list(&rig, 64, 32);
    assert_eq!(rig.time("chase", 1, 1, &[list, 64]).dram_bytes, 64.0 * 32.0);
}

/// One thread copies 16 KB after another to shared memory, by the policy for what is read once or by none.
const COPY: &str = r#"
.visible .entry copy(.param .u64 from, .param .u32 pieces, .param .u32 once)
{
    .reg .pred %p<3>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<5>;
    .shared .align 16 .b8 to[16384];
    .shared .align 8 .b64 full;
    ld.param.u64 %rd1, [from];
    ld.param.u32 %r1, [pieces];
    ld.param.u32 %r2, [once];
    setp.ne.u32 %p1, %r2, 0;
    createpolicy.fractional.L2::evict_first.b64 %rd2;
    createpolicy.fractional.L2::evict_normal.b64 %rd3;
    selp.b64 %rd2, %rd2, %rd3, %p1;
    mov.u32 %r3, full;
    mov.u32 %r4, to;
    mbarrier.init.shared.b64 [%r3], 1;
    fence.proxy.async.shared::cta;
    mov.u32 %r2, 0;
LOOP:
    mbarrier.arrive.expect_tx.shared.b64 %rd4, [%r3], 16384;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r4], [%rd1], 16384, [%r3], %rd2;
WAIT:
    mbarrier.test_wait.parity.shared.b64 %p2, [%r3], %r2;
    @!%p2 bra WAIT;
    xor.b32 %r2, %r2, 1;
    add.u64 %rd1, %rd1, 16384;
    add.u32 %r1, %r1, -1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra LOOP;
    ret;
}
"#;

#[test]
fn what_is_read_once_puts_nothing_else_out_of_l2() {
    let mut rig = Rig::new(&ptx(90, COPY));
    rig.config = DeviceConfig { step_limit: Some(1 << 30), ..DeviceConfig::clocked(chip()) };
    // An L2 of 50 MB holds either, not both.
    let [kept, passing] = [24u64 << 20, 40 << 20].map(|bytes| (rig.memory.alloc(bytes).unwrap(), bytes));
    let copy = |(from, bytes): (u64, u64), once| rig.time("copy", 1, 1, &[from, bytes / 16384, once]).dram_bytes;
    let again = |once| {
        copy(kept, 0);
        copy(passing, once);
        copy(kept, 0) / kept.1 as f64
    };
    assert_eq!((again(1), again(0)), (0.0, 1.0));
}

/// Every thread asks L2 for eight lines of 16 MB, far from each other, and then loads a word.
const ASK_AHEAD: &str = r#"
.visible .entry ask_ahead(.param .u64 from)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [from];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r1, %r1, 1024, %r2;
    mov.u32 %r3, 0;
LOOP:
    and.b32 %r4, %r1, 131071;
    mul.wide.u32 %rd2, %r4, 128;
    add.u64 %rd2, %rd1, %rd2;
    prefetch.global.L2 [%rd2];
    add.u32 %r1, %r1, 135168;
    add.u32 %r3, %r3, 1;
    setp.ne.u32 %p, %r3, 8;
    @%p bra LOOP;
    ld.global.ca.u32 %r5, [%rd2];
    st.global.u32 [%rd2], %r5;
    ret;
}
"#;

#[test]
fn what_l2_is_asked_for_takes_a_look_up_of_its_slices() {
    let rig = timed(chip(), ASK_AHEAD);
    let from = rig.memory.alloc(16 << 20).unwrap();
    let time = || rig.time("ask_ahead", 132, 1024, &[from]).nanoseconds;
    time(); // they are in L2 now
    let lines = 132.0 * 1024.0 * 8.0;
    let of_look_ups = lines * 32.0 / chip().l2_bandwidth.value;
    let found = time();
    // A load and its way come on top; whole lines would take four times as long.
    assert!(found > of_look_ups && found < 2.0 * of_look_ups, "{found} ns, look-ups alone {of_look_ups}");
}

/// Every lane loads a word again and again, `stride` bytes apart, and adds it up.
const STRIDE: &str = r#"
.visible .entry stride(.param .u64 from, .param .u32 stride)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [from];
    ld.param.u32 %r1, [stride];
    mov.u32 %r2, %tid.x;
    and.b32 %r2, %r2, 31;
    mul.wide.u32 %rd2, %r2, %r1;
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r3, 0;
    mov.u32 %r4, 0;
LOOP:
    ld.global.ca.u32 %r5, [%rd1];
    ld.global.ca.u32 %r6, [%rd1+4];
    add.u32 %r3, %r3, %r5;
    add.u32 %r3, %r3, %r6;
    add.u32 %r4, %r4, 1;
    setp.ne.u32 %p, %r4, 400;
    @%p bra LOOP;
    st.global.u32 [%rd1], %r3;
    ret;
}
"#;

#[test]
fn four_lines_a_clock_are_looked_up_in_l1() {
    let rig = timed(chip(), STRIDE);
    let from = rig.memory.alloc(1 << 14).unwrap();
    let clocks_of = |stride| clocks(rig.time("stride", 1, 1024, &[from, stride]).nanoseconds) / (2.0 * 400.0 * 32.0);
    // 12 lines, four words in each of eight banks; 15 lines, a word in each bank; 32 lines, all words in one.
    for (stride, expected) in [(48, 4.0), (60, 4.0), (128, 32.0)] {
        near(clocks_of(stride), expected, 0.05);
    }
}

/// Every lane copies 16 bytes past L1 again and again, `from` bytes apart, to places `to` bytes apart.
const COPIES: &str = r#"
.visible .entry copies(.param .u64 source, .param .u32 from, .param .u32 to)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .shared .align 16 .b8 places[4096];
    ld.param.u64 %rd1, [source];
    ld.param.u32 %r1, [from];
    ld.param.u32 %r2, [to];
    mov.u32 %r3, %tid.x;
    and.b32 %r3, %r3, 31;
    mul.wide.u32 %rd2, %r3, %r1;
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r4, places;
    mad.lo.u32 %r4, %r3, %r2, %r4;
    mov.u32 %r5, 0;
LOOP:
    cp.async.cg.shared.global [%r4], [%rd1], 16;
    add.u32 %r5, %r5, 1;
    setp.ne.u32 %p, %r5, 400;
    @%p bra LOOP;
    cp.async.wait_all;
    ret;
}
"#;

#[test]
fn a_copy_past_l1_takes_look_ups_and_the_banks_that_it_writes() {
    let mut rig = Rig::new(&ptx(80, COPIES));
    // Its warps write the same places.
    rig.config = DeviceConfig { checks: Checks::NONE, step_limit: Some(1 << 30), ..DeviceConfig::clocked(chip()) };
    let source = rig.memory.alloc(1 << 14).unwrap();
    let clocks_of = |from, to| clocks(rig.time("copies", 1, 1024, &[source, from, to]).nanoseconds) / (400.0 * 32.0);
    // 4 lines in two clocks and 4 passes, but 512 bytes through the port to L2; 32 lines in eight clocks and 4 passes, but
    // 32 sectors through it, wherever the rows lie in L1's banks; 4 lines and 32 passes.
    for (from, to, expected) in [(16, 16, 8.0), (128, 16, 16.0), (144, 16, 16.0), (16, 128, 34.0)] {
        near(clocks_of(from, to), expected, 0.05);
    }
}

/// A loop of 200 sums that hang on nothing, a load from shared memory before or behind them, and a chain of 40 on it.
fn hoisted(first: bool) -> String {
    let sums: String = (0..200).map(|i| format!("    add.u32 %r{}, %r39, {i};\n", i % 32)).collect();
    let load = "    ld.shared.f32 %f1, [word];\n";
    let chain = "    fma.rn.f32 %f1, %f1, %f1, %f1;\n".repeat(40);
    looped(&if first { [load, &sums, &chain] } else { [&sums, load, &chain] }.concat())
}

#[test]
fn a_load_from_shared_memory_comes_few_instructions_before_the_text_has_it() {
    let clocks_of = |first| {
        let rig = timed(chip(), &hoisted(first));
        clocks(rig.time("work", 1, 1, &[100]).nanoseconds) / 100.0
    };
    // Sums take two clocks each, and hide the chain where the load is first. Behind them it is 40 instructions before their
    // end, and the load's 28.6 clocks and the chain's 160 come after.
    near(clocks_of(false) - clocks_of(true), 28.6 + 160.0 - 80.0, 0.2);
}

#[test]
fn every_chip_file_holds_figures_of_a_chip() {
    let mut names: Vec<_> = chip_files().iter().map(|chip| chip.name).collect();
    for chip in chip_files().iter().copied() {
        let name = chip.name;
        for (figure, kiln_emulator::Figure { value, .. }) in chip.figures() {
            assert!(value.is_finite() && value > 0.0, "{name}: {figure}");
        }
        assert!((0.7..=1.0).contains(&(chip.dram_bandwidth.value / chip.dram_peak.value)), "{name}: memory");
        assert!(chip.l2_bandwidth.value > 1.4 * chip.dram_bandwidth.value, "{name}: L2");
        assert!(chip.l2[0].value <= chip.l2[1].value && chip.l2[1].value < chip.dram.value, "{name}: latencies");
        let rig = timed(chip, &CHASE.replace("HINT", "cg"));
        let cold = list(&rig, 512, 8192);
        near(rig.time("chase", 1, 1, &[cold, 512]).nanoseconds / 512.0, chip.dram.value, 0.06);
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), chip_files().len(), "each has a name of its own");
}

/// A loop of 32 independent instructions.
fn stream(instruction: impl Fn(usize) -> String) -> String {
    let lines: String = (0..32).map(|i| format!("    {}\n", instruction(i))).collect();
    looped(&lines)
}

/// A loop that counts `%r39` down, beside a word of shared memory.
fn looped(lines: &str) -> String {
    format!(
        r#"
.visible .entry work(.param .u32 rounds)
{{
    .reg .pred %p;
    .reg .b32 %r<40>;
    .reg .f32 %f<40>;
    .shared .align 4 .b8 word[4];
    ld.param.u32 %r39, [rounds];
    st.shared.u32 [word], %r39;
LOOP:
{lines}    add.u32 %r39, %r39, -1;
    setp.ne.u32 %p, %r39, 0;
    @%p bra LOOP;
    ret;
}}
"#
    )
}

#[test]
fn instructions_run_at_the_rate_of_their_pipe() {
    let rate = |instruction: &dyn Fn(usize) -> String| {
        let mut rig = timed(chip(), &stream(instruction));
        rig.config.multiprocessors = 1;
        let time = rig.time("work", 1, 1024, &[40]);
        40.0 * 32.0 * 1024.0 / clocks(time.nanoseconds)
    };
    near(rate(&|i| format!("fma.rn.f32 %f{i}, %f{i}, %f{i}, %f{i};")), 128.0, 0.12);
    near(rate(&|i| format!("mad.lo.u32 %r{i}, %r{i}, %r{i}, %r{i};")), 64.0, 0.1);
    near(rate(&|i| format!("xor.b32 %r{i}, %r{i}, 1;")), 64.0, 0.12);
    near(rate(&|i| format!("ex2.approx.ftz.f32 %f{i}, %f{i};")), 16.0, 0.1);
    // Two pipes beside each other.
    let both = |i| match i % 2 {
        0 => format!("mad.lo.u32 %r{i}, %r{i}, %r{i}, %r{i};"),
        _ => format!("prmt.b32 %r{i}, %r{i}, 1, 2;"),
    };
    near(rate(&both), 128.0, 0.15);
}

#[test]
fn tensor_cores_run_at_the_clock_that_a_chip_keeps_under_them() {
    // Products of bytes on two sums.
    let work = stream(|i| {
        let first = i % 2 * 4;
        let sums = format!("{{%r{first}, %r{}, %r{}, %r{}}}", first + 1, first + 2, first + 3);
        let factors = "{%r8, %r9, %r10, %r11}, {%r12, %r13}";
        format!("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {sums}, {factors}, {sums};")
    });
    let pcie = chip_file("h100-pcie").unwrap();
    let even: &ChipFile = Box::leak(Box::new(ChipFile { tensor_clock: pcie.clock, ..*pcie }));
    let [falls, stays] = [pcie, even].map(|chip| {
        let mut rig = timed(chip, &work);
        rig.module = kiln_emulator::Module::load(&ptx(80, &work), &rig.memory).unwrap();
        (rig.config.multiprocessors, rig.config.checks) = (1, Checks::NONE);
        rig.time("work", 1, 1024, &[20]).nanoseconds
    });
    near(stays / falls, 1.62 / 1.755, 0.03);
}

#[test]
fn a_chain_of_results_takes_their_latency() {
    let mut rig = timed(chip(), &stream(|_| "fma.rn.f32 %f1, %f1, %f1, %f1;".into()));
    rig.config.multiprocessors = 1;
    let time = clocks(rig.time("work", 1, 32, &[100]).nanoseconds) / 100.0;
    near(time, 32.0 * chip().latency.value + chip().branch.value, 0.1);
}

/// Each thread loads 16 bytes `rounds` times, a grid's length apart.
const READ: &str = r#"
.visible .entry read(.param .u64 from, .param .u32 rounds, .param .u64 stride, .param .u64 out)
{
    .reg .pred %p;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [from];
    ld.param.u32 %r1, [rounds];
    ld.param.u64 %rd2, [stride];
    ld.param.u64 %rd4, [out];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mul.wide.u32 %rd3, %r2, 16;
    add.u64 %rd1, %rd1, %rd3;
    mov.u32 %r10, 0;
LOOP:
    .pragma "nounroll";
    ld.global.nc.L1::no_allocate.v4.u32 {%r5, %r6, %r7, %r8}, [%rd1];
    xor.b32 %r10, %r10, %r5;
    xor.b32 %r10, %r10, %r8;
    add.u64 %rd1, %rd1, %rd2;
    add.u32 %r1, %r1, -1;
    setp.ne.u32 %p, %r1, 0;
    @%p bra LOOP;
    setp.eq.u32 %p, %r10, 77;
    @%p st.global.u32 [%rd4], %r10;
    ret;
}
"#;

/// GB/s of a chip whose multiprocessors read so many bytes at once each.
fn bandwidth(chip: &'static ChipFile, bytes: u64, rounds: u64) -> f64 {
    let rig = timed(chip, READ);
    let (blocks, threads) = (u64::from(chip.multiprocessors), bytes / 16);
    let step = blocks * bytes;
    let from = rig.memory.alloc(step * rounds + 8).unwrap();
    let time = rig.time("read", blocks as u32, threads as u32, &[from, rounds, step, from]);
    (step * rounds) as f64 / time.nanoseconds
}

/// Each lane of a warp loads a word, `stride` bytes from the one before.
const SPREAD: &str = r#"
.visible .entry spread(.param .u64 from, .param .u64 stride)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [stride];
    mov.u32 %r1, %tid.x;
    cvt.u64.u32 %rd3, %r1;
    mad.lo.u64 %rd1, %rd3, %rd2, %rd1;
    ld.global.cg.u32 %r2, [%rd1];
    st.global.u32 [%rd1], %r2;
    ret;
}
"#;

#[test]
fn lines_of_a_page_of_memory_come_one_behind_the_other() {
    let time = |stride: u64| {
        let rig = timed(chip(), SPREAD);
        let from = rig.memory.alloc(1 << 16).unwrap();
        rig.memory.write(from, &[0; 1 << 16]).unwrap();
        let [cold, warm] = [0; 2].map(|_| rig.time("spread", 1, 32, &[from, stride]).nanoseconds);
        cold - warm
    };
    // 32 bursts, of as many pages or of four: of a page seven queue behind the first, as far as they come together.
    let burst = 64.0 * chip().channels.value / chip().dram_bandwidth.value;
    let later = time(128) - time(1024);
    assert!((burst..7.0 * burst).contains(&later), "{later} ns");
}

#[test]
fn bandwidth_grows_with_bytes_in_flight_to_what_reads_reach() {
    let found: Vec<f64> = [512, 2048, 8192, 16384].map(|bytes| bandwidth(chip(), bytes, 24)).into();
    // With few bytes in flight it is theirs by the latency.
    let alone = 512.0 * f64::from(chip().multiprocessors) / chip().dram.value;
    near(found[0], alone, 0.15);
    assert!(found.is_sorted(), "{found:?}");
    near(found[3], chip().dram_bandwidth.value, 0.12);
    assert!(found[3] <= chip().dram_bandwidth.value);
}

/// Every warp but the first comes to the barrier late, the last one latest.
const BARRIER: &str = r#"
.visible .entry meet(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .f32 %f<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    shr.u32 %r3, %r2, 5;
    mul.lo.u32 %r3, %r3, %r1;
LATE:
    setp.eq.u32 %p, %r3, 0;
    @%p bra MEET;
    fma.rn.f32 %f1, %f1, %f1, %f1;
    add.u32 %r3, %r3, -1;
    bra LATE;
MEET:
    bar.sync 0;
    st.global.u32 [%rd1], %r2;
    ret;
}
"#;

#[test]
fn iterations_of_a_loop_that_an_assembler_unrolls_wait_together() {
    let (rounds, stride) = (64, 1 << 16);
    let time = |text: &str| {
        let rig = timed(chip(), text);
        let from = rig.memory.alloc((rounds + 1) * stride).unwrap();
        rig.time("read", 1, 32, &[from, rounds, stride, from]).nanoseconds
    };
    let trips = |count: u64| count as f64 * chip().dram.value;
    let nounroll = "    .pragma \"nounroll\";\n";
    near(time(READ), trips(rounds), 0.1);
    near(time(&READ.replace(nounroll, "")), trips(rounds / 4), 0.25);
    // A step that is not known, something that others see, a value that ends the loop: it stays as it is.
    for (from, to) in [
        ("add.u32 %r1, %r1, -1", "sub.u32 %r1, %r1, %r12"),
        ("xor.b32 %r10, %r10, %r8;", "xor.b32 %r10, %r10, %r8;\n    bar.warp.sync -1;"),
        ("setp.ne.u32 %p, %r1, 0;", "mad.lo.u32 %r13, %r5, 0, %r1;\n    setp.ne.u32 %p, %r13, 0;"),
    ] {
        let text = READ
            .replace(nounroll, "")
            .replace(from, to)
            .replace("mov.u32 %r10, 0;", "mov.u32 %r10, 0;\n    mov.u32 %r12, 1;");
        near(time(&text), trips(rounds), 0.1);
    }
}

#[test]
fn a_barrier_is_the_latest_arrival() {
    let rig = timed(chip(), BARRIER);
    let out = rig.u32s(&[0]);
    let time = |warps: u32, rounds| rig.time("meet", 1, 32 * warps, &[out, rounds]);
    let alone = time(1, 0).nanoseconds;
    let (late, later) = (time(2, 300), time(4, 100));
    // A warp that comes 300 rounds late, beside one or three others that wait for it.
    near(late.nanoseconds - alone, later.nanoseconds - alone, 0.1);
    assert!(late.nanoseconds > alone + 300.0 * 8.0 / chip().clock.value, "{alone} {}", late.nanoseconds);
    let [.., barrier] = late.blocks[0].stalls;
    near(barrier, (late.nanoseconds - alone) / 2.0, 0.25);
}

/// Block 0 works, then releases a flag that the other block acquires.
const FLAG: &str = r#"
.visible .entry flag(.param .u64 flag, .param .u32 rounds)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .f32 %f<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [flag];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %ctaid.x;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra POLL;
WORK:
    fma.rn.f32 %f1, %f1, %f1, %f1;
    add.u32 %r1, %r1, -1;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra WORK;
    st.release.gpu.global.u32 [%rd1], 1;
    ret;
POLL:
    ld.acquire.gpu.global.u32 %r3, [%rd1];
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra POLL;
    st.global.u32 [%rd1+4], %r3;
    ret;
}
"#;

#[test]
fn an_acquire_is_not_before_its_release_and_polls_take_no_time() {
    let rig = timed(chip(), FLAG);
    let run = |rounds| {
        let flag = rig.u32s(&[0; 2]);
        let time = rig.time("flag", 2, 1, &[flag, rounds]);
        assert_eq!(rig.read_u32s(flag, 2), [1, 1]);
        for block in &time.blocks {
            let waited: f64 = block.stalls.iter().sum();
            assert!(waited <= block.end - block.begin, "{waited} ns waited of {} to {}", block.begin, block.end);
        }
        (time.nanoseconds, time.l2_bytes)
    };
    let ((short, few), (long, many)) = (run(300), run(900));
    // The chain of a round: a sum, a comparison, a branch.
    let round = (2.0 * chip().latency.value + chip().branch.value) / chip().clock.value;
    near(long - short, 600.0 * round, 0.05);
    // The fence of the release, and trips.
    let over = short - 300.0 * round - chip().fence.unwrap().value;
    assert!(over > chip().l2[0].value && over < 5.0 * chip().l2[1].value, "{over} ns beyond the work");
    // The sector of the flag, for each look: a trip, and the clocks of the loop.
    let period = 32.0 * 600.0 * round / (many - few);
    assert!(period > chip().l2[0].value && period < 1.5 * chip().l2[1].value, "a look in {period} ns");
}

/// One thread adds to a word again and again, each time what it has read.
const ADD: &str = r#"
.visible .entry add(.param .u64 word, .param .u32 rounds)
{
    .reg .pred %p;
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [word];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, 1;
LOOP:
    atom.relaxed.gpu.global.add.u32 %r2, [%rd1], %r2;
    add.u32 %r1, %r1, -1;
    setp.ne.u32 %p, %r1, 0;
    @%p bra LOOP;
    ret;
}
"#;

/// One thread loads a word again and again, with a fence between, which waits for the word.
const AGAIN: &str = r#"
.visible .entry again(.param .u64 word, .param .u32 rounds)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [word];
    ld.param.u32 %r1, [rounds];
LOOP:
    ld.global.u64 %rd1, [%rd1];
    setp.ne.u64 %p1, %rd1, 0;
    @%p1 FENCE;
    add.u32 %r1, %r1, -1;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra LOOP;
    st.global.u64 [%rd1+8], %rd1;
    ret;
}
"#;

#[test]
fn nothing_of_device_memory_is_in_l1_behind_a_fence() {
    let time = |fence: &str| {
        let rig = timed(chip(), &AGAIN.replace("FENCE", fence));
        let word = list(&rig, 1, 128);
        let time = |rounds| rig.time("again", 1, 1, &[word, rounds]).nanoseconds;
        (time(40) - time(20)) / 20.0
    };
    let [block, device] = ["fence.acq_rel.cta", "fence.acq_rel.gpu"].map(time);
    // What a round takes besides its load.
    let besides = block - chip().l1.value / chip().clock.value;
    assert!(besides > 0.0, "{block} ns");
    let l2 = (chip().l2[0].value + chip().l2[1].value) / 2.0;
    near(device - chip().fence.unwrap().value - besides, l2, 0.1);
}

#[test]
fn an_atomic_operation_goes_to_the_half_that_its_slice_lies_in() {
    let chip = chip_file("a100").unwrap();
    let rig = timed(chip, ADD);
    let words = rig.u32s(&[0; 32 * 80]);
    let time = |line: u64| {
        let time = |rounds| rig.time("add", 1, 1, &[words + 128 * line, rounds]).nanoseconds;
        (time(20) - time(10)) / 10.0
    };
    let times: Vec<f64> = (0..80).map(time).collect();
    let [near, far] = [f64::min, f64::max].map(|of| times.iter().copied().reduce(of).unwrap());
    self::near(far - near, chip.l2[1].value - chip.l2[0].value, 0.05);
    assert!(near > chip.l2[0].value && near < 1.2 * chip.l2[0].value, "{near} ns");
}

/// A kernel that says 1 to the host and waits for its word.
const ASK: &str = r#"
.visible .entry ask(.param .u64 words)
{
    .reg .pred %p;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [words];
    st.relaxed.sys.global.u32 [%rd1], 1;
LOOK:
    ld.acquire.sys.global.u32 %r1, [%rd1+4];
    setp.eq.u32 %p, %r1, 0;
    @%p bra LOOK;
    ret;
}
"#;

#[test]
fn the_host_answers_after_a_constant_time_however_long_it_took() {
    let rig = timed(chip(), ASK);
    let mut words = [0u32; 2];
    let host = words.as_mut_ptr();
    // SAFETY: the words outlive the mapping; host and kernel access them by atomic operations only.
    let (seen, address) = unsafe {
        let each = |i| std::sync::atomic::AtomicU32::from_ptr(host.add(i));
        ([each(0), each(1)], rig.memory.map_host(host.cast(), 8))
    };
    let run = |pause: Option<u64>| {
        use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
        seen[0].store(0, Relaxed);
        seen[1].store(pause.is_none().into(), Relaxed);
        std::thread::scope(|scope| {
            if let Some(pause) = pause {
                scope.spawn(move || {
                    while seen[0].load(Acquire) == 0 {
                        std::thread::yield_now();
                    }
                    std::thread::sleep(std::time::Duration::from_millis(pause));
                    seen[1].store(1, Release);
                });
            }
            rig.time("ask", 1, 1, &[address]).nanoseconds
        })
    };
    let (there, soon, late) = (run(None), run(Some(100)), run(Some(200)));
    near(there, chip().host.value, 0.1);
    near(soon - there, 1e3 * chip().answer.value, 0.02);
    assert_eq!(soon.to_bits(), late.to_bits());
    rig.memory.free(address).unwrap();
}

/// A warp adds to 32 words, `stride` bytes apart, again and again.
const COUNT: &str = r#"
.visible .entry count(.param .u64 words, .param .u32 rounds, .param .u64 stride)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [rounds];
    ld.param.u64 %rd2, [stride];
    mov.u32 %r2, %tid.x;
    cvt.u64.u32 %rd3, %r2;
    mad.lo.u64 %rd1, %rd3, %rd2, %rd1;
LOOP:
    red.relaxed.gpu.global.add.u32 [%rd1], 1;
    add.u32 %r1, %r1, -1;
    setp.ne.u32 %p, %r1, 0;
    @%p bra LOOP;
    ret;
}
"#;

#[test]
fn atomic_operations_of_a_slice_follow_each_other() {
    let rig = timed(chip(), COUNT);
    let words = rig.memory.alloc(1 << 14).unwrap();
    rig.memory.write(words, &[0; 1 << 14]).unwrap();
    let each = |stride| clocks(rig.time("count", 1, 32, &[words, 1000, stride]).nanoseconds) / 1000.0;
    // Words of one line lie in one slice, lines that follow each other in 32.
    near(each(4), 32.0 * chip().atomic.value, 0.05);
    assert!(each(128) < 0.7 * each(4), "{} clocks, {}", each(128), each(4));
}

#[test]
fn a_launch_takes_the_same_time_on_every_run() {
    let run = || bandwidth(chip(), 4096, 6);
    assert_eq!(run().to_bits(), run().to_bits());
}

#[test]
fn time_is_what_the_chip_says_and_nothing_else_changes_with_it() {
    let rig = timed(chip(), READ);
    let report = rig.launch("read", 2, 32, &[rig.memory.alloc(4096).unwrap(), 2, 1024, 0]).unwrap();
    let timing = report.timing.clone().unwrap();
    assert_eq!((timing.chip, timing.blocks.len()), ("h100-sxm", 2));
    assert_eq!(timing.dram_bytes, 2048.0);
    let mut plain = Rig::new(&ptx(75, READ));
    plain.config.checks = Checks::NONE;
    let without = plain.launch("read", 2, 32, &[plain.memory.alloc(4096).unwrap(), 2, 1024, 0]).unwrap();
    assert_eq!((without.warp_instructions, without.timing), (report.warp_instructions, None));
}
