//! Perplexity of a text, and logits at every position as a NumPy array: what another engine can be compared with.
//!
//! ```text
//! cargo run --release --example evaluate -- --text README.md --window 512
//! cargo run --release --example evaluate -- --ids 1,2,3 --logits logits.npy
//! ```

#[path = "../common/choice.rs"]
mod choice;
#[path = "../common/command.rs"]
mod command;
#[path = "../common/mod.rs"]
mod common;
mod npy;
mod score;

use clap::Parser;
use command::{Bar, at, note};
use common::Wish;
use kiln::Model;
use kiln::model::{PathChoice, SessionOptions};
use kiln::text::{Special, Tokenizer};
use score::Perplexity;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Perplexity of a text under a Qwen model, and its logits as a NumPy array.
#[derive(Parser)]
#[command(version)]
#[command(group = clap::ArgGroup::new("input").required(true).args(["ids", "text"]))]
struct Arguments {
    /// The model, a GGUF file; the demo model where none is given
    #[arg(long)]
    model: Option<PathBuf>,
    /// Token ids, as 1,2,3
    #[arg(long, value_delimiter = ',')]
    ids: Option<Vec<u32>>,
    /// A text file in UTF-8; what looks like a special token in it is plain text
    #[arg(long)]
    text: Option<PathBuf>,
    /// Writes the logits at every position there: float32, `[positions, vocabulary]`, NumPy's format
    #[arg(long)]
    logits: Option<PathBuf>,
    /// Tokens after which the context begins anew; all that the model has where not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// Tokens to evaluate at most
    #[arg(long)]
    tokens: Option<usize>,
    /// cuda, emulator or auto (KILN_DEVICE where not given)
    #[arg(long)]
    device: Option<Wish>,
    /// The type of the KV cache
    #[arg(long, value_enum, default_value_t = choice::Kv::F16)]
    kv: choice::Kv,
    /// fast rounds activations to int8; exact is the reference, in f32
    #[arg(long, value_enum, default_value_t = choice::Numerics::Exact)]
    numerics: choice::Numerics,
    /// The way tokens are run: all give the same; auto takes stream in fast numerics, which runs several at once
    #[arg(long, value_enum, default_value_t = choice::Path::Auto)]
    path: choice::Path,
}

fn main() -> ExitCode {
    command::main(run)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let file = choice::model_file(arguments.model.as_deref())?;
    let (baked, shape) = (file.baked()?, *file.shape());
    let mut ids = match (&arguments.ids, &arguments.text) {
        (Some(ids), _) => ids.clone(),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(at(path))?;
            Tokenizer::from_gguf(file.gguf()).map_err(at(file.path()))?.encode(&text, Special::Plain)
        }
        (None, None) => Vec::new(), // refused above
    };
    ids.truncate(arguments.tokens.unwrap_or(usize::MAX));
    if ids.is_empty() {
        return Err("there are no tokens to evaluate; give --ids or --text something".into());
    }
    if let Some(id) = ids.iter().find(|id| **id >= shape.vocab) {
        return Err(format!("token id {id} is outside the vocabulary: ids are 0 to {}", shape.vocab - 1).into());
    }
    let window = arguments.window.unwrap_or(shape.context);
    if window > shape.context {
        return Err(format!("a window of {window} is more than the model's context of {}", shape.context).into());
    }
    let mut array = match &arguments.logits {
        Some(path) => Some(Array::create(path, ids.len(), shape.vocab as usize)?),
        None => None,
    };

    let picked = common::pick(arguments.device)?;
    let mut bar = Bar::new("loading");
    let model = Model::load(&picked.device, baked, file, |progress| bar.show(progress.done, progress.total))?;
    bar.clear();
    let kv = arguments.kv.into();
    // The stream path runs several tokens at once in fast numerics.
    let path = match (arguments.path, arguments.numerics) {
        (choice::Path::Auto, choice::Numerics::Fast) => PathChoice::Stream,
        (path, _) => path.on(picked.emulated, None),
    };
    let options = SessionOptions::default().with_kv(kv).with_numerics(arguments.numerics.into()).with_path(path);
    let mut session = model.session(options.with_capacity(window))?;

    let begin = Instant::now();
    let (window, total) = (window as usize, ids.len() as u64);
    let mut perplexity = Perplexity::default();
    let mut bar = Bar::new("evaluating");
    score::each_position(&mut session, &ids, window, |position, logits| -> Result<(), Box<dyn Error>> {
        // The first token of a window follows nothing that the model has seen.
        if let Some(next) = ids.get(position + 1).filter(|_| !(position + 1).is_multiple_of(window)) {
            perplexity.add(logits, *next);
        }
        if let Some(array) = &mut array {
            array.row(logits)?;
        }
        bar.show(position as u64 + 1, total);
        Ok(())
    })?;
    bar.clear();
    if let Some(array) = array {
        array.finish()?;
    }

    let mut out = std::io::stdout().lock();
    match perplexity.value() {
        Some(value) => writeln!(out, "perplexity: {value:.4} ({} tokens foretold)", perplexity.tokens)?,
        None => writeln!(out, "perplexity: none, a token is foretold from those before it in its window")?,
    }
    let (path, numerics) = (arguments.path.of(&session, picked.emulated), session.numerics());
    let rate = ids.len() as f64 / begin.elapsed().as_secs_f64().max(1e-9);
    note(format_args!(
        "device: {picked}; path: {path}; numerics: {numerics}; {} positions, {rate:.1} tokens/s\n",
        ids.len()
    ));
    Ok(())
}

/// The file of logits; its errors name it.
struct Array {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Array {
    fn create(path: &Path, rows: usize, columns: usize) -> Result<Array, Box<dyn Error>> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path).map_err(at(path))?);
        npy::write_header(&mut out, rows, columns).map_err(at(path))?;
        Ok(Array { path: path.to_owned(), out })
    }

    fn row(&mut self, row: &[f32]) -> Result<(), Box<dyn Error>> {
        Ok(npy::write_row(&mut self.out, row).map_err(at(&self.path))?)
    }

    fn finish(mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.out.flush().map_err(at(&self.path))?)
    }
}
