//! Instructions that compute values: a table with a row per instruction, its types and its meaning in Rust's
//! arithmetic. Row and type become a loop over 32 lanes, vectorised by the compiler for AVX2, or for what a processor of
//! another architecture has.

#![allow(non_camel_case_types, dead_code)]
// Of NaN, `!(x < y)` is not `x >= y`, nor is `x < y || x > y` the same as `x != y`.
#![allow(clippy::neg_cmp_op_on_partial_ord, clippy::double_comparisons)]
// A cast is unnecessary for some types of a row only.
#![allow(clippy::unnecessary_cast)]

use super::float::{self, flush, least, most};
use super::inst::{CONST, P, R};
use crate::machine::lanes::{Lanes, Slot, map};
use crate::machine::types::{Ty, named};
use std::collections::HashMap;
use std::sync::LazyLock;

/// A warp's registers and predicates, and its kernel's constants.
#[derive(Clone, Copy)]
pub(crate) struct File {
    pub(crate) regs: *mut Slot,
    pub(crate) preds: *mut u32,
    pub(crate) consts: *const Slot,
}

/// An instruction over all lanes, given its destination and sources, and the mask of lanes to write.
pub(crate) type ValueFn = unsafe fn(&[R; 5], File, u32);

/// A row for one type.
pub(crate) struct Value {
    pub(crate) run: ValueFn,
    /// The types of destination and sources: `T` and `F` are the instruction's own, `W` an integer of twice its size.
    pub(crate) operands: &'static [&'static str],
}

/// An operand of a row, in a slot that the decoder gave out for this type.
trait Operand {
    type Value;
    /// The value of a source in each lane.
    unsafe fn source(file: File, r: R) -> impl Fn(usize) -> Self::Value;
    /// Writes the lanes in `m`.
    unsafe fn put(file: File, r: R, m: u32, f: impl Fn(usize) -> Self::Value);
    /// Writes one lane.
    unsafe fn put_lane(file: File, r: R, lane: usize, value: Self::Value);
}

/// A PTX type that stands in slots, with its Rust type.
trait Native {
    type Value: Copy;
    type Slot: Copy + Default;
    /// The integer type of twice the size.
    type W;
    fn get(slot: Self::Slot) -> Self::Value;
    fn put(value: Self::Value) -> Self::Slot;
}

impl<T: Native> Operand for T {
    type Value = T::Value;
    #[inline(always)]
    unsafe fn source(file: File, r: R) -> impl Fn(usize) -> T::Value {
        // SAFETY: the decoder gives only slots inside the register file or the constant table, and they have 32 lanes.
        unsafe {
            let slot = if r & CONST != 0 { file.consts.add((r & !CONST) as usize) } else { file.regs.add(r as usize) };
            move |lane| T::get(*slot.cast::<T::Slot>().add(lane))
        }
    }
    #[inline(always)]
    unsafe fn put(file: File, r: R, m: u32, f: impl Fn(usize) -> T::Value) {
        // SAFETY: the decoder gives only slots inside the register file.
        unsafe { map(file.regs.add(r as usize).cast(), m, |lane| T::put(f(lane))) }
    }
    #[inline(always)]
    unsafe fn put_lane(file: File, r: R, lane: usize, value: T::Value) {
        // SAFETY: as in `put`.
        unsafe { *file.regs.add(r as usize).cast::<T::Slot>().add(lane) = T::put(value) }
    }
}

macro_rules! native {
    ($($t:ident = $value:ident in $slot:ident, $wide:ident: $get:expr, $put:expr;)+) => {
        $(impl Native for $t {
            type Value = $value;
            type Slot = $slot;
            type W = $wide;
            #[inline(always)]
            fn get(slot: $slot) -> $value {
                $get(slot)
            }
            #[inline(always)]
            fn put(value: $value) -> $slot {
                $put(value)
            }
        })+
    };
}

