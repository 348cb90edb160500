//! The clock beside kernels of others: published shapes and times that no chip file was made from. Kernels are ours, after
//! their descriptions: every point of `docs/CLOCK.md`'s second table is modelled here, and the table held to it.
//! `KILN_BLESS=1` has the long test rewrite the table.

mod kernel;
mod moves;
mod norms;
mod products;
mod results;
mod sums;

use crate::points::{self, Point};
use crate::rig::Rig;
use kiln_emulator::{ChipFile, DeviceConfig, Figure, chip_file};
use sums::Take;

const SUMS: &str = "simveit/effective_reduction";
const RMS: &str = "simveit/effective_rms_norm";
const ADD_RMS: &str = "HydraQYH/hp_rms_norm";
const TURING: &str = "sylvia-ymlin/CUDA-Kernel-Optimization";
const BOOKS: &str = "bitsandbytes, branch archive/kbit-gemv-v8";
const LLM_C: [&str; 3] =
    ["karpathy/llm.c, pull request 600", "karpathy/llm.c, pull request 645", "karpathy/llm.c, pull request 797"];

fn rig(chip: &'static ChipFile, texts: &[String]) -> Rig {
    let mut rig = Rig::new(&crate::rig::ptx(chip.sm.0 * 10 + chip.sm.1, &texts.join("\n")));
    rig.config = DeviceConfig { step_limit: None, ..DeviceConfig::clocked(chip) };
    rig
}

fn named(name: &str) -> &'static ChipFile {
    chip_file(name).unwrap()
}

/// GB/s of a kernel in the midst of arrays that are far larger than L2. A block of `threads` moves so many bytes of each
/// parameter's array, 0 of those that it shares with others.
fn steady(name: &str, text: String, threads: u32, bytes: [u64; 4]) -> f64 {
    // Of arrays of gigabytes a few waves of blocks are run, and L2 is as much smaller.
    let chip = named(name);
    let chip = Box::leak(Box::new(ChipFile { l2_bytes: Figure { value: 1e6, ..chip.l2_bytes }, ..*chip }));
    let rig = rig(chip, &[text]);
    let wave = chip.multiprocessors * (if chip.sm == (7, 5) { 1024 } else { 2048 } / threads);
    let time = |waves: u32| {
        let arrays = bytes.map(|bytes| rig.memory.alloc((bytes * u64::from(wave * waves)).max(1 << 16)).unwrap());
        rig.time("kernel", wave * waves, threads, &arrays).nanoseconds
    };
    // What the first and the last blocks take besides is in both.
    let (first, rest) = (time(3), 6 * u64::from(wave) * bytes.iter().sum::<u64>());
    rest as f64 / (time(9) - first)
}

/// Microseconds of a kernel whose L2 is full of zeros that were just written elsewhere.
fn cleared(rig: &Rig, chip: &ChipFile, (blocks, threads): (u32, u32), parameters: [u64; 4]) -> f64 {
    let bytes = chip.l2_bytes.value as u64 & !4095;
    let elsewhere = rig.memory.alloc(bytes).unwrap();
    rig.time("clear", (bytes / 4096) as u32, 256, &[elsewhere, 0, 0, 0]);
    rig.time("kernel", blocks, threads, &parameters).nanoseconds / 1e3
}

/// Microseconds of `rows` rows' residual and norm, bf16. How the publisher repeats them is not said; the times of all sizes
/// lie on a line, also of those that L2 would hold, so nothing of theirs is taken to be there.
fn add_rms(hidden: u32, rows: u32) -> f64 {
    let chip = named("h200");
    let rig = rig(chip, &[norms::add_rms(hidden), moves::clear()]);
    let bytes = u64::from(rows * hidden * 2);
    let [x, gamma, residual] = [bytes, 1 << 16, bytes].map(|bytes| rig.memory.alloc(bytes).unwrap());
    cleared(&rig, chip, (rows, hidden / 8), [x, gamma, residual, 0])
}

