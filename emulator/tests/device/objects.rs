//! Devices, contexts, memory, streams, events: the driver's semantics without any kernel.

use crate::support::{Api, Device, NON_BLOCKING, made, ok};
use kiln_emulator::{Call, Checks, Code, DeviceConfig, FaultInjection, Leak, add_device, inject, leaks, resolve};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Holds a stream until it is released, by a host function that waits.
#[derive(Default)]
struct Gate {
    entered: AtomicBool,
    open: AtomicBool,
}

extern "C" fn wait_at(gate: *mut c_void) {
    // SAFETY: the gate outlives the stream's work in every test here.
    let gate = unsafe { &*gate.cast::<Gate>() };
    gate.entered.store(true, Ordering::SeqCst);
    while !gate.open.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Gate {
    fn close(&self, device: &Device, stream: usize) {
        let data = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the gate outlives the stream's work.
        ok(unsafe { (device.api.launch_host)(stream, Some(wait_at), data) });
    }

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

#[test]
fn calls_before_a_context_is_current_are_refused() {
    let device = Device::new(DeviceConfig::default());
    std::thread::spawn(|| {
        let api = Api::load();
        let mut address = 0;
        // SAFETY: the address is a local.
        assert_eq!(unsafe { (api.alloc)(&mut address, 16) }, Code::INVALID_CONTEXT.raw());
    })
    .join()
    .unwrap();
    // SAFETY: numbers only.
    unsafe {
        assert_eq!((device.api.set_current)(0xdead0), Code::INVALID_CONTEXT.raw());
        assert_eq!(made(|out| (device.api.get_current)(out)), device.context, "a refused context changes nothing");
        assert_eq!((device.api.device_get)(&mut 0, 4711), Code::INVALID_DEVICE.raw());
        assert_eq!((device.api.init)(1), Code::INVALID_VALUE.raw());
        ok((device.api.release)(device.ordinal));
        assert_eq!(device.synchronize(), Code::CONTEXT_IS_DESTROYED.raw());
    }
}

#[test]
fn devices_differ_by_ordinal() {
    let small = Device::new(DeviceConfig { multiprocessors: 3, memory_bytes: 1 << 20, ..DeviceConfig::with_sm(7, 5) });
    let big = add_device(DeviceConfig::h200());
    assert_eq!((small.attribute(16), small.attribute(75), small.attribute(76)), (3, 7, 5));
    assert_eq!((small.attribute(97), small.attribute(39)), (64 << 10, 1024));
    // SAFETY: values are written into locals.
    unsafe {
        let attribute = |number| made(|out| (small.api.device_attribute)(out, number, big));
        assert_eq!((attribute(16), attribute(75), attribute(97)), (132, 9, 227 << 10));
        assert_eq!(made(|out| (small.api.device_memory)(out, small.ordinal)), 1 << 20);
        let mut name = [0; 64];
        ok((small.api.device_name)(name.as_mut_ptr(), 64, big));
        assert_eq!(CStr::from_ptr(name.as_ptr()).to_str().unwrap(), "kiln emulated H200");
        assert_eq!((small.api.device_attribute)(&mut 0, 100_000, big), Code::INVALID_VALUE.raw());
        assert_eq!(made(|out| (small.api.driver_version)(out)), 13000);
    }
    assert!(Code::new(720).to_string().starts_with("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: "));
    assert_eq!(Code::new(12345).to_string(), "CUresult 12345");
    assert_eq!(resolve(c"cuNoSuchFunction"), None);
    assert_eq!(resolve(c"cuMemAlloc"), None, "the bare name is the old ABI");
}

#[test]
fn memory_is_limited_checked_and_counted() {
    let device = Device::new(DeviceConfig { memory_bytes: 1 << 20, ..DeviceConfig::default() });
    let api = &device.api;
    let a = device.upload(&[1u32, 2, 3, 4]);
    assert_eq!(device.download::<u32>(a, 4), [1, 2, 3, 4]);
    let mut address = 0;
    // SAFETY: device addresses are checked by the driver, host pointers are locals.
    unsafe {
        assert_eq!((api.alloc)(&mut address, 2 << 20), Code::OUT_OF_MEMORY.raw());
        assert_eq!((api.alloc)(&mut address, 0), Code::INVALID_VALUE.raw());
        assert_eq!((api.fill32_async)(a, 7, 5, 0), Code::INVALID_VALUE.raw(), "one word past the end");
        assert_eq!((api.fill32_async)(a + 2, 7, 1, 0), Code::INVALID_VALUE.raw(), "misaligned");
        assert_eq!((api.free)(a + 4), Code::INVALID_VALUE.raw(), "not the start");
        assert_eq!((api.copy_in)(a, std::ptr::null(), 4), Code::INVALID_VALUE.raw());
        let (mut free, mut total) = (0, 0);
        ok((api.mem_info)(&mut free, &mut total));
        assert_eq!(total, 1 << 20);
        assert!(free < total && free >= total - 4096);
        ok((api.fill32_async)(a + 4, 7, 2, 0));
        assert_eq!(device.download::<u32>(a, 4), [1, 7, 7, 4]);
        ok((api.free)(a));
        assert_eq!((api.free)(a), Code::INVALID_VALUE.raw(), "freed twice");
        assert_eq!((api.copy)(a, a, 4), Code::INVALID_VALUE.raw(), "freed");
    }
}

#[test]
fn streams_run_apart_and_events_join_them() {
    // The two fills race, so that their order shows.
    let device = Device::new(DeviceConfig { checks: Checks::NONE, ..DeviceConfig::default() });
    let api = &device.api;
    let (first, second) = (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
    let event = device.event();
    let word = device.upload(&[0u32]);
    let gate = Gate::default();
    // SAFETY: handles and device addresses of this device; the gate outlives the work.
    unsafe {
        gate.close(&device, first);
        ok((api.fill32_async)(word, 1, 1, first));
        ok((api.event_record)(event, first));
        assert_eq!((api.event_query)(event), Code::NOT_READY.raw());
        assert_eq!((api.stream_query)(first), Code::NOT_READY.raw());
        // The second stream does not wait until it is told to.
        ok((api.fill32_async)(word, 2, 1, second));
        ok((api.stream_synchronize)(second));
        let mut seen = 0u32;
        ok((api.copy_out_async)((&raw mut seen).cast(), word, 4, second));
        assert_eq!(seen, 2);
        ok((api.stream_wait)(second, event, 0));
        ok((api.fill32_async)(word, 3, 1, second));
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!((api.stream_query)(second), Code::NOT_READY.raw());
        gate.open();
        ok((api.stream_synchronize)(second));
        ok((api.event_query)(event));
        assert_eq!(device.download::<u32>(word, 1), [3], "the fill behind the event came last");
    }
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let word = device.upload(&[0u32]);
    let other = device.upload(&[5u32]);
    let (blocking, free) = (device.stream(0), device.stream(NON_BLOCKING));
    let (held, unheld) = (Gate::default(), Gate::default());
    // SAFETY: handles and device addresses of this device; the gates outlive the work.
    unsafe {
        unheld.close(&device, free);
        assert_eq!(device.download::<u32>(other, 1), [5], "work in a non-blocking stream does not hold a copy up");
        held.close(&device, blocking);
        ok((api.fill32_async)(word, 1, 1, blocking));
        ok((api.fill32_async)(word, 2, 1, 0)); // legacy, and not waited for
        let later = device.stream(0);
        ok((api.fill32_async)(other, 6, 1, later)); // behind the legacy fill
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!((api.stream_query)(0), Code::NOT_READY.raw());
        assert_eq!((api.stream_query)(later), Code::NOT_READY.raw());
        held.open();
        ok((api.stream_synchronize)(later));
        assert_eq!(device.download::<u32>(word, 1), [2]);
        assert_eq!(device.download::<u32>(other, 1), [6]);
        unheld.open();
        ok(device.synchronize());
    }
}

#[test]
fn pageable_sources_are_read_at_once_and_pinned_ones_when_their_turn_comes() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let stream = device.stream(NON_BLOCKING);
    let (pageable_target, pinned_target) = (device.upload(&[0u32]), device.upload(&[0u32]));
    let (pinned, _) = device.mapped(1);
    let pageable = AtomicU32::new(1);
    pinned[0].store(1, Ordering::SeqCst);
    let gate = Gate::default();
    gate.close(&device, stream);
    // SAFETY: both sources outlive the copies; the stores below happen while no copy runs.
    unsafe {
        ok((api.copy_in_async)(pageable_target, pageable.as_ptr().cast(), 4, stream));
        ok((api.copy_in_async)(pinned_target, pinned[0].as_ptr().cast(), 4, stream));
        pageable.store(2, Ordering::SeqCst);
        pinned[0].store(2, Ordering::SeqCst);
        gate.open();
        ok((api.stream_synchronize)(stream));
    }
    assert_eq!(device.download::<u32>(pageable_target, 1), [1]);
    assert_eq!(device.download::<u32>(pinned_target, 1), [2]);
}

#[test]
fn freeing_waits_for_the_whole_context() {
    let device = Device::new(DeviceConfig::default());
    let stream = device.stream(NON_BLOCKING);
    let address = device.alloc(64);
    let gate = Gate::default();
    gate.close(&device, stream);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(60));
            gate.open();
        });
        // SAFETY: an address of this device.
        ok(unsafe { (device.api.free)(address) });
        assert!(begin.elapsed() >= Duration::from_millis(50), "free returned while the stream was busy");
    });
}

