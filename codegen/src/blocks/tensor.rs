//! A weight matrix in device memory: where it is and of what type, read from the tensor table or given by parameters.

use crate::ptx::{Builder, Global, LoadKind, Operand, U8, U32, U64, Val};
use kiln_shape::table::{DATA_OFFSET, ENTRY_BYTES, PLANE_OFFSET, TYPE_OFFSET};

/// A matrix of quantised or plain rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tensor {
    /// Rows of blocks; for Q6_K records of 208 bytes, for Q8_0 the quants alone.
    pub(crate) data: Global<U8>,
    /// The plane of f16 scales of Q6_K and Q8_0.
    pub(crate) plane: Global<U8>,
    /// GGML's number of the type, the same in the whole warp.
    pub(crate) ty: Val<U32>,
}

impl Tensor {
    /// Reads entry `index` of the table, which is constant during a launch.
    #[track_caller]
    pub(crate) fn from_table(b: &mut Builder, table: Global<U8>, index: impl Operand<U32>) -> Tensor {
        let entry = b.byte_index(table, index, ENTRY_BYTES);
        let data = b.ld(entry.byte_offset(DATA_OFFSET.into()).cast::<U64>(), LoadKind::Constant);
        let plane = b.ld(entry.byte_offset(PLANE_OFFSET.into()).cast::<U64>(), LoadKind::Constant);
        let ty = b.ld(entry.byte_offset(TYPE_OFFSET.into()).cast::<U32>(), LoadKind::Constant);
        Tensor { data: b.global_ptr(data), plane: b.global_ptr(plane), ty }
    }
}

/// The address of a vector of floats in the table.
#[track_caller]
pub(crate) fn vector_from_table<T: crate::ptx::Element>(
    b: &mut Builder,
    table: Global<U8>,
    index: impl Operand<U32>,
) -> Global<T> {
    let entry = b.byte_index(table, index, ENTRY_BYTES);
    let data = b.ld(entry.byte_offset(DATA_OFFSET.into()).cast::<U64>(), LoadKind::Constant);
    b.global_ptr(data)
}
