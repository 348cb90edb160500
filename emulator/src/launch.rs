//! A launch: what is asked for, how it is run, what comes back.

use crate::checks::counters::Counters;
use crate::checks::order::{Operation, Place};
use crate::device::config::{BLOCK, DeviceConfig, GRID, THREADS_PER_BLOCK};
pub use crate::exec::fault::{Fault, FaultKind};
use crate::exec::inst::Code;
use crate::exec::{LaunchCx, scheduler};
use crate::memory::Memory;
use crate::ptx::{KernelInfo, Module};
use crate::watch::{Unwatched, Watch};
use std::sync::Arc;

/// A kernel launch.
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    /// The module.
    pub module: &'a Module,
    /// Entry name.
    pub kernel: &'a str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Parameters at their offsets.
    pub params: &'a [u8],
    /// All blocks are resident at once and may wait for each other.
    pub cooperative: bool,
    /// Cluster dimensions.
    pub cluster: Option<[u32; 3]>,
}

/// In which order warps and blocks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Schedule {
    /// One after the other.
    #[default]
    RoundRobin,
    /// At random, by the seed.
    Random,
    /// At random, with one warp of each block, and one block, held back as long as anything else can run.
    Adversarial,
}

/// What a launch did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Warp instructions executed.
    pub warp_instructions: u64,
    /// Counters, if asked for.
    pub counters: Option<Counters>,
}

/// Runs a launch to its end on the caller's thread and `config.threads - 1` others.
pub fn run(launch: &Launch<'_>, memory: &Memory, config: &DeviceConfig) -> Result<Report, Fault> {
    let checked = launch.check(config)?;
    let (track, place) = memory.witness().direct();
    let result = checked.run(memory, &Unwatched, place);
    memory.witness().direct_over(track);
    result
}

/// A launch that the device takes.
pub(crate) struct Checked<'a> {
    launch: &'a Launch<'a>,
    config: &'a DeviceConfig,
    info: &'a KernelInfo,
    code: &'a Code,
    threads: u32,
    pub(crate) blocks: u64,
    /// Bytes of shared memory, static and dynamic.
    shared: u32,
    /// Blocks that a multiprocessor holds at once.
    pub(crate) per_multiprocessor: u32,
}

/// Blocks of an ordinary launch that are in flight at most, to bound the emulator's own memory.
const IN_FLIGHT: u32 = 256;
/// Blocks in a cluster at most, on every chip that has them.
const CLUSTER: u64 = 8;

