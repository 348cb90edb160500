//! Stream capture and graphs.

use crate::kernels::KERNELS;
use crate::support::{Arg, Device, NON_BLOCKING, made, ok};
use kiln_emulator::{Code, DeviceConfig, Schedule};
use std::ffi::c_void;
use std::sync::Mutex;

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

#[test]
fn a_captured_sequence_runs_when_launched_and_as_often() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let stream = device.stream(NON_BLOCKING);
    let words = device.upload(&[1u32, 10]);
    let add = device.kernel(KERNELS, "add");
    // SAFETY: handles and addresses of this device, values in locals.
    unsafe {
        ok((api.capture_begin)(stream, GLOBAL));
        for step in [1, 2] {
            ok(device.launch(add, 1, 2, stream, &[Arg::U64(words), Arg::U32(step)]));
        }
        let graph = made(|out| (api.capture_end)(stream, out));
        ok((api.stream_query)(stream));
        assert_eq!(device.download::<u32>(words, 2), [1, 10], "captured, not executed");
        let exec = made(|out| (api.graph_instantiate)(out, graph, 0));
        ok((api.graph_destroy)(graph));
        for _ in 0..3 {
            ok((api.graph_launch)(exec, stream));
        }
        ok((api.stream_synchronize)(stream));
        assert_eq!(device.download::<u32>(words, 2), [10, 19]);
        ok((api.graph_exec_destroy)(exec));
        assert_eq!((api.graph_launch)(exec, stream), Code::INVALID_HANDLE.raw());
    }
}

#[test]
fn a_fork_joins_and_keeps_its_order() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let (stream, side) = (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
    let (forked, joined) = (device.event(), device.event());
    let words = device.upload(&[0u32, 0]);
    // SAFETY: handles and addresses of this device, values in locals.
    unsafe {
        ok((api.capture_begin)(stream, GLOBAL));
        ok((api.fill32_async)(words, 1, 1, stream));
        ok((api.event_record)(forked, stream));
        ok((api.stream_wait)(side, forked, 0));
        ok((api.copy_async)(words + 4, words, 4, side));
        assert_eq!((api.event_query)(forked), Code::CAPTURED_EVENT.raw());
        ok((api.event_record)(joined, side));
        ok((api.stream_wait)(stream, joined, 0));
        ok((api.fill32_async)(words, 2, 1, stream));
        let graph = made(|out| (api.capture_end)(stream, out));
        assert_eq!((api.stream_query)(side), 0, "the forked stream is free again");
        let exec = made(|out| (api.graph_instantiate)(out, graph, 0));
        ok((api.graph_launch)(exec, stream));
        ok((api.stream_synchronize)(stream));
    }
    assert_eq!(device.download::<u32>(words, 2), [2, 1]);
}

#[test]
fn what_a_capture_cannot_express_is_refused_and_invalidates_it() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let address = device.alloc(64);
    let stream = device.stream(0);
    let outside = device.event();
    // SAFETY: handles of this device.
    ok(unsafe { (api.event_record)(outside, 0) });
    let unsupported = Code::STREAM_CAPTURE_UNSUPPORTED.raw();
    type Attempt<'a> = (&'a str, u32, Box<dyn Fn() -> u32 + 'a>);
    // SAFETY: handles and addresses of this device, values in locals.
    let attempts: [Attempt; 6] = unsafe {
        [
            ("allocation", unsupported, Box::new(|| (api.alloc)(&mut 0, 16))),
            ("free", unsupported, Box::new(|| (api.free)(address))),
            ("stream synchronise", unsupported, Box::new(|| (api.stream_synchronize)(stream))),
            ("context synchronise", unsupported, Box::new(|| (api.synchronize)())),
            ("legacy stream", Code::STREAM_CAPTURE_IMPLICIT.raw(), Box::new(|| (api.fill32_async)(address, 1, 1, 0))),
            (
                "an event from outside",
                Code::STREAM_CAPTURE_ISOLATION.raw(),
                Box::new(|| (api.stream_wait)(stream, outside, 0)),
            ),
        ]
    };
    for (what, code, attempt) in &attempts {
        let mut graph = 1;
        // SAFETY: as above.
        unsafe {
            ok((api.capture_begin)(stream, GLOBAL));
            ok((api.fill32_async)(address, 1, 1, stream));
            assert_eq!(attempt(), *code, "{what}");
            assert_eq!((api.capture_end)(stream, &mut graph), Code::STREAM_CAPTURE_INVALIDATED.raw(), "{what}");
        }
        assert_eq!(graph, 0, "{what}");
    }
    // SAFETY: as above.
    unsafe {
        ok((api.capture_begin)(stream, RELAXED));
        ok((api.free)(address));
        assert_eq!((api.capture_begin)(stream, RELAXED), Code::ILLEGAL_STATE.raw());
        made(|out| (api.capture_end)(stream, out));
        assert_eq!((api.capture_end)(stream, &mut 0), Code::ILLEGAL_STATE.raw());
        assert_eq!((api.capture_begin)(0, GLOBAL), unsupported, "the legacy stream is not captured");
    }
}

