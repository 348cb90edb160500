//! Graphs: a stream's work recorded once and enqueued again by one call.

use std::sync::Arc;

use super::context::Context;
use super::stream::Stream;
use super::sys;
use crate::{Error, Result};

/// Work that was recorded instead of run.
pub struct Graph {
    context: Arc<Context>,
    raw: sys::CUgraph,
}

// SAFETY: a graph has one owner, and is changed by nobody.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Graph {
    /// Records what `work` enqueues on the stream, from this thread only; none of it runs.
    ///
    /// Work that would wait for another stream is refused: synchronise its buffers first. So are waiting and allocating.
    ///
    /// [`cuStreamBeginCapture`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    pub fn capture(stream: &Stream, work: impl FnOnce(&Stream) -> Result<()>) -> Result<Graph> {
        let context = stream.inner.context.clone();
        context.bind()?;
        if stream.inner.set_capturing(true) {
            return Err(Error::InvalidArgument {
                what: "stream to capture".to_owned(),
                found: "one that is being captured".to_owned(),
                expected: "one that runs".to_owned(),
            });
        }
        let mut capture = Capture { stream, open: false };
        // SAFETY: the stream is live.
        unsafe { context.driver.api().stream_begin_capture(stream.raw(), sys::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)? };
        capture.open = true;
        let outcome = work(stream);
        let graph = capture.end();
        match (outcome, graph) {
            (Ok(()), Ok(raw)) => Ok(Graph { context, raw }),
            (Err(error), graph) => {
                // What was recorded up to the error is thrown away.
                drop(graph.map(|raw| Graph { context, raw }));
                Err(error)
            }
            (Ok(()), Err(error)) => Err(error),
        }
    }

    /// Makes it executable. May allocate and wait.
    ///
    /// [`cuGraphInstantiateWithFlags`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html).
    pub fn instantiate(&self) -> Result<GraphExec> {
        let _quiet = self.context.quiesce()?;
        // SAFETY: the graph is live.
        let raw = unsafe { self.context.driver.api().graph_instantiate(self.raw, 0)? };
        Ok(GraphExec { context: self.context.clone(), raw })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.raw.is_null() && self.context.bind().is_ok() {
            // SAFETY: the only owner.
            let _ = unsafe { self.context.driver.api().graph_destroy(self.raw) };
        }
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("raw", &self.raw).finish_non_exhaustive()
    }
}

/// A capture that is ended on every way out, a panic of the recorded closure included.
struct Capture<'a> {
    stream: &'a Stream,
    open: bool,
}

impl Capture<'_> {
    fn end(mut self) -> Result<sys::CUgraph> {
        // SAFETY: the stream is live, and this thread began its capture.
        let ended = unsafe { self.stream.inner.context.driver.api().stream_end_capture(self.stream.raw()) };
        // Where it failed the stream may still be captured: the drop ends that, or finds that it has ended.
        self.open = ended.is_err();
        ended
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.open {
            let context = self.stream.inner.context.clone();
            // SAFETY: as in `end`.
            let raw = unsafe { context.driver.api().stream_end_capture(self.stream.raw()) };
            drop(raw.map(|raw| Graph { context, raw }));
        }
        self.stream.inner.set_capturing(false);
    }
}

/// A graph that can be enqueued.
pub struct GraphExec {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

// SAFETY: the driver serialises launches of one executable graph.
unsafe impl Send for GraphExec {}
// SAFETY: as above.
unsafe impl Sync for GraphExec {}

impl GraphExec {
    /// Enqueues the recorded work.
    ///
    /// [`cuGraphLaunch`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html).
    ///
    /// # Safety
    /// The modules and buffers that the recorded work uses are alive, and used by nobody else until it is done: name
    /// the buffers in a [`Stream::enqueue`] around this call. While an earlier launch runs, this call is not itself
    /// captured.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        self.context.check_same(&stream.inner.context, "stream")?;
        self.context.bind()?;
        // SAFETY: handles are live; the rest is the caller's contract.
        unsafe { self.context.driver.api().graph_launch(self.raw, stream.raw()) }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        if let Ok(_quiet) = self.context.quiesce() {
            // SAFETY: the only owner; the driver lets launches that are under way finish.
            let _ = unsafe { self.context.driver.api().graph_exec_destroy(self.raw) };
        }
    }
}

impl std::fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphExec").field("raw", &self.raw).finish_non_exhaustive()
    }
}
