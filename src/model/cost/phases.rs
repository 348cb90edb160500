//! The phases of a token: work between two dependencies.

use super::Program;
use crate::shape::table::rows_per_tile;
use crate::shape::{KvType, ModelShape, Numerics, SUPER_BLOCK, TensorRole, Units, WeightType};

/// Warps of a block of products.
pub(super) const WARPS: u32 = 8;

/// One phase of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Bytes that all blocks read together.
    pub bytes: u64,
    /// Weights in Q4_K among them, and in other types, whose instructions are taken to be as many.
    pub q4_k: u64,
    /// Weights in Q6_K among them.
    pub q6_k: u64,
    /// Thread-instructions of what is no product with weights.
    pub other: u64,
    /// Elements of the vector that every block stages.
    pub staged: u32,
    /// Whether that vector is normalised, for which gamma is read as well.
    pub is_normalised: bool,
    /// What is divided between blocks: rows, or chunks of a KV head.
    pub pieces: u32,
    /// Rows of a warp for which the stream path takes one block more in fast numerics.
    pub rows_per_warp: u32,
    /// Whether it is a phase on the persistent path too, where blocks recompute what small kernels do elsewhere.
    pub persistent: bool,
    /// What it waits for beside a ring.
    pub behind: Behind,
}

/// What a phase of the persistent path waits for beside a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Behind {
    /// The grid's barrier.
    Barrier,
    /// The elements of its vector, each a word that is empty until then.
    Elements,
}

impl Phase {
    /// Whether it is a product with weights.
    pub const fn is_product(&self) -> bool {
        self.staged > 0
    }

    /// Blocks that have work, where `most` fit the chip together, and the part of the work of a multiprocessor that has
    /// most of it. A block deals what it has to its warps, in whole tiles in exact numerics, in rows in fast ones.
    pub fn shares(&self, program: Program, is_resident: bool, most: u32, multiprocessors: u32) -> (u32, f64) {
        let pieces = self.pieces.max(1);
        if !self.is_product() {
            let blocks = pieces.min(multiprocessors);
            return (blocks, f64::from(pieces.div_ceil(blocks)) / f64::from(pieces));
        }
        let (tile, per_warp) = match program {
            Program::Kiln(Numerics::Fast) => (1, self.rows_per_warp),
            Program::Kiln(Numerics::Exact) => (rows_per_tile(self.staged), rows_per_tile(self.staged)),
            // A block of few warps has a row.
            Program::LlamaCpp => return (most, 1.0 / f64::from(multiprocessors)),
        };
        let blocks = if is_resident { multiprocessors } else { pieces.div_ceil(per_warp * WARPS).min(most) };
        let of_warp = pieces.div_ceil(blocks * WARPS).next_multiple_of(tile);
        // Blocks beside each other on a multiprocessor.
        let beside = blocks.div_ceil(multiprocessors);
        (blocks, (f64::from(of_warp * WARPS * beside) / f64::from(pieces)).min(1.0))
    }
}

/// Whether llama.cpp's Q4_K_M has `attn_v` and `ffn_down` of this layer in Q6_K.
pub(super) fn more_bits(layer: u32, layers: u32) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The type that llama.cpp stores instead where rows are not whole super-blocks.
pub(super) fn mixed(ty: WeightType, k: u32) -> WeightType {
    match ty {
        WeightType::Q4_K if !k.is_multiple_of(SUPER_BLOCK) => WeightType::Q5_0,
        WeightType::Q6_K if !k.is_multiple_of(SUPER_BLOCK) => WeightType::Q8_0,
        ty => ty,
    }
}

/// A phase with no work worth counting.
const fn small(name: &'static str) -> Phase {
    let (bytes, q4_k, q6_k, other) = (0, 0, 0, 0);
    let (staged, pieces, rows_per_warp) = (0, 1, 1);
    let (is_normalised, persistent, behind) = (false, false, Behind::Elements);
    Phase { name, bytes, q4_k, q6_k, other, staged, is_normalised, pieces, rows_per_warp, persistent, behind }
}

/// A product with matrices of `[k, n]`.
fn matrices(name: &'static str, of: &[(u32, u32, WeightType)]) -> Phase {
    let staged = of.first().map_or(0, |(k, ..)| *k);
    let mut phase = Phase { staged, pieces: 0, persistent: true, ..small(name) };
    for &(k, n, ty) in of {
        let weights = u64::from(k) * u64::from(n);
        phase.bytes += ty.ggml().row_bytes(u64::from(k)).unwrap_or(0) * u64::from(n);
        if ty == WeightType::Q6_K {
            phase.q6_k += weights
        } else {
            phase.q4_k += weights
        }
        phase.pieces += n;
    }
    phase
}

