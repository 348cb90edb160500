//! Where the values of a warp's super-blocks lie in shared memory, so that lanes meet in no bank.
//!
//! Lanes write 32 values that follow each other, from a multiple of 32 on, and read one value each of neighbouring rows.
//! Rows of S values that follow each other without a gap are right for writes. For reads they are where S is odd; else
//! lanes meet after `lcm(S, 32)` values, so there a place is left free, which shifts the rows behind it by a bank. It lies
//! between two rows, and between two rounds of writes.

use super::along::Along;
use crate::ptx::{Builder, Size, U32, Val};

/// Floats in shared memory that a warp's values take: those of 16 rows of 4096 weights, so that a tile of them is eight
/// whole rounds.
pub(crate) const VALUES: u32 = 16 * 17;
const BANKS: u32 = 32;
const WORD_BITS: u32 = u32::BITS;

/// The places of rows of so many values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    along: Size,
    rows: Size,
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
    fn new(count: u32) -> OfCount {
        let shift = (count & count.wrapping_neg()).min(BANKS);
        let gap = count * (BANKS / shift.max(1));
        let rows = (VALUES / (count | 1)).min(BANKS);
        let of_gap = if gap < rows * count { (1_u64 << WORD_BITS).div_ceil(gap.into()) as u32 } else { 0 };
        OfCount { rows, of_gap, shift }
    }
}

impl Places {
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, along: &Along) -> Places {
        let of_gap = along.choose(b, |count| OfCount::new(count).of_gap);
        Places {
            along: along.size(),
            rows: along.choose(b, |count| OfCount::new(count).rows),
            of_gap: (!matches!(of_gap, Size::Const(0))).then_some(of_gap),
            shift: along.choose(b, |count| OfCount::new(count).shift),
        }
    }

    /// The most rows whose values there is room for, and at most one for each lane.
    pub(crate) const fn rows(&self) -> Size {
        self.rows
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
