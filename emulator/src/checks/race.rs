//! The race check: two accesses to a byte, one of them a write, by different lanes, that nothing orders.
//!
//! Every four bytes have a cell with their last write and one read since. Accesses are compared with the cell under the
//! thread's vector clock. Strong accesses (atomics, volatile, relaxed, acquire, release) of a scope that holds both
//! threads do not race with each other.

use super::clock::Vc;
use crate::exec::access::Access;
use crate::exec::inst::{Scope, Sem};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One access, packed: block 16, warp 5, lane 5, strength 2, bytes 4, by the async proxy 1, clock 19, site 12.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record(pub(crate) u64);

/// The clock of a copy in flight: nobody can know it.
pub(crate) const IN_FLIGHT: u32 = (1 << 19) - 1;
/// Clocks from here on are not told apart: whoever synchronises that late knows of all such accesses.
pub(crate) const LATEST: u32 = IN_FLIGHT - 1;
/// Sites beyond are not told apart.
const SITES: u32 = (1 << 12) - 1;
/// Blocks beyond are not checked.
pub(crate) const MAX_BLOCK: u32 = u16::MAX as u32;

impl Record {
    pub(crate) fn new(block: u32, warp: u32, lane: u32, strength: u32, clock: u32, site: u32) -> Record {
        let clock = clock.min(IN_FLIGHT);
        Record(
            u64::from(block.min(MAX_BLOCK)) << 48
                | u64::from(warp) << 43
                | u64::from(lane) << 38
                | u64::from(strength) << 36
                | u64::from(clock) << 12
                | u64::from(site.min(SITES)),
        )
    }
    pub(crate) fn with_bytes(self, mask: u32) -> Record {
        Record(self.0 & !(15 << 32) | u64::from(mask) << 32)
    }
    /// An access by an operation that has no threads.
    pub(crate) fn anonymous(bytes: u32) -> Record {
        Record(0).with_bytes(bytes)
    }
    /// Marks it as made by the async proxy.
    pub(crate) fn by_proxy(self) -> Record {
        Record(self.0 | 1 << 31)
    }
    fn is_by_proxy(self) -> bool {
        self.0 >> 31 & 1 == 1
    }
    pub(crate) fn block(self) -> u32 {
        (self.0 >> 48) as u32
    }
    pub(crate) fn warp(self) -> u32 {
        (self.0 >> 43) as u32 & 31
    }
    pub(crate) fn lane(self) -> u32 {
        (self.0 >> 38) as u32 & 31
    }
    fn thread(self) -> u64 {
        self.0 >> 38
    }
    pub(crate) fn strength(self) -> u32 {
        (self.0 >> 36) as u32 & 3
    }
    pub(crate) fn bytes(self) -> u32 {
        (self.0 >> 32) as u32 & 15
    }
    pub(crate) fn clock(self) -> u32 {
        (self.0 >> 12) as u32 & IN_FLIGHT
    }
    /// Instruction, if its number is small enough.
    pub(crate) fn site(self) -> Option<u32> {
        let s = self.0 as u32 & SITES;
        (s != SITES).then_some(s)
    }
    pub(crate) fn is_some(self) -> bool {
        self.0 & 15 << 32 != 0
    }
}

/// 0 for weak accesses, else 1 + scope: cta, gpu, sys.
pub(crate) fn strength(access: &Access) -> u32 {
    if access.sem == Sem::Weak && !access.atomic {
        return 0;
    }
    match access.scope {
        Scope::Cta => 1,
        Scope::Cluster | Scope::Gpu => 2,
        Scope::Sys => 3,
    }
}

/// The state of four bytes.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    write: AtomicU64,
    read: AtomicU64,
}

/// A conflict found.
pub(crate) struct Conflict {
    pub(crate) earlier: Record,
    pub(crate) earlier_writes: bool,
    /// The earlier write was ordered, but not visible to the async proxy.
    pub(crate) proxy: bool,
    /// A non-coherent read of written data.
    pub(crate) stale: bool,
}

/// Whether two accesses are ordered, or both strong at a sufficient scope.
#[inline(always)]
fn fine(old: Record, me: Record, vc: &Vc) -> bool {
    if old.clock() != IN_FLIGHT {
        if old.thread() == me.thread() || vc.knows(old.block(), old.warp(), old.lane(), old.clock()) {
            return true;
        }
        let both = old.strength().min(me.strength());
        if both >= 2 || (both == 1 && old.block() == me.block()) {
            return true;
        }
    }
    false
}

