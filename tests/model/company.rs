//! Items of several sessions in one pass of the resident decoder: each has the bits that it has alone, and weights are read
//! once for all of them.

use crate::common;
use crate::exchange::of_layers;
use crate::random::Random;
use crate::ring::{
    long_rows, long_rows_of, long_rows_with_outliers, open, rings, tiny, two_long_rows, whole, with_outliers,
};
use crate::rules::{BANNED, Few};
use crate::storm::Call;
use crate::synth_model::Mix;
use kiln::Model;
use kiln::driver::DeviceBuffer;
use kiln::model::{GenerateOptions, KvType, ModelFile, Numerics, PathChoice, Sampling, Session, SessionOptions};
use kiln::shape::mailbox::command::COLUMNS;
use kiln::shape::table::KV_CHUNK;
use kiln_emulator::{Checks, DeviceConfig, LaunchRecord, Schedule};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a session is asked.
#[derive(Debug, Clone)]
struct Work {
    ids: Vec<u32>,
    options: GenerateOptions,
    rules: Option<Few>,
}

/// What it answers: tokens, the bits of their log-probabilities where they are wanted, and those of the logits at its end.
type Answer = (Vec<u32>, Vec<Option<u32>>, Vec<u32>);

impl Work {
    /// A prompt and an answer of up to so many tokens, chosen in one of the ways that the device has.
    fn random(random: &mut Random, longest: u32) -> Work {
        let ids = (0..1 + random.below(longest)).map(|_| random.below(2048)).collect();
        let options = GenerateOptions::new(1 + random.below(longest) as usize);
        let drawn = Sampling::GREEDY.with_temperature(0.8).with_seed(random.next());
        let sampling = match random.below(7) {
            0 | 1 => Sampling::GREEDY,
            2 => drawn,
            3 => drawn.with_top_k(20).with_top_p(0.9),
            4 => drawn.with_banned(BANNED).with_logit_bias([(9, 3.0), (300, -2.0), (640, 5.0)]),
            5 => drawn.with_typical_p(0.7).with_top_k(500).with_min_p(0.1),
            _ => drawn.with_min_p(0.02).with_penalties(1.2, 0.1, 0.1),
        };
        let logprobs = (random.below(2) == 0).then_some(0);
        let rules = (random.below(3) == 0).then(|| Few(random.fork()));
        Work { ids, options: options.with_sampling(sampling).with_logprobs(logprobs), rules }
    }

    fn run(&self, session: &mut Session) -> Answer {
        session.append(&self.ids).expect("they fit");
        let mut generation = session.generate(self.options.clone());
        if let Some(rules) = &self.rules {
            generation = generation.with_constraint(rules.clone());
        }
        let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
        while let Some(token) = generation.next() {
            tokens.push(token.expect("a token"));
            logprobs.push(generation.logprobs().map(|of| of.chosen.to_bits()));
        }
        drop(generation);
        let logits = session.logits().expect("logits");
        (tokens, logprobs, logits.into_iter().map(f32::to_bits).collect())
    }
}

fn session(model: &Model, path: PathChoice, blocks: Option<u32>) -> Session {
    session_over(KvType::F16, model, path, blocks)
}

fn session_over(kv: KvType, model: &Model, path: PathChoice, blocks: Option<u32>) -> Session {
    let options = SessionOptions::default().with_numerics(Numerics::Fast).with_kv(kv).with_path(path);
    model.session(options.with_blocks(blocks).with_capacity(256)).expect("a session")
}

/// Runs all works at once, a session and a thread each, and holds each to what the stream path answers.
fn together(model: &Model, stream: &Model, blocks: u32, works: &[Work]) {
    together_over(KvType::F16, model, stream, blocks, works);
}

fn together_over(kv: KvType, model: &Model, stream: &Model, blocks: u32, works: &[Work]) {
    let expected = works.iter().map(|work| work.run(&mut session_over(kv, stream, PathChoice::Stream, None)));
    let expected: Vec<Answer> = expected.collect();
    let begin = Barrier::new(works.len());
    std::thread::scope(|scope| {
        for (number, (work, expected)) in works.iter().zip(&expected).enumerate() {
            let begin = &begin;
            scope.spawn(move || {
                let mut session = session_over(kv, model, PathChoice::Persistent, Some(blocks));
                begin.wait();
                assert_eq!(&work.run(&mut session), expected, "session {number}, {blocks} blocks: {work:?}");
            });
        }
    });
}

fn config(seed: u64, schedule: Schedule, blocks: u32) -> DeviceConfig {
    let checks = Checks::ALL;
    DeviceConfig { seed, schedule, multiprocessors: blocks, checks, split_warps: seed % 2 == 1, ..Default::default() }
}

