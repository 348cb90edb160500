//! The cuts: which keys of the list are drawn from, each found by halving what it may be.

use super::window::{self, Window};
use super::{Choose, Draw, search};
use crate::blocks::warp;
use crate::ptx::{AtomicOp, Builder, Compare, F32, LoadKind, Pred, U32, U64, Val, Var};
use kiln_shape::choice::{self, MOST_LACK, memory};

/// What of the list is drawn from, the same in every thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cuts {
    /// The greatest key.
    last: Var<U64>,
    /// The greatest distance from the mean, as [`Listed`] has it, and that mean.
    farthest: Var<U64>,
    mean: Var<F32>,
    /// The least mass.
    pub(super) least: Var<U64>,
}

/// A token of the list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    key: Val<U64>,
    pub(super) logit: Val<F32>,
    pub(super) id: Val<U32>,
    /// What the logit lacks of the greatest.
    lack: Val<F32>,
    /// How far that is from the mean, above the id.
    distance: Val<U64>,
}

impl Listed {
    pub(super) fn new(b: &mut Builder, key: Val<U64>, most: Val<F32>, cuts: &Cuts) -> Listed {
        let (logit, id) = parts(b, key);
        let lack = b.sub(most, logit);
        let distance = b.sub::<F32>(lack, cuts.mean);
        let distance = b.abs(distance);
        let distance = b.mov_bits::<U32, _>(distance); // rises with the number, which is not negative
        let distance = b.add::<U32>(distance, 1); // above the search's first bound, which is 0
        Listed { key, logit, id, lack, distance: b.pack64(id, distance) }
    }
}

/// The rounds of a search.
mod round {
    /// Top-k's cut.
    pub(super) const COUNT: u32 = 0;
    /// No search: the sum for the mean.
    pub(super) const MEAN: u32 = 1;
    /// Typical-p's cut, by distance from the mean.
    pub(super) const TYPICAL: u32 = 2;
    /// The first typical key.
    pub(super) const FIRST: u32 = 3;
    /// Top-p's cut.
    pub(super) const MASS: u32 = 4;
    pub(super) const ALL: u32 = 5;
}

impl Cuts {
    /// None: all is drawn from that has the mass which the choice asks for.
    pub(super) fn none(b: &mut Builder, choose: &Choose) -> Cuts {
        let least = choose.long(b, choice::LEAST);
        Cuts {
            last: b.var::<U64>(u64::MAX),
            farthest: b.var::<U64>(u64::MAX),
            mean: b.var::<F32>(0.0),
            least: b.var::<U64>(least),
        }
    }

    /// Whether a key is drawn from, but for its mass.
    pub(super) fn leave(&self, b: &mut Builder, listed: &Listed) -> Val<Pred> {
        let before = b.setp::<U64>(Compare::Le, listed.key, self.last);
        let near = b.setp::<U64>(Compare::Le, listed.distance, self.farthest);
        b.and_pred(before, near)
    }
}

/// What one search looks for.
#[derive(Debug, Clone, Copy)]
struct Goal {
    wanted: Val<U64>,
    /// Whether that many keys are wanted; else it is their sum: masses, or moments.
    by_count: Val<Pred>,
    of_moments: Val<Pred>,
    /// Whether by distance; else by key.
    by_distance: Val<Pred>,
    /// Without this only the sum of all is taken.
    searches: Val<Pred>,
}

