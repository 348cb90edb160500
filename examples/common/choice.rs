//! The model, the cache, the numerics and the path that commands are told to take.

#![allow(dead_code)]

use clap::{Args, ValueEnum};
use kiln::model::{self, KvType, ModelFile, PathChoice, Session, SessionOptions};

/// The model that was named, or the demo model.
pub(crate) fn model_file(named: Option<&std::path::Path>) -> kiln::Result<ModelFile> {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/demo.Q4_K_M.gguf");
    ModelFile::open(named.unwrap_or(demo.as_ref()))
}

/// The cache's type, as an argument.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Kv {
    F16,
    F32,
}

impl From<Kv> for KvType {
    fn from(kv: Kv) -> KvType {
        match kv {
            Kv::F16 => KvType::F16,
            Kv::F32 => KvType::F32,
        }
    }
}

/// The numerics, as an argument.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Numerics {
    Fast,
    Exact,
}

impl From<Numerics> for model::Numerics {
    fn from(numerics: Numerics) -> model::Numerics {
        match numerics {
            Numerics::Fast => model::Numerics::Fast,
            Numerics::Exact => model::Numerics::Exact,
        }
    }
}

/// How sessions run, as arguments of the commands that generate.
#[derive(Args, Clone)]
pub(crate) struct Ways {
    /// The type of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub(crate) kv: Kv,
    /// fast rounds activations to int8; exact is the reference, in f32
    #[arg(long, value_enum, default_value_t = Numerics::Fast)]
    pub(crate) numerics: Numerics,
    /// The way tokens are run: all give the same
    #[arg(long, value_enum, default_value_t = Path::Auto)]
    pub(crate) path: Path,
}

impl Ways {
    /// A session's options, for an emulated device or a GPU; `blocks` is the persistent grid that was asked for.
    pub(crate) fn options(&self, emulated: bool, blocks: Option<u32>) -> SessionOptions {
        let options = SessionOptions::default().with_kv(self.kv.into()).with_numerics(self.numerics.into());
        options.with_path(self.path.on(emulated, blocks)).with_blocks(blocks)
    }
}

/// The decoder's path, as an argument.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Path {
    Stream,
    Graph,
    Persistent,
    Auto,
}

impl Path {
    /// The path that a session has, and why.
    pub(crate) fn of(self, session: &Session, emulated: bool) -> String {
        let (path, why) = session.path();
        let is_best_there = emulated && path == "stream" && matches!(self, Path::Auto);
        format!("{path} ({})", if is_best_there { "auto: the emulator runs it faster" } else { why })
    }

    /// The session's choice. The emulator runs the stream path faster, as docs/FIGURES.md has it. Whoever names `blocks`
    /// means the persistent path.
    pub(crate) fn on(self, emulated: bool, blocks: Option<u32>) -> PathChoice {
        match self {
            Path::Stream => PathChoice::Stream,
            Path::Graph => PathChoice::Graph,
            Path::Persistent => PathChoice::Persistent,
            Path::Auto if emulated && blocks.is_none() => PathChoice::Stream,
            Path::Auto => PathChoice::Auto,
        }
    }
}
