//! A launch: what is asked for, how it is run, what comes back.

use crate::checks::Checks;
use crate::checks::counters::Counters;
use crate::checks::order::Operation;
pub use crate::exec::fault::{Fault, FaultKind};
use crate::exec::{LaunchCx, Watch, scheduler};
use crate::memory::Memory;
use crate::ptx::Module;
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

/// How launches are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecConfig {
    /// Threads of the host.
    pub threads: usize,
    /// Order of warps and blocks.
    pub schedule: Schedule,
    /// Parts of a diverged warp run in random order and do not join before they must.
    pub split_warps: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// Which checks run.
    pub checks: Checks,
    /// Warp instructions of one block, waiting included, after which a launch is stopped.
    pub step_limit: Option<u64>,
    /// Rounds in which every warp has only polled unchanged memory, after which a launch is stopped. Leave it out
    /// where the host writes to mapped memory while a kernel runs.
    pub livelock_rounds: Option<u64>,
    /// Count instructions and memory traffic.
    pub counters: bool,
    /// The device's architecture: 90 for sm_90.
    pub sm: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory a block may have.
    pub shared_per_block: u32,
    /// Blocks that may be resident at once in a launch that is not cooperative.
    pub resident: u32,
    /// Approximate instructions err within their bound, by the seed.
    pub perturb: bool,
}

impl Default for ExecConfig {
    fn default() -> Self {
        ExecConfig {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            schedule: Schedule::RoundRobin,
            split_warps: false,
            seed: 0,
            checks: Checks::ALL,
            step_limit: None,
            livelock_rounds: None,
            counters: false,
            sm: 90,
            multiprocessors: 16,
            shared_per_block: 227 * 1024,
            resident: 8,
            perturb: false,
        }
    }
}

/// What a launch did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Warp instructions executed.
    pub warp_instructions: u64,
    /// Counters, if asked for.
    pub counters: Option<Counters>,
}

const MAX_THREADS: u64 = 1024;

// Faults end a launch; their size does not matter.
#[allow(clippy::result_large_err)]
/// Runs a launch to its end on the caller's thread and `config.threads - 1` others.
pub fn run(launch: &Launch<'_>, memory: &Memory, config: &ExecConfig) -> Result<Report, Fault> {
    let (track, place) = memory.witness().direct();
    let op = Operation::new(format!("kernel {}", launch.kernel), place);
    let result = run_watched(launch, memory, config, None, op);
    memory.witness().direct_over(track);
    result
}

/// Runs a launch that `watch` may end.
pub(crate) fn run_watched(
    launch: &Launch<'_>,
    memory: &Memory,
    config: &ExecConfig,
    watch: Option<&Watch<'_>>,
    op: Operation,
) -> Result<Report, Fault> {
    let refuse = |kind, message: String| Fault {
        kind,
        message,
        kernel: launch.kernel.to_string(),
        ptx_line: 0,
        source: None,
        block: None,
        thread: None,
        address: None,
    };
    let invalid = |message: String| Err(refuse(FaultKind::InvalidLaunch, message));
    let Some((info, code)) = launch.module.kernels.get(launch.kernel) else {
        return invalid("the module has no such kernel".into());
    };
    let threads: u64 = launch.block.iter().map(|&d| u64::from(d)).product();
    if launch.grid.contains(&0) || threads == 0 {
        return invalid(format!("grid {:?} and block {:?} must not be empty", launch.grid, launch.block));
    }
    if launch.grid[0] > i32::MAX as u32 || launch.grid[1] > 65535 || launch.grid[2] > 65535 {
        return invalid(format!("grid {:?} is beyond 2147483647 x 65535 x 65535", launch.grid));
    }
    if threads > MAX_THREADS || launch.block[2] > 64 {
        return invalid(format!("block {:?} has more than {MAX_THREADS} threads (or 64 in z)", launch.block));
    }
    if let Some(r) = info.reqntid
        && r != launch.block
    {
        return invalid(format!("block {:?}: the kernel requires {r:?} (.reqntid)", launch.block));
    }
    if let Some(max) = info.maxntid
        && threads > max.iter().map(|&d| u64::from(d)).product()
    {
        return invalid(format!("block {:?}: the kernel allows at most {max:?} (.maxntid)", launch.block));
    }
    if launch.params.len() < info.param_bytes as usize {
        return invalid(format!("{} bytes of parameters: {} are needed", launch.params.len(), info.param_bytes));
    }
    let cluster = launch.cluster.or(info.cluster);
    if cluster.is_some_and(|c| c != [1; 3]) {
        return invalid("clusters of several blocks are not supported".into());
    }
    if info.target_sm > config.sm {
        return invalid(format!("a module for sm_{} on a device of sm_{}", info.target_sm, config.sm));
    }
    let static_part =
        if launch.dynamic_shared > 0 { code.shared.next_multiple_of(code.shared_align) } else { code.shared };
    let shared = u64::from(static_part) + u64::from(launch.dynamic_shared);
    if shared > u64::from(config.shared_per_block) {
        let message = format!(
            "{} bytes of static and {} of dynamic shared memory: a block may have {}",
            code.shared, launch.dynamic_shared, config.shared_per_block
        );
        return Err(refuse(FaultKind::OutOfResources, message));
    }
    let mut params = vec![0u64; launch.params.len().div_ceil(8) + 1];
    for (word, bytes) in params.iter_mut().zip(launch.params.chunks(8)) {
        let mut b = [0; 8];
        b[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(b);
    }
    let blocks: u64 = launch.grid.iter().map(|&d| u64::from(d)).product();
    let cx = LaunchCx {
        launch,
        info,
        code,
        module: launch.module,
        memory,
        config,
        watch,
        threads: threads as u32,
        warps: (threads as u32).div_ceil(32),
        shared: shared as u32,
        params,
        op: Arc::new(op),
        watched: config.counters || config.checks.racecheck || config.checks.initcheck,
        free: !code.takes_turns || blocks == 1 && watch.is_none(),
    };
    memory.witness().begin(&cx.op);
    let outcome = scheduler::run(&cx);
    cx.op.finish();
    let (steps, counts) = outcome.map_err(|f| *f)?;
    Ok(Report { warp_instructions: steps, counters: config.counters.then(|| Counters::new(&cx, &counts)) })
}
