//! Few long rows of a block, worked on by its warps together.
//!
//! Whole rows leave warps idle where a block has little more rows than warps: of 15 rows of 43 super-blocks seven warps have
//! three each, or two, or none. Dealt by whole entries of 32, six have 96 and the last 69. All values then lie in one place, and
//! rows are added up behind a barrier of the block, each by the lane that would have had it: no bit changes.

use crate::ptx::{Builder, Pred, Size, U32, Val};

/// How a block's super-blocks are dealt where its warps work together; the same on both ends of a ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Together {
    /// Whether they do, the same in the whole block.
    pub(crate) is: Val<Pred>,
    /// Super-blocks of all rows, and of each warp but the last ones: whole entries.
    all: Val<U32>,
    each: Val<U32>,
}

impl Together {
    /// For `rows` of `along` super-blocks of one matrix, if it is `alone`: where entries of so many `records` are saved by
    /// it, and no warp then has more than `tile` rows to add up.
    #[track_caller]
    pub(crate) fn new(
        b: &mut Builder,
        (rows, along): (Val<U32>, Size),
        (warps, tile): (u32, Size),
        records: Val<U32>,
        alone: Val<Pred>,
    ) -> Together {
        let all = b.mul::<U32>(rows, along);
        let mut part = |of: Val<U32>| {
            let of = b.add::<U32>(of, warps - 1);
            b.div::<U32>(of, warps)
        };
        let (each, rows_of_warp) = (part(all), part(rows));
        let by_rows = b.mul::<U32>(rows_of_warp, along);
        let less = b.sub::<U32>(records, 1);
        let whole = b.sub::<U32>(0, records); // a mask, since records are a power of two
        let mut entries = |of: Val<U32>| {
            let of = b.add::<U32>(of, less);
            b.and::<U32>(of, whole)
        };
        let (each_of_all, each_of_rows) = (entries(each), entries(by_rows));
        let saves = b.setp_lt(each_of_all, each_of_rows);
        let fits = b.setp_ge::<U32>(tile, rows_of_warp);
        let is = b.and_pred(saves, fits);
        Together { is: b.and_pred(is, alone), all, each: each_of_all }
    }

    /// The super-blocks of a warp, and the one behind its last, among those of the block.
    #[track_caller]
    pub(crate) fn of_warp(&self, b: &mut Builder, warp: Val<U32>) -> (Val<U32>, Val<U32>) {
        let first = b.mul::<U32>(warp, self.each);
        let first = b.min::<U32>(first, self.all);
        let end = b.add::<U32>(first, self.each);
        (first, b.min::<U32>(end, self.all))
    }
}
