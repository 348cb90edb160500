//! A look at a running launch from outside: it asks now and then whether it shall go on.

use crate::launch::FaultKind;

/// Whoever may end a launch.
pub(crate) trait Watch: Sync {
    /// Asked at every round of a launch. `progress`: something that other blocks or the host could see has changed
    /// since the last round, or a block has computed on; `steps`: warp instructions since then, of the longest block.
    /// An answer ends the launch with that fault.
    fn stop(&self, progress: bool, steps: u64) -> Option<(FaultKind, String)>;

    /// Whether a launch of one block, too, must tell polling from computing.
    fn tells_polling(&self) -> bool;
}

/// Nobody looks.
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn stop(&self, _progress: bool, _steps: u64) -> Option<(FaultKind, String)> {
        None
    }

    fn tells_polling(&self) -> bool {
        false
    }
}
