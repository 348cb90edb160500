//! Scalar semantics of everything that is not worth a vectorised loop, one lane at a time.
//!
//! Operands and results are bits, zero-extended to 64. `ctl.to` is the instruction's type.

use super::float::{self, BF16, E4M3, E5M2, F16, F32, Format, Round, TF32};
use super::inst::Ctl;
use crate::ptx::types::Ty;

fn format(ty: Ty) -> Format {
    match ty {
        Ty::F16 | Ty::F16x2 => F16,
        Ty::BF16 | Ty::BF16x2 => BF16,
        Ty::TF32 => TF32,
        Ty::E4M3x2 => E4M3,
        Ty::E5M2x2 => E5M2,
        _ => F32,
    }
}

/// The element type of a packed one.
pub(crate) fn element(ty: Ty) -> Ty {
    match ty {
        Ty::F16x2 => Ty::F16,
        Ty::BF16x2 => Ty::BF16,
        Ty::F32x2 => Ty::F32,
        Ty::U16x2 => Ty::U16,
        Ty::S16x2 => Ty::S16,
        t => t,
    }
}

/// Applies an operation to each element of packed operands.
fn each(ctl: &Ctl, a: [u64; 4], f: impl Fn(&Ctl, [u64; 4]) -> u64) -> u64 {
    let inner = element(ctl.to);
    if inner == ctl.to {
        return f(ctl, a);
    }
    let c = Ctl { to: inner, from: element(ctl.from), ..*ctl };
    let bits = inner.bits();
    let mask = (1u64 << bits) - 1;
    f(&c, a.map(|v| v & mask)) | f(&c, a.map(|v| v >> bits & mask)) << bits
}

/// The value of a float's bits.
fn get(ctl: &Ctl, ty: Ty, bits: u64) -> f64 {
    let v = match ty {
        Ty::F64 => return f64::from_bits(bits),
        Ty::F32 | Ty::TF32 => f64::from(f32::from_bits(bits as u32)),
        _ => format(ty).value(bits as u32),
    };
    if ctl.ftz && subnormal(ty, bits) { v * 0.0 } else { v }
}

fn subnormal(ty: Ty, bits: u64) -> bool {
    let f = format(ty);
    ty != Ty::F64 && bits >> f.mantissa & ((1 << f.exponent) - 1) == 0
}

/// Rounds, then saturates and flushes as the modifiers say.
fn put(ctl: &Ctl, v: f64) -> u64 {
    let v = if ctl.relu && v < 0.0 { 0.0 } else { v };
    let v = if ctl.sat { saturate(v) } else { v };
    match ctl.to {
        Ty::F64 => v.to_bits(),
        ty => {
            let bits = u64::from(format(ty).round(v, ctl.round, false));
            let bits = if ty == Ty::TF32 { bits << 13 } else { bits };
            if ctl.ftz && subnormal(ty, bits) { bits & 1 << (ty.bits() - 1) } else { bits }
        }
    }
}

fn saturate(v: f64) -> f64 {
    if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) + 0.0 }
}

fn is32(ctl: &Ctl) -> bool {
    ctl.to == Ty::F32
}

fn f(bits: f64) -> f32 {
    bits as f32 // exact: the value came from an f32
}

/// `add` of any float type.
pub(crate) fn fadd(ctl: &Ctl, a: [u64; 4]) -> u64 {
    each(ctl, a, |c, a| {
        let (x, y) = (get(c, c.to, a[0]), get(c, c.to, a[1]));
        match c.to {
            Ty::F64 => put(c, float::add64(x, y, c.round)),
            Ty::F32 => put(c, f64::from(float::add32(f(x), f(y), c.round))),
            _ => put(c, float::add_odd(x, y)),
        }
    })
}

/// `sub` of any float type.
pub(crate) fn fsub(ctl: &Ctl, mut a: [u64; 4]) -> u64 {
    a[1] = negate(ctl.to, a[1]);
    fadd(ctl, a)
}

