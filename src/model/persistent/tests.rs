//! The mailbox from the host's side, item by item: what a session never sends, and the moments it cannot choose.

use super::{Decoder, Key, Launched, PersistentPath};
use crate::driver::{Device, Driver, Resident, Wish};
use crate::model::path::{Item, Path};
use crate::model::sampling::{Sampling, TokenSet};
use crate::model::sequence::Sequence;
use crate::model::stream::StreamPath;
use crate::model::{KvType, ModelFile, Numerics};
use crate::shape::choice::{self, PLAIN};
use crate::shape::mailbox::{self, entry};
use crate::{Error, Model};
use kiln_emulator::{Checks, DeviceConfig, Schedule};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const PROMPT: &[u32] = &[120, 7, 300, 41, 5];

/// The demo model on a device of its own, and sequences that share its decoder.
struct Scene {
    model: Model,
    decoder: Arc<Decoder>,
    users: Vec<User>,
}

/// A sequence and its path.
struct User {
    path: PersistentPath,
    sequence: Sequence,
}

/// A device whose blocks run in an order of this seed; few of them, to be quick, and races are looked for in a long run
/// only: the same kernels run with every check on in `tests/persistent.rs`.
fn config(seed: u64) -> DeviceConfig {
    let checks = Checks { racecheck: std::env::var_os("KILN_TEST_LONG").is_some(), ..Checks::ALL };
    DeviceConfig { seed, schedule: Schedule::Random, multiprocessors: 3, checks, ..Default::default() }
}

fn device(config: DeviceConfig) -> Device {
    let ordinal = kiln_emulator::add_device(config);
    // SAFETY: the emulator's functions have NVIDIA's signatures.
    let driver = unsafe {
        Driver::from_resolver(|name| kiln_emulator::resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()))
    };
    Device::open(&driver.expect("the emulator is a driver"), ordinal).expect("the device was added")
}

impl Scene {
    fn new(seed: u64, capacity: u32) -> Scene {
        Scene::with(seed, capacity, 1)
    }

    fn with(seed: u64, capacity: u32, users: usize) -> Scene {
        Scene::on(config(seed), capacity, users)
    }

    fn on(config: DeviceConfig, capacity: u32, users: usize) -> Scene {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/demo.Q4_K_M.gguf");
        let file = ModelFile::open(demo).expect("the demo model");
        let baked = file.baked().expect("baked by the default features");
        let model = Model::load(&device(config), baked, file, |_| {}).expect("it loads");
        let key = Key { numerics: Numerics::Exact, kv: KvType::F16, blocks: None, events: None };
        let decoder = Decoder::shared(&model.inner, key).expect("a decoder");
        let users = (0..users).map(|_| {
            let mut sequence = Sequence::new(&model.inner, KvType::F16, capacity).expect("a sequence");
            sequence.grow(&model.inner, capacity, capacity).expect("chunks");
            User { path: PersistentPath::new(decoder.clone()), sequence }
        });
        Scene { users: users.collect(), model, decoder }
    }

    fn begin(&mut self, user: usize, ids: &[u32], position: u32, max_new: u32) {
        let item = Item { ids, position, max_new, stop_ids: &[], choice: PLAIN };
        let User { path, sequence } = &mut self.users[user];
        path.begin(&self.model.inner, sequence, &item).expect("it begins");
    }

    /// Begins as `begin`, with a cache that is said to have room for so much only.
    fn begin_beyond(&mut self, ids: &[u32], position: u32, max_new: u32) {
        let User { path, sequence } = &mut self.users[0];
        path.ids.get_or_insert_with(|| crate::driver::MappedBuffer::zeroed(self.model.device(), 64).expect("room"));
        let seat = path.seat().expect("a seat");
        let end = position.wrapping_add(ids.len() as u32);
        path.running = Some(super::Running { seat, end, left: max_new, made: 0, stop_ids: Vec::new(), choice: PLAIN });
        path.post(sequence, &Item { ids, position, max_new, stop_ids: &[], choice: PLAIN }).expect("it is posted");
    }

    fn next(&mut self, user: usize) -> (u32, u32) {
        let entry = self.users[user].path.wait();
        entry.unwrap_or_else(|error| {
            let fault = kiln_emulator::last_fault(self.model.device().ordinal());
            panic!("{error}: {}", fault.map_or(String::new(), |fault| fault.to_string()))
        })
    }

    /// Tokens up to the end of an item, and the end's kind and payload.
    fn drain(&mut self, user: usize) -> (Vec<u32>, (u32, u32)) {
        let mut tokens = Vec::new();
        loop {
            match self.next(user) {
                (entry::TOKEN, token) => tokens.push(token),
                end => {
                    self.users[user].path.end();
                    return (tokens, end);
                }
            }
        }
    }

