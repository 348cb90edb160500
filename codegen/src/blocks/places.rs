//! Where the values of a warp's super-blocks lie in shared memory, so that lanes meet in no bank.
//!
//! Lanes write 32 values that follow each other, from a multiple of 32 on, and read one value each of neighbouring rows.
//! Rows of S values that follow each other without a gap are right for writes. For reads they are where S is odd; else
//! lanes meet after `lcm(S, 32)` values, so there a place is left free, which shifts the rows behind it by a bank. It lies
//! between two rows, and between two rounds of writes.

use super::along::Along;
use crate::ptx::{Builder, Pred, Size, U32, Val};

/// Floats in shared memory that a warp's values take: those of 16 rows of 4096 weights, so that a tile of them is eight
/// whole rounds.
pub(crate) const VALUES: u32 = 16 * 17;
/// The same of each column, where a launch has room for several: those of two rows of 12288 weights, three whole rounds. More
/// would leave fewer columns room.
const VALUES_OF_COLUMN: u32 = 100;
/// Rows of a tile there, at most.
pub(crate) const ROWS_OF_COLUMN: u32 = 16;
const BANKS: u32 = 32;
const WORD_BITS: u32 = u32::BITS;

/// The places of rows of so many values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    along: Size,
    rows: Size,
    /// Lanes of a column, the first of which have a row each: two to this power.
    lanes: Size,
    /// 2^32 over the values between two free places, rounded up: the upper half of a number's product with it says how
    /// many free places lie before that number. Exact for numbers below 2^16. None where no place is free.
    of_gap: Option<Size>,
    /// The free places before row r are `r * shift / 32`.
    shift: Size,
}

/// What the number of a row's values decides.
#[derive(Debug, Clone, Copy, Default)]
struct OfCount {
    rows: u32,
    /// 0 where no place is free.
    of_gap: u32,
    shift: u32,
}

impl OfCount {
    /// With at most so many values and rows.
    fn new(count: u32, (values, rows): (u32, u32)) -> OfCount {
        let shift = (count & count.wrapping_neg()).min(BANKS);
        let gap = count * (BANKS / shift.max(1));
        let rows = (values / (count | 1)).min(rows);
        let of_gap = if gap < rows * count { (1_u64 << WORD_BITS).div_ceil(gap.into()) as u32 } else { 0 };
        OfCount { rows, of_gap, shift }
    }
}

/// Floats that the values of a warp and column take, where a launch has room for several columns: a row at least.
pub(crate) fn of_column(along: &Along) -> u32 {
    VALUES_OF_COLUMN.max(along.most() | 1)
}

impl Places {
    /// Those of a launch that has room for `several` columns, if it has; such a one has fewer rows.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, along: &Along, several: Option<Val<Pred>>) -> Places {
        let of_one = |count| OfCount::new(count, (VALUES, BANKS));
        let of_column = (of_column(along), ROWS_OF_COLUMN);
        let of_column = |count| OfCount::new(count, of_column);
        let of_gap = along.choose(b, |count| of_one(count).of_gap);
        let (rows, lanes) = (along.choose(b, |count| of_one(count).rows), Size::Const(BANKS.trailing_zeros()));
        let (rows, lanes) = match several {
            None => (rows, lanes),
            Some(several) => {
                let rows_of_column = along.choose(b, |count| of_column(count).rows);
                let bits = |count| of_column(count).rows.next_power_of_two().trailing_zeros();
                let lanes_of_column = along.choose(b, bits);
                let rows = b.selp::<U32>(rows_of_column, rows, several);
                (Size::Reg(rows), Size::Reg(b.selp::<U32>(lanes_of_column, lanes, several)))
            }
        };
        Places {
            along: along.size(),
            rows,
            lanes,
            of_gap: (!matches!(of_gap, Size::Const(0))).then_some(of_gap),
            shift: along.choose(b, |count| of_one(count).shift),
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
        match self.of_gap {
            None => number,
            Some(of_gap) => b.mad_hi(number, of_gap, number),
        }
    }

    /// The place of a row's first value.
    #[track_caller]
    pub(crate) fn of_row(&self, b: &mut Builder, row: Val<U32>) -> Val<U32> {
        let before = b.mul::<U32>(row, self.along);
        if self.of_gap.is_none() {
            return before;
        }
        let free = b.mul::<U32>(row, self.shift);
        let free = b.shr::<U32>(free, BANKS.trailing_zeros());
        b.add::<U32>(before, free)
    }
}
