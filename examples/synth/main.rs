//! Writes a GGUF file of any preset's shape with random weights: real sizes without real weights.
//!
//! `cargo run --release --example synth -- --model qwen3-8b --out FILE [--layers N] [--vocab N] [--seed N] [--types q4_k_m|q8_0|f16]`

#[path = "../common/command.rs"]
mod command;
mod model;

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use command::{Bar, at, note};
use kiln_shape::presets;
use model::{Mix, SynthModel};

/// Writes a GGUF file of a preset's shape with seeded random weights.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Preset: qwen3b, qwen3-8b, tiny, ...
    #[arg(long)]
    model: String,
    /// File to write
    #[arg(long)]
    out: PathBuf,
    /// Layers, if not the preset's
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    layers: Option<u32>,
    /// Vocabulary, if not the preset's
    #[arg(long, value_parser = clap::value_parser!(u32).range(i64::from(model::LEAST_VOCAB)..=1 << 24))]
    vocab: Option<u32>,
    /// The same seed gives the same file
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How weights are stored
    #[arg(long, default_value = "q4_k_m")]
    types: Types,
}

#[derive(Clone, Copy, ValueEnum)]
enum Types {
    #[value(name = "q4_k_m")]
    Q4KM,
    #[value(name = "q8_0")]
    Q8_0,
    F16,
}

fn main() -> ExitCode {
    command::main(write)
}

fn write(options: &Options) -> Result<(), Box<dyn Error>> {
    let preset = presets::by_name(&options.model).ok_or_else(|| {
        let names: Vec<&str> = presets::all().map(|preset| preset.feature).collect();
        format!("no model `{}`; there are: {}", options.model, names.join(", "))
    })?;
    let mut shape = preset.shape;
    shape.layers = options.layers.unwrap_or(shape.layers);
    shape.vocab = options.vocab.unwrap_or(shape.vocab);
    let mix = match options.types {
        Types::Q4KM => Mix::Q4KM,
        Types::Q8_0 => Mix::Q8_0,
        Types::F16 => Mix::F16,
    };
    let synth = SynthModel { shape, mix, seed: options.seed };

    let file = File::create(&options.out).map_err(at(&options.out))?;
    let mut bar = Bar::new("writing");
    let bytes = synth
        .write(BufWriter::with_capacity(1 << 20, file), |done, all| bar.show(done, all))
        .map_err(at(&options.out))?;
    bar.clear();
    let (out, model, layers) = (options.out.display(), preset.model, shape.layers);
    let (vocab, size) = (shape.vocab, bytes as f64 / 1e9);
    note(format_args!("{out}: {model}, {layers} layers, vocabulary {vocab}, {size:.3} GB\n"));
    Ok(())
}
