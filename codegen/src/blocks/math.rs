//! Functions that PTX has only in part, or only approximately.

use crate::ptx::{Builder, F32, Operand, S32, U32, Val};
use kiln_shape::arithmetic::{EXP_INTEGERS, EXP_RAISED, EXP_SERIES, EXP_VANISHES, LN_2_LOW, LN_SERIES, TWO_THIRDS};
use std::f32::consts::{LN_2, LOG2_E};

/// `e^x` within 0.91 ulp, subnormals included, for `x` up to 66; `-inf` gives 0, NaN gives NaN. `x = n ln 2 + r`, `e^x =
/// 2^n e^r`, each instruction correctly rounded: the same bits on every chip, and on the host by
/// [`exp`](kiln_shape::arithmetic::exp).
#[track_caller]
pub(crate) fn exp(b: &mut Builder, x: impl Operand<F32> + Copy) -> Val<F32> {
    let [power] = exps(b, [x]);
    power
}

/// [`exp`] of several numbers side by side: each instruction depends on the one before of its own number.
#[track_caller]
pub(crate) fn exps<X: Operand<F32> + Copy, const N: usize>(b: &mut Builder, x: [X; N]) -> [Val<F32>; N] {
    let shifted = x.map(|x| b.fma(x, LOG2_E, EXP_INTEGERS));
    let n = shifted.map(|shifted| b.sub(shifted, EXP_INTEGERS));
    let r: [Val<F32>; N] = std::array::from_fn(|i| b.fma(n[i], -LN_2, x[i]));
    let r: [Val<F32>; N] = std::array::from_fn(|i| b.fma(n[i], -LN_2_LOW, r[i]));
    let [first, second, rest @ ..] = EXP_SERIES;
    let mut power = r.map(|r| b.fma(r, first, second));
    for coefficient in rest.into_iter().chain([1.0, 1.0]) {
        power = std::array::from_fn(|i| b.fma(power[i], r[i], coefficient));
    }
    let exponent = shifted.map(|shifted| b.mov_bits::<U32, _>(shifted));
    let exponent = exponent.map(|exponent| b.shl::<U32>(exponent, 23));
    let scale = exponent.map(|exponent| b.mov_bits::<F32, _>(exponent));
    let power: [Val<F32>; N] = std::array::from_fn(|i| b.mul(power[i], scale[i]));
    let power = power.map(|power| b.mul(power, 1.0 / (1u64 << EXP_RAISED) as f32));
    // n may be too small for the exponent.
    let vanishes = x.map(|x| b.setp_lt(x, EXP_VANISHES));
    std::array::from_fn(|i| b.selp::<F32>(0.0, power[i], vanishes[i]))
}

/// A positive normal number as `2^exponent (1 + part)`, with `1 + part` from 2/3 to 4/3.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors {
    pub(crate) exponent: Val<F32>,
    pub(crate) part: Val<F32>,
}

impl Factors {
    /// Those of `x`.
    #[track_caller]
    pub(crate) fn of(b: &mut Builder, x: Val<F32>) -> Factors {
        let bits = b.mov_bits::<U32, _>(x);
        let beyond = b.sub(bits, TWO_THIRDS);
        let beyond = b.mov_bits::<S32, _>(beyond);
        let exponent = b.shr::<S32>(beyond, 23);
        let raised = b.mov_bits::<U32, _>(exponent);
        let raised = b.shl(raised, 23);
        let bits = b.sub::<U32>(bits, raised);
        let near = b.mov_bits::<F32, _>(bits);
        Factors { exponent: b.cvt(exponent), part: b.sub(near, 1.0) }
    }

    /// The logarithm within 1 ulp: `exponent ln 2 + ln(1 + part)`.
    #[track_caller]
    pub(crate) fn ln(self, b: &mut Builder) -> Val<F32> {
        let Factors { exponent, part } = self;
        let [first, second, rest @ ..] = LN_SERIES;
        let mut series = b.fma(part, first, second);
        for coefficient in rest {
            series = b.fma(series, part, coefficient);
        }
        let square = b.mul(part, part);
        let of_part = b.fma(square, series, part);
        let low = b.fma(exponent, LN_2_LOW, of_part);
        b.fma(exponent, LN_2, low)
    }
}

/// `ln x` within 1 ulp for positive `x` that are normal, with the bits of the host's
/// [`ln`](kiln_shape::arithmetic::ln).
#[track_caller]
pub(crate) fn ln(b: &mut Builder, x: Val<F32>) -> Val<F32> {
    Factors::of(b, x).ln(b)
}

/// `x / (1 + e^-x)` for every finite `x`, by `e^-|x|`, which does not overflow: within 3.35 ulp, and below -87, where that
/// is subnormal, within 1.5e-43.
#[track_caller]
pub(crate) fn silu(b: &mut Builder, x: Val<F32>) -> Val<F32> {
    let [result] = silus(b, [x]);
    result
}

/// [`silu`] of several numbers side by side.
#[track_caller]
pub(crate) fn silus<const N: usize>(b: &mut Builder, x: [Val<F32>; N]) -> [Val<F32>; N] {
    let exponents = x.map(|x| {
        let magnitude = b.abs(x);
        b.neg(magnitude)
    });
    let powers = exps(b, exponents);
    let numerators: [Val<F32>; N] = std::array::from_fn(|i| {
        let scaled = b.mul(x[i], powers[i]);
        let negative = b.setp_lt(x[i], 0.0);
        b.selp::<F32>(scaled, x[i], negative)
    });
    let denominators = powers.map(|power| b.add(power, 1.0));
    let inverses = inverses_up_to_two(b, denominators);
    std::array::from_fn(|i| b.mul(numerators[i], inverses[i]))
}

/// `1 / x` of numbers from 1 to 2, side by side, within 0.68 ulp. A correctly rounded quotient is a branch for what such numbers never
/// are, and nothing of its neighbours goes on meanwhile.
#[track_caller]
fn inverses_up_to_two<const N: usize>(b: &mut Builder, x: [Val<F32>; N]) -> [Val<F32>; N] {
    let [square, linear, constant] = INVERSE_SERIES;
    let mut inverses: [Val<F32>; N] = std::array::from_fn(|i| {
        let inverse = b.fma(x[i], square, linear);
        b.fma(inverse, x[i], constant)
    });
    // Each step of Newton's squares what is lacking, 1/99 before.
    for _ in 0..2 {
        let lacking: [Val<F32>; N] = std::array::from_fn(|i| {
            let negative = b.neg(x[i]);
            b.fma(negative, inverses[i], 1.0)
        });
        inverses = std::array::from_fn(|i| b.fma(inverses[i], lacking[i], inverses[i]));
    }
    inverses
}

/// Coefficients of `x^2` to 1 in `1 / x` from 1 to 2, whose relative error is Chebyshev's third polynomial of `2x - 3`, by 99.
const INVERSE_SERIES: [f32; 3] = [32.0 / 99.0, -144.0 / 99.0, 210.0 / 99.0];

/// What an operation whose order does not matter makes of some values, by the shortest chain; there must be one.
pub(crate) fn by_pairs<T: Copy>(mut values: Vec<T>, mut combine: impl FnMut(T, T) -> T) -> T {
    while values.len() > 1 {
        values = values.chunks(2).map(|pair| pair.iter().copied().reduce(&mut combine).unwrap_or(pair[0])).collect();
    }
    values[0]
}

#[cfg(test)]
mod tests;
