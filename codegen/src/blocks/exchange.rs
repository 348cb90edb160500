//! Vectors that blocks of a cooperative grid hand to each other without a barrier: each element lies in 64 bits with the
//! epoch that it belongs to ([`kiln_shape::exchange`] has the layout). A store publishes it, and the load that finds its
//! epoch has it: two trips to the L2 cache, and no fence. The FFN's vector goes that way too: flags behind fences in its
//! place, half the bytes, took an H200 11.3 us of a layer of Qwen3-8B from the last product of one phase to the first of the
//! next.
//!
//! # Order
//!
//! *Values.* Stores and loads are relaxed and 64 bits wide, which the memory model keeps whole: a load that sees the epoch
//! sees the value stored with it. Nothing else may be concluded from it: what lies elsewhere is not ordered by such a load.
//!
//! *Epochs.* A token's layers have the epochs that follow those of the token before, from 1 on; words are 0 as the launch
//! begins. Whoever waits knows the epoch, and compares for equality.
//!
//! *Flags.* A flag is the epoch up to which its block has come. A block comes to a layer's meeting as its gate and up begin:
//! its barrier orders what it did before thread 0's fence, which releases that by the flag's store, while the vector is on its
//! way. It waits for the others where it has staged the vector of its down, a phase later, when their flags are long there: by
//! acquiring loads of every warp, which the block's barrier joins. So what any block did before a layer's gate and up happens
//! before what any block does behind its down's vector, also for blocks that have no rows and hand nothing over. Counters and
//! parts of attention, a token's command and each block's best logits rely on it. A block may have come further than another
//! one waits for: flags are compared by the sign of their difference.
//!
//! *Reuse.* Even layers have slots of their own, and odd ones. A slot of layer l is read last in layer l + 1, before its
//! gate and up; it is written again in layer l + 2, behind that layer's meeting. Slots of one token are written again behind
//! the barrier that ends the token. So no store overtakes a load of the epoch before.
//!
//! *Wrap-around.* Every word of a slot is stored once in each of its epochs. What a load may find there instead of its
//! epoch is that of at most three layers before, or 0 in a launch's first: so an epoch that wraps is taken for no other. The
//! words of a column that was idle have older epochs of the launch, which ends before 2^31 of them have gone by.
//!
//! *Other threads.* What one thread of a block has loaded is, behind a barrier of the block, before the loads of the others
//! in causality order: [`load_again`] needs no loop.
//!
//! *Waits.* A warp that has polled for longer than the limit sets the grid's abort word and goes on with what is there. Its
//! block leaves at [`Exchange::leave_if_missed`], before it comes to another barrier of the grid: no token is told of that
//! was made from such values.

use super::wait::{Limit, Wait};
use crate::ptx::{
    Builder, Compare, F32, Global, LoadKind, LoadOrder, Pred, S32, Scope, Shared, Size, StoreOrder, U32, U64, Val, Var,
};
use kiln_shape::SUPER_BLOCK;

/// What a block's warps need to wait for elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    limit: Limit,
    /// Of each warp, non-zero once it has given up; a multiple of four words.
    missed: Shared<U32>,
    warps: u32,
    /// The mbarrier at which a block arrives that gives up.
    leaving: Shared<U64>,
}

