//! Graphs: a command queued in a capturing stream becomes a node, and an instantiation replays the nodes.

use super::{Call, Code, Command, Context, Outcome, Stream, StreamId, Ticket, lock};
use crate::checks::frontier::{Frontier, Position};
use crate::checks::order::Place;
use crate::machine::config::Schedule;
use crate::machine::random::Random;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

/// A command, and the earlier nodes that it depends on.
pub(crate) struct Node {
    pub(crate) work: Command,
    after: Vec<usize>,
}

/// `CUstreamCaptureMode`: the threads whose unsafe calls a capture refuses: all (0), its own (1), none (2).
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

pub(crate) struct Capture {
    id: u64,
    origin: StreamId,
    thread: ThreadId,
    mode: u32,
    invalid: bool,
    nodes: Vec<Node>,
    /// The dependencies of the next node of each stream in the capture.
    tips: HashMap<StreamId, Vec<usize>>,
}

/// A place in a capture, remembered by an event.
#[derive(Clone)]
pub(crate) struct Point {
    capture: u64,
    tips: Vec<usize>,
}

#[derive(Default)]
pub(crate) struct Captures {
    begun: u64,
    active: Vec<Capture>,
}

impl Capture {
    pub(crate) fn has(&self, stream: StreamId) -> bool {
        self.tips.contains_key(&stream)
    }

    /// Appends a node to a stream's part of the capture.
    pub(crate) fn add(&mut self, stream: StreamId, work: Command) -> Outcome {
        if self.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let index = self.nodes.len();
        let after = self.tips.insert(stream, vec![index]).unwrap_or_default();
        self.nodes.push(Node { work, after });
        Ok(())
    }

    /// Whether every node precedes another node or the end of the stream that the capture began in.
    fn is_joined(&self) -> bool {
        let precedes = |index, later: &[Node]| later.iter().any(|node| node.after.contains(&index));
        let is_end = |index| self.tips.get(&self.origin).is_some_and(|tips| tips.contains(&index));
        (0..self.nodes.len()).all(|index| is_end(index) || precedes(index, &self.nodes[index + 1..]))
    }
}

impl Captures {
    pub(crate) fn begin(&mut self, origin: StreamId, mode: u32) -> Outcome {
        if mode > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        if self.of(origin).is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        self.begun += 1;
        let (thread, tips) = (std::thread::current().id(), HashMap::from([(origin, Vec::new())]));
        self.active.push(Capture { id: self.begun, origin, thread, mode, invalid: false, nodes: Vec::new(), tips });
        Ok(())
    }

    /// Ends the capture that began in `origin` and returns its nodes.
    pub(crate) fn end(&mut self, origin: StreamId) -> Outcome<Vec<Node>> {
        let index = self.active.iter().position(|capture| capture.has(origin)).ok_or(Code::ILLEGAL_STATE)?;
        let capture = &mut self.active[index];
        if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        if capture.origin != origin {
            capture.invalid = true;
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        let capture = self.active.remove(index);
        if capture.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if capture.is_joined() { Ok(capture.nodes) } else { Err(Code::STREAM_CAPTURE_UNJOINED) }
    }

    /// `CUstreamCaptureStatus` of a stream, and the number of its capture.
    pub(crate) fn status(&mut self, stream: StreamId) -> (u32, u64) {
        self.of(stream).map_or((0, 0), |capture| (if capture.invalid { 2 } else { 1 }, capture.id))
    }

    pub(crate) fn of(&mut self, stream: StreamId) -> Option<&mut Capture> {
        self.active.iter_mut().find(|capture| capture.has(stream))
    }

    pub(crate) fn point(&mut self, stream: StreamId) -> Option<Point> {
        let capture = self.of(stream)?;
        Some(Point { capture: capture.id, tips: capture.tips.get(&stream)?.clone() })
    }

    /// Makes the stream's next node depend on `point`. A stream outside joins the capture.
    pub(crate) fn join(&mut self, stream: StreamId, point: &Point) -> Outcome {
        if self.of(stream).is_some_and(|own| own.id != point.capture) {
            let either = |capture: &Capture| capture.id == point.capture || capture.has(stream);
            return self.refuse(Code::STREAM_CAPTURE_MERGE, either);
        }
        let capture = self.active.iter_mut().find(|capture| capture.id == point.capture);
        let tips = capture.ok_or(Code::CAPTURED_EVENT)?.tips.entry(stream).or_default();
        tips.extend(&point.tips);
        tips.sort_unstable();
        tips.dedup();
        Ok(())
    }

    /// Refuses a call if captures satisfy `which`, and invalidates these.
    pub(crate) fn refuse(&mut self, code: Code, which: impl Fn(&Capture) -> bool) -> Outcome {
        let mut outcome = Ok(());
        for capture in self.active.iter_mut().filter(|capture| which(capture)) {
            capture.invalid = true;
            outcome = Err(code);
        }
        outcome
    }

    /// Refuses a call that synchronises or allocates while the mode of a capture forbids it to this thread.
    pub(crate) fn refuse_unsafe(&mut self) -> Outcome {
        let thread = std::thread::current().id();
        self.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, |capture| {
            capture.mode == GLOBAL || capture.mode == THREAD_LOCAL && capture.thread == thread
        })
    }
}

