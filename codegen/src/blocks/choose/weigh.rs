//! Sums over logits: how many are how far below the greatest, and their masses and moments.

use super::{Choose, Share};
use crate::blocks::warp;
use crate::ptx::{AtomicOp, Builder, F32, LoadKind, Scope, U32, U64, Val, Work};
use kiln_shape::choice::{self, BINS, memory};

impl Choose {
    /// Adds each of the block's logits to the sums of its bin, where a top-k, a typical-p or a top-p asks for them; then
    /// each as the model gives it to the mass of all, where a log-probability does.
    #[track_caller]
    pub(crate) fn weigh(&self, b: &mut Builder, share: Share, most: Val<F32>) {
        let (tid, threads) = (b.tid(), b.block());
        let sums = self.memory.at(memory::SUMS).cast::<U64>();
        let [counts, masses, moments] = [memory::COUNTS, memory::MASSES, memory::MOMENTS].map(|of| sums.at(of * BINS));
        let top_k = b.ld(self.words.at(choice::TOP_K), LoadKind::Constant);
        let (has_k, has_p) = (b.setp_ne(top_k, 0), self.has(b, choice::HAS_TOP_P));
        let has_typical = self.has(b, choice::HAS_TYPICAL_P);
        let shares = b.or_pred(has_p, has_typical);
        let (filters, has_all) = (self.has(b, choice::FILTERS), self.has(b, choice::LOGPROB));
        let (first, end) = (b.selp::<U32>(0, 1, filters), b.selp::<U32>(2, 1, has_all));
        b.for_range(first, end, 1, |b, round| {
            let (of_bins, of_all) = (b.setp_eq(round, 0), b.setp_ne(round, 0));
            let given = self.given(b, share.logits);
            let logits = b.select_ptr(share.logits, given, of_bins);
            let most_given = self.most_given(b);
            let most = b.selp::<F32>(most, most_given, of_bins);
            let (counts_bins, weighs_bins) = (b.and_pred(of_bins, has_k), b.and_pred(of_bins, shares));
            let has_mass = b.or_pred(weighs_bins, of_all);
            let all = b.var::<U64>(0u64);
            let first = b.add::<U32>(share.first, tid);
            b.for_range(first, share.end, threads, |b, i| {
                b.each_iteration(Work::Read(1));
                let at = b.index(logits, i);
                let logit = b.ld(at, LoadKind::Ordinary);
                let bin = super::bin(b, logit, most);
                let counted = super::possible(b, logit);
                let counted = b.and_pred(counted, counts_bins);
                let count = b.index(counts, bin);
                b.if_(counted, |b| b.red(AtomicOp::Add, count, 1u64, Scope::Gpu));
                b.if_(has_mass, |b| {
                    let weight = super::weight(b, logit, most);
                    let mass = super::in_units(b, weight);
                    let more = b.add::<U64>(all, mass);
                    b.set(all, more);
                    let counted = b.setp_ne(mass, 0u64);
                    let counted = b.and_pred(counted, weighs_bins);
                    let sum = b.index(masses, bin);
                    b.if_(counted, |b| b.red(AtomicOp::Add, sum, mass, Scope::Gpu));
                    let weighs_moments = b.and_pred(of_bins, has_typical);
                    b.if_(weighs_moments, |b| {
                        let moment = super::moment(b, logit, most, weight);
                        let counted = b.setp_ne(moment, 0u64);
                        let sum = b.index(moments, bin);
                        b.if_(counted, |b| b.red(AtomicOp::Add, sum, moment, Scope::Gpu));
                    });
                });
            });
            b.if_(of_all, |b| {
                let all = b.get(all);
                let all = warp::sum64(b, all);
                let lane = b.lane();
                let leads = b.setp_eq(lane, 0);
                let total = self.memory.at(memory::TOTAL).cast::<U64>();
                b.if_(leads, |b| b.red(AtomicOp::Add, total, all, Scope::Gpu));
            });
        });
    }
}