fn negate(ty: Ty, bits: u64) -> u64 {
    bits ^ match ty {
        Ty::F64 => 1 << 63,
        Ty::F16x2 | Ty::BF16x2 => 0x8000_8000,
        Ty::F16 | Ty::BF16 => 0x8000,
        Ty::F32x2 => 0x8000_0000_8000_0000,
        _ => 0x8000_0000,
    }
}

/// `mul` of any float type.
pub(crate) fn fmul(ctl: &Ctl, a: [u64; 4]) -> u64 {
    each(ctl, a, |c, a| {
        let (x, y) = (get(c, c.to, a[0]), get(c, c.to, a[1]));
        match c.to {
            Ty::F64 => put(c, float::mul64(x, y, c.round)),
            Ty::F32 => put(c, f64::from(float::mul32(f(x), f(y), c.round))),
            _ => put(c, x * y),
        }
    })
}

/// `fma` of any float type.
pub(crate) fn ffma(ctl: &Ctl, a: [u64; 4]) -> u64 {
    each(ctl, a, |c, a| {
        let [x, y, z] = [a[0], a[1], a[2]].map(|v| get(c, c.to, v));
        match c.to {
            Ty::F64 => put(c, float::fma64(x, y, z, c.round)),
            Ty::F32 => put(c, f64::from(float::fma32(f(x), f(y), f(z), c.round))),
            _ => put(c, float::add_odd(x * y, z)),
        }
    })
}

/// `div` with a rounding mode, and `.full`/`.approx` before their error.
pub(crate) fn fdiv(ctl: &Ctl, a: [u64; 4]) -> u64 {
    let (x, y) = (get(ctl, ctl.to, a[0]), get(ctl, ctl.to, a[1]));
    if is32(ctl) {
        put(ctl, f64::from(float::div32(f(x), f(y), ctl.round)))
    } else {
        put(ctl, float::div64(x, y, ctl.round))
    }
}

/// `rcp` with a rounding mode.
pub(crate) fn frcp(ctl: &Ctl, a: [u64; 4]) -> u64 {
    let one = if is32(ctl) { u64::from(1f32.to_bits()) } else { 1f64.to_bits() };
    fdiv(ctl, [one, a[0], 0, 0])
}

/// `sqrt` with a rounding mode.
pub(crate) fn fsqrt(ctl: &Ctl, a: [u64; 4]) -> u64 {
    let x = get(ctl, ctl.to, a[0]);
    if is32(ctl) { put(ctl, f64::from(float::sqrt32(f(x), ctl.round))) } else { put(ctl, float::sqrt64(x, ctl.round)) }
}

fn fminmax(ctl: &Ctl, a: [u64; 4], max: bool) -> u64 {
    each(ctl, a, |c, a| {
        let (mut x, mut y) = (get(c, c.to, a[0]), get(c, c.to, a[1]));
        let signs = x.is_sign_negative() != y.is_sign_negative();
        if c.imm == 1 {
            (x, y) = (x.abs(), y.abs()); // .xorsign.abs
        }
        let r = if c.nan && (x.is_nan() || y.is_nan()) {
            f64::NAN
        } else if max {
            float::max64(x, y)
        } else {
            float::min64(x, y)
        };
        let r = if c.imm == 1 && !r.is_nan() { r.copysign(if signs { -1.0 } else { 1.0 }) } else { r };
        put(c, r)
    })
}

/// `min` of any float type.
pub(crate) fn fmin(ctl: &Ctl, a: [u64; 4]) -> u64 {
    fminmax(ctl, a, false)
}

/// `max` of any float type.
pub(crate) fn fmax(ctl: &Ctl, a: [u64; 4]) -> u64 {
    fminmax(ctl, a, true)
}

/// `neg` of any float type: the sign bit, NaN or not.
pub(crate) fn fneg(ctl: &Ctl, a: [u64; 4]) -> u64 {
    each(ctl, a, |c, a| negate(c.to, flushed(c, a[0])))
}

/// `abs` of any float type.
pub(crate) fn fabs(ctl: &Ctl, a: [u64; 4]) -> u64 {
    each(ctl, a, |c, a| flushed(c, a[0]) & !(1 << (c.to.bits() - 1)))
}

