//! Vectors that blocks of a cooperative grid hand to each other without a barrier: each element is a word that is empty until
//! its value is stored ([`kiln_shape::exchange`] has the layout). The load that finds a value has it: two trips to the L2 cache,
//! no fence, and no byte beside the values. The FFN's vector goes that way too: flags behind fences in its place, with as many
//! bytes, took an H200 11.3 us of a layer of Qwen3-8B from the last product of one phase to the first of the next.
//!
//! # Order
//!
//! *Values.* Stores and loads are relaxed; of a load of four words each word is one to the memory model. A value is told from
//! [`EMPTY`] by its bits: arithmetic makes no such NaN, and a store hands on another in its place. Nothing may be concluded
//! from it but itself: what lies elsewhere is not ordered by such a load.
//!
//! *Flags.* A flag is the epoch up to which its block has come, an epoch being a layer of a token, counted from the launch's
//! begin on. A block comes to a layer's meeting while it waits for what attention hands over: the barrier that ends the step
//! before orders what its threads did before one thread's fence, which releases that by the flag's store. Most blocks have
//! nothing else to do then, and a fence waits for memory. A block waits for the others where it has staged the first vector of the
//! next layer, three phases later, when their flags are long there and some of its warps have nothing to stage. Where a token's
//! last layer is met, it has staged the vector of that layer's down. It waits by acquiring loads, which the block's barrier joins.
//! So what a block did before a layer's attention output happens before what another one does behind the next layer's first
//! vector. A block without rows, which hands nothing over, has its flag as well. Emptied words, counters and parts of attention, a
//! token's command and each block's best logits rely on it. A block may have come further than another one waits for: flags are
//! compared by the sign of their difference, which stays right where epochs wrap around.
//!
//! *Reuse.* Four layers that follow each other, of one token or of two, have words of their own. Down's of layer l are read
//! last, as layer l + 1 adds its attention's output to them, and so before the meeting of layer l + 2. A block has waited for that
//! meeting as layer l + 3 begins, and the warp that comes to the meeting of layer l + 3 empties a share of them before it does.
//! They are polled and stored again in layer l + 4, by blocks that have waited for the meeting of layer l + 3: so no poll finds the
//! value of four layers before, and no store comes before its word is empty. Parts of attention are put together before the
//! meeting of their own layer: two turns suffice, and those of layer l are emptied in layer l + 1.
//!
//! A token's last three layers, and the parts of its last one, have no later layer to empty them: all blocks do so behind the grid's
//! barrier that ends the token. The next token's first layer, which begins without a meeting, has the fourth turn, emptied before
//! that barrier. Its later layers begin behind a meeting, to which a block comes once it has emptied its share.
//!
//! *Columns.* A pass empties what its columns have filled, so that those that are idle in it have empty words.
//!
//! *Other threads.* What one thread of a block has loaded is, behind a barrier of the block, before the loads of the others
//! in causality order: [`load_again`] needs no loop.
//!
//! *Waits.* A warp that has polled for longer than the limit sets the grid's abort word and goes on with what is there, and so
//! do others, which look at the word while they poll. No token is told of that was made from such values: blocks leave at the
//! grid's barrier behind it, at which none arrives that finds the word set ([`super::grid_barrier`]), or before, where they have
//! given up at a meeting ([`Handed::leave_if_missed`]).

use super::math;
use super::wait::{Limit, Wait};
use crate::ptx::{
    Builder, Compare, F32, Global, LoadKind, LoadOrder, Pred, S32, Scope, Shared, Size, StoreOrder, U32, U64, Val, Var,
};
use kiln_shape::SUPER_BLOCK;
use kiln_shape::exchange::{EMPTY, FLAGS, TURNS};

