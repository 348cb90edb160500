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
pub(crate) mod step;
pub(crate) mod values;
pub(crate) mod warp;
mod warpwide;

use crate::checks::counters::Counts;
use crate::device::DeviceConfig;
use crate::launch::Launch;
use crate::memory::{Memory, Table};
use crate::ptx::KernelInfo;
use block::Common;
use fault::{Fault, FaultKind};
use inst::{Code, Scope};
use std::sync::Arc;
use warp::Warp;

/// Whoever may end a launch. Asked at every round, with whether something that other blocks or the host could see has
/// changed since the last one, or a block has computed on, and with the warp instructions since then, of the longest
/// block. An answer ends the launch with that fault.
pub(crate) type Watch<'a> = dyn Fn(bool, u64) -> Option<(FaultKind, String)> + Sync + 'a;

/// What all threads of a launch share.
pub(crate) struct LaunchCx<'a> {
    pub(crate) launch: &'a Launch<'a>,
    pub(crate) info: &'a KernelInfo,
    pub(crate) code: &'a Code,
    pub(crate) memory: &'a Memory,
    pub(crate) config: &'a DeviceConfig,
    pub(crate) watch: Option<&'a Watch<'a>>,
    /// Threads and warps of a block.
    pub(crate) threads: u32,
    pub(crate) warps: u32,
    /// Bytes of shared memory, static and dynamic.
    pub(crate) shared: u32,
    /// Blocks of a cluster in x, y, z, and in all.
    pub(crate) cluster: [u32; 3],
    pub(crate) ranks: u32,
    /// Clusters that may be resident at once in a launch that is not cooperative.
    pub(crate) resident: u32,
    /// Parameters, padded so that reads of 8 bytes stay inside.
    pub(crate) params: Vec<u64>,
    /// Address of the words that a cooperative grid meets at, as cooperative groups do: a size and a count.
    pub(crate) workspace: u64,
    /// What it is among the device's operations.
    pub(crate) op: Arc<crate::checks::order::Operation>,
    /// Accesses are counted or checked.
    pub(crate) watched: bool,
    /// Blocks need not take turns: nothing they do is ordered between them.
    pub(crate) free: bool,
}

/// Above this bit, addresses of shared memory name a block of the cluster by its rank plus one.
pub(crate) const RANK: u32 = 24;

/// A fault is rare and large.
pub(crate) type Exec<T> = Result<T, Box<Fault>>;

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

/// Where an instruction runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) pc: u32,
    /// Among the warps of all blocks of the cluster.
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
            thread: lane.map(|l| self.cx.thread(at.warp, l)),
            ..Fault::new(kind, &self.cx.info.name, message)
        })
    }
}

impl LaunchCx<'_> {
    /// Index of a block in the grid, of number `block` in the order of clusters and, within them, of ranks.
    pub(crate) fn ctaid(&self, block: u64) -> [u32; 3] {
        let place = |number: u64, [x, y, _]: [u32; 3]| {
            let (x, y) = (u64::from(x), u64::from(y));
            [number % x, number / x % y, number / x / y].map(|i| i as u32)
        };
        let clusters = std::array::from_fn(|k| self.launch.grid[k] / self.cluster[k]);
        let cluster = place(block / u64::from(self.ranks), clusters);
        let within = place(block % u64::from(self.ranks), self.cluster);
        std::array::from_fn(|k| cluster[k] * self.cluster[k] + within[k])
    }

    /// An address of shared memory as the whole cluster has it: one that names no rank is the block's own.
    pub(crate) fn in_cluster(&self, rank: u32, address: u64) -> u64 {
        if self.ranks > 1 && address >> RANK == 0 { address | u64::from(rank + 1) << RANK } else { address }
    }

    /// Whether such an address is another block's than a warp's own.
    pub(crate) fn is_remote(&self, warp: u32, address: u64) -> bool {
        (address >> RANK).checked_sub(1).is_some_and(|rank| rank != u64::from(warp / self.warps))
    }

    /// How far a scope reaches: that of a cluster to its blocks, which count as the whole grid if they are several.
    pub(crate) fn reach(&self, scope: Scope) -> Scope {
        match scope {
            Scope::Cluster if self.ranks > 1 => Scope::Gpu,
            Scope::Cluster => Scope::Cta,
            _ => scope,
        }
    }

    /// Where such an address lies in the shared memory of all ranks.
    pub(crate) fn shared_index(&self, address: u64) -> u64 {
        let offset = address & ((1 << RANK) - 1);
        (address >> RANK).saturating_sub(1) * u64::from(self.shared.next_multiple_of(16)) + offset
    }

    /// Thread index of a lane.
    pub(crate) fn thread(&self, warp: u32, lane: usize) -> [u32; 3] {
        let t = warp % self.warps * 32 + lane as u32;
        let [x, y, _] = self.launch.block;
        [t % x, t / x % y, t / x / y]
    }

    /// File and line of an instruction's source.
    pub(crate) fn source(&self, pc: u32) -> Option<&(String, u32)> {
        self.code.origins.get(pc as usize)?.source.as_deref()
    }

    /// The opcode and place of an instruction, for messages.
    pub(crate) fn describe(&self, pc: u32) -> String {
        let (name, line) = self.code.origins.get(pc as usize).map_or(("end", 0), |o| (&o.opcode, o.line));
        let source = self.source(pc).map_or(String::new(), |(file, line)| format!(", {file}:{line}"));
        format!("{name} (PTX line {line}{source})")
    }
}

/// Random numbers that a seed decides (xorshift).
pub(crate) struct Random(u64);

impl Random {
    /// Every `stream` of a seed is a sequence of its own.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        Random((seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    /// A number below `n`, which is not zero.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
