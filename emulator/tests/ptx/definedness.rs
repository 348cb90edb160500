//! What is undefined is reported where something depends on it, and nowhere before.

use crate::rig::{Rig, ptx};
use kiln_emulator::FaultKind::{self, UninitialisedMemory as Memory, UninitialisedRegister as Register};

/// In `%r10` is the lane, in `%r20` what nothing has written, `%rd2` is memory that nothing has written.
const HEAD: &str = "
.reg .pred %p<8>;
.reg .b16 %h<4>;
.reg .b32 %r<32>;
.reg .f32 %f<8>;
.reg .b64 %rd<16>;
.shared .align 16 .b8 tile[1024];
.local .align 16 .b8 stack[64];
ld.param.u64 %rd1, [a];
ld.param.u64 %rd2, [b];
mov.u32 %r10, %tid.x;
shl.b32 %r11, %r10, 2;
mov.u32 %r12, tile;
add.u32 %r12, %r12, %r11;
setp.eq.u32 %p1, %r10, 99;
setp.lt.u32 %p2, %r10, 16;
setp.eq.u32 %p7, %r10, 0;
";

/// A branch on `%r21`.
const BRANCH: &str = "setp.eq.u32 %p3, %r21, 7; @%p3 bra E;";

fn run(body: &str) -> Result<Rig, (FaultKind, String)> {
    let text = format!(".visible .entry k(.param .u64 a, .param .u64 b)\n{{{HEAD}{body}\nE: ret;\n}}");
    let rig = Rig::new(&ptx(90, &text));
    let a = rig.u32s(&[0; 64]);
    let b = rig.memory.alloc(256).unwrap();
    rig.launch("k", 1, 32, &[a, b]).map(|_| rig).map_err(|fault| (fault.kind, fault.message))
}

/// Values that are undefined in some lane, in `%r21`.
const UNDEFINED: &[(&str, FaultKind, &str)] = &[
    ("a register", Register, "@%p1 mov.u32 %r20, 1; mov.u32 %r21, %r20;"),
    ("a sum", Register, "@%p1 mov.u32 %r20, 1; add.u32 %r21, %r20, %r10;"),
    ("what selp chooses", Register, "@%p1 mov.u32 %r20, 1; selp.u32 %r21, %r10, %r20, %p2;"),
    ("a conversion", Register, "@%p1 mov.u32 %r20, 1; cvt.rn.f32.s32 %f1, %r20; cvt.rzi.s32.f32 %r21, %f1;"),
    ("half of a wide value", Register, "@%p1 mov.u32 %r20, 1; mov.b64 %rd4, {%r10, %r20}; mov.b64 {_, %r21}, %rd4;"),
    ("what a shuffle takes", Register, "@%p2 mov.u32 %r20, 1; shfl.sync.bfly.b32 %r21, %r20, 16, 31, -1;"),
    ("a vote", Register, "@%p2 mov.u32 %r20, 1; setp.eq.u32 %p4, %r20, 1; vote.sync.ballot.b32 %r21, %p4, -1;"),
    ("a guard", Register, "@%p1 setp.eq.u32 %p4, %r10, 0; mov.u32 %r21, 1; @%p4 mov.u32 %r21, 2;"),
    ("a flag", Register, "@%p1 setp.eq.u32 %p4, %r10, 0; or.pred %p5, %p4, %p1; selp.u32 %r21, 1, 2, %p5;"),
    ("local memory", Memory, "ld.local.u32 %r21, [stack+4];"),
    (
        "through local memory",
        Register,
        "@%p1 mov.u32 %r20, 1; st.local.v2.u32 [stack], {%r10, %r20}; ld.local.v2.u32 {%r22, %r21}, [stack];",
    ),
    ("device memory", Memory, "ld.global.u32 %r21, [%rd2];"),
    (
        "one element of four",
        Memory,
        "@%p7 st.global.u32 [%rd2+8], %r10; bar.warp.sync -1; ld.global.v4.u32 {%r22, %r23, %r24, %r21}, [%rd2];",
    ),
    ("a byte of a word", Memory, "st.shared.u16 [%r12], %h1; st.shared.u8 [%r12+2], %h1; ld.shared.u32 %r21, [%r12];"),
    (
        "stored in shared memory",
        Memory,
        "@%p1 mov.u32 %r20, 1; st.shared.u32 [%r12], %r20; bar.warp.sync -1; ld.shared.u32 %r21, [tile+64];",
    ),
    (
        "stored in device memory that was written",
        Memory,
        "@%p1 mov.u32 %r20, 1; @%p7 st.global.u32 [%rd1], %r20; bar.warp.sync -1; ld.global.u32 %r21, [%rd1];",
    ),
    (
        "copied asynchronously",
        Memory,
        "@%p7 st.global.u32 [%rd2], %r10; bar.warp.sync -1; cp.async.ca.shared.global [%r12], [%rd2+4], 4; cp.async.wait_all; ld.shared.u32 %r21, [%r12];",
    ),
    (
        "a matrix",
        Memory,
        "shl.b32 %r13, %r10, 4; and.b32 %r13, %r13, 112; mov.u32 %r14, tile; add.u32 %r13, %r13, %r14;
         @%p2 st.shared.u32 [%r12], %r10; bar.warp.sync -1; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r21}, [%r13];",
    ),
];

