//! A barrier over all blocks of a cooperative grid.
//!
//! One counter, which only grows: a block that arrives adds 1 and waits until the count reaches its target, the number
//! of blocks times the number of barriers so far. It is never reset, so nothing races with a reset. Counter and targets
//! wrap together, and their difference stays small.
//!
//! Ordering. Before it arrives, a block's writes are ordered before thread 0's by `bar.sync`; thread 0's fence makes
//! them, cumulatively, visible to whoever sees its addition. Thread 0 of each block polls with relaxed loads, which
//! leave L1 alone, and fences once it has seen the target. So the first fence synchronises with the second, through
//! addition and load; the second `bar.sync` extends that order to the block.
//!
//! Limit. A block that gives up ([`Wait`]) leaves the kernel, and all others do.

use super::wait::{Limit, Wait};
use crate::ptx::{
    AtomicOp, Builder, Compare, Global, LoadKind, LoadOrder, S32, Scope, Shared, Size, U32, U64, Val, Var,
};

/// The barrier as one block sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GridBarrier {
    counter: Global<U32>,
    limit: Limit,
    /// Non-zero once the block has given up.
    gone: Shared<U32>,
    blocks: Val<U32>,
    target: Var<U32>,
    /// An mbarrier at which a block arrives that gives up, where warps that do not come to the barrier wait for that.
    leaving: Option<Shared<U64>>,
}

impl GridBarrier {
    /// The barrier at `counter`, which is 0 when the kernel starts.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, counter: Global<U32>, limit: Limit) -> GridBarrier {
        let (blocks, gone) = (b.nctaid_x(), b.shared("gone", 1));
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| b.st(gone, 0)); // read behind the first barrier
        GridBarrier { counter, limit, gone, blocks, target: b.var::<U32>(0), leaving: None }
    }

    /// The barrier of some of a block's warps, of which one thread arrives at an mbarrier when they give up. They may have
    /// gone on elsewhere with what they had not: a block that has given up before does not arrive at the barrier.
    pub(crate) fn with_leaving(self, leaving: Shared<U64>) -> GridBarrier {
        GridBarrier { leaving: Some(leaving), ..self }
    }

    /// Waits until every block is here. Everything written before by any thread of the grid is seen after it.
    #[track_caller]
    pub(crate) fn wait(&self, b: &mut Builder) {
        self.wait_for_all(b, 20, None);
    }

    /// As `wait`; all warps of the block but the first run `beside` while that waits.
    #[track_caller]
    pub(crate) fn wait_beside(&self, b: &mut Builder, beside: &dyn Fn(&mut Builder)) {
        self.wait_for_all(b, 20, Some(beside));
    }

    /// As `wait`, where the last block may be long in coming: polls every `nanoseconds` only.
    #[track_caller]
    pub(crate) fn wait_sleeping(&self, b: &mut Builder, nanoseconds: u32) {
        self.wait_for_all(b, nanoseconds, None);
    }

    #[track_caller]
    fn wait_for_all(&self, b: &mut Builder, nanoseconds: u32, beside: Option<&dyn Fn(&mut Builder)>) {
        let target = b.add::<U32>(self.target, self.blocks);
        b.set(self.target, target);
        b.bar_sync();
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        let target = b.get(self.target);
        b.if_(first, |b| {
            let wait = Wait::new(b, self.limit);
            let arrives = |b: &mut Builder| {
                b.fence_acq_rel(Scope::Gpu);
                b.red(AtomicOp::Add, self.counter, 1u32, Scope::Gpu);
            };
            match self.leaving {
                None => arrives(b),
                Some(_) => {
                    wait.end_if_over(b);
                    let over = wait.gave_up(b);
                    let stays = b.not_pred(over);
                    b.if_(stays, arrives);
                }
            }
            let waits = |b: &mut Builder| {
                let count = b.ld_sync(self.counter, LoadOrder::Relaxed, Scope::Gpu);
                let missing = b.sub::<U32>(target, count);
                let missing = b.mov_bits::<S32, U32>(missing);
                let missing = b.setp(Compare::Gt, missing, 0i32);
                wait.goes_on(b, missing)
            };
            b.while_(waits, |b| {
                b.nanosleep(nanoseconds);
                wait.count(b);
            });
            b.fence_acq_rel(Scope::Gpu);
            let gives_up = wait.gave_up(b);
            b.if_(gives_up, |b| b.st(self.gone, 1));
        });
        if let Some(beside) = beside {
            let warp = b.warp_id();
            let others = b.setp_ne(warp, 0);
            b.if_(others, beside);
        }
        b.bar_sync();
        let gone = b.ld(self.gone, LoadKind::Constant);
        let gone = b.setp_ne(gone, 0);
        b.if_(gone, |b| {
            if let Some(leaving) = self.leaving {
                b.if_(first, |b| b.mbarrier_arrive(leaving));
            }
            b.exit();
        });
    }

    /// How long a block waits.
    pub(crate) const fn limit(&self) -> Limit {
        self.limit
    }

    /// Blocks of the grid.
    pub(crate) fn blocks(&self) -> Size {
        Size::Reg(self.blocks)
    }
}
