//! Events that the interpreter reports to the observers of a launch: instructions with their lanes, accesses with their
//! addresses, arrivals and waits, copies at their issue and landing.
//!
//! Each event is one function with a line for every observer that needs it: the counters, one per host thread, the
//! initialisation and race checks, one per block, and the times of a modelled chip, of both kinds. Observers change no
//! result, but may find a fault. Nothing else in `exec` or above reports to one.

use super::inst::Op;
use super::warp::Warp;
use super::{Cpu, LaunchCx};
use crate::checks::allocation::AllocationChecks;
use crate::checks::block::{BlockChecks, Issue, Launched, Race};
use crate::checks::witness::Witness;
use crate::machine::access::{Access, Scope};
use crate::machine::config::DeviceConfig;
use crate::machine::fault::{Fault, FaultKind, OrFault};
use crate::machine::lanes::Lanes;
use crate::machine::layout::At;
use crate::machine::types::Space;
use crate::memory::Allocation;
use crate::timing::warps::BlockTime;
use std::sync::{Arc, MutexGuard};

/// Occurrences of a race that a thread of the host reports in full; more are counted.
const FULL: u64 = 64;

/// Whether an observer needs accesses. (Instructions are reported if [`Cpu::observes_issue`], all else always.)
pub(crate) fn observes_accesses(config: &DeviceConfig) -> bool {
    config.counters || config.clock.is_some() || config.checks.racecheck || config.checks.initcheck
}

impl LaunchCx<'_> {
    /// Facts of the launch for observers.
    fn launched(&self) -> Launched<'_> {
        Launched { layout: &self.layout, op: &self.op, origins: &self.code.origins }
    }
}

/// Observers of one block, or of all blocks of a cluster.
pub(crate) struct Observers {
    checks: BlockChecks,
    /// Times of its warps, where a chip's time is modelled.
    pub(crate) time: Option<Box<BlockTime>>,
}

/// A copy at its issue, and when it lands in modelled time.
pub(crate) struct CopyIssue {
    checked: Issue,
    lands: u64,
}

impl<'a> Cpu<'a> {
    /// Whether an observer needs every instruction.
    #[inline(always)]
    pub(crate) fn observes_issue(&self) -> bool {
        self.cx.config.counters || self.cx.config.clock.is_some() || self.defines
    }

    /// A warp issues an instruction for the lanes in `m`, which are none where its guard is false. Returns whether the warp
    /// should give way to others.
    #[inline(always)]
    pub(crate) fn issues(&mut self, observers: &mut Observers, warp: u32, pc: u32, m: u32) -> bool {
        if self.cx.config.counters {
            self.counters.issue(pc, m);
        }
        match (&mut self.timekeeper, &mut observers.time) {
            (Some(keeper), Some(time)) => keeper.issue(time, warp, pc),
            _ => false,
        }
    }

    /// A lane issues a bulk copy, out of shared memory or into it, by the address and size in device memory; whether it is
    /// the last to want that. Returns when it lands in modelled time.
    pub(crate) fn bulk_issue(
        &mut self,
        observers: &mut Observers,
        at: &At,
        device: (u64, u64),
        (write, is_last): (bool, bool),
    ) -> u64 {
        if self.cx.config.counters {
            self.counters.bulk(at.pc, device, write);
        }
        match (&mut self.timekeeper, &mut observers.time) {
            (Some(keeper), Some(time)) => keeper.bulk(time, at.warp, device, (write, is_last)),
            _ => 0,
        }
    }

    /// A lane asks L2 for bytes at an address.
    pub(crate) fn prefetches(&mut self, observers: &mut Observers, at: &At, device: (u64, u64)) {
        if self.cx.config.counters {
            self.counters.ask(at.pc, device);
        }
        if let (Some(keeper), Some(time)) = (&mut self.timekeeper, &mut observers.time) {
            keeper.prefetch(time, at.warp, device);
        }
    }

