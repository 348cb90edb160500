//! Values made of values: a row for each instruction with the types it has and its meaning in Rust's own arithmetic.
//! A row and a type become a loop over 32 lanes that the compiler vectorises, for any processor and for AVX2.

#![allow(non_camel_case_types, dead_code)]

use super::float::{self, flush, least};
use super::inst::{CONST, Cmp, R};
use super::lanes::{Slot, map, test};
use crate::ptx::types::Ty;
use std::collections::HashMap;
use std::sync::LazyLock;

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

/// An instruction over all lanes: destination and sources, the lanes that are written. The slots are the decoder's.
pub(crate) type ValueFn = unsafe fn(&[R; 5], File, u32);

/// A row of the table for one type.
pub(crate) struct Value {
    pub(crate) run: ValueFn,
    /// The types of destination and sources: `T` is the instruction's own, `F` the same, `W` an integer of twice its size,
    /// `U` the unsigned one of its size.
    pub(crate) operands: &'static [&'static str],
}

/// A type of PTX as Rust has it, and how it stands in a slot.
trait Native: Copy {
    type Slot: Copy;
    /// Of an integer: that of twice the size, and the unsigned one.
    type W;
    type U;
    fn get(slot: Self::Slot) -> Self;
    fn put(self) -> Self::Slot;
}

macro_rules! native {
    ($($t:ident in $slot:ident, $wide:ident, $unsigned:ident: $get:expr, $put:expr;)+) => {
        $(impl Native for $t {
            type Slot = $slot;
            type W = $wide;
            type U = $unsigned;
            #[inline(always)]
            fn get(slot: $slot) -> $t {
                $get(slot)
            }
            #[inline(always)]
            fn put(self) -> $slot {
                $put(self)
            }
        })+
    };
}

native! {
    u16 in u32, u32, u16: |v| v as u16, u32::from;
    i16 in u32, i32, u16: |v| v as i16, |v| u32::from(v as u16);
    u32 in u32, u64, u32: |v| v, |v| v;
    i32 in u32, i64, u32: |v| v as i32, |v| v as u32;
    u64 in u64, u128, u64: |v| v, |v| v;
    i64 in u64, i128, u64: |v| v as i64, |v| v as u64;
    f32 in u32, f64, u32: f32::from_bits, f32::to_bits;
    f64 in u64, f64, u64: f64::from_bits, f64::to_bits;
}

/// The bits of a result, in which any NaN is PTX's own. They are chosen as integers: as floats, NaNs are all alike to the
/// compiler.
trait Canonical {
    type Bits;
    fn canonical(self) -> Self::Bits;
}

impl Canonical for f32 {
    type Bits = u32;
    #[inline(always)]
    fn canonical(self) -> u32 {
        float::canonical(self)
    }
}

impl Canonical for f64 {
    type Bits = u64;
    #[inline(always)]
    fn canonical(self) -> u64 {
        self.to_bits()
    }
}

/// One row for one type.
trait Row {
    /// # Safety
    /// As [`ValueFn`].
    unsafe fn run(r: &[R; 5], file: File, m: u32);
}

fn compiled<O: Row>() -> ValueFn {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
    unsafe fn avx2<O: Row>(r: &[R; 5], file: File, m: u32) {
        // SAFETY: the caller's.
        unsafe { O::run(r, file, m) }
    }
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("bmi2")
    {
        return avx2::<O>;
    }
    O::run
}

// PTX's names of types.
type s16 = i16;
type s32 = i32;
type s64 = i64;
type b16 = u16;
type b32 = u32;
type b64 = u64;
type f16 = u16;
type bf16 = u16;

