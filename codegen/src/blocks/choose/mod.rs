//! The choice of a token by the chain of `kiln`'s `Sampling`, with the bits of the host's reference, by the blocks of a
//! grid that have a run of the logits each.
//!
//! Steps, with every block behind each of them:
//! 1. `greatest`: the mask, biases and penalties on the block's logits, and the greatest of them.
//! 2. `weigh`, where some of the tokens are drawn from or a log-probability is wanted: how many logits are how far below
//!    the greatest, and their mass and moment.
//! 3. `best_draw`, which sifts: the best draw of logits that are surely drawn from, and a list of those that may be.
//! 4. The same, where there is such a list, which settles it: the cuts among them, and the best draw of those that they
//!    leave.
//!
//! Sums are of integers, and a list's place counts for nothing: so neither the grid nor the schedule changes a bit. The
//! memory between the steps is that of [`kiln_shape::choice::memory`].
//!
//! `treat` has what changes logits, `weigh` the sums, `window` what is surely drawn from and what is listed, `search` how
//! sums say so, `draw` the steps that draw, `cut` the searches in a list.

mod cut;
mod draw;
mod search;
mod treat;
mod weigh;
mod window;

use super::argmax::{self, Best};
use super::math;
use crate::ptx::{Builder, F32, Global, LoadKind, Operand, Pred, Shared, Size, U32, U64, Val};
use kiln_shape::choice::memory::{DRAWN, GIVEN, TREATED};
use kiln_shape::choice::{self, MASS_OF_ONE, MOST_LACK, memory};
use kiln_shape::mailbox::AWAITED;
pub(crate) use treat::History;
pub(crate) use window::Window;

/// A choice as one block sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choose {
    /// The words of [`choice::Choice`].
    words: Shared<U32>,
    memory: Global<U32>,
    /// Blocks of the grid.
    blocks: Size,
    vocab: Val<U32>,
    scratch: argmax::Scratch,
    room: Room,
}

/// The block's shared memory for a choice.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// `[window::SUMS]`.
    known: Shared<U64>,
    /// The mass and the moment of logits up to the limit's end.
    with_limit: Shared<U64>,
    /// A count and a sum of each warp.
    counts: Shared<U32>,
    sums: Shared<U64>,
    /// A word that one thread says to the block.
    said: Shared<U32>,
    /// The greatest logit of the stages before the draw, `[DRAWN]`.
    most: Shared<F32>,
}

/// The logits of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) logits: Global<F32>,
    /// The first id, and that behind the last.
    pub(crate) first: Val<U32>,
    pub(crate) end: Val<U32>,
}

/// What tokens are drawn by: the same in every thread of the grid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw {
    /// The greatest of all logits that a token is chosen by.
    pub(crate) most: Val<F32>,
    /// The position that the token is chosen for.
    pub(crate) position: Val<U32>,
    pub(crate) window: Window,
}

impl Choose {
    /// Takes the shared memory.
    #[track_caller]
    pub(crate) fn new(
        b: &mut Builder,
        words: Shared<U32>,
        memory: Global<U32>,
        blocks: Size,
        vocab: Val<U32>,
        scratch: argmax::Scratch,
    ) -> Choose {
        let warps = b.warps();
        let room = Room {
            known: b.shared("known_sums", window::SUMS),
            with_limit: b.shared("with_limit", 2),
            counts: b.shared("counts", warps),
            sums: b.shared("sums", warps),
            said: b.shared("said", 1),
            most: b.shared("most", DRAWN),
        };
        Choose { words, memory, blocks, vocab, scratch, room }
    }

    /// The choice of a column, with its words and memory of its own.
    #[track_caller]
    pub(crate) fn of_column(&self, b: &mut Builder, column: Val<U32>, words: Shared<U32>) -> Choose {
        let of_grid = b.size_mul(self.blocks, memory::OF_BLOCK);
        let before = b.size_add(of_grid, memory::BESTS + memory::LINE - 1);
        let of_column = b.mad::<U32>(self.vocab, memory::OF_ID, before);
        let of_column = b.and::<U32>(of_column, !(memory::LINE - 1));
        let at = b.address(self.memory);
        let bytes = b.mul::<U32>(column, 4);
        let at = b.mad_wide(of_column, bytes, at);
        Choose { words, memory: b.global_ptr(at), ..*self }
    }

    /// Whether the choice has a flag; the same in the whole block.
    #[track_caller]
    pub(crate) fn has(&self, b: &mut Builder, flag: u32) -> Val<Pred> {
        let flags = b.ld(self.words.at(choice::FLAGS), LoadKind::Constant);
        let flag = b.and(flags, flag);
        b.setp_ne(flag, 0)
    }

    fn float(&self, b: &mut Builder, word: u32) -> Val<F32> {
        b.ld(self.words.at(word).cast::<F32>(), LoadKind::Constant)
    }

