//! Control flow, memory, barriers and faults, each by a small kernel whose result is worked out by hand.

use crate::rig::{Rig, ptx, schedules};
use kiln_emulator::{FaultKind, Memory, Module};

const SAXPY: &str = r#"
.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [a];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mul.wide.s32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    ld.global.f32 %f3, [%rd5];
    fma.rn.f32 %f3, %f1, %f2, %f3;
    st.global.f32 [%rd5], %f3;
DONE:
    ret;
}
"#;

#[test]
fn saxpy_writes_exactly_its_elements() {
    let rig = Rig::new(&ptx(75, SAXPY));
    let n = 1000;
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let (dx, dy) = (rig.f32s(&x), rig.f32s(&vec![1.0; n]));
    rig.launch("saxpy", 8, 128, &[dx, dy, u64::from(2f32.to_bits()), 997]).unwrap();
    let y = rig.read_f32s(dy, n);
    for i in 0..n {
        assert_eq!(y[i], if i < 997 { 2.0 * i as f32 + 1.0 } else { 1.0 });
    }
}

#[test]
fn a_read_past_the_end_names_line_thread_and_address() {
    let rig = Rig::new(&ptx(75, SAXPY));
    let (dx, dy) = (rig.f32s(&[0.0; 100]), rig.f32s(&[0.0; 200]));
    let f = rig.launch("saxpy", 2, 128, &[dx, dy, 0, 200]).unwrap_err();
    assert_eq!(f.kind, FaultKind::OutOfBounds);
    assert_eq!(f.cuda_code(), 700);
    assert_eq!((f.block, f.thread, f.address), (Some([0; 3]), Some([100, 0, 0]), Some(dx + 400)));
    let line = ptx(75, SAXPY).lines().position(|l| l.contains("ld.global.f32 %f2")).unwrap() as u32 + 1;
    assert_eq!(f.ptx_line, line);
}

#[test]
fn freed_and_misaligned_memory_is_reported() {
    let rig = Rig::new(&ptx(75, SAXPY));
    let (dx, dy) = (rig.f32s(&[0.0; 64]), rig.f32s(&[0.0; 64]));
    let f = rig.launch("saxpy", 1, 32, &[dx + 2, dy, 0, 32]).unwrap_err();
    assert_eq!((f.kind, f.cuda_code()), (FaultKind::Misaligned, 716));
    rig.memory.free(dx).unwrap();
    let f = rig.launch("saxpy", 1, 32, &[dx, dy, 0, 32]).unwrap_err();
    assert_eq!(f.kind, FaultKind::UseAfterFree);
}

/// Each lane counts down from its own number; the loop ends at a different time in every lane.
const COLLATZ: &str = r#"
.visible .entry collatz(.param .u64 out)
{
    .reg .pred %p<3>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    add.u32 %r2, %r1, 1;
    mov.u32 %r3, 0;
LOOP:
    setp.eq.u32 %p1, %r2, 1;
    @%p1 bra END;
    and.b32 %r4, %r2, 1;
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra EVEN;
    mad.lo.u32 %r2, %r2, 3, 1;
    bra NEXT;
EVEN:
    shr.u32 %r2, %r2, 1;
NEXT:
    add.u32 %r3, %r3, 1;
    bra LOOP;
END:
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
    ret;
}
"#;

