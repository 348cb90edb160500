//! The persistent path through sessions: its ends, its launches, the same tokens on every grid and schedule, and what
//! planted bugs do to it.

use crate::{bake, common};
use kiln::baked::{BakedModel, BakedModule, DecoderPath};
use kiln::driver::DeviceBuffer;
use kiln::model::{End, GenerateOptions, ModelFile, Numerics, PathChoice, Session};
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
    let baked = bake::model(&file, &device);
    let modules = baked.modules().iter().map(|module| match module.decoder {
        Some((DecoderPath::Persistent, Numerics::Exact)) => BakedModule { ptx: plant(module.ptx).leak(), ..*module },
        _ => *module,
    });
    let modules = modules.collect::<Vec<_>>().leak();
    // SAFETY: what is planted the emulator runs, and it checks every access.
    let planted = unsafe { BakedModel::new(baked.name(), *baked.shape(), baked.types(), modules) };
    let baked: &BakedModel = Box::leak(Box::new(planted));
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
    model.session(common::exact().with_path(path).with_blocks(blocks).with_capacity(512)).expect("a session")
}

fn at_most(max_tokens: usize) -> GenerateOptions {
    GenerateOptions::new(max_tokens)
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
    let options = common::exact().with_path(PathChoice::Persistent).with_capacity(8);
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
    let mut generation = session.generate(GenerateOptions::new(8).with_stop_ids([stop]));
    let made: Vec<u32> = generation.by_ref().collect::<kiln::Result<_>>().expect("it generates");
    assert_eq!((made.as_slice(), generation.end()), (&all[..before], Some(End::StopId(stop))));
}

#[test]
#[ignore = "longer; .ci/run runs it"]
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
#[ignore = "longer; .ci/run runs it"]
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
#[ignore = "longer; .ci/run runs it"]
fn one_launch_runs_the_prompt_and_makes_24_tokens() {
    let model = tiny(config(10));
    let all = expected(&model, PROMPT, 24);
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    assert_eq!(tokens(&mut session, 24), all);
    assert_eq!(session.work().launches, 1);
    // The last one does not run.
    assert_eq!(session.work().tokens as usize, PROMPT.len() + 23);
}

