//! Prompts on the persistent path: read by batches beside the resident decoder where that pays, with the bits of the stream
//! path.

use crate::common::table;
use crate::presets::Cut;
use crate::random::Random;
use crate::synth_model::{Mix, SynthModel};
use crate::{bake, common};
use kiln::driver::DeviceBuffer;
use kiln::model::{GenerateOptions, KvType, ModelFile, Numerics, PathChoice, Sampling, Session, SessionOptions};
use kiln::{Error, Model};
use kiln_emulator::{Checks, DeviceConfig, Schedule};
use kiln_shape::{ModelShape, presets};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The random model of two layers, on a device of its own.
fn tiny(config: DeviceConfig) -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    load(ModelFile::open(file).expect("a model"), config)
}

fn load(file: ModelFile, config: DeviceConfig) -> Model {
    let device = common::device_with(config);
    let baked = bake::model(&file, &device);
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

/// Few multiprocessors, with nothing checked.
fn few() -> DeviceConfig {
    DeviceConfig { multiprocessors: 3, checks: Checks::NONE, ..DeviceConfig::default() }
}

fn quick() -> Model {
    tiny(few())
}

fn options(path: PathChoice) -> SessionOptions {
    SessionOptions::default().with_numerics(Numerics::Fast).with_path(path).with_capacity(700)
}

fn session(model: &Model, path: PathChoice) -> Session {
    model.session(options(path)).expect("a session")
}

fn random_ids(random: &mut Random, count: usize) -> Vec<u32> {
    (0..count).map(|_| random.below(2048)).collect()
}

fn generate(session: &mut Session, count: usize) -> kiln::Result<Vec<u32>> {
    session.generate(GenerateOptions::new(count)).collect()
}

/// Launches of a batch.
fn launches_of_a_batch(model: &Model) -> u64 {
    7 * u64::from(model.shape().layers) + 2
}

/// Launches of the head and of the likeliest token's choice, behind a batch.
const OF_A_CHOICE: u64 = 2;
/// Launches of the decoder alone, and of a choice: it may leave and come back.
const FEW: u64 = 8;

/// Checks that a session launched so many batches, and else the decoder.
fn has_batches(session: &Session, model: &Model, batches: u64) {
    let (found, all) = (session.work().launches, batches * launches_of_a_batch(model));
    assert!(
        (all..=all + FEW).contains(&found),
        "{batches} batches of {}: {:?}",
        launches_of_a_batch(model),
        session.work()
    );
}

/// Appends at random, with tokens chosen behind each: ids and logits.
#[test]
fn prompts_given_in_parts_have_the_streams_ids_and_logits() {
    let mut random = Random::fresh();
    let model = quick();
    for (kv, count) in [(KvType::F16, 40), (KvType::F32, 40), (KvType::F16, 600)] {
        let ids = random_ids(&mut random, count);
        let mut sessions = [PathChoice::Stream, PathChoice::Persistent]
            .map(|path| model.session(options(path).with_kv(kv)).expect("a session"));
        let mut rest = &ids[..];
        while !rest.is_empty() {
            let (part, later) = rest.split_at(1 + random.below(rest.len() as u32) as usize);
            // A choice that looks at the tokens so far, by the path or by the host.
            let sampling = match random.below(3) {
                0 => Sampling::GREEDY,
                1 => Sampling::GREEDY.with_penalties(1.3, 0.2, 0.2),
                _ => Sampling::GREEDY.with_temperature(0.9).with_seed(random.next()).with_typical_p(0.9),
            };
            let by_host = (random.below(3) == 0).then_some(1);
            let here = ids.len() - later.len();
            let [expected, found] = sessions.each_mut().map(|session| {
                session.append(part).expect("they fit");
                let options = GenerateOptions::new(2).with_sampling(sampling.clone()).with_logprobs(by_host);
                let made = session.generate(options).collect::<kiln::Result<Vec<u32>>>().expect("it generates");
                session.truncate(here);
                made
            });
            assert_eq!(found, expected, "{kv:?}, {part:?} of {ids:?}");
            rest = later;
        }
        let [expected, found] = sessions.each_mut().map(|session| session.logits().expect("logits"));
        assert!(found == expected, "{kv:?}: {ids:?}");
    }
}

/// Of a prompt whose logits are read all but the last token, by batches of 512 at most; few tokens, and exact numerics, launch nothing but the
/// decoder.
#[test]
fn what_pays_goes_by_batches() {
    let mut random = Random::fresh();
    let model = quick();
    let ids = random_ids(&mut random, 600);
    for (count, batches) in [(1, 0), (8, 0), (9, 1), (40, 1), (513, 1), (600, 2)] {
        let mut expected = session(&model, PathChoice::Stream);
        expected.append(&ids[..count]).expect("they fit");
        let expected = expected.logits().expect("logits");
        let mut session = session(&model, PathChoice::Persistent);
        session.append(&ids[..count]).expect("they fit");
        assert!(session.logits().expect("logits") == expected, "{count} tokens");
        has_batches(&session, &model, batches);
        assert_eq!(session.work().tokens, count as u64);
    }
    // What runs beforehand chooses nothing, and the decoder has no part in it.
    let mut ahead = session(&model, PathChoice::Persistent);
    ahead.append(&ids[..40]).expect("they fit");
    ahead.prefill().expect("it runs");
    assert_eq!((ahead.work().launches, ahead.work().tokens), (launches_of_a_batch(&model), 39));
    ahead.prefill().expect("nothing is left to run");
    generate(&mut ahead, 2).expect("it generates");
    has_batches(&ahead, &model, 1);

    let exact = options(PathChoice::Persistent).with_numerics(Numerics::Exact);
    let mut exact = model.session(exact).expect("a session");
    exact.append(&ids[..40]).expect("they fit");
    exact.logits().expect("logits");
    has_batches(&exact, &model, 0);
}

/// The first token behind a prompt is chosen behind its batch, the others by the decoder: by every kind of choice, and with
/// every end of an item at the first token and behind it, as on the stream path.
#[test]
fn what_a_batch_chooses_is_the_streams_choice_and_ends_as_there() {
    let mut random = Random::fresh();
    let model = quick();
    let ids = random_ids(&mut random, 24);
    let drawn = Sampling::GREEDY.with_temperature(0.9).with_seed(random.next());
    let choices = [
        Sampling::GREEDY,
        Sampling::GREEDY.with_penalties(1.3, 0.2, 0.2).with_penalty_window(7),
        drawn.clone(),
        drawn.with_top_k(40).with_top_p(0.9),
    ];
    for sampling in choices {
        let run = |path, capacity: usize, wish: &GenerateOptions| {
            let mut session = model.session(options(path).with_capacity(capacity as u32)).expect("a session");
            session.append(&ids).expect("they fit");
            let mut generation = session.generate(wish.clone());
            let mut told = Vec::new();
            while let Some(token) = generation.next() {
                let logprob = generation.logprobs().map(|of| of.chosen.to_bits());
                told.push((token.expect("a token"), logprob));
            }
            let end = generation.end();
            drop(generation);
            // Beside penalties the host has log-probabilities.
            if path == PathChoice::Persistent && wish.logprobs.is_none() {
                let launches = session.work().launches;
                let all = launches_of_a_batch(&model) + OF_A_CHOICE;
                // The decoder is launched for more than the first token, which is not told where it is a stop id.
                assert!(if told.len() <= 1 { launches < all + 4 } else { launches > all }, "{launches} of {all}");
            }
            // Where there is no room the last token cannot run.
            (told, end, session.logits().ok())
        };
        let of = |count| GenerateOptions::new(count).with_sampling(sampling.clone());
        let plain = of(3);
        let (told, ..) = run(PathChoice::Stream, 64, &plain);
        let first = told[0].0;
        for (what, capacity, wish) in [
            ("three tokens", 64, plain.clone()),
            ("with log-probabilities", 64, plain.clone().with_logprobs(0)),
            ("one token", 64, of(1)),
            ("a stop id", 64, plain.clone().with_stop_ids([first])),
            ("no room behind the first", ids.len(), plain.clone()),
            ("room for one more", ids.len() + 1, plain.clone()),
        ] {
            let [found, expected] = [PathChoice::Persistent, PathChoice::Stream].map(|path| run(path, capacity, &wish));
            assert!(found == expected, "{what}, {wish:?}: {:?} instead of {:?}", found.0, expected.0);
        }
    }
}

/// What a prompt takes beside its session the next one takes, whichever session it is of, and a longer one as much more. It is
/// given up where there is no memory for anything else.
#[test]
fn the_next_prompt_takes_the_memory_of_the_one_before() {
    if common::on_gpu() {
        return;
    }
    let ids = random_ids(&mut Random::fresh(), 200);
    let allocations = |session: &mut Session, count: usize| {
        session.append(&ids[..count]).expect("they fit");
        let (_, calls) = table::calls_of(|| generate(session, 1).expect("it generates"));
        calls.iter().filter(|call| **call == "cuMemAlloc").count()
    };
    // A session has chunks of a cache besides.
    const CHUNKS: usize = 2;
    for path in [PathChoice::Stream, PathChoice::Persistent] {
        let model = tiny(DeviceConfig { memory_bytes: 256 << 20, ..few() });
        let [mut first, mut second, mut third] = [(); 3].map(|()| session(&model, path));
        assert!(allocations(&mut first, 40) > 10 + CHUNKS, "{path:?}");
        assert!(allocations(&mut second, 40) <= CHUNKS, "{path:?}: the first is still there, and needs it no more");
        assert!(allocations(&mut third, 200) > 10 + CHUNKS, "{path:?}");
        drop(third);
        first.truncate(0);
        assert!(allocations(&mut first, 200) <= CHUNKS, "{path:?}");
        let free = model.device().memory_info().expect("memory").0;
        DeviceBuffer::<u8>::uninitialized(model.device(), free as usize + 1).expect("what is kept is given up for it");
        first.truncate(0);
        assert!(allocations(&mut first, 200) > 10, "{path:?}: nothing was left");
    }
}

/// A random model of three layers whose matrices have such types.
fn of_types(mix: Mix) -> Model {
    let tiny = presets::by_name("tiny").expect("a preset").shape;
    let shape = ModelShape { hidden: 512, ffn: 1280, layers: 3, vocab: 650, tied_head: false, ..tiny };
    let written = Cut(std::env::temp_dir().join(format!("kiln-prompts-{mix:?}-{}.gguf", std::process::id())));
    let out = File::create(&written.0).expect("a temporary file");
    SynthModel { shape, mix, seed: 3 }.write(BufWriter::new(out), |_, _| {}).expect("it fits the disk");
    load(ModelFile::open(&written.0).expect("a model"), few())
}

/// Tokens of a prompt share passes over weights that are floats: a launch for each phase, of the head as well.
#[test]
fn a_prompt_goes_by_batches_where_all_matrices_are_floats() {
    let model = of_types(Mix::F16);
    let ids: Vec<u32> = (0..21).map(|i| (i * 37 + 11) % 650).collect();
    let mut one_by_one = session(&model, PathChoice::Stream);
    let expected = ids.iter().map(|id| {
        one_by_one.append(&[*id]).expect("it fits");
        one_by_one.logits().expect("logits")
    });
    let expected: Vec<Vec<f32>> = expected.collect();
    for path in [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent] {
        let mut together = session(&model, path);
        together.append(&ids).expect("they fit");
        let mut found = Vec::new();
        let each = |_, logits: &[f32]| {
            found.push(logits.to_vec());
            Ok::<(), Error>(())
        };
        together.each_logits(each).expect("logits");
        assert!(found == expected, "{path:?}");
        if path != PathChoice::Persistent {
            assert_eq!(together.work().launches, 3 * 6 + 1 + 1, "{path:?}: {:?}", together.work());
        }
    }
}

/// Where floats and quantised weights meet in a phase, it goes a token at a time, by a kernel of the stream path, which is
/// loaded where layers have them.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_prompt_goes_by_batches_where_some_matrices_are_floats() {
    let mut random = Random::fresh();
    let model = of_types(Mix::InTurn);
    let ids: Vec<u32> = (0..20).map(|_| random.below(650)).collect();
    let [found, expected] = [PathChoice::Persistent, PathChoice::Stream].map(|path| {
        let mut session = model.session(options(path).with_capacity(64)).expect("a session");
        session.append(&ids).expect("they fit");
        let tokens = generate(&mut session, 2).expect("it generates");
        assert!(session.work().launches > 60, "{path:?}: a launch for each token and phase: {:?}", session.work());
        (tokens, session.logits().expect("logits"))
    });
    assert!(found == expected);
}