#[test]
fn divergent_loops_end_right_in_every_lane() {
    for (schedule, split_warps, seed) in schedules() {
        let mut rig = Rig::new(&ptx(75, COLLATZ));
        (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
        let out = rig.u32s(&[0; 96]);
        rig.launch("collatz", 1, 96, &[out]).unwrap();
        let steps = |mut n: u32| {
            let mut s = 0;
            while n != 1 {
                n = if n & 1 == 0 { n / 2 } else { 3 * n + 1 };
                s += 1;
            }
            s
        };
        assert_eq!(rig.read_u32s(out, 96), (1..=96).map(steps).collect::<Vec<_>>());
    }
}

/// Sums 256 numbers through shared memory.
const REDUCE: &str = r#"
.visible .entry reduce(.param .u64 in, .param .u64 out)
{
    .shared .align 4 .b8 tile[1024];
    .reg .pred %p<3>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [in];
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd1, %rd1, %rd3;
    ld.global.u32 %r2, [%rd1];
    mov.u32 %r3, tile;
    shl.b32 %r4, %r1, 2;
    add.u32 %r4, %r4, %r3;
    st.shared.u32 [%r4], %r2;
    mov.u32 %r5, 128;
LOOP:
    bar.sync 0;
    setp.ge.u32 %p1, %r1, %r5;
    @%p1 bra SKIP;
    shl.b32 %r6, %r5, 2;
    add.u32 %r6, %r6, %r4;
    ld.shared.u32 %r7, [%r6];
    ld.shared.u32 %r8, [%r4];
    add.u32 %r8, %r8, %r7;
    st.shared.u32 [%r4], %r8;
SKIP:
    shr.u32 %r5, %r5, 1;
    setp.ne.u32 %p2, %r5, 0;
    @%p2 bra LOOP;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 ret;
    st.global.u32 [%rd2], %r8;
    ret;
}
"#;

#[test]
fn a_block_reduction_is_right_under_every_schedule() {
    for (schedule, split_warps, seed) in schedules() {
        let mut rig = Rig::new(&ptx(75, REDUCE));
        (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
        let input: Vec<u32> = (0..256).map(|i| i * i).collect();
        let (a, b) = (rig.u32s(&input), rig.u32s(&[0]));
        rig.launch("reduce", 1, 256, &[a, b]).unwrap();
        assert_eq!(rig.read_u32s(b, 1)[0], input.iter().sum());
    }
}

/// A grid barrier: every block adds, then waits until all have, then reads what the next block wrote.
const GRID: &str = r#"
.visible .entry neighbours(.param .u64 slots, .param .u64 counter, .param .u64 out)
{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [slots];
    ld.param.u64 %rd2, [counter];
    ld.param.u64 %rd3, [out];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %rd4, %r1, 4;
    add.u64 %rd5, %rd1, %rd4;
    add.u32 %r4, %r1, 100;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra WAITED;
    st.global.u32 [%rd5], %r4;
    fence.acq_rel.gpu;
    atom.relaxed.gpu.global.add.u32 %r5, [%rd2], 1;
SPIN:
    ld.relaxed.gpu.global.u32 %r6, [%rd2];
    setp.lt.u32 %p2, %r6, %r2;
    @%p2 bra SPIN;
    fence.acq_rel.gpu;
WAITED:
    bar.sync 0;
    add.u32 %r7, %r1, 1;
    rem.u32 %r7, %r7, %r2;
    mul.wide.u32 %rd6, %r7, 4;
    add.u64 %rd7, %rd1, %rd6;
    ld.global.u32 %r8, [%rd7];
    @%p1 ret;
    add.u64 %rd8, %rd3, %rd4;
    st.global.u32 [%rd8], %r8;
    ret;
}
"#;

#[test]
fn a_grid_barrier_orders_all_blocks_under_every_schedule() {
    for (schedule, split_warps, seed) in schedules() {
        let mut rig = Rig::new(&ptx(75, GRID));
        (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
        rig.cooperative = true;
        let blocks = 37;
        let (slots, counter, out) = (rig.u32s(&vec![0; blocks]), rig.u32s(&[0]), rig.u32s(&vec![0; blocks]));
        rig.launch("neighbours", blocks as u32, 64, &[slots, counter, out]).unwrap();
        let expected: Vec<u32> = (0..blocks as u32).map(|b| (b + 1) % blocks as u32 + 100).collect();
        assert_eq!(rig.read_u32s(out, blocks), expected);
    }
}

#[test]
fn a_flag_that_nobody_sets_is_a_deadlock_with_positions() {
    let mut rig = Rig::new(&ptx(75, GRID));
    rig.cooperative = true;
    rig.config.livelock_rounds = Some(1000);
    let (slots, counter, out) = (rig.u32s(&[0; 4]), rig.u32s(&[0x8000_0000]), rig.u32s(&[0; 4]));
    // The counter wraps the comparison: with this start the loop ends at once.
    rig.launch("neighbours", 4, 64, &[slots, counter, out]).unwrap();
    let text = ptx(75, GRID).replace("setp.lt.u32 %p2, %r6, %r2", "setp.le.u32 %p2, %r6, %r2");
    let mut rig = Rig::new(&text);
    rig.cooperative = true;
    rig.config.livelock_rounds = Some(1000);
    let (slots, counter, out) = (rig.u32s(&[0; 4]), rig.u32s(&[0]), rig.u32s(&[0; 4]));
    let f = rig.launch("neighbours", 4, 64, &[slots, counter, out]).unwrap_err();
    assert_eq!(f.kind, FaultKind::Deadlock);
    for block in 0..4 {
        let polls =
            format!("block ({block}, 0, 0) warp 0 lanes 00000001 polls the word at {counter:#x}, which holds 0x4,");
        assert!(f.message.contains(&polls), "{f}");
        let waits = format!(
            "block ({block}, 0, 0) warp 1 lanes ffffffff waits at barrier 0 (32 of 64 threads arrived; not there: warps 0)"
        );
        assert!(f.message.contains(&waits), "{f}");
    }
}

#[test]
fn a_deadlock_names_the_mbarrier_and_the_lanes_that_are_missing() {
    let text = ptx(
        90,
        ".visible .entry k() { .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %rd<3>; .shared .align 8 .b64 full;
         mov.u32 %r1, %tid.x; mov.u32 %r2, full; setp.ne.u32 %p1, %r1, 0;
         @!%p1 mbarrier.init.shared.b64 [%r2], 3; bar.sync 0; @%p1 bra WAIT; mbarrier.arrive.shared.b64 %rd1, [%r2];
         bra LAST;
         WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra WAIT;
         LAST: bar.warp.sync -1; // kernels/stuck.rs:31
         ret; }",
    );
    let mut rig = Rig::new(&text);
    rig.config.livelock_rounds = Some(100);
    let f = rig.launch("k", 1, 32, &[]).unwrap_err();
    assert_eq!(f.kind, FaultKind::Deadlock, "{f}");
    let mbarrier = "lanes fffffffe waits for the mbarrier at 0x0 (phase 0, 2 arrivals and 0 bytes missing)";
    assert!(f.message.contains(mbarrier), "{f}");
    assert!(f.message.contains("lanes 00000001 waits for lanes fffffffe of its warp at bar.warp.sync"), "{f}");
    assert!(f.message.contains("kernels/stuck.rs:31"), "{f}");
}

#[test]
fn a_barrier_in_one_branch_is_reported() {
    let text = ptx(
        75,
        r#"
.visible .entry k()
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 7;
    @%p1 bra OUT;
    bar.sync 0;
OUT:
    bar.sync 1;
    ret;
}"#,
    );
    let f = Rig::new(&text).launch("k", 1, 64, &[]).unwrap_err();
    assert_eq!(f.kind, FaultKind::DivergentBarrier, "{f}");
}

#[test]
fn an_unwritten_register_is_reported_only_where_it_can_be_unwritten() {
    let text = |guard: &str| {
        ptx(
            75,
            &format!(
                r#"
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 16;
    {guard} mov.u32 %r2, 5;
    @!%p1 ret;
    setp.ne.u32 %p0, %r2, 5;
    @%p0 ret;
    st.global.u32 [%rd1], %r2;
    ret;
}}"#
            ),
        )
    };
    for (guard, ok) in [("", true), ("@%p1", true), ("@!%p1", false)] {
        let rig = Rig::new(&text(guard));
        let out = rig.u32s(&[0]);
        let r = rig.launch("k", 1, 1, &[out]);
        match (ok, r) {
            (true, Ok(_)) => assert_eq!(rig.read_u32s(out, 1), [5]),
            (false, Err(f)) => {
                assert_eq!(f.kind, FaultKind::UninitialisedRegister);
                assert!(f.message.contains("%r2"), "{f}");
            }
            (_, r) => panic!("{guard}: {r:?}"),
        }
    }
}

