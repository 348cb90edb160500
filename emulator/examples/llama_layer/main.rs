//! Kernels of llama.cpp at the shapes of one layer of qwen3-8b, checked against float64 and timed by the clock: modelled, not measured. `bench/peers/llama.py` makes the PTX.
//!
//! ```text
//! cargo run --release -p kiln-emulator --example llama_layer -- FOLDER [--whole] [CHIP]...
//! ```
//!
//! With `--whole` a whole token of qwen3-8b in Q4_K_M is put together from layers and head.

mod attention;

use kiln_emulator::{Checks, ChipFile, DeviceConfig, Launch, Memory, Module, Schedule, Timing, chip_file, run};
use std::error::Error;
use std::path::Path;

type Res<T> = Result<T, Box<dyn Error>>;

const HIDDEN: u32 = 4096;
const FFN: u32 = 12288;
const VOCABULARY: u32 = 151_936;
const LAYERS: u32 = 36;
/// One of so many rows of the head is run: its blocks are alike, and so many that its ends do not count.
const OF_HEAD: u32 = 8;
/// `GGML_GLU_OP_SWIGLU`.
const SWIGLU: u32 = 2;
/// A division by one, as `init_fastdiv_values` packs it.
const ONE: [u32; 3] = [1, 0, 1];
/// Most error of an element as a share of the sum of its terms' magnitudes.
const TOLERANCE: f64 = 2e-5;

/// A quantised type: 256 weights a super-block.
#[derive(Clone, Copy)]
enum Type {
    Q4K,
    Q6K,
}

impl Type {
    const fn bytes(self) -> usize {
        match self {
            Type::Q4K => 144,
            Type::Q6K => 210,
        }
    }

    /// Where the super-block's f16 scales lie.
    const fn scales(self) -> &'static [usize] {
        match self {
            Type::Q4K => &[0, 2],
            Type::Q6K => &[208],
        }
    }

    /// Part of the kernel's mangled name.
    const fn kernel(self, fused: bool) -> &'static str {
        match (self, fused) {
            (Type::Q4K, false) => "mul_mat_vec_qIL9ggml_type12ELi1ELb0E",
            (Type::Q4K, true) => "mul_mat_vec_qIL9ggml_type12ELi1ELb1E",
            (Type::Q6K, false) => "mul_mat_vec_qIL9ggml_type14ELi1ELb0E",
            (Type::Q6K, true) => "mul_mat_vec_qIL9ggml_type14ELi1ELb1E",
        }
    }

    /// Weight `i` of a super-block.
    fn weight(self, block: &[u8], i: usize) -> f64 {
        let half = |at: usize| half(u16::from_le_bytes([block[at], block[at + 1]]));
        match self {
            Type::Q4K => {
                let (scales, sub) = (&block[4..16], i / 32);
                let (scale, min) = if sub < 4 {
                    (scales[sub] & 63, scales[sub + 4] & 63)
                } else {
                    let high = |byte: u8| byte >> 6 << 4;
                    (scales[sub + 4] & 15 | high(scales[sub - 4]), scales[sub + 4] >> 4 | high(scales[sub]))
                };
                let q = block[16 + sub / 2 * 32 + i % 32] >> (sub % 2 * 4) & 15;
                half(0) * f64::from(scale) * f64::from(q) - half(2) * f64::from(min)
            }
            Type::Q6K => {
                let (n, quarter, l) = (i / 128, i % 128 / 32, i % 32);
                let low = block[64 * n + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
                let high = block[128 + 32 * n + l] >> (2 * quarter) & 3;
                let scale = block[192 + 8 * n + 2 * quarter + l / 16] as i8;
                half(208) * f64::from(scale) * (f64::from(low | high << 4) - 32.0)
            }
        }
    }
}

/// An f16's value, if it is a normal number or 0.
fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    if exponent == 0 {
        sign * mantissa * 2f64.powi(-24)
    } else {
        sign * (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15)
    }
}

