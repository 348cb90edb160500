//! The window: bins whose logits may or may not be drawn from. Those of lesser bins are drawn from, those of greater ones
//! are not.

use super::Choose;
use crate::ptx::{Builder, Global, LoadKind, Pred, U32, U64, Val};
use kiln_shape::choice::{self, BINS, memory};

/// Words and masses of the window in shared memory.
pub(super) const WORDS: u32 = 4;
pub(super) const MASSES: u32 = 3;

/// Where each stands.
const LOW: u32 = 0;
const HIGH: u32 = 1;
const COUNT: u32 = 2;
const LIMIT: u32 = 3;
const BEFORE: u32 = 0;
const TOTAL: u32 = 1;
const LIMITED: u32 = 2;

/// Bins of a lane.
const EACH: u32 = BINS / 32;

/// The window, the same in every thread of the grid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Its first bin and its last one; it is empty where every logit is drawn from.
    pub(super) low: Val<U32>,
    pub(super) high: Val<U32>,
    /// How many logits lesser bins have, and their mass.
    pub(super) count: Val<U32>,
    pub(super) mass: Val<U64>,
    /// Whether the logits are more than top-k has.
    pub(super) limited: Val<Pred>,
    /// The mass of all logits.
    pub(super) total: Val<U64>,
}

/// The bins of a lane, and what lies before them.
struct Walk {
    counts: Global<U32>,
    masses: Global<U64>,
    first: Val<U32>,
    count: Val<U32>,
    mass: Val<U64>,
}

/// A bin, what lies before it, and what lies up to its end.
struct Bin {
    index: Val<U32>,
    count: Val<U32>,
    mass: Val<U64>,
    next_count: Val<U32>,
    next_mass: Val<U64>,
}

impl Choose {
    /// The window of the bins' counts and masses. Barriers stand inside.
    ///
    /// The k-th logit is in the bin at which the counts reach k. What top-p takes its share of lies between the mass before
    /// that bin and the mass behind it, so that its cut is no earlier than where the masses reach the share of the lesser.
    #[track_caller]
    pub(crate) fn window(&self, b: &mut Builder) -> Window {
        let (warp, lane) = (b.warp_id(), b.lane());
        let (words, masses) = (self.room.window, self.room.masses);
        let in_first = b.setp_eq(warp, 0);
        b.bar_sync(); // nobody reads the window before any more
        b.if_(in_first, |b| {
            let leader = b.setp_eq(lane, 0);
            b.if_(leader, |b| {
                for (word, value) in [(LOW, BINS), (HIGH, 0), (COUNT, 0), (LIMIT, BINS)] {
                    b.st(words.at(word), value);
                }
                (0..MASSES).for_each(|mass| b.st(masses.at(mass), 0u64));
            });
            b.bar_warp_sync(); // what is found stands for what is set first
            let filters = self.has(b, choice::FILTERS);
            b.if_(filters, |b| self.find_window(b));
        });
        b.bar_sync(); // the window is in shared memory
        let mut word = |word| b.ld(words.at(word), LoadKind::Constant);
        let (low, high, count, limit) = (word(LOW), word(HIGH), word(COUNT), word(LIMIT));
        let (mass, total) = (b.ld(masses.at(BEFORE), LoadKind::Constant), b.ld(masses.at(TOTAL), LoadKind::Constant));
        Window { low, high, count, mass, limited: b.setp_ne(limit, BINS), total }
    }