/// A lock inside a warp: lanes take it one after the other, which needs independent progress of diverged lanes.
const LOCK: &str = r#"
.visible .entry locked(.param .u64 lock, .param .u64 sum)
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [lock];
    ld.param.u64 %rd2, [sum];
TAKE:
    atom.acquire.gpu.global.cas.b32 %r1, [%rd1], 0, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra TAKE;
    ld.global.u32 %r2, [%rd2];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd2], %r2;
    st.release.gpu.global.u32 [%rd1], 0;
    ret;
}
"#;

#[test]
fn lanes_of_one_warp_can_take_turns_at_a_lock() {
    for (schedule, split_warps, seed) in schedules() {
        let mut rig = Rig::new(&ptx(75, LOCK));
        (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
        let (lock, sum) = (rig.u32s(&[0]), rig.u32s(&[0]));
        rig.launch("locked", 3, 64, &[lock, sum]).unwrap();
        assert_eq!(rig.read_u32s(sum, 1), [192]);
    }
}

#[test]
fn calls_use_their_own_variables() {
    let text = ptx(
        75,
        r#"
.func (.param .b32 result) twice_plus(.param .b32 a, .param .b64 b)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    .reg .pred %p<2>;
    ld.param.u32 %r1, [a];
    ld.param.u64 %rd1, [b];
    cvt.u32.u64 %r2, %rd1;
    setp.gt.u32 %p1, %r1, 20;
    @%p1 bra BIG;
    mad.lo.u32 %r3, %r1, 2, %r2;
    st.param.b32 [result], %r3;
    ret;
BIG:
    st.param.b32 [result], %r1;
    ret;
}
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mov.u64 %rd2, 7;
    {
        .param .b32 a;
        .param .b64 b;
        .param .b32 r;
        st.param.b32 [a], %r1;
        st.param.b64 [b], %rd2;
        call.uni (r), twice_plus, (a, b);
        ld.param.b32 %r2, [r];
    }
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd4, %rd1, %rd3;
    st.global.u32 [%rd4], %r2;
    ret;
}"#,
    );
    let rig = Rig::new(&text);
    let out = rig.u32s(&[0; 32]);
    rig.launch("k", 1, 32, &[out]).unwrap();
    let expected: Vec<u32> = (0..32).map(|t| if t > 20 { t } else { 2 * t + 7 }).collect();
    assert_eq!(rig.read_u32s(out, 32), expected);
}

