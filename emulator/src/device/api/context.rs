//! Primary contexts and the thread's stack of current ones.

use std::ffi::{c_int, c_uint};

use crate::device::abi::{Handle, Out, in_context, initialised};
use crate::device::context;
use crate::device::registry::device;

api! {
    fn cuDevicePrimaryCtxRetain(handle: Out<Handle>, ordinal: c_int) => initialised(|| {
        let device = device(ordinal)?;
        handle.fill(|| Ok(device.retain()))
    });

    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) => initialised(|| device(ordinal)?.release());

    fn cuDevicePrimaryCtxReset_v2(ordinal: c_int) => initialised(|| {
        device(ordinal)?.reset();
        Ok(())
    });

    fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: Out<c_uint>, active: Out<c_int>) => initialised(|| {
        let device = device(ordinal)?;
        flags.fill(|| Ok(0))?;
        active.fill(|| Ok(c_int::from(device.is_active())))
    });

    fn cuCtxSetCurrent(handle: Handle) => initialised(|| {
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
    });

    fn cuCtxGetCurrent(handle: Out<Handle>) => initialised(|| handle.fill(|| Ok(context::current_handle())));
    fn cuCtxPushCurrent_v2(handle: Handle) => initialised(|| context::push(handle));

    fn cuCtxPopCurrent_v2(handle: Out<Handle>) => initialised(|| {
        let popped = context::pop()?;
        handle.offer(popped);
        Ok(())
    });

    fn cuCtxSynchronize() => in_context(|context| {
        context.state().captures.refuse_any()?;
        context.wait_for_all("cuCtxSynchronize")
    });

    fn cuCtxGetDevice(ordinal: Out<c_int>) => initialised(|| {
        let context = context::current()?;
        ordinal.fill(|| Ok(context.device.ordinal))
    });

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) => in_context(|_| {
        least.offer(0);
        greatest.offer(super::stream::GREATEST_PRIORITY);
        Ok(())
    });
}
