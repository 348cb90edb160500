//! Execution of decoded kernels: lanes, warps, blocks, and the scheduler that interleaves them.

pub(crate) mod access;
pub(crate) mod barrier;
pub(crate) mod block;
pub(crate) mod checked;
pub(crate) mod copy;
pub(crate) mod float;
pub(crate) mod inst;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod scalar;
pub(crate) mod scheduler;
pub(crate) mod special;
pub(crate) mod step;
pub(crate) mod values;
pub(crate) mod warp;
mod warpwide;

use crate::checks::counters::Counts;
use crate::checks::order::Operation;
use crate::machine::config::DeviceConfig;
use crate::machine::fault::{Fault, FaultKind};
use crate::machine::kernel::KernelInfo;
use crate::machine::layout::{At, Layout};
use crate::machine::origin::Origin;
use crate::memory::{Memory, Table};
use block::Common;
use inst::Program;
use std::sync::Arc;
use warp::Warp;

/// Whoever may end a launch. Asked at every round, with whether something that other blocks or the host could see has
/// changed since the last one, or a block has computed on, and with the warp instructions since then, of the longest
/// block. An answer ends the launch with that fault.
pub(crate) type Watch<'a> = dyn Fn(bool, u64) -> Option<(FaultKind, String)> + Sync + 'a;

/// What all threads of a launch share.
pub(crate) struct LaunchCx<'a> {
    pub(crate) layout: Layout,
    pub(crate) info: &'a KernelInfo,
    pub(crate) code: &'a Program,
    pub(crate) memory: &'a Memory,
    pub(crate) config: &'a DeviceConfig,
    pub(crate) watch: Option<&'a Watch<'a>>,
    /// All blocks are resident at once and may wait for each other.
    pub(crate) cooperative: bool,
    /// Clusters that may be resident at once in a launch that is not cooperative.
    pub(crate) resident: u32,
    /// Parameters, padded so that reads of 8 bytes stay inside.
    pub(crate) params: Vec<u64>,
    /// Address of the words that a cooperative grid meets at, as cooperative groups do: a size and a count.
    pub(crate) workspace: u64,
    /// What it is among the device's operations.
    pub(crate) op: Arc<Operation>,
    /// Accesses are counted or checked.
    pub(crate) watched: bool,
    /// Blocks need not take turns: nothing they do is ordered between them.
    pub(crate) free: bool,
}

/// What one thread of the host needs to run blocks.
pub(crate) struct Cpu<'a> {
    pub(crate) cx: &'a LaunchCx<'a>,
    pub(crate) table: Arc<Table>,
    /// Allocation last used by each instruction.
    pub(crate) site: Vec<u32>,
    /// Virtual time, less the steps taken (modulo 2^64).
    time: u64,
    pub(crate) steps: u64,
    /// Something visible to other blocks changed.
    pub(crate) progress: bool,
    pub(crate) counters: Counts,
}

/// An instruction as it runs: its block and warp, its lanes, its place.
pub(crate) struct Site<'a> {
    pub(crate) common: &'a mut Common,
    pub(crate) warp: &'a mut Warp,
    /// Lanes that execute it.
    pub(crate) m: u32,
    /// Lanes that stand at it, be it that their guard is false.
    pub(crate) all: u32,
    pub(crate) at: At,
}

impl<'a> Cpu<'a> {
    pub(crate) fn new(cx: &'a LaunchCx<'a>) -> Cpu<'a> {
        let sites = cx.code.insts.len();
        let counters = Counts::new(if cx.config.counters { sites } else { 0 });
        let (table, site) = (cx.memory.table(), vec![0; sites]);
        Cpu { cx, table, site, time: 0, steps: 0, progress: false, counters }
    }

    /// Virtual time.
    pub(crate) fn now(&self) -> u64 {
        self.time.wrapping_add(self.steps)
    }

    pub(crate) fn set_time(&mut self, now: u64) {
        self.time = now.wrapping_sub(self.steps);
    }

    /// A fault of a lane at an address.
    pub(crate) fn fault_at(
        &self,
        kind: FaultKind,
        at: &At,
        lane: usize,
        address: u64,
        message: impl Into<String>,
    ) -> Box<Fault> {
        Box::new(Fault { address: Some(address), ..*self.fault(kind, at, Some(lane), message) })
    }

    /// A fault at an instruction.
    pub(crate) fn fault(
        &self,
        kind: FaultKind,
        at: &At,
        lane: Option<usize>,
        message: impl Into<String>,
    ) -> Box<Fault> {
        Box::new(Fault {
            ptx_line: self.cx.code.origins.get(at.pc as usize).map_or(0, |origin| origin.line),
            source: self.cx.source(at.pc).cloned(),
            block: Some(at.ctaid),
            thread: lane.map(|l| self.cx.layout.thread(at.warp, l)),
            ..Fault::new(kind, &self.cx.info.name, message)
        })
    }
}

impl LaunchCx<'_> {
    /// File and line of an instruction's source.
    pub(crate) fn source(&self, pc: u32) -> Option<&(String, u32)> {
        self.code.origins.get(pc as usize)?.source.as_deref()
    }

    /// The opcode and place of an instruction, for messages.
    pub(crate) fn describe(&self, pc: u32) -> String {
        self.code.origins.get(pc as usize).map_or("end (PTX line 0)".into(), Origin::describe)
    }
}
