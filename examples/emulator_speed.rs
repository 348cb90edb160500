//! How fast the emulator runs kiln's own kernels: a Q4_K gemv of 4096 x 4096 with the norm in front, with all checks
//! off, with each alone, and with all on; and a prompt of the demo model, at once and token by token.
//!
//! ```text
//! cargo run --release --example emulator_speed
//! ```
//!
//! Exits with an error where the checks cost more than the factor of 4 that is allowed.

#[path = "common/command.rs"]
mod command;

use clap::Parser;
use kiln::driver::Driver;
use kiln::model::{ModelFile, PathChoice, SessionOptions};
use kiln::{Device, Model};
use kiln_codegen::{Target, bake, kernels::FusedRmsNormQ4KGemv};
use kiln_emulator::{Checks, DeviceConfig, Launch, Memory, Module, add_device, resolve, run};
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

const ROWS: u32 = 4096;
const COLUMNS: u32 = 4096;
/// A Q4_K super-block: 256 weights in 144 bytes.
const WEIGHT_BYTES: u64 = ROWS as u64 * COLUMNS as u64 / 256 * 144;
const BLOCKS: u32 = 64;
const ROUNDS: u32 = 15;
const MOST: f64 = 4.0;
/// The checks that are measured, by name: none comes first, all last.
const CHECKS: [(&str, Checks); 6] = [
    ("off", Checks::NONE),
    ("initcheck", Checks { initcheck: true, ..Checks::NONE }),
    ("synccheck", Checks { synccheck: true, ..Checks::NONE }),
    ("racecheck, one reader", Checks { racecheck: true, ..Checks::NONE }),
    ("racecheck, every reader", Checks { racecheck: true, every_reader: true, ..Checks::NONE }),
    ("all", Checks::ALL),
];

/// A prompt of the demo model, whose ids are of no matter here.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/demo.Q4_K_M.gguf");
const PROMPT: u32 = 64;
const PROMPT_ROUNDS: u32 = 5;

/// Measures how fast the emulator runs a gemv, a matrix-vector product, with its checks off and on, and a prompt.
#[derive(Parser)]
#[command(version)]
struct Arguments {}

fn main() -> ExitCode {
    command::main(|_: &Arguments| {
        run_prompt(Checks::NONE, "off")?;
        run_prompt(Checks::ALL, "all")?;
        run_product()
    })
}

/// Runs a prompt at once and token by token, no head in either.
fn run_prompt(checks: Checks, name: &str) -> Result<(), Box<dyn Error>> {
    let threads = std::thread::available_parallelism()?.get();
    let ordinal = add_device(DeviceConfig { checks, threads, ..DeviceConfig::default() });
    // SAFETY: the emulator's functions have NVIDIA's signatures and behaviour, and stay.
    let driver =
        unsafe { Driver::from_resolver(|name| resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()))? };
    let device = Device::open(&driver, ordinal)?;
    let baked = ModelFile::open(MODEL)?.baked()?;
    let model = Model::open(&device, baked, MODEL)?;
    let options = SessionOptions::default().with_path(PathChoice::Stream).with_capacity(PROMPT + 1);
    // Of what a session was given, the last token does not run before something is asked for.
    let ids: Vec<u32> = (0..=PROMPT).map(|i| (i * 37 + 11) % model.shape().vocab).collect();
    let mut best = [f64::MAX; 2];
    for _ in 0..PROMPT_ROUNDS {
        for (best, at_once) in best.iter_mut().zip([ids.len(), 1]) {
            let mut session = model.session(options)?;
            let start = Instant::now();
            for ids in ids.chunks(at_once) {
                session.append(ids)?;
                session.prefill()?;
            }
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    let [together, one_by_one] = best;
    writeln!(
        std::io::stdout(),
        "{PROMPT} tokens of the demo model, checks {name}, {threads} threads: {:.1} ms at once, {:.0} tokens/s; {:.1} ms token by \
         token, {:.0} tokens/s; a factor of {:.1}",
        together * 1e3,
        f64::from(PROMPT) / together,
        one_by_one * 1e3,
        f64::from(PROMPT) / one_by_one,
        one_by_one / together
    )?;
    Ok(())
}

fn run_product() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let emitted = bake::emit(Target::DEFAULT[0], None, &[Box::new(FusedRmsNormQ4KGemv::new(COLUMNS, ROWS))])?;
    let kernel = emitted.kernels.first().ok_or("the module lacks its kernel")?;
    let memory = Memory::new(1 << 30);
    let module = Module::load(&emitted.ptx, &memory)?;
    let (w, x, gamma) =
        (memory.alloc(WEIGHT_BYTES)?, memory.alloc(4 * u64::from(COLUMNS))?, memory.alloc(4 * u64::from(COLUMNS))?);
    let y = memory.alloc(4 * u64::from(ROWS))?;
    memory.fill(w, &0x3456_1234u32.to_le_bytes(), WEIGHT_BYTES / 4)?;
    for vector in [x, gamma] {
        memory.fill(vector, &1f32.to_le_bytes(), u64::from(COLUMNS))?;
    }
    // Weights, their plane of scales, x, gamma, bias, residual, y.
    let params: Vec<u8> = [w, 0, x, gamma, 0, 0, y].iter().flat_map(|p: &u64| p.to_le_bytes()).collect();
    let mut best = [f64::MAX; CHECKS.len()];
    let mut lanes = 0.0;
    let threads = std::thread::available_parallelism()?.get();
    for _ in 0..ROUNDS {
        for ((_, checks), best) in CHECKS.into_iter().zip(&mut best) {
            let config = DeviceConfig { checks, threads, ..DeviceConfig::default() };
            let launch = Launch {
                module: &module,
                kernel: &kernel.name,
                grid: [BLOCKS, 1, 1],
                block: [kernel.block, 1, 1],
                dynamic_shared: kernel.dynamic_shared,
                params: &params,
                cooperative: false,
                cluster: None,
            };
            let start = Instant::now();
            lanes = run(&launch, &memory, &config)?.warp_instructions as f64 * 32.0;
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    let weights = f64::from(ROWS) * f64::from(COLUMNS);
    writeln!(
        out,
        "{} {ROWS} x {COLUMNS}, {BLOCKS} blocks of {}, {threads} threads, best of {ROUNDS}",
        kernel.name, kernel.block
    )?;
    writeln!(out, "{:.2} lane-instructions per weight", lanes / weights)?;
    for ((name, _), time) in CHECKS.iter().zip(best) {
        writeln!(
            out,
            "checks {name}: {:.1} ms, {:.2e} lane-instructions/s, {:.2e} weights/s, a factor of {:.2}",
            time * 1e3,
            lanes / time,
            weights / time,
            time / best[0]
        )?;
    }
    let factor = best[CHECKS.len() - 1] / best[0];
    writeln!(out, "checks cost a factor of {factor:.2}")?;
    if factor > MOST { Err(format!("more than {MOST}").into()) } else { Ok(()) }
}
