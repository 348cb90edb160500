//! Launches: the request, its checks against kernel and device, the run, the report.

use crate::checks::counters::Counters;
use crate::checks::order::{Operation, Place};
use crate::exec::checked::observes_accesses;
use crate::exec::inst::Program;
use crate::exec::{LaunchCx, Watch, scheduler};
use crate::machine::config::{BLOCK, DeviceConfig, GRID, THREADS_PER_BLOCK};
use crate::machine::fault::{Fault, FaultKind};
use crate::machine::kernel::KernelInfo;
use crate::machine::layout::Layout;
use crate::machine::lock::lock;
use crate::memory::Memory;
use crate::ptx::Module;
use crate::timing::report::Timing;
use std::fmt;
use std::sync::{Arc, Mutex};

/// A kernel launch.
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    /// The module.
    pub module: &'a Module,
    /// Entry name.
    pub kernel: &'a str,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Parameters at their offsets.
    pub params: &'a [u8],
    /// All blocks are resident at once and may wait for each other.
    pub cooperative: bool,
    /// Cluster dimensions, in blocks.
    pub cluster: Option<[u32; 3]>,
}

/// Figures of a launch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Warp instructions executed.
    pub warp_instructions: u64,
    /// Counters, if [`DeviceConfig::counters`] asks for them.
    pub counters: Option<Counters>,
    /// Modelled time, if [`DeviceConfig::clock`] names a chip.
    pub timing: Option<Timing>,
}

/// Runs a launch to its end on the caller's thread and `config.threads - 1` others.
pub fn run(launch: &Launch<'_>, memory: &Memory, config: &DeviceConfig) -> Result<Report, Fault> {
    let checked = launch.check(config)?;
    let place = memory.witness().direct();
    let over = place.after();
    let result = checked.run(memory, None, place);
    memory.witness().host_waited(std::iter::once(&over));
    result
}

/// A launch that kernel and device allow.
pub(crate) struct Checked<'a> {
    launch: &'a Launch<'a>,
    config: &'a DeviceConfig,
    info: &'a KernelInfo,
    code: &'a Program,
    threads: u32,
    pub(crate) blocks: u64,
    /// Bytes of shared memory, static and dynamic.
    shared: u32,
    /// Blocks of a cluster in x, y, z.
    cluster: [u32; 3],
    /// Blocks that a multiprocessor holds at once.
    pub(crate) per_multiprocessor: u32,
}

/// Most clusters of an ordinary launch in flight, to bound the emulator's own memory.
const IN_FLIGHT: u32 = 256;
/// Most blocks of a cluster, on every chip that has clusters.
const CLUSTER: u64 = 8;

