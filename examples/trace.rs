//! Shows what the blocks of the persistent path do: writes a trace for Perfetto or chrome://tracing, a timeline as SVG,
//! and prints a table of the phases.
//!
//! ```text
//! cargo run --release --features trace --example trace -- --out .
//! ```
//!
//! Times are nanoseconds on a GPU. In the emulator they are steps, an instruction of a warp each, of the block that has
//! most of them: that shows the division of work and the order of things, not the speed of a chip. With `--clock CHIP`
//! they are nanoseconds of that chip: modelled, not measured.

#[path = "common/choice.rs"]
mod choice;
#[path = "common/command.rs"]
mod command;
#[path = "common/mod.rs"]
mod common;

use clap::Parser;
use common::{Observed, Wish};
use kiln::Model;
use kiln::model::cost;
use kiln::model::trace::{Stamp, Trace};
use kiln::model::{GenerateOptions, SessionOptions};
use kiln::shape::ModelShape;
use kiln_emulator::{ChipFile, Stall};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Shows what the blocks of the persistent path do.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The model, a GGUF file; the demo model where none is given
    #[arg(long)]
    model: Option<PathBuf>,
    /// Token ids to go on from, as 1,2,3
    #[arg(long, value_delimiter = ',', default_value = "120,7,300,41,5")]
    ids: Vec<u32>,
    /// Tokens to generate
    #[arg(long, default_value_t = 8)]
    tokens: usize,
    /// Blocks of the grid; one on each multiprocessor where not given
    #[arg(long)]
    blocks: Option<u32>,
    /// fast rounds activations to int8; exact is the reference, in f32
    #[arg(long, value_enum, default_value_t = choice::Numerics::Fast)]
    numerics: choice::Numerics,
    /// cuda, emulator or auto (KILN_DEVICE where not given)
    #[arg(long)]
    device: Option<Wish>,
    /// Have the emulator model the time of a chip: h200, h100-sxm, h100-pcie, a100, rtx-5090, rtx-5070-ti, rtx-4090, rtx-3090,
    /// t4 or agx-orin
    #[arg(long, value_parser = common::chip_named)]
    clock: Option<&'static ChipFile>,
    /// Draw this layer of the last token, not the whole of it
    #[arg(long)]
    layer: Option<u32>,
    /// The folder for trace.json and trace.svg
    #[arg(long, default_value = ".")]
    out: PathBuf,
}

