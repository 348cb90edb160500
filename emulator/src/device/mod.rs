//! The device around the machine: CUDA's driver API over emulated devices.
//!
//! Ordinals and their configuration, contexts, streams, events, graphs, modules, memory as the host sees it, launches as
//! the driver checks them, and the C functions themselves (`api`). How PTX is read and executed is not known here; the
//! one place that touches it is `machine`.

mod abi;
mod api;
mod attributes;
mod capture;
mod chip;
mod codes;
mod config;
mod context;
mod event;
mod graph;
mod handles;
mod host;
mod launch;
mod machine;
mod module;
mod registry;
mod residency;
mod stream;
mod transfer;
mod work;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use api::resolve;
pub use codes::Code;
pub use config::{Call, DeviceConfig, FaultInjection};
pub(crate) use registry::mapped;
pub use registry::{LaunchRecord, Leak, add_device, clear_reports, inject, last_fault, leaks, reports};

/// Locks, also after a panic elsewhere: every value here is whole between two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