#[test]
fn events_measure_and_refuse_what_they_cannot() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let (start, end) = (device.event(), device.event());
    // SAFETY: handles of this device, values in locals.
    unsafe {
        let mut ms = -1.0;
        assert_eq!((api.event_elapsed)(&mut ms, start, end), Code::INVALID_HANDLE.raw(), "never recorded");
        ok((api.event_query)(start));
        let gate = Gate::default();
        ok((api.event_record)(start, 0));
        gate.close(&device, 0);
        ok((api.event_record)(end, 0));
        assert_eq!((api.event_elapsed)(&mut ms, start, end), Code::NOT_READY.raw());
        std::thread::sleep(Duration::from_millis(20));
        gate.open();
        ok((api.event_synchronize)(end));
        ok((api.event_elapsed)(&mut ms, start, end));
        assert!(ms >= 15.0, "{ms} ms across a wait of 20 ms");
        let untimed = made(|out| (api.event_create)(out, 2));
        ok((api.event_record)(untimed, 0));
        assert_eq!((api.event_elapsed)(&mut ms, start, untimed), Code::INVALID_HANDLE.raw());
        ok((api.event_destroy)(end));
        assert_eq!((api.event_record)(end, 0), Code::INVALID_HANDLE.raw(), "destroyed");
        assert_eq!((api.event_record)(device.stream(0), 0), Code::INVALID_HANDLE.raw(), "a stream is no event");
    }
}