impl Launch<'_> {
    /// Refuses what the kernel or the device does not allow.
    pub(crate) fn check<'a>(&'a self, config: &'a DeviceConfig) -> Result<Checked<'a>, Fault> {
        let refuse = |kind, message| {
            let kernel = self.kernel.to_string();
            Err(Fault { kind, message, kernel, ptx_line: 0, source: None, block: None, thread: None, address: None })
        };
        let invalid = |message| refuse(FaultKind::InvalidLaunch, message);
        let product = |sizes: [u32; 3]| sizes.iter().map(|&n| u64::from(n)).product::<u64>();
        let within = |sizes: [u32; 3], most: [u32; 3]| sizes.iter().zip(most).all(|(&n, most)| 1 <= n && n <= most);
        let Launch { grid, block, .. } = *self;
        let Some((info, code)) = self.module.kernels.get(self.kernel) else {
            return invalid("the module has no such kernel".into());
        };
        let (blocks, threads) = (product(grid), product(block));
        if !within(grid, GRID) {
            return invalid(format!("grid {grid:?} must not be empty, nor beyond {GRID:?}"));
        }
        if !within(block, BLOCK) || threads > u64::from(THREADS_PER_BLOCK) {
            let message =
                format!("block {block:?} must not be empty, nor beyond {BLOCK:?} or {THREADS_PER_BLOCK} threads");
            return invalid(message);
        }
        if let Some(required) = info.reqntid.filter(|&required| required != block) {
            return invalid(format!("block {block:?}: the kernel requires {required:?} (.reqntid)"));
        }
        if let Some(most) = info.maxntid.filter(|&most| threads > product(most)) {
            return invalid(format!("block {block:?}: the kernel allows at most {most:?} (.maxntid)"));
        }
        if self.params.len() < info.param_bytes as usize {
            return invalid(format!("{} bytes of parameters: {} are needed", self.params.len(), info.param_bytes));
        }
        if info.target_sm > config.sm_number() {
            return invalid(format!("a module for sm_{} on a device of sm_{}", info.target_sm, config.sm_number()));
        }
        let align = if self.dynamic_shared > 0 { code.shared_align.max(1) } else { 1 };
        let shared = code.shared.next_multiple_of(align).saturating_add(self.dynamic_shared);
        let per_multiprocessor = info.occupancy(config, threads as u32, self.dynamic_shared);
        if per_multiprocessor == 0 || shared > config.shared_limit() {
            let message = format!(
                "{threads} threads, {} bytes of static and {} of dynamic shared memory: a block may have {}",
                code.shared,
                self.dynamic_shared,
                config.shared_limit()
            );
            return refuse(FaultKind::OutOfResources, message);
        }
        let room = u64::from(per_multiprocessor) * u64::from(config.multiprocessors);
        if self.cooperative && blocks > room {
            let message = format!("{blocks} blocks of a cooperative launch: the device holds {room} at once");
            return refuse(FaultKind::CooperativeTooLarge, message);
        }
        if let Some(cluster) = self.cluster.or(info.cluster) {
            if config.sm.0 < 9 {
                return refuse(FaultKind::Unsupported, "clusters came with sm_90".into());
            }
            if !(1..=CLUSTER).contains(&product(cluster)) {
                return refuse(FaultKind::InvalidCluster, format!("cluster {cluster:?}: 1 to {CLUSTER} blocks"));
            }
            if grid.iter().zip(cluster).any(|(grid, cluster)| grid % cluster != 0) {
                return invalid(format!("grid {grid:?} is no multiple of cluster {cluster:?}"));
            }
            // Blocks here do not see each other's shared memory.
            if cluster != [1; 3] {
                return refuse(FaultKind::Unsupported, "clusters of several blocks are not supported".into());
            }
        }
        let threads = threads as u32;
        Ok(Checked { launch: self, config, info, code, threads, blocks, shared, per_multiprocessor })
    }
}

impl Checked<'_> {
    /// Runs it, unless `watch` ends it.
    pub(crate) fn run(&self, memory: &Memory, watch: &dyn Watch, place: Place) -> Result<Report, Fault> {
        let Checked { launch, config, info, code, threads, .. } = *self;
        let mut params = vec![0u64; launch.params.len().div_ceil(8) + 1];
        for (word, bytes) in params.iter_mut().zip(launch.params.chunks(8)) {
            let mut b = [0; 8];
            b[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(b);
        }
        let cx = LaunchCx {
            launch,
            info,
            code,
            module: launch.module,
            memory,
            config,
            watch,
            threads,
            warps: threads.div_ceil(32),
            shared: self.shared,
            resident: self.per_multiprocessor.saturating_mul(config.multiprocessors).clamp(1, IN_FLIGHT),
            params,
            op: Arc::new(Operation::new(format!("kernel {}", launch.kernel), place)),
            watched: config.counters || config.checks.racecheck || config.checks.initcheck,
            free: !code.takes_turns || self.blocks == 1 && !watch.tells_polling(),
        };
        memory.witness().begin(&cx.op);
        let outcome = scheduler::run(&cx);
        cx.op.finish();
        let outcome = outcome.map_err(|f| *f)?;
        let counters = config.counters.then(|| Counters::new(&cx, &outcome.counts));
        Ok(Report { warp_instructions: outcome.steps, counters })
    }
}
