//! Checks: what a run may not do even if its result comes out right. Each is on or off by itself.

mod clock;
pub(crate) mod counters;
pub(crate) mod order;
mod race;
mod shadow;
mod sync;
pub(crate) mod witness;

use crate::exec::access::Access;
use crate::exec::barrier::Barrier;
use crate::exec::fault::{Fault, FaultKind};
use crate::exec::inst::{MemSpace, Scope};
use crate::exec::lanes::Lanes;
use crate::exec::{At, Cpu, Exec, LaunchCx, Site};
use crate::memory::Allocation;
pub(crate) use clock::Vc;
use order::Operation;
pub(crate) use race::Record;
use race::{Cell, Conflict, IN_FLIGHT, MAX_BLOCK};
pub(crate) use shadow::GlobalShadow;
use shadow::Touch;
use std::sync::{Arc, MutexGuard};
use sync::{SyncLocations, WarpClock};
use witness::Witness;

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

/// Holds other launches and the host off while an access that may synchronise with them is checked and done.
#[inline(always)]
pub(crate) fn turn<'a>(cx: &LaunchCx<'a>, space: MemSpace, access: &Access) -> Option<MutexGuard<'a, Witness>> {
    let global = matches!(space, MemSpace::Global | MemSpace::Generic);
    (global && cx.config.checks.racecheck && race::strength(access) > 0).then(|| cx.memory.witness())
}

/// Check state of one block; each part is empty where its check is off.
#[derive(Debug, Default)]
pub(crate) struct BlockChecks {
    block: u32,
    warps: Vec<WarpClock>,
    /// What those that arrived at each barrier know.
    barriers: [Option<Arc<Vc>>; 16],
    /// Cells of shared memory.
    cells: Vec<Cell>,
    /// Shared memory that was written, a bit a byte.
    written: Vec<u64>,
    locations: SyncLocations,
}

impl BlockChecks {
    pub(crate) fn new(cx: &LaunchCx<'_>, linear: u64, live: &[u32]) -> BlockChecks {
        let mut checks = BlockChecks::default();
        let bytes = cx.shared as usize;
        if cx.config.checks.initcheck {
            checks.written = vec![0; bytes.div_ceil(64)];
        }
        if cx.config.checks.racecheck && linear < u64::from(MAX_BLOCK) {
            checks.block = linear as u32;
            let vc = Arc::new(cx.op.first_knowledge(checks.block, cx.warps));
            checks.warps = (0..).zip(live).map(|(warp, &full)| WarpClock::new(&vc, warp, full)).collect();
            checks.cells.resize_with(bytes.div_ceil(4), Cell::default);
        }
        checks
    }

    fn mark(&mut self, offset: u64, bytes: u32) {
        self.written[(offset / 64) as usize] |= ((1 << bytes) - 1) << (offset % 64);
    }

    fn is_written(&self, offset: u64, bytes: u32) -> bool {
        let bits = ((1 << bytes) - 1) << (offset % 64);
        self.written[(offset / 64) as usize] & bits == bits
    }

    /// What lanes know now, for an mbarrier to tell; their later accesses are not part of it.
    pub(crate) fn told(&mut self, warp: u32, mask: u32) -> Option<Arc<Vc>> {
        self.warps.get_mut(warp as usize).map(|w| w.gather(mask))
    }

    /// A lane learns what a barrier tells.
    pub(crate) fn learn(&mut self, warp: u32, lane: usize, vc: &Arc<Vc>) {
        self.warps[warp as usize].learn(lane, vc);
    }

    /// Whether a lane knows of what another lane of its block did.
    pub(crate) fn knows(&self, warp: u32, lane: usize, other: Record) -> bool {
        let own = || (other.warp(), other.lane()) == (warp, lane as u32);
        self.warps.get(warp as usize).is_none_or(|w| own() || w.lanes[lane].vc.knows_own(other))
    }

    /// A lane's access to whole words, as of now.
    pub(crate) fn record(&self, warp: u32, lane: u32, pc: u32) -> Record {
        let clock = self.warps.get(warp as usize).map_or(0, WarpClock::now);
        Record::new(self.block, warp, clock, pc).with_lane(lane as usize).with_bytes(15)
    }

    fn words(&self, at: u64, bytes: u64) -> &[Cell] {
        self.cells.get(at as usize / 4..((at + bytes) as usize).div_ceil(4)).unwrap_or_default()
    }

