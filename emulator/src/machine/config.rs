//! Configuration of an emulated device, one [`DeviceConfig`] per ordinal, and the limits and attributes of its chip.

use super::chip::ChipFile;
use super::fault::{Fault, FaultKind, OrFault};
use super::injection::FaultInjection;
use super::output::Output;
use std::time::Duration;

/// Which checks run. Bounds, alignment and use after free are always checked: the emulator could not run without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checks {
    /// Reads of memory and registers that nothing has written.
    pub initcheck: bool,
    /// Conflicting accesses that nothing orders, and non-coherent reads of written data.
    pub racecheck: bool,
    /// Of the race check: all reads since the last write of a word are kept, so that a write is compared with each. Without
    /// it one is kept, which a hash chooses for each word: a race with one of several readers is then missed in a part of
    /// runs, and a launch with the race check alone takes about three quarters of the time (`emulator_speed`, on one
    /// thread).
    pub every_reader: bool,
    /// Divergent or mismatched barriers, shuffles from inactive lanes.
    pub synccheck: bool,
}

impl Checks {
    /// All of them.
    pub const ALL: Checks = Checks { initcheck: true, racecheck: true, every_reader: true, synccheck: true };
    /// None of them.
    pub const NONE: Checks = Checks { initcheck: false, racecheck: false, every_reader: false, synccheck: false };
}

/// In which order warps and blocks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Schedule {
    /// Round robin.
    #[default]
    RoundRobin,
    /// At random, by the seed.
    Random,
    /// At random, with one warp of each block, and one block, held back as long as anything else can run.
    Adversarial,
}

/// A device to emulate. Fill in what matters, take the rest from [`DeviceConfig::default`] or a chip's constructor.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// The name that `cuDeviceGetName` gives.
    pub name: String,
    /// Compute capability, `(9, 0)` for sm_90. Limits per block and multiprocessor follow from it.
    pub sm: (u32, u32),
    /// Multiprocessors. The blocks of a cooperative launch must be resident on them at once.
    pub multiprocessors: u32,
    /// Device memory; an allocation beyond it is `CUDA_ERROR_OUT_OF_MEMORY`.
    pub memory_bytes: u64,
    /// Most bytes of device memory that kernels have from `malloc`; beyond, it returns null.
    pub heap_bytes: u64,
    /// Where kernels print.
    pub output: Output,
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
    /// Host threads that execute a kernel; 0 for the number of cores.
    pub threads: usize,
    /// The order in which blocks and warps interleave.
    pub schedule: Schedule,
    /// Whether parts of a diverged warp run in random order and reconverge only where they must.
    pub split_warps: bool,
    /// Seed of the schedule and of perturbations.
    pub seed: u64,
    /// Whether results of approximate instructions vary by the seed, within the error that the ISA states.
    pub perturb: bool,
    /// The checks while kernels run.
    pub checks: Checks,
    /// Whether the first finding ends its launch, and the context with it, as a fault does. Otherwise launches go on where
    /// they can, and [`crate::findings`] or [`crate::Memory::findings`] tells what was found.
    pub fatal_findings: bool,
    /// Kinds of findings that are not reported.
    pub silenced: Vec<FaultKind>,
    /// Whether launches are counted and recorded, see [`crate::reports`].
    pub counters: bool,
    /// The chip whose time is modelled, see [`crate::Timing`]. Launches then run on one host thread in the order of their
    /// modelled time, which is the same on every run; `schedule`, `split_warps` and `threads` are not heeded.
    pub clock: Option<&'static ChipFile>,
    /// Warp instructions of one block after which a launch ends in `CUDA_ERROR_LAUNCH_TIMEOUT`.
    pub step_limit: Option<u64>,
    /// Rounds of nothing but polling after which a launch counts as deadlocked. `None` where the host writes to mapped
    /// memory while a kernel runs.
    pub livelock_rounds: Option<u64>,
    /// Wall-clock time after which a launch ends in `CUDA_ERROR_LAUNCH_TIMEOUT`, as under a display watchdog. Sets the
    /// attribute `KERNEL_EXEC_TIMEOUT` too.
    pub launch_timeout: Option<Duration>,
    /// Warp instructions of polling in vain after which a kernel counts as deadlocked, if every host thread of its
    /// context is blocked in a driver call and no other work of the context can run. Instructions count rather than
    /// time, so that a loaded machine raises no alarm.
    pub deadlock_steps: u64,
    /// Whether two cooperative launches that nothing orders start their blocks in turns. Two launches that can keep
    /// each other from starting their last blocks are a [`Deadlock`](crate::FaultKind::Deadlock) as soon as both are
    /// queued.
    pub interleave_cooperative: bool,
    /// Whether queued work begins only when the host queries or waits for it or for later work, as under Windows' WDDM.
    pub deferred_submission: bool,
    /// Driver calls that fail on purpose.
    pub faults: Vec<FaultInjection>,
}

