//! CUDA's driver API over emulated devices.
//!
//! Devices and their control side (`registry`), contexts, streams and events, graphs, their commands and the host's
//! memory (`command`), modules, launches, checked accesses by the host (`host`), and the C functions themselves (`api`,
//! on `abi` and `handles`). Nothing here reads or executes PTX.

mod abi;
mod api;
mod command;
mod context;
mod graph;
mod handles;
pub mod host;
mod launch;
mod module;
mod registry;
mod stream;

use abi::{Handle, Outcome, Ptr};
use command::Command;
use context::Context;
use launch::KernelLaunch;
use stream::{Stream, StreamId, Ticket};

use crate::machine::lock::lock;

use crate::machine::codes::Code;
use crate::machine::config::DeviceConfig;
use crate::machine::injection::Call;
pub use api::resolve;

pub use registry::{
    Copies, LaunchRecord, Leak, add_device, clear_reports, copies, findings, inject, last_fault, leaks, reports,
    time_launches,
};
