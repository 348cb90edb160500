//! What an emulated device is like: one [`DeviceConfig`] per ordinal, nothing for the whole process.

use std::time::Duration;

use super::codes::Code;
use super::machine::{Checks, Schedule};

/// A device to emulate. Fill in what matters, take the rest from [`DeviceConfig::default`] or a chip's constructor.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// What `cuDeviceGetName` says.
    pub name: String,
    /// Compute capability, `(9, 0)` for sm_90. Limits per block and multiprocessor follow from it.
    pub sm: (u32, u32),
    /// Multiprocessors; a cooperative launch fits if its blocks are resident on them at once.
    pub multiprocessors: u32,
    /// Device memory; an allocation beyond it is `CUDA_ERROR_OUT_OF_MEMORY`.
    pub memory_bytes: u64,
    /// Shared memory per block with opt-in, in bytes; `None`: what the chip of this `sm` has.
    pub shared_per_block_optin: Option<u32>,
    /// Core clock in kHz. Reported only; emulated time is the host's.
    pub clock_khz: u32,
    /// Memory clock in kHz. Reported only.
    pub memory_clock_khz: u32,
    /// Memory bus width in bits. Reported only.
    pub memory_bus_bits: u32,
    /// L2 cache in bytes. Reported only.
    pub l2_bytes: u32,
    /// Whether device and host share memory, as on a Jetson. Reported only.
    pub integrated: bool,
    /// Whether host and device may do read-modify-write atomics on the same word. Reported only.
    pub host_native_atomics: bool,
    /// Host threads that execute a kernel; 0: as many as the machine has cores.
    pub threads: usize,
    /// How blocks and warps interleave.
    pub schedule: Schedule,
    /// Whether parts of a warp may run apart where the ISA does not promise reconvergence.
    pub split_warps: bool,
    /// Seed of the schedule and of the perturbation.
    pub seed: u64,
    /// Whether approximate instructions vary within the ISA's stated error.
    pub perturb: bool,
    /// What is checked while kernels run.
    pub checks: Checks,
    /// Whether launches are counted and recorded, see [`crate::reports`].
    pub counters: bool,
    /// A launch with a block of more warp steps than this ends in `CUDA_ERROR_LAUNCH_TIMEOUT`.
    pub step_limit: Option<u64>,
    /// A launch of more wall-clock time than this ends in `CUDA_ERROR_LAUNCH_TIMEOUT`, as under a display watchdog;
    /// also sets the attribute `KERNEL_EXEC_TIMEOUT`.
    pub launch_timeout: Option<Duration>,
    /// Warp instructions that a kernel may spend on polling in vain, while every host thread that has used the context
    /// is blocked in a driver call and no other work of the context can go on, before that is reported as a deadlock.
    /// Time does not count, so that a loaded machine raises no alarm.
    pub deadlock_steps: u64,
    /// Calls that fail on purpose.
    pub faults: Vec<FaultInjection>,
}

/// One call that fails on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultInjection {
    /// Which kind of call.
    pub call: Call,
    /// Which one of them, counted from 1 from when the injection was made.
    pub nth: u64,
    /// How it fails. A code that a kernel's or copy's execution would give, such as [`Code::ILLEGAL_ADDRESS`], comes as
    /// it would there: the launch or copy is accepted, then the context is lost.
    pub code: Code,
}

/// The kinds of calls that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Device and page-locked host allocations.
    Allocate,
    /// Copies and fills, synchronous or not.
    Copy,
    /// Kernel and graph launches.
    Launch,
    /// Module loads.
    Load,
}

impl Default for DeviceConfig {
    /// A small sm_90 device with every check on: a witness, not a model of a product.
    fn default() -> Self {
        DeviceConfig {
            name: "kiln emulated sm_90".into(),
            sm: (9, 0),
            multiprocessors: 8,
            memory_bytes: 16 << 30,
            shared_per_block_optin: None,
            clock_khz: 1_755_000,
            memory_clock_khz: 2_619_000,
            memory_bus_bits: 5120,
            l2_bytes: 50 << 20,
            integrated: false,
            host_native_atomics: false,
            threads: 0,
            schedule: Schedule::RoundRobin,
            split_warps: false,
            seed: 0,
            perturb: false,
            checks: Checks::ALL,
            counters: false,
            step_limit: None,
            launch_timeout: None,
            deadlock_steps: 1_000_000,
            faults: Vec::new(),
        }
    }
}

impl DeviceConfig {
    /// The default device with another compute capability, named after it.
    pub fn with_sm(major: u32, minor: u32) -> Self {
        DeviceConfig { name: format!("kiln emulated sm_{major}{minor}"), sm: (major, minor), ..Self::default() }
    }

    /// An H200's figures: 132 multiprocessors, 141 GB.
    pub fn h200() -> Self {
        DeviceConfig {
            name: "kiln emulated H200".into(),
            multiprocessors: 132,
            memory_bytes: 141_000_000_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6144,
            ..Self::default()
        }
    }

    /// An RTX 4090's figures: sm_89, 128 multiprocessors, 24 GiB.
    pub fn rtx_4090() -> Self {
        DeviceConfig {
            name: "kiln emulated RTX 4090".into(),
            multiprocessors: 128,
            memory_bytes: 24 << 30,
            clock_khz: 2_520_000,
            memory_clock_khz: 10_501_000,
            memory_bus_bits: 384,
            l2_bytes: 72 << 20,
            ..Self::with_sm(8, 9)
        }
    }

    /// A Jetson AGX Orin's figures: sm_87, 16 multiprocessors, memory shared with the host.
    pub fn orin() -> Self {
        DeviceConfig {
            name: "kiln emulated Orin".into(),
            multiprocessors: 16,
            memory_bytes: 32 << 30,
            clock_khz: 1_300_000,
            memory_clock_khz: 3_200_000,
            memory_bus_bits: 256,
            l2_bytes: 4 << 20,
            integrated: true,
            ..Self::with_sm(8, 7)
        }
    }
}
