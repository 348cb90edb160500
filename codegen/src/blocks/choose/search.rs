//! The search for the window: rounds of walks over the bins, by one text, and what each of them says.

use super::Choose;
use crate::blocks::warp;
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, U32, U64, Val, Var};
use kiln_shape::choice::{self, BINS, BINS_OF_UNIT, memory};

/// The rounds of a search: walks over the bins, each up from one bin and down from it at once.
mod round {
    /// The counts, to top-k.
    pub(super) const COUNT: u32 = 0;
    /// The masses before the limit, to top-p's share of them.
    pub(super) const MASS: u32 = 1;
    /// The moments before the limit.
    pub(super) const MOMENT: u32 = 2;
    /// From the mean's bin on, to where masses before the limit have typical-p's share of all up to its end.
    pub(super) const FAR: u32 = 3;
    /// The same to where masses up to the limit's end have the share of those before it.
    pub(super) const NEAR: u32 = 4;
    /// The masses of what may be typical, to the least that top-p may want.
    pub(super) const EARLY: u32 = 5;
    /// The masses of what is surely typical, to the most that top-p may want.
    pub(super) const LATE: u32 = 6;
    pub(super) const ALL: u32 = 7;
}

impl Choose {
    /// What the rounds say, the same in every thread. Barriers stand inside.
    pub(super) fn find(&self, b: &mut Builder) -> Search {
        let top_k = b.ld(self.words.at(choice::TOP_K), LoadKind::Constant);
        let (has_k, has_p) = (b.setp_ne(top_k, 0), self.has(b, choice::HAS_TOP_P));
        let has_typical = self.has(b, choice::HAS_TYPICAL_P);
        let search = Search::new(b, has_k);
        let begin = b.selp::<U32>(round::COUNT, round::MASS, has_k);
        let weighs = b.selp::<U32>(round::MOMENT, round::MASS, has_p);
        let of_typical = b.selp::<U32>(round::ALL, round::EARLY, has_p);
        let end = b.selp::<U32>(of_typical, weighs, has_typical);
        b.for_range(begin, end, 1, |b, round| {
            b.keep_rolled();
            let (step, total, wanted) = self.walk(b, &search, round, top_k);
            let after = |b: &mut Builder, of: u32, body: &dyn Fn(&mut Builder)| {
                let is = b.setp_eq::<U32>(round, of);
                b.if_(is, body);
            };
            after(b, round::COUNT, &|b| search.set_limit(b, step));
            after(b, round::MASS, &|b| search.set_mass(b, step, total, has_p));
            after(b, round::MOMENT, &|b| self.begin_typical(b, &search, total));
            after(b, round::FAR, &|b| search.set_maybe(b, step));
            after(b, round::NEAR, &|b| self.set_typical(b, &search, step, wanted));
            after(b, round::EARLY, &|b| search.set_early(b, step, total));
            after(b, round::LATE, &|b| search.set_late(b, step));
        });
        search
    }

    /// Walks over bins, some steps a thread: how many it takes to what is wanted, [`BINS`] where it takes more than there
    /// are; the sum of all that it goes over; and what was wanted. Barriers stand inside.
    fn walk(
        &self,
        b: &mut Builder,
        search: &Search,
        round: Val<U32>,
        top_k: Val<U32>,
    ) -> (Val<U32>, Val<U64>, Val<U64>) {
        let Search { sums, base, .. } = *search;
        let (tid, lane, warp) = (b.tid(), b.lane(), b.warp_id());
        let (counts, masses) = (b.setp_eq(round, round::COUNT), b.setp_eq(round, round::MASS));
        let each = BINS.div_ceil(32 * b.warps());
        let first = b.mul::<U32>(tid, each);
        let of_bins = b.byte_index(self.memory.at(memory::SUMS).cast::<U64>(), sums, 8 * BINS);
        let steps: Vec<Val<U32>> = (0..each).map(|i| b.add::<U32>(first, i)).collect();
        let own: Vec<Val<U64>> = steps.iter().map(|step| of_step(b, of_bins, search, *step)).collect();
        let none = b.mov::<U64>(0u64);
        let of_thread = own.iter().fold(none, |sum, own| b.add::<U64>(sum, *own));
        let (of_lanes, of_warp) = warp::sum64_before(b, of_thread);
        let (leader, to) = (b.setp_eq(lane, 0), b.index(self.room.sums, warp));
        b.if_(leader, |b| b.st(to, of_warp));
        b.bar_sync(); // every warp's sum is in shared memory
        let (before, total) = (0..b.warps()).fold((of_lanes, none), |(before, total), other| {
            let sum = b.ld(self.room.sums.at(other), LoadKind::Constant);
            let earlier = b.setp_ge(warp, other + 1);
            let earlier = b.selp::<U64>(sum, 0u64, earlier);
            (b.add::<U64>(before, earlier), b.add::<U64>(total, sum))
        });
        let base = b.selp::<U64>(total, base, masses);
        let (earlier, later) = (b.setp_lt(round, round::EARLY), b.setp_ge(round, round::FAR));
        let of_typical = b.and_pred(earlier, later);
        let (of_count, of_share) = (b.cvt::<U64, U32>(top_k), self.wanted(b, base, of_typical));
        let wanted = b.selp::<U64>(of_count, of_share, counts);
        own.into_iter().zip(steps).fold(before, |before, (own, step)| {
            let next = b.add::<U64>(before, own);
            let (starts, reached) = (b.setp_lt::<U64>(before, wanted), b.setp_ge::<U64>(next, wanted));
            let here = b.and_pred(starts, reached);
            b.if_(here, |b| b.st(self.room.said, step));
            next
        });
        b.bar_sync(); // the steps are in shared memory, if there were enough
        let (found, steps) = (b.setp_ge(total, wanted), b.ld(self.room.said, LoadKind::Constant));
        (b.selp::<U32>(steps, BINS, found), total, wanted)
    }

