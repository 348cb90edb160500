//! Safe code cannot free, rewrite or read a buffer in flight, also under `mem::forget`; and launching waits for nothing.
//!
//! Work is held back by a host function in the stream, so that "in flight" lasts as long as a test wants.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{self, Gate, blocks_until_open, device, driver, fault, table};
use kiln::Error;
use kiln::driver::{Device, DeviceBuffer, Driver, GpuTensor, Graph, PinnedBuffer, Resident, Stream, Wish};

/// Names that an asynchronous path must not call.
const FORBIDDEN: &[&str] = &[
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuStreamCreate",
    "cuEventCreate",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpyDtoD",
];

/// Enqueues filling with a value, which is as much a write as a kernel's.
fn fill(buffer: &DeviceBuffer<u32>, stream: &Stream, value: u32) -> kiln::Result<()> {
    stream.enqueue([buffer.writes("x")], |stream| {
        // SAFETY: the whole buffer, noted as written.
        unsafe { driver().api().set_u32_async(buffer.as_ptr().address(), value, buffer.len(), stream.raw()) }
    })
}

/// Enqueues a read, of nothing in particular.
fn read(buffer: &DeviceBuffer<u32>, scratch: &DeviceBuffer<u32>, stream: &Stream) -> kiln::Result<()> {
    stream.enqueue([buffer.reads("x"), scratch.writes("scratch")], |stream| {
        let bytes = buffer.len() * 4;
        // SAFETY: both buffers are as long and noted.
        unsafe {
            let (to, from) = (scratch.as_ptr().address(), buffer.as_ptr().address());
            driver().api().copy_on_device_async(to, from, bytes, stream.raw())
        }
    })
}

fn setup() -> (Device, Stream, DeviceBuffer<u32>) {
    let device = device();
    let stream = device.stream().unwrap();
    let buffer = DeviceBuffer::from_host(&device, &[1u32; 100]).unwrap();
    (device, stream, buffer)
}

#[test]
fn dropping_waits_for_a_write_in_flight() {
    let (device, stream, buffer) = setup();
    let gate = Gate::close(&stream);
    fill(&buffer, &stream, 7).unwrap();
    let ((), calls) = blocks_until_open(&gate, || table::calls_of(|| drop(buffer)));
    let position = |name| calls.iter().position(|call| *call == name);
    assert!(position("cuEventQuery").unwrap() < position("cuMemFree").unwrap(), "{calls:?}");
    stream.synchronize().unwrap();
    assert_eq!(fault(&device), None);
}

#[test]
fn dropping_waits_for_a_read_in_flight() {
    let (device, stream, buffer) = setup();
    let scratch = DeviceBuffer::uninitialized(&device, 100).unwrap();
    let gate = Gate::close(&stream);
    read(&buffer, &scratch, &stream).unwrap();
    blocks_until_open(&gate, || drop(buffer));
    assert_eq!(scratch.to_host().unwrap(), [1; 100]);
    assert_eq!(fault(&device), None);
}

#[test]
fn a_forgotten_buffer_is_never_freed() {
    let (device, stream, buffer) = setup();
    let gate = Gate::close(&stream);
    fill(&buffer, &stream, 7).unwrap();
    let (address, len) = (buffer.as_ptr().address(), buffer.len());
    let ((), calls) = table::calls_of(|| std::mem::forget(buffer));
    assert_eq!(calls, [""; 0]);
    gate.open();
    stream.synchronize().unwrap();
    let mut seen = vec![0u32; len];
    device.bind().unwrap();
    // SAFETY: the buffer was forgotten, so its memory is still there and nobody else's.
    unsafe { driver().api().copy_to_host(seen.as_mut_ptr().cast(), address, 4 * len).unwrap() };
    assert_eq!(seen, [7; 100]);
    assert_eq!(fault(&device), None);
}

#[test]
fn reading_waits_for_a_write_in_flight() {
    let (_device, stream, buffer) = setup();
    let gate = Gate::close(&stream);
    fill(&buffer, &stream, 7).unwrap();
    let seen = blocks_until_open(&gate, || buffer.to_host().unwrap());
    assert_eq!(seen, [7; 100]);
}

