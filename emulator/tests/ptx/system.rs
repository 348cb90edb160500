//! What device code calls of the system, as NVIDIA's compiler emits it (`nvcc/system.cu`), under several schedules with
//! all checks on.

use crate::rig::{Rig, ptx, schedules};
use kiln_emulator::{FaultKind, Output};

pub(crate) const TEXT: &str = include_str!("../nvcc/system.sm_75.ptx");
/// The lines of the kernel `prints`, by the same calls of glibc's `printf`.
const PRINTED: &str = include_str!("../nvcc/printed.txt");

/// Runs `check` with a fresh rig, whose output is kept, under every schedule.
pub(crate) fn everywhere(text: &str, check: impl Fn(&mut Rig)) {
    for (schedule, split, seed) in schedules() {
        let mut rig = Rig::new(text);
        (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split, seed);
        rig.config.output = Output::kept();
        check(&mut rig);
    }
}

#[test]
fn every_conversion_prints_as_glibc_prints_it() {
    everywhere(TEXT, |rig| {
        let count = rig.u32s(&[0; 3]);
        rig.launch("prints", 1, 3, &[count]).unwrap();
        // All arguments of all calls, widths and precisions with them.
        assert_eq!(rig.read_u32s(count, 3), [72; 3]);
        let lines = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&rig.config.output.text()), lines(&PRINTED.repeat(3)));
    });
}

#[test]
fn lines_of_a_thread_are_whole_and_in_order() {
    everywhere(TEXT, |rig| {
        rig.launch("says_who", 3, 64, &[]).unwrap();
        let text = rig.config.output.text();
        let expected = |block: u32| {
            let one = |t: u32| format!("block {block} thread {t} of {}", if t < 32 { "one" } else { "two" });
            (0..64).filter(|t| t % 2 == 1).map(one).collect::<Vec<_>>()
        };
        let mut lines: Vec<&str> = text.lines().collect();
        let mut all: Vec<String> = (0..3).flat_map(expected).collect();
        lines.sort_unstable();
        all.sort_unstable();
        assert_eq!(lines, all);
    });
}

#[test]
fn what_a_seed_prints_does_not_depend_on_the_host() {
    for (schedule, split, seed) in schedules() {
        let print = |threads| {
            let mut rig = Rig::new(TEXT);
            (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split, seed);
            (rig.config.threads, rig.config.output) = (threads, Output::kept());
            rig.launch("says_who", 8, 64, &[]).unwrap();
            rig.config.output.text()
        };
        assert_eq!(print(1), print(3), "{schedule:?}");
    }
}

#[test]
fn a_failed_assertion_ends_the_launch_and_is_told_in_full() {
    everywhere(TEXT, |rig| {
        let mut values: Vec<u32> = (0..128).collect();
        let right = rig.u32s(&values);
        rig.launch("asserts", 2, 64, &[right, 200]).unwrap();
        values[100] = 300;
        let wrong = rig.u32s(&values);
        let fault = rig.launch("asserts", 2, 64, &[wrong, 200]).unwrap_err();
        assert_eq!((fault.kind, fault.cuda_code()), (FaultKind::Assertion, 710));
        assert_eq!((fault.block, fault.thread), (Some([1, 0, 0]), Some([36, 0, 0])));
        let said = "system.cu:32: void asserts(const int *, int): assertion \
                    `values[blockIdx.x * blockDim.x + threadIdx.x] < limit && \"too large\"` failed";
        assert_eq!(fault.message, said);
    });
}

#[test]
fn the_heap_gives_out_what_it_has() {
    everywhere(TEXT, |rig| {
        let sums = rig.u32s(&[u32::MAX; 40]);
        let before = rig.memory.used();
        rig.launch("lists", 1, 40, &[sums]).unwrap();
        let expected: Vec<u32> = (0..40u32).map(|n| n * n.saturating_sub(1) / 2).collect();
        assert_eq!(rig.read_u32s(sums, 40), expected);
        assert_eq!(rig.memory.used(), before, "every link was freed");
        // Without room for one link every thread but the first gives up.
        rig.config.heap_bytes = 15;
        let sums = rig.u32s(&[7; 40]);
        rig.launch("lists", 1, 40, &[sums]).unwrap();
        assert_eq!(rig.read_u32s(sums, 40), [&[0][..], &[7; 39]].concat());
    });
}

