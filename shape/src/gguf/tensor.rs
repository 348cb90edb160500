//! Where a tensor lies and how it is stored.

use crate::GgmlType;

/// A tensor's entry in the header, checked: its bytes lie inside the file and overlap no other tensor's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub(super) name: String,
    pub(super) dims: Vec<u64>,
    pub(super) ty: GgmlType,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl TensorInfo {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One to four dimensions, fastest first: `[K, N]` for a row-major matrix of N rows.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// How its numbers are stored.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Where its bytes begin, counted from the start of the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