#[test]
fn reading_does_not_wait_for_a_read_in_flight() {
    let (device, stream, buffer) = setup();
    let scratch = DeviceBuffer::uninitialized(&device, 100).unwrap();
    let gate = Gate::close(&stream);
    read(&buffer, &scratch, &stream).unwrap();
    // Would hang if it waited: the gate is still closed.
    assert_eq!(buffer.to_host().unwrap(), [1; 100]);
    gate.open();
    stream.synchronize().unwrap();
}

#[test]
fn rewriting_waits_for_a_read_in_flight() {
    let (device, stream, mut buffer) = setup();
    let scratch = DeviceBuffer::uninitialized(&device, 100).unwrap();
    let gate = Gate::close(&stream);
    read(&buffer, &scratch, &stream).unwrap();
    blocks_until_open(&gate, || buffer.copy_from_host(0, &[9; 100]).unwrap());
    assert_eq!(scratch.to_host().unwrap(), [1; 100], "the read came before the rewriting");
    assert_eq!(buffer.to_host().unwrap(), [9; 100]);
}

#[test]
fn swapping_buffers_in_flight_swaps_what_is_waited_for() {
    let (device, stream, mut busy) = setup();
    let mut idle = DeviceBuffer::from_host(&device, &[2u32; 100]).unwrap();
    let gate = Gate::close(&stream);
    fill(&busy, &stream, 7).unwrap();
    std::mem::swap(&mut busy, &mut idle);
    assert_eq!(busy.to_host().unwrap(), [2; 100]);
    assert_eq!(blocks_until_open(&gate, || idle.to_host().unwrap()), [7; 100]);
}

#[test]
fn a_buffer_outlives_the_stream_that_used_it() {
    let (device, stream, buffer) = setup();
    let gate = Gate::close(&stream);
    fill(&buffer, &stream, 7).unwrap();
    drop(stream);
    assert_eq!(blocks_until_open(&gate, || buffer.to_host().unwrap()), [7; 100]);
    assert_eq!(fault(&device), None);
}

#[test]
fn pinned_memory_is_seen_after_the_copy_to_it() {
    let (device, stream, buffer) = setup();
    let mut pinned = PinnedBuffer::<u32>::zeroed(&device, 100).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [0; 100]);
    let gate = Gate::close(&stream);
    buffer.copy_to_pinned(&stream, 0..100, &mut pinned, 0).unwrap();
    let seen = blocks_until_open(&gate, || pinned.as_slice().unwrap().to_vec());
    assert_eq!(seen, [1; 100]);
}

#[test]
fn pinned_memory_is_rewritten_after_the_copy_from_it() {
    let (device, stream, mut buffer) = setup();
    let mut pinned = PinnedBuffer::<u32>::zeroed(&device, 100).unwrap();
    pinned.as_mut_slice().unwrap().fill(5);
    let gate = Gate::close(&stream);
    buffer.copy_from_pinned(&stream, 10, &pinned, 0..50).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [5; 100], "a copy from it does not hinder reading");
    blocks_until_open(&gate, || pinned.as_mut_slice().unwrap().fill(6));
    let seen = buffer.to_host().unwrap();
    assert!(seen[..10].iter().chain(&seen[60..]).all(|value| *value == 1) && seen[10..60] == [5; 50], "{seen:?}");
}

#[test]
fn pinned_memory_is_freed_after_the_copy_from_it() {
    let (device, stream, mut buffer) = setup();
    let pinned = PinnedBuffer::<u32>::zeroed(&device, 100).unwrap();
    let gate = Gate::close(&stream);
    buffer.copy_from_pinned(&stream, 0, &pinned, 0..100).unwrap();
    blocks_until_open(&gate, || drop(pinned));
    assert_eq!(buffer.to_host().unwrap(), [0; 100]);
    assert_eq!(fault(&device), None);
}

#[test]
fn enqueueing_makes_one_call_and_waits_for_nothing() {
    let (device, stream, buffer) = setup();
    let scratch = DeviceBuffer::uninitialized(&device, 100).unwrap();
    let (outcome, calls) = table::calls_of(|| {
        fill(&buffer, &stream, 3)?;
        read(&buffer, &scratch, &stream)?;
        fill(&buffer, &stream, 4)
    });
    outcome.unwrap();
    let own: Vec<_> = calls.iter().filter(|call| !call.starts_with("cuCtx")).collect();
    assert_eq!(own, [&"cuMemsetD32Async", &"cuMemcpyDtoDAsync", &"cuMemsetD32Async"]);
    assert!(!calls.iter().any(|call| FORBIDDEN.contains(call)), "{calls:?}");
    assert_eq!(scratch.to_host().unwrap(), [3; 100]);
}

