//! Penalties: the logits of tokens that have occurred.

use super::{Choose, Share};
use crate::blocks::warp;
use crate::ptx::{AtomicOp, Builder, Compare, F32, Global, LoadKind, Order, Pred, Scope, U32, U64, Val, Work};
use kiln_shape::choice::{self, memory};

/// The tokens before the one that is chosen, by position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct History {
    pub(crate) tokens: Global<U32>,
    /// How many there are.
    pub(crate) length: Val<U32>,
}

impl Choose {
    /// Clears the memory that the later steps add up in, by the grid's first block. Every block is behind `settle` of the
    /// choice before.
    #[track_caller]
    pub(crate) fn clear(&self, b: &mut Builder) {
        let (block, tid, threads) = (b.ctaid_x(), b.tid(), b.block());
        let first = b.setp_eq(block, 0);
        b.if_(first, |b| {
            b.for_range(tid, memory::CLEARED, threads, |b, i| {
                let to = b.index(self.memory, i);
                b.st(to, 0);
            });
        });
    }

    /// Changes the block's logits by the penalties, if there are any. Barriers stand inside: before the logits are read,
    /// and behind their last change.
    ///
    /// Each id of the window is counted; who then takes the count away, and leaves 0, changes the logit.
    #[track_caller]
    pub(crate) fn treat(&self, b: &mut Builder, history: History, share: Share) {
        b.bar_sync(); // the block's logits are written
        let penalises = self.has(b, choice::PENALISES);
        b.if_(penalises, |b| {
            let occurrences = self.occurrences(b);
            self.each_recent(b, history, share, |b, id| {
                let count = b.index(occurrences, id);
                b.red(AtomicOp::Add, count, 1u32, Scope::Gpu);
            });
            b.bar_sync(); // every occurrence is counted
            self.each_recent(b, history, share, |b, id| {
                let count = b.index(occurrences, id);
                let count = b.atom_exch(Order::Relaxed, count, 0u32, Scope::Gpu);
                let at = b.index(share.logits, id);
                let takes = b.setp_ne(count, 0);
                b.if_(takes, |b| {
                    let logit = b.ld(at, LoadKind::Ordinary);
                    let size = b.abs(logit);
                    let finite = b.setp_lt(size, f32::INFINITY);
                    b.if_(finite, |b| {
                        let logit = self.penalised(b, logit, count);
                        b.st(at, logit);
                    });
                });
            });
            b.bar_sync(); // the logits are as they stay
        });
    }

    /// A finite logit of a token that has occurred `count` times.
    fn penalised(&self, b: &mut Builder, logit: Val<F32>, count: Val<U32>) -> Val<F32> {
        let (factor, presence) = (self.float(b, choice::REPETITION), self.float(b, choice::PRESENCE));
        let frequency = self.float(b, choice::FREQUENCY);
        let positive = b.setp(Compare::Gt, logit, 0.0);
        let (less, more) = (b.div(logit, factor), b.mul(logit, factor));
        let scaled = b.selp::<F32>(less, more, positive);
        let present = b.sub(scaled, presence);
        let (times, frequency) = (b.cvt::<F32, U32>(count), b.neg(frequency));
        let logit = b.fma(frequency, times, present);
        let logit = b.min(logit, f32::MAX);
        b.max(logit, f32::MIN)
    }

    /// The ids of the window that are the block's, by its threads.
    fn each_recent(
        &self,
        b: &mut Builder,
        History { tokens, length }: History,
        share: Share,
        body: impl FnOnce(&mut Builder, Val<U32>),
    ) {
        let (tid, threads) = (b.tid(), b.block());
        let window = b.ld(self.words.at(choice::PENALTY_WINDOW), LoadKind::Constant);
        let window = b.min(window, length);
        let begin = b.sub::<U32>(length, window);
        let begin = b.add(begin, tid);
        b.for_range(begin, length, threads, |b, i| {
            let at = b.index(tokens, i);
            let id = b.ld(at, LoadKind::Ordinary);
            let own = within(b, id, share.first, share.end);
            b.if_(own, |b| body(b, id));
        });
    }

    /// Adds each of the block's logits to the count and the mass of its bin, where a top-k or a top-p asks for them, and
    /// all to the mass of a log-probability.
    #[track_caller]
    pub(crate) fn weigh(&self, b: &mut Builder, share: Share, most: Val<F32>) {
        let (tid, threads) = (b.tid(), b.block());
        let counts = self.memory.at(memory::COUNTS);
        let masses = self.memory.at(memory::MASSES).cast::<U64>();
        let top_k = b.ld(self.words.at(choice::TOP_K), LoadKind::Constant);
        let (has_k, has_p) = (b.setp_ne(top_k, 0), self.has(b, choice::HAS_TOP_P));
        let has_all = self.has(b, choice::LOGPROB);
        let has_mass = self.has(b, choice::HAS_TOP_P | choice::LOGPROB);
        let all = b.var::<U64>(0u64);
        let first = b.add::<U32>(share.first, tid);
        b.for_range(first, share.end, threads, |b, i| {
            b.each_iteration(Work::Read(1));
            let at = b.index(share.logits, i);
            let logit = b.ld(at, LoadKind::Ordinary);
            let bin = super::bin(b, logit, most);
            let counted = super::possible(b, logit);
            let counted = b.and_pred(counted, has_k);
            let count = b.index(counts, bin);
            b.if_(counted, |b| b.red(AtomicOp::Add, count, 1u32, Scope::Gpu));
            b.if_(has_mass, |b| {
                let mass = super::mass(b, logit, most);
                let more = b.add::<U64>(all, mass);
                b.set(all, more);
                let counted = b.setp_ne(mass, 0u64);
                let counted = b.and_pred(counted, has_p);
                let sum = b.index(masses, bin);
                b.if_(counted, |b| b.red(AtomicOp::Add, sum, mass, Scope::Gpu));
            });
        });
        b.if_(has_all, |b| {
            let all = b.get(all);
            let all = warp::sum64(b, all);
            let lane = b.lane();
            let leads = b.setp_eq(lane, 0);
            let total = self.memory.at(memory::TOTAL).cast::<U64>();
            b.if_(leads, |b| b.red(AtomicOp::Add, total, all, Scope::Gpu));
        });
    }
}

/// Whether `first <= id < end`.
fn within(b: &mut Builder, id: Val<U32>, first: Val<U32>, end: Val<U32>) -> Val<Pred> {
    let (from, before) = (b.setp_ge(id, first), b.setp_lt(id, end));
    b.and_pred(from, before)
}
