//! Floating-point formats and rounding, exactly as IEEE 754 and the PTX ISA define them.
//!
//! Every format here fits into f64. An operation gives the nearest f64 and the sign of what that lacks of the exact
//! result; one routine rounds this to any format in any mode. Narrow formats go through rounding to odd (the last bit
//! set if anything was lost), which is correct for formats at least two bits narrower.

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

/// A binary format.
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
/// IEEE double.
pub(crate) const F64: Format = Format { exponent: 11, mantissa: 52, finite: false };
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
    fn nan(self) -> u64 {
        (1 << (self.exponent + self.mantissa)) - 1
    }

    /// The bits of the largest finite value.
    fn max(self) -> u64 {
        if self.finite { self.nan() - 1 } else { self.infinity() - 1 }
    }

    fn infinity(self) -> u64 {
        if self.finite { self.nan() } else { ((1 << self.exponent) - 1) << self.mantissa }
    }

    /// The bit of the sign.
    pub(crate) fn sign(self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    /// Whether some bits are zero or a subnormal number.
    pub(crate) fn subnormal(self, bits: u64) -> bool {
        bits >> self.mantissa & ((1 << self.exponent) - 1) == 0
    }

    /// The value of some bits.
    pub(crate) fn value(self, bits: u64) -> f64 {
        if self == F64 {
            return f64::from_bits(bits);
        }
        let top = (1 << self.exponent) - 1;
        let e = bits >> self.mantissa & top;
        let m = bits & ((1 << self.mantissa) - 1);
        let v = if bits & self.nan() == self.nan() {
            f64::NAN
        } else if e == top && !self.finite {
            if m == 0 { f64::INFINITY } else { f64::NAN }
        } else {
            let (m, e) = if e == 0 { (m, 1) } else { (m | 1 << self.mantissa, e as i32) };
            // Exact, and no power of two below 2^-1022 is needed.
            m as f64 * f64::from_bits(((e - self.bias() - self.mantissa as i32 + 1023) as u64) << 52)
        };
        if bits & self.sign() != 0 { -v } else { v }
    }

    /// Rounds to this format; NaN becomes the canonical one but in f64. `saturate` turns overflow into the largest
    /// finite value.
    pub(crate) fn round(self, v: Exact, mode: Round, saturate: bool) -> u64 {
        if v.cancelled && mode == Round::Down {
            return self.sign();
        }
        if self == F64 {
            return v.directed(mode).to_bits();
        }
        let v = v.odd();
        if v.is_nan() {
            return self.nan();
        }
        let sign = if v.is_sign_negative() { self.sign() } else { 0 };
        let bits = v.to_bits() & !F64.sign();
        if v == 0.0 {
            return sign;
        }
        // value = significand * 2^(exponent - 52); doubles below 2^-1022 are tiny in every other format.
        let exponent = (bits >> 52) as i32 - 1023;
        let significand = bits & ((1 << 52) - 1) | 1 << 52;
        let lowest = 1 - self.bias();
        let drop = 52 - self.mantissa as i32 + (lowest - exponent).max(0);
        let (kept, rest, half) = if drop >= 64 {
            (0, 1, 2)
        } else {
            (significand >> drop, significand & ((1u64 << drop) - 1), 1u64 << (drop - 1))
        };
        let outwards = match mode {
            Round::Near | Round::Away => true,
            Round::Zero => false,
            Round::Down => sign != 0,
            Round::Up => sign == 0,
        };
        let up = match mode {
            Round::Near => rest > half || (rest == half && kept & 1 == 1),
            Round::Away => rest >= half,
            _ => outwards && rest != 0,
        };
        // A carry out of the significand moves into the exponent by itself.
        let magnitude = ((exponent - lowest).max(0) as u64) << self.mantissa;
        let magnitude = magnitude + kept + u64::from(up);
        sign | if v.is_finite() && magnitude <= self.max() {
            magnitude
        } else if saturate || (v.is_finite() && !outwards) {
            self.max()
        } else {
            self.infinity()
        }
    }
}

/// A result before its rounding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exact {
    /// The nearest f64.
    near: f64,
    /// What the exact result is more than that; only the sign counts.
    error: f64,
    /// A sum of zero from operands of opposite signs: -0 when rounded down.
    cancelled: bool,
}

impl From<f64> for Exact {
    fn from(near: f64) -> Exact {
        Exact { near, error: 0.0, cancelled: false }
    }
}

impl Exact {
    fn new(near: f64, error: f64, operands: &[f64]) -> Exact {
        let finite = operands.iter().all(|v| v.is_finite());
        // An overflow is less than the infinity that it gives.
        let error = match near.is_finite() {
            true if finite => error,
            false if finite => -near,
            _ => 0.0,
        };
        Exact { near, error, cancelled: false }
    }

    /// An integer.
    pub(crate) fn integer(v: i128) -> Exact {
        let near = v as f64;
        Exact { near, error: (v - near as i128) as f64, cancelled: false }
    }

    /// Changes the value, for a narrow format.
    pub(crate) fn map(self, f: impl Fn(f64) -> f64) -> Exact {
        f(self.odd()).into()
    }

    fn odd(self) -> f64 {
        if self.near.to_bits() & 1 == 1 || !self.near.is_finite() {
            self.near
        } else if self.error > 0.0 {
            self.near.next_up()
        } else if self.error < 0.0 {
            self.near.next_down()
        } else {
            self.near
        }
    }