#[test]
fn another_stream_waits_on_the_device_and_once() {
    let (device, writer, buffer) = setup();
    let reader = device.stream().unwrap();
    let scratch = DeviceBuffer::from_host(&device, &[0u32; 100]).unwrap();
    let gate = Gate::close(&writer);
    fill(&buffer, &writer, 7).unwrap();
    let (outcome, calls) = table::calls_of(|| read(&buffer, &scratch, &reader));
    outcome.unwrap();
    assert!(calls.contains(&"cuEventRecord") && calls.contains(&"cuStreamWaitEvent"), "{calls:?}");
    assert!(!calls.iter().any(|call| FORBIDDEN.contains(call)), "{calls:?}");
    // The stream has been told; telling it again would be a call for nothing.
    let (outcome, calls) = table::calls_of(|| read(&buffer, &scratch, &reader));
    outcome.unwrap();
    assert!(!calls.contains(&"cuStreamWaitEvent"), "{calls:?}");
    assert!(!reader.is_idle().unwrap(), "the reader waits for the writer");
    gate.open();
    assert_eq!(scratch.to_host().unwrap(), [7; 100]);
    assert_eq!(fault(&device), None);
}

#[test]
fn reads_on_two_streams_do_not_wait_for_each_other() {
    let (device, one, buffer) = setup();
    let two = device.stream().unwrap();
    let scratches = [0, 1].map(|_| DeviceBuffer::uninitialized(&device, 100).unwrap());
    let gate = Gate::close(&one);
    read(&buffer, &scratches[0], &one).unwrap();
    let (outcome, calls) = table::calls_of(|| read(&buffer, &scratches[1], &two));
    outcome.unwrap();
    assert!(!calls.contains(&"cuStreamWaitEvent"), "{calls:?}");
    two.synchronize().unwrap();
    // A write waits for both.
    let (outcome, calls) = table::calls_of(|| fill(&buffer, &two, 8));
    outcome.unwrap();
    assert!(calls.contains(&"cuStreamWaitEvent"), "{calls:?}");
    gate.open();
    assert_eq!(buffer.to_host().unwrap(), [8; 100]);
    assert_eq!(scratches[0].to_host().unwrap(), [1; 100], "the read came before the write");
}

#[test]
fn where_waiting_fails_memory_is_kept() {
    let (_device, stream, buffer) = setup();
    fill(&buffer, &stream, 7).unwrap();
    let ((), calls) = table::calls_of(|| table::failing("cuEventQuery", 719, || drop(buffer)));
    assert!(calls.contains(&"cuEventQuery") && !calls.contains(&"cuMemFree"), "{calls:?}");
}

/// A device whose copies from the host wait behind a gate, closed by the first of them.
fn device_with_gated_copies(ordinal: i32) -> Device {
    let mut table = *driver().api().table();
    table.cuMemcpyHtoDAsync = Some(common::gated_copy);
    // SAFETY: the functions of a driver; the one replaced calls it.
    let gated = unsafe { Driver::from_table(table) }.unwrap();
    Device::open(&gated, ordinal).unwrap()
}

#[test]
fn a_blocking_copy_waits_also_where_no_event_can_be_recorded() {
    let device = device_with_gated_copies(device().ordinal());
    let mut buffer = DeviceBuffer::<u32>::uninitialized(&device, 100).unwrap();
    let gate = Gate::default();
    blocks_until_open(&gate, || {
        gate.for_copies_of_this_thread();
        let failed = table::failing("cuEventRecord", 2, || buffer.copy_from_host(0, &[7; 100]));
        assert!(failed.is_err_and(|error| error.code() == Some(2)));
    });
    assert_eq!(buffer.to_host().unwrap(), [7; 100]);
}