/// The phases of the token at `position`, in order, for a model in llama.cpp's Q4_K_M mix and a cache with elements of
/// `kv_bytes` bytes. Attention is cut as in fast numerics where they are f16.
pub fn phases(shape: &ModelShape, position: u32, kv_bytes: u32) -> Vec<Phase> {
    use WeightType::{Q4_K, Q6_K};
    phases_of(shape, position, kv_bytes, |role, layer| {
        let (k, ty) = match role {
            TensorRole::Output => (shape.hidden, Q6_K),
            TensorRole::FfnDown if more_bits(layer, shape.layers) => (shape.ffn, Q6_K),
            TensorRole::FfnDown => (shape.ffn, Q4_K),
            TensorRole::AttnV if more_bits(layer, shape.layers) => (shape.hidden, Q6_K),
            TensorRole::AttnOutput => (shape.q_dim(), Q4_K),
            _ => (shape.hidden, Q4_K),
        };
        mixed(ty, k)
    })
}

/// The same for matrices of other types, by their role and layer.
pub(crate) fn phases_of(
    shape: &ModelShape,
    position: u32,
    kv_bytes: u32,
    type_of: impl Fn(TensorRole, u32) -> WeightType,
) -> Vec<Phase> {
    let ModelShape { hidden, ffn, layers, kv_heads, .. } = *shape;
    let (q_dim, kv_dim) = (shape.q_dim(), shape.kv_dim());
    let numerics = if kv_bytes == 2 { Numerics::Fast } else { Numerics::Exact };
    let units = Units::of(numerics, KvType::F16, kv_heads).count(position + 1);
    let elements = (u64::from(position) + 1) * 2 * u64::from(kv_dim);
    let attention = Phase {
        bytes: elements * u64::from(kv_bytes),
        // A conversion, and a product for each query head of the group.
        other: elements * (1 + u64::from(shape.group())),
        pieces: units * kv_heads,
        persistent: true,
        ..small("attention")
    };
    let rows_per_warp = (32 / hidden.div_ceil(SUPER_BLOCK)).max(4);
    let matrices = |name, of: &[_]| Phase { rows_per_warp, ..matrices(name, of) };
    let normalised = |phase| Phase { is_normalised: true, ..phase };
    let mut all = vec![small("embedding")];
    for layer in 0..layers {
        let matrix = |k: u32, n: u32, role| (k, n, type_of(role, layer));
        let (q, k) = (matrix(hidden, q_dim, TensorRole::AttnQ), matrix(hidden, kv_dim, TensorRole::AttnK));
        let qkv = matrices("qkv", &[q, k, matrix(hidden, kv_dim, TensorRole::AttnV)]);
        // The first is behind the token before.
        let behind = if layer == 0 { Behind::Barrier } else { Behind::Elements };
        all.push(Phase { behind, ..normalised(qkv) });
        all.push(small("qk-norm, rope, kv write"));
        all.push(attention);
        all.push(matrices("attention output", &[matrix(q_dim, hidden, TensorRole::AttnOutput)]));
        let (gate, up) = (matrix(hidden, ffn, TensorRole::FfnGate), matrix(hidden, ffn, TensorRole::FfnUp));
        let mut gate_up = matrices("gate and up", &[gate, up]);
        gate_up.pieces /= 2; // rows of both are worked on together
        all.push(normalised(gate_up));
        all.push(matrices("down", &[matrix(ffn, hidden, TensorRole::FfnDown)]));
    }
    all.push(normalised(matrices("head", &[(hidden, shape.vocab, type_of(TensorRole::Output, 0))])));
    all.push(small("argmax"));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::presets;
    use kiln_codegen::Kernel;
    use kiln_codegen::kernels::{Grid, Products};

    fn preset(name: &str) -> ModelShape {
        presets::by_name(name).expect("a preset").shape
    }

    #[test]
    fn weights_of_a_token_have_the_published_bytes() {
        let published = [
            ("qwen3b", 1.924e9),
            ("qwen2-5-7b", 4.371e9),
            ("qwen3-0-6b", 0.391e9),
            ("qwen3-1-7b", 1.102e9),
            ("qwen3-4b", 2.491e9),
            ("qwen3-8b", 4.672e9),
            ("qwen3-14b", 8.558e9),
        ];
        for (name, expected) in published {
            let phases = phases(&preset(name), 0, 2);
            let bytes: u64 = phases.iter().filter(|phase| phase.name != "attention").map(|phase| phase.bytes).sum();
            let error = bytes as f64 / expected - 1.0;
            assert!(error.abs() < 0.01, "{name}: {bytes} bytes, {:.2} % off", 100.0 * error);
        }
    }

    #[test]
    fn memory_and_disk_in_the_readme_are_those_of_the_shapes() {
        let readme = include_str!("../../../README.md");
        let mut rows = 0;
        for preset in presets::all().filter(|preset| preset.model.starts_with("Qwen")) {
            let shape = preset.shape;
            let of_token = phases(&shape, 0, 2).into_iter().filter(|phase| phase.name != "attention");
            let [hidden, vocab] = [shape.hidden, shape.vocab].map(u64::from);
            let embedding = mixed(WeightType::Q4_K, shape.hidden).tensor_bytes(&[hidden, vocab]).expect("whole blocks");
            let file = of_token.map(|phase| phase.bytes).sum::<u64>() + if shape.tied_head { 0 } else { embedding };
            let cache = |tokens: u32| (u64::from(tokens) * shape.kv_bytes_per_token(2)) as f64;
            let (file, some, full) = (file as f64 / 1e9, cache(1024) / 1e6, cache(shape.context) / 1e9);
            let row = format!("| {} | {file:.1} GB | {some:.0} MB | {full:.1} GB |", preset.model);
            assert!(readme.contains(&row), "{row}");
            rows += 1;
        }
        assert_eq!(rows, 10);
    }

    #[test]
    fn a_files_own_types_decide_its_bytes() {
        let shape = preset("qwen3-8b");
        let bytes = |type_of: &dyn Fn(TensorRole, u32) -> WeightType| {
            let phases = phases_of(&shape, 0, 2, type_of);
            phases.iter().filter(|phase| phase.is_product()).map(|phase| phase.bytes).sum::<u64>()
        };
        let of_layer = shape.hidden * (2 * shape.q_dim() + 2 * shape.kv_dim() + 3 * shape.ffn);
        let weights = u64::from(of_layer) * u64::from(shape.layers) + u64::from(shape.hidden) * u64::from(shape.vocab);
        assert_eq!(bytes(&|_, _| WeightType::Q8_0), weights / 32 * 34);
        // One matrix of one layer.
        let one = |role, layer| match (role, layer) {
            (TensorRole::FfnDown, 7) => WeightType::Q6_K,
            _ => WeightType::Q8_0,
        };
        let of_matrix = u64::from(shape.ffn) * u64::from(shape.hidden);
        assert_eq!(weights / 32 * 34 - bytes(&one), of_matrix / 32 * 34 - of_matrix / 256 * 210);
    }

    #[test]
    fn cache_bytes_grow_with_the_position() {
        let shape = preset("qwen3-8b");
        for position in [0, 1, 127, 128, 1000] {
            let phases = phases(&shape, position, 2);
            let cache: u64 = phases.iter().filter(|phase| phase.name == "attention").map(|phase| phase.bytes).sum();
            assert_eq!(cache, u64::from(position + 1) * 147_456);
        }
    }

    #[test]
    fn blocks_of_fast_products_are_as_many_as_the_kernel_says() {
        for preset in presets::all() {
            let Grid::PerRows(rows) = Products::new(preset.shape, &[WeightType::Q4_K]).grid() else {
                panic!("{}: another rule", preset.feature)
            };
            for phase in phases(&preset.shape, 0, 2).iter().filter(|phase| phase.is_product()) {
                assert_eq!(phase.rows_per_warp * WARPS, rows, "{}: {}", preset.feature, phase.name);
            }
        }
    }

    #[test]
    fn parts_of_the_heaviest_are_whole_pieces_and_no_less_than_the_mean() {
        let fast = Program::Kiln(Numerics::Fast);
        let phase = Phase { staged: 2048, pieces: 2048, rows_per_warp: 4, ..small("a") };
        // 32 rows a block on the stream path, 8 warps of 2 rows on the resident one.
        assert_eq!(phase.shares(fast, false, 132, 132), (64, 32.0 / 2048.0));
        assert_eq!(phase.shares(fast, true, 132, 132), (132, 16.0 / 2048.0));
        for preset in presets::all() {
            for phase in phases(&preset.shape, 511, 2) {
                for program in Program::ALL {
                    for (is_resident, multiprocessors) in
                        [(false, 1), (true, 1), (false, 40), (true, 132), (false, 170)]
                    {
                        let (blocks, part) = phase.shares(program, is_resident, 2 * multiprocessors, multiprocessors);
                        let mean = 1.0 / f64::from(multiprocessors);
                        let name = phase.name;
                        assert!(part >= 0.999 * mean && part <= 1.0, "{name}: {part} of {multiprocessors}");
                        assert!((1..=2 * multiprocessors).contains(&blocks), "{name}: {blocks} blocks");
                    }
                }
            }
        }
    }
}
