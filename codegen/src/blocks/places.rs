//! Where the values of a warp's super-blocks lie in shared memory, so that lanes that add them up meet in no bank.
//!
//! A lane adds up a row and reads four of its values at once: a request takes the load and store unit two clocks at least, however
//! little it brings. A row therefore begins at a multiple of four values, and rows lie an odd number of fours apart: of eight
//! lanes, which are served together, no two then meet in one column. Lanes write 32 values that follow each other. Where these are
//! of several rows a few meet: one further pass for 32 super-blocks, and three where a row has one.

use super::along::Along;
use crate::ptx::{Builder, F32, LoadKind, Pred, Shared, Size, U32, Val};

/// Floats in shared memory that a warp's values take: those of 16 rows of 4096 weights, so that a tile of them is eight
/// whole rounds.
pub(crate) const VALUES: u32 = values(16, 16);
/// The same of each column, where a launch has room for several: those of two rows of 12288 weights, three whole rounds. More
/// would leave fewer columns room.
const VALUES_OF_COLUMN: u32 = values(2, 48);
/// Rows of a tile there, at most.
pub(crate) const ROWS_OF_COLUMN: u32 = 16;
const BANKS: u32 = 32;
/// Values that a lane reads at once.
const FOUR: u32 = 4;

/// From one row of so many values to the next.
const fn apart(count: u32) -> u32 {
    FOUR * (count.div_ceil(FOUR) | 1)
}

/// The places that so many rows of so many values take, of which the last needs none behind it.
const fn values(rows: u32, count: u32) -> u32 {
    (rows - 1) * apart(count) + count.next_multiple_of(FOUR)
}

/// The places of rows of so many values.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    along: Along,
    rows: Size,
    /// Lanes of a column, the first of which have a row each: two to this power.
    lanes: Size,
    /// From one row to the next, and places between them.
    apart: Size,
    free: Size,
}

/// Rows of so many values, with at most so many values and rows.
fn rows_of(count: u32, (values, rows): (u32, u32)) -> u32 {
    ((values + apart(count) - count.next_multiple_of(FOUR)) / apart(count)).min(rows)
}

/// Where a launch has room for several columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Several {
    /// Whether it has, the same in the whole grid; none where every launch has.
    pub(crate) are: Option<Val<Pred>>,
    /// Floats that the values of a warp and column then take.
    pub(crate) values: u32,
}

impl Several {
    /// The first for several columns, the second for one.
    #[track_caller]
    pub(crate) fn choose(&self, b: &mut Builder, several: Size, one: Size) -> Size {
        self.are.map_or(several, |are| Size::Reg(b.selp::<U32>(several, one, are)))
    }
}

/// Floats that the values of a warp and column take there: a row at least. Beside slices room is short, and there are as many as a
/// warp's lanes make at once of the longest rows.
pub(crate) fn of_column(along: &Along, in_slices: bool) -> u32 {
    let longest = along.most();
    if in_slices { values((BANKS / longest).max(1), longest) } else { VALUES_OF_COLUMN.max(values(1, longest)) }
}

impl Places {
    /// Those of a launch that has room for `several` columns, if it has; such a one has fewer rows.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, along: &Along, several: Option<Several>) -> Places {
        let of_one = |count| rows_of(count, (VALUES, BANKS));
        let (rows, lanes) = (along.choose(b, of_one), Size::Const(BANKS.trailing_zeros()));
        let (rows, lanes) = match several {
            None => (rows, lanes),
            Some(several) => {
                let of_column = |count| rows_of(count, (several.values, ROWS_OF_COLUMN));
                let rows_of_column = along.choose(b, of_column);
                let bits = |count| of_column(count).next_power_of_two().trailing_zeros();
                let lanes_of_column = along.choose(b, bits);
                (several.choose(b, rows_of_column, rows), several.choose(b, lanes_of_column, lanes))
            }
        };
        Places {
            along: along.clone(),
            rows,
            lanes,
            apart: along.choose(b, apart),
            free: along.choose(b, |count| apart(count) - count),
        }
    }

    /// The most rows whose values there is room for, and at most one for each lane.
    pub(crate) const fn rows(&self) -> Size {
        self.rows
    }

    /// The lane's row and column, of as many columns as have lanes at once.
    #[track_caller]
    pub(crate) fn of_lane(&self, b: &mut Builder) -> (Val<U32>, Val<U32>) {
        let lane = b.lane();
        let column = b.shr::<U32>(lane, self.lanes);
        let before = b.shl::<U32>(column, self.lanes);
        (b.sub::<U32>(lane, before), column)
    }

    /// How many columns have lanes at once.
    #[track_caller]
    pub(crate) fn columns(&self, b: &mut Builder) -> Val<U32> {
        b.shr::<U32>(BANKS, self.lanes)
    }

    /// The place of a value, by its number among those of all rows.
    #[track_caller]
    pub(crate) fn of(&self, b: &mut Builder, number: Val<U32>) -> Val<U32> {
        let row = self.along.row(b, number);
        b.mad::<U32>(row, self.free, number)
    }

    /// The place of a row's first value.
    #[track_caller]
    pub(crate) fn of_row(&self, b: &mut Builder, row: Val<U32>) -> Val<U32> {
        b.mul::<U32>(row, self.apart)
    }
}

/// So many values of a row, from a multiple of four of them on: four at once.
pub(crate) fn loaded(b: &mut Builder, at: Shared<F32>, count: u32) -> Vec<Val<F32>> {
    let fours = count / FOUR * FOUR;
    let mut values = Vec::new();
    for first in (0..fours).step_by(FOUR as usize) {
        let four: [Val<F32>; 4] = b.ld_vector(at.at(first), LoadKind::Ordinary);
        values.extend(four);
    }
    values.extend((fours..count).map(|i| b.ld(at.at(i), LoadKind::Ordinary)));
    values
}