impl Default for DeviceConfig {
    /// A small sm_90 device with every check on. It models no product.
    fn default() -> Self {
        DeviceConfig {
            name: "kiln emulated sm_90".into(),
            sm: (9, 0),
            multiprocessors: 8,
            memory_bytes: 16 << 30,
            heap_bytes: 8 << 20,
            output: Output::Standard,
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
            fatal_findings: true,
            silenced: Vec::new(),
            counters: false,
            clock: None,
            step_limit: None,
            livelock_rounds: None,
            launch_timeout: None,
            deadlock_steps: 1_000_000,
            interleave_cooperative: false,
            deferred_submission: false,
            faults: Vec::new(),
        }
    }
}

/// 32-bit registers per multiprocessor and per block, on every chip from sm_75.
pub(super) const REGISTERS: u32 = 65536;
/// Shared memory per block without opt-in, in bytes.
pub(crate) const SHARED_PER_BLOCK: u32 = 48 << 10;
pub(crate) const THREADS_PER_BLOCK: u32 = 1024;
/// Largest block in x, y, z.
pub(crate) const BLOCK: [u32; 3] = [1024, 1024, 64];
/// Largest grid in x, y, z.
pub(crate) const GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];

/// Limits that follow from the compute capability; shared memory in bytes.
/// Source: CUDA C++ Programming Guide, "Compute Capabilities".
pub(super) struct Chip {
    pub(super) shared_per_multiprocessor: u32,
    pub(super) shared_per_block_optin: u32,
    /// Bytes that the system takes of every resident block.
    pub(super) reserved_shared: u32,
    /// Resident warps and blocks per multiprocessor.
    pub(super) warps: u32,
    pub(super) blocks: u32,
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

    /// A device whose time is modelled after a chip file, with no checks.
    pub fn clocked(chip: &'static ChipFile) -> Self {
        DeviceConfig {
            name: format!("kiln emulated {}", chip.name),
            sm: chip.sm,
            multiprocessors: chip.multiprocessors,
            clock_khz: (chip.clock.value * 1e6) as u32,
            l2_bytes: chip.l2_bytes.value as u32,
            checks: Checks::NONE,
            clock: Some(chip),
            ..Self::default()
        }
    }

    /// What becomes of a fault: nothing if it is silenced, a finding that goes to `found`, or an error.
    pub(crate) fn judge(&self, fault: Box<Fault>, found: impl FnOnce(Fault)) -> OrFault<()> {
        if !fault.kind.is_finding() {
            return Err(fault);
        }
        if self.silenced.contains(&fault.kind) {
            return Ok(());
        }
        if self.fatal_findings {
            return Err(fault);
        }
        found(*fault);
        Ok(())
    }

    /// The compute capability as one number, 90 for sm_90.
    pub(crate) fn sm_number(&self) -> u32 {
        self.sm.0 * 10 + self.sm.1
    }

    pub(crate) fn host_threads(&self) -> usize {
        if self.threads == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { self.threads }
    }

