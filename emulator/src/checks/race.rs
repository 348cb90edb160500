//! The race check: two accesses to a byte, one of them a write, by different lanes, that nothing orders.
//!
//! Every four bytes have a cell with their last write and one read since. Accesses are compared with the cell under the
//! thread's vector clock. Strong accesses (atomics, volatile, relaxed, acquire, release) of a scope that holds both
//! threads do not race with each other.

use super::clock::Vc;
use crate::exec::access::Access;
use crate::exec::inst::{Scope, Sem};
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
