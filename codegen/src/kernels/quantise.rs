use super::Kernel;
use crate::blocks::dependent;
use crate::blocks::quantise_columns::{self, Gamma};
use crate::ptx::{Builder, F32, Global, U8, U32};
use kiln_shape::{ModelShape, Numerics, SUPER_BLOCK, WeightType};

/// Columns of activations rounded to bytes for [`super::Gemm`], normalised before or not: one block a column, `[columns]`,
/// rounded up to whole eights, whose rest becomes zeros.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantise {
    /// The longest column.
    most: u32,
    /// The types of weights that they meet.
    types: Vec<WeightType>,
}

impl Quantise {
    /// For a model with matrices of those of `types` that fast numerics have for it.
    pub fn new(shape: &ModelShape, types: &[WeightType]) -> Quantise {
        let types = types.iter().copied().filter(|ty| ty.is_quantised() && Numerics::Fast.takes(*ty, shape)).collect();
        Quantise { most: shape.hidden.max(shape.q_dim()).max(shape.ffn), types }
    }
}

impl Kernel for Quantise {
    fn name(&self) -> &str {
        "quantise"
    }

    /// Half as many warps as most kernels have: a column has few super-blocks for each, and there are many columns.
    fn block(&self) -> u32 {
        128
    }

    fn check(&self) -> Result<(), String> {
        let most = 127 * SUPER_BLOCK;
        if self.most > most {
            return Err(format!("a column has {} activations: at most {most} fit a block's shared memory", self.most));
        }
        if self.types.is_empty() {
            return Err("no quantised type of weights: needs at least one".to_owned());
        }
        Ok(())
    }

    fn build(&self, b: &mut Builder) {
        let table = b.param::<Global<U8>>("table"); // the tensor table
        let norm = b.param::<U32>("norm"); // the entry of the norm's gamma, or 0 for none
        let operands = quantise_columns::Operands {
            gamma: Gamma::Entry { table, norm },
            x: b.param::<Global<F32>>("x"),             // [columns, k]
            k: b.param::<U32>("k"),                     // a multiple of 32
            eps: b.param::<F32>("eps"),                 // of the norm
            columns: b.param::<U32>("columns"),         // those that are there
            wanted: Some(b.param::<U32>("wanted")), // of each type that they meet its bit: types with one way of rounding
            to: b.param::<Global<U8>>("to"),        // [columns, k] rounded: see `kiln_shape::columns`
            inverse: b.param::<Global<F32>>("inverse"), // [columns]: what their products are multiplied with
        };
        dependent::wait(b);
        quantise_columns::column(b, &self.types, self.most, &operands);
    }
}