#[test]
fn a_fork_that_does_not_join_is_an_error() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let (stream, side) = (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
    let forked = device.event();
    let words = device.alloc(8);
    // SAFETY: handles and addresses of this device, values in locals.
    unsafe {
        ok((api.capture_begin)(stream, GLOBAL));
        ok((api.event_record)(forked, stream));
        ok((api.stream_wait)(side, forked, 0));
        ok((api.fill32_async)(words, 1, 1, side));
        assert_eq!((api.capture_end)(side, &mut 0), Code::STREAM_CAPTURE_UNMATCHED.raw());
        ok((api.stream_query)(device.stream(NON_BLOCKING)));
        assert_eq!((api.capture_end)(stream, &mut 0), Code::STREAM_CAPTURE_INVALIDATED.raw());

        ok((api.capture_begin)(stream, GLOBAL));
        ok((api.event_record)(forked, stream));
        ok((api.stream_wait)(side, forked, 0));
        ok((api.fill32_async)(words, 1, 1, side));
        assert_eq!((api.capture_end)(stream, &mut 0), Code::STREAM_CAPTURE_UNJOINED.raw());
        ok((api.fill32_async)(words, 1, 1, side));
        ok((api.stream_synchronize)(side));
    }
}

#[test]
fn another_thread_may_not_end_a_capture() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let stream = device.stream(NON_BLOCKING);
    // SAFETY: handles of this device, values in locals.
    unsafe {
        ok((api.capture_begin)(stream, GLOBAL));
        let code = std::thread::scope(|scope| scope.spawn(|| (api.capture_end)(stream, &mut 0)).join().unwrap());
        assert_eq!(code, Code::STREAM_CAPTURE_WRONG_THREAD.raw());
        made(|out| (api.capture_end)(stream, out));
    }
}

#[test]
fn every_order_of_nodes_respects_the_edges_and_schedules_differ() {
    static ORDER: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    extern "C" fn note(node: *mut c_void) {
        ORDER.lock().unwrap().push(node as usize);
    }
    let order = |schedule, seed| {
        let device = Device::new(DeviceConfig { schedule, seed, ..DeviceConfig::default() });
        let api = &device.api;
        let (stream, side) = (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
        let (forked, joined) = (device.event(), device.event());
        // SAFETY: handles of this device; the function takes its data for a number.
        unsafe {
            let node = |stream, number| (api.launch_host)(stream, Some(note), std::ptr::without_provenance_mut(number));
            ok((api.capture_begin)(stream, GLOBAL));
            // 0 before 1 and 3; 1 before 2; 2 and 3 before 4.
            ok(node(stream, 0));
            ok((api.event_record)(forked, stream));
            ok((api.stream_wait)(side, forked, 0));
            ok(node(stream, 1));
            ok(node(stream, 2));
            ok(node(side, 3));
            ok((api.event_record)(joined, side));
            ok((api.stream_wait)(stream, joined, 0));
            ok(node(stream, 4));
            let graph = made(|out| (api.capture_end)(stream, out));
            let exec = made(|out| (api.graph_instantiate)(out, graph, 0));
            ok((api.graph_launch)(exec, stream));
            ok((api.stream_synchronize)(stream));
        }
        std::mem::take(&mut *ORDER.lock().unwrap())
    };
    assert_eq!(order(Schedule::RoundRobin, 0), [0, 1, 2, 3, 4]);
    assert_eq!(order(Schedule::Adversarial, 0), [0, 3, 1, 2, 4]);
    for seed in 0..20 {
        let order = order(Schedule::Random, seed);
        assert!([[0, 1, 2, 3, 4], [0, 1, 3, 2, 4], [0, 3, 1, 2, 4]].iter().any(|fine| *fine == order[..]), "{order:?}");
    }
}
