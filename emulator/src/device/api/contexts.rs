//! Primary contexts, contexts of the program's own, the stack of them, and what a program sets in one.
#![allow(non_snake_case)]

use super::super::Code;
use super::super::abi::{Handle, Outcome, Ptr, initialised};
use super::super::context::{self, Context};
use super::super::registry::device;
use super::in_context;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// `CU_CTX_FLAGS_MASK`
const FLAGS: u32 = 0xff;
/// `CU_CTX_SCHED_MASK`: one of these at most.
const SCHEDULING: u32 = 7;

fn check_flags(flags: u32) -> Outcome<u32> {
    let one = (flags & SCHEDULING).count_ones() <= 1;
    if flags & !FLAGS == 0 && one { Ok(flags) } else { Err(Code::INVALID_VALUE) }
}

/// `CU_LIMIT_MALLOC_HEAP_SIZE`: of the limits the only one that changes something here.
const HEAP: u32 = 2;

/// `CUlimit`: the value unless one was set.
fn default_limit(context: &Context, limit: u32) -> Outcome<usize> {
    match limit {
        0 => Ok(1 << 10), // stack of a thread
        1 => Ok(1 << 20), // printf
        HEAP => Ok(context.device.config.heap_bytes as usize),
        3 => Ok(2),    // depth of launches by the device
        4 => Ok(2048), // number of them
        5 => Ok(64),   // bytes that L2 fetches at once
        6 => Ok(0),    // persisting L2
        7.. => Err(Code::UNSUPPORTED_LIMIT),
    }
}

fn create(handle: Ptr<Handle>, flags: u32, ordinal: c_int) -> u32 {
    initialised(|| {
        let flags = check_flags(flags)?;
        handle.fill(|| {
            let handle = device(ordinal)?.create_context(flags);
            context::push_current(handle).map(|()| handle)
        })
    })
}

/// One of the preferences, `CUfunc_cache` (0) or `CUsharedconfig` (1), of which neither changes anything.
fn prefer(context: &Arc<Context>, which: usize, value: u32) -> Outcome {
    let most = [3, 2][which];
    if value > most {
        return Err(Code::INVALID_VALUE);
    }
    context.state().settings.preferences[which] = value;
    Ok(())
}

api! {
    fn cuDevicePrimaryCtxReset_v2(ordinal: c_int) => initialised(|| {
        device(ordinal)?.reset();
        Ok(())
    });

    fn cuDevicePrimaryCtxSetFlags_v2(ordinal: c_int, flags: c_uint) => initialised(|| {
        device(ordinal)?.set_primary_flags(check_flags(flags)?);
        Ok(())
    });

    fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: Ptr<c_uint>, active: Ptr<c_int>) => initialised(|| {
        let (set, is_active) = device(ordinal)?.primary_state();
        flags.set(0, set)?;
        active.set(0, is_active.into())
    });

    fn cuCtxCreate_v2(handle: Ptr<Handle>, flags: c_uint, ordinal: c_int) => create(handle, flags, ordinal);

    /// Affinities to multiprocessors are not there.
    fn cuCtxCreate_v3(handle: Ptr<Handle>, affinities: usize, count: c_int, flags: c_uint, ordinal: c_int) =>
        if affinities == 0 && count == 0 {
            create(handle, flags, ordinal)
        } else {
            Code::UNSUPPORTED_EXEC_AFFINITY.raw()
        };

    /// Parameters other than null ask for affinities or for graphics.
    fn cuCtxCreate_v4(handle: Ptr<Handle>, parameters: usize, flags: c_uint, ordinal: c_int) =>
        if parameters == 0 { create(handle, flags, ordinal) } else { Code::NOT_SUPPORTED.raw() };

    fn cuCtxDestroy_v2(handle: Handle) => initialised(|| {
        let context = Context::from_handle(handle).map_err(|_| Code::INVALID_CONTEXT)?;
        context.device.destroy_context(handle)?;
        if context::CURRENT.get() == handle { context::set_current(0) } else { Ok(()) }
    });

    fn cuCtxPushCurrent_v2(handle: Handle) => initialised(|| context::push_current(handle));

    /// Null is allowed where the context is not asked for.
    fn cuCtxPopCurrent_v2(handle: Ptr<Handle>) => initialised(|| {
        let popped = context::pop_current()?;
        if handle.is_null() { Ok(()) } else { handle.set(0, popped) }
    });

    fn cuCtxGetDevice(ordinal: Ptr<c_int>) =>
        initialised(|| ordinal.fill(|| Ok(context::current()?.device.ordinal)));

    fn cuCtxGetFlags(flags: Ptr<c_uint>) =>
        initialised(|| flags.fill(|| Ok(context::current()?.state().settings.flags)));

    fn cuCtxSetFlags(flags: c_uint) => initialised(|| {
        context::current()?.state().settings.flags = check_flags(flags)?;
        Ok(())
    });

    fn cuCtxGetId(handle: Handle, id: Ptr<u64>) => initialised(|| {
        let context = if handle == 0 { context::current() } else { Context::from_handle(handle) };
        id.fill(|| Ok(context.map_err(|_| Code::INVALID_CONTEXT)?.handle as u64))
    });

    fn cuCtxGetLimit(value: Ptr<usize>, limit: c_uint) => in_context(|context| {
        value.fill(|| match context.state().settings.limits.get(&limit) {
            Some(&set) => Ok(set),
            None => default_limit(context, limit),
        })
    });

    fn cuCtxSetLimit(limit: c_uint, value: usize) => in_context(|context| {
        default_limit(context, limit)?;
        if limit == HEAP && !context.memory.set_heap(value as u64) {
            return Err(Code::INVALID_VALUE);
        }
        context.state().settings.limits.insert(limit, value);
        Ok(())
    });

    fn cuCtxGetCacheConfig(preference: Ptr<c_uint>) =>
        in_context(|context| preference.fill(|| Ok(context.state().settings.preferences[0])));
    fn cuCtxSetCacheConfig(preference: c_uint) => in_context(|context| prefer(context, 0, preference));
    fn cuCtxGetSharedMemConfig(preference: Ptr<c_uint>) =>
        in_context(|context| preference.fill(|| Ok(context.state().settings.preferences[1])));
    fn cuCtxSetSharedMemConfig(preference: c_uint) => in_context(|context| prefer(context, 1, preference));

    fn cuCtxResetPersistingL2Cache() => in_context(|_| Ok(()));

    /// No stream goes before another.
    fn cuCtxGetStreamPriorityRange(least: Ptr<c_int>, greatest: Ptr<c_int>) => in_context(|_| {
        let write = |priority: Ptr<c_int>| if priority.is_null() { Ok(()) } else { priority.set(0, 0) };
        write(least).and_then(|()| write(greatest))
    });
}
