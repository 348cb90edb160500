//! Modules without a log, what a function prefers, and occupancy.
#![allow(non_snake_case)]

use super::super::abi::{Handle, Outcome, Ptr, initialised};
use super::super::context::Context;
use super::super::module::{Function, LoadedModule};
use super::super::{Code, handles};
use super::in_context;
use std::ffi::{OsStr, c_int, c_uint};
use std::sync::Arc;

/// `CUoccupancyB2DSize`: bytes of dynamic shared memory of a block of so many threads.
type DynamicShared = extern "C" fn(c_int) -> usize;

/// Loads text. What a log would have said is the device's last fault.
fn load(context: &Arc<Context>, image: &[u8]) -> Outcome<Handle> {
    LoadedModule::load(context, image).map_err(|(code, log)| {
        if !log.is_empty() {
            context.device.refuse("a module", log);
        }
        code
    })
}

/// Blocks of a function that fit on a multiprocessor.
fn blocks(function: &Function, threads: u32, dynamic_shared: usize) -> u32 {
    let shared = u32::try_from(dynamic_shared).unwrap_or(u32::MAX);
    function.info.occupancy(&function.module.context.device.config, threads, shared)
}

/// `CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE` is the only flag, for chips older than any here.
fn check_flags(flags: u32) -> Outcome {
    if flags > 1 { Err(Code::INVALID_VALUE) } else { Ok(()) }
}

/// The block with which most threads are resident, the largest of these, and the grid that fills the device.
fn best_block(function: &Function, shared: Option<DynamicShared>, fixed: usize, limit: c_int) -> Outcome<(u32, u32)> {
    let most = function.info.max_threads();
    let most = if limit > 0 { most.min(limit as u32) } else { most };
    let candidates = (1..=most / 32).map(|warps| warps * 32).chain((most < 32).then_some(most));
    let resident = candidates.map(|threads| {
        let dynamic = shared.map_or(fixed, |shared| shared(threads as c_int));
        let blocks = blocks(function, threads, dynamic);
        (blocks * threads, threads, blocks)
    });
    let (_, threads, blocks) = resident.max().filter(|best| best.0 > 0).ok_or(Code::INVALID_VALUE)?;
    Ok((blocks * function.module.context.device.config.multiprocessors, threads))
}

fn potential(
    grid: Ptr<c_int>,
    block: Ptr<c_int>,
    function: Handle,
    shared: Option<DynamicShared>,
    fixed: usize,
    limit: c_int,
) -> u32 {
    in_context(|_| {
        let (blocks, threads) = best_block(&*handles::get::<Function>(function)?, shared, fixed, limit)?;
        grid.set(0, blocks as c_int)?;
        block.set(0, threads as c_int)
    })
}

api! {
    fn cuModuleLoadData(handle: Ptr<Handle>, image: Ptr<u8>) => in_context(|context| {
        let image = image.text()?.to_bytes();
        handle.fill(|| load(context, image))
    });

    fn cuModuleLoad(handle: Ptr<Handle>, path: Ptr<u8>) => in_context(|context| {
        // SAFETY: the bytes of a path come from the program's own encoding, and are only given back to the system.
        let path = unsafe { OsStr::from_encoded_bytes_unchecked(path.text()?.to_bytes()) };
        let mut image = std::fs::read(path).map_err(|_| Code::FILE_NOT_FOUND)?;
        let length = image.iter().position(|&byte| byte == 0).unwrap_or(image.len());
        image.truncate(length);
        handle.fill(|| load(context, &image))
    });

    /// All is loaded eagerly.
    fn cuModuleGetLoadingMode(mode: Ptr<c_uint>) => initialised(|| mode.set(0, 1));

    fn cuModuleGetFunctionCount(count: Ptr<c_uint>, module: Handle) =>
        in_context(|_| count.fill(|| Ok(handles::get::<LoadedModule>(module)?.module.kernel_names().count() as u32)));

    fn cuFuncIsLoaded(state: Ptr<c_uint>, function: Handle) =>
        in_context(|_| state.fill(|| handles::get::<Function>(function).map(|_| 1)));
    fn cuFuncSetCacheConfig(function: Handle, _preference: c_uint) =>
        in_context(|_| handles::get::<Function>(function).map(drop));
    fn cuFuncSetSharedMemConfig(function: Handle, _preference: c_uint) =>
        in_context(|_| handles::get::<Function>(function).map(drop));

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: Ptr<c_int>, function: Handle, block_size: c_int, dynamic_shared: usize, flags: c_uint
    ) => in_context(|_| {
        check_flags(flags)?;
        let threads = u32::try_from(block_size).ok().filter(|&threads| threads > 0).ok_or(Code::INVALID_VALUE)?;
        count.fill(|| Ok(blocks(&*handles::get::<Function>(function)?, threads, dynamic_shared) as c_int))
    });

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Ptr<c_int>, block: Ptr<c_int>, function: Handle, shared: Option<DynamicShared>, fixed: usize,
        limit: c_int
    ) => potential(grid, block, function, shared, fixed, limit);

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Ptr<c_int>, block: Ptr<c_int>, function: Handle, shared: Option<DynamicShared>, fixed: usize,
        limit: c_int, flags: c_uint
    ) => if flags > 1 {
        Code::INVALID_VALUE.raw()
    } else {
        potential(grid, block, function, shared, fixed, limit)
    };

    /// The most dynamic shared memory with which so many blocks fit.
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Ptr<usize>, function: Handle, count: c_int, block_size: c_int
    ) => in_context(|_| {
        let function = handles::get::<Function>(function)?;
        let (count, threads) = (u32::try_from(count), u32::try_from(block_size));
        let (Ok(count), Ok(threads)) = (count, threads) else { return Err(Code::INVALID_VALUE) };
        let fits = |shared: usize| blocks(&function, threads, shared) >= count;
        if count == 0 || !fits(0) {
            return Err(Code::INVALID_VALUE);
        }
        let limit = function.module.context.device.config.shared_limit() as usize;
        let (mut least, mut beyond) = (0, limit + 1);
        while beyond - least > 1 {
            let middle = least.midpoint(beyond);
            if fits(middle) { least = middle } else { beyond = middle }
        }
        bytes.set(0, least)
    });
}
