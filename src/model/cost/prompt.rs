//! The modelled time to a prompt's first token: batches by tensor cores, and the head behind its last token.
//!
//! A product of a batch takes, of the multiprocessor with the most of its tiles, the issue of its instructions and its tensor cores'
//! time, and of the chip the reads: weights from device memory once and from the L2 cache for every tile of columns,
//! columns from there for every tile of rows. Times of resources that are busy side by side are put together as those of a
//! token, by their squares: no bound, since they may hide behind each other wholly. Tiles issue in every cycle here, which
//! their barriers and loads will not let them.

use super::counted::{TileLoop, staging};
use super::phases::{Phase, more_bits, phases};
use super::predict::{ISSUED, predict, together};
use super::{Chip, Program, Way};
use crate::model::columns::{MOST, attend_together};
use crate::model::tiles::{Room, Tile};
use crate::shape::columns::bytes;
use crate::shape::units::{BatchCut, FAST_CHUNK, batch_rounds};
use crate::shape::{ModelShape, Numerics, WeightType};

/// Multiply-adds of an `m16n8k32` of bytes, and of an `m16n8k16` of halves.
const OF_BYTES: f64 = 4096.0;
const OF_HALVES: f64 = 2048.0;
/// Warp-instructions of attention for each of its products of halves: counted by hand at sm_90 in the loop over chunks, for
/// qwen3-8b, 590 for a chunk of 66 products.
const ATTENTION: f64 = 8.9;

/// The modelled time to the first token behind a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FirstToken {
    /// Launches of batches.
    pub launches: u32,
    /// Seconds of their products, roundings included.
    pub products: f64,
    /// Seconds of their attention.
    pub attention: f64,
    /// Seconds between their launches, until first bytes are there.
    pub dependencies: f64,
    /// Seconds of the head, and of a prompt's only token.
    pub alone: f64,
}

impl FirstToken {
    /// Seconds in all.
    pub const fn seconds(&self) -> f64 {
        self.products + self.attention + self.dependencies + self.alone
    }
}

/// The time to the first token behind a prompt of so many, at least one: llama.cpp's Q4_K_M, fast numerics, f16 cache,
/// stream path.
pub fn first_token(shape: &ModelShape, tokens: u32, chip: &Chip) -> FirstToken {
    let mut sum = FirstToken::default();
    let tokens = tokens.max(1);
    let together = if tokens > 1 { tokens } else { 0 };
    for first in (0..together).step_by(MOST as usize) {
        let batch = Batch { shape, chip, first, count: (together - first).min(MOST) };
        batch.add(&mut sum);
    }
    let seconds = |phases: &[Phase]| predict(phases, chip, Way::Stream, Program::Kiln(Numerics::Fast)).seconds();
    let is_choice = |phase: &Phase| ["head", "argmax"].contains(&phase.name);
    let (choice, layers): (Vec<_>, _) = phases(shape, tokens - 1, 2).into_iter().partition(is_choice);
    sum.alone = seconds(&choice);
    if together == 0 {
        sum.alone += seconds(&layers);
    }
    sum
}

/// What a warpgroup's products of bytes take of tensor cores, by those of `mma`: 96 and 64 % of the rated.
const FASTER: f64 = 96.0 / 64.0;

/// The types and rows of a product's matrices.
type Matrices<'a> = &'a [(WeightType, u32)];

/// Bytes of dynamic shared memory that a block may have by compute capability, beside 4 KB of tiles' own: CUDA C++ Programming
/// Guide, "Technical Specifications per Compute Capability".
const fn shared_memory(sm: u32) -> u32 {
    match sm {
        80 | 87 => 159 << 10,
        86 | 89 | 120.. => 95 << 10,
        90..120 => 223 << 10,
        _ => 60 << 10,
    }
}

/// Tokens that go through the layers together.
struct Batch<'a> {
    shape: &'a ModelShape,
    chip: &'a Chip,
    /// The position of the first.
    first: u32,
    count: u32,
}

