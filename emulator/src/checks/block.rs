//! Check state of one block, or of all blocks of a cluster.

use super::allocation::AllocationChecks;
use super::clock::{Vc, WarpClock, join};
use super::order::Operation;
use super::race::{Cell, Conflict, Touch, strength};
use super::readers::{PageReaders, Readers};
use super::record::{BLOCK, BYTES, CLOCK, IN_FLIGHT, LANE, MAX_BLOCK, PROXY, Record, SITE, SITES, STRENGTH, WARP};
use super::witness::{SyncLocations, Witness};
use crate::machine::access::Access;
use crate::machine::config::Checks;
use crate::machine::fault::FaultKind;
use crate::machine::lanes::Lanes;
use crate::machine::layout::{At, Layout};
use crate::machine::mix::MixMap;
use crate::machine::origin::Origin;
use std::sync::Arc;

/// Facts of a launch for the race check.
#[derive(Clone, Copy)]
pub(crate) struct Launched<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) op: &'a Arc<Operation>,
    /// Origin of each instruction.
    pub(crate) origins: &'a [Origin],
}

/// A race: the lane whose access completes it, the offset in bytes from the lane's address, and the earlier access.
pub(crate) struct Race {
    pub(crate) lane: usize,
    pub(crate) offset: u32,
    me: Record,
    space: &'static str,
    conflict: Box<Conflict>,
}

/// Knowledge that an mbarrier passes on: released by arrivals from its own block, and from other blocks of the cluster.
#[derive(Debug, Default)]
struct MbarrierClocks {
    init: Record,
    /// Whether a fence for initialisations followed in the thread that initialised it.
    shown: bool,
    arriving: [Option<Arc<Vc>>; 2],
    passed: [Option<Arc<Vc>>; 2],
}

/// A copy at its issue: its access record, and what the issuing lane knew.
#[derive(Debug)]
pub(crate) struct Issue {
    by: Record,
    told: Option<Arc<Vc>>,
}

/// Check state of one block. The parts of a check that is off are empty.
#[derive(Debug, Default)]
pub(crate) struct BlockChecks {
    /// Number of the first block, and warps per block.
    block: u32,
    each: u32,
    /// Clocks of the warps of all blocks of the cluster.
    warps: Vec<WarpClock>,
    /// Knowledge released by the arrivals at each barrier.
    barriers: Vec<Option<Arc<Vc>>>,
    /// Knowledge released by the arrivals at each mbarrier, by its address.
    mbarriers: MixMap<u64, MbarrierClocks>,
    /// Fences for tensor maps, by the map's address: the last of each thread.
    tensor_maps: MixMap<u64, Vec<Record>>,
    /// Cells of shared memory, and their readers.
    cells: Vec<Cell>,
    readers: Readers,
    /// Written bytes of shared memory, a bit per byte.
    written: Vec<u64>,
    /// Whether all readers of a word are kept.
    every_reader: bool,
    locations: SyncLocations,
}

impl BlockChecks {
    pub(crate) fn new(launch: Launched<'_>, which: Checks, block: u64, live: &[u32]) -> BlockChecks {
        let Launched { layout, op, .. } = launch;
        let mut checks = BlockChecks { block: block as u32, each: layout.warps, ..BlockChecks::default() };
        let bytes = layout.cluster_shared();
        checks.every_reader = which.every_reader;
        if which.initcheck {
            checks.written = vec![0; bytes.div_ceil(64)];
        }
        if which.racecheck && block + u64::from(layout.ranks) <= MAX_BLOCK.into() {
            for (block, live) in (checks.block..).zip(live.chunks(layout.warps as usize)) {
                let vc = Arc::new(op.first_knowledge(block, layout.warps));
                checks.warps.extend((0..).zip(live).map(|(warp, &full)| WarpClock::new(&vc, warp, full)));
                checks.barriers.extend([const { None }; 16]);
            }
            checks.readers = Readers::of_block();
            checks.cells.resize_with(bytes.div_ceil(4), Cell::default);
        }
        checks
    }

    /// Whether the race check is on.
    #[inline(always)]
    pub(crate) fn race_checked(&self) -> bool {
        !self.warps.is_empty()
    }

    /// Runs `f` on the clocks of a warp, if the race check is on.
    pub(crate) fn warp<T>(&mut self, warp: u32, f: impl FnOnce(&mut WarpClock) -> T) -> Option<T> {
        self.warps.get_mut(warp as usize).map(f)
    }

    /// A lane initialises an mbarrier.
    pub(crate) fn init_mbarrier(&mut self, at: &At, lane: usize, mbarrier: u64) {
        if self.race_checked() {
            let init = self.record(at, lane);
            self.mbarriers.insert(mbarrier, MbarrierClocks { init, ..MbarrierClocks::default() });
        }
    }