/// One row as a loop over lanes; a source that is not there is the first one again.
macro_rules! lanes {
    ($file:ident $r:ident $m:ident $out:ty, $body:block, $x:ident: $a:ty) => {
        lanes!($file $r $m $out, $body, ($x: $a, 1) (_y: $a, 1) (_z: $a, 1) (_v: $a, 1))
    };
    ($file:ident $r:ident $m:ident $out:ty, $body:block, $x:ident: $a:ty, $y:ident: $b:ty) => {
        lanes!($file $r $m $out, $body, ($x: $a, 1) ($y: $b, 2) (_z: $a, 1) (_v: $a, 1))
    };
    ($file:ident $r:ident $m:ident $out:ty, $body:block, $x:ident: $a:ty, $y:ident: $b:ty, $z:ident: $c:ty) => {
        lanes!($file $r $m $out, $body, ($x: $a, 1) ($y: $b, 2) ($z: $c, 3) (_v: $a, 1))
    };
    ($file:ident $r:ident $m:ident $out:ty, $body:block, $x:ident: $a:ty, $y:ident: $b:ty, $z:ident: $c:ty, $v:ident: $d:ty) => {
        lanes!($file $r $m $out, $body, ($x: $a, 1) ($y: $b, 2) ($z: $c, 3) ($v: $d, 4))
    };
    ($file:ident $r:ident $m:ident $out:ty, $body:block, $(($x:ident: $a:ty, $i:literal))+) => {
        map($file.dst($r[0]), ($($file.src::<<$a as Native>::Slot>($r[$i])),+), $m, |$($x),+| {
            $(let $x = <$a as Native>::get($x);)+
            let value: $out = $body;
            value.put()
        })
    };
}

/// What `values!` makes of a row and a type.
macro_rules! row {
    ($rows:ident, $name:literal, $t:ident, ($($x:ident: $a:tt),+) -> $out:tt $body:block) => {{
        type T = $t;
        type F = <T as Native>::Slot;
        type W = <T as Native>::W;
        type U = <T as Native>::U;
        struct This;
        impl Row for This {
            #[inline(always)]
            unsafe fn run(r: &[R; 5], file: File, m: u32) {
                // SAFETY: the caller's.
                unsafe { lanes!(file r m $out, $body, $($x: $a),+) }
            }
        }
        let operands: &'static [&str] = &[stringify!($out), $(stringify!($a)),+];
        let ty = Ty::parse(stringify!($t)).unwrap_or(Ty::Pred);
        $rows.insert(($name, ty), Value { run: compiled::<This>(), operands });
    }};
}

/// The rows by name, with all modifiers but the type, and type.
pub(crate) static VALUES: LazyLock<HashMap<(&str, Ty), Value>> = LazyLock::new(table);

macro_rules! values {
    ($($($name:literal)|+ : $($t:ident)+ => ($($x:ident: $a:tt),+) -> $out:tt $body:block)+) => {
        fn table() -> HashMap<(&'static str, Ty), Value> {
            let mut rows = HashMap::new();
            $(values! { @names rows; $($name)|+; ($($t)+) ($($x: $a),+) -> $out $body })+
            rows
        }
    };
    (@names $rows:ident; $($name:literal)|+; $types:tt $operands:tt -> $out:tt $body:block) => {
        $(values! { @types $rows; $name; $types $operands -> $out $body })+
    };
    (@types $rows:ident; $name:literal; ($($t:ident)+) $operands:tt -> $out:tt $body:block) => {
        $(row!($rows, $name, $t, $operands -> $out $body);)+
    };
}

/// The upper half of a product.
macro_rules! high {
    ($x:expr, $y:expr) => {
        (W::from($x).wrapping_mul(W::from($y)) >> T::BITS) as T
    };
}

/// The product of the lowest 24 bits, as 32-bit numbers with their sign.
macro_rules! product24 {
    ($x:expr, $y:expr) => {
        (W::from($x << 8 >> 8) * W::from($y << 8 >> 8))
    };
}

/// Counts beyond the width leave zeros, or the sign.
macro_rules! right {
    ($x:expr, $count:expr) => {
        if $count < T::BITS { $x >> ($count % T::BITS) } else { $x >> (T::BITS - 1) >> 1 }
    };
}

