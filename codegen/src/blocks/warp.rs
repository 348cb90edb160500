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

/// The sums of two values over all lanes, each with the bits of [`sum`]: lanes 0 to 15 have the first, the others the second.
#[track_caller]
pub(crate) fn sum_two(b: &mut Builder, values: [Val<F32>; 2]) -> Val<F32> {
    let lane = b.lane();
    let upper = b.setp_ge(lane, 16);
    let [first, second] = values;
    let (own, other) = (b.selp::<F32>(second, first, upper), b.selp::<F32>(first, second, upper));
    let other = b.shfl_bfly(other, 16);
    let value = b.add(own, other);
    sum(b, value, 16)
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

/// The sum or maximum of all lanes' integers, in every lane, by the same text for all targets.
#[track_caller]
pub(crate) fn butterfly<T: Integer + Bits32>(b: &mut Builder, op: AtomicOp, value: Val<T>) -> Val<T> {
    [16, 8, 4, 2, 1].into_iter().fold(value, |value, distance| {
        let other = b.shfl_bfly(value, distance);
        combine(b, op, value, other)
    })
}

/// The sum, maximum or union of two integers.
#[track_caller]
pub(crate) fn combine<T: Integer + Bits32>(b: &mut Builder, op: AtomicOp, first: Val<T>, second: Val<T>) -> Val<T> {
    match op {
        AtomicOp::Add => b.add::<T>(first, second),
        AtomicOp::Max => b.max::<T>(first, second),
        AtomicOp::Or => b.or::<T>(first, second),
    }
}

/// The sum of all lanes' 64-bit integers, in every lane.
#[track_caller]
pub(crate) fn sum64(b: &mut Builder, value: Val<U64>) -> Val<U64> {
    [16, 8, 4, 2, 1].into_iter().fold(value, |value, distance| {
        let other = of_partner(b, value, distance);
        b.add::<U64>(value, other)
    })
}

/// The sum of the lanes' 64-bit integers before each lane, and that of all, in every lane.
#[track_caller]
pub(crate) fn sum64_before(b: &mut Builder, value: Val<U64>) -> (Val<U64>, Val<U64>) {
    let lane = b.lane();
    let none = b.mov::<U64>(0u64);
    [1, 2, 4, 8, 16].into_iter().fold((none, value), |(before, all), distance| {
        let other = of_partner(b, all, distance);
        let bit = b.and::<U32>(lane, distance);
        let is_upper = b.setp_ne(bit, 0);
        let lower = b.selp::<U64>(other, 0u64, is_upper);
        (b.add::<U64>(before, lower), b.add::<U64>(all, other))
    })
}

/// The 64-bit integer of the lane at a distance.
fn of_partner(b: &mut Builder, value: Val<U64>, distance: u32) -> Val<U64> {
    let high = b.shr::<U64>(value, 32);
    let halves = [b.cvt::<U32, U64>(value), b.cvt::<U32, U64>(high)];
    let [low, high] = halves.map(|half| b.shfl_bfly(half, distance));
    b.pack64(low, high)
}
