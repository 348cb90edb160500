//! The race check: finds two accesses to a byte by different lanes, one of them a write, neither of which happens
//! before the other.
//!
//! Happens-before is that of the [PTX memory model](https://doi.org/10.1145/3297858.3304043). As in
//! [FastTrack](https://doi.org/10.1145/1542476.1542490), an earlier access is kept as an epoch (a thread and its clock)
//! and compared with the vector clock of the thread that accesses now. Threads are lanes, as independent thread
//! scheduling asks for, and clocks are compressed by warp as in [BARRACUDA](https://doi.org/10.1145/3062341.3062342).
//! Strong accesses (atomics, volatile, relaxed, acquire, release) do not race with each other if the scope of each
//! holds both threads, as in [iGUARD](https://doi.org/10.1145/3477132.3483545).
//!
//! Every four bytes have a cell with the epochs of the last write and of the read since; several reads that are not
//! ordered are a set (`readers`), or one of them where [`Checks::every_reader`] is off.
//!
//! [`Checks::every_reader`]: crate::machine::config::Checks::every_reader

use super::clock::Vc;
use super::order::Operation;
use super::readers::{Held, Readers};
use super::record::{BLOCK, BYTES, HOST, LANE, PROXY, Record, STRENGTH};
use crate::machine::access::{Access, Scope};
use crate::machine::fault::{Fault, FaultKind};
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The `STRENGTH` of an access.
pub(crate) fn strength(access: &Access) -> u32 {
    match access.scope {
        _ if !access.is_strong() => 0,
        Scope::Cta | Scope::Cluster => 1,
        Scope::Gpu => 2,
        Scope::Sys => 3,
    }
}

/// An earlier access that does not happen before a later one.
pub(crate) struct Conflict {
    /// The operation of the earlier access, if another.
    pub(crate) by: Option<Arc<Operation>>,
    pub(crate) earlier: Record,
    pub(crate) writes: bool,
}

impl Conflict {
    /// The report.
    pub(crate) fn sentence(&self, write: bool, memory: impl Display, who: impl Display, missing: &str) -> String {
        let verb = |write| if write { "write" } else { "read" };
        let (this, earlier) = (verb(write), verb(self.writes));
        format!("this {this} of {memory} is not ordered after the {earlier} {who}: {missing}")
    }

    /// The report where the two accesses are of different operations.
    pub(crate) fn between(&self, op: &Operation, write: bool, memory: &str) -> String {
        let by = self.by.as_deref().unwrap_or(op);
        self.sentence(write, format!("{memory} memory by {op}"), format!("by {by}"), op.missing_after(by))
    }

    /// The fault of an operation without threads.
    pub(crate) fn fault(&self, op: &Operation, write: bool, memory: &str, address: u64) -> Box<Fault> {
        let mut fault = Fault::new(FaultKind::Race, &op.to_string(), self.between(op, write, memory));
        fault.address = Some(address);
        Box::new(fault)
    }
}

/// An access, to be compared with the cells it touches.
#[derive(Clone, Copy)]
pub(crate) struct Touch<'a> {
    pub(crate) me: Record,
    pub(crate) access: &'a Access,
    pub(crate) vc: &'a Vc,
    /// Whether a read is kept beside those that it does not follow.
    pub(crate) every_reader: bool,
}

