//! Rotary position embedding in the NeoX pairing: element `i` of the lower half turns with element `i` of the upper.

use crate::ptx::{Builder, F32, Val};

/// Turns one head held by a warp (lane l has elements l, l + 32, ...) by the angles of a position. `cos` and `sin` have
/// the lane's elements of the position's row of the tables, `[head_dim / 2]` each. `head_dim` is a multiple of 64, so both
/// elements of a pair are in one lane.
#[track_caller]
pub(crate) fn neox(b: &mut Builder, x: &[Val<F32>], cos: &[Val<F32>], sin: &[Val<F32>]) -> Vec<Val<F32>> {
    let half = x.len() / 2;
    let mut turned = x.to_vec();
    for i in 0..half {
        let (c, s) = (cos[i], sin[i]);
        let (low, high) = (x[i], x[i + half]);
        // low' = low * c - high * s, high' = high * c + low * s
        let minus = b.neg(s);
        let part = b.mul(high, minus);
        turned[i] = b.fma(low, c, part);
        let part = b.mul(low, s);
        turned[i + half] = b.fma(high, c, part);
    }
    turned
}
