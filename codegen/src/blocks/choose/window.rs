//! The window: which bins' logits are surely drawn from, and which go to the list, whose search decides of each.
//!
//! With sums over bins alone a cut is known to a bin, or to a few:
//! - top-k's is in the bin at which the counts reach k: the limit;
//! - top-p's is no earlier than where the masses reach its share of the least that it may be of, and no later than where they
//!   reach that of the most;
//! - typical-p keeps what lies nearest to the mean of what logits lack of the greatest. The mean lies between those without
//!   and with the limit's logits. From its bin a walk goes up and down at once: where the masses reach the share, give or
//!   take a few bins, lies the cut.

use super::Choose;
use super::search::{Found, Search};
use crate::blocks::warp;
use crate::ptx::{Builder, LoadKind, Pred, U32, U64, Val};
use kiln_shape::choice::{BINS, memory};

/// Sums over bins that are not listed, in shared memory: the count, mass and moment before the limit, and the masses of what
/// is surely typical and of what is surely drawn from.
pub(super) const SUMS: u32 = 5;

/// Where each stands.
pub(super) const COUNT: u32 = 0;
pub(super) const MASS: u32 = 1;
pub(super) const MOMENT: u32 = 2;
pub(super) const OF_TYPICAL: u32 = 3;
pub(super) const OF_SURE: u32 = 4;

/// Bins of a lane that are loaded at once.
const AT_ONCE: u32 = 4;

/// The window, the same in every thread of the grid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// The bin of top-k's cut, whose logits are listed, as no later one's are; [`BINS`] where there is no cut.
    pub(super) limit: Val<U32>,
    /// Bins that are surely typical, and those that may be.
    typical: Range,
    maybe: Range,
    /// Those whose logits before the limit may be behind top-p's cut or before it. Earlier ones are before it.
    unsure: Range,
    /// The mass of all logits, where there is no limit and top-p has a share of it.
    pub(super) total: Val<U64>,
}

/// Bins.
#[derive(Debug, Clone, Copy)]
struct Range {
    first: Val<U32>,
    count: Val<U32>,
}

impl Range {
    fn of(b: &mut Builder, found: Found) -> Range {
        let first = b.get(found.first);
        Range { first, count: b.sub::<U32>(found.end, first) }
    }

    fn has(self, b: &mut Builder, bin: Val<U32>) -> Val<Pred> {
        let place = b.sub::<U32>(bin, self.first);
        b.setp_lt(place, self.count)
    }
}

/// What a bin is; the rest is not drawn from.
pub(super) struct Class {
    /// Drawn from, and not listed.
    pub(super) sure: Val<Pred>,
    pub(super) listed: Val<Pred>,
    /// Whether it is typical whatever the list decides.
    pub(super) typical: Val<Pred>,
}

impl Window {
    pub(super) fn class(&self, b: &mut Builder, bin: Val<U32>) -> Class {
        let (typical, maybe, unsure) = (self.typical.has(b, bin), self.maybe.has(b, bin), self.unsure.has(b, bin));
        let early = b.setp_lt(bin, self.unsure.first);
        let sure = b.and_pred(typical, early);
        let untypical = b.not_pred(typical);
        let open = b.or_pred(untypical, unsure);
        let open = b.and_pred(open, maybe);
        let at_limit = b.setp_eq::<U32>(bin, self.limit);
        Class { sure, listed: b.or_pred(open, at_limit), typical }
    }

    /// Whether the greatest logit is surely typical.
    pub(super) fn has_greatest(&self, b: &mut Builder) -> Val<Pred> {
        let none = b.mov::<U32>(0);
        self.typical.has(b, none)
    }
}

impl Choose {
    /// The window of the bins' sums. Barriers stand inside.
    #[track_caller]
    pub(crate) fn window(&self, b: &mut Builder) -> Window {
        b.bar_sync(); // nobody reads what was said before any more
        let Search { limit, mass, typical, maybe, unsure, .. } = self.find(b);
        let [typical, maybe, unsure] = [typical, maybe, unsure].map(|found| Range::of(b, found));
        Window { limit: b.get(limit), typical, maybe, unsure, total: b.get(mass) }
    }

    /// Adds up what is known of bins that are not listed, each sum by a warp of its own, into shared memory.
    pub(super) fn add_up(&self, b: &mut Builder, window: &Window) {
        let (warp, warps) = (b.warp_id(), b.warps());
        for done in (0..SUMS).step_by(warps as usize) {
            let which = b.add::<U32>(warp, done);
            let is_one = b.setp_lt(which, SUMS);
            b.if_(is_one, |b| self.add_up_one(b, window, which));
        }
    }

    fn add_up_one(&self, b: &mut Builder, window: &Window, which: Val<U32>) {
        let lane = b.lane();
        let leader = b.setp_eq(lane, 0);
        let is = |b: &mut Builder, of: u32| b.setp_eq::<U32>(which, of);
        let (counts, moments) = (is(b, COUNT), is(b, MOMENT));
        let (of_typical, of_sure) = (is(b, OF_TYPICAL), is(b, OF_SURE));
        let of = b.selp::<U32>(memory::COUNTS, memory::MASSES, counts);
        let of = b.selp::<U32>(memory::MOMENTS, of, moments);
        let of_bins = b.byte_index(self.memory.at(memory::SUMS).cast::<U64>(), of, 8 * BINS);
        let sum = b.var::<U64>(0u64);
        b.for_range(0, BINS, 32 * AT_ONCE, |b, first| {
            b.keep_rolled();
            let first = b.add::<U32>(first, lane);
            let bins: [Val<U32>; AT_ONCE as usize] = std::array::from_fn(|i| b.add::<U32>(first, 32 * i as u32));
            let own = bins.map(|bin| {
                let at = b.index(of_bins, bin);
                b.ld(at, LoadKind::Ordinary)
            });
            for (bin, own) in bins.into_iter().zip(own) {
                let class = window.class(b, bin);
                let before = b.setp_lt::<U32>(bin, window.limit);
                let counts = pick(b, of_typical, class.typical, before);
                let counts = pick(b, of_sure, class.sure, counts);
                let known = b.not_pred(class.listed);
                let counts = b.and_pred(counts, known);
                let own = b.selp::<U64>(own, 0u64, counts);
                let more = b.add::<U64>(sum, own);
                b.set(sum, more);
            }
        });
        let sum = b.get(sum);
        let sum = warp::sum64(b, sum);
        let to = b.index(self.room.known, which);
        b.if_(leader, |b| b.st(to, sum));
    }
}

/// One of two conditions.
fn pick(b: &mut Builder, first: Val<Pred>, then: Val<Pred>, otherwise: Val<Pred>) -> Val<Pred> {
    let (then, not) = (b.and_pred(first, then), b.not_pred(first));
    let otherwise = b.and_pred(not, otherwise);
    b.or_pred(then, otherwise)
}