impl Batch<'_> {
    fn add(&self, sum: &mut FirstToken) {
        use WeightType::{Q4_K, Q6_K};
        let ModelShape { hidden, ffn, layers, .. } = *self.shape;
        let (q, kv) = (self.shape.q_dim(), self.shape.kv_dim());
        // The embeddings, and the first layer's rounding, which later layers' products do for the next.
        sum.launches += 2;
        sum.products += self.rounding(hidden);
        // Attention rounds its results where it is one launch for all columns and they are whole super-blocks.
        let rounds = batch_rounds(self.shape) && attend_together(self.shape, self.count, self.chip.multiprocessors);
        // Products, attention and the step before it, and where attention does not round a launch that does.
        let of_layer = if rounds { 6 } else { 7 };
        for layer in 0..layers {
            let some = if more_bits(layer, layers) { Q6_K } else { Q4_K };
            // What a product takes, what it multiplies with, and what it leaves for the next to take.
            let all: [(u32, Matrices<'_>, u32); 4] = [
                (hidden, &[(Q4_K, q), (Q4_K, kv), (some, kv)], q),
                (q, &[(Q4_K, hidden)], hidden),
                (hidden, &[(Q4_K, ffn), (Q4_K, ffn)], ffn),
                (ffn, &[(some, hidden)], hidden),
            ];
            for (k, matrices, next) in all {
                sum.products += self.product(k, matrices) + self.rounding(next);
            }
            sum.attention += self.attention();
            sum.launches += of_layer;
        }
        let each = self.chip.launch.value + 2e-3 * self.chip.latency.value;
        sum.dependencies += 1e-6 * each * f64::from(2 + of_layer * layers);
    }

    fn clock(&self) -> f64 {
        self.chip.clock.value * 1e9
    }

    fn product(&self, k: u32, matrices: Matrices<'_>) -> f64 {
        let chip = self.chip;
        // Kernels of sm_75 have two tiles.
        let is_there = |tile| match tile {
            Tile::Wide => true,
            Tile::Large => chip.sm < 80,
            Tile::Narrow | Tile::Double | Tile::Sliced(_) => chip.sm >= 80,
            Tile::Warpgroups => chip.sm == 90,
        };
        let room = Room { multiprocessors: chip.multiprocessors, shared: shared_memory(chip.sm) };
        let (tile, row_tiles) = Tile::choose(is_there, matrices, self.count, room);
        let column_tiles = self.count.div_ceil(tile.columns());
        let rows: u32 = matrices.iter().map(|(_, rows)| rows).sum();
        // All tiles take what the mean of them does.
        let products = f64::from(rows) * f64::from(column_tiles * tile.columns()) * f64::from(k) / OF_BYTES;
        let tiles = row_tiles * column_tiles;
        let most = tile.most(tiles, chip.multiprocessors) / f64::from(tiles.max(1));
        let instructions = matrices.iter().map(|(ty, rows)| f64::from(*rows) * TileLoop::of(tile, *ty, chip.sm));
        let instructions = instructions.sum::<f64>() / f64::from(rows.max(1));
        let issue = most * products * instructions / (ISSUED * self.clock());
        let planes = if tile == Tile::Warpgroups { 2.0 / FASTER } else { 1.0 };
        let tensor = planes * most * products * OF_BYTES / (chip.int8.value * self.clock());
        let weights =
            |(ty, rows): &(WeightType, u32)| ty.ggml().row_bytes(u64::from(k)).unwrap_or(0) as f64 * f64::from(*rows);
        let weights: f64 = matrices.iter().map(weights).sum();
        // Of two planes the first is read.
        let columns = bytes(k, tile.columns()) as f64 / 2.0;
        let copies = f64::from(column_tiles) * (weights + f64::from(row_tiles) * columns);
        let (weights, copies) = (weights / (chip.read.value * 1e9), copies / (chip.l2.value * 1e9));
        // Without copies that run on the only block of a multiprocessor waits for its own.
        if chip.sm < 80 && tile == Tile::Large {
            return together(&[issue, tensor]) + together(&[weights, copies]);
        }
        together(&[issue, tensor, weights, copies])
    }

    /// Columns of so many elements, read back and rounded.
    fn rounding(&self, k: u32) -> f64 {
        let elements = f64::from(self.count) * f64::from(k);
        let instructions = elements * staging(Program::Kiln(Numerics::Fast), true) / 32.0;
        let issue = instructions / (ISSUED * f64::from(self.chip.multiprocessors) * self.clock());
        together(&[issue, elements * (4.0 + 2.0) / (self.chip.l2.value * 1e9)])
    }

    /// Attention of all positions: rows of heads to each chunk of the cache, which a block's warps share. Its longer tile
    /// has three quarters of all positions before it on the mean.
    fn attention(&self) -> f64 {
        let (shape, chip) = (self.shape, self.chip);
        let (group, head_dim) = (shape.group(), shape.head_dim);
        let cut = BatchCut::of(group);
        // Scores of 32 positions; weights times values, and times the column of ones.
        let of_chunk = 4 * head_dim / 16 + 2 * (head_dim / 8 + 1);
        let rows = f64::from(self.count.div_ceil(cut.of_warp()) * cut.of_position() * shape.kv_heads);
        let (first, count) = (f64::from(self.first), f64::from(self.count));
        let mean = first + count / 2.0;
        let products = rows * f64::from(of_chunk) * (mean / f64::from(FAST_CHUNK)).ceil();
        let each = products / (f64::from(chip.multiprocessors) * self.clock());
        let blocks = f64::from(cut.blocks(self.count) * shape.kv_heads);
        let cache = blocks * (first + 0.75 * count) * f64::from(2 * head_dim * 2);
        let (issue, tensor) = (each * ATTENTION / ISSUED, each * OF_HALVES / chip.half.value);
        together(&[issue, tensor, cache / (chip.l2.value * 1e9)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cost::{CHIPS, chip};
    use crate::shape::presets;

    /// llama.cpp's tokens per second of a prompt of 512, 7B in Q4_0, as published.
    const LLAMA_CPP: [(&str, f64); 7] = [
        ("H100 SXM", 11263.0),
        ("A100-80", 5286.0),
        ("RTX 5090", 14970.0),
        ("RTX 4090", 14771.0),
        ("RTX 3090", 5560.0),
        ("T4", 1310.0),
        ("AGX Orin", 1172.0),
    ];

    fn preset(name: &str) -> ModelShape {
        presets::by_name(name).expect("a preset").shape
    }

    #[test]
    fn figures_in_the_documentation_are_the_models() {
        let mut rows = String::new();
        for (name, published) in LLAMA_CPP {
            let chip = chip(name).expect("a chip");
            rows += &format!("| {name} |");
            for model in ["qwen3b", "qwen3-8b"] {
                for tokens in [64, 512, 4096] {
                    let seconds = first_token(&preset(model), tokens, chip).seconds();
                    rows += &format!(" {:.1} |", 1e3 * seconds);
                }
            }
            let rate = 512.0 / first_token(&preset("qwen3-8b"), 512, chip).seconds();
            rows += &format!(" {rate:.0} | {published:.0} |\n");
        }
        let page = include_str!("../../../docs/FIGURES.md");
        assert!(page.contains(&rows), "docs/FIGURES.md has other rows than\n{rows}");
    }

    #[test]
    fn a_prompt_takes_no_less_than_its_products() {
        for model in ["qwen3b", "qwen3-8b"] {
            let shape = preset(model);
            for chip in &CHIPS {
                let found = [64, 512, 4096].map(|tokens| first_token(&shape, tokens, chip));
                for (found, tokens) in found.iter().zip([64.0, 512.0, 4096.0]) {
                    let weights: u64 = phases(&shape, 0, 2).iter().map(|phase| phase.q4_k + phase.q6_k).sum();
                    let head = u64::from(shape.hidden) * u64::from(shape.vocab);
                    let least = (tokens - 1.0) * (weights - head) as f64
                        / (chip.int8.value * f64::from(chip.multiprocessors) * chip.clock.value * 1e9);
                    assert!(found.products >= least, "{model}, {}: {found:?}", chip.name);
                    assert!(found.products < 12.0 * least, "{model}, {}: {found:?}, {least}", chip.name);
                }
                assert!(found[0].seconds() < found[1].seconds() && found[1].seconds() < found[2].seconds());
                let of_layer = if attend_together(&shape, 64, chip.multiprocessors) { 6 } else { 7 };
                assert_eq!(found[0].launches, of_layer * shape.layers + 2);
                assert_eq!(found[2].launches, 8 * (6 * shape.layers + 2));
            }
        }
    }

    #[test]
    fn batches_are_faster_than_token_by_token_also_in_small_tiles() {
        let (shape, t4) = (preset("qwen3b"), chip("T4").expect("a chip"));
        let [one, many] = [1, 129].map(|tokens| first_token(&shape, tokens, t4));
        assert_eq!((one.launches, one.products), (0, 0.0));
        let ratio = 128.0 * one.seconds() / many.seconds();
        assert!((3.0..128.0).contains(&ratio), "{ratio}");
    }
}