#[test]
fn virtual_functions_are_those_of_the_object() {
    everywhere(TEXT, |rig| {
        let out = rig.f32s(&[0.0; 48]);
        rig.launch("areas", 1, 48, &[out]).unwrap();
        let expected: Vec<f32> = (0..48).map(|i| (if i % 3 == 0 { 3 * i * i } else { i * i }) as f32).collect();
        assert_eq!(rig.read_f32s(out, 48), expected);
    });
}

#[test]
fn calls_of_the_system_are_checked_and_their_twins_are_silent() {
    let head = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
        .extern .func (.param .b64 r) malloc (.param .b64 a);\n.extern .func free (.param .b64 a);";
    let text = |format: &str, store: &str| {
        let bytes: Vec<String> = format.bytes().chain([0]).map(|byte| byte.to_string()).collect();
        let entry = format!(
            ".global .align 1 .b8 format[] = {{{}}};
            .visible .entry k(.param .u64 a, .param .u64 b) {{ .reg .b64 %rd<8>; .param .b64 x; .param .b64 y; .param .b32 r;
            .local .align 16 .b8 buffer[16]; ld.param.u64 %rd3, [a]; ld.param.u64 %rd4, [b]; mov.u64 %rd1, format; cvta.global.u64 %rd1, %rd1; st.param.b64 [x], %rd1;
            mov.u64 %rd2, buffer; cvta.local.u64 %rd2, %rd2; st.param.b64 [y], %rd2; {store} ret; }}",
            bytes.join(", ")
        );
        ptx(75, &format!("{head}\n{entry}"))
    };
    let printf = "call.uni (r), vprintf, (x, y);";
    let heap = "st.param.b64 [x], 8; call.uni (y), malloc, (x); ld.param.b64 %rd5, [y]; st.param.b64 [x], %rd5; call.uni free, (x);";
    let is = |kind| Err(kind);
    for (text, expected) in [
        (text("%d", &format!("st.local.u32 [buffer], 5; {printf}")), Ok("5")),
        (text("%d", printf), is(FaultKind::UninitialisedMemory)),
        (
            text(
                "%d %d %d %d %d",
                &format!("st.local.v4.u32 [buffer], {{%r0, %r0, %r0, %r0}}; {printf}")
                    .replace("{%r0, %r0, %r0, %r0}", "{1, 2, 3, 4}"),
            ),
            is(FaultKind::OutOfBounds),
        ),
        (text("%s", &format!("st.local.u64 [buffer], %rd1; {printf}")), Ok("%s")),
        (text("%s", &format!("st.local.u64 [buffer], 64; {printf}")), is(FaultKind::OutOfBounds)),
        (text("%y", printf), is(FaultKind::IllegalInstruction)),
        (text("%n", printf), is(FaultKind::IllegalInstruction)),
        (text("%", printf), is(FaultKind::IllegalInstruction)),
        (text("", heap), Ok("")),
        (text("", &format!("{heap} st.global.u32 [%rd5], 1;")), is(FaultKind::UseAfterFree)),
        (text("", &format!("{heap} call.uni free, (x);")), is(FaultKind::UseAfterFree)),
        (text("", "st.param.b64 [x], %rd3; call.uni free, (x);"), is(FaultKind::OutOfBounds)),
        (text("", "st.param.b64 [x], 0; call.uni free, (x);"), Ok("")),
    ] {
        everywhere(&text, |rig| {
            let a = rig.u32s(&[0]);
            let result = rig.launch("k", 1, 1, &[a, 0]);
            assert_eq!(
                result.map(|_| rig.config.output.text()).map_err(|f| f.kind),
                expected.map(str::to_owned),
                "{text}"
            );
        });
    }
}
