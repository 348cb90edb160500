//! The leader: the one thread that speaks for its grid.

use crate::ptx::{Builder, Pred, U32, Val};

/// Whether this is the grid's leader: the index of the thread and those of its block, on every axis that the grid has,
/// are 0.
#[track_caller]
pub(crate) fn of_grid(b: &mut Builder, tid: Val<U32>, block: &[Val<U32>]) -> Val<Pred> {
    let any = block.iter().fold(tid, |any, index| b.or::<U32>(any, *index));
    b.setp_eq(any, 0)
}
