//! Copies of a row's super-blocks to shared memory, as products of many columns have them there: a record, and behind it those
//! of its plane where these are whole pieces of 16 bytes.

use super::gemm_tile::Matrices;
use crate::matrix;
use crate::ptx::{Builder, Global, Operand, Shared, Size, U8, U32, U64, Val};
use kiln_shape::WeightType;
use kiln_shape::columns::{record, record_stride};

/// A lane's copies of a row: every second piece of 16 bytes, by the lane's number.
pub(crate) struct RowCopies {
    data: Global<U8>,
    plane: Global<U8>,
    /// Bytes of the row from there on, where rows may end within a super-block.
    left: Option<Val<U32>>,
    /// Where it goes in a stage.
    to: Val<U32>,
}

/// Bytes of one row.
pub(crate) struct RowSizes {
    /// Of its data, and of its plane.
    pub(crate) row: Val<U32>,
    pub(crate) plane: Val<U32>,
}

impl RowSizes {
    /// Of rows of `k` weights in so many super-blocks, which take so many bytes each, and so many of the plane.
    pub(crate) fn new(
        b: &mut Builder,
        [k, super_blocks]: [Val<U32>; 2],
        (data, plane): (impl Operand<U32>, impl Operand<U32>),
    ) -> RowSizes {
        let blocks = b.div::<U32>(k, 32);
        let row = b.mul::<U32>(blocks, data);
        let row = b.shr::<U32>(row, 3);
        RowSizes { row, plane: b.mul::<U32>(super_blocks, plane) }
    }

    /// The addresses of row `row` of a tile and of its plane.
    pub(crate) fn addresses(&self, b: &mut Builder, of: &Matrices, row: Val<U32>) -> [Val<U64>; 2] {
        let (tensor, row) = of.locate(b, row, 16);
        [(tensor.data, self.row), (tensor.plane, self.plane)].map(|(from, bytes)| {
            let at = b.address(from);
            b.mad_wide(row, bytes, at)
        })
    }
}

impl RowCopies {
    /// Those of row `row` of a tile, which is at these addresses; `bytes` are the row's where it may end within a super-block.
    pub(crate) fn new(
        b: &mut Builder,
        (ty, bytes): (WeightType, Option<Val<U32>>),
        row: Val<U32>,
        addresses: [Val<U64>; 2],
    ) -> RowCopies {
        let lane = b.lane();
        let odd = b.and::<U32>(lane, 1);
        let before = b.shl::<U32>(odd, 4);
        let [data, plane] = addresses.map(|at| b.global_ptr::<U8>(at));
        RowCopies {
            data: b.byte_index(data, odd, 16),
            plane,
            left: bytes.map(|bytes| b.sub::<U32>(bytes, before)),
            to: b.mad::<U32>(row, record_stride(ty), before),
        }
    }

    /// Starts those of super-block `sb` to a stage.
    pub(crate) fn start(&self, b: &mut Builder, stage: Shared<U32>, sb: Val<U32>, ty: WeightType) {
        let (lane, bytes) = (b.lane(), ty.layout().data);
        let to = b.byte_index(stage, self.to, 1);
        let from = b.byte_index(self.data, sb, bytes);
        let odd = b.and::<U32>(lane, 1);
        let is_first = b.setp_eq(odd, 0);
        let before = self.left.map(|left| (left, b.mul::<U32>(sb, bytes)));
        for piece in (0..bytes / 16).step_by(2) {
            let copy = |b: &mut Builder| {
                let at = 16 * piece;
                let read = match before {
                    None => Size::Const(16),
                    Some((left, before)) => {
                        let end = b.add::<U32>(before, at);
                        let inside = b.setp_lt(end, left);
                        Size::Reg(b.selp::<U32>(16, 0, inside))
                    }
                };
                matrix::copy(b, to.at(at / 4), from.at(at), read);
            };
            // The last of an odd number of pieces has no second.
            if piece + 1 == bytes / 16 { b.if_(is_first, copy) } else { copy(b) }
        }
        let beside = record(ty) - bytes;
        if beside > 0 {
            let from = b.byte_index(self.plane, sb, beside);
            b.if_(is_first, |b| {
                for piece in 0..beside / 16 {
                    matrix::copy(b, to.at((bytes + 16 * piece) / 4), from.at(16 * piece), Size::Const(16));
                }
            });
        }
    }
}
