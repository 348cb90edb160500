//! Streams: queues of work in order, each with a thread of its own while it has work, and the order between them; and
//! events, which are places in them.
//!
//! Every piece of work knows what it must wait for at the moment it is queued, and that is always earlier work, so the
//! queues cannot wait for each other in a circle. The legacy stream's order is such a dependency too: its work waits for
//! what blocking streams have queued, and theirs for what it has queued.

use super::context::{State, current};
use super::graph::{Capture, Point};
use super::launch::LOOK;
use super::{Code, Command, Context, Handle, Outcome, handles, lock};
use crate::checks::frontier::{Frontier, Position};
use crate::checks::order::Place;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

pub(crate) type StreamId = u64;

/// The default stream that blocking streams synchronise with.
pub(crate) const LEGACY: StreamId = 0;

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;
/// How long a worker without work stays: to start one takes longer than a short kernel.
const IDLE: Duration = Duration::from_millis(200);

/// What a `CUstream` names.
pub(crate) struct Stream {
    pub(crate) context: Arc<Context>,
    pub(crate) id: StreamId,
}

/// A place in a stream: one piece of work and everything before it.
#[derive(Clone, Default)]
pub(crate) struct Ticket {
    state: Arc<Progress>,
    /// What is ordered before whatever comes next.
    pub(crate) order: Arc<Frontier>,
}

#[derive(Default)]
struct Progress {
    /// The host, or work behind it that may begin, waits for it.
    asked: AtomicBool,
    /// When the stream was done with it.
    done: OnceLock<Instant>,
}

impl Ticket {
    pub(crate) fn is_done(&self) -> bool {
        self.state.done.get().is_some()
    }

    /// Has a device that holds work back begin with it, and with what is before it.
    pub(crate) fn ask(&self) {
        self.state.asked.store(true, Ordering::Release);
    }

    fn is_asked(&self) -> bool {
        self.state.asked.load(Ordering::Acquire)
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    non_blocking: bool,
    /// What is being done, then what is to be done.
    /// The program has destroyed the stream; what it did is still to be counted on.
    closed: bool,
    work: VecDeque<Arc<Queued>>,
    worker: Option<Thread>,
    /// Pieces of work so far.
    position: u64,
    /// The place of the last of them.
    pub(crate) last: Option<Ticket>,
    /// What is ordered before a programmatic launch that comes next, as long as it has not waited.
    early: Arc<Frontier>,
}

struct Queued {
    after: Vec<Ticket>,
    work: Command,
    place: Place,
    ticket: Ticket,
    /// Warp instructions that it has spent on polling in vain, see [`LOOK`].
    idle: AtomicU64,
}

impl Queued {
    fn is_ready(&self) -> bool {
        self.after.iter().all(Ticket::is_done)
    }
}

impl Queue {
    /// Whether the device has been given what comes first; `deferred`: only once somebody asks about it or what follows.
    fn is_submitted(&self, deferred: bool) -> bool {
        !deferred || self.work.iter().any(|queued| queued.ticket.is_asked())
    }

    /// Whether it cannot go on by itself: what comes first waits for others.
    pub(crate) fn is_stuck(&self, deferred: bool) -> bool {
        let waits = |first: &Arc<Queued>| !first.is_ready() || first.idle.load(Ordering::Acquire) >= LOOK;
        self.work.front().is_none_or(|first| waits(first) || !self.is_submitted(deferred))
    }
}

impl State {
    pub(crate) fn queue(&mut self, id: StreamId) -> Outcome<&mut Queue> {
        self.streams.get_mut(&id).filter(|queue| !queue.closed).ok_or(Code::INVALID_HANDLE)
    }

    /// The streams that stream `id` waits for without being told to.
    fn implicit(&self, id: StreamId) -> Vec<StreamId> {
        let blocking = |id: StreamId| self.streams.get(&id).is_some_and(|queue| !queue.non_blocking);
        match id {
            LEGACY => self.streams.keys().copied().filter(|&other| other != LEGACY && blocking(other)).collect(),
            _ if blocking(id) => vec![LEGACY],
            _ => vec![],
        }
    }

