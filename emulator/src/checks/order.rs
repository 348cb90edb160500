//! The order of whole operations: launches, copies and fills, by streams, events, graphs and waits of the host.
//!
//! What a program has ordered counts, not what happened to be over: an operation follows another if stream order, an
//! event, an edge of a graph, or a call of the host that waits leads from one to the other.

use super::clock::Vc;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A stream: its context, and its number there.
pub(crate) type Stream = (usize, u64);

/// How far each stream is known to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Order(BTreeMap<Stream, u64>);

impl Order {
    /// Learns what another knows.
    pub(crate) fn join(&mut self, other: &Order) {
        for (&stream, &position) in &other.0 {
            self.reach(stream, position);
        }
    }

    /// Learns that a stream is done up to a place.
    pub(crate) fn reach(&mut self, stream: Stream, position: u64) {
        let known = self.0.entry(stream).or_default();
        *known = position.max(*known);
    }

    fn holds(&self, stream: Stream, position: u64) -> bool {
        self.0.get(&stream).is_some_and(|&known| known >= position)
    }
}

/// The identity of the host among operations.
pub(crate) const HOST: u32 = 0x7fff_ffff;

/// Where a piece of work stands, and what the program has ordered before it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    pub(crate) stream: Stream,
    pub(crate) position: u64,
    pub(crate) before: Arc<Order>,
    /// What the host had waited for when it asked for the work.
    pub(crate) settled: Arc<Order>,
    /// What the host had written by then, if it told.
    pub(crate) host: Option<Arc<Vc>>,
    /// Its number in a graph, and the earlier nodes that lead to it.
    pub(crate) node: Option<(usize, Arc<[bool]>)>,
    /// What is ordered before a programmatic launch, of streams and of nodes, before it has waited (`griddepcontrol`).
    pub(crate) early: Option<Arc<Order>>,
    pub(crate) early_nodes: Option<Arc<[bool]>>,
}

/// A launch, copy or fill, or the host itself.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: u32,
    what: String,
    place: Place,
    done: AtomicBool,
    /// It let the launch after it begin before its end.
    triggered: AtomicBool,
}

impl Operation {
    /// An operation that begins now.
    pub(crate) fn new(what: String, place: Place) -> Operation {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = (NEXT.fetch_add(1, Ordering::Relaxed) % (HOST - 1)) + 1;
        Operation { id, what, place, done: AtomicBool::new(false), triggered: AtomicBool::new(false) }
    }

    /// The host, which knows what it has waited for.
    pub(crate) fn host(settled: &Arc<Order>) -> Operation {
        let (before, settled) = (settled.clone(), settled.clone());
        let place = Place { stream: (usize::MAX, 0), position: 0, before, settled, ..Place::default() };
        Operation { id: HOST, ..Operation::new("the host".into(), place) }
    }

    pub(crate) fn is_host(&self) -> bool {
        self.id == HOST
    }

    /// What the host had told when it asked for this.
    pub(crate) fn told_by_host(&self) -> Option<&Arc<Vc>> {
        self.place.host.as_ref()
    }

    /// Whether the program ordered `earlier` before what a thread of this does, which has waited for the kernel before
    /// it or not.
    pub(crate) fn thread_follows(&self, earlier: &Operation, waited: bool) -> bool {
        let me = &self.place;
        if waited || !earlier.triggered.load(Ordering::Acquire) || !self.follows(earlier) {
            return self.follows(earlier);
        }
        match &earlier.place.node {
            Some((node, _)) if self.is_node_of(earlier) => me.early_nodes.as_ref().is_none_or(|before| before[*node]),
            _ => me.early.as_ref().is_none_or(|early| early.holds(earlier.place.stream, earlier.place.position)),
        }
    }

    /// Whether the program ordered `earlier` before this.
    pub(crate) fn follows(&self, earlier: &Operation) -> bool {
        let (me, other) = (&self.place, &earlier.place);
        if earlier.is_host() || self.id == earlier.id {
            return self.id == earlier.id;
        }
        match (&me.node, &other.node) {
            (Some((_, before)), Some((node, _))) if me.stream == other.stream && me.position == other.position => {
                before.get(*node).copied().unwrap_or(false)
            }
            _ => me.before.holds(other.stream, other.position),
        }
    }

    /// Whether `earlier` is over for everything that is asked for from now on: the host has waited for it.
    pub(crate) fn has_settled(&self, earlier: &Operation) -> bool {
        !earlier.is_host() && self.place.settled.holds(earlier.place.stream, earlier.place.position)
    }

    pub(crate) fn is_settled_in(&self, order: &Order) -> bool {
        order.holds(self.place.stream, self.place.position)
    }

    pub(crate) fn is_node_of(&self, other: &Operation) -> bool {
        (self.place.stream, self.place.position) == (other.place.stream, other.place.position)
            && self.place.node.is_some()
    }

    /// `griddepcontrol.launch_dependents`
    pub(crate) fn trigger(&self) {
        self.triggered.store(true, Ordering::Release);
    }

    pub(crate) fn finish(&self) {
        self.done.store(true, Ordering::Release);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let Place { stream, position, node, .. } = &self.place;
        if self.is_host() || stream.0 == 0 {
            return Ok(());
        }
        if let Some((node, _)) = node {
            write!(f, " (node {node} of the graph that is")?;
        } else {
            write!(f, " (")?;
        }
        write!(f, "{}work {position} of ", if node.is_some() { " " } else { "" })?;
        if stream.1 == 0 { write!(f, "the default stream)") } else { write!(f, "stream {})", stream.1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(stream: u64, position: u64, before: &[(u64, u64)]) -> Operation {
        let mut order = Order::default();
        before.iter().for_each(|&(s, p)| order.reach((1, s), p));
        let (before, settled) = (Arc::new(order), Arc::default());
        Operation::new("work".into(), Place { stream: (1, stream), position, before, settled, ..Place::default() })
    }

    #[test]
    fn an_operation_follows_what_its_order_reaches_and_nothing_else() {
        let (a, b) = (operation(1, 3, &[]), operation(2, 1, &[(1, 2)]));
        assert!(!b.follows(&a) && !a.follows(&b));
        assert!(operation(2, 2, &[(1, 3)]).follows(&a));
        assert!(!operation(2, 2, &[(1, 9)]).follows(&b), "another stream");
    }
}