    /// Whether the initialisation of an mbarrier happens before a lane's next access.
    pub(crate) fn knows_mbarrier(&self, warp: u32, lane: usize, mbarrier: u64) -> bool {
        self.mbarriers.get(&mbarrier).is_none_or(|clocks| self.knows(warp, lane, clocks.init))
    }

    /// Whether something that a thread of the launch did happens before a lane's next access.
    fn knows(&self, warp: u32, lane: usize, earlier: Record) -> bool {
        let me = self.thread(warp).with(LANE, lane as u32);
        let own = [BLOCK, WARP, LANE].iter().all(|&part| me.get(part) == earlier.get(part));
        let vc = &self.warps[warp as usize].lanes[lane].vc;
        own || vc.known.know(vc.block().0, earlier)
    }

    /// A lane executes a fence for a tensor map.
    pub(crate) fn acquire_tensor_map(&mut self, at: &At, lane: usize, map: u64) {
        if !self.race_checked() {
            return;
        }
        let fence = self.record(at, lane);
        let fences = self.tensor_maps.entry(map).or_default();
        fences.retain(|other| [BLOCK, WARP, LANE].iter().any(|&part| other.get(part) != fence.get(part)));
        fences.push(fence);
    }

    /// Whether a fence for a tensor map, by a thread of the lane's block, happens before the lane's next access.
    pub(crate) fn has_acquired_tensor_map(&self, at: &At, lane: usize, map: u64) -> bool {
        let block = self.thread(at.warp).get(BLOCK);
        let mut fences = self.tensor_maps.get(&map).into_iter().flatten();
        !self.race_checked() || fences.any(|fence| fence.get(BLOCK) == block && self.knows(at.warp, lane, *fence))
    }

    /// Lanes show the mbarriers that they have initialised to the async proxy.
    pub(crate) fn show_mbarriers(&mut self, warp: u32, mask: u32) {
        let me = self.thread(warp);
        for clocks in self.mbarriers.values_mut() {
            let own = [BLOCK, WARP].iter().all(|&part| me.get(part) == clocks.init.get(part));
            clocks.shown |= own && mask >> clocks.init.get(LANE) & 1 == 1;
        }
    }

    /// Whether the initialisation of an mbarrier was made visible to the async proxy before a lane's next access.
    pub(crate) fn shows_mbarrier(&self, warp: u32, lane: usize, mbarrier: u64) -> bool {
        let Some(MbarrierClocks { init, shown, .. }) = self.mbarriers.get(&mbarrier) else { return true };
        let vc = &self.warps[warp as usize].lanes[lane].vc;
        *shown || vc.proxied.know(vc.block().0, *init)
    }

    /// A lane arrives at an mbarrier, `remote` if in another block, and releases what it knows.
    pub(crate) fn release_at_mbarrier(&mut self, warp: u32, lane: usize, mbarrier: u64, remote: bool) {
        if let Some(told) = self.warp(warp, |w| w.gather(1 << lane)) {
            self.tell_mbarrier(mbarrier, remote, told);
        }
    }

    fn tell_mbarrier(&mut self, mbarrier: u64, remote: bool, told: Arc<Vc>) {
        match &mut self.mbarriers.entry(mbarrier).or_default().arriving[usize::from(remote)] {
            Some(all) => Arc::make_mut(all).join(&told),
            slot @ None => *slot = Some(told),
        }
    }

    /// Completes a phase of an mbarrier.
    pub(crate) fn end_phase(&mut self, mbarrier: u64) {
        if let Some(clocks) = self.mbarriers.get_mut(&mbarrier) {
            clocks.passed = std::mem::take(&mut clocks.arriving);
        }
    }

    /// Lanes acquire what the arrivals of an mbarrier's last phase released: those from its block and, if `wide`, from
    /// other blocks.
    pub(crate) fn acquire_at_mbarrier(&mut self, warp: u32, mask: u32, mbarrier: u64, wide: bool) {
        let (Some(clocks), Some(w)) = (self.mbarriers.get(&mbarrier), self.warps.get_mut(warp as usize)) else {
            return;
        };
        let heard = clocks.passed.iter().take(if wide { 2 } else { 1 }).flatten();
        heard.for_each(|vc| Lanes(mask).for_each(|l| w.learn(l, vc)));
    }

    /// The block and warp parts of a record.
    fn thread(&self, warp: u32) -> Record {
        Record::default().with(BLOCK, self.block + warp / self.each).with(WARP, warp % self.each)
    }