    /// Lanes are about to access memory, atomically or not, at the addresses `named`.
    ///
    /// Returns a guard for an access that may synchronise with other launches and the host: it keeps them off until it is
    /// dropped.
    pub(crate) fn accesses(
        &mut self,
        (observers, warp): (&mut Observers, &mut Warp),
        space: Space,
        (named, m): (&[u64; 32], u32),
        access: &Access,
        at: &At,
    ) -> OrFault<Option<MutexGuard<'a, Witness>>> {
        if self.cx.config.counters && !access.proxy && !access.of_map {
            self.counters.access(at.pc, space, named, m, access);
        }
        if let (Some(keeper), Some(time)) = (&mut self.timekeeper, &mut observers.time) {
            let allocation = self.table.live.get(self.site[at.pc as usize] as usize);
            let is_global = matches!(space, Space::Global | Space::Generic);
            let is_host = is_global && allocation.is_some_and(|a| a.checks.is_host());
            keeper.access(time, (at.warp, at.pc), space, (named, m), access, is_host);
        }
        if space == Space::Local && self.defines {
            self.marks_local(warp, named, m, access);
        }
        // Without an allocation it is the block's shared memory.
        let allocation = match space {
            Space::Shared => None,
            Space::Global | Space::Generic => self.table.live.get(self.site[at.pc as usize] as usize),
            _ => return Ok(None),
        };
        let (layout, checks) = (&self.cx.layout, &mut observers.checks);
        let in_cluster = allocation.is_none() && layout.ranks > 1;
        let addr = if in_cluster { &named.map(|a| layout.shared_index(a)) } else { named };
        // SAFETY: `self.table` holds the allocation, and changes only between instructions. Counting the reference would
        // make the threads of the launch contend for it.
        let allocation = allocation.map(|a| unsafe { &(*Arc::as_ptr(a)).checks });
        if self.defines {
            let mut undefined = if access.carries { self.undefined } else { [0; 4] };
            checks.mark(allocation, addr, m, access, &mut undefined);
            if undefined != [0; 4] {
                let is_host = allocation.is_some_and(AllocationChecks::is_host);
                self.meets_undefined(named, access, (undefined, is_host), at)?;
            }
        }
        let checks = &mut observers.checks;
        if !checks.race_checked() {
            return Ok(None);
        }
        let access = &Access { scope: layout.reach(access.scope), ..*access };
        let mut turn = (access.is_strong() && allocation.is_some()).then(|| self.cx.memory.witness());
        let races = checks.access(self.cx.launched(), at, allocation, (addr, m), access, turn.as_deref_mut());
        if !races.is_empty() {
            self.meets_races((observers, warp), races, (named, m), access, at)?;
        }
        Ok(turn)
    }
}

impl Cpu<'_> {
    /// An access reads what is undefined, or writes it: carries it on, or faults where others get it.
    #[cold]
    fn meets_undefined(
        &mut self,
        named: &[u64; 32],
        access: &Access,
        (undefined, is_host): ([u32; 4], bool),
        at: &At,
    ) -> OrFault<()> {
        let Some((k, lanes)) = (0..).zip(undefined).find(|of| of.1 != 0) else { return Ok(()) };
        let lane = lanes.trailing_zeros() as usize;
        let address = named[lane] + k * u64::from(access.bytes);
        let message = match access.carries {
            true if !access.write => {
                (self.undefined, self.undefined_at) = (undefined, address);
                return Ok(());
            }
            true if is_host => "what the host gets here is undefined: nothing has written it".into(),
            true if access.is_strong() => "what other threads get here is undefined: nothing has written it".into(),
            true => return Ok(()),
            false => format!("{} bytes are read that nothing has written", access.bytes.min(8)),
        };
        self.find(self.fault_at(FaultKind::UninitialisedMemory, at, lane, address, message))
    }

    /// Reports races of an access; of those within a warp and between warps the latter first, since they need more.
    #[cold]
    fn meets_races(
        &mut self,
        (observers, warp): (&mut Observers, &mut Warp),
        mut races: Vec<Race>,
        (named, m): (&[u64; 32], u32),
        access: &Access,
        at: &At,
    ) -> OrFault<()> {
        races.sort_by_key(|race| !race.is_between_warps());
        for race in races {
            let same = race.same_store(named, m).filter(|&lane| self.stores_alike(warp, at.pc, [lane, race.lane]));
            let met = self.met.entry((at.pc, race.earlier_pc(), same.is_some())).or_insert(0);
            *met += 1;
            if *met > FULL && !self.cx.config.fatal_findings {
                continue;
            }
            let (mut kind, mut message, earlier_line) = observers.checks.report(self.cx.launched(), &race, access, at);
            if let Some(lane) = same {
                kind = FaultKind::SameValueStore;
                let [[x, y, z], [u, v, w]] = [lane, race.lane].map(|l| self.cx.layout.thread(at.warp, l));
                message =
                    format!("threads ({x}, {y}, {z}) and ({u}, {v}, {w}) store the same value by one instruction");
            }
            let fault = self.fault_at(kind, at, race.lane, named[race.lane] + u64::from(race.offset), message);
            self.find(Box::new(Fault { earlier_line, ..*fault }))?;
        }
        Ok(())
    }

    /// Whether a store has the same values in two lanes.
    fn stores_alike(&self, warp: &Warp, pc: u32, lanes: [usize; 2]) -> bool {
        let Op::Mem(op) = &self.cx.code.insts[pc as usize].op else { return false };
        let [a, b] = lanes.map(|l| op.regs.iter().map(move |&r| warp.lane(self.cx.code, r, l)));
        op.access.write && a.eq(b)
    }

    /// A finding: an error where the first one is fatal.
    pub(crate) fn find(&self, fault: Box<Fault>) -> OrFault<()> {
        self.cx.config.judge(fault, |fault| self.cx.memory.found().add(fault))
    }

    /// Counts the occurrences that were not reported in full.
    pub(crate) fn count_findings(&self) {
        let lines = |pc: u32| self.cx.code.origins[pc as usize].line;
        for (&(pc, earlier, same), &met) in self.met.iter().filter(|met| *met.1 > FULL) {
            let kinds: &[_] =
                if same { &[FaultKind::SameValueStore] } else { &[FaultKind::Race, FaultKind::StaleRead] };
            let lines = (lines(pc), earlier.map_or(0, lines));
            kinds.iter().for_each(|&kind| self.cx.memory.found().count(&self.cx.info.name, lines, kind, met - FULL));
        }
    }

    /// Marks the bytes of local memory that an access writes, or finds those that are undefined.
    fn marks_local(&mut self, warp: &mut Warp, named: &[u64; 32], m: u32, access: &Access) {
        let (stride, bytes) = (self.cx.code.local.next_multiple_of(16) as usize, access.bytes as usize);
        for l in Lanes(m) {
            for k in 0..access.count as usize {
                let at = l * stride + named[l] as usize + k * bytes;
                if access.write {
                    warp.defined.mark_local(at, bytes, self.undefined[k] >> l & 1 == 0);
                } else if !warp.defined.is_defined_local(at, bytes) {
                    self.undefined[k] |= 1 << l;
                    self.undefined_at = named[l] + (k * bytes) as u64;
                }
            }
        }
    }
}

