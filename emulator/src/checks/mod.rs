//! Checks: what a run may not do even if its result comes out right. Each is on or off by itself.

mod clock;
pub(crate) mod counters;
pub(crate) mod order;
mod race;
mod shadow;
pub(crate) mod witness;

use crate::exec::access::Access;
use crate::exec::barrier::Barrier;
use crate::exec::fault::FaultKind;
use crate::exec::inst::Space;
use crate::exec::lanes::Lanes;
use crate::exec::{At, Cpu, Exec, LaunchCx};
use crate::memory::Allocation;
pub(crate) use clock::Vc;
use clock::{WarpClock, join};
use order::Operation;
use race::{BLOCK, BYTES, CLOCK, Cell, Conflict, IN_FLIGHT, LANE, MAX_BLOCK, SITE, SITES, STRENGTH, Touch, WARP};
pub(crate) use race::{PROXY, Record};
pub(crate) use shadow::GlobalShadow;
use std::sync::{Arc, MutexGuard};
use witness::{SyncLocations, Witness};

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

/// Check state of one block; each part is empty where its check is off.
#[derive(Debug, Default)]
pub(crate) struct BlockChecks {
    /// Number of the first block, and warps of each.
    block: u32,
    each: u32,
    /// Those of all blocks of the cluster.
    warps: Vec<WarpClock>,
    /// What those that arrived at each barrier know.
    barriers: Vec<Option<Arc<Vc>>>,
    /// Cells of shared memory.
    cells: Vec<Cell>,
    /// Shared memory that was written, a bit a byte.
    written: Vec<u64>,
    locations: SyncLocations,
}

impl BlockChecks {
    pub(crate) fn new(cx: &LaunchCx<'_>, block: u64, live: &[u32]) -> BlockChecks {
        let mut checks = BlockChecks { block: block as u32, each: cx.warps, ..BlockChecks::default() };
        let bytes = (cx.ranks * cx.shared.next_multiple_of(16)) as usize;
        if cx.config.checks.initcheck {
            checks.written = vec![0; bytes.div_ceil(64)];
        }
        if cx.config.checks.racecheck && block + u64::from(cx.ranks) <= MAX_BLOCK.into() {
            for (block, live) in (checks.block..).zip(live.chunks(cx.warps as usize)) {
                let vc = Arc::new(cx.op.first_knowledge(block, cx.warps));
                checks.warps.extend((0..).zip(live).map(|(warp, &full)| WarpClock::new(&vc, warp, full)));
                checks.barriers.extend([const { None }; 16]);
            }
            checks.cells.resize_with(bytes.div_ceil(4), Cell::default);
        }
        checks
    }

    /// The clocks of a warp, if races are looked for.
    pub(crate) fn warp<T>(&mut self, warp: u32, f: impl FnOnce(&mut WarpClock) -> T) -> Option<T> {
        self.warps.get_mut(warp as usize).map(f)
    }

    /// Whether a lane knows of what another lane of its block did.
    pub(crate) fn knows(&self, warp: u32, lane: usize, other: Record) -> bool {
        let me = self.thread(warp).with(LANE, lane as u32);
        let own = [BLOCK, WARP, LANE].iter().all(|&part| me.get(part) == other.get(part));
        let knows = |vc: &Vc| vc.known.know(vc.block().0, other);
        own || self.warps.get(warp as usize).is_none_or(|w| knows(&w.lanes[lane].vc))
    }

    /// A warp, as a part of a record.
    fn thread(&self, warp: u32) -> Record {
        Record::default().with(BLOCK, self.block + warp / self.each).with(WARP, warp % self.each)
    }

    /// A lane's access to whole words, as of now.
    pub(crate) fn record(&self, warp: u32, lane: usize, pc: u32) -> Record {
        let clock = self.warps.get(warp as usize).map_or(0, WarpClock::now);
        self.thread(warp).with(LANE, lane as u32).with(BYTES, 15).with(CLOCK, clock).with(SITE, pc.min(SITES))
    }

