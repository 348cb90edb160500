//! Asynchronous copies.

/// An asynchronous copy or a wait for some.
#[derive(Debug, Clone)]
pub(crate) enum AsyncOp {}

/// A copy in flight.
#[derive(Debug, Clone)]
pub(crate) struct Pending {}
