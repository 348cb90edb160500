//! The race check: two accesses to a byte, one of them a write, by different lanes, that nothing orders.
//!
//! Every four bytes have a cell with their last write and one read since. Accesses are compared with the cell under the
//! thread's vector clock. Strong accesses (atomics, volatile, relaxed, acquire, release) of a scope that holds both
//! threads do not race with each other.

use super::clock::Vc;
use super::shadow::Between;
use crate::exec::access::Access;
use crate::exec::inst::{Scope, Sem};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

/// A part of a record: its first bit, and how many it has.
type Part = (u32, u32);
pub(crate) const BLOCK: Part = (48, 16);
pub(crate) const WARP: Part = (43, 5);
pub(crate) const LANE: Part = (38, 5);
/// 0 for weak accesses, else 1 + scope: cta, gpu, sys.
pub(crate) const STRENGTH: Part = (36, 2);
/// Which bytes of the cell, a bit each.
pub(crate) const BYTES: Part = (32, 4);
/// Made by the async proxy.
pub(crate) const PROXY: Part = (31, 1);
pub(crate) const CLOCK: Part = (12, 19);
/// The instruction.
pub(crate) const SITE: Part = (0, 12);

/// The largest value of a part.
const fn most(part: Part) -> u32 {
    (1 << part.1) - 1
}

/// The clock of a copy in flight: nobody can know it.
pub(crate) const IN_FLIGHT: u32 = most(CLOCK);
/// Clocks from here on are not told apart: whoever synchronises that late knows of all such accesses.
pub(crate) const LATEST: u32 = IN_FLIGHT - 1;
/// Stands for instructions from here on.
pub(crate) const SITES: u32 = most(SITE);
/// Blocks from here on are not checked.
pub(crate) const MAX_BLOCK: u32 = most(BLOCK);

/// One access, packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Record(u64);

impl Record {
    /// Sets a part that is zero so far; the value must fit.
    #[inline(always)]
    pub(crate) fn with(self, part: Part, value: u32) -> Record {
        Record(self.0 | u64::from(value) << part.0)
    }

    #[inline(always)]
    pub(crate) fn get(self, part: Part) -> u32 {
        (self.0 >> part.0) as u32 & most(part)
    }

    pub(crate) fn is_in_flight(self) -> bool {
        self.get(CLOCK) == IN_FLIGHT
    }

    fn meets(self, other: Record) -> bool {
        self.get(BYTES) & other.get(BYTES) != 0
    }

    /// Whether this is ordered before another access of its launch, or both are strong at a sufficient scope.
    #[inline(always)]
    fn allows(self, later: Record, vc: &Vc) -> bool {
        let both = || self.get(STRENGTH).min(later.get(STRENGTH));
        !self.is_in_flight()
            && (self.0 >> LANE.0 == later.0 >> LANE.0
                || vc.knows_own(self)
                || both() >= 2
                || (both() == 1 && self.get(BLOCK) == later.get(BLOCK)))
    }
}

/// See `STRENGTH`.
pub(crate) fn strength(access: &Access) -> u32 {
    match access.scope {
        _ if access.sem == Sem::Weak && !access.atomic => 0,
        Scope::Cta => 1,
        Scope::Cluster | Scope::Gpu => 2,
        Scope::Sys => 3,
    }
}

/// An access that nothing orders after an earlier one.
pub(crate) enum Conflict {
    /// By another thread of the launch; if it is `ordered`, it is not visible to the async proxy.
    Within { earlier: Record, writes: bool, ordered: bool },
    /// By another operation.
    Between(Between),
}

impl From<Between> for Box<Conflict> {
    fn from(other: Between) -> Box<Conflict> {
        Box::new(Conflict::Between(other))
    }
}

/// The report of a conflict.
pub(crate) fn sentence(write: bool, memory: impl Display, writes: bool, who: impl Display, missing: &str) -> String {
    let verb = |write| if write { "write" } else { "read" };
    let (this, earlier) = (verb(write), verb(writes));
    format!("this {this} of {memory} is not ordered after the {earlier} {who}: {missing}")
}

/// What was done to four bytes: a bit a byte, for weak and strong reads, weak and strong writes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Marks(u16);

impl Marks {
    pub(crate) fn new(bytes: u32, write: bool, strong: bool) -> Marks {
        Marks((bytes << (8 * u32::from(write) + 4 * u32::from(strong))) as u16)
    }

    /// Whether an access conflicts with what was done; if so, whether that was a write. `strength` is what both need so
    /// that they do not.
    pub(crate) fn conflict(self, me: Record, write: bool, strength: u32) -> Option<bool> {
        let both = if me.get(STRENGTH) < strength { 0x11 } else { 1 };
        let of = |shift: u32| (u32::from(self.0) >> shift) & (me.get(BYTES) * both) != 0;
        if of(8) { Some(true) } else { (write && of(0)).then_some(false) }
    }
}

/// The state of four bytes.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    write: AtomicU64,
    read: AtomicU64,
}

impl Cell {
    fn last(&self) -> [Record; 2] {
        [&self.read, &self.write].map(|r| Record(r.load(Ordering::Relaxed)))
    }

    /// Compares an access with others of its launch and notes it.
    #[inline(always)]
    pub(crate) fn access(&self, me: Record, access: &Access, vc: &Vc) -> Result<(), Box<Conflict>> {
        let [r, w] = self.last();
        if w.meets(me) {
            let ordered = w.allows(me, vc);
            // A non-coherent read may see what was there before any write of the launch.
            if access.nc || !ordered || access.proxy && w.get(PROXY) == 0 && !vc.knows_proxied(w) {
                return Err(Box::new(Conflict::Within { earlier: w, writes: true, ordered }));
            }
        }
        if access.write {
            if r.meets(me) && !r.allows(me, vc) {
                return Err(Box::new(Conflict::Within { earlier: r, writes: false, ordered: false }));
            }
            self.write.store(me.0, Ordering::Relaxed);
            self.read.store(0, Ordering::Relaxed);
        } else if r != me {
            // Of readers that are not ordered, one is kept; which one differs from cell to cell.
            let any = (r.0 ^ me.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1;
            let keep = r.get(BYTES) != 0 && (r.is_in_flight() || !me.is_in_flight() && any);
            if !keep || r.allows(me, vc) {
                self.read.store(me.0, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// What was done to the bytes, but for accesses that are `known`; strong are those of at least a strength.
    pub(crate) fn marks(&self, strength: u32, known: impl Fn(Record) -> bool) -> Marks {
        let [read, write] = [false, true].map(|write| {
            let r = self.last()[usize::from(write)];
            let bytes = if r.get(BYTES) == 0 || known(r) { 0 } else { r.get(BYTES) };
            Marks::new(bytes, write, r.get(STRENGTH) >= strength).0
        });
        Marks(read | write)
    }

    pub(crate) fn clear(&self) {
        self.write.store(0, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
    }

    /// A copy has arrived, or has read its source; this replaces what is in flight.
    pub(crate) fn landed(&self, me: Record, write: bool) {
        if write {
            self.write.store(me.0, Ordering::Relaxed);
        } else if self.last()[0].is_in_flight() {
            self.read.store(me.0, Ordering::Relaxed);
        }
    }
}
