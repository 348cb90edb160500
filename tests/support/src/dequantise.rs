//! Weight blocks to numbers, written from the formats' descriptions, one weight at a time.
//!
//! The arithmetic is float32 as in ggml's own dequantiser, so that the numbers are the same to the last bit.

use kiln_shape::WeightType;

/// The weights stored in `bytes`, a whole number of blocks.
pub fn dequantise(ty: WeightType, bytes: &[u8]) -> Vec<f64> {
    let block = ty.block_bytes() as usize;
    assert_eq!(bytes.len() % block, 0, "whole blocks");
    let mut weights = Vec::with_capacity(bytes.len() / block * ty.block_len() as usize);
    for block in bytes.chunks_exact(block) {
        match ty {
            WeightType::F32 => weights.push(f32::from_le_bytes(block.try_into().unwrap())),
            WeightType::F16 => weights.push(f16(block, 0)),
            WeightType::BF16 => weights.push(f32::from_le_bytes([0, 0, block[0], block[1]])),
            WeightType::Q8_0 => weights.extend(block[2..].iter().map(|&q| f16(block, 0) * f32::from(q as i8))),
            WeightType::Q4_K => weights.extend((0..256).map(|i| q4_k(block, i))),
            WeightType::Q4_0 => {
                weights.extend((0..32).map(|i| f16(block, 0) * (f32::from(half_nibble(&block[2..], i)) - 8.0)))
            }
            WeightType::Q5_0 => weights.extend((0..32).map(|i| q5_0(block, i))),
            WeightType::Q5_K => weights.extend((0..256).map(|i| q5_k(block, i))),
            WeightType::Q6_K => weights.extend((0..256).map(|i| q6_k(block, i))),
        }
    }
    weights.into_iter().map(f64::from).collect()
}

/// The float16 at byte `at`.
fn f16(bytes: &[u8], at: usize) -> f32 {
    let bits = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 => panic!("an infinite or undefined scale"),
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// Weight `i` of a Q4_K super-block: d, dmin, 12 bytes of 6-bit scales and mins, 128 bytes of nibbles.
fn q4_k(block: &[u8], i: usize) -> f32 {
    with_min(block, i / 32, nibble(&block[16..], i))
}

/// Weight `i` of a Q5_0 block: d, 32 fifth bits, 16 bytes of nibbles.
fn q5_0(block: &[u8], i: usize) -> f32 {
    let fifth = block[2 + i / 8] >> (i % 8) & 1;
    f16(block, 0) * (f32::from(half_nibble(&block[6..], i) | fifth << 4) - 16.0)
}

/// The low bits of weight `i` of a block of 32: the first 16 of them in the low halves of 16 bytes.
fn half_nibble(qs: &[u8], i: usize) -> u8 {
    if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 }
}

/// Weight `i` of a Q5_K super-block: as Q4_K's, with 32 bytes of fifth bits before the nibbles.
fn q5_k(block: &[u8], i: usize) -> f32 {
    let fifth = block[16 + i % 32] >> (i / 32) & 1;
    with_min(block, i / 32, nibble(&block[48..], i) | fifth << 4)
}

/// The low bits of weight `i`: 32 bytes for 64 weights, the first 32 of them in the low halves.
fn nibble(qs: &[u8], i: usize) -> u8 {
    let byte = qs[i / 64 * 32 + i % 32];
    if i % 64 < 32 { byte & 15 } else { byte >> 4 }
}

/// What a quant of a sub-block of Q4_K or Q5_K stands for.
fn with_min(block: &[u8], sub: usize, q: u8) -> f32 {
    let s = &block[4..16];
    let (scale, min) = match sub {
        0..4 => (s[sub] & 63, s[sub + 4] & 63),
        _ => (s[sub + 4] & 15 | s[sub - 4] >> 6 << 4, s[sub + 4] >> 4 | s[sub] >> 6 << 4),
    };
    f16(block, 0) * f32::from(scale) * f32::from(q) - f16(block, 2) * f32::from(min)
}

/// Weight `i` of a Q6_K super-block: 128 bytes of low nibbles, 64 of high pairs, 16 scales, d.
fn q6_k(block: &[u8], i: usize) -> f32 {
    let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
    let low = block[64 * half + 32 * (quarter % 2) + l];
    let low = if quarter < 2 { low & 15 } else { low >> 4 };
    let high = block[128 + 32 * half + l] >> (2 * quarter) & 3;
    let scale = block[192 + 8 * half + 2 * quarter + l / 16] as i8;
    f16(block, 208) * f32::from(scale) * (f32::from(low | high << 4) - 32.0)
}
