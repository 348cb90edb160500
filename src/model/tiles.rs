//! The tile of a product of many columns, by its matrices, the number of columns, and the chip's multiprocessors.

use crate::shape::WeightType;
use crate::shape::columns::{COLUMNS, TILE_EIGHTS, tile_rows};

/// A tile of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tile {
    /// 16 rows, 8 columns.
    Narrow,
    /// 16 rows, 16 columns.
    Wide,
    /// [`tile_rows`], 64 columns.
    Large,
}

/// Instructions of a warp for each `m16n8k32`, Q4_K: counted at sm_90, `codegen/loops.txt` has them.
const COST: [(Tile, u64); 3] = [(Tile::Narrow, 29), (Tile::Wide, 22), (Tile::Large, 10)];

impl Tile {
    /// The tile that takes the least time for matrices of these types and rows, by counted instructions: padding counts, and
    /// multiprocessors without a block rest. Also how many tiles of rows it has. Gate and up, two matrices of the same rows,
    /// share large tiles where they are of one type.
    pub(crate) fn choose(matrices: &[(WeightType, u32)], columns: u32, multiprocessors: u32) -> (Tile, u32) {
        let time = |(tile, cost): (Tile, u64)| {
            let rows = tile.rows(matrices)?;
            let padded = columns.next_multiple_of(tile.columns());
            let blocks = u64::from(rows) * u64::from(padded / tile.columns());
            let resting = u64::from(multiprocessors).div_ceil(blocks.max(1)).max(1);
            Some((u64::from(padded) * cost * resting, tile, rows))
        };
        let fastest = COST.into_iter().filter_map(time).min_by_key(|(time, ..)| *time);
        fastest.map_or((Tile::Narrow, 0), |(_, tile, rows)| (tile, rows))
    }

    /// The large tile for one matrix of any number of rows, as the head's is, and how many tiles of rows it has.
    pub(crate) const fn of_head(ty: WeightType, rows: u32) -> (Tile, u32) {
        (Tile::Large, rows.div_ceil(tile_rows(ty)))
    }

    /// Its columns.
    pub(crate) const fn columns(self) -> u32 {
        match self {
            Tile::Narrow => COLUMNS,
            Tile::Wide => 2 * COLUMNS,
            Tile::Large => TILE_EIGHTS * COLUMNS,
        }
    }

    /// Tiles of rows; none where it cannot take the matrices.
    fn rows(self, matrices: &[(WeightType, u32)]) -> Option<u32> {
        match (self, matrices) {
            (Tile::Narrow | Tile::Wide, [(_, rows), (_, _)]) => Some(rows.div_ceil(16)),
            (Tile::Narrow | Tile::Wide, _) => Some(matrices.iter().map(|(_, rows)| rows.div_ceil(16)).sum()),
            (Tile::Large, [(gate, rows), (up, _)]) => (gate == up).then(|| rows.div_ceil(tile_rows(*gate) / 2)),
            (Tile::Large, _) => Some(matrices.iter().map(|(ty, rows)| rows.div_ceil(tile_rows(*ty))).sum()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tile;
    use crate::shape::WeightType::{Q4_K, Q6_K};

    #[test]
    fn tiles_are_large_where_every_multiprocessor_has_one() {
        let down = [(Q6_K, 4096)];
        assert_eq!(Tile::choose(&down, 512, 132), (Tile::Large, 32));
        assert_eq!(Tile::choose(&down, 64, 132), (Tile::Wide, 256));
        assert_eq!(Tile::choose(&down, 64, 16), (Tile::Large, 32));
        assert_eq!(Tile::choose(&down, 8, 132), (Tile::Narrow, 256));
    }

    #[test]
    fn gate_and_up_share_large_tiles_where_they_are_of_one_type() {
        assert_eq!(Tile::choose(&[(Q4_K, 12288), (Q4_K, 12288)], 512, 132), (Tile::Large, 192));
        assert_eq!(Tile::choose(&[(Q4_K, 12288), (Q6_K, 12288)], 512, 132), (Tile::Wide, 768));
        assert_eq!(Tile::choose(&[(Q4_K, 4096), (Q4_K, 1024), (Q6_K, 1024)], 512, 132), (Tile::Large, 48));
    }
}
