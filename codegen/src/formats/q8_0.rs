//! Q8_0: `w = d * q`, a signed byte a weight, a scale for every 32.
//!
//! | bytes of a super-block | what |
//! |---|---|
//! | 0..256 | quants |
//! | plane 0..16 | `d` of eight blocks, f16 |
//!
//! A file's block of 32 has `d` before its quants.

use super::int8::{dots_of_blocks, sum_by_two, sum_of_blocks};
use super::mma::{self, Two, Values};
use super::q4_k;
use super::unpack::{chunk_dot, signed_bytes};
use super::{
    Activations, Columns, Dot, Format, Int8, Mma, Move, Place, Plane, Reader, Rows, ScaleGroup, SuperBlock, Weights,
};
use crate::ptx::{Builder, F16, F32, S32, Shared, U32, Val};

pub(super) struct Q8_0;

impl Format for Q8_0 {
    fn repack(&self) -> &'static [Move] {
        const MOVES: &[Move] = &[
            Move { from: 0, to: 1, place: Place::Plane { at: 0, stride: 2 } },
            Move { from: 1, to: 17, place: Place::Data },
        ];
        MOVES
    }

    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        let chunks = q4_k::chunks(b, g);
        let reader = Reader::chunks(b, x, &chunks);
        let low_at = b.shl::<U32>(chunks.low, 4);
        // The scales of blocks 2c and 2c + 1 are one aligned word.
        let pair = b.shr(g, 1);
        let pair = b.shl::<U32>(pair, 2);
        let part = Box::new(move |b: &mut Builder, block: &SuperBlock, x: &Activations| {
            let (low, high) = (block.quad(b, low_at, 0), block.quad(b, low_at, 32));
            let scales = b.byte_index(block.plane, pair, 1);
            let scales = b.ld(scales.cast::<U32>(), block.kind);
            let [low_scale, high_scale] = b.unpack::<F16>(scales).map(|scale| b.cvt::<F32, F16>(scale));
            let (low, high) = (signed_bytes(b, low), signed_bytes(b, high));
            let (low, high) = (chunk_dot(b, low, &x.low), chunk_dot(b, high, &x.high));
            let high = b.mul(high_scale, high);
            b.fma(low_scale, low, high)
        });
        Dot { reader, part }
    }

    fn int8(&self) -> Option<Int8> {
        Some(Int8 { group: ScaleGroup::Of32, sums: None, dot: int8_dot, by_two: Some(int8_by_two) })
    }

    fn mma(&self) -> Option<Mma> {
        Some(Mma { group: ScaleGroup::Of32, part: mma_part })
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        let number = b.shr(lane, 2);
        let d = block.half_of_plane(b, 0, number);
        let from = b.byte_index(block.data, lane, 8);
        let words: [Val<S32>; 2] = b.ld_vector(from.cast::<S32>(), block.kind);
        std::array::from_fn(|i| {
            let quant = b.bfe(words[i / 4], 8 * (i as u32 % 4), 8);
            let quant = b.cvt::<F32, S32>(quant);
            b.mul(d, quant)
        })
    }
}

/// `sum over the eight blocks of scale of x * (d * (q . x))`, each product of bytes exact, from left to right.
fn int8_dot(b: &mut Builder, weights: &Weights, x: &Plane) -> Val<F32> {
    let dots = dots_of_blocks(b, weights, x);
    let d = weights.halves(b, 0);
    sum_of_blocks(b, d, x, dots)
}

/// The same by two lanes, four blocks each.
fn int8_by_two(b: &mut Builder, weights: &Weights, x: &Plane) -> Val<F32> {
    let dots = dots_of_blocks(b, weights, x);
    let [d0, d1, d2, d3, ..] = weights.halves(b, 0);
    sum_by_two(b, [d0, d1, d2, d3], x, dots)
}

/// The sums of [`int8_dot`], many rows and some eights of columns at once.
fn mma_part(b: &mut Builder, rows: &[Rows], columns: &Columns<'_>) -> Vec<Values> {
    let d = mma::Halves::new(b, rows, columns, 0);
    let quants =
        |b: &mut Builder, tile: usize, two: Two| [0, 32].map(|at| rows[tile].fragment_of(b, at, two.times(64)));
    mma::sum_of_blocks(b, rows, columns, |b, tile, two| d.of(b, &rows[tile], tile, two), quants)
}