    /// A copy has arrived in shared memory, or been read there: from now on it counts as done by who issued it.
    pub(crate) fn landed(&self, at: u64, bytes: u64, by: Record, write: bool) {
        let words = self.cells.get(at as usize / 4..((at + bytes) as usize).div_ceil(4));
        words.into_iter().flatten().for_each(|cell| cell.landed(by, write));
    }

    /// A copy has arrived in device memory.
    pub(crate) fn landed_in(&self, a: &Allocation, op: &Arc<Operation>, offset: u64, bytes: u64, by: Record) {
        if let Some(shadow) = a.shadow.get().filter(|_| !self.warps.is_empty()) {
            shadow.landed(op, offset, bytes, by.with(PROXY, 1));
        }
    }

    /// Lanes arrive at a barrier of the block.
    pub(crate) fn arrive(&mut self, warp: u32, mask: u32, barrier: usize) {
        let Some(told) = self.warp(warp, |w| w.gather(mask)) else { return };
        join(self.barriers[barrier].get_or_insert_with(|| told.clone()), &told);
    }

    /// A barrier of the block is complete.
    pub(crate) fn complete(&mut self, id: usize, barrier: &Barrier) {
        let Some(vc) = self.barriers.get_mut(id).and_then(Option::take) else { return };
        for &(warp, mask, _) in barrier.parties.iter().filter(|party| party.2) {
            // It includes what they knew when they arrived.
            self.warps[warp as usize].adopt(mask, &vc);
        }
    }

    /// Marks what an access writes, in an allocation or else in shared memory; if it reads what nothing has written,
    /// the lane and the address.
    fn mark(&mut self, a: Option<&Allocation>, addr: &[u64; 32], m: u32, access: &Access) -> Option<(usize, u64)> {
        let (total, step) = (u64::from(access.bytes * access.count), u64::from(access.bytes.min(8)));
        let bits = |address: u64, bytes: u64| ((1 << bytes) - 1) << (address % 64);
        // An atomic reads what it changes.
        let reads = if access.write && !access.atomic { 0 } else { total / step };
        for l in Lanes(m) {
            let is_written = |address: u64| match a {
                None => !self.written[(address / 64) as usize] & bits(address, step) == 0,
                Some(a) => a.is_written(address - a.base, step),
            };
            if let Some(address) = (0..reads).map(|i| addr[l] + i * step).find(|&address| !is_written(address)) {
                return Some((l, address));
            }
            match a {
                _ if !access.write => {}
                None => self.written[(addr[l] / 64) as usize] |= bits(addr[l], total),
                Some(a) => a.mark(addr[l] - a.base, total),
            }
        }
        None
    }
}