    fn run(&mut self, ids: &[u32], max_new: u32) -> Vec<u32> {
        self.begin(0, ids, 0, max_new);
        let (tokens, (kind, _)) = self.drain(0);
        assert_eq!((tokens.len(), kind), (max_new as usize, entry::LENGTH));
        tokens
    }

    fn slot(&self, user: usize) -> u32 {
        self.users[user].path.running.as_ref().expect("an item").seat.slot
    }

    /// Ids and tokens of an item that have run.
    fn steps(&self, user: usize) -> u32 {
        let seat = &self.users[user].path.running.as_ref().expect("an item").seat;
        self.decoder.steps(seat.slot, seat.number).expect("state")
    }

    /// Waits until the launch in flight is over.
    fn wait_until_off(&self) {
        let begun = std::time::Instant::now();
        while !self.decoder.post.is_off().expect("no fault") {
            assert!(begun.elapsed() < Duration::from_secs(60), "the launch does not end");
            std::thread::yield_now();
        }
    }

    /// Launches once, with the wish to park set before it begins to look.
    fn launch_parked(&self) {
        let device = &self.model.inner.device;
        let quiet = device.context().quiesce().expect("parked");
        drop(quiet);
        let park = self.decoder.post.clone();
        // The launch withdraws wishes: it is asked again at once, and runs a token in any case.
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            let asked = stop.clone();
            scope.spawn(move || {
                while !asked.load(Ordering::Acquire) {
                    park.ask(Wish::Park);
                    std::thread::yield_now();
                }
            });
            let launched = self.decoder.ensure_running();
            while matches!(self.decoder.post.is_off(), Ok(false)) {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Release);
            assert_eq!(launched.expect("a launch"), Launched::Now);
        });
        self.decoder.post.ask(Wish::Stay);
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
    scene.begin_beyond(&[], 0, 3);
    assert_eq!(scene.drain(0), (vec![], (entry::REJECTED, 0)), "no prompt");
    for ids in [&[vocab][..], &[1, 2, u32::MAX]] {
        scene.begin(0, ids, 0, 3);
        assert_eq!(scene.drain(0), (vec![], (entry::REJECTED, ids[ids.len() - 1])), "ids {ids:?}");
    }
    assert_eq!(scene.run(PROMPT, 3), expected, "a good item after them");
}

#[test]
fn positions_without_room_end_an_item() {
    let mut scene = Scene::new(2, 8);
    for position in [8, 9, u32::MAX] {
        scene.begin_beyond(PROMPT, position, 3);
        let (tokens, (kind, _)) = scene.drain(0);
        assert_eq!((tokens.len(), kind), (0, entry::CONTEXT_FULL), "position {position}");
    }
    scene.begin_beyond(PROMPT, 0, 10);
    let (tokens, (kind, next)) = scene.drain(0);
    // The prompt's last position is 4, and those after it to 7 choose a token each.
    assert_eq!((tokens.len(), kind, next), (4, entry::CONTEXT_FULL, tokens[3]));
    let long: Vec<u32> = (0..8).chain([1]).collect();
    scene.begin_beyond(&long, 0, 3);
    let (tokens, (kind, _)) = scene.drain(0);
    assert_eq!((tokens.len(), kind), (0, entry::CONTEXT_FULL), "a prompt longer than the room");
}

