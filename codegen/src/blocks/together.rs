//! Few long rows of a block, worked on by its warps together.
//!
//! Whole rows leave warps idle where a block has little more rows than warps: of 15 rows of 43 super-blocks seven warps have
//! three each, or two, or none. Here all lanes have whole rows at a turn, where that leaves less than a warp idle: 215 of 224 have
//! five of those rows, and the next five at the next turn. A lane's super-block then has the same place in each of its rows, so
//! that its activations stay in registers. Else warps have whole entries of the ring, as evenly as can be.
//!
//! All values lie in one place, and rows are added up behind a barrier of the block, each by the lane that would have had it: no
//! bit changes.

use super::along::Along;
use super::ring::Deal;
use super::runs::Runs;
use crate::ptx::{Builder, Pred, Size, U32, Val};

/// How a block's super-blocks are dealt where its warps work together; the same on both ends of a ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Together {
    /// Whether they do, the same in the whole block.
    pub(crate) is: Val<Pred>,
    /// Whether they have turns of whole rows.
    by_turns: Val<Pred>,
    /// Super-blocks of all rows, of those in whole entries, of those of a turn, and of an entry.
    all: Val<U32>,
    in_entries: Val<U32>,
    turn: Val<U32>,
    records: Val<U32>,
    warps: u32,
}

impl Together {
    /// For a block's rows of one matrix, if it is `alone` in its phase. Warps share rows where each has an entry less by it, or as
    /// many and activations that stay in registers. A warp then adds up fewer rows than a `tile` has: the values' last row has a gap
    /// behind it here. An entry has at most so many `records`, a power of two.
    #[track_caller]
    pub(crate) fn new(
        b: &mut Builder,
        runs: &Runs,
        along: &Along,
        tile: Size,
        (warps, records): (u32, Val<U32>),
        alone: Val<Pred>,
    ) -> Together {
        let (rows, rows_of_warp) = (runs.rows(b), runs.each());
        let all = b.mul::<U32>(rows, along.size());
        let less = b.sub::<U32>(records, 1);
        let in_entries = |b: &mut Builder, rows: Val<U32>| {
            let up = b.mad::<U32>(rows, along.size(), less);
            let whole = b.sub::<U32>(0, records); // a mask
            b.and::<U32>(up, whole)
        };
        let (of_block, of_warp) = (in_entries(b, rows), in_entries(b, rows_of_warp));
        let lanes = b.mul::<U32>(records, warps);
        let rows_of_turn = along.row(b, lanes);
        let turn = b.mul::<U32>(rows_of_turn, along.size());
        let idle = b.sub::<U32>(lanes, turn);
        let few_idle = b.setp_lt(idle, records);
        let within = along.within(b, records);
        let would_change = b.setp_ne(within, 0);
        let by_turns = b.and_pred(few_idle, would_change);
        // What each way has, and what whole rows' entries, or those less one, would have room for.
        let fewer = b.sub::<U32>(of_warp, records);
        let (rows_in_turns, room_of_turns) = (b.mul::<U32>(rows, records), b.mul::<U32>(of_warp, rows_of_turn));
        let has = b.selp::<U32>(rows_in_turns, of_block, by_turns);
        let room = b.mul::<U32>(fewer, warps);
        let room = b.selp::<U32>(room_of_turns, room, by_turns);
        let (saves, several) = (b.setp_ge(room, has), b.setp_ne(fewer, 0));
        let fits = b.setp_lt::<U32>(rows_of_warp, tile);
        let is = b.and_pred(saves, several);
        let is = b.and_pred(is, fits);
        Together { is: b.and_pred(is, alone), by_turns, all, in_entries: of_block, turn, records, warps }
    }

    /// Super-blocks from one of a warp's entries to its next.
    #[track_caller]
    pub(crate) fn step(&self, b: &mut Builder) -> Val<U32> {
        b.selp::<U32>(self.turn, self.records, self.by_turns)
    }

    /// Whether a lane's super-block stays at its place in a row.
    #[track_caller]
    pub(crate) fn stays(&self, b: &mut Builder) -> Val<Pred> {
        b.and_pred(self.is, self.by_turns)
    }

    /// A warp's entries, counted among all super-blocks of the block.
    #[track_caller]
    pub(crate) fn of_warp(&self, b: &mut Builder, warp: Val<U32>) -> Deal {
        let begin = b.mul::<U32>(warp, self.records);
        let behind = b.sub::<U32>(self.turn, begin);
        let of_turn = b.min::<U32>(behind, self.records);
        // A lane of the producer behind the last warp's has none.
        let has_part = b.setp_lt(begin, self.turn);
        let end_of_turns = b.selp::<U32>(self.all, begin, has_part);
        // Whole entries, dealt evenly.
        let before = b.mul::<U32>(warp, self.in_entries);
        let behind = b.add::<U32>(before, self.in_entries);
        let whole = b.sub::<U32>(0, self.records); // a mask
        let [first, end] = [before, behind].map(|parts| {
            let evenly = b.div::<U32>(parts, self.warps);
            b.and::<U32>(evenly, whole)
        });
        let first = b.selp::<U32>(begin, first, self.by_turns);
        let end = b.selp::<U32>(end_of_turns, end, self.by_turns);
        let [first, end] = [first, end].map(|number| b.min::<U32>(number, self.all));
        let each = b.selp::<U32>(of_turn, self.records, self.by_turns);
        Deal { first, left: b.sub::<U32>(end, first), each, step: self.step(b) }
    }
}
