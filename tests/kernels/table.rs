//! What the kernels of the four systems take, in a table: registers and shared memory by target, as NVIDIA's assembler
//! reported them last (`codegen/bounds.txt`), errors against float64, bytes moved against bytes needed.
//!
//! ```text
//! cargo test --test kernels kernels_in_a_table -- --ignored --nocapture
//! ```

use kiln_codegen::bake::{self, DecoderPath, Descriptor};
use kiln_codegen::kernels::{FusedRmsNormQ4KGemv, KvCacheScatter, PerHeadRmsNorm, Phase};
use kiln_codegen::{Kernel, KvType, Target};
use kiln_emulator::Counters;
use kiln_shape::{Numerics, WeightType, presets};

use crate::attention;
use crate::common;
use crate::compare::relative_max;
use crate::gemv;
use crate::kv::{KV_TYPES, decode};
use crate::norm::rms_norm;
use crate::phases;
use crate::random::Random;
use crate::support::{Arg, Gpu, NULL};
use crate::traffic::counted;

/// A module's kernels with what each takes on each target.
struct Bounds {
    targets: Vec<String>,
    rows: Vec<Vec<String>>,
    /// The kernels as they are baked.
    baked: Vec<Descriptor>,
}

impl Bounds {
    fn read() -> Bounds {
        let (mut targets, mut rows) = (Vec::new(), Vec::new());
        for line in include_str!("../../codegen/bounds.txt").lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            match fields.first().map(String::as_str) {
                Some("module") => targets = fields[2..].to_vec(),
                Some(_) => rows.push(fields),
                None => {}
            }
        }
        let tiny = presets::by_name("tiny").expect("a preset").shape;
        let kernels = [bake::general(), bake::decoder(tiny, WeightType::ALL, DecoderPath::Stream, Numerics::Exact)];
        let emitted =
            kernels.iter().map(|kernels| bake::emit(Target::DEFAULT[2], None, kernels).expect("valid kernels"));
        let baked = emitted.flat_map(|module| module.kernels).collect();
        Bounds { targets, rows, baked }
    }

    /// Registers by target, and bytes of static shared memory, the most of any.
    fn of(&self, module: &str, kernel: &str) -> (String, u32) {
        let row = self.rows.iter().find(|row| row[0] == module && row[1] == kernel);
        let Some(row) = row else { return ("not recorded".to_owned(), 0) };
        let cells: Vec<(&str, u32)> = row[2..]
            .iter()
            .map(|cell| cell.split_once('/').expect("registers/shared"))
            .map(|(registers, shared)| (registers, shared.parse().expect("bytes")))
            .collect();
        let registers: Vec<&str> = cells.iter().map(|(registers, _)| *registers).collect();
        (registers.join(" / "), cells.iter().map(|(_, shared)| *shared).max().unwrap_or(0))
    }
}

/// Where a launch went wrong by most, and what the launches before it moved.
struct Measured {
    error: f64,
    launches: Vec<(String, Counters)>,
}

/// Gives what a kernel computed and what it should have.
type Run<'a> = &'a mut dyn FnMut(&Gpu) -> (Vec<f32>, Vec<f64>);

