//! A barrier over all blocks of a cooperative grid.
//!
//! One counter, which only grows: a block that arrives adds 1 and waits until the count reaches its target, the number
//! of blocks times the number of barriers so far. There is nothing to reset, so nothing races with a reset; the counter
//! and targets wrap together, and their difference stays small.
//!
//! Ordering. Before it arrives, a block's writes are ordered before thread 0's by `bar.sync`; thread 0's fence makes
//! them, cumulatively, visible to whoever sees its addition. Thread 0 of each block polls with relaxed loads, which leave
//! L1 alone, and fences once it has seen the target: fence, addition, load, fence synchronise. The second `bar.sync`
//! hands that on to its block.

use crate::ptx::{AtomicOp, Builder, Global, Order, S32, Scope, Size, U32, Val, Var};

/// The barrier as one block sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GridBarrier {
    counter: Global<U32>,
    blocks: Val<U32>,
    target: Var<U32>,
}

impl GridBarrier {
    /// The barrier at `counter`, which is 0 when the kernel starts.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, counter: Global<U32>) -> GridBarrier {
        let blocks = b.nctaid_x();
        GridBarrier { counter, blocks, target: b.var::<U32>(0) }
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
            let arrived = |b: &mut Builder| {
                let count = b.ld_sync(self.counter, Order::Relaxed, Scope::Gpu);
                let missing = b.sub::<U32>(target, count);
                let missing = b.mov_bits::<S32, U32>(missing);
                b.setp(crate::ptx::Compare::Gt, missing, 0i32)
            };
            b.while_(arrived, |b| b.nanosleep(nanoseconds));
            b.fence_acq_rel(Scope::Gpu);
        });
        b.bar_sync();
    }

    /// Blocks of the grid.
    pub(crate) fn blocks(&self) -> Size {
        Size::Reg(self.blocks)
    }
}