native! {
    u16 = u16 in u32, u32: |v| v as u16, u32::from;
    i16 = i16 in u32, i32: |v| v as i16, |v| u32::from(v as u16);
    u32 = u32 in u32, u64: |v| v, |v| v;
    i32 = i32 in u32, i64: |v| v as i32, |v| v as u32;
    u64 = u64 in u64, u128: |v| v, |v| v;
    i64 = i64 in u64, i128: |v| v as i64, |v| v as u64;
    f16 = f32 in u32, f64: float::f16_to_f32, float::f32_to_f16;
    // What its rows make has no more bits than it has.
    bf16 = f32 in u32, f64: |v| f32::from_bits(v << 16), |v| float::canonical(v) >> 16;
    f32 = f32 in u32, f64: f32::from_bits, float::canonical;
    ftz = f32 in u32, f64: |v| flush(f32::from_bits(v)), |v| float::canonical(flush(v));
    f64 = f64 in u64, f64: f64::from_bits, f64::to_bits;
}

// PTX's names of types.
type s16 = i16;
type s32 = i32;
type s64 = i64;
type b16 = u16;
type b32 = u32;
type b64 = u64;
type f16x2 = u32;
enum f16 {}
enum bf16 {}
/// f32 of an instruction with `.ftz`: subnormals are flushed to zero.
enum ftz {}
enum pred {}
/// A function of three bits: the table of `lop3`, held by the instruction itself.
enum lut {}

impl Operand for pred {
    type Value = bool;
    #[inline(always)]
    unsafe fn source(file: File, p: P) -> impl Fn(usize) -> bool {
        // SAFETY: the decoder's predicates are inside the file.
        let mask = unsafe { *file.preds.add(p as usize) };
        move |lane| mask >> lane & 1 == 1
    }
    #[inline(always)]
    unsafe fn put(file: File, p: P, m: u32, f: impl Fn(usize) -> bool) {
        let v = (0..32).fold(0, |v, lane| v | u32::from(f(lane)) << lane);
        // SAFETY: as in `source`.
        let p = unsafe { &mut *file.preds.add(p as usize) };
        *p = *p & !m | v & m;
    }
    #[inline(always)]
    unsafe fn put_lane(file: File, p: P, lane: usize, value: bool) {
        // SAFETY: as in `source`.
        let p = unsafe { &mut *file.preds.add(p as usize) };
        *p = *p & !(1 << lane) | u32::from(value) << lane;
    }
}

impl Operand for lut {
    type Value = [u32; 8];
    #[inline(always)]
    unsafe fn source(_: File, lut: u32) -> impl Fn(usize) -> [u32; 8] {
        let bits = std::array::from_fn(|i| 0u32.wrapping_sub(lut >> i & 1));
        move |_| bits
    }
    unsafe fn put(_: File, _: R, _: u32, _: impl Fn(usize) -> [u32; 8]) {}
    unsafe fn put_lane(_: File, _: R, _: usize, _: [u32; 8]) {}
}

/// One row for one type.
trait Row {
    /// # Safety
    /// As [`ValueFn`].
    unsafe fn run(r: &[R; 5], file: File, m: u32);
    /// The same for one lane.
    ///
    /// # Safety
    /// As [`ValueFn`].
    unsafe fn run_lane(r: &[R; 5], file: File, lane: usize);
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
    // An instance of every row that is vectorised once more takes long to compile, for processors that are few.
    #[cfg(target_arch = "x86_64")]
    unsafe fn lane_by_lane<O: Row>(r: &[R; 5], file: File, m: u32) {
        for lane in Lanes(m) {
            // SAFETY: the caller's.
            unsafe { O::run_lane(r, file, lane) }
        }
    }
    #[cfg(target_arch = "x86_64")]
    return lane_by_lane::<O>;
    #[cfg(not(target_arch = "x86_64"))]
    O::run
}

/// A row for one type, inserted into the table.
macro_rules! row {
    ($rows:ident, $name:literal, $t:ident, ($($x:ident: $a:tt),+) -> $out:tt $body:block) => {{
        type T = $t;
        type F = <T as Native>::Slot;
        type W = <T as Native>::W;
        struct This;
        impl Row for This {
            #[inline(always)]
            unsafe fn run(r: &[R; 5], file: File, m: u32) {
                let mut i = 0;
                // SAFETY: the caller's.
                unsafe {
                    $(i += 1; let $x = <$a as Operand>::source(file, r[i]);)+
                    <$out as Operand>::put(file, r[0], m, |lane| {
                        $(let $x = $x(lane);)+
                        $body
                    });
                }
            }
            #[inline(always)]
            unsafe fn run_lane(r: &[R; 5], file: File, lane: usize) {
                let mut i = 0;
                // SAFETY: the caller's.
                unsafe {
                    $(i += 1; let $x = <$a as Operand>::source(file, r[i])(lane);)+
                    <$out as Operand>::put_lane(file, r[0], lane, $body);
                }
            }
        }
        let operands: &'static [&str] = &[stringify!($out), $(stringify!($a)),+];
        let key = Ty::parse(stringify!($t)).map_or((concat!($name, ".ftz"), Ty::F32), |ty| ($name, ty));
        $rows.insert(key, Value { run: compiled::<This>(), operands });
    }};
}