fn flushed(c: &Ctl, bits: u64) -> u64 {
    if c.ftz && subnormal(c.to, bits) { bits & 1 << (c.to.bits() - 1) } else { bits }
}

/// `copysign`: the sign of the first operand on the second.
pub(crate) fn copysign(ctl: &Ctl, a: [u64; 4]) -> u64 {
    let sign = 1u64 << (ctl.to.bits() - 1);
    a[0] & sign | a[1] & !sign
}

/// `testp`: 0 finite, 1 infinite, 2 number, 3 notanumber, 4 normal, 5 subnormal.
pub(crate) fn testp(ctl: &Ctl, a: [u64; 4]) -> u64 {
    let class = if is32(ctl) { f32::from_bits(a[0] as u32).classify() } else { f64::from_bits(a[0]).classify() };
    use std::num::FpCategory as C;
    u64::from(match ctl.imm {
        0 => !matches!(class, C::Nan | C::Infinite),
        1 => class == C::Infinite,
        2 => class != C::Nan,
        3 => class == C::Nan,
        4 => class == C::Normal,
        _ => class == C::Subnormal,
    })
}

/// Approximate functions return an f64 whose rounding is left to the caller.
fn approximate(ctl: &Ctl, a: u64, g: impl Fn(f64) -> f64) -> u64 {
    let ty = element(ctl.to);
    let v = g(get(ctl, ty, a));
    let least = if ty == Ty::F16 { 6.1e-5 } else { f64::from(f32::MIN_POSITIVE) };
    if ctl.ftz && v.abs() < least { (v * 0.0).to_bits() } else { v.to_bits() }
}

/// `rcp.approx`
pub(crate) fn rcp_approx(ctl: &Ctl, a: [u64; 4]) -> u64 {
    approximate(ctl, a[0], |x| 1.0 / x)
}
/// `sqrt.approx`
pub(crate) fn sqrt_approx(ctl: &Ctl, a: [u64; 4]) -> u64 {
    approximate(ctl, a[0], f64::sqrt)
}
/// `rsqrt.approx`
pub(crate) fn rsqrt_approx(ctl: &Ctl, a: [u64; 4]) -> u64 {
    approximate(ctl, a[0], |x| 1.0 / x.sqrt())
}
/// `ex2.approx`
pub(crate) fn ex2_approx(ctl: &Ctl, a: [u64; 4]) -> u64 {
    approximate(ctl, a[0], f64::exp2)
}
/// `lg2.approx`
pub(crate) fn lg2_approx(ctl: &Ctl, a: [u64; 4]) -> u64 {
    approximate(ctl, a[0], f64::log2)
}
/// `sin.approx`
pub(crate) fn sin_approx(ctl: &Ctl, a: [u64; 4]) -> u64 {
    approximate(ctl, a[0], f64::sin)
}
/// `cos.approx`
pub(crate) fn cos_approx(ctl: &Ctl, a: [u64; 4]) -> u64 {
    approximate(ctl, a[0], f64::cos)
}
/// `tanh.approx`
pub(crate) fn tanh_approx(ctl: &Ctl, a: [u64; 4]) -> u64 {
    approximate(ctl, a[0], f64::tanh)
}
/// `div.approx`: for divisors in 2^126 < |b| < 2^128 the result is 0 (NaN for an infinite dividend).
pub(crate) fn div_approx(ctl: &Ctl, a: [u64; 4]) -> u64 {
    let y = get(ctl, Ty::F32, a[1]);
    approximate(ctl, a[0], |x| {
        if y.is_finite() && y.abs() > 2f64.powi(126) {
            if x.is_infinite() { f64::NAN } else { x * 0.0 * y.signum() }
        } else {
            x / y
        }
    })
}
/// `div.full`
pub(crate) fn div_full(ctl: &Ctl, a: [u64; 4]) -> u64 {
    let y = get(ctl, Ty::F32, a[1]);
    approximate(ctl, a[0], |x| x / y)
}

