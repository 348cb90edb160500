//! Q5_0: `w = d * (q - 16)`, five bits a weight, a scale for every 32.
//!
//! | bytes of a super-block | what |
//! |---|---|
//! | 0..128 | nibbles as in Q4_0 |
//! | plane 0..32 | fifth bits of eight blocks, a word each: bit `i` is that of weight `i` |
//! | plane 32..48 | `d` of eight blocks, f16 |
//!
//! A file's block of 32 has `d` and its fifth bits before its nibbles. A lane has a block.

use super::activations::BlockOf32;
use super::int8::{Sums, sum_of_blocks, without_offset};
use super::mma::{self, Two, Values, less};
use super::q4_0::{blocks, eight_nibbles};
use super::unpack::{bytes, chunk_dot};
use super::{
    Activations, Columns, Dot, Format, Int8, Mma, Move, Place, Plane, Reader, Rows, ScaleGroup, SuperBlock, Weights,
};
use crate::ptx::{Builder, F32, S32, Shared, U32, Val};

pub(super) struct Q5_0;

impl Format for Q5_0 {
    fn repack(&self) -> &'static [Move] {
        const MOVES: &[Move] = &[
            Move { from: 0, to: 1, place: Place::Plane { at: 32, stride: 2 } },
            Move { from: 1, to: 3, place: Place::Plane { at: 0, stride: 4 } },
            Move { from: 3, to: 11, place: Place::Data },
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
            let fifth = b.byte_index(block.plane, g, 4);
            let fifth = b.ld(fifth.cast::<U32>(), block.kind);
            let d = block.half_of_plane(b, 32, g);
            let (nibbles, fifth) = (block_of_32.nibbles(b, quants), block_of_32.bits(b, fifth));
            let mut half = |half: usize| {
                let words = std::array::from_fn(|i| {
                    // Bit i of four goes to bit 8i + 6: the factor moves each of them to all its places, none to another's.
                    let four = b.bfe::<U32>(fifth[half], 4 * i as u32, 4);
                    let spread = b.mul::<U32>(four, 0x0810_2040);
                    b.and_or(spread, 0x4040_4040, nibbles[half][i])
                });
                // The floats are 32 + q, and the weights multiples of q - 16.
                bytes(b, words, upper, 48.0)
            };
            let (low, high) = (half(0), half(1));
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
        let (number, piece) = (b.shr(lane, 2), b.and(lane, 3));
        let d = block.half_of_plane(b, 32, number);
        let fifth = b.byte_index(block.plane, number, 4);
        let fifth = b.ld(fifth.cast::<U32>(), block.kind);
        let first = b.shl::<U32>(piece, 3);
        let fifth = b.shr::<U32>(fifth, first);
        let words = eight_nibbles(b, block, lane);
        std::array::from_fn(|i| {
            let low = b.bfe::<U32>(words[i / 4], 8 * (i as u32 % 4), 4);
            let top = b.bfe::<U32>(fifth, i as u32, 1);
            let quant = b.mad::<U32>(top, 16, low);
            let quant = b.cvt::<F32, U32>(quant);
            let quant = b.sub(quant, 16.0);
            b.mul(d, quant)
        })
    }
}

/// The blocks' products summed as in Q8_0, each less 16 times the sum of its activations.
fn int8_dot(b: &mut Builder, weights: &Weights, x: &Plane) -> Val<F32> {
    let dots = std::array::from_fn(|block| {
        let quants = weights.quad(b, block);
        let fifths = weights.plane(b, block / 4)[block % 4];
        let first = 2 * block as u32;
        let x = [x.quad(b, first), x.quad(b, first + 1)];
        let mut sum = b.mov::<S32>(0);
        for (half, x) in x.into_iter().enumerate() {
            for (i, x) in x.into_iter().enumerate() {
                let nibbles = if half == 0 { quants[i] } else { b.shr::<U32>(quants[i], 4) };
                let nibbles = b.and::<U32>(nibbles, 0x0f0f_0f0f);
                // Bit i of four goes to bit 8i + 4: the factor moves each of them to all its places, none to another's.
                let four = b.bfe::<U32>(fifths, 16 * half as u32 + 4 * i as u32, 4);
                let spread = b.mul::<U32>(four, 0x0204_0810);
                let quant = b.and_or(spread, 0x1010_1010, nibbles);
                sum = b.dp4a::<U32>(quant, x, sum);
            }
        }
        sum
    });
    let dots = without_offset(b, dots, 16, x);
    let d = weights.halves(b, 2);
    sum_of_blocks(b, d, x, dots)
}

/// The sums of [`int8_dot`], many rows and some eights of columns at once.
fn mma_part(b: &mut Builder, rows: &[Rows], columns: &Columns<'_>) -> Vec<Values> {
    let d = mma::Halves::new(b, rows, columns, 2);
    // The fifth bits of blocks 0 to 4, and of the others.
    let tops = [0, 1].map(|quad| mma::Halves::new(b, rows, columns, quad));
    let lane = b.lane();
    let own = b.and::<U32>(lane, 3);
    let own = b.shl::<U32>(own, 2);
    let quants = |b: &mut Builder, tile: usize, two: Two| {
        let tops = mma::Halves::both(b, &tops, &rows[tile], tile, two);
        let blocks = blocks(b, &rows[tile], two);
        [0, 1].map(|block| {
            let fifths = tops[block].map(|fifths| b.shr::<U32>(fifths, own));
            let quants = std::array::from_fn(|i| {
                // The lane's four bits of each 16; the factor moves each of them to all its places, none to another's.
                let four = b.bfe::<U32>(fifths[i % 2], 16 * (i as u32 / 2), 4);
                let spread = b.mul::<U32>(four, 0x0204_0810);
                b.and_or(spread, 0x1010_1010, blocks[block][i])
            });
            less(b, quants, 16)
        })
    };
    mma::sum_of_blocks(b, rows, columns, |b, tile, two| d.of(b, &rows[tile], tile, two), quants)
}
