//! What streams and graphs do: one value per operation, run by a stream's worker.

use std::sync::Arc;
use std::time::Instant;

use super::abi::{HostFunction, Outcome};
use super::capture::Node;
use super::codes::Code;
use super::context::Context;
use super::event::Stamp;
use super::graph;
use super::launch::KernelLaunch;
use super::machine;

/// One operation. Cloned into every replay of a graph, so large parts are shared.
#[derive(Clone)]
pub(crate) enum Work {
    /// A place to wait at.
    Nothing,
    /// Fails as injected.
    Fail(Code),
    Launch(Arc<KernelLaunch>),
    CopyIn {
        to: u64,
        source: Source,
    },
    CopyOut {
        to: usize,
        from: u64,
        bytes: usize,
    },
    CopyDevice {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        value: u32,
        width: usize,
        count: usize,
    },
    Call(HostFunction),
    Stamp(Stamp),
    Graph(Arc<[Node]>),
}

/// Where a copy to the device reads.
#[derive(Clone)]
pub(crate) enum Source {
    /// Read when the copy was asked for.
    Staged(Arc<[u8]>),
    /// Read when the copy is done; the C caller keeps it valid until then.
    Host { address: usize, bytes: usize },
}

impl Work {
    /// Whether it is done in a context with a sticky error too.
    pub(crate) fn survives_errors(&self) -> bool {
        matches!(self, Work::Stamp(_))
    }

    /// Does it, on the calling thread.
    pub(crate) fn run(&self, context: &Arc<Context>) -> Outcome {
        let memory = &context.memory;
        let moved = match self {
            Work::Nothing => Ok(()),
            Work::Fail(code) => return Err(*code),
            Work::Launch(launch) => return launch.run(context),
            Work::CopyIn { to, source: Source::Staged(bytes) } => memory.write(*to, bytes),
            Work::CopyIn { to, source: Source::Host { address, bytes } } => {
                // SAFETY: the C caller keeps the source valid until the copy is done.
                memory.write(*to, unsafe { std::slice::from_raw_parts(*address as *const u8, *bytes) })
            }
            Work::CopyOut { to, from, bytes } => {
                // SAFETY: the C caller keeps the destination valid, and to itself, until the copy is done.
                memory.read(*from, unsafe { std::slice::from_raw_parts_mut(*to as *mut u8, *bytes) })
            }
            Work::CopyDevice { to, from, bytes } => memory.copy(*to, *from, *bytes as u64),
            Work::Fill { to, value, width: 4, count } => memory.set_u32(*to, *value, *count as u64),
            Work::Fill { to, value, width: 2, count } => machine::set_u16(memory, *to, *value as u16, *count),
            Work::Fill { to, value, count, .. } => memory.set_u8(*to, *value as u8, *count as u64),
            Work::Call(function) => {
                function.run();
                Ok(())
            }
            Work::Stamp(stamp) => {
                stamp.get_or_init(Instant::now);
                Ok(())
            }
            Work::Graph(nodes) => {
                let config = &context.device.config;
                let order = graph::order(nodes, config.schedule, config.seed);
                return order.into_iter().try_for_each(|node| nodes[node].work.run(context));
            }
        };
        moved.map_err(|_| Code::ILLEGAL_ADDRESS)
    }
}
