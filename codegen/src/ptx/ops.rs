//! Instructions between registers, one method each, named after the mnemonic.

use super::builder::Builder;
use super::ir::{Arg, Convergence, Spread, Uniformity};
use super::types::{BF16, F16, F32, Float, Integer, Number, Operand, Pred, S32, Scalar, Size, U32, U64, Val};

/// How `setp` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

impl Compare {
    const fn name(self) -> &'static str {
        match self {
            Compare::Eq => "eq",
            Compare::Ne => "ne",
            Compare::Lt => "lt",
            Compare::Le => "le",
            Compare::Gt => "gt",
            Compare::Ge => "ge",
        }
    }
}

/// Types that `cvt` converts to from `From`, with the modifiers it needs.
pub trait Convert<From: Scalar>: Scalar {
    /// The whole mnemonic.
    const MNEMONIC: &'static str;
}

macro_rules! conversions {
    ($($to:ident <- $from:ident $mnemonic:literal;)*) => {$(
        impl Convert<$from> for $to { const MNEMONIC: &'static str = $mnemonic; }
    )*};
}
conversions! {
    F32 <- F16 "cvt.f32.f16";
    F16 <- F32 "cvt.rn.f16.f32";
    F32 <- U32 "cvt.rn.f32.u32";
    F32 <- S32 "cvt.rn.f32.s32";
    U32 <- F32 "cvt.rzi.u32.f32";
    S32 <- F32 "cvt.rni.s32.f32";
    U64 <- U32 "cvt.u64.u32";
    U32 <- U64 "cvt.u32.u64";
}

/// 32-bit register types, between which [`Builder::mov_bits`] reinterprets.
pub trait Bits32: Scalar {}
impl Bits32 for U32 {}
impl Bits32 for S32 {}
impl Bits32 for F32 {}

/// 16-bit register types.
pub trait Bits16: Scalar {}
impl Bits16 for F16 {}
impl Bits16 for BF16 {}
impl Bits16 for super::types::U16 {}

impl Builder {
    // ---- arithmetic

    /// `a + b`.
    #[track_caller]
    pub fn add<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(format!("add{}.{}", T::ROUNDING, T::NAME), vec![a.arg(), b.arg()])
    }

    /// `a - b`.
    #[track_caller]
    pub fn sub<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(format!("sub{}.{}", T::ROUNDING, T::NAME), vec![a.arg(), b.arg()])
    }

    /// `a * b`, the low half for integers.
    #[track_caller]
    pub fn mul<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(format!("{}.{}", T::MUL, T::NAME), vec![a.arg(), b.arg()])
    }

    /// `a * b` of two `u32`, all 64 bits.
    #[track_caller]
    pub fn mul_wide(&mut self, a: impl Operand<U32>, b: impl Operand<U32>) -> Val<U64> {
        self.emit("mul.wide.u32", vec![a.arg(), b.arg()])
    }

    /// `a * b + c`, integers, the low half.
    #[track_caller]
    pub fn mad<T: Integer>(&mut self, a: impl Operand<T>, b: impl Operand<T>, c: impl Operand<T>) -> Val<T> {
        self.emit(format!("mad.lo.{}", T::NAME), vec![a.arg(), b.arg(), c.arg()])
    }

    /// `a * b + c` of two `u32` and a `u64`.
    #[track_caller]
    pub fn mad_wide(&mut self, a: impl Operand<U32>, b: impl Operand<U32>, c: impl Operand<U64>) -> Val<U64> {
        self.emit("mad.wide.u32", vec![a.arg(), b.arg(), c.arg()])
    }

    /// `a * b + c`, rounded once.
    #[track_caller]
    pub fn fma<T: Float>(&mut self, a: impl Operand<T>, b: impl Operand<T>, c: impl Operand<T>) -> Val<T> {
        self.emit(format!("fma.rn.{}", T::NAME), vec![a.arg(), b.arg(), c.arg()])
    }

    /// `a / b`: correctly rounded for floats, truncated for integers.
    #[track_caller]
    pub fn div<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(format!("div{}.{}", T::ROUNDING, T::NAME), vec![a.arg(), b.arg()])
    }

    /// `a % b`.
    #[track_caller]
    pub fn rem<T: Integer>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(format!("rem.{}", T::NAME), vec![a.arg(), b.arg()])
    }

    /// The lesser. For floats, the one that is a number.
    #[track_caller]
    pub fn min<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(format!("min.{}", T::NAME), vec![a.arg(), b.arg()])
    }

    /// The greater. For floats, the one that is a number.
    #[track_caller]
    pub fn max<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(format!("max.{}", T::NAME), vec![a.arg(), b.arg()])
    }

    /// `-a`.
    #[track_caller]
    pub fn neg<T: Float>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(format!("neg.{}", T::NAME), vec![a.arg()])
    }

    /// `|a|`.
    #[track_caller]
    pub fn abs<T: Float>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(format!("abs.{}", T::NAME), vec![a.arg()])
    }

    /// `1 / a`, correctly rounded.
    #[track_caller]
    pub fn rcp<T: Float>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(format!("rcp.rn.{}", T::NAME), vec![a.arg()])
    }

    /// The square root, correctly rounded.
    #[track_caller]
    pub fn sqrt<T: Float>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(format!("sqrt.rn.{}", T::NAME), vec![a.arg()])
    }

    /// `2^a`, within 2 ulp and more (`.approx`).
    #[track_caller]
    pub fn ex2_approx(&mut self, a: impl Operand<F32>) -> Val<F32> {
        self.emit("ex2.approx.f32", vec![a.arg()])
    }

    // ---- bits

    /// `a & b`.
    #[track_caller]
    pub fn and<T: Integer>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(format!("and.{}", T::BITS), vec![a.arg(), b.arg()])
    }

    /// `a | b`.
    #[track_caller]
    pub fn or<T: Integer>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(format!("or.{}", T::BITS), vec![a.arg(), b.arg()])
    }

    /// `a ^ b`.
    #[track_caller]
    pub fn xor<T: Integer>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(format!("xor.{}", T::BITS), vec![a.arg(), b.arg()])
    }

    /// `!a`.
    #[track_caller]
    pub fn not<T: Integer>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(format!("not.{}", T::BITS), vec![a.arg()])
    }

    /// `a << bits`; 0 from the register's width on.
    #[track_caller]
    pub fn shl<T: Integer>(&mut self, a: impl Operand<T>, bits: impl Operand<U32>) -> Val<T> {
        self.emit(format!("shl.{}", T::BITS), vec![a.arg(), bits.arg()])
    }

    /// `a >> bits`: logical for unsigned types, arithmetic for signed ones.
    #[track_caller]
    pub fn shr<T: Integer>(&mut self, a: impl Operand<T>, bits: impl Operand<U32>) -> Val<T> {
        self.emit(format!("shr.{}", T::NAME), vec![a.arg(), bits.arg()])
    }

    /// Any function of three bits, by its truth table: `table = f(0xf0, 0xcc, 0xaa)`.
    #[track_caller]
    pub fn lop3(&mut self, a: impl Operand<U32>, b: impl Operand<U32>, c: impl Operand<U32>, table: u8) -> Val<U32> {
        self.emit("lop3.b32", vec![a.arg(), b.arg(), c.arg(), Arg::Int(i64::from(table))])
    }

    /// `(a & b) | c` in one instruction.
    #[track_caller]
    pub fn and_or(&mut self, a: impl Operand<U32>, b: impl Operand<U32>, c: impl Operand<U32>) -> Val<U32> {
        self.lop3(a, b, c, (0xf0 & 0xcc) | 0xaa)
    }

    /// Picks four of the eight bytes of `b:a`; nibble i of `selector` chooses byte i of the result.
    #[track_caller]
    pub fn prmt(&mut self, a: impl Operand<U32>, b: impl Operand<U32>, selector: impl Operand<U32>) -> Val<U32> {
        self.emit("prmt.b32", vec![a.arg(), b.arg(), selector.arg()])
    }

    /// Bits `start..start + count` of `a`, zero-extended for unsigned types.
    #[track_caller]
    pub fn bfe<T: Integer>(
        &mut self,
        a: impl Operand<T>,
        start: impl Operand<U32>,
        count: impl Operand<U32>,
    ) -> Val<T> {
        self.emit(format!("bfe.{}", T::NAME), vec![a.arg(), start.arg(), count.arg()])
    }

    // ---- conversions

    /// Converts a value: `let x: Val<F32> = b.cvt(half)`.
    #[track_caller]
    pub fn cvt<To: Convert<From>, From: Scalar>(&mut self, a: Val<From>) -> Val<To> {
        self.emit(To::MNEMONIC, vec![a.arg()])
    }

    /// The same 32 bits seen as another type.
    #[track_caller]
    pub fn mov_bits<To: Bits32, From: Bits32>(&mut self, a: Val<From>) -> Val<To> {
        if To::CLASS == From::CLASS {
            return Val::new(a.reg);
        }
        self.emit("mov.b32", vec![a.arg()])
    }

    /// A constant or dimension in a register.
    #[track_caller]
    pub fn mov<T: Scalar>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(format!("mov.{}", T::BITS), vec![a.arg()])
    }

    /// The two 16-bit halves of a 32-bit register, low half first.
    #[track_caller]
    pub fn unpack<T: Bits16>(&mut self, a: Val<U32>) -> [Val<T>; 2] {
        let (low, high) = (self.fresh::<T>(), self.fresh::<T>());
        let halves = Arg::Vector(vec![Arg::Reg(low), Arg::Reg(high)]);
        self.push("mov.b32", vec![halves], vec![a.arg()], Spread::Operands, Convergence::None);
        [Val::new(low), Val::new(high)]
    }

    /// Two 16-bit values in a 32-bit register, the first in the low half.
    #[track_caller]
    pub fn pack<T: Bits16>(&mut self, [low, high]: [Val<T>; 2]) -> Val<U32> {
        self.emit("mov.b32", vec![Arg::Vector(vec![low.arg(), high.arg()])])
    }

    /// The two 32-bit halves of a 64-bit register, low half first.
    #[track_caller]
    pub fn unpack64(&mut self, a: Val<U64>) -> [Val<U32>; 2] {
        let (low, high) = (self.fresh::<U32>(), self.fresh::<U32>());
        let halves = Arg::Vector(vec![Arg::Reg(low), Arg::Reg(high)]);
        self.push("mov.b64", vec![halves], vec![a.arg()], Spread::Operands, Convergence::None);
        [Val::new(low), Val::new(high)]
    }

    /// Two 32-bit values in a 64-bit register, the first in the low half.
    #[track_caller]
    pub fn pack64(&mut self, low: impl Operand<U32>, high: impl Operand<U32>) -> Val<U64> {
        self.emit("mov.b64", vec![Arg::Vector(vec![low.arg(), high.arg()])])
    }

    // ---- comparison and choice

    /// Compares.
    #[track_caller]
    pub fn setp<T: Number>(&mut self, how: Compare, a: impl Operand<T>, b: impl Operand<T>) -> Val<Pred> {
        self.emit(format!("setp.{}.{}", how.name(), T::NAME), vec![a.arg(), b.arg()])
    }

    /// `a == b`.
    #[track_caller]
    pub fn setp_eq<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<Pred> {
        self.setp(Compare::Eq, a, b)
    }

    /// `a != b`.
    #[track_caller]
    pub fn setp_ne<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<Pred> {
        self.setp(Compare::Ne, a, b)
    }

    /// `a < b`.
    #[track_caller]
    pub fn setp_lt<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<Pred> {
        self.setp(Compare::Lt, a, b)
    }

    /// `a >= b`.
    #[track_caller]
    pub fn setp_ge<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<Pred> {
        self.setp(Compare::Ge, a, b)
    }

    /// `a && b`.
    #[track_caller]
    pub fn and_pred(&mut self, a: Val<Pred>, b: Val<Pred>) -> Val<Pred> {
        self.emit("and.pred", vec![a.arg(), b.arg()])
    }

    /// `a || b`.
    #[track_caller]
    pub fn or_pred(&mut self, a: Val<Pred>, b: Val<Pred>) -> Val<Pred> {
        self.emit("or.pred", vec![a.arg(), b.arg()])
    }

    /// `!a`.
    #[track_caller]
    pub fn not_pred(&mut self, a: Val<Pred>) -> Val<Pred> {
        self.emit("not.pred", vec![a.arg()])
    }

    /// `cond ? a : b`.
    #[track_caller]
    pub fn selp<T: Scalar>(&mut self, a: impl Operand<T>, b: impl Operand<T>, cond: Val<Pred>) -> Val<T> {
        let ty = if matches!(T::BITS, "f32" | "f64") { T::NAME } else { T::BITS };
        self.emit(format!("selp.{ty}"), vec![a.arg(), b.arg(), cond.arg()])
    }

    // ---- dimensions: constants fold while the kernel is built

    /// `size * factor`.
    #[track_caller]
    pub fn size_mul(&mut self, size: Size, factor: impl Into<Size>) -> Size {
        match (size, factor.into()) {
            (Size::Const(a), Size::Const(b)) => self.folded(a.checked_mul(b), "product"),
            (size, Size::Const(1)) => size,
            (a, b) => Size::Reg(self.mul::<U32>(a, b)),
        }
    }

    /// `size / divisor`, rounded down.
    #[track_caller]
    pub fn size_div(&mut self, size: Size, divisor: u32) -> Size {
        match size {
            Size::Const(a) => self.folded(a.checked_div(divisor), "quotient"),
            Size::Reg(a) if divisor.is_power_of_two() => Size::Reg(self.shr(a, divisor.trailing_zeros())),
            Size::Reg(a) => Size::Reg(self.div(a, divisor)),
        }
    }

    /// `size / divisor`, rounded up.
    #[track_caller]
    pub fn size_div_ceil(&mut self, size: Size, divisor: u32) -> Size {
        let raised = self.size_add(size, divisor.saturating_sub(1));
        self.size_div(raised, divisor)
    }

    /// `size + addend`.
    #[track_caller]
    pub fn size_add(&mut self, size: Size, addend: impl Into<Size>) -> Size {
        match (size, addend.into()) {
            (Size::Const(a), Size::Const(b)) => self.folded(a.checked_add(b), "sum"),
            (size, Size::Const(0)) | (Size::Const(0), size) => size,
            (a, b) => Size::Reg(self.add::<U32>(a, b)),
        }
    }

    #[track_caller]
    fn folded(&mut self, value: Option<u32>, what: &str) -> Size {
        Size::Const(value.unwrap_or_else(|| {
            self.complain(format!("a {what} of dimensions does not fit 32 bits"));
            0
        }))
    }

    // ---- between the lanes of a warp, all 32 of which must arrive

    #[track_caller]
    fn shfl<T: Bits32>(&mut self, mode: &str, a: Val<T>, lane: Arg, clamp: i64, spread: Spread) -> Val<T> {
        let reg = self.fresh::<T>();
        let src = vec![a.arg(), lane, Arg::Int(clamp), Arg::Int(0xffff_ffff)];
        self.push(format!("shfl.sync.{mode}.b32"), vec![Arg::Reg(reg)], src, spread, Convergence::Warp);
        Val::new(reg)
    }

    /// The value of lane `lane ^ mask`.
    #[track_caller]
    pub fn shfl_bfly<T: Bits32>(&mut self, a: Val<T>, mask: u32) -> Val<T> {
        self.shfl("bfly", a, Arg::Int(i64::from(mask)), 31, Spread::AtLeast(Uniformity::Lane))
    }

    /// The value of lane `lane`, in every lane.
    #[track_caller]
    pub fn shfl_idx<T: Bits32>(&mut self, a: Val<T>, lane: u32) -> Val<T> {
        self.shfl("idx", a, Arg::Int(i64::from(lane)), 31, Spread::Exactly(Uniformity::Warp))
    }

    /// Whether `cond` holds in any lane.
    #[track_caller]
    pub fn vote_any(&mut self, cond: Val<Pred>) -> Val<Pred> {
        let reg = self.fresh::<Pred>();
        let src = vec![cond.arg(), Arg::Int(0xffff_ffff)];
        let spread = Spread::Exactly(Uniformity::Warp);
        self.push("vote.sync.any.pred", vec![Arg::Reg(reg)], src, spread, Convergence::Warp);
        Val::new(reg)
    }
}
