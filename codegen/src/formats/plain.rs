//! F16, BF16 and F32: the weights themselves, 512 or 1024 bytes a super-block, as files have them.
//!
//! A lane takes every eighth piece of 16 bytes.

use super::unpack::chunk_dot;
use super::{Activations, Dot, Format, Reader, SuperBlock};
use crate::ptx::{Builder, F16, F32, Shared, U32, Val};

pub(super) struct F16Weights;
pub(super) struct Bf16Weights;
pub(super) struct F32Weights;

/// The two 16-bit floats of a word.
type Halves = fn(&mut Builder, Val<U32>) -> [Val<F32>; 2];

fn f16(b: &mut Builder, word: Val<U32>) -> [Val<F32>; 2] {
    b.unpack::<F16>(word).map(|half| b.cvt(half))
}

fn bf16(b: &mut Builder, word: Val<U32>) -> [Val<F32>; 2] {
    let low = b.shl::<U32>(word, 16);
    let high = b.and(word, 0xffff_0000);
    [b.mov_bits(low), b.mov_bits(high)]
}

/// The sum of both chunks' products: no scale stands before it.
fn sum(b: &mut Builder, low: [Val<F32>; 16], high: [Val<F32>; 16], x: &Activations) -> Val<F32> {
    let (low, high) = (chunk_dot(b, low, &x.low), chunk_dot(b, high, &x.high));
    b.add(low, high)
}

/// Weights of 16 bits: pieces of 8, four a lane.
fn dot16(b: &mut Builder, x: Shared<F32>, g: Val<U32>, halves: Halves) -> Dot {
    let reader = Reader::pieces(b, x, g, 2);
    let first = b.shl::<U32>(g, 4);
    let part = Box::new(move |b: &mut Builder, block: &SuperBlock, x: &Activations| {
        let mut chunk = |at: u32| -> [Val<F32>; 16] {
            let words = [block.quad(b, first, at), block.quad(b, first, at + 128)];
            let pairs: Vec<[Val<F32>; 2]> = words.into_iter().flatten().map(|word| halves(b, word)).collect();
            std::array::from_fn(|i| pairs[i / 2][i % 2])
        };
        let (low, high) = (chunk(0), chunk(256));
        sum(b, low, high, x)
    });
    Dot { reader, part }
}

fn eight16(b: &mut Builder, block: &SuperBlock, lane: Val<U32>, halves: Halves) -> [Val<F32>; 8] {
    let from = b.byte_index(block.data, lane, 16);
    let words: [Val<U32>; 4] = b.ld_vector(from.cast::<U32>(), block.kind);
    let pairs = words.map(|word| halves(b, word));
    std::array::from_fn(|i| pairs[i / 2][i % 2])
}

impl Format for F16Weights {
    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        dot16(b, x, g, f16)
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        eight16(b, block, lane, f16)
    }
}

impl Format for Bf16Weights {
    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        dot16(b, x, g, bf16)
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        eight16(b, block, lane, bf16)
    }
}

impl Format for F32Weights {
    /// Pieces of 4, eight a lane.
    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        let reader = Reader::pieces(b, x, g, 1);
        let first = b.shl::<U32>(g, 4);
        let part = Box::new(move |b: &mut Builder, block: &SuperBlock, x: &Activations| {
            let mut chunk = |at: u32| -> [Val<F32>; 16] {
                let words: [[Val<U32>; 4]; 4] = std::array::from_fn(|i| block.quad(b, first, at + 128 * i as u32));
                std::array::from_fn(|i| b.mov_bits(words[i / 4][i % 4]))
            };
            let (low, high) = (chunk(0), chunk(512));
            sum(b, low, high, x)
        });
        Dot { reader, part }
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        let from = b.byte_index(block.data, lane, 32);
        let quads: [[Val<F32>; 4]; 2] =
            std::array::from_fn(|i| b.ld_vector(from.at(16 * i as u32).cast::<F32>(), block.kind));
        std::array::from_fn(|i| quads[i / 4][i % 4])
    }
}