    pub(super) fn chip(&self) -> Chip {
        let (multiprocessor, block, reserved, warps, blocks) = match self.sm {
            (0..=7, _) => (64, 64, 0, 32, 16),
            (8, 0) => (164, 163, 1, 64, 32),
            (8, 7) => (164, 163, 1, 48, 16),
            (8, 9) | (12.., _) => (100, 99, 1, 48, 24),
            (8, _) => (100, 99, 1, 48, 16),
            (9.., _) => (228, 227, 1, 64, 32),
        };
        Chip {
            shared_per_multiprocessor: multiprocessor << 10,
            shared_per_block_optin: self.shared_per_block_optin.unwrap_or(block << 10),
            reserved_shared: reserved << 10,
            warps,
            blocks,
        }
    }

    /// Most shared memory of a block, in bytes.
    pub(crate) fn shared_limit(&self) -> u32 {
        self.chip().shared_per_block_optin
    }

    /// The value of `CUdevice_attribute` number `number`, if it is one of CUDA 12.9.
    pub(crate) fn attribute(&self, number: i32) -> Option<i32> {
        let chip = self.chip();
        let value = match number {
            1 => THREADS_PER_BLOCK,
            2..=4 => BLOCK[number as usize - 2],
            5..=7 => GRID[number as usize - 5],
            8 => SHARED_PER_BLOCK,
            9 => 64 << 10, // constant memory
            10 => 32,      // warp size
            11 => i32::MAX as u32,
            12 | 82 => REGISTERS,
            13 => self.clock_khz,
            14 | 30 => 512, // alignment of textures and surfaces
            16 => self.multiprocessors,
            17 => self.launch_timeout.is_some().into(),
            18 => self.integrated.into(),
            // Copies and kernels beside kernels, mapped host memory, caches in L1, managed memory, also while kernels run,
            // preemption, cooperative launches, registered memory, pools.
            15 | 19 | 31 | 79 | 80 | 83 | 89 | 90 | 95 | 99 | 115 => 1,
            36 => self.memory_clock_khz,
            37 => self.memory_bus_bits,
            38 => self.l2_bytes,
            39 => chip.warps * 32,
            40 => 2,  // engines for copies
            51 => 32, // alignment of a texture's pitch
            75 => self.sm.0,
            76 => self.sm.1,
            81 => chip.shared_per_multiprocessor,
            86 => self.host_native_atomics.into(),
            87 => self.single_to_double(),
            97 => chip.shared_per_block_optin,
            106 => chip.blocks,
            111 => chip.reserved_shared,
            120 => (self.sm.0 >= 9).into(), // clusters
            126 => 1,                       // domains of memory synchronisation
            131 | 134 => return Some(-1),   // no node of host memory
            21..=29 | 42..=49 | 52..=74 | 77 => textures(number)?,
            // What is left says that a feature is there, or where a device is plugged in. Page-locked memory has another
            // address here than on the host, so that addressing is not unified (41).
            20 | 32..=35 | 41 | 50 | 78 | 84 | 85 | 88 | 91..=94 | 96 | 98 | 100..=105 => 0,
            107..=110 | 112..=114 | 116..=119 | 121..=125 | 127..=130 | 132 | 133 | 135..=143 => 0,
            _ => return None,
        };
        Some(i32::try_from(value).unwrap_or(i32::MAX))
    }

    /// Products in f32 for each in f64 that a multiprocessor makes.
    fn single_to_double(&self) -> u32 {
        match self.sm {
            (8..=10, 0) => 2,
            (0..=7, _) => 32,
            _ => 64,
        }
    }
}

/// Limits of textures and surfaces by their attributes, the same on all these chips.
/// Source: CUDA C++ Programming Guide, "Compute Capabilities".
fn textures(number: i32) -> Option<u32> {
    Some(match number {
        21 | 22 | 56 | 70 => 1 << 17,
        23 | 57 => 1 << 16,
        24..=26 | 58..=60 => 1 << 14,
        27 | 28 | 42 | 45 | 46 | 49 | 52 | 53 | 55 | 61 | 63 | 64 | 66 | 67 | 73 | 74 | 77 => 1 << 15,
        29 | 43 | 62 | 65 => 2048,
        44 => 1, // gathers
        47 | 48 => 1 << 13,
        54 | 68 => 2046,
        69 => 1 << 28,
        71 => 65000,
        72 => 2_097_120,
        _ => return None,
    })
}
