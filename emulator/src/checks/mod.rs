//! Checks: what a run may not do even if its result comes out right. Each is on or off by itself.

pub(crate) mod counters;

use crate::exec::access::{Access, Places};
use crate::exec::block::Common;
use crate::exec::inst::{BarOp, MemSpace, Proxy, Scope, Sem};
use crate::exec::warp::Warp;
use crate::exec::{At, Cpu, Exec, LaunchCx};

/// Which checks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checks {
    /// Bounds, alignment, use after free. (These are always on: the emulator could not run without.)
    pub memcheck: bool,
    /// Reads of memory and registers that nothing has written.
    pub initcheck: bool,
    /// Conflicting accesses that nothing orders, and non-coherent reads of written data.
    pub racecheck: bool,
    /// Divergent or mismatched barriers, shuffles from inactive lanes.
    pub synccheck: bool,
}

impl Checks {
    /// All of them.
    pub const ALL: Checks = Checks { memcheck: true, initcheck: true, racecheck: true, synccheck: true };
    /// None but those that are always on.
    pub const NONE: Checks = Checks { memcheck: false, initcheck: false, racecheck: false, synccheck: false };
}

impl Default for Checks {
    fn default() -> Self {
        Checks::ALL
    }
}

/// Race-check state of one allocation.
#[derive(Debug, Default)]
pub(crate) struct GlobalShadow {}

/// Check state of one block.
#[derive(Debug)]
pub(crate) struct BlockChecks {}

impl BlockChecks {
    pub(crate) fn new(_cx: &LaunchCx<'_>) -> Option<Box<BlockChecks>> {
        None
    }
}

impl Cpu<'_> {
    /// Looks at an access before it happens.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn check(
        &mut self,
        _common: &mut Common,
        _warp: &Warp,
        _space: MemSpace,
        _places: &Places,
        _m: u32,
        _access: &Access,
        _at: &At,
    ) -> Exec<()> {
        Ok(())
    }

    /// A fence.
    pub(crate) fn fence(&mut self, _common: &mut Common, _warp: &Warp, _sem: Sem, _scope: Scope, _m: u32, _at: &At) {}

    /// A fence between proxies.
    pub(crate) fn fence_proxy(&mut self, _common: &mut Common, _warp: &Warp, _proxy: Proxy, _m: u32, _at: &At) {}

    /// Lanes arrive at a barrier of the block.
    pub(crate) fn check_arrive(&mut self, _: &mut Common, _: &Warp, _: &BarOp, _m: u32, _at: &At) -> Exec<()> {
        Ok(())
    }

    /// A barrier of the block is complete.
    pub(crate) fn barrier_complete(&mut self, _common: &mut Common, _b: &crate::exec::barrier::Barrier) {}

    /// Lanes of a warp have met at `bar.warp.sync`.
    pub(crate) fn warp_synced(&mut self, _common: &mut Common, _warp: &Warp, _m: u32, _at: &At) {}

    /// All threads of a block have exited.
    pub(crate) fn block_exit(&mut self, _common: &mut Common, _warps: &[Warp]) -> Exec<()> {
        Ok(())
    }
}
