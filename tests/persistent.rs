//! The persistent path through sessions: its ends, its launches, the same tokens on every grid and schedule, and what
//! planted bugs do to it.

#[path = "common/bake.rs"]
mod bake;
mod common;

use kiln::baked::{BakedModel, BakedModule, DecoderPath};
use kiln::driver::DeviceBuffer;
use kiln::model::{End, GenerateOptions, ModelFile, PathChoice, Session, SessionOptions};
use kiln::{Error, Model};
use kiln_emulator::{DeviceConfig, Schedule};
use std::path::Path;
use std::time::Duration;

const PROMPT: &[u32] = &[120, 7, 300, 41, 5];

/// A device with few blocks, to be quick; blocks and warps in an order of this seed.
fn config(seed: u64) -> DeviceConfig {
    DeviceConfig { multiprocessors: 3, schedule: Schedule::Random, seed, ..DeviceConfig::default() }
}

fn open_as(file: &str, config: DeviceConfig, plant: impl Fn(&str) -> String) -> Model {
    let device = common::device_with(config);
    let file = ModelFile::open(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("a model");
    let baked = bake::model("test", *file.shape(), device.sm());
    let modules = baked.modules.iter().map(|module| match module.path {
        Some(DecoderPath::Persistent) => BakedModule { ptx: plant(module.ptx).leak(), ..*module },
        _ => *module,
    });
    let baked: &BakedModel = Box::leak(Box::new(BakedModel { modules: modules.collect::<Vec<_>>().leak(), ..*baked }));
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

fn demo(config: DeviceConfig) -> Model {
    open_as("examples/data/demo.Q4_K_M.gguf", config, str::to_owned)
}

/// The random model of two layers: the quickest.
fn tiny(config: DeviceConfig) -> Model {
    open_as("tests/data/tiny3-d64.Q4_K_M/model.gguf", config, str::to_owned)
}

fn session(model: &Model, path: PathChoice, blocks: Option<u32>) -> Session {
    model.session(SessionOptions { path, blocks, capacity: Some(512), ..SessionOptions::default() }).expect("a session")
}

fn at_most(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, stop_ids: Vec::new() }
}

fn tokens(session: &mut Session, count: usize) -> Vec<u32> {
    session.generate(at_most(count)).collect::<kiln::Result<_>>().expect("it generates")
}

/// What a fresh session generates behind `ids` on the stream path.
fn expected(model: &Model, ids: &[u32], count: usize) -> Vec<u32> {
    let mut session = session(model, PathChoice::Stream, None);
    session.append(ids).expect("it fits");
    tokens(&mut session, count)
}

#[test]
fn zero_tokens_asked_for_are_none() {
    let model = tiny(config(1));
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    let mut generation = session.generate(at_most(0));
    assert!(generation.next().is_none());
    assert_eq!(generation.end(), Some(End::Length));
    drop(generation);
    assert_eq!(tokens(&mut session, 3), expected(&model, PROMPT, 3));
}

#[test]
fn an_empty_prompt_is_an_error_and_nothing_else() {
    let model = tiny(config(2));
    let mut session = session(&model, PathChoice::Persistent, None);
    assert!(matches!(session.generate(at_most(3)).next(), Some(Err(Error::EmptySession))));
    assert!(matches!(session.logits(), Err(Error::EmptySession)));
    session.append(PROMPT).expect("it fits");
    assert_eq!(tokens(&mut session, 3), expected(&model, PROMPT, 3));
}

#[test]
fn ids_outside_the_vocabulary_change_nothing() {
    let model = tiny(config(3));
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    let error = session.append(&[1, model.shape().vocab]).expect_err("an id too far");
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert_eq!(session.tokens(), PROMPT);
    assert_eq!(tokens(&mut session, 3), expected(&model, PROMPT, 3));
}

#[test]
fn a_full_context_ends_the_generation_and_refuses_more() {
    let model = tiny(config(4));
    let options = SessionOptions { path: PathChoice::Persistent, capacity: Some(8), ..SessionOptions::default() };
    let mut session = model.session(options).expect("a session");
    session.append(PROMPT).expect("it fits");
    let mut generation = session.generate(at_most(10));
    let made: Vec<u32> = generation.by_ref().collect::<kiln::Result<_>>().expect("it generates");
    assert_eq!((made.len(), generation.end()), (3, Some(End::ContextFull)));
    drop(generation);
    assert_eq!(made, expected(&model, PROMPT, 3));
    assert!(matches!(session.append(&[1]), Err(Error::ContextFull { used: 8, more: 1, capacity: 8 })));
    assert_eq!(session.generate(at_most(1)).count(), 0);
}

#[test]
fn a_stop_id_ends_the_generation() {
    let model = tiny(config(5));
    let all = expected(&model, PROMPT, 8);
    let stop = all[4];
    let before = all.iter().position(|token| *token == stop).expect("it is there");
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    let mut generation = session.generate(GenerateOptions { max_tokens: 8, stop_ids: vec![stop] });
    let made: Vec<u32> = generation.by_ref().collect::<kiln::Result<_>>().expect("it generates");
    assert_eq!((made.as_slice(), generation.end()), (&all[..before], Some(End::StopId(stop))));
}

#[test]
fn a_generation_dropped_in_mid_item_leaves_the_session_as_a_fresh_one() {
    let model = tiny(config(6));
    let all = expected(&model, PROMPT, 12);
    for taken in [1, 3] {
        let mut session = session(&model, PathChoice::Persistent, None);
        session.append(PROMPT).expect("it fits");
        let mut generation = session.generate(at_most(300));
        let made: Vec<u32> = generation.by_ref().take(taken).collect::<kiln::Result<_>>().expect("tokens");
        drop(generation);
        assert_eq!(made, all[..taken]);
        assert_eq!(session.tokens().len(), PROMPT.len() + taken);
        assert_eq!(tokens(&mut session, 12 - taken), all[taken..], "after {taken}");
    }
}

#[test]
fn a_generation_forgotten_in_mid_item_neither_hangs_nor_changes_what_follows() {
    let model = tiny(config(7));
    let all = expected(&model, PROMPT, 8);
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    let mut generation = session.generate(at_most(300));
    assert_eq!(generation.next().expect("a token").expect("no fault"), all[0]);
    std::mem::forget(generation);
    assert_eq!(tokens(&mut session, 5), all[1..6]);
    let mut generation = session.generate(at_most(300));
    assert_eq!(generation.next().expect("a token").expect("no fault"), all[6]);
    std::mem::forget(generation);
    drop(session);
    model.device().synchronize().expect("nothing is resident any more");
}

#[test]
fn another_thread_cancels() {
    let model = tiny(config(8));
    let all = expected(&model, PROMPT, 3);
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    let mut generation = session.generate(at_most(500));
    let handle = generation.cancel_handle();
    let made: Vec<u32> = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            handle.cancel();
        });
        generation.by_ref().collect::<kiln::Result<_>>().expect("tokens")
    });
    assert!(made.len() < 500, "it went on to the end");
    assert_eq!(generation.end(), Some(End::Cancelled));
    drop(generation);
    assert!(made.iter().zip(&all).all(|(made, expected)| made == expected));
    session.truncate(PROMPT.len());
    assert_eq!(tokens(&mut session, 3), all);
}

