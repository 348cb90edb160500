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
//! Limit. A block that has polled for longer than the limit sets the abort word, which pollers read at every 32nd poll.
//! Then all blocks leave the kernel.

use crate::ptx::{
    AtomicOp, Builder, Compare, Global, LoadKind, LoadOrder, Order, S32, Scope, Shared, Size, StoreOrder, U32, U64,
    Val, Var,
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

/// How long a block waits for others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// Non-zero once a block has given up; 0 when the kernel starts.
    pub(crate) abort: Global<U32>,
    /// Where the first block to give up writes its number plus one for the host.
    pub(crate) stalled: Global<U32>,
    /// Nanoseconds of the device's clock.
    pub(crate) nanoseconds: Val<U64>,
}

/// Polls between two looks at the clock and the abort word.
pub(crate) const LOOK: u32 = 32;

impl Limit {
    /// Looks whether another block has given up, and whether this one must.
    pub(crate) fn look(&self, b: &mut Builder, since: Var<U64>, gone: Var<U32>) {
        let Limit { abort, stalled, nanoseconds } = *self;
        let aborted = b.ld_sync(abort, LoadOrder::Relaxed, Scope::Gpu);
        b.set(gone, aborted);
        let now = b.globaltimer();
        let fresh = b.setp_eq(since, 0u64);
        b.if_(fresh, |b| b.set(since, now));
        let waited = b.sub(now, since);
        let long = b.setp(Compare::Gt, waited, nanoseconds);
        b.if_(long, |b| {
            b.set(gone, 1);
            let before = b.atom_exch(Order::Relaxed, abort, 1u32, Scope::Gpu);
            let first = b.setp_eq(before, 0);
            b.if_(first, |b| {
                let block = b.ctaid_x();
                let block = b.add(block, 1);
                b.st_sync(stalled, block, StoreOrder::Relaxed, Scope::Sys);
            });
        });
    }
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

    /// The barrier of some of a block's warps, of which one thread arrives at an mbarrier when they give up.
    pub(crate) fn with_leaving(self, leaving: Shared<U64>) -> GridBarrier {
        GridBarrier { leaving: Some(leaving), ..self }
    }

    /// Waits until every block is here. Everything written before by any thread of the grid is seen after it.
    #[track_caller]
    pub(crate) fn wait(&self, b: &mut Builder) {
        self.wait_sleeping(b, 20);
    }

    /// As `wait`, where the last block may be long in coming: polls every `nanoseconds` only.
    #[track_caller]
    pub(crate) fn wait_sleeping(&self, b: &mut Builder, nanoseconds: u32) {
        let target = b.add::<U32>(self.target, self.blocks);
        b.set(self.target, target);
        b.bar_sync();
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        let target = b.get(self.target);
        b.if_(first, |b| {
            b.fence_acq_rel(Scope::Gpu);
            b.red(AtomicOp::Add, self.counter, 1u32, Scope::Gpu);
            let (polls, since) = (b.var::<U32>(0), b.var::<U64>(0u64));
            let gone = b.var::<U32>(0);
            let waits = |b: &mut Builder| {
                let count = b.ld_sync(self.counter, LoadOrder::Relaxed, Scope::Gpu);
                let missing = b.sub::<U32>(target, count);
                let missing = b.mov_bits::<S32, U32>(missing);
                let missing = b.setp(Compare::Gt, missing, 0i32);
                let stays = b.setp_eq(gone, 0);
                b.and_pred(missing, stays)
            };
            b.while_(waits, |b| {
                b.nanosleep(nanoseconds);
                let next = b.add::<U32>(polls, 1);
                b.set(polls, next);
                let phase = b.and::<U32>(polls, LOOK - 1);
                let looks = b.setp_eq(phase, 0);
                b.if_(looks, |b| self.limit.look(b, since, gone));
            });
            b.fence_acq_rel(Scope::Gpu);
            let gives_up = b.setp_ne(gone, 0);
            b.if_(gives_up, |b| b.st(self.gone, 1));
        });
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
