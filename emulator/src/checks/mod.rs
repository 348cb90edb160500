//! Checks: what a run may not do even if its result comes out right. Each is on or off by itself.

#![allow(clippy::too_many_arguments)]

mod clock;
pub(crate) mod counters;
pub(crate) mod order;
mod race;
mod shadow;
mod sync;
pub(crate) mod witness;

use crate::exec::access::{Access, Places};
use crate::exec::barrier::Barrier;
use crate::exec::block::Common;
use crate::exec::fault::{Fault, FaultKind};
use crate::exec::inst::{BarOp, MemSpace, Scope};
use crate::exec::lanes::Lanes;
use crate::exec::warp::Warp;
use crate::exec::{At, Cpu, Exec, LaunchCx};
pub(crate) use clock::Vc;
use order::Operation;
use race::{Cell, Conflict, IN_FLIGHT, LATEST, MAX_BLOCK, Record};
pub(crate) use shadow::GlobalShadow;
use shadow::{Between, Found, Touch};
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

/// Check state of one block.
#[derive(Debug)]
pub(crate) struct BlockChecks {
    block: u32,
    warps: Vec<WarpClock>,
    /// What those that arrived at each barrier know.
    barriers: Vec<Option<Arc<Vc>>>,
    /// Cells of shared memory.
    cells: Vec<Cell>,
    /// Shared memory that was written, a bit a byte.
    written: Vec<u32>,
    locations: SyncLocations,
}

impl BlockChecks {
    pub(crate) fn new(cx: &LaunchCx<'_>, linear: u64, live: &[u32]) -> Option<Box<BlockChecks>> {
        let checks = &cx.config.checks;
        if !checks.racecheck && !checks.initcheck {
            return None;
        }
        let block = u32::try_from(linear).unwrap_or(MAX_BLOCK).min(MAX_BLOCK);
        let mut vc = Vc::new((cx.op.id, block), cx.warps);
        cx.op.told_by_host().inspect(|host| vc.join(host));
        let vc = Arc::new(vc);
        let words = cx.shared.div_ceil(4) as usize;
        Some(Box::new(BlockChecks {
            block,
            warps: live.iter().map(|&full| WarpClock::new(&vc, full)).collect(),
            barriers: vec![None; 16],
            cells: if checks.racecheck { (0..words).map(|_| Cell::default()).collect() } else { Vec::new() },
            written: if checks.initcheck { vec![0; words.div_ceil(8)] } else { Vec::new() },
            locations: SyncLocations::new(),
        }))
    }

    fn mark(&mut self, offset: u64, bytes: u32) {
        let (word, at) = ((offset / 32) as usize, offset % 32);
        if let Some(w) = self.written.get_mut(word) {
            *w |= (((1u64 << bytes) - 1) << at) as u32;
        }
    }

    fn is_written(&self, offset: u64, bytes: u32) -> bool {
        let bits = (((1u64 << bytes) - 1) << (offset % 32)) as u32;
        self.written.get((offset / 32) as usize).is_none_or(|w| w & bits == bits)
    }
}

/// Bytes of a cell that an access of `bytes` at `offset` touches.
fn cell_bytes(offset: u64, bytes: u32) -> u32 {
    if bytes >= 4 { 15 } else { ((1 << bytes) - 1) << (offset % 4) }
}

/// What lanes know now, for an mbarrier to tell; their later accesses are not part of it.
pub(crate) fn told(common: &mut Common, warp: u32, mask: u32) -> Option<Arc<Vc>> {
    common.checks.as_mut().map(|c| c.warps[warp as usize].gather(warp, mask))
}

/// Lanes learn what a barrier tells.
pub(crate) fn learn(common: &mut Common, warp: u32, mask: u32, vc: &Arc<Vc>) {
    if let Some(c) = &mut common.checks {
        c.warps[warp as usize].learn(mask, vc);
    }
}