/// The table, by name and type. Names carry all modifiers but the type, `.ftz` last.
pub(crate) static VALUES: LazyLock<HashMap<(&str, Ty), Value>> = LazyLock::new(table);

named! {
    /// Rows that other instructions are composed of, with their names in the table.
    Piece {
        Add = "add", Sub = "sub", MulLo = "mul.lo", MulHi = "mul.hi", Lop3 = "lop3", Select = "selp", Move = "mov",
        SumWithCarry = "sum with carry", CarryOfSum = "carry of sum",
        DifferenceWithBorrow = "difference with borrow", BorrowOfDifference = "borrow of difference",
        LowerHalf = "lower half", UpperHalf = "upper half", Halves = "halves",
    }
}

impl Piece {
    /// The row for a type, if it has one.
    pub(crate) fn row(self, ty: Ty) -> Option<&'static Value> {
        VALUES.get(&(self.name(), ty))
    }
}

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

/// A shift to the right: counts beyond the width leave zeros, or copies of the sign.
macro_rules! right {
    ($x:expr, $count:expr) => {
        if $count < T::BITS { $x >> ($count % T::BITS) } else { $x >> (T::BITS - 1) >> 1 }
    };
}

/// A value with its bits inverted if negative, so that the highest zero becomes the highest one.
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
    "mul24.lo": u32 s32 => (x: T, y: T) -> T { (x << 8 >> 8).wrapping_mul(y << 8 >> 8) }
    "mul24.hi": u32 s32 => (x: T, y: T) -> T { ((W::from(x << 8 >> 8) * W::from(y << 8 >> 8)) >> 16) as T }
    "mad24.hi": u32 s32 => (x: T, y: T, z: T) -> T {
        (((W::from(x << 8 >> 8) * W::from(y << 8 >> 8)) >> 16) as T).wrapping_add(z)
    }
    "mad24.lo": u32 s32 => (x: T, y: T, z: T) -> T { (x << 8 >> 8).wrapping_mul(y << 8 >> 8).wrapping_add(z) }
    // Division by zero has no defined result; all ones is what the hardware gives for 32 bits.
    "div": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { if y == 0 { !0 } else { x.wrapping_div(y) } }
    "rem": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { if y == 0 { x } else { x.wrapping_rem(y) } }
    "neg": s16 s32 s64 => (x: T) -> T { x.wrapping_neg() }
    "abs": s16 s32 s64 => (x: T) -> T { x.wrapping_abs() }
    "min": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { x.min(y) }
    "max": u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> T { x.max(y) }
    "min.relu": s16 s32 => (x: T, y: T) -> T { x.min(y).max(0) }
    "max.relu": s16 s32 => (x: T, y: T) -> T { x.max(y).max(0) }
    "sad": u16 s16 u32 s32 u64 s64 => (x: T, y: T, z: T) -> T { z.wrapping_add(x.abs_diff(y) as T) }
    // The second type is part of the name: T is that of the first operand.
    "dp4a.u32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot::<4>(x, T::MIN != 0, y, false, z) }
    "dp4a.s32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot::<4>(x, T::MIN != 0, y, true, z) }
    // Three types: T is that of the sum.
    "vabsdiff4.u32.u32.add": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { distance(x, y, false, z) }
    "vabsdiff4.s32.s32.add": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { distance(x, y, true, z) }
    "dp2a.lo.u32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot::<2>(x, T::MIN != 0, y, false, z) }
    "dp2a.lo.s32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot::<2>(x, T::MIN != 0, y, true, z) }
    "dp2a.hi.u32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot::<2>(x, T::MIN != 0, y >> 16, false, z) }
    "dp2a.hi.s32": u32 s32 => (x: u32, y: u32, z: u32) -> u32 { dot::<2>(x, T::MIN != 0, y >> 16, true, z) }

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
    "lop3": b32 => (x: T, y: T, z: T, t: lut) -> T {
        let low = |i: usize| t[i] & !z | t[i + 1] & z;
        let (n, p) = (low(0) & !y | low(2) & y, low(4) & !y | low(6) & y);
        n & !x | p & x
    }
    "selp": b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64 => (x: F, y: F, p: pred) -> F { if p { x } else { y } }
    "slct.s32": b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64 => (x: F, y: F, z: s32) -> F { if z >= 0 { x } else { y } }
    "slct.f32": b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64 => (x: F, y: F, z: f32) -> F { if z >= 0.0 { x } else { y } }

    "add": f32 ftz f64 => (x: T, y: T) -> T { x + y }
    "sub": f32 ftz f64 => (x: T, y: T) -> T { x - y }
    "mul": f32 ftz f64 => (x: T, y: T) -> T { x * y }
    "fma" | "mad": f32 ftz => (x: T, y: T, z: T) -> T { x.mul_add(y, z) }
    "fma" | "mad.rn": f64 => (x: T, y: T, z: T) -> T { x.mul_add(y, z) }
    "div": f32 ftz f64 => (x: T, y: T) -> T { x / y }
    "rcp": f32 ftz f64 => (x: T) -> T { 1.0 / x }
    "sqrt": f32 ftz f64 => (x: T) -> T { x.sqrt() }
    "min": f16 bf16 f32 ftz f64 => (x: T, y: T) -> T { least(x, y) }
    "max": f16 bf16 f32 ftz f64 => (x: T, y: T) -> T { most(x, y) }
    "min.NaN": f16 bf16 f32 ftz => (x: T, y: T) -> T { if x.is_nan() { x } else if y.is_nan() { y } else { least(x, y) } }
    "max.NaN": f16 bf16 f32 ftz => (x: T, y: T) -> T { if x.is_nan() { x } else if y.is_nan() { y } else { most(x, y) } }
    "min.xorsign.abs": f16 bf16 f32 ftz => (x: T, y: T) -> T {
        least(x.abs(), y.abs()) * 1f32.copysign(x) * 1f32.copysign(y)
    }
    "max.xorsign.abs": f16 bf16 f32 ftz => (x: T, y: T) -> T {
        most(x.abs(), y.abs()) * 1f32.copysign(x) * 1f32.copysign(y)
    }
    "neg": f16 bf16 f32 ftz f64 => (x: T) -> T { -x }
    "abs": f16 bf16 f32 ftz f64 => (x: T) -> T { x.abs() }
    "copysign": f32 f64 => (x: T, y: T) -> T { y.copysign(x) }
    "testp.finite": f32 f64 => (x: T) -> pred { x.is_finite() }
    "testp.infinite": f32 f64 => (x: T) -> pred { x.is_infinite() }
    "testp.number": f32 f64 => (x: T) -> pred { !x.is_nan() }
    "testp.notanumber": f32 f64 => (x: T) -> pred { x.is_nan() }
    "testp.normal": f32 f64 => (x: T) -> pred { x.is_normal() }
    "testp.subnormal": f32 f64 => (x: T) -> pred { x.is_subnormal() }

    "setp.eq": b16 b32 b64 u16 s16 u32 s32 u64 s64 f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { x == y }
    "setp.ne": b16 b32 b64 u16 s16 u32 s32 u64 s64 => (x: T, y: T) -> pred { x != y }
    "setp.lt": u16 s16 u32 s32 u64 s64 f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { x < y }
    "setp.le": u16 s16 u32 s32 u64 s64 f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { x <= y }
    "setp.gt": u16 s16 u32 s32 u64 s64 f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { x > y }
    "setp.ge": u16 s16 u32 s32 u64 s64 f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { x >= y }
    "setp.lo": u16 u32 u64 => (x: T, y: T) -> pred { x < y }
    "setp.ls": u16 u32 u64 => (x: T, y: T) -> pred { x <= y }
    "setp.hi": u16 u32 u64 => (x: T, y: T) -> pred { x > y }
    "setp.hs": u16 u32 u64 => (x: T, y: T) -> pred { x >= y }
    // No ordered comparison holds of NaN, and every unordered one.
    "setp.ne": f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { x < y || x > y }
    "setp.equ": f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { !(x < y || x > y) }
    "setp.neu": f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { x != y }
    "setp.ltu": f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { !(x >= y) }
    "setp.leu": f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { !(x > y) }
    "setp.gtu": f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { !(x <= y) }
    "setp.geu": f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { !(x < y) }
    "setp.num": f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { !x.is_nan() && !y.is_nan() }
    "setp.nan": f16 bf16 f32 ftz f64 => (x: T, y: T) -> pred { x.is_nan() || y.is_nan() }

    "sum with carry": b32 b64 => (x: T, y: T, c: pred) -> T { x.wrapping_add(y).wrapping_add(T::from(c)) }
    "carry of sum": b32 b64 => (x: T, y: T, c: pred) -> pred { (W::from(x) + W::from(y) + W::from(c)) >> T::BITS != 0 }
    "difference with borrow": b32 b64 => (x: T, y: T, c: pred) -> T { x.wrapping_sub(y).wrapping_sub(T::from(c)) }
    "borrow of difference": b32 b64 => (x: T, y: T, c: pred) -> pred { W::from(x) < W::from(y) + W::from(c) }

    // Conversions under their whole names, by the type of the result.
    "cvt.rn.f32.s32": f32 => (x: s32) -> T { x as f32 }
    "cvt.rn.f32.u32": f32 => (x: u32) -> T { x as f32 }
    "cvt.rzi.s32.f32": s32 => (x: f32) -> T { x as i32 }
    "cvt.rni.s32.f32": s32 => (x: f32) -> T { x.round_ties_even() as i32 }
    "cvt.rzi.u32.f32": u32 => (x: f32) -> T { x as u32 }
    "cvt.f32.f16": f32 => (x: f16) -> T { x }
    "cvt.rn.f16.f32": f16 => (x: f32) -> T { x }
    // The name of its form, which is had without modifiers when it rounds to the nearest.
    "cvt.f32": f16x2 => (x: f32, y: f32) -> T { float::f32_to_f16(x) << 16 | float::f32_to_f16(y) }
    "cvt.f32.bf16": f32 => (x: bf16) -> T { x }
    "cvt.u64.u32" | "cvt.s64.u32": u64 s64 => (x: u32) -> u64 { u64::from(x) }
    "cvt.u64.s32" | "cvt.s64.s32": u64 s64 => (x: s32) -> s64 { i64::from(x) }
    "cvt.u32.u64" | "cvt.s32.u64" | "cvt.u32.s64" | "cvt.s32.s64": u32 s32 => (x: u64) -> u32 { x as u32 }
    "lower half": b32 b64 => (x: T) -> u32 { (x << (T::BITS / 2) >> (T::BITS / 2)) as u32 }
    "upper half": b32 b64 => (x: T) -> u32 { (x >> (T::BITS / 2)) as u32 }
    "halves": b32 b64 => (x: u32, y: u32) -> T {
        T::from(y) << (T::BITS / 2) | T::from(x) << (T::BITS / 2) >> (T::BITS / 2)
    }
    "mov": b32 b64 => (x: T) -> T { x }
}

#[inline(always)]
fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Four bytes of two words, each selected by a nibble: byte number, and whether its sign fills the byte.
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

/// `z` plus `N` products of parts of x with bytes of y.
#[inline(always)]
fn dot<const N: u32>(x: u32, x_signed: bool, y: u32, y_signed: bool, z: u32) -> u32 {
    let product = |i: u32| part(x, i, 32 / N, x_signed) * part(y, i, 8, y_signed);
    let mut sum = z;
    for i in 0..N {
        sum = sum.wrapping_add(product(i) as u32);
    }
    sum
}

/// `z` plus the distances of the four bytes of x from those of y.
#[inline(always)]
fn distance(x: u32, y: u32, signed: bool, z: u32) -> u32 {
    let mut sum = z;
    for i in 0..4 {
        sum = sum.wrapping_add(part(x, i, 8, signed).abs_diff(part(y, i, 8, signed)));
    }
    sum
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
