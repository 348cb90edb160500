//! What the race check knows of a device's memory beyond one launch: the locations through which launches and the host
//! synchronise, the operations that are not over for everybody, and the host's own thread.
//!
//! Threads of the host count as one, since how they synchronise with each other is not seen here.

use super::Vc;
use super::order::{HOST, Operation, Order, Place};
use super::race::{LATEST, Record, strength};
use super::shadow::{Between, Found, GlobalShadow, Touch};
use super::sync::{SyncLocations, WarpClock};
use crate::exec::access::Access;
use crate::exec::fault::{Fault, FaultKind};
use crate::memory::Allocation;
use std::collections::HashMap;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(crate) struct Witness {
    pub(crate) locations: SyncLocations,
    operations: HashMap<u32, Arc<Operation>>,
    host: WarpClock,
    /// The host has told of an access of its own.
    told: bool,
    /// What the host has waited for.
    order: Arc<Order>,
    /// Launches without a driver: for each that runs at the same time, how many there were.
    direct: Vec<(u64, bool)>,
}

impl Default for Witness {
    fn default() -> Self {
        Witness {
            locations: SyncLocations::new(),
            operations: HashMap::new(),
            host: WarpClock::new(&Arc::new(Vc::new((HOST, 0), 1)), 1),
            told: false,
            order: Arc::default(),
            direct: Vec::new(),
        }
    }
}

impl Witness {
    /// What the host has waited for, and what it has told: known to all that it asks for from now on.
    pub(crate) fn host_knows(&mut self) -> (Arc<Order>, Option<Arc<Vc>>) {
        (self.order.clone(), self.told.then(|| self.host.gather(0, 1)))
    }

    /// The host has waited for operations.
    pub(crate) fn host_waited<'a>(&mut self, orders: impl Iterator<Item = &'a Order>) {
        let mut order = Order::clone(&self.order);
        orders.for_each(|o| order.join(o));
        if order == *self.order {
            return;
        }
        self.order = Arc::new(order);
        let order = self.order.clone();
        self.operations.retain(|_, op| !op.is_settled_in(&order));
        let operations = &self.operations;
        let is_over = |launch: u32| launch != HOST && !operations.contains_key(&launch);
        self.locations.retain(|_, location| location.settle(is_over));
        if self.told {
            Arc::make_mut(&mut self.host.lanes[0].vc).forget(is_over);
        }
    }

    /// A launch begins.
    pub(crate) fn begin(&mut self, op: &Arc<Operation>) {
        self.operations.insert(op.id, op.clone());
    }

    /// A place for a launch without a driver: after all such that are over.
    pub(crate) fn direct(&mut self) -> (usize, Place) {
        let track = self.direct.iter().position(|t| !t.1).unwrap_or(self.direct.len());
        self.direct.resize(self.direct.len().max(track + 1), (0, false));
        let (count, runs) = &mut self.direct[track];
        (*count, *runs) = (*count + 1, true);
        let position = *count;
        let (settled, host) = self.host_knows();
        let before = settled.clone();
        (track, Place { stream: (0, track as u64), position, before, settled, host, ..Place::default() })
    }

    /// Such a launch is over.
    pub(crate) fn direct_over(&mut self, track: usize) {
        let mut order = Order::default();
        if let Some((count, runs)) = self.direct.get_mut(track) {
            *runs = false;
            order.reach((0, track as u64), *count);
        }
        self.host_waited(std::iter::once(&order));
    }

    /// A strong access by a lane of `op`.
    pub(crate) fn strong(
        &mut self,
        op: &Operation,
        clock: &mut WarpClock,
        address: u64,
        thread: (u32, u32, u32),
        access: &Access,
    ) {
        let (block, warp, lane) = thread;
        let (location, operations) = (self.locations.entry(address).or_default(), &self.operations);
        // What ended before `op` began, by the program's own order, is known to it as a whole.
        let known = |o: u32| o != HOST && o != op.id && operations.get(&o).is_none_or(|earlier| op.follows(earlier));
        clock.strong(location, (op.id, block), warp, lane, access, known);
    }

    /// An access of the host, before it happens.
    pub(crate) fn host_access(&mut self, a: &Allocation, offset: u64, access: &Access) -> Result<(), Box<Fault>> {
        self.told = true;
        let op = Arc::new(Operation::host(&self.order));
        let address = a.base + offset;
        if strength(access) > 0 {
            let operations = &self.operations;
            let location = self.locations.entry(address).or_default();
            let known = |launch: u32| launch == HOST || !operations.contains_key(&launch);
            self.host.strong(location, (HOST, 0), 0, 0, access, known);
        }
        let shadow = a.shadow.get_or_init(|| GlobalShadow::new(a.size));
        for k in (0..access.bytes).step_by(4) {
            let me = Record::new(0, 0, 0, strength(access), self.host.clock.min(LATEST), 0).with_bytes(15);
            let vc = self.host.lanes[0].vc.clone();
            let touch = Touch { op: &op, me, access, vc: &vc };
            if let Some(Found::Between(found)) = shadow.touch(offset + u64::from(k), &touch) {
                return Err(Box::new(operation_fault(&op, &found, access.write, "mapped", a.base)));
            }
        }
        Ok(())
    }
}

/// What is missing between two operations.
pub(crate) fn missing(op: &Operation, earlier: &Operation) -> &'static str {
    if earlier.is_host() {
        "the host must write before it asks for the launch, or release (sys scope) what this thread then acquires"
    } else if op.is_host() {
        "the host has neither waited for it nor acquired (sys scope) what it released"
    } else if op.follows(earlier) {
        "this thread may run before that kernel ends: a griddepcontrol.wait before this is missing"
    } else if op.is_node_of(earlier) {
        "a dependency between the two nodes of the graph is missing"
    } else {
        "stream order, an event between the streams, or a wait of the host between them is missing"
    }
}

/// The report of a conflict that an operation without threads has.
pub(crate) fn operation_fault(op: &Operation, c: &Between, write: bool, memory: &str, base: u64) -> Fault {
    let verb = |write| if write { "write" } else { "read" };
    let (this, earlier) = (verb(write), verb(c.earlier_writes));
    let message = format!(
        "this {this} of {memory} memory by {op} is not ordered after the {earlier} by {}: {}",
        c.earlier,
        missing(op, &c.earlier)
    );
    Fault {
        kind: FaultKind::Race,
        message,
        kernel: op.to_string(),
        ptx_line: 0,
        source: None,
        block: None,
        thread: None,
        address: Some(base + c.offset),
    }
}
