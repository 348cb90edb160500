//! Floating-point formats and rounding, exactly as IEEE 754 and the PTX ISA define them.
//!
//! Every format here fits into f64. An operation is done in f64 with the result rounded to odd where it is inexact
//! (the last bit set if anything was lost); rounding that to a format at least two bits narrower is then correct.

/// Rounding of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Nearest, ties to even.
    Near,
    /// Nearest, ties away from zero.
    Away,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

/// A binary format narrower than f64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of the exponent.
    pub(crate) exponent: u32,
    /// Explicit bits of the significand.
    pub(crate) mantissa: u32,
    /// Whether the largest exponent holds finite values, with a single NaN (e4m3).
    pub(crate) finite: bool,
}

/// IEEE half.
pub(crate) const F16: Format = Format { exponent: 5, mantissa: 10, finite: false };
/// bfloat16.
pub(crate) const BF16: Format = Format { exponent: 8, mantissa: 7, finite: false };
/// IEEE single.
pub(crate) const F32: Format = Format { exponent: 8, mantissa: 23, finite: false };
/// TensorFloat-32, before it is placed into the high bits of a word.
pub(crate) const TF32: Format = Format { exponent: 8, mantissa: 10, finite: false };
/// FP8 with three bits of significand.
pub(crate) const E4M3: Format = Format { exponent: 4, mantissa: 3, finite: true };
/// FP8 with two bits of significand.
pub(crate) const E5M2: Format = Format { exponent: 5, mantissa: 2, finite: false };

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The bits of the canonical NaN, as PTX gives it.
    pub(crate) fn nan(self) -> u32 {
        (1 << (self.exponent + self.mantissa)) - 1
    }

    /// The bits of the largest finite value.
    pub(crate) fn max(self) -> u32 {
        if self.finite { self.nan() - 1 } else { (((1 << self.exponent) - 1) << self.mantissa) - 1 }
    }

    fn infinity(self) -> u32 {
        if self.finite { self.nan() } else { ((1 << self.exponent) - 1) << self.mantissa }
    }

    /// The value of some bits.
    pub(crate) fn value(self, bits: u32) -> f64 {
        let sign = bits >> (self.exponent + self.mantissa) & 1;
        let e = bits >> self.mantissa & ((1 << self.exponent) - 1);
        let m = bits & ((1 << self.mantissa) - 1);
        let top = (1 << self.exponent) - 1;
        let v = if self.finite && bits & self.nan() == self.nan() {
            f64::NAN
        } else if e == top && !self.finite {
            if m == 0 { f64::INFINITY } else { f64::NAN }
        } else if e == 0 {
            f64::from(m) * pow2(1 - self.bias() - self.mantissa as i32)
        } else {
            f64::from(m | 1 << self.mantissa) * pow2(e as i32 - self.bias() - self.mantissa as i32)
        };
        if sign == 1 { -v } else { v }
    }

    /// Rounds to this format; NaN becomes the canonical one. `saturate` turns overflow into the largest finite value.
    pub(crate) fn round(self, v: f64, mode: Round, saturate: bool) -> u32 {
        if v.is_nan() {
            return self.nan();
        }
        let sign = u32::from(v.is_sign_negative()) << (self.exponent + self.mantissa);
        if v.is_infinite() {
            return sign | if saturate { self.max() } else { self.infinity() };
        }
        let bits = v.to_bits();
        let e = (bits >> 52 & 0x7ff) as i32;
        let m = bits & ((1 << 52) - 1);
        if e == 0 && m == 0 {
            return sign;
        }
        // value = significand * 2^(exponent - 52), the significand in 53 bits (doubles below 2^-1022 are all tiny here)
        let (significand, exponent) = if e == 0 { (m, -1022) } else { (m | 1 << 52, e - 1023) };
        let lowest = 1 - self.bias();
        let drop = 52 - self.mantissa as i32 + (lowest - exponent).max(0);
        let (kept, rest, half) = if drop >= 64 {
            (0, u64::from(significand != 0), 2)
        } else {
            (significand >> drop, significand & ((1u64 << drop) - 1), 1u64 << (drop - 1))
        };
        let up = match mode {
            Round::Near => rest > half || (rest == half && kept & 1 == 1),
            Round::Away => rest >= half,
            Round::Zero => false,
            Round::Down => sign != 0 && rest != 0,
            Round::Up => sign == 0 && rest != 0,
        };
        let kept = kept + u64::from(up);
        // A carry out of the significand moves into the exponent by itself.
        let biased = if exponent < lowest { 0 } else { (exponent - lowest) as u64 };
        let magnitude = (biased << self.mantissa) + kept;
        let overflow = magnitude > u64::from(self.max());
        if !overflow {
            return sign | magnitude as u32;
        }
        let towards_zero = match mode {
            Round::Zero => true,
            Round::Down => sign == 0,
            Round::Up => sign != 0,
            _ => false,
        };
        sign | if saturate || towards_zero { self.max() } else { self.infinity() }
    }
}

