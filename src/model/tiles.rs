//! The tile of a product of many columns, by its matrices, the number of columns, and the chip's multiprocessors.

use crate::shape::columns::{COLUMNS, PLANE_BYTES, TILE_EIGHTS, tile_rows};
use crate::shape::sliced::{Cut, MOST_ROW_WARPS, OF_WARP};
use crate::shape::{SUPER_BLOCK, WeightType};

/// A tile of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tile {
    /// 16 rows, 8 columns.
    Narrow,
    /// 16 rows, 16 columns.
    Wide,
    /// 64 columns, and rows as it is cut.
    Sliced(Cut),
    /// [`tile_rows`], 64 columns.
    Large,
    /// [`tile_rows`], 128 columns.
    Double,
    /// 128 rows, 128 columns, by products of warpgroups.
    Warpgroups,
}

/// Instructions of a warp for each `m16n8k32`, Q4_K: counted at sm_90, `codegen/loops.txt` has them. Of sm_75 they are 22.6
/// and 16.2 for the tiles that are there, [`Tile::Wide`] and [`Tile::Large`].
pub(super) const COST: [(Tile, f64); 5] = [
    (Tile::Narrow, 30.1),
    (Tile::Wide, 20.9),
    (Tile::Large, 10.3),
    (Tile::Double, 10.2),
    // Counted are 6.6, and two planes take tensor cores longer. Chosen for what the clock says: of gate and up of qwen3-8b, 512
    // columns on an H100, 207 us where double tiles take 243.
    (Tile::Warpgroups, 6.0),
];
/// Instructions that a multiprocessor issues in a cycle, cycles of its tensor cores for a product, and bytes that reach it
/// from the L2 cache in a cycle: 1.6 to 4 and 12 to 41 on the chips of [`super::cost`].
const ISSUED: f64 = 4.0;
const TENSOR: f64 = 2.0;
const FROM_L2: f64 = 24.0;
/// How much longer than by its instructions a large tile takes, whose few warps wait for each other: by the emulator's clock, on
/// an H200, those of gate and up of qwen3-8b take 43 us for 64 columns, by their instructions 29.5.
const FEW_WARPS: f64 = 1.44;
/// Instructions of a warp for each product of a tile that has slices, Q4_K at sm_90, cycles that a warp alone takes for each,
/// and how much longer than these or the L2 cache a super-block takes, what begins and ends a tile in it: by the emulator's clock
/// of an H200 and an A100, 1.24 to 1.5 times as long for qwen3-8b.
pub(super) const SLICED: f64 = 11.1;
const ALONE: f64 = 2.2;
const WAITS: f64 = 1.35;
/// How many more instructions tiles take whose warps have half of the columns each: both unpack their rows.
pub(super) const HALVED: f64 = 1.24;
/// How much longer slices take that meet Q6_K with all columns: their loop of 2151 instructions is 34 KB. Of an H200's warps in it
/// 45 % waited for instructions, by Nsight Compute, and hardly one in that of Q4_K, 23 KB; Q, K and V of qwen3-8b with V in
/// Q6_K took 43.5 us instead of 23.9. With half of the columns the loop is 21 KB.
const LONG_TEXT: f64 = 1.8;
/// Cycles for a super-block of a small tile whose block is alone on a multiprocessor, and what a block takes of its shared
/// memory: by the clock of an RTX 5090 and 4090, 600 to 740.
const SMALL_ALONE: f64 = 700.0;
const OF_SMALL: u32 = 74 << 10;

/// What a chip has for products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) multiprocessors: u32,
    /// Bytes of dynamic shared memory that a block may have.
    pub(crate) shared: u32,
}

