//! Scalar semantics of everything that is not worth a vectorised loop, one lane at a time.
//!
//! Operands and results are bits, zero-extended to 64. `ctl.from` is the instruction's type (that of its sources),
//! `ctl.to` that of its destination.

use super::float::{self, BF16, E4M3, E5M2, Exact, F16, F32, F64, Format, Round, TF32};
use super::inst::{Cmp, Ctl};
use crate::memory::{LOCAL_BASE, PARAM_BASE, SHARED_BASE, WINDOW};
use crate::ptx::types::{Space, Ty};

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

/// Applies an operation to each element of packed operands.
pub(crate) fn each(ctl: &Ctl, a: [u64; 4], f: impl Fn(&Ctl, [u64; 4]) -> u64) -> u64 {
    let inner = ctl.to.element();
    if inner == ctl.to {
        return f(ctl, a);
    }
    let c = Ctl { to: inner, from: ctl.from.element(), ..*ctl };
    let bits = inner.bits();
    let mask = (1u64 << bits) - 1;
    f(&c, a.map(|v| v & mask)) | f(&c, a.map(|v| v >> bits & mask)) << bits
}

// Floats.

/// The value of a float's bits.
fn get(ctl: &Ctl, ty: Ty, bits: u64) -> f64 {
    format(ty).value(flushed(ctl, ty, bits))
}

/// Rounds, then saturates and flushes as the modifiers say.
fn put(ctl: &Ctl, v: Exact) -> u64 {
    let v = if ctl.relu { v.map(|v| if v < 0.0 { 0.0 } else { v }) } else { v };
    let v = if ctl.sat { v.map(saturate) } else { v };
    let bits = format(ctl.to).round(v, ctl.round, false);
    if ctl.to == Ty::TF32 { bits << 13 } else { flushed(ctl, ctl.to, bits) }
}

/// `.sat`: to 0 ..= 1, NaN to 0.
fn saturate(v: f64) -> f64 {
    if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) + 0.0 }
}

fn flushed(c: &Ctl, ty: Ty, bits: u64) -> u64 {
    let f = format(ty);
    if c.ftz && f != F64 && f.subnormal(bits) { bits & f.sign() } else { bits }
}

/// An operation of floats of any type, packed or not.
pub(crate) fn float(ctl: &Ctl, a: [u64; 4], f: impl Fn([f64; 4]) -> Exact) -> u64 {
    each(ctl, a, |c, a| put(c, f(a.map(|v| get(c, c.from, v)))))
}

/// Sets a float's sign, NaN or not.
pub(crate) fn sign(ctl: &Ctl, a: [u64; 4], f: impl Fn(bool) -> bool) -> u64 {
    each(ctl, a, |c, a| {
        let (v, s) = (flushed(c, c.to, a[0]), format(c.to).sign());
        v & !s | if f(v & s != 0) { s } else { 0 }
    })
}

/// `min` or, given `max`, `max` of floats.
pub(crate) fn min_max(ctl: &Ctl, a: [u64; 4], max: bool) -> u64 {
    float(ctl, a, |[x, y, ..]| {
        let negative = x.is_sign_negative() != y.is_sign_negative();
        let (x, y) = if ctl.xorsign { (x.abs(), y.abs()) } else { (x, y) };
        let nan = ctl.nan && (x.is_nan() || y.is_nan());
        let r = if max { -float::least(-x, -y) } else { float::least(x, y) };
        let r = if ctl.xorsign && !r.is_nan() { r.copysign(if negative { -1.0 } else { 1.0 }) } else { r };
        (if nan { f64::NAN } else { r }).into()
    })
}

/// An approximate function of an f32: an f64 whose rounding is left to `finish_approximate`.
pub(crate) fn approximately(ctl: &Ctl, a: [u64; 4], f: impl Fn(f64, f64) -> f64) -> u64 {
    let v = f(get(ctl, Ty::F32, a[0]), get(ctl, Ty::F32, a[1]));
    (if ctl.ftz && v.abs() < f64::from(f32::MIN_POSITIVE) { v * 0.0 } else { v }).to_bits()
}

/// `div.approx`: for divisors in 2^126 < |b| < 2^128 the result is 0 (NaN for an infinite dividend).
pub(crate) fn div_approx(x: f64, y: f64) -> f64 {
    match y.is_finite() && y.abs() > 2f64.powi(126) {
        true if x.is_infinite() => f64::NAN,
        true => x * 0.0 * y.signum(),
        false => x / y,
    }
}

/// `rcp.approx.ftz.f64` keeps the upper 20 bits of the significand.
pub(crate) fn rcp_approx_f64(_: &Ctl, a: [u64; 4]) -> u64 {
    let flush = |v: f64| if v.is_subnormal() { v * 0.0 } else { v };
    let upper = 0xffff_ffff_0000_0000;
    flush(1.0 / flush(f64::from_bits(a[0] & upper))).to_bits() & upper
}

/// Gives an approximate result its final rounding: nearest, or, perturbed, to one of the two neighbours.
pub(crate) fn finish_approximate(ctl: &Ctl, bits: u64, seed: Option<u64>) -> u64 {
    let v = f64::from_bits(bits);
    let round = match seed {
        // An overflow is an infinity, not the largest finite value.
        Some(s) if v.abs() <= f64::from(f32::MAX) => {
            let h = (bits ^ s).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if h >> 63 == 0 { Round::Down } else { Round::Up }
        }
        _ => Round::Near,
    };
    put(&Ctl { round, ftz: false, ..*ctl }, v.into())
}

/// `testp`
pub(crate) fn class(c: &Ctl, a: [u64; 4]) -> std::num::FpCategory {
    if c.from == Ty::F32 { f32::from_bits(a[0] as u32).classify() } else { f64::from_bits(a[0]).classify() }
}

