//! The graph path through sessions: one launch a token, a graph for each length class and kind of token, and the stream
//! path's bits.

use crate::{bake, common};
use kiln::Model;
use kiln::model::{GenerateOptions, ModelFile, PathChoice, Session};
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
fn a_token_is_one_launch_of_a_graph_that_its_length_class_shares() {
    // Arithmetic and counts: graphs run with every check on in the library's own tests and in `sessions`.
    let config = DeviceConfig { checks: Checks::NONE, multiprocessors: 1, ..DeviceConfig::default() };
    let device = common::device_with(config);
    let ordinal = device.ordinal();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny3-d64.Q4_K_M/model.gguf");
    let file = ModelFile::open(file).expect("a model");
    let baked = bake::model("test", *file.shape(), device.sm());
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
