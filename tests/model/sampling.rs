//! Sampled generations: the same tokens on every path, from the same seed.

use crate::random::Random;
use crate::{bake, common};
use kiln::model::{End, GenerateOptions, ModelFile, PathChoice, Sampling, Session, SessionOptions};
use kiln::{Error, Model};
use kiln_emulator::{DeviceConfig, Schedule};
use std::path::Path;

const PROMPT: &[u32] = &[120, 7, 300];
const PATHS: [PathChoice; 3] = [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent];

/// The random model of two layers on a device of three blocks, to be quick.
fn model() -> Model {
    on(DeviceConfig { multiprocessors: 3, ..DeviceConfig::default() })
}

fn on(config: DeviceConfig) -> Model {
    let device = common::device_with(config);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    let file = ModelFile::open(file).expect("a model");
    let baked = bake::model(&file, &device);
    Model::load(&device, baked, file, |_| {}).expect("it loads")
}

fn session(model: &Model, path: PathChoice) -> Session {
    let mut session = model.session(common::exact().with_path(path).with_capacity(140)).expect("a session");
    session.append(PROMPT).expect("they fit");
    session
}

fn generate(session: &mut Session, options: GenerateOptions) -> Vec<u32> {
    session.generate(options).collect::<kiln::Result<_>>().expect("it generates")
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn the_same_seed_gives_the_same_tokens_on_every_path() {
    let model = model();
    let sampled = |seed| {
        let sampling = Sampling::new(0.9, seed).with_top_k(200).with_top_p(0.95).with_penalties(1.1, 0.1, 0.1);
        GenerateOptions::new(6).with_sampling(sampling)
    };
    let texts = PATHS.map(|path| {
        let mut session = session(&model, path);
        let tokens = generate(&mut session, sampled(5));
        assert_eq!(session.tokens()[PROMPT.len()..], tokens, "{path:?}");
        let work = session.work();
        assert_eq!(work.tokens, PROMPT.len() as u64 + 5, "{path:?}");
        if path == PathChoice::Persistent {
            assert!(work.launches <= 3, "the decoder stays on the device: {work:?}");
        }
        // Again, from the same place.
        session.truncate(PROMPT.len());
        assert_eq!(generate(&mut session, sampled(5)), tokens, "{path:?}, again");
        let mut fork = session.fork().expect("it fits");
        session.truncate(PROMPT.len() + 2);
        assert_eq!(generate(&mut session, sampled(5))[..4], tokens[2..], "{path:?}, from the middle");
        fork.truncate(PROMPT.len());
        assert_ne!(generate(&mut fork, sampled(6)), tokens, "{path:?}, another seed");
        tokens
    });
    assert!(texts.iter().all(|tokens| *tokens == texts[0]), "{texts:?}");
}

/// The ways of choosing that are compared: narrow, with biases and bans beside penalties, by typical surprise and every other
/// filter, the greatest logit of typical surprise, flat, with penalties over a window, and the greatest logit behind them.
fn ways() -> [Sampling; 7] {
    // Two of three ids are banned: some block has none left, and some words of the mask are neither empty nor full.
    let banned: Vec<u32> = (0..2048).filter(|id| id % 3 != 1 || (64..900).contains(id)).collect();
    let biases: Vec<(u32, f32)> = (0..2048).step_by(5).map(|id| (id, (id % 7) as f32 - 3.0)).collect();
    let penalised = |drawn: Sampling| drawn.with_penalties(1.3, 0.2, 0.4).with_penalty_window(6);
    [
        penalised(Sampling::new(0.7, 11).with_top_k(40).with_top_p(0.9)),
        penalised(Sampling::new(1.5, 14).with_top_p(0.9)).with_banned(banned).with_logit_bias(biases),
        Sampling::new(1.5, 15).with_top_k(300).with_typical_p(0.8).with_top_p(0.9).with_min_p(0.2),
        Sampling::GREEDY.with_typical_p(0.3),
        Sampling::new(4.0, 12).with_min_p(1e-3),
        penalised(Sampling::new(2.0, 13).with_top_p(0.99)),
        penalised(Sampling::GREEDY),
    ]
}

/// What the host chooses, on the stream path: it does where it is to give log-probabilities of the likeliest.
fn by_host(model: &Model, session: SessionOptions, options: &GenerateOptions) -> Vec<u32> {
    let mut session = model.session(session.with_path(PathChoice::Stream).with_capacity(140)).expect("a session");
    session.append(PROMPT).expect("they fit");
    generate(&mut session, options.clone().with_logprobs(1))
}

#[test]
fn devices_choose_as_the_host_does() {
    let model = model();
    // Each takes seconds; the first has a longer test, `the_same_seed_gives_the_same_tokens_on_every_path`.
    for sampling in ways().into_iter().skip(1).take(3) {
        let options = GenerateOptions::new(3).with_sampling(sampling.clone());
        let expected = by_host(&model, common::exact(), &options);
        for path in PATHS {
            let mut session = session(&model, path);
            assert_eq!(generate(&mut session, options.clone()), expected, "{path:?}, {sampling:?}");
            let launches = session.work().launches;
            assert!(path != PathChoice::Persistent || launches == 1, "{launches} launches of a whole answer");
        }
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn penalties_look_at_tokens_that_ran_before() {
    let model = model();
    // A penalty below zero leaves little but what has occurred.
    let sampling = Sampling::new(1.0, 21).with_penalties(1.0, -30.0, 0.0);
    let options = GenerateOptions::new(3).with_sampling(sampling);
    for path in PATHS {
        let mut session = session(&model, path);
        generate(&mut session, options.clone());
        // In this session, and in one that it was copied to, where the host looks.
        let mut copy = session.fork().expect("it fits");
        for (session, way) in [(&mut session, options.clone()), (&mut copy, options.clone().with_logprobs(1))] {
            session.append(&[7, 9]).expect("they fit");
            generate(session, way);
        }
        assert_eq!(session.tokens(), copy.tokens(), "{path:?}");
        session.truncate(PROMPT.len() + 1);
        copy.truncate(PROMPT.len() + 1);
        let expected = generate(&mut copy, options.clone().with_logprobs(1));
        let mut again = session.fork().expect("it fits");
        for session in [&mut session, &mut again] {
            assert_eq!(generate(session, options.clone()), expected, "{path:?}, behind what is forgotten");
        }
    }
    let file = std::env::temp_dir().join(format!("kiln-{}-drawn.session", std::process::id()));
    let wish = SessionOptions::default().with_path(PathChoice::Stream).with_capacity(140);
    let mut session = model.session(wish).expect("a session");
    session.append(&(0..131).collect::<Vec<u32>>()).expect("they fit");
    session.prefill().expect("no fault");
    session.save(&file).expect("it is written");
    let mut loaded = model.load_session(wish, &file).expect("it is read");
    std::fs::remove_file(&file).expect("it is there");
    assert_eq!(generate(&mut loaded, options.clone()), generate(&mut session, options.with_logprobs(1)), "from a file");
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn draws_do_not_depend_on_the_grid_or_the_schedule() {
    let of = |schedule, seed, split_warps| DeviceConfig { schedule, seed, split_warps, ..DeviceConfig::default() };
    let devices = [
        (1, of(Schedule::RoundRobin, 0, false)),
        (7, of(Schedule::Random, 1, false)),
        (2, of(Schedule::Random, 2, true)),
        (3, of(Schedule::Adversarial, 3, false)),
    ];
    for (multiprocessors, config) in Random::fresh().some_of(2, devices) {
        let model = on(DeviceConfig { multiprocessors, ..config });
        for numerics in [common::exact(), SessionOptions::default()] {
            for sampling in ways() {
                let options = GenerateOptions::new(2).with_sampling(sampling.clone());
                let wish = numerics.with_path(PathChoice::Persistent).with_capacity(140);
                let mut session = model.session(wish).expect("a session");
                session.append(PROMPT).expect("they fit");
                let found = generate(&mut session, options.clone());
                assert_eq!(
                    found,
                    by_host(&model, numerics, &options),
                    "{multiprocessors} blocks, {numerics:?}, {sampling:?}"
                );
            }
        }
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn items_beside_each_other_are_drawn_each_in_its_way() {
    let model = model();
    for numerics in [common::exact(), SessionOptions::default()] {
        // In turns, or in columns of their own.
        let options = ways().map(|sampling| GenerateOptions::new(4).with_sampling(sampling));
        let expected = options.each_ref().map(|options| by_host(&model, numerics, options));
        let wish = numerics.with_path(PathChoice::Persistent).with_capacity(140);
        let mut sessions = options.each_ref().map(|_| model.session(wish).expect("a session"));
        sessions.iter_mut().for_each(|session| session.append(PROMPT).expect("they fit"));
        let mut running: Vec<_> =
            sessions.iter_mut().zip(options).map(|(session, way)| session.generate(way)).collect();
        let mut found = vec![Vec::new(); running.len()];
        for _ in 0..4 {
            for (generation, tokens) in running.iter_mut().zip(&mut found) {
                tokens.push(generation.next().expect("a token").expect("no fault"));
            }
        }
        assert_eq!(found, expected, "{numerics:?}");
    }
}

#[test]
fn temperature_zero_is_greedy_also_where_the_host_chooses() {
    let model = model();
    let greedy = generate(&mut session(&model, PathChoice::Stream), GenerateOptions::new(4));
    for path in PATHS {
        let by_host = GenerateOptions::new(4).with_logprobs(1);
        assert_eq!(generate(&mut session(&model, path), by_host), greedy, "{path:?}");
        // A ban of a token that is not chosen changes nothing.
        let banned = (0..).find(|id| !greedy.contains(id)).expect("another id");
        let options = GenerateOptions::new(4).with_sampling(Sampling::GREEDY.with_banned([banned]));
        assert_eq!(generate(&mut session(&model, path), options), greedy, "{path:?}");
        let without = GenerateOptions::new(1).with_sampling(Sampling::GREEDY.with_banned([greedy[0]]));
        assert_ne!(generate(&mut session(&model, path), without), greedy[..1], "{path:?}");
    }
}

#[test]
fn sampled_generations_end_as_greedy_ones_do() {
    let model = model();
    let sampled = |most| GenerateOptions::new(most).with_sampling(Sampling::new(1.0, 3));
    let tokens = generate(&mut session(&model, PathChoice::Stream), sampled(4));
    for path in [PathChoice::Stream, PathChoice::Persistent] {
        let mut first = session(&model, path);
        let mut generation = first.generate(sampled(4).with_stop_ids([tokens[2]]));
        let found: Vec<u32> = generation.by_ref().collect::<kiln::Result<_>>().expect("it generates");
        assert_eq!((found.as_slice(), generation.end()), (&tokens[..2], Some(End::StopId(tokens[2]))), "{path:?}");
        drop(generation);
        assert_eq!(first.tokens()[PROMPT.len()..], tokens[..3], "the stop id is appended");

        let mut generation = first.generate(sampled(9));
        generation.next();
        generation.cancel_handle().cancel();
        assert!(generation.next().is_none() && generation.end() == Some(End::Cancelled), "{path:?}");
        drop(generation);
        let mut short = model.session(common::exact().with_path(path).with_capacity(5)).expect("a session");
        short.append(PROMPT).expect("they fit");
        let mut generation = short.generate(sampled(9));
        assert_eq!(generation.by_ref().count(), 2, "{path:?}");
        assert_eq!(generation.end(), Some(End::ContextFull), "{path:?}");
        drop(generation);
        assert_eq!(short.generate(sampled(9)).count(), 0);

        let mut odd = first.generate(GenerateOptions::new(2).with_sampling(Sampling::new(f32::NAN, 0)));
        let error = odd.next().map(|token| token.err());
        assert!(matches!(error, Some(Some(Error::InvalidArgument { .. }))), "{error:?}");
        assert!(odd.next().is_none());
    }
}

#[test]
fn log_probabilities_are_those_of_the_logits() {
    let model = model();
    for path in PATHS {
        let mut session = session(&model, path);
        let logits = session.logits().expect("logits");
        let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let mut generation = session.generate(GenerateOptions::new(1).with_logprobs(3));
        let token = generation.next().expect("a token").expect("no fault");
        let found = generation.logprobs().expect("they were asked for").clone();
        let exact = |id: u32| f64::from(logits[id as usize]) - total.ln();
        assert_eq!((found.top.len(), found.top[0]), (3, (token, found.chosen)), "{path:?}");
        for (id, logprob) in found.top {
            assert!((f64::from(logprob) - exact(id)).abs() < 1e-5, "{path:?}, token {id}: {logprob}");
        }
        assert!(generation.next().is_none() && generation.logprobs().is_none());
    }
}

#[test]
fn log_probabilities_of_the_chosen_are_the_hosts_on_every_path() {
    let model = model();
    let given = |path, sampling: &Sampling, likeliest: usize| {
        let mut session = session(&model, path);
        let options = GenerateOptions::new(3).with_sampling(sampling.clone()).with_logprobs(likeliest);
        let (mut generation, mut all) = (session.generate(options), Vec::new());
        while let Some(token) = generation.next() {
            let found = generation.logprobs().expect("they were asked for");
            assert_eq!(found.top.len(), likeliest);
            all.push((token.expect("no fault"), found.chosen.to_bits()));
        }
        all
    };
    let all = [Sampling::GREEDY, Sampling::new(2.0, 5).with_top_k(100)].into_iter().chain(ways());
    for sampling in Random::fresh().some_of(3, all) {
        let expected = given(PathChoice::Stream, &sampling, 1);
        for path in PATHS {
            assert_eq!(given(path, &sampling, 0), expected, "{path:?}, {sampling:?}");
        }
    }
}

/// What the host reads of the device for a token is the same however it is chosen: no logits are among it.
#[test]
fn no_logits_go_to_the_host_however_a_token_is_chosen() {
    let model = model();
    for path in PATHS {
        let calls = |sampling: &Sampling, logprobs: Option<usize>| {
            let options = |count| GenerateOptions::new(count).with_sampling(sampling.clone()).with_logprobs(logprobs);
            let of = |count| {
                let mut session = session(&model, path);
                generate(&mut session, options(count));
                session.work().other_calls
            };
            of(2) - of(1)
        };
        let plain = calls(&Sampling::GREEDY, None);
        // Beside a stream a log-probability is a copy of one word.
        let copies = u64::from(path != PathChoice::Persistent);
        let [_, edited, typical, ..] = ways();
        assert_eq!(calls(&typical, None), plain, "{path:?}, {typical:?}");
        assert_eq!(calls(&edited, Some(0)), plain + copies, "{path:?}, {edited:?}");
    }
}

#[test]
fn where_every_token_is_banned_that_is_the_error_and_the_session_goes_on() {
    let model = model();
    let vocab = model.shape().vocab;
    for path in PATHS {
        let mut session = session(&model, path);
        let options = |sampling| GenerateOptions::new(2).with_sampling(sampling);
        let all: Vec<u32> = (0..vocab).collect();
        for sampling in [Sampling::GREEDY, Sampling::new(1.0, 7).with_top_k(9)] {
            let made: Vec<_> = session.generate(options(sampling.clone().with_banned(all.clone()))).collect();
            let position = PROMPT.len();
            assert!(
                matches!(made[..], [Err(Error::NoTokenAllowed { position: at })] if at == position),
                "{path:?}: {made:?}"
            );
            let mut but_one = all.clone();
            but_one.retain(|id| *id != 77);
            let one = generate(&mut session, options(sampling.with_banned(but_one)));
            assert_eq!(one, [77, 77], "{path:?}");
            session.truncate(position);
        }
    }
}

#[test]
fn a_token_that_has_run_for_its_logits_does_not_run_again() {
    let model = model();
    for path in PATHS {
        let mut session = session(&model, path);
        session.logits().expect("logits");
        let before = session.work().tokens;
        session.append(&[9]).expect("it fits");
        let logits = session.logits().expect("logits");
        assert_eq!(session.work().tokens, before + 1, "{path:?}");
        // Where nothing is appended the last one runs again.
        assert_eq!(session.logits().expect("logits"), logits, "{path:?}");
        session.truncate(2);
        let mut fresh = model.session(common::exact().with_path(path).with_capacity(140)).expect("a session");
        fresh.append(&PROMPT[..2]).expect("they fit");
        assert_eq!(session.logits().expect("logits"), fresh.logits().expect("logits"), "{path:?}");
    }
}
