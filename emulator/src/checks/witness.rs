//! What the race check knows of a device's memory beyond one launch: the locations through which launches and the host
//! synchronise, the operations that are not over for everybody, and the host's own thread.
//!
//! Threads of the host count as one, since how they synchronise with each other is not seen here.

use super::clock::Vc;
use super::order::{HOST, Operation, Order, Place};
use super::race::{Conflict, Record, strength};
use super::shadow::{GlobalShadow, Touch};
use super::sync::{SyncLocations, WarpClock};
use crate::exec::access::Access;
use crate::exec::fault::Fault;
use crate::memory::Allocation;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
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
        let mut operations = std::mem::take(&mut self.locations.operations);
        operations.retain(|_, op| !order.holds(&op.place));
        let is_over = |launch: u32| launch != HOST && !operations.contains_key(&launch);
        self.locations.forget(is_over);
        if self.told {
            Arc::make_mut(&mut self.host.lanes[0].vc).forget(is_over);
        }
        self.locations.operations = operations;
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
        let me = Record::new(0, 0, self.host.now(), 0).with_strength(strength(access)).with_bytes(15);
        for k in (0..u64::from(access.bytes)).step_by(4) {
            let touch = Touch { op: &op, me, access, vc: &self.host.lanes[0].vc };
            if let Err(Conflict::Between(other)) = shadow.touch(offset + k, &touch) {
                return Err(other.fault(&op, access.write, "mapped", a.base));
            }
        }
        Ok(())
    }
}
