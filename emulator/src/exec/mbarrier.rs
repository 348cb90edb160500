//! Barriers in shared memory.

/// An operation on an mbarrier object.
#[derive(Debug, Clone)]
pub(crate) enum MbarrierOp {}