    fn long(&self, b: &mut Builder, word: u32) -> Val<U64> {
        b.ld(self.words.at(word).cast::<U64>(), LoadKind::Constant)
    }

    /// An array of [`memory`] that begins so many words behind those that do not depend on the grid, for each block so
    /// many.
    fn behind(&self, b: &mut Builder, words: u32, of_block: u32) -> Global<U32> {
        let own = b.size_mul(self.blocks, of_block);
        let at = b.size_add(own, words);
        b.index(self.memory, at)
    }

    /// Each block's best of a stage, and its id.
    #[track_caller]
    pub(crate) fn bests(&self, b: &mut Builder, stage: impl Operand<U32>) -> (Global<F32>, Global<U32>) {
        let stage = b.mul::<U32>(stage, 2);
        let before = b.mul::<U32>(stage, self.blocks);
        let values = b.index(self.memory.at(memory::BESTS), before);
        (values.cast(), b.index(values, self.blocks))
    }

    /// Logits as the model gives them, if they are kept; else what logits are.
    #[track_caller]
    pub(crate) fn given(&self, b: &mut Builder, logits: Global<F32>) -> Global<F32> {
        let (occurrences, keeps) = (self.occurrences(b), self.has(b, choice::KEEPS));
        let kept = b.index(occurrences, self.vocab);
        b.select_ptr(kept.cast(), logits, keeps)
    }

    /// The list of keys.
    fn list(&self, b: &mut Builder) -> Global<U64> {
        self.behind(b, memory::BESTS, memory::OF_BLOCK).cast()
    }

    /// How often each id has occurred.
    fn occurrences(&self, b: &mut Builder) -> Global<U32> {
        let list = self.behind(b, memory::BESTS, memory::OF_BLOCK);
        b.byte_index(list, self.vocab, 8)
    }

    /// Stores a block's best of a stage, which warp 0 has, among those of the grid.
    #[track_caller]
    pub(crate) fn store(&self, b: &mut Builder, best: &Best, stage: impl Operand<U32>) {
        let (tid, block) = (b.tid(), b.ctaid_x());
        let first = b.setp_eq(tid, 0);
        let (values, indices) = self.bests(b, stage);
        let (value, index) = (b.index(values, block), b.index(indices, block));
        b.if_(first, |b| {
            b.st(value, best.value);
            b.st(index, best.index);
        });
    }

    /// Takes the best of all blocks' of a stage, by one warp: in every lane.
    #[track_caller]
    pub(crate) fn merge(&self, b: &mut Builder, best: &Best, stage: impl Operand<U32>) {
        let (values, indices) = self.bests(b, stage);
        best.merge(b, values, indices, self.blocks);
    }

    /// The first stage of the greatest logits: as the model gives them, if they are kept.
    fn first_stage(&self, b: &mut Builder) -> Val<U32> {
        let keeps = self.has(b, choice::KEEPS);
        b.selp::<U32>(GIVEN, TREATED, keeps)
    }

    /// Changes the block's logits, and stores the greatest of them among those of the grid; before that, if logits are
    /// kept, the greatest as the model gives them. Barriers stand inside: before the logits are read, and behind their last
    /// change. Where the mask is `late` a NaN stands for the greatest, which comes through every block's merge.
    #[track_caller]
    pub(crate) fn greatest(&self, b: &mut Builder, history: History, share: Share, late: Option<Val<Pred>>) {
        let first = self.first_stage(b);
        b.for_range(first, DRAWN, 1, |b, stage| {
            let treats = b.setp_eq(stage, TREATED);
            b.bar_sync(); // the block's logits are written, and nobody reads the bests of warps any more
            b.if_else(treats, |b| self.treat(b, history, share), |b| self.keep(b, share));
            let best = argmax::of_block(b, self.scratch, share.logits, share.first, share.end, LoadKind::Ordinary);
            if let Some(late) = late {
                b.if_(late, |b| {
                    b.set(best.value, f32::NAN);
                    b.set(best.index, AWAITED);
                });
            }
            self.store(b, &best, stage);
        });
    }

    /// The greatest of all blocks' logits that a token is chosen by, in every thread. Barriers stand inside.
    #[track_caller]
    pub(crate) fn most(&self, b: &mut Builder) -> Val<F32> {
        let (tid, warp) = (b.tid(), b.warp_id());
        let (leads, in_first) = (b.setp_eq(tid, 0), b.setp_eq(warp, 0));
        b.bar_sync(); // nobody reads the greatest of the choice before any more
        b.if_(in_first, |b| {
            let first = self.first_stage(b);
            b.for_range(first, DRAWN, 1, |b, stage| {
                let best = Best::none(b);
                self.merge(b, &best, stage);
                let to = b.index(self.room.most, stage);
                b.if_(leads, |b| b.st(to, best.value));
            });
        });
        b.bar_sync(); // the greatest are in shared memory
        b.ld(self.room.most.at(TREATED), LoadKind::Constant)
    }