#[test]
fn a_blocking_copy_that_cannot_be_waited_for_is_noted() {
    let device = device_with_gated_copies(device().ordinal());
    let mut buffer = DeviceBuffer::<u32>::uninitialized(&device, 100).unwrap();
    let gate = Gate::default();
    gate.for_copies_of_this_thread();
    let failed = table::failing("cuEventRecord", 2, || {
        table::failing("cuStreamQuery", 2, || buffer.copy_from_host(0, &[7; 100]))
    });
    assert!(failed.is_err_and(|error| error.code() == Some(2)));
    let ((), calls) = blocks_until_open(&gate, || table::calls_of(|| drop(buffer)));
    let position = |name| calls.iter().position(|call| *call == name);
    assert!(position("cuEventQuery").unwrap() < position("cuMemFree").unwrap(), "{calls:?}");
    assert_eq!(fault(&device), None);
}

#[test]
fn work_that_fails_half_way_is_still_waited_for() {
    let (_device, stream, buffer) = setup();
    let gate = Gate::close(&stream);
    let failed = stream.enqueue([buffer.writes("x")], |stream| {
        // SAFETY: the whole buffer, noted as written.
        unsafe { driver().api().set_u32_async(buffer.as_ptr().address(), 7, buffer.len(), stream.raw())? };
        Err(Error::NoDevice { ordinal: 0, found: 0 })
    });
    assert!(matches!(failed, Err(Error::NoDevice { .. })));
    assert_eq!(blocks_until_open(&gate, || buffer.to_host().unwrap()), [7; 100]);
}

#[test]
fn an_output_that_is_also_an_input_is_an_error() {
    let (_device, stream, buffer) = setup();
    let aliased = stream.enqueue([buffer.reads("q"), buffer.reads("k cache"), buffer.writes("y")], |_| Ok(()));
    assert!(matches!(aliased, Err(Error::Aliasing { output: "y", other }) if other != "y"), "{aliased:?}");
    let mut ran = false;
    stream
        .enqueue([buffer.reads("q"), buffer.reads("k"), buffer.reads("v")], |_| {
            ran = true;
            Ok(())
        })
        .unwrap();
    assert!(ran, "the same buffer may be read under several names");
}

#[test]
fn any_number_of_buffers_can_be_named() {
    let (device, stream, _buffer) = setup();
    let chunks: Vec<_> = (0..40u32).map(|i| DeviceBuffer::from_host(&device, &[i; 4]).unwrap()).collect();
    let gate = Gate::close(&stream);
    stream
        .enqueue_many(chunks.iter().map(|chunk| chunk.writes("chunk")), |stream| {
            for chunk in &chunks {
                // SAFETY: the whole buffer, noted as written.
                unsafe { driver().api().set_u32_async(chunk.as_ptr().address(), 9, 4, stream.raw())? };
            }
            Ok(())
        })
        .unwrap();
    let seen = blocks_until_open(&gate, || chunks[39].to_host().unwrap());
    assert_eq!(seen, [9; 4]);
    let twice = chunks.iter().chain(&chunks[7..8]).map(|chunk| chunk.writes("chunk"));
    assert!(matches!(stream.enqueue_many(twice, |_| Ok(())), Err(Error::Aliasing { .. })));
}

#[test]
fn work_that_panics_half_way_is_still_waited_for() {
    let (_device, stream, buffer) = setup();
    let gate = Gate::close(&stream);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stream.enqueue([buffer.writes("x")], |stream| {
            // SAFETY: the whole buffer, noted as written.
            unsafe { driver().api().set_u32_async(buffer.as_ptr().address(), 7, buffer.len(), stream.raw())? };
            panic!("in the caller's closure")
        })
    }));
    std::panic::set_hook(hook);
    assert!(panicked.is_err());
    assert_eq!(blocks_until_open(&gate, || buffer.to_host().unwrap()), [7; 100]);
}

#[test]
fn a_buffer_of_another_device_is_an_error() {
    if common::is_left_out_on_gpu("it needs two devices") {
        return;
    }
    let (here, stream, _buffer) = setup();
    let there = device();
    let foreign = GpuTensor::from_host(&there, &[1.0f32]).unwrap();
    let error = stream.enqueue([foreign.reads("gamma")], |_| Ok(())).unwrap_err();
    assert!(
        matches!(error, Error::WrongDevice { what: "gamma", found, expected }
            if found == there.ordinal() && expected == here.ordinal()),
        "{error:?}"
    );
    // The same device opened twice is one device.
    let again = Device::open(driver(), here.ordinal()).unwrap();
    assert_eq!(again, here);
    let own = GpuTensor::from_host(&again, &[1.0f32]).unwrap();
    stream.enqueue([own.reads("gamma")], |_| Ok(())).unwrap();
}

