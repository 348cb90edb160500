//! Stream capture: work queued in a capturing stream becomes a node of a graph instead.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::thread::ThreadId;

use super::abi::Outcome;
use super::codes::Code;
use super::stream::StreamId;
use super::work::Work;

/// A piece of work and the nodes it comes after, always earlier ones.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
}

/// `CUstreamCaptureMode`: whose calls are held back from what a capture cannot express.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    pub(crate) fn new(number: u32) -> Outcome<Mode> {
        Ok(match number {
            0 => Mode::Global,
            1 => Mode::ThreadLocal,
            2 => Mode::Relaxed,
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}

/// One capture under way.
pub(crate) struct Capture {
    origin: StreamId,
    thread: ThreadId,
    mode: Mode,
    invalid: bool,
    nodes: Vec<Node>,
    /// For each stream in the capture, the nodes that its next work comes after.
    tips: HashMap<StreamId, Vec<usize>>,
}

/// A place in a capture, as an event recorded in it remembers.
#[derive(Clone)]
pub(crate) struct Point {
    capture: u64,
    tips: Vec<usize>,
}

/// The captures of a context.
#[derive(Default)]
pub(crate) struct Captures {
    next: u64,
    active: BTreeMap<u64, Capture>,
}

impl Capture {
    /// Adds a node at the end of a stream's part.
    pub(crate) fn add(&mut self, stream: StreamId, work: Work) {
        let after = self.tips.get(&stream).cloned().unwrap_or_default();
        self.nodes.push(Node { work, after });
        self.tips.insert(stream, vec![self.nodes.len() - 1]);
    }

    /// Whether every node is before the end of the stream that the capture began in.
    fn is_joined(&self) -> bool {
        let mut reached = HashSet::new();
        let mut open = self.tips.get(&self.origin).cloned().unwrap_or_default();
        while let Some(node) = open.pop() {
            if reached.insert(node) {
                open.extend(self.nodes.get(node).into_iter().flat_map(|node| &node.after));
            }
        }
        reached.len() == self.nodes.len()
    }
}

impl Captures {
    pub(crate) fn begin(&mut self, origin: StreamId, mode: Mode) -> Outcome {
        if self.id_of(origin).is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        self.next += 1;
        self.active.insert(
            self.next,
            Capture {
                origin,
                thread: std::thread::current().id(),
                mode,
                invalid: false,
                nodes: Vec::new(),
                tips: HashMap::from([(origin, Vec::new())]),
            },
        );
        Ok(())
    }

    /// Ends the capture that began in `origin` and returns its nodes.
    pub(crate) fn end(&mut self, origin: StreamId) -> Outcome<Vec<Node>> {
        let id = self.id_of(origin).ok_or(Code::ILLEGAL_STATE)?;
        let capture = self.active.get_mut(&id).ok_or(Code::ILLEGAL_STATE)?;
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        if capture.origin != origin {
            capture.invalid = true;
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        let capture = self.active.remove(&id).ok_or(Code::ILLEGAL_STATE)?;
        if capture.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if !capture.is_joined() {
            return Err(Code::STREAM_CAPTURE_UNJOINED);
        }
        Ok(capture.nodes)
    }

    /// 0 not capturing, 1 capturing, 2 capture invalidated.
    pub(crate) fn status(&self, stream: StreamId) -> i32 {
        self.id_of(stream).and_then(|id| self.active.get(&id)).map_or(0, |capture| if capture.invalid { 2 } else { 1 })
    }

    fn id_of(&self, stream: StreamId) -> Option<u64> {
        self.active.iter().find(|(_, capture)| capture.tips.contains_key(&stream)).map(|(&id, _)| id)
    }

    /// The capture that the stream takes part in.
    pub(crate) fn of_stream(&mut self, stream: StreamId) -> Outcome<Option<&mut Capture>> {
        let Some(id) = self.id_of(stream) else { return Ok(None) };
        match self.active.get_mut(&id) {
            Some(capture) if capture.invalid => Err(Code::STREAM_CAPTURE_INVALIDATED),
            capture => Ok(capture),
        }
    }

    /// Where the stream stands in its capture.
    pub(crate) fn point(&self, stream: StreamId) -> Option<Point> {
        let capture = self.id_of(stream)?;
        Some(Point { capture, tips: self.active.get(&capture)?.tips.get(&stream)?.clone() })
    }

    /// Makes the stream's next work come after `point`; a stream outside joins the capture.
    pub(crate) fn join(&mut self, stream: StreamId, point: &Point) -> Outcome {
        if let Some(own) = self.id_of(stream).filter(|&own| own != point.capture) {
            for id in [own, point.capture] {
                if let Some(capture) = self.active.get_mut(&id) {
                    capture.invalid = true;
                }
            }
            return Err(Code::STREAM_CAPTURE_MERGE);
        }
        let capture = self.active.get_mut(&point.capture).ok_or(Code::CAPTURED_EVENT)?;
        let tips = capture.tips.entry(stream).or_default();
        tips.extend(&point.tips);
        tips.sort_unstable();
        tips.dedup();
        Ok(())
    }

    /// Refuses an operation on a stream that captures, and invalidates the capture.
    pub(crate) fn refuse(&mut self, stream: StreamId, code: Code) -> Outcome {
        let Some(capture) = self.id_of(stream).and_then(|id| self.active.get_mut(&id)) else { return Ok(()) };
        capture.invalid = true;
        Err(code)
    }

    /// Refuses work in the legacy stream while one of `blocking` captures, and invalidates the capture.
    pub(crate) fn refuse_implicit(&mut self, blocking: &[StreamId]) -> Outcome {
        for &stream in blocking {
            self.refuse(stream, Code::STREAM_CAPTURE_IMPLICIT)?;
        }
        Ok(())
    }

    /// Refuses calls that synchronise or allocate while a capture's mode holds this thread back from them.
    pub(crate) fn refuse_unsafe(&mut self) -> Outcome {
        let thread = std::thread::current().id();
        let mut refused = Ok(());
        for capture in self.active.values_mut() {
            if capture.mode == Mode::Global || capture.mode == Mode::ThreadLocal && capture.thread == thread {
                capture.invalid = true;
                refused = Err(Code::STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        refused
    }

    /// Refuses a call that would wait for every stream.
    pub(crate) fn refuse_any(&mut self) -> Outcome {
        for capture in self.active.values_mut() {
            capture.invalid = true;
        }
        if self.active.is_empty() { Ok(()) } else { Err(Code::STREAM_CAPTURE_UNSUPPORTED) }
    }
}
