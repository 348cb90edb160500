//! The mailbox from the host's side, item by item: what a session never sends, and the moments it cannot choose.

use super::{PersistentPath, Post};
use crate::Model;
use crate::driver::{Device, Driver, Resident};
use crate::model::path::{Item, Path};
use crate::model::sequence::Sequence;
use crate::model::{KvType, ModelFile};
use crate::shape::mailbox::{self, entry};
use kiln_emulator::{DeviceConfig, Schedule};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const PROMPT: &[u32] = &[120, 7, 300, 41, 5];

/// The demo model on a device of its own, and the path over one sequence.
struct Scene {
    model: Model,
    path: PersistentPath,
    sequence: Sequence,
}

/// A device whose blocks run in an order of this seed; few of them, to be quick.
fn device(seed: u64) -> Device {
    let schedule = Schedule::Random;
    let ordinal = kiln_emulator::add_device(DeviceConfig { seed, schedule, multiprocessors: 3, ..Default::default() });
    // SAFETY: the emulator's functions have NVIDIA's signatures.
    let driver = unsafe {
        Driver::from_resolver(|name| kiln_emulator::resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()))
    };
    Device::open(&driver.expect("the emulator is a driver"), ordinal).expect("the device was added")
}

impl Scene {
    fn new(seed: u64, capacity: u32) -> Scene {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/demo.Q4_K_M.gguf");
        let file = ModelFile::open(demo).expect("the demo model");
        let baked = file.baked().expect("baked by the default features");
        let model = Model::load(&device(seed), baked, file, |_| {}).expect("it loads");
        let mut sequence = Sequence::new(&model.inner, KvType::F16, capacity).expect("a sequence");
        sequence.grow(&model.inner, capacity).expect("chunks");
        let path = PersistentPath::new(&model.inner, KvType::F16, capacity, None, None).expect("a path");
        Scene { model, path, sequence }
    }

    fn begin(&mut self, ids: &[u32], position: u32, max_new: u32) {
        let item = Item { ids, position, max_new, stop_ids: &[] };
        self.path.begin(&self.model.inner, &mut self.sequence, &item).expect("it begins");
    }

    fn next(&mut self) -> (u32, u32) {
        self.path.wait(&self.model.inner, &self.sequence).expect("an entry")
    }

    /// Tokens up to the end of an item, and the end's kind and payload.
    fn drain(&mut self) -> (Vec<u32>, (u32, u32)) {
        let mut tokens = Vec::new();
        loop {
            match self.next() {
                (entry::TOKEN, token) => tokens.push(token),
                end => return (tokens, end),
            }
        }
    }

    fn run(&mut self, ids: &[u32], max_new: u32) -> Vec<u32> {
        self.begin(ids, 0, max_new);
        let (tokens, (kind, _)) = self.drain();
        assert_eq!((tokens.len(), kind), (max_new as usize, entry::LENGTH));
        tokens
    }

    fn post(&self) -> Arc<Post> {
        self.path.post.clone()
    }
}

/// Numbers that look random, from a seed.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn items_that_cannot_be_run_are_rejected_by_the_device() {
    let mut scene = Scene::new(1, 16);
    let vocab = scene.model.shape().vocab;
    let expected = scene.run(PROMPT, 3);
    scene.begin(&[], 0, 3);
    assert_eq!(scene.drain(), (vec![], (entry::REJECTED, 0)), "no prompt");
    for ids in [&[vocab][..], &[1, 2, u32::MAX]] {
        scene.begin(ids, 0, 3);
        assert_eq!(scene.drain(), (vec![], (entry::REJECTED, ids[ids.len() - 1])), "ids {ids:?}");
    }
    assert_eq!(scene.run(PROMPT, 3), expected, "a good item after them");
}

#[test]
fn positions_without_room_end_an_item() {
    let mut scene = Scene::new(2, 8);
    for position in [8, 9, u32::MAX] {
        scene.begin(PROMPT, position, 3);
        let (tokens, (kind, _)) = scene.drain();
        assert_eq!((tokens.len(), kind), (0, entry::CONTEXT_FULL), "position {position}");
    }
    scene.begin(PROMPT, 0, 10);
    let (tokens, (kind, _)) = scene.drain();
    // The prompt's last position is 4, and those after it to 7 choose a token each.
    assert_eq!((tokens.len(), kind), (4, entry::CONTEXT_FULL));
    let long: Vec<u32> = (0..8).chain([1]).collect();
    scene.path.ids = crate::driver::MappedBuffer::zeroed(scene.model.device(), 64).expect("room for more ids");
    scene.begin(&long, 0, 3);
    let (tokens, (kind, _)) = scene.drain();
    assert_eq!((tokens.len(), kind), (0, entry::CONTEXT_FULL), "a prompt longer than the room");
}

