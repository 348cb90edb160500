//! Waits that end: with what is waited for, with the grid's abort word, or with a limit on the device's clock.
//!
//! Whoever has polled for longer than the limit sets the abort word, which everybody reads who waits, at every 32nd poll.
//! Then all blocks leave the kernel.

use crate::ptx::{
    Builder, Compare, Global, LoadOrder, Order, Pred, Scope, Shared, StoreOrder, U32, U64, Val, Var, Work,
};

/// How long a block waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// Non-zero once a block has given up; 0 when the kernel starts.
    pub(crate) abort: Global<U32>,
    /// Where the first block to give up writes its number plus one for the host.
    pub(crate) stalled: Global<U32>,
    /// Nanoseconds of the device's clock.
    pub(crate) nanoseconds: Val<U64>,
}

/// A thread's wait, in one register, since it stands beside products: how often it has polled since its last look at the
/// clock, in the lowest bits, and above them the tick of its first look, or 0.
pub(crate) struct Wait {
    limit: Limit,
    word: Var<U32>,
}

/// Bits of the polls between two looks at the clock and the abort word.
const POLL_BITS: u32 = 5;

/// A tick is so many bits of the clock's nanoseconds: 33 us.
const TICK_BITS: u32 = 15;

/// Ticks that a wait tells apart: 36 minutes.
const TICKS: u32 = 1 << (31 - POLL_BITS);

/// The word of a wait that has given up.
const GONE: u32 = 1 << 31;

impl Wait {
    /// A wait that begins.
    pub(crate) fn new(b: &mut Builder, limit: Limit) -> Wait {
        Wait { limit, word: b.var::<U32>(0) }
    }

    /// Gives up where another block has.
    pub(crate) fn end_if_over(&self, b: &mut Builder) {
        let over = b.ld_sync(self.limit.abort, LoadOrder::Relaxed, Scope::Gpu);
        let over = b.setp_ne(over, 0);
        b.if_(over, |b| b.set(self.word, GONE));
    }

    /// Whether it has given up.
    pub(crate) fn gave_up(&self, b: &mut Builder) -> Val<Pred> {
        b.setp_eq(self.word, GONE)
    }

    /// Whether it polls again, given whether it lacks something.
    pub(crate) fn goes_on(&self, b: &mut Builder, lacks: Val<Pred>) -> Val<Pred> {
        let stays = b.setp_ne(self.word, GONE);
        b.and_pred(lacks, stays)
    }

    /// Counts a poll, and looks at the clock and the abort word now and then.
    pub(crate) fn count(&self, b: &mut Builder) {
        let next = b.add::<U32>(self.word, 1);
        b.set(self.word, next);
        let polls = b.and::<U32>(next, (1 << POLL_BITS) - 1);
        let looks = b.setp_eq(polls, 0);
        b.if_(looks, |b| self.look(b));
    }

    /// Looks whether another block has given up, and whether this one must.
    fn look(&self, b: &mut Builder) {
        let Limit { abort, stalled, nanoseconds } = self.limit;
        // The last poll was carried into the tick.
        let first = b.shr::<U32>(self.word, POLL_BITS);
        let first = b.sub::<U32>(first, 1);
        let now = b.globaltimer();
        let now = b.shr::<U64>(now, TICK_BITS);
        let [now, _] = b.unpack64(now);
        let now = b.and::<U32>(now, TICKS - 1);
        let fresh = b.setp_eq(first, 0);
        let first = b.selp::<U32>(now, first, fresh);
        let word = b.shl::<U32>(first, POLL_BITS);
        b.set(self.word, word);
        self.end_if_over(b);
        let waited = b.sub::<U32>(now, first);
        let (waited, zero) = (b.and::<U32>(waited, TICKS - 1), b.mov::<U32>(0));
        let waited = b.pack64(waited, zero);
        let limit = b.shr::<U64>(nanoseconds, TICK_BITS);
        let long = b.setp(Compare::Gt, waited, limit);
        b.if_(long, |b| {
            b.set(self.word, GONE);
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

/// Waits for the last phase of a parity, or until the limit is over.
pub(crate) fn for_phase(b: &mut Builder, limit: Limit, mbarrier: Shared<U64>, parity: Val<U32>) {
    let poll = |b: &mut Builder| {
        let over = b.mbarrier_poll(mbarrier, parity);
        b.not_pred(over)
    };
    let lacks = poll(b);
    b.if_(lacks, |b| {
        let wait = Wait::new(b, limit);
        b.do_while(|b| {
            b.each_iteration(Work::Few);
            wait.count(b);
            let lacks = poll(b);
            wait.goes_on(b, lacks)
        });
    });
}

/// Polls of an mbarrier that are enough for what a block's own warps and copies do.
const POLLS: u32 = 1 << 20;

/// Waits for the end of an mbarrier's phase that other blocks have no part in; the launch ends by an error where it does not
/// come.
pub(crate) fn within_block(b: &mut Builder, mbarrier: Shared<U64>, parity: Val<U32>) {
    let over = b.mbarrier_poll(mbarrier, parity);
    let lacks = b.not_pred(over);
    b.if_(lacks, |b| {
        let polls = b.var::<U32>(1);
        b.do_while(|b| {
            b.each_iteration(Work::Few);
            let over = b.mbarrier_poll(mbarrier, parity);
            let next = b.add::<U32>(polls, 1);
            b.set(polls, next);
            let lacks = b.not_pred(over);
            let long = b.setp_ge(next, POLLS);
            let in_vain = b.and_pred(lacks, long);
            b.if_(in_vain, |b| b.trap());
            lacks
        });
    });
}
