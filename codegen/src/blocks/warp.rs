//! Reductions over the lanes of a warp, as butterflies: every lane ends with the same bits.

use crate::ptx::{Builder, F32, Val};

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
