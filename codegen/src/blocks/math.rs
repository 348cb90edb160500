//! Functions that PTX has only in part, or only approximately.

use crate::ptx::{Builder, F32, Operand, U32, Val};

/// Coefficients of `r^6` to `r^2` in `e^r`, where those of `r` and 1 are 1: a minimax fit, weighted by the ulp, over
/// `|r| <= ln 2 / 2`; it leaves 0.04 ulp before rounding.
const SERIES: [f32; 5] = [0.0013780406, 0.008368857, 0.04166909, 0.1666652, 0.4999999];

/// `e^x` within 0.91 ulp, subnormals included, for `x` up to 66; `-inf` gives 0, NaN gives NaN. `x = n ln 2 + r`, `e^x =
/// 2^n e^r`, each instruction correctly rounded: the same bits on every chip.
#[track_caller]
pub(crate) fn exp(b: &mut Builder, x: impl Operand<F32> + Copy) -> Val<F32> {
    const LN_2: f32 = std::f32::consts::LN_2;
    // ln 2 - LN_2, the part that does not fit one float.
    const LN_2_LOW: f32 = (std::f64::consts::LN_2 - LN_2 as f64) as f32;
    // The power of two is made 2^RAISED times too great, which keeps it normal; taking that back rounds once.
    const RAISED: u32 = 32;
    // From 2^23 on floats are integers; the sum's low bits are those of the exponent of 2^(n + RAISED).
    const INTEGERS: f32 = (3 << 22) as f32 + (127 + RAISED) as f32;
    let shifted = b.fma(x, std::f32::consts::LOG2_E, INTEGERS);
    let n = b.sub(shifted, INTEGERS);
    let r = b.fma(n, -LN_2, x);
    let r = b.fma(n, -LN_2_LOW, r);
    let [first, second, rest @ ..] = SERIES;
    let mut power = b.fma(r, first, second);
    for coefficient in rest.into_iter().chain([1.0, 1.0]) {
        power = b.fma(power, r, coefficient);
    }
    let exponent = b.mov_bits::<U32, _>(shifted);
    let exponent = b.shl(exponent, 23);
    let scale = b.mov_bits::<F32, _>(exponent);
    let power = b.mul(power, scale);
    let power = b.mul(power, 1.0 / (1u64 << RAISED) as f32);
    // Below, e^x is nearer to 0 than to the least subnormal, and n may be too small for the exponent.
    let vanishes = b.setp_lt(x, -104.0);
    b.selp::<F32>(0.0, power, vanishes)
}

/// `x / (1 + e^-x)` for every finite `x`, by `e^-|x|`, which does not overflow: within 3.35 ulp, and below -87, where that
/// is subnormal, within 1.5e-43.
#[track_caller]
pub(crate) fn silu(b: &mut Builder, x: Val<F32>) -> Val<F32> {
    let magnitude = b.abs(x);
    let exponent = b.neg(magnitude);
    let power = exp(b, exponent);
    let scaled = b.mul(x, power);
    let negative = b.setp_lt(x, 0.0);
    let numerator = b.selp::<F32>(scaled, x, negative);
    let denominator = b.add(power, 1.0);
    b.div(numerator, denominator)
}

#[cfg(test)]
mod tests;
