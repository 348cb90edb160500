//! Random matrices in every supported type, as a GGUF file holds them and as kernels want them.

use half::{bf16, f16};
use kiln_shape::WeightType;

use crate::dequantise::dequantise;
use crate::random::Random;

/// An `[n, k]` matrix.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub ty: WeightType,
    pub n: usize,
    pub k: usize,
    /// As in a file.
    pub bytes: Vec<u8>,
    /// What it means, row after row.
    pub weights: Vec<f64>,
}

impl Matrix {
    /// Weights between about -1 and 1, every field of every block random: scales of both signs, all nibbles, all six bits.
    pub fn random(ty: WeightType, n: usize, k: usize, random: &mut Random) -> Matrix {
        let blocks = n * k / ty.block_len() as usize;
        let mut bytes = Vec::with_capacity(blocks * ty.block_bytes() as usize);
        for _ in 0..blocks {
            let mut block = random.bytes(ty.block_bytes() as usize);
            let mut half = |at: usize, scale: f32| {
                let value = f16::from_f32(scale * (1.25 + random.symmetric() * 0.75) * sign(random.next()));
                block[at..at + 2].copy_from_slice(&value.to_le_bytes());
            };
            match ty {
                WeightType::Q4_K => {
                    half(0, 1.0 / (63.0 * 15.0));
                    half(2, 1.0 / 63.0);
                }
                WeightType::Q4_0 => half(0, 1.0 / 8.0),
                WeightType::Q5_0 => half(0, 1.0 / 16.0),
                WeightType::Q5_K => {
                    half(0, 1.0 / (63.0 * 31.0));
                    half(2, 1.0 / 63.0);
                }
                WeightType::Q6_K => half(208, 1.0 / (128.0 * 32.0)),
                WeightType::Q8_0 => half(0, 1.0 / 128.0),
                WeightType::F16 => half(0, 0.5),
                WeightType::BF16 => block.copy_from_slice(&bf16::from_f32(random.symmetric()).to_le_bytes()),
                WeightType::F32 => block.copy_from_slice(&random.symmetric().to_le_bytes()),
            }
            bytes.extend(block);
        }
        let weights = dequantise(ty, &bytes);
        Matrix { ty, n, k, bytes, weights }
    }

    /// One that a file holds.
    pub fn of(ty: WeightType, n: usize, k: usize, bytes: &[u8]) -> Matrix {
        Matrix { ty, n, k, bytes: bytes.to_vec(), weights: dequantise(ty, bytes) }
    }

    /// Makes a weight 0: a term and its min that cancel where the type has mins, else a quant of 0.
    pub fn clear(&mut self, row: usize, column: usize, random: &mut Random) {
        let (len, size) = (self.ty.block_len() as usize, self.ty.block_bytes() as usize);
        let (index, i) = ((row * self.k + column) / len, column % len);
        let block = &mut self.bytes[index * size..][..size];
        match self.ty {
            WeightType::Q4_K | WeightType::Q5_K => {
                // dmin is d and the sub-block's min q times its scale, at most 63; a fifth bit is cleared.
                let (q, scale) = (1 + random.below(15), random.below(5));
                let min = q * scale;
                block.copy_within(0..2, 2);
                let (s, sub) = (&mut block[4..16], i / 32);
                let mut put = |at: usize, mask: u8, bits: u32| s[at] = s[at] & !mask | bits as u8 & mask;
                if sub < 4 {
                    put(sub, 63, scale);
                    put(sub + 4, 63, min);
                } else {
                    put(sub + 4, 255, scale & 15 | min << 4);
                    put(sub - 4, 0xc0, scale << 2);
                    put(sub, 0xc0, min << 2);
                }
                let nibbles = if self.ty == WeightType::Q5_K {
                    block[16 + i % 32] &= !(1 << sub);
                    48
                } else {
                    16
                };
                let byte = &mut block[nibbles + i / 64 * 32 + i % 32];
                *byte = if i % 64 < 32 { *byte & 0xf0 | q as u8 } else { *byte & 0x0f | (q as u8) << 4 };
            }
            WeightType::Q6_K => {
                let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
                // 32: the low bits 0, the high ones 2.
                block[64 * half + 32 * (quarter % 2) + l] &= if quarter < 2 { 0xf0 } else { 0x0f };
                let high = &mut block[128 + 32 * half + l];
                *high = *high & !(3 << (2 * quarter)) | 2 << (2 * quarter);
            }
            WeightType::Q4_0 | WeightType::Q5_0 => {
                // 8 in four bits, 16 in five.
                let (nibbles, q) = if self.ty == WeightType::Q4_0 { (2, 8) } else { (6, 0) };
                if self.ty == WeightType::Q5_0 {
                    block[2 + i / 8] |= 1 << (i % 8);
                }
                let byte = &mut block[nibbles + i % 16];
                *byte = if i < 16 { *byte & 0xf0 | q } else { *byte & 0x0f | q << 4 };
            }
            WeightType::Q8_0 => block[2 + i] = 0,
            WeightType::F16 | WeightType::BF16 | WeightType::F32 => block.fill(0),
        }
        let weights = dequantise(self.ty, block);
        assert_eq!(weights[i], 0.0, "the weight is cleared");
        self.weights[index * len..][..len].copy_from_slice(&weights);
    }

    /// What kernels read: the data, and the plane where the type has one, with zeros behind a row that ends within a
    /// super-block.
    pub fn planes(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut data, mut plane) = (Vec::new(), Vec::new());
        let block = self.ty.block_bytes() as usize;
        for row in self.bytes.chunks(self.k / self.ty.block_len() as usize * block) {
            // Of a super-block: fields that stand in the plane, each for all of its blocks.
            for blocks in row.chunks(block * (256 / self.ty.block_len() as usize)) {
                let mut field = |bytes: std::ops::Range<usize>| {
                    let padded = bytes.len() * 256 / self.ty.block_len() as usize;
                    let of_blocks = blocks.chunks(block).flat_map(|block| &block[bytes.clone()]).copied();
                    plane.extend(of_blocks.chain(std::iter::repeat(0)).take(padded));
                };
                let rest = match self.ty {
                    WeightType::Q6_K => {
                        field(208..210);
                        0..208
                    }
                    WeightType::Q4_0 => {
                        field(0..2);
                        2..18
                    }
                    WeightType::Q5_0 => {
                        field(2..6);
                        field(0..2);
                        6..22
                    }
                    WeightType::Q8_0 => {
                        field(0..2);
                        2..34
                    }
                    WeightType::Q4_K | WeightType::Q5_K | WeightType::F16 | WeightType::BF16 | WeightType::F32 => {
                        0..block
                    }
                };
                blocks.chunks(block).for_each(|block| data.extend_from_slice(&block[rest.clone()]));
            }
        }
        (data, plane)
    }

    /// A row's weights.
    pub fn row(&self, row: usize) -> &[f64] {
        &self.weights[row * self.k..][..self.k]
    }

    /// `sum_k |W[n, k] x[k]|`: what a rounding error of `W x` is a part of, however much of it cancels.
    pub fn magnitudes(&self, x: &[f64]) -> Vec<f64> {
        (0..self.n).map(|row| self.row(row).iter().zip(x).map(|(w, x)| (w * x).abs()).sum()).collect()
    }

    /// `W x`.
    pub fn times(&self, x: &[f64]) -> Vec<f64> {
        (0..self.n).map(|row| self.row(row).iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }
}

fn sign(bits: u64) -> f32 {
    if bits & 1 == 0 { 1.0 } else { -1.0 }
}
