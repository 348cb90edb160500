//! What the checks keep of one block, or of the blocks of a cluster.

use super::allocation::AllocationChecks;
use super::clock::{Vc, WarpClock, join};
use super::order::Operation;
use super::race::{
    BLOCK, BYTES, CLOCK, Cell, Conflict, IN_FLIGHT, LANE, MAX_BLOCK, PROXY, Record, SITE, SITES, STRENGTH, Touch, WARP,
    strength,
};
use super::witness::{SyncLocations, Witness};
use crate::machine::access::Access;
use crate::machine::config::Checks;
use crate::machine::fault::FaultKind;
use crate::machine::lanes::Lanes;
use crate::machine::layout::{At, Layout};
use crate::machine::origin::Origin;
use std::sync::Arc;

/// What the race check has to know of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Launched<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) op: &'a Arc<Operation>,
    /// Where each instruction comes from.
    pub(crate) origins: &'a [Origin],
}

/// A race that was found: the lane that accesses, how many bytes behind its address, and the report.
pub(crate) struct Race {
    pub(crate) lane: usize,
    pub(crate) offset: u32,
    pub(crate) kind: FaultKind,
    pub(crate) message: String,
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
    pub(crate) fn new(launch: Launched<'_>, which: Checks, block: u64, live: &[u32]) -> BlockChecks {
        let Launched { layout, op, .. } = launch;
        let mut checks = BlockChecks { block: block as u32, each: layout.warps, ..BlockChecks::default() };
        let bytes = layout.cluster_shared();
        if which.initcheck {
            checks.written = vec![0; bytes.div_ceil(64)];
        }
        if which.racecheck && block + u64::from(layout.ranks) <= MAX_BLOCK.into() {
            for (block, live) in (checks.block..).zip(live.chunks(layout.warps as usize)) {
                let vc = Arc::new(op.first_knowledge(block, layout.warps));
                checks.warps.extend((0..).zip(live).map(|(warp, &full)| WarpClock::new(&vc, warp, full)));
                checks.barriers.extend([const { None }; 16]);
            }
            checks.cells.resize_with(bytes.div_ceil(4), Cell::default);
        }
        checks
    }

    /// Whether races are looked for.
    #[inline(always)]
    pub(crate) fn race_checked(&self) -> bool {
        !self.warps.is_empty()
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
    pub(crate) fn landed_in(&self, a: &AllocationChecks, op: &Arc<Operation>, offset: u64, bytes: u64, by: Record) {
        if let Some(shadow) = a.used_shadow().filter(|_| self.race_checked()) {
            shadow.landed(op, offset, bytes, by.with(PROXY, 1));
        }
    }

    /// Lanes arrive at a barrier of the block.
    pub(crate) fn arrive(&mut self, warp: u32, mask: u32, barrier: usize) {
        let Some(told) = self.warp(warp, |w| w.gather(mask)) else { return };
        join(self.barriers[barrier].get_or_insert_with(|| told.clone()), &told);
    }

    /// A barrier of the block is complete: lanes of warps that waited at it know what all that arrived there knew.
    pub(crate) fn complete(&mut self, id: usize, waiters: impl Iterator<Item = (u32, u32)>) {
        let Some(vc) = self.barriers.get_mut(id).and_then(Option::take) else { return };
        // It includes what they knew when they arrived.
        waiters.for_each(|(warp, mask)| self.warps[warp as usize].adopt(mask, &vc));
    }

    /// Marks what an access writes, in an allocation or else in shared memory; if it reads what nothing has written,
    /// the lane and the address.
    pub(crate) fn mark(
        &mut self,
        a: Option<&AllocationChecks>,
        addr: &[u64; 32],
        m: u32,
        access: &Access,
    ) -> Option<(usize, u64)> {
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

    /// Compares an access with what was done before to the words it touches, and notes it. It is one of an allocation, or
    /// else of shared memory; of an allocation a strong one holds the witness, in which it synchronises first.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        launch: Launched<'_>,
        at: &At,
        a: Option<&AllocationChecks>,
        (addr, m): (&[u64; 32], u32),
        access: &Access,
        witness: Option<&mut Witness>,
    ) -> Result<(), Box<Race>> {
        let (op, strength) = (launch.op, strength(access));
        let thread = self.thread(at.warp).with(SITE, at.pc.min(SITES));
        let warp = &mut self.warps[at.warp as usize];
        let clock = if access.pending { IN_FLIGHT } else { warp.now() };
        let me = thread.with(CLOCK, clock).with(STRENGTH, strength).with(PROXY, access.proxy.into());
        if strength > 0 {
            // Strong accesses synchronise before they are compared, so that an acquire orders what follows it.
            let locations = witness.map_or(&mut self.locations, |w| &mut w.locations);
            for l in Lanes(m) {
                for v in 0..access.count {
                    locations.strong(op, warp, l, addr[l] + u64::from(v * access.bytes), access);
                }
            }
        }
        let shadow = a.map(|a| (a.base, a.shadow()));
        let total = access.bytes * access.count;
        for l in Lanes(m) {
            let bytes = if total >= 4 { 15 } else { ((1 << total) - 1) << (addr[l] % 4) };
            let me = me.with(LANE, l as u32).with(BYTES, bytes);
            let touch = &Touch { me, access, vc: &warp.lanes[l].vc };
            for k in 0..total.div_ceil(4) {
                let address = addr[l] + u64::from(4 * k);
                let compared = match shadow {
                    None => self.cells[(address / 4) as usize].access(touch),
                    Some((base, shadow)) => shadow.access(address - base, op, touch),
                };
                if let Err(conflict) = compared {
                    let space = if shadow.is_none() { "shared" } else { "global" };
                    let (kind, message) = report(launch, &conflict, *touch, space, at);
                    return Err(Box::new(Race { lane: l, offset: 4 * k, kind, message }));
                }
            }
        }
        Ok(())
    }
}

/// The report of a race.
#[cold]
fn report(launch: Launched<'_>, conflict: &Conflict, touch: Touch<'_>, space: &str, at: &At) -> (FaultKind, String) {
    let (Launched { layout, op, origins }, Touch { me, access, .. }) = (launch, touch);
    if conflict.by.is_some() {
        return (FaultKind::Race, conflict.between(op, access.write, space));
    }
    let earlier = conflict.earlier;
    let block = layout.ctaid(earlier.get(BLOCK).into());
    let missing = if access.nc {
        "a non-coherent load may only read data that does not change during the launch"
    } else if touch.allows(None, earlier) {
        "a fence.proxy.async between the ordinary write and the asynchronous copy is missing"
    } else if earlier.is_in_flight() {
        "the copy is still in flight: its wait (or the barrier it completes) is missing"
    } else if block == at.ctaid && earlier.get(WARP) == at.warp % layout.warps {
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
    let ([x, y, z], [u, v, w]) = (block, layout.thread(earlier.get(WARP), earlier.get(LANE) as usize));
    let site = match earlier.get(SITE) {
        SITES => "an instruction".into(),
        pc => origins[pc as usize].describe(),
    };
    let who = format!("at {site} by block ({x}, {y}, {z}) thread ({u}, {v}, {w})");
    let kind = if access.nc { FaultKind::StaleRead } else { FaultKind::Race };
    (kind, conflict.sentence(access.write, format!("{space} memory"), who, missing))
}
