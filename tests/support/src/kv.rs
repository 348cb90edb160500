//! A cache's bytes.

use half::f16;
use kiln_shape::KvType;

/// A cache's bytes as floats.
pub fn decode(kv: KvType, bytes: &[u8]) -> Vec<f32> {
    match kv {
        KvType::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        KvType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

/// Floats as a cache's bytes, rounded to its type.
pub fn encode(kv: KvType, values: &[f32]) -> Vec<u8> {
    match kv {
        KvType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        KvType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}
