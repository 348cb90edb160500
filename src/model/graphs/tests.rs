//! Graphs against the launches they are recorded from, deep in a cache, and the memory that they leave.

use crate::driver::Stream;
use crate::model::path::tests::{model, model_with, stream_path};
use crate::model::path::{End, Item, Path, Step};
use crate::model::sequence::Sequence;
use crate::model::stream::StreamPath;
use crate::model::{KvType, Model, Numerics};
use crate::shape::choice::PLAIN;
use crate::shape::table::KV_CHUNK;
use kiln_emulator::Checks;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A sequence whose cache has numbers in all its chunks, as if so many positions had been run.
fn deep(model: &Model, kv: KvType, capacity: u32) -> Sequence {
    let mut sequence = Sequence::new(&model.inner, kv, capacity).expect("a sequence");
    sequence.grow(&model.inner, capacity, capacity).expect("chunks");
    let numbers = (0u32..).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 4096.0 - 0.5);
    sequence.fill_cache(|bytes| match kv {
        KvType::F16 => numbers.clone().flat_map(|x| half::f16::from_f32(x).to_le_bytes()).take(bytes).collect(),
        KvType::F32 => numbers.clone().flat_map(f32::to_le_bytes).take(bytes).collect(),
    });
    sequence
}

/// A prompt token at `position`, and a chosen one behind another: what is chosen, and the bits of the logits.
fn run(path: &mut StreamPath, model: &Model, sequence: &mut Sequence, position: u32) -> (Vec<Step>, Vec<u32>) {
    let mut steps = Vec::new();
    // One at a time: together they would go through kernels for several.
    for (position, id, max_new) in [(position, 120, 0), (position + 1, 7, 1)] {
        let item = Item { ids: &[id], position, max_new, stop_ids: &[], choice: PLAIN };
        path.begin(&model.inner, sequence, &item).expect("it begins");
        let mut last = None;
        while last != Some(Step::End(End::Length)) {
            last = Some(path.next(&model.inner, sequence).expect("no fault"));
            steps.extend(last);
        }
    }
    let logits = path.logits(sequence).expect("logits");
    (steps, logits.into_iter().map(f32::to_bits).collect())
}

/// A prompt token before each border of a chunk, and a chosen one behind it. All borders but the third are of classes as
/// well. Five chunks have a class of five, since there is room for no more.
#[test]
fn tokens_and_logits_have_the_bits_of_the_stream_path_over_every_border() {
    // Races are looked for in the tests of items, which take graphs as well.
    let model = model_with(Checks { racecheck: false, ..Checks::ALL });
    for (kv, numerics) in [(KvType::F16, Numerics::Exact), (KvType::F32, Numerics::Fast)] {
        let mut sequences = [(); 2].map(|()| deep(&model, kv, 5 * KV_CHUNK));
        let (mut stream, mut graph) = (stream_path(&model, numerics), stream_path(&model, numerics).with_graphs());
        let mut captures = 0;
        // Recorded are tokens of 1 and 2 chunks, of 2 and 4, of 4, and of 5.
        for (chunks, new) in [(1, 2), (2, 2), (3, 1), (4, 1)] {
            let position = chunks * KV_CHUNK - 1;
            let [of_stream, of_graph] = &mut sequences;
            let expected = run(&mut stream, &model, of_stream, position);
            let before = graph.work();
            assert_eq!(run(&mut graph, &model, of_graph, position), expected, "{kv:?}, {numerics}, from {position}");
            let work = graph.work();
            captures += new;
            assert_eq!(work.captures, captures, "{kv:?}, {numerics}, from {position}");
            assert_eq!((work.launches - before.launches, work.tokens - before.tokens), (2, 2));
        }
        assert_eq!((stream.work().captures, stream.work().tokens), (0, graph.work().tokens));
    }
}

#[test]
fn graphs_are_recorded_again_for_another_sequence_and_for_a_cache_that_has_grown() {
    let model = model();
    let mut graph = stream_path(&model, Numerics::Exact).with_graphs();
    let mut expected = None;
    for captures in [2, 4] {
        let mut sequence = Sequence::new(&model.inner, KvType::F16, 6 * KV_CHUNK).expect("a sequence");
        let found = run(&mut graph, &model, &mut sequence, 0);
        assert_eq!(expected.get_or_insert_with(|| found.clone()), &found);
        assert_eq!(run(&mut graph, &model, &mut sequence, 0), found);
        assert_eq!(graph.work().captures, captures);
        if captures == 4 {
            let room = sequence.room();
            sequence.grow(&model.inner, room + 1, room + 1).expect("chunks");
            assert!(sequence.room() > room);
            assert_eq!(run(&mut graph, &model, &mut sequence, 0), found);
            assert_eq!(graph.work().captures, 6);
        }
    }
}

/// A place in a stream that its work does not pass until this is dropped.
struct Gate(Arc<AtomicBool>);

impl Gate {
    fn close(stream: &Stream) -> Gate {
        unsafe extern "C" fn wait(open: *mut c_void) {
            // SAFETY: a share that `close` gave away, once.
            let open = unsafe { Arc::from_raw(open.cast::<AtomicBool>()) };
            while !open.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let open = Arc::new(AtomicBool::new(false));
        let share = Arc::into_raw(open.clone()).cast_mut().cast();
        let api = stream.inner.context.driver.api();
        // SAFETY: the stream is live; the function takes what it is given and calls no driver.
        let closed = stream.enqueue([], |stream| unsafe { api.launch_host(stream.raw(), Some(wait), share) });
        closed.expect("host functions are supported");
        Gate(open)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Two prompt tokens are under way when path and sequence are dropped: the memory is freed once they have run.
#[test]
fn what_a_launched_graph_uses_outlives_it() {
    let model = model();
    let ordinal = model.inner.device.ordinal();
    let mut path = stream_path(&model, Numerics::Exact).with_graphs();
    let mut sequence = Sequence::new(&model.inner, KvType::F16, KV_CHUNK).expect("a sequence");
    // What may wait for the device, memory and graphs, is there before the gate.
    run(&mut path, &model, &mut sequence, 0);
    let before = path.work();
    let gate = Gate::close(&path.batches.stream);
    let item = Item { ids: &[120, 7, 300], position: 0, max_new: 1, stop_ids: &[], choice: PLAIN };
    path.begin(&model.inner, &mut sequence, &item).expect("it begins");
    let work = path.work();
    assert_eq!((work.launches - before.launches, work.captures), (2, before.captures));
    let dropped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(path);
            drop(sequence);
            dropped.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(50));
        let early = dropped.load(Ordering::Acquire);
        drop(gate);
        assert!(!early, "memory was freed under a graph");
    });
    drop(model);
    assert_eq!(kiln_emulator::last_fault(ordinal).map(|fault| format!("{fault:?}")), None);
    assert_eq!(kiln_emulator::leaks(ordinal), []);
}
