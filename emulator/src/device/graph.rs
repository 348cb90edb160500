//! Graphs: captured work, and its instantiations that are replayed.

use std::sync::{Arc, Mutex};

use super::abi::{Handle, Outcome};
use super::capture::Node;
use super::codes::Code;
use super::context::Context;
use super::launch::KernelLaunch;
use super::lock;
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
