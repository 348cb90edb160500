//! Reductions over the lanes of a warp, as butterflies: every lane ends with the same bits.

use crate::ptx::{AtomicOp, Bits32, Builder, F32, Integer, U32, U64, Val};

/// The sum over groups of `width` neighbouring lanes (a power of two up to 32), in every lane of the group.
#[track_caller]
pub(crate) fn sum(b: &mut Builder, mut value: Val<F32>, width: u32) -> Val<F32> {
    let mut distance = width / 2;
    while distance > 0 {
        let other = b.shfl_bfly(value, distance);
        value = b.add(value, other);
        distance /= 2;
    }
    value
}

/// The maximum over groups of `width` neighbouring lanes, in every lane of the group.
#[track_caller]
pub(crate) fn max(b: &mut Builder, mut value: Val<F32>, width: u32) -> Val<F32> {
    let mut distance = width / 2;
    while distance > 0 {
        let other = b.shfl_bfly(value, distance);
        value = b.max(value, other);
        distance /= 2;
    }
    value
}

/// The sum or maximum of all lanes' integers, in every lane: one instruction from sm_80 on.
#[track_caller]
pub(crate) fn reduce<T: Integer + Bits32>(b: &mut Builder, op: AtomicOp, value: Val<T>) -> Val<T> {
    if b.target().sm() >= 80 { b.redux(op, value) } else { butterfly(b, op, value) }
}

/// The same by the same text for all targets.
#[track_caller]
pub(crate) fn butterfly<T: Integer + Bits32>(b: &mut Builder, op: AtomicOp, value: Val<T>) -> Val<T> {
    [16, 8, 4, 2, 1].into_iter().fold(value, |value, distance| {
        let other = b.shfl_bfly(value, distance);
        match op {
            AtomicOp::Add => b.add::<T>(value, other),
            AtomicOp::Max => b.max::<T>(value, other),
            AtomicOp::Or => b.or::<T>(value, other),
        }
    })
}

/// The sum of all lanes' 64-bit integers, in every lane.
#[track_caller]
pub(crate) fn sum64(b: &mut Builder, value: Val<U64>) -> Val<U64> {
    [16, 8, 4, 2, 1].into_iter().fold(value, |value, distance| {
        let high = b.shr::<U64>(value, 32);
        let halves = [b.cvt::<U32, U64>(value), b.cvt::<U32, U64>(high)];
        let [low, high] = halves.map(|half| b.shfl_bfly(half, distance));
        let other = b.pack64(low, high);
        b.add::<U64>(value, other)
    })
}