impl Tile {
    /// Of the tiles that are there the one that takes the least time for matrices of these types and rows, and how many
    /// tiles of rows it has. Multiprocessors take tiles in turns, those without one in the last turn rest, unless tiles are
    /// shared, and each tile reads its weights and columns from the L2 cache. Gate and up, two matrices of the same rows, share large tiles where
    /// they are of one type.
    pub(crate) fn choose(
        there: impl Fn(Tile) -> bool,
        matrices: &[(WeightType, u32)],
        columns: u32,
        Room { multiprocessors, shared }: Room,
    ) -> (Tile, u32) {
        let all = f64::from(multiprocessors.max(1));
        let bytes = |ty: WeightType| f64::from(ty.layout().data + ty.layout().plane);
        let weights: f64 = matrices.iter().map(|(ty, rows)| f64::from(*rows) * bytes(*ty)).sum();
        // Cycles for a super-block of all rows: of instructions, tensor cores and the L2 cache, which are busy side by
        // side.
        let time = |(tile, cost): (Tile, f64)| {
            let rows = tile.rows(matrices)?;
            let across = columns.div_ceil(tile.columns());
            let turns = tile.turns(rows * across, multiprocessors);
            let (waits, each) = match (tile, matrices) {
                // A small tile of gate and up is two, one behind the other.
                (Tile::Narrow | Tile::Wide, [_, _]) => (1.0, 2.0),
                (Tile::Narrow | Tile::Wide, _) => (1.0, 1.0),
                (Tile::Large | Tile::Double | Tile::Warpgroups | Tile::Sliced(_), _) => (FEW_WARPS, 1.0),
            };
            let products = tile.products() * waits * (cost / ISSUED).hypot(TENSOR);
            let beside = f64::from((shared / OF_SMALL).max(1));
            let least = if matches!(tile, Tile::Narrow | Tile::Wide) { SMALL_ALONE / beside } else { 0.0 };
            let products = each * turns * products.max(least);
            let of_columns = each * f64::from(rows) * f64::from(tile.columns()) * f64::from(PLANE_BYTES / COLUMNS);
            let copies = f64::from(across) * (weights + of_columns) / (FROM_L2 * all);
            Some((products.hypot(copies), tile, rows))
        };
        // A tile that has slices waits for its copies and for all of its warps.
        let sliced = |cut: Cut| {
            let tile = Tile::Sliced(cut);
            let rows = tile.rows(matrices).filter(|_| there(tile))?;
            let turns = tile.most(rows * columns.div_ceil(tile.columns()), multiprocessors);
            let of_warp = f64::from(OF_WARP / 16 * TILE_EIGHTS * SUPER_BLOCK / 32) * SLICED;
            let of_warp = of_warp * if cut.parts == 1 { 1.0 } else { HALVED };
            let side_by_side = f64::from(cut.slices * cut.parts);
            let issue = of_warp * (f64::from(cut.row_warps) / ISSUED).max(ALONE / side_by_side);
            let bytes = matrices.iter().map(|(ty, _)| Cut::stage(cut.row_warps, *ty)).max()?;
            let is_long = cut.parts == 1 && matrices.iter().any(|(ty, _)| *ty == WeightType::Q6_K);
            let waits = if is_long { WAITS * LONG_TEXT } else { WAITS };
            Some((turns * waits * issue.hypot(f64::from(bytes) / FROM_L2), tile, rows))
        };
        let cuts = [1, 2].into_iter().flat_map(|parts| (1..=MOST_ROW_WARPS).map(move |row_warps| (row_warps, parts)));
        let cuts = cuts.filter_map(|cut| Cut::fit(cut, shared, matrices.iter().map(|(ty, _)| *ty)));
        let fastest = COST
            .into_iter()
            .filter(|(tile, _)| there(*tile))
            .filter_map(time)
            .chain(cuts.filter_map(sliced))
            .min_by(|one, other| one.0.total_cmp(&other.0));
        fastest.map_or((Tile::Wide, 0), |(_, tile, rows)| (tile, rows))
    }