/// What a block's warps need to wait for elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    limit: Limit,
    /// Of each warp, non-zero once it has given up at a meeting; a multiple of four words.
    missed: Shared<U32>,
    warps: u32,
    /// The mbarrier at which a block arrives that leaves.
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

    /// Waits for the words at `at`, four that follow each other each, by a whole warp, and gives each lane's values.
    #[track_caller]
    pub(crate) fn load_fours(&self, b: &mut Builder, at: &[Global<F32>]) -> Vec<[Val<F32>; 4]> {
        let words = Words::new(b, at.len(), 4);
        words.ask(b, at);
        self.wait_for(b, &words, at).as_chunks().0.to_vec()
    }

    /// Waits for words that were asked for, by a whole warp, and gives each lane's values.
    #[track_caller]
    pub(crate) fn wait_for(&self, b: &mut Builder, words: &Words, at: &[Global<F32>]) -> Vec<Val<F32>> {
        let wait = Wait::new(b, self.limit);
        let waits = |b: &mut Builder| {
            let lacks = lacks_any(b, words.each());
            let waits = wait.goes_on(b, lacks);
            b.vote_any(waits)
        };
        b.while_(waits, |b| {
            b.nanosleep(20);
            for (at, piece) in at.iter().zip(&words.0) {
                let lacks = lacks_any(b, piece.iter());
                b.if_(lacks, |b| load_piece(b, *at, piece));
            }
            wait.count(b);
        });
        words.each().map(|value| b.get(*value)).collect()
    }

    /// Waits until the flags of all blocks have come to the epoch that is awaited.
    #[track_caller]
    fn wait_for_flags(&self, b: &mut Builder, Meeting { awaited, flags, blocks, .. }: Meeting) {
        let (warp, lane) = (b.warp_id(), b.lane());
        // The last three warps first, which have the least to stage; of these the last one last, since it also asks for what
        // attention reads.
        let from_last = b.sub::<U32>(self.warps - 1, warp);
        let (is_last, is_before) = (b.setp_eq(from_last, 0), b.setp_lt(from_last, 3));
        let less = b.sub::<U32>(from_last, 1);
        let place = b.selp::<U32>(less, from_last, is_before);
        let place = b.selp::<U32>(2.min(self.warps - 1), place, is_last);
        // A lane has its flags by one load: one that acquires holds up those behind it.
        let groups = b.size_div_ceil(blocks, FLAGS);
        let last = b.mov::<U32>(groups);
        let last = b.sub::<U32>(last, 1);
        let first = b.shl::<U32>(place, 5);
        b.for_range(first, groups, 32 * self.warps, |b, first| {
            let own = b.add::<U32>(first, lane);
            let own = b.min::<U32>(own, last);
            let own_flags = b.byte_index(flags, own, 4 * FLAGS);
            let number = b.mul::<U32>(own, FLAGS);
            let wait = Wait::new(b, self.limit);
            let waits = |b: &mut Builder| {
                let come: [Val<U32>; FLAGS as usize] = b.ld_sync_vector(own_flags, LoadOrder::Acquire, Scope::Gpu);
                let mut missing = Vec::new();
                for (n, come) in (0..).zip(come) {
                    let number = b.add::<U32>(number, n);
                    let is_flag = b.setp_lt::<U32>(number, blocks);
                    let more = b.sub::<U32>(awaited, come);
                    let more = b.selp::<U32>(more, 0, is_flag);
                    missing.push(b.mov_bits::<S32, U32>(more));
                }
                let most = math::by_pairs(missing, |one, other| b.max::<S32>(one, other));
                let lacks = b.setp(Compare::Gt, most, 0i32);
                let waits = wait.goes_on(b, lacks);
                b.vote_any(waits)
            };
            b.while_(waits, |b| {
                b.nanosleep(20);
                wait.count(b);
            });
            let gives_up = wait.gave_up(b);
            let gives_up = b.vote_any(gives_up);
            b.if_(gives_up, |b| {
                let own = b.index(self.missed, warp);
                let leads = b.setp_eq(lane, 0);
                b.if_(leads, |b| b.st(own, 1));
            });
        });
    }

    /// Leaves the kernel where a warp of the block has given up at a meeting: behind that nothing is ordered.
    fn leave_if_missed(&self, b: &mut Builder) {
        let mut any = b.mov::<U32>(0);
        for first in (0..self.warps).step_by(4) {
            let four: [Val<U32>; 4] = b.ld_vector(self.missed.at(first), LoadKind::Constant);
            any = four.into_iter().fold(any, |any, missed| b.or::<U32>(any, missed));
        }
        let missed = b.setp_ne(any, 0);
        b.if_(missed, |b| {
            let tid = b.tid();
            let first = b.setp_eq(tid, 0);
            b.if_(first, |b| b.mbarrier_arrive(self.leaving));
            b.exit();
        });
    }
}

/// Words of a lane that are on their way, in pieces of one or four that follow each other.
#[derive(Debug, Clone)]
pub(crate) struct Words(Vec<Vec<Var<F32>>>);

impl Words {
    /// All words of some.
    pub(crate) fn joined(parts: &[Words]) -> Words {
        Words(parts.iter().flat_map(|part| part.0.iter().cloned()).collect())
    }

    pub(crate) fn new(b: &mut Builder, pieces: usize, of_piece: usize) -> Words {
        Words((0..pieces).map(|_| (0..of_piece).map(|_| b.var::<F32>(0.0)).collect()).collect())
    }

    fn each(&self) -> impl Iterator<Item = &Var<F32>> {
        self.0.iter().flatten()
    }

    /// Asks for them, whether they are empty or not.
    pub(crate) fn ask(&self, b: &mut Builder, at: &[Global<F32>]) {
        for (at, piece) in at.iter().zip(&self.0) {
            load_piece(b, *at, piece);
        }
    }

