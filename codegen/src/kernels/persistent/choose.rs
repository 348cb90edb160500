//! The draw of a token, behind the head's barrier: one more barrier, or two where it is from some of the tokens.

use super::Decoder;
use crate::blocks::argmax::Best;
use crate::blocks::choose::{Draw, History, Share};
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Scope, Shared, StoreOrder, U32, U64, Val};
use kiln_shape::choice;
use kiln_shape::mailbox::item;

/// What every block has found of a draw, in its shared memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn {
    /// Whether there was one: it takes a finite logit.
    was: Shared<U32>,
    /// The best of those that only a list decided on.
    value: Shared<F32>,
    /// The greatest logit, where there was one or a log-probability is wanted.
    most: Shared<F32>,
    index: Shared<U32>,
}

impl Drawn {
    pub(super) fn new(b: &mut Builder) -> Drawn {
        let most = b.shared("drawn_most", 1);
        Drawn { most, was: b.shared("drawn", 1), value: b.shared("drawn_value", 1), index: b.shared("drawn_index", 1) }
    }
}

impl Decoder<'_> {
    /// The item's tokens by position. Loaded where it is used: registers are short in between.
    fn history(&self, b: &mut Builder) -> Global<U32> {
        let address = b.ld(self.item.at(item::HISTORY).cast::<U64>(), LoadKind::Constant);
        b.global_ptr(address)
    }

    /// Notes the token that runs at a position, for penalties: read behind a barrier of the grid.
    pub(super) fn remember(&self, b: &mut Builder, position: Val<U32>, token: Val<U32>) {
        b.if_(self.leader, |b| {
            let history = self.history(b);
            let at = b.index(history, position);
            b.st(at, token);
        });
    }

    /// Clears what the draw adds up in, and changes the block's logits by penalties. Barriers stand inside: before the
    /// logits are read, and behind their last change.
    pub(super) fn treat(&self, b: &mut Builder, position: Val<U32>, share: Share) {
        let adds = self.chain.has(b, choice::FILTERS | choice::LOGPROB);
        b.if_(adds, |b| self.chain.clear(b));
        let (tokens, length) = (self.history(b), b.add(position, 1));
        self.chain.treat(b, History { tokens, length }, share);
    }

    /// Draws the token behind `position`, where it is chosen so and can be.
    pub(super) fn draw(&self, b: &mut Builder, logits: Global<F32>, position: Val<U32>, chooses: Val<Pred>) {
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| b.st(self.drawn.was, 0));
        let asks = self.chain.has(b, choice::DRAWS | choice::LOGPROB);
        let asks = b.and_pred(asks, chooses);
        b.if_(asks, |b| {
            let most = self.chain.most(b, (self.best_values, self.best_indices));
            let size = b.abs(most);
            let finite = b.setp_lt(size, f32::INFINITY);
            b.if_(finite, |b| {
                let head = b.mul::<U32>(self.layers, 4);
                let (first_row, end) = self.share(b, head);
                let share = Share { logits, first: first_row, end };
                b.if_(first, |b| b.st(self.drawn.most, most));
                let adds = self.chain.has(b, choice::FILTERS | choice::LOGPROB);
                b.if_(adds, |b| {
                    self.chain.weigh(b, share, most);
                    self.barrier.wait(b);
                });
                let draws = self.chain.has(b, choice::DRAWS);
                b.if_(draws, |b| self.draw_from(b, share, most, position));
            });
        });
        b.bar_sync(); // what was found is in shared memory
    }

    /// Draws, where the bins are behind a barrier.
    fn draw_from(&self, b: &mut Builder, share: Share, most: Val<F32>, position: Val<U32>) {
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        let by = Draw { most, position: b.add(position, 1), window: self.chain.window(b) };
        let best = self.chain.sift(b, share, by);
        let draws = self.chain.draws(b);
        self.chain.store(b, &best, draws);
        self.barrier.wait(b);
        let found = Best::none(b);
        let filters = self.chain.has(b, choice::FILTERS);
        b.if_(filters, |b| {
            let best = self.chain.settle(b, by);
            b.set(found.value, best.value);
            b.set(found.index, best.index);
        });
        b.if_(first, |b| {
            b.st(self.drawn.was, 1);
            b.st(self.drawn.value, found.value);
            b.st(self.drawn.index, found.index);
        });
    }

    /// Tells the host the log-probability of a token, for the leader, before the entry of the token: it goes to the entry's
    /// place. The fence orders it before the entry.
    pub(super) fn tell_logprob(&self, b: &mut Builder, slot: Val<U32>, token: Val<U32>) {
        let wants = self.chain.has(b, choice::LOGPROB);
        b.if_(wants, |b| {
            let mut address = |word| b.ld(self.item.at(word).cast::<U64>(), LoadKind::Constant);
            let (logits, logprobs) = (address(item::LOGITS), address(item::LOGPROBS));
            let (logits, logprobs) = (b.global_ptr::<F32>(logits), b.global_ptr::<F32>(logprobs));
            let at = b.index(logits, token);
            let logit = b.ld(at, LoadKind::Ordinary);
            let most = b.ld(self.drawn.most, LoadKind::Constant);
            let logprob = self.chain.logprob(b, logit, most);
            let place = self.next_logprob(b, slot);
            let to = b.index(logprobs, place);
            b.st_sync(to, logprob, StoreOrder::Relaxed, Scope::Sys);
            b.fence_acq_rel(Scope::Sys);
        });
    }

    /// The token of the blocks' best, for the first warp: of the draws, where there were some, else of the logits.
    pub(super) fn token_of_all(&self, b: &mut Builder) -> Val<U32> {
        let best = Best::none(b);
        let was = b.ld(self.drawn.was, LoadKind::Constant);
        let was = b.setp_ne(was, 0);
        b.if_(was, |b| {
            let value = b.ld(self.drawn.value, LoadKind::Constant);
            let index = b.ld(self.drawn.index, LoadKind::Constant);
            b.set(best.value, value);
            b.set(best.index, index);
        });
        let (values, indices) = self.chain.draws(b);
        let values = b.select_ptr(values, self.best_values, was);
        let indices = b.select_ptr(indices, self.best_indices, was);
        best.merge(b, values, indices, self.barrier.blocks());
        best.token(b)
    }
}
