//! The clock beside published microbenchmarks that no chip file was made from: every point of `docs/CLOCK.md`'s first
//! table is modelled here, and the table held to it. `KILN_BLESS=1` has the long test rewrite the table.

use crate::points::{self, Point};
use crate::rig::Rig;
use kiln_emulator::{ChipFile, DeviceConfig, Figure, chip_file};

/// A block's ring of two bulk copies, so many bytes each.
const RING: &str = r#"
.visible .entry ring(.param .u64 from, .param .u32 bytes, .param .u32 rounds)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<6>;
    .shared .align 16 .b8 data[65536];
    .shared .align 8 .b64 full[2];
    ld.param.u64 %rd1, [from];
    ld.param.u32 %r1, [bytes];
    ld.param.u32 %r2, [rounds];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r11, %nctaid.x;
    mul.lo.u32 %r12, %r11, %r1;
    cvt.u64.u32 %rd4, %r12;
    mul.wide.u32 %rd2, %r3, %r1;
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r4, full;
    mov.u32 %r5, data;
    mbarrier.init.shared.b64 [%r4], 1;
    mbarrier.init.shared.b64 [%r4+8], 1;
    fence.proxy.async;
    mov.u32 %r6, 0;
ISSUE:
    and.b32 %r7, %r6, 1;
    shl.b32 %r8, %r7, 3;
    add.u32 %r8, %r4, %r8;
    mad.lo.u32 %r9, %r7, %r1, %r5;
    mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r8], %r1;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9], [%rd1], %r1, [%r8];
    add.u64 %rd1, %rd1, %rd4;
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p1, %r6, 2;
    @%p1 bra ISSUE;
    // The copy before the last one has to come before the next.
    sub.u32 %r10, %r6, 2;
    shr.u32 %r13, %r10, 1;
    and.b32 %r13, %r13, 1;
    and.b32 %r7, %r10, 1;
    shl.b32 %r8, %r7, 3;
    add.u32 %r8, %r4, %r8;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r8], %r13;
    @!%p2 bra WAIT;
    setp.lt.u32 %p1, %r6, %r2;
    @%p1 bra ISSUE;
    sub.u32 %r10, %r6, 1;
    shr.u32 %r13, %r10, 1;
    and.b32 %r13, %r13, 1;
    and.b32 %r7, %r10, 1;
    shl.b32 %r8, %r7, 3;
    add.u32 %r8, %r4, %r8;
LAST:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r8], %r13;
    @!%p2 bra LAST;
    ret;
}
"#;

/// Each thread takes an element of 8 bytes: reads, scales, or adds two (gpu-stream of RRZE-HPC/gpu-benches).
fn stream(kind: &str) -> String {
    let work = match kind {
        "read" => "setp.neu.f64 %p2, %fd1, %fd1;\n    @%p2 st.global.f64 [%rd6], %fd1;",
        "scale" => "mul.f64 %fd2, %fd1, %fd1;\n    st.global.f64 [%rd6], %fd2;",
        _ => {
            "add.u64 %rd7, %rd3, %rd4;\n    ld.global.nc.f64 %fd3, [%rd7];\n    fma.rn.f64 %fd2, %fd1, %fd1, %fd3;\n    \
             st.global.f64 [%rd6], %fd2;"
        }
    };
    format!(
        r#"
.visible .entry stream(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .f64 %fd<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r5, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p1, %r4, %r5;
    @%p1 bra END;
    mul.wide.u32 %rd4, %r4, 8;
    add.u64 %rd5, %rd2, %rd4;
    add.u64 %rd6, %rd1, %rd4;
    ld.global.nc.f64 %fd1, [%rd5];
    {work}
END:
    ret;
}}
"#
    )
}

/// Every thread reads 16 bytes in a round, a grid's length from the round before.
const SWEEP: &str = r#"
.visible .entry sweep(.param .u64 from, .param .u32 rounds)
{
    .reg .pred %p<2>;
    .reg .b32 %r<32>;
    .reg .b64 %rd<12>;
    ld.param.u64 %rd1, [from];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, %nctaid.x;
    mad.lo.u32 %r6, %r2, %r3, %r4;
    mul.wide.u32 %rd2, %r6, 16;
    add.u64 %rd1, %rd1, %rd2;
    mul.lo.u32 %r7, %r3, %r5;
    mul.wide.u32 %rd3, %r7, 16;
    mov.u32 %r8, 0;
LOOP:
    .pragma "nounroll";
    ld.global.nc.v4.u32 {%r10, %r11, %r12, %r13}, [%rd1];
    xor.b32 %r8, %r8, %r10;
    add.u64 %rd1, %rd1, %rd3;
    add.u32 %r1, %r1, -1;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra LOOP;
    setp.eq.u32 %p1, %r8, 77;
    @%p1 st.global.u32 [%rd1], %r8;
    ret;
}
"#;

