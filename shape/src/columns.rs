//! Columns of activations rounded to bytes, as a product by tensor cores reads them from device memory.
//!
//! Columns come in eights. For each eight and each super-block of 256 there are two planes, as `formats::int8` of the
//! codegen has them, of [`PLANE_BYTES`] each; zeros where a column has no second plane, or is not there:
//!
//! | bytes | with a scale for 256 | with a scale for each 32 |
//! |---|---|---|
//! | 0..2048 | the activations: of each two blocks of 32 the fragments of B that the lanes of a warp have, 16 bytes a lane: those of lane `l` stand at `l XOR l / 8` | the same |
//! | 2048..2064 | in the first plane of each column whether it has a second, `u16` | the same |
//! | 2064.. | the scales of the eight columns, f32 | of each two blocks, for each two columns, those of the first block and of the second, f32 |
//! | 2096..2352 | the sums of each 16, f16: the fragments of B that the lanes have, 8 bytes a lane | |

use crate::{SUPER_BLOCK, WeightType};

/// Bytes of a token's state: position, length, error.
pub const STATE_BYTES: u32 = 12;
/// Columns that stand together.
pub const COLUMNS: u32 = 8;
/// Bytes of a super-block of eight columns in a plane.
pub const PLANE_BYTES: u32 = 2352;
/// Bytes of its fragments.
pub const FRAGMENT_BYTES: u32 = 2048;
/// Bytes of those of two blocks of 32.
pub const OF_TWO: u32 = FRAGMENT_BYTES / 4;
/// Bytes beside the fragments.
pub const BESIDE_BYTES: u32 = PLANE_BYTES - FRAGMENT_BYTES;
/// Where a column says whether it has a second plane.
pub const LATER_OFFSET: u32 = 2048;
/// Where the scales begin.
pub const SCALES_OFFSET: u32 = 2064;
/// Where the sums of each 16 begin.
pub const SUMS_OFFSET: u32 = 2096;
/// Planes of a super-block.
pub const PLANES: u32 = 2;

/// Bytes of an element of the tensor maps of columns.
pub const MAP_WORD: u32 = 8;
/// Such elements of a super-block of an eight.
pub const MAP_WORDS: u32 = PLANES * PLANE_BYTES / MAP_WORD;
/// Eights of columns that a box of such a map has.
pub const BOX_EIGHTS: u32 = 16;
/// The maps of columns of one length, by the bytes that a box has of each eight: of the first plane of a super-block its
/// fragments, and what stands beside them.
pub const BOXES: [u32; 2] = [FRAGMENT_BYTES, BESIDE_BYTES];

/// Eights of columns of a large tile; a double one has two such groups.
pub const TILE_EIGHTS: u32 = 8;

/// Rows of such a tile: two super-blocks of them and one of a double tile's columns fit the 99 KB that a block has at least
/// from sm_80 on.
pub const fn tile_rows(ty: WeightType) -> u32 {
    match ty {
        WeightType::Q8_0 => 96,
        WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q4_K | WeightType::Q5_K | WeightType::Q6_K => 128,
        WeightType::F16 | WeightType::BF16 | WeightType::F32 => 128,
    }
}

/// Bytes of so many columns of `k` activations each.
pub const fn bytes(k: u32, columns: u32) -> u64 {
    columns.div_ceil(COLUMNS) as u64 * k.div_ceil(SUPER_BLOCK) as u64 * (PLANES * PLANE_BYTES) as u64
}

/// Bytes of a row's super-block in shared memory: the record, and behind it that of its plane where this is whole pieces of 16
/// bytes.
pub const fn record(ty: WeightType) -> u32 {
    let layout = ty.layout();
    if layout.plane.is_multiple_of(16) { layout.data + layout.plane } else { layout.data }
}

/// From such a record to the next row's: an odd number of pieces, so that lanes' reads of 16 bytes meet in no bank.
pub const fn record_stride(ty: WeightType) -> u32 {
    16 * ((record(ty) / 16) | 1)
}
