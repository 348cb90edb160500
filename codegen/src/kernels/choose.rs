use super::{Grid, Kernel};
use crate::blocks::argmax::{self, Best};
use crate::blocks::choose::{Choose as Chain, Draw, History, Share};
use crate::blocks::dependent;
use crate::ptx::{Builder, F32, Global, LoadKind, Size, U32};
use kiln_shape::choice::memory::{DRAWN, TREATED};
use kiln_shape::choice::{self, step};

/// The choice of a token from `logits[vocab]` by the chain of `kiln`'s `Sampling`, as `choice` says it, a step a launch:
/// what changes logits and each block's greatest logit, the bins of logits where it draws from some of them, the draws, and the
/// token. Stores it as the token after `state`'s position, as [`Argmax`](super::Argmax) does, with the same answer where
/// no token can be chosen. `memory` is that of [`kiln_shape::choice::memory`], zeros before the first choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choose;

impl Choose {
    /// Logits of a block.
    pub const ROWS: u32 = choice::ROWS;
}

impl Kernel for Choose {
    fn name(&self) -> &str {
        "choose"
    }

    fn grid(&self) -> Grid {
        Grid::PerRows(Choose::ROWS)
    }

    fn build(&self, b: &mut Builder) {
        let logits = b.param::<Global<F32>>("logits"); // [vocab]
        let vocab = b.param::<U32>("vocab");
        let tokens = b.param::<Global<U32>>("tokens"); // [capacity]
        let capacity = b.param::<U32>("capacity");
        let state = b.param::<Global<U32>>("state"); // [3]
        let choice = b.param::<Global<U32>>("choice"); // [choice::WORDS]
        let memory = b.param::<Global<U32>>("memory"); // [memory::words(grid, vocab)]
        let which = b.param::<U32>("step");
        let kind = dependent::wait(b);
        let (tid, block) = (b.tid(), b.ctaid_x());
        let words = b.shared("choice_words", choice::WORDS);
        let has = b.setp_lt(tid, choice::WORDS);
        b.if_(has, |b| {
            let (from, to) = (b.index(choice, tid), b.index(words, tid));
            let word = b.ld(from, kind);
            b.st(to, word);
        });
        b.bar_sync(); // the choice is in shared memory
        let blocks = Size::Reg(b.nctaid_x());
        let scratch = argmax::Scratch::new(b);
        let chain = Chain::new(b, words, memory, blocks, vocab, scratch);
        let first = b.mul::<U32>(block, Choose::ROWS);
        let end = b.add(first, Choose::ROWS);
        let end = b.min(end, vocab);
        let share = Share { logits, first, end };
        let length = |b: &mut Builder| b.ld(state.at(1), LoadKind::Ordinary);
        let is = |b: &mut Builder, step: u32| b.setp_eq(which, step);
        let treats = is(b, step::TREAT);
        b.if_else(
            treats,
            |b| {
                chain.clear(b);
                let length = length(b);
                chain.greatest(b, History { tokens, length }, share, None);
            },
            |b| {
                let most = chain.most(b);
                let size = b.abs(most);
                let finite = b.setp_lt(size, f32::INFINITY);
                let (weighs, sifts, settles) = (is(b, step::WEIGH), is(b, step::SIFT), is(b, step::SETTLE));
                let weighs = b.and_pred(weighs, finite);
                b.if_(weighs, |b| chain.weigh(b, share, most));
                let leads = b.setp_eq(block, 0);
                let settles = b.and_pred(settles, leads);
                let (draws, filters) = (chain.has(b, choice::DRAWS), chain.has(b, choice::FILTERS));
                let draws = b.and_pred(draws, finite);
                let found = Best::none(b);
                let from_list = b.and_pred(settles, filters);
                let looks = b.or_pred(sifts, from_list);
                let looks = b.and_pred(looks, draws);
                b.if_(looks, |b| {
                    let by = Draw { most, position: length(b), window: chain.window(b) };
                    chain.best_draw(b, share, by, sifts, &found);
                });
                b.if_(settles, |b| {
                    b.bar_sync(); // every thread has read the position
                    let warp = b.warp_id();
                    let in_first = b.setp_eq(warp, 0);
                    b.if_(in_first, |b| {
                        let stage = b.selp::<U32>(DRAWN, TREATED, draws);
                        chain.merge(b, &found, stage);
                        let token = found.token(b);
                        let leader = b.setp_eq(tid, 0);
                        b.if_(leader, |b| {
                            let length = length(b);
                            let inside = b.setp_lt(length, capacity);
                            let to = b.index(tokens, length);
                            b.if_(inside, |b| b.st(to, token));
                            let wants = chain.has(b, choice::LOGPROB);
                            let wants = b.and_pred(wants, finite);
                            b.if_(wants, |b| {
                                let given = chain.given(b, logits);
                                let at = b.index(given, token);
                                let logit = b.ld(at, LoadKind::Ordinary);
                                let most = chain.most_given(b);
                                let logprob = chain.logprob(b, logit, most);
                                b.st(memory.at(choice::memory::LOGPROB).cast::<F32>(), logprob);
                            });
                            b.st(state, length);
                            let next = b.add(length, 1);
                            b.st(state.at(1), next);
                        });
                    });
                });
            },
        );
    }
}