#[test]
fn nothing_asked_for_runs_the_prompt_only() {
    let mut scene = Scene::new(3, 16);
    let expected = scene.run(PROMPT, 2);
    scene.begin(&PROMPT[..3], 0, 0);
    let (tokens, (kind, _)) = scene.drain();
    assert_eq!((tokens.len(), kind), (0, entry::LENGTH));
    // What it left in the cache is what follows needs.
    scene.begin(&PROMPT[3..], 3, 2);
    assert_eq!(scene.drain().0, expected);
}

#[test]
fn queued_items_run_one_after_the_other() {
    let mut scene = Scene::new(4, 32);
    let (a, b) = (PROMPT, &PROMPT[1..]);
    let (alone_a, alone_b) = (scene.run(a, 4), scene.run(b, 4));
    scene.begin(a, 0, 4);
    scene.begin(b, 0, 4);
    scene.begin(a, 0, 4);
    for (index, expected) in [&alone_a, &alone_b, &alone_a].into_iter().enumerate() {
        let (tokens, (kind, _)) = scene.drain();
        assert_eq!((&tokens, kind), (expected, entry::LENGTH), "item {index}");
    }
}

#[test]
fn items_queued_while_it_parks_are_run() {
    let mut scene = Scene::new(5, 32);
    let expected = scene.run(PROMPT, 6);
    let mut state = 5;
    for round in 0..3 {
        let post = scene.post();
        let waits = [(); 4].map(|()| Duration::from_micros(random(&mut state) % 9000));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for wait in waits {
                    std::thread::sleep(wait);
                    post.park();
                }
            });
            for _ in 0..2 {
                scene.begin(PROMPT, 0, 6);
            }
            let (first, second) = (scene.drain().0, scene.drain().0);
            assert_eq!((first, second), (expected.clone(), expected.clone()), "round {round}");
        });
    }
    assert!(scene.path.work().launches > 2, "it parked and was relaunched: {:?}", scene.path.work());
}

#[test]
fn an_item_gets_on_by_a_token_in_every_launch_however_often_it_is_parked() {
    let mut scene = Scene::new(12, 32);
    let expected = scene.run(PROMPT, 3);
    scene.path.post.park();
    let before = scene.path.work().launches;
    let wish = scene.path.post.clone();
    wish.word(mailbox::PARK).expect("a word").store(1, Ordering::Release);
    scene.begin(PROMPT, 0, 3);
    // Seven tokens run, the last of which ends the item: nothing parks behind it.
    for launch in 1..=7 {
        let begun = std::time::Instant::now();
        while scene.path.post.is_running().expect("no fault") {
            assert!(begun.elapsed() < Duration::from_secs(60), "launch {launch} does not end");
            std::thread::yield_now();
        }
        let step = scene.path.commands.to_host().expect("its state")[mailbox::command::STEP as usize];
        assert_eq!(step, launch, "tokens run after {launch} launches");
        if launch < 7 {
            scene.path.ensure_running(&scene.model.inner, &scene.sequence).expect("a launch");
        }
    }
    assert_eq!(scene.path.work().launches - before, 7);
    wish.word(mailbox::PARK).expect("a word").store(0, Ordering::Release);
    assert_eq!(scene.drain(), (expected.clone(), (entry::LENGTH, expected[2])));
}