    /// The same by the first warp, where there is one.
    fn find_window(&self, b: &mut Builder) {
        let (words, masses) = (self.room.window, self.room.masses);
        let (walk, total) = self.begin_walk(b);
        let lane = b.lane();
        let leader = b.setp_eq(lane, 0);
        b.if_(leader, |b| b.st(masses.at(TOTAL), total));
        let top_k = b.ld(self.words.at(choice::TOP_K), LoadKind::Constant);
        let (has_k, has_p) = (b.setp_ne(top_k, 0), self.has(b, choice::HAS_TOP_P));
        b.if_(has_k, |b| {
            walk.each(b, |b, bin| {
                let (before, reached) = (b.setp_lt(bin.count, top_k), b.setp_ge(bin.next_count, top_k));
                let here = b.and_pred(before, reached);
                b.if_(here, |b| {
                    // Where there is no top-p, the window is this bin.
                    for (word, value) in [(LIMIT, bin.index), (LOW, bin.index), (HIGH, bin.index), (COUNT, bin.count)] {
                        b.st(words.at(word), value);
                    }
                    b.st(masses.at(BEFORE), bin.mass);
                    b.st(masses.at(LIMITED), bin.mass);
                });
            });
            b.bar_warp_sync(); // the bin of the k-th is in shared memory
        });
        b.if_(has_p, |b| {
            let limit = b.ld(words.at(LIMIT), LoadKind::Ordinary);
            let least = b.ld(masses.at(LIMITED), LoadKind::Ordinary);
            let limited = b.setp_ne(limit, BINS);
            let least = b.selp::<U64>(least, total, limited);
            let wanted = self.wanted(b, least);
            b.bar_warp_sync(); // every lane has read what is now set anew
            walk.each(b, |b, bin| {
                let (before, reached) = (b.setp_lt(bin.mass, wanted), b.setp_ge(bin.next_mass, wanted));
                let here = b.and_pred(before, reached);
                b.if_(here, |b| {
                    let high = b.selp::<U32>(limit, bin.index, limited);
                    for (word, value) in [(LOW, bin.index), (HIGH, high), (COUNT, bin.count)] {
                        b.st(words.at(word), value);
                    }
                    b.st(masses.at(BEFORE), bin.mass);
                });
            });
        });
    }

    /// The mass that top-p wants of a mass.
    pub(super) fn wanted(&self, b: &mut Builder, mass: Val<U64>) -> Val<U64> {
        let share = self.long(b, choice::TOP_P);
        let wanted = super::share_of(b, share, mass);
        b.max(wanted, 1u64)
    }

    /// A walk over the lane's bins, and the mass of all.
    fn begin_walk(&self, b: &mut Builder) -> (Walk, Val<U64>) {
        let lane = b.lane();
        let (counts, masses) =
            (self.memory.at(memory::COUNTS), self.memory.at(memory::MASSES).cast::<crate::ptx::U64>());
        let first = b.mul::<U32>(lane, EACH);
        let (none, nothing) = (b.mov::<U32>(0), b.mov::<U64>(0u64));
        let alone = Walk { counts, masses, first, count: none, mass: nothing };
        let (count, mass) = (b.var::<U32>(0), b.var::<U64>(0u64));
        alone.each(b, |b, bin| {
            b.set(count, bin.next_count);
            b.set(mass, bin.next_mass);
        });
        let (count_at, mass_at) = (b.index(self.room.counts, lane), b.index(self.room.sums, lane));
        b.st(count_at, count);
        b.st(mass_at, mass);
        b.bar_warp_sync(); // every lane's sums are in shared memory
        let (count, mass, total) = (b.var::<U32>(0), b.var::<U64>(0u64), b.var::<U64>(0u64));
        b.for_range(0, 32, 1, |b, other| {
            let (count_at, mass_at) = (b.index(self.room.counts, other), b.index(self.room.sums, other));
            let (its_count, its_mass) = (b.ld(count_at, LoadKind::Ordinary), b.ld(mass_at, LoadKind::Ordinary));
            let all = b.add::<U64>(total, its_mass);
            b.set(total, all);
            let before = b.setp_lt(other, lane);
            let (its_count, its_mass) = (b.selp::<U32>(its_count, 0, before), b.selp::<U64>(its_mass, 0u64, before));
            let (counts, masses) = (b.add::<U32>(count, its_count), b.add::<U64>(mass, its_mass));
            b.set(count, counts);
            b.set(mass, masses);
        });
        let (count, mass) = (b.get(count), b.get(mass));
        (Walk { count, mass, ..alone }, b.get(total))
    }
}

impl Walk {
    /// Each bin in turn.
    fn each(&self, b: &mut Builder, body: impl FnOnce(&mut Builder, Bin)) {
        let (count, mass) = (b.var::<U32>(self.count), b.var::<U64>(self.mass));
        b.for_range(0, EACH, 1, |b, i| {
            let index = b.add::<U32>(self.first, i);
            let (own_count, own_mass) = (b.index(self.counts, index), b.index(self.masses, index));
            let own_count = b.ld(own_count, LoadKind::Ordinary);
            let own_mass = b.ld(own_mass, LoadKind::Ordinary);
            let (next_count, next_mass) = (b.add::<U32>(count, own_count), b.add::<U64>(mass, own_mass));
            let bin = Bin { index, count: b.get(count), mass: b.get(mass), next_count, next_mass };
            body(b, bin);
            b.set(count, next_count);
            b.set(mass, next_mass);
        });
    }
}
