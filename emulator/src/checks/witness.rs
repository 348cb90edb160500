//! The locations through which threads, launches and the host synchronise; and what the race check knows of a device's
//! memory beyond one launch: the operations that are not over for everybody, and the host's own thread.
//!
//! Threads of the host count as one, since how they synchronise with each other is not seen here.

use super::clock::{Lane, Vc, WarpClock, join};
use super::order::{HOST, Operation, Order, Place};
use super::race::{BYTES, CLOCK, Conflict, Record, STRENGTH, strength};
use super::shadow::{GlobalShadow, Touch};
use crate::exec::access::Access;
use crate::exec::fault::Fault;
use crate::exec::inst::{Scope, Sem};
use crate::memory::Allocation;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A location through which threads synchronise: what its value carries within a block, and further, by launch.
#[derive(Debug, Default)]
struct SyncLocation {
    near: Option<Arc<Vc>>,
    far: Vec<Arc<Vc>>,
}

/// Locations by address, and the operations that use them and are not over for everybody.
#[derive(Debug, Default)]
pub(crate) struct SyncLocations {
    locations: HashMap<u64, SyncLocation>,
    operations: HashMap<u32, Arc<Operation>>,
}

impl SyncLocations {
    /// A lane's strong access.
    pub(crate) fn strong(&mut self, op: &Operation, warp: &mut WarpClock, lane: usize, address: u64, access: &Access) {
        let at = self.locations.entry(address).or_default();
        let wide = access.scope >= Scope::Cluster;
        if !access.write || access.atomic {
            let Lane { vc, pending, .. } = &mut warp.lanes[lane];
            let me = vc.block();
            // What ended before `op` began, by the program's own order, is known to it as a whole.
            let is_news = |launch: u32| {
                let other = || self.operations.get(&launch).is_some_and(|other| !op.follows(other));
                launch == op.id || launch == HOST || other()
            };
            let near = at.near.iter().filter(|vc| vc.block() == me).map(|vc| (vc, false));
            let far = at.far.iter().filter(|vc| wide && is_news(vc.block().0)).map(|vc| (vc, true));
            for (read, needs_wide) in near.chain(far) {
                if matches!(access.sem, Sem::Acquire | Sem::AcqRel) {
                    join(vc, read);
                } else if !pending.iter().any(|p| Arc::ptr_eq(&p.0, read)) {
                    pending.push((read.clone(), needs_wide));
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
                *at = SyncLocation::default();
            }
            if let Some(told) = near {
                match &mut at.near {
                    Some(vc) if vc.block() == told.block() => join(vc, &told),
                    slot => *slot = Some(told),
                }
            }
            if let Some(told) = far.filter(|_| wide) {
                match at.far.iter_mut().find(|vc| vc.block().0 == told.block().0) {
                    Some(vc) => join(vc, &told),
                    None => at.far.push(told),
                }
            }
        }
    }
}

/// What is known of a device's memory beyond one launch.
#[derive(Debug)]
pub(crate) struct Witness {
    pub(crate) locations: SyncLocations,
    host: WarpClock,
    /// The host has told of an access of its own.
    told: bool,
    /// What the host has waited for.
    order: Arc<Order>,
}

impl Default for Witness {
    fn default() -> Self {
        let host = WarpClock::new(&Arc::new(Vc::new((HOST, 0), 1)), 0, 1);
        Witness { locations: SyncLocations::default(), host, told: false, order: Arc::default() }
    }
}

impl Witness {
    /// What the host has waited for, and what it has told: known to all that it asks for from now on.
    pub(crate) fn host_knows(&mut self) -> (Arc<Order>, Option<Arc<Vc>>) {
        (self.order.clone(), self.told.then(|| self.host.gather(1)))
    }

    /// The host has waited for operations.
    pub(crate) fn host_waited<'a>(&mut self, orders: impl Iterator<Item = &'a Order>) {
        let mut order = Order::clone(&self.order);
        orders.for_each(|o| order.join(o));
        if order == *self.order {
            return;
        }
        let SyncLocations { locations, operations } = &mut self.locations;
        operations.retain(|_, op| !order.holds(&op.place));
        let is_over = |launch: u32| launch != HOST && !operations.contains_key(&launch);
        locations.retain(|_, at| {
            at.near.take_if(|vc| is_over(vc.block().0));
            at.far.retain(|vc| !is_over(vc.block().0));
            at.near.is_some() || !at.far.is_empty()
        });
        if self.told {
            Arc::make_mut(&mut self.host.lanes[0].vc).forget(is_over);
        }
        self.order = Arc::new(order);
    }

    /// A launch begins.
    pub(crate) fn begin(&mut self, op: &Arc<Operation>) {
        self.locations.operations.insert(op.id, op.clone());
    }

    /// A place for a launch without a driver: after all such that are over. Each thread of the host is a stream.
    pub(crate) fn direct(&mut self) -> Place {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        thread_local!(static THREAD: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
        let stream = (0, THREAD.with(|&thread| thread));
        let (settled, host) = self.host_knows();
        let position = NEXT.fetch_add(1, Ordering::Relaxed);
        Place { stream, position, before: settled.clone(), settled, host, ..Place::default() }
    }

    /// An access of the host, before it happens.
    pub(crate) fn host_access(&mut self, a: &Allocation, offset: u64, access: &Access) -> Result<(), Box<Fault>> {
        self.told = true;
        let op = Arc::new(Operation::host(&self.order));
        if strength(access) > 0 {
            self.locations.strong(&op, &mut self.host, 0, a.base + offset, access);
        }
        let shadow = a.shadow.get_or_init(|| GlobalShadow::new(a.size));
        let me = Record::default().with(CLOCK, self.host.now()).with(STRENGTH, strength(access)).with(BYTES, 15);
        for k in (0..u64::from(access.bytes)).step_by(4) {
            let touch = Touch { op: &op, me, access, vc: &self.host.lanes[0].vc };
            if let Err(conflict) = shadow.touch(offset + k, touch)
                && let Conflict::Between(other) = *conflict
            {
                return Err(other.fault(&op, access.write, "mapped", a.base));
            }
        }
        Ok(())
    }
}
