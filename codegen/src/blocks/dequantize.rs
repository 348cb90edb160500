//! Rows of weights as floats, for the embedding.

use super::dot::{fitting, may_be_cut};
use super::tensor::Tensor;
use crate::formats::{SuperBlock, format};
use crate::ptx::{Builder, F32, Global, LoadKind, Operand, Size, U32, U64, Val};
use kiln_shape::{SUPER_BLOCK, WeightType};

/// Rows of a matrix, to be written out as floats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    /// The matrix.
    pub(crate) tensor: Tensor,
    /// The types it may have.
    pub(crate) types: &'a [WeightType],
    /// Weights in a row.
    pub(crate) k: Size,
}

impl Row<'_> {
    /// Writes row `row` to `x`: this warp's super-blocks, from `first` on and `step` apart.
    #[track_caller]
    pub(crate) fn write(
        &self,
        b: &mut Builder,
        row: Val<U32>,
        x: Global<F32>,
        first: Val<U32>,
        step: impl Operand<U32> + Copy,
    ) {
        let lane = b.lane();
        let (super_blocks, blocks) = (b.size_div_ceil(self.k, SUPER_BLOCK), b.size_div(self.k, 32));
        for ty in fitting(self.types, self.k) {
            let layout = ty.layout();
            let is = b.setp_eq::<U32>(self.tensor.ty, ty.id());
            b.if_(is, |b| {
                let (row_bytes, plane_bytes) =
                    (b.size_mul(blocks, layout.data / 8), b.size_mul(super_blocks, layout.plane));
                let (data, plane) = (b.address(self.tensor.data), b.address(self.tensor.plane));
                let data: Val<U64> = b.mad_wide(row, row_bytes, data);
                let plane = if layout.plane == 0 { plane } else { b.mad_wide(row, plane_bytes, plane) };
                let (data, plane) = (b.global_ptr(data), b.global_ptr(plane));
                b.for_range(first, super_blocks, step, |b, super_block| {
                    let to = b.byte_index(x, super_block, SUPER_BLOCK * 4);
                    let to = b.byte_index(to, lane, 32);
                    let write = |b: &mut Builder| {
                        let data = b.byte_index(data, super_block, layout.data);
                        let plane = b.byte_index(plane, super_block, layout.plane);
                        let super_block = SuperBlock { data, plane, left: None, kind: LoadKind::Constant };
                        let [v0, v1, v2, v3, v4, v5, v6, v7] = format(ty).eight(b, &super_block, lane);
                        b.st_vector(to, [v0, v1, v2, v3]);
                        b.st_vector(to.at(4), [v4, v5, v6, v7]);
                    };
                    if ty.block_len() < SUPER_BLOCK { inside(b, self.k, super_block, write) } else { write(b) }
                });
            });
        }
    }
}

/// Runs `body` in the lanes whose eight weights of the super-block lie in a row of `k`. The eight are inside or outside
/// together: rows are multiples of 32.
#[track_caller]
pub(crate) fn inside(b: &mut Builder, k: Size, super_block: Val<U32>, body: impl FnOnce(&mut Builder)) {
    if !may_be_cut(k) {
        return body(b);
    }
    let lane = b.lane();
    let at = b.mul::<U32>(super_block, SUPER_BLOCK);
    let at = b.mad::<U32>(lane, 8, at);
    let inside = b.setp_lt::<U32>(at, k);
    b.if_(inside, body);
}
