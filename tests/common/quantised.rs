//! Random matrices in every supported type, as a GGUF file holds them and as kernels want them.

#![allow(dead_code)] // each test uses a part

use half::{bf16, f16};
use kiln_shape::TensorType;

use super::dequantise::dequantise;
use super::random::Random;

/// An `[n, k]` matrix.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    pub(crate) ty: TensorType,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// As in a file.
    pub(crate) bytes: Vec<u8>,
    /// What it means, row after row.
    pub(crate) weights: Vec<f64>,
}

impl Matrix {
    /// Weights between about -1 and 1, every field of every block random: scales of both signs, all nibbles, all six bits.
    pub(crate) fn random(ty: TensorType, n: usize, k: usize, random: &mut Random) -> Matrix {
        let blocks = n * k / ty.block_len() as usize;
        let mut bytes = Vec::with_capacity(blocks * ty.block_bytes() as usize);
        for _ in 0..blocks {
            let mut block = random.bytes(ty.block_bytes() as usize);
            let mut half = |at: usize, scale: f32| {
                let value = f16::from_f32(scale * (1.25 + random.symmetric() * 0.75) * sign(random.next()));
                block[at..at + 2].copy_from_slice(&value.to_le_bytes());
            };
            match ty {
                TensorType::Q4_K => {
                    half(0, 1.0 / (63.0 * 15.0));
                    half(2, 1.0 / 63.0);
                }
                TensorType::Q6_K => half(208, 1.0 / (128.0 * 32.0)),
                TensorType::Q8_0 => half(0, 1.0 / 128.0),
                TensorType::F16 => half(0, 0.5),
                TensorType::BF16 => block.copy_from_slice(&bf16::from_f32(random.symmetric()).to_le_bytes()),
                TensorType::F32 => block.copy_from_slice(&random.symmetric().to_le_bytes()),
                other => panic!("no random matrix of type {other}"),
            }
            bytes.extend(block);
        }
        let weights = dequantise(ty, &bytes);
        Matrix { ty, n, k, bytes, weights }
    }

    /// What kernels read: the rows, and the plane of scales where the type has one.
    pub(crate) fn planes(&self) -> (Vec<u8>, Vec<u8>) {
        // Where the scale stands in a block that is split.
        let scale = match self.ty {
            TensorType::Q6_K => 208,
            TensorType::Q8_0 => 0,
            _ => return (self.bytes.clone(), Vec::new()),
        };
        let (mut records, mut scales) = (Vec::new(), Vec::new());
        for block in self.bytes.chunks_exact(self.ty.block_bytes() as usize) {
            records.extend_from_slice(&block[..scale]);
            records.extend_from_slice(&block[scale + 2..]);
            scales.extend_from_slice(&block[scale..scale + 2]);
        }
        (records, scales)
    }

    /// A row's weights.
    pub(crate) fn row(&self, row: usize) -> &[f64] {
        &self.weights[row * self.k..][..self.k]
    }

    /// `sum_k |W[n, k] x[k]|`: what a rounding error of `W x` is a part of, however much of it cancels.
    pub(crate) fn magnitudes(&self, x: &[f64]) -> Vec<f64> {
        (0..self.n).map(|row| self.row(row).iter().zip(x).map(|(w, x)| (w * x).abs()).sum()).collect()
    }

    /// `W x`.
    pub(crate) fn times(&self, x: &[f64]) -> Vec<f64> {
        (0..self.n).map(|row| self.row(row).iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }
}

fn sign(bits: u64) -> f32 {
    if bits & 1 == 0 { 1.0 } else { -1.0 }
}
