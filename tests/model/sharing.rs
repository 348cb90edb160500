//! Sessions beside each other: one decoder by turns, driver calls that fail, storms of calls, modules and contexts that
//! are shared. Whatever happens, a session gives the text of its own tokens or a typed error.

use crate::common::table;
use crate::random::Random;
use crate::rules::{BANNED, Few};
use crate::storm::Call;
use crate::{bake, common};
use kiln::driver::{Device, DeviceBuffer};
use kiln::model::{GenerateOptions, KvType, ModelFile, Numerics, PathChoice, Sampling, Session, SessionOptions};
use kiln::{Error, Model};
use kiln_emulator::{Checks, DeviceConfig};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const PROMPT: &[u32] = &[120, 7, 300, 41, 5];
const OTHER: &[u32] = &[9, 1033, 77];

/// The random model of two layers, on a device of its own with few blocks.
fn tiny(checks: Checks) -> Model {
    let config = DeviceConfig { multiprocessors: 3, checks, ..DeviceConfig::default() };
    let device = common::device_with(config);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    let file = ModelFile::open(file).expect("a model");
    let baked = bake::model(&file, &device);
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

/// What races is looked for elsewhere; here calls are many and short.
fn without_races() -> Model {
    tiny(Checks { racecheck: false, ..Checks::ALL })
}

fn options(path: PathChoice) -> SessionOptions {
    SessionOptions::default().with_path(path).with_capacity(512)
}

fn session(model: &Model, path: PathChoice) -> Session {
    model.session(options(path)).expect("a session")
}

fn generate(session: &mut Session, count: usize) -> kiln::Result<Vec<u32>> {
    session.generate(GenerateOptions::new(count)).collect()
}

/// What a fresh session generates behind `ids` on the stream path.
fn expected(model: &Model, ids: &[u32], count: usize) -> Vec<u32> {
    let mut session = session(model, PathChoice::Stream);
    session.append(ids).expect("it fits");
    generate(&mut session, count).expect("it generates")
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn sessions_with_long_answers_all_advance() {
    const COUNT: usize = 16;
    let model = tiny(Checks::ALL);
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| PROMPT.iter().map(|id| id + i).collect()).collect();
    let right: Vec<Vec<u32>> = prompts.iter().map(|ids| expected(&model, ids, COUNT)).collect();
    let mut sessions: Vec<Session> = prompts.iter().map(|_| session(&model, PathChoice::Persistent)).collect();
    let order = Mutex::new(Vec::new());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (number, ((session, ids), right)) in sessions.iter_mut().zip(&prompts).zip(&right).enumerate() {
            let order = &order;
            scope.spawn(move || {
                session.append(ids).expect("it fits");
                for (token, right) in session.generate(GenerateOptions::new(COUNT)).zip(right) {
                    assert_eq!(token.expect("a token"), *right, "session {number}");
                    order.lock().expect("no panic").push((number, begun.elapsed()));
                }
            });
        }
    });
    let order = order.into_inner().expect("no panic");
    println!("emulated: session and milliseconds of each token: {:?}", {
        order.iter().map(|(number, at)| (*number, at.as_millis())).collect::<Vec<_>>()
    });
    // When the first has all its tokens, the others, which came a few tokens later, are not far behind.
    let mut made = [0; 4];
    for (number, _) in &order {
        made[*number] += 1;
        if made[*number] == COUNT {
            break;
        }
    }
    assert!(made.iter().all(|count| *count >= COUNT / 2), "tokens when the first session had all of its own: {made:?}");
    let launches: u64 = sessions.iter().map(|session| session.work().launches).sum();
    assert!(launches <= 8, "{launches} launches: one decoder takes all items, and parks for what is allocated only");
}

