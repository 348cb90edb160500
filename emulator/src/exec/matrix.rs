//! Matrix instructions: a warp's 32 lanes hold the fragments together.

/// A matrix instruction.
#[derive(Debug, Clone)]
pub(crate) enum MatrixOp {}

impl super::Cpu<'_> {
    /// Runs a matrix instruction for a whole warp.
    pub(crate) fn matrix(
        &mut self,
        _common: &mut super::block::Common,
        _warp: &mut super::warp::Warp,
        op: &MatrixOp,
        _mask: u32,
        _group: u32,
        _at: &super::At,
    ) -> super::Exec<()> {
        match *op {}
    }
}