impl Exchange {
    /// The exchange of a block's first `warps` warps. By the whole block; a barrier of the block must follow.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, limit: Limit, warps: u32, leaving: Shared<U64>) -> Exchange {
        let words = warps.next_multiple_of(4);
        let missed = b.shared("missed", words);
        let tid = b.tid();
        let has = b.setp_lt(tid, words);
        let own = b.index(missed, tid);
        b.if_(has, |b| b.st(own, 0));
        Exchange { limit, missed, warps, leaving }
    }

    /// Waits for an epoch of the words at `at`, by a whole warp, and gives each lane's values.
    #[track_caller]
    pub(crate) fn load(&self, b: &mut Builder, at: &[Global<U64>], epoch: Val<U32>) -> Vec<Val<F32>> {
        let words = Words::new(b, at.len());
        words.ask(b, at);
        self.wait_for(b, &words, at, epoch)
    }

    /// Waits for an epoch of words that were asked for, by a whole warp, and gives each lane's values.
    #[track_caller]
    pub(crate) fn wait_for(
        &self,
        b: &mut Builder,
        words: &Words,
        at: &[Global<U64>],
        epoch: Val<U32>,
    ) -> Vec<Val<F32>> {
        let found = &words.0;
        let wait = Wait::new(b, self.limit);
        let waits = |b: &mut Builder| {
            let mut different = b.mov::<U32>(0);
            for [_, tag] in found {
                let own = b.xor::<U32>(*tag, epoch);
                different = b.or::<U32>(different, own);
            }
            let lacks = b.setp_ne(different, 0);
            let waits = wait.goes_on(b, lacks);
            b.vote_any(waits)
        };
        b.while_(waits, |b| {
            b.nanosleep(20);
            for (at, [value, tag]) in at.iter().zip(found) {
                let lacks = b.setp_ne::<U32>(*tag, epoch);
                b.if_(lacks, |b| {
                    let word = b.ld_sync(*at, LoadOrder::Relaxed, Scope::Gpu);
                    let [low, high] = b.unpack64(word);
                    b.set(*value, low);
                    b.set(*tag, high);
                });
            }
            wait.count(b);
        });
        self.end_wait(b, &wait);
        found
            .iter()
            .map(|[value, _]| {
                let value = b.get(*value);
                b.mov_bits(value)
            })
            .collect()
    }

    /// Waits until the flags of all blocks have come to an epoch.
    #[track_caller]
    fn wait_for_flags(&self, b: &mut Builder, Meeting { flags, blocks, .. }: Meeting, epoch: Val<U32>) {
        let (warp, lane) = (b.warp_id(), b.lane());
        let first = b.shl::<U32>(warp, 5);
        let last = b.mov::<U32>(blocks);
        let last = b.sub::<U32>(last, 1);
        b.for_range(first, blocks, 32 * self.warps, |b, first| {
            let other = b.add::<U32>(first, lane);
            let other = b.min::<U32>(other, last);
            let flag = b.index(flags, other);
            let wait = Wait::new(b, self.limit);
            let waits = |b: &mut Builder| {
                let come = b.ld_sync(flag, LoadOrder::Acquire, Scope::Gpu);
                let missing = b.sub::<U32>(epoch, come);
                let missing = b.mov_bits::<S32, U32>(missing);
                let lacks = b.setp(Compare::Gt, missing, 0i32);
                let waits = wait.goes_on(b, lacks);
                b.vote_any(waits)
            };
            b.while_(waits, |b| {
                b.nanosleep(20);
                wait.count(b);
            });
            self.end_wait(b, &wait);
        });
    }

    /// Says where a lane has given up that its warp has.
    fn end_wait(&self, b: &mut Builder, wait: &Wait) {
        let gives_up = wait.gave_up(b);
        let gives_up = b.vote_any(gives_up);
        b.if_(gives_up, |b| {
            let (warp, lane) = (b.warp_id(), b.lane());
            let (own, leads) = (b.index(self.missed, warp), b.setp_eq(lane, 0));
            b.if_(leads, |b| b.st(own, 1));
        });
    }

    /// Leaves the kernel where a warp of the block has given up. Behind a barrier of the block.
    #[track_caller]
    pub(crate) fn leave_if_missed(&self, b: &mut Builder) {
        let mut any = b.mov::<U32>(0);
        for first in (0..self.warps).step_by(4) {
            let four: [Val<U32>; 4] = b.ld_vector(self.missed.at(first), LoadKind::Constant);
            any = four.into_iter().fold(any, |any, missed| b.or::<U32>(any, missed));
        }
        let missed = b.setp_ne(any, 0);
        b.if_(missed, |b| {
            b.cp_async_wait_group(0); // a block must not leave while its copies are under way
            let tid = b.tid();
            let first = b.setp_eq(tid, 0);
            b.if_(first, |b| b.mbarrier_arrive(self.leaving));
            b.exit();
        });
    }
}

/// Words of a lane that are on their way: each its value's bits and its epoch.
#[derive(Debug, Clone)]
pub(crate) struct Words(Vec<[Var<U32>; 2]>);

impl Words {
    /// All words of some.
    pub(crate) fn joined(parts: &[Words]) -> Words {
        Words(parts.iter().flat_map(|part| part.0.iter().copied()).collect())
    }

    pub(crate) fn new(b: &mut Builder, count: usize) -> Words {
        Words((0..count).map(|_| [(); 2].map(|()| b.var::<U32>(0))).collect())
    }

    /// Asks for them, whatever their epoch.
    pub(crate) fn ask(&self, b: &mut Builder, at: &[Global<U64>]) {
        let words: Vec<_> = at.iter().map(|at| b.ld_sync(*at, LoadOrder::Relaxed, Scope::Gpu)).collect();
        for (to, word) in self.0.iter().zip(words) {
            let halves = b.unpack64(word);
            to.iter().zip(halves).for_each(|(to, half)| b.set(*to, half));
        }
    }

