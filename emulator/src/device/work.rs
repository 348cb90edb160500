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
use super::machine::{self, Operation, Place};

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
    pub(crate) fn is_launch(&self) -> bool {
        matches!(self, Work::Launch(_))
    }

    /// Whether it may begin before the kernel before it ends.
    pub(crate) fn is_programmatic(&self) -> bool {
        matches!(self, Work::Launch(launch) if launch.programmatic)
    }

    /// Whether it is done in a context with a sticky error too.
    pub(crate) fn survives_errors(&self) -> bool {
        matches!(self, Work::Stamp(_))
    }

    /// Does it, on the calling thread.
    pub(crate) fn run(&self, context: &Arc<Context>, place: &Place) -> Outcome {
        let memory = &context.memory;
        self.witness(context, place)?;
        let moved = match self {
            Work::Nothing => Ok(()),
            Work::Fail(code) => return Err(*code),
            Work::Launch(launch) => return launch.run(context, place),
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
                // What the function does comes after what is ordered before it.
                memory.witness().host_waited(std::iter::once(&*place.before));
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
                let places = if config.checks.racecheck {
                    graph::places(nodes, place)
                } else {
                    vec![place.clone(); nodes.len()]
                };
                return order.into_iter().try_for_each(|node| nodes[node].work.run(context, &places[node]));
            }
        };
        moved.map_err(|_| Code::ILLEGAL_ADDRESS)
    }

    /// Tells the race check which bytes a copy or fill touches.
    fn witness(&self, context: &Arc<Context>, place: &Place) -> Outcome {
        if !context.device.config.checks.racecheck {
            return Ok(());
        }
        // Page-locked memory is touched under its device address.
        let pinned = |address: usize, bytes: usize| {
            let state = context.state();
            let start = |range: &super::host::HostRange| range.device + (address - range.address()) as u64;
            state.pinned(address, bytes).map(start)
        };
        let (what, touched) = match *self {
            Work::CopyIn { to, source: Source::Staged(ref from) } => {
                ("a copy from the host", vec![(to, from.len(), true)])
            }
            Work::CopyIn { to, source: Source::Host { address, bytes } } => {
                let source = pinned(address, bytes).map(|from| (from, bytes, false));
                ("a copy from the host", source.into_iter().chain([(to, bytes, true)]).collect())
            }
            Work::CopyOut { to, from, bytes } => {
                let target = pinned(to, bytes).map(|to| (to, bytes, true));
                ("a copy to the host", target.into_iter().chain([(from, bytes, false)]).collect())
            }
            Work::CopyDevice { to, from, bytes } => {
                ("a copy within the device", vec![(from, bytes, false), (to, bytes, true)])
            }
            Work::Fill { to, width, count, .. } => ("a fill", vec![(to, width * count, true)]),
            _ => return Ok(()),
        };
        let op = Arc::new(Operation::new(what.into(), place.clone()));
        for (address, bytes, write) in touched {
            if let Err(fault) = context.memory.touched(&op, address, bytes as u64, write) {
                context.device.set_fault(*fault);
                return Err(Code::LAUNCH_FAILED);
            }
        }
        Ok(())
    }
}
