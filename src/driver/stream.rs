//! Streams: work in order, tickets that number it, and waiting for a ticket.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

use super::context::Context;
use super::event_pool::EventPool;
use super::patience::Patience;
use super::sys;
use crate::{Error, Result};

/// Work of one device in the order it was enqueued. Cheap to clone; enqueueing from several threads is allowed.
#[derive(Clone)]
pub struct Stream {
    pub(crate) inner: Arc<StreamInner>,
}

impl Stream {
    /// Whether all work enqueued so far is done.
    pub fn is_idle(&self) -> Result<bool> {
        self.inner.is_idle()
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

/// The streams of a context.
#[derive(Default)]
pub(crate) struct Streams(Mutex<Vec<Weak<StreamInner>>>);

impl Streams {
    fn add(&self, stream: &Arc<StreamInner>) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    /// Waits for the work of all streams.
    pub(crate) fn wait(&self) -> Result<()> {
        self.running().iter().try_for_each(|stream| stream.wait_until_idle())
    }

    /// The streams outside captures.
    pub(super) fn running(&self) -> Vec<Arc<StreamInner>> {
        let streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.iter().filter_map(Weak::upgrade).filter(|stream| !stream.is_capturing()).collect()
    }
}

/// Number of streams so far.
static STREAMS: AtomicU64 = AtomicU64::new(0);

/// A stream as buffers remember it. Work is numbered by tickets; a ticket that is at most `completed` is done.
pub(crate) struct StreamInner {
    raw: sys::CUstream,
    /// Number of the stream, never used twice in a process.
    pub(super) id: u64,
    pub(crate) context: Arc<Context>,
    /// The streams of the context.
    pub(super) streams: Arc<Streams>,
    /// Ticket of the last work whose enqueueing has returned.
    pub(super) issued: AtomicU64,
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
    pub(crate) fn create(context: &Arc<Context>, streams: &Arc<Streams>) -> Result<Arc<StreamInner>> {
        context.bind()?;
        let pool = EventPool::filled(context)?;
        // SAFETY: the context is current.
        let raw = unsafe { context.driver.api().stream_create(sys::CU_STREAM_NON_BLOCKING)? };
        let stream = Arc::new(StreamInner {
            raw,
            id: STREAMS.fetch_add(1, Ordering::Relaxed),
            context: context.clone(),
            streams: streams.clone(),
            issued: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            capturing: Mutex::default(),
            pool,
            order: Mutex::default(),
        });
        stream.streams.add(&stream);
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

    /// Has resident work that waits for its turn not look out for more launches here.
    #[cfg(feature = "gguf")]
    pub(crate) fn leave_turn(&self) {
        self.context.leave_turn(self.id);
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

    pub(crate) fn complete(&self, ticket: u64) {
        self.completed.fetch_max(ticket, Ordering::AcqRel);
    }

    pub(super) fn order(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
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
    pub(super) fn refuse_capturing(&self) -> Result<()> {
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