#[test]
fn an_object_of_another_driver_is_an_error() {
    let (here, stream, _buffer) = setup();
    // SAFETY: the functions of a driver.
    let same = unsafe { Driver::from_table(*driver().api().table()) }.unwrap();
    assert_eq!(Device::open(&same, here.ordinal()).unwrap(), here, "the same functions are the same driver");
    let there = device_with_gated_copies(here.ordinal());
    assert_ne!(there, here);
    let wrong = |result: kiln::Result<()>, named: &str| match result {
        Err(Error::WrongDriver { what }) => assert_eq!(what, named),
        other => panic!("{named}: {other:?}"),
    };
    let event = there.stream().unwrap().record_timed().unwrap();
    event.synchronize().unwrap();
    let (outcome, calls) = table::calls_of(|| stream.wait(&event));
    wrong(outcome, "event to wait for");
    assert_eq!(calls, [""; 0], "no driver has seen the event");
    let own = stream.record_timed().unwrap();
    own.synchronize().unwrap();
    wrong(own.milliseconds_until(&event).map(drop), "later event");
    let foreign = GpuTensor::from_host(&there, &[1.0f32]).unwrap();
    wrong(stream.enqueue([foreign.reads("gamma")], |_| Ok(())), "gamma");
    let clone = Device::open(&driver().clone(), here.ordinal()).unwrap();
    stream.wait(&clone.stream().unwrap().record().unwrap()).unwrap();
}

#[test]
fn time_is_measured_between_events_of_one_device() {
    if common::is_left_out_on_gpu("it needs two devices") {
        return;
    }
    let [one, other] = [device(), device()].map(|device| {
        let event = device.stream().unwrap().record_timed().unwrap();
        event.synchronize().unwrap();
        event
    });
    let across = one.milliseconds_until(&other);
    assert!(matches!(across, Err(Error::WrongDevice { what: "later event", .. })), "{across:?}");
    assert!(one.milliseconds_until(&one).is_ok());
}

#[test]
fn threads_that_name_the_same_buffers_in_any_order_do_not_lock_each_other_out() {
    let (device, _stream, x) = setup();
    let y = DeviceBuffer::from_host(&device, &[0u32; 100]).unwrap();
    std::thread::scope(|scope| {
        for flip in [false, true] {
            let (device, x, y) = (&device, &x, &y);
            scope.spawn(move || {
                let stream = device.stream().unwrap();
                for _ in 0..200 {
                    if flip { read(x, y, &stream) } else { read(y, x, &stream) }.unwrap();
                }
            });
        }
        for _ in 0..20 {
            x.to_host().unwrap();
        }
    });
    let (x, y) = (x.to_host().unwrap(), y.to_host().unwrap());
    assert!(x == y && (x == [1; 100] || x == [0; 100]));
    assert_eq!(fault(&device), None);
}

#[test]
fn a_graph_records_without_running_and_replays() {
    let (device, stream, mut counter) = setup();
    counter.copy_from_host(0, &[0; 100]).unwrap();
    let source = DeviceBuffer::from_host(&device, &[5u32; 100]).unwrap();
    let graph = Graph::capture(&stream, |stream| read(&source, &counter, stream)).unwrap();
    assert_eq!(counter.to_host().unwrap(), [0; 100], "nothing ran");
    let exec = graph.instantiate().unwrap();
    drop(graph);
    for value in [5u32, 6] {
        fill(&source, &stream, value).unwrap();
        let (outcome, calls) = table::calls_of(|| {
            stream.enqueue([source.reads("source"), counter.writes("counter")], |stream| {
                // SAFETY: the buffers of the recorded copy are alive and noted.
                unsafe { exec.launch(stream) }
            })
        });
        outcome.unwrap();
        assert!(calls.contains(&"cuGraphLaunch") && !calls.iter().any(|call| FORBIDDEN.contains(call)), "{calls:?}");
        assert_eq!(counter.to_host().unwrap(), [value; 100]);
    }
}

