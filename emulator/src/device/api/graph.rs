//! Stream capture and graphs.

use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Mutex};

use crate::device::abi::{Handle, In, Out, Slots, in_context, initialised};
use crate::device::capture::Mode;
use crate::device::codes::Code;
use crate::device::config::Call;
use crate::device::graph::{Graph, GraphExec, GraphNode};
use crate::device::handles::{self, Object};
use crate::device::lock;
use crate::device::stream::LEGACY;

use super::launch::KernelNodeParams;
use super::stream::on_stream;

const _: () = assert!(size_of::<c_uint>() == 4);

api! {
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) => on_stream(stream, |context, id| {
        let mode = Mode::new(mode)?;
        if id == LEGACY {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut state = context.state();
        state.stream(id)?;
        state.captures.begin(id, mode)
    });

    fn cuStreamEndCapture(stream: Handle, handle: Out<Handle>) => on_stream(stream, |context, id| {
        let nodes = context.state().captures.end(id);
        match nodes {
            Ok(nodes) => handle.fill(|| {
                let graph = Graph { context: context.clone(), nodes, node_handles: Mutex::default() };
                Ok(handles::insert(Object::Graph(Arc::new(graph))))
            }),
            Err(code) => handle.fill(|| Ok(0)).and(Err(code)),
        }
    });

    fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) =>
        on_stream(stream, |context, id| status.fill(|| Ok(context.state().captures.status(id))));

    fn cuGraphInstantiateWithFlags(handle: Out<Handle>, graph: Handle, flags: u64) => in_context(|_| {
        // Free on launch (1), upload (2) and node priorities (8) change nothing here; launch from the device (4) does.
        if flags & !0xf != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if flags & 4 != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let graph = handles::graph(graph)?;
        handle.fill(|| Ok(handles::insert(Object::GraphExec(Arc::new(GraphExec::new(&graph))))))
    });

    fn cuGraphLaunch(exec: Handle, stream: Handle) => on_stream(stream, |context, id| {
        let exec = handles::graph_exec(exec)?;
        if exec.context.handle != context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        // A graph launched into a capture would be a child node.
        if context.state().captures.status(id) != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        context.device.injected(Call::Launch)?;
        exec.launch(id)
    });

    fn cuGraphExecDestroy(exec: Handle) => initialised(|| {
        let object = handles::graph_exec(exec)?;
        handles::remove(exec);
        object.context.check()
    });

    fn cuGraphDestroy(graph: Handle) => initialised(|| {
        let object = handles::graph(graph)?;
        for node in lock(&object.node_handles).drain(..) {
            handles::remove(node);
        }
        handles::remove(graph);
        object.context.check()
    });

    /// Nodes in the order of capture. `nodes` null: only their number.
    fn cuGraphGetNodes(graph: Handle, nodes: Slots, count: Out<usize>) => in_context(|_| {
        let graph = handles::graph(graph)?;
        let mut known = lock(&graph.node_handles);
        for index in known.len()..graph.nodes.len() {
            known.push(handles::insert(Object::GraphNode(Arc::new(GraphNode { graph: graph.clone(), index }))));
        }
        if nodes.is_null() {
            return count.fill(|| Ok(known.len()));
        }
        count.update(|room| {
            for index in 0..room {
                // Room beyond the last node is filled with null, as the driver does.
                nodes.set(index, known.get(index).copied().unwrap_or(0))?;
            }
            Ok(room.min(known.len()))
        })
    });

    fn cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, params: In<KernelNodeParams>) => in_context(|_| {
        let (exec, node) = (handles::graph_exec(exec)?, handles::graph_node(node)?);
        exec.set_kernel(&node, params.get()?.launch()?)
    });
}
