//! Tiles of 64 columns whose blocks have slices of the rows: how a launch cuts rows and shared memory.

use crate::WeightType;
use crate::columns::{PLANE_BYTES, TILE_EIGHTS, record_stride};

/// Warps of a block.
pub const WARPS: u32 = 12;
/// Warps that have a tile's rows between them, at most.
pub const MOST_ROW_WARPS: u32 = 6;
/// Rows of a warp.
pub const OF_WARP: u32 = 32;
/// Bytes of its rows' sums in shared memory.
pub const SUMS_BYTES: u32 = 4 * OF_WARP * 8 * TILE_EIGHTS;
/// Bytes of a super-block of the columns in shared memory.
pub const COLUMNS_BYTES: u32 = TILE_EIGHTS * PLANE_BYTES;
/// Stages at most.
pub const MOST_STAGES: u32 = 8;

/// A way to cut them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Warps that have the tile's rows between them.
    pub row_warps: u32,
    /// Warps that have the same rows, 1 or 2: each has its part of the columns.
    pub parts: u32,
    /// Slices, each of which has so many warps for each part.
    pub slices: u32,
    /// Super-blocks of the tile in shared memory, or on their way there: more than slices.
    pub stages: u32,
}

impl Cut {
    /// Tiles of 32 rows for each of so many warps, by as many slices as a block has warps for, if a block may have `room` bytes
    /// of dynamic shared memory: stages for rows of all `types` that take it, one more than slices at least. None where it is
    /// too little for two.
    pub fn fit((row_warps, parts): (u32, u32), room: u32, types: impl Iterator<Item = WeightType>) -> Option<Cut> {
        if !(1..=MOST_ROW_WARPS).contains(&row_warps) || !(1..=2).contains(&parts) {
            return None;
        }
        let left = room.checked_sub(row_warps * SUMS_BYTES)?;
        let stages = types.map(|ty| left / Cut::stage(row_warps, ty)).min()?.min(MOST_STAGES);
        let slices = (WARPS / (row_warps * parts)).min(stages.checked_sub(1)?);
        (slices > 0).then_some(Cut { row_warps, parts, slices, stages })
    }

    /// Rows of a tile.
    pub const fn rows(self) -> u32 {
        OF_WARP * self.row_warps
    }

    /// Bytes of dynamic shared memory, for rows of `ty`.
    pub const fn bytes(self, ty: WeightType) -> u32 {
        self.row_warps * SUMS_BYTES + self.stages * Cut::stage(self.row_warps, ty)
    }

    /// Bytes of a super-block of the rows and columns.
    pub const fn stage(row_warps: u32, ty: WeightType) -> u32 {
        COLUMNS_BYTES + row_warps * OF_WARP * record_stride(ty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use WeightType::{Q4_K, Q6_K};

    #[test]
    fn a_cut_has_a_stage_more_than_slices() {
        let of = |row_warps, room| Cut::fit((row_warps, 1), room, [Q4_K, Q6_K].into_iter());
        assert_eq!(of(1, 226 << 10), Some(Cut { row_warps: 1, parts: 1, slices: 7, stages: 8 }));
        assert_eq!(of(6, 226 << 10), Some(Cut { row_warps: 6, parts: 1, slices: 2, stages: 3 }));
        assert_eq!(of(1, 98 << 10), Some(Cut { row_warps: 1, parts: 1, slices: 2, stages: 3 }));
        let halved = Cut::fit((2, 2), 226 << 10, [Q4_K].into_iter());
        assert_eq!(halved, Some(Cut { row_warps: 2, parts: 2, slices: 3, stages: 7 }));
        // A stage takes 25 472 bytes, and the sums 8192.
        assert_eq!(of(1, 2 * 25_472 + 8191), None);
        for (row_warps, room) in [(1, 98), (2, 98), (3, 162), (12, 226)].map(|(warps, room)| (warps, room << 10)) {
            let Some(cut) = of(row_warps, room) else { continue };
            assert!(cut.bytes(Q6_K) <= room && cut.row_warps * cut.parts * cut.slices <= WARPS, "{cut:?}");
        }
    }
}
