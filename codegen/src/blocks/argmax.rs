//! The greatest number and its index: the least index among equals. A NaN counts as greater than every number, so that
//! it comes through every reduction.

use crate::ptx::{Builder, Compare, F32, Global, LoadKind, Operand, Pred, Shared, Size, U32, Val, Var};
use kiln_shape::mailbox::NO_TOKEN;

/// The greatest value so far and its index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Best {
    pub(crate) value: Var<F32>,
    pub(crate) index: Var<U32>,
}

impl Best {
    /// Nothing yet.
    #[track_caller]
    pub(crate) fn none(b: &mut Builder) -> Best {
        Best { value: b.var(f32::NEG_INFINITY), index: b.var(NO_TOKEN) }
    }

    /// The index as a token; [`NO_TOKEN`] where the greatest value is NaN or infinite. Single logits may be -inf, not
    /// all of them.
    #[track_caller]
    pub(crate) fn token(&self, b: &mut Builder) -> Val<U32> {
        let size = b.abs::<F32>(self.value);
        let finite = b.setp_lt(size, f32::INFINITY); // false for NaN
        b.selp::<U32>(self.index, NO_TOKEN, finite)
    }

    /// Takes the candidate if it is better.
    #[track_caller]
    pub(crate) fn take(&self, b: &mut Builder, value: Val<F32>, index: Val<U32>) {
        let better = self.loses_to(b, value, index);
        let value = b.selp::<F32>(value, self.value, better);
        let index = b.selp::<U32>(index, self.index, better);
        b.set(self.value, value);
        b.set(self.index, index);
    }

    /// Whether the candidate is better: NaN, greater, or equal with a lesser index. After a NaN another NaN alone is taken.
    fn loses_to(&self, b: &mut Builder, value: Val<F32>, index: Val<U32>) -> Val<Pred> {
        let number = b.setp_eq(value, value);
        let nan = b.not_pred(number);
        let greater = b.setp(Compare::Gt, value, self.value);
        let greater = b.or_pred(greater, nan);
        let equal = b.setp_eq(value, self.value);
        let lesser = b.setp_lt(index, self.index);
        let tie = b.and_pred(equal, lesser);
        b.or_pred(greater, tie)
    }

    /// The best of all lanes of the warp, in every lane.
    #[track_caller]
    pub(crate) fn over_lanes(&self, b: &mut Builder) {
        for distance in [16, 8, 4, 2, 1] {
            let (value, index) = (b.get(self.value), b.get(self.index));
            let (value, index) = (b.shfl_bfly(value, distance), b.shfl_bfly(index, distance));
            self.take(b, value, index);
        }
    }

    /// The best of all threads of the block, in every lane of warp 0. A barrier stands inside; another must come before
    /// `scratch` is used again.
    #[track_caller]
    pub(crate) fn over_block(&self, b: &mut Builder, scratch: Scratch) {
        let (lane, warp) = (b.lane(), b.warp_id());
        self.over_lanes(b);
        let leader = b.setp_eq(lane, 0);
        let (value_at, index_at) = (b.index(scratch.values, warp), b.index(scratch.indices, warp));
        b.if_(leader, |b| {
            b.st(value_at, self.value);
            b.st(index_at, self.index);
        });
        b.bar_sync(); // every warp's best is in shared memory
        let in_first = b.setp_eq(warp, 0);
        b.if_(in_first, |b| {
            let warps = b.warps();
            let has = b.setp_lt(lane, warps);
            b.set(self.value, f32::NEG_INFINITY);
            b.set(self.index, NO_TOKEN);
            let (value_at, index_at) = (b.index(scratch.values, lane), b.index(scratch.indices, lane));
            b.if_(has, |b| {
                let (value, index) = (b.ld(value_at, LoadKind::Ordinary), b.ld(index_at, LoadKind::Ordinary));
                b.set(self.value, value);
                b.set(self.index, index);
            });
            self.over_lanes(b);
        });
    }

    /// The best of arrays of `[count]` values and indices, by one warp: in every lane.
    #[track_caller]
    pub(crate) fn merge(&self, b: &mut Builder, values: Global<F32>, indices: Global<U32>, count: Size) {
        let lane = b.lane();
        b.for_range(lane, count, 32, |b, i| {
            let (value, index) = (b.index(values, i), b.index(indices, i));
            let (value, index) = (b.ld(value, LoadKind::Ordinary), b.ld(index, LoadKind::Ordinary));
            self.take(b, value, index);
        });
        self.over_lanes(b);
    }
}

/// A value and an index for each warp.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    values: Shared<F32>,
    indices: Shared<U32>,
}

impl Scratch {
    /// Takes the shared memory.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder) -> Scratch {
        let warps = b.warps();
        Scratch { values: b.shared("warp_values", warps), indices: b.shared("warp_indices", warps) }
    }
}

/// The best of `values[first..end]` (the bounds the same in the whole block), in every lane of warp 0. A barrier stands
/// inside; another must come before `scratch` is used again.
#[track_caller]
pub(crate) fn of_block(
    b: &mut Builder,
    scratch: Scratch,
    values: Global<F32>,
    first: impl Operand<U32>,
    end: impl Operand<U32> + Copy,
    kind: LoadKind,
) -> Best {
    let (tid, threads) = (b.tid(), b.block());
    let best = Best::none(b);
    let first = b.add::<U32>(tid, first);
    b.for_range(first, end, threads, |b, i| {
        let at = b.index(values, i);
        let value = b.ld(at, kind);
        best.take(b, value, i);
    });
    best.over_block(b, scratch);
    best
}