impl Observers {
    /// Observers of the blocks from number `block` on, with the masks of their warps' lanes.
    pub(crate) fn new(cx: &LaunchCx<'_>, block: u64, live: &[u32]) -> Observers {
        Observers { checks: BlockChecks::new(cx.launched(), cx.config.checks, block, live), time: None }
    }

    /// Lanes execute a fence.
    pub(crate) fn fence(&mut self, warp: u32, m: u32, scope: Scope) {
        self.checks.warp(warp, |w| w.fence(m, scope));
    }

    /// Lanes execute a fence between the ordinary and the async proxy.
    pub(crate) fn proxy_fence(&mut self, warp: u32, m: u32) {
        self.checks.warp(warp, |w| w.proxy_fence(m));
    }

    /// Lanes synchronise by `bar.warp.sync`.
    pub(crate) fn warp_barrier(&mut self, warp: u32, m: u32) {
        self.checks.warp(warp, |w| w.synced(m));
    }

    /// Lanes arrive at a barrier of the block.
    pub(crate) fn barrier_arrive(&mut self, warp: u32, m: u32, barrier: usize) {
        self.checks.arrive(warp, m, barrier);
        self.time.iter_mut().for_each(|time| time.arrive(warp, barrier));
    }

    /// A barrier of the block completes and releases its waiters, given as warps and lanes.
    pub(crate) fn barrier_complete(&mut self, barrier: usize, waiters: impl Iterator<Item = (u32, u32)> + Clone) {
        self.checks.complete(barrier, waiters.clone());
        self.time.iter_mut().for_each(|time| time.complete(barrier, waiters.clone().map(|waiter| waiter.0)));
    }

    /// Lanes have waited for the launches before this one, by `griddepcontrol.wait`.
    pub(crate) fn grid_wait(&mut self, cx: &LaunchCx<'_>, warp: u32, m: u32) {
        cx.op.wait();
        self.checks.warp(warp, |w| w.waited(m, &cx.op.place.before));
    }

    /// The launch lets the next one begin, by `griddepcontrol.launch_dependents`.
    pub(crate) fn grid_trigger(&mut self, cx: &LaunchCx<'_>) {
        cx.op.trigger();
    }

    /// A lane initialises an mbarrier.
    pub(crate) fn mbarrier_init(&mut self, at: &At, lane: usize, mbarrier: u64) {
        self.checks.init_mbarrier(at, lane, mbarrier);
    }

    /// Whether the initialisation of an mbarrier happens before a lane's use of it.
    pub(crate) fn mbarrier_is_ready(&self, at: &At, lane: usize, mbarrier: u64) -> bool {
        self.checks.knows_mbarrier(at.warp, lane, mbarrier)
    }

    /// Lanes execute a fence that shows mbarriers they have initialised to the async proxy.
    pub(crate) fn mbarrier_init_fence(&mut self, at: &At, m: u32) {
        self.checks.show_mbarriers(at.warp, m);
    }