/// The driver refuses the third tensor map: the model does not load, and says why; the next load is as any.
#[test]
fn a_tensor_map_that_is_not_made_is_an_error_of_loading() {
    if common::is_left_out_on_gpu("other tests take memory of the device beside it") {
        return;
    }
    let device = common::device_with(DeviceConfig { checks: Checks::NONE, ..DeviceConfig::default() });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    let load = || {
        let file = ModelFile::open(&path).expect("a model");
        let baked = bake::model(&file, &device);
        Model::load(&device, baked, file, |_| {})
    };
    let (loaded, calls) = table::calls_of(load);
    drop(loaded.expect("it loads"));
    assert!(calls.iter().filter(|call| **call == "cuTensorMapEncodeTiled").count() > 3, "{calls:?}");
    let free = device.memory_info().expect("memory").0;
    let failed = table::failing_once("cuTensorMapEncodeTiled", 2, 999, load);
    assert!(matches!(failed.map(|_| ()), Err(Error::Cuda { call: "cuTensorMapEncodeTiled", code: 999, .. })));
    assert_eq!(device.memory_info().expect("memory").0, free, "nothing is kept of it");
    assert!(load().is_ok());
}

/// Every driver call of making a session, and of a generation, fails once: what follows is an error, then right text.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_driver_call_that_fails_once_leads_to_an_error_and_never_to_other_text() {
    calls_fail_once(|session| {
        session.append(PROMPT)?;
        generate(session, 4)
    });
}

/// The same of answers with biases and bans, and under rules whose masks items await.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn nor_does_it_where_logits_are_changed() {
    let rules = Few(Random::fresh());
    calls_fail_once(|session| {
        session.append(PROMPT)?;
        let edited = Sampling::new(0.9, 3).with_banned(BANNED).with_logit_bias([(9, 2.0), (300, -1.0)]);
        let options = GenerateOptions::new(2).with_sampling(edited).with_logprobs(0);
        let free = session.generate(options.clone()).collect::<kiln::Result<Vec<u32>>>()?;
        let ruled = session.generate(options).with_constraint(rules.clone()).collect::<kiln::Result<Vec<u32>>>()?;
        Ok([free, ruled].concat())
    });
}

fn calls_fail_once(run: impl Fn(&mut Session) -> kiln::Result<Vec<u32>>) {
    if common::is_left_out_on_gpu("what a failed call loses would be lost to all tests, which share the device") {
        return;
    }
    // Occurrences of a call that are tried: those behind come from the same loop.
    let long =
        common::is_long("the second to sixth occurrences of a call, and calls of the stream path on the graph path");
    let each = if long { 6 } else { 1 };
    let of_graphs = |name: &str| name.contains("Graph") || name.contains("Capture") || name == "cuLaunchKernel";
    for path in [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent] {
        let model = without_races();
        let ordinal = model.device().ordinal();
        let right = run(&mut session(&model, PathChoice::Stream)).expect("it generates");
        let other = expected(&model, OTHER, 4);
        // Modules and tables are there from now on.
        run(&mut session(&model, path)).expect("it generates");
        let (mut recorded, making) = table::calls_of(|| session(&model, path));
        let (_, generating) = table::calls_of(|| run(&mut recorded).expect("it generates"));
        drop(recorded);
        let mut lost = 0;
        for (stage, calls) in [("making", making), ("generating", generating)] {
            let mut seen = BTreeMap::<&'static str, usize>::new();
            calls.iter().for_each(|call| *seen.entry(call).or_default() += 1);
            for (name, count) in seen {
                // What cannot be given back is lost by the failure itself.
                let frees = name.starts_with("cuMemFree") || name.ends_with("Destroy");
                let tried = long || path != PathChoice::Graph || of_graphs(name);
                for nth in 0..count.min(each * usize::from(tried)) {
                    lost += usize::from(frees);
                    let mut made = (stage == "generating").then(|| session(&model, path));
                    let first = table::failing_once(name, nth, 999, || match &mut made {
                        Some(session) => run(session),
                        None => run(made.insert(model.session(options(path))?)),
                    });
                    let what = match &first {
                        Ok(tokens) => {
                            assert_eq!(*tokens, right, "{path:?}: {stage}: {name} {nth}");
                            "right text"
                        }
                        Err(Error::Cuda { code: 999, .. }) => "an error",
                        Err(error) => panic!("{path:?}: {stage}: {name} {nth}: {error}"),
                    };
                    // The same session, asked for another answer, never gives the earlier one.
                    let then = made.as_mut().map_or("no session", |session| {
                        session.truncate(0);
                        let answer = session.append(OTHER).and_then(|()| generate(session, 4));
                        let answer = answer.unwrap_or_else(|error| panic!("{path:?}: after {name} {nth}: {error}"));
                        assert_eq!(answer, other, "{path:?}: {stage}: after {name} {nth}");
                        "right text"
                    });
                    println!("| {path:?} | {stage} | {name} {nth} | {what}, then {then} |");
                }
            }
        }
        assert_eq!(generate_fresh(&model, path), other, "{path:?}: a new session after all");
        drop(model);
        // Each free that was made to fail has lost what it should have freed, and nothing else is lost.
        let leaks = kiln_emulator::leaks(ordinal);
        assert!(leaks.len() <= lost, "{path:?}: {lost} frees failed: {leaks:?}");
    }
}

