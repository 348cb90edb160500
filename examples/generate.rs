//! Generates text: on the GPU where there is one, else in kiln's emulator.
//!
//! ```text
//! cargo run --release --example generate -- --prompt "The" --tokens 40
//! ```

#[path = "common/choice.rs"]
mod choice;
#[path = "common/clock.rs"]
mod clock;
#[path = "common/command.rs"]
mod command;
#[path = "common/mod.rs"]
mod common;
#[path = "common/counters.rs"]
mod counters;
#[path = "common/sampling.rs"]
mod sampling;
#[path = "common/timings.rs"]
mod timings;

use clap::Parser;
use command::{Bar, note};
use common::{Observed, Picked, Wish};
use counters::Matrices;
use kiln::Model;
use kiln::model::{End, GenerateOptions, ModelFile, Session};
use kiln::text::{Special, StopStrings, Tokenizer};
use kiln_emulator::ChipFile;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use timings::Timings;

/// Generates text from a prompt with a Qwen model.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The model, a GGUF file; the demo model where none is given
    #[arg(long)]
    model: Option<PathBuf>,
    /// Text to go on from
    #[arg(long, conflicts_with = "ids")]
    prompt: Option<String>,
    /// Token ids to go on from, as 1,2,3
    #[arg(long, value_delimiter = ',')]
    ids: Option<Vec<u32>>,
    /// The most tokens to generate
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Text that ends the answer and is left out of it; may be given several times
    #[arg(long)]
    stop: Vec<String>,
    #[command(flatten)]
    choice: sampling::Choice,
    /// cuda, emulator or auto (KILN_DEVICE where not given)
    #[arg(long)]
    device: Option<Wish>,
    #[command(flatten)]
    ways: choice::Ways,
    /// Blocks of the persistent path's grid; one on each multiprocessor where not given
    #[arg(long)]
    blocks: Option<u32>,
    /// Print what the emulator counted, by kernel, on standard error
    #[arg(long)]
    counters: bool,
    /// As --counters, and the lines that take the most instructions: of the source after a build with KILN_PROVENANCE=1,
    /// else of the PTX
    #[arg(long)]
    counters_by_line: bool,
    /// Print how long launches would take on a chip, by kernel, on standard error: modelled, not measured. One of h200,
    /// h100-sxm, h100-pcie, a100, rtx-5090, rtx-5070-ti, rtx-4090, rtx-3090, t4, agx-orin
    #[arg(long, value_parser = common::chip_named)]
    clock: Option<&'static ChipFile>,
    /// Leave out of --clock what reads the prompt before its last token
    #[arg(long, requires = "clock")]
    clock_last: bool,
    /// Print the generated ids, comma-separated, on a line of standard error that begins with `ids:`
    #[arg(long)]
    print_ids: bool,
    /// Print on standard error where the time went from the start of the process to the first token
    #[arg(long)]
    timings: bool,
}

