//! The one place where the device meets the machine: reading PTX text, executing a launch.

use std::sync::Arc;

pub(crate) use crate::checks::Checks;
pub(crate) use crate::checks::counters::Counters;
pub(crate) use crate::launch::{Fault, Schedule};
pub(crate) use crate::memory::Memory;
pub(crate) use crate::ptx::{KernelInfo, Module};

use super::codes::Code;
use super::config::DeviceConfig;
use super::context::Context;
use super::launch::KernelLaunch;
use super::module::LoadFailure;
use crate::launch::{ExecConfig, Launch};

/// Whether a range lies in one live allocation.
pub(crate) fn contains(memory: &Memory, address: u64, bytes: u64) -> bool {
    memory.live_allocations().iter().any(|&(base, size)| {
        address.checked_sub(base).and_then(|offset| size.checked_sub(offset)).is_some_and(|left| bytes <= left)
    })
}

/// Fills with 16-bit elements.
pub(crate) fn set_u16(memory: &Memory, to: u64, value: u16, count: usize) -> Result<(), crate::memory::MemoryError> {
    memory.write(to, &value.to_le_bytes().repeat(count))
}

/// Reads PTX text for a device.
pub(crate) fn load(text: &str, memory: &Memory, _config: &DeviceConfig) -> Result<Module, LoadFailure> {
    Module::load(text, memory).map_err(|error| LoadFailure {
        code: Code::INVALID_PTX,
        log: format!("line {}; error: {} near '{}'", error.line, error.message, error.token),
    })
}

pub(crate) fn kernel(module: &Module, name: &str) -> Option<KernelInfo> {
    module.kernel(name).cloned()
}

/// Address and size of a module-scope variable.
pub(crate) fn global(module: &Module, name: &str) -> Option<(u64, u64)> {
    module.global(name)
}

/// Executes a launch to its end.
pub(crate) fn execute(launch: &KernelLaunch, context: &Arc<Context>) -> Result<Counters, Fault> {
    let device = &context.device.config;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let config = ExecConfig {
        threads: if device.threads == 0 { cores() } else { device.threads },
        schedule: device.schedule,
        split_warps: device.split_warps,
        seed: device.seed,
        checks: device.checks,
        step_limit: device.step_limit,
        counters: device.counters,
        sm: device.sm.0 * 10 + device.sm.1,
        multiprocessors: device.multiprocessors,
        perturb: device.perturb,
        shared_per_block: launch.function.shared_limit(),
        ..ExecConfig::default()
    };
    let asked = Launch {
        module: &launch.function.module.module,
        kernel: &launch.function.info.name,
        grid: launch.grid,
        block: launch.block,
        dynamic_shared: launch.dynamic_shared,
        params: &launch.params,
        cooperative: launch.cooperative,
        cluster: launch.cluster,
    };
    crate::launch::run(&asked, &context.memory, &config).map(|report| report.counters.unwrap_or_default())
}

/// Frees a module's variables.
pub(crate) fn unload(module: &Module, memory: &Memory) {
    module.unload(memory);
}
