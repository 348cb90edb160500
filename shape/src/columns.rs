//! Columns of activations rounded to bytes, as a product by tensor cores reads them from device memory.
//!
//! Columns come in eights. For each eight and each super-block of 256 there are two planes, as `formats::int8` of the
//! codegen has them, of [`PLANE_BYTES`] each; zeros where a column has no second plane, or is not there:
//!
//! | bytes | what |
//! |---|---|
//! | 0..2048 | the activations: of each two blocks of 32 the fragments of B that the lanes of a warp have, 16 bytes a lane |
//! | 2048..2176 | of each column the sums of its eight 32: their low bytes, then their high ones, both signed |
//! | 2176..2432 | of each 32 the scales of the eight columns, f32; of the first alone with one scale for 256 |
//! | 2432..2464 | of each column whether it has a second plane, `u32` |

use crate::SUPER_BLOCK;

/// Bytes of a token's state: position, length, error.
pub const STATE_BYTES: u32 = 12;
/// Columns that stand together.
pub const COLUMNS: u32 = 8;
/// Bytes of a super-block of eight columns in a plane.
pub const PLANE_BYTES: u32 = 2464;
/// Where the sums of each 32 begin.
pub const SUMS_OFFSET: u32 = 2048;
/// Where the scales begin.
pub const SCALES_OFFSET: u32 = 2176;
/// Where a column says whether it has a second plane.
pub const LATER_OFFSET: u32 = 2432;
/// Planes of a super-block.
pub const PLANES: u32 = 2;

/// Bytes of so many columns of `k` activations each.
pub const fn bytes(k: u32, columns: u32) -> u64 {
    columns.div_ceil(COLUMNS) as u64 * k.div_ceil(SUPER_BLOCK) as u64 * (PLANES * PLANE_BYTES) as u64
}