    /// Record of an access by a lane to whole words at the present clock.
    fn record(&self, at: &At, lane: usize) -> Record {
        let clock = self.warps.get(at.warp as usize).map_or(0, WarpClock::now);
        self.thread(at.warp).with(LANE, lane as u32).with(BYTES, 15).with(CLOCK, clock).with(SITE, at.pc.min(SITES))
    }

    /// A lane issues a copy that will arrive at an mbarrier.
    pub(crate) fn issue_copy(&mut self, at: &At, lane: usize, proxy: bool) -> Issue {
        let by = self.record(at, lane).with(PROXY, proxy.into());
        Issue { by, told: self.warp(at.warp, |w| w.gather(1 << lane)) }
    }

    /// A copy arrives at its mbarrier and releases what the lane knew at the issue.
    pub(crate) fn tell_of_copy(&mut self, issue: &Issue, mbarrier: u64, remote: bool) {
        issue.told.iter().for_each(|told| self.tell_mbarrier(mbarrier, remote, told.clone()));
    }

    /// A copy has written or read shared memory: it counts as an access by the issuing lane from now on.
    pub(crate) fn landed(
        &mut self,
        (at, lane): (&At, usize),
        (address, bytes): (u64, u64),
        issue: Option<&Issue>,
        write: bool,
    ) {
        let by = issue.map_or_else(|| self.record(at, lane), |issue| issue.by);
        let words = self.cells.get(address as usize / 4..((address + bytes) as usize).div_ceil(4));
        words.into_iter().flatten().for_each(|cell| cell.landed(by, write, &mut &mut self.readers));
    }

    /// A copy has written device memory.
    pub(crate) fn landed_in(
        &self,
        (at, lane): (&At, usize),
        a: &AllocationChecks,
        (offset, bytes): (u64, u64),
        op: &Arc<Operation>,
    ) {
        if let Some(shadow) = a.used_shadow().filter(|_| self.race_checked()) {
            shadow.landed(op, offset, bytes, self.record(at, lane).with(PROXY, 1));
        }
    }

    /// Lanes arrive at a barrier of the block.
    pub(crate) fn arrive(&mut self, warp: u32, mask: u32, barrier: usize) {
        let Some(told) = self.warp(warp, |w| w.gather(mask)) else { return };
        join(self.barriers[barrier].get_or_insert_with(|| told.clone()), &told);
    }

    /// Completes a barrier of the block: the waiters acquire what all arrivals released.
    pub(crate) fn complete(&mut self, id: usize, waiters: impl Iterator<Item = (u32, u32)>) {
        let Some(vc) = self.barriers.get_mut(id).and_then(Option::take) else { return };
        // It includes what they knew when they arrived.
        waiters.for_each(|(warp, mask)| self.warps[warp as usize].adopt(mask, &vc));
    }

    /// Marks the bytes that an access writes, in an allocation or else in shared memory: as undefined where the lanes'
    /// elements are. Of an access that reads it adds the lanes whose elements are undefined.
    #[inline]
    pub(crate) fn mark(
        &mut self,
        a: Option<&AllocationChecks>,
        addr: &[u64; 32],
        m: u32,
        access: &Access,
        undefined: &mut [u32; 4],
    ) {
        // An atomic reads what it changes.
        let (reads, stains) = (!access.write || access.atomic, access.write && *undefined != [0; 4]);
        if !stains && a.is_some_and(AllocationChecks::all_written) {
            return;
        }
        let (step, total) = (u64::from(access.bytes.min(8)), u64::from(access.bytes * access.count));
        let bits = |address: u64, bytes: u64| ((1 << bytes) - 1) << (address % 64);
        for l in Lanes(m) {
            let start = addr[l];
            if reads {
                let is_written = |address: u64, bytes: u64| match a {
                    None => !self.written[(address / 64) as usize] & bits(address, bytes) == 0,
                    Some(a) => a.is_written(address - a.base, bytes),
                };
                if !is_written(start, total) {
                    for (k, lanes) in (0..total / step).zip(undefined.iter_mut()) {
                        *lanes |= u32::from(!is_written(start + k * step, step)) << l;
                    }
                }
            }
            match a {
                _ if !access.write => {}
                None => self.written[(start / 64) as usize] |= bits(start, total),
                Some(a) => a.mark(start - a.base, total),
            }
            for (k, lanes) in (0..total / step).zip(*undefined).filter(|_| stains) {
                let at = start + k * step;
                match a {
                    _ if lanes >> l & 1 == 0 => {}
                    None => self.written[(at / 64) as usize] &= !bits(at, step),
                    Some(a) => a.unmark(at - a.base, step),
                }
            }
        }
    }