impl Cell {
    /// Compares an access with the cell and notes it there.
    #[inline(always)]
    pub(crate) fn access(&self, me: Record, write: bool, access: &Access, vc: &Vc) -> Option<Conflict> {
        let w = Record(self.write.load(Ordering::Relaxed));
        if w.is_some() && w.bytes() & me.bytes() != 0 {
            if access.nc {
                return Some(Conflict { earlier: w, earlier_writes: true, proxy: false, stale: true });
            }
            if !fine(w, me, vc) {
                return Some(Conflict { earlier: w, earlier_writes: true, proxy: false, stale: false });
            }
            if access.proxy && !vc.proxied(w.block(), w.warp(), w.lane(), w.clock()) && !w.is_by_proxy() {
                return Some(Conflict { earlier: w, earlier_writes: true, proxy: true, stale: false });
            }
        }
        let r = Record(self.read.load(Ordering::Relaxed));
        if write {
            if r.is_some() && r.bytes() & me.bytes() != 0 && !fine(r, me, vc) {
                return Some(Conflict { earlier: r, earlier_writes: false, proxy: false, stale: false });
            }
            self.write.store(me.0, Ordering::Relaxed);
            self.read.store(0, Ordering::Relaxed);
        } else if r != me {
            // Of readers that are not ordered, one is kept; which one differs from cell to cell.
            let keep = r.is_some() && r.clock() == IN_FLIGHT
                || r.is_some()
                    && me.clock() != IN_FLIGHT
                    && (r.0 ^ me.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1;
            if !keep || fine(r, me, vc) {
                self.read.store(me.0, Ordering::Relaxed);
            }
        }
        None
    }

    /// Nothing has happened.
    pub(crate) const fn empty() -> Cell {
        Cell { write: AtomicU64::new(0), read: AtomicU64::new(0) }
    }

    pub(crate) fn clear(&self) {
        self.write.store(0, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
    }

    pub(crate) fn last_write(&self) -> Record {
        Record(self.write.load(Ordering::Relaxed))
    }

    pub(crate) fn last_read(&self) -> Record {
        Record(self.read.load(Ordering::Relaxed))
    }

    /// Compares an access with this cell of another operation; if they conflict, whether the other one wrote.
    pub(crate) fn foreign(&self, launch: u32, me: Record, write: bool, host: bool, vc: &Vc) -> Option<bool> {
        let needed = if host { 3 } else { 2 };
        let conflicts = |r: Record| {
            r.is_some()
                && r.bytes() & me.bytes() != 0
                && r.strength().min(me.strength()) < needed
                && !(r.clock() != IN_FLIGHT && vc.knows_of(launch, r.block(), r.warp(), r.lane(), r.clock()))
        };
        if conflicts(self.last_write()) {
            return Some(true);
        }
        (write && conflicts(self.last_read())).then_some(false)
    }

    /// As `foreign`, for an access that knows of nothing.
    pub(crate) fn touched(&self, bytes: u32, write: bool) -> Option<bool> {
        if self.last_write().bytes() & bytes != 0 {
            return Some(true);
        }
        (write && self.last_read().bytes() & bytes != 0).then_some(false)
    }

    /// Replaces the read in flight of a copy's source.
    pub(crate) fn source_read(&self, me: Record) {
        if Record(self.read.load(Ordering::Relaxed)).clock() == IN_FLIGHT {
            self.read.store(me.0, Ordering::Relaxed);
        }
    }

    /// Replaces the last write, as when a copy lands.
    pub(crate) fn landed(&self, me: Record) {
        self.write.store(me.0, Ordering::Relaxed);
    }
}

/// What a lane has learned and is ready to pass on.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) vc: Arc<Vc>,
    /// State at the last fence of any scope, and of gpu scope or wider: clock and knowledge.
    released: [Option<(u32, Arc<Vc>)>; 2],
    /// Read from strong locations since the last fence: for readers of any scope, of gpu scope or wider.
    pending: Vec<(Arc<Vc>, bool)>,
}

/// The clocks of one warp.
#[derive(Debug)]
pub(crate) struct WarpClock {
    pub(crate) clock: u32,
    pub(crate) full: u32,
    pub(crate) lanes: Vec<Lane>,
}

/// A location through which threads synchronise: what its value carries within a block, and further, by launch.
#[derive(Debug, Default)]
pub(crate) struct SyncLocation {
    cta: Option<((u32, u32), Arc<Vc>)>,
    gpu: Vec<Arc<Vc>>,
}

impl SyncLocation {
    /// Forgets what operations told that are over for everybody; whether anything is left.
    pub(crate) fn settle(&mut self, is_over: impl Fn(u32) -> bool) -> bool {
        self.cta.take_if(|(key, _)| is_over(key.0));
        self.gpu.retain(|vc| !is_over(vc.launch()));
        self.cta.is_some() || !self.gpu.is_empty()
    }
}

/// Locations by address.
pub(crate) type SyncLocations = HashMap<u64, SyncLocation>;

fn join_arc(a: &mut Arc<Vc>, b: &Arc<Vc>) {
    if !Arc::ptr_eq(a, b) {
        Arc::make_mut(a).join(b);
    }
}

impl WarpClock {
    pub(crate) fn new(vc: &Arc<Vc>, full: u32) -> WarpClock {
        let lane = Lane { vc: vc.clone(), released: [None, None], pending: Vec::new() };
        WarpClock { clock: 0, full, lanes: vec![lane; 32] }
    }

