//! The cut: the greatest key of the list that is drawn from, found by halving what it may be.

use super::{Choose, Draw};
use crate::blocks::warp;
use crate::ptx::{AtomicOp, Builder, Compare, F32, LoadKind, U32, U64, Val, Var};
use kiln_shape::choice::{self, memory};

impl Choose {
    /// The cut among `listed` keys, the same in every thread: of top-k, then of top-p. A search ends once one key is left,
    /// after 64 halvings at most. Barriers stand inside.
    pub(super) fn cut(&self, b: &mut Builder, listed: Val<U32>, by: Draw) -> Val<U64> {
        let Draw { most, window, .. } = by;
        let (greatest, lack) = (self.bound(b, memory::GREATEST), self.bound(b, memory::LEAST));
        let least = b.xor(lack, u32::MAX);
        // One less than every key: the upper half of a key is never 0.
        let below = b.pack64(u32::MAX, least);
        let below = b.sub(below, 1u64 << 32);
        let last = b.pack64(u32::MAX, greatest);
        let (cut, total) = (b.var::<U64>(last), b.var::<U64>(window.total));
        let has_p = self.has(b, choice::HAS_TOP_P);
        let top_k = b.ld(self.words.at(choice::TOP_K), LoadKind::Constant);
        b.for_range(0, 2, 1, |b, round| {
            let by_mass = b.setp_ne(round, 0);
            let by_count = b.not_pred(by_mass);
            let (of_p, of_k) = (b.and_pred(by_mass, has_p), b.and_pred(by_count, window.limited));
            let searches = b.or_pred(of_p, of_k);
            b.if_(searches, |b| {
                let keys = b.sub(top_k, window.count);
                let keys = b.cvt::<U64, U32>(keys);
                let known = b.get(total);
                let wanted = self.wanted(b, known);
                let wanted = b.sub(wanted, window.mass);
                let wanted = b.selp::<U64>(wanted, keys, by_mass);
                // The sum of keys up to `low` is less than is wanted, that of keys up to `cut` is not.
                let (low, middle) = (b.var::<U64>(below), b.var::<U64>(cut));
                let (few, many) = (b.var::<U32>(0), b.var::<U32>(0));
                let mass_of_cut = b.var::<U64>(0u64);
                b.do_while(|b| {
                    let (count, mass) = self.up_to(b, listed, most, middle);
                    let keys = b.cvt::<U64, U32>(count);
                    let found = b.selp::<U64>(mass, keys, by_mass);
                    let reached = b.setp_ge(found, wanted);
                    let next = b.selp::<U64>(middle, cut, reached);
                    b.set(cut, next);
                    let next = b.selp::<U64>(low, middle, reached);
                    b.set(low, next);
                    let next = b.selp::<U64>(mass, mass_of_cut, reached);
                    b.set(mass_of_cut, next);
                    let next = b.selp::<U32>(count, many, reached);
                    b.set(many, next);
                    let next = b.selp::<U32>(few, count, reached);
                    b.set(few, next);
                    let between = b.sub::<U64>(cut, low);
                    let half = b.shr::<U64>(between, 1);
                    let next = b.add::<U64>(low, half);
                    b.set(middle, next);
                    let left = b.sub::<U32>(many, few);
                    let several = b.setp(Compare::Gt, left, 1u32);
                    // So it ends whatever the list has in it.
                    let apart = b.setp(Compare::Gt, between, 1u64);
                    b.and_pred(several, apart)
                });
                let all = b.add::<U64>(mass_of_cut, window.mass);
                b.set(total, all);
            });
        });
        b.get(cut)
    }

    /// A bound of the list, the same in every thread. Barriers stand inside.
    fn bound(&self, b: &mut Builder, word: u32) -> Val<U32> {
        b.bar_sync(); // nobody reads what was said before any more
        let bound = b.ld(self.memory.at(word), LoadKind::Ordinary);
        b.broadcast(self.room.said, bound)
    }

    /// How many of the listed keys are at most `last`, and their mass: the same in every thread. Barriers stand inside.
    fn up_to(&self, b: &mut Builder, listed: Val<U32>, most: Val<F32>, last: Var<U64>) -> (Val<U32>, Val<U64>) {
        let (tid, threads, lane, warp) = (b.tid(), b.block(), b.lane(), b.warp_id());
        let (count, mass) = (b.var::<U32>(0), b.var::<U64>(0u64));
        let list = self.list(b);
        b.for_range(tid, listed, threads, |b, i| {
            let at = b.index(list, i);
            let key = b.ld(at, LoadKind::Ordinary);
            let counts = b.setp::<U64>(Compare::Le, key, last);
            b.if_(counts, |b| {
                let order = b.shr::<U64>(key, 32);
                let order = b.cvt::<U32, U64>(order);
                let logit = super::logit_of(b, order);
                let own = super::mass(b, logit, most);
                let (counted, sum) = (b.add::<U32>(count, 1), b.add::<U64>(mass, own));
                b.set(count, counted);
                b.set(mass, sum);
            });
        });
        let (count, mass) = (b.get(count), b.get(mass));
        // Both by shuffles: so the text is one for all targets.
        let (count, mass) = (warp::butterfly(b, AtomicOp::Add, count), warp::sum64(b, mass));
        let leader = b.setp_eq(lane, 0);
        let (count_at, mass_at) = (b.index(self.room.counts, warp), b.index(self.room.sums, warp));
        b.bar_sync(); // nobody reads the sums before any more
        b.if_(leader, |b| {
            b.st(count_at, count);
            b.st(mass_at, mass);
        });
        b.bar_sync(); // every warp's sums are in shared memory
        let mut all = (b.mov::<U32>(0), b.mov::<U64>(0u64));
        for warp in 0..b.warps() {
            let count = b.ld(self.room.counts.at(warp), LoadKind::Constant);
            let mass = b.ld(self.room.sums.at(warp), LoadKind::Constant);
            all = (b.add(all.0, count), b.add(all.1, mass));
        }
        all
    }
}
