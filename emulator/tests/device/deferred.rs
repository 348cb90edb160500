//! Deferred submission: work begins only once the host asks about it or waits for it.

use crate::kernels::KERNELS;
use crate::support::{Arg, Device, Handle, NON_BLOCKING, ok};
use kiln_emulator::{Code, DeviceConfig, FaultKind, last_fault};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

fn deferring(deferred_submission: bool) -> Device {
    Device::new(DeviceConfig { deferred_submission, ..DeviceConfig::default() })
}

/// Whether a word is set within that time, which the host only looks at.
fn is_set(word: &AtomicU32, within: Duration) -> bool {
    let begin = Instant::now();
    while word.load(Ordering::Acquire) == 0 {
        if begin.elapsed() > within {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

const MOMENT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_host_that_only_polls_mapped_memory_waits_forever_under_deferred_submission() {
    let device = deferring(true);
    let api = &device.api;
    let (set, mailbox) = (device.kernel(KERNELS, "set"), device.kernel(KERNELS, "mailbox"));
    let (stream, other) = (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
    let (words, address) = device.mapped(2);
    ok(device.launch(set, 1, 1, stream, &[Arg::U64(address)]));
    assert!(!is_set(&words[0], MOMENT), "nobody has asked");
    // SAFETY: handles of this device.
    unsafe {
        ok((api.stream_query)(other));
        assert!(!is_set(&words[0], MOMENT), "asked about another stream");
        (api.stream_query)(stream);
        assert!(is_set(&words[0], LONG), "asked");
        ok(device.launch(mailbox, 1, 1, stream, &[Arg::U64(address)]));
        assert!(!is_set(&words[1], MOMENT), "queued after the query");
        (api.stream_query)(stream);
        assert!(is_set(&words[1], LONG), "asked again");
        ok(device.finish(stream));
    }
}

#[test]
fn work_of_a_friendly_device_begins_unasked() {
    let device = deferring(false);
    let (words, address) = device.mapped(1);
    ok(device.launch(device.kernel(KERNELS, "set"), 1, 1, device.stream(NON_BLOCKING), &[Arg::U64(address)]));
    assert!(is_set(&words[0], LONG));
}

#[test]
fn every_call_that_asks_or_waits_submits() {
    /// A call, with the stream that the work is in, the event behind it, and the word that it sets.
    type Ask<'a> = &'a dyn Fn(&Device, Handle, Handle, u64);
    // SAFETY: in all of them: handles and addresses of this device, values in locals.
    let calls: &[(&str, Ask<'_>)] = unsafe {
        &[
            ("cuStreamQuery", &|d, stream, _, _| _ = (d.api.stream_query)(stream)),
            ("cuStreamSynchronize", &|d, stream, _, _| ok(d.finish(stream))),
            ("cuEventQuery", &|d, _, event, _| _ = (d.api.event_query)(event)),
            ("cuEventSynchronize", &|d, _, event, _| ok((d.api.event_synchronize)(event))),
            ("cuCtxSynchronize", &|d, _, _, _| ok(d.synchronize())),
            ("cuMemAlloc", &|d, _, _, _| _ = d.alloc(4)),
            ("cuMemHostAlloc", &|d, _, _, _| _ = d.mapped(1)),
            ("cuModuleLoadDataEx", &|d, _, _, _| _ = d.load(KERNELS)),
            ("a query behind an event", &|d, _, event, _| {
                let behind = d.stream(NON_BLOCKING);
                ok((d.api.stream_wait)(behind, event, 0));
                (d.api.stream_query)(behind);
            }),
            ("cuMemcpyDtoH", &|d, _, event, address| {
                // The legacy stream comes behind the event.
                ok((d.api.stream_wait)(0, event, 0));
                d.download::<u32>(address, 1);
            }),
            ("cuStreamDestroy", &|d, stream, _, _| ok((d.api.stream_destroy)(stream))),
        ]
    };
    for (name, ask) in calls {
        let device = deferring(true);
        let (stream, event) = (device.stream(NON_BLOCKING), device.event());
        let set = device.kernel(KERNELS, "set");
        let (words, address) = device.mapped(1);
        ok(device.launch(set, 1, 1, stream, &[Arg::U64(address)]));
        // SAFETY: handles of this device.
        ok(unsafe { (device.api.event_record)(event, stream) });
        assert!(!is_set(&words[0], Duration::from_millis(20)), "before {name}");
        ask(&device, stream, event, address);
        assert!(is_set(&words[0], LONG), "after {name}");
    }
}

#[test]
fn work_that_nobody_has_asked_about_does_not_end_a_deadlock() {
    for deferred in [false, true] {
        // What is not found to be a deadlock ends too.
        let launch_timeout = Some(LONG);
        let config = DeviceConfig { deferred_submission: deferred, launch_timeout, ..DeviceConfig::default() };
        let device = Device::new(DeviceConfig { deadlock_steps: 20_000, ..config });
        let (stream, other) = (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
        let words = device.upload(&[0u32; 2]);
        let (mailbox, set) = (device.kernel(KERNELS, "mailbox"), device.kernel(KERNELS, "set"));
        ok(device.launch(mailbox, 1, 1, stream, &[Arg::U64(words)]));
        ok(device.launch(set, 1, 1, other, &[Arg::U64(words)]));
        let expected = if deferred { Code::LAUNCH_TIMEOUT.raw() } else { 0 };
        assert_eq!(device.finish(stream), expected, "deferred: {deferred}");
        let kind = last_fault(device.ordinal).map(|fault| fault.kind);
        assert_eq!(kind, deferred.then_some(FaultKind::Deadlock));
    }
}
