//! Two cooperative grids whose blocks are started in turns: they deadlock where neither gets its last block, unless the
//! program orders them.

use crate::kernels::KERNELS;
use crate::support::{Arg, Device, Handle, NON_BLOCKING, ok};
use kiln_emulator::{Code, DeviceConfig, FaultKind, last_fault};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

/// Four multiprocessors, each of which holds one block of [`cooperative`].
fn four(interleave_cooperative: bool) -> Device {
    Device::new(DeviceConfig { multiprocessors: 4, interleave_cooperative, ..DeviceConfig::default() })
}

/// Kernels whose blocks wait for each other, the same under two names.
fn meet_and_join(device: &Device) -> [Handle; 2] {
    ["meet", "join"].map(|name| device.kernel(KERNELS, name))
}

/// Launches a grid of blocks that fill a multiprocessor each.
#[track_caller]
fn cooperative(device: &Device, function: Handle, blocks: u32, stream: Handle, words: u64) {
    ok(device.allow_shared(function, 200 << 10));
    ok(device.launch_cooperative(function, [blocks, 1], 200 << 10, stream, &[Arg::U64(words)]));
}

/// What orders the second grid after the first.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Between {
    Nothing,
    StreamOrder,
    Event,
    Synchronised,
    Queried,
}

/// Launches `meet` and then `second` with so many blocks; what waiting for both returns, and the message of a deadlock.
fn two_grids(device: &Device, second: &str, [a, b]: [u32; 2], between: Between) -> (u32, Option<String>) {
    let [first, join] = meet_and_join(device);
    let then = if second == "join" { join } else { device.kernel(KERNELS, second) };
    let (words, others) = (device.upload(&[0u32; 4]), device.upload(&[0u32; 4]));
    let stream = device.stream(NON_BLOCKING);
    let other = if between == Between::StreamOrder { stream } else { device.stream(NON_BLOCKING) };
    cooperative(device, first, a, stream, words);
    match between {
        Between::Nothing | Between::StreamOrder => {}
        Between::Event => device.order(stream, other),
        Between::Synchronised => ok(device.finish(stream)),
        // SAFETY: a handle of this device.
        Between::Queried => while unsafe { (device.api.stream_query)(stream) } == Code::NOT_READY.raw() {},
    }
    cooperative(device, then, b, other, others);
    let result = device.synchronize();
    let fault = last_fault(device.ordinal).inspect(|fault| assert_eq!(fault.kind, FaultKind::Deadlock, "{fault}"));
    (result, fault.map(|fault| fault.to_string()))
}

#[test]
fn grids_started_in_turns_deadlock_where_neither_gets_its_last_block() {
    for blocks in [[4, 4], [3, 3], [4, 2], [2, 4]] {
        let (result, message) = two_grids(&four(true), "join", blocks, Between::Nothing);
        assert_eq!(result, Code::LAUNCH_TIMEOUT.raw(), "{blocks:?}");
        let message = message.expect("a fault");
        for grid in ["kernel meet (work 1 of stream 1) with", "kernel join (work 1 of stream 2) with"] {
            assert!(message.contains(grid), "{message}");
        }
    }
}

#[test]
fn grids_of_which_one_always_gets_its_last_block_run() {
    for blocks in [[2, 2], [3, 2], [4, 1], [1, 4]] {
        assert_eq!(two_grids(&four(true), "join", blocks, Between::Nothing), (0, None), "{blocks:?}");
    }
}

#[test]
fn grids_that_the_program_orders_run() {
    use Between::{Event, Queried, StreamOrder, Synchronised};
    for between in [StreamOrder, Event, Synchronised, Queried] {
        assert_eq!(two_grids(&four(true), "join", [4, 4], between), (0, None), "{between:?}");
    }
}

#[test]
fn grids_of_a_friendly_device_run() {
    assert_eq!(two_grids(&four(false), "join", [4, 4], Between::Nothing), (0, None));
}

#[test]
fn a_grid_whose_blocks_do_not_wait_for_each_other_keeps_no_room() {
    assert_eq!(two_grids(&four(true), "alone", [4, 4], Between::Nothing), (0, None));
}

#[test]
fn a_grid_in_a_graph_counts_as_one() {
    for (blocks, expected) in [(1, 0), (4, Code::LAUNCH_TIMEOUT.raw())] {
        let device = four(true);
        let [meet, join] = meet_and_join(&device);
        let (words, others) = (device.upload(&[0u32; 4]), device.upload(&[0u32; 4]));
        let (stream, other) = (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
        device.capture(stream);
        cooperative(&device, meet, 4, stream, words);
        let exec = device.captured(stream);
        cooperative(&device, join, blocks, other, others);
        ok(device.replay(exec, stream));
        assert_eq!(device.synchronize(), expected, "{blocks} blocks");
    }
}

#[test]
fn a_grid_that_polls_ends_with_the_context() {
    // Only the loss of the context can end it.
    let config = DeviceConfig { multiprocessors: 4, interleave_cooperative: true, ..DeviceConfig::default() };
    let device = Device::new(DeviceConfig { deadlock_steps: u64::MAX, ..config });
    let (linger, [_, join]) = (device.kernel(KERNELS, "linger"), meet_and_join(&device));
    let (stream, other) = (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
    let (words, (letters, address)) = (device.upload(&[0u32; 4]), device.mapped(2));
    cooperative(&device, linger, 4, stream, address);
    while letters[1].load(Ordering::Acquire) < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    cooperative(&device, join, 4, other, words);
    let (over, is_over) = mpsc::channel();
    let (release, ordinal) = (device.api.release, device.ordinal);
    std::thread::spawn(move || {
        // SAFETY: an ordinal.
        let _ = over.send(unsafe { release(ordinal) });
    });
    assert_eq!(is_over.recv_timeout(Duration::from_secs(60)), Ok(0), "the context's work is over");
    let fault = last_fault(ordinal).expect("a fault");
    assert_eq!((fault.kind, fault.kernel.as_str()), (FaultKind::Deadlock, "join"), "the first fault is kept: {fault}");
}
