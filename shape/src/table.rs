//! The tensor table: how kernels find a model's tensors in device memory.
//!
//! An array of entries of [`ENTRY_BYTES`]: first the [`MODEL_SLOTS`] of the model, then [`LAYER_SLOTS`] for each layer.
//! Kernels read it, the loader writes it; this file is what they agree on.

use crate::{SUPER_BLOCK, TensorRole};

/// Bytes of an entry: address of the data (`u64`), address of the plane of scales (`u64`, 0 where the type has none),
/// the type's GGML id (`u32`), padding, and the address of the tensor map of its data (`u64`, 0 where it has none).
pub const ENTRY_BYTES: u32 = 32;
/// Where the address of the data stands in an entry.
pub const DATA_OFFSET: u32 = 0;
/// Where the address of the plane of scales stands in an entry.
pub const PLANE_OFFSET: u32 = 8;
/// Where the type stands in an entry.
pub const TYPE_OFFSET: u32 = 16;
/// Where the address of the tensor map stands in an entry.
pub const MAP_OFFSET: u32 = 24;
/// Bytes of a tensor map, by which copies of compute capability 9.0 find boxes of a matrix. It begins at a multiple of as
/// many.
pub const TENSOR_MAP_BYTES: u32 = 128;
/// The rows of a matrix that a box of its tensor map has, of one super-block each.
pub const BOX_ROWS: u32 = 64;
/// Entries before those of the layers.
pub const MODEL_SLOTS: u32 = 3;
/// Entries of each layer.
pub const LAYER_SLOTS: u32 = 14;

/// Positions of a chunk of the KV cache, and of a flash-decoding chunk. A chunk holds
/// `[layer][K, V][kv_head][KV_CHUNK][head_dim]`.
pub const KV_CHUNK: u32 = 128;

/// Rows of a tile: those that a warp works on at once in a gemv with rows of `k` weights. Eight lanes share 256 weights
/// and two rows; lanes beyond a short row take further rows.
pub const fn rows_per_tile(k: u32) -> u32 {
    2 * (4 / lane_groups(k.div_ceil(SUPER_BLOCK)))
}

/// Groups of eight lanes that a tile puts side by side along rows of so many super-blocks.
pub const fn lane_groups(super_blocks: u32) -> u32 {
    match super_blocks {
        0 | 1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

impl TensorRole {
    /// The role's entry: counted from the table's start for a tensor of the model, from the layer's first entry for a
    /// tensor of a layer. A tied head has the entry of the embedding repeated in the head's.
    pub const fn slot(self) -> u32 {
        match self {
            TensorRole::TokenEmbedding => 0,
            TensorRole::OutputNorm => 1,
            TensorRole::Output => 2,
            TensorRole::AttnNorm => 0,
            TensorRole::AttnQ => 1,
            TensorRole::AttnK => 2,
            TensorRole::AttnV => 3,
            TensorRole::AttnQBias => 4,
            TensorRole::AttnKBias => 5,
            TensorRole::AttnVBias => 6,
            TensorRole::AttnQNorm => 7,
            TensorRole::AttnKNorm => 8,
            TensorRole::AttnOutput => 9,
            TensorRole::FfnNorm => 10,
            TensorRole::FfnGate => 11,
            TensorRole::FfnUp => 12,
            TensorRole::FfnDown => 13,
        }
    }

    /// The index in the table of this role's entry; `layer` is ignored for tensors that belong to no layer.
    pub const fn table_index(self, layer: u32) -> u32 {
        match self {
            TensorRole::TokenEmbedding | TensorRole::OutputNorm | TensorRole::Output => self.slot(),
            _ => MODEL_SLOTS + layer * LAYER_SLOTS + self.slot(),
        }
    }
}
