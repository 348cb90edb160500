//! The types of weights that kiln decodes, and how each lies in device memory.

use crate::GgmlType;
use std::fmt;

/// Weights of a super-block: the unit in which kernels go along a row.
pub const SUPER_BLOCK: u32 = 256;

/// A super-block in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the data. Rows follow each other without a gap.
    pub data: u32,
    /// Bytes of the plane beside the data, which holds what does not come in pieces of 16 bytes; 0 where there is none.
    /// Each row begins a super-block of its own; where its last one is cut, the rest is zero.
    pub plane: u32,
}

/// Makes the enum and what belongs to each type from one table.
macro_rules! weight_types {
    ($($variant:ident: $data:literal, $plane:literal, $entries:literal;)*) => {
        /// A type of weights that kiln decodes. The discriminant is GGML's number.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, missing_docs)] // the field's own names say it all
        #[repr(u32)]
        pub enum WeightType {
            $($variant = GgmlType::$variant as u32,)*
        }

        impl WeightType {
            /// Every type that kiln decodes.
            pub const ALL: &'static [WeightType] = &[$(WeightType::$variant,)*];

            /// The type as GGML knows it.
            pub const fn ggml(self) -> GgmlType {
                match self {
                    $(WeightType::$variant => GgmlType::$variant,)*
                }
            }

            /// Bytes of a super-block in device memory.
            pub const fn layout(self) -> Layout {
                match self {
                    $(WeightType::$variant => Layout { data: $data, plane: $plane },)*
                }
            }

            /// The name in the entry names of kernels, such as `q4k` in `q4k_gemv`.
            pub const fn in_entries(self) -> &'static str {
                match self {
                    $(WeightType::$variant => $entries,)*
                }
            }

            /// Entry names of the general gemv, with a norm before it and without.
            pub const fn gemv_entries(self) -> (&'static str, &'static str) {
                match self {
                    $(WeightType::$variant => {
                        (concat!("fused_rmsnorm_", $entries, "_gemv"), concat!($entries, "_gemv"))
                    })*
                }
            }
        }
    };
}

weight_types! {
    // Bytes of a super-block: data, plane; the name in entry names.
    Q4_0: 128, 16, "q40";
    Q5_0: 128, 48, "q50";
    Q4_K: 144, 0, "q4k";
    Q5_K: 176, 0, "q5k";
    Q6_K: 208, 2, "q6k";
    Q8_0: 256, 16, "q80";
    F16: 512, 0, "f16";
    BF16: 512, 0, "bf16";
    F32: 1024, 0, "f32";
}

impl WeightType {
    /// The type of GGML's that kiln decodes, if it does.
    pub fn from_ggml(ty: GgmlType) -> Option<WeightType> {
        WeightType::ALL.iter().copied().find(|known| known.ggml() == ty)
    }

    /// GGML's number for it.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// GGML's name for it.
    pub const fn name(self) -> &'static str {
        self.ggml().name()
    }

    /// Whether its weights are integers with scales, not floats.
    pub const fn is_quantised(self) -> bool {
        match self {
            WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => true,
            WeightType::Q4_K | WeightType::Q5_K | WeightType::Q6_K => true,
            WeightType::F16 | WeightType::BF16 | WeightType::F32 => false,
        }
    }

    /// Weights in a block of a file.
    pub const fn block_len(self) -> u32 {
        self.ggml().block_len()
    }

    /// Bytes of a block of a file.
    pub const fn block_bytes(self) -> u32 {
        self.ggml().block_bytes()
    }

    /// Bytes of data and plane of a matrix of `rows` rows of `k` weights; `None` if a row is not a whole number of blocks
    /// and of 32 weights, or a size overflows.
    pub const fn matrix_bytes(self, k: u64, rows: u64) -> Option<(u64, u64)> {
        let layout = self.layout();
        if !k.is_multiple_of(self.block_len() as u64) || !k.is_multiple_of(32) {
            return None;
        }
        let Some(data) = (k / 32 * (layout.data as u64 / 8)).checked_mul(rows) else { return None };
        let Some(plane) = (k.div_ceil(SUPER_BLOCK as u64) * layout.plane as u64).checked_mul(rows) else { return None };
        Some((data, plane))
    }

    /// Bytes in a file of a tensor with these dimensions, fastest first; `None` as for [`GgmlType::row_bytes`].
    pub fn tensor_bytes(self, dims: &[u64]) -> Option<u64> {
        self.ggml().tensor_bytes(dims)
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of types: what a model's matrices are stored in, and what kernels were baked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WeightTypes(u64);

impl WeightTypes {
    /// The empty set.
    pub const EMPTY: WeightTypes = WeightTypes(0);
    /// Every type that kiln decodes.
    pub const ALL: WeightTypes = WeightTypes::of(WeightType::ALL);

    /// The set of these types.
    pub const fn of(types: &[WeightType]) -> WeightTypes {
        let mut set = WeightTypes(0);
        let mut i = 0;
        while i < types.len() {
            set = set.with(types[i]);
            i += 1;
        }
        set
    }

    /// The set and one more type.
    pub const fn with(self, ty: WeightType) -> WeightTypes {
        WeightTypes(self.0 | 1 << ty.id()) // the largest id is 39
    }

    /// Whether `ty` is in the set.
    pub const fn contains(self, ty: WeightType) -> bool {
        self.0 >> ty.id() & 1 == 1
    }

    /// What is in `self` and not in `other`.
    pub const fn without(self, other: WeightTypes) -> WeightTypes {
        WeightTypes(self.0 & !other.0)
    }

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its types, by rising id.
    pub fn iter(self) -> impl Iterator<Item = WeightType> {
        GgmlType::ALL.iter().filter_map(|&ty| WeightType::from_ggml(ty)).filter(move |&ty| self.contains(ty))
    }
}

impl FromIterator<WeightType> for WeightTypes {
    fn from_iter<I: IntoIterator<Item = WeightType>>(types: I) -> WeightTypes {
        types.into_iter().fold(WeightTypes::EMPTY, WeightTypes::with)
    }
}

impl fmt::Display for WeightTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ty) in self.iter().enumerate() {
            write!(f, "{}{ty}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for WeightTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}
