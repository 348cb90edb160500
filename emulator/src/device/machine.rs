//! The one place where the device meets the machine: reading PTX text, executing a launch.

use std::sync::Arc;

#[path = "stub.rs"]
#[allow(missing_docs, unreachable_pub, clippy::all)]
#[rustfmt::skip]
mod stub;

pub(crate) use stub::{Checks, Counters, Fault, Schedule};
pub(crate) use stub::{KernelInfo, Memory, Module};

use super::codes::Code;
use super::config::DeviceConfig;
use super::context::Context;
use super::launch::KernelLaunch;
use super::module::LoadFailure;

/// Whether a range lies in one live allocation.
pub(crate) fn contains(memory: &Memory, address: u64, bytes: u64) -> bool {
    memory.live_allocations().iter().any(|&(base, size)| {
        address.checked_sub(base).and_then(|offset| size.checked_sub(offset)).is_some_and(|left| bytes <= left)
    })
}

/// Fills with 16-bit elements.
pub(crate) fn set_u16(memory: &Memory, to: u64, value: u16, count: usize) -> Result<(), ()> {
    memory.write(to, &value.to_le_bytes().repeat(count)).map_err(drop)
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
pub(crate) fn global(_module: &Module, _name: &str) -> Option<(u64, u64)> {
    None
}

/// Executes a launch to its end.
pub(crate) fn execute(_launch: &KernelLaunch, _context: &Arc<Context>) -> Result<Counters, Fault> {
    Ok(Counters)
}

/// Frees a module's variables.
pub(crate) fn unload(_module: &Module, _memory: &Memory) {}
