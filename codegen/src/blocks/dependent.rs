//! Launches that begin before those before them end, from sm_90 on.
//!
//! A kernel of the stream path lets the next one begin at once: the device then has its blocks ready where the last blocks
//! of this one have left, and they ask for their first weights. What earlier launches wrote is read behind the wait
//! alone, and nothing is written before it.

use crate::ptx::{Builder, LoadKind, Pred, U8, U32, U64, Val};

/// Bytes that a warp asks for ahead of its wait, at most: with 8 warps on each of an H200's multiprocessors 17 MB, which
/// leaves room in its L2 cache for what the launch before reads.
const AHEAD: u32 = 16 << 10;

/// Lets the next launch begin, and waits for those before this one. Stands outside branches. Gives the kind of loads by
/// which what they wrote can be read from here on.
#[track_caller]
pub(crate) fn wait(b: &mut Builder) -> LoadKind {
    if b.begins_early() {
        b.griddepcontrol_launch_dependents();
        b.griddepcontrol_wait();
    }
    b.kind_of_earlier()
}

/// Asks the L2 cache for the first of `bytes` bytes of weights at address `from`, by one lane of each warp, where `there`
/// is true. Stands before [`wait`], in kernels that begin early.
#[track_caller]
pub(crate) fn ask_for(b: &mut Builder, from: Val<U64>, bytes: Val<U32>, there: Val<Pred>) {
    let lane = b.lane();
    let leads = b.setp_eq(lane, 0);
    let asks = b.and_pred(leads, there);
    let bytes = b.min::<U32>(bytes, AHEAD);
    let bytes = b.and::<U32>(bytes, !15);
    // Rows of blocks of 32 may begin between.
    let from = b.and::<U64>(from, !15u64);
    let from = b.global_ptr::<U8>(from);
    b.if_(asks, |b| b.cp_async_bulk_prefetch(from, bytes));
}