    /// Whether the async proxy sees the initialisation of an mbarrier before a lane's copy arrives there.
    pub(crate) fn mbarrier_is_shown(&self, at: &At, lane: usize, mbarrier: u64) -> bool {
        self.checks.shows_mbarrier(at.warp, lane, mbarrier)
    }

    /// A lane executes a fence for the tensor map at an address.
    pub(crate) fn tensor_map_fence(&mut self, at: &At, lane: usize, map: u64) {
        self.checks.acquire_tensor_map(at, lane, map);
    }

    /// Whether a fence for the tensor map at an address, by a thread of the block, happens before a lane's copy by it.
    pub(crate) fn tensor_map_is_acquired(&self, at: &At, lane: usize, map: u64) -> bool {
        self.checks.has_acquired_tensor_map(at, lane, map)
    }

    /// A lane arrives at an mbarrier with release semantics; `remote` where it lies in another block.
    pub(crate) fn mbarrier_arrive(&mut self, at: &At, lane: usize, mbarrier: u64, remote: bool) {
        self.checks.release_at_mbarrier(at.warp, lane, mbarrier, remote);
        self.time.iter_mut().for_each(|time| time.arrive_at_mbarrier(at.warp, mbarrier));
    }

    /// The phase of an mbarrier completes.
    pub(crate) fn mbarrier_complete(&mut self, mbarrier: u64) {
        self.checks.end_phase(mbarrier);
        self.time.iter_mut().for_each(|time| time.end_phase(mbarrier));
    }

    /// Lanes have waited for an mbarrier's last phase with acquire semantics of a scope.
    pub(crate) fn mbarrier_wait(&mut self, at: &At, m: u32, mbarrier: u64, scope: Scope) {
        self.checks.acquire_at_mbarrier(at.warp, m, mbarrier, scope >= Scope::Cluster);
        self.time.iter_mut().for_each(|time| time.pass_mbarrier(at.warp, mbarrier));
    }

    /// A lane issues a copy into shared memory that will arrive at an mbarrier; it lands at `lands` in modelled time.
    pub(crate) fn copy_issue(&mut self, at: &At, lane: usize, proxy: bool, lands: u64) -> CopyIssue {
        CopyIssue { checked: self.checks.issue_copy(at, lane, proxy), lands }
    }

    /// When the copies that a warp has just issued land, in modelled time.
    pub(crate) fn copies_land(&self, warp: u32) -> u64 {
        self.time.as_ref().map_or(0, |time| time.copied(warp))
    }

    /// Copies that have landed at a modelled time arrive at an mbarrier.
    pub(crate) fn arrival_after_copies(&mut self, mbarrier: u64, lands: u64) {
        self.time.iter_mut().for_each(|time| time.tell_mbarrier(mbarrier, lands));
    }

    /// A warp waits for copies that land at a modelled time.
    pub(crate) fn copies_awaited(&mut self, warp: u32, at: u64) {
        self.time.iter_mut().for_each(|time| time.wait_for_copies(warp, at));
    }

    /// When the product that a warp has just issued is there, in modelled time.
    pub(crate) fn product_done(&self, warp: u32) -> u64 {
        self.time.as_ref().map_or(0, |time| time.product(warp))
    }

    /// A warp waits for products that are there at a modelled time.
    pub(crate) fn products_awaited(&mut self, warp: u32, at: u64) {
        self.time.iter_mut().for_each(|time| time.wait_for_products(warp, at));
    }

    /// A copy lands in shared memory. Without its issue it counts as an access by the lane at its wait.
    pub(crate) fn copy_lands(&mut self, (at, lane): (&At, usize), index: u64, bytes: u64, issue: Option<&CopyIssue>) {
        self.checks.landed((at, lane), (index, bytes), issue.map(|issue| &issue.checked), true);
    }

    /// A copy that has landed arrives at its mbarrier.
    pub(crate) fn copy_arrive(&mut self, issue: &CopyIssue, mbarrier: u64, remote: bool) {
        self.checks.tell_of_copy(&issue.checked, mbarrier, remote);
        self.time.iter_mut().for_each(|time| time.tell_mbarrier(mbarrier, issue.lands));
    }

    /// A copy has read its source in shared memory.
    pub(crate) fn copy_reads(&mut self, (at, lane): (&At, usize), index: u64, bytes: u64) {
        self.checks.landed((at, lane), (index, bytes), None, false);
    }

    /// A copy lands in device memory.
    pub(crate) fn copy_lands_in(
        &self,
        cx: &LaunchCx<'_>,
        (at, lane): (&At, usize),
        to: &Allocation,
        offset: u64,
        bytes: u64,
    ) {
        self.checks.landed_in((at, lane), &to.checks, (offset, bytes), &cx.op);
    }
}
