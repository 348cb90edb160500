//! The one place where the device meets the machine: reading PTX text, executing a launch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

pub(crate) use crate::checks::Checks;
pub(crate) use crate::checks::counters::Counters;
pub(crate) use crate::checks::order::{Operation, Order, Place};
pub(crate) use crate::launch::{Fault, Schedule};
pub(crate) use crate::memory::Memory;
pub(crate) use crate::ptx::{KernelInfo, Module};

use super::chip::{Chip, SHARED_PER_BLOCK};
use super::codes::Code;
use super::config::DeviceConfig;
use super::context::Context;
use super::launch::KernelLaunch;
use super::module::LoadFailure;
use crate::launch::{ExecConfig, FaultKind, Launch, Report, run_watched};

/// The newest `.version` that a driver of CUDA 13.0 reads.
const PTX_VERSION: (u32, u32) = (9, 0);
/// Blocks of an ordinary launch that are in flight at most, to bound the emulator's own memory.
const IN_FLIGHT: u32 = 256;

/// Whether a range lies in one live allocation.
pub(crate) fn contains(memory: &Memory, address: u64, bytes: u64) -> bool {
    memory.live_allocations().iter().any(|&(base, size)| {
        address.checked_sub(base).and_then(|offset| size.checked_sub(offset)).is_some_and(|left| bytes <= left)
    })
}

/// Reads PTX text for a device.
pub(crate) fn load(text: &str, memory: &Memory, config: &DeviceConfig) -> Result<Module, LoadFailure> {
    let refuse = |code, log| Err(LoadFailure { code, log });
    let (major, minor) = config.sm;
    // What an older driver makes of newer text is decided before the text is read any further.
    if let Some(version) = directive(text, ".version") {
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version > PTX_VERSION {
            let ((a, b), (c, d)) = (version, PTX_VERSION);
            return refuse(
                Code::UNSUPPORTED_PTX_VERSION,
                format!("unsupported .version {a}.{b}; the newest that this driver reads is {c}.{d}"),
            );
        }
    }
    if let Some(target) = directive(text, ".target").and_then(|target| target.strip_prefix("sm_")) {
        let digits = target.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let (wanted, own) = (digits.parse().unwrap_or(0), major * 10 + minor);
        let fits = match &target[digits.len()..] {
            "" => wanted <= own,
            "f" => wanted <= own && wanted / 10 == own / 10,
            _ => wanted == own,
        };
        if !fits {
            return refuse(Code::INVALID_PTX, format!(".target sm_{target} does not run on this device, an sm_{own}"));
        }
    }
    let module = Module::load(text, memory).map_err(|error| LoadFailure {
        code: Code::INVALID_PTX,
        log: format!("ptx input, line {}; error: {} near '{}'", error.line, error.message, error.token),
    })?;
    for name in module.kernel_names() {
        let shared = module.kernel(name).map_or(0, |info| info.static_shared);
        if shared > SHARED_PER_BLOCK {
            module.unload(memory);
            let log = format!(
                "error: entry '{name}' uses too much shared data: {shared} bytes, {SHARED_PER_BLOCK} at most; \
                 more is only to be had as dynamic shared memory"
            );
            return refuse(Code::INVALID_PTX, log);
        }
    }
    Ok(module)
}

/// The first argument of a directive of the module's head, comments left out.
fn directive<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    let mut words = lines.flat_map(str::split_whitespace);
    words.find(|&word| word == name)?;
    words.next().map(|word| word.split(',').next().unwrap_or(word))
}

pub(crate) fn kernel(module: &Module, name: &str) -> Option<KernelInfo> {
    module.kernel(name).cloned()
}

/// Address and size of a module-scope variable.
pub(crate) fn global(module: &Module, name: &str) -> Option<(u64, u64)> {
    module.global(name)
}

/// Frees a module's variables.
pub(crate) fn unload(module: &Module, memory: &Memory) {
    module.unload(memory);
}

/// Executes a launch to its end.
pub(crate) fn execute(launch: &KernelLaunch, context: &Arc<Context>, place: &Place) -> Result<Report, Box<Fault>> {
    let config = &context.device.config;
    let info = &launch.function.info;
    let per_multiprocessor = launch.function.occupancy(launch.block.iter().product(), launch.dynamic_shared);
    let exec = ExecConfig {
        threads: match config.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        },
        schedule: config.schedule,
        split_warps: config.split_warps,
        seed: config.seed,
        checks: config.checks,
        step_limit: config.step_limit,
        livelock_rounds: None,
        counters: config.counters,
        sm: config.sm.0 * 10 + config.sm.1,
        multiprocessors: config.multiprocessors,
        shared_per_block: config.shared_per_block_optin.unwrap_or(Chip::of(config.sm).shared_per_block_optin),
        resident: per_multiprocessor.saturating_mul(config.multiprocessors).clamp(1, IN_FLIGHT),
        perturb: config.perturb,
    };
    let request = Launch {
        module: &launch.function.module.module,
        kernel: &info.name,
        grid: launch.grid,
        block: launch.block,
        dynamic_shared: launch.dynamic_shared,
        params: &launch.params,
        cooperative: launch.cooperative,
        cluster: launch.cluster,
    };
    let op = Operation::new(format!("kernel {}", info.name), place.clone());
    let guard = Guard::new(context, place);
    run_watched(&request, &context.memory, &exec, Some(&|progress, steps| guard.stop(progress, steps)), op)
        .map_err(Box::new)
}

/// Ends launches that take too long, and those that wait for a host that waits for them.
struct Guard<'a> {
    context: &'a Context,
    begin: Instant,
    /// Warp instructions since the kernel has changed anything, or somebody else could.
    idle: AtomicU64,
    /// Tells the context that this launch waits for somebody.
    polls: Arc<AtomicBool>,
}

/// Warp instructions of polling after which, and then as often, the guard looks whether anybody else can go on.
const LOOK: u64 = 2000;

impl Guard<'_> {
    fn new<'a>(context: &'a Context, place: &Place) -> Guard<'a> {
        let polls = context.state().polls(place.stream.1);
        Guard { context, begin: Instant::now(), idle: AtomicU64::new(0), polls }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.polls.store(false, Ordering::Release);
    }
}

impl Guard<'_> {
    fn stop(&self, progress: bool, steps: u64) -> Option<(FaultKind, String)> {
        let config = &self.context.device.config;
        if let Some(limit) = config.launch_timeout.filter(|&limit| self.begin.elapsed() > limit) {
            let message = format!("the launch took more than the device's {} ms", limit.as_millis());
            return Some((FaultKind::StepLimit, message));
        }
        if progress {
            self.idle.store(0, Ordering::Relaxed);
            self.polls.store(false, Ordering::Release);
            return None;
        }
        let before = self.idle.fetch_add(steps.max(1), Ordering::Relaxed);
        let idle = before + steps.max(1);
        if before / LOOK == idle / LOOK {
            return None;
        }
        self.polls.store(true, Ordering::Release);
        let Some(calls) = self.context.stuck() else {
            self.idle.store(0, Ordering::Relaxed);
            return None;
        };
        let message = || {
            format!(
                "the kernel polls what nobody changes, and every host thread of its context is blocked behind it, in {}",
                calls.join(", ")
            )
        };
        (idle >= config.deadlock_steps).then(|| (FaultKind::Deadlock, message()))
    }
}