#[test]
fn host_functions_may_not_call_the_driver() {
    static RESULT: AtomicU32 = AtomicU32::new(u32::MAX);
    extern "C" fn calls_back(_: *mut c_void) {
        // SAFETY: no arguments.
        RESULT.store(unsafe { (Api::load().synchronize)() }, Ordering::SeqCst);
    }
    let device = Device::new(DeviceConfig::default());
    // SAFETY: the function takes no data.
    ok(unsafe { (device.api.launch_host)(0, Some(calls_back), std::ptr::null_mut()) });
    ok(device.synchronize());
    assert_eq!(RESULT.load(Ordering::SeqCst), Code::NOT_PERMITTED.raw());
}

#[test]
fn releasing_the_context_lists_what_was_left() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let given_back = device.alloc(16);
    let kept = device.alloc(48);
    device.stream(0);
    device.event();
    let tidy = device.stream(0);
    // SAFETY: handles of this device.
    unsafe {
        ok((api.free)(given_back));
        ok((api.stream_destroy)(tidy));
        assert!(!leaks(device.ordinal).is_empty(), "alive while the context is");
        ok((api.release)(device.ordinal));
        assert_eq!((api.release)(device.ordinal), Code::INVALID_CONTEXT.raw());
        let mut found = leaks(device.ordinal);
        found.sort_by_key(|leak| format!("{leak:?}"));
        assert_eq!(found, [Leak::DeviceMemory { address: kept, bytes: 48 }, Leak::Event, Leak::Stream]);
        // A new context starts afresh.
        let again = made(|out| (api.retain)(out, device.ordinal));
        assert_ne!(again, device.context);
        ok((api.set_current)(again));
        assert_eq!((api.free)(kept), Code::INVALID_VALUE.raw());
        ok((api.release)(device.ordinal));
    }
    assert_eq!(leaks(device.ordinal).len(), 3);
}

#[test]
fn a_tidy_program_leaks_nothing() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let address = device.upload(&[1u8; 100]);
    let (stream, event) = (device.stream(0), device.event());
    let (words, _) = device.mapped(4);
    // SAFETY: handles of this device, each given back once.
    unsafe {
        ok((api.event_record)(event, stream));
        ok((api.free)(address));
        ok((api.host_free)(words.as_ptr().cast_mut().cast()));
        ok((api.stream_destroy)(stream));
        ok((api.event_destroy)(event));
        ok((api.release)(device.ordinal));
    }
    assert_eq!(leaks(device.ordinal), []);
}

