//! Floating-point formats and rounding, exactly as IEEE 754 and the PTX ISA define them.
//!
//! Every format here fits into f64. An operation gives the two f64 on both sides of its exact result, and one routine
//! rounds them to any format in any mode. Narrow formats go through rounding to odd (the last bit set if the result is
//! inexact), which is correct for formats at least two bits narrower.

/// Rounding of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Nearest, ties to even.
    Near,
    /// Nearest, ties away from zero.
    Away,
    Zero,
    Down,
    Up,
}

/// A binary format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of the exponent, and explicit bits of the significand.
    exponent: u32,
    mantissa: u32,
}

pub(crate) const F16: Format = Format { exponent: 5, mantissa: 10 };
pub(crate) const BF16: Format = Format { exponent: 8, mantissa: 7 };
pub(crate) const F32: Format = Format { exponent: 8, mantissa: 23 };
pub(crate) const F64: Format = Format { exponent: 11, mantissa: 52 };
/// TensorFloat-32, before it is placed into the high bits of a word.
pub(crate) const TF32: Format = Format { exponent: 8, mantissa: 10 };
/// 8-bit format without infinities: its largest exponent holds finite values and one NaN.
pub(crate) const E4M3: Format = Format { exponent: 4, mantissa: 3 };
pub(crate) const E5M2: Format = Format { exponent: 5, mantissa: 2 };

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The bits of PTX's canonical NaN: all but the sign.
    fn nan(self) -> u64 {
        (1 << (self.exponent + self.mantissa)) - 1
    }

    /// The bits above those of the largest finite value: infinity, or the NaN of a format without infinities.
    fn infinity(self) -> u64 {
        if self == E4M3 { self.nan() } else { ((1 << self.exponent) - 1) << self.mantissa }
    }

    /// The bit of the sign.
    pub(crate) fn sign(self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    /// Flushes subnormal numbers to zero.
    pub(crate) fn flush(self, bits: u64) -> u64 {
        if bits & (self.sign() - (1 << self.mantissa)) == 0 { bits & self.sign() } else { bits }
    }

    /// The value of some bits.
    pub(crate) fn value(self, bits: u64) -> f64 {
        let magnitude = bits & self.nan();
        let moved = magnitude << (52 - self.mantissa);
        let v = if magnitude >= self.infinity() {
            f64::from_bits(moved | F64.infinity())
        } else {
            // Multiplying moves the exponent's bias and makes subnormal numbers normal.
            f64::from_bits(moved) * power(1023 - self.bias())
        };
        if bits & self.sign() != 0 { -v } else { v }
    }

    /// Rounds to this format. NaN becomes canonical except in f64; an overflow becomes the largest finite value if
    /// `finite`.
    pub(crate) fn round(self, v: Exact, mode: Round, finite: bool) -> u64 {
        if self == F64 {
            return v.directed(mode).to_bits();
        }
        let v = v.odd(mode);
        if v.is_nan() {
            return self.nan();
        }
        let sign = if v.is_sign_negative() { self.sign() } else { 0 };
        let lowest = 1 - self.bias();
        // A double without an exponent of its own is tiny in every other format.
        let exponent = ((v.abs().to_bits() >> 52) as i32 - 1023).max(lowest);
        let units = integral(v / power(exponent - self.mantissa as i32), mode).abs();
        // A carry out of the significand moves into the exponent by itself.
        let magnitude = (((exponent - lowest) as u64) << self.mantissa).saturating_add(units as u64);
        // An overflow stays finite where the mode rounds towards zero.
        let finite = finite || v.is_finite() && integral(0.75f64.copysign(v), mode) == 0.0;
        sign | magnitude.min(self.infinity() - u64::from(finite))
    }
}

/// A power of two in the range of normal numbers.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// A result before its rounding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exact {
    /// The nearest f64.
    pub(crate) near: f64,
    /// The neighbour of `near` on the other side of the exact result; `near` itself if that is exact, -0 where operands
    /// cancel out.
    beyond: f64,
}

impl From<f64> for Exact {
    fn from(near: f64) -> Exact {
        Exact { near, beyond: near }
    }
}

impl Exact {
    /// A result from its nearest f64 and the sign of `error`, exact minus nearest. A NaN `error`, from infinite
    /// operands, means exact.
    fn new(near: f64, error: f64) -> Exact {
        let beyond = match error {
            up if up > 0.0 => near.next_up(),
            down if down < 0.0 => near.next_down(),
            _ => near,
        };
        Exact { near, beyond }
    }

    /// An integer.
    pub(crate) fn integer(v: i128) -> Exact {
        let near = v as f64;
        Exact::new(near, (v - near as i128) as f64)
    }

