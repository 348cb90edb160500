//! Arithmetic and conversions with more modifiers than rows of `exec::values` can have, one lane at a time.
//!
//! Operands and results are bits, zero-extended to 64.

use super::float::{self, BF16, E4M3, E5M2, Exact, F16, F32, F64, Format, Round, TF32};
use crate::machine::types::Ty;

/// Types and modifiers of a scalar operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ctl {
    /// The type of its sources.
    pub(crate) from: Ty,
    /// The type of its destination.
    pub(crate) to: Ty,
    pub(crate) round: Round,
    /// Subnormals become zero.
    pub(crate) ftz: bool,
    /// Clamps: floats to [0, 1], integers to their range.
    pub(crate) sat: bool,
    /// Negative results become zero.
    pub(crate) relu: bool,
    /// Rounds to an integral value.
    pub(crate) integral: bool,
    /// Perturbs approximate results.
    pub(crate) seed: Option<u64>,
}

/// A scalar operation, applied lane by lane.
pub(crate) type LaneFn = fn(&Ctl, [u64; 3]) -> u64;

/// The format of a float type, or of one part of a packed one.
pub(crate) fn format(ty: Ty) -> Format {
    match ty {
        Ty::F16 | Ty::F16x2 => F16,
        Ty::BF16 | Ty::BF16x2 => BF16,
        Ty::TF32 => TF32,
        Ty::E4M3x2 => E4M3,
        Ty::E5M2x2 => E5M2,
        Ty::F64 => F64,
        _ => F32,
    }
}

fn flushed(c: &Ctl, f: Format, bits: u64) -> u64 {
    if c.ftz && f != F64 { f.flush(bits) } else { bits }
}

/// The value of a float's bits.
fn get(c: &Ctl, ty: Ty, bits: u64) -> f64 {
    format(ty).value(flushed(c, format(ty), bits))
}

/// Saturates, rounds and flushes as the modifiers say.
fn put(c: &Ctl, v: Exact) -> u64 {
    let v = match v.near {
        near if near < 0.0 && c.relu || (near <= 0.0 || near.is_nan()) && c.sat => 0.0.into(),
        _ => v,
    };
    // Formats of 8 bits are had with `.satfinite` only.
    let bits = format(c.to).round(v, c.round, matches!(c.to, Ty::E4M3x2 | Ty::E5M2x2));
    let bits =
        if c.sat && format(c.to).value(bits) > 1.0 { format(c.to).round(1.0.into(), c.round, false) } else { bits };
    if c.to == Ty::TF32 { bits << 13 } else { flushed(c, format(c.to), bits) }
}

/// An operation of floats.
pub(crate) fn float(c: &Ctl, a: [u64; 3], f: impl Fn([f64; 3]) -> Exact) -> u64 {
    put(c, f(a.map(|v| get(c, c.from, v))))
}

/// An approximate function of f32: its f64 result rounded to the nearest f32 or, perturbed, up or down.
pub(crate) fn approximately(c: &Ctl, a: [u64; 3], f: impl Fn(f64, f64) -> f64) -> u64 {
    let v = f(get(c, c.from, a[0]), get(c, c.from, a[1]));
    let round = match c.seed.map(|seed| (v.to_bits() ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63) {
        // An overflow is an infinity, not the largest finite value.
        Some(0) if v.abs() <= f64::from(f32::MAX) => Round::Down,
        Some(1) if v.abs() <= f64::from(f32::MAX) => Round::Up,
        _ => Round::Near,
    };
    put(&Ctl { round, ..*c }, v.into())
}

/// `div.approx`: for divisors in 2^126 < |b| < 2^128 the result is 0 (NaN for an infinite dividend).
pub(crate) fn div_approx(x: f64, y: f64) -> f64 {
    if y.is_finite() && y.abs() > 2f64.powi(126) { x * 0.0 * y.signum() } else { x / y }
}

/// `rcp.approx.ftz.f64` keeps the upper 20 bits of the significand.
pub(crate) fn rcp_approx_f64(bits: u64) -> u64 {
    let flush = |v: f64| if v.is_subnormal() { v * 0.0 } else { v };
    let upper = 0xffff_ffff_0000_0000;
    flush(1.0 / flush(f64::from_bits(bits & upper))).to_bits() & upper
}

/// The value of the lowest bits of a word in an integer type.
pub(crate) fn integer(ty: Ty, bits: u64) -> i128 {
    let top = bits << (64 - ty.bits());
    if ty.signed() { (top as i64 >> (64 - ty.bits())).into() } else { (top >> (64 - ty.bits())).into() }
}

/// The nearest value of an integer type.
fn clamp(ty: Ty, v: i128) -> i128 {
    let (low, high) = (-1 << (ty.bits() - 1), (1 << (ty.bits() - 1)) - 1);
    if ty.signed() { v.clamp(low, high) } else { v.clamp(0, high - low) }
}

/// `cvt` between any two scalar types; integers are extended by their sign.
pub(crate) fn cvt(c: &Ctl, [bits, ..]: [u64; 3]) -> u64 {
    if !c.from.float() {
        let v = integer(c.from, bits);
        return match c.to.float() {
            true => put(c, Exact::integer(v)),
            false if c.sat => clamp(c.to, v) as u64,
            false => integer(c.to, v as u64) as u64,
        };
    }
    let v = get(c, c.from, bits);
    match c.to.float() {
        false if v.is_nan() && (c.from == Ty::F64 || c.to.bits() == 64) => 1 << (c.to.bits() - 1),
        false if v.is_nan() => 0,
        // Saturating at 128 bits is beyond every destination's range.
        false => clamp(c.to, float::integral(v, c.round) as i128) as u64,
        true if c.from == c.to && !(c.integral || c.sat || c.ftz) => bits,
        true if c.integral && !v.is_nan() => put(c, float::integral(v, c.round).copysign(v).into()),
        true => put(c, v.into()),
    }
}

/// `cvt` of two f32 into a packed pair: the first operand goes to the upper half.
pub(crate) fn cvt_pack(c: &Ctl, [high, low, _]: [u64; 3]) -> u64 {
    let half = |bits| put(c, get(c, Ty::F32, bits).into());
    half(high) << (c.to.bits() / 2) | half(low)
}

/// `cvt.rn.f16x2.e4m3x2`, and `e5m2x2` likewise.
pub(crate) fn cvt_unpack8(c: &Ctl, [bits, ..]: [u64; 3]) -> u64 {
    let half = |bits: u64| put(c, get(c, c.from, bits & 0xff).into());
    half(bits >> 8) << 16 | half(bits)
}

/// `cvt.pack.sat`: saturates two s32 into a pair of narrower integers, with a third operand's bytes above for 8 bits.
pub(crate) fn cvt_pack_sat(c: &Ctl, [high, low, above]: [u64; 3]) -> u64 {
    let part = |v: u64| clamp(c.to, i128::from(v as i32)) as u64 & ((1 << c.to.bits()) - 1);
    match c.to.bits() {
        16 => part(high) << 16 | part(low),
        _ => (above & 0xffff) << 16 | part(high) << 8 | part(low),
    }
}
