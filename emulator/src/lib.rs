//! A CUDA device in software: runs PTX text on the CPU and checks it.
//!
//! PTX text goes in, results come out, behind the same C functions that the driver's library exports. [`add_device`]
//! makes a device, [`resolve`] finds the functions by the names that `libcuda` gives them; a program that keeps its
//! driver functions in a table runs here unchanged.
//!
//! ```
//! use std::ffi::{CStr, c_char, c_void};
//! use std::ptr::null_mut;
//!
//! /// Triples one number in place.
//! const PTX: &CStr = c"
//!     .version 7.0
//!     .target sm_75
//!     .address_size 64
//!     .visible .entry triple(.param .u64 x)
//!     {
//!         .reg .b64 %rd<2>;
//!         .reg .b32 %r<3>;
//!         ld.param.u64 %rd1, [x];
//!         ld.global.u32 %r1, [%rd1];
//!         mul.lo.u32 %r2, %r1, 3;
//!         st.global.u32 [%rd1], %r2;
//!         ret;
//!     }";
//!
//! macro_rules! call {
//!     ($symbol:literal ($($argument:expr => $type:ty),*)) => {{
//!         let function = kiln_emulator::resolve($symbol).expect("a driver function");
//!         // SAFETY: the signature is that of NVIDIA's header, the pointers are valid for what the manual says.
//!         let code = unsafe {
//!             let function: unsafe extern "C" fn($($type),*) -> u32 = std::mem::transmute(function.as_ptr());
//!             function($($argument),*)
//!         };
//!         assert_eq!(code, 0, "CUDA_SUCCESS");
//!     }};
//! }
//!
//! let ordinal = kiln_emulator::add_device(kiln_emulator::DeviceConfig::with_sm(7, 5));
//! let (mut context, mut module, mut function, mut x) = (0usize, 0usize, 0usize, 0u64);
//! let mut value = 14u32;
//! call!(c"cuInit"(0 => u32));
//! call!(c"cuDevicePrimaryCtxRetain"(&mut context => *mut usize, ordinal => i32));
//! call!(c"cuCtxSetCurrent"(context => usize));
//! call!(c"cuModuleLoadDataEx"(&mut module => *mut usize, PTX.as_ptr() => *const c_char, 0 => u32,
//!     null_mut() => *mut u32, null_mut() => *mut *mut c_void));
//! call!(c"cuModuleGetFunction"(&mut function => *mut usize, module => usize, c"triple".as_ptr() => *const c_char));
//! call!(c"cuMemAlloc_v2"(&mut x => *mut u64, 4 => usize));
//! call!(c"cuMemcpyHtoD_v2"(x => u64, (&raw const value).cast() => *const c_void, 4 => usize));
//! let mut parameters = [(&raw mut x).cast::<c_void>()];
//! call!(c"cuLaunchKernel"(function => usize, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32,
//!     0 => usize, parameters.as_mut_ptr() => *mut *mut c_void, null_mut() => *mut *mut c_void));
//! call!(c"cuMemcpyDtoH_v2"((&raw mut value).cast() => *mut c_void, x => u64, 4 => usize));
//! assert_eq!(value, 42);
//! ```
//!
//! What C has no functions for is on the Rust side: [`last_fault`] explains a fault, [`findings`] lists what the checks
//! found where [`DeviceConfig::fatal_findings`] is off, [`reports`] counts what launches
//! did, [`leaks`] lists what was not given back, [`inject`] makes a call fail, [`host`] lets the host's own accesses be
//! checked. [`run`] executes a launch without any driver around it.

// A fault ends its launch: that it is large costs nothing.
#![allow(clippy::result_large_err)]

mod checks;
mod device;
mod exec;
mod launch;
mod machine;
mod memory;
mod ptx;
mod timing;

pub use checks::counters::Counters;
pub use device::{
    Copies, LaunchRecord, Leak, add_device, clear_reports, copies, findings, host, inject, last_fault, leaks, reports,
    resolve, time_launches,
};
pub use launch::{Launch, Report, run};
pub use machine::chip::{ChipFile, Figure, Origin};
pub use machine::codes::Code;
pub use machine::config::{Checks, DeviceConfig, Schedule};
pub use machine::fault::{Fault, FaultKind};
pub use machine::finding::{Finding, Findings};
pub use machine::injection::{Call, FaultInjection};
pub use machine::kernel::{KernelInfo, ParamInfo};
pub use machine::output::Output;
pub use memory::{Memory, MemoryError};
pub use ptx::{Module, PtxError};
pub use timing::chips::{chip_file, chip_files};
pub use timing::report::{Stall, Stay, Timing};

/// The README's programs, which are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