#[test]
fn items_of_a_pass_have_the_bits_that_each_has_alone() {
    let stream = whole(tiny());
    let mut random = Random::fresh();
    for (seed, (schedule, blocks, sessions)) in
        [(Schedule::Random, 2, 3), (Schedule::RoundRobin, 3, COLUMNS + 1)].into_iter().enumerate()
    {
        let model = open(tiny(), None, config(seed as u64, schedule, blocks));
        let works: Vec<Work> = (0..sessions).map(|_| Work::random(&mut random, 6)).collect();
        together(&model, &stream, blocks, &works);
    }
}

/// Sequences whose cache has several units of attention, under every schedule.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn longer_items_have_them_under_every_schedule() {
    let stream = whole(tiny());
    let mut random = Random::fresh();
    let schedules = [(Schedule::RoundRobin, 7, 4), (Schedule::Random, 3, 3), (Schedule::Adversarial, 2, 2)];
    for (seed, (schedule, blocks, sessions)) in random.some_of(1, (0..).zip(schedules)) {
        let model = open(tiny(), None, config(seed, schedule, blocks));
        let works: Vec<Work> = (0..sessions)
            .map(|_| {
                let Work { ids, options, rules } = Work::random(&mut random, 4);
                let before = (0..32).map(|_| random.below(2048));
                Work { ids: before.chain(ids).collect(), options, rules }
            })
            .collect();
        together(&model, &stream, blocks, &works);
    }
}

/// The same over a cache in f32, whose units the last block of a KV head to finish one puts together.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn items_over_an_f32_cache_have_them_behind_several_units() {
    let stream = whole(tiny());
    let mut random = Random::fresh();
    let schedules = (0..).zip([(Schedule::Random, 3), (Schedule::RoundRobin, 5)]);
    for (seed, (schedule, blocks)) in random.some_of(1, schedules) {
        let model = open(tiny(), None, config(seed, schedule, blocks));
        let works: Vec<Work> = (0..3)
            .map(|_| {
                let ids = (0..KV_CHUNK + 4).map(|_| random.below(2048)).collect();
                Work { ids, ..Work::random(&mut random, 4) }
            })
            .collect();
        together_over(KvType::F32, &model, &stream, blocks, &works);
    }
}

/// Rows of which a column has four lanes or 16, warps that share rows, activations with second planes, and more layers than words
/// have turns: each column's are emptied while items begin and end.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn items_of_a_pass_have_them_whatever_rows_there_are() {
    let mut random = Random::fresh();
    let outliers: fn() -> ModelFile = || with_outliers(5);
    let layers: fn() -> ModelFile = || of_layers(6);
    let cases = [(outliers, (8, 0), 2), (outliers, (9, 0), 2), (long_rows, (9, 0), 16), (layers, (9, 0), 3)];
    for (seed, (file, sm, blocks)) in random.some_of(1, (0..).zip(cases)) {
        let stream = whole(file());
        let config = DeviceConfig { sm, ..config(seed, Schedule::Random, blocks) };
        let mut works: Vec<Work> = (0..3).map(|_| Work::random(&mut random, 3)).collect();
        works.iter_mut().flat_map(|work| &mut work.ids).for_each(|id| *id %= 650);
        together(&open(file(), None, config), &stream, blocks, &works);
    }
}

/// More columns than shared memory has room for with the FFN's vector whole: its 33 super-blocks are four slices of eight and one,
/// or two of 16 and one. Entries of a launch's ring have so many records.
fn in_slices(file: fn() -> ModelFile, (units, columns, records): (u32, u32, u32), config: DeviceConfig) {
    let [of_whole, of_slices] = rings(&file(), if config.sm.0 < 9 { 80 } else { 90 }, units);
    println!("{units} units: {of_whole:?}, {of_slices:?}");
    assert!(of_whole.len() < columns as usize, "{units} units: {of_whole:?}, {of_slices:?}");
    assert_eq!(of_slices[columns as usize - of_whole.len() - 1].records, records, "{units} units: {of_slices:?}");
    let (mut random, stream) = (Random::fresh(), whole(file()));
    let mut works: Vec<Work> = (0..columns).map(|_| Work::random(&mut random, 3)).collect();
    works.iter_mut().flat_map(|work| &mut work.ids).for_each(|id| *id %= 650);
    let blocks = config.multiprocessors;
    together(&open(file(), Some(units), config), &stream, blocks, &works);
}

fn eight_of_33() -> ModelFile {
    long_rows_of(33, Mix::Q4KM, 2)
}