/// Behind a batch comes the decoder: it does not look out for more launches for a part of a turn. Nor where the batch was run
/// ahead of the first token.
#[test]
fn the_decoder_follows_a_batch_at_once() {
    let model = quick();
    let (limits, turn) = (model.device().limits(), Duration::from_secs(40));
    model.device().set_limits(limits.with_turn(turn));
    let took = [false, true].map(|ahead| {
        let mut session = session(&model, PathChoice::Persistent);
        let begin = Instant::now();
        session.append(&random_ids(&mut Random::fresh(), 40)).expect("they fit");
        if ahead {
            session.prefill().expect("it runs");
        }
        generate(&mut session, 2).expect("it generates");
        has_batches(&session, &model, 1);
        begin.elapsed()
    });
    model.device().set_limits(limits);
    assert!(took.iter().all(|took| *took < turn / 4), "{took:?}");
}

/// A prompt of more than a batch can be ended between them, and goes on.
#[test]
fn a_prompt_is_cancelled_between_its_batches() {
    let mut random = Random::fresh();
    let model = quick();
    let ids = random_ids(&mut random, 690);
    let [expected, found] = [PathChoice::Stream, PathChoice::Persistent].map(|path| {
        let mut session = session(&model, path);
        session.append(&ids).expect("they fit");
        let mut told = Vec::new();
        let tell = |ran, all| {
            told.push((ran, all));
            false
        };
        assert!(session.prefill_by_batches(tell).expect("it runs"), "all have run that are to run here");
        assert_eq!(told, [(178, 178)]);
        assert_eq!(session.work().launches, launches_of_a_batch(&model), "{path:?}");
        let mut generation = session.generate(GenerateOptions::new(4));
        generation.cancel_handle().cancel();
        assert_eq!(generation.next().transpose().expect("no fault"), None);
        drop(generation);
        assert_eq!(session.work().tokens, 178, "{path:?}: it ran on");
        session.logits().expect("logits")
    });
    assert!(found == expected);
}