fn generate_fresh(model: &Model, path: PathChoice) -> Vec<u32> {
    let mut session = session(model, path);
    session.append(OTHER).expect("it fits");
    generate(&mut session, 4).expect("it generates")
}

/// One failing call while a generation is dropped in its middle: the next call of the session stops it again.
#[test]
fn a_stop_that_fails_is_made_up_for_by_the_next_call() {
    if common::is_left_out_on_gpu("what a failed call loses would be lost to all tests, which share the device") {
        return;
    }
    let model = without_races();
    let other = expected(&model, OTHER, 4);
    for (name, nth) in
        [("cuStreamQuery", 0), ("cuStreamQuery", 1), ("cuCtxGetCurrent", 0), ("cuLaunchCooperativeKernel", 0)]
    {
        let mut session = session(&model, PathChoice::Persistent);
        session.append(PROMPT).expect("it fits");
        let mut generation = session.generate(GenerateOptions::new(300));
        generation.next().expect("a token").expect("no fault");
        table::failing_once(name, nth, 999, || drop(generation));
        session.truncate(0);
        session.append(OTHER).expect("it fits");
        assert_eq!(generate(&mut session, 4).expect("it generates"), other, "{name} {nth}");
    }
}

/// Random calls on all paths together: append, generate, drop, cancel, truncate, fork, prefill, allocations beside it.
#[test]
fn storms_of_calls_give_the_same_tokens_on_every_path() {
    let model = without_races();
    let mut random = Random::fresh();
    let mut below = |end: usize| random.below(end as u32) as usize;
    let fresh = || [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent].map(|path| session(&model, path));
    let mut sets = vec![fresh()];
    for step in 0..if common::is_long("125 of 150 steps") { 150 } else { 25 } {
        let at = below(sets.len());
        let choice = below(8);
        let (count, len) = (1 + below(4), below(12));
        let ids: Vec<u32> = (0..1 + below(5)).map(|_| below(2048) as u32).collect();
        if choice == 7 && sets.len() < 4 {
            let copies = sets[at].each_ref().map(|session| session.fork().expect("a copy"));
            sets.push(copies);
            continue;
        }
        let set = &mut sets[at];
        if set[0].tokens().len() > 60 {
            set.iter_mut().for_each(|session| session.truncate(len));
        }
        let call = match choice {
            0 | 1 => Call::Append(ids),
            2 => Call::Truncate(len),
            3 => Call::Prefill,
            4 => Call::Drop(count),
            5 => Call::Cancel(count + 1),
            _ => Call::Generate(GenerateOptions::new(count)),
        };
        let results = set.each_mut().map(|session| {
            if matches!(call, Call::Generate(_)) {
                drop(DeviceBuffer::<u8>::uninitialized(model.device(), 64).expect("memory"));
            }
            call.on(session)
        });
        for other in [1, 2] {
            assert_eq!(results[0], results[other], "step {step}, {call:?}");
            assert_eq!(set[0].tokens(), set[other].tokens(), "step {step}, {call:?}");
        }
    }
    let ordinal = model.device().ordinal();
    let set = &mut sets[0];
    set.iter_mut().for_each(|session| {
        session.truncate(0);
        session.append(PROMPT).expect("it fits");
    });
    let logits = set.each_mut().map(|session| session.logits().expect("logits"));
    let bits = logits.map(|logits| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>());
    assert!(bits.iter().all(|other| *other == bits[0]), "logits at the end");
    drop((sets, model));
    if !common::on_gpu() {
        assert_eq!(kiln_emulator::leaks(ordinal), []);
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn sessions_load_each_module_once_and_only_what_they_use() {
    let model = without_races();
    let loads = |path: PathChoice, kv: KvType, numerics: Numerics| {
        let (_, calls) = table::calls_of(|| {
            for _ in 0..3 {
                let mut session = model.session(options(path).with_kv(kv).with_numerics(numerics)).expect("a session");
                session.append(PROMPT).expect("it fits");
                generate(&mut session, 2).expect("it generates");
            }
        });
        calls.iter().filter(|call| **call == "cuModuleLoadDataEx").count()
    };
    let counted = [
        (PathChoice::Persistent, KvType::F16, Numerics::Exact, 1),
        (PathChoice::Persistent, KvType::F16, Numerics::Exact, 0),
        // A decoder runs caches of either type.
        (PathChoice::Persistent, KvType::F32, Numerics::Exact, 0),
        (PathChoice::Persistent, KvType::F16, Numerics::Fast, 1),
        (PathChoice::Persistent, KvType::F16, Numerics::Exact, 0),
        // Layers, head and choice.
        (PathChoice::Stream, KvType::F16, Numerics::Exact, 3),
        (PathChoice::Stream, KvType::F32, Numerics::Exact, 0),
        (PathChoice::Graph, KvType::F16, Numerics::Exact, 0),
        // Prompts of several tokens have a module of their own.
        (PathChoice::Stream, KvType::F32, Numerics::Fast, 4),
        (PathChoice::Stream, KvType::F16, Numerics::Fast, 0),
    ];
    for (path, kv, numerics, expected) in counted {
        let found = loads(path, kv, numerics);
        assert_eq!(found, expected, "{path:?}, {kv:?}, {numerics}: modules loaded by three sessions");
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn an_allocation_through_a_twin_parks_the_decoder() {
    let model = without_races();
    let right = expected(&model, PROMPT, 60);
    let twin = Device::open(common::driver(), model.device().ordinal()).expect("the same device");
    assert_eq!(&twin, model.device());
    let mut session = session(&model, PathChoice::Persistent);
    session.append(PROMPT).expect("it fits");
    let mut generation = session.generate(GenerateOptions::new(60));
    assert_eq!(generation.next().expect("a token").expect("no fault"), right[0]);
    let begun = Instant::now();
    drop(DeviceBuffer::<u8>::uninitialized(&twin, 64).expect("memory"));
    let allocated = begun.elapsed();
    let rest: Vec<u32> = generation.collect::<kiln::Result<_>>().expect("tokens");
    assert_eq!(rest, right[1..]);
    let all = begun.elapsed();
    assert!(allocated < all / 2, "the allocation waited for the answer: {allocated:?} of {all:?}");
}

/// A device that never answers: the host gives up, and what it gives up on is kept, not freed.
#[test]
fn waits_of_the_host_have_an_end_also_in_drop() {
    if common::is_left_out_on_gpu("its limits would be those of all tests, which share the device") {
        return;
    }
    let model = without_races();
    let limits = model.device().limits();
    model.device().set_limits(limits.with_wait(Duration::from_millis(200)));
    let stream = model.device().stream().expect("a stream");
    let buffer = DeviceBuffer::<u32>::zeroed(model.device(), 16).expect("memory");
    let gate = common::Gate::close(&stream);
    stream.enqueue([buffer.writes("x")], |_| Ok(())).expect("it is noted");
    let begun = Instant::now();
    assert!(matches!(stream.synchronize(), Err(Error::Stalled { .. })));
    assert!(matches!(buffer.wait(), Err(Error::Stalled { .. })));
    let ((), calls) = table::calls_of(|| drop(buffer));
    assert!(!calls.contains(&"cuMemFree"), "memory in use was freed");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    gate.open();
    model.device().set_limits(limits);
    stream.synchronize().expect("the gate is open");
}