fn sixteen_of_33() -> ModelFile {
    two_long_rows(Mix::Q4KM, 1)
}

/// A block has more rows for a warp than a column has sums.
#[test]
fn items_whose_vectors_come_in_slices_have_them() {
    let config = config(0, Schedule::Random, 1);
    in_slices(eight_of_33, (4, 2, 8), config);
}

/// Warps without rows, slices of 16 super-blocks, and of eight where 16 had room but an entry has eight; copies of lanes and bulk
/// copies.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn slices_have_them_under_every_schedule() {
    let of = |sm| move |config: DeviceConfig| DeviceConfig { sm, ..config };
    let (lanes, bulk) = (of((8, 0)), of((9, 0)));
    let cases: [(fn() -> ModelFile, _, _); 4] = [
        (eight_of_33, (9, 4, 16), lanes(config(1, Schedule::RoundRobin, 7))),
        (eight_of_33, (5, 4, 8), bulk(config(2, Schedule::Adversarial, 2))),
        (sixteen_of_33, (10, 5, 16), bulk(config(3, Schedule::Random, 3))),
        (sixteen_of_33, (5, 3, 8), lanes(config(4, Schedule::Random, 2))),
    ];
    for (file, ring, config) in Random::fresh().some_of(1, cases) {
        in_slices(file, ring, config);
    }
}

/// Slices of which some super-blocks have a second plane.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn slices_with_second_planes_have_them() {
    in_slices(long_rows_with_outliers, (4, 2, 8), config(0, Schedule::Random, 2));
}

/// The kernel that more columns need is loaded while a session generates, whose launch parks for it.
#[test]
fn a_session_that_opens_beside_another_brings_the_kernel_for_slices() {
    let (stream, model) = (whole(eight_of_33()), open(eight_of_33(), Some(4), config(6, Schedule::RoundRobin, 2)));
    let mut random = Random::fresh();
    let mut works: Vec<Work> = (0..2).map(|_| Work::random(&mut random, 2)).collect();
    works.iter_mut().flat_map(|work| &mut work.ids).for_each(|id| *id %= 650);
    let ids = [5, 600, 7];
    let answer = |session: &mut Session, behind_first: &dyn Fn()| {
        session.append(&ids).expect("they fit");
        let mut tokens = session.generate(GenerateOptions::new(6));
        let first = tokens.next().expect("a token").expect("no fault");
        behind_first();
        let others = tokens.collect::<kiln::Result<Vec<u32>>>().expect("tokens");
        (first, others)
    };
    let expected = answer(&mut session(&stream, PathChoice::Stream, None), &|| {});
    let opened = session(&model, PathChoice::Persistent, Some(2));
    let found = answer(&mut { opened }, &|| {
        // The first one's launch is still under way.
        together(&model, &stream, 2, &works);
    });
    assert_eq!(found, expected);
}

/// Where shared memory has room for few columns, items take turns, so many at once.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn items_beyond_the_columns_that_fit_take_turns() {
    let stream = whole(tiny());
    let mut random = Random::fresh();
    for units in random.some_of(1, [5, 6, 8]) {
        let model = open(tiny(), Some(units), config(u64::from(units), Schedule::Random, 2));
        let works: Vec<Work> = (0..5).map(|_| Work::random(&mut random, 5)).collect();
        together(&model, &stream, 2, &works);
    }
}

/// Of two items each ends where its cache has no room, while the other goes on, and comes back with a chunk more.
#[test]
fn a_column_is_left_where_a_cache_is_full() {
    let (stream, model) = (whole(tiny()), without_races());
    let mut random = Random::fresh();
    let prompts = [118, 122].map(|len| (0..len).map(|_| random.below(2048)).collect::<Vec<u32>>());
    let begin = Barrier::new(prompts.len());
    // The first answer needs one chunk, and the second begins in it.
    let run = |session: &mut Session, ids: &[u32], meet: &dyn Fn()| {
        session.append(ids).expect("they fit");
        let mut answer = |count| session.generate(GenerateOptions::new(count)).collect::<kiln::Result<Vec<u32>>>();
        let first = answer(1);
        meet();
        (first.expect("a token"), answer(16).expect("tokens"))
    };
    std::thread::scope(|scope| {
        for ids in &prompts {
            let expected = run(&mut session(&stream, PathChoice::Stream, None), ids, &|| {});
            let (model, begin) = (&model, &begin);
            scope.spawn(move || {
                let mut session = session(model, PathChoice::Persistent, Some(3));
                let meet = || {
                    begin.wait();
                };
                assert_eq!(run(&mut session, ids, &meet), expected, "{} ids", ids.len());
            });
        }
    });
}