#[test]
fn a_prompt_run_beforehand_changes_nothing() {
    let model = tiny(config(13));
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    session.prefill().expect("it runs");
    assert_eq!(session.work().tokens as usize, PROMPT.len() - 1);
    session.prefill().expect("nothing is left to run");
    assert_eq!(tokens(&mut session, 3), expected(&model, PROMPT, 3));
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

/// A multiprocessor holds one block of the kernel: three and two blocks on three multiprocessors, started in turns, wait
/// for each other.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn two_resident_decoders_never_start_in_turns() {
    let model = tiny(DeviceConfig { interleave_cooperative: true, ..config(14) });
    let four = model.session(common::exact().with_path(PathChoice::Persistent).with_blocks(Some(4)));
    assert!(common::on_gpu() || four.is_err(), "two blocks on a multiprocessor");
    let all = expected(&model, PROMPT, 6);
    let decode = |blocks| {
        let mut session = session(&model, PathChoice::Persistent, Some(blocks));
        for round in 0..3 {
            session.truncate(0);
            session.append(PROMPT).expect("it fits");
            assert_eq!(tokens(&mut session, 6), all, "{blocks} blocks, round {round}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| decode(3));
        decode(2);
    });
    assert_eq!(common::fault(model.device()), None);
}

#[test]
fn a_launch_begins_behind_what_other_streams_have_under_way() {
    let model = tiny(config(16));
    let all = expected(&model, PROMPT, 3);
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    // Whatever is allocated is there from now on: allocating would wait for the stream as well.
    assert_eq!(tokens(&mut session, 3), all);
    session.truncate(0);
    session.append(PROMPT).expect("it fits");
    let (device, stream) = (model.device(), model.device().stream().expect("a stream"));
    let limits = device.limits();
    device.set_limits(limits.with_wait(Duration::from_millis(500)));
    let gate = common::Gate::close(&stream);
    // It has no room, and so no token comes.
    let begun = session.generate(at_most(3)).next().expect("an error");
    assert!(matches!(begun, Err(Error::Stalled { .. })), "{begun:?}");
    device.set_limits(limits);
    gate.open();
    session.truncate(0);
    session.append(PROMPT).expect("it fits");
    assert_eq!(tokens(&mut session, 3), all);
}

#[test]
fn work_that_waits_to_be_asked_about_is_asked_about() {
    let model = tiny(DeviceConfig { deferred_submission: true, ..config(15) });
    let all = expected(&model, PROMPT, 6);
    let mut session = session(&model, PathChoice::Persistent, None);
    session.append(PROMPT).expect("it fits");
    assert_eq!(tokens(&mut session, 6), all);
}

/// Schedules of a device, by name, each with the grids that are run under it; all of them in a long run.
fn schedules(long: bool) -> [(&'static str, DeviceConfig, &'static [u32]); 4] {
    let of = |schedule, seed| DeviceConfig { schedule, seed, multiprocessors: 132, ..DeviceConfig::default() };
    let grids = |few: &'static [u32]| if long { &[1, 2, 7, 132][..] } else { few };
    [
        ("round robin", of(Schedule::RoundRobin, 0), grids(&[1, 132])),
        ("random 1", of(Schedule::Random, 1), grids(&[7])),
        ("random 2, split warps", DeviceConfig { split_warps: true, ..of(Schedule::Random, 2) }, grids(&[2])),
        ("adversarial", of(Schedule::Adversarial, 3), grids(&[7])),
    ]
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn ids_are_the_streams_on_every_grid_and_schedule() {
    let long = common::is_long("most grids under most schedules, with the demo model");
    for (name, config, grids) in schedules(long) {
        let model = if long { demo(config) } else { tiny(config) };
        let most = if long { 24 } else { 6 };
        let all = expected(&model, &PROMPT[..2], most);
        for &blocks in grids {
            let count = if blocks < 132 { most } else { 2 };
            let mut session = session(&model, PathChoice::Persistent, Some(blocks));
            session.append(&PROMPT[..2]).expect("it fits");
            assert_eq!(tokens(&mut session, count), all[..count], "{blocks} blocks, {name}");
        }
    }
}

/// 192 does not divide anything; with 64, a thread does four workers' part of attention, and of two warps one is the ring's
/// producer.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn logits_are_the_streams_with_blocks_of_any_size() {
    // 131 tokens go over a chunk's end: partial results are put together.
    let count = if common::is_long("blocks of any size over a chunk's end") { 131 } else { 5 };
    for threads in [64, 192, 512] {
        let device = common::device_with(config(u64::from(threads)));
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
        let file = ModelFile::open(file).expect("a model");
        let baked = bake::model_with_blocks_of(&file, &device, Some(threads));
        let model = Model::load(&device, baked, file, |_| {}).expect("it loads");
        let ids: Vec<u32> = (0..count).map(|i| i * 7 % 2048).collect();
        for numerics in Numerics::ALL {
            let logits = |path| {
                let options = common::exact().with_numerics(numerics).with_path(path).with_capacity(512);
                let mut session = model.session(options).expect("a session");
                session.append(&ids).expect("they fit");
                session.logits().expect("logits").into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            };
            assert_eq!(logits(PathChoice::Persistent), logits(PathChoice::Stream), "{threads} threads, {numerics:?}");
        }
    }
}

#[test]
fn ids_are_the_streams_across_chunks_of_the_cache() {
    if !common::is_long("300 tokens across chunk boundaries") {
        return;
    }
    let model = demo(config(12));
    let all = expected(&model, PROMPT, 300);
    for (blocks, items) in [(2, &[300][..]), (3, &[120, 1, 179])] {
        let mut session = session(&model, PathChoice::Persistent, Some(blocks));
        session.append(PROMPT).expect("it fits");
        let made: Vec<u32> = items.iter().flat_map(|count| tokens(&mut session, *count)).collect();
        assert_eq!(made, all, "{blocks} blocks, items of {items:?} tokens");
    }
}

/// Bugs planted in the emitted PTX, each found by what the emulator checks or by the tokens.
mod planted {
    use super::{PROMPT, at_most, common, config, expected, open_as, session};
    use kiln::Error;
    use kiln::driver::DeviceBuffer;
    use kiln::model::PathChoice;
    use kiln_emulator::{DeviceConfig, FaultKind};
    use std::time::Duration;

    /// The text with the instructions that `rule` rewrites: it is given the two before, the line, and the next.
    fn rewrite(ptx: &str, mut rule: impl FnMut([&str; 2], &str, &str) -> Option<String>) -> String {
        let lines: Vec<&str> = ptx.lines().collect();
        let is_code = |line: &&&str| !matches!(line.trim_start().get(..2), None | Some("//" | ".l"));
        let mut planted = 0;
        let rewritten: Vec<String> = lines
            .iter()
            .enumerate()
            .map(|(index, line)| {
                let mut before = lines[..index].iter().rev().filter(is_code).map(|line| line.trim());
                let (last, one_before) = (before.next().unwrap_or(""), before.next().unwrap_or(""));
                let next = lines[index + 1..].iter().find(is_code).map_or("", |line| line.trim());
                let new = if is_code(&line) { rule([one_before, last], line.trim(), next) } else { None };
                planted += u32::from(new.is_some());
                new.unwrap_or_else(|| (*line).to_owned())
            })
            .collect();
        assert!(planted > 0, "the place for the bug was not found");
        rewritten.join("\n")
    }

    /// What was seen of a bug.
    #[derive(Debug, PartialEq)]
    enum Seen {
        Fault(FaultKind),
        WrongTokens,
        /// The blocks have given up waiting for each other.
        Stall,
    }

    /// Runs a few tokens with the bug under some schedules.
    fn seen(config: impl Fn(u64) -> DeviceConfig, plant: impl Fn(&str) -> String) -> Option<Seen> {
        (0..3).find_map(|seed| {
            let model = open_as("tests/data/tiny3-d64.Q4_K_M/model.gguf", config(seed), &plant);
            let all = expected(&model, &PROMPT[..2], 3);
            let mut session = session(&model, PathChoice::Persistent, None);
            let made: kiln::Result<Vec<u32>> =
                session.append(&PROMPT[..2]).and_then(|()| session.generate(at_most(3)).collect());
            match made {
                Ok(made) if made == all => None,
                Ok(_) => Some(Seen::WrongTokens),
                Err(error) => match (error, kiln_emulator::last_fault(model.device().ordinal())) {
                    (_, Some(fault)) => Some(Seen::Fault(fault.kind)),
                    (Error::DecoderStalled { .. }, None) => Some(Seen::Stall),
                    (error, None) => panic!("an error without a fault: {error}"),
                },
            }
        })
    }

    #[track_caller]
    fn finds(kind: FaultKind, plant: impl Fn(&str) -> String) {
        if common::is_left_out_on_gpu("a planted bug is for the emulator to find") {
            return;
        }
        assert_eq!(seen(config, plant), Some(Seen::Fault(kind)));
    }

    /// As [`finds`], for bugs by which blocks wait for ever: all of them leave, the host gets a typed error for ever, and
    /// the device is free. Nothing but the kernel's own limit ends it.
    #[track_caller]
    fn hangs(plant: impl Fn(&str) -> String) {
        if common::is_left_out_on_gpu("a planted bug is for the emulator to find") {
            return;
        }
        let model = open_as("tests/data/tiny3-d64.Q4_K_M/model.gguf", config(0), &plant);
        let limits = model.device().limits();
        model.device().set_limits(limits.with_device_wait(Duration::from_micros(500)));
        let mut session = session(&model, PathChoice::Persistent, None);
        session.append(&PROMPT[..2]).expect("it fits");
        for round in 0..2 {
            let made = session.generate(at_most(3)).collect::<kiln::Result<Vec<u32>>>();
            assert!(matches!(made, Err(Error::DecoderStalled { .. })), "round {round}: {made:?}");
        }
        drop(session);
        model.device().synchronize().expect("nothing is on the device, and nothing went wrong there");
        assert_eq!(kiln_emulator::last_fault(model.device().ordinal()), None);
        assert_eq!(expected(&model, PROMPT, 2).len(), 2, "the stream path goes on");
    }

    #[test]
    fn nothing_planted_is_not_found() {
        assert_eq!(seen(config, str::to_owned), None);
    }

    #[test]
    fn a_barrier_that_arrives_without_a_fence_is_found() {
        finds(FaultKind::Race, |ptx| {
            rewrite(ptx, |_, line, next| (line == "fence.acq_rel.gpu;" && next.starts_with("red.")).then(String::new))
        });
    }

    #[test]
    fn a_barrier_that_leaves_without_a_fence_is_found() {
        finds(FaultKind::Race, |ptx| {
            rewrite(ptx, |[_, before], line, _| {
                (line == "fence.acq_rel.gpu;" && before.starts_with('$')).then(String::new)
            })
        });
    }

    /// A KV head's last block puts together what the others wrote: two chunks are needed to see it.
    #[test]
    fn partial_attention_that_arrives_without_a_fence_is_found() {
        if common::is_left_out_on_gpu("a planted bug is for the emulator to find")
            || !common::is_long("bugs in the arrival of partial attention")
        {
            return;
        }
        let ids: Vec<u32> = (0..130).collect();
        let seen = |plant: &dyn Fn(&str) -> String| {
            let model = open_as("tests/data/tiny3-d64.Q4_K_M/model.gguf", config(1), plant);
            let all = expected(&model, &ids, 2);
            let mut session = session(&model, PathChoice::Persistent, None);
            session.append(&ids).expect("it fits");
            match session.generate(at_most(2)).collect::<kiln::Result<Vec<_>>>() {
                Ok(made) => (made != all).then_some(Seen::WrongTokens),
                Err(_) => kiln_emulator::last_fault(model.device().ordinal()).map(|fault| Seen::Fault(fault.kind)),
            }
        };
        let is_fence = |line: &str| line == "fence.acq_rel.gpu;";
        let before =
            |_: [&str; 2], line: &str, next: &str| (is_fence(line) && next.starts_with("atom.")).then(String::new);
        let behind =
            |[_, last]: [&str; 2], line: &str, _: &str| (is_fence(line) && last.starts_with("atom.")).then(String::new);
        let reset = |_: [&str; 2], line: &str, _: &str| {
            (line.starts_with("st.relaxed.gpu.global.u32") && line.ends_with(" 0;")).then(String::new)
        };
        assert_eq!(seen(&str::to_owned), None);
        assert_eq!(
            seen(&|ptx| rewrite(ptx, before)),
            Some(Seen::Fault(FaultKind::Race)),
            "no fence before the arrival"
        );
        assert_eq!(seen(&|ptx| rewrite(ptx, behind)), Some(Seen::Fault(FaultKind::Race)), "no fence behind it");
        assert_eq!(seen(&|ptx| rewrite(ptx, reset)), Some(Seen::WrongTokens), "a counter that is not set back");
    }

    #[test]
    fn fences_of_the_block_only_are_found() {
        finds(FaultKind::Race, |ptx| ptx.replace("fence.acq_rel.gpu;", "fence.acq_rel.cta;"));
    }

    #[test]
    fn an_arrival_of_the_block_only_is_found() {
        finds(FaultKind::Race, |ptx| ptx.replace("red.relaxed.gpu.", "red.relaxed.cta."));
    }

    #[test]
    fn a_plain_poll_of_the_counter_is_found() {
        finds(FaultKind::Race, |ptx| ptx.replace("ld.relaxed.gpu.global.u32", "ld.global.u32"));
    }

    #[test]
    fn an_arrival_that_does_not_wait_for_its_block_is_found() {
        finds(FaultKind::Race, |ptx| {
            rewrite(ptx, |[_, before], line, next| {
                let barrier = before.starts_with("add.u32") && next.ends_with("%tid.x;");
                (line == "bar.sync 0;" && barrier).then(String::new)
            })
        });
    }

    #[test]
    fn a_block_that_does_not_wait_for_its_first_thread_is_found() {
        finds(FaultKind::Race, |ptx| {
            rewrite(ptx, |_, line, next| {
                // The barrier behind which a block looks whether it has given up.
                (line == "bar.sync 0;" && next.contains("[gone]")).then(String::new)
            })
        });
    }

    /// The comparison of the barrier's missing arrivals with 0, made with another number.
    fn missing(ptx: &str, number: &str) -> String {
        rewrite(ptx, |[_, before], line, _| {
            let compares = line.starts_with("setp.gt.s32") && before.starts_with("sub.u32");
            let rest = line.strip_suffix(" 0;").filter(|_| compares)?;
            Some(format!("{rest} {number};"))
        })
    }

    #[test]
    fn a_barrier_that_counts_one_block_too_few_is_found() {
        finds(FaultKind::Race, |ptx| missing(ptx, "1"));
    }

    #[test]
    fn a_barrier_that_counts_a_block_twice_is_found() {
        hangs(|ptx| missing(ptx, "-1"));
    }

    #[test]
    #[ignore = "longer; .ci/run runs it"]
    fn a_counter_read_once_is_found() {
        hangs(|ptx| {
            let mut first = None;
            rewrite(ptx, |_, line, next| {
                let (register, address) = line.strip_prefix("ld.relaxed.gpu.global.u32 ")?.split_once(", ")?;
                // The counter, not the abort word behind it.
                (!address.contains('+') && next.starts_with("sub.u32")).then_some(())?;
                match first.take() {
                    Some(first) => Some(format!("mov.b32 {register}, {first};")),
                    None => {
                        first = Some(register.to_owned());
                        None
                    }
                }
            })
        });
    }

    #[test]
    fn activations_read_as_constants_are_found() {
        finds(FaultKind::StaleRead, |ptx| ptx.replace("ld.global.f32", "ld.global.nc.f32"));
    }

    /// Slows every block before it looks at the token's command, later blocks longer; with `per_block`, has each look at
    /// the host's wish that the kernel park itself.
    fn late_command(ptx: &str, per_block: bool) -> String {
        let command = 4 * kiln::shape::mailbox::state::COMMANDS;
        let mut mailbox = String::new();
        rewrite(ptx, |_, line, _| {
            if let Some(register) = line.strip_suffix(", [mailbox];").and_then(|line| line.split(' ').nth(1)) {
                mailbox = register.to_owned();
                return None;
            }
            let register = line.strip_prefix("ld.global.u32 ")?.split(',').next()?;
            line.ends_with(&format!("+{command}];")).then_some(())?;
            let slow =
                "{ .reg .b32 %slow; mov.u32 %slow, %ctaid.x; mul.lo.u32 %slow, %slow, 5000; nanosleep.u32 %slow; }";
            let own = format!(
                "{{ .reg .pred %own; .reg .b32 %seen; mov.u32 %seen, %tid.x; setp.eq.u32 %own, %seen, 0; \
                 ld.relaxed.sys.global.u32 %seen, [{mailbox}]; setp.ne.and.u32 %own, %seen, 0, %own; \
                 @%own mov.b32 {register}, 2; }}"
            );
            Some(format!("{slow}\n{line}\n{}", if per_block { own } else { String::new() }))
        })
    }

    /// Whether an answer survives being parked again and again.
    fn parks_well(per_block: bool) -> bool {
        (0..3).all(|seed| {
            let plant = |ptx: &str| late_command(ptx, per_block);
            let model = open_as("tests/data/tiny3-d64.Q4_K_M/model.gguf", config(seed), plant);
            let limits = model.device().limits();
            model.device().set_limits(limits.with_device_wait(Duration::from_millis(2)));
            let all = expected(&model, &PROMPT[..1], 5);
            let mut session = session(&model, PathChoice::Persistent, None);
            session.append(&PROMPT[..1]).expect("it fits");
            let generation = session.generate(at_most(5)).inspect(|_| {
                drop(DeviceBuffer::<u8>::uninitialized(model.device(), 1)); // parks
            });
            generation.collect::<kiln::Result<Vec<_>>>().is_ok_and(|made| made == all)
        })
    }

    #[test]
    #[ignore = "longer; .ci/run runs it"]
    fn a_wish_to_park_that_every_block_reads_is_found() {
        if common::is_left_out_on_gpu("a planted bug is for the emulator to find") {
            return;
        }
        assert!(parks_well(false), "one block's decision, read late");
        assert!(!parks_well(true), "every block's own decision");
    }

    #[test]
    fn tokens_are_compared() {
        // The harness sees a kernel that is quick and wrong.
        let wrong = |ptx: &str| ptx.replace("sqrt.rn.f32", "abs.f32").replace("rsqrt.approx.f32", "abs.f32");
        assert_eq!(seen(config, wrong), Some(Seen::WrongTokens));
    }
}