    /// What lanes know together, themselves included; their later accesses are not part of it.
    pub(crate) fn gather(&mut self, warp: u32, mask: u32) -> Arc<Vc> {
        let mut lanes = crate::exec::lanes::Lanes(mask);
        let first = lanes.next().unwrap_or(0);
        let mut vc = self.lanes[first].vc.clone();
        for l in lanes {
            let other = self.lanes[l].vc.clone();
            join_arc(&mut vc, &other);
        }
        Arc::make_mut(&mut vc).raise(warp, mask, self.full, self.clock + 1);
        self.clock += 1;
        vc
    }

    /// Lanes learn something.
    pub(crate) fn learn(&mut self, mask: u32, vc: &Arc<Vc>) {
        let mut made: Option<(Arc<Vc>, Arc<Vc>)> = None;
        for l in crate::exec::lanes::Lanes(mask) {
            let lane = &mut self.lanes[l].vc;
            // Lanes that knew the same know the same afterwards.
            match &made {
                Some((before, after)) if Arc::ptr_eq(before, lane) => *lane = after.clone(),
                _ => {
                    let before = lane.clone();
                    join_arc(lane, vc);
                    made = Some((before, lane.clone()));
                }
            }
        }
    }

    /// Lanes know exactly this from now on; it includes what they knew.
    pub(crate) fn adopt(&mut self, mask: u32, vc: &Arc<Vc>) {
        crate::exec::lanes::Lanes(mask).for_each(|l| self.lanes[l].vc = vc.clone());
    }

    /// A fence: what was read before it is learned, what was done before it is released by later writes.
    pub(crate) fn fence(&mut self, mask: u32, scope: Scope) {
        let wide = scope >= Scope::Cluster;
        for l in crate::exec::lanes::Lanes(mask) {
            let lane = &mut self.lanes[l];
            for (vc, needs_wide) in std::mem::take(&mut lane.pending) {
                if wide || !needs_wide {
                    join_arc(&mut lane.vc, &vc);
                } else {
                    lane.pending.push((vc, needs_wide));
                }
            }
            let state = (self.clock, lane.vc.clone());
            lane.released[0] = Some(state.clone());
            if wide {
                lane.released[1] = Some(state);
            }
        }
        self.clock += 1;
    }

    /// What a lane's strong write carries: within its block, and further.
    pub(crate) fn carried(&mut self, warp: u32, lane: u32, access: &Access) -> [Option<Arc<Vc>>; 2] {
        let wide = access.scope >= Scope::Cluster;
        if access.sem >= Sem::Release {
            let vc = self.gather(warp, 1 << lane);
            return [Some(vc.clone()), wide.then_some(vc)];
        }
        let full = self.full;
        let state = |s: &Option<(u32, Arc<Vc>)>| {
            s.as_ref().map(|(clock, vc)| {
                let mut vc = vc.clone();
                Arc::make_mut(&mut vc).raise(warp, 1 << lane, full, clock + 1);
                vc
            })
        };
        let released = &self.lanes[lane as usize].released;
        [state(&released[0]), if wide { state(&released[1]) } else { None }]
    }

    /// A lane's strong access to a synchronising location. `known` are operations that ended before this one began.
    pub(crate) fn strong(
        &mut self,
        at: &mut SyncLocation,
        block: (u32, u32),
        warp: u32,
        lane: u32,
        access: &Access,
        known: impl Fn(u32) -> bool,
    ) {
        let wide = access.scope >= Scope::Cluster;
        let reads = !access.write || access.atomic;
        if reads {
            let acquires = matches!(access.sem, Sem::Acquire | Sem::AcqRel);
            let near = at.cta.as_ref().filter(|(b, _)| *b == block).map(|(_, vc)| (vc, false));
            let far = at.gpu.iter().filter(|vc| wide && !known(vc.launch())).map(|vc| (vc, true));
            let lane = &mut self.lanes[lane as usize];
            for (vc, needs_wide) in near.into_iter().chain(far) {
                if acquires {
                    join_arc(&mut lane.vc, vc);
                } else if !lane.pending.iter().any(|p| Arc::ptr_eq(&p.0, vc)) {
                    lane.pending.push((vc.clone(), needs_wide));
                }
            }
        }
        if access.write {
            let [near, far] = self.carried(warp, lane, access);
            if access.atomic {
                // A read-modify-write continues what it read.
                match (&mut at.cta, near) {
                    (Some((b, vc)), Some(n)) if *b == block => join_arc(vc, &n),
                    (slot, Some(n)) => *slot = Some((block, n)),
                    _ => {}
                }
                if let Some(far) = far {
                    match at.gpu.iter_mut().find(|vc| vc.launch() == block.0) {
                        Some(vc) => join_arc(vc, &far),
                        None => at.gpu.push(far),
                    }
                }
            } else {
                at.cta = near.map(|n| (block, n));
                at.gpu.clear();
                at.gpu.extend(far);
            }
        }
    }
}
