//! Prints how long a token should take on some chips: a model of bytes, instructions and latencies, not a measurement.
//!
//! ```text
//! cargo run --release --example cost
//! ```

#[path = "common/command.rs"]
mod command;

use clap::Parser;
use kiln::model::cost::{self, Bound, CHIPS, Origin, Program, Way};
use kiln::shape::{ModelShape, Numerics, presets};
use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

/// Prints how long a token should take on some chips: a model, not a measurement.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Tokens in the cache before the one that is run
    #[arg(long, default_value_t = 511, value_parser = clap::value_parser!(u32).range(..=131_071))]
    position: u32,
}

fn main() -> ExitCode {
    command::main(run)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "Everything here is modelled, nothing measured, but for the last column: shares of the peak bandwidth that were\n\
         published for whole models of 4-bit weights and 7 to 27 billion of them. Batch 1, llama.cpp's Q4_K_M, f16 cache,\n\
         {} tokens in it. Work, dependencies, staging: src/model/cost. Trivial: 1.111 bytes / peak + 3.58 ms GHz / clock.",
        arguments.position
    )?;
    for name in ["qwen3b", "qwen3-8b"] {
        table(&mut out, name, &presets::by_name(name).ok_or("no such preset")?.shape, arguments.position)?;
    }
    prompts(&mut out)?;
    writeln!(out, "\nWhere chips' figures are from:\n")?;
    for chip in &CHIPS {
        for (what, figure) in chip.figures() {
            let origin = match figure.origin {
                Origin::Published(by) => format!("published: {by}"),
                Origin::Derived(how) => format!("derived: {how}"),
                Origin::Guess(why) => format!("GUESS: {why}"),
            };
            writeln!(out, "- {}, {what} {:.6}: {origin}", chip.name, figure.value)?;
        }
    }
    Ok(())
}

fn table(out: &mut impl Write, name: &str, shape: &ModelShape, position: u32) -> io::Result<()> {
    let phases = cost::phases(shape, position, 2);
    let bytes: u64 = phases.iter().map(|phase| phase.bytes).sum();
    writeln!(out, "\n{name}, modelled: {:.3} GB a token (weights and cache)\n", bytes as f64 / 1e9)?;
    writeln!(
        out,
        "| chip | path | ms (work + dependencies + staging) | tokens/s | of what reads reach | of the peak | most of it | exact, \
         tokens/s | trivial, tokens/s | llama.cpp, modelled | published |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|")?;
    for chip in &CHIPS {
        for way in Way::ALL {
            let fast = cost::predict(&phases, chip, way, Program::Kiln(Numerics::Fast));
            let exact = cost::predict(&phases, chip, way, Program::Kiln(Numerics::Exact));
            let exact = if way == Way::PersistentRing { "".to_owned() } else { rate(exact.seconds()) };
            let share = |seconds: f64, of: f64| format!("{:.0} %", 100.0 * bytes as f64 / seconds / (of * 1e9));
            let others = match (way, chip.reached) {
                (Way::Stream, reached) => {
                    let llama = cost::predict(&phases, chip, Way::Graph, Program::LlamaCpp).seconds();
                    let published = match reached.map(|(least, most)| (100.0 * least, 100.0 * most)) {
                        Some((least, most)) if least == most => format!("{most:.0} %"),
                        Some((least, most)) => format!("{least:.0}-{most:.0} %"),
                        None => "none".to_owned(),
                    };
                    let trivial = rate(cost::trivial(bytes, chip));
                    format!("{trivial} | {} tokens/s, {} | {published}", rate(llama), share(llama, chip.peak.value))
                }
                _ => "| |".to_owned(),
            };
            writeln!(
                out,
                "| {} | {} | {:.2} ({:.2} + {:.2} + {:.2}) | {} | {} | {} | {} | {exact} | {others} |",
                chip.name,
                way.name(),
                1e3 * fast.seconds(),
                1e3 * fast.work(),
                1e3 * fast.spent_on(Bound::Dependencies),
                1e3 * fast.spent_on(Bound::Staging),
                rate(fast.seconds()),
                share(fast.seconds(), chip.read.value),
                share(fast.seconds(), chip.peak.value),
                fast.bound().name(),
            )?;
        }
    }
    Ok(())
}

/// The time to the first token behind prompts.
fn prompts(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    writeln!(
        out,
        "\nFirst token behind a prompt, modelled, a bound from below: ms (products + attention + dependencies + alone)\n"
    )?;
    writeln!(out, "| chip | model | tokens | ms | launches of batches |\n|---|---|---|---|---|")?;
    for chip in &CHIPS {
        for name in ["qwen3b", "qwen3-8b"] {
            let shape = presets::by_name(name).ok_or("no such preset")?.shape;
            for tokens in [64, 512, 4096] {
                let found = cost::first_token(&shape, tokens, chip);
                let parts = [found.products, found.attention, found.dependencies, found.alone];
                let parts = parts.map(|seconds| format!("{:.1}", 1e3 * seconds)).join(" + ");
                let (all, launches) = (1e3 * found.seconds(), found.launches);
                writeln!(out, "| {} | {name} | {tokens} | {all:.1} ({parts}) | {launches} |", chip.name)?;
            }
        }
    }
    Ok(())
}

/// Tokens a second.
fn rate(seconds: f64) -> String {
    format!("{:.0}", seconds.recip())
}