fn measure(runs: &mut [Run<'_>]) -> Measured {
    let mut error = 0.0f64;
    let mut launches = Vec::new();
    for run in runs {
        launches = counted(|gpu| {
            let (found, expected) = run(gpu);
            error = error.max(relative_max(&found, &expected));
        });
    }
    Measured { error, launches }
}

fn print(bounds: &Bounds, module: &str, measured: &Measured, launch: usize, needed: usize) {
    let (kernel, counters) = &measured.launches[launch];
    let (registers, shared) = bounds.of(module, kernel);
    let dynamic = bounds.baked.iter().find(|baked| baked.name == *kernel).map_or(0, |baked| baked.dynamic_shared);
    let moved = 32 * (counters.read_sectors + counters.write_sectors);
    let ratio = moved as f64 / needed as f64;
    println!(
        "| {module} | {kernel} | {registers} | {shared} + {} | 0 | {:.1e} | {moved} / {needed} = {ratio:.3} | {} |",
        dynamic, measured.error, counters.read_bytes_distinct
    );
}

#[test]
#[ignore = "prints a table for people and asserts nothing that other tests do not"]
fn kernels_in_a_table() {
    if common::is_left_out_on_gpu("a GPU does not count") {
        return;
    }
    let bounds = Bounds::read();
    let mut random = Random::fresh();
    println!(
        "Registers, static shared memory, spills (refused everywhere): as ptxas assembled it. Error: the largest of an"
    );
    println!(
        "element, relative to the root mean square of the result in float64. Bytes moved: 32-byte sectors that warps asked"
    );
    println!(
        "for, instruction by instruction, before any cache; of those, distinct: what memory itself must deliver.\n"
    );
    println!(
        "| module | kernel | registers: {} | shared, static + dynamic | spills | largest error | bytes moved / needed | distinct bytes read |",
        bounds.targets.join(" / ")
    );
    println!("|---|---|---|---|---|---|---|---|");
    products(&bounds, &mut random);
    norms(&bounds, &mut random);
    scatter(&bounds, &mut random);
    attention(&bounds, &mut random);
}

fn products(bounds: &Bounds, random: &mut Random) {
    let (k, n) = (4096usize, 512usize);
    for &ty in WeightType::ALL {
        let case = gemv::Case::new(FusedRmsNormQ4KGemv::general().with_weights(ty), k, n, random);
        let weights = ty.tensor_bytes(&[k as u64, n as u64]).expect("a size") as usize;
        let measured = measure(&mut [&mut |gpu| (case.run(gpu, 1), case.expected().0)]);
        print(bounds, "general", &measured, 0, weights + 4 * (2 * k + n));
    }
    let tiny = presets::by_name("tiny").expect("a preset").shape;
    for phase in Phase::ALL {
        let case = phases::Case::new(phase, tiny, random);
        let measured = measure(&mut [&mut |gpu| (case.run(gpu, 1), case.expected())]);
        print(bounds, "tiny.stream_exact", &measured, 0, case.bytes());
    }
}

fn norms(bounds: &Bounds, random: &mut Random) {
    for head_dim in [64u32, 128, 256] {
        let heads = 40u32;
        let (x, gamma) = (random.floats((heads * head_dim) as usize, 1.0), random.floats(head_dim as usize, 1.0));
        let measured = measure(&mut [&mut |gpu| {
            let kernel = PerHeadRmsNorm::general(head_dim);
            let blocks = heads.div_ceil(kernel.block() / 32);
            let kernel = gpu.load(kernel);
            let (from, by, to) = (gpu.input(&x), gpu.input(&gamma), gpu.output::<f32>(x.len()));
            kernel.run([blocks, 1, 1], &[Arg::from(&from), (&by).into(), (&to).into(), heads.into(), 1e-6f32.into()]);
            let expected = x.chunks(head_dim as usize).flat_map(|x| {
                rms_norm(&x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), &gamma, f64::from(1e-6f32))
            });
            (to.read(), expected.collect())
        }]);
        print(bounds, "general", &measured, 0, ((2 * heads + 1) * head_dim * 4) as usize);
    }
}

/// Into caches of one position, so that all of them is written.
fn scatter(bounds: &Bounds, random: &mut Random) {
    let (heads, head_dim) = (8u32, 128u32);
    let len = (heads * head_dim) as usize;
    let [k, v] = [0, 1].map(|_| random.floats(len, 1.0));
    for kv in KV_TYPES {
        let measured = measure(&mut [&mut |gpu| {
            let kernel = gpu.load(KvCacheScatter::general(kv));
            let [pk, pv] = [&k, &v].map(|row| gpu.input(row));
            let caches = [0, 1].map(|_| gpu.output::<u8>(len * kv.bytes() as usize));
            let error = gpu.in_out(&[0u32]);
            let mut args = vec![Arg::from(&pk), (&pv).into(), (&caches[0]).into(), (&caches[1]).into()];
            args.extend([Arg::from(0), NULL, (&error).into(), head_dim.into(), 1.into()]);
            kernel.run([heads, 1, 1], &args);
            let found = caches.iter().flat_map(|cache| decode(kv, &cache.read())).collect();
            (found, k.iter().chain(&v).map(|x| f64::from(*x)).collect())
        }]);
        print(bounds, "general", &measured, 0, 2 * len * (4 + kv.bytes() as usize));
    }
}

fn attention(bounds: &Bounds, random: &mut Random) {
    let kv_heads = 2;
    for head_dim in [64u32, 80, 96, 128, 256] {
        for kv in KV_TYPES {
            for group in [4, 8] {
                let cases = [1, 33, 127, 1000]
                    .map(|length| attention::Case::new(kv_heads, group, head_dim, kv, length, random));
                let element = if kv == KvType::F16 { 2 } else { 4 };
                let cache = (2 * kv_heads * 1000 * head_dim * element) as usize;
                let rows = (2 * kv_heads * group * head_dim * 4) as usize;
                let mut runs = cases.each_ref().map(|case| move |gpu: &Gpu| (case.run_general(gpu), case.expected()));
                let mut runs = runs.each_mut().map(|run| run as Run<'_>);
                print(bounds, "general", &measure(&mut runs), 0, cache + rows);
                let mut runs =
                    cases.each_ref().map(|case| move |gpu: &Gpu| (case.run_general_flash(gpu), case.expected()));
                let mut runs = runs.each_mut().map(|run| run as Run<'_>);
                let measured = measure(&mut runs);
                // Eight chunks, the queries once.
                let partials = (8 * kv_heads * group * (head_dim + 2) * 4) as usize;
                print(bounds, "general", &measured, 0, cache + rows / 2 + partials);
                if group == 8 && kv == KvType::F16 {
                    print(bounds, "general", &measured, 1, partials + rows / 2);
                }
            }
        }
    }
}
