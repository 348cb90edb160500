//! Functions that PTX has only in part.

use crate::ptx::{Builder, F32, Operand, Val};

/// `e^x` to about 2 ulp where `ex2.approx` is: `x * log2(e)` is kept in two floats, since one float's rounding error
/// would grow with `|x|`. Underflows to 0; `-inf` gives 0. `x` is at most 88: beyond, the correction of an infinity is
/// no number.
#[track_caller]
pub(crate) fn exp(b: &mut Builder, x: impl Operand<F32> + Copy) -> Val<F32> {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // log2(e) - LOG2_E, the part that does not fit one float.
    const LOG2_E_LOW: f32 = (std::f64::consts::LOG2_E - LOG2_E as f64) as f32;
    // Below this e^x is 0 in f32; the clamp keeps -inf out of the difference below.
    let x = b.max(x, -150.0);
    let high = b.mul(x, LOG2_E);
    let negative = b.neg(high);
    let error = b.fma(x, LOG2_E, negative);
    let low = b.fma(x, LOG2_E_LOW, error);
    let power = b.ex2_approx(high);
    let correction = b.mul(low, std::f32::consts::LN_2);
    b.fma(power, correction, power)
}

/// `x / (1 + e^-x)`, for every finite `x`. The exponent is at most 88, so below -88 the result is about `x * 6e-39`
/// instead of 0.
#[track_caller]
pub(crate) fn silu(b: &mut Builder, x: Val<F32>) -> Val<F32> {
    let negative = b.neg(x);
    let negative = b.min(negative, 88.0);
    let power = exp(b, negative);
    let denominator = b.add(power, 1.0);
    b.div(x, denominator)
}
