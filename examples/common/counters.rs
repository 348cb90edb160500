//! What the emulator counted, as a table: exact, and the same on every run.

#![allow(dead_code)] // tests use a part

use kiln::model::ModelFile;
use kiln::shape::{GgufError, TensorRole};
use kiln_emulator::Counters;
use std::collections::BTreeMap;

/// The products of a token: the kernel that has one in exact numerics, its name, its matrices.
const PHASES: [(&str, &str, &[TensorRole]); 5] = [
    ("rmsnorm_qkv", "qkv", &[TensorRole::AttnQ, TensorRole::AttnK, TensorRole::AttnV]),
    ("attention_output_residual", "attention output", &[TensorRole::AttnOutput]),
    ("rmsnorm_gate_up_swiglu", "gate and up", &[TensorRole::FfnGate, TensorRole::FfnUp]),
    ("down_residual", "down", &[TensorRole::FfnDown]),
    ("rmsnorm_head", "head", &[TensorRole::Output]),
];

/// Matrices that a launch reads: their weights, and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Needed {
    pub(crate) weights: u64,
    pub(crate) bytes: u64,
}

/// The matrices of a model, by phase and layer.
#[derive(Debug, Clone)]
pub(crate) struct Matrices {
    /// Of each layer those of its phases, then the head's.
    layers: Vec<[Needed; 4]>,
    head: Needed,
}

impl Matrices {
    pub(crate) fn of(file: &ModelFile) -> Result<Matrices, GgufError> {
        let (gguf, shape) = (file.gguf(), file.shape());
        let phase = |roles: &[TensorRole], layer: u32| {
            roles.iter().try_fold(Needed::default(), |sum, role| {
                let tensor = gguf.required_tensor(&role.tensor_name(layer))?;
                let weights = sum.weights + tensor.dims().iter().product::<u64>();
                Ok(Needed { weights, bytes: sum.bytes + tensor.bytes() })
            })
        };
        let layer = |layer| {
            Ok([
                phase(PHASES[0].2, layer)?,
                phase(PHASES[1].2, layer)?,
                phase(PHASES[2].2, layer)?,
                phase(PHASES[3].2, layer)?,
            ])
        };
        let head = if shape.tied_head { TensorRole::TokenEmbedding } else { TensorRole::Output };
        Ok(Matrices { layers: (0..shape.layers).map(layer).collect::<Result<_, _>>()?, head: phase(&[head], 0)? })
    }

    /// The head.
    pub(crate) const fn head(&self) -> Needed {
        self.head
    }

    /// All of them together.
    pub(crate) fn all(&self) -> Needed {
        let each = self.layers.iter().flatten().chain([&self.head]);
        each.fold(Needed::default(), |sum, of| Needed {
            weights: sum.weights + of.weights,
            bytes: sum.bytes + of.bytes,
        })
    }
}

/// A launch, named by its phase where its kernel has several.
pub(crate) struct Launch {
    pub(crate) name: String,
    /// What it reads, if it is a product; of the persistent decoder all matrices, however many tokens it runs.
    pub(crate) needed: Option<Needed>,
    pub(crate) counters: Counters,
}

/// The launches of a device, in order.
pub(crate) fn launches(ordinal: i32, matrices: &Matrices) -> Vec<Launch> {
    let records = kiln_emulator::reports(ordinal);
    let kernels: Vec<String> = records.iter().map(|record| record.kernel.clone()).collect();
    let mut counts = [0usize; 5];
    let named = records.into_iter().enumerate().map(|(at, record)| {
        let kernel = record.kernel;
        let is_any = is_product(&kernel);
        let phase = match is_any {
            true => Some(phase_of(&kernels, at)),
            false => PHASES.iter().position(|(own, ..)| *own == kernel),
        };
        let needed = phase.map(|phase| {
            counts[phase] += 1;
            let layer = (counts[phase] - 1) % matrices.layers.len().max(1);
            matrices.layers[layer].get(phase).copied().unwrap_or(matrices.head)
        });
        let whole = kernel.starts_with("persistent_decoder").then(|| matrices.all());
        let name = match phase {
            Some(phase) if is_any => format!("{kernel}, {}", PHASES[phase].1),
            _ => kernel,
        };
        Launch { name, needed: needed.or(whole), counters: record.counters }
    });
    named.collect()
}

