//! Execution of decoded kernels: lanes, warps, blocks, and the scheduler that interleaves them.

pub(crate) mod access;
pub(crate) mod barrier;
pub(crate) mod block;
pub(crate) mod copy;
pub(crate) mod fault;
pub(crate) mod float;
pub(crate) mod inst;
pub(crate) mod lanes;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod scalar;
pub(crate) mod scheduler;
pub(crate) mod special;
mod step;
pub(crate) mod vector;
pub(crate) mod warp;
mod warpwide;

use crate::device::DeviceConfig;
use crate::launch::Launch;
use crate::memory::{Memory, Table};
use crate::ptx::{KernelInfo, Module};
use block::Common;
use fault::{Fault, FaultKind};
use inst::Code;
use std::sync::Arc;
use warp::Warp;

/// What all threads of a launch share.
pub(crate) struct LaunchCx<'a> {
    pub(crate) launch: &'a Launch<'a>,
    pub(crate) info: &'a KernelInfo,
    pub(crate) code: &'a Code,
    pub(crate) module: &'a Module,
    pub(crate) memory: &'a Memory,
    pub(crate) config: &'a DeviceConfig,
    pub(crate) watch: &'a dyn crate::watch::Watch,
    /// Threads and warps of a block.
    pub(crate) threads: u32,
    pub(crate) warps: u32,
    /// Bytes of shared memory, static and dynamic.
    pub(crate) shared: u32,
    /// Blocks that may be resident at once in a launch that is not cooperative.
    pub(crate) resident: u32,
    /// Parameters, padded so that reads of 8 bytes stay inside.
    pub(crate) params: Vec<u64>,
    /// What it is among the device's operations.
    pub(crate) op: Arc<crate::checks::order::Operation>,
    /// Accesses are counted or checked.
    pub(crate) watched: bool,
    /// Blocks need not take turns: nothing they do is ordered between them.
    pub(crate) free: bool,
}

/// A fault is rare and large.
pub(crate) type Exec<T> = Result<T, Box<Fault>>;

/// What one thread of the host needs to run blocks.
pub(crate) struct Cpu<'a> {
    pub(crate) cx: &'a LaunchCx<'a>,
    pub(crate) table: Arc<Table>,
    pub(crate) version: u64,
    /// Allocation last used by each instruction.
    pub(crate) site: Vec<u32>,
    /// The next turn-taking instruction may run.
    pub(crate) granted: bool,
    /// Virtual time, less the steps taken (modulo 2^64).
    pub(crate) time: u64,
    /// Steps taken.
    pub(crate) steps: u64,
    /// Something visible to other blocks changed.
    pub(crate) progress: bool,
    pub(crate) counters: crate::checks::counters::Counts,
}

impl<'a> Cpu<'a> {
    pub(crate) fn new(cx: &'a LaunchCx<'a>) -> Cpu<'a> {
        let version = cx.memory.version();
        let sites = cx.code.insts.len();
        Cpu {
            cx,
            table: cx.memory.table(),
            version,
            site: vec![0; sites],
            granted: false,
            time: 0,
            steps: 0,
            progress: false,
            counters: crate::checks::counters::Counts::new(if cx.config.counters { sites } else { 0 }),
        }
    }

    /// Virtual time.
    pub(crate) fn now(&self) -> u64 {
        self.time.wrapping_add(self.steps)
    }

    /// Looks whether memory was allocated or freed meanwhile.
    pub(crate) fn refresh(&mut self) {
        let now = self.cx.memory.version();
        if now != self.version {
            self.version = now;
            self.table = self.cx.memory.table();
        }
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
        let mut fault = self.fault(kind, at, Some(lane), message);
        fault.address = Some(address);
        fault
    }

    /// A fault at an instruction.
    pub(crate) fn fault(
        &self,
        kind: FaultKind,
        at: &At,
        lane: Option<usize>,
        message: impl Into<String>,
    ) -> Box<Fault> {
        let origin = self.cx.code.origins.get(at.pc as usize).copied().unwrap_or_default();
        let source = self.cx.source(at.pc).cloned();
        Box::new(Fault {
            kind,
            message: message.into(),
            kernel: self.cx.info.name.clone(),
            ptx_line: origin.line,
            source,
            block: Some(at.ctaid),
            thread: lane.map(|l| self.cx.thread(at.warp, l)),
            address: None,
        })
    }
}

/// Where an instruction runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) pc: u32,
    pub(crate) warp: u32,
    pub(crate) ctaid: [u32; 3],
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

impl LaunchCx<'_> {
    /// Thread index of a lane.
    pub(crate) fn thread(&self, warp: u32, lane: usize) -> [u32; 3] {
        let t = warp * 32 + lane as u32;
        let [x, y, _] = self.launch.block;
        [t % x, t / x % y, t / x / y]
    }

    /// File and line of an instruction's source.
    pub(crate) fn source(&self, pc: u32) -> Option<&(String, u32)> {
        let origin = self.code.origins.get(pc as usize)?;
        origin.source.checked_sub(1).and_then(|i| self.module.sources.get(i as usize))
    }

    /// The opcode and line of an instruction, for messages.
    pub(crate) fn describe(&self, pc: u32) -> String {
        let name = self.code.opcode.get(pc as usize).and_then(|&i| self.code.names.get(i as usize));
        let line = self.code.origins.get(pc as usize).map_or(0, |o| o.line);
        format!("{} (PTX line {line})", name.map_or("end", String::as_str))
    }
}
