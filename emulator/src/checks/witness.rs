//! State of the race check beyond a launch: the locations through which threads, launches and the host synchronise, the
//! operations not yet known to all, and the host's own clock.
//!
//! Threads of the host count as one, since their synchronisation with each other cannot be seen.

use super::allocation::AllocationChecks;
use super::clock::{LaneClock, Met, Told, Vc, WarpClock, join};
use super::frontier::{Frontier, Position};
use super::order::{Operation, Place};
use super::race::{Conflict, Touch, strength};
use super::record::{BYTES, CLOCK, HOST, Record, STRENGTH};
use crate::machine::access::{Access, Scope, Sem};
use crate::machine::fault::OrFault;
use crate::machine::mix::MixMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Locations through which threads synchronise, and the launches with releases there.
#[derive(Debug, Default)]
pub(crate) struct SyncLocations {
    /// Knowledge that the value at an address carries: within one block (`None`), and beyond it by launch.
    locations: MixMap<u64, BTreeMap<Option<u32>, Told>>,
    operations: MixMap<u32, Arc<Operation>>,
    /// The number of the next knowledge that continues none.
    next: u64,
}

impl SyncLocations {
    /// Synchronises a lane by a strong access.
    pub(crate) fn strong(&mut self, op: &Operation, warp: &mut WarpClock, lane: usize, address: u64, access: &Access) {
        let at = self.locations.entry(address).or_default();
        let wide = access.scope >= Scope::Gpu;
        if !access.write || access.atomic {
            let LaneClock { vc, pending, .. } = &mut warp.lanes[lane];
            for (&launch, read) in &*at {
                let heard = match launch {
                    None => read.vc.block() == vc.block(),
                    Some(launch) if launch == op.id || launch == HOST => wide,
                    // What ended before `op` began, by the program's own order, is known to it as a whole.
                    Some(launch) => wide && self.operations.get(&launch).is_some_and(|other| !op.follows(other)),
                };
                if !heard {
                    continue;
                }
                let met = pending.iter().position(|met| met.told.number == read.number);
                match (matches!(access.sem, Sem::Acquire | Sem::AcqRel), met) {
                    (true, met) => {
                        join(vc, &read.vc);
                        met.map(|met| pending.swap_remove(met));
                    }
                    (false, Some(met)) => pending[met].told.vc = read.vc.clone(),
                    (false, None) => pending.push(Met { told: read.clone(), wide: launch.is_some() }),
                }
            }
        }
        if access.write {
            let [near, far] = if access.sem >= Sem::Release {
                let told = warp.gather(1 << lane);
                [Some(told.clone()), Some(told)]
            } else {
                warp.lanes[lane].released.clone()
            };
            // A read-modify-write continues what it read.
            if !access.atomic {
                at.clear();
            }
            for (launch, told) in [(None, near), (Some(op.id), far.filter(|_| wide))] {
                let Some(told) = told else { continue };
                match at.get_mut(&launch) {
                    Some(read) if launch.is_some() || read.vc.block() == told.block() => join(&mut read.vc, &told),
                    _ => {
                        at.insert(launch, Told { vc: told, number: self.next });
                        self.next += 1;
                    }
                }
            }
        }
    }
}

/// State of the race check of a device's memory.
#[derive(Debug)]
pub(crate) struct Witness {
    pub(crate) locations: SyncLocations,
    host: WarpClock,
    op: Arc<Operation>,
    /// Whether the host has reported an access of its own.
    told: bool,
    /// Places of the work under way for the host.
    asked: Vec<Place>,
}

impl Default for Witness {
    fn default() -> Self {
        let host = WarpClock::new(&Arc::new(Vc::new((HOST, 0), 1, &Arc::default())), 0, 1);
        Witness {
            locations: SyncLocations::default(),
            host,
            op: Arc::new(Operation::host()),
            told: false,
            asked: Vec::new(),
        }
    }
}

impl Witness {
    /// Knowledge that a request of the host passes on: the operations it has waited for, and its own accesses.
    pub(crate) fn host_knows(&mut self) -> (Arc<Frontier>, Option<Arc<Vc>>) {
        (self.host.lanes[0].vc.over.clone(), self.told.then(|| self.host.gather(1)))
    }

    /// Whether the host has waited for all work within a frontier.
    pub(crate) fn counts_on(&self, order: &Frontier) -> bool {
        self.host.lanes[0].vc.over.includes(order)
    }

    /// The host has waited for the work within frontiers.
    pub(crate) fn host_waited<'a>(&mut self, orders: impl Iterator<Item = &'a Frontier>) {
        let vc = &mut self.host.lanes[0].vc;
        let mut over = Frontier::clone(&vc.over);
        orders.for_each(|order| over.join(order));
        if over == *vc.over {
            return;
        }
        let SyncLocations { locations, operations, .. } = &mut self.locations;
        // What is over may still be news to a launch that was asked for before.
        let is_news = |op: &Operation| self.asked.iter().any(|place| !place.before.holds(op.place.position));
        operations.retain(|_, op| !over.holds(op.place.position) || is_news(op));
        let is_over = |launch: u32| launch != HOST && !operations.contains_key(&launch);
        locations.retain(|_, at| {
            at.retain(|_, read| !is_over(read.vc.block().0));
            !at.is_empty()
        });
        let vc = Arc::make_mut(vc);
        vc.forget(is_over);
        vc.over = Arc::new(over);
    }

    /// The host has asked for work.
    pub(crate) fn asked(&mut self, place: &Place) {
        self.asked.push(place.clone());
    }

    /// Work has ended: it acquires no more.
    pub(crate) fn ended(&mut self, place: &Place) {
        self.asked.retain(|other| {
            (other.position.stream, other.position.number) != (place.position.stream, place.position.number)
        });
    }

    /// A launch begins.
    pub(crate) fn begin(&mut self, op: &Arc<Operation>) {
        self.locations.operations.insert(op.id, op.clone());
    }

    /// A place for a launch without a driver: each thread of the host is a stream.
    pub(crate) fn direct(&mut self) -> Place {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        thread_local!(static THREAD: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
        let stream = (0, THREAD.with(|&thread| thread));
        let (settled, host) = self.host_knows();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let position = Position { stream, number, node: None };
        let place = Place { position, before: settled.clone(), settled, host, ..Place::default() };
        self.asked(&place);
        place
    }

    /// Compares an access of the host and notes it.
    pub(crate) fn host_access(&mut self, a: &AllocationChecks, offset: u64, access: &Access) -> OrFault<()> {
        self.told = true;
        let (op, strength) = (&self.op, strength(access));
        if strength > 0 {
            self.locations.strong(op, &mut self.host, 0, a.base + offset, access);
        }
        let shadow = a.shadow();
        let me = Record::default().with(CLOCK, self.host.now()).with(STRENGTH, strength).with(BYTES, 15);
        for offset in (offset..offset + u64::from(access.bytes)).step_by(4) {
            let touch = Touch { me, access, vc: &self.host.lanes[0].vc, every_reader: true };
            let fault = |conflict: Box<Conflict>| conflict.fault(op, access.write, "mapped", a.base + offset);
            shadow.touch(offset, op, touch).map_err(fault)?;
        }
        Ok(())
    }
}