/// Sessions in threads of their own that append, generate, cancel, drop, truncate, fork and park at random moments.
#[test]
fn storms_of_sessions_at_once_give_the_same_tokens_as_each_alone() {
    let steps = if common::is_long("48 of 60 steps of each session") { 60 } else { 12 };
    storms(without_races(), 4, steps);
}

/// The same with what races looked for as well, while items come, are cancelled and park at random moments.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn storms_race_nowhere() {
    for (seed, schedule) in [(0, Schedule::Adversarial), (1, Schedule::Random)] {
        // What was appended may run by batches, whose tiles need more shared memory than a small ring leaves.
        storms(open(tiny(), None, config(seed, schedule, 2)), 2, 10);
    }
}

/// So many sessions with so many calls each.
fn storms(model: Model, sessions: usize, steps: usize) {
    let stream = whole(tiny());
    let mut random = Random::fresh();
    let storms: Vec<Random> = (0..sessions).map(|_| random.fork()).collect();
    std::thread::scope(|scope| {
        let (model, stream) = (&model, &stream);
        for random in storms {
            scope.spawn(move || storm(model, stream, random, steps));
        }
    });
    let ordinal = model.device().ordinal();
    drop(model);
    if !common::on_gpu() {
        assert_eq!(kiln_emulator::leaks(ordinal), []);
    }
}

/// What races is looked for above; here calls are many.
fn without_races() -> Model {
    let checks = Checks { racecheck: false, ..Checks::ALL };
    open(tiny(), None, DeviceConfig { checks, ..config(0, Schedule::Random, 3) })
}

fn storm(model: &Model, stream: &Model, mut random: Random, steps: usize) {
    let mut pair = [session(stream, PathChoice::Stream, None), session(model, PathChoice::Persistent, None)];
    for step in 0..steps {
        let ids: Vec<u32> = (0..1 + random.below(4)).map(|_| random.below(2048)).collect();
        let (choice, count, len) = (random.below(8), 1 + random.below(4) as usize, random.below(12) as usize);
        let Work { options, rules, .. } = Work::random(&mut random, 5);
        if pair[0].tokens().len() > 60 {
            pair.iter_mut().for_each(|session| session.truncate(len));
        }
        if choice == 0 {
            drop(DeviceBuffer::<u8>::uninitialized(model.device(), 64).expect("memory"));
        }
        let call = match choice {
            0 | 1 => Call::Append(ids),
            2 => Call::Truncate(len),
            3 => Call::Fork,
            4 => Call::Drop(count),
            5 => Call::Cancel(count + 1),
            _ => match rules {
                Some(rules) => Call::Constrained(options, rules, count),
                None => Call::Generate(options),
            },
        };
        let results = pair.each_mut().map(|session| call.on(session));
        assert_eq!(results[0], results[1], "step {step}, {call:?}");
        assert_eq!(pair[0].tokens(), pair[1].tokens(), "step {step}, {call:?}");
    }
    pair.iter_mut().for_each(|session| session.append(&[5]).expect("it fits"));
    let logits = pair.each_mut().map(|session| session.logits().expect("logits"));
    let bits = logits.map(|logits| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>());
    assert_eq!(bits[0], bits[1], "logits at the end");
}

/// Beside a long answer three sessions ask for a token again and again: one more is not kept waiting behind them.
#[test]
fn a_new_item_is_taken_beside_others_that_come_again_and_again() {
    let model = without_races();
    let (long, late) = (AtomicBool::new(true), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (model, long, late) = (&model, &long, &late);
        let again = move || {
            let mut session = session(model, PathChoice::Persistent, None);
            while long.load(Ordering::Acquire) && !late.load(Ordering::Acquire) {
                session.truncate(0);
                session.append(&[7]).expect("it fits");
                assert_eq!(session.generate(GenerateOptions::new(1)).count(), 1);
            }
        };
        scope.spawn(move || {
            make(session(model, PathChoice::Persistent, None), 120, || {
                (0..3).for_each(|_| drop(scope.spawn(again)));
                scope.spawn(move || {
                    make(session(model, PathChoice::Persistent, None), 3, || {});
                    assert!(long.load(Ordering::Acquire), "it came behind the long answer");
                    late.store(true, Ordering::Release);
                });
            });
            long.store(false, Ordering::Release);
        });
    });
}