    /// Takes what was there before for values of an epoch: nobody waits for these words.
    pub(crate) fn expect_none(&self, b: &mut Builder, epoch: Val<U32>) {
        self.0.iter().for_each(|[_, tag]| b.set(*tag, epoch));
    }

    /// Takes values that came another way, as those of an epoch.
    pub(crate) fn set(&self, b: &mut Builder, values: &[Val<F32>], epoch: Val<U32>) {
        for ([value, tag], own) in self.0.iter().zip(values) {
            let bits = b.mov_bits::<U32, F32>(*own);
            b.set(*value, bits);
            b.set(*tag, epoch);
        }
    }
}

/// Where an element of a vector that is staged lies: lane l of the warp that stages a super-block takes its elements
/// `8l .. 8l + 8`, and lanes that take their i-th together read neighbouring words.
#[track_caller]
pub(crate) fn place(b: &mut Builder, element: Val<U32>) -> Val<U32> {
    const { assert!(SUPER_BLOCK == 256, "32 lanes, eight elements each") };
    let before = b.and::<U32>(element, !(SUPER_BLOCK - 1));
    let number = b.and::<U32>(element, 7);
    let lane = b.shr::<U32>(element, 3);
    let lane = b.and::<U32>(lane, 31);
    let inside = b.mad::<U32>(number, 32, lane);
    b.add::<U32>(before, inside)
}

/// Publishes an element.
#[track_caller]
pub(crate) fn store(b: &mut Builder, at: Global<U64>, value: Val<F32>, epoch: Val<U32>) {
    let value = b.mov_bits::<U32, F32>(value);
    let word = b.pack64(value, epoch);
    b.st_sync(at, word, StoreOrder::Relaxed, Scope::Gpu);
}

/// Loads an element that another thread of the block has loaded before, and a barrier of the block since.
#[track_caller]
pub(crate) fn load_again(b: &mut Builder, at: Global<U64>) -> Val<F32> {
    let word = b.ld_sync(at, LoadOrder::Relaxed, Scope::Gpu);
    let [value, _] = b.unpack64(word);
    b.mov_bits(value)
}

/// The epoch of a layer, which is computed where it is needed: registers are short beside attention and products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch {
    /// That of the token's first layer.
    pub(crate) first: Shared<U32>,
    pub(crate) layer: Val<U32>,
}

impl Epoch {
    #[track_caller]
    pub(crate) fn get(&self, b: &mut Builder) -> Val<U32> {
        let first = b.ld(self.first, LoadKind::Ordinary);
        b.add::<U32>(first, self.layer)
    }
}

/// A vector's slots, whose address is computed where it is needed as well.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    /// The one of even layers, and how many bytes behind it lies that of odd ones.
    pub(crate) even: Global<U64>,
    pub(crate) apart: u32,
    /// The layer's.
    pub(crate) epoch: Epoch,
}

impl Slots {
    /// The layer's slot.
    #[track_caller]
    pub(crate) fn own(&self, b: &mut Builder) -> Global<U64> {
        let odd = b.and::<U32>(self.epoch.layer, 1);
        b.byte_index(self.even, odd, self.apart)
    }
}

/// A vector that may come through the exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handed {
    pub(crate) exchange: Exchange,
    /// Whether it does; the same in the whole block.
    pub(crate) is: Val<Pred>,
    pub(crate) epoch: Val<U32>,
    pub(crate) meeting: Meeting,
}

/// The blocks' meeting once a layer, also of those that have no part of any vector: it has two ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meeting {
    /// Whether the block comes, and whether it waits for the others; the same in the whole grid.
    pub(crate) comes: Val<Pred>,
    pub(crate) waits: Val<Pred>,
    /// `[blocks]`: the epoch up to which each has come.
    pub(crate) flags: Global<U32>,
    pub(crate) block: Val<U32>,
    pub(crate) blocks: Size,
}

impl Handed {
    /// Tells the other blocks how far this one has come; behind a barrier of the block, before the vector is waited for.
    #[track_caller]
    pub(crate) fn come(&self, b: &mut Builder) {
        let Meeting { comes, flags, block, .. } = self.meeting;
        let tid = b.tid();
        let leads = b.setp_eq(tid, 0);
        let tells = b.and_pred(comes, leads);
        b.if_(tells, |b| {
            let own = b.index(flags, block);
            b.fence_acq_rel(Scope::Gpu);
            b.st_sync(own, self.epoch, StoreOrder::Relaxed, Scope::Gpu);
        });
    }

    /// Waits until all blocks have come; a barrier of the block must follow.
    #[track_caller]
    pub(crate) fn meet(&self, b: &mut Builder) {
        b.if_(self.meeting.waits, |b| self.exchange.wait_for_flags(b, self.meeting, self.epoch));
    }
}