/// What a product does besides.
#[derive(Clone, Copy)]
enum With<'a> {
    Nothing,
    /// Adds the residual.
    Residual(&'a [f32]),
    /// `silu(gate * x) * (rows * x)`.
    Gate(&'a [u8]),
}

/// Numbers that look random and are the same on every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn floats(&mut self, n: u32) -> Vec<f32> {
        (0..n).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    fn weights(&mut self, of: Type, rows: u32, columns: u32) -> Vec<u8> {
        let blocks = (rows * columns / 256) as usize;
        let mut bytes: Vec<u8> = (0..blocks * of.bytes() / 8 + 1).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(blocks * of.bytes());
        for block in bytes.chunks_mut(of.bytes()) {
            // Scales of 2^-7 to 2^-6.
            of.scales().iter().for_each(|&at| block[at + 1] = 0x20 | block[at + 1] & 3);
        }
        bytes
    }
}

/// Parameters, each at its alignment.
#[derive(Default)]
struct Params(Vec<u8>);

impl Params {
    fn long(mut self, value: u64) -> Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn words(mut self, values: &[u32]) -> Self {
        values.iter().for_each(|value| self.0.extend(value.to_le_bytes()));
        self
    }
}

/// A chip, or the checks, with llama.cpp's module loaded.
struct Device {
    module: Module,
    memory: Memory,
    config: DeviceConfig,
}

impl Device {
    fn put(&self, bytes: &[u8]) -> Res<u64> {
        let at = self.memory.alloc(bytes.len() as u64)?;
        self.memory.write(at, bytes)?;
        Ok(at)
    }