// Integers.

/// Sign- or zero-extends from a type's width.
pub(crate) fn extend(ty: Ty, v: u64) -> i64 {
    let shift = 64 - ty.bits();
    if ty.signed() { ((v << shift) as i64) >> shift } else { ((v << shift) >> shift) as i64 }
}

/// Bits of a type's width.
pub(crate) fn trunc(ty: Ty, v: u64) -> u64 {
    if ty.bits() == 64 { v } else { v & ((1 << ty.bits()) - 1) }
}

fn wide(ty: Ty, v: u64) -> i128 {
    if ty.signed() { i128::from(extend(ty, v)) } else { i128::from(trunc(ty, v)) }
}

fn clamp(ty: Ty, v: i128) -> u64 {
    let b = ty.bits();
    let (low, high) = if ty.signed() { (-(1i128 << (b - 1)), (1i128 << (b - 1)) - 1) } else { (0, (1i128 << b) - 1) };
    trunc(ty, v.clamp(low, high) as u64)
}

/// An operation of integers of any type, packed or not.
pub(crate) fn int(ctl: &Ctl, a: [u64; 4], f: impl Fn(i128, i128) -> i128) -> u64 {
    each(ctl, a, |c, a| {
        let v = f(wide(c.from, a[0]), wide(c.from, a[1]));
        let v = if c.relu { v.max(0) } else { v };
        if c.sat { clamp(c.to, v) } else { trunc(c.to, v as u64) }
    })
}

/// Sum (or difference) with a carry in `a[2]`, and the carry out.
pub(crate) fn carry(c: &Ctl, a: [u64; 4], subtract: bool) -> (u64, u64) {
    let (x, y) = (i128::from(a[0]), i128::from(a[1]) + i128::from(a[2]));
    let v = if subtract { x - y } else { x + y };
    (trunc(c.from, v as u64), u64::from(v < 0 || v >> c.from.bits() != 0))
}

// Comparisons and conversions.

/// The comparison `ctl.cmp` of two values of `ctl.from`; `ctl.nan` is the answer where one is NaN.
pub(crate) fn compare(c: &Ctl, a: [u64; 4]) -> u64 {
    let order = if c.from.float() {
        get(c, c.from, a[0]).partial_cmp(&get(c, c.from, a[1]))
    } else {
        Some(wide(c.from, a[0]).cmp(&wide(c.from, a[1])))
    };
    u64::from(order.map_or(c.nan, |o| match c.cmp {
        None => !c.nan,
        Some(Cmp::Eq) => o.is_eq(),
        Some(Cmp::Ne) => o.is_ne(),
        Some(Cmp::Lt) => o.is_lt(),
        Some(Cmp::Le) => o.is_le(),
        Some(Cmp::Gt) => o.is_gt(),
        Some(Cmp::Ge) => o.is_ge(),
    }))
}

/// `cvt` between any two scalar types; `ctl.integral`: to an integral value.
pub(crate) fn cvt(c: &Ctl, a: [u64; 4]) -> u64 {
    match (c.from.float(), c.to.float()) {
        (false, false) => int(c, a, |v, _| v),
        (true, false) => {
            let v = get(c, c.from, a[0]);
            // Saturating at 128 bits is beyond every destination's range.
            if v.is_nan() { 0 } else { clamp(c.to, float::integral(v, c.round) as i128) }
        }
        (false, true) => put(c, Exact::integer(wide(c.from, a[0]))),
        (true, true) if c.from == c.to && !(c.integral || c.sat || c.ftz || c.relu) => a[0],
        (true, true) => {
            let v = get(c, c.from, a[0]);
            put(c, if c.integral && !v.is_nan() { float::integral(v, c.round).copysign(v) } else { v }.into())
        }
    }
}

/// `cvt` of two floats into a packed pair: the first operand goes to the upper half.
pub(crate) fn cvt_pack(c: &Ctl, a: [u64; 4]) -> u64 {
    let half = |bits: u64| {
        let v = get(c, Ty::F32, bits);
        let v = if c.relu && v < 0.0 { 0.0 } else { v };
        format(c.to).round(v.into(), c.round, c.sat) & ((1 << (c.to.bits() / 2)) - 1)
    };
    half(a[0]) << (c.to.bits() / 2) | half(a[1])
}

/// `cvt.rn.f16x2.e4m3x2`, and `e5m2x2` likewise.
pub(crate) fn cvt_unpack8(c: &Ctl, a: [u64; 4]) -> u64 {
    let half = |bits: u64| {
        let v = format(c.from).value(bits & 0xff);
        F16.round(if c.relu && v < 0.0 { 0.0 } else { v }.into(), Round::Near, false)
    };
    half(a[0]) | half(a[0] >> 8) << 16
}

/// `cvt.pack.sat`: saturates two s32 into a pair of narrower integers, with a third operand's bytes above for 8 bits.
pub(crate) fn cvt_pack_sat(c: &Ctl, a: [u64; 4]) -> u64 {
    let part = |v: u64| clamp(c.to, i128::from(v as i32));
    match c.to.bits() {
        16 => part(a[0]) << 16 | part(a[1]),
        _ => (part(a[0]) << 8 | part(a[1]) | (a[2] & 0xffff) << 16) & 0xffff_ffff,
    }
}

/// `isspacep`
pub(crate) fn in_space(address: u64, space: Space) -> bool {
    let within = |base: u64| address.wrapping_sub(base) < WINDOW;
    match space {
        Space::Global | Space::Generic => ![SHARED_BASE, LOCAL_BASE, PARAM_BASE].into_iter().any(within),
        Space::Shared => within(SHARED_BASE),
        Space::Local => within(LOCAL_BASE),
        Space::Param => within(PARAM_BASE),
        Space::Const => false,
    }
}