    /// Compares an access with the earlier ones to the same words, and notes it. Without an allocation it is one of
    /// shared memory. A strong access first synchronises: through the `witness` in an allocation, within the block
    /// otherwise.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        launch: Launched<'_>,
        at: &At,
        a: Option<&AllocationChecks>,
        (addr, m): (&[u64; 32], u32),
        access: &Access,
        witness: Option<&mut Witness>,
    ) -> Vec<Race> {
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
        let (mut races, mut page) = (Vec::new(), PageReaders::default());
        for l in Lanes(m) {
            let bytes = if total >= 4 { 15 } else { ((1 << total) - 1) << (addr[l] % 4) };
            let me = me.with(LANE, l as u32).with(BYTES, bytes);
            let touch = &Touch { me, access, vc: &warp.lanes[l].vc, every_reader: self.every_reader };
            for k in 0..total.div_ceil(4) {
                let address = addr[l] + u64::from(4 * k);
                let compared = match shadow {
                    None => self.cells[(address / 4) as usize].access(touch, &mut self.readers),
                    Some((base, shadow)) => shadow.access(address - base, op, touch, &mut page),
                };
                if let Err(conflict) = compared {
                    let space = if shadow.is_none() { "shared" } else { "global" };
                    races.push(Race { lane: l, offset: 4 * k, me, space, conflict });
                }
            }
        }
        races
    }

    /// The kind of a race, its report, and the line of the earlier access.
    #[cold]
    pub(crate) fn report(
        &self,
        launch: Launched<'_>,
        race: &Race,
        access: &Access,
        at: &At,
    ) -> (FaultKind, String, u32) {
        let vc = &self.warps[at.warp as usize].lanes[race.lane].vc;
        let (kind, message) =
            report(launch, &race.conflict, Touch { me: race.me, access, vc, every_reader: true }, race.space, at);
        (kind, message, race.earlier_line(launch))
    }
}

impl Race {
    /// The earlier instruction, if it is one of the same launch that can be told apart.
    pub(crate) fn earlier_pc(&self) -> Option<u32> {
        let pc = self.conflict.earlier.get(SITE);
        (self.conflict.by.is_none() && pc != SITES).then_some(pc)
    }

    fn earlier_line(&self, launch: Launched<'_>) -> u32 {
        self.earlier_pc().map_or(0, |pc| launch.origins[pc as usize].line)
    }

    /// Whether the earlier access is by another warp.
    pub(crate) fn is_between_warps(&self) -> bool {
        let other = |part| self.conflict.earlier.get(part) != self.me.get(part);
        self.conflict.by.is_some() || other(BLOCK) || other(WARP)
    }

    /// The lane that has stored to the same address by the same execution of the instruction, if that is the race.
    pub(crate) fn same_store(&self, addr: &[u64; 32], m: u32) -> Option<usize> {
        let (earlier, lane) = (self.conflict.earlier, self.conflict.earlier.get(LANE) as usize);
        let own = !self.is_between_warps() && self.conflict.writes && earlier.get(SITE) == self.me.get(SITE);
        (own && lane < self.lane && m >> lane & 1 == 1 && addr[lane] == addr[self.lane]).then_some(lane)
    }
}

/// The report of a race.
#[cold]
fn report(launch: Launched<'_>, conflict: &Conflict, touch: Touch<'_>, space: &str, at: &At) -> (FaultKind, String) {
    let (Launched { layout, op, origins }, Touch { me, access, .. }) = (launch, touch);
    const STALE: &str = "a non-coherent load may only read data that does not change during the launch";
    match &conflict.by {
        Some(by) if access.nc && op.thread_follows(by, &touch.vc.over) => {
            let sentence = conflict.sentence(false, format!("{space} memory by {op}"), format!("by {by}"), STALE);
            return (FaultKind::StaleRead, sentence);
        }
        Some(_) => return (FaultKind::Race, conflict.between(op, access.write, space)),
        None => {}
    }
    let earlier = conflict.earlier;
    let block = layout.ctaid(earlier.get(BLOCK).into());
    let missing = if access.nc {
        STALE
    } else if touch.allows(None, earlier) {
        "a fence.proxy.async between the ordinary write and the asynchronous copy is missing"
    } else if earlier.is_in_flight() {
        "the copy is still in flight: its wait (or the barrier it completes) is missing"
    } else if block == at.ctaid && earlier.get(WARP) == at.warp % layout.warps {
        match layout.warps {
            1 => "a bar.warp.sync between them is missing",
            _ => {
                "a barrier between them is missing: one of the block if other warps share this memory, else a bar.warp.sync"
            }
        }
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