    fn floats(&self, at: u64, n: u32) -> Res<Vec<f32>> {
        let mut bytes = vec![0; 4 * n as usize];
        self.memory.read(at, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn launch(&self, name: &str, grid: u32, block: [u32; 3], dynamic_shared: u32, params: &Params) -> Res<Timing> {
        self.launch_grid(name, [grid, 1, 1], block, dynamic_shared, params)
    }

    fn launch_grid(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        params: &Params,
    ) -> Res<Timing> {
        let mut names = self.module.kernel_names().chain(self.module.refused().map(|(name, _)| name));
        let kernel = names.find(|kernel| kernel.contains(name)).ok_or_else(|| format!("no kernel {name}"))?;
        let (module, params) = (&self.module, &*params.0);
        let launch = Launch { module, kernel, grid, block, dynamic_shared, params, cooperative: false, cluster: None };
        Ok(run(&launch, &self.memory, &self.config)?.timing.unwrap_or_default())
    }

    /// `y = x / rms(x) * gamma`.
    fn norm(&self, x: &[f32], gamma: &[f32]) -> Res<(u64, Timing)> {
        let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let n = x.len() as u32;
        let (px, pg, y) = (self.put(&bytes(x))?, self.put(&bytes(gamma))?, self.memory.alloc(4 * u64::from(n))?);
        let row = u64::from(n);
        let columns = [1, n.ilog2(), n];
        let params = Params::default().long(px).long(y).words(&[n]).long(row).long(row).long(row);
        let params = params.words(&[1e-6f32.to_bits()]).long(pg).long(row).long(row).long(row);
        let params = params.words(&[columns, ONE, ONE, ONE].concat()).long(0).long(0).long(0).long(0);
        let params = params.words(&[ONE; 4].concat()).words(&[1f32.to_bits()]);
        let timing = self.launch("rms_norm_f32ILi1024ELb1ELb0E", 1, [1024, 1, 1], 128, &params)?;
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / f64::from(n);
        for (i, &got) in self.floats(y, n)?.iter().enumerate() {
            let expected = f64::from(x[i]) * f64::from(gamma[i]) / (mean + 1e-6).sqrt();
            check("norm", i, got.into(), expected, expected.abs())?;
        }
        Ok((y, timing))
    }

    /// Blocks of 32 elements: an f16 scale, the sum as f16, 32 bytes.
    fn quantise(&self, x: u64, n: u32) -> Res<(u64, Vec<u8>, Timing)> {
        let y = self.memory.alloc(u64::from(n / 32 * 36))?;
        let row = u64::from(n);
        let params = Params::default().long(x).long(y).long(row).long(row).long(row).long(row).long(row);
        let params = params.words(&[1]).words(&ONE);
        let timing = self.launch("quantize_q8_1", n / 256, [256, 1, 1], 0, &params)?;
        let mut bytes = vec![0; n as usize / 32 * 36];
        self.memory.read(y, &mut bytes)?;
        for (i, &x) in self.floats(x, n)?.iter().enumerate() {
            let block = &bytes[i / 32 * 36..];
            let scale = half(u16::from_le_bytes([block[0], block[1]]));
            let off = (scale * f64::from(block[4 + i % 32] as i8) - f64::from(x)).abs();
            // Half a step, and what rounding the scale to f16 moves 127 steps.
            if off > scale * (0.5 + 127.0 / 1024.0) {
                return Err(format!("quantize_q8_1: element {i} is off by {off}").into());
            }
        }
        Ok((y, bytes, timing))
    }

    /// Rows of weights times quantised `x`. Returns `y` and the time.
    fn product(&self, of: Type, w: &[u8], with: With, x: (u64, &[u8]), rows: u32, columns: u32) -> Res<(u64, Timing)> {
        let pw = self.put(w)?;
        let (added, gate) = match with {
            With::Nothing => (0, 0),
            With::Residual(added) => (self.put(&added.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())?, 0),
            With::Gate(gate) => (0, self.put(gate)?),
        };
        let y = self.memory.alloc(4 * u64::from(rows))?;
        let (blocks, columns_q8) = (columns / 256, columns / 32);
        let params = Params::default().long(pw).long(x.0).long(0).long(added).long(gate).long(0).long(0).long(0);
        let params = params.words(&[SWIGLU, 0]).long(y).words(&[columns]).words(&ONE);
        let params = params.words(&[blocks, columns_q8, rows]).words(&ONE).words(&[rows * blocks, columns_q8, rows]);
        let params = params.words(&ONE).words(&[rows * blocks, columns_q8, rows, 0]);
        let timing = self.launch(of.kernel(!matches!(with, With::Nothing)), rows, [32, 4, 1], 0, &params)?;
        let got = self.floats(y, rows)?;
        let dot = |w: &[u8], row: usize| {
            let stride = blocks as usize * of.bytes();
            let w = &w[row * stride..][..stride];
            let terms = (0..columns as usize).map(|i| {
                let q8 = &x.1[i / 32 * 36..];
                let x = half(u16::from_le_bytes([q8[0], q8[1]])) * f64::from(q8[4 + i % 32] as i8);
                of.weight(&w[i / 256 * of.bytes()..], i % 256) * x
            });
            terms.fold((0.0, 0.0), |(sum, all), term| (sum + term, all + term.abs()))
        };
        for row in (0..rows as usize).step_by(61) {
            let (sum, all) = dot(w, row);
            let (expected, terms) = match with {
                With::Nothing => (sum, all),
                With::Residual(added) => (sum + f64::from(added[row]), all + f64::from(added[row]).abs()),
                With::Gate(gate) => {
                    let (g, of_gate) = dot(gate, row);
                    (sum * g / (1.0 + (-g).exp()), all * (g.abs() + of_gate) + sum.abs() * of_gate)
                }
            };
            check("product", row, got[row].into(), expected, terms)?;
        }
        Ok((y, timing))
    }
}

fn check(what: &str, at: usize, got: f64, expected: f64, terms: f64) -> Res<()> {
    let fine = (got - expected).abs() <= TOLERANCE * terms.max(1e-30);
    if fine { Ok(()) } else { Err(format!("{what}: element {at} is {got}, not {expected}").into()) }
}

/// A kernel's launches in a layer: name, how often, bytes of weights or cache, time.
type Row = (&'static str, u32, usize, Timing);

/// A layer's kernels in order, on one of `scale` rows of each matrix.
fn layer(device: &Device, scale: u32) -> Res<Vec<Row>> {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let (x, gamma, residual) = (noise.floats(HIDDEN), noise.floats(HIDDEN), noise.floats(HIDDEN));
    let (normed, norm) = device.norm(&x, &gamma)?;
    let (x, bytes, quantise) = device.quantise(normed, HIDDEN)?;
    // ggml quantises before each product, gate and up being one, and the second norm is as the first.
    let mut rows: Vec<Row> = vec![("RMS norm", 2, 0, norm), ("quantize, 4096", 5, 0, quantise)];
    let mut product = |name, of, (rows_of, columns): (u32, u32), adds: bool, x: (u64, &[u8])| -> Res<Row> {
        let rows_of = rows_of / scale;
        let w = noise.weights(of, rows_of, columns);
        let with = if adds { With::Residual(&residual) } else { With::Nothing };
        let (_, timing) = device.product(of, &w, with, x, rows_of, columns)?;
        Ok((name, 1, w.len(), timing))
    };
    let of_hidden = (x, &*bytes);
    rows.push(product("q (Q4_K)", Type::Q4K, (HIDDEN, HIDDEN), false, of_hidden)?);
    rows.push(product("k (Q4_K)", Type::Q4K, (1024, HIDDEN), false, of_hidden)?);
    rows.push(product("v (Q6_K)", Type::Q6K, (1024, HIDDEN), false, of_hidden)?);
    let between = device.attention(&mut Noise(11))?;
    rows.extend(between.into_iter().map(|(name, bytes, timing)| (name, 1, bytes, timing)));
    rows.push(product("attention output (Q4_K), residual", Type::Q4K, (HIDDEN, HIDDEN), true, of_hidden)?);
    let [up, gate] = [3, 5].map(|seed| Noise(seed).weights(Type::Q4K, FFN / scale, HIDDEN));
    let (_, timing) = device.product(Type::Q4K, &up, With::Gate(&gate), of_hidden, FFN / scale, HIDDEN)?;
    rows.push(("gate and up (Q4_K)", 1, up.len() + gate.len(), timing));
    let ffn: Vec<u8> = Noise(7).floats(FFN).iter().flat_map(|x| x.to_le_bytes()).collect();
    let (x, bytes, timing) = device.quantise(device.put(&ffn)?, FFN)?;
    rows.push(("quantize, 12288", 1, 0, timing));
    rows.push(product("down (Q6_K), residual", Type::Q6K, (HIDDEN, FFN), true, (x, &bytes))?);
    Ok(rows)
}

fn device(folder: &Path, config: DeviceConfig) -> Res<Device> {
    let sm = config.sm.0 * 10 + config.sm.1;
    let text = std::fs::read_to_string(folder.join(format!("sm_{sm}.ptx")))?;
    let memory = Memory::new(8 << 30);
    Ok(Device { module: Module::load(&text, &memory)?, memory, config })
}

/// Every kernel with all checks, on a 64th of each matrix's rows: prints what the checks found.
fn checked(folder: &Path) -> Res<()> {
    for sm in [(8, 0), (8, 9), (9, 0)] {
        for schedule in [Schedule::RoundRobin, Schedule::Adversarial] {
            let mut config =
                DeviceConfig { checks: Checks::ALL, fatal_findings: false, schedule, ..DeviceConfig::default() };
            (config.sm, config.split_warps) = (sm, schedule == Schedule::Adversarial);
            let device = device(folder, config)?;
            layer(&device, 64)?;
            let findings = device.memory.findings();
            println!("sm_{}{}, {schedule:?}: right, {} findings\n{findings}", sm.0, sm.1, findings.len());
        }
    }
    Ok(())
}

fn timed(folder: &Path, chip: &'static ChipFile) -> Res<()> {
    println!("{}: modelled, not measured\n", chip.name);
    println!("| kernel | launches | us | of reads | memory | issue | dependency | barrier | issued |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let (mut all, mut launches, mut read) = (0.0, 0, 0);
    for (name, times, bytes, timing) in layer(&device(folder, DeviceConfig::clocked(chip))?, 1)? {
        let time = f64::from(times) * timing.nanoseconds;
        let share = 100.0 * bytes as f64 / timing.nanoseconds / chip.dram_bandwidth.value;
        let [memory, issue, dependency, barrier] = timing.stalls().map(|share| 100.0 * share);
        println!(
            "| {name} | {times} | {:.1} | {share:.0} % | {memory:.0} % | {issue:.0} % | {dependency:.0} % | {barrier:.0} % \
             | {:.0} % |",
            time / 1e3,
            100.0 * timing.issued
        );
        (all, launches, read) = (all + time, launches + times, read + bytes);
    }
    let share = 100.0 * read as f64 / all / chip.dram_bandwidth.value;
    println!("| llama.cpp's kernels | {launches} | {:.1} | {share:.0} % |", all / 1e3);
    let nodes = all / 1e3 + f64::from(launches) * chip.node.value;
    println!("| as nodes of a graph | {launches} | {nodes:.1} | {:.0} % |\n", share * all / 1e3 / nodes);
    Ok(())
}

/// A token of a whole model as nodes of a graph: `attn_v` and `down` are of Q6_K in half of its layers, of Q4_K in others.
fn whole(folder: &Path, chip: &'static ChipFile) -> Res<()> {
    let device = device(folder, DeviceConfig::clocked(chip))?;
    let mixed = layer(&device, 1)?;
    let mut noise = Noise(13);
    let mut product = |of, rows: u32, columns: u32, adds: bool| -> Res<(usize, f64)> {
        let (x, residual) = (noise.floats(columns), noise.floats(rows));
        let x = device.put(&x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())?;
        let (x, bytes, _) = device.quantise(x, columns)?;
        let w = noise.weights(of, rows, columns);
        let with = if adds { With::Residual(&residual) } else { With::Nothing };
        let (_, timing) = device.product(of, &w, with, (x, &bytes), rows, columns)?;
        Ok((w.len(), timing.nanoseconds))
    };
    let (v, down) = (product(Type::Q4K, 1024, HIDDEN, false)?, product(Type::Q4K, HIDDEN, FFN, true)?);
    let head = product(Type::Q6K, VOCABULARY / OF_HEAD, HIDDEN, false)?;
    let (mut time, mut bytes, mut nodes) = (0.0, 0, 0);
    for (name, times, of, timing) in &mixed {
        let other = match *name {
            "v (Q6_K)" => v,
            "down (Q6_K), residual" => down,
            _ => (*of, timing.nanoseconds),
        };
        let half = f64::from(LAYERS / 2 * times);
        time += half * (timing.nanoseconds + other.1);
        bytes += (LAYERS / 2 * times) as usize * (of + other.0);
        nodes += LAYERS * times;
        // The last norm, and its rounding.
        if matches!(*name, "RMS norm" | "quantize, 4096") {
            (time, nodes) = (time + timing.nanoseconds, nodes + 1);
        }
    }
    (time, bytes, nodes) = (time + f64::from(OF_HEAD) * head.1, bytes + OF_HEAD as usize * head.0, nodes + 1);
    let microseconds = time / 1e3 + f64::from(nodes) * chip.node.value;
    let share = |microseconds: f64| 100.0 * bytes as f64 / (1e3 * microseconds * chip.dram_peak.value);
    let trivial = 1.111 * bytes as f64 / (1e3 * chip.dram_peak.value) + 3580.0 / chip.clock.value;
    println!(
        "| {} | {microseconds:.0} us, {:.0} tokens/s | {:.0} % | {:.0} % |",
        chip.name,
        1e6 / microseconds,
        share(microseconds),
        share(trivial)
    );
    Ok(())
}

fn main() -> Res<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("give the folder that bench/peers/llama.py made")?;
    let mut chips: Vec<String> = arguments.collect();
    let is_whole = chips.iter().any(|argument| argument == "--whole");
    chips.retain(|argument| argument != "--whole");
    if chips.is_empty() {
        return checked(folder.as_ref());
    }
    for name in chips {
        let chip = chip_file(&name).ok_or_else(|| format!("no chip file {name}"))?;
        if is_whole { whole(folder.as_ref(), chip)? } else { timed(folder.as_ref(), chip)? }
    }
    Ok(())
}
