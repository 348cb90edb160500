//! Integers to floats without a conversion from integers, and the sums of a chunk.
//!
//! A byte under a constant upper byte is the float `2^e + q`, and subtracting `2^e` is exact.

use crate::ptx::{Builder, F32, U32, Val};

/// `sum over i of weights[i] * x[i]`: four chains of four and a tree over them.
pub(super) fn chunk_dot(b: &mut Builder, weights: [Val<F32>; 16], x: &[Val<F32>; 16]) -> Val<F32> {
    let [c0, c1, c2, c3] = std::array::from_fn(|chain| {
        let first = 4 * chain;
        let sum = b.mul(weights[first], x[first]);
        (first + 1..first + 4).fold(sum, |sum, i| b.fma(weights[i], x[i], sum))
    });
    let (low, high) = (b.add(c0, c1), b.add(c2, c3));
    b.add(low, high)
}

/// `q` of every byte of four words as a float: with `upper` as highest byte, the byte becomes the float `offset + q`.
pub(super) fn bytes(b: &mut Builder, words: [Val<U32>; 4], upper: Val<U32>, offset: f32) -> [Val<F32>; 16] {
    std::array::from_fn(|i| {
        // Bytes of the result, lowest first: 0, 0, byte i % 4 of the word, the constant.
        let float = b.prmt(words[i / 4], upper, 0x7044 | ((i as u32 % 4) << 8));
        let float = b.mov_bits::<F32, U32>(float);
        b.sub(float, offset)
    })
}

/// As [`bytes`] for signed bytes: `2^23 + 128 + q` is exact, and so is the subtraction that leaves `q`.
pub(super) fn signed_bytes(b: &mut Builder, words: [Val<U32>; 4]) -> [Val<F32>; 16] {
    let upper = b.mov(0x4b00_0000u32);
    let words = words.map(|word| b.xor::<U32>(word, 0x8080_8080));
    std::array::from_fn(|i| {
        let float = b.prmt(words[i / 4], upper, 0x7440 | (i as u32 % 4));
        let float = b.mov_bits::<F32, U32>(float);
        b.sub(float, 8_388_736.0)
    })
}
