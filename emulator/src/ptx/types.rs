//! Types and state spaces of PTX.

/// A PTX type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub(crate) enum Ty {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F32x2,
    F64,
    TF32,
    E4M3x2,
    E5M2x2,
    U16x2,
    S16x2,
}

impl Ty {
    /// Reads a type without its dot.
    pub(crate) fn parse(s: &str) -> Option<Ty> {
        Some(match s {
            "pred" => Ty::Pred,
            "b8" => Ty::B8,
            "b16" => Ty::B16,
            "b32" => Ty::B32,
            "b64" => Ty::B64,
            "b128" => Ty::B128,
            "u8" => Ty::U8,
            "u16" => Ty::U16,
            "u32" => Ty::U32,
            "u64" => Ty::U64,
            "s8" => Ty::S8,
            "s16" => Ty::S16,
            "s32" => Ty::S32,
            "s64" => Ty::S64,
            "f16" => Ty::F16,
            "f16x2" => Ty::F16x2,
            "bf16" => Ty::BF16,
            "bf16x2" => Ty::BF16x2,
            "f32" => Ty::F32,
            "f32x2" => Ty::F32x2,
            "f64" => Ty::F64,
            "tf32" => Ty::TF32,
            "e4m3x2" => Ty::E4M3x2,
            "e5m2x2" => Ty::E5M2x2,
            "u16x2" => Ty::U16x2,
            "s16x2" => Ty::S16x2,
            _ => return None,
        })
    }

    /// Bytes in memory and in a register; predicates have none.
    pub(crate) fn bytes(self) -> u32 {
        use Ty::*;
        match self {
            Pred => 0,
            B8 | U8 | S8 => 1,
            B16 | U16 | S16 | F16 | BF16 | E4M3x2 | E5M2x2 => 2,
            B32 | U32 | S32 | F32 | F16x2 | BF16x2 | TF32 | U16x2 | S16x2 => 4,
            B64 | U64 | S64 | F64 | F32x2 => 8,
            B128 => 16,
        }
    }

    /// Bits.
    pub(crate) fn bits(self) -> u32 {
        self.bytes() * 8
    }

    /// Whether values are extended by their sign.
    pub(crate) fn signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }

    /// Whether this is one of the integer types (not `.b`).
    pub(crate) fn integer(self) -> bool {
        matches!(self, Ty::U8 | Ty::U16 | Ty::U32 | Ty::U64) || self.signed()
    }

    /// Whether this is a scalar floating-point type.
    pub(crate) fn float(self) -> bool {
        matches!(self, Ty::F16 | Ty::BF16 | Ty::F32 | Ty::F64 | Ty::TF32)
    }

    /// Whether a register of type `reg` may stand where an instruction wants `self` (same size, and no mixing of
    /// integers with floats).
    pub(crate) fn accepts(self, reg: Ty) -> bool {
        let class = |t: Ty| match t {
            Ty::F32 | Ty::F64 | Ty::F16 => 2,
            _ if t.integer() => 1,
            _ => 0,
        };
        self.bytes() == reg.bytes()
            && (self == Ty::Pred) == (reg == Ty::Pred)
            && (class(self) == 0 || class(reg) == 0 || class(self) == class(reg))
    }
}

/// A state space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Const,
    Param,
}