/// One decodes while the other reads a prompt, with every check on: both have what they have alone.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_prompt_is_read_while_another_session_decodes() {
    reads_while_another_decodes(Checks::ALL, 0);
}

/// The same where a batch chooses the first token of an answer. The host copies it, waits, and posts it to the decoder, which
/// may have begun before the copy: the race check does not see what hosts tell by their words.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_prompt_is_answered_while_another_session_decodes() {
    reads_while_another_decodes(Checks { racecheck: false, ..Checks::ALL }, 3);
}

/// Says so when it is dropped.
struct Told<'a>(&'a AtomicBool);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Reads prompts beside a session that decodes, and has so many tokens of an answer to each.
fn reads_while_another_decodes(checks: Checks, answer: usize) {
    const TOKENS: usize = 24;
    let mut random = Random::fresh();
    let config = DeviceConfig { multiprocessors: 2, schedule: Schedule::Random, checks, ..DeviceConfig::default() };
    let model = tiny(config);
    let told = |error: Error| format!("{error}: {:?}", common::fault(model.device()));
    let limits = model.device().limits();
    // Both have many turns.
    model.device().set_limits(limits.with_turn(Duration::from_millis(20)));
    let (short, long) = (random_ids(&mut random, 5), random_ids(&mut random, 150));
    let alone = quick();
    let expected = |ids: &[u32], count| {
        let mut session = session(&alone, PathChoice::Stream);
        session.append(ids).expect("they fit");
        let tokens = generate(&mut session, count).expect("it generates");
        (tokens, session.logits().expect("logits"))
    };
    let (begun, read) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = session(&model, PathChoice::Persistent);
            session.append(&short).expect("they fit");
            // Until the other has read its prompt there is always a next token.
            let mut rounds = 0;
            while rounds == 0 || !read.load(Ordering::Acquire) {
                session.truncate(short.len());
                let mut tokens = Vec::new();
                for token in session.generate(GenerateOptions::new(TOKENS)) {
                    tokens.push(token.map_err(told).expect("a token"));
                    begun.store(true, Ordering::Release);
                }
                assert!((tokens, session.logits().expect("logits")) == expected(&short, TOKENS));
                rounds += 1;
            }
        });
        scope.spawn(|| {
            // However this ends, the other does not decode without an end.
            let _read = Told(&read);
            let mut session = session(&model, PathChoice::Persistent);
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            for (count, batches) in [(70, 1), (150, 2)] {
                session.append(&long[session.tokens().len()..count]).expect("they fit");
                let tokens = generate(&mut session, answer).map_err(told).expect("it generates");
                let logits = session.logits().map_err(told).expect("logits");
                let launches = session.work().launches;
                assert!(launches >= batches * launches_of_a_batch(&model), "{launches} launches");
                assert!((tokens, logits) == expected(&long[..count], answer), "{count} tokens");
                session.truncate(count);
            }
        });
    });
    model.device().set_limits(limits);
}

