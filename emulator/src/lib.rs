//! A CUDA device in software: runs PTX text on the CPU and checks it.

mod checks;
mod device;
mod exec;
mod launch;
mod memory;
mod ptx;

pub use checks::Checks;
pub use checks::counters::Counters;
pub use device::{
    Call, Code, DeviceConfig, FaultInjection, LaunchRecord, Leak, add_device, clear_reports, inject, last_fault, leaks,
    reports, resolve,
};
pub use launch::{ExecConfig, Fault, FaultKind, Launch, Report, Schedule, run};
pub use memory::{Memory, MemoryError};
pub use ptx::{KernelInfo, Module, ParamInfo, PtxError};
