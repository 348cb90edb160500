//! Sums of a tile that one block begins and the next one ends.
//!
//! A block leaves its threads' sums in device memory and says so in a word of its own. The next block takes them over and adds
//! to them: the additions are those of one block, in the same order. Who looks in vain for too long leaves a word of that, and
//! does the beginning itself, which gives the same sums: so no block depends on when another runs. The words are zero before
//! a launch and behind it.
//!
//! # Order
//!
//! All threads' stores, a barrier of the block, then a fence of its first thread and the exchange of the word; there, the
//! look at the word, a fence behind it, a barrier, and all threads' loads. Of two exchanges, by who begins and by who gives
//! up, the second finds the first, and clears the word.

use super::gemm_tile::Sums;
use crate::ptx::{Builder, F32, Global, LoadKind, LoadOrder, Order, Pred, Scope, Shared, StoreOrder, U32, Val};

/// What a block's word says: sums are there, or are not waited for.
const THERE: u32 = 1;
const GIVEN_UP: u32 = 2;
/// Looks at the word that are enough: each is a trip to the L2 cache, together about a millisecond.
pub(crate) const LOOKS: u32 = 1 << 12;

/// Where blocks leave sums.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    /// `[blocks, sums of a thread / 4, threads, 4]`.
    pub(crate) sums: Global<F32>,
    /// `[blocks]` words.
    pub(crate) words: Global<U32>,
    /// Looks at a word, at least one.
    pub(crate) looks: u32,
}

impl Begun {
    /// The thread's first four sums among those of a block.
    fn own(&self, b: &mut Builder, block: Val<U32>, count: usize) -> Global<F32> {
        let (tid, threads) = (b.tid(), 32 * b.warps());
        let at = b.mad::<U32>(block, count as u32 * threads, tid);
        b.byte_index(self.sums, at, 16)
    }

    /// Leaves the thread's sums for the next block. By the whole block.
    pub(crate) fn leave(&self, b: &mut Builder, sums: &Sums) {
        let (block, threads) = (b.ctaid_x(), 32 * b.warps());
        let to = self.own(b, block, sums.len());
        for (sums, number) in sums.iter().zip(0..) {
            let values = sums.map(|sum| b.get(sum));
            b.st_vector(to.at(4 * threads * number), values);
        }
        b.bar_sync(); // every thread's sums are written
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| {
            let word = b.index(self.words, block);
            b.fence_acq_rel(Scope::Gpu);
            let before = b.atom_exch(Order::Relaxed, word, THERE, Scope::Gpu);
            let given_up = b.setp_eq(before, GIVEN_UP);
            b.if_(given_up, |b| b.st_sync(word, 0u32, StoreOrder::Relaxed, Scope::Gpu));
        });
    }

    /// The super-block of a tile with which this block goes on, given that with which its share of it begins: where that is
    /// not the first it takes over the sums of the block before, if they come in time. By the whole block.
    pub(crate) fn go_on(&self, b: &mut Builder, begin: Val<U32>, sums: &Sums, answer: Shared<U32>) -> Val<U32> {
        let from = b.var::<U32>(0);
        let goes_on = b.setp_ne(begin, 0);
        b.if_(goes_on, |b| {
            let block = b.ctaid_x();
            let before = b.sub::<U32>(block, 1);
            let there = self.take(b, before, sums, answer);
            let at = b.selp::<U32>(begin, 0, there);
            b.set(from, at);
        });
        b.get(from)
    }

    /// Takes over the sums of block `block`, if they come in time; says whether.
    fn take(&self, b: &mut Builder, block: Val<U32>, sums: &Sums, answer: Shared<U32>) -> Val<Pred> {
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| {
            let word = b.index(self.words, block);
            let (looks, found) = (b.var::<U32>(0), b.var::<U32>(0));
            b.do_while(|b| {
                let seen = b.ld_sync(word, LoadOrder::Relaxed, Scope::Gpu);
                b.set(found, seen);
                let next = b.add::<U32>(looks, 1);
                b.set(looks, next);
                let (lacks, goes_on) = (b.setp_eq(seen, 0), b.setp_lt(next, self.looks));
                b.and_pred(lacks, goes_on)
            });
            let lacks = b.setp_eq(found, 0);
            b.if_(lacks, |b| {
                let last = b.atom_exch(Order::Relaxed, word, GIVEN_UP, Scope::Gpu);
                b.set(found, last);
            });
            let there = b.setp_eq(found, THERE);
            b.if_(there, |b| b.st_sync(word, 0u32, StoreOrder::Relaxed, Scope::Gpu));
            b.fence_acq_rel(Scope::Gpu);
            b.st(answer, found);
        });
        b.bar_sync(); // the answer is in shared memory
        let answer = b.ld(answer, LoadKind::Constant);
        let there = b.setp_eq(answer, THERE);
        b.if_(there, |b| {
            let threads = 32 * b.warps();
            let from = self.own(b, block, sums.len());
            for (sums, number) in sums.iter().zip(0..) {
                let values: [Val<F32>; 4] = b.ld_vector(from.at(4 * threads * number), LoadKind::Ordinary);
                sums.iter().zip(values).for_each(|(sum, value)| b.set(*sum, value));
            }
        });
        there
    }
}
