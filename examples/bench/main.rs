//! What fusing and staying resident save: launches, bytes and instructions, counted on the emulator, and times where
//! there is a GPU.
//!
//! ```text
//! cargo run --release --example bench
//! cargo run --release --features qwen3-8b --example bench -- --model qwen3-8b.gguf --device cuda
//! ```

#[path = "../common/choice.rs"]
mod choice;
#[path = "../common/command.rs"]
mod command;
#[path = "../common/mod.rs"]
mod common;
mod fusion;
mod kernels;
mod lab;
mod paths;

use clap::Parser;
use common::Wish;
use fusion::Comparison;
use kernels::ReadOnce;
use kiln::Model;
use kiln::driver::{Device, DeviceBuffer, Driver};
use kiln::model::{Numerics, PathChoice};
use kiln_emulator::{Checks, ChipFile, DeviceConfig};
use lab::{Arg, Call, Cost, Lab, at};
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What kiln's fusions and its persistent path save, counted on the emulator and timed on a GPU.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The model, a GGUF file; the demo model where none is given
    #[arg(long)]
    model: Option<PathBuf>,
    /// Tokens to generate on each path
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..=4000))]
    tokens: u32,
    /// Sessions that generate them at once in one resident decoder, beside one on each path
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    sessions: u32,
    /// Time also, on a GPU, prompts of so many ids to their first token, as 64,512,4096
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    prompts: Vec<u32>,
    /// cuda, emulator or auto (KILN_DEVICE where not given)
    #[arg(long)]
    device: Option<Wish>,
    /// The paths' numerics: fast rounds activations to int8; exact is the reference, in f32
    #[arg(long, value_enum, default_value_t = choice::Numerics::Fast)]
    numerics: choice::Numerics,
    /// Have the emulator model the paths' time on a chip: h200, h100-sxm, h100-pcie, a100, rtx-5090, rtx-5070-ti,
    /// rtx-4090, rtx-3090, t4 or agx-orin
    #[arg(long, value_parser = common::chip_named)]
    clock: Option<&'static ChipFile>,
}

fn main() -> ExitCode {
    command::main(run)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let file = choice::model_file(arguments.model.as_deref())?;
    let baked = file.baked()?;
    let wish = if arguments.clock.is_some() { arguments.device.or(Some(Wish::Emulator)) } else { arguments.device };
    let picked = common::pick(wish)?;
    if arguments.clock.is_some() && !picked.emulated {
        return Err("a GPU has a clock of its own; take --device emulator for --clock".into());
    }
    let mut out = io::stdout().lock();
    writeln!(out, "device: {picked}; model: {} ({})", file.path().display(), baked.name())?;

    if picked.emulated && !arguments.prompts.is_empty() {
        return Err(
            "--prompts times a GPU, and the device is emulated; take `generate --clock CHIP` for a prompt".into()
        );
    }
    let times = if picked.emulated { "there is no GPU to time" } else { "microseconds: timed on the GPU" };
    writeln!(
        out,
        "\nFused against separate kernels, layer 0. Launches, lane instructions, bytes moved: counted on the emulator;"
    )?;
    writeln!(out, "{times}.")?;
    let counting = counting_device(picked.device.multiprocessors(), arguments.clock)?;
    // Of whole tokens the time is asked for, not of single kernels, nor of loading.
    let time_launches = |timed| kiln_emulator::time_launches(counting.ordinal(), timed);
    time_launches(false);
    let counted = fusion::compare(&counting, true, &file)?;
    let timed = if picked.emulated { None } else { Some(fusion::compare(&picked.device, false, &file)?) };
    print_fusion(&mut out, &counted, timed.as_deref())?;

    let bandwidth = if picked.emulated { None } else { Some(read_bandwidth(&picked.device)?) };
    // An embedding that is not the head as well is read a row at a time.
    let tied = file.shape().tied_head;
    let tensors = file.gguf().tensors().iter().filter(|tensor| tied || tensor.name() != "token_embd.weight");
    let weights: u64 = tensors.map(|tensor| tensor.bytes()).sum();
    // The whole model is counted where it is emulated anyway; a real one would take the emulator minutes.
    let device = if picked.emulated { &counting } else { &picked.device };
    let ordinal = picked.emulated.then(|| counting.ordinal());
    let model = Model::load(device, baked, file, |_| {})?;
    time_launches(true);
    let numerics: Numerics = arguments.numerics.into();
    writeln!(
        out,
        "\nOne launch against many: numerics {numerics}, a prompt of 3 tokens, {} generated. Launches and calls: counted.",
        arguments.tokens
    )?;
    writeln!(
        out,
        "Lane instructions, those that poll among them, and bytes moved: counted where the model runs on the"
    )?;
    writeln!(out, "emulator.")?;
    writeln!(
        out,
        "{:<12} {:>8} {:>14} {:>18} {:>18} {:>12}  rate",
        "path", "launches", "launches/token", "driver calls/token", "instructions/token", "bytes/token"
    )?;
    let mut ids: Option<Vec<u32>> = None;
    let several = (arguments.sessions > 1).then_some((PathChoice::Persistent, arguments.sessions as usize));
    let one = [PathChoice::Stream, PathChoice::Graph, PathChoice::Persistent].map(|path| (path, 1));
    for (path, sessions) in one.into_iter().chain(several) {
        let cost = paths::run(&model, path, numerics, (arguments.tokens as usize, sessions), ordinal)?;
        let per_token = |count: u64| count as f64 / cost.tokens.max(1) as f64;
        let what = match arguments.clock {
            Some(chip) => format!("modelled, not measured (chip file {})", chip.name),
            None if picked.emulated => "emulated: says nothing of a GPU".to_owned(),
            None => "timed on the GPU".to_owned(),
        };
        let name = if sessions == 1 { cost.name.to_owned() } else { format!("{} x{sessions}", cost.name) };
        let launches = cost.launches;
        let gap = |chip: &ChipFile| if path == PathChoice::Graph { chip.node.value } else { chip.launch.value };
        let rate = match arguments.clock {
            Some(chip) => cost.tokens as f64 * 1e6 / (cost.microseconds + cost.kernels as f64 * gap(chip)),
            None => cost.rate,
        };
        let (of_token, calls) = (per_token(launches), per_token(cost.driver_calls));
        let counted = |count: Option<u64>| count.map_or("-".to_owned(), |count| format!("{:.0}", per_token(count)));
        let (instructions, bytes) = (cost.counted.map(|(count, _)| count), cost.counted.map(|(_, count)| count));
        writeln!(
            out,
            "{name:<12} {launches:>8} {of_token:>14.2} {calls:>18.2} {:>18} {:>12}  {rate:.1} tokens/s, {what}",
            counted(instructions),
            counted(bytes)
        )?;
        if ids.get_or_insert_with(|| cost.ids.clone()) != &cost.ids {
            return Err("the paths generated different ids".into());
        }
    }
    if !arguments.prompts.is_empty() {
        const TIMES: usize = 7;
        writeln!(out, "\nPrompts to their first token, fast numerics, milliseconds: timed on the GPU, {TIMES} times")?;
        writeln!(out, "{:>8} {:>10} {:>10} {:>10} {:>12}", "ids", "quickest", "middle", "slowest", "ids/s")?;
        for ids in &arguments.prompts {
            let took = paths::first_token(&model, *ids as usize, TIMES)?;
            let of = |at: usize| took.get(at).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3);
            let (quickest, middle, slowest) = (of(0), of(TIMES / 2), of(TIMES - 1));
            let rate = f64::from(*ids) * 1e3 / middle;
            writeln!(out, "{ids:>8} {quickest:>10.2} {middle:>10.2} {slowest:>10.2} {rate:>12.0}")?;
        }
    }
    if let Some(bandwidth) = bandwidth {
        writeln!(out, "\nread-only streaming bandwidth, measured on the GPU: {:.1} GB/s", bandwidth / 1e9)?;
        writeln!(
            out,
            "the {:.3} GB of weights that a token reads, at that rate: {:.1} tokens/s",
            weights as f64 / 1e9,
            bandwidth / weights as f64
        )?;
    }
    Ok(())
}