#[test]
fn a_full_ring_parks_until_the_host_has_read() {
    let mut scene = Scene::new(6, 64);
    let expected = scene.run(PROMPT, 24);
    // As if the host had not read so many entries.
    let unread = mailbox::RING_ENTRIES - 10;
    let consumed = scene.path.read;
    let word = |scene: &Scene, value: u32| {
        scene.path.post.word(mailbox::CONSUMED).expect("a word").store(value, Ordering::Release);
    };
    word(&scene, consumed.wrapping_sub(unread));
    scene.begin(PROMPT, 0, 24);
    while scene.path.post.is_running().expect("no fault") {
        std::thread::yield_now();
    }
    let arrived = scene.path.ring.words().iter().skip(consumed as usize).take_while(|word| {
        let tag = (word.load(Ordering::Acquire) >> 32) as u32;
        tag >> 24 == entry::TOKEN
    });
    let arrived = arrived.count();
    // The last place is for the item's end.
    assert_eq!(arrived, 9, "tokens that came, with room for 10 entries");
    word(&scene, consumed);
    let (tokens, (kind, _)) = scene.drain();
    assert_eq!((tokens, kind), (expected, entry::LENGTH));
}

#[test]
fn an_item_stops_at_any_moment_and_the_next_one_is_whole() {
    let mut scene = Scene::new(7, 64);
    let expected = scene.run(PROMPT, 16);
    let mut state = 7;
    let mut stopped = 0;
    for round in 0..6 {
        scene.begin(PROMPT, 0, 16);
        let mut tokens = Vec::new();
        for _ in 0..random(&mut state) % 4 {
            tokens.push(scene.next().1);
        }
        std::thread::sleep(Duration::from_micros(random(&mut state) % 5000));
        let stop = mailbox::STOP + scene.path.slot();
        scene.path.post.word(stop).expect("a word").store(1, Ordering::Release);
        let (rest, (kind, _)) = scene.drain();
        tokens.extend(rest);
        assert_eq!(tokens, expected[..tokens.len()], "round {round}");
        assert!(matches!(kind, entry::STOPPED | entry::LENGTH), "round {round}: {kind}");
        stopped += u32::from(kind == entry::STOPPED);
        assert_eq!(scene.run(PROMPT, 2), expected[..2], "round {round}");
    }
    assert!(stopped > 0, "no item was stopped in its middle");
}

#[test]
fn a_path_dropped_in_mid_item_leaves_the_device_free() {
    let mut scene = Scene::new(8, 256);
    scene.begin(PROMPT, 0, 200);
    let _ = scene.next();
    let Scene { model, path, sequence } = scene;
    drop(path);
    drop(sequence);
    model.device().synchronize().expect("nothing is resident any more, and nothing went wrong");
}

#[cfg(feature = "trace")]
#[test]
fn a_trace_has_every_phase_of_every_block_in_order() {
    let scene = Scene::new(9, 16);
    let (model, layers) = (&scene.model, scene.model.shape().layers);
    let options = crate::model::SessionOptions { capacity: Some(16), ..Default::default() };
    let mut session = model.tracing_session(options, 1000).expect("its kernels are baked");
    session.append(&PROMPT[..3]).expect("it fits");
    let generate = crate::model::GenerateOptions { max_tokens: 2, stop_ids: Vec::new() };
    let tokens: Vec<u32> = session.generate(generate).collect::<crate::Result<_>>().expect("tokens");
    let trace = session.trace().expect("it is read").expect("it was asked for");
    // Four tokens ran, two of them with a head.
    let expected: Vec<(u32, u32, u32)> = (0..4)
        .flat_map(|position| {
            let layers = (0..layers).flat_map(move |layer| (0..5).map(move |phase| (position, layer, phase)));
            layers.chain((position >= 2).then_some((position, 4, 5)))
        })
        .collect();
    assert_eq!(trace.blocks, 3);
    for block in 0..trace.blocks {
        let of: Vec<_> = trace.stamps.iter().filter(|stamp| stamp.block == block).collect();
        let found: Vec<_> = of.iter().map(|stamp| (stamp.position, stamp.layer, stamp.phase)).collect();
        assert_eq!(found, expected, "block {block}");
        assert!(of.iter().all(|stamp| stamp.begin <= stamp.wait && stamp.wait <= stamp.end), "block {block}");
        assert!(of.windows(2).all(|pair| pair[0].end <= pair[1].begin), "block {block}");
    }
    for event in trace.stamps.chunks(trace.blocks as usize) {
        let arrived = event.iter().map(|stamp| stamp.wait).max();
        assert!(
            event.iter().map(|stamp| Some(stamp.end)).min() >= Some(arrived),
            "left before all had come: {event:?}"
        );
    }
    let mut scene = scene;
    assert_eq!(scene.run(&PROMPT[..3], 2), tokens, "the kernel that traces makes the same tokens");
}