#[test]
fn allocations_while_it_is_resident_change_nothing() {
    let model = tiny(config(9));
    let all = expected(&model, PROMPT, 12);
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    let before = session.work().launches;
    let mut generation = session.generate(at_most(all.len()));
    let mut made = Vec::new();
    for token in generation.by_ref() {
        made.push(token.expect("no fault"));
        if made.len() % 4 == 1 {
            let buffer = DeviceBuffer::from_host(model.device(), &[made.len() as u32]).expect("an allocation");
            assert_eq!(buffer.to_host().expect("a copy"), [made.len() as u32]);
        }
    }
    drop(generation);
    assert_eq!(made, all);
    assert!(session.work().launches > before + 1, "it never parked: {:?}", session.work());
}

#[test]
fn one_launch_makes_24_tokens() {
    let model = demo(config(10));
    let all = expected(&model, &PROMPT[..1], 24);
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(&PROMPT[..1]).expect("it fits");
    assert_eq!(tokens(&mut session, 24), all);
    assert_eq!(session.work().launches, 1);
    assert!(session.work().tokens >= 24);
}

#[test]
fn a_watched_device_sees_bounded_launches_and_the_same_tokens() {
    let timeout = Some(Duration::from_secs(300));
    let model = tiny(DeviceConfig { launch_timeout: timeout, ..config(11) });
    assert!(common::on_gpu() || model.device().kills_long_kernels().expect("an attribute"));
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    assert_eq!(tokens(&mut session, 6), expected(&model, PROMPT, 6));
}

/// Schedules of a device, by name.
fn schedules() -> [(&'static str, DeviceConfig); 4] {
    let of = |schedule, seed| DeviceConfig { schedule, seed, multiprocessors: 132, ..DeviceConfig::default() };
    [
        ("round robin", of(Schedule::RoundRobin, 0)),
        ("random 1", of(Schedule::Random, 1)),
        ("random 2, split warps", DeviceConfig { split_warps: true, ..of(Schedule::Random, 2) }),
        ("adversarial", of(Schedule::Adversarial, 3)),
    ]
}

#[test]
fn ids_are_the_streams_on_every_grid_and_schedule() {
    for (name, config) in schedules() {
        let model = tiny(config);
        let all = expected(&model, &PROMPT[..2], 4);
        for blocks in [1, 2, 7, 132] {
            let mut session = session(&model, PathChoice::Persistent, Some(blocks));
            session.append(&PROMPT[..2]).expect("it fits");
            assert_eq!(tokens(&mut session, 4), all, "{blocks} blocks, {name}");
        }
    }
}

#[test]
fn ids_are_the_streams_across_chunks_of_the_cache() {
    if std::env::var_os("KILN_TEST_LONG").is_none() {
        println!("SKIPPED: 300 tokens across chunk boundaries; set KILN_TEST_LONG=1 to run them");
        return;
    }
    let model = demo(config(12));
    let all = expected(&model, PROMPT, 300);
    for blocks in [2, 3] {
        let mut session = session(&model, PathChoice::Persistent, Some(blocks));
        session.append(PROMPT).expect("it fits");
        assert_eq!(tokens(&mut session, 300), all, "{blocks} blocks");
    }
}