impl Touch<'_> {
    /// Whether an earlier access, by another operation or else its own, happens before this one, or both are strong at
    /// scopes that hold both threads.
    #[inline(always)]
    pub(crate) fn allows(&self, by: Option<&Operation>, earlier: Record) -> bool {
        let (me, own) = (self.me, self.vc.block().0);
        let both_strong = || {
            let least = match by {
                None if earlier.get(BLOCK) == me.get(BLOCK) => 1,
                Some(by) if by.id == HOST || own == HOST => 3,
                _ => 2,
            };
            earlier.get(STRENGTH).min(me.get(STRENGTH)) >= least
        };
        let same_lane = by.is_none() && earlier.0 >> LANE.0 == me.0 >> LANE.0;
        let known = || self.vc.known.know(by.map_or(own, |by| by.id), earlier);
        !earlier.is_in_flight() && (same_lane || known() || both_strong())
    }

    /// Whether an earlier access of its own operation happens before this one.
    pub(crate) fn precedes(&self, earlier: Record) -> bool {
        let known = || self.vc.known.know(self.vc.block().0, earlier);
        !earlier.is_in_flight() && (earlier.is_by(self.me) || known())
    }

    /// Adds this read to those since the last write.
    #[inline(always)]
    fn add(&self, readers: &mut Readers, reads: Record) -> Record {
        readers.add(reads, self.me, |read| self.precedes(read), || self.vc.known.has_others())
    }

    /// Compares with the last read and write of a cell, by another operation or else its own.
    #[inline(always)]
    pub(crate) fn compare(
        &self,
        by: Option<&Arc<Operation>>,
        last: [Record; 2],
        readers: &mut impl Held,
    ) -> Result<(), Box<Conflict>> {
        let ([read, write], other) = (last, by.map(|by| &**by));
        let meets = |earlier: Record| earlier.get(BYTES) & self.me.get(BYTES) != 0;
        // A non-coherent read may see what was there before any write of the launch, a copy what was there before a
        // proxy fence.
        let fenced = || write.get(PROXY) == 1 || self.vc.proxied.know(self.vc.block().0, write);
        let missed = || other.is_none() && (self.access.nc || self.access.proxy && !fenced());
        let (earlier, writes) = if meets(write) && (!self.allows(other, write) || missed()) {
            (write, true)
        } else if self.access.write && read.is_set() && meets(read) {
            match readers.with(|readers| readers.find(read, |read| meets(read) && !self.allows(other, read))) {
                Some(read) => (read, false),
                None => return Ok(()),
            }
        } else if self.access.write && meets(read) && !self.allows(other, read) {
            (read, false)
        } else {
            return Ok(());
        };
        Err(Box::new(Conflict { by: by.cloned(), earlier, writes }))
    }
}

/// The state of four bytes.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    read: AtomicU64,
    write: AtomicU64,
}

impl Cell {
    /// The last read and write.
    #[inline(always)]
    pub(crate) fn last(&self) -> [Record; 2] {
        [&self.read, &self.write].map(|r| Record(r.load(Ordering::Relaxed)))
    }

    /// Compares an access with others of its operation and notes it.
    #[inline(always)]
    pub(crate) fn access<H: Held>(&self, touch: &Touch<'_>, mut readers: H) -> Result<(), Box<Conflict>> {
        let ([r, w], me) = (self.last(), touch.me);
        let compared = touch.compare(None, [r, w], &mut readers);
        if touch.access.write {
            self.write.store(me.with_bytes_of(w).0, Ordering::Relaxed);
            self.read.store(0, Ordering::Relaxed);
        } else if r != me && !touch.every_reader && !r.is_set() {
            // Of readers that are not ordered, one is kept; which one differs from cell to cell.
            let any = (r.0 ^ me.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1;
            let keep = r.get(BYTES) != 0 && (r.is_in_flight() || !me.is_in_flight() && any);
            if !keep || touch.allows(None, r) {
                self.read.store(me.with_bytes_of(r).0, Ordering::Relaxed);
            }
        } else if r != me {
            let replaces = !r.is_set() && (r.get(BYTES) == 0 || touch.precedes(r));
            let (relaxed, one) = (Ordering::Relaxed, me.with_bytes_of(r));
            if H::ALONE {
                let new = match replaces {
                    true => one,
                    false => readers.with(|readers| touch.add(readers, r)),
                };
                self.read.store(new.0, relaxed);
            } else if !replaces || self.read.compare_exchange(r.0, one.0, relaxed, relaxed).is_err() {
                self.add_reader(touch, &mut readers);
            }
        }
        compared
    }

    /// Adds a read to those that it does not follow.
    #[inline(never)]
    fn add_reader(&self, touch: &Touch<'_>, readers: &mut impl Held) {
        readers.with(|readers| {
            let add = |reads| {
                let (reads, me) = (Record(reads), touch.me);
                let new = if reads.get(BYTES) == 0 { me } else { touch.add(readers, reads) };
                (new != reads).then_some(new.0)
            };
            let _ = self.read.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        });
    }

    pub(crate) fn clear(&self) {
        self.write.store(0, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
    }

    /// Replaces the record of a copy in flight by that of the finished access.
    pub(crate) fn landed(&self, me: Record, write: bool, readers: &mut impl Held) {
        let read = self.last()[0];
        if write {
            self.write.store(me.0, Ordering::Relaxed);
        } else if read.is_set() {
            self.read.store(readers.with(|readers| readers.land(read, me)).0, Ordering::Relaxed);
        } else if read.is_in_flight() {
            self.read.store(me.0, Ordering::Relaxed);
        }
    }
}
