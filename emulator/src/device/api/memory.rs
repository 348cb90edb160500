//! Memory, copies, fills.

use std::ffi::c_uint;

use crate::device::abi::{Handle, Out, Outcome, in_context, initialised};
use crate::device::codes::Code;
use crate::device::context::Context;
use crate::device::stream::{self, StreamId};
use std::sync::Arc;

/// An asynchronous call, in the context of its stream.
fn in_stream(handle: Handle, body: impl FnOnce(&Arc<Context>, Option<StreamId>) -> Outcome) -> u32 {
    initialised(|| {
        let (context, id) = stream::resolve(handle)?;
        context.check()?;
        body(&context, Some(id))
    })
}

/// A synchronous call, which goes through the legacy stream.
fn in_legacy(body: impl FnOnce(&Arc<Context>, Option<StreamId>) -> Outcome) -> u32 {
    in_context(|context| body(context, None))
}

/// A call that gives something back: done in a context with a sticky error too, which it then returns.
fn lenient(body: impl FnOnce(&Arc<Context>) -> Outcome) -> u32 {
    initialised(|| {
        let context = crate::device::context::current()?;
        if context.is_destroyed() {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        body(&context)?;
        context.check()
    })
}

api! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) => in_context(|context| {
        let limit = context.device.config.memory_bytes;
        free.fill(|| Ok(usize::try_from(limit.saturating_sub(context.memory.used())).unwrap_or(usize::MAX)))?;
        total.fill(|| Ok(usize::try_from(limit).unwrap_or(usize::MAX)))
    });

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) =>
        in_context(|context| address.fill(|| context.allocate(bytes as u64)));
    fn cuMemFree_v2(address: u64) => lenient(|context| context.free(address));
    fn cuMemHostAlloc(address: Out<usize>, bytes: usize, flags: c_uint) =>
        in_context(|context| address.fill(|| context.allocate_host(bytes, flags)));
    fn cuMemFreeHost(address: usize) => lenient(|context| context.free_host(address));

    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, host: usize, flags: c_uint) => in_context(|context| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        address.fill(|| context.device_pointer(host))
    });

    fn cuMemHostRegister_v2(address: usize, bytes: usize, flags: c_uint) =>
        in_context(|context| context.register_host(address, bytes, flags));
    fn cuMemHostUnregister(address: usize) => lenient(|context| context.unregister_host(address));
    fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: usize) =>
        in_legacy(|context, stream| context.copy_in(to, from, bytes, stream));
    fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: usize) =>
        in_legacy(|context, stream| context.copy_out(to, from, bytes, stream));
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) =>
        in_legacy(|context, stream| context.copy_device(to, from, bytes, stream));
    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: Handle) =>
        in_stream(stream, |context, stream| context.copy_in(to, from, bytes, stream));
    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: Handle) =>
        in_stream(stream, |context, stream| context.copy_out(to, from, bytes, stream));
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) =>
        in_stream(stream, |context, stream| context.copy_device(to, from, bytes, stream));
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) =>
        in_legacy(|context, stream| context.fill(to, value.into(), 1, count, stream));
    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) =>
        in_legacy(|context, stream| context.fill(to, value.into(), 2, count, stream));
    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) =>
        in_legacy(|context, stream| context.fill(to, value, 4, count, stream));
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) =>
        in_stream(stream, |context, stream| context.fill(to, value.into(), 1, count, stream));
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) =>
        in_stream(stream, |context, stream| context.fill(to, value.into(), 2, count, stream));
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) =>
        in_stream(stream, |context, stream| context.fill(to, value, 4, count, stream));
}
