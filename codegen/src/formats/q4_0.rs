//! Q4_0: `w = d * (q - 8)`, four bits a weight, a scale for every 32.
//!
//! | bytes of a super-block | what |
//! |---|---|
//! | 0..128 | nibbles, 16 bytes a block: its first 16 weights in the low halves, the others in the high ones |
//! | plane 0..16 | `d` of eight blocks, f16 |
//!
//! A file's block of 32 has `d` before its nibbles. A lane has a block.

use super::activations::BlockOf32;
use super::int8::{Sums, masked_dot, sum_of_blocks, without_offset};
use super::mma::{self, Two, Values, less};
use super::unpack::{bytes, chunk_dot};
use super::{
    Activations, Columns, Dot, Format, Int8, Mma, Move, Place, Plane, Reader, Rows, ScaleGroup, SuperBlock, Weights,
};
use crate::ptx::{Builder, F32, S32, Shared, U32, Val};

pub(super) struct Q4_0;

impl Format for Q4_0 {
    fn repack(&self) -> &'static [Move] {
        const MOVES: &[Move] = &[
            Move { from: 0, to: 1, place: Place::Plane { at: 0, stride: 2 } },
            Move { from: 1, to: 9, place: Place::Data },
        ];
        MOVES
    }

    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        let block_of_32 = BlockOf32::new(b, g);
        let reader = Reader::block(b, x, &block_of_32);
        let quants_at = b.shl::<U32>(g, 4);
        let upper = b.mov(0x4200_0000u32);
        let part = Box::new(move |b: &mut Builder, block: &SuperBlock, x: &Activations| {
            let quants = block.quad(b, quants_at, 0);
            let d = block.half_of_plane(b, 0, g);
            // The floats are 32 + q, and the weights multiples of q - 8.
            let [low, high] = block_of_32.nibbles(b, quants).map(|words| bytes(b, words, upper, 40.0));
            let (low, high) = (chunk_dot(b, low, &x.low), chunk_dot(b, high, &x.high));
            let sum = b.add(low, high);
            b.mul(d, sum)
        });
        Dot { reader, part }
    }

    fn int8(&self) -> Option<Int8> {
        Some(Int8 { group: ScaleGroup::Of32, sums: Some(Sums::Of32), dot: int8_dot, by_two: None })
    }

    fn mma(&self) -> Option<Mma> {
        Some(Mma { group: ScaleGroup::Of32, part: mma_part })
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        let number = b.shr(lane, 2);
        let d = block.half_of_plane(b, 0, number);
        let words = eight_nibbles(b, block, lane);
        std::array::from_fn(|i| {
            let quant = b.bfe::<U32>(words[i / 4], 8 * (i as u32 % 4), 4);
            let quant = b.cvt::<F32, U32>(quant);
            let quant = b.sub(quant, 8.0);
            b.mul(d, quant)
        })
    }
}

/// The low bits of weights `8 * lane .. 8 * lane + 8`, in the low half of a byte each.
pub(super) fn eight_nibbles(b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<U32>; 2] {
    let (number, odd) = (b.shr(lane, 2), b.and(lane, 1));
    let from = b.byte_index(block.data, number, 16);
    let from = b.byte_index(from, odd, 8);
    let words: [Val<U32>; 2] = b.ld_vector(from.cast::<U32>(), block.kind);
    let second = b.and(lane, 2);
    let shift = b.shl::<U32>(second, 1);
    words.map(|word| b.shr::<U32>(word, shift))
}

/// The blocks' products summed as in Q8_0, each less 8 times the sum of its activations.
fn int8_dot(b: &mut Builder, weights: &Weights, x: &Plane) -> Val<F32> {
    let dots = std::array::from_fn(|block| {
        let quants = [weights.quad(b, block)];
        let first = 2 * block as u32;
        let x = [x.quad(b, first), x.quad(b, first + 1)];
        // Nibbles in the upper halves of bytes are 16 times as large.
        let low = masked_dot(b, &quants, 0x0f0f_0f0f, &x[..1]);
        let high = masked_dot(b, &quants, 0xf0f0_f0f0, &x[1..]);
        let high = b.shr::<S32>(high, 4);
        b.add::<S32>(low, high)
    });
    let dots = without_offset(b, dots, 8, x);
    let d = weights.halves(b, 0);
    sum_of_blocks(b, d, x, dots)
}

/// The sums of [`int8_dot`], many rows and some eights of columns at once.
fn mma_part(b: &mut Builder, rows: &[Rows], columns: &Columns<'_>) -> Vec<Values> {
    let d = mma::Halves::new(b, rows, columns, 0);
    let quants = |b: &mut Builder, tile: usize, two| blocks(b, &rows[tile], two).map(|quants| less(b, quants, 8));
    mma::sum_of_blocks(b, rows, columns, |b, tile, two| d.of(b, &rows[tile], tile, two), quants)
}

/// The low bits of two blocks: a byte has weight `i` of its block, and above it `i + 16`.
pub(super) fn blocks(b: &mut Builder, rows: &Rows, two: Two) -> [[Val<U32>; 4]; 2] {
    let words = rows.fragment_of(b, 0, two.times(32));
    let (low, high) = (mma::nibbles(b, words, false), mma::nibbles(b, words, true));
    [[low[0], low[1], high[0], high[1]], [low[2], low[3], high[2], high[3]]]
}