/// Negative numbers inverted: their highest zero becomes the highest one.
macro_rules! positive {
    ($x:expr) => {
        if T::MIN == 0 { $x } else { $x ^ $x >> (T::BITS - 1) }
    };
}

values! {
    "add": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { x.wrapping_add(y) }
    "sub": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { x.wrapping_sub(y) }
    "add.sat": s32 => (x: T, y: T) -> T { x.saturating_add(y) }
    "sub.sat": s32 => (x: T, y: T) -> T { x.saturating_sub(y) }
    "mul.lo": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { x.wrapping_mul(y) }
    "mul.hi": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { high!(x, y) }
    "mul.wide": u16 s16 u32 s32 => (x: T, y: T) -> W { W::from(x) * W::from(y) }
    "mad.lo": u16 s16 u32 s32 u64 s64 => (x: T, y: T, z: T) -> T { x.wrapping_mul(y).wrapping_add(z) }
    "mad.hi": u16 s16 u32 s32 u64 s64 => (x: T, y: T, z: T) -> T { high!(x, y).wrapping_add(z) }
    "mad.hi.sat": s32 => (x: T, y: T, z: T) -> T { high!(x, y).saturating_add(z) }
    "mad.wide": u16 s16 u32 s32 => (x: T, y: T, z: W) -> W { (W::from(x) * W::from(y)).wrapping_add(z) }
    "mul24.lo": u32 s32 => (x: T, y: T) -> T { product24!(x, y) as T }
    "mul24.hi": u32 s32 => (x: T, y: T) -> T { (product24!(x, y) >> 16) as T }
    "mad24.lo": u32 s32 => (x: T, y: T, z: T) -> T { (product24!(x, y) as T).wrapping_add(z) }
    "mad24.hi": u32 s32 => (x: T, y: T, z: T) -> T { ((product24!(x, y) >> 16) as T).wrapping_add(z) }
    // Division by zero has no defined result; all ones is what the hardware gives for 32 bits.
    "div": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { if y == 0 { !0 } else { x.wrapping_div(y) } }
    "rem": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { if y == 0 { x } else { x.wrapping_rem(y) } }
    "neg": s16 s32 s64 => (x: T) -> T { x.wrapping_neg() }
    "abs": s16 s32 s64 => (x: T) -> T { x.wrapping_abs() }
    "min": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { x.min(y) }
    "max": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { x.max(y) }
    "min.relu": s32 => (x: T, y: T) -> T { x.min(y).max(0) }
    "max.relu": s32 => (x: T, y: T) -> T { x.max(y).max(0) }
    "sad": u16 s16 u32 s32 u64 s64 => (x: T, y: T, z: U) -> U { z.wrapping_add(x.abs_diff(y)) }
    // The second type is part of the name: T is that of the first operand.
    "dp4a.u32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot4(x, T::MIN != 0, y, false, z) }
    "dp4a.s32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot4(x, T::MIN != 0, y, true, z) }
    "dp2a.lo.u32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot2(x, T::MIN != 0, y, false, z) }
    "dp2a.lo.s32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot2(x, T::MIN != 0, y, true, z) }
    "dp2a.hi.u32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot2(x, T::MIN != 0, y >> 16, false, z) }
    "dp2a.hi.s32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot2(x, T::MIN != 0, y >> 16, true, z) }

    "and": b16 b32 b64 => (x: T, y: T) -> T { x & y }
    "or": b16 b32 b64 => (x: T, y: T) -> T { x | y }
    "xor": b16 b32 b64 => (x: T, y: T) -> T { x ^ y }
    "not": b16 b32 b64 => (x: T) -> T { !x }
    "cnot": b16 b32 b64 => (x: T) -> T { T::from(x == 0) }
    // Counts beyond the width shift everything out.
    "shl": b16 b32 b64 => (x: T, y: u32) -> T { if y < T::BITS { x << (y % T::BITS) } else { 0 } }
    "shr": b16 b32 b64 u16 u32 u64 s16 s32 s64 => (x: T, y: u32) -> T { right!(x, y) }
    "shf.l.wrap": b32 => (x: T, y: T, z: u32) -> T { (join(x, y) << (z & 31) >> 32) as u32 }
    "shf.r.wrap": b32 => (x: T, y: T, z: u32) -> T { (join(x, y) >> (z & 31)) as u32 }
    "shf.l.clamp": b32 => (x: T, y: T, z: u32) -> T { (join(x, y) << z.min(32) >> 32) as u32 }
    "shf.r.clamp": b32 => (x: T, y: T, z: u32) -> T { (join(x, y) >> z.min(32)) as u32 }
    "bfe": u32 s32 u64 s64 => (x: T, y: u32, z: u32) -> T {
        let (field, unused) = (right!(x, y & 0xff), T::BITS - (z & 0xff).min(T::BITS));
        if z & 0xff == 0 { 0 } else { field << unused >> unused }
    }
    "bfi": b32 b64 => (x: T, y: T, z: u32, v: u32) -> T {
        let (at, len) = (z & 0xff, v & 0xff);
        let ones = if len == 0 { 0 } else { T::MAX >> (T::BITS - len.min(T::BITS)) };
        let mask = ones.checked_shl(at).unwrap_or(0);
        y & !mask | x.checked_shl(at).unwrap_or(0) & mask
    }
    "bfind": u32 s32 u64 s64 => (x: T) -> u32 { (T::BITS - 1).wrapping_sub(positive!(x).leading_zeros()) }
    "bfind.shiftamt": u32 s32 u64 s64 => (x: T) -> u32 {
        if positive!(x) == 0 { u32::MAX } else { positive!(x).leading_zeros() }
    }
    "brev": b32 b64 => (x: T) -> T { x.reverse_bits() }
    "popc": b32 b64 => (x: T) -> u32 { x.count_ones() }
    "clz": b32 b64 => (x: T) -> u32 { x.leading_zeros() }
    "fns": b32 => (x: T, y: T, z: u32) -> T { nth_set(x, y, z as i32) }
    "bmsk.clamp": b32 => (x: T, y: T) -> T { bit_mask(x, y) }
    "bmsk.wrap": b32 => (x: T, y: T) -> T { bit_mask(x & 31, y & 31) }
    "szext.clamp": u32 s32 => (x: T, y: u32) -> T { if y == 0 { 0 } else { x << (32 - y.min(32)) >> (32 - y.min(32)) } }
    "szext.wrap": u32 s32 => (x: T, y: u32) -> T { if y & 31 == 0 { 0 } else { x << (32 - (y & 31)) >> (32 - (y & 31)) } }
    "prmt": b32 => (x: T, y: T, z: u32) -> T { permute(x, y, z) }
    "prmt.f4e": b32 => (x: T, y: T, z: u32) -> T { permute(x, y, 0x3210 + 0x1111 * (z & 3)) }
    "prmt.b4e": b32 => (x: T, y: T, z: u32) -> T { permute(x, y, [0x5670, 0x6701, 0x7012, 0x0123][z as usize & 3]) }
    "prmt.rc8": b32 => (x: T, y: T, z: u32) -> T { permute(x, y, 0x1111 * (z & 3)) }
    "prmt.ecl": b32 => (x: T, y: T, z: u32) -> T { permute(x, y, [0x3210, 0x3211, 0x3222, 0x3333][z as usize & 3]) }
    "prmt.ecr": b32 => (x: T, y: T, z: u32) -> T { permute(x, y, [0x0000, 0x1110, 0x2210, 0x3210][z as usize & 3]) }
    "prmt.rc16": b32 => (x: T, y: T, z: u32) -> T { permute(x, y, [0x1010, 0x3232][z as usize & 1]) }
    "slct.s32": b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64 => (x: T, y: T, z: u32) -> T { if z as i32 >= 0 { x } else { y } }
    "slct.f32": b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64 => (x: T, y: T, z: f32) -> T { if z >= 0.0 { x } else { y } }
    "slct.ftz.f32": b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64 => (x: T, y: T, z: f32) -> T {
        if flush(z) >= 0.0 { x } else { y }
    }

    "add": f32 f64 => (x: T, y: T) -> F { (x + y).canonical() }
    "sub": f32 f64 => (x: T, y: T) -> F { (x - y).canonical() }
    "mul": f32 f64 => (x: T, y: T) -> F { (x * y).canonical() }
    "fma" | "mad": f32 f64 => (x: T, y: T, z: T) -> F { x.mul_add(y, z).canonical() }
    "add.ftz": f32 => (x: T, y: T) -> F { flush(flush(x) + flush(y)).canonical() }
    "sub.ftz": f32 => (x: T, y: T) -> F { flush(flush(x) - flush(y)).canonical() }
    "mul.ftz": f32 => (x: T, y: T) -> F { flush(flush(x) * flush(y)).canonical() }
    "fma.ftz" | "mad.ftz": f32 => (x: T, y: T, z: T) -> F {
        flush(flush(x).mul_add(flush(y), flush(z))).canonical()
    }
    "div": f32 f64 => (x: T, y: T) -> F { (x / y).canonical() }
    "rcp": f32 f64 => (x: T) -> F { (1.0 / x).canonical() }
    "sqrt": f32 f64 => (x: T) -> F { x.sqrt().canonical() }
    "min": f32 f64 => (x: T, y: T) -> F { least(x, y).canonical() }
    "max": f32 f64 => (x: T, y: T) -> F { (-least(-x, -y)).canonical() }
    "neg": f32 f64 => (x: T) -> T { -x }
    "abs": f32 f64 => (x: T) -> T { x.abs() }
    "copysign": f32 f64 => (x: T, y: T) -> T { y.copysign(x) }

    // Conversions under their whole names, by the type of the result.
    "cvt.rn.f32.s32": f32 => (x: s32) -> T { x as f32 }
    "cvt.rn.f32.u32": f32 => (x: u32) -> T { x as f32 }
    "cvt.rzi.s32.f32": s32 => (x: f32) -> T { x as i32 }
    "cvt.f32.f16": f32 => (x: u32) -> T { float::f16_to_f32(x) }
    "cvt.rn.f16.f32": f16 => (x: f32) -> u32 { float::f32_to_f16(x) }
    "cvt.f32.bf16": f32 => (x: u32) -> T { f32::from_bits(x << 16) }
    "cvt.u32.u8" | "cvt.s32.u8": u32 s32 => (x: u32) -> u32 { x & 0xff }
    "cvt.u32.s8" | "cvt.s32.s8": u32 s32 => (x: s32) -> s32 { i32::from(x as i8) }
    "cvt.u32.u16" | "cvt.s32.u16": u32 s32 => (x: u32) -> u32 { x & 0xffff }
    "cvt.u16.u32" | "cvt.u16.s32" | "cvt.u16.u16" | "cvt.u16.s16": u16 => (x: u32) -> u32 { x & 0xffff }
    "cvt.u32.s16" | "cvt.s32.s16": u32 s32 => (x: s32) -> s32 { i32::from(x as i16) }
    "cvt.u64.u32" | "cvt.s64.u32": u64 s64 => (x: u32) -> u64 { u64::from(x) }
    "cvt.u64.s32" | "cvt.s64.s32": u64 s64 => (x: s32) -> s64 { i64::from(x) }
    "cvt.u32.u64" | "cvt.s32.u64" | "cvt.u32.s64" | "cvt.s32.s64": u32 s32 => (x: u64) -> u32 { x as u32 }
    "upper half": u32 => (x: u64) -> u32 { (x >> 32) as u32 }
    "halves": u64 => (x: u32, y: u32) -> u64 { join(x, y) }
    "mov": b16 u16 s16 f16 bf16 b32 u32 s32 b64 u64 s64 f32 f64 => (x: T) -> T { x }
}