    /// The mass that typical-p wants of a mass, or top-p.
    pub(super) fn wanted(&self, b: &mut Builder, mass: Val<U64>, of_typical: Val<Pred>) -> Val<U64> {
        let (typical, top) = (self.long(b, choice::TYPICAL_P), self.long(b, choice::TOP_P));
        let share = b.selp::<U64>(typical, top, of_typical);
        let wanted = super::share_of(b, share, mass);
        b.max(wanted, 1u64)
    }

    /// From the moment before the limit: where the walks of typical-p begin, and how much nearer or farther than they go its
    /// cut may lie.
    ///
    /// In units of bins the mean lies from the bin `from` up to `spread + 1` behind it. In `step` steps a walk goes over
    /// nothing that is farther from the mean than `step + spread + 1`, and over all that is nearer than `step - spread`. So
    /// what is nearer than the cut ends up to `2 spread + 2` bins before or behind where the walk does that reaches the share,
    /// or a step before; one more is for rounded numbers.
    fn begin_typical(&self, b: &mut Builder, search: &Search, moment: Val<U64>) {
        let Search { sums, from, margin, base, mass, limit, .. } = *search;
        let all = self.memory.at(memory::SUMS).cast::<U64>();
        let mass = b.get(mass);
        let of_mean = |b: &mut Builder, moment: Val<U64>, mass: Val<U64>| {
            let mass = b.max(mass, 1u64); // of nothing it is 0
            let mean = mean(b, moment, mass);
            let bins = b.mul(mean, BINS_OF_UNIT as f32);
            b.cvt::<U32, F32>(bins)
        };
        let low = of_mean(b, moment, mass);
        // With the limit, which one thread looks up.
        let (tid, limited) = (b.tid(), b.setp_lt::<U32>(limit, BINS));
        let first = b.setp_eq(tid, 0);
        let slots = [(memory::MASSES, mass), (memory::MOMENTS, moment)];
        b.if_(first, |b| {
            for (slot, (sums, before)) in (0..).zip(slots) {
                let bin = b.selp::<U32>(limit, 0, limited);
                let at = b.index(all.at(sums * BINS), bin);
                let own = b.ld(at, LoadKind::Ordinary);
                let own = b.selp::<U64>(own, 0u64, limited);
                let sum = b.add::<U64>(before, own);
                b.st(self.room.with_limit.at(slot), sum);
            }
        });
        b.bar_sync(); // both are in shared memory
        let [more, further] = [0, 1].map(|slot| b.ld(self.room.with_limit.at(slot), LoadKind::Constant));
        let high = of_mean(b, further, more);
        let high = b.max::<U32>(high, low);
        let spread = b.sub::<U32>(high, low);
        let twice = b.mad::<U32>(spread, 2, 3);
        b.set(margin, twice);
        b.set(from, low);
        b.set(search.down, low);
        b.set(sums, memory::MASSES);
        b.set(base, more);
    }

    /// From the steps of the nearer walk: what is surely typical. Nothing is, where a token's mass is measured by that of the
    /// likeliest of them, and the greatest logit may not be one of them: then the list decides on all. What is, ends before the
    /// last bin, which has no upper edge: there are no masses far before it.
    fn set_typical(&self, b: &mut Builder, search: &Search, step: Val<U32>, wanted: Val<U64>) {
        let Search { from, down, end, base, limit, margin, typical, maybe, .. } = *search;
        let far = b.setp_ge::<U32>(step, margin);
        let steps = b.sub::<U32>(step, margin);
        let (first, last) = around(b, from, steps);
        let last = b.min::<U32>(last, limit);
        let min_p = self.long(b, choice::MIN_P);
        let (measures, away) = (b.setp_ne(min_p, 0u64), b.setp_ne(first, 0));
        let decides = b.and_pred(measures, away);
        let none = b.not_pred(far);
        let none = b.or_pred(none, decides);
        let last = b.selp::<U32>(first, last, none);
        b.set(typical.first, first);
        b.set(typical.end, last);
        // Next what may be, from its first bin on.
        b.set(base, wanted);
        b.set(down, 0);
        let (first, last) = (b.get(maybe.first), b.get(maybe.end));
        b.set(from, first);
        b.set(end, last);
    }
}

