//! The arrival of blocks that each did a unit of one result: the last of them finds the units of all.

use crate::ptx::{AtomicOp, Builder, Global, LoadKind, Operand, Order, Pred, Scope, Shared, StoreOrder, U32, Val};

/// Whether this block is the last of `expected` to arrive at `counter`, which is 0 before the first: then all that they
/// wrote before is visible to its threads. The last one sets the counter back to 0; a grid barrier or the end of the
/// launch stands between that and the next arrival. By the whole block, with barriers inside.
#[track_caller]
pub(crate) fn last(b: &mut Builder, counter: Global<U32>, expected: Val<U32>, answer: Shared<U32>) -> Val<Pred> {
    last_with(b, counter, 1u32, expected, answer)
}

/// The same of blocks that each did some units of one result, `own` of `expected`.
#[track_caller]
pub(crate) fn last_with(
    b: &mut Builder,
    counter: Global<U32>,
    own: impl Operand<U32> + Copy,
    expected: Val<U32>,
    answer: Shared<U32>,
) -> Val<Pred> {
    b.bar_sync(); // every thread's part is written
    let tid = b.tid();
    let first = b.setp_eq(tid, 0);
    b.if_(first, |b| {
        b.fence_acq_rel(Scope::Gpu);
        let before = b.atom(AtomicOp::Add, Order::Relaxed, counter, own, Scope::Gpu);
        b.fence_acq_rel(Scope::Gpu);
        let missing = b.sub::<U32>(expected, before);
        let last = b.setp_eq(missing, own);
        b.if_(last, |b| b.st_sync(counter, 0u32, StoreOrder::Relaxed, Scope::Gpu));
        let last = b.selp::<U32>(1, 0, last);
        b.st(answer, last);
    });
    b.bar_sync(); // the answer is in shared memory
    let last = b.ld(answer, LoadKind::Constant);
    b.setp_ne(last, 0)
}
