//! The order of whole operations: launches, copies and fills, by streams, events, graphs and waits of the host.
//!
//! An operation follows another if stream order, an event, an edge of a graph or a wait of the host leads from one to
//! the other. That the other happened to be over does not count.

use super::clock::Vc;
use super::frontier::{Frontier, Position};
use super::record::HOST;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The position of a piece of work, and the work that the program has ordered before it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    pub(crate) position: Position,
    pub(crate) before: Arc<Frontier>,
    /// Work ordered before a programmatic launch even without its `griddepcontrol.wait`.
    pub(crate) early: Option<Arc<Frontier>>,
    /// Work that the host had waited for when it enqueued this.
    pub(crate) settled: Arc<Frontier>,
    /// Knowledge of the host at that time, if the race check includes it.
    pub(crate) host: Option<Arc<Vc>>,
    /// Whether this launch has let the next one begin before its own end.
    pub(crate) trigger: Arc<AtomicBool>,
    /// The same of the launches right before it.
    pub(crate) behind: Vec<Arc<AtomicBool>>,
}

impl Place {
    /// The work that is over when the first thread begins.
    pub(crate) fn begin(&self) -> &Arc<Frontier> {
        self.early.as_ref().unwrap_or(&self.before)
    }

    /// The frontier once this work is done.
    pub(crate) fn after(&self) -> Frontier {
        let mut after = Frontier::clone(&self.before);
        after.add(self.position);
        after
    }
}

/// A launch, copy or fill, or the host itself.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: u32,
    what: String,
    pub(crate) place: Place,
    done: AtomicBool,
    /// A thread of it has waited for the launches before it.
    waited: AtomicBool,
}

impl Operation {
    /// An operation that begins now.
    pub(crate) fn new(what: String, place: Place) -> Operation {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = (NEXT.fetch_add(1, Ordering::Relaxed) % (HOST - 1)) + 1;
        Operation { id, what, place, done: AtomicBool::new(false), waited: AtomicBool::new(false) }
    }

    /// The host as an operation, which none follows as a whole.
    pub(crate) fn host() -> Operation {
        let position = Position { stream: (usize::MAX, 0), ..Position::default() };
        let place = Place { position, ..Place::default() };
        Operation { id: HOST, ..Operation::new("the host".into(), place) }
    }

    pub(crate) fn is_host(&self) -> bool {
        self.id == HOST
    }

    /// Operations that happen before the start of every thread.
    pub(crate) fn over(&self) -> &Arc<Frontier> {
        self.place.begin()
    }

    /// Knowledge of a thread at its start: operations that are over, and the host's releases before the launch.
    pub(crate) fn first_knowledge(&self, block: u32, warps: u32) -> Vc {
        let mut vc = Vc::new((self.id, block), warps, self.over());
        self.place.host.iter().for_each(|host| vc.join(host));
        vc
    }

    /// Whether the program ordered `earlier` before this.
    pub(crate) fn follows(&self, earlier: &Operation) -> bool {
        self.id == earlier.id || self.place.before.holds(earlier.place.position)
    }

    /// Whether `earlier` happens before the next access of one of this operation's threads, given what is `over` for
    /// it.
    pub(crate) fn thread_follows(&self, earlier: &Operation, over: &Frontier) -> bool {
        self.id == earlier.id
            || over.holds(earlier.place.position)
            || self.follows(earlier) && !earlier.place.trigger.load(Ordering::Acquire)
    }

    /// Whether the host had waited for `earlier` when it asked for this.
    pub(crate) fn has_settled(&self, earlier: &Operation) -> bool {
        self.place.settled.holds(earlier.place.position)
    }

    /// The synchronisation that is missing between `earlier` and this, for reports.
    pub(crate) fn missing_after(&self, earlier: &Operation) -> &'static str {
        let (me, other) = (self.place.position, earlier.place.position);
        if earlier.is_host() {
            "the host must write before it asks for the launch, or release (sys scope) what this thread then acquires"
        } else if self.is_host() {
            "the host has neither waited for it nor acquired (sys scope) what it released"
        } else if self.follows(earlier) {
            "this thread may run before that kernel ends: a griddepcontrol.wait before this is missing"
        } else if me.node.is_some() && (me.stream, me.number) == (other.stream, other.number) {
            "a dependency between the two nodes of the graph is missing"
        } else {
            "stream order, an event between the streams, or a wait of the host between them is missing"
        }
    }

    /// `griddepcontrol.launch_dependents`
    pub(crate) fn trigger(&self) {
        self.place.trigger.store(true, Ordering::Release);
    }

    /// `griddepcontrol.wait`
    pub(crate) fn wait(&self) {
        self.waited.store(true, Ordering::Release);
    }

    /// Whether it may end before work that it follows: whoever waits for it would not have waited for that.
    pub(crate) fn may_end_early(&self) -> bool {
        let overlaps = || self.place.behind.iter().any(|trigger| trigger.load(Ordering::Acquire));
        !self.waited.load(Ordering::Acquire) && !self.place.begin().includes(&self.place.before) && overlaps()
    }

    pub(crate) fn finish(&self) {
        self.done.store(true, Ordering::Release);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let Position { stream: (context, stream), number, node } = self.place.position;
        if self.is_host() || context == 0 {
            return Ok(());
        }
        let node = node.map_or(String::new(), |node| format!("node {node} of the graph that is "));
        let stream = if stream == 0 { "the default stream".into() } else { format!("stream {stream}") };
        write!(f, " ({node}work {number} of {stream})")
    }
}