/// Packed approximate functions, rounded at once.
pub(crate) fn half_approx(ctl: &Ctl, a: [u64; 4]) -> u64 {
    each(ctl, a, |c, a| {
        let x = get(c, c.to, a[0]);
        put(c, if c.imm == 0 { x.exp2() } else { x.tanh() })
    })
}

/// Gives an approximate result its final rounding: nearest, or, perturbed, to one of the two neighbours.
pub(crate) fn finish_approximate(ctl: &Ctl, bits: u64, seed: Option<u64>) -> u64 {
    let v = f64::from_bits(bits);
    let round = match seed {
        None => Round::Near,
        Some(s) => {
            let h = (bits ^ s).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if h >> 63 == 0 { Round::Down } else { Round::Up }
        }
    };
    // An overflow is an infinity, not the largest finite value.
    let round = if v.abs() > f64::from(f32::MAX) { Round::Near } else { round };
    if ctl.to == Ty::F64 { bits } else { put(&Ctl { round, ftz: false, ..*ctl }, v) }
}

/// Sign-extends from a type's width.
pub(crate) fn extend(ty: Ty, v: u64) -> i64 {
    let shift = 64 - ty.bits();
    if ty.signed() { ((v << shift) as i64) >> shift } else { ((v << shift) >> shift) as i64 }
}

fn trunc(ty: Ty, v: u64) -> u64 {
    if ty.bits() == 64 { v } else { v & ((1 << ty.bits()) - 1) }
}

/// The values an integer type holds.
fn limits(ty: Ty) -> (i128, i128) {
    let b = ty.bits();
    if ty.signed() { (-(1i128 << (b - 1)), (1i128 << (b - 1)) - 1) } else { (0, (1i128 << b) - 1) }
}

fn wide(ty: Ty, v: u64) -> i128 {
    if ty.signed() { i128::from(extend(ty, v)) } else { i128::from(trunc(ty, v)) }
}

fn clamp(ty: Ty, v: i128) -> u64 {
    let (low, high) = limits(ty);
    trunc(ty, v.clamp(low, high) as u64)
}

/// Integer operations, by `ctl.imm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum IntOp {
    Add,
    Sub,
    Mul,
    MulHi,
    MulWide,
    MadHi,
    MadLo,
    MadWide,
    Div,
    Rem,
    Min,
    Max,
    Neg,
    Abs,
    Sad,
}

/// The scalar function of an integer operation.
pub(crate) fn int(op: IntOp) -> fn(&Ctl, [u64; 4]) -> u64 {
    fn sum(c: &Ctl, v: i128) -> u64 {
        if c.sat { clamp(c.to, v) } else { trunc(c.to, v as u64) }
    }
    match op {
        IntOp::Add => |c, a| each(c, a, |c, a| sum(c, wide(c.to, a[0]) + wide(c.to, a[1]))),
        IntOp::Sub => |c, a| each(c, a, |c, a| sum(c, wide(c.to, a[0]) - wide(c.to, a[1]))),
        IntOp::Mul => |c, a| trunc(c.to, a[0].wrapping_mul(a[1])),
        IntOp::MulHi => |c, a| trunc(c.to, ((wide(c.to, a[0]).wrapping_mul(wide(c.to, a[1]))) >> c.to.bits()) as u64),
        IntOp::MulWide => |c, a| (wide(c.from, a[0]) * wide(c.from, a[1])) as u64,
        IntOp::MadHi => |c, a| {
            let hi = (wide(c.to, a[0]).wrapping_mul(wide(c.to, a[1]))) >> c.to.bits();
            sum(c, hi + wide(c.to, a[2]))
        },
        IntOp::MadLo => |c, a| trunc(c.to, a[0].wrapping_mul(a[1]).wrapping_add(a[2])),
        IntOp::MadWide => |c, a| ((wide(c.from, a[0]) * wide(c.from, a[1])) as u64).wrapping_add(a[2]),
        // Division by zero has no defined result; all ones is what the hardware gives for 32 bits.
        IntOp::Div => |c, a| {
            let (x, y) = (wide(c.to, a[0]), wide(c.to, a[1]));
            trunc(c.to, if y == 0 { u64::MAX } else { (x / y) as u64 })
        },
        IntOp::Rem => |c, a| {
            let (x, y) = (wide(c.to, a[0]), wide(c.to, a[1]));
            trunc(c.to, if y == 0 { x as u64 } else { (x % y) as u64 })
        },
        IntOp::Min => |c, a| each(c, a, |c, a| relu(c, wide(c.to, a[0]).min(wide(c.to, a[1])))),
        IntOp::Max => |c, a| each(c, a, |c, a| relu(c, wide(c.to, a[0]).max(wide(c.to, a[1])))),
        IntOp::Neg => |c, a| trunc(c.to, a[0].wrapping_neg()),
        IntOp::Abs => |c, a| trunc(c.to, extend(c.to, a[0]).unsigned_abs()),
        IntOp::Sad => |c, a| {
            let d = (wide(c.to, a[0]) - wide(c.to, a[1])).abs();
            trunc(c.to, a[2].wrapping_add(d as u64))
        },
    }
}