/// Each call of reading a prompt and answering fails once: an error or the right text, and then the right text of the same
/// session.
#[test]
fn a_call_that_fails_while_a_prompt_is_read_is_an_error_and_never_other_text() {
    if common::on_gpu() {
        return;
    }
    let mut random = Random::fresh();
    let model = quick();
    let ordinal = model.device().ordinal();
    let (ids, others) = (random_ids(&mut random, 40), random_ids(&mut random, 30));
    let run = |session: &mut Session, ids: &[u32]| {
        session.truncate(0);
        session.append(ids)?;
        generate(session, 3)
    };
    let [right, other] =
        [&ids, &others].map(|ids| run(&mut session(&model, PathChoice::Stream), ids).expect("it runs"));
    // Modules are there from now on.
    run(&mut session(&model, PathChoice::Persistent), &ids).expect("it generates");
    let mut recorded = session(&model, PathChoice::Persistent);
    let (_, calls) = table::calls_of(|| run(&mut recorded, &ids).expect("it generates"));
    drop(recorded);
    let mut seen = BTreeMap::<&'static str, usize>::new();
    calls.iter().for_each(|call| *seen.entry(call).or_default() += 1);
    let launches: usize =
        seen.iter().filter(|(name, _)| name.starts_with("cuLaunchKernel")).map(|(_, count)| count).sum();
    assert_eq!(launches as u64, launches_of_a_batch(&model) + OF_A_CHOICE, "{seen:?}");
    let mut lost = 0;
    for (name, count) in seen {
        // What a drop asks before it frees loses as much.
        let asks = name.ends_with("Query") || name == "cuCtxGetCurrent";
        let frees = asks || name.starts_with("cuMemFree") || name.ends_with("Destroy");
        for nth in BTreeSet::from([0, 1.min(count - 1), count / 2, count - 1]) {
            lost += usize::from(frees);
            let mut made = session(&model, PathChoice::Persistent);
            match table::failing_once(name, nth, 999, || run(&mut made, &ids)) {
                Ok(tokens) => assert_eq!(tokens, right, "{name} {nth}"),
                Err(Error::Cuda { code: 999, .. }) => {}
                Err(error) => panic!("{name} {nth}: {error}"),
            }
            let answer = run(&mut made, &others).unwrap_or_else(|error| panic!("after {name} {nth}: {error}"));
            assert_eq!(answer, other, "after {name} {nth}");
        }
    }
    drop(model);
    let leaks = kiln_emulator::leaks(ordinal);
    assert!(leaks.len() <= lost, "{lost} frees failed: {leaks:?}");
}

