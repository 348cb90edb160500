//! The types in which GGML stores the numbers of a tensor.

use std::fmt;

/// Makes the enum and the table that goes with it from one list: variant, GGML id, name, weights and bytes per block.
macro_rules! tensor_types {
    ($($variant:ident = $id:literal, $name:literal, $block:literal, $bytes:literal;)*) => {
        /// A GGML tensor type. All published ones are known by name and size; those that kiln decodes are
        /// [`WeightType`](crate::WeightType)s.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, missing_docs)] // the field's own names say it all
        #[repr(u32)]
        #[non_exhaustive]
        pub enum GgmlType {
            $($variant = $id,)*
        }

        impl GgmlType {
            /// Every known type.
            pub const ALL: &'static [GgmlType] = &[$(GgmlType::$variant,)*];

            /// The type with this GGML id.
            pub const fn from_id(id: u32) -> Option<GgmlType> {
                match id {
                    $($id => Some(GgmlType::$variant),)*
                    _ => None,
                }
            }

            /// GGML's name for it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(GgmlType::$variant => $name,)*
                }
            }

            /// Weights in a block. A row holds whole blocks.
            pub const fn block_len(self) -> u32 {
                match self {
                    $(GgmlType::$variant => $block,)*
                }
            }

            /// Bytes of a block.
            pub const fn block_bytes(self) -> u32 {
                match self {
                    $(GgmlType::$variant => $bytes,)*
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

impl GgmlType {
    /// GGML's number for it.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of a row of `len` weights; `None` if `len` is not a whole number of blocks or the size overflows.
    pub const fn row_bytes(self, len: u64) -> Option<u64> {
        if !len.is_multiple_of(self.block_len() as u64) {
            return None;
        }
        (len / self.block_len() as u64).checked_mul(self.block_bytes() as u64)
    }

    /// Bytes of a tensor with these dimensions, fastest first; `None` as for [`GgmlType::row_bytes`].
    pub fn tensor_bytes(self, dims: &[u64]) -> Option<u64> {
        let (first, rest) = dims.split_first()?;
        rest.iter().try_fold(self.row_bytes(*first)?, |bytes, &dim| bytes.checked_mul(dim))
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