#[test]
fn unknown_text_is_refused_with_line_and_token() {
    let memory = Memory::new(1 << 20);
    for (line, token) in [
        ("frobnicate.u32 %r1, %r1;", "frobnicate"),
        ("add.sideways.u32 %r1, %r1, %r1;", ".sideways"),
        ("add.u32 %r1, %r1, %nope;", "%nope"),
        ("add.f32 %r1, %r1, %r1;", "%r1"),
        (".strange 5;", ".strange"),
        ("ld.global.L3::x.u32 %r1, [%rd1];", ".L3::x"),
        ("bra NOWHERE;", "NOWHERE"),
        ("mov.b64 %rd1, %r1;", "%r1"),
    ] {
        let text = format!(
            ".version 7.0\n.target sm_75\n.address_size 64\n.entry k()\n{{\n.reg .u32 %r<3>;\n.reg .b64 %rd<3>;\n{line}\nret;\n}}\n"
        );
        let e = Module::load(&text, &memory).unwrap_err();
        assert_eq!((e.line, e.token.as_str()), (8, token), "{e}");
    }
    assert!(memory.live_allocations().is_empty());
}

#[test]
fn module_variables_hold_their_initial_values() {
    let text = ptx(
        75,
        r#"
.visible .global .align 4 .u32 table[4] = {1, 2, 0xffffffff};
.const .align 4 .f32 scale[2] = {0f3f000000, 2.5};
.global .u64 link = generic(table)+4;
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [table+8];
    ld.const.f32 %f1, [scale+4];
    ld.global.u64 %rd2, [link];
    ld.u32 %r2, [%rd2];
    ld.global.u32 %r3, [table+12];
    st.global.u32 [%rd1], %r1;
    st.global.f32 [%rd1+4], %f1;
    st.global.v2.u32 [%rd1+8], {%r2, %r3};
    ret;
}"#,
    );
    let rig = Rig::new(&text);
    let out = rig.u32s(&[9; 4]);
    rig.launch("k", 1, 1, &[out]).unwrap();
    assert_eq!(rig.read_u32s(out, 4), [u32::MAX, 2.5f32.to_bits(), 2, 0]);
}

