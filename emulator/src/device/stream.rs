//! Streams: queues of work in order, each with a thread of its own while it has work, and the order between them.
//!
//! Every piece of work knows what it must wait for at the moment it is queued, and that is always earlier work, so the
//! queues cannot wait for each other in a circle. The legacy stream's order is such a dependency too: its work waits for
//! what blocking streams have queued, and theirs for what it has queued.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use super::abi::{Handle, Outcome};
use super::codes::Code;
use super::context::{Context, State, current};
use super::handles::{self, Object};
use super::machine::{Order, Place};
use super::work::Work;

/// A stream within its context.
pub(crate) type StreamId = u64;

/// The default stream that blocking streams synchronise with.
pub(crate) const LEGACY: StreamId = 0;

const NON_BLOCKING: u32 = 1;
/// How long a worker without work stays before its thread ends.
const IDLE: Duration = Duration::from_millis(200);

/// One stream's queue.
pub(crate) struct Stream {
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    queue: VecDeque<Queued>,
    queued: u64,
    done: Arc<AtomicU64>,
    /// What is ordered before whatever comes next here.
    order: Arc<Order>,
    /// The same for a programmatic launch, as long as it has not waited.
    early: Arc<Order>,
    has_worker: bool,
    /// Something is being done.
    runs: bool,
    /// What is being done waits for others.
    polls: Arc<AtomicBool>,
    closed: bool,
    /// Wakes the stream's worker, and nobody else: launches are short.
    wake: Arc<Condvar>,
}

struct Queued {
    after: Vec<Ticket>,
    work: Work,
    place: Place,
}

/// A place in a stream: the `position`-th work and everything before it.
#[derive(Clone)]
pub(crate) struct Ticket {
    done: Arc<AtomicU64>,
    position: u64,
    pub(crate) order: Arc<Order>,
}

impl Ticket {
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) >= self.position
    }
}

impl Stream {
    pub(crate) fn new(flags: u32, priority: i32) -> Stream {
        Stream {
            flags,
            priority,
            queue: VecDeque::new(),
            queued: 0,
            done: Arc::default(),
            order: Arc::default(),
            early: Arc::default(),
            has_worker: false,
            runs: false,
            polls: Arc::default(),
            closed: false,
            wake: Arc::default(),
        }
    }

    /// The place of what was queued last.
    pub(crate) fn last(&self) -> Ticket {
        Ticket { done: self.done.clone(), position: self.queued, order: self.order.clone() }
    }

    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}

impl State {
    /// Where a stream's work tells that it waits for others.
    pub(crate) fn polls(&self, id: StreamId) -> Arc<AtomicBool> {
        self.streams.get(&id).map(|stream| stream.polls.clone()).unwrap_or_default()
    }

    /// Whether no stream can go on by itself: what runs waits for others, what is queued waits for what runs.
    pub(crate) fn is_stuck(&self) -> bool {
        self.streams.values().all(|stream| match stream.queue.front() {
            _ if stream.runs => stream.polls.load(Ordering::Acquire),
            Some(next) => !next.after.iter().all(Ticket::is_done),
            None => true,
        })
    }

    /// A stream that a handle still names.
    pub(crate) fn stream(&mut self, id: StreamId) -> Outcome<&mut Stream> {
        self.streams.get_mut(&id).filter(|stream| !stream.closed).ok_or(Code::INVALID_HANDLE)
    }

    /// What work queued now in stream `id` must wait for besides the stream's own order.
    fn implicit(&self, id: StreamId) -> Vec<Ticket> {
        let others = self.streams.iter().filter(|&(&other, stream)| match id {
            LEGACY => other != LEGACY && stream.is_blocking(),
            _ => other == LEGACY && self.streams.get(&id).is_some_and(Stream::is_blocking),
        });
        others.map(|(_, stream)| stream.last()).collect()
    }

    /// What must be done before stream `id` counts as synchronised.
    pub(crate) fn pending(&self, id: StreamId) -> Vec<Ticket> {
        let mut tickets = self.implicit(id);
        tickets.extend(self.streams.get(&id).map(Stream::last));
        tickets
    }
}

impl Context {
    /// Makes a stream.
    pub(crate) fn create_stream(self: &Arc<Self>, flags: u32, priority: i32) -> Outcome<Handle> {
        if flags & !NON_BLOCKING != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let id = {
            let mut state = self.state();
            let id = state.next_stream;
            state.next_stream += 1;
            state.streams.insert(id, Stream::new(flags, priority));
            id
        };
        Ok(handles::insert(Object::Stream(self.clone(), id)))
    }

    /// Closes a stream: what is queued is still done.
    pub(crate) fn close_stream(&self, id: StreamId) {
        let mut state = self.state();
        if let Some(stream) = state.streams.get_mut(&id) {
            stream.closed = true;
            stream.wake.notify_one();
            if !stream.has_worker {
                state.streams.remove(&id);
            }
        }
    }