fn relu(c: &Ctl, v: i128) -> u64 {
    trunc(c.to, if c.relu { v.max(0) } else { v } as u64)
}

/// `mul24`, `mad24`: `.hi` is bits 47..16 of the 48-bit product.
pub(crate) fn mul24(c: &Ctl, a: [u64; 4]) -> u64 {
    let narrow = |v: u64| {
        let v = v & 0xff_ffff;
        if c.to.signed() && v >> 23 == 1 { v as i64 - (1 << 24) } else { v as i64 }
    };
    let p = narrow(a[0]) * narrow(a[1]);
    trunc(c.to, (if c.imm == 1 { p >> 16 } else { p } as u64).wrapping_add(a[2]))
}

/// `shl`: counts beyond the width give 0.
pub(crate) fn shl(c: &Ctl, a: [u64; 4]) -> u64 {
    if a[1] >= u64::from(c.to.bits()) { 0 } else { trunc(c.to, a[0] << a[1]) }
}

/// `shr`: counts beyond the width give 0, or the sign.
pub(crate) fn shr(c: &Ctl, a: [u64; 4]) -> u64 {
    let n = a[1].min(u64::from(c.to.bits()));
    if c.to.signed() {
        trunc(c.to, (extend(c.to, a[0]) >> n.min(63)) as u64)
    } else if n >= u64::from(c.to.bits()) {
        0
    } else {
        a[0] >> n
    }
}

