//! The frequent operations on values, vectorised: one table gives what PTX calls each, its operands and its meaning.

use super::float::{self, canonical, flush};
use super::inst::{CONST, Cmp, R};
use super::lanes::{Slot, map, test};
use crate::ptx::types::Ty;

/// A warp's registers and its kernel's constants.
#[derive(Clone, Copy)]
pub(crate) struct File {
    pub(crate) regs: *mut Slot,
    pub(crate) consts: *const Slot,
}

impl File {
    /// # Safety
    /// The decoder gave the slot out.
    #[inline(always)]
    pub(crate) unsafe fn src<T>(self, r: R) -> *const T {
        // SAFETY: the decoder gives only slots inside the register file or the constant table.
        unsafe {
            let slot = if r & CONST != 0 { self.consts.add((r & !CONST) as usize) } else { self.regs.add(r as usize) };
            slot.cast()
        }
    }

    /// # Safety
    /// As `src`.
    #[inline(always)]
    pub(crate) unsafe fn dst<T>(self, r: R) -> *mut T {
        // SAFETY: the decoder gives only slots inside the register file.
        unsafe { self.regs.add(r as usize).cast() }
    }
}

/// A result and how it stands in a slot.
trait Element {
    type Bits: Copy;
    fn bits(self) -> Self::Bits;
}

macro_rules! element {
    ($($t:ty => $bits:ty, $f:expr;)+) => {
        $(impl Element for $t {
            type Bits = $bits;
            #[inline(always)]
            fn bits(self) -> $bits {
                $f(self)
            }
        })+
    };
}

element! {
    u32 => u32, |v| v;
    i32 => i32, |v| v;
    u64 => u64, |v| v;
    i64 => i64, |v| v;
    f32 => u32, canonical;
    f64 => f64, |v| v;
}

/// One row of the table as a loop over lanes; a source that is not there is the first one again.
macro_rules! lanes {
    ($file:ident $r:ident $m:ident $out:ty, $body:block, $x:ident: $a:ty) => {
        lanes!($file $r $m $out, $body, ($x: $a, 1) (_: $a, 1) (_: $a, 1))
    };
    ($file:ident $r:ident $m:ident $out:ty, $body:block, $x:ident: $a:ty, $y:ident: $b:ty) => {
        lanes!($file $r $m $out, $body, ($x: $a, 1) ($y: $b, 2) (_: $a, 1))
    };
    ($file:ident $r:ident $m:ident $out:ty, $body:block, $x:ident: $a:ty, $y:ident: $b:ty, $z:ident: $c:ty) => {
        lanes!($file $r $m $out, $body, ($x: $a, 1) ($y: $b, 2) ($z: $c, 3))
    };
    ($file:ident $r:ident $m:ident $out:ty, $body:block, $(($x:tt: $a:ty, $i:literal))+) => {
        map($file.dst($r[0]), ($($file.src::<$a>($r[$i])),+), $m, |$($x: $a),+| -> <$out as Element>::Bits {
            let v: $out = $body;
            v.bits()
        })
    };
}

macro_rules! vector_ops {
    ($($name:pat, $ty:pat => $op:ident($($x:ident: $t:ty),+) -> $out:ty $body:block)+) => {
        /// A vectorised operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Vector {
            $($op),+
        }

        impl Vector {
            /// The operation of this name on this type, if it is vectorised.
            pub(crate) fn select(name: &str, ty: Ty) -> Option<Vector> {
                use Ty::*;
                Some(match (name, ty) {
                    $(($name, $ty) => Vector::$op,)+
                    _ => return None,
                })
            }

            /// Runs it: destination first, then the sources.
            ///
            /// # Safety
            /// The slots are the decoder's, for this operation. `FMA`: the processor has the instruction.
            #[inline(always)]
            pub(crate) unsafe fn run<const FMA: bool>(self, r: &[R; 4], file: File, m: u32) {
                // SAFETY: the caller's.
                unsafe {
                    match self {
                        $(Vector::$op => lanes!(file r m $out, $body, $($x: $t),+),)+
                    }
                }
            }
        }
    };
}

