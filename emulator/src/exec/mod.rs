//! Execution of decoded kernels: lanes, warps, blocks, and the scheduler that interleaves them.

pub(crate) mod access;
pub(crate) mod barrier;
pub(crate) mod block;
pub(crate) mod checked;
pub(crate) mod copy;
mod definedness;
pub(crate) mod float;
pub(crate) mod inst;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
mod products;
mod repeats;
pub(crate) mod scalar;
pub(crate) mod scheduler;
pub(crate) mod special;
pub(crate) mod step;
pub(crate) mod system;
pub(crate) mod tensor;
mod timed;
pub(crate) mod values;
pub(crate) mod warp;
pub(crate) mod warpgroup;
mod warpwide;

use crate::checks::counters::Counts;
use crate::checks::order::Operation;
use crate::machine::config::DeviceConfig;
use crate::machine::fault::{Fault, FaultKind};
use crate::machine::kernel::KernelInfo;
use crate::machine::layout::{At, Layout};
use crate::machine::origin::Origin;
use crate::memory::{Memory, Table};
use crate::timing::timekeeper::Timekeeper;
use block::Common;
use inst::Program;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use warp::Warp;

/// Called each round with (progress, the longest block's instructions); `Some(fault)` ends the launch. Progress means a
/// change that other blocks or the host can see, or computation beyond polling.
pub(crate) type Watch<'a> = dyn Fn(bool, u64) -> Option<(FaultKind, String)> + Sync + 'a;

/// Context of a launch, shared by the host threads that run it.
pub(crate) struct LaunchCx<'a> {
    pub(crate) layout: Layout,
    pub(crate) info: &'a KernelInfo,
    pub(crate) code: &'a Program,
    pub(crate) memory: &'a Memory,
    pub(crate) config: &'a DeviceConfig,
    pub(crate) watch: Option<&'a Watch<'a>>,
    /// All blocks are resident at once and may wait for each other.
    pub(crate) cooperative: bool,
    /// Most resident clusters of a launch that is not cooperative.
    pub(crate) resident: u32,
    /// Blocks that a multiprocessor holds at once.
    pub(crate) per_multiprocessor: u32,
    /// Parameters, padded for reads of 8 bytes at the end.
    pub(crate) params: Vec<u64>,
    /// Address of the workspace that cooperative groups synchronise a grid through: a size and a count.
    pub(crate) workspace: u64,
    /// The launch among the device's operations.
    pub(crate) op: Arc<Operation>,
    /// Whether an observer needs accesses.
    pub(crate) observed: bool,
    /// Whether blocks run without turns, since they cannot communicate.
    pub(crate) free: bool,
    /// Whether nothing but one block can change memory meanwhile.
    pub(crate) alone: bool,
    /// What its threads have printed.
    pub(crate) printed: Mutex<Vec<u8>>,
}

/// State of one host thread that runs blocks.
pub(crate) struct Cpu<'a> {
    pub(crate) cx: &'a LaunchCx<'a>,
    pub(crate) table: Arc<Table>,
    /// Allocation last used by each instruction.
    pub(crate) site: Vec<u32>,
    /// Virtual time minus `steps`, modulo 2^64.
    time: u64,
    pub(crate) steps: u64,
    /// Lanes whose element is undefined, of the load or store at hand.
    pub(crate) undefined: [u32; 4],
    /// An address that it read undefined.
    pub(crate) undefined_at: u64,
    /// Races met: by instruction, the earlier one, and whether both store the same.
    pub(crate) met: HashMap<(u32, Option<u32>, bool), u64>,
    /// Whether definedness is followed.
    pub(crate) defines: bool,
    /// Whether something visible to other blocks has changed.
    pub(crate) progress: bool,
    /// Whether any memory was written.
    pub(crate) wrote: bool,
    /// Of an atomic just executed, whether it left memory as it was.
    pub(crate) tried: Option<bool>,
    pub(crate) counters: Counts,
    /// The chip whose time is modelled.
    pub(crate) timekeeper: Option<Box<Timekeeper<'a>>>,
}

/// An instruction being executed: block, warp, lanes and place.
pub(crate) struct Site<'a> {
    pub(crate) common: &'a mut Common,
    pub(crate) warp: &'a mut Warp,
    /// Lanes that execute it.
    pub(crate) m: u32,
    /// Lanes that stand at it, whether their guard is true or not.
    pub(crate) all: u32,
    pub(crate) at: At,
}

impl<'a> Cpu<'a> {
    pub(crate) fn new(cx: &'a LaunchCx<'a>) -> Cpu<'a> {
        let sites = cx.code.insts.len();
        let counters = Counts::new(if cx.config.counters { sites } else { 0 });
        let (table, site) = (cx.memory.table(), vec![0; sites]);
        let defines = cx.config.checks.initcheck;
        let (undefined, undefined_at, timekeeper) = ([0; 4], 0, None);
        let (progress, wrote, tried) = (false, false, None);
        let (time, steps, met) = (0, 0, HashMap::new());
        Cpu {
            cx,
            table,
            site,
            time,
            steps,
            met,
            undefined,
            undefined_at,
            defines,
            progress,
            wrote,
            tried,
            counters,
            timekeeper,
        }
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
