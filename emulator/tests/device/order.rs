//! Races between whole operations (kernels, copies, fills, graph nodes) and with the host: what the program has ordered
//! is silent, what it has not is reported with both sides, even though it ran one after the other here.

// A fault is large, and rare.
#![allow(clippy::result_large_err)]

use crate::kernels::KERNELS;
use crate::support::{Arg, Device, Handle, NON_BLOCKING, ok};
use kiln_emulator::host::{Ordering, load, store};
use kiln_emulator::{Code, DeviceConfig, Fault, FaultKind, last_fault};
use std::ffi::c_void;
use std::sync::atomic::AtomicU32;

struct Rig {
    device: Device,
    module: Handle,
    first: Handle,
    second: Handle,
    words: u64,
    out: u64,
}

impl Rig {
    fn new(flags: u32) -> Rig {
        let device = Device::new(DeviceConfig::default());
        let module = device.load(KERNELS).unwrap();
        let (first, second) = (device.stream(flags), device.stream(flags));
        let (words, out) = (device.upload(&[1u32; 2048]), device.upload(&[0u32; 2048]));
        Rig { device, module, first, second, words, out }
    }

    fn write(&self, stream: Handle, value: u32) {
        let write = self.device.function(self.module, "write");
        ok(self.device.launch(write, 1, 32, stream, &[Arg::U64(self.words), Arg::U32(value)]));
    }

    fn read(&self, stream: Handle) {
        let read = self.device.function(self.module, "read");
        ok(self.device.launch(read, 1, 32, stream, &[Arg::U64(self.words), Arg::U64(self.out), Arg::U32(3)]));
    }

    fn run(&self, name: &str, threads: u32, stream: Handle, to: u64) {
        ok(self.device.launch(self.device.function(self.module, name), 1, threads, stream, &[Arg::U64(to)]));
    }

    /// Lets a stream's work be done without telling the driver that anybody waited for it.
    fn let_pass(&self) {
        let mut other = 0;
        // SAFETY: a context synchronisation in a thread of its own would count as well, an allocation does not.
        ok(unsafe { (self.device.api.alloc)(&mut other, 16) });
    }

    /// The race that the device has found, if any.
    #[track_caller]
    fn race(&self) -> Option<Fault> {
        self.fault(FaultKind::Race)
    }

    /// The fault of this kind that the device has found, if any.
    #[track_caller]
    fn fault(&self, kind: FaultKind) -> Option<Fault> {
        let code = self.device.synchronize();
        let fault = last_fault(self.device.ordinal);
        match &fault {
            None => ok(code),
            Some(f) => assert_eq!((f.kind, code), (kind, Code::LAUNCH_FAILED.raw()), "{f}"),
        }
        fault
    }
}