#[test]
fn a_capture_refuses_what_it_cannot_hold_and_leaves_the_stream_usable() {
    let (device, stream, buffer) = setup();
    let other = device.stream().unwrap();
    let gate = Gate::close(&other);
    fill(&buffer, &other, 3).unwrap();
    let refused = Graph::capture(&stream, |stream| fill(&buffer, stream, 4));
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    gate.open();
    let nested = Graph::capture(&stream, |stream| {
        assert!(Graph::capture(stream, |_| Ok(())).is_err(), "a capture in a capture");
        let other = std::thread::scope(|scope| scope.spawn(|| fill(&buffer, stream, 7)).join().unwrap());
        assert!(matches!(other, Err(Error::InvalidArgument { .. })), "another thread's work in a capture: {other:?}");
        assert!(stream.record().is_err(), "an event that never happens");
        Ok(())
    });
    nested.unwrap();
    fill(&buffer, &stream, 5).unwrap();
    assert_eq!(buffer.to_host().unwrap(), [5; 100]);
}

#[test]
fn a_capture_whose_calls_fail_once_leaves_the_stream_usable() {
    let (device, stream, mut buffer) = setup();
    for name in ["cuStreamBeginCapture", "cuMemsetD32Async", "cuStreamEndCapture"] {
        buffer.copy_from_host(0, &[1; 100]).unwrap();
        let failed = table::failing_once(name, 0, 999, || Graph::capture(&stream, |stream| fill(&buffer, stream, 4)));
        assert!(matches!(failed, Err(Error::Cuda { code: 999, .. })), "{name}: {failed:?}");
        fill(&buffer, &stream, 5).unwrap();
        assert_eq!(buffer.to_host().unwrap(), [5; 100], "{name}");
        let graph = Graph::capture(&stream, |stream| fill(&buffer, stream, 6)).unwrap();
        let failed = table::failing_once("cuGraphInstantiateWithFlags", 0, 999, || graph.instantiate());
        assert!(matches!(failed, Err(Error::Cuda { code: 999, .. })), "{failed:?}");
        let exec = graph.instantiate().unwrap();
        // SAFETY: the buffer of the recorded fill is alive and noted.
        stream.enqueue([buffer.writes("x")], |stream| unsafe { exec.launch(stream) }).unwrap();
        assert_eq!(buffer.to_host().unwrap(), [6; 100], "{name}");
    }
    let ordinal = device.ordinal();
    drop((buffer, stream, device));
    if !common::on_gpu() {
        assert_eq!(kiln_emulator::leaks(ordinal), []);
    }
}

#[test]
fn resident_work_is_parked_before_what_may_wait_for_it() {
    struct Parks(AtomicU32);
    impl Resident for Parks {
        fn ask(&self, wish: Wish) {
            self.0.fetch_add(u32::from(wish == Wish::Park), Ordering::SeqCst);
        }

        fn is_off(&self) -> kiln::Result<bool> {
            Ok(true)
        }
    }
    let (device, stream, buffer) = setup();
    let parks = Arc::new(Parks(AtomicU32::new(0)));
    let resident: Arc<dyn Resident> = parks.clone();
    device.add_resident(&resident);
    let mut seen = 0;
    let mut parked = |what: &str| {
        let now = parks.0.load(Ordering::SeqCst);
        assert!(now > seen, "{what} did not park");
        seen = now;
    };
    let other = DeviceBuffer::<u8>::uninitialized(&device, 8).unwrap();
    parked("allocating");
    drop(other);
    parked("freeing");
    let pinned = PinnedBuffer::<u8>::zeroed(&device, 8).unwrap();
    parked("allocating pinned memory");
    drop(pinned);
    parked("freeing pinned memory");
    let before = parks.0.load(Ordering::SeqCst);
    fill(&buffer, &stream, 1).unwrap();
    buffer.to_host().unwrap();
    assert_eq!(parks.0.load(Ordering::SeqCst), before, "copies and launches go on beside it");
    drop((resident, parks));
    drop(buffer);
}

