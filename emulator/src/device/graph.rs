//! Graphs: captured work, and its instantiations that are replayed.

use std::sync::{Arc, Mutex};

use super::abi::{Handle, Outcome};
use super::capture::Node;
use super::codes::Code;
use super::context::Context;
use super::launch::KernelLaunch;
use super::lock;
use super::machine::{Order, Place, Schedule};
use super::stream::{StreamId, Ticket};
use super::work::Work;

/// What a capture made.
pub(crate) struct Graph {
    pub(crate) context: Arc<Context>,
    pub(crate) nodes: Vec<Node>,
    /// Handles of the nodes, given out on request.
    pub(crate) node_handles: Mutex<Vec<Handle>>,
}

/// One node of a graph, as a handle names it.
pub(crate) struct GraphNode {
    pub(crate) graph: Arc<Graph>,
    pub(crate) index: usize,
}

/// A graph ready to be launched, with parameters of its own.
pub(crate) struct GraphExec {
    pub(crate) context: Arc<Context>,
    source: Arc<Graph>,
    nodes: Mutex<Arc<[Node]>>,
    /// Two launches of the same instantiation never overlap.
    last: Mutex<Option<Ticket>>,
}

impl GraphExec {
    pub(crate) fn new(graph: &Arc<Graph>) -> GraphExec {
        GraphExec {
            context: graph.context.clone(),
            source: graph.clone(),
            nodes: Mutex::new(graph.nodes.clone().into()),
            last: Mutex::default(),
        }
    }

    /// Replays the graph in a stream.
    pub(crate) fn launch(&self, stream: StreamId) -> Outcome {
        let nodes = lock(&self.nodes).clone();
        let mut last = lock(&self.last);
        let ticket = self.context.enqueue(stream, Work::Graph(nodes), last.iter().cloned().collect())?;
        if ticket.is_some() {
            *last = ticket;
        }
        Ok(())
    }

    /// Replaces a kernel node's launch in later replays. The kernel stays the same.
    pub(crate) fn set_kernel(&self, node: &GraphNode, launch: KernelLaunch) -> Outcome {
        if !Arc::ptr_eq(&node.graph, &self.source) {
            return Err(Code::INVALID_VALUE);
        }
        let mut nodes = lock(&self.nodes);
        let mut changed = nodes.to_vec();
        match changed.get_mut(node.index).map(|node| &mut node.work) {
            Some(Work::Launch(old)) if old.function.module.context.handle == launch.function.module.context.handle => {
                *old = Arc::new(KernelLaunch { cooperative: old.cooperative, cluster: old.cluster, ..launch });
            }
            _ => return Err(Code::INVALID_VALUE),
        }
        *nodes = changed.into();
        Ok(())
    }
}

/// The places of the nodes of a replay: after the nodes that edges lead to them from.
pub(crate) fn places(nodes: &[Node], graph: &Place) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        let (mut before, mut early) = (Order::clone(&graph.before), Order::clone(&graph.before));
        for &direct in &node.after {
            let (its, after) = (&places[direct], places[direct].after());
            before.join(&after);
            // Only a kernel lets the next one begin before its end.
            early.join(if nodes[direct].work.is_launch() { &its.before } else { &after });
        }
        let early = node.work.is_programmatic().then(|| Arc::new(early));
        places.push(Place { node: Some(index), before: Arc::new(before), early, ..graph.clone() });
    }
    places
}

/// The order in which a replay does its nodes: one that the edges allow, and under the unfriendly schedules not the one
/// of the capture, so that an edge that is missing shows.
pub(crate) fn order(nodes: &[Node], schedule: Schedule, seed: u64) -> Vec<usize> {
    if schedule == Schedule::RoundRobin {
        return (0..nodes.len()).collect(); // edges lead to later nodes only
    }
    let mut order = Vec::with_capacity(nodes.len());
    let mut open: Vec<usize> = (0..nodes.len()).collect();
    let mut done = vec![false; nodes.len()];
    let mut random = seed | 1;
    while !open.is_empty() {
        let is_ready = |&&node: &&usize| nodes[node].after.iter().all(|&before| done[before]);
        let ready: Vec<usize> = open.iter().filter(is_ready).copied().collect();
        // The first open node is always ready.
        let next = match schedule {
            Schedule::Random => {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                ready[(random % ready.len() as u64) as usize]
            }
            Schedule::Adversarial => ready[ready.len() - 1],
            _ => ready[0],
        };
        done[next] = true;
        order.push(next);
        open.retain(|&node| node != next);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(after: &[usize]) -> Node {
        Node { work: Work::Nothing, after: after.to_vec() }
    }

    #[test]
    fn every_order_respects_the_edges_and_schedules_differ() {
        // 0 before 1 and 3; 1 before 2; 2 and 3 before 4.
        let nodes = [node(&[]), node(&[0]), node(&[1]), node(&[0]), node(&[2, 3])];
        assert_eq!(order(&nodes, Schedule::RoundRobin, 0), [0, 1, 2, 3, 4]);
        assert_eq!(order(&nodes, Schedule::Adversarial, 0), [0, 3, 1, 2, 4]);
        for seed in 0..50 {
            let order = order(&nodes, Schedule::Random, seed);
            for (place, &this) in order.iter().enumerate() {
                assert!(nodes[this].after.iter().all(|before| order[..place].contains(before)), "{order:?}");
            }
            assert_eq!(order.len(), nodes.len());
        }
    }
}
