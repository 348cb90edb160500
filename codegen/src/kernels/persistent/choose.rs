//! The draw of a token, behind the head's barrier: one more barrier, or two where it is from some of the tokens; all columns
//! share them.

use super::column::word;
use super::{Decoder, Pass};
use crate::blocks::argmax::Best;
use crate::blocks::choose::{Choose, Draw, History, Share};
use crate::ptx::{Builder, F32, LoadKind, Scope, Shared, StoreOrder, U32, Val, Var};
use kiln_shape::choice;
use kiln_shape::choice::memory::{DRAWN, TREATED};
use kiln_shape::mailbox::command::COLUMNS;
use kiln_shape::mailbox::{AWAITED, item};

/// What every block has found of the columns' draws, in its shared memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn {
    /// Whether there was one: it takes a finite logit.
    was: Shared<U32>,
    /// The best of those that only a list decided on.
    value: Shared<F32>,
    /// The greatest logit, where there was one.
    most: Shared<F32>,
    /// The greatest logit as the model gives them, where a log-probability is wanted.
    given: Shared<F32>,
    index: Shared<U32>,
}

impl Drawn {
    pub(super) fn new(b: &mut Builder) -> Drawn {
        let (most, given) = (b.shared("drawn_most", COLUMNS), b.shared("drawn_given", COLUMNS));
        let (was, value) = (b.shared("drawn", COLUMNS), b.shared("drawn_value", COLUMNS));
        Drawn { most, given, was, value, index: b.shared("drawn_index", COLUMNS) }
    }
}