impl Choose {
    /// The cuts among `listed` keys: of top-k, then of typical-p, then of top-p. A search ends once one key is left, after 64
    /// halvings at most. Barriers stand inside.
    pub(super) fn cut(&self, b: &mut Builder, cuts: &Cuts, listed: Val<U32>, by: Draw) {
        let Draw { most, window, .. } = by;
        let (greatest, lack) = (self.said(b, memory::GREATEST), self.said(b, memory::LEAST));
        let least = b.xor(lack, u32::MAX);
        // One less than every key: the upper half of a key is never 0.
        let below = b.pack64(u32::MAX, least);
        let below = b.sub(below, 1u64 << 32);
        let last = b.pack64(u32::MAX, greatest);
        b.set(cuts.last, last);
        let known = |b: &mut Builder, sum: u32| b.ld(self.room.known.at(sum), LoadKind::Constant);
        let total = b.var::<U64>(window.total);
        let top_k = b.ld(self.words.at(choice::TOP_K), LoadKind::Constant);
        let limited = b.setp_lt::<U32>(window.limit, choice::BINS);
        let (has_typical, has_p) = (self.has(b, choice::HAS_TYPICAL_P), self.has(b, choice::HAS_TOP_P));
        let looks = self.takes_first(b, &window, has_typical);
        let any = |b: &mut Builder, rounds: &[(Val<Pred>, u32)]| {
            let none = b.mov::<U32>(0);
            rounds.iter().fold(none, |all, (has, round)| {
                let own = b.selp::<U32>(1 << round, 0, *has);
                b.or(all, own)
            })
        };
        let searches =
            [(limited, round::COUNT), (has_typical, round::TYPICAL), (looks, round::FIRST), (has_p, round::MASS)];
        let searches = any(b, &searches);
        let sums = any(b, &[(has_typical, round::COUNT), (has_typical, round::MEAN)]);
        let runs = b.or(searches, sums);
        b.for_range(0, round::ALL, 1, |b, round| {
            b.keep_rolled();
            let mut has = |rounds: Val<U32>| {
                let bits = b.shr::<U32>(rounds, round);
                let bit = b.and::<U32>(bits, 1);
                b.setp_ne(bit, 0)
            };
            let (runs, searches) = (has(runs), has(searches));
            b.if_(runs, |b| {
                let mut is = |of: u32| b.setp_eq::<U32>(round, of);
                let [of_count, of_moments, by_distance] = [round::COUNT, round::MEAN, round::TYPICAL].map(&mut is);
                let of_first = is(round::FIRST);
                let by_count = b.or_pred(of_count, of_first);
                let counted = known(b, window::COUNT);
                let keys = b.cvt::<U64, U32>(top_k);
                let keys = b.sub(keys, counted);
                let keys = b.selp::<U64>(keys, 1u64, of_count);
                let (typical, sure, whole) = (known(b, window::OF_TYPICAL), known(b, window::OF_SURE), b.get(total));
                let (found, share) = (b.selp::<U64>(typical, sure, by_distance), self.wanted(b, whole, by_distance));
                let mass = b.sub(share, found);
                let wanted = b.selp::<U64>(keys, mass, by_count);
                let low = b.selp::<U64>(0u64, below, by_distance);
                let goal = Goal { wanted, by_count, of_moments, by_distance, searches };
                let (cut, sum) = self.search(b, listed, most, cuts, goal, low);
                let untypical = b.not_pred(by_distance);
                b.if_(of_count, |b| {
                    let known = known(b, window::MASS);
                    let all = b.add::<U64>(known, sum);
                    b.set(total, all);
                });
                b.if_(of_moments, |b| {
                    let (known, total) = (known(b, window::MOMENT), b.get(total));
                    let moment = b.add::<U64>(known, sum);
                    let mean = search::mean(b, moment, total);
                    b.set(cuts.mean, mean);
                });
                b.if_(by_distance, |b| {
                    let all = b.add::<U64>(typical, sum);
                    b.set(total, all);
                    b.set(cuts.farthest, cut);
                });
                b.if_else(
                    of_first,
                    |b| {
                        let least = self.least_beside(b, sum); // of one key
                        b.set(cuts.least, least);
                    },
                    |b| b.if_(untypical, |b| b.set(cuts.last, cut)),
                );
            });
        });
    }

    /// Whether a token's mass is measured by that of the first typical key, which only the list knows.
    fn takes_first(&self, b: &mut Builder, window: &Window, has_typical: Val<Pred>) -> Val<Pred> {
        let (min_p, greatest) = (self.long(b, choice::MIN_P), window.has_greatest(b));
        let (measures, unknown) = (b.setp_ne(min_p, 0u64), b.not_pred(greatest));
        let unknown = b.and_pred(unknown, has_typical);
        b.and_pred(measures, unknown)
    }

    /// The least mass beside that of the likeliest token.
    fn least_beside(&self, b: &mut Builder, mass: Val<U64>) -> Val<U64> {
        let min_p = self.long(b, choice::MIN_P);
        super::share_of(b, min_p, mass)
    }

