//! `silu(gate) * up` of the products of two matrices with one vector.

use super::dot::{Matrix, Rows};
use super::gemv::Pass;
use super::math;
use super::tensor::Tensor;
use crate::ptx::{Builder, F32, Global, LoadKind, Pred, Val, Var};
use kiln_shape::WeightType;

/// `y[n] = silu(scale * (Wgate x)[n]) * scale * (Wup x)[n]` for one tile. `matrix` gives the gate's matrix or the other.
///
/// One loop over both matrices stands for the text of every type twice.
#[track_caller]
pub(crate) fn tile(
    b: &mut Builder,
    types: &[WeightType],
    pass: &Pass,
    rows: Rows,
    y: Global<F32>,
    matrix: impl FnOnce(&mut Builder, Val<Pred>) -> Tensor,
) {
    // After the loop `older` has the sums of the gate and `newer` those of up.
    let zeros = |b: &mut Builder| -> Vec<Var<F32>> { (0..pass.sums_per_lane()).map(|_| b.var(0.0)).collect() };
    let (older, newer) = (zeros(b), zeros(b));
    let mut products = None;
    b.for_range(0, 2, 1, |b, which| {
        let is_gate = b.setp_eq(which, 0);
        let tensor = matrix(b, is_gate);
        let found = pass.rows(b, Matrix { tensor, types, kind: LoadKind::Streaming }, rows);
        for ((older, newer), sum) in older.iter().zip(&newer).zip(&found.sums) {
            let before = b.get(*newer);
            b.set(*older, before);
            b.set(*newer, *sum);
        }
        products = Some(found);
    });
    let Some(products) = products else { return };
    for ((row, gate), up) in products.rows.into_iter().zip(older).zip(newer) {
        let inside = b.setp_lt(row, rows.end);
        let writes = b.and_pred(inside, products.leader);
        b.if_(writes, |b| {
            let (mut gate, mut up) = (b.get(gate), b.get(up));
            if let Some(scale) = pass.scale {
                (gate, up) = (b.mul(gate, scale), b.mul(up, scale));
            }
            let activated = math::silu(b, gate);
            let value = b.mul(activated, up);
            let to = b.index(y, row);
            b.st(to, value);
        });
    }
}
