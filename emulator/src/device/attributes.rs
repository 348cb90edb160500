//! `CUdevice_attribute`: what `cuDeviceGetAttribute` answers.

use super::chip::{BLOCK, Chip, GRID, REGISTERS, SHARED_PER_BLOCK, THREADS_PER_BLOCK};
use super::config::DeviceConfig;

/// The value of attribute `number`; attributes that do not concern compute (textures, imports, decompression) are 0,
/// numbers that CUDA 13.0 does not have are `None`.
pub(crate) fn value(config: &DeviceConfig, ordinal: i32, number: i32) -> Option<i32> {
    let chip = Chip::of(config.sm);
    let optin = config.shared_per_block_optin.unwrap_or(chip.shared_per_block_optin);
    let since = |major: u32| i32::from(config.sm.0 >= major);
    let int = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    Some(match number {
        1 => int(THREADS_PER_BLOCK),
        2 => int(BLOCK[0]),
        3 => int(BLOCK[1]),
        4 => int(BLOCK[2]),
        5 => int(GRID[0]),
        6 => int(GRID[1]),
        7 => int(GRID[2]),
        8 => int(SHARED_PER_BLOCK),
        9 => 64 << 10,                     // constant memory
        10 => 32,                          // warp size
        11 => i32::MAX,                    // pitch
        12 => int(REGISTERS),              // registers per block
        13 => int(config.clock_khz),       // core clock
        14 => 512,                         // texture alignment
        15 => 1,                           // copies overlap kernels
        16 => int(config.multiprocessors), // multiprocessors
        17 => i32::from(config.launch_timeout.is_some()),
        18 => i32::from(config.integrated),
        19 => 1,            // can map host memory
        20 => 0,            // compute mode: default
        30 => 512,          // surface alignment
        31 => 1,            // concurrent kernels
        32 => 0,            // ECC
        33 | 34 => ordinal, // PCI bus and device
        36 => int(config.memory_clock_khz),
        37 => int(config.memory_bus_bits),
        38 => int(config.l2_bytes),
        39 => int(chip.warps * 32), // threads per multiprocessor
        40 => 2,                    // asynchronous engines
        41 => 1,                    // unified addressing
        75 => int(config.sm.0),
        76 => int(config.sm.1),
        78 => 1,      // stream priorities
        79 | 80 => 1, // global and local L1 caching
        81 => int(chip.shared_per_multiprocessor),
        82 => int(REGISTERS), // registers per multiprocessor
        86 => i32::from(config.host_native_atomics),
        87 => {
            if config.sm == (8, 0) || config.sm == (9, 0) || config.sm == (10, 0) {
                2
            } else {
                64
            }
        }
        90 => 1, // compute preemption
        91 => 0, // a registered host pointer is not its device pointer
        95 => 1, // cooperative launch
        97 => int(optin),
        99 => 1, // host memory can be registered
        106 => int(chip.blocks),
        108 => since(8) * int(config.l2_bytes / 4 * 3), // persisting L2
        109 => since(8) * (128 << 20),                  // access policy window
        111 => int(chip.reserved_shared),
        120 => 0, // clusters: one block each at most
        number if (1..=147).contains(&number) => 0,
        _ => return None,
    })
}
