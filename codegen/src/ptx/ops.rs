//! Instructions between registers, one method each, named after the mnemonic.

use super::builder::Builder;
use super::ir::Arg;
use super::modifiers::{AtomicOp, Compare, Half, Rounding, Shuffle, Type};
use super::table::Op;
use super::types::{
    Bits16, Bits32, F16, F32, Float, Integer, Number, Operand, Pred, S32, Scalar, Size, Stored, U16, U32, U64, Val,
};

/// The mask of an exchange that the whole warp takes part in.
pub(super) const ALL_LANES: Arg = Arg::Int(0xffff_ffff);

/// Types that `cvt` converts to from `From`, with the rounding that this needs.
pub trait Convert<From: Scalar>: Scalar {
    /// How the value is rounded; `None` where it is exact or cut off.
    const ROUNDING: Option<Rounding>;
}

macro_rules! conversions {
    ($($to:ident <- $from:ident $rounding:expr;)*) => {$(
        impl Convert<$from> for $to { const ROUNDING: Option<Rounding> = $rounding; }
    )*};
}
conversions! {
    F32 <- F16 None;
    F16 <- F32 Some(Rounding::Nearest);
    F32 <- U32 Some(Rounding::Nearest);
    F32 <- S32 Some(Rounding::Nearest);
    F32 <- U64 Some(Rounding::Nearest);
    U32 <- F32 Some(Rounding::ZeroInteger);
    U64 <- F32 Some(Rounding::ZeroInteger);
    S32 <- F32 Some(Rounding::NearestInteger);
    U64 <- U32 None;
    U32 <- U64 None;
    U16 <- U32 None;
}

/// How a number of 32 bits is divided by a constant: `(a * factor) >> 32 >> shift`, with 2^32 more in the factor where `adds`
/// says so (Granlund and Montgomery, 1994).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reciprocal {
    factor: u32,
    shift: u32,
    adds: bool,
}

impl Reciprocal {
    /// Of a divisor that is no power of two; none of some above 2^31.
    fn of(divisor: u32) -> Option<Reciprocal> {
        let d = u64::from(divisor);
        (0..u32::BITS).find_map(|shift| {
            let power = 1u64 << (u32::BITS + shift);
            let factor = power.div_ceil(d);
            // Then it is exact for every number of 32 bits.
            let is_exact = factor * d - power <= 1 << shift;
            is_exact.then_some(Reciprocal { factor: factor as u32, shift, adds: factor > u64::from(u32::MAX) })
        })
    }
}

impl Builder {
    // ---- arithmetic