impl Decoder<'_> {
    /// Notes the tokens that run at their positions, for penalties: read behind a barrier of the grid.
    pub(super) fn remember(&self, b: &mut Builder, pass: &Pass) {
        b.if_(self.leads, |b| {
            let (columns, lane) = (&self.columns, b.lane());
            let runs = b.setp_lt::<U32>(lane, pass.count);
            b.if_(runs, |b| {
                let (position, token) = (columns.position(b, lane), columns.get(b, word::TOKEN, lane));
                let history = columns.pointer::<U32>(b, lane, item::HISTORY);
                let at = b.index(history, position);
                b.st(at, token);
            });
        });
    }

    /// The chain by which a column's token is chosen.
    fn chain(&self, b: &mut Builder, column: Val<U32>) -> Choose {
        let words = self.columns.choice(b, Some(column));
        match self.columns.most() {
            1 => self.chain,
            _ => self.chain.of_column(b, column, words),
        }
    }

    /// Clears what the draw adds up in, changes the block's logits of a column, and stores the greatest of them for the merge
    /// behind the head's barrier. Barriers stand inside.
    pub(super) fn best_of_block(&self, b: &mut Builder, column: Val<U32>, (first, end): (Val<U32>, Val<U32>)) {
        let chain = self.chain(b, column);
        let adds = chain.has(b, choice::FILTERS | choice::LOGPROB);
        b.if_(adds, |b| chain.clear(b));
        let (tokens, position) = (self.columns.pointer(b, column, item::HISTORY), self.columns.position(b, column));
        let length = b.add(position, 1);
        let logits = self.columns.pointer(b, column, item::LOGITS);
        let history = History { tokens, length };
        let late = chain.is_late(b, history);
        chain.greatest(b, history, Share { logits, first, end }, Some(late));
    }

    /// Draws the token behind each column's, where it is chosen so and can be. Between two steps of it the blocks wait for each
    /// other once, however many columns draw.
    pub(super) fn draw(&self, b: &mut Builder, pass: &Pass) {
        let (adds, draws) = (b.var::<U32>(0), b.var::<U32>(0));
        self.columns.each(b, pass, |b, column| self.weigh(b, column, (adds, draws)));
        let adds = b.setp_ne(adds, 0);
        b.if_else(adds, |b| self.barrier.wait(b), Builder::bar_sync);
        let draws = b.setp_ne(draws, 0);
        b.if_(draws, |b| {
            // The window is found twice, by one text.
            b.for_range(0, 2, 1, |b, step| {
                self.columns.each(b, pass, |b, column| self.draw_from(b, column, step));
                let sifted = b.setp_eq(step, 0);
                b.if_else(sifted, |b| self.barrier.wait(b), Builder::bar_sync);
            });
        });
    }

    /// The first step of a column's draw: says whether bins are to be added up, and whether there is a draw.
    fn weigh(&self, b: &mut Builder, column: Val<U32>, (any_adds, any_draws): (Var<U32>, Var<U32>)) {
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        let was = b.index(self.drawn.was, column);
        b.if_(first, |b| b.st(was, 0));
        let chain = self.chain(b, column);
        let asks = chain.has(b, choice::DRAWS | choice::LOGPROB);
        let chooses = self.columns.chooses(b, column);
        let asks = b.and_pred(asks, chooses);
        b.if_(asks, |b| {
            let most = chain.most(b);
            let size = b.abs(most);
            let finite = b.setp_lt(size, f32::INFINITY);
            b.if_(finite, |b| {
                let (to, given_to) = (b.index(self.drawn.most, column), b.index(self.drawn.given, column));
                let given = chain.most_given(b);
                b.if_(first, |b| {
                    b.st(to, most);
                    b.st(given_to, given);
                });
                let adds = chain.has(b, choice::FILTERS | choice::LOGPROB);
                b.if_(adds, |b| {
                    let share = self.logits_of(b, column);
                    chain.weigh(b, share, most);
                    b.set(any_adds, 1);
                });
                let draws = chain.has(b, choice::DRAWS);
                b.if_(draws, |b| {
                    b.if_(first, |b| b.st(was, 1));
                    b.set(any_draws, 1);
                });
            });
        });
    }

    /// The block's logits of a column.
    fn logits_of(&self, b: &mut Builder, column: Val<U32>) -> Share {
        let head = b.mul::<U32>(self.layers, 4);
        let (first, end) = self.share(b, head);
        Share { logits: self.columns.pointer(b, column, item::LOGITS), first, end }
    }

    /// The other steps of a column's draw, where it has one: first the best of its surely drawn logits, then of its list.
    fn draw_from(&self, b: &mut Builder, column: Val<U32>, step: Val<U32>) {
        let Drawn { was, value, index, most, .. } = self.drawn;
        let [was, index] = [was, index].map(|at| b.index(at, column));
        let [value, most] = [value, most].map(|at| b.index(at, column));
        let was = b.ld(was, LoadKind::Constant);
        let draws = b.setp_ne(was, 0);
        b.if_(draws, |b| {
            let (chain, most) = (self.chain(b, column), b.ld(most, LoadKind::Ordinary));
            let found = Best::none(b);
            let (sifts, filters) = (b.setp_eq(step, 0), chain.has(b, choice::FILTERS));
            let looks = b.or_pred(sifts, filters);
            b.if_(looks, |b| {
                let position = self.columns.position(b, column);
                let by = Draw { most, position: b.add(position, 1), window: chain.window(b) };
                let share = self.logits_of(b, column);
                chain.best_draw(b, share, by, sifts, &found);
            });
            let tid = b.tid();
            let first = b.setp_eq(tid, 0);
            b.if_(first, |b| {
                b.st(value, found.value);
                b.st(index, found.index);
            });
        });
    }

    /// Tells the host the log-probability of a column's token, for its lane of the leader's warp, before the entry of the
    /// token: it goes to the entry's place. The fence orders it before the entry.
    pub(super) fn tell_logprob(&self, b: &mut Builder, column: Val<U32>, slot: Val<U32>, token: Val<U32>) {
        let chain = self.chain(b, column);
        let wants = chain.has(b, choice::LOGPROB);
        b.if_(wants, |b| {
            let logits = self.columns.pointer::<F32>(b, column, item::LOGITS);
            let logits = chain.given(b, logits);
            let logprobs = self.columns.pointer::<F32>(b, column, item::LOGPROBS);
            let (at, most) = (b.index(logits, token), b.index(self.drawn.given, column));
            let logit = b.ld(at, LoadKind::Ordinary);
            let most = b.ld(most, LoadKind::Constant);
            let logprob = chain.logprob(b, logit, most);
            let place = self.next_logprob(b, slot);
            let to = b.index(logprobs, place);
            b.st_sync(to, logprob, StoreOrder::Relaxed, Scope::Sys);
            b.fence_acq_rel(Scope::Sys);
        });
    }

    /// A column's token of the blocks' best, for the first warp: of the draws, where there were some, else of the logits.
    /// [`AWAITED`] if the mask was late for some block, unless a logit is NaN: all of them merge the same words.
    pub(super) fn token_of_all(&self, b: &mut Builder, column: Val<U32>) -> Val<U32> {
        let best = Best::none(b);
        let was = b.index(self.drawn.was, column);
        let was = b.ld(was, LoadKind::Constant);
        let was = b.setp_ne(was, 0);
        b.if_(was, |b| {
            let (value, index) = (b.index(self.drawn.value, column), b.index(self.drawn.index, column));
            let (value, index) = (b.ld(value, LoadKind::Constant), b.ld(index, LoadKind::Constant));
            b.set(best.value, value);
            b.set(best.index, index);
        });
        let (chain, stage) = (self.chain(b, column), b.selp::<U32>(DRAWN, TREATED, was));
        chain.merge(b, &best, stage);
        let (token, awaited) = (best.token(b), b.setp_eq::<U32>(best.index, AWAITED));
        b.selp::<U32>(AWAITED, token, awaited)
    }
}