    /// Queues work in a stream behind `after`, or adds it to the graph that the stream captures. Returns its place,
    /// or `None` in a capture.
    pub(crate) fn enqueue(self: &Arc<Self>, id: StreamId, work: Work, after: Vec<Ticket>) -> Outcome<Option<Ticket>> {
        let mut state = self.state();
        state.stream(id)?;
        if let Some(capture) = state.captures.of_stream(id)? {
            capture.add(id, work);
            return Ok(None);
        }
        if id == LEGACY {
            // Waiting for a blocking stream that captures would tie the capture to work outside it.
            let blocking: Vec<StreamId> =
                state.streams.iter().filter(|(_, stream)| stream.is_blocking()).map(|(&id, _)| id).collect();
            state.captures.refuse_implicit(&blocking)?;
        }
        let mut all = state.implicit(id);
        all.extend(after);
        let (settled, host) = self.memory.witness().host_knows();
        let stream = state.stream(id)?;
        let mut order = Order::clone(&settled);
        all.iter().for_each(|ticket| order.join(&ticket.order));
        let early = work.is_programmatic().then(|| {
            let mut order = order.clone();
            order.join(&stream.early);
            Arc::new(order)
        });
        order.join(&stream.order);
        all.retain(|ticket| !ticket.is_done());
        stream.queued += 1;
        let before = Arc::new(order);
        let place = Place {
            stream: (self.handle, id),
            position: stream.queued,
            before: before.clone(),
            settled,
            host,
            early,
            ..Place::default()
        };
        stream.order = Arc::new(place.after());
        // Only a kernel lets the next one begin before its end.
        stream.early = if work.is_launch() { before } else { stream.order.clone() };
        stream.queue.push_back(Queued { after: all, work, place });
        let ticket = stream.last();
        stream.wake.notify_one();
        if !stream.has_worker {
            stream.has_worker = true;
            let context = self.clone();
            let name = format!("emulated stream {}.{id}", self.device.ordinal);
            if std::thread::Builder::new().name(name).spawn(move || context.serve(id)).is_err() {
                let stream = state.stream(id)?;
                stream.has_worker = false;
                stream.queue.pop_back();
                stream.queued -= 1;
                return Err(Code::OUT_OF_MEMORY);
            }
        }
        Ok(Some(ticket))
    }

    /// A stream's worker: does what is queued, in order, each when what it waits for is done.
    fn serve(self: Arc<Self>, id: StreamId) {
        let mut state = self.state();
        loop {
            let Some(stream) = state.streams.get_mut(&id) else { return };
            let sleep = match stream.queue.front() {
                Some(next) if next.after.iter().all(Ticket::is_done) => {
                    let next = stream.queue.pop_front();
                    stream.runs = true;
                    let done = stream.done.clone();
                    let lost = state.sticky.is_some();
                    drop(state);
                    if let Some(Queued { work, place, .. }) = next.filter(|q| !lost || q.work.survives_errors()) {
                        // A panic in here must not leave the stream, and whoever waits for it, without an end.
                        let outcome = catch_unwind(AssertUnwindSafe(|| work.run(&self, &place)));
                        if let Err(code) = outcome.unwrap_or(Err(Code::UNKNOWN)) {
                            self.poison(code);
                        }
                    }
                    state = self.state();
                    if let Some(stream) = state.streams.get_mut(&id) {
                        stream.runs = false;
                    }
                    done.fetch_add(1, Ordering::Release);
                    self.changed.notify_all();
                    // Streams whose next work waits for something may have waited for this.
                    let others =
                        state.streams.iter().filter(|&(&other, stream)| other != id && !stream.queue.is_empty());
                    others.for_each(|(_, stream)| stream.wake.notify_one());
                    continue;
                }
                // What it waits for may be another context's, which is not announced here.
                Some(_) => Duration::from_millis(2),
                None => IDLE,
            };
            let empty = stream.queue.is_empty();
            if empty && stream.closed {
                state.streams.remove(&id);
                return;
            }
            let wake = stream.wake.clone();
            let (guard, waited) = wake.wait_timeout(state, sleep).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if empty
                && waited.timed_out()
                && let Some(stream) = state.streams.get_mut(&id).filter(|stream| stream.queue.is_empty())
            {
                stream.has_worker = false;
                if stream.closed {
                    state.streams.remove(&id);
                }
                return;
            }
        }
    }
}

/// The context and stream that a `CUstream` names: null and `CU_STREAM_LEGACY` the current context's legacy stream,
/// `CU_STREAM_PER_THREAD` this thread's.
pub(crate) fn resolve(handle: Handle) -> Outcome<(Arc<Context>, StreamId)> {
    match handle {
        0 | 1 => Ok((current()?, LEGACY)),
        2 => {
            let context = current()?;
            let thread = std::thread::current().id();
            let mut state = context.state();
            let id = match state.per_thread.get(&thread) {
                Some(&id) => id,
                None => {
                    let id = state.next_stream;
                    state.next_stream += 1;
                    state.streams.insert(id, Stream::new(0, 0));
                    state.per_thread.insert(thread, id);
                    id
                }
            };
            drop(state);
            Ok((context, id))
        }
        _ => handles::stream(handle),
    }
}