    /// The greatest of all blocks' logits as the model gives them, behind `most`.
    #[track_caller]
    pub(crate) fn most_given(&self, b: &mut Builder) -> Val<F32> {
        let stage = self.first_stage(b);
        let at = b.index(self.room.most, stage);
        b.ld(at, LoadKind::Constant)
    }

    /// The log-probability of a logit as the model gives it, behind `weigh`: what the host's `Logprobs` says of it.
    #[track_caller]
    pub(crate) fn logprob(&self, b: &mut Builder, logit: Val<F32>, most: Val<F32>) -> Val<F32> {
        let total = b.ld(self.memory.at(memory::TOTAL).cast::<U64>(), LoadKind::Ordinary);
        let total = b.cvt::<F32, U64>(total);
        let total = b.mul(total, 1.0 / MASS_OF_ONE);
        let total = b.max(total, 1.0);
        let total = math::ln(b, total);
        let below = b.sub(logit, most);
        b.sub(below, total)
    }
}

/// The mass of a logit beside the greatest one, as [`kiln_shape::choice::mass_of`].
fn mass(b: &mut Builder, logit: Val<F32>, most: Val<F32>) -> Val<U64> {
    let weight = weight(b, logit, most);
    in_units(b, weight)
}

/// Its moment, as [`kiln_shape::choice::moment`], of its [`weight`].
fn moment(b: &mut Builder, logit: Val<F32>, most: Val<F32>, weight: Val<F32>) -> Val<U64> {
    let lack = b.sub(most, logit);
    let lack = b.min(lack, MOST_LACK);
    let moment = b.mul(weight, lack);
    in_units(b, moment)
}

fn weight(b: &mut Builder, logit: Val<F32>, most: Val<F32>) -> Val<F32> {
    let below = b.sub(logit, most);
    math::exp(b, below)
}

/// As [`kiln_shape::choice::mass`].
fn in_units(b: &mut Builder, number: Val<F32>) -> Val<U64> {
    let units = b.mul(number, MASS_OF_ONE);
    b.cvt::<U64, F32>(units)
}

/// The bin of a logit beside the greatest one: bins and keys rise together.
fn bin(b: &mut Builder, logit: Val<F32>, most: Val<F32>) -> Val<U32> {
    let below = b.sub(most, logit);
    let bin = b.mul(below, choice::BINS_OF_UNIT as f32);
    let bin = b.min(bin, (choice::BINS - 1) as f32);
    b.cvt::<U32, F32>(bin)
}

/// The upper half of a logit's key, the order of falling logits; the id is the lower one.
fn order(b: &mut Builder, logit: Val<F32>) -> Val<U32> {
    // -0 and 0 are equal.
    let number = b.sub(0.0, logit);
    let bits = b.mov_bits::<U32, _>(number);
    let negative = b.setp_ge(bits, 1u32 << 31);
    let mask = b.selp::<U32>(u32::MAX, 1u32 << 31, negative);
    b.xor(bits, mask)
}

/// The logit with that order.
fn logit_of(b: &mut Builder, order: Val<U32>) -> Val<F32> {
    let positive = b.setp_ge(order, 1u32 << 31);
    let mask = b.selp::<U32>(1u32 << 31, u32::MAX, positive);
    let bits = b.xor(order, mask);
    let number = b.mov_bits::<F32, U32>(bits);
    b.sub(0.0, number)
}

/// Whether a logit's token may be drawn at all.
fn possible(b: &mut Builder, logit: Val<F32>) -> Val<Pred> {
    b.setp(crate::ptx::Compare::Gt, logit, f32::NEG_INFINITY)
}

/// `(share + 1) * mass / 2^64`, rounded down, of four products of halves, none of which overflows with what is added to it.
fn share_of(b: &mut Builder, share: Val<U64>, mass: Val<U64>) -> Val<U64> {
    let ([share_low, share_high], [low, high]) = (b.unpack64(share), b.unpack64(mass));
    let (own_low, own_high) = (b.and(mass, 0xffff_ffffu64), b.shr::<U64>(mass, 32));
    let least = b.mad_wide(share_low, low, own_low);
    let carried = b.shr::<U64>(least, 32);
    let middle = b.mad_wide(share_high, low, carried);
    let kept = b.and(middle, 0xffff_ffffu64);
    let kept = b.add(kept, own_high);
    let other = b.mad_wide(share_low, high, kept);
    let carried = [middle, other].map(|product| b.shr::<U64>(product, 32));
    let whole = b.mad_wide(share_high, high, carried[0]);
    b.add(whole, carried[1])
}