    fn directed(self, mode: Round) -> f64 {
        let (up, down) = (self.error > 0.0, self.error < 0.0);
        match mode {
            Round::Down if down => self.near.next_down(),
            Round::Up if up => self.near.next_up(),
            Round::Zero if down && self.near > 0.0 => self.near.next_down(),
            Round::Zero if up && self.near < 0.0 => self.near.next_up(),
            _ => self.near,
        }
    }
}

fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// `a + b`
pub(crate) fn add(a: f64, b: f64) -> Exact {
    let (s, error) = two_sum(a, b);
    let cancelled = s == 0.0 && a.is_sign_negative() != b.is_sign_negative();
    Exact { cancelled, ..Exact::new(s, error, &[a, b]) }
}

/// `a * b`
pub(crate) fn mul(a: f64, b: f64) -> Exact {
    let p = a * b;
    Exact::new(p, a.mul_add(b, -p), &[a, b])
}

/// `a * b + c`
pub(crate) fn fma(a: f64, b: f64, c: f64) -> Exact {
    let (r, p) = (a.mul_add(b, c), a * b);
    // The product is p + low exactly; its sum with c is compared with the result.
    let low = a.mul_add(b, -p);
    let (s, e) = two_sum(p, c);
    let (s2, e2) = two_sum(s, -r);
    let cancelled = r == 0.0 && p.is_sign_negative() != c.is_sign_negative();
    Exact { cancelled, ..Exact::new(r, s2 + (e + low + e2), &[a, b, c]) }
}

/// `a / b`
pub(crate) fn div(a: f64, b: f64) -> Exact {
    let q = a / b;
    if b == 0.0 {
        return q.into();
    }
    let remainder = (-q).mul_add(b, a);
    Exact::new(q, if b > 0.0 { remainder } else { -remainder }, &[a, b])
}

/// The square root.
pub(crate) fn sqrt(a: f64) -> Exact {
    let r = a.sqrt();
    if a > 0.0 { Exact::new(r, (-r).mul_add(r, a), &[a]) } else { r.into() }
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

/// f64 minimum.
pub(crate) fn min64(a: f64, b: f64) -> f64 {
    match a.partial_cmp(&b) {
        None if a.is_nan() => b,
        None => a,
        Some(std::cmp::Ordering::Equal) if b.is_sign_negative() => b,
        Some(std::cmp::Ordering::Greater) => b,
        Some(_) => a,
    }
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

    /// Numbers of all kinds, reproducibly.
    fn numbers() -> impl FnMut() -> f32 {
        let mut x = 0x1234_5678u32;
        move || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let v = x ^ x >> 15;
            // Half of them in the range where f16 has values at all.
            f32::from_bits(if x >> 7 & 1 == 1 { v } else { v & 0x87ff_ffff | 0x3000_0000 })
        }
    }

    #[test]
    fn every_f16_survives_a_round_trip() {
        for h in 0..=0xffffu32 {
            let v = f16_to_f32(h);
            assert_eq!(v.is_nan(), F16.value(u64::from(h)).is_nan());
            if !v.is_nan() {
                assert_eq!(f64::from(v), F16.value(u64::from(h)), "{h:04x}");
                assert_eq!(f32_to_f16(v), h, "{h:04x}");
                assert_eq!(F16.round(f64::from(v).into(), Round::Near, false), u64::from(h));
            }
        }
    }

    #[test]
    fn fast_and_general_roundings_agree() {
        let mut next = numbers();
        for _ in 0..400_000 {
            let (a, b, c) = (next(), next(), next());
            let [x, y, z] = [a, b, c].map(f64::from);
            assert_eq!(u64::from(f32_to_f16(a)), F16.round(x.into(), Round::Near, false), "{a:e}");
            let general = |v: Exact| F32.round(v, Round::Near, false) as u32;
            assert_eq!(general(add(x, y)), canonical(a + b), "{a:e} + {b:e}");
            assert_eq!(general(mul(x, y)), canonical(a * b), "{a:e} * {b:e}");
            assert_eq!(general(div(x, y)), canonical(a / b), "{a:e} / {b:e}");
            assert_eq!(general(sqrt(x)), canonical(a.sqrt()), "{a:e}");
            assert_eq!(general(fma(x, y, z)), canonical(a.mul_add(b, c)), "{a:e} * {b:e} + {c:e}");
        }
    }

    #[test]
    fn directed_results_bracket_the_exact_one() {
        let f32s = |v, mode| f32::from_bits(F32.round(v, mode, false) as u32);
        assert_eq!(f32s(div(1.0, 3.0), Round::Down).next_up(), f32s(div(1.0, 3.0), Round::Up));
        assert_eq!(f32s(add(1.0, 1e-20), Round::Up), 1.0f32.next_up());
        assert_eq!(f32s(add(1.0, 1e-20), Round::Zero), 1.0);
        assert_eq!(f32s(add(1.0, -1e-20), Round::Zero), 1.0f32.next_down());
        assert_eq!(F64.round(add(1.0, 1e-40), Round::Up, false), 1.0f64.next_up().to_bits());
        assert_eq!(F64.round(mul(f64::MAX, 2.0), Round::Zero, false), f64::MAX.to_bits());
        assert_eq!(f32s(mul(f64::from(f32::MAX), 2.0), Round::Zero), f32::MAX);
        assert_eq!(f32s(mul(f64::from(f32::MAX), 2.0), Round::Up), f32::INFINITY);
    }
}
