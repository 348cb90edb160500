//! The graph path through sessions: one launch a token, a graph for each length class and kind of token, and the stream
//! path's bits.

use crate::{bake, common};
use kiln::Model;
use kiln::baked::{BakedModel, BakedModule, DecoderPath};
use kiln::model::{GenerateOptions, ModelFile, PathChoice, Session, SessionOptions};
use kiln::shape::Numerics;
use kiln_emulator::{Checks, DeviceConfig};
use std::path::Path;

fn tokens(session: &mut Session, count: usize) -> Vec<u32> {
    session.generate(GenerateOptions::new(count)).collect::<kiln::Result<_>>().expect("it generates")
}

fn bits(session: &mut Session) -> Vec<u32> {
    session.logits().expect("logits").into_iter().map(f32::to_bits).collect()
}

/// A session on either path, and what to compare.
struct Pair {
    stream: Session,
    graph: Session,
}

impl Pair {
    /// Does the same with both, whose results and tokens are then the same. Gives the tokens that were run, and the graphs
    /// that were recorded for them; each token was one launch.
    fn both<R: PartialEq + std::fmt::Debug>(&mut self, mut work: impl FnMut(&mut Session) -> R) -> (u64, u64) {
        let before = self.graph.work();
        assert_eq!(work(&mut self.graph), work(&mut self.stream));
        assert_eq!(self.graph.tokens(), self.stream.tokens());
        let after = self.graph.work();
        assert_eq!((after.tokens, 0), (self.stream.work().tokens, self.stream.work().captures));
        assert_eq!(after.launches - before.launches, after.tokens - before.tokens, "one launch a token");
        (after.tokens - before.tokens, after.captures - before.captures)
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_token_is_one_launch_of_a_graph_that_its_length_class_shares() {
    // Arithmetic and counts: graphs run with every check on in the library's own tests and in `sessions`.
    let config = DeviceConfig { checks: Checks::NONE, multiprocessors: 1, ..DeviceConfig::default() };
    let device = common::device_with(config);
    let ordinal = device.ordinal();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    let file = ModelFile::open(file).expect("a model");
    let baked = bake::model(&file, &device);
    let model = Model::load(&device, baked, file, |_| {}).expect("it loads");
    let session = |path| model.session(common::exact().with_path(path).with_capacity(256)).expect("a session");
    let mut pair = Pair { stream: session(PathChoice::Stream), graph: session(PathChoice::Graph) };
    assert_eq!(pair.graph.path(), ("graph", "asked for"));

    // Room for one chunk. The last prompt token is run with the choice of the next, the last token chosen is not run.
    let first: Vec<u32> = (0..4).map(|i| 7 + 31 * i).collect();
    assert_eq!(pair.both(|session| session.append(&first).map_err(|error| error.to_string())), (0, 0));
    assert_eq!(pair.both(|session| tokens(session, 3)), (6, 2));
    let prompt: Vec<u32> = (0..119).map(|i| 5 + 13 * i % 2000).collect();
    assert_eq!(pair.both(|session| session.append(&prompt).map_err(|error| error.to_string())), (0, 0));
    assert_eq!(pair.both(|session| tokens(session, 1)), (120, 0));
    // Tokens 127 and 128 end the chunk; with token 129 the cache grows, and the class has two chunks from there on.
    assert_eq!(pair.both(|session| tokens(session, 4)), (4, 1));
    assert_eq!(pair.both(bits), (1, 0));
    assert_eq!(pair.both(|session| session.append(&first).map_err(|error| error.to_string())), (0, 0));
    assert_eq!(pair.both(bits), (4, 1));
    // Back in the first class, whose graphs were for the smaller cache.
    assert_eq!(pair.both(|session| session.truncate(9)), (0, 0));
    assert_eq!(pair.both(bits), (1, 1));
    assert_eq!(pair.both(|session| session.prefill().map_err(|error| error.to_string())), (0, 0));
    assert_eq!(pair.both(|session| tokens(session, 2)), (2, 0));

    drop((pair, model, device));
    if !common::on_gpu() {
        assert_eq!(kiln_emulator::leaks(ordinal), []);
    }
}

/// What columns and loading launch is not in the chain.
fn of_a_token(kernel: &str) -> bool {
    !["quantise", "gemm", "repack"].iter().any(|other| kernel.starts_with(other))
}

/// From sm_90 on each launch of a token in fast numerics may begin before the one before it ends: the emulator takes what a
/// kernel does before its wait for a race with that one.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn launches_of_a_token_begin_early_where_the_chip_has_that() {
    if common::is_left_out_on_gpu("a GPU does not tell how a launch began") {
        return;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    for ((major, minor), has_it) in [((8, 9), false), ((9, 0), true)] {
        let chip = DeviceConfig::with_sm(major, minor);
        let device = common::device_with(DeviceConfig { multiprocessors: 2, counters: true, ..chip });
        let file = ModelFile::open(&file).expect("a model");
        let baked = bake::model(&file, &device);
        let model = Model::load(&device, baked, file, |_| {}).expect("it loads");
        for numerics in Numerics::ALL {
            let early = has_it && numerics == Numerics::Fast;
            for path in [PathChoice::Stream, PathChoice::Graph] {
                kiln_emulator::clear_reports(device.ordinal());
                let options = SessionOptions::default().with_numerics(numerics).with_path(path).with_capacity(256);
                let mut session = model.session(options).expect("a session");
                session.append(&[5]).expect("a prompt");
                tokens(&mut session, 3);
                session.logits().expect("logits");
                let launches = kiln_emulator::reports(device.ordinal());
                let chain: Vec<_> = launches.iter().filter(|launch| of_a_token(&launch.kernel)).collect();
                // Two layers of six launches each, the embedding, the head and the choice.
                assert!(chain.len() >= 2 * 12 + 3, "{numerics}, {path:?}: {} launches", chain.len());
                for launch in chain {
                    assert_eq!(
                        launch.programmatic, early,
                        "sm_{major}{minor}, {numerics}, {path:?}: {}",
                        launch.kernel
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_left_to_kiln_is_what_the_model_of_time_has_faster() {
    if common::is_left_out_on_gpu("what the model of time has for emulated chips") {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    let chosen_of = |sm, multiprocessors, numerics, is_there: fn(&BakedModule) -> bool| {
        let config = DeviceConfig { sm, multiprocessors, checks: Checks::NONE, ..DeviceConfig::default() };
        let device = common::device_with(config);
        let file = ModelFile::open(&path).expect("a model");
        let all = bake::model(&file, &device);
        let modules = all.modules().iter().filter(|module| is_there(module)).copied().collect::<Vec<_>>().leak();
        // SAFETY: the modules are some of those that were baked for this shape and these types.
        let baked = Box::leak(Box::new(unsafe { BakedModel::new(all.name(), *all.shape(), all.types(), modules) }));
        let model = Model::load(&device, baked, file, |_| {}).expect("it loads");
        let options = SessionOptions::default().with_numerics(numerics).with_capacity(64);
        let mut session = model.session(options).expect("a session");
        session.append(&[5, 9]).expect("it fits");
        tokens(&mut session, 1);
        let (path, why) = session.path();
        (path, why.to_owned())
    };
    let chosen = |sm, multiprocessors, numerics| chosen_of(sm, multiprocessors, numerics, |_| true);
    // Eight multiprocessors are no chip that there are figures of.
    assert_eq!(
        chosen((9, 0), 8, Numerics::Exact),
        ("persistent", "auto: the device launches cooperatively".to_owned())
    );
    // A barrier of an RTX 5090 costs twice what a node of a graph does, one of an AGX Orin less.
    let (path, why) = chosen((12, 0), 170, Numerics::Exact);
    assert!(path == "graph" && why.contains("RTX 5090") && why.contains("modelled"), "{path}: {why}");
    let (path, why) = chosen((8, 7), 16, Numerics::Fast);
    assert!(path == "persistent" && why.contains("AGX Orin") && why.contains("modelled"), "{path}: {why}");
    // Where there is no persistent decoder a graph is the faster of the others; without figures nobody says so.
    for (sm, multiprocessors, expected) in [((8, 7), 16, "graph"), ((9, 0), 8, "stream")] {
        let (path, why) = chosen_of(sm, multiprocessors, Numerics::Fast, |module| {
            module.decoder != Some((DecoderPath::Persistent, Numerics::Fast))
        });
        assert!(path == expected && why.contains("cannot be taken"), "{path}: {why}");
    }
}