    /// The places of the last work of streams.
    fn ends(&self, streams: &[StreamId]) -> Vec<Ticket> {
        streams.iter().filter_map(|id| self.streams.get(id)?.last.clone()).collect()
    }
}

impl Stream {
    /// The stream that a handle names: null the current context's legacy stream.
    pub(crate) fn resolve(handle: Handle) -> Outcome<Arc<Stream>> {
        if handle == 0 { Ok(Arc::new(Stream { context: current()?, id: LEGACY })) } else { handles::get(handle) }
    }

    pub(crate) fn create(context: &Arc<Context>, flags: u32) -> Outcome<Stream> {
        if flags & !NON_BLOCKING != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = context.state();
        state.opened += 1;
        let id = state.opened;
        state.streams.insert(id, Queue { non_blocking: flags == NON_BLOCKING, ..Queue::default() });
        Ok(Stream { context: context.clone(), id })
    }

    /// Closes the stream: what is queued is still done.
    pub(crate) fn close(&self) {
        let mut state = self.context.state();
        if let Some(queue) = state.streams.get_mut(&self.id) {
            queue.closed = true;
            // Nobody can ask about the stream any more.
            queue.last.iter().for_each(Ticket::ask);
            queue.worker.iter().for_each(Thread::unpark);
        }
        self.context.forget_streams(&mut state);
    }

    /// What must be done before the stream counts as synchronised, which one that captures never does.
    pub(crate) fn pending(&self) -> Outcome<Vec<Ticket>> {
        let mut state = self.context.state();
        state.captures.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, |capture| capture.has(self.id))?;
        let mut streams = state.implicit(self.id);
        streams.push(self.id);
        Ok(state.ends(&streams))
    }

    /// Queues work behind `after`, or adds it to the graph that the stream captures. Returns its place, or `None` in a
    /// capture.
    pub(crate) fn enqueue(&self, work: Command, after: Option<Ticket>) -> Outcome<Option<Ticket>> {
        let (context, id) = (&self.context, self.id);
        let mut state = context.state();
        state.queue(id)?;
        if let Some(capture) = state.captures.of(id) {
            return capture.add(id, work).map(|()| None);
        }
        let others = state.implicit(id);
        // To wait for a blocking stream that captures would tie the capture to work outside it.
        let ties = |capture: &Capture| others.iter().any(|&other| capture.has(other));
        state.captures.refuse(Code::STREAM_CAPTURE_IMPLICIT, ties)?;
        let mut after: Vec<Ticket> = state.ends(&others).into_iter().chain(after).collect();
        let (settled, host) = context.memory.witness().host_knows();
        let queue = state.queue(id)?;
        if queue.worker.is_none() {
            let (worker, name) = (context.clone(), format!("emulated stream {}.{id}", context.device.ordinal));
            let started = thread::Builder::new().name(name).spawn(move || worker.serve(id));
            queue.worker = Some(started.map_err(|_| Code::OUT_OF_MEMORY)?.thread().clone());
        }
        let mut order = Frontier::clone(&settled);
        after.iter().for_each(|ticket| order.join(&ticket.order));
        let early = work.is_programmatic().then(|| {
            let mut early = order.clone();
            early.join(&queue.early);
            Arc::new(early)
        });
        queue.last.iter().for_each(|ticket| order.join(&ticket.order));
        after.retain(|ticket| !ticket.is_done());
        queue.position += 1;
        let position = Position { stream: (context.handle, id), number: queue.position, node: None };
        let before = Arc::new(order);
        let place = Place { position, before: before.clone(), early, settled, host };
        context.memory.witness().asked(&place);
        let ticket = Ticket { state: Arc::default(), order: Arc::new(place.after()) };
        // Only a kernel lets the next one begin before its end.
        queue.early = if work.is_launch() { before } else { ticket.order.clone() };
        queue.last = Some(ticket.clone());
        let queued = Arc::new(Queued { after, work, place, ticket: ticket.clone(), idle: AtomicU64::new(0) });
        queue.work.push_back(queued.clone());
        queue.worker.iter().for_each(Thread::unpark);
        context.interleave(&mut state, &queued.work, &queued.place);
        Ok(Some(ticket))
    }
}

impl Context {
    /// Forgets the closed streams whose work the host has waited for.
    pub(crate) fn forget_streams(&self, state: &mut State) {
        let witness = self.memory.witness();
        let known = |queue: &Queue| queue.last.iter().all(|last| witness.counts_on(&last.order));
        state.streams.retain(|_, queue| !(queue.closed && queue.work.is_empty() && known(queue)));
    }