/// A grid scales 4096 elements of 8 bytes and meets at a count, again and again: after a barrier of the block one thread
/// adds to it and polls it.
const MEET: &str = r#"
.visible .entry meet(.param .u64 count, .param .u32 rounds, .param .u64 data)
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .f64 %fd<2>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [count];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %nctaid.x;
    mov.u32 %r4, 0;
    setp.ne.u32 %p1, %r2, 0;
    ld.param.u64 %rd2, [data];
    mov.u32 %r6, %ctaid.x;
    mov.u32 %r7, %ntid.x;
    mad.lo.u32 %r8, %r6, %r7, %r2;
    mul.wide.u32 %rd3, %r8, 8;
    add.u64 %rd2, %rd2, %rd3;
    setp.lt.u32 %p0, %r8, 4096;
ROUND:
    @%p0 ld.global.f64 %fd1, [%rd2];
    @%p0 mul.f64 %fd1, %fd1, %fd1;
    @%p0 st.global.f64 [%rd2+32768], %fd1;
    add.u32 %r4, %r4, %r3;
    bar.sync 0;
    @%p1 bra MEET;
    red.release.gpu.global.add.u32 [%rd1], 1;
POLL:
    ld.acquire.gpu.global.u32 %r5, [%rd1];
    setp.lt.u32 %p2, %r5, %r4;
    @%p2 bra POLL;
MEET:
    bar.sync 0;
    add.u32 %r1, %r1, -1;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra ROUND;
    ret;
}
"#;

fn named(name: &str) -> &'static ChipFile {
    chip_file(name).unwrap()
}

fn rig(chip: &'static ChipFile, target: u32, body: &str) -> Rig {
    let mut rig = Rig::new(&crate::rig::ptx(target, body));
    rig.config = DeviceConfig { step_limit: None, ..DeviceConfig::clocked(chip) };
    rig
}

/// GB/s of all multiprocessors, each with a ring of so many bytes in flight.
fn ring(chip: &'static ChipFile, bytes: u64) -> f64 {
    let rig = rig(chip, 90, RING);
    let (blocks, rounds) = (u64::from(chip.multiprocessors), (96 << 10) / bytes.min(32 << 10) + 8);
    let from = rig.memory.alloc(blocks * bytes / 2 * rounds).unwrap();
    let time = rig.time("ring", blocks as u32, 1, &[from, bytes / 2, rounds]);
    (blocks * bytes / 2 * rounds) as f64 / time.nanoseconds
}

/// GB/s of a stream kernel with two blocks of so many threads on each multiprocessor.
fn streamed(chip: &'static ChipFile, kind: &str, threads: u32) -> f64 {
    // Of the 1 GB that each array has, a few MB are run, and of L2 as much less is there to keep what was written.
    let chip = Box::leak(Box::new(ChipFile { l2_bytes: Figure { value: 1e6, ..chip.l2_bytes }, ..*chip }));
    let mut rig = rig(chip, 75, &stream(kind));
    // What keeps a third block out.
    rig.dynamic_shared = if chip.sm.0 >= 9 { 90 << 10 } else { 70 << 10 };
    let blocks = 16 * chip.multiprocessors;
    let n = u64::from(blocks * threads);
    let [a, b, c] = [0; 3].map(|_| rig.memory.alloc(8 * n).unwrap());
    let time = rig.time("stream", blocks, threads, &[a, b, c, n]);
    let streams = match kind {
        "read" => 1,
        "scale" => 2,
        _ => 3,
    };
    (streams * 8 * n) as f64 / time.nanoseconds
}

/// Microseconds of so many blocks of 1024 threads that read memory once.
fn sweep(chip: &'static ChipFile, blocks: u32, megabytes: f64) -> f64 {
    let rig = rig(chip, 75, SWEEP);
    let each = f64::from(blocks) * 16384.0;
    let rounds = (megabytes * 1e6 / each).round().max(1.0) as u64;
    let from = rig.memory.alloc(u64::from(blocks) * 16384 * rounds).unwrap();
    rig.time("sweep", blocks, 1024, &[from, rounds]).nanoseconds / 1e3
}

/// As [`MEET`], by what a cooperative group's barrier does besides: fences around it, and an atomic operation whose result
/// the looks are compared with.
fn cooperative() -> String {
    let atomic =
        "fence.acq_rel.gpu;\n    atom.relaxed.gpu.global.add.u32 %r9, [%rd1], 1;\n    mad.lo.u32 %r10, %r9, 0, %r4;";
    let text = MEET.replace("red.release.gpu.global.add.u32 [%rd1], 1;", atomic);
    let text = text.replace("ld.acquire.gpu.global.u32 %r5", "ld.relaxed.gpu.global.u32 %r5");
    text.replace("%r5, %r4;\n    @%p2 bra POLL;", "%r5, %r10;\n    @%p2 bra POLL;\n    fence.acq_rel.gpu;")
}