/// A captured graph.
pub(crate) struct Graph {
    pub(crate) context: Arc<Context>,
    pub(crate) nodes: Vec<Node>,
}

/// An instantiated graph.
pub(crate) struct GraphExec {
    pub(crate) graph: Arc<Graph>,
    /// The last launch: launches of one instantiation never overlap.
    pub(crate) last: Mutex<Option<Ticket>>,
}

impl GraphExec {
    /// Checks `CUgraphInstantiate_flags`. Uploads and priorities change nothing here, and no graph allocates, so that none
    /// has memory to free at its launch (1).
    pub(crate) fn check_flags(flags: u64) -> Outcome {
        const AUTO_FREE: u64 = 1;
        const DEVICE_LAUNCH: u64 = 4;
        match flags {
            16.. => Err(Code::INVALID_VALUE),
            _ if flags & (AUTO_FREE | DEVICE_LAUNCH) == AUTO_FREE | DEVICE_LAUNCH => Err(Code::INVALID_VALUE),
            _ if flags & DEVICE_LAUNCH != 0 => Err(Code::NOT_SUPPORTED),
            _ => Ok(()),
        }
    }

    pub(crate) fn launch(&self, stream: &Stream) -> Outcome {
        if self.graph.context.handle != stream.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        // A graph launched into a capture would be a child node.
        if stream.context.state().captures.of(stream.id).is_some() {
            return Err(Code::NOT_SUPPORTED);
        }
        let mut last = lock(&self.last);
        *last = stream.submit(Call::Launch, Command::Graph(self.graph.clone()), last.clone())?;
        Ok(())
    }
}

impl Graph {
    /// The places of the nodes of a replay, each after its dependencies.
    fn places(&self, replay: &Place) -> Vec<Place> {
        let mut places: Vec<Place> = Vec::with_capacity(self.nodes.len());
        for (index, node) in self.nodes.iter().enumerate() {
            let (mut before, mut early) = (Frontier::clone(&replay.before), Frontier::clone(&replay.before));
            for &direct in &node.after {
                let (its, after) = (&places[direct], places[direct].after());
                before.join(&after);
                // Only a kernel lets the next one begin before its end: perhaps at once, when it waits for nothing yet
                // itself.
                early.join(if self.nodes[direct].work.is_launch() { its.begin() } else { &after });
            }
            let early = node.work.is_programmatic().then(|| Arc::new(early));
            let position = Position { node: Some(index), ..replay.position };
            let launches = node.after.iter().filter(|direct| self.nodes[**direct].work.is_launch());
            let behind = launches.map(|direct| places[*direct].trigger.clone()).collect();
            let (before, trigger) = (Arc::new(before), Arc::default());
            places.push(Place { position, before, early, trigger, behind, ..replay.clone() });
        }
        places
    }

    /// Executes the nodes in an order that the edges allow. Unfriendly schedules take another than the capture's, so
    /// that missing edges show.
    pub(crate) fn replay(&self, place: &Place, idle: &AtomicU64) -> Outcome {
        let config = &self.context.device.config;
        let mut random = Random::new(config.seed, 0);
        let places = self.places(place);
        let mut done = vec![false; self.nodes.len()];
        for _ in &self.nodes {
            let is_ready = |&node: &usize| !done[node] && self.nodes[node].after.iter().all(|&before| done[before]);
            let ready: Vec<usize> = (0..self.nodes.len()).filter(is_ready).collect();
            // The first node that is not done is always ready, since edges lead to later nodes only.
            let next = match config.schedule {
                Schedule::RoundRobin => ready[0],
                Schedule::Random => ready[random.below(ready.len())],
                Schedule::Adversarial => ready[ready.len() - 1],
            };
            done[next] = true;
            self.nodes[next].work.run(&self.context, &places[next], idle)?;
        }
        Ok(())
    }
}