/// Whether a kernel multiplies quantised matrices of any phase, with one column or many.
fn is_product(kernel: &str) -> bool {
    ["products", "gemm_8", "gemm_16", "gemm_sliced", "gemm_tile", "gemm_tile_128", "gemm_warpgroups"].contains(&kernel)
}

/// The phase of a product, by its place: before the keys are written Q, K and V; behind attention its output, gate and up,
/// down; then the head.
fn phase_of(kernels: &[String], at: usize) -> usize {
    let writes = |kernel: &&String| kernel.starts_with("qk_norm_rope_kv_write");
    if kernels.get(at + 1).as_ref().is_some_and(writes) {
        return 0;
    }
    let behind = kernels[..at].iter().rev().take_while(|before| !writes(before));
    (1 + behind.filter(|kernel| is_product(kernel)).count()).min(PHASES.len() - 1)
}

/// A table by kernel of all launches of a device, and the twenty lines that take the most instructions if `by_line`: of
/// the kernels' source where the PTX was baked with it, else of the PTX.
pub(crate) fn table(ordinal: i32, matrices: &Matrices, by_line: bool) -> String {
    let mut kernels: BTreeMap<String, (u64, Option<Needed>, Counters)> = BTreeMap::new();
    for Launch { name, needed, counters } in launches(ordinal, matrices) {
        let (launches, sum, all) = kernels.entry(name).or_default();
        *launches += 1;
        all.add(&counters);
        if let Some(needed) = needed {
            let sum = sum.get_or_insert_default();
            (sum.weights, sum.bytes) = (sum.weights + needed.weights, sum.bytes + needed.bytes);
        }
    }
    let mut text = format!(
        "counted on the emulator, all launches together; needed: bytes of the kernel's matrices; moved: bytes of distinct\n\
         sectors that a launch reads, from device memory; asked for: bytes of all sectors, from the caches as well\n\
         {:<28} {:>8} {:>14} {:>9} {:>12} {:>12} {:>6} {:>12} {:>9} {:>9}\n",
        "kernel",
        "launches",
        "instructions",
        "a weight",
        "needed",
        "moved",
        "ratio",
        "asked for",
        "conflicts",
        "barriers"
    );
    for (kernel, (launches, needed, counters)) in &kernels {
        let of = |show: &dyn Fn(&Needed) -> String| needed.as_ref().map_or("-".to_owned(), show);
        let (moved, instructions) = (counters.read_bytes_distinct, counters.lane_instructions);
        text.push_str(&format!(
            "{kernel:<28} {launches:>8} {instructions:>14} {:>9} {:>12} {moved:>12} {:>6} {:>12} {:>9} {:>9}\n",
            of(&|needed| format!("{:.2}", instructions as f64 / needed.weights as f64)),
            of(&|needed| needed.bytes.to_string()),
            of(&|needed| format!("{:.3}", moved as f64 / needed.bytes as f64)),
            32 * counters.read_sectors,
            counters.bank_conflicts,
            counters.barriers,
        ));
    }
    if by_line {
        text.push_str(&lines(kernels.iter().map(|(kernel, (_, _, counters))| (kernel.as_str(), counters))));
    }
    text
}

fn lines<'a>(all: impl Iterator<Item = (&'a str, &'a Counters)>) -> String {
    let mut lines: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    let mut nameless = false;
    for (kernel, (ptx_line, line)) in all.flat_map(|(kernel, all)| all.lines.iter().map(move |line| (kernel, line))) {
        let place = match &line.source {
            Some((file, line)) => format!("{file}:{line}"),
            None => format!("{kernel}, PTX line {ptx_line}"),
        };
        nameless |= line.source.is_none();
        let sum = lines.entry(place).or_default();
        sum.0 += line.lane_instructions;
        sum.1 += 32 * line.sectors;
        sum.2 += line.bank_conflicts;
    }
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.0));
    let mut text = format!("{:<52} {:>14} {:>12} {:>9}\n", "line", "instructions", "in sectors", "conflicts");
    for (place, (instructions, bytes, conflicts)) in lines.into_iter().take(20) {
        text.push_str(&format!("{place:<52} {instructions:>14} {bytes:>12} {conflicts:>9}\n"));
    }
    if nameless {
        text.push_str("a build with KILN_PROVENANCE=1 names lines of the kernels' source\n");
    }
    text
}
