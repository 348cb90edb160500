//! What a program asks about streams and captures, and further forms of events and graphs.
#![allow(non_snake_case)]

use super::super::abi::{Handle, Outcome, Ptr, initialised};
use super::super::graph::{Graph, GraphExec};
use super::super::stream::{Event, Stream};
use super::super::{Code, Leak, handles};
use super::{in_context, on_stream};
use std::ffi::{c_int, c_uint};

/// `CUstreamCaptureStatus` and the capture's number. The graph and its nodes are not there before the capture's end.
fn capture_info(stream: Handle, status: Ptr<c_uint>, id: Ptr<u64>, others: &[usize]) -> u32 {
    on_stream(stream, |stream| {
        let (state, number) = stream.context.state().captures.status(stream.id);
        if state != 0 && others.iter().any(|&other| other != 0) {
            return Err(Code::NOT_SUPPORTED);
        }
        status.set(0, state)?;
        if state == 1 && !id.is_null() { id.set(0, number) } else { Ok(()) }
    })
}

/// What a stream tells, through a pointer.
fn told<T: Copy>(stream: Handle, value: Ptr<T>, tell: impl FnOnce(&Stream) -> Outcome<T>) -> u32 {
    on_stream(stream, |stream| value.fill(|| tell(stream)))
}

api! {
    /// No stream goes before another: a priority is clamped to the only one.
    fn cuStreamCreateWithPriority(handle: Ptr<Handle>, flags: c_uint, _priority: c_int) => in_context(|context| {
        handle.fill(|| Ok(handles::insert(context.handle, Some(Leak::Stream), Stream::create(context, flags)?)))
    });

    fn cuStreamGetPriority(stream: Handle, priority: Ptr<c_int>) => told(stream, priority, |_| Ok(0));
    fn cuStreamGetFlags(stream: Handle, flags: Ptr<c_uint>) => told(stream, flags, Stream::flags);
    fn cuStreamGetCtx(stream: Handle, context: Ptr<Handle>) => told(stream, context, |stream| Ok(stream.context.handle));
    fn cuStreamGetId(stream: Handle, id: Ptr<u64>) => told(stream, id, |stream| Ok(stream.id));
    fn cuStreamGetDevice(stream: Handle, ordinal: Ptr<c_int>) =>
        told(stream, ordinal, |stream| Ok(stream.context.device.ordinal));

    fn cuStreamIsCapturing(stream: Handle, status: Ptr<c_uint>) =>
        told(stream, status, |stream| Ok(stream.context.state().captures.status(stream.id).0));
    fn cuStreamGetCaptureInfo(stream: Handle, status: Ptr<c_uint>, id: Ptr<u64>) =>
        capture_info(stream, status, id, &[]);
    fn cuStreamGetCaptureInfo_v2(
        stream: Handle, status: Ptr<c_uint>, id: Ptr<u64>, graph: usize, nodes: usize, count: usize
    ) => capture_info(stream, status, id, &[graph, nodes, count]);
    fn cuStreamGetCaptureInfo_v3(
        stream: Handle, status: Ptr<c_uint>, id: Ptr<u64>, graph: usize, nodes: usize, edges: usize, count: usize
    ) => capture_info(stream, status, id, &[graph, nodes, edges, count]);

    /// Flags (1: an event from outside a capture) are not there.
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) => on_stream(stream, |stream| match flags {
        0 => handles::get::<Event>(event)?.record(stream),
        1 => Err(Code::NOT_SUPPORTED),
        2.. => Err(Code::INVALID_VALUE),
    });

    fn cuEventElapsedTime_v2(milliseconds: Ptr<f32>, start: Handle, end: Handle) => initialised(|| {
        milliseconds.fill(|| handles::get::<Event>(start)?.elapsed(&*handles::get::<Event>(end)?))
    });

    /// Graphs lie where they run.
    fn cuGraphUpload(exec: Handle, stream: Handle) =>
        on_stream(stream, |_| handles::get::<GraphExec>(exec).map(drop));

    /// Their number only: nodes have no handles.
    fn cuGraphGetNodes(graph: Handle, nodes: usize, count: Ptr<usize>) => in_context(|_| {
        let graph = handles::get::<Graph>(graph)?;
        if nodes == 0 { count.set(0, graph.nodes.len()) } else { Err(Code::NOT_SUPPORTED) }
    });
}