/// `not`
pub(crate) fn not(c: &Ctl, a: [u64; 4]) -> u64 {
    trunc(c.to, !a[0])
}
/// `cnot`
pub(crate) fn cnot(_: &Ctl, a: [u64; 4]) -> u64 {
    u64::from(a[0] == 0)
}
/// `and`
pub(crate) fn and(_: &Ctl, a: [u64; 4]) -> u64 {
    a[0] & a[1]
}
/// `or`
pub(crate) fn or(_: &Ctl, a: [u64; 4]) -> u64 {
    a[0] | a[1]
}
/// `xor`
pub(crate) fn xor(_: &Ctl, a: [u64; 4]) -> u64 {
    a[0] ^ a[1]
}
/// `popc`
pub(crate) fn popc(_: &Ctl, a: [u64; 4]) -> u64 {
    u64::from(a[0].count_ones())
}
/// `clz`
pub(crate) fn clz(c: &Ctl, a: [u64; 4]) -> u64 {
    u64::from(a[0].leading_zeros()) - u64::from(64 - c.from.bits())
}
/// `brev`
pub(crate) fn brev(c: &Ctl, a: [u64; 4]) -> u64 {
    a[0].reverse_bits() >> (64 - c.to.bits())
}
/// `bfind`: position of the highest bit that is not the sign's; imm 1: the shift that would bring it to the top.
pub(crate) fn bfind(c: &Ctl, a: [u64; 4]) -> u64 {
    let mut v = extend(c.from, a[0]) as u64;
    if c.from.signed() && (v as i64) < 0 {
        v = !v;
    }
    if v == 0 {
        return 0xffff_ffff;
    }
    let at = 63 - v.leading_zeros();
    u64::from(if c.imm == 1 { c.from.bits() - 1 - at } else { at })
}
/// `bfe`
pub(crate) fn bfe(c: &Ctl, a: [u64; 4]) -> u64 {
    let msb = u64::from(c.to.bits() - 1);
    let (pos, len) = (a[1] & 0xff, a[2] & 0xff);
    let sign = if !c.to.signed() || len == 0 { 0 } else { a[0] >> (pos + len - 1).min(msb) & 1 };
    let mut d = 0;
    for i in 0..=msb {
        let bit = if i < len && pos + i <= msb { a[0] >> (pos + i) & 1 } else { sign };
        d |= bit << i;
    }
    d
}
/// `bfi`: inserts a into b.
pub(crate) fn bfi(c: &Ctl, a: [u64; 4]) -> u64 {
    let bits = u64::from(c.to.bits());
    let (pos, len) = (a[2] & 0xff, a[3] & 0xff);
    let mut d = a[1];
    for i in 0..len.min(bits.saturating_sub(pos)) {
        d = d & !(1 << (pos + i)) | (a[0] >> i & 1) << (pos + i);
    }
    d
}
/// `prmt` in a mode: 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16; mode 0 is vectorised.
pub(crate) fn prmt_mode(c: &Ctl, a: [u64; 4]) -> u64 {
    let bytes = (a[0] & 0xffff_ffff | a[1] << 32).to_le_bytes();
    let n = (a[2] & 3) as usize;
    let pick: [usize; 4] = match c.imm {
        1 => std::array::from_fn(|i| n + i),
        2 => std::array::from_fn(|i| (n + 8 - i) % 8),
        3 => [n; 4],
        4 => std::array::from_fn(|i| i.max(n)),
        5 => std::array::from_fn(|i| i.min(n)),
        _ => std::array::from_fn(|i| (n & 1) * 2 + i % 2),
    };
    u64::from(u32::from_le_bytes(pick.map(|i| bytes[i])))
}
/// `dp2a`: imm bit 0 = high half of b, bit 1 = a signed, bit 2 = b signed.
pub(crate) fn dp2a(c: &Ctl, a: [u64; 4]) -> u64 {
    let x = |i: usize| {
        let v = (a[0] >> (16 * i)) as u16;
        if c.imm & 2 != 0 { i64::from(v as i16) } else { i64::from(v) }
    };
    let y = |i: usize| {
        let v = (a[1] >> (8 * (i + 2 * (c.imm as usize & 1)))) as u8;
        if c.imm & 4 != 0 { i64::from(v as i8) } else { i64::from(v) }
    };
    (a[2] as i64).wrapping_add(x(0) * y(0) + x(1) * y(1)) as u64 & 0xffff_ffff
}
/// `bmsk`: imm 1 = wrap.
pub(crate) fn bmsk(c: &Ctl, a: [u64; 4]) -> u64 {
    let (mut pos, mut len) = (a[0], a[1]);
    if c.imm == 1 {
        (pos, len) = (pos & 31, len & 31);
    }
    let len = len.min(32);
    if pos >= 32 { 0 } else { (((1u64 << len) - 1) << pos) & 0xffff_ffff }
}
/// `szext`: imm 1 = wrap.
pub(crate) fn szext(c: &Ctl, a: [u64; 4]) -> u64 {
    let n = if c.imm == 1 { a[1] & 31 } else { a[1].min(32) };
    if n == 0 {
        return 0;
    }
    let shift = 64 - n;
    (if c.to.signed() { (((a[0] << shift) as i64) >> shift) as u64 } else { (a[0] << shift) >> shift }) & 0xffff_ffff
}
/// `fns`: the n-th set bit from a base.
pub(crate) fn fns(_: &Ctl, a: [u64; 4]) -> u64 {
    let (mask, base, n) = (a[0] as u32, a[1] as u32, a[2] as i32);
    let set = |i: i64| (0..32).contains(&i) && mask >> i & 1 == 1;
    if n == 0 {
        return if set(i64::from(base)) { u64::from(base) } else { 0xffff_ffff };
    }
    let (step, mut left) = (i64::from(n.signum()), n.unsigned_abs());
    let mut i = i64::from(base);
    while (0..32).contains(&i) {
        if set(i) {
            left -= 1;
            if left == 0 {
                return i as u64;
            }
        }
        i += step;
    }
    0xffff_ffff
}
/// `slct`: a if the third operand is not negative, else b; imm 1 = the selector is an f32.
pub(crate) fn slct(c: &Ctl, a: [u64; 4]) -> u64 {
    let keep = if c.imm == 1 {
        let v = f32::from_bits(a[2] as u32);
        (if c.ftz { float::flush(v) } else { v }) >= 0.0
    } else {
        a[2] as i32 >= 0
    };
    if keep { a[0] } else { a[1] }
}
/// Comparisons: 0 eq, 1 ne, 2 lt, 3 le, 4 gt, 5 ge; +8: true when unordered; 6 num, 7 nan.
pub(crate) fn compare(c: &Ctl, a: [u64; 4]) -> u64 {
    use std::cmp::Ordering as O;
    let order = if c.from.float() {
        get(c, c.from, a[0]).partial_cmp(&get(c, c.from, a[1]))
    } else {
        Some(wide(c.from, a[0]).cmp(&wide(c.from, a[1])))
    };
    u64::from(match (c.imm & 7, order) {
        (6, o) => o.is_some(),
        (7, o) => o.is_none(),
        (_, None) => c.imm & 8 != 0,
        (0, Some(o)) => o == O::Equal,
        (1, Some(o)) => o != O::Equal,
        (2, Some(o)) => o == O::Less,
        (3, Some(o)) => o != O::Greater,
        (4, Some(o)) => o == O::Greater,
        (_, Some(o)) => o != O::Less,
    })
}

