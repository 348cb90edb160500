use super::Kernel;
use crate::ptx::{Builder, Compare, F32, Global, LoadKind, Pred, U32, Val, Var};

/// Greedy choice: the index of the greatest of `logits[vocab]`, the least such index, one block. Stores it as the token
/// after `state`'s position (if that is inside the `capacity` of `tokens`) and moves the sequence on.
/// `state` is `[position, length, error]`. A NaN is never chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Argmax;

impl Kernel for Argmax {
    fn name(&self) -> &str {
        "argmax"
    }

    fn block(&self) -> u32 {
        1024
    }

    fn build(&self, b: &mut Builder) {
        let logits = b.param::<Global<F32>>("logits"); // [vocab]
        let vocab = b.param::<U32>("vocab");
        let tokens = b.param::<Global<U32>>("tokens"); // [capacity]
        let capacity = b.param::<U32>("capacity");
        let state = b.param::<Global<U32>>("state"); // [3]
        let warps = b.warps();
        let best_values = b.shared::<F32>("best_values", warps);
        let best_indices = b.shared::<U32>("best_indices", warps);

        let (tid, lane, warp, threads) = (b.tid(), b.lane(), b.warp_id(), b.block());
        let best = Best { value: b.var(f32::NEG_INFINITY), index: b.var(u32::MAX) };
        b.for_range(tid, vocab, threads, |b, i| {
            let at = b.index(logits, i);
            let value = b.ld(at, LoadKind::Constant);
            best.take(b, value, i);
        });
        best.over_lanes(b);
        let leader = b.setp_eq(lane, 0);
        let (value_at, index_at) = (b.index(best_values, warp), b.index(best_indices, warp));
        b.if_(leader, |b| {
            b.st(value_at, best.value);
            b.st(index_at, best.index);
        });
        b.bar_sync(); // every warp's best is in shared memory
        let first = b.setp_eq(warp, 0);
        b.if_(first, |b| {
            let (value_at, index_at) = (b.index(best_values, lane), b.index(best_indices, lane));
            let (value, index) = (b.ld(value_at, LoadKind::Ordinary), b.ld(index_at, LoadKind::Ordinary));
            b.set(best.value, value);
            b.set(best.index, index);
            best.over_lanes(b);
            b.if_(leader, |b| {
                let none = b.setp_eq(best.index, u32::MAX);
                let token = b.selp::<U32>(0, best.index, none);
                let length = b.ld(state.at(1), LoadKind::Ordinary);
                let inside = b.setp_lt(length, capacity);
                let to = b.index(tokens, length);
                b.if_(inside, |b| b.st(to, token));
                b.st(state, length);
                let next = b.add(length, 1);
                b.st(state.at(1), next);
            });
        });
    }
}

/// The greatest value so far and its index.
struct Best {
    value: Var<F32>,
    index: Var<U32>,
}

impl Best {
    fn take(&self, b: &mut Builder, value: Val<F32>, index: Val<U32>) {
        let better = self.loses_to(b, value, index);
        let value = b.selp::<F32>(value, self.value, better);
        let index = b.selp::<U32>(index, self.index, better);
        b.set(self.value, value);
        b.set(self.index, index);
    }

    /// Greater, or equal with a lesser index; a NaN is neither.
    fn loses_to(&self, b: &mut Builder, value: Val<F32>, index: Val<U32>) -> Val<Pred> {
        let greater = b.setp(Compare::Gt, value, self.value);
        let equal = b.setp_eq(value, self.value);
        let lesser = b.setp_lt(index, self.index);
        let tie = b.and_pred(equal, lesser);
        b.or_pred(greater, tie)
    }

    fn over_lanes(&self, b: &mut Builder) {
        for distance in [16, 8, 4, 2, 1] {
            let (value, index) = (b.get(self.value), b.get(self.index));
            let (value, index) = (b.shfl_bfly(value, distance), b.shfl_bfly(index, distance));
            self.take(b, value, index);
        }
    }
}
