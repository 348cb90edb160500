use super::products::Chosen;
use crate::blocks::math;
use crate::blocks::tensor::vector_from_table;
use crate::ptx::{Builder, F32, Global, LoadKind, U8, U32, U64, Val, Var};

/// What several columns' products become: a bias is added, or the residual, or gate and up become one.
pub(super) struct Epilogue<'a> {
    /// The tensor table.
    pub(super) table: Global<U8>,
    /// `[columns, rows]`: results, and before them the residual where the phase has one.
    pub(super) y: Global<F32>,
    /// Rows of the phase, from a column's results to the next column's.
    pub(super) rows: Val<U32>,
    pub(super) chosen: &'a Chosen,
    /// Whether matrices of the phase `qkv` have biases.
    pub(super) qkv_bias: bool,
}

/// Whose product it is.
#[derive(Clone, Copy)]
pub(super) struct Of {
    /// The number of its matrix in the phase.
    pub(super) number: Val<U32>,
    /// Its row, to which `in_matrix` and `in_phase` are added where there they are.
    pub(super) row: Val<U32>,
    pub(super) in_matrix: Option<Val<U32>>,
    pub(super) in_phase: Val<U32>,
    pub(super) column: Val<U32>,
}

impl Epilogue<'_> {
    /// Makes `value` of a scaled product the result, and gives its place. `pair` are the scaled products with gate and up,
    /// where this may be their result.
    pub(super) fn finish(
        &self,
        b: &mut Builder,
        of: Of,
        value: Var<F32>,
        pair: Option<(Var<F32>, Val<F32>)>,
    ) -> Global<F32> {
        if self.qkv_bias {
            b.if_(self.chosen.is_qkv, |b| {
                let entry = b.add::<U32>(self.chosen.bias, of.number);
                let bias = vector_from_table::<F32>(b, self.table, entry);
                let row = of.in_matrix.map_or(of.row, |first| b.add::<U32>(first, of.row));
                let at = b.index(bias, row);
                add(b, value, at);
            });
        }
        let to = self.place(b, of);
        b.if_(self.chosen.has_residual, |b| add(b, value, to));
        if let Some((gate, up)) = pair {
            b.if_(self.chosen.is_gate_up, |b| {
                let gate = b.get(gate);
                let activated = math::silu(b, gate);
                let product = b.mul(activated, up);
                b.set(value, product);
            });
        }
        to
    }

    /// The place of a result. Results of a batch may be more than 32 bits count.
    fn place(&self, b: &mut Builder, of: Of) -> Global<F32> {
        let row = b.add::<U32>(of.in_phase, of.row);
        let before = b.mad_wide(of.column, self.rows, 0u64);
        let own = b.cvt(row);
        let at = b.add::<U64>(before, own);
        let bytes = b.shl::<U64>(at, 2);
        let y = b.address(self.y);
        let y = b.add::<U64>(y, bytes);
        b.global_ptr::<F32>(y)
    }
}

/// `value += *at`.
fn add(b: &mut Builder, value: Var<F32>, at: Global<F32>) {
    let addend = b.ld(at, LoadKind::Ordinary);
    let sum = b.add(value, addend);
    b.set(value, sum);
}