/// Packed comparison of halves: bit 0 and bit 1.
pub(crate) fn compare_x2(c: &Ctl, a: [u64; 4]) -> u64 {
    let inner = Ctl { from: element(c.from), ..*c };
    let part = |s: u32| compare(&inner, a.map(|v| v >> s & 0xffff));
    part(0) | part(16) << 1
}

/// One half of `compare_x2`, for `setp` with two destinations.
pub(crate) fn compare_low(c: &Ctl, a: [u64; 4]) -> u64 {
    compare_x2(c, a) & 1
}
/// The other half.
pub(crate) fn compare_high(c: &Ctl, a: [u64; 4]) -> u64 {
    compare_x2(c, a) >> 1
}

/// What `set` makes of a truth value in its destination type.
pub(crate) fn set_value(c: &Ctl, t: bool) -> u64 {
    match (t, c.to) {
        (false, _) => 0,
        (true, Ty::F32) => u64::from(1f32.to_bits()),
        (true, Ty::F16) => 0x3c00,
        (true, Ty::BF16) => 0x3f80,
        (true, ty) => trunc(ty, u64::MAX),
    }
}

/// `set` without a combination.
pub(crate) fn set(c: &Ctl, a: [u64; 4]) -> u64 {
    match c.to {
        Ty::F16x2 | Ty::BF16x2 => {
            let bits = compare_x2(c, a);
            let one = Ctl { to: element(c.to), ..*c };
            set_value(&one, bits & 1 == 1) | set_value(&one, bits & 2 == 2) << 16
        }
        _ => set_value(c, compare(c, a) == 1),
    }
}

/// `set` with a combination; bits 4.. of imm: 1 and, 2 or, 3 xor, +4 negated.
pub(crate) fn set_combined(c: &Ctl, a: [u64; 4]) -> u64 {
    let inner = Ctl { imm: c.imm & 15, ..*c };
    let t = compare(&inner, a) == 1;
    let p = (a[2] == 1) != (c.imm >> 4 & 4 != 0);
    let t = match c.imm >> 4 & 3 {
        1 => t && p,
        2 => t || p,
        _ => t != p,
    };
    set_value(c, t)
}