fn main() -> ExitCode {
    command::main(run)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let file = choice::model_file(arguments.model.as_deref())?;
    let baked = file.baked()?;
    let wish = if arguments.clock.is_some() { arguments.device.or(Some(Wish::Emulator)) } else { arguments.device };
    let picked = common::pick_observed(wish, Observed { clock: arguments.clock, ..Observed::default() })?;
    if arguments.clock.is_some() && !picked.emulated {
        return Err("a GPU has a clock of its own; take --device emulator for --clock".into());
    }
    let timed =
        |timed| arguments.clock.iter().for_each(|_| kiln_emulator::time_launches(picked.device.ordinal(), timed));
    timed(false);
    let model = Model::load(&picked.device, baked, file, |_| {})?;
    timed(true);
    let phases = 5 * model.shape().layers as usize + 1;
    let events = (arguments.ids.len() + arguments.tokens) * phases;
    let options = SessionOptions::default().with_numerics(arguments.numerics.into()).with_blocks(arguments.blocks);
    let mut session = model.tracing_session(options.with_capacity(4096), events as u32)?;
    session.append(&arguments.ids)?;
    let generate = GenerateOptions::new(arguments.tokens);
    let made: Vec<u32> = session.generate(generate).collect::<kiln::Result<_>>()?;
    let trace = session.trace()?.ok_or("the session does not trace")?;

    let unit = if picked.emulated && arguments.clock.is_none() { "steps" } else { "ns" };
    let modelled = arguments
        .clock
        .map_or(String::new(), |chip| format!(" of `{}`: modelled, not measured (chip file {})", chip.name, chip.name));
    let mut out = std::io::stdout().lock();
    let (blocks, count, numerics) = (trace.blocks, made.len(), session.numerics());
    writeln!(
        out,
        "device: {picked}; numerics: {numerics}; {blocks} blocks, {count} tokens, ids {made:?}; times in {unit}{modelled}"
    )?;
    // The last token: everything before it is in the cache, and a head belongs to it.
    let last = trace.stamps.iter().map(|stamp| stamp.position).max().ok_or("nothing was traced")?;
    let token: Vec<Stamp> = trace.stamps.iter().filter(|stamp| stamp.position == last).copied().collect();
    write!(out, "{}", table(&token, trace.blocks, model.shape(), last, unit))?;
    fs::create_dir_all(&arguments.out).map_err(command::at(&arguments.out))?;
    let drawn: Vec<Stamp> =
        token.iter().filter(|stamp| arguments.layer.is_none_or(|layer| stamp.layer == layer)).copied().collect();
    if drawn.is_empty() {
        return Err(format!("--layer: the model has layers 0 to {}", model.shape().layers - 1).into());
    }
    let what = match arguments.layer {
        Some(layer) => format!("Layer {layer} of the token at position {last}{modelled}"),
        None => format!("The token at position {last}{modelled}"),
    };
    let process = format!("persistent decoder{modelled}; 1 us is 1000 {unit}");
    for (name, text) in [("trace.json", json(&trace, &process)), ("trace.svg", svg(&drawn, trace.blocks, &what, unit))]
    {
        let path = arguments.out.join(name);
        fs::write(&path, text).map_err(command::at(&path))?;
    }
    if arguments.clock.is_some() {
        // The launch is reported when the session is gone.
        drop(session);
        for record in kiln_emulator::reports(picked.device.ordinal()) {
            let Some(timing) = record.timing else { continue };
            let stalls = timing.stalls();
            let shares =
                Stall::ALL.iter().zip(stalls).map(|(stall, share)| format!("{} {:.0} %", stall.name(), 100.0 * share));
            let shares: Vec<_> = shares.collect();
            writeln!(
                out,
                "{}: {:.1} us{modelled}; warps wait: {}",
                record.kernel,
                timing.nanoseconds / 1e3,
                shares.join(", ")
            )?;
        }
    }
    writeln!(out, "written: trace.json, trace.svg in {}", arguments.out.display())?;
    Ok(())
}

/// A line for each phase of one token, over all layers.
fn table(token: &[Stamp], blocks: u32, shape: &ModelShape, position: u32, unit: &str) -> String {
    let read = cost::phases(shape, position, 2);
    let mut text = format!("\nposition {position}, sums over layers; work and wait are means of the blocks\n\n");
    let _ = writeln!(
        text,
        "| phase | {unit} | part | work | wait | wait of phase | KB read |\n|---|---|---|---|---|---|---|"
    );
    let begin = token.iter().map(|stamp| stamp.begin).min().unwrap_or(0);
    let all = token.iter().map(|stamp| stamp.end).max().unwrap_or(0).saturating_sub(begin).max(1) as f64;
    for (phase, name) in (0u32..).zip(Trace::PHASES) {
        let of: Vec<&Stamp> = token.iter().filter(|stamp| stamp.phase == phase).collect();
        let mean = |time: fn(&Stamp) -> u64| of.iter().map(|stamp| time(stamp)).sum::<u64>() as f64 / f64::from(blocks);
        let work = mean(|stamp| stamp.wait.saturating_sub(stamp.begin));
        let wait = mean(|stamp| stamp.end.saturating_sub(stamp.wait));
        let bytes: u64 = read.iter().filter(|read| read.name == name).map(|read| read.bytes).sum();
        let (sum, kilobytes) = (work + wait, bytes as f64 / 1e3);
        let _ = writeln!(
            text,
            "| {name} | {sum:.0} | {:.1} % | {work:.0} | {wait:.0} | {:.0} % | {kilobytes:.1} |",
            100.0 * sum / all,
            100.0 * wait / sum.max(1.0),
        );
    }
    text.push('\n');
    text
}