impl<'a> Cpu<'a> {
    /// Looks at an access before it happens. What comes back holds other launches and the host off, where the access may
    /// synchronise with them, until it is done.
    pub(crate) fn check(
        &mut self,
        checks: &mut BlockChecks,
        space: Space,
        named: &[u64; 32],
        m: u32,
        access: &Access,
        at: &At,
    ) -> Exec<Option<MutexGuard<'a, Witness>>> {
        if self.cx.config.counters {
            self.counters.access(at.pc, space, named, m, access);
        }
        // Without an allocation it is the block's shared memory.
        let allocation = match space {
            Space::Shared => None,
            Space::Global | Space::Generic => self.table.live.get(self.site[at.pc as usize] as usize),
            _ => return Ok(None),
        };
        let in_cluster = allocation.is_none() && self.cx.ranks > 1;
        let addr = if in_cluster { &named.map(|a| self.cx.shared_index(a)) } else { named };
        // SAFETY: `self.table` holds the allocation, and changes only between instructions. Counting the reference would
        // make the threads of the launch contend for it.
        let allocation = allocation.map(|a| unsafe { &*Arc::as_ptr(a) });
        if self.cx.config.checks.initcheck
            && let Some((lane, address)) = checks.mark(allocation, addr, m, access)
        {
            let message = format!("{} bytes are read that nothing has written", access.bytes.min(8));
            let address = named[lane] + (address - addr[lane]);
            return Err(self.fault_at(FaultKind::UninitialisedMemory, at, lane, address, message));
        }
        if checks.warps.is_empty() {
            return Ok(None);
        }
        let access = &Access { scope: self.cx.reach(access.scope), ..*access };
        let (op, strength) = (&self.cx.op, race::strength(access));
        let thread = checks.thread(at.warp).with(SITE, at.pc.min(SITES));
        let warp = &mut checks.warps[at.warp as usize];
        let clock = if access.pending { IN_FLIGHT } else { warp.now() };
        let me = thread.with(CLOCK, clock).with(STRENGTH, strength).with(PROXY, access.proxy.into());
        let mut turn = (strength > 0 && allocation.is_some()).then(|| self.cx.memory.witness());
        if strength > 0 {
            // Strong accesses synchronise before they are compared, so that an acquire orders what follows it.
            let locations = turn.as_mut().map_or(&mut checks.locations, |w| &mut w.locations);
            for l in Lanes(m) {
                for v in 0..access.count {
                    locations.strong(op, warp, l, addr[l] + u64::from(v * access.bytes), access);
                }
            }
        }
        let shadow = allocation.map(|a| (a.base, a.shadow.get_or_init(|| GlobalShadow::new(a.size))));
        let total = access.bytes * access.count;
        for l in Lanes(m) {
            let bytes = if total >= 4 { 15 } else { ((1 << total) - 1) << (addr[l] % 4) };
            let me = me.with(LANE, l as u32).with(BYTES, bytes);
            let touch = &Touch { me, access, vc: &warp.lanes[l].vc };
            for k in 0..total.div_ceil(4) {
                let address = addr[l] + u64::from(4 * k);
                let compared = match shadow {
                    None => checks.cells[(address / 4) as usize].access(touch),
                    Some((base, shadow)) => shadow.access(address - base, op, touch),
                };
                if let Err(conflict) = compared {
                    let space = if shadow.is_none() { "shared" } else { "global" };
                    let (kind, message) = self.race(&conflict, *touch, space, at);
                    return Err(self.fault_at(kind, at, l, named[l] + u64::from(4 * k), message));
                }
            }
        }
        Ok(turn)
    }

    /// The report of a race.
    #[cold]
    fn race(&self, conflict: &Conflict, touch: Touch<'_>, space: &str, at: &At) -> (FaultKind, String) {
        let Touch { me, access, .. } = touch;
        if conflict.by.is_some() {
            return (FaultKind::Race, conflict.between(&self.cx.op, access.write, space));
        }
        let earlier = conflict.earlier;
        let block = self.cx.ctaid(earlier.get(BLOCK).into());
        let missing = if access.nc {
            "a non-coherent load may only read data that does not change during the launch"
        } else if touch.allows(None, earlier) {
            "a fence.proxy.async between the ordinary write and the asynchronous copy is missing"
        } else if earlier.is_in_flight() {
            "the copy is still in flight: its wait (or the barrier it completes) is missing"
        } else if block == at.ctaid && earlier.get(WARP) == at.warp % self.cx.warps {
            "a bar.warp.sync between them is missing"
        } else if block == at.ctaid {
            "a barrier of the block between them is missing"
        } else if space == "shared" {
            "a barrier of the cluster, or a release and an acquire of cluster scope, between them is missing"
        } else if me.get(STRENGTH) > 0 {
            "both must be strong accesses of a scope that holds both threads, or be ordered by release and acquire"
        } else {
            "a release by the first and an acquire by the second, of gpu scope or wider, is missing"
        };
        let ([x, y, z], [u, v, w]) = (block, self.cx.thread(earlier.get(WARP), earlier.get(LANE) as usize));
        let site = match earlier.get(SITE) {
            SITES => "an instruction".into(),
            pc => self.cx.describe(pc),
        };
        let who = format!("at {site} by block ({x}, {y}, {z}) thread ({u}, {v}, {w})");
        let kind = if access.nc { FaultKind::StaleRead } else { FaultKind::Race };
        (kind, conflict.sentence(access.write, format!("{space} memory"), who, missing))
    }
}