#[test]
fn nothing_asked_for_runs_the_prompt_only() {
    let mut scene = Scene::new(3, 16);
    let expected = scene.run(PROMPT, 2);
    scene.begin(0, &PROMPT[..3], 0, 0);
    let (tokens, (kind, _)) = scene.drain(0);
    assert_eq!((tokens.len(), kind), (0, entry::LENGTH));
    // What it left in the cache is what follows needs.
    scene.begin(0, &PROMPT[3..], 3, 2);
    assert_eq!(scene.drain(0).0, expected);
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn items_take_turns_a_token_each() {
    let mut scene = Scene::with(4, 32, 4);
    let alone: Vec<Vec<u32>> = (0..4).map(|user| scene.run(&PROMPT[user..], 6)).collect();
    // All four are there before anything runs.
    let device = scene.model.device().clone();
    for user in 0..4 {
        let User { path, sequence } = &mut scene.users[user];
        path.ids = Some(crate::driver::MappedBuffer::zeroed(&device, 64).expect("room"));
        let seat = path.seat().expect("a seat");
        let (ids, max_new) = (&PROMPT[user..], 6);
        path.running = Some(super::Running {
            seat,
            end: ids.len() as u32,
            left: max_new,
            made: 0,
            stop_ids: Vec::new(),
            choice: PLAIN,
        });
        path.ring(sequence, &Item { ids, position: 0, max_new, stop_ids: &[], choice: PLAIN });
    }
    let mut before = 0;
    while before < 16 {
        scene.launch_parked();
        let steps: Vec<u32> = (0..4).map(|user| scene.steps(user)).collect();
        let (least, most) = (steps.iter().min(), steps.iter().max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "ids and tokens run: {steps:?}");
        assert!(steps.iter().sum::<u32>() > before, "a launch without a token: {steps:?}");
        before = steps.iter().sum();
    }
    for (user, expected) in alone.iter().enumerate() {
        let (tokens, (kind, _)) = scene.drain(user);
        assert_eq!((&tokens, kind), (expected, entry::LENGTH), "user {user}");
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn items_queued_while_it_parks_are_run() {
    let mut scene = Scene::with(5, 32, 2);
    let expected = scene.run(PROMPT, 6);
    let mut state = 5;
    for round in 0..3 {
        let device = scene.model.device().clone();
        let waits = [(); 4].map(|()| Duration::from_micros(random(&mut state) % 9000));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for wait in waits {
                    std::thread::sleep(wait);
                    drop(device.context().quiesce());
                }
            });
            for user in 0..2 {
                scene.begin(user, PROMPT, 0, 6);
            }
            let (first, second) = (scene.drain(0).0, scene.drain(1).0);
            assert_eq!((first, second), (expected.clone(), expected.clone()), "round {round}");
        });
    }
    let launches: u64 = scene.users.iter().map(|user| user.path.work().launches).sum();
    assert!(launches > 2, "it never parked and was relaunched: {launches}");
}