    /// Takes others, which may be on their way.
    pub(crate) fn take(&self, b: &mut Builder, others: &Words) {
        for (own, other) in self.each().zip(others.each()) {
            let word = b.get(*other);
            b.set(*own, word);
        }
    }

    /// Takes values that came another way.
    pub(crate) fn set(&self, b: &mut Builder, values: &[Val<F32>]) {
        for (to, value) in self.each().zip(values) {
            let value = filled(b, *value);
            b.set(*to, value);
        }
    }
}

/// Loads the words of a piece.
fn load_piece(b: &mut Builder, at: Global<F32>, piece: &[Var<F32>]) {
    match piece {
        [one] => {
            let word = b.ld_sync(at, LoadOrder::Relaxed, Scope::Gpu);
            b.set(*one, word);
        }
        _ => {
            let words: [Val<F32>; 4] = b.ld_sync_vector(at, LoadOrder::Relaxed, Scope::Gpu);
            piece.iter().zip(words).for_each(|(to, word)| b.set(*to, word));
        }
    }
}

/// Whether one of some words is empty: no number is greater.
fn lacks_any<'a>(b: &mut Builder, words: impl Iterator<Item = &'a Var<F32>>) -> Val<Pred> {
    let words: Vec<Val<U32>> = words
        .map(|word| {
            let word = b.get(*word);
            b.mov_bits::<U32, F32>(word)
        })
        .collect();
    let greatest = math::by_pairs(words, |one, other| b.max::<U32>(one, other));
    b.setp_eq(greatest, EMPTY)
}

/// A value as it is handed over: in place of the NaN that means none another one.
fn filled(b: &mut Builder, value: Val<F32>) -> Val<F32> {
    let bits = b.mov_bits::<U32, F32>(value);
    let bits = b.min::<U32>(bits, EMPTY - 1);
    b.mov_bits(bits)
}

/// Where an element of a vector that is staged lies: lane l of the warp that stages a super-block takes its elements
/// `8l .. 8l + 8`, and lanes that take their i-th four together read what follows each other.
#[track_caller]
pub(crate) fn place(b: &mut Builder, element: Val<U32>) -> Val<U32> {
    const { assert!(SUPER_BLOCK == 256, "32 lanes, eight elements each") };
    let outside = b.and::<U32>(element, !(SUPER_BLOCK - 4));
    let second = b.and::<U32>(element, 4);
    let lane = b.bfe::<U32>(element, 3, 5);
    let inside = b.mad::<U32>(second, FOURS / 4, outside);
    b.mad::<U32>(lane, 4, inside)
}

/// From a lane's first four elements of a super-block to its second.
pub(crate) const FOURS: u32 = SUPER_BLOCK / 2;

/// Publishes an element.
#[track_caller]
pub(crate) fn store(b: &mut Builder, at: Global<F32>, value: Val<F32>) {
    let value = filled(b, value);
    b.st_sync(at, value, StoreOrder::Relaxed, Scope::Gpu);
}

/// Publishes four elements that follow each other, each for itself.
#[track_caller]
pub(crate) fn store_four(b: &mut Builder, at: Global<F32>, values: [Val<F32>; 4]) {
    let values = values.map(|value| filled(b, value));
    b.st_sync_vector(at, values, StoreOrder::Relaxed, Scope::Gpu);
}

/// Loads an element that another thread of the block has loaded before, and a barrier of the block since.
#[track_caller]
pub(crate) fn load_again(b: &mut Builder, at: Global<F32>) -> Val<F32> {
    b.ld_sync(at, LoadOrder::Relaxed, Scope::Gpu)
}

/// Who empties words: of each block of the grid so many warps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emptiers {
    pub(crate) block: Val<U32>,
    pub(crate) blocks: Size,
    /// The number of the warp among them.
    pub(crate) warp: Val<U32>,
    pub(crate) warps: u32,
}

/// Empties `words` words from `from` on, a multiple of four.
#[track_caller]
pub(crate) fn empty(b: &mut Builder, from: Global<F32>, words: Size, emptiers: &Emptiers) {
    let Emptiers { block, blocks, warp, warps } = *emptiers;
    let lane = b.lane();
    let before = b.mad::<U32>(warp, blocks, block);
    let first = b.mad::<U32>(before, 32, lane);
    let step = b.size_mul(blocks, 32 * warps);
    let nothing = b.mov(f32::from_bits(EMPTY));
    let fours = b.size_div(words, 4);
    b.for_range(first, fours, step, |b, four| {
        let at = b.byte_index(from, four, 16);
        b.st_vector(at, [nothing; 4]);
    });
}