    /// Rounded to f64.
    fn directed(self, mode: Round) -> f64 {
        let Exact { near, beyond } = self;
        match mode {
            Round::Zero if beyond.abs() < near.abs() => beyond,
            Round::Near | Round::Away | Round::Zero => near,
            Round::Down => least(near, beyond),
            Round::Up => most(near, beyond),
        }
    }

    /// Rounded to odd: the last bit is set if the result is inexact. The mode decides a zero's sign.
    fn odd(self, mode: Round) -> f64 {
        if self.near == self.beyond {
            self.directed(mode)
        } else if self.near.to_bits() & 1 == 1 {
            self.near
        } else {
            self.beyond
        }
    }
}

/// `a + b`
pub(crate) fn add(a: f64, b: f64) -> Exact {
    let s = a + b;
    if s == 0.0 && a.is_sign_negative() != b.is_sign_negative() {
        return Exact { near: 0.0, beyond: -0.0 };
    }
    let (large, small) = if a.abs() > b.abs() { (a, b) } else { (b, a) };
    Exact::new(s, small - (s - large))
}

/// The error of a product, exact minus nearest; scaled up where it would underflow.
fn rest(a: f64, b: f64, p: f64) -> f64 {
    let (small, large) = if a.abs() < b.abs() { (a, b) } else { (b, a) };
    let scale = if p.abs() < 2f64.powi(-960) { 2f64.powi(600) } else { 1.0 };
    (small * scale).mul_add(large, -(p * scale))
}

/// `a * b`
pub(crate) fn mul(a: f64, b: f64) -> Exact {
    let p = a * b;
    Exact::new(p, rest(a, b, p))
}

/// `a * b + c`
pub(crate) fn fma(a: f64, b: f64, c: f64) -> Exact {
    let (r, p) = (a.mul_add(b, c), a * b);
    let sum = |x: f64, y: f64| {
        let (s, near) = (x + y, x + y - x);
        (s, (x - (s - near)) + (y - near))
    };
    // The product is p and a rest exactly; their sum with c is compared with the result.
    let (s, lost) = sum(p, c);
    let (difference, lost_again) = sum(s, -r);
    let of_sums = difference + (lost_again + lost + a.mul_add(b, -p));
    match r == 0.0 && p.is_sign_negative() != c.is_sign_negative() {
        true => Exact { near: 0.0, beyond: -0.0 },
        false if of_sums == 0.0 => Exact::new(r, rest(a, b, p)),
        false => Exact::new(r, of_sums),
    }
}

/// `a / b`
pub(crate) fn div(a: f64, b: f64) -> Exact {
    let q = a / b;
    Exact::new(q, (-q).mul_add(b, a) * b.signum())
}

/// The square root.
pub(crate) fn sqrt(a: f64) -> Exact {
    let r = a.sqrt();
    Exact::new(r, (-r).mul_add(r, a))
}

/// f16 bits to f32.
#[inline(always)]
pub(crate) fn f16_to_f32(h: u32) -> f32 {
    let sign = (h & 0x8000) << 16;
    let magnitude = (h & 0x7fff) << 13;
    // A subnormal is a whole number of 2^-24. Arithmetic on it as a subnormal f32 would take the host's microcode.
    let tiny = ((h & 0x3ff) as i32 as f32 * f32::from_bits(0x3380_0000)).to_bits();
    let finite = if magnitude < 0x0080_0000 { tiny } else { magnitude + 0x3800_0000 };
    let special = if magnitude >= 0x0f80_0000 { magnitude | 0x7f80_0000 } else { finite };
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

/// Flushes a subnormal to zero of its sign.
#[inline(always)]
pub(crate) fn flush(v: f32) -> f32 {
    let b = v.to_bits();
    f32::from_bits(if b & 0x7f80_0000 == 0 { b & 0x8000_0000 } else { b })
}

/// The bits of a value, with PTX's canonical NaN for every NaN.
#[inline(always)]
pub(crate) fn canonical(v: f32) -> u32 {
    if v.is_nan() { 0x7fff_ffff } else { v.to_bits() }
}

/// The minimum: a number rather than NaN, and -0 below +0.
#[inline(always)]
pub(crate) fn least<F: PartialOrd + Copy + Into<f64>>(x: F, y: F) -> F {
    let (a, b): (f64, f64) = (x.into(), y.into());
    if a < b || a == b && a.is_sign_negative() || b.is_nan() { x } else { y }
}

/// The maximum: a number rather than NaN, and +0 above -0.
#[inline(always)]
pub(crate) fn most<F: PartialOrd + Copy + Into<f64> + std::ops::Neg<Output = F>>(x: F, y: F) -> F {
    -least(-x, -y)
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