/// Whether a lane knows of something another lane of its block did at a clock.
pub(crate) fn knows(common: &Common, warp: u32, lane: usize, other: (u32, u32, u32)) -> bool {
    let (w, l, clock) = other;
    common.checks.as_ref().is_none_or(|c| {
        c.cells.is_empty()
            || (w, l) == (warp, lane as u32)
            || c.warps[warp as usize].lanes[lane].vc.knows(c.block, w, l, clock)
    })
}

/// A warp's clock.
pub(crate) fn clock(common: &Common, warp: u32) -> u32 {
    common.checks.as_ref().map_or(0, |c| c.warps[warp as usize].clock.min(LATEST))
}

fn landed<'a>(
    block: u32,
    warp: u32,
    lane: u32,
    clock: u32,
    pc: u32,
    proxy: bool,
    cells: impl Iterator<Item = &'a Cell>,
) {
    let me = Record::new(block, warp, lane, 0, clock, pc).with_bytes(15);
    let me = if proxy { me.by_proxy() } else { me };
    cells.for_each(|c| c.landed(me));
}

/// A copy has arrived in shared memory: from now on it counts as a write by the lane that issued it.
pub(crate) fn landed_shared(
    common: &mut Common,
    at: u64,
    bytes: u64,
    warp: u32,
    lane: u32,
    clock: u32,
    pc: u32,
    proxy: bool,
) {
    if let Some(c) = &common.checks
        && let Some(cells) = c.cells.get(at as usize / 4..((at + bytes) as usize).div_ceil(4))
    {
        landed(c.block, warp, lane, clock, pc, proxy, cells.iter());
    }
}

/// A copy has read its source in shared memory.
pub(crate) fn source_read(common: &mut Common, at: u64, bytes: u64, warp: u32, lane: u32, clock: u32, pc: u32) {
    if let Some(c) = &common.checks
        && let Some(cells) = c.cells.get(at as usize / 4..((at + bytes) as usize).div_ceil(4))
    {
        let me = Record::new(c.block, warp, lane, 0, clock, pc).with_bytes(15);
        cells.iter().for_each(|c| c.source_read(me));
    }
}

/// A copy has arrived in device memory.
pub(crate) fn landed_global(
    op: &Arc<Operation>,
    common: &Common,
    a: &crate::memory::Allocation,
    offset: u64,
    bytes: u64,
    warp: u32,
    lane: u32,
    clock: u32,
    pc: u32,
) {
    if let (Some(c), Some(shadow)) = (&common.checks, a.shadow.get()) {
        let me = Record::new(c.block, warp, lane, 0, clock, pc).with_bytes(15).by_proxy();
        (offset..offset + bytes).step_by(4).for_each(|o| shadow.with_cell(o, op, |cell| cell.landed(me)));
    }
}

