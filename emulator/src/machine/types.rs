//! Types and state spaces of PTX.

/// An enumeration whose variants have names: `NAMES` lists both.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub(crate) enum $name {
            $($variant),+
        }

        impl $name {
            /// Names and variants.
            pub(crate) const NAMES: &'static [(&'static str, $name)] = &[$(($text, $name::$variant)),+];

            /// The variant's name.
            #[allow(dead_code)]
            pub(crate) fn name(self) -> &'static str {
                Self::NAMES[self as usize].0
            }
        }
    };
}
pub(crate) use named;

named! {
    /// A PTX type.
    Ty {
        Pred = "pred", B8 = "b8", B16 = "b16", B32 = "b32", B64 = "b64",
        U8 = "u8", U16 = "u16", U32 = "u32", U64 = "u64", S8 = "s8", S16 = "s16", S32 = "s32", S64 = "s64",
        F16 = "f16", F16x2 = "f16x2", BF16 = "bf16", BF16x2 = "bf16x2", F32 = "f32", F64 = "f64",
        TF32 = "tf32", E4M3x2 = "e4m3x2", E5M2x2 = "e5m2x2", U16x2 = "u16x2", S16x2 = "s16x2",
    }
}

impl Ty {
    /// Reads a type without its dot.
    pub(crate) fn parse(s: &str) -> Option<Ty> {
        Ty::NAMES.iter().find(|(name, _)| *name == s).map(|(_, ty)| *ty)
    }

    /// Bytes in memory and in a register; predicates have none.
    pub(crate) fn bytes(self) -> u32 {
        use Ty::*;
        match self {
            Pred => 0,
            B8 | U8 | S8 => 1,
            B16 | U16 | S16 | F16 | BF16 | E4M3x2 | E5M2x2 => 2,
            B32 | U32 | S32 | F32 | F16x2 | BF16x2 | TF32 | U16x2 | S16x2 => 4,
            B64 | U64 | S64 | F64 => 8,
        }
    }

    pub(crate) fn bits(self) -> u32 {
        self.bytes() * 8
    }

    /// Whether it is a signed integer type.
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

    /// The element type of a packed one, or the type itself.
    pub(crate) fn element(self) -> Ty {
        match self {
            Ty::F16x2 => Ty::F16,
            Ty::BF16x2 => Ty::BF16,
            Ty::U16x2 => Ty::U16,
            Ty::S16x2 => Ty::S16,
            t => t,
        }
    }

    /// The integer type of a size.
    pub(crate) fn sized(bytes: u32, signed: bool) -> Option<Ty> {
        let fits = |ty: &Ty| ty.integer() && ty.bytes() == bytes && ty.signed() == signed;
        Ty::NAMES.iter().map(|(_, ty)| *ty).find(fits)
    }

    /// Whether a register of type `reg` may stand where an instruction wants `self` (same size, and no mixing of
    /// integers with floats).
    pub(crate) fn accepts(self, reg: Ty) -> bool {
        let float = |t: Ty| matches!(t, Ty::F32 | Ty::F64 | Ty::F16);
        let mixed = self.integer() && float(reg) || float(self) && reg.integer();
        self.bytes() == reg.bytes() && !mixed
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

impl Space {
    /// Reads a state space without its dot.
    pub(crate) fn parse(s: &str) -> Option<Space> {
        Some(match s {
            "global" => Space::Global,
            "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
            "local" => Space::Local,
            "const" => Space::Const,
            "param" | "param::entry" | "param::func" => Space::Param,
            _ => return None,
        })
    }
}