/// GB/s of 8192 rows of 768 floats, read once and written once, from the launch to its end.
fn layer_norm(name: &str, text: String, (blocks, threads): (u32, u32)) -> f64 {
    let chip = named(name);
    let rig = rig(chip, &[text, moves::clear()]);
    let bytes = 8192 * u64::from(norms::ROW) * 4;
    let [x, y, gamma, beta] = [bytes, bytes, 4096, 4096].map(|bytes| rig.memory.alloc(bytes).unwrap());
    let time = chip.launch.value + cleared(&rig, chip, (blocks, threads), [x, y, gamma, beta]);
    2.0 * bytes as f64 / 1e3 / time
}

/// GB/s of 8192 tokens' rows of 768 bf16, with as many of positions read and as many written.
fn embed() -> f64 {
    let chip = named("rtx-3090");
    let rig = rig(chip, &[moves::embed(), moves::clear()]);
    let row = 2 * u64::from(norms::ROW);
    let [table, positions, y] = [50257, 1024, 8192].map(|rows| rig.memory.alloc(rows * row).unwrap());
    let mut state = 1u32;
    let tokens: Vec<u32> = (0..8192)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) % 50257
        })
        .collect();
    let tokens = rig.u32s(&tokens);
    let time = chip.launch.value + cleared(&rig, chip, (768, 1024), [table, tokens, positions, y]);
    3.0 * (8192 * row) as f64 / 1e3 / time
}

/// Microseconds of a product of weights of so many bits, as their profiler has it: the clock held at its base, caches
/// emptied before each launch, and what a launch takes of a stream.
fn product(bits: u32, (columns, rows): (u32, u32)) -> f64 {
    let chip = named("rtx-4090");
    let base = Box::leak(Box::new(ChipFile { clock: Figure { value: 2.235, ..chip.clock }, ..*chip }));
    let rig = rig(base, &[products::book(bits, columns)]);
    let groups = u64::from(rows * (columns / products::GROUP));
    let [x, weights, book] = [u64::from(2 * columns), groups * u64::from(4 * bits), 256 + 4 * u64::from(rows)]
        .map(|bytes| rig.memory.alloc(bytes).unwrap());
    let scales = rig.buffer(&vec![0xb0u8; groups as usize]);
    chip.launch.value + rig.time("kernel", rows, products::THREADS, &[x, weights, scales, book]).nanoseconds / 1e3
}

/// GB/s of a transposition of 4096 by 4096 floats.
fn transpose(pitch: u32) -> f64 {
    let rig = rig(named("t4"), &[moves::transpose(pitch)]);
    let [x, y] = [0; 2].map(|_| rig.memory.alloc(64 << 20).unwrap());
    (128 << 20) as f64 / rig.time("kernel", 16384, 1024, &[x, y, 0, 0]).nanoseconds
}