/// The kernels for several tokens are loaded, and their memory is taken, for the first prompt that needs them; a session
/// takes no more memory than is said.
#[test]
fn what_batches_need_is_there_when_a_prompt_needs_it() {
    if common::on_gpu() {
        return;
    }
    let mut random = Random::fresh();
    let model = quick();
    let ids = random_ids(&mut random, 600);
    let loads = |session: &mut Session, ids: &[u32]| {
        let (_, calls) = table::calls_of(|| {
            session.append(ids).expect("they fit");
            generate(session, 2).expect("it generates")
        });
        calls.iter().filter(|call| **call == "cuModuleLoadDataEx").count()
    };
    let (made, calls) = table::calls_of(|| session(&model, PathChoice::Persistent));
    let mut short = made;
    assert_eq!(calls.iter().filter(|call| **call == "cuModuleLoadDataEx").count(), 1);
    assert_eq!(loads(&mut short, &ids[..5]), 0);
    let free = || model.device().memory_info().expect("memory").0;
    let before = free();
    let mut long = session(&model, PathChoice::Persistent);
    assert_eq!(loads(&mut long, &ids), 3, "of the layers, of the head, and of the choice");
    assert_eq!(loads(&mut short, &ids[..40]), 0, "one for all sessions");
    drop(short);
    let taken = before - free();
    let need = Session::memory_need(&model, options(PathChoice::Persistent));
    println!("{taken} bytes taken of {need}");
    assert!(taken <= need, "{taken} bytes of {need}");
}