    /// A copy has arrived in shared memory: from now on it counts as a write by the lane that issued it.
    pub(crate) fn landed(&self, at: u64, bytes: u64, by: Record) {
        self.words(at, bytes).iter().for_each(|cell| cell.landed(by));
    }

    /// A copy has arrived in device memory.
    pub(crate) fn landed_in(&self, a: &Allocation, op: &Arc<Operation>, offset: u64, bytes: u64, by: Record) {
        if let Some(shadow) = a.shadow.get().filter(|_| !self.warps.is_empty()) {
            shadow.landed(op, offset, bytes, by);
        }
    }

    /// A copy has read its source in shared memory.
    pub(crate) fn source_read(&self, at: u64, bytes: u64, by: Record) {
        self.words(at, bytes).iter().for_each(|cell| cell.source_read(by));
    }

    /// A fence.
    pub(crate) fn fence(&mut self, warp: u32, mask: u32, scope: Scope) {
        self.warps.get_mut(warp as usize).into_iter().for_each(|w| w.fence(mask, scope));
    }

    /// A fence between the ordinary and the async proxy.
    pub(crate) fn fence_proxy(&mut self, warp: u32, mask: u32) {
        self.warps.get_mut(warp as usize).into_iter().for_each(|w| w.proxy_fence(mask));
    }

    /// Lanes have waited for the kernel before this one.
    pub(crate) fn waited(&mut self, warp: u32, mask: u32) {
        let Some(w) = self.warps.get_mut(warp as usize) else { return };
        Lanes(mask).for_each(|l| Arc::make_mut(&mut w.lanes[l].vc).waited = true);
    }

    /// Lanes arrive at a barrier of the block.
    pub(crate) fn arrive(&mut self, warp: u32, mask: u32, barrier: usize) {
        let Some(told) = self.told(warp, mask) else { return };
        match &mut self.barriers[barrier] {
            Some(vc) => Arc::make_mut(vc).join(&told),
            slot => *slot = Some(told),
        }
    }

    /// A barrier of the block is complete.
    pub(crate) fn complete(&mut self, id: usize, barrier: &Barrier) {
        let Some(vc) = self.barriers[id].take() else { return };
        for &(warp, mask, _) in barrier.parties.iter().filter(|party| party.2) {
            // It includes what they knew when they arrived.
            self.warps[warp as usize].adopt(mask, &vc);
        }
    }

    /// Lanes of a warp have met at `bar.warp.sync`.
    pub(crate) fn warp_synced(&mut self, warp: u32, mask: u32) {
        let Some(w) = self.warps.get_mut(warp as usize) else { return };
        let vc = w.gather(mask);
        w.adopt(mask, &vc);
    }
}

/// Bytes of a cell that an access of `bytes` at `offset` touches.
fn cell_bytes(offset: u64, bytes: u32) -> u32 {
    if bytes >= 4 { 15 } else { ((1 << bytes) - 1) << (offset % 4) }
}