vector_ops! {
    "add", U32 | S32 => Add(x: u32, y: u32) -> u32 { x.wrapping_add(y) }
    "sub", U32 | S32 => Sub(x: u32, y: u32) -> u32 { x.wrapping_sub(y) }
    "mul.lo", U32 | S32 => Mul(x: u32, y: u32) -> u32 { x.wrapping_mul(y) }
    "mul.hi", U32 => MulHiU(x: u32, y: u32) -> u32 { ((u64::from(x) * u64::from(y)) >> 32) as u32 }
    "mul.hi", S32 => MulHiS(x: i32, y: i32) -> i32 { ((i64::from(x) * i64::from(y)) >> 32) as i32 }
    "mul.wide", U32 => MulWideU(x: u32, y: u32) -> u64 { u64::from(x) * u64::from(y) }
    "mul.wide", S32 => MulWideS(x: i32, y: i32) -> i64 { i64::from(x) * i64::from(y) }
    "mad.lo", U32 | S32 => Mad(x: u32, y: u32, z: u32) -> u32 { x.wrapping_mul(y).wrapping_add(z) }
    "mad.wide", U32 => MadWideU(x: u32, y: u32, z: u64) -> u64 { (u64::from(x) * u64::from(y)).wrapping_add(z) }
    "mad.wide", S32 => MadWideS(x: i32, y: i32, z: i64) -> i64 { (i64::from(x) * i64::from(y)).wrapping_add(z) }
    "add", U64 | S64 => Add64(x: u64, y: u64) -> u64 { x.wrapping_add(y) }
    "sub", U64 | S64 => Sub64(x: u64, y: u64) -> u64 { x.wrapping_sub(y) }
    "mul.lo", U64 | S64 => Mul64(x: u64, y: u64) -> u64 { x.wrapping_mul(y) }
    "mad.lo", U64 | S64 => Mad64(x: u64, y: u64, z: u64) -> u64 { x.wrapping_mul(y).wrapping_add(z) }
    "neg", S32 => Neg(x: u32) -> u32 { x.wrapping_neg() }
    "abs", S32 => Abs(x: i32) -> u32 { x.unsigned_abs() }
    "min", U32 => MinU(x: u32, y: u32) -> u32 { x.min(y) }
    "max", U32 => MaxU(x: u32, y: u32) -> u32 { x.max(y) }
    "min", S32 => MinS(x: i32, y: i32) -> i32 { x.min(y) }
    "max", S32 => MaxS(x: i32, y: i32) -> i32 { x.max(y) }
    "and", B16 | B32 => And(x: u32, y: u32) -> u32 { x & y }
    "or", B16 | B32 => Or(x: u32, y: u32) -> u32 { x | y }
    "xor", B16 | B32 => Xor(x: u32, y: u32) -> u32 { x ^ y }
    "not", B32 => Not(x: u32) -> u32 { !x }
    "and", B64 => And64(x: u64, y: u64) -> u64 { x & y }
    "or", B64 => Or64(x: u64, y: u64) -> u64 { x | y }
    "xor", B64 => Xor64(x: u64, y: u64) -> u64 { x ^ y }
    "popc", B32 => Popc(x: u32) -> u32 { x.count_ones() }
    // Counts beyond the width shift everything out.
    "shl", B32 => Shl(x: u32, y: u32) -> u32 { if y > 31 { 0 } else { x << (y & 31) } }
    "shr", U32 | B32 => ShrU(x: u32, y: u32) -> u32 { if y > 31 { 0 } else { x >> (y & 31) } }
    "shr", S32 => ShrS(x: i32, y: u32) -> i32 { x >> y.min(31) }
    "shl", B64 => Shl64(x: u64, y: u32) -> u64 { if y > 63 { 0 } else { x << (y & 63) } }
    "shr", U64 | B64 => ShrU64(x: u64, y: u32) -> u64 { if y > 63 { 0 } else { x >> (y & 63) } }
    "shf.l.wrap", B32 => ShfL(x: u32, y: u32, z: u32) -> u32 { (join(x, y) << (z & 31) >> 32) as u32 }
    "shf.r.wrap", B32 => ShfR(x: u32, y: u32, z: u32) -> u32 { (join(x, y) >> (z & 31)) as u32 }
    "bfe", U32 => BfeU(x: u32, y: u32, z: u32) -> u32 {
        let (pos, len) = (y & 0xff, z & 0xff);
        let v = if pos > 31 { 0 } else { x >> (pos & 31) };
        v & if len > 31 { u32::MAX } else { (1 << (len & 31)) - 1 }
    }
    "prmt", B32 => Prmt(x: u32, y: u32, z: u32) -> u32 { prmt(x, y, z) }
    "dp4a.s32.s32", _ => Dp4aSS(x: u32, y: u32, z: u32) -> u32 { dot::<true, true>(x, y, z) }
    "dp4a.u32.u32", _ => Dp4aUU(x: u32, y: u32, z: u32) -> u32 { dot::<false, false>(x, y, z) }
    "dp4a.s32.u32", _ => Dp4aSU(x: u32, y: u32, z: u32) -> u32 { dot::<true, false>(x, y, z) }
    "dp4a.u32.s32", _ => Dp4aUS(x: u32, y: u32, z: u32) -> u32 { dot::<false, true>(x, y, z) }
    "add", F32 => AddF(x: f32, y: f32) -> f32 { x + y }
    "sub", F32 => SubF(x: f32, y: f32) -> f32 { x - y }
    "mul", F32 => MulF(x: f32, y: f32) -> f32 { x * y }
    "add.ftz", F32 => AddFtz(x: f32, y: f32) -> f32 { flush(flush(x) + flush(y)) }
    "sub.ftz", F32 => SubFtz(x: f32, y: f32) -> f32 { flush(flush(x) - flush(y)) }
    "mul.ftz", F32 => MulFtz(x: f32, y: f32) -> f32 { flush(flush(x) * flush(y)) }
    "fma" | "mad", F32 => Fma(x: f32, y: f32, z: f32) -> f32 { fma::<FMA>(x, y, z) }
    "fma.ftz" | "mad.ftz", F32 => FmaFtz(x: f32, y: f32, z: f32) -> f32 {
        flush(fma::<FMA>(flush(x), flush(y), flush(z)))
    }
    "div", F32 => DivF(x: f32, y: f32) -> f32 { x / y }
    "rcp", F32 => RcpF(x: f32) -> f32 { 1.0 / x }
    "sqrt", F32 => SqrtF(x: f32) -> f32 { x.sqrt() }
    "min", F32 => MinF(x: f32, y: f32) -> f32 { float::min32(x, y) }
    "max", F32 => MaxF(x: f32, y: f32) -> f32 { float::max32(x, y) }
    "neg", F32 => NegF(x: u32) -> u32 { x ^ 0x8000_0000 }
    "abs", F32 => AbsF(x: u32) -> u32 { x & 0x7fff_ffff }
    "add", F64 => AddF64(x: f64, y: f64) -> f64 { x + y }
    "sub", F64 => SubF64(x: f64, y: f64) -> f64 { x - y }
    "mul", F64 => MulF64(x: f64, y: f64) -> f64 { x * y }
    "fma" | "mad", F64 => FmaF64(x: f64, y: f64, z: f64) -> f64 { x.mul_add(y, z) }
    "cvt.rn.f32.s32", _ => FromSigned(x: i32) -> f32 { x as f32 }
    "cvt.rn.f32.u32", _ => FromUnsigned(x: u32) -> f32 { x as f32 }
    "cvt.rzi.s32.f32", _ => ToSigned(x: f32) -> i32 { x as i32 }
    "cvt.f32.f16", _ => FromF16(x: u32) -> f32 { float::f16_to_f32(x) }
    "cvt.rn.f16.f32", _ => ToF16(x: f32) -> u32 { float::f32_to_f16(x) }
    "cvt.f32.bf16", _ => FromBf16(x: u32) -> f32 { f32::from_bits(x << 16) }
    "cvt.u32.u8" | "cvt.s32.u8", _ => Low8(x: u32) -> u32 { x & 0xff }
    "cvt.u32.s8" | "cvt.s32.s8", _ => Ext8(x: i32) -> i32 { i32::from(x as i8) }
    "cvt.u32.u16" | "cvt.s32.u16" | "cvt.u16.u32" | "cvt.u16.s32" | "cvt.u16.u16" | "cvt.u16.s16", _ => Low16(x: u32) -> u32 { x & 0xffff }
    "cvt.u32.s16" | "cvt.s32.s16", _ => Ext16(x: i32) -> i32 { i32::from(x as i16) }
    "cvt.u64.u32" | "cvt.s64.u32", _ => ExtendU(x: u32) -> u64 { u64::from(x) }
    "cvt.u64.s32" | "cvt.s64.s32", _ => ExtendS(x: i32) -> i64 { i64::from(x) }
    "cvt.u32.u64" | "cvt.s32.u64" | "cvt.u32.s64" | "cvt.s32.s64", _ => Low(x: u64) -> u32 { x as u32 }
    "high half", _ => High(x: u64) -> u32 { (x >> 32) as u32 }
    "halves", _ => Join(x: u32, y: u32) -> u64 { join(x, y) }
    "mov", B16 | U16 | S16 | F16 | BF16 | B32 | U32 | S32 | F32 => Mov(x: u32) -> u32 { x }
    "mov", _ => Mov64(x: u64) -> u64 { x }
}

