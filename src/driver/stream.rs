//! Streams: work in order, tickets that number it, and waiting for a ticket.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use super::context::Context;
use super::device::Device;
use super::event::{Event, EventPool};
use super::patience::Patience;
use super::sys;
use crate::{Error, Result};

/// Work of one device in the order it was enqueued. Cheap to clone; enqueueing from several threads is allowed.
#[derive(Clone)]
pub struct Stream {
    pub(crate) inner: Arc<StreamInner>,
}

impl Stream {
    /// A stream that waits for no other, the legacy stream included.
    pub fn new(device: &Device) -> Result<Stream> {
        Ok(Stream { inner: StreamInner::create(device.context())? })
    }

    /// Waits until all work enqueued so far is done.
    ///
    /// # Errors
    /// [`Error::Stalled`] if it is not within [`Limits::wait`](super::Limits::wait).
    pub fn synchronize(&self) -> Result<()> {
        self.inner.record(false)?.synchronize()
    }

    /// Whether all work enqueued so far is done.
    pub fn is_idle(&self) -> Result<bool> {
        self.inner.is_idle()
    }

    /// An event that happens when the work enqueued so far is done.
    pub fn record(&self) -> Result<Event> {
        self.inner.record(false)
    }

    /// As [`record`](Stream::record), with a time stamp for [`Event::milliseconds_until`].
    pub fn record_timed(&self) -> Result<Event> {
        self.inner.record(true)
    }

    /// Lets work enqueued from now on wait for the event. Both may be on different devices of one driver.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.inner.context.driver.check_same(&event.context().driver, "event to wait for")?;
        self.inner.context.bind()?;
        // SAFETY: stream and event are live, and of one driver.
        unsafe { self.inner.context.driver.api().stream_wait_event(self.inner.raw, event.raw(), 0) }
    }

    /// The driver's handle, live as long as `self`.
    pub fn raw(&self) -> sys::CUstream {
        self.inner.raw
    }

    /// Ordinal of the stream's device.
    pub fn ordinal(&self) -> i32 {
        self.inner.context.ordinal
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("device", &self.inner.context.ordinal)
            .field("raw", &self.inner.raw)
            .finish_non_exhaustive()
    }
}

/// How many streams there have been.
static STREAMS: AtomicU64 = AtomicU64::new(0);

/// A stream as buffers remember it. Work is numbered by tickets; a ticket that is at most `completed` is done.
pub(crate) struct StreamInner {
    raw: sys::CUstream,
    /// Never used twice in a process.
    id: u64,
    pub(crate) context: Arc<Context>,
    /// Ticket of the last work whose enqueueing has returned.
    issued: AtomicU64,
    /// Largest ticket known to be done.
    completed: AtomicU64,
    /// The thread that captures its work.
    capturing: Mutex<Option<ThreadId>>,
    pub(crate) pool: EventPool,
    /// Other streams by id, with the ticket that this stream has been told to wait for. Held while an event of this
    /// stream is recorded for others: no capture begins in between.
    order: Mutex<Vec<(u64, u64)>>,
}

// SAFETY: the driver's streams may be used from any thread; the rest is atomics and mutexes.
unsafe impl Send for StreamInner {}
// SAFETY: as above.
unsafe impl Sync for StreamInner {}

impl StreamInner {
    pub(crate) fn create(context: &Arc<Context>) -> Result<Arc<StreamInner>> {
        context.bind()?;
        let pool = EventPool::filled(context)?;
        // SAFETY: the context is current.
        let raw = unsafe { context.driver.api().stream_create(sys::CU_STREAM_NON_BLOCKING)? };
        let stream = Arc::new(StreamInner {
            raw,
            id: STREAMS.fetch_add(1, Ordering::Relaxed),
            context: context.clone(),
            issued: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            capturing: Mutex::default(),
            pool,
            order: Mutex::default(),
        });
        context.add_stream(&stream);
        Ok(stream)
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Whether all work enqueued so far is done.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the stream is live.
        unsafe { self.context.driver.api().stream_query(self.raw) }
    }