#[test]
fn all_residents_are_asked_before_one_is_waited_for() {
    struct Pair(Arc<AtomicU32>);
    impl Resident for Pair {
        fn ask(&self, wish: Wish) {
            self.0.fetch_add(u32::from(wish == Wish::Park), Ordering::SeqCst);
        }

        fn is_off(&self) -> kiln::Result<bool> {
            // One leaves only if the other does, as two kernels that wait for each other's multiprocessors.
            Ok(self.0.load(Ordering::SeqCst) >= 2)
        }
    }
    let device = device();
    let asked = Arc::new(AtomicU32::new(0));
    let pair = [0, 1].map(|_| Arc::new(Pair(asked.clone())) as Arc<dyn Resident>);
    pair.iter().for_each(|resident| device.add_resident(resident));
    let buffer = DeviceBuffer::<u8>::uninitialized(&device, 8).unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    drop(buffer);
}

#[test]
fn what_is_parked_is_told_to_stay_once_the_call_has_returned() {
    struct Notes(Mutex<Vec<Wish>>, Driver);
    impl Resident for Notes {
        fn ask(&self, wish: Wish) {
            self.0.lock().unwrap().push(wish);
            // A mark among the calls that are recorded.
            self.1.device_count().unwrap();
        }

        fn is_off(&self) -> kiln::Result<bool> {
            Ok(true)
        }
    }
    let device = device();
    let notes = Arc::new(Notes(Mutex::default(), device.driver().clone()));
    let resident: Arc<dyn Resident> = notes.clone();
    device.add_resident(&resident);
    let (buffer, mut calls) = table::calls_of(|| DeviceBuffer::<u8>::uninitialized(&device, 8).unwrap());
    calls.retain(|call| ["cuDeviceGetCount", "cuMemAlloc"].contains(call));
    assert_eq!(calls, ["cuDeviceGetCount", "cuMemAlloc", "cuDeviceGetCount"]);
    assert_eq!(*notes.0.lock().unwrap(), [Wish::Park, Wish::Stay]);
    drop(buffer);
}

#[test]
fn a_device_opened_again_has_the_context_that_a_stream_of_it_kept() {
    let device = device();
    let (driver, ordinal) = (device.driver().clone(), device.ordinal());
    let limits = device.limits().with_turn(Duration::MAX);
    device.set_limits(limits);
    let stream = device.stream().unwrap();
    drop(device);
    let again = Device::open(&driver, ordinal).unwrap();
    assert_eq!(again.limits(), limits, "of one context");
    let buffer = DeviceBuffer::<u32>::zeroed(&again, 100).unwrap();
    fill(&buffer, &stream, 3).unwrap();
    assert_eq!(buffer.to_host().unwrap(), [3; 100]);
}

#[test]
fn a_resident_that_does_not_leave_is_waited_for_once() {
    struct Hangs(AtomicU32, AtomicU64);
    impl Resident for Hangs {
        fn ask(&self, _: Wish) {}

        fn is_off(&self) -> kiln::Result<bool> {
            Ok(self.0.load(Ordering::SeqCst) != 0)
        }

        fn progress(&self) -> u64 {
            self.1.load(Ordering::SeqCst)
        }
    }
    let device = device();
    let hangs = Arc::new(Hangs(AtomicU32::new(0), AtomicU64::new(0)));
    let resident: Arc<dyn Resident> = hangs.clone();
    device.add_resident(&resident);
    let limits = device.limits();
    device.set_limits(limits.with_wait(Duration::from_millis(300)));
    let times = [0, 0, 0, 1].map(|progress| {
        hangs.1.fetch_add(progress, Ordering::SeqCst);
        let begun = Instant::now();
        let refused = DeviceBuffer::<u8>::uninitialized(&device, 8);
        assert!(matches!(refused, Err(Error::Stalled { .. })), "{refused:?}");
        begun.elapsed()
    });
    assert!(times[0] >= Duration::from_millis(300), "{times:?}");
    assert!(times[1] < Duration::from_millis(200) && times[2] < Duration::from_millis(200), "{times:?}");
    assert!(times[3] >= Duration::from_millis(300), "it has got on since: {times:?}");
    hangs.0.store(1, Ordering::SeqCst);
    DeviceBuffer::<u8>::uninitialized(&device, 8).expect("it has left");
}