fn main() -> ExitCode {
    command::main(run)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let (begin, mut timings) = (Instant::now(), Timings::begin());
    if let (choice::Path::Stream | choice::Path::Graph, Some(_)) = (arguments.ways.path, arguments.blocks) {
        return Err("--blocks is for the persistent path; leave it out, or take --path persistent".into());
    }
    let file = choice::model_file(arguments.model.as_deref())?;
    let baked = file.baked()?;
    let tokenizer = Tokenizer::from_gguf(file.gguf()).map_err(command::at(file.path()))?;
    let prompt = match (&arguments.ids, &arguments.prompt) {
        (Some(ids), _) => ids.clone(),
        (None, prompt) => tokenizer.encode(prompt.as_deref().unwrap_or("The"), Special::Parse),
    };
    if prompt.is_empty() {
        return Err("the prompt is empty, and nothing can follow nothing; give --prompt or --ids something".into());
    }
    check_prompt(&prompt, &file)?;
    let sampling = arguments.choice.sampling();
    sampling.check(file.shape().vocab)?;
    StopStrings::new(arguments.stop.iter())?;
    timings.part_without_device("file");
    let counts = arguments.counters || arguments.counters_by_line;
    let observed = Observed { counters: counts, clock: arguments.clock };
    let wish = if observed.clock.is_some() { arguments.device.or(Some(Wish::Emulator)) } else { arguments.device };
    let picked = common::pick_observed(wish, observed)?;
    if counts && !picked.emulated {
        return Err("a GPU does not count; take --device emulator for --counters".into());
    }
    if arguments.clock.is_some() && !picked.emulated {
        return Err("a GPU has a clock of its own; take --device emulator for --clock".into());
    }
    timings.part("driver", &picked.device);
    let matrices = Matrices::of(&file)?;
    // Loading has launches too, whose time is not asked for.
    if arguments.clock.is_some() {
        kiln_emulator::time_launches(picked.device.ordinal(), false);
    }
    let mut bar = Bar::new("loading");
    let model = Model::load(&picked.device, baked, file, |progress| bar.show(progress.done, progress.total))?;
    bar.clear();
    let mut session = model.session(arguments.ways.options(picked.emulated, arguments.blocks))?;
    let load = begin.elapsed();
    timings.part("upload", &picked.device);

    let clock = || arguments.clock.iter().for_each(|_| kiln_emulator::time_launches(picked.device.ordinal(), true));
    if !arguments.clock_last {
        clock();
    }
    let begin = Instant::now();
    session.append(&prompt)?;
    let mut bar = Bar::new("reading the prompt");
    if arguments.clock_last {
        session.prefill()?;
        clock();
    } else if prompt.len() > Session::BATCH {
        // The last batch runs with the choice of the first token.
        session.prefill_by_batches(|done, _| {
            bar.show(done as u64, prompt.len() as u64);
            true
        })?;
    }
    let options = GenerateOptions::new(arguments.tokens).with_sampling(sampling.clone());
    let mut stream = session.text(&tokenizer, options).with_stop(arguments.stop.iter())?;
    let mut first = None;
    let (mut text, mut out) = (String::new(), std::io::stdout().lock());
    while let Some(token) = stream.step(&mut text) {
        bar.clear();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        text.clear();
        token?;
        if first.is_none() {
            first = Some(begin.elapsed());
            timings.part("prompt", &picked.device);
        }
    }
    writeln!(out, "{text}")?;
    let (ids, end) = (stream.ids().to_vec(), stream.end());
    drop(stream);
    let time = begin.elapsed();
    let choice = sampling::described(&sampling);
    let made = Made { ids, end, prompt: prompt.len(), first: first.unwrap_or(time), time, load, choice };
    if arguments.timings {
        note(format_args!("{timings}\n"));
    }
    if arguments.print_ids {
        let ids: Vec<String> = made.ids.iter().map(u32::to_string).collect();
        note(format_args!("ids: {}\n", ids.join(",")));
    }
    if counts || arguments.clock.is_some() {
        // What is resident has left the device, and is in the records, when the session is gone.
        let closing = made.closing_line(&picked, &session, arguments.ways.path);
        drop(session);
        drop(model);
        if counts {
            note(counters::table(picked.device.ordinal(), &matrices, arguments.counters_by_line));
        }
        if let Some(chip) = arguments.clock {
            note(clock::table(picked.device.ordinal(), &matrices, chip));
        }
        note(format_args!("{closing}\n"));
        return Ok(());
    }
    note(format_args!("{}\n", made.closing_line(&picked, &session, arguments.ways.path)));
    Ok(())
}

/// What a session would refuse, before anything is loaded.
fn check_prompt(prompt: &[u32], file: &ModelFile) -> Result<(), Box<dyn Error>> {
    let shape = file.shape();
    if let Some(id) = prompt.iter().find(|id| **id >= shape.vocab) {
        return Err(format!("token id {id} is outside the vocabulary: ids are 0 to {}", shape.vocab - 1).into());
    }
    if prompt.len() > shape.context as usize {
        let (length, context) = (prompt.len(), shape.context);
        return Err(format!("the prompt has {length} tokens, more than the context of {context}; shorten it").into());
    }
    Ok(())
}

/// What came of it.
struct Made {
    ids: Vec<u32>,
    end: Option<End>,
    prompt: usize,
    /// From the prompt to the first token.
    first: Duration,
    /// From the prompt to the last token.
    time: Duration,
    load: Duration,
    /// How tokens were chosen.
    choice: String,
}

impl Made {
    fn closing_line(&self, picked: &Picked, session: &Session, asked: choice::Path) -> String {
        let end = match self.end {
            Some(End::Length) => "token limit".to_owned(),
            Some(End::StopId(id)) => format!("end-of-text token {id}"),
            Some(End::StopString(_)) => "stop string".to_owned(),
            Some(End::ContextFull) => "context full".to_owned(),
            Some(End::Cancelled) | None => "cancelled".to_owned(),
        };
        let rate = self.ids.len().saturating_sub(1) as f64 / (self.time - self.first).as_secs_f64().max(1e-9);
        let (path, work) = (asked.of(session, picked.emulated), session.work());
        let calls = (work.launches + work.other_calls) as f64 / work.tokens.max(1) as f64;
        format!(
            "device: {picked}; path: {path}; numerics: {}; choice: {}; launches: {}, {calls:.1} driver calls/token; prompt: {} tokens, \
             first token after {:.2} s; generated: {} tokens, then {rate:.1} tokens/s, ended by {end}; loaded in {:.2} s",
            session.numerics(),
            self.choice,
            work.launches,
            self.prompt,
            self.first.as_secs_f64(),
            self.ids.len(),
            self.load.as_secs_f64(),
        )
    }
}