/// Microseconds of a barrier over all multiprocessors.
fn meet(chip: &'static ChipFile, text: &str) -> f64 {
    let mut rig = rig(chip, 75, text);
    rig.cooperative = true;
    let time = |rounds: u64| {
        let (count, data) = (rig.u32s(&[0]), rig.memory.alloc(1 << 16).unwrap());
        rig.time("meet", chip.multiprocessors, 256, &[count, rounds, data]).nanoseconds / 1e3
    };
    (time(9) - time(1)) / 8.0
}

fn points() -> Vec<Point> {
    let mut all = Vec::new();
    let mut add = |what: String, chip: &'static str, unit, published, model: Box<dyn Fn() -> f64>| {
        all.push(Point { what, source: None, chip, unit, published, memory: false, model });
    };
    for (kilobytes, published) in
        [(1, 223.0), (2, 430.0), (4, 815.0), (8, 1300.0), (12, 1510.0), (16, 1720.0), (24, 1811.0), (64, 1826.0)]
    {
        let model = Box::new(move || ring(named("h100-pcie"), kilobytes << 10));
        add(format!("bulk copies, {kilobytes} KB in flight"), "h100-pcie", "GB/s", published, model);
    }
    // Shares of the peak of 896 GB/s; that of 16 KB and more is an input.
    for (kilobytes, published) in [(4, 0.81 * 896.0), (8, 0.945 * 896.0)] {
        let model = Box::new(move || ring(named("rtx-5070-ti"), kilobytes << 10));
        add(format!("bulk copies, {kilobytes} KB in flight"), "rtx-5070-ti", "GB/s", f64::round(published), model);
    }
    // The reachable bandwidths of H100 PCIe and H200 are from the same tables: their rows of all threads are left out.
    for (chip, threads, read, scale, triad) in [
        ("h100-pcie", 32, 96.0, 183.0, 254.0),
        ("h100-pcie", 128, 368.0, 607.0, 821.0),
        ("h100-pcie", 512, 1261.0, 1583.0, 1675.0),
        ("h200", 32, 123.0, 240.0, 334.0),
        ("h200", 128, 485.0, 852.0, 1129.0),
        ("h200", 512, 1707.0, 2263.0, 2919.0),
        ("a100", 32, 85.0, 157.0, 221.0),
        ("a100", 128, 325.0, 581.0, 799.0),
        ("a100", 512, 1122.0, 1577.0, 1659.0),
    ] {
        for (kind, published) in [("read", read), ("scale", scale), ("triad", triad)] {
            let model = Box::new(move || streamed(named(chip), kind, threads));
            add(format!("{kind}, two blocks of {threads} threads"), chip, "GB/s", published, model);
        }
    }
    // A kernel that does nothing is published too: 0.95 us with 32 blocks and less, 1.24 with 128 and more.
    for (megabytes, published) in [(4.19, 3.34), (8.39, 5.18), (16.78, 8.21), (33.55, 14.26)] {
        let model = Box::new(move || 1.24 + sweep(named("h100-sxm"), 128, megabytes));
        add(format!("cold read of {megabytes} MB"), "h100-sxm", "us", published, model);
    }
    // Between 32 and 128 blocks a kernel that does nothing is taken to lie between the two.
    for (blocks, nothing, published) in [(16, 0.95, 471.0), (32, 0.95, 773.0), (64, 1.05, 1090.0)] {
        let model = Box::new(move || 4.19e3 / (nothing + sweep(named("h100-sxm"), blocks, 4.19)));
        add(format!("cold read of 4.19 MB by {blocks} blocks"), "h100-sxm", "GB/s", published, model);
    }
    add("32 KB scaled, a barrier by one atomic".into(), "h200", "us", 1.04, Box::new(|| meet(named("h200"), MEET)));
    // Cooperative groups' barrier: an atomic operation of each block, and looks at its word.
    for (chip, published) in [("h200", 1.26), ("a100", 1.34), ("rtx-3090", 0.73)] {
        let model = Box::new(move || meet(named(chip), &cooperative()));
        add("32 KB scaled, a cooperative grid's barrier".into(), chip, "us", published, model);
    }
    all
}

#[test]
fn some_rows_of_the_table_are_what_the_clock_says() {
    points::hold(points().iter().step_by(7));
}

#[test]
#[ignore = "seconds even on an idle machine; .ci/long runs it in a release build"]
fn the_table_is_what_the_clock_says() {
    points::hold_table("microbenchmarks", "program", &points());
}
