//! The device around the machine: CUDA's driver API over emulated devices.
//!
//! Ordinals and the control side (`registry`), what they are like (`config`), contexts, streams and events, graphs, the
//! work they do and memory as the host sees it (`command`), modules, launches, and the C functions themselves (`api`, on
//! `abi`, `handles` and `codes`). How PTX is read and executed is not known here.

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

pub use registry::{LaunchRecord, Leak, add_device, clear_reports, inject, last_fault, leaks, reports};
