//! How GGML stores the numbers of a tensor.

use std::fmt;

/// Makes the enum and the table that goes with it from one list: variant, GGML id, name, weights and bytes per block.
macro_rules! tensor_types {
    ($($variant:ident = $id:literal, $name:literal, $block:literal, $bytes:literal;)*) => {
        /// A GGML tensor type. All published ones are known by name and size; [`TensorType::is_supported`] says
        /// which of them kiln has kernels for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, missing_docs)] // the field's own names say it all
        #[repr(u32)]
        #[non_exhaustive]
        pub enum TensorType {
            $($variant = $id,)*
        }

        impl TensorType {
            /// Every known type.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$variant,)*];

            /// The type with this GGML id.
            pub const fn from_id(id: u32) -> Option<TensorType> {
                match id {
                    $($id => Some(TensorType::$variant),)*
                    _ => None,
                }
            }

            /// GGML's name for it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(TensorType::$variant => $name,)*
                }
            }

            /// Weights in a block. A row holds whole blocks.
            pub const fn block_len(self) -> u32 {
                match self {
                    $(TensorType::$variant => $block,)*
                }
            }

            /// Bytes of a block.
            pub const fn block_bytes(self) -> u32 {
                match self {
                    $(TensorType::$variant => $bytes,)*
                }
            }
        }
    };
}

tensor_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 36;
    Q2_K = 10, "Q2_K", 256, 84;
    Q3_K = 11, "Q3_K", 256, 110;
    Q4_K = 12, "Q4_K", 256, 144;
    Q5_K = 13, "Q5_K", 256, 176;
    Q6_K = 14, "Q6_K", 256, 210;
    Q8_K = 15, "Q8_K", 256, 292;
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    IQ1_S = 19, "IQ1_S", 256, 50;
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    IQ3_S = 21, "IQ3_S", 256, 110;
    IQ2_S = 22, "IQ2_S", 256, 82;
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    IQ1_M = 29, "IQ1_M", 256, 56;
    BF16 = 30, "BF16", 1, 2;
    TQ1_0 = 34, "TQ1_0", 256, 54;
    TQ2_0 = 35, "TQ2_0", 256, 66;
    MXFP4 = 39, "MXFP4", 32, 17;
}

impl TensorType {
    /// The types that kiln has kernels for.
    pub const SUPPORTED: &'static [TensorType] =
        &[TensorType::Q4_K, TensorType::Q6_K, TensorType::Q8_0, TensorType::F16, TensorType::BF16, TensorType::F32];

    /// GGML's number for it.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Whether kiln has kernels for it.
    pub fn is_supported(self) -> bool {
        TensorType::SUPPORTED.contains(&self)
    }

    /// Bytes of a row of `len` weights; `None` if `len` is not a whole number of blocks or the size overflows.
    pub const fn row_bytes(self, len: u64) -> Option<u64> {
        if !len.is_multiple_of(self.block_len() as u64) {
            return None;
        }
        (len / self.block_len() as u64).checked_mul(self.block_bytes() as u64)
    }

    /// Bytes of a tensor with these dimensions, fastest first; `None` as for [`TensorType::row_bytes`].
    pub fn tensor_bytes(self, dims: &[u64]) -> Option<u64> {
        let (first, rest) = dims.split_first()?;
        rest.iter().try_fold(self.row_bytes(*first)?, |bytes, &dim| bytes.checked_mul(dim))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of tensor types: what a model's matrices are stored in, and what kernels were baked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TensorTypeSet(u64);

impl TensorTypeSet {
    /// The empty set.
    pub const EMPTY: TensorTypeSet = TensorTypeSet(0);
    /// Every type that kiln has kernels for.
    pub const SUPPORTED: TensorTypeSet = TensorTypeSet::of(TensorType::SUPPORTED);

    /// The set of these types.
    pub const fn of(types: &[TensorType]) -> TensorTypeSet {
        let mut set = TensorTypeSet(0);
        let mut i = 0;
        while i < types.len() {
            set = set.with(types[i]);
            i += 1;
        }
        set
    }

    /// The set and one more type.
    pub const fn with(self, ty: TensorType) -> TensorTypeSet {
        TensorTypeSet(self.0 | 1 << ty.id()) // the largest id is 39
    }

    /// Whether `ty` is in the set.
    pub const fn contains(self, ty: TensorType) -> bool {
        self.0 >> ty.id() & 1 == 1
    }

    /// What is in `self` and not in `other`.
    pub const fn without(self, other: TensorTypeSet) -> TensorTypeSet {
        TensorTypeSet(self.0 & !other.0)
    }

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its types, by rising id.
    pub fn iter(self) -> impl Iterator<Item = TensorType> {
        TensorType::ALL.iter().copied().filter(move |&ty| self.contains(ty))
    }
}

impl FromIterator<TensorType> for TensorTypeSet {
    fn from_iter<I: IntoIterator<Item = TensorType>>(types: I) -> TensorTypeSet {
        types.into_iter().fold(TensorTypeSet::EMPTY, TensorTypeSet::with)
    }
}

impl fmt::Display for TensorTypeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ty) in self.iter().enumerate() {
            write!(f, "{}{ty}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for TensorTypeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}
