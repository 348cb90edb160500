//! Primary contexts and the thread's stack of current ones.

use std::ffi::{c_int, c_uint};

use crate::device::abi::{Handle, Out, in_context, initialised};
use crate::device::context;
use crate::device::registry::device;

pub(super) extern "C" fn cuDevicePrimaryCtxRetain(handle: Out<Handle>, ordinal: c_int) -> u32 {
    initialised(|| {
        let device = device(ordinal)?;
        handle.fill(|| Ok(device.retain()))
    })
}

pub(super) extern "C" fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) -> u32 {
    initialised(|| device(ordinal)?.release())
}

pub(super) extern "C" fn cuDevicePrimaryCtxReset_v2(ordinal: c_int) -> u32 {
    initialised(|| {
        device(ordinal)?.reset();
        Ok(())
    })
}

pub(super) extern "C" fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: Out<c_uint>, active: Out<c_int>) -> u32 {
    initialised(|| {
        let device = device(ordinal)?;
        flags.fill(|| Ok(0))?;
        active.fill(|| Ok(c_int::from(device.is_active())))
    })
}

pub(super) extern "C" fn cuCtxSetCurrent(handle: Handle) -> u32 {
    initialised(|| {
        if handle == context::current_handle() {
            return Ok(());
        }
        if handle == 0 {
            return context::pop().map(drop);
        }
        // Replaces the top, and only if the new one is valid.
        let old = (context::current_handle() != 0).then(context::pop).transpose()?;
        context::push(handle).inspect_err(|_| {
            if let Some(old) = old {
                let _ = context::push(old);
            }
        })
    })
}

pub(super) extern "C" fn cuCtxGetCurrent(handle: Out<Handle>) -> u32 {
    initialised(|| handle.fill(|| Ok(context::current_handle())))
}

pub(super) extern "C" fn cuCtxPushCurrent_v2(handle: Handle) -> u32 {
    initialised(|| context::push(handle))
}

pub(super) extern "C" fn cuCtxPopCurrent_v2(handle: Out<Handle>) -> u32 {
    initialised(|| {
        let popped = context::pop()?;
        handle.offer(popped);
        Ok(())
    })
}

pub(super) extern "C" fn cuCtxSynchronize() -> u32 {
    in_context(|context| {
        context.state().captures.refuse_any()?;
        context.wait_for_all("cuCtxSynchronize")
    })
}

pub(super) extern "C" fn cuCtxGetDevice(ordinal: Out<c_int>) -> u32 {
    initialised(|| {
        let context = context::current()?;
        ordinal.fill(|| Ok(context.device.ordinal))
    })
}

pub(super) extern "C" fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> u32 {
    in_context(|_| {
        least.offer(0);
        greatest.offer(super::stream::GREATEST_PRIORITY);
        Ok(())
    })
}