/// Chrome's trace format: a process of that name, a thread for each block, microseconds.
fn json(trace: &Trace, process: &str) -> String {
    let origin = trace.stamps.iter().map(|stamp| stamp.begin).min().unwrap_or(0);
    let at = |time: u64| time.saturating_sub(origin) as f64 / 1e3;
    let mut events = vec![format!(r#"{{"ph":"M","name":"process_name","pid":0,"args":{{"name":"{process}"}}}}"#)];
    events.extend((0..trace.blocks).map(|block| {
        format!(r#"{{"ph":"M","name":"thread_name","pid":0,"tid":{block},"args":{{"name":"block {block}"}}}}"#)
    }));
    for stamp in &trace.stamps {
        let Stamp { block, layer, position, begin, wait, end, .. } = *stamp;
        let name = Trace::PHASES.get(stamp.phase as usize).copied().unwrap_or("?");
        let arguments = format!(r#""args":{{"layer":{layer},"position":{position}}}"#);
        for (name, from, to) in [(name, begin, wait), ("wait", wait, end)] {
            let (from, duration) = (at(from), to.saturating_sub(from) as f64 / 1e3);
            events.push(format!(
                r#"{{"ph":"X","name":"{name}","pid":0,"tid":{block},"ts":{from:.3},"dur":{duration:.3},{arguments}}}"#
            ));
        }
    }
    format!("{{\"traceEvents\":[\n{}\n]}}\n", events.join(",\n"))
}

const COLOURS: [&str; 6] = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"];
const WAIT: &str = "#dddddd";
const WIDTH: f64 = 1600.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 70.0;

/// A row for each block, time from left to right: work in the phase's colour, waiting in grey.
fn svg(token: &[Stamp], blocks: u32, what: &str, unit: &str) -> String {
    let begin = token.iter().map(|stamp| stamp.begin).min().unwrap_or(0);
    let end = token.iter().map(|stamp| stamp.end).max().unwrap_or(1);
    let span = end.saturating_sub(begin).max(1) as f64;
    let row = (640.0 / f64::from(blocks.max(1))).clamp(3.0, 40.0);
    let bottom = TOP + row * f64::from(blocks);
    let x = |time: u64| LEFT + time.saturating_sub(begin) as f64 / span * WIDTH;
    let (width, height) = (LEFT + WIDTH + 30.0, bottom + 60.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{what}: {blocks} blocks, {span:.0} {unit}</text>\n"
    );
    let legend = Trace::PHASES.into_iter().zip(COLOURS).chain([("wait", WAIT)]);
    for (index, (name, colour)) in legend.enumerate() {
        let at = LEFT + 150.0 * index as f64;
        let _ = writeln!(text, "<rect x=\"{at}\" y=\"38\" width=\"14\" height=\"14\" fill=\"{colour}\"/>");
        let _ = writeln!(text, "<text x=\"{}\" y=\"50\">{name}</text>", at + 20.0);
    }
    for block in 0..blocks {
        // A label where it does not overlap the next.
        if row >= 14.0 || block.is_multiple_of(16) {
            let y = TOP + row * (f64::from(block) + 0.5) + 4.0;
            let _ = writeln!(text, "<text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">block {block}</text>", LEFT - 8.0);
        }
    }
    for stamp in token {
        let y = TOP + row * f64::from(stamp.block);
        let colour = COLOURS.get(stamp.phase as usize).copied().unwrap_or("black");
        for (from, to, colour) in [(stamp.begin, stamp.wait, colour), (stamp.wait, stamp.end, WAIT)] {
            let (left, right) = (x(from), x(to));
            let _ = writeln!(
                text,
                "<rect x=\"{left:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                right - left,
                row - 1.0
            );
        }
    }
    for tick in 0..=10u32 {
        let (time, at) = (span * f64::from(tick) / 10.0, LEFT + WIDTH * f64::from(tick) / 10.0);
        let _ = writeln!(
            text,
            "<line x1=\"{at:.1}\" y1=\"{bottom:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"black\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{time:.0}</text>",
            bottom + 6.0,
            bottom + 22.0
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{unit} since it began</text>",
        LEFT + WIDTH / 2.0,
        bottom + 42.0
    );
    text.push_str("</svg>\n");
    text
}
