use super::Kernel;
use crate::blocks::quantise_columns::{self, Gamma};
use crate::ptx::{Builder, F32, Global, U8, U32};
use kiln_shape::{SUPER_BLOCK, WeightType};

/// Columns of activations rounded to bytes for [`super::MatrixColumns`], normalised before or not, of any length: one block
/// a column, `[columns]`, rounded up to whole tiles of 64, whose rest becomes zeros.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundColumns {
    /// A type of weights that they meet: what is rounded alike is one kernel.
    ty: WeightType,
}

impl RoundColumns {
    /// The longest column: a block stages it whole in the shared memory that every chip from sm_80 on has.
    pub const LONGEST: u32 = 127 * SUPER_BLOCK;

    /// For weights whose activations have a scale for each 256: `columns_of_256`.
    pub const fn of_256() -> RoundColumns {
        RoundColumns { ty: WeightType::Q4_K }
    }

    /// For weights whose activations have a scale for each 32: `columns_of_32`.
    pub const fn of_32() -> RoundColumns {
        RoundColumns { ty: WeightType::Q8_0 }
    }
}

impl Kernel for RoundColumns {
    fn name(&self) -> &str {
        if self.ty.block_len() == 32 { "columns_of_32" } else { "columns_of_256" }
    }

    fn build(&self, b: &mut Builder) {
        let x = b.param::<Global<F32>>("x"); // [columns, k]
        let gamma = b.param::<Global<F32>>("gamma"); // [k], or null: no norm
        let k = b.param::<U32>("k"); // a multiple of 32
        let eps = b.param::<F32>("eps"); // of the norm
        let columns = b.param::<U32>("columns"); // those that are there
        let to = b.param::<Global<U8>>("to"); // [columns, k] rounded: see `kiln_shape::columns`
        let inverse = b.param::<Global<F32>>("inverse"); // [columns]: what their products are multiplied with
        let operands =
            quantise_columns::Operands { gamma: Gamma::Given(gamma), x, k, eps, columns, wanted: None, to, inverse };
        quantise_columns::column(b, &[self.ty], RoundColumns::LONGEST, &operands);
    }
}