/// An emulated device that counts, with as many multiprocessors as the one that is benched: grids depend on them. Given a
/// chip it is that, and its time is modelled.
fn counting_device(multiprocessors: u32, clock: Option<&'static ChipFile>) -> kiln::Result<Device> {
    let plain = || DeviceConfig { multiprocessors, ..DeviceConfig::default() };
    let config = clock.map_or_else(plain, DeviceConfig::clocked);
    let config = DeviceConfig { counters: true, checks: Checks::NONE, ..config };
    let ordinal = kiln_emulator::add_device(config);
    // SAFETY: the emulator's functions have NVIDIA's signatures and behaviour, and stay.
    let driver = unsafe {
        Driver::from_resolver(|name| kiln_emulator::resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()))?
    };
    let device = Device::open(&driver, ordinal)?;
    // A kernel that takes a GPU a millisecond may take minutes here.
    device.set_limits(device.limits().with_wait(Duration::from_secs(3600)));
    Ok(device)
}

fn print_fusion(out: &mut impl Write, counted: &[Comparison], timed: Option<&[Comparison]>) -> io::Result<()> {
    let time_header = if timed.is_some() { "       us" } else { "" };
    writeln!(out, "{:<42} {:>8} {:>14} {:>12}{time_header}", "", "launches", "instructions", "bytes")?;
    for (index, comparison) in counted.iter().enumerate() {
        for (way, name) in [comparison.separate, comparison.fused].into_iter().enumerate() {
            let cost = comparison.costs[way];
            let micros = timed.map(|timed| timed[index].costs[way].micros);
            let micros = micros.map_or(String::new(), |micros| format!(" {micros:>8.2}"));
            let name = if way == 0 { name.to_owned() } else { format!("  -> {name}") };
            let Cost { launches, instructions, bytes, .. } = cost;
            writeln!(out, "{name:<42} {launches:>8} {instructions:>14} {bytes:>12}{micros}")?;
        }
    }
    Ok(())
}

/// Bytes a second that a kernel reads which does nothing else, from a buffer far larger than any cache.
fn read_bandwidth(device: &Device) -> Result<f64, Box<dyn Error>> {
    let (free, _) = device.memory_info()?;
    let tiles = u32::try_from((free / 2).min(2 << 30) / u64::from(ReadOnce::TILE))?;
    let bytes = u64::from(tiles) * u64::from(ReadOnce::TILE);
    let lab = Lab::new(device, false, &[Box::new(ReadOnce)])?;
    let x = DeviceBuffer::<f32>::zeroed(device, usize::try_from(bytes / 4)?)?;
    let y = DeviceBuffer::<f32>::zeroed(device, 1)?;
    let args = vec![at(&x), Arg::U32(tiles), at(&y)];
    let call = Call { kernel: "read_once".to_owned(), blocks: tiles, args };
    let cost = lab.measure(&[call])?;
    Ok(bytes as f64 / (cost.micros / 1e6))
}