/// The sums of a step's bins: that above where the walk begins, and that below.
fn of_step(b: &mut Builder, of_bins: Global<U64>, search: &Search, step: Val<U32>) -> Val<U64> {
    let Search { from, down, end, .. } = *search;
    let sides = [b.add::<U32>(from, step), b.sub::<U32>(from, step)];
    let before = b.sub::<U32>(step, 1);
    let has = [b.setp_lt::<U32>(sides[0], end), b.setp_lt::<U32>(before, down)];
    let own = [0, 1].map(|side| {
        let bin = b.selp::<U32>(sides[side], 0, has[side]);
        let at = b.index(of_bins, bin);
        b.ld(at, LoadKind::Ordinary)
    });
    let [above, below] = [0, 1].map(|side| b.selp::<U64>(own[side], 0u64, has[side]));
    b.add::<U64>(above, below)
}

/// The mean of what logits lack of the greatest.
pub(super) fn mean(b: &mut Builder, moment: Val<U64>, mass: Val<U64>) -> Val<F32> {
    let (moment, mass) = (b.cvt::<F32, U64>(moment), b.cvt::<F32, U64>(mass));
    b.div(moment, mass)
}

/// The first of the bins that are at most so many steps from one, and that behind the last.
fn around(b: &mut Builder, from: Var<U32>, steps: Val<U32>) -> (Val<U32>, Val<U32>) {
    let down = b.min::<U32>(steps, from);
    let (first, last) = (b.sub::<U32>(from, down), b.add::<U32>(from, steps));
    (first, b.add::<U32>(last, 1))
}

/// Bins up to one that is found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) first: Var<U32>,
    pub(super) end: Var<U32>,
}

/// What the rounds have found, and where the next one walks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    /// Of [`memory::SUMS`] those that are added up: up from a bin before `end`, and `down` steps to the other side.
    sums: Var<U32>,
    from: Var<U32>,
    down: Var<U32>,
    end: Var<U32>,
    /// What a share is wanted of.
    base: Var<U64>,
    pub(super) limit: Var<U32>,
    /// The mass before the limit.
    pub(super) mass: Var<U64>,
    margin: Var<U32>,
    pub(super) typical: Found,
    pub(super) maybe: Found,
    pub(super) unsure: Found,
}

impl Search {
    fn new(b: &mut Builder, has_k: Val<Pred>) -> Search {
        let sums = b.selp::<U32>(memory::COUNTS, memory::MASSES, has_k);
        let mut found = |first: u32| Found { first: b.var::<U32>(first), end: b.var::<U32>(BINS) };
        let (typical, maybe, unsure) = (found(0), found(0), found(BINS));
        Search {
            sums: b.var::<U32>(sums),
            from: b.var(0),
            down: b.var(0),
            end: b.var(BINS),
            base: b.var::<U64>(0u64),
            limit: b.var(BINS),
            mass: b.var::<U64>(0u64),
            margin: b.var(0),
            typical,
            maybe,
            unsure,
        }
    }

    fn set_limit(&self, b: &mut Builder, step: Val<U32>) {
        for end in [self.limit, self.end, self.typical.end, self.maybe.end] {
            b.set(end, step);
        }
        b.set(self.sums, memory::MASSES);
    }

    /// Where there is no typical-p, this is where top-p's cut may lie: up to the limit, or in one bin.
    fn set_mass(&self, b: &mut Builder, step: Val<U32>, total: Val<U64>, has_p: Val<Pred>) {
        b.set(self.mass, total);
        b.set(self.sums, memory::MOMENTS);
        b.if_(has_p, |b| {
            let first = b.min::<U32>(step, self.limit);
            let next = b.add::<U32>(step, 1);
            let limited = b.setp_lt::<U32>(self.limit, BINS);
            let end = b.selp::<U32>(self.limit, next, limited);
            b.set(self.unsure.first, first);
            b.set(self.unsure.end, end);
        });
    }

    /// From the steps of the farther walk.
    fn set_maybe(&self, b: &mut Builder, step: Val<U32>) {
        let steps = b.add::<U32>(step, self.margin);
        let (first, last) = around(b, self.from, steps);
        let behind = b.add::<U32>(self.limit, 1);
        let end = b.min::<U32>(behind, BINS);
        let last = b.min::<U32>(last, end);
        b.set(self.maybe.first, first);
        b.set(self.maybe.end, last);
        b.set(self.end, end);
        let before = b.get(self.mass);
        b.set(self.base, before);
    }

    fn set_early(&self, b: &mut Builder, step: Val<U32>, total: Val<U64>) {
        let first = b.add::<U32>(self.from, step);
        let first = b.min::<U32>(first, BINS);
        b.set(self.unsure.first, first);
        b.set(self.base, total);
        let (first, end) = (b.get(self.typical.first), b.get(self.typical.end));
        b.set(self.from, first);
        b.set(self.end, end);
    }

    fn set_late(&self, b: &mut Builder, step: Val<U32>) {
        let last = b.add::<U32>(self.from, step);
        let end = b.add::<U32>(last, 1);
        let end = b.min::<U32>(end, BINS);
        b.set(self.unsure.end, end);
    }
}