#[test]
fn dynamic_shared_memory_follows_the_static_part() {
    let text = ptx(
        75,
        r#"
.extern .shared .align 16 .b8 dyn[];
.visible .entry k(.param .u64 out)
{
    .shared .align 4 .b8 fixed[20];
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, dyn;
    mov.u32 %r2, 77;
    st.shared.u32 [%r1+60], %r2;
    ld.shared.u32 %r3, [dyn+60];
    st.global.u32 [%rd1], %r3;
    st.global.u32 [%rd1+4], %r1;
    ret;
}"#,
    );
    let mut rig = Rig::new(&text);
    rig.dynamic_shared = 64;
    let out = rig.u32s(&[0; 2]);
    rig.launch("k", 1, 1, &[out]).unwrap();
    assert_eq!(rig.read_u32s(out, 2), [77, 32]);
    rig.dynamic_shared = 60;
    let f = rig.launch("k", 1, 1, &[out]).unwrap_err();
    assert_eq!(f.kind, FaultKind::OutOfBounds);
    rig.dynamic_shared = 300_000;
    let f = rig.launch("k", 1, 1, &[out]).unwrap_err();
    assert_eq!((f.kind, f.cuda_code()), (FaultKind::OutOfResources, 701));
}

#[test]
fn shuffles_and_votes_give_what_the_manual_says() {
    let text = ptx(
        75,
        r#"
.visible .entry k(.param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %laneid;
    mul.lo.u32 %r2, %r1, 10;
    shfl.sync.bfly.b32 %r3|%p1, %r2, 1, 31, -1;
    shfl.sync.up.b32 %r4|%p2, %r2, 4, 0, -1;
    shfl.sync.down.b32 %r5, %r2, 30, 31, -1;
    shfl.sync.idx.b32 %r6, %r2, 3, 0x181f, -1;
    setp.lt.u32 %p3, %r1, 5;
    vote.sync.ballot.b32 %r7, %p3, -1;
    selp.u32 %r8, 1, 0, %p2;
    mad.lo.u32 %r9, %r1, 28, 0;
    cvt.u64.u32 %rd2, %r9;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
    st.global.u32 [%rd3+4], %r4;
    st.global.u32 [%rd3+8], %r5;
    st.global.u32 [%rd3+12], %r6;
    st.global.u32 [%rd3+16], %r7;
    st.global.u32 [%rd3+20], %r8;
    and.b32 %r10, %r1, 3;
    match.any.sync.b32 %r11, %r10, -1;
    st.global.u32 [%rd3+24], %r11;
    ret;
}"#,
    );
    let rig = Rig::new(&text);
    let out = rig.u32s(&[0; 32 * 7]);
    rig.launch("k", 1, 32, &[out]).unwrap();
    let got = rig.read_u32s(out, 32 * 7);
    for l in 0..32u32 {
        let up = if l >= 4 { l - 4 } else { l };
        let down = if l + 30 <= 31 { l + 30 } else { l };
        // Segments of eight lanes: lane 3 of each.
        let idx = (l & !7) + 3;
        let any = 0x1111_1111 << (l & 3);
        let expected = [10 * (l ^ 1), 10 * up, 10 * down, 10 * idx, 31, u32::from(l >= 4), any];
        assert_eq!(got[l as usize * 7..][..7], expected, "lane {l}");
    }
}

#[test]
fn a_shuffle_from_a_lane_that_takes_no_part_is_reported() {
    let text = ptx(
        75,
        r#"
.visible .entry k()
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    mov.u32 %r1, %laneid;
    setp.gt.u32 %p1, %r1, 15;
    @%p1 bra OUT;
    shfl.sync.bfly.b32 %r2, %r1, 16, 31, 0xffff;
OUT:
    ret;
}"#,
    );
    let f = Rig::new(&text).launch("k", 1, 32, &[]).unwrap_err();
    assert_eq!(f.kind, FaultKind::InvalidSync, "{f}");
}

