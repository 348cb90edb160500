//! A weight matrix in device memory: where it is and of what type, read from the tensor table or given by parameters.

use crate::ptx::{Builder, Element, Global, LoadKind, Operand, Shared, U8, U32, U64, Val};
use kiln_shape::WeightType;
use kiln_shape::table::{DATA_OFFSET, ENTRY_BYTES, MAP_OFFSET, PLANE_OFFSET, TYPE_OFFSET};

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

/// The tensor table, which is constant during a launch, or a copy of some of it in shared memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Table {
    Device(Global<U8>),
    Copy(Shared<U8>),
}

impl From<Global<U8>> for Table {
    fn from(table: Global<U8>) -> Table {
        Table::Device(table)
    }
}

impl Table {
    #[track_caller]
    fn entry(self, b: &mut Builder, index: impl Operand<U32>) -> Table {
        match self {
            Table::Device(table) => Table::Device(b.byte_index(table, index, ENTRY_BYTES)),
            Table::Copy(table) => Table::Copy(b.byte_index(table, index, ENTRY_BYTES)),
        }
    }

    /// The word so many bytes behind the beginning.
    #[track_caller]
    fn word<T: Element>(self, b: &mut Builder, offset: u32) -> Val<T::Loaded> {
        match self {
            Table::Device(entry) => b.ld(entry.byte_offset(offset.into()).cast::<T>(), LoadKind::Constant),
            Table::Copy(entry) => b.ld(entry.byte_offset(offset.into()).cast::<T>(), LoadKind::Ordinary),
        }
    }
}

impl Tensor {
    /// Reads entry `index` of the table.
    #[track_caller]
    pub(crate) fn from_table(b: &mut Builder, table: impl Into<Table>, index: impl Operand<U32>) -> Tensor {
        let entry = table.into().entry(b, index);
        let ty = entry.word::<U32>(b, TYPE_OFFSET);
        let ty = match entry {
            Table::Device(_) => ty,
            // Lanes read one word, but of memory that changes: one lane's is the warp's.
            Table::Copy(_) => b.shfl_idx(ty, 0),
        };
        Tensor::of_entry(b, entry, ty)
    }

    /// Reads entry `index` of a matrix whose type is known.
    #[track_caller]
    pub(crate) fn of_type(b: &mut Builder, table: impl Into<Table>, index: impl Operand<U32>, ty: Val<U32>) -> Tensor {
        let entry = table.into().entry(b, index);
        Tensor::of_entry(b, entry, ty)
    }

    #[track_caller]
    fn of_entry(b: &mut Builder, entry: Table, ty: Val<U32>) -> Tensor {
        let data = entry.word::<U64>(b, DATA_OFFSET);
        let plane = entry.word::<U64>(b, PLANE_OFFSET);
        Tensor { data: b.global_ptr(data), plane: b.global_ptr(plane), ty }
    }
}

/// The address of a matrix's tensor map.
#[track_caller]
pub(crate) fn map_from_table(b: &mut Builder, table: impl Into<Table>, index: impl Operand<U32>) -> Global<U8> {
    let entry = table.into().entry(b, index);
    let map = entry.word::<U64>(b, MAP_OFFSET);
    b.global_ptr(map)
}

/// The address of a vector of floats in the table.
#[track_caller]
pub(crate) fn vector_from_table<T: Element>(
    b: &mut Builder,
    table: impl Into<Table>,
    index: impl Operand<U32>,
) -> Global<T> {
    let entry = table.into().entry(b, index);
    let data = entry.word::<U64>(b, DATA_OFFSET);
    b.global_ptr(data)
}

/// What `of` says of the type whose number in the table it is, one of `types`.
pub(crate) fn by_type(b: &mut Builder, ty: Val<U32>, types: &[WeightType], of: impl Fn(WeightType) -> u32) -> Val<U32> {
    let first = b.mov::<U32>(types.first().map_or(0, |ty| of(*ty)));
    types.iter().skip(1).fold(first, |found, other| {
        let is = b.setp_eq(ty, other.id());
        b.selp::<U32>(of(*other), found, is)
    })
}