#[test]
fn a_launch_begins_on_a_device_that_waits_to_be_asked_about_it() {
    let scene = Scene::on(DeviceConfig { deferred_submission: true, ..config(5) }, 64, 0);
    let Decoder { post, .. } = &*scene.decoder;
    assert_eq!(scene.decoder.ensure_running().expect("it is launched"), Launched::Now);
    // The host looks at mapped memory only: the kernel finds no work there, says so and leaves.
    let begin = Instant::now();
    while !post.has_left() {
        assert!(begin.elapsed() < Duration::from_secs(30), "the launch has not begun");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Begins an item of 12 tokens as if its ring had room for 5 entries; gives its slot and the entries that were read.
fn begin_before_a_full_ring(scene: &mut Scene) -> (u32, u32) {
    scene.begin(0, PROMPT, 0, 12);
    let slot = scene.slot(0);
    scene.users[0].path.stop().expect("it stops");
    let seat = scene.decoder.post.line_up().seat().expect("the same seat");
    assert_eq!(seat.slot, slot);
    let consumed = scene.decoder.post.words.words()[(mailbox::CONSUMED + slot) as usize].load(Ordering::Acquire);
    say_read(scene, slot, consumed.wrapping_sub(mailbox::RING_ENTRIES - 5));
    scene.decoder.post.give_back(seat);
    scene.begin(0, PROMPT, 0, 12);
    assert_eq!(scene.slot(0), slot);
    (slot, consumed)
}

/// Tells the kernel how many entries of a ring were read.
fn say_read(scene: &Scene, slot: u32, entries: u32) {
    scene.decoder.post.put(mailbox::CONSUMED + slot, entries, Ordering::Release);
}

/// Tokens in a ring behind the entries that were read.
fn tokens_behind(scene: &Scene, slot: u32, consumed: u32) -> usize {
    let arrived = scene.decoder.post.rings.words()[(slot * mailbox::RING_ENTRIES) as usize..].iter();
    let arrived = arrived.skip((consumed % mailbox::RING_ENTRIES) as usize).take_while(|word| {
        let tag = (word.load(Ordering::Acquire) >> 32) as u32;
        entry::kind(tag) == entry::TOKEN
    });
    arrived.count()
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_full_ring_holds_up_its_own_item_only() {
    let mut scene = Scene::with(6, 64, 2);
    let expected = scene.run(PROMPT, 12);
    let other = scene.run(&PROMPT[1..], 12);
    let (slot, consumed) = begin_before_a_full_ring(&mut scene);
    scene.begin(1, &PROMPT[1..], 0, 12);
    assert_eq!(scene.drain(1).0, other, "the other goes on to its end");
    scene.wait_until_off();
    // The last place is for the item's end.
    assert_eq!(tokens_behind(&scene, slot, consumed), 4, "tokens that came, with room for 5 entries");
    say_read(&scene, slot, consumed);
    let (tokens, (kind, _)) = scene.drain(0);
    assert_eq!((tokens, kind), (expected, entry::LENGTH));
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_full_ring_keeps_a_place_for_the_end_of_an_item_alone() {
    let mut scene = Scene::new(12, 64);
    let expected = scene.run(PROMPT, 12);
    let (slot, consumed) = begin_before_a_full_ring(&mut scene);
    scene.wait_until_off();
    assert_eq!(tokens_behind(&scene, slot, consumed), 4, "tokens that came, with room for 5 entries");
    say_read(&scene, slot, consumed);
    let (tokens, (kind, _)) = scene.drain(0);
    assert_eq!((tokens, kind), (expected, entry::LENGTH));
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn an_item_stops_at_any_moment_and_the_next_one_is_whole() {
    let mut scene = Scene::new(7, 64);
    let expected = scene.run(PROMPT, 16);
    let mut state = 7;
    let mut stopped = 0;
    for round in 0..6 {
        scene.begin(0, PROMPT, 0, 16);
        let mut tokens = Vec::new();
        for _ in 0..random(&mut state) % 4 {
            tokens.push(scene.next(0).1);
        }
        std::thread::sleep(Duration::from_micros(random(&mut state) % 5000));
        let seat = &scene.users[0].path.running.as_ref().expect("an item").seat;
        scene.decoder.post.put(mailbox::STOP + seat.slot, seat.number, Ordering::Release);
        let (rest, (kind, _)) = scene.drain(0);
        tokens.extend(rest);
        assert_eq!(tokens, expected[..tokens.len()], "round {round}");
        assert!(matches!(kind, entry::STOPPED | entry::LENGTH), "round {round}: {kind}");
        stopped += u32::from(kind == entry::STOPPED);
        assert_eq!(scene.run(PROMPT, 2), expected[..2], "round {round}");
    }
    assert!(stopped > 0, "no item was stopped in its middle");
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn entries_of_an_item_before_are_passed_over() {
    let mut scene = Scene::new(10, 64);
    let expected = scene.run(&PROMPT[1..], 4);
    scene.begin(0, PROMPT, 0, 8);
    // The item ends unread, and another takes its seat: whose an entry is stands in the entry.
    let running = scene.users[0].path.running.take().expect("an item");
    scene.decoder.post.put(mailbox::STOP + running.seat.slot, running.seat.number, Ordering::Release);
    scene.wait_until_off();
    scene.decoder.post.give_back(running.seat);
    assert_eq!(scene.run(&PROMPT[1..], 4), expected);
}

#[test]
fn a_wait_for_a_seat_ends() {
    let mut scene = Scene::new(13, 16);
    let expected = scene.run(PROMPT, 2);
    let (device, before) = (scene.model.device().clone(), scene.model.device().limits());
    device.set_limits(before.with_wait(Duration::from_millis(300)));
    let seats: Vec<_> = std::iter::from_fn(|| scene.decoder.post.line_up().seat()).collect();
    assert_eq!(seats.len(), mailbox::SLOTS as usize);
    let User { path, sequence } = &mut scene.users[0];
    let item = Item { ids: PROMPT, position: 0, max_new: 2, stop_ids: &[], choice: PLAIN };
    let error = path.begin(&scene.model.inner, sequence, &item).expect_err("no seat is free");
    assert!(matches!(error, Error::Stalled { .. }), "{error}");
    device.set_limits(before);
    seats.into_iter().for_each(|seat| scene.decoder.post.give_back(seat));
    assert_eq!(scene.run(PROMPT, 2), expected);
}

#[test]
fn a_seat_goes_to_who_has_waited_longest() {
    let scene = Scene::new(13, 16);
    let post = &scene.decoder.post;
    let mut seats: Vec<_> = std::iter::from_fn(|| post.line_up().seat()).collect();
    let [first, gone, second] = [(); 3].map(|()| post.line_up());
    drop(gone);
    post.give_back(seats.pop().expect("one is taken"));
    assert!(second.seat().is_none(), "it came later");
    assert!(first.seat().is_some());
    drop(first);
    post.give_back(seats.pop().expect("one is taken"));
    assert!(second.seat().is_some());
}

#[test]
fn a_path_dropped_in_mid_item_leaves_the_device_free() {
    let mut scene = Scene::new(8, 256);
    scene.begin(0, PROMPT, 0, 200);
    let _ = scene.next(0);
    let Scene { model, decoder, users } = scene;
    drop(users);
    drop(decoder);
    model.device().synchronize().expect("nothing is resident any more, and nothing went wrong");
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn the_cache_grows_in_the_middle_of_an_item() {
    let mut scene = Scene::new(11, 300);
    let ids: Vec<u32> = (0..126).map(|i| i * 7 % 2000).collect();
    let mut small = Sequence::new(&scene.model.inner, KvType::F16, 300).expect("a sequence");
    small.grow(&scene.model.inner, 1, 1).expect("a chunk");
    let large = std::mem::replace(&mut scene.users[0].sequence, small);
    scene.begin(0, &ids, 0, 0);
    assert_eq!(scene.drain(0).1.0, entry::LENGTH);
    let User { path, sequence } = &mut scene.users[0];
    assert_eq!(sequence.room(), 128);
    let mut made = Vec::new();
    path.begin(
        &scene.model.inner,
        sequence,
        &Item { ids: &[1], position: 126, max_new: 6, stop_ids: &[], choice: PLAIN },
    )
    .expect("fits");
    while let super::Step::Token(token) = path.next(&scene.model.inner, sequence).expect("a token") {
        made.push(token);
    }
    assert_eq!(sequence.room(), 256, "doubled");
    // The same behind the same cache, with room from the beginning.
    let stream = scene.model.device().stream().expect("a stream");
    let grown = std::mem::replace(sequence, large);
    let quiet = scene.model.inner.device.context().quiesce().expect("parked");
    let copied = sequence.copy_cache(&scene.model.inner, &grown, &stream, 126);
    assert!(copied.is_ok(), "{copied:?}: {:?}", kiln_emulator::last_fault(scene.model.device().ordinal()));
    sequence.grow(&scene.model.inner, 300, 300).expect("chunks");
    drop(quiet);
    scene.begin(0, &[1], 126, 6);
    assert_eq!(scene.drain(0), (made.clone(), (entry::LENGTH, made[5])));
    // The same on the stream path.
    let kernels = scene.model.inner.stream_kernels(Numerics::Exact).expect("kernels");
    let (mut path, sequence) = (StreamPath::new(stream, kernels, Numerics::Exact), &mut scene.users[0].sequence);
    path.begin(
        &scene.model.inner,
        sequence,
        &Item { ids: &[1], position: 126, max_new: 6, stop_ids: &[], choice: PLAIN },
    )
    .expect("fits");
    for token in made {
        assert_eq!(path.next(&scene.model.inner, sequence).expect("a token"), super::Step::Token(token));
    }
}

/// The pass that has come to a choice without a mask is followed by one more at most, and by others once the mask is there.
#[test]
fn an_item_that_awaits_its_mask_runs_no_passes_meanwhile() {
    let mut scene = Scene::new(12, 64);
    let expected = scene.run(PROMPT, 2);
    let (vocab, length) = (scene.model.shape().vocab, PROMPT.len() as u32);
    let ran = |scene: &Scene| scene.decoder.post.tokens();
    scene.wait_until_off(); // the last token is counted behind its entry
    let before = ran(&scene);
    let mut choice = PLAIN;
    choice[choice::FLAGS as usize] = choice::HAS_MASK | choice::AWAITS;
    let User { path, sequence } = &mut scene.users[0];
    let choice = sequence.edits.prepare(&scene.model.inner, &Sampling::GREEDY, true, choice).expect("a mask");
    let item = Item { ids: PROMPT, position: 0, max_new: 2, stop_ids: &[], choice };
    path.begin(&scene.model.inner, sequence, &item).expect("it begins");
    let begun = Instant::now();
    let mut last = (ran(&scene), Instant::now());
    while last.1.elapsed() < Duration::from_millis(500) || last.0 < before + length {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} tokens ran of {length}", last.0 - before);
        std::thread::sleep(Duration::from_millis(10));
        let now = ran(&scene);
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
    assert!((length..=length + 1).contains(&(last.0 - before)), "{} tokens ran of {length}", last.0 - before);
    for (token, position) in expected.into_iter().zip(length..) {
        scene.users[0].sequence.edits.allow(&TokenSet::all(vocab), position);
        assert_eq!(scene.next(0), (entry::TOKEN, token));
    }
    assert_eq!(scene.drain(0).1.0, entry::LENGTH);
}

#[cfg(feature = "trace")]
#[test]
fn a_trace_has_every_phase_of_every_block_in_order() {
    let scene = Scene::new(9, 16);
    let (model, layers) = (&scene.model, scene.model.shape().layers);
    let options = crate::model::SessionOptions::default().with_numerics(Numerics::Exact).with_capacity(16);
    let mut session = model.tracing_session(options, 1000).expect("its kernels are baked");
    session.append(&PROMPT[..3]).expect("it fits");
    let generate = crate::model::GenerateOptions::new(2);
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