    /// Waits until the stream has nothing to do.
    pub(crate) fn wait_until_idle(&self) -> Result<()> {
        let mut patience = Patience::new(self.context.limits().wait);
        while !self.is_idle()? {
            patience.pause("work on a stream")?;
        }
        Ok(())
    }

    /// Numbers work whose enqueueing has just returned.
    pub(crate) fn issue(&self) -> u64 {
        self.issued.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The ticket of the work enqueued last.
    #[cfg(feature = "gguf")]
    pub(crate) fn last_ticket(&self) -> u64 {
        self.issued.load(Ordering::Acquire)
    }

    pub(crate) fn is_done(&self, ticket: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= ticket
    }

    /// Blocks the host until that work is done. No driver call where that is known.
    pub(crate) fn wait_for(self: &Arc<Self>, ticket: u64) -> Result<()> {
        if self.is_done(ticket) {
            return Ok(());
        }
        self.record(false)?.synchronize()
    }

    /// Lets later work of `self` wait for that work of `other`.
    pub(crate) fn order_after(self: &Arc<Self>, other: &Arc<StreamInner>, ticket: u64) -> Result<()> {
        if Arc::ptr_eq(self, other) || other.is_done(ticket) {
            return Ok(());
        }
        self.refuse_capturing()?;
        if self.order().iter().any(|&(stream, seen)| stream == other.id && seen >= ticket) {
            return Ok(());
        }
        let event = other.record(false)?;
        // SAFETY: stream and event are live.
        unsafe { self.context.driver.api().stream_wait_event(self.raw, event.raw(), 0)? };
        let mut order = self.order();
        match order.iter_mut().find(|(stream, _)| *stream == other.id) {
            Some((_, seen)) => *seen = (*seen).max(event.ticket()),
            None => {
                // Streams come and go. Forgetting is always right, and costs one more wait.
                if order.len() >= 16 {
                    order.clear();
                }
                order.push((other.id, event.ticket()));
            }
        }
        Ok(())
    }

    /// Records an event of the pool behind all work that has a ticket.
    pub(crate) fn record(self: &Arc<Self>, timed: bool) -> Result<Event> {
        self.context.bind()?;
        let raw = self.pool.take(timed)?;
        let order = self.order();
        let ticket = self.issued.load(Ordering::Acquire);
        let event = Event::new(self.clone(), raw, ticket, timed);
        self.refuse_capturing()?;
        // SAFETY: event and stream are live.
        unsafe { self.context.driver.api().event_record(event.raw(), self.raw)? };
        drop(order);
        Ok(event)
    }

    pub(crate) fn complete(&self, ticket: u64) {
        self.completed.fetch_max(ticket, Ordering::AcqRel);
    }

    fn order(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.capturer().is_some()
    }

    fn capturer(&self) -> Option<ThreadId> {
        *self.capturing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses work of another thread during a capture: it would be recorded instead of run.
    pub(crate) fn refuse_other_threads_capture(&self) -> Result<()> {
        if self.capturer().is_none_or(|thread| thread == std::thread::current().id()) {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            what: "stream to enqueue on".to_owned(),
            found: "one that another thread captures".to_owned(),
            expected: "one that runs; wait until the capture has ended".to_owned(),
        })
    }

    /// Refuses waits during a capture: recorded work does not run.
    fn refuse_capturing(&self) -> Result<()> {
        if !self.is_capturing() {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            what: "stream to wait on".to_owned(),
            found: "one that is being captured".to_owned(),
            expected: "one that runs; synchronise buffers of other streams before the capture".to_owned(),
        })
    }

    /// Begins or ends a capture by this thread; gives whether one was under way.
    pub(crate) fn set_capturing(&self, capturing: bool) -> bool {
        let _order = self.order();
        let mut capturer = self.capturing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = capturer.is_some();
        if before != capturing {
            *capturer = capturing.then(|| std::thread::current().id());
        }
        before
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: the last owner; work that was enqueued goes on, as the driver promises.
            let _ = unsafe { self.context.driver.api().stream_destroy(self.raw) };
        }
    }
}