#[inline(always)]
fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Four bytes of two words, each by a nibble: its number, and whether its sign fills the byte.
#[inline(always)]
fn permute(x: u32, y: u32, nibbles: u32) -> u32 {
    let both = join(x, y);
    let byte = |i: u32| {
        let s = nibbles >> (4 * i);
        let v = (both >> (8 * (s & 7))) as u32 & 0xff;
        let v = if s & 8 != 0 { if v & 0x80 != 0 { 0xff } else { 0 } } else { v };
        v << (8 * i)
    };
    byte(0) | byte(1) | byte(2) | byte(3)
}

/// Part `i` of `bits` bits of a word.
#[inline(always)]
fn part(v: u32, i: u32, bits: u32, signed: bool) -> i32 {
    let top = v << (32 - bits - bits * i);
    if signed { top as i32 >> (32 - bits) } else { (top >> (32 - bits)) as i32 }
}

/// Four products of bytes, and a sum.
#[inline(always)]
fn dot4(x: u32, x_signed: bool, y: u32, y_signed: bool, z: u32) -> u32 {
    let product = |i: u32| part(x, i, 8, x_signed) * part(y, i, 8, y_signed);
    (z as i32).wrapping_add(product(0) + product(1) + product(2) + product(3)) as u32
}

/// Two products of 16 by 8 bits, and a sum.
#[inline(always)]
fn dot2(x: u32, x_signed: bool, y: u32, y_signed: bool, z: u32) -> u32 {
    let product = |i: u32| part(x, i, 16, x_signed) * part(y, i, 8, y_signed);
    (z as i32).wrapping_add(product(0) + product(1)) as u32
}

