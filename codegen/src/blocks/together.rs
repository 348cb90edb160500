//! Few long rows of a block, worked on by its warps together.
//!
//! Whole rows leave warps idle where a block has little more rows than warps: of 15 rows of 43 super-blocks seven warps have
//! three each, or two, or none. Dealt by whole entries of 32, six have 96 and the last 69. All values then lie in one place, and
//! rows are added up behind a barrier of the block, each by the lane that would have had it: no bit changes.

use super::along::Along;
use super::runs::Runs;
use crate::ptx::{Builder, Pred, Size, U32, Val};

/// How a block's super-blocks are dealt where its warps work together; the same on both ends of a ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Together {
    /// Whether they do, the same in the whole block.
    pub(crate) is: Val<Pred>,
    /// Super-blocks of all rows.
    all: Val<U32>,
    /// The same in whole entries, and the mask that leaves whole entries of a number of super-blocks.
    in_entries: Val<U32>,
    whole: Val<U32>,
    warps: u32,
}

impl Together {
    /// For a block's rows of one matrix, if it is `alone`: where an entry of so many `records` is saved by it in each warp, and
    /// each warp has fewer rows than a `tile` to add up. One fewer, since the values' last row has a gap behind it here.
    #[track_caller]
    pub(crate) fn new(
        b: &mut Builder,
        runs: &Runs,
        along: &Along,
        tile: Size,
        (warps, records): (u32, Val<U32>),
        alone: Val<Pred>,
    ) -> Together {
        let rows = runs.rows(b);
        let all = b.mul::<U32>(rows, along.size());
        let rows_of_warp = runs.each();
        let by_rows = b.mul::<U32>(rows_of_warp, along.size());
        let less = b.sub::<U32>(records, 1);
        let whole = b.sub::<U32>(0, records); // a mask, since records are a power of two
        let mut entries = |of: Val<U32>| {
            let of = b.add::<U32>(of, less);
            b.and::<U32>(of, whole)
        };
        let (in_entries, of_rows) = (entries(all), entries(by_rows));
        let by_rows = b.mul::<U32>(of_rows, warps);
        let with_one_each = b.mad::<U32>(records, warps, in_entries);
        let saves = b.setp_ge::<U32>(by_rows, with_one_each);
        let fits = b.setp_lt::<U32>(rows_of_warp, tile);
        let is = b.and_pred(saves, fits);
        Together { is: b.and_pred(is, alone), all, in_entries, whole, warps }
    }

    /// The super-blocks of a warp, and the one behind its last, among those of the block.
    #[track_caller]
    pub(crate) fn of_warp(&self, b: &mut Builder, warp: Val<U32>) -> (Val<U32>, Val<U32>) {
        let before = b.mul::<U32>(warp, self.in_entries);
        let behind = b.add::<U32>(before, self.in_entries);
        let [first, end] = [before, behind].map(|parts| {
            let evenly = b.div::<U32>(parts, self.warps);
            let entries = b.and::<U32>(evenly, self.whole);
            b.min::<U32>(entries, self.all)
        });
        (first, end)
    }
}