/// Every thread adds a float to one sum and takes a ticket: both depend on the order in which blocks take turns.
const TICKETS: &str = r#"
.visible .entry tickets(.param .u64 sum, .param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [sum];
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.u32 %r3, %r2, 64, %r1;
    cvt.rn.f32.u32 %f1, %r3;
    mul.f32 %f1, %f1, 0f3dcccccd;
    atom.global.add.f32 %f2, [%rd1], %f1;
    atom.global.add.u32 %r4, [%rd1+4], 1;
    mul.wide.u32 %rd3, %r3, 4;
    add.u64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r4;
    ret;
}
"#;

#[test]
fn a_seed_reproduces_a_run_on_any_number_of_threads() {
    let run = |schedule, seed, threads| {
        let mut rig = Rig::new(&ptx(75, TICKETS));
        (rig.config.schedule, rig.config.seed, rig.config.threads) = (schedule, seed, threads);
        let (sum, out) = (rig.u32s(&[0; 2]), rig.u32s(&vec![0; 40 * 64]));
        rig.launch("tickets", 40, 64, &[sum, out]).unwrap();
        (rig.read_u32s(sum, 2), rig.read_u32s(out, 40 * 64))
    };
    let mut results = Vec::new();
    for (schedule, _, seed) in schedules() {
        let one = run(schedule, seed, 1);
        assert_eq!(one.0[1], 40 * 64);
        assert!(one == run(schedule, seed, 2) && one == run(schedule, seed, 3), "{schedule:?}");
        results.push(one);
    }
    assert_ne!(results[1], results[2], "seeds differ");
    assert_ne!(results[0], results[3], "schedules differ");
}

#[test]
fn counters_are_exact() {
    let text = ptx(
        75,
        r#"
.visible .entry k(.param .u64 in)
{
    .shared .align 16 .b8 tile[8192];
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [in];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 8;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3]; // kernels/counted.rs:17
    shl.b32 %r3, %r1, 7;
    mov.u32 %r4, tile;
    add.u32 %r3, %r3, %r4;
    st.shared.u32 [%r3], %r2;
    bar.sync 0;
    setp.lt.u32 %p1, %r1, 3;
    @%p1 red.global.add.u32 [%rd1], 1;
    ret;
}"#,
    );
    let mut rig = Rig::new(&text);
    rig.config.counters = true;
    rig.config.checks.racecheck = false;
    let a = rig.u32s(&[1; 128]);
    let c = rig.launch("k", 1, 64, &[a]).unwrap().counters.unwrap();
    assert_eq!(c.warp_instructions, 2 * 13);
    assert_eq!(c.lane_instructions, 64 * 12 + 3);
    // 64 lanes use 4 of every 8 bytes of 512; the three atomics write one sector.
    assert_eq!((c.read_bytes_used, c.read_sectors, c.read_bytes_distinct), (256, 16, 512));
    assert_eq!((c.write_bytes_used, c.write_sectors, c.write_bytes_distinct), (12, 1, 32));
    // A stride of 128 bytes puts all 32 lanes into one bank.
    assert_eq!(c.bank_conflicts, 2 * 31);
    assert_eq!((c.barriers, c.atomics, c.by_opcode["red"]), (2, 3, 2));
    let line = c.lines.values().find(|l| l.source.is_some()).unwrap();
    assert_eq!(line.source, Some(("kernels/counted.rs".into(), 17)));
    assert_eq!((line.bytes_used, line.sectors, line.warp_instructions), (256, 16, 2));
}