    /// `a + b`.
    #[track_caller]
    pub fn add<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(Op::Add { ty: T::TYPE }, [a.arg(), b.arg()])
    }

    /// `a - b`.
    #[track_caller]
    pub fn sub<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(Op::Sub { ty: T::TYPE }, [a.arg(), b.arg()])
    }

    /// `a * b`, the low half for integers.
    #[track_caller]
    pub fn mul<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(Op::Mul { ty: T::TYPE }, [a.arg(), b.arg()])
    }

    /// `a * b + c`, integers, the low half.
    #[track_caller]
    pub fn mad<T: Integer>(&mut self, a: impl Operand<T>, b: impl Operand<T>, c: impl Operand<T>) -> Val<T> {
        self.emit(Op::Mad { ty: T::TYPE }, [a.arg(), b.arg(), c.arg()])
    }

    /// The upper half of `a * b`, and `c`.
    #[track_caller]
    pub fn mad_hi(&mut self, a: impl Operand<U32>, b: impl Operand<U32>, c: impl Operand<U32>) -> Val<U32> {
        self.emit(Op::MadHi, [a.arg(), b.arg(), c.arg()])
    }

    /// `a * b + c` of two `u32` and a `u64`.
    #[track_caller]
    pub fn mad_wide(&mut self, a: impl Operand<U32>, b: impl Operand<U32>, c: impl Operand<U64>) -> Val<U64> {
        self.emit(Op::MadWide, [a.arg(), b.arg(), c.arg()])
    }

    /// `a * b + c`, rounded once.
    #[track_caller]
    pub fn fma<T: Float>(&mut self, a: impl Operand<T>, b: impl Operand<T>, c: impl Operand<T>) -> Val<T> {
        self.emit(Op::Fma { ty: T::TYPE }, [a.arg(), b.arg(), c.arg()])
    }

    /// `a / b`: correctly rounded for floats, truncated for integers.
    #[track_caller]
    pub fn div<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        let b = b.arg();
        // The assembler makes a division of it even where a shift would do.
        if let (Type::U32 | Type::U64, Arg::Int(divisor @ 1..)) = (T::TYPE, &b)
            && (*divisor as u64).is_power_of_two()
        {
            let bits = Arg::Int(i64::from(divisor.trailing_zeros()));
            return self.emit(Op::Shr { ty: T::TYPE }, [a.arg(), bits]);
        }
        if let (Type::U32, Arg::Int(divisor @ 1..)) = (T::TYPE, &b)
            && let Some(reciprocal) = u32::try_from(*divisor).ok().and_then(Reciprocal::of)
        {
            return self.by_reciprocal(a.arg(), reciprocal);
        }
        self.emit(Op::Div { ty: T::TYPE }, [a.arg(), b])
    }

    /// `a / divisor`, no power of two, by the upper half of a product: of a division the assembler makes a reciprocal in
    /// floats and its corrections, twenty instructions one behind another, also where the divisor is a constant.
    #[track_caller]
    fn by_reciprocal<T: Number>(&mut self, a: Arg, reciprocal: Reciprocal) -> Val<T> {
        let (ty, int) = (T::TYPE, |value: u32| Arg::Int(value.into()));
        let upper = self.emit::<T, _>(Op::MadHi, [a.clone(), int(reciprocal.factor), int(0)]);
        if !reciprocal.adds {
            return self.emit(Op::Shr { ty }, [upper.arg(), int(reciprocal.shift)]);
        }
        // The factor has 33 bits: `a` times its highest one is added, without the sum's carry.
        let rest = self.emit::<T, _>(Op::Sub { ty }, [a, upper.arg()]);
        let half = self.emit::<T, _>(Op::Shr { ty }, [rest.arg(), int(1)]);
        let sum = self.emit::<T, _>(Op::Add { ty }, [half.arg(), upper.arg()]);
        self.emit(Op::Shr { ty }, [sum.arg(), int(reciprocal.shift - 1)])
    }

    /// `a % b`.
    #[track_caller]
    pub fn rem<T: Integer>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        let (a, b) = (a.arg(), b.arg());
        if let (Type::U32, Arg::Int(divisor @ 1..)) = (T::TYPE, &b)
            && let Ok(divisor) = u32::try_from(*divisor)
        {
            if divisor.is_power_of_two() {
                return self.emit(Op::And { ty: T::BITS }, [a, Arg::Int(i64::from(divisor - 1))]);
            }
            if let Some(reciprocal) = Reciprocal::of(divisor) {
                let quotient = self.by_reciprocal::<T>(a.clone(), reciprocal);
                let whole = self.emit::<T, _>(Op::Mul { ty: T::TYPE }, [quotient.arg(), b]);
                return self.emit(Op::Sub { ty: T::TYPE }, [a, whole.arg()]);
            }
        }
        self.emit(Op::Rem { ty: T::TYPE }, [a, b])
    }

    /// The lesser. For floats, the one that is a number.
    #[track_caller]
    pub fn min<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(Op::Min { ty: T::TYPE }, [a.arg(), b.arg()])
    }

    /// The greater. For floats, the one that is a number.
    #[track_caller]
    pub fn max<T: Number>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(Op::Max { ty: T::TYPE }, [a.arg(), b.arg()])
    }

    /// The greater, NaN where one is. Needs sm_80.
    #[track_caller]
    pub fn max_nan(&mut self, a: impl Operand<F32>, b: impl Operand<F32>) -> Val<F32> {
        self.emit(Op::MaxNan, [a.arg(), b.arg()])
    }

    /// `-a`.
    #[track_caller]
    pub fn neg<T: Float>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(Op::Neg { ty: T::TYPE }, [a.arg()])
    }

    /// `|a|`.
    #[track_caller]
    pub fn abs<T: Float>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(Op::Abs { ty: T::TYPE }, [a.arg()])
    }

    /// `1 / a`, correctly rounded.
    #[track_caller]
    pub fn rcp<T: Float>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(Op::Rcp { ty: T::TYPE }, [a.arg()])
    }

    /// The square root, correctly rounded.
    #[track_caller]
    pub fn sqrt<T: Float>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(Op::Sqrt { ty: T::TYPE }, [a.arg()])
    }

    /// `2^a`, within 2 ulp and more (`.approx`). Its bits are the chip's own: not for exact numerics.
    #[track_caller]
    pub fn ex2_approx(&mut self, a: impl Operand<F32>) -> Val<F32> {
        self.emit(Op::Ex2, [a.arg()])
    }

    /// The dot product of the four bytes of `a` with the four signed bytes of `b`, added to `c`. Those of `a` are signed
    /// for [`S32`], unsigned for [`U32`].
    #[track_caller]
    pub fn dp4a<T: Bits32 + Integer>(
        &mut self,
        a: impl Operand<T>,
        b: impl Operand<U32>,
        c: impl Operand<S32>,
    ) -> Val<S32> {
        self.emit(Op::Dp4a { bytes: T::TYPE }, [a.arg(), b.arg(), c.arg()])
    }

    /// The sum of `|a - b|` over four signed bytes of each, added to `c`. NVIDIA's assembler takes no constants here.
    #[track_caller]
    pub fn vabsdiff4(&mut self, a: Val<U32>, b: Val<U32>, c: Val<U32>) -> Val<U32> {
        self.emit(Op::Vabsdiff4, [a.arg(), b.arg(), c.arg()])
    }

    /// The dot product of the two signed half words of `a` with the low or high two bytes of `b`, added to `c`. The bytes
    /// are signed for [`S32`], unsigned for [`U32`].
    #[track_caller]
    pub fn dp2a<T: Bits32 + Integer>(
        &mut self,
        half: Half,
        a: impl Operand<U32>,
        b: impl Operand<T>,
        c: impl Operand<S32>,
    ) -> Val<S32> {
        self.emit(Op::Dp2a { half, bytes: T::TYPE }, [a.arg(), b.arg(), c.arg()])
    }

    // ---- bits

    /// `a & b`.
    #[track_caller]
    pub fn and<T: Integer>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(Op::And { ty: T::BITS }, [a.arg(), b.arg()])
    }

    /// `a | b`.
    #[track_caller]
    pub fn or<T: Integer>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(Op::Or { ty: T::BITS }, [a.arg(), b.arg()])
    }

    /// `a ^ b`.
    #[track_caller]
    pub fn xor<T: Integer>(&mut self, a: impl Operand<T>, b: impl Operand<T>) -> Val<T> {
        self.emit(Op::Xor { ty: T::BITS }, [a.arg(), b.arg()])
    }

    /// `a << bits`; 0 from the register's width on.
    #[track_caller]
    pub fn shl<T: Integer>(&mut self, a: impl Operand<T>, bits: impl Operand<U32>) -> Val<T> {
        self.emit(Op::Shl { ty: T::BITS }, [a.arg(), bits.arg()])
    }

    /// `a >> bits`: logical for unsigned types, arithmetic for signed ones.
    #[track_caller]
    pub fn shr<T: Integer>(&mut self, a: impl Operand<T>, bits: impl Operand<U32>) -> Val<T> {
        self.emit(Op::Shr { ty: T::TYPE }, [a.arg(), bits.arg()])
    }

    /// Any function of three bits, by its truth table: `table = f(0xf0, 0xcc, 0xaa)`.
    #[track_caller]
    pub fn lop3(&mut self, a: impl Operand<U32>, b: impl Operand<U32>, c: impl Operand<U32>, table: u8) -> Val<U32> {
        self.emit(Op::Lop3, [a.arg(), b.arg(), c.arg(), Arg::Int(i64::from(table))])
    }

    /// `(a & b) | c` in one instruction.
    #[track_caller]
    pub fn and_or(&mut self, a: impl Operand<U32>, b: impl Operand<U32>, c: impl Operand<U32>) -> Val<U32> {
        self.lop3(a, b, c, (0xf0 & 0xcc) | 0xaa)
    }

    /// Picks four of the eight bytes of `b:a`; nibble i of `selector` chooses byte i of the result.
    #[track_caller]
    pub fn prmt(&mut self, a: impl Operand<U32>, b: impl Operand<U32>, selector: impl Operand<U32>) -> Val<U32> {
        self.emit(Op::Prmt, [a.arg(), b.arg(), selector.arg()])
    }

    /// Bits `start..start + count` of `a`, zero-extended for unsigned types.
    #[track_caller]
    pub fn bfe<T: Integer + Bits32>(
        &mut self,
        a: impl Operand<T>,
        start: impl Operand<U32>,
        count: impl Operand<U32>,
    ) -> Val<T> {
        self.emit(Op::Bfe { ty: T::TYPE }, [a.arg(), start.arg(), count.arg()])
    }

    // ---- conversions

    /// Converts a value: `let x: Val<F32> = b.cvt(half)`.
    #[track_caller]
    pub fn cvt<To: Convert<From>, From: Scalar>(&mut self, a: Val<From>) -> Val<To> {
        self.emit(Op::Cvt { to: To::TYPE, from: From::TYPE, rounding: To::ROUNDING }, [a.arg()])
    }

    /// The same 32 bits seen as another type.
    #[track_caller]
    pub fn mov_bits<To: Bits32, From: Bits32>(&mut self, a: Val<From>) -> Val<To> {
        if To::CLASS == From::CLASS {
            return Val::new(a.reg);
        }
        self.emit(Op::Mov { ty: Type::B32 }, [a.arg()])
    }

    /// A constant or dimension in a register.
    #[track_caller]
    pub fn mov<T: Scalar>(&mut self, a: impl Operand<T>) -> Val<T> {
        self.emit(Op::Mov { ty: T::BITS }, [a.arg()])
    }

    /// The two 16-bit halves of a 32-bit register, low half first.
    #[track_caller]
    pub fn unpack<T: Bits16>(&mut self, a: Val<U32>) -> [Val<T>; 2] {
        let (low, high) = (self.fresh::<T>(), self.fresh::<T>());
        let halves = Arg::Vector(vec![Arg::Reg(low), Arg::Reg(high)]);
        self.push(Op::Unpack { whole: Type::B32, half: Type::B16 }, [halves], [a.arg()], None);
        [Val::new(low), Val::new(high)]
    }

    /// Two 16-bit values in a 32-bit register, the first in the low half.
    #[track_caller]
    pub fn pack<T: Bits16>(&mut self, low: Val<T>, high: Val<T>) -> Val<U32> {
        self.emit(Op::Pack { whole: Type::B32, half: Type::B16 }, [Arg::Vector(vec![low.arg(), high.arg()])])
    }

    /// Two numbers rounded to half precision in a 32-bit register, the first in the low half: one instruction from sm_80
    /// on, which older targets lack.
    #[track_caller]
    pub fn cvt_f16x2(&mut self, low: impl Operand<F32>, high: impl Operand<F32>) -> Val<U32> {
        self.emit(Op::CvtF16x2, [high.arg(), low.arg()])
    }

    /// Two 32-bit values in a 64-bit register, the first in the low half.
    #[track_caller]
    pub fn pack64(&mut self, low: impl Operand<U32>, high: impl Operand<U32>) -> Val<U64> {
        self.emit(Op::Pack { whole: Type::B64, half: Type::B32 }, [Arg::Vector(vec![low.arg(), high.arg()])])
    }

    /// The two 32-bit halves of a 64-bit register, low half first.
    #[track_caller]
    pub fn unpack64(&mut self, a: Val<U64>) -> [Val<U32>; 2] {
        let (low, high) = (self.fresh::<U32>(), self.fresh::<U32>());
        let halves = Arg::Vector(vec![Arg::Reg(low), Arg::Reg(high)]);
        self.push(Op::Unpack { whole: Type::B64, half: Type::B32 }, [halves], [a.arg()], None);
        [Val::new(low), Val::new(high)]
    }

    // ---- comparison and choice

    /// Compares.
    #[track_caller]
    pub fn setp<T: Number>(&mut self, how: Compare, a: impl Operand<T>, b: impl Operand<T>) -> Val<Pred> {
        self.emit(Op::Setp { how, ty: T::TYPE }, [a.arg(), b.arg()])
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
        self.emit(Op::And { ty: Type::Pred }, [a.arg(), b.arg()])
    }

    /// `a || b`.
    #[track_caller]
    pub fn or_pred(&mut self, a: Val<Pred>, b: Val<Pred>) -> Val<Pred> {
        self.emit(Op::Or { ty: Type::Pred }, [a.arg(), b.arg()])
    }

    /// `!a`.
    #[track_caller]
    pub fn not_pred(&mut self, a: Val<Pred>) -> Val<Pred> {
        self.emit(Op::Not { ty: Type::Pred }, [a.arg()])
    }

    /// `cond ? a : b`.
    #[track_caller]
    pub fn selp<T: Stored>(&mut self, a: impl Operand<T>, b: impl Operand<T>, cond: Val<Pred>) -> Val<T> {
        self.emit(Op::Selp { ty: T::BITS }, [a.arg(), b.arg(), cond.arg()])
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
    fn shfl<T: Bits32>(&mut self, mode: Shuffle, a: Val<T>, lane: u32) -> Val<T> {
        self.emit(Op::Shfl { mode }, [a.arg(), lane.arg(), Arg::Int(31), ALL_LANES])
    }

    /// The value of lane `lane ^ mask`.
    #[track_caller]
    pub fn shfl_bfly<T: Bits32>(&mut self, a: Val<T>, mask: u32) -> Val<T> {
        self.shfl(Shuffle::Butterfly, a, mask)
    }

    /// The value of lane `lane`, in every lane.
    #[track_caller]
    pub fn shfl_idx<T: Bits32>(&mut self, a: Val<T>, lane: u32) -> Val<T> {
        self.shfl(Shuffle::Index, a, lane)
    }

    /// The sum, maximum or bitwise or of all lanes' values, in every lane.
    #[track_caller]
    pub fn redux<T: Bits32 + Integer>(&mut self, op: AtomicOp, a: Val<T>) -> Val<T> {
        let ty = match op {
            AtomicOp::Add | AtomicOp::Max => T::TYPE,
            AtomicOp::Or => T::BITS,
        };
        self.emit(Op::Redux { op, ty }, [a.arg(), ALL_LANES])
    }

    /// Whether `cond` holds in any lane.
    #[track_caller]
    pub fn vote_any(&mut self, cond: Val<Pred>) -> Val<Pred> {
        self.emit(Op::VoteAny, [cond.arg(), ALL_LANES])
    }

    /// `elect.sync`: true in one lane, always the same one. Every lane must execute it. The assembler knows that whoever
    /// follows it is alone, and makes no loops over lanes of what one lane issues for all.
    #[track_caller]
    pub fn elect(&mut self) -> Val<Pred> {
        self.emit(Op::Elect, [ALL_LANES])
    }

    /// The lanes where `cond` is true, lane l as bit l. Every lane must execute it.
    #[track_caller]
    pub fn vote_ballot(&mut self, cond: Val<Pred>) -> Val<U32> {
        self.emit(Op::VoteBallot, [cond.arg(), ALL_LANES])
    }
}

#[cfg(test)]
mod tests {
    use super::Reciprocal;

    #[test]
    fn a_reciprocal_divides_every_number() {
        for divisor in
            (3..4000).chain([0x7fff_ffff, 0x7fff_fffe, 151_936, 1152, 65_537]).filter(|d: &u32| !d.is_power_of_two())
        {
            let of = Reciprocal::of(divisor).expect("of every divisor up to 2^31");
            let quotient = |a: u32| {
                let upper = ((u64::from(a) * u64::from(of.factor)) >> 32) as u32;
                match of.adds {
                    false => upper >> of.shift,
                    true => (((a - upper) >> 1) + upper) >> (of.shift - 1),
                }
            };
            let last = u32::MAX / divisor * divisor;
            let edges = [0, 1, divisor - 1, divisor, divisor + 1, last - 1, last, last.saturating_add(1), u32::MAX];
            for a in edges.into_iter().chain((0..32).map(|bit| 1 << bit)) {
                assert_eq!(quotient(a), a / divisor, "{a} / {divisor}: {of:?}");
            }
        }
    }
}