fn points() -> Vec<Point> {
    let mut all = Vec::new();
    let mut add = |what: &str, source, chip, unit, (published, memory), model: Box<dyn Fn() -> f64>| {
        all.push(Point { what: what.into(), source: Some(source), chip, unit, published, memory, model });
    };
    for (what, published, take, redux) in [
        ("sum of 2^30 integers, one a thread", (882.823, false), Take::One, false),
        ("sum of 2^30 integers, 12 a thread one by one", (3226.86, true), Take::Strided(12), false),
        ("sum of 2^30 integers, 12 a thread in vectors", (3231.54, true), Take::Vectors(3), true),
    ] {
        let bytes = [512 * 4 * u64::from(take.numbers()), 0, 0, 0];
        let model = Box::new(move || steady("h100-sxm", sums::tree(take, redux), 512, bytes));
        add(what, SUMS, "h100-sxm", "GB/s", published, model);
    }
    for (what, published, vectors) in [
        ("RMS norm of 2^18 rows of 4096 floats, shuffles", 3043.23, false),
        ("RMS norm of 2^18 rows of 4096 floats, vectors", 3062.86, true),
    ] {
        let model = Box::new(move || steady("h100-sxm", norms::rms(vectors), 512, [16384, 0, 16384, 0]));
        add(what, RMS, "h100-sxm", "GB/s", (published, true), model);
    }
    for (hidden, published) in [(1024, 9.38), (2048, 17.18), (4096, 33.09), (8192, 65.38)] {
        let what = format!("residual and RMS norm of 4096 rows of {hidden} bf16");
        add(&what, ADD_RMS, "h200", "us", (published, true), Box::new(move || add_rms(hidden, 4096)));
    }
    for (what, published, plus) in [("a + b, 2^25 floats", 252.1, true), ("max(a, 0), 2^25 floats", 233.6, false)] {
        let bytes = [4096, if plus { 4096 } else { 0 }, 4096, 0];
        let model = Box::new(move || steady("t4", moves::elements(plus), 256, bytes));
        add(what, TURING, "t4", "GB/s", (published, true), model);
    }
    for (what, published, take) in [
        ("sum of 2^25 floats, one a thread", (111.6, false), Take::One),
        ("sum of 2^25 floats, four a thread", (289.7, true), Take::Vectors(1)),
    ] {
        let bytes = [256 * 4 * u64::from(take.numbers()), 0, 0, 0];
        add(what, TURING, "t4", "GB/s", published, Box::new(move || steady("t4", sums::shuffles(take), 256, bytes)));
    }
    for (what, published, pitch) in
        [("transposition of 4096 by 4096 floats, all in one bank", 152.0, 32), ("the same, padded", 198.8, 33)]
    {
        add(what, TURING, "t4", "GB/s", (published, false), Box::new(move || transpose(pitch)));
    }
    let rows = "layer norm of 8192 rows of 768 floats";
    let model = Box::new(|| layer_norm("rtx-3090", norms::by_warps(), (8192, 32)));
    add(&format!("{rows}, a warp each"), LLM_C[0], "rtx-3090", "GB/s", (689.11, true), model);
    let model = Box::new(|| layer_norm("rtx-3090", norms::by_blocks(), (8192, 256)));
    add(&format!("{rows}, a block each"), LLM_C[0], "rtx-3090", "GB/s", (773.13, true), model);
    for (warps, published) in [(1, 1120.0), (8, 1268.84)] {
        let model = Box::new(move || layer_norm("a100", norms::in_shared(warps), (8192 / warps, 32 * warps)));
        let what = format!("{rows}, {warps} in shared memory");
        add(&what, LLM_C[1], "a100", "GB/s", (published, false), model);
    }
    add("8192 rows of 768 bf16 of two tables added", LLM_C[2], "rtx-3090", "GB/s", (782.4, true), Box::new(embed));
    for (name, columns, rows, published) in [
        ("gate and up", 2048, 5120, [9.52, 10.75, 13.07, 15.02]),
        ("down", 5120, 2048, [10.46, 11.69, 13.70, 15.24]),
        ("Q", 2048, 4096, [8.50, 9.57, 11.39, 12.85]),
        ("O", 4096, 2048, [8.25, 9.24, 10.81, 11.68]),
        ("K or V", 2048, 512, [3.96, 3.87, 4.09, 4.28]),
    ] {
        for (bits, published) in [2, 3, 4, 5].into_iter().zip(published) {
            let what = format!("{name}: {rows} rows of {columns} weights of {bits} bits");
            let model = Box::new(move || product(bits, (columns, rows)));
            add(&what, BOOKS, "rtx-4090", "us", (published, false), model);
        }
    }
    all
}

#[test]
fn some_rows_of_kernels_of_others_are_what_the_clock_says() {
    // Cheap ones.
    let points = points();
    points::hold(points.iter().skip(9).step_by(3).take(2).chain(points.last()));
}

#[test]
#[ignore = "seconds even on an idle machine; .ci/long runs it in a release build"]
fn the_table_of_kernels_of_others_is_what_the_clock_says() {
    points::hold_table("kernels", "kernel", &points());
}