/// What a layer's epoch and its words are counted from, of the token's first layer, in shared memory: registers are short beside
/// attention and products, so both are computed where they are needed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct First {
    /// Its epoch, and the number whose lowest bits are its turn of the [`TURNS`].
    words: Shared<U32>,
}

impl First {
    /// Takes the shared memory.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder) -> First {
        First { words: b.shared("first_epoch", 2) }
    }

    /// Sets it to what stands before the launch's first token. By one thread.
    #[track_caller]
    pub(crate) fn begin(&self, b: &mut Builder, layers: Val<U32>) {
        // Flags are zeros before.
        let before = b.sub::<U32>(1, layers);
        b.st(self.words, before);
        b.st(self.words.at(1), 0);
    }

    /// Goes on by a token. By one thread.
    #[track_caller]
    pub(crate) fn go_on(&self, b: &mut Builder, layers: Val<U32>) {
        let [epoch, turn] = [0, 1].map(|word| b.ld(self.words.at(word), LoadKind::Ordinary));
        let next = b.add::<U32>(epoch, layers);
        b.st(self.words, next);
        let next = b.add::<U32>(turn, layers);
        b.st(self.words.at(1), next);
    }

    /// The epoch of a layer.
    #[track_caller]
    pub(crate) fn epoch(&self, b: &mut Builder, layer: Val<U32>) -> Val<U32> {
        let first = b.ld(self.words, LoadKind::Ordinary);
        b.add::<U32>(first, layer)
    }

    /// Which of the [`TURNS`] a layer has.
    #[track_caller]
    pub(crate) fn turn(&self, b: &mut Builder, layer: Val<U32>) -> Val<U32> {
        let first = b.ld(self.words.at(1), LoadKind::Ordinary);
        let turn = b.add::<U32>(first, layer);
        b.and::<U32>(turn, TURNS - 1)
    }
}

/// A vector's words, whose address is computed where it is needed as well.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    /// Those of the first turn, and how many bytes behind it lie those of the next.
    pub(crate) of_turns: Global<F32>,
    /// How many layers that follow each other have words of their own: a power of two, [`TURNS`] at most.
    pub(crate) turns: u32,
    pub(crate) apart: Size,
    pub(crate) first: First,
    pub(crate) layer: Val<U32>,
}

impl Slots {
    /// The layer's.
    #[track_caller]
    pub(crate) fn own(&self, b: &mut Builder) -> Global<F32> {
        let turn = self.first.turn(b, self.layer);
        let turn = if self.turns < TURNS { b.and::<U32>(turn, self.turns - 1) } else { turn };
        match self.apart {
            Size::Const(apart) => b.byte_index(self.of_turns, turn, apart),
            Size::Reg(apart) => {
                let turns = b.address(self.of_turns);
                let own = b.mad_wide(turn, apart, turns);
                b.global_ptr(own)
            }
        }
    }
}

/// A vector that may come through the exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handed {
    pub(crate) exchange: Exchange,
    /// Whether it does; the same in the whole block.
    pub(crate) is: Val<Pred>,
    pub(crate) meeting: Meeting,
}

/// The end of a layer's meeting at which a block waits, also one that has no part of any vector; [`come`] is the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meeting {
    /// Whether the block waits for the others, and up to which epoch; the same in the whole grid.
    pub(crate) waits: Val<Pred>,
    pub(crate) awaited: Val<U32>,
    /// `[blocks]`, with room for a multiple of [`FLAGS`]: the epoch up to which each has come.
    pub(crate) flags: Global<U32>,
    pub(crate) blocks: Size,
}

/// Tells the other blocks that this one has come to an epoch: with what its threads did before its last barrier, and what the
/// lanes of this warp did since. By a whole warp.
#[track_caller]
pub(crate) fn come(b: &mut Builder, flag: Global<U32>, epoch: Val<U32>) {
    b.bar_warp_sync(); // what the lanes did comes before the fence
    let lane = b.lane();
    let leads = b.setp_eq(lane, 0);
    b.if_(leads, |b| {
        b.fence_acq_rel(Scope::Gpu);
        b.st_sync(flag, epoch, StoreOrder::Relaxed, Scope::Gpu);
    });
}

impl Handed {
    /// Waits until all blocks have come; a barrier of the block must follow, and [`Handed::leave_if_missed`] behind it.
    #[track_caller]
    pub(crate) fn meet(&self, b: &mut Builder) {
        b.if_(self.meeting.waits, |b| self.exchange.wait_for_flags(b, self.meeting));
    }

    /// Leaves the kernel where the block has waited for the others in vain. No copy of the block may be under way.
    #[track_caller]
    pub(crate) fn leave_if_missed(&self, b: &mut Builder) {
        b.if_(self.meeting.waits, |b| self.exchange.leave_if_missed(b));
    }
}
