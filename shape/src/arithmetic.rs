//! Functions of f32 made of additions, products, fused multiply-adds and conversions, which round alike everywhere: host
//! and kernels have the same bits of them.

use std::f32::consts::{LN_2, LOG2_E};

/// ln 2 - [`LN_2`], the part that does not fit one float.
pub const LN_2_LOW: f32 = (std::f64::consts::LN_2 - LN_2 as f64) as f32;

/// Coefficients of `r^6` to `r^2` in `e^r`, where those of `r` and 1 are 1: a minimax fit, weighted by the ulp, over
/// `|r| <= ln 2 / 2`; it leaves 0.04 ulp before rounding.
pub const EXP_SERIES: [f32; 5] = [0.0013780406, 0.008368857, 0.04166909, 0.1666652, 0.4999999];

/// The exponent of the power of two that [`exp`] makes too great, which keeps it normal; taking that back rounds once.
pub const EXP_RAISED: u32 = 32;

/// From 2^23 on floats are integers; the low bits of a sum with this are those of the exponent of `2^(n + EXP_RAISED)`.
pub const EXP_INTEGERS: f32 = (3 << 22) as f32 + (127 + EXP_RAISED) as f32;

/// Below, `e^x` is nearer to 0 than to the least subnormal.
pub const EXP_VANISHES: f32 = -104.0;

/// Coefficients of `f^8` to 1 in `(ln(1 + f) - f) / f^2`: a minimax fit of the relative error of the logarithm over
/// `|f| <= 1/3`; it leaves 0.08 ulp before rounding.
pub const LN_SERIES: [f32; 9] =
    [-0.12948966, 0.14004757, -0.121671535, 0.14001161, -0.16682306, 0.20010747, -0.24999717, 0.3333321, -0.5];

/// The bits of 2/3: [`ln`] has the rest of its argument beside a power of two from here to 4/3.
pub const TWO_THIRDS: u32 = 0x3f2a_aaab;

/// `e^x` within 0.91 ulp, subnormals included, for `x` up to 66; `-inf` gives 0, NaN gives NaN.
pub fn exp(x: f32) -> f32 {
    let shifted = x.mul_add(LOG2_E, EXP_INTEGERS);
    let n = shifted - EXP_INTEGERS;
    let r = n.mul_add(-LN_2, x);
    let r = n.mul_add(-LN_2_LOW, r);
    let [first, rest @ ..] = EXP_SERIES;
    let power = rest.into_iter().chain([1.0, 1.0]).fold(first, |power, coefficient| power.mul_add(r, coefficient));
    let scale = f32::from_bits(shifted.to_bits() << 23);
    let power = power * scale * (1.0 / (1u64 << EXP_RAISED) as f32);
    if x < EXP_VANISHES { 0.0 } else { power }
}

/// `ln(1 + f)` within 1 ulp for `|f| <= 1/3`.
pub fn ln_1p(f: f32) -> f32 {
    let [first, rest @ ..] = LN_SERIES;
    let series = rest.into_iter().fold(first, |series, coefficient| series.mul_add(f, coefficient));
    (f * f).mul_add(series, f)
}

/// `ln x` within 1 ulp for positive `x` that are normal: `x = 2^e (1 + f)` with `1 + f` from 2/3 to 4/3.
pub fn ln(x: f32) -> f32 {
    let exponent = (x.to_bits().wrapping_sub(TWO_THIRDS) as i32) >> 23;
    let f = f32::from_bits(x.to_bits().wrapping_sub((exponent as u32) << 23)) - 1.0;
    let e = exponent as f32;
    e.mul_add(LN_2, e.mul_add(LN_2_LOW, ln_1p(f)))
}

#[cfg(test)]
mod tests {
    use super::{exp, ln, ln_1p};

    /// How far `found` is from `exact`, in units of its last place.
    fn ulps(found: f32, exact: f64) -> f64 {
        let exponent = if exact == 0.0 { -126 } else { exact.abs().log2().floor().max(-126.0) as i32 };
        (f64::from(found) - exact).abs() / 2f64.powi(exponent - 23)
    }

    /// The worst distance over floats whose bits are a stride apart.
    fn worst(from: f32, to: f32, function: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
        let floats = (from.to_bits()..=to.to_bits()).step_by(257).map(f32::from_bits);
        floats.map(|x| ulps(function(x), exact(f64::from(x)))).fold(0.0, f64::max)
    }

    #[test]
    fn functions_are_float64s_within_their_bounds() {
        let found = [
            worst(-1e-8, -105.0, exp, f64::exp).max(worst(1e-8, 66.0, exp, f64::exp)),
            worst(f32::MIN_POSITIVE, f32::MAX, ln, f64::ln),
            worst(1e-30, 0.333, ln_1p, f64::ln_1p).max(worst(-1e-30, -0.333, ln_1p, f64::ln_1p)),
        ];
        println!("exp, ln and ln_1p are at most {found:.3?} ulp from float64's");
        for (found, bound) in found.into_iter().zip([0.91, 1.0, 1.0]) {
            assert!(found <= bound && found > 0.4, "{found} ulp, the bound is {bound}");
        }
        assert_eq!((exp(f32::NEG_INFINITY), exp(-104.5), exp(0.0), ln(1.0)), (0.0, 0.0, 1.0, 0.0));
        assert!(exp(f32::NAN).is_nan());
    }
}