fn pow2(e: i32) -> f64 {
    if e >= -1022 { f64::from_bits(((e + 1023) as u64) << 52) } else { f64::from_bits(1 << (e + 1074)) }
}

/// f16 bits to f32.
#[inline(always)]
pub(crate) fn f16_to_f32(h: u32) -> f32 {
    let sign = (h & 0x8000) << 16;
    let magnitude = (h & 0x7fff) << 13;
    // Multiplying by 2^112 moves the exponent's bias and makes subnormals normal.
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = if magnitude >= 0x0f80_0000 { magnitude | 0x7f80_0000 } else { scaled.to_bits() };
    f32::from_bits(sign | special)
}

/// f32 to f16 bits, nearest even; NaN becomes 0x7fff.
#[inline(always)]
pub(crate) fn f32_to_f16(v: f32) -> u32 {
    let b = v.to_bits();
    let sign = b >> 16 & 0x8000;
    let a = b & 0x7fff_ffff;
    // Normal results: rebias and round by adding; subnormal ones: let an addition align the bits.
    let normal = a.wrapping_add(0xc800_0fff).wrapping_add(a >> 13 & 1) >> 13;
    let tiny = (f32::from_bits(a) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let r = if a < 0x3880_0000 { tiny } else { normal };
    let r = if a >= 0x4780_0000 { 0x7c00 } else { r };
    if a > 0x7f80_0000 { 0x7fff } else { sign | r }
}

/// Flushes a subnormal to zero, its sign kept.
#[inline(always)]
pub(crate) fn flush(v: f32) -> f32 {
    let b = v.to_bits();
    f32::from_bits(if b & 0x7f80_0000 == 0 { b & 0x8000_0000 } else { b })
}

/// Any NaN becomes PTX's canonical one.
#[inline(always)]
pub(crate) fn canonical(v: f32) -> u32 {
    if v.is_nan() { 0x7fff_ffff } else { v.to_bits() }
}

/// `a + b` rounded to odd.
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let s = a + b;
    let t = s - a;
    let error = (a - (s - t)) + (b - t);
    to_odd(s, error)
}

/// Moves a nearest result to the odd neighbour on the side of the error, if there is one.
fn to_odd(s: f64, error: f64) -> f64 {
    if !s.is_finite() || error == 0.0 || error.is_nan() || s.to_bits() & 1 == 1 {
        return s;
    }
    if error > 0.0 { s.next_up() } else { s.next_down() }
}

/// Applies a rounding mode to a nearest result, given the sign of what was lost.
pub(crate) fn directed(s: f64, error: f64, mode: Round) -> f64 {
    if s.is_infinite() {
        // Overflow: only reached from finite operands.
        let towards_zero = matches!((mode, s > 0.0), (Round::Zero, _) | (Round::Down, true) | (Round::Up, false));
        return if towards_zero { f64::MAX.copysign(s) } else { s };
    }
    if error == 0.0 || error.is_nan() || s.is_nan() {
        return s;
    }
    match mode {
        Round::Near | Round::Away => s,
        Round::Zero if (s > 0.0) == (error > 0.0) || s == 0.0 => s,
        Round::Zero => {
            if s > 0.0 {
                s.next_down()
            } else {
                s.next_up()
            }
        }
        Round::Down => {
            if error < 0.0 {
                s.next_down()
            } else {
                s
            }
        }
        Round::Up => {
            if error > 0.0 {
                s.next_up()
            } else {
                s
            }
        }
    }
}

fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// f64 addition in any mode. An exact zero sum of opposite signs is -0 only when rounding down.
pub(crate) fn add64(a: f64, b: f64, mode: Round) -> f64 {
    let (s, error) = two_sum(a, b);
    if mode == Round::Near || !a.is_finite() || !b.is_finite() {
        return s;
    }
    if s == 0.0 && mode == Round::Down && (a.is_sign_negative() || b.is_sign_negative()) {
        return -0.0;
    }
    directed(s, error, mode)
}

/// f64 multiplication in any mode.
pub(crate) fn mul64(a: f64, b: f64, mode: Round) -> f64 {
    let p = a * b;
    if mode == Round::Near || !a.is_finite() || !b.is_finite() {
        return p;
    }
    directed(p, a.mul_add(b, -p), mode)
}

/// f64 fused multiply-add in any mode.
pub(crate) fn fma64(a: f64, b: f64, c: f64, mode: Round) -> f64 {
    let r = a.mul_add(b, c);
    if mode == Round::Near || !a.is_finite() || !b.is_finite() || !c.is_finite() {
        return r;
    }
    // Error of the fused result: (a*b - p) exactly, then p + c against r.
    let p = a * b;
    let low = a.mul_add(b, -p);
    let (s, e) = two_sum(p, c);
    let (s2, e2) = two_sum(s, -r);
    let error = s2 + (e + low + e2);
    directed(r, error, mode)
}

/// f64 division in any mode.
pub(crate) fn div64(a: f64, b: f64, mode: Round) -> f64 {
    let q = a / b;
    if mode == Round::Near || !a.is_finite() || !b.is_finite() || b == 0.0 {
        return q;
    }
    let residual = (-q).mul_add(b, a); // a - q*b
    directed(q, if b > 0.0 { residual } else { -residual }, mode)
}

/// f64 square root in any mode.
pub(crate) fn sqrt64(a: f64, mode: Round) -> f64 {
    let r = a.sqrt();
    if mode == Round::Near || !a.is_finite() || a <= 0.0 { r } else { directed(r, (-r).mul_add(r, a), mode) }
}

/// An f32 result from a result rounded to odd in f64.
fn narrow(v: f64, mode: Round) -> f32 {
    if mode == Round::Near { v as f32 } else { f32::from_bits(F32.round(v, mode, false)) }
}

/// f32 addition in any mode.
pub(crate) fn add32(a: f32, b: f32, mode: Round) -> f32 {
    if mode == Round::Near {
        return a + b;
    }
    if a + b == 0.0 && f64::from(a) + f64::from(b) == 0.0 {
        let minus = a.is_sign_negative() && b.is_sign_negative();
        let mixed = a.is_sign_negative() != b.is_sign_negative();
        return if minus || (mixed && mode == Round::Down) { -0.0 } else { 0.0 };
    }
    narrow(add_odd(f64::from(a), f64::from(b)), mode)
}

/// f32 multiplication in any mode.
pub(crate) fn mul32(a: f32, b: f32, mode: Round) -> f32 {
    if mode == Round::Near { a * b } else { narrow(f64::from(a) * f64::from(b), mode) }
}

/// f32 fused multiply-add in any mode, without the processor's own.
#[inline(always)]
pub(crate) fn fma32(a: f32, b: f32, c: f32, mode: Round) -> f32 {
    let p = f64::from(a) * f64::from(b); // exact: 48 bits
    let s = p + f64::from(c);
    if s == 0.0 {
        let mixed = p.is_sign_negative() != c.is_sign_negative();
        return if mixed && mode == Round::Down { -0.0 } else { s as f32 };
    }
    narrow(add_odd(p, f64::from(c)), mode)
}

/// f32 division in any mode.
pub(crate) fn div32(a: f32, b: f32, mode: Round) -> f32 {
    if mode == Round::Near {
        return a / b;
    }
    let (x, y) = (f64::from(a), f64::from(b));
    let q = x / y;
    if !q.is_finite() || q == 0.0 {
        return q as f32;
    }
    let residual = (-q).mul_add(y, x);
    narrow(to_odd(q, if y > 0.0 { residual } else { -residual }), mode)
}

