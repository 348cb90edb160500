//! Streams.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::device::abi::{Handle, Out, Outcome, in_context, initialised};
use crate::device::codes::Code;
use crate::device::context::Context;
use crate::device::handles;
use crate::device::stream::{self, StreamId, Ticket};

/// Priorities go from 0, the least, to this; lower numbers come first on a GPU.
pub(super) const GREATEST_PRIORITY: c_int = -5;

/// A call on a stream, in that stream's context.
pub(super) fn on_stream(handle: Handle, body: impl FnOnce(&Arc<Context>, StreamId) -> Outcome) -> u32 {
    initialised(|| {
        let (context, id) = stream::resolve(handle)?;
        context.check()?;
        body(&context, id)
    })
}

/// What must be done before the stream counts as synchronised.
fn pending(context: &Context, id: StreamId) -> Outcome<Vec<Ticket>> {
    let mut state = context.state();
    state.captures.refuse(id, Code::STREAM_CAPTURE_UNSUPPORTED)?;
    Ok(state.pending(id))
}

api! {
    fn cuStreamCreate(handle: Out<Handle>, flags: c_uint) =>
        in_context(|context| handle.fill(|| context.create_stream(flags, 0)));
    fn cuStreamCreateWithPriority(handle: Out<Handle>, flags: c_uint, priority: c_int) =>
        in_context(|context| handle.fill(|| context.create_stream(flags, priority.clamp(GREATEST_PRIORITY, 0))));

    fn cuStreamDestroy_v2(handle: Handle) => initialised(|| {
        let (context, id) = handles::stream(handle)?;
        handles::remove(handle);
        context.close_stream(id);
        context.check()
    });

    fn cuStreamSynchronize(handle: Handle) => on_stream(handle, |context, id| {
        let pending = pending(context, id)?;
        context.wait("cuStreamSynchronize", &pending)
    });

    fn cuStreamQuery(handle: Handle) => on_stream(handle, |context, id| {
        let pending = pending(context, id)?;
        if context.is_over(&pending) { Ok(()) } else { Err(Code::NOT_READY) }
    });

    fn cuStreamWaitEvent(handle: Handle, event: Handle, flags: c_uint) => on_stream(handle, |context, id| {
        // 1: an external event in a capture, which graphs here do not have.
        if flags != 0 {
            return Err(if flags == 1 { Code::NOT_SUPPORTED } else { Code::INVALID_VALUE });
        }
        handles::event(event)?.hold(context, id)
    });

    fn cuStreamGetPriority(handle: Handle, priority: Out<c_int>) =>
        on_stream(handle, |context, id| priority.fill(|| context.state().stream(id).map(|stream| stream.priority)));
    fn cuStreamGetFlags(handle: Handle, flags: Out<c_uint>) =>
        on_stream(handle, |context, id| flags.fill(|| context.state().stream(id).map(|stream| stream.flags)));
}