    /// The kernel's name.
    pub(crate) const fn kernel(self) -> &'static str {
        match self {
            Tile::Narrow => "gemm_8",
            Tile::Wide => "gemm_16",
            Tile::Sliced(Cut { parts: 1, .. }) => "gemm_sliced",
            Tile::Sliced(_) => "gemm_sliced_2",
            Tile::Large => "gemm_tile",
            Tile::Double => "gemm_tile_128",
            Tile::Warpgroups => "gemm_warpgroups",
        }
    }

    /// Its columns.
    pub(crate) const fn columns(self) -> u32 {
        match self {
            Tile::Narrow => COLUMNS,
            Tile::Wide => 2 * COLUMNS,
            Tile::Sliced(_) | Tile::Large => TILE_EIGHTS * COLUMNS,
            Tile::Double | Tile::Warpgroups => 2 * TILE_EIGHTS * COLUMNS,
        }
    }

    /// Sums of a tile that blocks share.
    pub(crate) const SUMS: u32 = tile_rows(WeightType::Q4_K) * Tile::Double.columns();

    /// Tiles of so many that the multiprocessor with the most of them has. Those of 128 columns are shared equally.
    pub(crate) fn most(self, tiles: u32, multiprocessors: u32) -> f64 {
        let all = f64::from(multiprocessors.max(1));
        match self {
            Tile::Narrow | Tile::Wide | Tile::Sliced(_) | Tile::Large => (f64::from(tiles) / all).ceil(),
            Tile::Double | Tile::Warpgroups => (f64::from(tiles) / all).max(1.0),
        }
    }

    /// The grid for so many tiles of columns and of rows: of tiles that are shared a block a multiprocessor.
    pub(crate) fn grid(self, [across, rows]: [u32; 2], multiprocessors: u32) -> [u32; 3] {
        match self {
            Tile::Narrow | Tile::Wide => [across, rows, 1],
            Tile::Sliced(_) | Tile::Large => [across * rows, 1, 1],
            Tile::Double | Tile::Warpgroups => [(across * rows).min(multiprocessors.max(1)), 1, 1],
        }
    }

    /// The turns that so many tiles take. A large tile has four warps: alone on a multiprocessor they leave it idle, so that
    /// two tiles go side by side. By the emulator's clock, on an H100, one takes 24 us of 4096 weights a row in Q4_K, two take
    /// 42, and a double tile 38.5.
    fn turns(self, tiles: u32, multiprocessors: u32) -> f64 {
        const ALONE: f64 = 2.0 * 24.0 / 38.5;
        const TWO: f64 = 2.0 * 42.0 / 38.5;
        let turns = self.most(tiles, multiprocessors);
        match self {
            Tile::Large if turns <= 1.0 => ALONE,
            Tile::Large => TWO * (turns / 2.0).ceil(),
            _ => turns,
        }
    }

    /// Products `m16n8k32` of a super-block of it.
    fn products(self) -> f64 {
        let rows = match self {
            Tile::Narrow | Tile::Wide => 16,
            Tile::Sliced(cut) => cut.rows(),
            Tile::Large | Tile::Double | Tile::Warpgroups => tile_rows(WeightType::Q4_K),
        };
        f64::from(rows / 16 * (self.columns() / COLUMNS) * SUPER_BLOCK / 32)
    }

    /// Tiles of rows; none where it cannot take the matrices.
    fn rows(self, matrices: &[(WeightType, u32)]) -> Option<u32> {
        // Scales of blocks are floats where these are no part of a super-block.
        let takes = |(ty, _): &(WeightType, u32)| self != Tile::Warpgroups || ty.block_len() == SUPER_BLOCK;
        match (self, matrices) {
            _ if !matrices.iter().all(takes) => None,
            (Tile::Narrow | Tile::Wide, [(_, rows), (_, _)]) => Some(rows.div_ceil(16)),
            (Tile::Narrow | Tile::Wide, _) => Some(matrices.iter().map(|(_, rows)| rows.div_ceil(16)).sum()),
            (Tile::Sliced(cut), [(gate, rows), (up, _)]) => (gate == up).then(|| rows.div_ceil(cut.rows() / 2)),
            (Tile::Sliced(cut), _) => Some(matrices.iter().map(|(_, rows)| rows.div_ceil(cut.rows())).sum()),
            (Tile::Large | Tile::Double | Tile::Warpgroups, [(gate, rows), (up, _)]) => {
                (gate == up).then(|| rows.div_ceil(tile_rows(*gate) / 2))
            }
            (Tile::Large | Tile::Double | Tile::Warpgroups, _) => {
                Some(matrices.iter().map(|(ty, rows)| rows.div_ceil(tile_rows(*ty))).sum())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cut, Room, Tile};
    use crate::shape::WeightType::{Q4_K, Q6_K};

    const H200: Room = Room { multiprocessors: 132, shared: 223 << 10 };
    const FEW: Room = Room { multiprocessors: 16, shared: 60 << 10 };

    const fn cut((row_warps, parts): (u32, u32), slices: u32, stages: u32) -> Tile {
        Tile::Sliced(Cut { row_warps, parts, slices, stages })
    }

    /// Tiles of sm_90's text.
    fn of_sm_90(tile: Tile) -> bool {
        tile != Tile::Warpgroups && tile != Tile::Large
    }

    #[test]
    fn tiles_have_as_many_rows_as_every_multiprocessor_has_one_of() {
        let (down, gate_up) = ([(Q6_K, 4096)], [(Q4_K, 12288); 2]);
        // Stages for seven slices leave warps free, which take half of the columns.
        assert_eq!(Tile::choose(of_sm_90, &down, 64, H200), (cut((1, 2), 6, 8), 128));
        assert_eq!(Tile::choose(of_sm_90, &gate_up, 64, H200), (cut((6, 1), 2, 3), 128));
        let of_qkv = |of_v| [(Q4_K, 4096), (Q4_K, 1024), (of_v, 1024)];
        assert_eq!(Tile::choose(of_sm_90, &of_qkv(Q4_K), 64, H200), (cut((2, 1), 6, 7), 96));
        assert_eq!(Tile::choose(of_sm_90, &of_qkv(Q6_K), 64, H200), (cut((2, 2), 3, 6), 96));
        let a100 = Room { multiprocessors: 108, shared: 159 << 10 };
        assert_eq!(Tile::choose(of_sm_90, &down, 64, a100), (cut((2, 2), 3, 4), 64));
        // Three stages are all that fits.
        let rtx_5090 = Room { multiprocessors: 170, shared: 95 << 10 };
        assert_eq!(Tile::choose(of_sm_90, &[(Q4_K, 4096)], 64, rtx_5090).0, cut((1, 2), 2, 3));
        // A text without slices.
        assert_eq!(Tile::choose(|tile| matches!(tile, Tile::Large | Tile::Wide), &down, 64, FEW), (Tile::Large, 32));
    }

    #[test]
    fn many_columns_have_wide_tiles_and_few_have_narrow_ones() {
        let down = [(Q6_K, 4096)];
        assert_eq!(Tile::choose(of_sm_90, &down, 512, H200), (Tile::Double, 32));
        assert_eq!(Tile::choose(of_sm_90, &down, 8, H200), (Tile::Narrow, 256));
        assert_eq!(Tile::choose(|tile| tile == Tile::Wide, &down, 512, H200), (Tile::Wide, 256));
    }

    #[test]
    fn tiles_of_128_columns_are_shared_by_a_block_a_multiprocessor() {
        assert_eq!(Tile::Double.grid([4, 32], 108), [108, 1, 1]);
        assert_eq!(Tile::Warpgroups.grid([4, 32], 132), [128, 1, 1]);
        assert_eq!(Tile::Large.grid([8, 32], 108), [256, 1, 1]);
        assert_eq!(Tile::Wide.grid([32, 256], 108), [32, 256, 1]);
        assert_eq!(Tile::Double.most(162, 108), 1.5);
        assert_eq!(Tile::Double.most(54, 108), 1.0);
        assert_eq!(Tile::Large.most(162, 108), 2.0);
    }

    #[test]
    fn gate_and_up_share_large_tiles_where_they_are_of_one_type() {
        assert_eq!(Tile::choose(of_sm_90, &[(Q4_K, 12288), (Q4_K, 12288)], 512, H200), (Tile::Double, 192));
        assert_eq!(Tile::choose(of_sm_90, &[(Q4_K, 12288), (Q6_K, 12288)], 512, H200), (Tile::Wide, 768));
        let of_qkv = [(Q4_K, 4096), (Q4_K, 1024), (Q6_K, 1024)];
        assert_eq!(Tile::choose(of_sm_90, &of_qkv, 512, H200), (Tile::Double, 48));
        assert_eq!(Tile::choose(of_sm_90, &of_qkv, 128, H200), (cut((3, 2), 2, 5), 65));
    }
}