/// `cvt` between any two scalar types; `ctl.from` to `ctl.to`, imm 1 = round to an integral value.
pub(crate) fn cvt(c: &Ctl, a: [u64; 4]) -> u64 {
    match (c.from.float(), c.to.float()) {
        (false, false) => {
            let v = wide(c.from, a[0]);
            if c.sat { clamp(c.to, v) } else { trunc(c.to, v as u64) }
        }
        (true, false) => {
            let v = get(c, c.from, a[0]);
            if v.is_nan() {
                return 0;
            }
            // Saturating at 128 bits is beyond every destination's range.
            clamp(c.to, float::integral(v, c.round) as i128)
        }
        (false, true) => {
            let v = wide(c.from, a[0]);
            if c.to == Ty::F64 {
                let near = v as f64;
                return float::directed(near, (v - near as i128) as f64, c.round).to_bits();
            }
            let mut odd = v as f64;
            if odd as i128 != v && odd.to_bits() & 1 == 0 {
                odd = if (odd as i128) < v { odd.next_up() } else { odd.next_down() };
            }
            put(c, odd)
        }
        (true, true) => {
            let mut v = get(c, c.from, a[0]);
            if c.imm == 1 && !v.is_nan() {
                v = float::integral(v, c.round).copysign(v);
            }
            if c.from == c.to && c.imm == 0 && !c.sat && !c.ftz && !c.relu {
                return a[0];
            }
            if c.to == Ty::F64 && c.round != Round::Near && c.imm == 0 {
                return put(&Ctl { round: Round::Near, ..*c }, v);
            }
            put(c, v)
        }
    }
}

/// `cvt` of two floats into a packed pair: the first operand goes to the upper half.
pub(crate) fn cvt_pack(c: &Ctl, a: [u64; 4]) -> u64 {
    let half = |bits: u64| {
        let v = get(c, Ty::F32, bits);
        let v = if c.relu && v < 0.0 { 0.0 } else { v };
        u64::from(format(c.to).round(v, c.round, c.sat)) & if c.to.bytes() == 2 { 0xff } else { 0xffff }
    };
    half(a[0]) << (c.to.bits() / 2) | half(a[1])
}

/// `cvt.rn.f16x2.e4m3x2`, and `e5m2x2` likewise.
pub(crate) fn cvt_unpack8(c: &Ctl, a: [u64; 4]) -> u64 {
    let half = |bits: u64| {
        let v = format(c.from).value(bits as u32 & 0xff);
        u64::from(F16.round(if c.relu && v < 0.0 { 0.0 } else { v }, Round::Near, false))
    };
    half(a[0]) | half(a[0] >> 8) << 16
}

/// `cvt.pack.sat`: saturates two s32 into a pair of narrower integers, with a third operand's bytes below for 8 bits.
pub(crate) fn cvt_pack_sat(c: &Ctl, a: [u64; 4]) -> u64 {
    let part = |v: u64| clamp(c.to, i128::from(v as i32));
    match c.to.bits() {
        16 => part(a[0]) << 16 | part(a[1]),
        _ => (part(a[0]) << 8 | part(a[1]) | (a[2] & 0xffff) << 16) & 0xffff_ffff,
    }
}

/// `isspacep`: imm 0 global, 1 shared, 2 local, 3 const, 4 param.
pub(crate) fn isspacep(c: &Ctl, a: [u64; 4]) -> u64 {
    use crate::memory::{LOCAL_BASE, PARAM_BASE, SHARED_BASE, WINDOW};
    let within = |base: u64| a[0].wrapping_sub(base) < WINDOW;
    u64::from(match c.imm {
        0 => !within(SHARED_BASE) && !within(LOCAL_BASE) && !within(PARAM_BASE),
        1 => within(SHARED_BASE),
        2 => within(LOCAL_BASE),
        4 => within(PARAM_BASE),
        _ => false,
    })
}
