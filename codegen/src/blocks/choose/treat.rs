//! What changes logits before the choice: the mask of allowed ids, biases, and penalties of tokens that have occurred.

use super::{Choose, Share};
use crate::ptx::{AtomicOp, Builder, Compare, F32, Global, LoadKind, LoadOrder, Order, Pred, Scope, U32, U64, Val};
use kiln_shape::choice::{self, memory};

/// The tokens before the one that is chosen, by position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct History {
    pub(crate) tokens: Global<U32>,
    /// How many there are.
    pub(crate) length: Val<U32>,
}

impl Choose {
    /// Clears the memory that the later steps add up in, by the grid's first block. Every block is behind the last step of the
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

    /// Keeps the block's logits as the model gives them.
    pub(super) fn keep(&self, b: &mut Builder, share: Share) {
        let kept = self.given(b, share.logits);
        self.each_logit(b, share, |b, id, at| {
            let (logit, to) = (b.ld(at, LoadKind::Ordinary), b.index(kept, id));
            b.st(to, logit);
        });
    }

    /// Changes the block's logits, where anything does. Barriers stand inside, one behind the last change.
    pub(super) fn treat(&self, b: &mut Builder, history: History, share: Share) {
        let treats = self.has(b, choice::TREATS);
        b.if_(treats, |b| {
            let (has_mask, has_biases) = (self.has(b, choice::HAS_MASK), self.has(b, choice::HAS_BIASES));
            b.if_(has_mask, |b| self.mask(b, share));
            b.bar_sync(); // a thread's logits are another's
            b.if_(has_biases, |b| self.add_biases(b, share));
            b.bar_sync(); // as above
            let penalises = self.has(b, choice::PENALISES);
            b.if_(penalises, |b| self.penalise(b, history, share));
        });
    }

    /// Whether the mask that a choice awaits is not there: not that of the token behind `history`. The same in the whole
    /// block, where one thread looks; other blocks may have looked at another time. Barriers stand inside.
    #[track_caller]
    pub(crate) fn is_late(&self, b: &mut Builder, history: History) -> Val<Pred> {
        let late = b.var::<U32>(0);
        let awaits = self.has(b, choice::AWAITS);
        b.if_(awaits, |b| {
            let tid = b.tid();
            let first = b.setp_eq(tid, 0);
            let position = b.var::<U32>(0);
            b.if_(first, |b| {
                let mask = self.long(b, choice::MASK);
                let at = b.global_ptr::<U32>(mask).at(choice::mask::POSITION);
                let word = b.ld_sync(at, LoadOrder::Acquire, Scope::Sys);
                b.set(position, word);
            });
            let position = b.get(position);
            let position = b.broadcast(self.room.said, position);
            let other = b.setp_ne(position, history.length);
            b.if_(other, |b| b.set(late, 1));
        });
        b.setp_ne(late, 0)
    }

    /// Gives -inf to what is not allowed. A NaN or +inf stays: with such logits no token is chosen at all.
    fn mask(&self, b: &mut Builder, share: Share) {
        let mask = self.long(b, choice::MASK);
        let bits = b.global_ptr::<U32>(mask).at(choice::mask::BITS);
        self.each_logit(b, share, |b, id, at| {
            let (index, bit) = (b.shr::<U32>(id, 5), b.and::<U32>(id, 31));
            let word = b.index(bits, index);
            let word = b.ld_sync(word, LoadOrder::Relaxed, Scope::Sys); // of the host, under a constraint
            let bit = b.shr::<U32>(word, bit);
            let bit = b.and::<U32>(bit, 1);
            let logit = b.ld(at, LoadKind::Ordinary);
            let (barred, number) = (b.setp_eq(bit, 0), b.setp_lt(logit, f32::INFINITY));
            let barred = b.and_pred(barred, number);
            b.if_(barred, |b| b.st(at, f32::NEG_INFINITY));
        });
    }

    fn add_biases(&self, b: &mut Builder, share: Share) {
        let (tid, threads) = (b.tid(), b.block());
        let count = b.ld(self.words.at(choice::BIAS_COUNT), LoadKind::Constant);
        let biases = self.long(b, choice::BIASES);
        let biases = b.global_ptr::<U64>(biases);
        b.for_range(tid, count, threads, |b, i| {
            let at = b.index(biases, i);
            let pair = b.ld(at, LoadKind::Ordinary);
            let [id, bias] = b.unpack64(pair);
            let own = within(b, id, share.first, share.end);
            b.if_(own, |b| {
                let at = b.index(share.logits, id);
                let (logit, bias) = (b.ld(at, LoadKind::Ordinary), b.mov_bits::<F32, _>(bias));
                let logit = b.add(logit, bias);
                b.st(at, logit);
            });
        });
    }

    /// Each id of the window is counted; who then takes the count away, and leaves 0, changes the logit.
    fn penalise(&self, b: &mut Builder, history: History, share: Share) {
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

    /// Each of the block's logits, by its threads: its id, and where it is.
    fn each_logit(&self, b: &mut Builder, share: Share, body: impl FnOnce(&mut Builder, Val<U32>, Global<F32>)) {
        let (tid, threads) = (b.tid(), b.block());
        let first = b.add::<U32>(share.first, tid);
        b.for_range(first, share.end, threads, |b, id| {
            let at = b.index(share.logits, id);
            body(b, id, at);
        });
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
}

/// Whether `first <= id < end`.
fn within(b: &mut Builder, id: Val<U32>, first: Val<U32>, end: Val<U32>) -> Val<Pred> {
    let (from, before) = (b.setp_ge(id, first), b.setp_lt(id, end));
    b.and_pred(from, before)
}