    /// A stream's worker: does what is queued, in order, each when what it waits for is done.
    fn serve(self: Arc<Self>, id: StreamId) {
        let deferred = self.device.config.deferred_submission;
        let mut state = self.state();
        let mut waited = false;
        while let Some(queue) = state.streams.get_mut(&id) {
            let Some(next) = queue.work.front().cloned() else {
                if waited || queue.closed {
                    queue.worker = None;
                    return;
                }
                drop(state);
                let since = Instant::now();
                thread::park_timeout(IDLE);
                state = self.state();
                waited = since.elapsed() >= IDLE;
                continue;
            };
            waited = false;
            let submitted = queue.is_submitted(deferred);
            if !submitted || !next.is_ready() {
                if submitted {
                    next.after.iter().for_each(Ticket::ask);
                }
                // What it waits for may be another context's, which is not announced here.
                let woken = self.changed.wait_timeout(state, Duration::from_millis(2));
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            if state.sticky.is_none() {
                drop(state);
                // A panic in here must not leave the stream, and whoever waits for it, without an end.
                let outcome = catch_unwind(AssertUnwindSafe(|| next.work.run(&self, &next.place, &next.idle)));
                state = self.state();
                if let Err(code) = outcome.unwrap_or(Err(Code::UNKNOWN)) {
                    state.sticky.get_or_insert(code);
                }
            }
            state.streams.get_mut(&id).map(|queue| queue.work.pop_front());
            let _ = next.ticket.state.done.set(Instant::now());
            self.memory.witness().ended(&next.place);
            self.changed.notify_all();
        }
    }
}

/// A place in a stream that the program remembers.
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    timed: bool,
    recorded: Mutex<Recorded>,
}

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: u32 = 2;

#[derive(Clone, Default)]
enum Recorded {
    /// Never: as good as reached.
    #[default]
    Not,
    In(Ticket),
    Captured(Point),
}

impl Event {
    pub(crate) fn new(context: &Arc<Context>, flags: u32) -> Outcome<Event> {
        // 1: blocking synchronisation, which waiting here always is.
        if flags & !(1 | DISABLE_TIMING) != 0 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(Event { context: context.clone(), timed: flags & DISABLE_TIMING == 0, recorded: Mutex::default() })
    }

    /// Remembers the stream's present end.
    pub(crate) fn record(&self, stream: &Stream) -> Outcome {
        if self.context.handle != stream.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        let point = self.context.state().captures.point(stream.id);
        let recorded = match point {
            Some(point) => Some(Recorded::Captured(point)),
            None => stream.enqueue(Command::Nothing, None)?.map(Recorded::In),
        };
        *lock(&self.recorded) = recorded.unwrap_or_default();
        Ok(())
    }

    /// Makes later work of `stream` (of any context) wait for the event.
    pub(crate) fn hold(&self, stream: &Stream) -> Outcome {
        let mut state = stream.context.state();
        state.queue(stream.id)?;
        let recorded = lock(&self.recorded).clone();
        match recorded {
            Recorded::Not => Ok(()),
            Recorded::Captured(point) => state.captures.join(stream.id, &point),
            Recorded::In(ticket) => {
                state.captures.refuse(Code::STREAM_CAPTURE_ISOLATION, |capture| capture.has(stream.id))?;
                drop(state);
                stream.enqueue(Command::Nothing, Some(ticket)).map(drop)
            }
        }
    }

    /// The place that was recorded last, if any was; nothing if the context is lost.
    pub(crate) fn ticket(&self) -> Outcome<Option<Ticket>> {
        self.context.check()?;
        match &*lock(&self.recorded) {
            Recorded::Not => Ok(None),
            Recorded::In(ticket) => Ok(Some(ticket.clone())),
            Recorded::Captured(_) => Err(Code::CAPTURED_EVENT),
        }
    }

    /// Milliseconds from this event to `end`.
    pub(crate) fn elapsed(&self, end: &Event) -> Outcome<f32> {
        if !self.timed || !end.timed || self.context.handle != end.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        let reached = |event: &Event| {
            let ticket = event.ticket()?.ok_or(Code::INVALID_HANDLE)?;
            ticket.state.done.get().copied().ok_or(Code::NOT_READY)
        };
        let (from, to) = (reached(self)?, reached(end)?);
        Ok(to.saturating_duration_since(from).as_secs_f32() * 1e3)
    }
}
