//! What the examples' commands have in common.

#![allow(dead_code)]

use clap::{Parser, ValueEnum};
use kiln::model::{KvType, ModelFile, PathChoice};
use std::error::Error;
use std::process::ExitCode;

/// Reads the command line and runs: an error is one line on standard error and exit code 1.
pub(crate) fn main<A: Parser>(run: impl FnOnce(&A) -> Result<(), Box<dyn Error>>) -> ExitCode {
    let arguments = match A::try_parse() {
        Ok(arguments) => arguments,
        // Help and version are answers, not errors.
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whoever read our output has had enough.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

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

/// The decoder's path, as an argument.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Path {
    Stream,
    Persistent,
    Auto,
}

impl From<Path> for PathChoice {
    fn from(path: Path) -> PathChoice {
        match path {
            Path::Stream => PathChoice::Stream,
            Path::Persistent => PathChoice::Persistent,
            Path::Auto => PathChoice::Auto,
        }
    }
}
