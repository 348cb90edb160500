//! F16, BF16 and F32: the weights themselves, 512 or 1024 bytes a super-block, as files have them.
//!
//! A lane takes every eighth piece of 16 bytes.

use super::unpack::chunk_dot;
use super::{Activations, Dot, Format, Reader, SuperBlock};
use crate::ptx::{Builder, F16, F32, Shared, U32, Val};

pub(super) struct F16Weights;
pub(super) struct Bf16Weights;
pub(super) struct F32Weights;

/// A lane's part of a super-block, for products with several columns: its weights are loaded and unpacked once.
pub(crate) struct Pieces {
    pub(crate) reader: Reader,
    /// Loads the lane's words of a super-block.
    words: Words,
    floats: Floats,
}

type Words = Box<dyn Fn(&mut Builder, &SuperBlock) -> Vec<Val<U32>>>;
type Floats = Box<dyn Fn(&mut Builder, &[Val<U32>]) -> [[Val<F32>; 16]; 2]>;

impl Pieces {
    pub(crate) fn words(&self, b: &mut Builder, block: &SuperBlock) -> Vec<Val<U32>> {
        (self.words)(b, block)
    }

    /// The weights of these words: those that the low activations meet, and those of the high ones.
    pub(crate) fn floats(&self, b: &mut Builder, words: &[Val<U32>]) -> [[Val<F32>; 16]; 2] {
        (self.floats)(b, words)
    }

    fn dot(self) -> Dot {
        let Pieces { reader, words, floats } = self;
        let part = Box::new(move |b: &mut Builder, block: &SuperBlock, x: &Activations| {
            let words = words(b, block);
            let weights = floats(b, &words);
            product(b, &weights, x)
        });
        Dot { reader, part }
    }
}

/// The sum of the products of a lane's weights and activations: no scale stands before it.
pub(crate) fn product(b: &mut Builder, [low, high]: &[[Val<F32>; 16]; 2], x: &Activations) -> Val<F32> {
    let (low, high) = (chunk_dot(b, *low, &x.low), chunk_dot(b, *high, &x.high));
    b.add(low, high)
}

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

/// The lane's words of a super-block, `pieces` pieces of 16 bytes.
fn words(b: &mut Builder, block: &SuperBlock, first: Val<U32>, pieces: u32) -> Vec<Val<U32>> {
    (0..pieces).flat_map(|i| block.quad(b, first, 128 * i)).collect()
}

/// Weights of 16 bits: pieces of 8, four a lane.
fn pieces16(b: &mut Builder, x: Shared<F32>, g: Val<U32>, halves: Halves) -> Pieces {
    let reader = Reader::pieces(b, x, g, 2);
    let first = b.shl::<U32>(g, 4);
    let words = Box::new(move |b: &mut Builder, block: &SuperBlock| words(b, block, first, 4));
    let floats = Box::new(move |b: &mut Builder, words: &[Val<U32>]| {
        let floats: Vec<Val<F32>> = words.iter().flat_map(|word| halves(b, *word)).collect();
        [0, 16].map(|from| std::array::from_fn(|i| floats[from + i]))
    });
    Pieces { reader, words, floats }
}

/// Weights of 32 bits: pieces of 4, eight a lane.
fn pieces32(b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Pieces {
    let reader = Reader::pieces(b, x, g, 1);
    let first = b.shl::<U32>(g, 4);
    let words = Box::new(move |b: &mut Builder, block: &SuperBlock| words(b, block, first, 8));
    let floats = Box::new(|b: &mut Builder, words: &[Val<U32>]| {
        [0, 16].map(|from| std::array::from_fn(|i| b.mov_bits(words[from + i])))
    });
    Pieces { reader, words, floats }
}

fn eight16(b: &mut Builder, block: &SuperBlock, lane: Val<U32>, halves: Halves) -> [Val<F32>; 8] {
    let from = b.byte_index(block.data, lane, 16);
    let words: [Val<U32>; 4] = b.ld_vector(from.cast::<U32>(), block.kind);
    let pairs = words.map(|word| halves(b, word));
    std::array::from_fn(|i| pairs[i / 2][i % 2])
}

impl Format for F16Weights {
    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        pieces16(b, x, g, f16).dot()
    }

    fn pieces(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Option<Pieces> {
        Some(pieces16(b, x, g, f16))
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        eight16(b, block, lane, f16)
    }
}

impl Format for Bf16Weights {
    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        pieces16(b, x, g, bf16).dot()
    }

    fn pieces(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Option<Pieces> {
        Some(pieces16(b, x, g, bf16))
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        eight16(b, block, lane, bf16)
    }
}

impl Format for F32Weights {
    fn dot(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Dot {
        pieces32(b, x, g).dot()
    }

    fn pieces(&self, b: &mut Builder, x: Shared<F32>, g: Val<U32>) -> Option<Pieces> {
        Some(pieces32(b, x, g))
    }

    fn eight(&self, b: &mut Builder, block: &SuperBlock, lane: Val<U32>) -> [Val<F32>; 8] {
        let from = b.byte_index(block.data, lane, 32);
        let quads: [[Val<F32>; 4]; 2] =
            std::array::from_fn(|i| b.ld_vector(from.at(16 * i as u32).cast::<F32>(), block.kind));
        std::array::from_fn(|i| quads[i / 4][i % 4])
    }
}