/// Sessions whose hosts choose have no item between their tokens: the launch stays nevertheless.
#[test]
fn sessions_whose_hosts_choose_share_a_launch() {
    let model = without_races();
    let mut sessions = [(); 2].map(|()| session(&model, PathChoice::Persistent, None));
    std::thread::scope(|scope| {
        for session in &mut sessions {
            scope.spawn(|| {
                session.append(&[5]).expect("it fits");
                let options = GenerateOptions::new(16).with_logprobs(3);
                assert_eq!(session.generate(options).filter(|token| token.is_ok()).count(), 16);
            });
        }
    });
    let launches: u64 = sessions.iter().map(|session| session.work().launches).sum();
    assert!(launches <= 8, "{launches} launches for 32 tokens");
}

/// Bytes of weights that rings ask for while sessions on a device that counts do that.
fn asked_for(run: impl FnOnce(&Model)) -> u64 {
    of_ring(&launches((tiny(), None), run))
}

/// The launches while sessions do that on such a device, of a model whose rings have so many units.
fn launches((file, units): (ModelFile, Option<u32>), run: impl FnOnce(&Model)) -> Vec<LaunchRecord> {
    let config = DeviceConfig { counters: true, checks: Checks::NONE, multiprocessors: 4, ..Default::default() };
    let model = open(file, units, config);
    let ordinal = model.device().ordinal();
    kiln_emulator::clear_reports(ordinal);
    run(&model);
    drop(model);
    kiln_emulator::reports(ordinal)
}

/// Bytes that rings ask for.
fn of_ring(launches: &[LaunchRecord]) -> u64 {
    let lines = launches.iter().flat_map(|launch| launch.counters.lines.values());
    let of_ring = |name: &str| name.contains("blocks/ring/copy.rs");
    let lines = lines.filter(|line| line.source.as_ref().is_some_and(|(name, _)| of_ring(name)));
    lines.map(|line| 32 * line.sectors).sum::<u64>()
}

/// Tokens of a session, with what is to be done behind the first.
fn make(mut session: Session, tokens: usize, behind_first: impl FnOnce()) {
    session.append(&[5]).expect("they fit");
    let mut generation = session.generate(GenerateOptions::new(tokens));
    generation.next().expect("a token").expect("no fault");
    behind_first();
    assert_eq!(generation.filter(|token| token.is_ok()).count(), tokens - 1);
}

/// Four sessions whose answers have the same length ask for little more weights than one of them.
#[test]
fn weights_of_a_pass_are_read_once() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let (one, four) = (of_ring(&by((tiny(), None), 1)), of_ring(&by((tiny(), None), 4)));
    println!("bytes of weights asked for: {one} by one session, {four} by four");
    assert!(one > 0 && four < 2 * one, "{one} by one session, {four} by four");
}

/// The launches while so many sessions make tokens at once.
fn by(of: (ModelFile, Option<u32>), sessions: usize) -> Vec<LaunchRecord> {
    let begin = Barrier::new(sessions);
    launches(of, |model| {
        std::thread::scope(|scope| {
            (0..sessions).for_each(|_| {
                scope.spawn(|| {
                    let session = session(model, PathChoice::Persistent, None);
                    begin.wait();
                    make(session, 12, || {});
                });
            });
        });
    })
}

/// With whole vectors there would be room for one column. Slices have a kernel of their own, which one session does not need.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn weights_are_read_once_beside_slices() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let of = |sessions| by((eight_of_33(), Some(4)), sessions);
    let (one, three) = (of(1), of(3));
    let slices = |launches: &[LaunchRecord]| launches.iter().any(|launch| launch.kernel.ends_with("slices"));
    assert!(!slices(&one) && slices(&three));
    let (one, three) = (of_ring(&one), of_ring(&three));
    println!("bytes of weights asked for: {one} by one session, {three} by three");
    assert!(one > 0 && three < 2 * one, "{one} by one session, {three} by three");
}

/// The second of two sessions begins in the middle of the first one's answer, whose launch has one column. Neither asks for
/// memory then, which would end the launch.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_launch_without_a_column_for_a_new_item_makes_room() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let two = |model: &Model| {
        [(); 2].map(|()| {
            let mut session = session(model, PathChoice::Persistent, None);
            session.append(&[9, 8]).expect("they fit");
            assert_eq!(session.generate(GenerateOptions::new(40)).count(), 40);
            session.truncate(0);
            session
        })
    };
    let apart = asked_for(|model| two(model).into_iter().for_each(|session| make(session, 40, || {})));
    let together = asked_for(|model| {
        let (begin, [first, second]) = (Barrier::new(2), two(model));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                make(first, 40, || {
                    begin.wait();
                });
            });
            scope.spawn(|| {
                begin.wait();
                make(second, 40, || {});
            });
        });
    });
    println!("bytes of weights asked for: {apart} one after the other, {together} beside each other");
    assert!(10 * together < 9 * apart, "{apart} one after the other, {together} beside each other");
}