#[test]
fn an_undefined_value_is_reported_by_the_branch_that_it_decides() {
    for (name, kind, body) in UNDEFINED {
        run(body).map(drop).unwrap_or_else(|fault| panic!("{name}, nothing depends on it: {fault:?}"));
        let body = format!("@%p1 mov.u16 %h1, 1; {body} {BRANCH}");
        let (found, message) = run(&body).map(drop).expect_err(name);
        // Of a guarded instruction in between the report may name either.
        assert!(found == *kind || name.contains("hrough") || name.contains("byte"), "{name}: {found:?}: {message}");
        assert!(message.contains("depends on"), "{name}: {message}");
    }
}

#[test]
fn what_nothing_depends_on_is_not_reported() {
    for (name, body) in [
        ("what selp does not choose", "@%p2 mov.u32 %r20, 1; selp.u32 %r21, %r20, %r10, %p2;"),
        ("lanes of a shuffle that nobody uses", "@%p2 mov.u32 %r20, 1; shfl.sync.idx.b32 %r21, %r20, 3, 31, -1;"),
        ("lanes that have left", "@%p2 mov.u32 %r20, 1; @!%p2 ret; mov.u32 %r21, %r20;"),
        (
            "a conjunction with what is false",
            "@%p1 setp.eq.u32 %p4, %r10, 0; and.pred %p5, %p4, %p1; selp.u32 %r21, 1, 2, %p5;",
        ),
        ("a register that is written again", "@%p1 mov.u32 %r20, 1; mov.u32 %r21, %r20; mov.u32 %r21, 7;"),
        (
            "memory that is written again",
            "@%p1 mov.u32 %r20, 1; st.local.u32 [stack], %r20; st.local.u32 [stack], 3; ld.local.u32 %r21, [stack];",
        ),
        (
            "bytes beside those that are copied",
            "@%p7 st.global.u32 [%rd2+4], %r10; bar.warp.sync -1; cp.async.ca.shared.global [%r12], [%rd2+4], 4; cp.async.wait_all; ld.shared.u32 %r21, [%r12];",
        ),
    ] {
        run(&format!("{body} {BRANCH}")).map(drop).unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
    }
}

#[test]
fn an_undefined_address_count_or_atomic_is_reported() {
    for (name, body) in [
        ("an address", "@%p1 mov.u32 %r20, 1; ld.shared.u32 %r21, [%r20];"),
        ("a barrier's number", "@%p1 mov.u32 %r20, 1; bar.sync %r20;"),
        ("a member mask", "@%p1 mov.u32 %r20, -1; bar.warp.sync %r20;"),
        ("an atomic's operand", "@%p1 mov.u32 %r20, 1; red.global.add.u32 [%rd1], %r20;"),
        ("memory of an atomic", "red.global.add.u32 [%rd2], 1;"),
        ("a release", "@%p1 mov.u32 %r20, 1; @%p2 ret; st.release.gpu.global.u32 [%rd1], %r20;"),
    ] {
        run(body).map(drop).expect_err(name);
    }
}

/// Rows of A beyond the first are undefined; so is D from the second row on, and no earlier.
#[test]
fn a_row_of_a_product_depends_on_its_own_row_only() {
    let product = "mov.b32 %r1, 0; setp.lt.u32 %p4, %r10, 4; @%p4 mov.b32 %r20, 0; mov.f32 %f1, 0f00000000;
        mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r20, %r1}, {%r1}, {%f1, %f1, %f1, %f1};
        setp.gt.f32 %p5, %f4, 0f00000000; @%p5 bra E; ";
    run(&format!("{product} @!%p4 bra E; setp.gt.f32 %p5, %f2, 0f00000000; @%p5 bra E;")).map(drop).unwrap();
    run(&format!("{product} setp.gt.f32 %p5, %f2, 0f00000000; @%p5 bra E;")).map(drop).unwrap_err();
}

#[test]
fn an_undefined_value_in_device_memory_is_not_initialised() {
    let Ok(rig) = run("@%p1 mov.u32 %r20, 1; @%p7 st.global.u32 [%rd1+4], %r20;") else { panic!() };
    let a = rig.memory.live_allocations()[0].0;
    assert!(rig.memory.initialised(a, 4).unwrap() && rig.memory.initialised(a + 8, 248).unwrap());
    assert!(!rig.memory.initialised(a + 4, 4).unwrap());
}
