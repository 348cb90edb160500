//! Prints how long a token should take: a model of bytes, instructions and latencies, not a measurement.
//!
//! ```text
//! cargo run --release --example cost
//! ```
//!
//! Instructions per weight are counted here, in the emulator, on a product of real size.

#[path = "common/command.rs"]
mod command;

use clap::Parser;
use kiln::driver::{Device, Driver, GpuTensor};
use kiln::model::cost::{self, CHIPS, Instructions, Way};
use kiln::ops::Ops;
use kiln::shape::{WeightType, presets};
use kiln_emulator::{Checks, DeviceConfig};
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

/// Prints how long a token should take on some chips: a model, not a measurement.
#[derive(Parser)]
#[command(version)]
struct Arguments {}

fn main() -> ExitCode {
    command::main(run)
}

fn run(_: &Arguments) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    // Staging is in the count of a product.
    let exact = Instructions { q4_k: count(WeightType::Q4_K)?, q6_k: count(WeightType::Q6_K)?, staging: 0.0 };
    writeln!(out, "A MODEL, not a measurement: time per token, llama.cpp's Q4_K_M, f16 cache, position 511.")?;
    for (name, how, of) in [
        ("exact", "counted in the emulator, as PTX", exact),
        ("fast", "as NVIDIA's assembler makes them for sm_90", Instructions::FAST),
    ] {
        writeln!(
            out,
            "Instructions per weight, {name} numerics, {how}: {:.2} of Q4_K, {:.2} of Q6_K.",
            of.q4_k, of.q6_k
        )?;
    }
    for name in ["qwen3b", "qwen3-8b"] {
        let shape = presets::by_name(name).ok_or("no such preset")?.shape;
        let phases = cost::phases(&shape, 511, 2);
        let bytes: u64 = phases.iter().map(|phase| phase.bytes).sum();
        writeln!(out, "\n{name}: {:.3} GB a token (weights and cache)\n", bytes as f64 / 1e9)?;
        writeln!(
            out,
            "| chip | path | numerics | hand-overs | ms (bandwidth + issue + latency) | tokens/s | bound by |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|")?;
        for chip in &CHIPS {
            for (way, (numerics, instructions)) in
                Way::ALL.into_iter().flat_map(|way| [(way, ("exact", exact)), (way, ("fast", Instructions::FAST))])
            {
                let found = cost::predict(&phases, chip, way, instructions);
                writeln!(
                    out,
                    "| {} | {} | {numerics} | {} | {:.3} ({:.3} + {:.3} + {:.3}) | {:.0} | {} |",
                    chip.name,
                    way.name(),
                    found.hand_overs,
                    found.seconds() * 1e3,
                    found.bandwidth * 1e3,
                    found.issue * 1e3,
                    found.latency * 1e3,
                    found.seconds().recip(),
                    found.bound().name(),
                )?;
            }
        }
        writeln!(
            out,
            "\n| phase of the first layer, and head | MB | KB of the heaviest of 132 blocks |\n|---|---|---|"
        )?;
        let mut seen: Vec<&str> = Vec::new();
        for phase in phases.iter().filter(|phase| phase.bytes > 0) {
            if !seen.contains(&phase.name) {
                seen.push(phase.name);
                let (all, heaviest) = (phase.bytes as f64 / 1e6, phase.heaviest_block(132) / 1e3);
                writeln!(out, "| {} | {all:.2} | {heaviest:.1} |", phase.name)?;
            }
        }
    }
    Ok(())
}

/// Thread-instructions per weight of a product of 1056 rows of 4096 weights.
fn count(ty: WeightType) -> Result<f64, Box<dyn Error>> {
    let (n, k) = (1056u32, 4096u32);
    let config = DeviceConfig { checks: Checks::NONE, counters: true, ..DeviceConfig::default() };
    let ordinal = kiln_emulator::add_device(config);
    // SAFETY: the emulator's functions have NVIDIA's signatures and behaviour, and stay.
    let driver = unsafe {
        Driver::from_resolver(|name| kiln_emulator::resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()))?
    };
    let device = Device::open(&driver, ordinal)?;
    let (ops, stream) = (Ops::open(&device)?, device.stream()?);
    let bytes = ty.tensor_bytes(&[k.into(), n.into()]).ok_or("a matrix of whole blocks")?;
    let w = ops.matrix(ty, n, k, &vec![0; usize::try_from(bytes)?])?;
    let x = GpuTensor::from_host(&device, &vec![0.0f32; k as usize])?;
    let y = GpuTensor::from_host(&device, &vec![0.0f32; n as usize])?;
    stream.synchronize()?;
    kiln_emulator::clear_reports(ordinal);
    ops.gemv(&stream, &w, &x, &y)?;
    stream.synchronize()?;
    let counted: u64 = kiln_emulator::reports(ordinal).iter().map(|report| report.counters.lane_instructions).sum();
    Ok(counted as f64 / (f64::from(n) * f64::from(k)))
}