impl Cpu<'_> {
    /// Looks at an access before it happens.
    pub(crate) fn check(
        &mut self,
        site: &mut Site<'_>,
        space: MemSpace,
        addr: &[u64; 32],
        m: u32,
        access: &Access,
        witness: Option<&mut Witness>,
    ) -> Exec<()> {
        let at = site.at;
        if self.cx.config.counters {
            self.counters.access(at.pc, space, addr, m, access);
        }
        // Without an allocation it is the block's shared memory.
        let allocation = match space {
            MemSpace::Shared => None,
            // SAFETY: `self.table` holds the allocation, and changes only between instructions. Counting the reference
            // would make the threads of the launch contend for it.
            MemSpace::Global | MemSpace::Generic => {
                self.table.live.get(self.site[at.pc as usize] as usize).map(|a| unsafe { &*Arc::as_ptr(a) })
            }
            _ => return Ok(()),
        };
        let checks = &mut site.common.checks;
        if self.cx.config.checks.initcheck {
            self.initcheck(checks, allocation, addr, m, access, &at)?;
        }
        let Some(warp) = checks.warps.get_mut(at.warp as usize) else { return Ok(()) };
        let op = &self.cx.op;
        let strength = race::strength(access);
        let clock = if access.pending { IN_FLIGHT } else { warp.now() };
        let me = Record::new(checks.block, at.warp, clock, at.pc).with_strength(strength).by_proxy(access.proxy);
        if strength > 0 {
            // Strong accesses synchronise before they are compared, so that an acquire orders what follows it.
            let locations = witness.map_or(&mut checks.locations, |w| &mut w.locations);
            for l in Lanes(m) {
                for v in 0..access.count {
                    locations.strong(op, warp, l, addr[l] + u64::from(v * access.bytes), access);
                }
            }
        }
        let shadow = allocation.map(|a| (a.base, a.shadow.get_or_init(|| GlobalShadow::new(a.size))));
        let (warp, total) = (&checks.warps[at.warp as usize], access.bytes * access.count);
        for l in Lanes(m) {
            let (me, vc) = (me.with_lane(l), &*warp.lanes[l].vc);
            for k in 0..total.div_ceil(4) {
                let address = addr[l] + u64::from(4 * k);
                let me = me.with_bytes(cell_bytes(address, total));
                let compared = match shadow {
                    None => checks.cells[(address / 4) as usize].access(me, access, vc),
                    Some((base, shadow)) => shadow.access(address - base, &Touch { op, me, access, vc }),
                };
                if let Err(conflict) = compared {
                    return Err(self.race(&conflict, access, address, shadow.map(|s| s.0), l, &at));
                }
            }
        }
        Ok(())
    }

    /// Bytes that are read must have been written; those that are written are marked.
    fn initcheck(
        &self,
        checks: &mut BlockChecks,
        allocation: Option<&Allocation>,
        addr: &[u64; 32],
        m: u32,
        access: &Access,
        at: &At,
    ) -> Exec<()> {
        let (total, step) = (access.bytes * access.count, access.bytes.min(8));
        for l in Lanes(m) {
            // An atomic reads what it changes.
            let read = if access.write && !access.atomic { 0 } else { u64::from(total) };
            let is_written = |a: &u64| match allocation {
                None => checks.is_written(*a, step),
                Some(allocation) => allocation.is_written(a - allocation.base, u64::from(step)),
            };
            if let Some(address) = (addr[l]..addr[l] + read).step_by(step as usize).find(|a| !is_written(a)) {
                let message = format!("{step} bytes are read that nothing has written");
                return Err(self.fault_at(FaultKind::UninitialisedMemory, at, l, address, message));
            }
            match allocation {
                _ if !access.write => {}
                None => checks.mark(addr[l], total),
                Some(a) => a.mark(addr[l] - a.base, u64::from(total)),
            }
        }
        Ok(())
    }

    /// The report of a race; `base` is that of the allocation, if it is not in shared memory.
    #[cold]
    fn race(
        &self,
        conflict: &Conflict,
        access: &Access,
        address: u64,
        base: Option<u64>,
        lane: usize,
        at: &At,
    ) -> Box<Fault> {
        let (old, writes, ordered) = match conflict {
            Conflict::Within { earlier, writes, ordered } => (*earlier, *writes, *ordered),
            Conflict::Between(other) => {
                let message = other.sentence(&self.cx.op, access.write, "global");
                return self.fault_at(FaultKind::Race, at, lane, base.unwrap_or(0) + other.offset, message);
            }
        };
        let ([gx, gy, _], b) = (self.cx.launch.grid, old.block());
        let block = [b % gx, b / gx % gy, b / gx / gy];
        let missing = if access.nc {
            "a non-coherent load may only read data that does not change during the launch"
        } else if ordered {
            "a fence.proxy.async between the ordinary write and the asynchronous copy is missing"
        } else if old.is_in_flight() {
            "the copy is still in flight: its wait (or the barrier it completes) is missing"
        } else if block == at.ctaid && old.warp() == at.warp {
            "a bar.warp.sync between them is missing"
        } else if block == at.ctaid {
            "a barrier of the block between them is missing"
        } else if race::strength(access) > 0 {
            "both must be strong accesses of a scope that holds both threads, or be ordered by release and acquire"
        } else {
            "a release by the first and an acquire by the second, of gpu scope or wider, is missing"
        };
        let ([x, y, z], [u, v, w]) = (block, self.cx.thread(old.warp(), old.lane() as usize));
        let site = old.site().map_or("an instruction".into(), |s| self.cx.describe(s));
        let who = format!("at {site} by block ({x}, {y}, {z}) thread ({u}, {v}, {w})");
        let memory = if base.is_none() { "shared memory" } else { "global memory" };
        let kind = if access.nc { FaultKind::StaleRead } else { FaultKind::Race };
        self.fault_at(kind, at, lane, address, race::sentence(access.write, memory, writes, who, missing))
    }
}