impl Cpu<'_> {
    /// Looks at an access before it happens.
    pub(crate) fn check(
        &mut self,
        common: &mut Common,
        space: MemSpace,
        places: &Places,
        m: u32,
        access: &Access,
        at: &At,
        witness: Option<&mut Witness>,
    ) -> Exec<()> {
        if self.cx.config.counters {
            self.counters.access(at.pc, space, &places.addr, m, access);
        }
        if !matches!(space, MemSpace::Global | MemSpace::Shared | MemSpace::Generic) {
            return Ok(());
        }
        let Some(checks) = common.checks.as_deref_mut() else { return Ok(()) };
        let total = access.bytes * access.count;
        let shared = space == MemSpace::Shared;
        // SAFETY: `self.table` holds the allocation, and changes only between instructions. Counting the reference would
        // make the threads of the launch contend for it.
        let allocation = (!shared)
            .then(|| self.table.live.get(self.site[at.pc as usize] as usize).map(|a| unsafe { &*Arc::as_ptr(a) }))
            .flatten();
        let base = allocation.map_or(0, |a| a.base);
        if self.cx.config.checks.initcheck {
            let step = access.bytes.min(8);
            for l in Lanes(m) {
                let offset = places.addr[l] - base;
                // An atomic reads what it changes.
                if !access.write || access.atomic {
                    for v in 0..access.count * (access.bytes / step) {
                        let o = offset + u64::from(v * step);
                        let ok = match allocation {
                            None => checks.is_written(o, step),
                            Some(a) => a.is_written(o, u64::from(step)),
                        };
                        if !ok {
                            let message = format!("{step} bytes are read that nothing has written");
                            let mut f = self.fault(FaultKind::UninitialisedMemory, at, Some(l), message);
                            f.address = Some(places.addr[l] + u64::from(v * step));
                            return Err(f);
                        }
                    }
                }
                if access.write {
                    match allocation {
                        None => {
                            for v in (0..total).step_by(8) {
                                checks.mark(offset + u64::from(v), (total - v).min(8));
                            }
                        }
                        Some(a) => a.mark(offset, u64::from(total)),
                    }
                }
            }
        }
        if !self.cx.config.checks.racecheck || checks.block == MAX_BLOCK {
            return Ok(());
        }
        let strength = race::strength(access);
        let clock = if access.pending { IN_FLIGHT } else { checks.warps[at.warp as usize].clock.min(LATEST) };
        if strength > 0 {
            // Strong accesses synchronise before they are compared, so that an acquire orders what follows it.
            let op = &self.cx.op;
            let wc = &mut checks.warps[at.warp as usize];
            let mut rest = witness;
            for l in Lanes(m) {
                for v in 0..access.count {
                    let a = places.addr[l] + u64::from(v * access.bytes);
                    match &mut rest {
                        Some(w) => w.strong(op, wc, a, (checks.block, at.warp, l as u32), access),
                        None => {
                            let location = checks.locations.entry(a).or_default();
                            wc.strong(location, (op.id, checks.block), at.warp, l as u32, access, |_| false);
                        }
                    }
                }
            }
        }
        let shadow = allocation.map(|a| a.shadow.get_or_init(|| GlobalShadow::new(a.size)));
        let op = &self.cx.op;
        let wc = &checks.warps[at.warp as usize];
        let me = Record::new(checks.block, at.warp, 0, strength, clock, at.pc);
        let me = if access.proxy { me.by_proxy() } else { me };
        for l in Lanes(m) {
            let vc = &*wc.lanes[l].vc;
            let me = Record(me.0 | (l as u64) << 38);
            let offset = places.addr[l] - base;
            for k in 0..total.div_ceil(4) {
                let o = offset + u64::from(4 * k);
                let me = me.with_bytes(cell_bytes(o, total));
                let cell = match shadow {
                    None => &checks.cells[(o / 4) as usize],
                    Some(s) => match s.cell(o, op.id) {
                        Some(cell) => cell,
                        None => {
                            match s.touch(o, &Touch { op, me, access, vc }) {
                                None => continue,
                                Some(Found::Within(c)) => {
                                    return Err(self.race(&c, access, base + o, shared, l, at));
                                }
                                Some(Found::Between(c)) => return Err(self.unordered(&c, access, base, l, at)),
                            };
                        }
                    },
                };
                if let Some(c) = cell.access(me, access.write, access, vc) {
                    return Err(self.race(&c, access, base + o, shared, l, at));
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn unordered(&self, c: &Between, access: &Access, base: u64, lane: usize, at: &At) -> Box<Fault> {
        let between = witness::operation_fault(&self.cx.op, c, access.write, "global", base);
        let mut f = self.fault(between.kind, at, Some(lane), between.message);
        f.address = between.address;
        f
    }

    #[cold]
    fn race(&self, c: &Conflict, access: &Access, address: u64, shared: bool, lane: usize, at: &At) -> Box<Fault> {
        let verb = |write: bool| if write { "write" } else { "read" };
        let old = c.earlier;
        let [gx, gy, _] = self.cx.launch.grid;
        let b = old.block();
        let block = [b % gx, b / gx % gy, b / gx / gy];
        let [x, y, z] = self.cx.thread(old.warp(), old.lane() as usize);
        let site = old.site().map_or("an instruction".into(), |s| self.cx.describe(s));
        let same_block = block == at.ctaid;
        let same_warp = same_block && old.warp() == at.warp;
        let missing = if c.stale {
            "a non-coherent load may only read data that does not change during the launch"
        } else if c.proxy {
            "a fence.proxy.async between the ordinary write and the asynchronous copy is missing"
        } else if old.clock() == IN_FLIGHT {
            "the copy is still in flight: its wait (or the barrier it completes) is missing"
        } else if same_warp {
            "a bar.warp.sync between them is missing"
        } else if same_block {
            "a barrier of the block between them is missing"
        } else if race::strength(access) > 0 || access.scope == Scope::Cta {
            "both must be strong accesses of a scope that holds both threads, or be ordered by release and acquire"
        } else {
            "a release by the first and an acquire by the second, of gpu scope or wider, is missing"
        };
        let kind = if c.stale { FaultKind::StaleRead } else { FaultKind::Race };
        let message = format!(
            "this {} of {} memory is not ordered after the {} at {site} by block ({}, {}, {}) thread ({x}, {y}, {z}): {missing}",
            verb(access.write),
            if shared { "shared" } else { "global" },
            verb(c.earlier_writes),
            block[0],
            block[1],
            block[2],
        );
        let mut f = self.fault(kind, at, Some(lane), message);
        f.address = Some(address);
        f
    }

    /// A fence.
    pub(crate) fn fence(&mut self, common: &mut Common, warp: &Warp, scope: Scope, m: u32) {
        if let Some(c) = &mut common.checks {
            c.warps[warp.id as usize].fence(m, scope);
        }
    }

    /// A fence between the generic and the async proxy.
    pub(crate) fn fence_proxy(&mut self, common: &mut Common, warp: &Warp, m: u32) {
        let Some(c) = &mut common.checks else { return };
        let w = &mut c.warps[warp.id as usize];
        for l in Lanes(m) {
            let mut vc = w.lanes[l].vc.clone();
            let v = Arc::make_mut(&mut vc);
            v.raise(warp.id, 1 << l, w.full, w.clock + 1);
            v.proxy_fence();
            w.lanes[l].vc = vc;
        }
        w.clock += 1;
    }

    /// Lanes have waited for the kernel before this one, or let the one after it begin.
    pub(crate) fn grid_control(&mut self, common: &mut Common, warp: &Warp, waits: bool, m: u32) {
        if !waits {
            self.cx.op.trigger();
        } else if let Some(c) = &mut common.checks {
            for l in Lanes(m) {
                Arc::make_mut(&mut c.warps[warp.id as usize].lanes[l].vc).waited = true;
            }
        }
    }

    /// Lanes arrive at a barrier of the block.
    pub(crate) fn check_arrive(&mut self, common: &mut Common, warp: &Warp, op: &BarOp, m: u32, _at: &At) -> Exec<()> {
        let id = warp.lane32(self.cx.code, op.id, m.trailing_zeros() as usize) as usize;
        if let Some(c) = &mut common.checks
            && id < 16
        {
            let vc = c.warps[warp.id as usize].gather(warp.id, m);
            match &mut c.barriers[id] {
                Some(b) => Arc::make_mut(b).join(&vc),
                slot => *slot = Some(vc),
            }
        }
        Ok(())
    }

    /// A barrier of the block is complete.
    pub(crate) fn barrier_complete(&mut self, common: &mut Common, id: usize, b: &Barrier) {
        if let Some(c) = &mut common.checks
            && let Some(vc) = c.barriers[id].take()
        {
            for &(warp, mask, waits) in &b.parties {
                if waits {
                    // It includes what they knew when they arrived.
                    c.warps[warp as usize].adopt(mask, &vc);
                }
            }
        }
    }

    /// Lanes of a warp have met at `bar.warp.sync`.
    pub(crate) fn warp_synced(&mut self, common: &mut Common, warp: &Warp, m: u32, _at: &At) {
        if let Some(c) = &mut common.checks {
            let w = &mut c.warps[warp.id as usize];
            let vc = w.gather(warp.id, m);
            w.adopt(m, &vc);
        }
    }
}
