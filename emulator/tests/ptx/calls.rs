//! Calls by address, branches by index, and what has no meaning among them, under several schedules with all checks on.

use crate::rig::ptx;
use crate::system::{TEXT, everywhere};
use kiln_emulator::{Fault, FaultKind, Memory, Module};

#[test]
fn lanes_call_the_functions_whose_addresses_they_hold() {
    everywhere(TEXT, |rig| {
        let which: Vec<u32> = (0..70).map(|i| i * 7 % 3).collect();
        let (which_at, out) = (rig.u32s(&which), rig.u32s(&[0; 70]));
        rig.launch("calls", 1, 70, &[which_at, out]).unwrap();
        let expected = (0u32..).zip(&which).map(|(x, which)| [2 * x, x * x, x.wrapping_neg()][*which as usize]);
        assert_eq!(rig.read_u32s(out, 70), expected.collect::<Vec<_>>());
    });
}

/// Two functions, one of another signature, and a kernel with `%rd1` its parameter and `%r1` the thread's number.
fn module(body: &str) -> String {
    let text = "
        .func (.param .b32 y) f(.param .b32 x) { .reg .b32 %r<3>; ld.param.b32 %r1, [x]; add.u32 %r2, %r1, 1; st.param.b32 [y], %r2; ret; }
        .func (.param .b32 y) g(.param .b32 x) { .reg .b32 %r<3>; ld.param.b32 %r1, [x]; add.u32 %r2, %r1, 2; st.param.b32 [y], %r2; ret; }
        .func (.param .b32 y) other(.param .b64 x) { st.param.b32 [y], 9; ret; }
        .func (.param .b32 y) again(.param .b32 x) {
            .reg .b64 %rd<3>; .param .b32 a; .param .b32 r; st.param.b32 [a], 1; mov.u64 %rd1, again;
            P: .callprototype (.param .b32 _) _ (.param .b32 _); call (r), %rd1, (a), P; st.param.b32 [y], 1; ret; }
        .global .u64 table[2] = {f, generic(g)};
        .visible .entry k(.param .u64 a, .param .u64 b) {
            .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>; .param .b32 x; .param .b32 y; .param .b64 z;
            ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd3, %rd3, %rd1;
            setp.lt.u32 %p1, %r1, 5; st.param.b32 [x], %r1; mov.u64 %rd4, f; mov.u64 %rd5, g; mov.u64 %rd6, other;
            selp.b64 %rd7, %rd4, %rd5, %p1; mov.u32 %r2, 0;
            BODY
            ld.param.b32 %r2, [y]; st.global.u32 [%rd3], %r2; ret; }";
    ptx(75, &text.replace("BODY", body))
}

fn run(text: &str, given: u64, check: impl Fn(Result<Vec<u32>, Fault>)) {
    everywhere(text, |rig| {
        let out = rig.u32s(&[0; 33]);
        let result = rig.launch("k", 1, 33, &[out, given]).map(|_| rig.read_u32s(out, 33));
        check(result);
    });
}

const ONE: &str = "P: .callprototype (.param .b32 _) _ (.param .b32 _) .noreturn;";

#[test]
fn a_call_by_address_is_checked_and_its_twin_is_silent() {
    let expected = |result: Result<Vec<u32>, Fault>| {
        let right: Vec<u32> = (0..33).map(|i| if i < 5 { i + 1 } else { i + 2 }).collect();
        assert_eq!(result.unwrap(), right);
    };
    run(&module(&format!("{ONE} call (y), %rd7, (x), P;")), 0, expected);
    run(&module("T: .calltargets f, g; call (y), %rd7, (x), T;"), 0, expected);
    // With the lanes' functions out of memory.
    let loads = "mov.u64 %rd6, table; selp.u64 %rd5, 0, 8, %p1; add.u64 %rd6, %rd6, %rd5; ld.global.u64 %rd7, [%rd6];";
    run(&module(&format!("{loads} {ONE} call (y), %rd7, (x), P;")), 0, expected);

    for (body, given, from, said) in [
        (format!("{ONE} call (y), %rd2, (x), P;"), 0x1234, 0, "a call of 0x1234, which is no function"),
        (
            format!("{ONE} selp.b64 %rd7, %rd4, %rd6, %p1; call (y), %rd7, (x), P;"),
            0,
            5,
            "a call of other by its address",
        ),
        (
            "T: .calltargets f; call (y), %rd7, (x), T;".into(),
            0,
            5,
            "a call of g by its address, which is none of this call's targets",
        ),
        (
            "T: .branchtargets A, B; @%p1 brx.idx %r1, T; A: B: st.param.b32 [y], 0;".into(),
            0,
            2,
            "a branch by index 2 of 2 targets",
        ),
    ] {
        run(&module(&body), given, |result| {
            let fault = result.unwrap_err();
            assert_eq!((fault.kind, fault.cuda_code()), (FaultKind::InvalidTarget, 718), "{fault}");
            assert!(fault.message.starts_with(said), "{fault}");
            assert!(fault.thread.is_some_and(|[x, ..]| x >= from), "{fault}");
        });
    }
    run(&module(&format!("{ONE} mov.u64 %rd7, again; call (y), %rd7, (x), P;")), 0, |result| {
        let fault = result.unwrap_err();
        assert!(fault.kind == FaultKind::Unsupported && fault.message.starts_with("again calls itself"), "{fault}");
    });
}

#[test]
fn a_branch_by_index_takes_every_lane_to_its_label() {
    let body = "pmevent 1; pmevent.mask 0xff; T: .branchtargets A, B, C, B; and.b32 %r3, %r1, 3; st.param.b32 [y], 7; @%p1 brx.idx %r3, T; bra.uni E;
        A: st.param.b32 [y], 10; bra E; B: st.param.b32 [y], 11; bra E; C: st.param.b32 [y], 12; E:";
    run(&module(body), 0, |result| {
        let expected = (0..33).map(|x| if x < 5 { [10, 11, 12, 11][x % 4] } else { 7 });
        assert_eq!(result.unwrap(), expected.collect::<Vec<u32>>());
    });
}

#[test]
fn an_undefined_address_of_a_function_is_found() {
    run(&module(&format!("{ONE} .reg .b64 %u; @!%p1 mov.u64 %u, f; call (y), %u, (x), P;")), 0, |result| {
        assert_eq!(result.unwrap_err().kind, FaultKind::UninitialisedRegister);
    });
}

#[test]
fn a_function_that_is_not_understood_refuses_the_kernels_that_call_it() {
    let text = ptx(
        90,
        ".func bad() { nonsense.u32 1; ret; }
        .visible .entry k() { call.uni bad, (); ret; }\n.visible .entry good() { ret; }",
    );
    let module = Module::load(&text.replace(", ()", ""), &Memory::new(1 << 20)).unwrap();
    let refused: Vec<&str> = module.refused().map(|(name, _)| name).collect();
    assert_eq!(refused, ["k"]);
    let text = text.replace("nonsense.u32 1", "mov.u32 %r1, ]").replace(", ()", "");
    let module = Module::load(&text, &Memory::new(1 << 20)).unwrap();
    assert_eq!(module.refused().count(), 1, "its body cannot even be read");
}