fn bit_mask(at: u32, len: u32) -> u32 {
    if at >= 32 { 0 } else { (((1u64 << len.min(32)) - 1) << at) as u32 }
}

/// `fns`: the n-th set bit from a base, upwards or downwards.
fn nth_set(mask: u32, base: u32, n: i32) -> u32 {
    let set = |i: &u32| *i < 32 && mask >> i & 1 == 1;
    let nth = n.unsigned_abs().saturating_sub(1) as usize;
    match n {
        0 => Some(base).filter(set),
        1.. => (base.min(32)..32).filter(set).nth(nth),
        _ => (0..=base.min(31)).rev().filter(set).nth(nth),
    }
    .unwrap_or(u32::MAX)
}

/// The lanes for which a comparison holds.
pub(crate) type CompareFn = unsafe fn(R, R, File) -> u32;

/// A comparison of operands of a type; with a NaN none holds but `Ne`.
pub(crate) fn comparison(cmp: Cmp, ty: Ty) -> Option<CompareFn> {
    macro_rules! of {
        ($t:ty) => {{
            macro_rules! by {
                ($op:tt) => {
                    // SAFETY: the slots are the decoder's, for operands of this type.
                    |a, b, file| unsafe { test(file.src(a), file.src(b), |x: $t, y: $t| x $op y) }
                };
            }
            match cmp {
                Cmp::Eq => by!(==),
                Cmp::Ne => by!(!=),
                Cmp::Lt => by!(<),
                Cmp::Le => by!(<=),
                Cmp::Gt => by!(>),
                Cmp::Ge => by!(>=),
            }
        }};
    }
    Some(match ty {
        Ty::U32 | Ty::B32 => of!(u32),
        Ty::S32 => of!(i32),
        Ty::U64 | Ty::B64 => of!(u64),
        Ty::S64 => of!(i64),
        Ty::F32 => of!(f32),
        Ty::F64 => of!(f64),
        _ => return None,
    })
}