#[test]
fn the_nth_call_fails_as_injected_and_the_others_do_not() {
    let second = FaultInjection { call: Call::Allocate, nth: 2, code: Code::OUT_OF_MEMORY };
    let device = Device::new(DeviceConfig { faults: vec![second], ..DeviceConfig::default() });
    let api = &device.api;
    let address = device.alloc(16);
    let mut other = 0;
    // SAFETY: handles and addresses of this device, values in locals.
    unsafe {
        assert_eq!((api.alloc)(&mut other, 16), Code::OUT_OF_MEMORY.raw());
        ok((api.alloc)(&mut other, 16));
        inject(device.ordinal, FaultInjection { call: Call::Copy, nth: 1, code: Code::INVALID_VALUE });
        assert_eq!((api.fill32_async)(address, 1, 1, 0), Code::INVALID_VALUE.raw());
        ok((api.fill32_async)(address, 1, 1, 0));
        // An error of execution is accepted first, then sticks to the context.
        inject(device.ordinal, FaultInjection { call: Call::Copy, nth: 1, code: Code::ECC_UNCORRECTABLE });
        ok((api.fill32_async)(address, 2, 1, 0));
        assert_eq!(device.synchronize(), Code::ECC_UNCORRECTABLE.raw());
        assert_eq!((api.alloc)(&mut other, 16), Code::ECC_UNCORRECTABLE.raw());
        assert_eq!((api.event_create)(&mut 0, 0), Code::ECC_UNCORRECTABLE.raw());
        assert_eq!((api.free)(address), Code::ECC_UNCORRECTABLE.raw());
        ok((api.release)(device.ordinal));
    }
    let left = leaks(device.ordinal);
    assert!(!left.contains(&Leak::DeviceMemory { address, bytes: 16 }), "freed although the call reported the error");
}

#[test]
fn wrong_handles_are_errors() {
    let device = Device::new(DeviceConfig::default());
    let other = Device::new(DeviceConfig::default());
    let stream = other.stream(0);
    let api = &device.api;
    // SAFETY: the driver checks handles, whatever they are.
    unsafe {
        ok((api.set_current)(device.context));
        let event = device.event();
        for wrong in [0x10, 0xdead_beef, device.context, event] {
            assert_eq!((api.stream_synchronize)(wrong), Code::INVALID_HANDLE.raw());
            assert_eq!(device.launch(wrong, 1, 1, 0, &[]), Code::INVALID_HANDLE.raw());
            assert_eq!((api.graph_launch)(wrong, 0), Code::INVALID_HANDLE.raw());
            assert_eq!((api.module_unload)(wrong), Code::INVALID_HANDLE.raw());
        }
        assert_eq!((api.event_record)(event, stream), Code::INVALID_HANDLE.raw(), "a stream of another device");
        ok((api.stream_destroy)(stream));
        assert_eq!((api.stream_query)(stream), Code::INVALID_HANDLE.raw());
        assert_eq!((api.stream_destroy)(0), Code::INVALID_HANDLE.raw());
    }
}

#[test]
fn threads_share_a_context() {
    let device = Device::new(DeviceConfig::default());
    let (threads, rounds) = (4u32, 25u32);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let device = &device;
            scope.spawn(move || {
                // SAFETY: handles and addresses of this device, values in locals that outlive the copies.
                unsafe {
                    ok((device.api.set_current)(device.context));
                    let stream = device.stream(thread % 2);
                    let event = device.event();
                    for round in 0..rounds {
                        let address = device.alloc(256);
                        ok((device.api.fill32_async)(address, thread * rounds + round, 64, stream));
                        ok((device.api.event_record)(event, stream));
                        ok((device.api.stream_wait)(0, event, 0));
                        let seen = device.download::<u32>(address, 64);
                        assert!(seen.iter().all(|&word| word == thread * rounds + round), "{seen:?}");
                        ok((device.api.free)(address));
                    }
                    ok((device.api.event_destroy)(event));
                    ok((device.api.stream_destroy)(stream));
                }
            });
        }
    });
    // SAFETY: an ordinal.
    ok(unsafe { (device.api.release)(device.ordinal) });
    assert_eq!(leaks(device.ordinal), []);
}
