//! Streams: queues of commands, each with a worker thread while it has work; the order between streams; and events,
//! which are places in streams.
//!
//! The dependencies of a command are known when it is queued and are always earlier commands, so queues cannot wait for
//! each other in a circle. The legacy stream is ordered so too: its commands wait for those that blocking streams have
//! queued before, and theirs for its own.

use super::context::{State, current};
use super::graph::{Capture, Point};
use super::launch::LOOK;
use super::{Code, Command, Context, Handle, Outcome, handles, lock};
use crate::checks::frontier::{Frontier, Position};
use crate::checks::order::Place;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

pub(crate) type StreamId = u64;

/// The default stream that blocking streams synchronise with.
pub(crate) const LEGACY: StreamId = 0;

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;
/// Time that a worker without work stays, since starting one takes longer than a short kernel.
const IDLE: Duration = Duration::from_millis(200);

/// A stream, as a `CUstream` names it.
pub(crate) struct Stream {
    pub(crate) context: Arc<Context>,
    pub(crate) id: StreamId,
}

/// A place in a stream: one command and everything before it.
#[derive(Clone, Default)]
pub(crate) struct Ticket {
    state: Arc<Progress>,
    /// The frontier of what happens before the next command.
    pub(crate) order: Arc<Frontier>,
}

#[derive(Default)]
struct Progress {
    /// Whether the host, or a command that may otherwise begin, waits for it.
    asked: AtomicBool,
    /// Time of its completion.
    done: OnceLock<Instant>,
}

impl Ticket {
    pub(crate) fn is_done(&self) -> bool {
        self.state.done.get().is_some()
    }

    /// Lets a device with deferred submission begin with it and everything before it.
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
    /// Whether the program has destroyed the stream. The host may still count on its work.
    closed: bool,
    /// The command being executed, then those to be executed.
    work: VecDeque<Arc<Queued>>,
    worker: Option<Thread>,
    /// Number of commands so far.
    position: u64,
    /// Place of the last command.
    pub(crate) last: Option<Ticket>,
    /// The work that happens before the next launch, if that is programmatic, until its wait.
    early: Arc<Frontier>,
    /// The trigger of the last command, if that is a launch.
    trigger: Option<Arc<AtomicBool>>,
}

struct Queued {
    after: Vec<Ticket>,
    work: Command,
    place: Place,
    ticket: Ticket,
    /// Warp instructions of polling in vain, see [`LOOK`].
    idle: AtomicU64,
}

impl Queued {
    fn is_ready(&self) -> bool {
        self.after.iter().all(Ticket::is_done)
    }
}

impl Queue {
    /// Whether the first command is submitted to the device. Under `deferred` submission that takes a question about it
    /// or a later one.
    fn is_submitted(&self, deferred: bool) -> bool {
        !deferred || self.work.iter().any(|queued| queued.ticket.is_asked())
    }

    /// Whether the first command waits for others, so that the queue cannot go on by itself.
    pub(crate) fn is_stuck(&self, deferred: bool) -> bool {
        let waits = |first: &Arc<Queued>| !first.is_ready() || first.idle.load(Ordering::Acquire) >= LOOK;
        self.work.front().is_none_or(|first| waits(first) || !self.is_submitted(deferred))
    }
}

impl State {
    pub(crate) fn queue(&mut self, id: StreamId) -> Outcome<&mut Queue> {
        self.streams.get_mut(&id).filter(|queue| !queue.closed).ok_or(Code::INVALID_HANDLE)
    }

    /// The streams that stream `id` waits for implicitly.
    fn implicit(&self, id: StreamId) -> Vec<StreamId> {
        let blocking = |id: StreamId| self.streams.get(&id).is_some_and(|queue| !queue.non_blocking);
        match id {
            LEGACY => self.streams.keys().copied().filter(|&other| other != LEGACY && blocking(other)).collect(),
            _ if blocking(id) => vec![LEGACY],
            _ => vec![],
        }
    }

    /// The places of the last commands of streams.
    fn ends(&self, streams: &[StreamId]) -> Vec<Ticket> {
        streams.iter().filter_map(|id| self.streams.get(id)?.last.clone()).collect()
    }
}

impl Stream {
    /// The stream that a handle names: 0 and `CU_STREAM_LEGACY` (1) the current context's legacy stream,
    /// `CU_STREAM_PER_THREAD` (2) the calling thread's own.
    pub(crate) fn resolve(handle: Handle) -> Outcome<Arc<Stream>> {
        match handle {
            0 | 1 => Ok(Arc::new(Stream { context: current()?, id: LEGACY })),
            2 => Stream::of_thread(current()?),
            _ => handles::get(handle),
        }
    }

    /// The stream of this thread in a context, made when it is first named.
    fn of_thread(context: Arc<Context>) -> Outcome<Arc<Stream>> {
        thread_local! {
            static OWN: RefCell<HashMap<Handle, (Weak<Context>, StreamId)>> = RefCell::default();
        }
        OWN.with_borrow_mut(|own| {
            own.retain(|_, (context, _)| context.strong_count() > 0);
            let id = match own.get(&context.handle) {
                Some(&(_, id)) => id,
                None => Stream::create(&context, 0)?.id,
            };
            own.insert(context.handle, (Arc::downgrade(&context), id));
            Ok(Arc::new(Stream { context, id }))
        })
    }

    /// `CUstream_flags`
    pub(crate) fn flags(&self) -> Outcome<u32> {
        Ok(if self.context.state().queue(self.id)?.non_blocking { NON_BLOCKING } else { 0 })
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

    /// Closes the stream. Queued commands are still executed.
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

    /// The tickets to wait for to synchronise the stream. Refused for a stream that captures.
    pub(crate) fn pending(&self) -> Outcome<Vec<Ticket>> {
        let mut state = self.context.state();
        state.captures.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, |capture| capture.has(self.id))?;
        let mut streams = state.implicit(self.id);
        streams.push(self.id);
        Ok(state.ends(&streams))
    }

    /// Queues a command behind `after`, or adds it to the stream's capture. Returns its place, or `None` in a capture.
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
        let behind = queue.trigger.iter().cloned().collect();
        let place = Place { position, before, early, settled, host, trigger: Arc::default(), behind };
        context.memory.witness().asked(&place);
        let ticket = Ticket { state: Arc::default(), order: Arc::new(place.after()) };
        // Only a kernel lets the next one begin before its end: perhaps at once, when it waits for nothing yet itself.
        queue.early = if work.is_launch() { place.begin().clone() } else { ticket.order.clone() };
        queue.trigger = work.is_launch().then(|| place.trigger.clone());
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

    /// The worker of a stream: executes its commands in order, each once its dependencies are done.
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

/// An event: a place in a stream.
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    timed: bool,
    recorded: Mutex<Recorded>,
}

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: u32 = 2;

#[derive(Clone, Default)]
enum Recorded {
    /// Never recorded, which counts as reached.
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

    /// Records the stream's present end.
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

    /// Makes later commands of `stream`, of any context, wait for the event.
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

    /// The recorded place, if any. Fails if the context is lost.
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
