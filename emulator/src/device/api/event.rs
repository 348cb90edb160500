//! Events.

use std::ffi::c_uint;
use std::sync::Arc;

use crate::device::abi::{Handle, Out, Outcome, in_context, initialised};
use crate::device::codes::Code;
use crate::device::event::Event;
use crate::device::handles::{self, Object};

use super::stream::on_stream;

/// A call on an event, in that event's context.
fn on_event(handle: Handle, body: impl FnOnce(&Event) -> Outcome) -> u32 {
    initialised(|| {
        let event = handles::event(handle)?;
        event.context.check()?;
        body(&event)
    })
}

api! {
    fn cuEventCreate(handle: Out<Handle>, flags: c_uint) =>
        in_context(|context| handle.fill(|| Ok(handles::insert(Object::Event(Arc::new(Event::new(context, flags)?))))));

    fn cuEventRecord(handle: Handle, stream: Handle) => on_stream(stream, |context, id| {
        let event = handles::event(handle)?;
        if event.context.handle != context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        event.record(id)
    });

    fn cuEventQuery(handle: Handle) => on_event(handle, Event::query);
    fn cuEventSynchronize(handle: Handle) => on_event(handle, Event::synchronise);

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) => on_event(start, |start| {
        let end = handles::event(end)?;
        milliseconds.fill(|| start.elapsed(&end))
    });

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) =>
        cuEventElapsedTime(milliseconds, start, end);

    fn cuEventDestroy_v2(handle: Handle) => initialised(|| {
        let event = handles::event(handle)?;
        handles::remove(handle);
        event.context.check()
    });
}
