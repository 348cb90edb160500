//! Limits that follow from the compute capability, and how many blocks fit on a multiprocessor.
//! Source: CUDA C++ Programming Guide, "Compute Capabilities", and the occupancy calculator's allocation units.

/// Per-chip limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chip {
    /// Shared memory per multiprocessor, in bytes.
    pub(crate) shared_per_multiprocessor: u32,
    /// Shared memory per block with opt-in, in bytes.
    pub(crate) shared_per_block_optin: u32,
    /// Shared memory the system takes of every resident block, in bytes.
    pub(crate) reserved_shared: u32,
    /// Resident warps per multiprocessor.
    pub(crate) warps: u32,
    /// Resident blocks per multiprocessor.
    pub(crate) blocks: u32,
}

/// 32-bit registers per multiprocessor and per block, on every chip from sm_75.
pub(crate) const REGISTERS: u32 = 65536;
/// Shared memory per block without opt-in, in bytes.
pub(crate) const SHARED_PER_BLOCK: u32 = 48 << 10;
/// Threads per block.
pub(crate) const THREADS_PER_BLOCK: u32 = 1024;
/// Largest block in x, y, z.
pub(crate) const BLOCK: [u32; 3] = [1024, 1024, 64];
/// Largest grid in x, y, z.
pub(crate) const GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];

impl Chip {
    pub(crate) fn of(sm: (u32, u32)) -> Chip {
        let kib = |multiprocessor: u32, block: u32, reserved: u32, warps: u32, blocks: u32| Chip {
            shared_per_multiprocessor: multiprocessor << 10,
            shared_per_block_optin: block << 10,
            reserved_shared: reserved << 10,
            warps,
            blocks,
        };
        match sm {
            (0..=7, _) => kib(64, 64, 0, 32, 16),
            (8, 0) => kib(164, 163, 1, 64, 32),
            (8, 7) => kib(164, 163, 1, 48, 16),
            (8, 9) => kib(100, 99, 1, 48, 24),
            (8, _) => kib(100, 99, 1, 48, 16),
            (12.., _) => kib(100, 99, 1, 48, 24),
            (9.., _) => kib(228, 227, 1, 64, 32),
        }
    }

    /// Blocks of `threads` threads, `registers` per thread and `shared` bytes that one multiprocessor holds at once.
    pub(crate) fn occupancy(&self, threads: u32, registers: u32, shared: u32) -> u32 {
        if threads == 0 || threads > THREADS_PER_BLOCK {
            return 0;
        }
        let warps = threads.div_ceil(32);
        let by_warps = self.warps / warps;
        // Registers are given per warp in units of 256, and each of the four schedulers holds whole warps.
        let per_warp = (registers.max(1) * 32).next_multiple_of(256);
        let by_registers = REGISTERS / 4 / per_warp * 4 / warps;
        let taken = (shared + self.reserved_shared).next_multiple_of(128);
        let by_shared = self.shared_per_multiprocessor.checked_div(taken).unwrap_or(u32::MAX);
        by_warps.min(by_registers).min(by_shared).min(self.blocks)
    }
}