impl Launch<'_> {
    /// Checks the request against kernel and device.
    pub(crate) fn check<'a>(&'a self, config: &'a DeviceConfig) -> Result<Checked<'a>, Fault> {
        let fault = |kind, message: fmt::Arguments<'_>| Fault::new(kind, self.kernel, message.to_string());
        type Words<'a> = fmt::Arguments<'a>;
        let ensure = |fine, kind, words: Words<'_>| if fine { Ok(()) } else { Err(fault(kind, words)) };
        let valid = |fine, words: Words<'_>| ensure(fine, FaultKind::InvalidLaunch, words);
        let product = |sizes: [u32; 3]| sizes.iter().fold(1u64, |all, &n| all.saturating_mul(n.into()));
        let within = |sizes: [u32; 3], most: [u32; 3]| sizes.iter().zip(most).all(|(&n, most)| 1 <= n && n <= most);
        let Launch { grid, block, dynamic_shared, params, .. } = *self;
        let (blocks, threads) = (product(grid), product(block));
        let missing = || match self.module.refusal(self.kernel) {
            Some(error) => fault(FaultKind::Unsupported, format_args!("the emulator does not understand it: {error}")),
            None => fault(FaultKind::InvalidLaunch, format_args!("the module has no such kernel")),
        };
        let (info, code) = self.module.kernels.get(self.kernel).ok_or_else(missing)?;
        valid(within(grid, GRID), format_args!("grid {grid:?} must not be empty, nor beyond {GRID:?}"))?;
        let (fine, most) = (within(block, BLOCK) && threads <= THREADS_PER_BLOCK.into(), THREADS_PER_BLOCK);
        valid(fine, format_args!("block {block:?} must not be empty, nor beyond {BLOCK:?} or {most} in all"))?;
        let required = info.reqntid.unwrap_or(block);
        valid(block == required, format_args!("block {block:?}: the kernel requires {required:?} (.reqntid)"))?;
        let most = info.maxntid.unwrap_or(BLOCK);
        valid(threads <= product(most), format_args!("block {block:?}: the kernel allows {most:?} (.maxntid)"))?;
        let (given, needed) = (params.len(), info.param_bytes as usize);
        valid(given >= needed, format_args!("{given} bytes of parameters: {needed} are needed"))?;
        let (target, sm) = (info.target_sm, config.sm_number());
        valid(target <= sm, format_args!("a module for sm_{target} on a device of sm_{sm}"))?;
        let align = if dynamic_shared > 0 { code.shared_align.max(1) } else { 1 };
        let shared = code.shared.next_multiple_of(align).saturating_add(dynamic_shared);
        let per_multiprocessor = info.occupancy(config, threads as u32, dynamic_shared);
        let (own, limit) = (code.shared, config.shared_limit());
        let fine = per_multiprocessor > 0 && shared <= limit;
        ensure(
            fine,
            FaultKind::OutOfResources,
            format_args!("{own} + {dynamic_shared} bytes of shared memory: a block may have {limit}"),
        )?;
        let room = u64::from(per_multiprocessor) * u64::from(config.multiprocessors);
        let fine = !self.cooperative || blocks <= room;
        ensure(fine, FaultKind::CooperativeTooLarge, format_args!("{blocks} blocks: {room} are resident at once"))?;
        let explicit = self.cluster.or(info.cluster);
        if let Some(cluster) = explicit {
            ensure(sm >= 90, FaultKind::Unsupported, format_args!("clusters came with sm_90"))?;
            let fine = (1..=CLUSTER).contains(&product(cluster));
            ensure(fine, FaultKind::InvalidCluster, format_args!("cluster {cluster:?}: 1 to {CLUSTER} blocks"))?;
            let fine = grid.iter().zip(cluster).all(|(grid, cluster)| grid % cluster == 0);
            valid(fine, format_args!("grid {grid:?} is no multiple of cluster {cluster:?}"))?;
            let required = info.cluster.unwrap_or(cluster);
            ensure(
                cluster == required,
                FaultKind::InvalidCluster,
                format_args!("cluster {cluster:?}: the kernel requires {required:?} (.reqnctapercluster)"),
            )?;
        }
        let (threads, cluster) = (threads as u32, explicit.unwrap_or([1; 3]));
        Ok(Checked { launch: self, config, info, code, threads, blocks, shared, cluster, per_multiprocessor })
    }
}

impl Checked<'_> {
    /// Runs the launch to its end, or until `watch` ends it.
    pub(crate) fn run(&self, memory: &Memory, watch: Option<&Watch<'_>>, place: Place) -> Result<Report, Fault> {
        let Checked { launch, config, info, code, threads, .. } = *self;
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let workspace = if launch.cooperative && code.workspace {
            let room = memory.alloc(8).and_then(|at| memory.write(at, &[0; 8]).map(|()| at));
            room.map_err(|error| Fault::new(FaultKind::OutOfResources, launch.kernel, error.to_string()))?
        } else {
            0
        };
        let ranks = self.cluster.iter().product();
        let cx = LaunchCx {
            layout: Layout {
                grid: launch.grid,
                block: launch.block,
                threads,
                warps: threads.div_ceil(32),
                cluster: self.cluster,
                ranks,
                explicit_cluster: launch.cluster.or(info.cluster).is_some(),
                shared: self.shared,
                dynamic_shared: launch.dynamic_shared,
            },
            cooperative: launch.cooperative,
            info,
            code,
            memory,
            config,
            watch,
            resident: (self.per_multiprocessor.saturating_mul(config.multiprocessors) / ranks).clamp(1, IN_FLIGHT),
            per_multiprocessor: self.per_multiprocessor,
            params: launch.params.chunks(8).map(word).chain([0]).collect(),
            workspace,
            op: Arc::new(Operation::new(format!("kernel {}", launch.kernel), place)),
            observed: observes_accesses(config),
            // A launch whose time is modelled has one thread: every instruction takes its turn.
            alone: self.blocks == u64::from(ranks) && watch.is_none() && !memory.is_mapped(),
            printed: Mutex::default(),
            free: config.clock.is_some() || !code.takes_turns || self.blocks == 1 && watch.is_none(),
        };
        memory.witness().begin(&cx.op);
        let outcome = scheduler::run(&cx);
        cx.op.finish();
        config.output.write(&std::mem::take(&mut *lock(&cx.printed)));
        if workspace != 0 {
            let _ = memory.free(workspace);
        }
        let (warp_instructions, counts, timing) = outcome.map_err(|f| *f)?;
        if config.checks.synccheck && cx.op.may_end_early() {
            let what = "a programmatic launch without a griddepcontrol.wait: it may end before the kernels before it, and who \
                        waits for it would not wait for them";
            return Err(Fault::new(FaultKind::InvalidSync, launch.kernel, what.to_owned()));
        }
        let counters = config.counters.then(|| Counters::new(&code.origins, &counts));
        Ok(Report { warp_instructions, counters, timing })
    }
}
