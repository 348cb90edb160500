//! Sessions on every path: the ids that end a text, and copies that go on by themselves.

use crate::{bake, common};
use kiln::Model;
use kiln::model::{End, GenerateOptions, KvType, ModelFile, PathChoice, Session};
use kiln_emulator::DeviceConfig;
use std::path::Path;

const PROMPT: &[u32] = &[120, 7, 300];
const PATHS: [PathChoice; 3] = [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent];

/// The random model of two layers on a device of three blocks, to be quick.
fn model() -> Model {
    let device = common::device_with(DeviceConfig { multiprocessors: 3, ..DeviceConfig::default() });
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    let file = ModelFile::open(file).expect("a model");
    let baked = bake::model(&file, &device);
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

/// A session behind `ids`, of which nothing has run.
fn session(model: &Model, path: PathChoice, ids: &[u32]) -> Session {
    let options = common::exact().with_path(path).with_capacity(256);
    let mut session = model.session(options).expect("a session");
    session.append(ids).expect("they fit");
    session
}

fn tokens(session: &mut Session, count: usize) -> Vec<u32> {
    session.generate(GenerateOptions::new(count)).collect::<kiln::Result<_>>().expect("it generates")
}

/// What a fresh session generates behind `ids` on the stream path.
fn expected(model: &Model, ids: &[u32], count: usize) -> Vec<u32> {
    tokens(&mut session(model, PathChoice::Stream, ids), count)
}

#[test]
fn each_of_several_stop_ids_ends_the_text() {
    let model = model();
    let all = expected(&model, PROMPT, 4);
    let place = (1..4).find(|place| !all[..*place].contains(&all[*place])).expect("a new token");
    let stop = all[place];
    let others = |count| (0..).filter(|id| !all.contains(id)).take(count);
    // The mailbox has room for 32.
    for (before, behind) in [(0, 2), (1, 1), (2, 0), (39, 0)] {
        let mut stop_ids: Vec<u32> = others(before + behind).collect();
        stop_ids.insert(before, stop);
        // Of graphs, the library's own test of items has them.
        for path in [PathChoice::Stream, PathChoice::Persistent] {
            let mut session = session(&model, path, PROMPT);
            let mut generation = session.generate(GenerateOptions::new(4).with_stop_ids(stop_ids.as_slice()));
            let made: Vec<u32> = generation.by_ref().collect::<kiln::Result<_>>().expect("it generates");
            let found = (made.as_slice(), generation.end());
            assert_eq!(found, (&all[..place], Some(End::StopId(stop))), "{path:?}, after {before} others");
            drop(generation);
            assert_eq!(session.tokens()[PROMPT.len()..], all[..=place], "{path:?}, after {before} others");
        }
    }
}

#[test]
fn sessions_with_caches_of_either_type_go_on_beside_each_other() {
    let model = model();
    let all = PATHS.map(|path| {
        let sessions = [KvType::F16, KvType::F32].map(|kv| {
            let options = common::exact().with_kv(kv).with_path(path).with_capacity(256);
            let mut session = model.session(options).expect("a session");
            session.append(PROMPT).expect("they fit");
            session
        });
        sessions.map(|mut session| session.logits().expect("logits"))
    });
    assert!(all.iter().all(|logits| *logits == all[0]), "logits differ by the path");
    assert!(all[0][0] != all[0][1], "the cache's type shows nowhere");
}

/// Goes on with a session and a copy of it, which takes two more ids, a token of each by turns.
#[track_caller]
fn both_go_on(model: &Model, mut first: Session, mut copy: Session) {
    let path = first.path().0;
    assert_eq!(first.tokens(), copy.tokens());
    let alone = expected(model, first.tokens(), 2);
    copy.append(&[77, 1200]).expect("it fits");
    let other = expected(model, copy.tokens(), 2);
    for turn in 0..2 {
        assert_eq!(tokens(&mut copy, 1), other[turn..=turn], "the copy, {path}, token {turn}");
        assert_eq!(tokens(&mut first, 1), alone[turn..=turn], "the session, {path}, token {turn}");
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_copy_made_before_anything_ran_runs_it_itself() {
    let model = model();
    for path in PATHS {
        let mut first = session(&model, path, &[]);
        let copy = first.fork().expect("it fits");
        first.append(PROMPT).expect("it fits");
        assert!(copy.tokens().is_empty(), "what comes later is not the copy's");
        let copy = first.fork().expect("it fits");
        both_go_on(&model, first, copy);
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_copy_made_behind_a_prefill_does_not_run_it_again() {
    let model = model();
    for path in PATHS {
        let mut first = session(&model, path, PROMPT);
        first.prefill().expect("it runs");
        let mut copy = first.fork().expect("it fits");
        copy.prefill().expect("nothing is left to run");
        assert_eq!(copy.work().tokens, 0, "{path:?}");
        both_go_on(&model, first, copy);
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_copy_made_in_the_middle_runs_what_had_not_run() {
    let model = model();
    for path in PATHS {
        let mut first = session(&model, path, PROMPT);
        assert_eq!(tokens(&mut first, 1).len(), 1);
        first.append(&[9, 8]).expect("it fits");
        let copy = first.fork().expect("it fits");
        both_go_on(&model, first, copy);
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_copy_outlives_a_generation_that_was_left_and_the_session() {
    let model = model();
    for path in PATHS {
        let mut first = session(&model, path, PROMPT);
        let mut generation = first.generate(GenerateOptions::new(100));
        assert!(generation.next().is_some_and(|token| token.is_ok()));
        std::mem::forget(generation);
        let copy = first.fork().expect("it fits");
        let second = copy.fork().expect("it fits");
        drop(first);
        both_go_on(&model, copy, second);
    }
}