/// f32 square root in any mode.
pub(crate) fn sqrt32(a: f32, mode: Round) -> f32 {
    if mode == Round::Near || a <= 0.0 || !a.is_finite() {
        return a.sqrt();
    }
    let x = f64::from(a);
    let r = x.sqrt();
    narrow(to_odd(r, (-r).mul_add(r, x)), mode)
}

/// Minimum: NaN loses against a number, -0 is less than +0.
#[inline(always)]
pub(crate) fn min32(a: f32, b: f32) -> f32 {
    let pick = if order(a) < order(b) { a } else { b };
    let pick = if a.is_nan() { b } else { pick };
    if b.is_nan() { a } else { pick }
}

/// Maximum, likewise.
#[inline(always)]
pub(crate) fn max32(a: f32, b: f32) -> f32 {
    let pick = if order(a) > order(b) { a } else { b };
    let pick = if a.is_nan() { b } else { pick };
    if b.is_nan() { a } else { pick }
}

/// An integer in the order of the floats.
#[inline(always)]
fn order(v: f32) -> i32 {
    let b = v.to_bits() as i32;
    b ^ ((b >> 31) as u32 >> 1) as i32
}

/// f64 minimum.
pub(crate) fn min64(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else if a == b {
        if a.is_sign_negative() { a } else { b }
    } else if a < b {
        a
    } else {
        b
    }
}

/// f64 maximum.
pub(crate) fn max64(a: f64, b: f64) -> f64 {
    -min64(-a, -b)
}

/// Rounds to an integral value.
pub(crate) fn integral(v: f64, mode: Round) -> f64 {
    match mode {
        Round::Near => v.round_ties_even(),
        Round::Away => v.round(),
        Round::Zero => v.trunc(),
        Round::Down => v.floor(),
        Round::Up => v.ceil(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_survives_a_round_trip() {
        for h in 0..=0xffffu32 {
            let v = f16_to_f32(h);
            assert!(v.is_nan() == F16.value(h).is_nan());
            if !v.is_nan() {
                assert_eq!(f64::from(v), F16.value(h), "{h:04x}");
                assert_eq!(f32_to_f16(v), h, "{h:04x}");
                assert_eq!(F16.round(f64::from(v), Round::Near, false), h);
            }
        }
    }

    #[test]
    fn fast_and_general_narrowing_agree() {
        let mut x = 0x1234_5678u32;
        for _ in 0..200_000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let v = f32::from_bits(x ^ x >> 15);
            if v.is_nan() {
                continue;
            }
            assert_eq!(f32_to_f16(v), F16.round(f64::from(v), Round::Near, false), "{v:e}");
            // Scaled into the range where f16 has values at all.
            let v = f32::from_bits((x & 0x87ff_ffff) | 0x3000_0000);
            assert_eq!(f32_to_f16(v), F16.round(f64::from(v), Round::Near, false), "{v:e}");
        }
    }

    #[test]
    fn software_fma_rounds_once() {
        let mut x = 7u32;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits((x ^ x >> 13) & 0xc7ff_ffff | 0x3000_0000)
        };
        for _ in 0..200_000 {
            let (a, b, c) = (next(), next(), next());
            assert_eq!(fma32(a, b, c, Round::Near), a.mul_add(b, c), "{a:e} {b:e} {c:e}");
        }
        // A product just above a tie, which rounding twice gets wrong.
        let (a, b, c) = (1.0 + f32::EPSILON, 1.0 + f32::EPSILON, 1e-30);
        assert_eq!(fma32(a, b, c, Round::Near), a.mul_add(b, c));
    }

    #[test]
    fn directed_results_bracket_the_exact_one() {
        let (a, b) = (1.0f32, 3.0f32);
        assert_eq!(div32(a, b, Round::Down).next_up(), div32(a, b, Round::Up));
        assert_eq!(add32(1.0, 1e-20, Round::Up), 1.0f32.next_up());
        assert_eq!(add32(1.0, 1e-20, Round::Zero), 1.0);
        assert_eq!(add32(1.0, -1e-20, Round::Zero), 1.0f32.next_down());
        assert_eq!(add64(1.0, 1e-40, Round::Up), 1.0f64.next_up());
        assert_eq!(mul32(f32::MAX, 2.0, Round::Zero), f32::MAX);
        assert_eq!(mul32(f32::MAX, 2.0, Round::Up), f32::INFINITY);
    }
}