#[test]
fn kernels_of_two_streams_that_touch_the_same_words_race_unless_something_orders_them() {
    type Between = (&'static str, u32, bool, fn(&Rig));
    let between: [Between; 9] = [
        ("nothing", NON_BLOCKING, false, |_| {}),
        ("time", NON_BLOCKING, false, |rig| rig.let_pass()),
        ("an event of the wrong stream", NON_BLOCKING, false, |rig| rig.device.order(rig.second, rig.second)),
        ("an event", NON_BLOCKING, true, |rig| rig.device.order(rig.first, rig.second)),
        ("a chain of events", NON_BLOCKING, true, |rig| {
            let third = rig.device.stream(NON_BLOCKING);
            rig.device.order(rig.first, third);
            rig.device.order(third, rig.second);
        }),
        ("a wait for the stream", NON_BLOCKING, true, |rig| ok(rig.device.finish(rig.first))),
        ("a wait for an event", NON_BLOCKING, true, |rig| {
            let event = rig.device.event();
            // SAFETY: handles of this device.
            unsafe {
                ok((rig.device.api.event_record)(event, rig.first));
                ok((rig.device.api.event_synchronize)(event));
            }
        }),
        ("a query that said done", NON_BLOCKING, true, |rig| {
            // SAFETY: a handle of this device.
            while unsafe { (rig.device.api.stream_query)(rig.first) } != 0 {
                std::thread::yield_now();
            }
        }),
        // SAFETY: an address of this device.
        ("work in the default stream", 0, true, |rig| unsafe { ok((rig.device.api.fill32_async)(rig.out, 0, 1, 0)) }),
    ];
    for (what, flags, ordered, middle) in between {
        let rig = Rig::new(flags);
        rig.write(rig.first, 5);
        middle(&rig);
        rig.read(rig.second);
        let race = rig.race();
        assert_eq!(race.is_none(), ordered, "{what}: {race:?}");
        let Some(f) = race else { continue };
        // Both sides, whichever came second.
        assert!(f.message.contains("kernel write (work 1 of stream 1)") || f.kernel == "write", "{what}: {f}");
        assert!(f.message.contains("kernel read (work") || f.kernel == "read", "{what}: {f}");
        assert!(f.message.contains("an event between the streams"), "{what}: {f}");
        assert!(f.address.is_some_and(|a| a >= rig.words && a < rig.words + 128), "{what}: {f}");
    }
}

#[test]
fn one_stream_is_in_order_and_readers_do_not_race() {
    let rig = Rig::new(NON_BLOCKING);
    rig.write(rig.first, 5);
    rig.read(rig.first);
    rig.write(rig.first, 6);
    ok(rig.device.synchronize());
    let other = rig.device.upload(&[0u32; 32]);
    let read = rig.device.function(rig.module, "read");
    for (stream, out) in [(rig.first, rig.out), (rig.second, other)] {
        ok(rig.device.launch(read, 1, 32, stream, &[Arg::U64(rig.words), Arg::U64(out), Arg::U32(0)]));
    }
    assert_eq!(rig.race(), None);
}

#[test]
fn a_reader_of_long_ago_races_with_a_writer_of_another_stream() {
    let rig = Rig::new(NON_BLOCKING);
    rig.read(rig.first);
    // Others of the same stream use the same page of memory meanwhile.
    let other = rig.words + 1024;
    (0..3).for_each(|_| rig.run("bytes", 32, rig.first, other));
    rig.let_pass();
    rig.write(rig.second, 1);
    let f = rig.race().expect("nothing orders the two streams");
    assert!(f.message.contains("the read by kernel read (work 1 of stream 1)"), "{f}");
}

#[test]
fn bytes_side_by_side_in_one_word_do_not_race() {
    let rig = Rig::new(NON_BLOCKING);
    rig.run("bytes", 32, rig.first, rig.words);
    rig.run("bytes", 32, rig.second, rig.words + 1);
    assert_eq!(rig.race(), None);
    let rig = Rig::new(NON_BLOCKING);
    rig.run("bytes", 32, rig.first, rig.words);
    rig.run("bytes", 1, rig.second, rig.words + 62);
    assert!(rig.race().is_some());
}

#[test]
fn atomics_of_two_kernels_do_not_race_and_what_they_order_does_not_either() {
    let rig = Rig::new(NON_BLOCKING);
    rig.run("count", 1, rig.first, rig.words);
    rig.run("count", 1, rig.second, rig.words);
    assert_eq!(rig.race(), None);
    // A flag between two kernels that run at the same time, or one after the other.
    for early in [false, true] {
        let rig = Rig::new(NON_BLOCKING);
        let words = rig.device.upload(&[0u32; 4]);
        // The first look-up of a function may wait for what runs.
        for name in ["send", "receive"] {
            rig.device.function(rig.module, name);
        }
        if early {
            rig.run("send", 1, rig.first, words);
            rig.let_pass();
        }
        rig.run("receive", 1, rig.second, words);
        if !early {
            rig.run("send", 1, rig.first, words);
        }
        assert_eq!(rig.race(), None, "early: {early}");
        assert_eq!(rig.device.download::<u32>(words, 3), [1, 7, 7]);
    }
}

#[test]
fn a_flag_carries_what_was_over_before_its_kernel_began() {
    for ordered in [false, true] {
        let rig = Rig::new(NON_BLOCKING);
        let words = rig.device.upload(&[0u32; 64]);
        let write = rig.device.function(rig.module, "write");
        let stream = if ordered { rig.first } else { rig.device.stream(NON_BLOCKING) };
        ok(rig.device.launch(write, 1, 32, stream, &[Arg::U64(words + 4), Arg::U32(7)]));
        rig.let_pass();
        rig.run("post", 1, rig.first, words);
        rig.let_pass();
        rig.run("receive", 1, rig.second, words);
        let race = rig.race();
        assert_eq!(race.is_none(), ordered, "{race:?}");
    }
}

#[test]
fn a_flag_of_the_host_carries_what_it_has_waited_for() {
    for waits in [false, true] {
        let rig = Rig::new(NON_BLOCKING);
        let (words, address) = rig.device.mapped(4);
        let fetch = rig.device.function(rig.module, "fetch");
        rig.device.function(rig.module, "write");
        ok(rig.device.launch(fetch, 1, 1, rig.second, &[Arg::U64(address), Arg::U64(rig.words)]));
        rig.write(rig.first, 7);
        let post = || store(&words[0], 1, Ordering::Release).unwrap();
        if !waits {
            post();
        }
        rig.device.finish(rig.first);
        if waits {
            post();
        }
        let race = rig.race();
        assert_eq!(race.is_none(), waits, "{race:?}");
    }
}

#[test]
fn a_flag_is_heard_after_the_host_has_waited_for_who_set_it() {
    let rig = Rig::new(NON_BLOCKING);
    let (words, address) = rig.device.mapped(4);
    let from = rig.device.upload(&[0u32; 4]);
    let late = rig.device.function(rig.module, "late");
    rig.device.function(rig.module, "send");
    ok(rig.device.launch(late, 1, 1, rig.second, &[Arg::U64(address), Arg::U64(from)]));
    rig.run("send", 1, rig.first, from);
    ok(rig.device.finish(rig.first));
    store(&words[0], 1, Ordering::Relaxed).unwrap();
    assert_eq!(rig.race(), None);
}

#[test]
fn copies_and_fills_race_with_kernels_unless_something_orders_them() {
    type Operation = (&'static str, fn(&Rig, Handle, *mut c_void));
    let operations: [Operation; 4] = [
        // SAFETY: addresses of this device, page-locked memory of the host.
        ("a copy from the host", |rig, stream, host| unsafe {
            ok((rig.device.api.copy_in_async)(rig.words, host, 64, stream))
        }),
        // SAFETY: as above.
        ("a copy to the host", |rig, stream, host| unsafe {
            ok((rig.device.api.copy_out_async)(host, rig.words, 64, stream))
        }),
        // SAFETY: as above.
        ("a copy within the device", |rig, stream, _| unsafe {
            ok((rig.device.api.copy_async)(rig.out, rig.words, 64, stream))
        }),
        // SAFETY: as above.
        ("a fill", |rig, stream, _| unsafe { ok((rig.device.api.fill8_async)(rig.words + 3, 1, 64, stream)) }),
    ];
    for (name, operation) in operations {
        for kernel_first in [false, true] {
            for ordered in [false, true] {
                let rig = Rig::new(NON_BLOCKING);
                let (host, _) = rig.device.mapped(16);
                let host = host.as_ptr().cast_mut().cast();
                let (one, other) = (rig.first, if ordered { rig.first } else { rig.second });
                if kernel_first {
                    rig.write(one, 9);
                }
                operation(&rig, other, host);
                if !kernel_first {
                    rig.write(one, 9);
                }
                let race = rig.race();
                assert_eq!(race.is_none(), ordered, "{name}, kernel first: {kernel_first}: {race:?}");
                let text = race.map_or_else(|| format!("{name} kernel write"), |f| f.to_string());
                assert!(text.contains(name) && text.contains("write"), "{text}");
            }
        }
    }
    // Ranges that only touch are apart.
    let rig = Rig::new(NON_BLOCKING);
    rig.write(rig.first, 9);
    // SAFETY: addresses of this device.
    ok(unsafe { (rig.device.api.fill8_async)(rig.words + 128, 1, 64, rig.second) });
    assert_eq!(rig.race(), None);
}

#[test]
fn nodes_of_a_graph_race_unless_an_edge_orders_them() {
    for ordered in [false, true] {
        let rig = Rig::new(NON_BLOCKING);
        rig.device.capture(rig.first);
        rig.device.order(rig.first, rig.second);
        rig.write(rig.first, 1);
        if ordered {
            rig.device.order(rig.first, rig.second);
        }
        rig.read(rig.second);
        rig.device.order(rig.second, rig.first);
        let exec = rig.device.captured(rig.first);
        ok(rig.device.replay(exec, rig.first));
        // The race may have been found by now.
        let again = rig.device.replay(exec, rig.second);
        assert!(again == 0 || !ordered);
        let race = rig.race();
        assert_eq!(race.is_none(), ordered, "{race:?}");
        if let Some(f) = race {
            assert!(f.message.contains("kernel write (node 0 of the graph"), "{f}");
            assert!(f.message.contains("a dependency between the two nodes"), "{f}");
        }
    }
}

#[test]
fn a_programmatic_launch_races_with_the_kernel_before_it_until_it_has_waited() {
    for graph in [false, true] {
        // Who waits, whether the launch is programmatic, which kernel is before it, and whether that is right.
        for (how, programmatic, before, silent) in [
            (0, false, "trigger", true),
            (0, true, "write", true),
            (0, true, "trigger", false),
            (1, true, "trigger", true),
            (2, true, "trigger", true),
        ] {
            let rig = Rig::new(NON_BLOCKING);
            let early = rig.device.function(rig.module, "early");
            // A look-up may not wait for anything in a capture.
            for name in ["bytes", before] {
                rig.device.function(rig.module, name);
            }
            let args = [Arg::U64(rig.words), Arg::U64(rig.out), Arg::U32(how)];
            let attribute = (6, [u32::from(programmatic), 0, 0]);
            if graph {
                rig.device.capture(rig.first);
            }
            // What the one before the last wrote is over when the last may begin.
            rig.run("bytes", 32, rig.first, rig.words + 128);
            let words = [Arg::U64(rig.words), Arg::U32(5)];
            ok(rig.device.launch(rig.device.function(rig.module, before), 1, 32, rig.first, &words));
            ok(rig.device.launch_with(&[attribute], early, [1, 64], 0, rig.first, &args));
            if graph {
                let exec = rig.device.captured(rig.first);
                ok(rig.device.replay(exec, rig.first));
            }
            let race = rig.race();
            assert_eq!(
                race.is_none(),
                silent,
                "how {how}, programmatic {programmatic}, after {before}, graph {graph}: {race:?}"
            );
            if let Some(f) = race {
                assert!(f.message.contains("the write by kernel trigger"), "{f}");
                assert!(f.message.contains("a griddepcontrol.wait before this is missing"), "{f}");
            }
        }
    }
}

/// The last of three may begin while the first runs, and waits for the first by way of the second.
#[test]
fn a_chain_of_programmatic_launches_is_ordered_by_the_wait_of_each() {
    for graph in [false, true] {
        // Whether the second waits, whether the last waits before it reads, and the fault.
        for (second, last, expected) in
            [(1, 1, None), (1, 0, Some(FaultKind::Race)), (0, 1, Some(FaultKind::InvalidSync))]
        {
            let rig = Rig::new(NON_BLOCKING);
            let [trigger, pass, early] = ["trigger", "pass", "early"].map(|name| rig.device.function(rig.module, name));
            if graph {
                rig.device.capture(rig.first);
            }
            ok(rig.device.launch(trigger, 1, 32, rig.first, &[Arg::U64(rig.words), Arg::U32(5)]));
            let attribute = (6, [1, 0, 0]);
            let args = [Arg::U64(rig.words), Arg::U32(second)];
            ok(rig.device.launch_with(&[attribute], pass, [1, 32], 0, rig.first, &args));
            let args = [Arg::U64(rig.words), Arg::U64(rig.out), Arg::U32(last)];
            // Where the second has failed already the launch is refused.
            let code = rig.device.launch_with(&[attribute], early, [1, 32], 0, rig.first, &args);
            assert!(code == 0 || expected == Some(FaultKind::InvalidSync), "{code}");
            if graph {
                let exec = rig.device.captured(rig.first);
                ok(rig.device.replay(exec, rig.first));
            }
            let fault = rig.fault(expected.unwrap_or(FaultKind::Race));
            assert_eq!(fault.is_some(), expected.is_some(), "second {second}, last {last}, graph {graph}: {fault:?}");
            if let Some(f) = fault {
                let missing = ["a griddepcontrol.wait before this is missing", "without a griddepcontrol.wait"];
                assert!(missing.iter().any(|what| f.message.contains(what)), "{f}");
            }
        }
    }
}

/// Work that ends during the launch changes what is read, also where the thread has waited for it.
#[test]
fn a_non_coherent_load_reads_nothing_that_a_programmatic_launch_has_waited_for() {
    for (programmatic, before, silent) in [(false, "trigger", true), (true, "write", true), (true, "trigger", false)] {
        let rig = Rig::new(NON_BLOCKING);
        let early = rig.device.function(rig.module, "early_constant");
        let words = [Arg::U64(rig.words), Arg::U32(5)];
        ok(rig.device.launch(rig.device.function(rig.module, before), 1, 32, rig.first, &words));
        let args = [Arg::U64(rig.words), Arg::U64(rig.out)];
        let attribute = (6, [u32::from(programmatic), 0, 0]);
        ok(rig.device.launch_with(&[attribute], early, [1, 32], 0, rig.first, &args));
        let stale = rig.fault(FaultKind::StaleRead);
        assert_eq!(stale.is_none(), silent, "programmatic {programmatic}, after {before}: {stale:?}");
        if let Some(f) = stale {
            assert!(f.message.contains("by kernel trigger") && f.message.contains("a non-coherent load"), "{f}");
        }
    }
}

/// The first access to a page finds out which others need not be compared with what other launches did there: the second is one
/// that must be.
#[test]
fn an_ordered_access_to_a_page_says_nothing_of_others() {
    // The kernel before, the words that are accessed, how, by how many threads, and the fault: 32 words were written or read.
    for (before, first, second, how, threads, expected) in [
        ("trigger", 160, 0, 0, 1, FaultKind::Race),
        ("trigger", 0, 0, 1, 64, FaultKind::Race),
        ("trigger_read", 0, 0, 2, 1, FaultKind::Race),
        ("trigger", 0, 0, 3, 1, FaultKind::StaleRead),
    ] {
        let rig = Rig::new(NON_BLOCKING);
        let [before_it, twice] = [before, "twice"].map(|name| rig.device.function(rig.module, name));
        let words = [Arg::U64(rig.words), Arg::U32(5)];
        let taken = if before == "trigger" { 2 } else { 1 };
        ok(rig.device.launch(before_it, 1, 32, rig.first, &words[..taken]));
        let args = [Arg::U64(rig.words), Arg::U32(first), Arg::U32(second), Arg::U32(how)];
        ok(rig.device.launch_with(&[(6, [1, 0, 0])], twice, [1, threads], 0, rig.first, &args));
        assert!(rig.fault(expected).is_some(), "{how} after {before}");
    }
}

/// Lets the host post `payload` and wait for the answer, with these orderings.
fn exchange(write: Ordering, publish: Ordering, poll: Ordering, read: Ordering) -> Result<u32, Fault> {
    let rig = Rig::new(NON_BLOCKING);
    let (words, address) = rig.device.mapped(4);
    rig.run("answer", 1, rig.first, address);
    let talk = || {
        store(&words[1], 41, write)?;
        store(&words[0], 1, publish)?;
        while load(&words[3], poll)? == 0 {
            if let Some(fault) = last_fault(rig.device.ordinal) {
                return Err(fault);
            }
            std::thread::yield_now();
        }
        load(&words[2], read)
    };
    let answer = talk();
    words[0].store(1, std::sync::atomic::Ordering::Release);
    answer.and_then(|answer| rig.race().map_or(Ok(answer), Err))
}

#[test]
fn a_mailbox_between_host_and_kernel_needs_release_and_acquire_on_both_sides() {
    use Ordering::{Acquire, Plain, Relaxed, Release};
    assert_eq!(exchange(Plain, Release, Acquire, Plain), Ok(42));
    let bugs = [
        (
            "host publishes relaxed",
            exchange(Plain, Relaxed, Acquire, Plain),
            "write by the host",
            "release (sys scope)",
        ),
        ("host publishes by a plain store", exchange(Plain, Plain, Acquire, Plain), "the host", ""),
        (
            "host reads the mailbox without acquire",
            exchange(Plain, Release, Relaxed, Plain),
            "kernel answer",
            "acquired",
        ),
        ("host polls a plain variable", exchange(Plain, Release, Plain, Plain), "the host", ""),
    ];
    for (name, outcome, who, missing) in bugs {
        let f = outcome.expect_err(name);
        assert_eq!(f.kind, FaultKind::Race, "{name}: {f}");
        assert!(f.to_string().contains(who) && f.message.contains(missing), "{name}: {f}");
    }
    // Words that are accessed atomically on both sides need nothing else.
    assert!(exchange(Relaxed, Release, Acquire, Relaxed).is_ok());
}

#[test]
fn a_release_that_does_not_reach_the_host_orders_nothing_for_it() {
    let rig = Rig::new(NON_BLOCKING);
    let (words, address) = rig.device.mapped(4);
    rig.run("answer_near", 1, rig.first, address);
    while load(&words[3], Ordering::Acquire).unwrap() == 0 {
        std::thread::yield_now();
    }
    let f = load(&words[2], Ordering::Plain).unwrap_err();
    assert!(f.message.contains("kernel answer_near") && f.address == Some(address + 8), "{f}");
}

#[test]
fn the_host_reads_mapped_memory_only_after_it_has_waited() {
    for waits in [false, true] {
        let rig = Rig::new(NON_BLOCKING);
        let (words, address) = rig.device.mapped(32);
        let write = rig.device.function(rig.module, "write");
        ok(rig.device.launch(write, 1, 32, rig.first, &[Arg::U64(address), Arg::U32(6)]));
        if waits {
            ok(rig.device.finish(rig.first));
        } else {
            rig.let_pass();
        }
        let seen = load(&words[9], Ordering::Plain);
        match seen {
            Ok(value) => assert!(waits && value == 6),
            Err(f) => assert!(!waits && f.message.contains("the write by kernel write (work 1 of stream 1)"), "{f}"),
        }
    }
}

#[test]
fn the_host_may_not_touch_memory_of_a_copy_in_flight() {
    for waits in [false, true] {
        let rig = Rig::new(NON_BLOCKING);
        let (words, _) = rig.device.mapped(32);
        let host: *const AtomicU32 = words.as_ptr();
        // SAFETY: addresses of this device, page-locked memory of the host.
        unsafe {
            ok((rig.device.api.copy_out_async)(host.cast_mut().cast(), rig.words, 128, rig.first));
            if waits {
                ok(rig.device.finish(rig.first));
            } else {
                rig.let_pass();
            }
        }
        match load(&words[31], Ordering::Plain) {
            Ok(value) => assert!(waits && value == 1),
            Err(f) => assert!(!waits && f.message.contains("the write by a copy to the host"), "{f}"),
        }
    }
}

#[test]
fn what_the_host_wrote_before_a_launch_is_the_kernels() {
    for late in [false, true] {
        let rig = Rig::new(NON_BLOCKING);
        let (words, address) = rig.device.mapped(32);
        let read = rig.device.function(rig.module, "read");
        let mailbox = rig.device.mapped(4);
        // Keeps the stream busy, so that a late store is before the kernel in time, if not in order.
        rig.run("answer", 1, rig.first, mailbox.1);
        if !late {
            words.iter().for_each(|word| store(word, 2, Ordering::Plain).unwrap());
        }
        ok(rig.device.launch(read, 1, 32, rig.first, &[Arg::U64(address), Arg::U64(rig.out), Arg::U32(3)]));
        if late {
            words.iter().for_each(|word| store(word, 2, Ordering::Plain).unwrap());
        }
        mailbox.0[0].store(1, std::sync::atomic::Ordering::Release);
        let race = rig.race();
        assert_eq!(race.is_some(), late, "{race:?}");
        if let Some(f) = race {
            assert!(f.message.contains("the write by the host") && f.message.contains("before it asks"), "{f}");
        }
    }
}

#[test]
fn what_a_destroyed_stream_did_is_still_ordered() {
    // Blocking streams are ordered before the legacy stream; a wait for the context counts on all streams.
    for (flags, waits) in [(0, false), (NON_BLOCKING, true), (NON_BLOCKING, false)] {
        let rig = Rig::new(flags);
        rig.write(rig.first, 5);
        rig.let_pass();
        // SAFETY: a handle of this device.
        ok(unsafe { (rig.device.api.stream_destroy)(rig.first) });
        if waits {
            ok(rig.device.synchronize());
        }
        rig.read(if flags == 0 { 0 } else { rig.second });
        assert_eq!(rig.race().is_some(), flags == NON_BLOCKING && !waits, "flags {flags}, waits {waits}");
    }
}
