//! Properties of a kernel that a launch depends on, and its occupancy.

use super::config::{BLOCK, DeviceConfig, REGISTERS, THREADS_PER_BLOCK};

/// Schedulers of a multiprocessor, each with a quarter of its registers.
const SCHEDULERS: u32 = 4;

/// A kernel's parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamInfo {
    /// Bytes from the start of the parameter buffer.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// Properties of a kernel that a launch depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelInfo {
    /// Entry name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<ParamInfo>,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Bytes of static shared memory.
    pub static_shared: u32,
    /// Bytes of local memory per thread.
    pub local_bytes: u32,
    /// 32-bit registers per thread, as the emulator allots them; an assembler may need more or fewer.
    pub registers: u32,
    /// `.reqntid`
    pub reqntid: Option<[u32; 3]>,
    /// `.maxntid`
    pub maxntid: Option<[u32; 3]>,
    /// `.reqnctapercluster`
    pub cluster: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub min_blocks: Option<u32>,
    /// The module's target: 75 for `sm_75`.
    pub target_sm: u32,
}

impl KernelInfo {
    /// Most threads per block, by the kernel's directives.
    pub(crate) fn max_threads(&self) -> u32 {
        let declared = self.reqntid.or(self.maxntid).unwrap_or(BLOCK);
        declared.iter().fold(1u32, |all, &n| all.saturating_mul(n)).min(THREADS_PER_BLOCK)
    }

    /// Registers per thread as reported: the emulator's own figure, bounded as an assembler bounds it for the declared
    /// number of threads: each of the four schedulers has whole warps.
    pub(crate) fn device_registers(&self) -> u32 {
        let warps = self.max_threads().max(1).div_ceil(32).saturating_mul(self.min_blocks.unwrap_or(1).max(1));
        let most = REGISTERS / SCHEDULERS / warps.div_ceil(SCHEDULERS) / 32 / 8 * 8;
        self.registers.clamp(16, most.clamp(16, 255))
    }

    /// Blocks that one multiprocessor holds at once, by the allocation units of NVIDIA's occupancy calculator.
    pub(crate) fn occupancy(&self, config: &DeviceConfig, threads: u32, dynamic_shared: u32) -> u32 {
        let chip = config.chip();
        let shared = self.static_shared.saturating_add(dynamic_shared);
        if threads == 0 || threads > self.max_threads() || shared > chip.shared_per_block_optin {
            return 0;
        }
        let warps = threads.div_ceil(32);
        // Registers are given per warp in units of 256.
        let per_warp = (self.device_registers() * 32).next_multiple_of(256);
        let by_registers = REGISTERS / SCHEDULERS / per_warp * SCHEDULERS / warps;
        let taken = (shared + chip.reserved_shared).next_multiple_of(128);
        let by_shared = chip.shared_per_multiprocessor.checked_div(taken).unwrap_or(u32::MAX);
        (chip.warps / warps).min(by_registers).min(by_shared).min(chip.blocks)
    }
}