#[test]
fn a_bulk_copy_touches_each_sector_once_and_a_prefetch_reads_nothing() {
    let text = ptx(
        90,
        r#"
.visible .entry k(.param .u64 in)
{
    .shared .align 16 .b8 tile[256];
    .shared .align 8 .b64 full;
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [in];
    mov.u32 %r1, full;
    mov.u32 %r2, tile;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.proxy.async;
    mbarrier.arrive.expect_tx.shared::cta.b64 %rd2, [%r1], 176;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1+16], 176, [%r1];
$wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra $wait;
    prefetch.global.L2 [%rd1+300];
    ret;
}"#,
    );
    let mut rig = Rig::new(&text);
    rig.config.counters = true;
    let a = rig.u32s(&[1; 128]);
    let c = rig.launch("k", 1, 1, &[a]).unwrap().counters.unwrap();
    // From byte 16 to byte 192; and the line at byte 256, which nobody reads.
    assert_eq!((c.read_bytes_used, c.read_sectors, c.read_bytes_distinct), (176 + 128, 6, 192 + 128));
    assert_eq!((c.write_sectors, c.bank_conflicts), (0, 0));
}

#[test]
fn faults_name_the_source_line_of_loc_and_of_comments() {
    for (note, expected) in [
        (".loc 1 42 7\n    ld.global.u32 %r1, [%rd1+64];", ("kernels/norm.cu", 42)),
        ("ld.global.u32 %r1, [%rd1+64]; // src/kernels/norm.rs:9", ("src/kernels/norm.rs", 9)),
    ] {
        let text = ptx(
            75,
            &format!(
                ".file 1 \"kernels/norm.cu\"\n.visible .entry k(.param .u64 in)\n{{\n.reg .b32 %r<2>; .reg .b64 %rd<2>;\nld.param.u64 %rd1, [in];\n{note}\nret;\n}}"
            ),
        );
        let rig = Rig::new(&text);
        let a = rig.u32s(&[0; 16]);
        let f = rig.launch("k", 1, 1, &[a]).unwrap_err();
        assert_eq!(f.source, Some((expected.0.into(), expected.1)));
    }
}

#[test]
fn a_barrier_does_not_wait_for_threads_that_have_exited() {
    let text = ptx(
        75,
        ".visible .entry k(.param .u64 out) { .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %rd<2>;
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 40; @%p1 ret;
         bar.sync 0; setp.eq.u32 %p1, %r1, 39; @%p1 st.global.u32 [%rd1], 7; ret; }",
    );
    for (schedule, split_warps, seed) in schedules() {
        let mut rig = Rig::new(&text);
        (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
        let out = rig.u32s(&[0]);
        rig.launch("k", 1, 128, &[out]).unwrap();
        assert_eq!(rig.read_u32s(out, 1), [7]);
    }
}

/// Half a warp leaves by a branch while the other half waits for all of it.
#[test]
fn lanes_that_leave_by_a_branch_are_not_waited_for() {
    for wait in ["bar.warp.sync 0xffffffff;", "bar.sync 0;", "vote.sync.ballot.b32 %r3, %p1, 0xffffffff;"] {
        let mut rig = Rig::new(&ptx(
            75,
            &format!(
                ".visible .entry k(.param .u64 out) {{ .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
                 ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16; @!%p1 bra OUT; {wait}
                 mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd2, %rd1; st.global.u32 [%rd2], %r1; OUT: ret; }}"
            ),
        ));
        for (schedule, split_warps, seed) in schedules() {
            (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
            let out = rig.u32s(&[99; 32]);
            rig.launch("k", 1, 32, &[out]).unwrap_or_else(|fault| panic!("{wait} {schedule:?}: {fault}"));
            let expected: Vec<u32> = (0..32).map(|t| if t < 16 { t } else { 99 }).collect();
            assert_eq!(rig.read_u32s(out, 32), expected);
        }
    }
}

/// The last bytes of an allocation that is no multiple of what is read.
#[test]
fn an_access_over_the_end_of_an_allocation_is_reported() {
    let rig = Rig::new(&ptx(
        75,
        ".visible .entry k(.param .u64 a) { .reg .b64 %rd<3>; ld.param.u64 %rd1, [a]; ld.global.u64 %rd2, [%rd1+8]; ret; }",
    ));
    let fault = rig.launch("k", 1, 1, &[rig.u32s(&[1, 2, 3])]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::OutOfBounds, "{fault}");
    rig.launch("k", 1, 1, &[rig.u32s(&[1, 2, 3, 4])]).unwrap();
}