#[inline(always)]
fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[inline(always)]
fn fma<const FMA: bool>(x: f32, y: f32, z: f32) -> f32 {
    x.mul_add(y, z)
}

#[inline(always)]
fn prmt(x: u32, y: u32, z: u32) -> u32 {
    let both = join(x, y);
    let byte = |i: u32| {
        let s = z >> (4 * i);
        let v = (both >> (8 * (s & 7))) as u32 & 0xff;
        let v = if s & 8 != 0 { if v & 0x80 != 0 { 0xff } else { 0 } } else { v };
        v << (8 * i)
    };
    byte(0) | byte(1) | byte(2) | byte(3)
}

/// `dp4a`: four products of bytes, signed or not, and a sum.
#[inline(always)]
fn dot<const A: bool, const B: bool>(x: u32, y: u32, z: u32) -> u32 {
    let extend = |v: u32, i: u32, signed: bool| {
        let byte = (v >> (8 * i)) as u8;
        if signed { i32::from(byte as i8) } else { i32::from(byte) }
    };
    let p = |i: u32| extend(x, i, A) * extend(y, i, B);
    (z as i32).wrapping_add(p(0) + p(1) + p(2) + p(3)) as u32
}

/// How the operands of a vectorised comparison are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Kind {
    U32,
    S32,
    U64,
    S64,
    F32,
    F64,
}

/// The lanes for which a comparison holds; none with a NaN does but `Ne`, which the decoder gives for `.neu`.
///
/// # Safety
/// The slots are the decoder's, for operands of this kind.
#[inline(always)]
pub(crate) unsafe fn compare(cmp: Cmp, kind: Kind, a: R, b: R, file: File) -> u32 {
    macro_rules! each {
        ($t:ty) => {{
            let (a, b) = (file.src::<$t>(a), file.src::<$t>(b));
            match cmp {
                Cmp::Eq => test(a, b, |x, y| x == y),
                Cmp::Ne => test(a, b, |x, y| x != y),
                Cmp::Lt => test(a, b, |x, y| x < y),
                Cmp::Le => test(a, b, |x, y| x <= y),
                Cmp::Gt => test(a, b, |x, y| x > y),
                Cmp::Ge => test(a, b, |x, y| x >= y),
            }
        }};
    }
    // SAFETY: the caller's.
    unsafe {
        match kind {
            Kind::U32 => each!(u32),
            Kind::S32 => each!(i32),
            Kind::U64 => each!(u64),
            Kind::S64 => each!(i64),
            Kind::F32 => each!(f32),
            Kind::F64 => each!(f64),
        }
    }
}