    /// The least bound up to which there is what is wanted, above `low`, and the sum up to it. Barriers stand inside.
    fn search(
        &self,
        b: &mut Builder,
        listed: Val<U32>,
        most: Val<F32>,
        cuts: &Cuts,
        goal: Goal,
        low: Val<U64>,
    ) -> (Val<U64>, Val<U64>) {
        let bound = b.selp::<U64>(cuts.farthest, cuts.last, goal.by_distance);
        // The sum of keys up to `low` is less than is wanted, that of keys up to `high` is not.
        let (low, high, middle) = (b.var::<U64>(low), b.var::<U64>(bound), b.var::<U64>(bound));
        let (few, many) = (b.var::<U32>(0), b.var::<U32>(0));
        let sum_of_cut = b.var::<U64>(0u64);
        b.do_while(|b| {
            let (count, sum) = self.up_to(b, listed, most, cuts, goal, middle);
            let keys = b.cvt::<U64, U32>(count);
            let found = b.selp::<U64>(keys, sum, goal.by_count);
            let (reached, only_adds) = (b.setp_ge(found, goal.wanted), b.not_pred(goal.searches));
            let reached = b.or_pred(reached, only_adds);
            let next = b.selp::<U64>(middle, high, reached);
            b.set(high, next);
            let next = b.selp::<U64>(low, middle, reached);
            b.set(low, next);
            let next = b.selp::<U64>(sum, sum_of_cut, reached);
            b.set(sum_of_cut, next);
            let next = b.selp::<U32>(count, many, reached);
            b.set(many, next);
            let next = b.selp::<U32>(few, count, reached);
            b.set(few, next);
            let between = b.sub::<U64>(high, low);
            let half = b.shr::<U64>(between, 1);
            let next = b.add::<U64>(low, half);
            b.set(middle, next);
            let left = b.sub::<U32>(many, few);
            let several = b.setp(Compare::Gt, left, 1u32);
            // So it ends whatever the list has in it.
            let apart = b.setp(Compare::Gt, between, 1u64);
            let goes_on = b.and_pred(several, apart);
            b.and_pred(goes_on, goal.searches)
        });
        (b.get(high), b.get(sum_of_cut))
    }

    /// A word about the list, the same in every thread. Barriers stand inside.
    pub(super) fn said(&self, b: &mut Builder, word: u32) -> Val<U32> {
        let said = b.ld(self.memory.at(word), LoadKind::Ordinary);
        b.broadcast(self.room.said, said)
    }

    /// How many of the listed keys before the cuts, and before one at `middle`, there are, and their sum: the same in every
    /// thread. Barriers stand inside.
    fn up_to(
        &self,
        b: &mut Builder,
        listed: Val<U32>,
        most: Val<F32>,
        cuts: &Cuts,
        goal: Goal,
        middle: Var<U64>,
    ) -> (Val<U32>, Val<U64>) {
        let (tid, threads, lane, warp) = (b.tid(), b.block(), b.lane(), b.warp_id());
        let (count, sum) = (b.var::<U32>(0), b.var::<U64>(0u64));
        let list = self.list(b);
        b.for_range(tid, listed, threads, |b, i| {
            let at = b.index(list, i);
            let key = b.ld(at, LoadKind::Ordinary);
            let token = Listed::new(b, key, most, cuts);
            let kept = cuts.leave(b, &token);
            let measure = b.selp::<U64>(token.distance, key, goal.by_distance);
            let before = b.setp::<U64>(Compare::Le, measure, middle);
            let counts = b.and_pred(kept, before);
            b.if_(counts, |b| {
                let lack = b.min(token.lack, MOST_LACK);
                let times = b.selp::<F32>(lack, 1.0, goal.of_moments);
                let weight = super::weight(b, token.logit, most);
                let number = b.mul(weight, times);
                let own = super::in_units(b, number);
                let (counted, more) = (b.add::<U32>(count, 1), b.add::<U64>(sum, own));
                b.set(count, counted);
                b.set(sum, more);
            });
        });
        let (count, sum) = (b.get(count), b.get(sum));
        // Both by shuffles: so the text is one for all targets.
        let (count, sum) = (warp::butterfly(b, AtomicOp::Add, count), warp::sum64(b, sum));
        let leader = b.setp_eq(lane, 0);
        let (count_at, sum_at) = (b.index(self.room.counts, warp), b.index(self.room.sums, warp));
        b.bar_sync(); // nobody reads the sums before any more
        b.if_(leader, |b| {
            b.st(count_at, count);
            b.st(sum_at, sum);
        });
        b.bar_sync(); // every warp's sums are in shared memory
        let mut all = (b.mov::<U32>(0), b.mov::<U64>(0u64));
        for warp in 0..b.warps() {
            let count = b.ld(self.room.counts.at(warp), LoadKind::Constant);
            let sum = b.ld(self.room.sums.at(warp), LoadKind::Constant);
            all = (b.add(all.0, count), b.add(all.1, sum));
        }
        all
    }
}

/// The logit and the id of a key.
fn parts(b: &mut Builder, key: Val<U64>) -> (Val<F32>, Val<U32>) {
    let [id, order] = b.unpack64(key);
    (super::logit_of(b, order), id)
}
