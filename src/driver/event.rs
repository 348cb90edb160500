//! Events: points in a stream that host and other streams can wait for. Each stream keeps a pool of them.

use std::sync::{Arc, Mutex, PoisonError};

use super::context::Context;
use super::patience::Patience;
use super::stream::StreamInner;
use super::sys;
use crate::{Error, Result};

/// A point in a [`Stream`](super::Stream), made by [`Stream::record`](super::Stream::record).
pub struct Event {
    stream: Arc<StreamInner>,
    raw: sys::CUevent,
    /// The ticket of the last work before it.
    ticket: u64,
    timed: bool,
}

// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Takes an event of the stream's pool, to which it returns when dropped.
    pub(crate) fn new(stream: Arc<StreamInner>, raw: sys::CUevent, ticket: u64, timed: bool) -> Event {
        Event { stream, raw, ticket, timed }
    }

    /// Waits until the event happens.
    ///
    /// # Errors
    /// [`Error::Stalled`] if it has not within [`Limits::wait`](super::Limits::wait).
    pub fn synchronize(&self) -> Result<()> {
        let mut patience = Patience::new(self.stream.context.limits().wait);
        while !self.has_happened()? {
            patience.pause("work on a stream")?;
        }
        Ok(())
    }

    /// Whether the event has happened.
    pub fn has_happened(&self) -> Result<bool> {
        self.stream.context.bind()?;
        // SAFETY: the event is live.
        let done = unsafe { self.stream.context.driver.api().event_query(self.raw)? };
        if done {
            self.stream.complete(self.ticket);
        }
        Ok(done)
    }

    /// Milliseconds from this event to a later one of the same device. Both were recorded by
    /// [`record_timed`](super::Stream::record_timed) and have happened.
    pub fn milliseconds_until(&self, later: &Event) -> Result<f32> {
        if !(self.timed && later.timed) {
            return Err(Error::InvalidArgument {
                what: "event".to_owned(),
                found: "one without a time stamp".to_owned(),
                expected: "one made by `Stream::record_timed`".to_owned(),
            });
        }
        self.context().check_same(later.context(), "later event")?;
        self.stream.context.bind()?;
        // SAFETY: both are live and of one context; what has not happened is an error.
        unsafe { self.stream.context.driver.api().event_elapsed(self.raw, later.raw) }
    }

    /// The driver's handle, live as long as `self`.
    pub fn raw(&self) -> sys::CUevent {
        self.raw
    }

    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }

    pub(crate) fn context(&self) -> &Context {
        &self.stream.context
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // One that has not happened may be recorded again: who waits for it waits for what it was then.
        self.stream.pool.give(self.raw, self.timed);
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event").field("raw", &self.raw).field("timed", &self.timed).finish_non_exhaustive()
    }
}

/// Events that wait to be used.
pub(crate) struct EventPool {
    context: Arc<Context>,
    plain: Mutex<Vec<sys::CUevent>>,
    timed: Mutex<Vec<sys::CUevent>>,
}

impl EventPool {
    /// Events made with a stream, so that launches with an event or a wait make none.
    const PREPARED: usize = 8;

    pub(crate) fn filled(context: &Arc<Context>) -> Result<EventPool> {
        let pool = EventPool { context: context.clone(), plain: Mutex::default(), timed: Mutex::default() };
        for _ in 0..EventPool::PREPARED {
            pool.give(pool.create(false)?, false);
        }
        Ok(pool)
    }

    pub(crate) fn take(&self, timed: bool) -> Result<sys::CUevent> {
        let raw = self.list(timed).lock().unwrap_or_else(PoisonError::into_inner).pop();
        raw.map_or_else(|| self.create(timed), Ok)
    }

    pub(crate) fn give(&self, raw: sys::CUevent, timed: bool) {
        self.list(timed).lock().unwrap_or_else(PoisonError::into_inner).push(raw);
    }

    fn list(&self, timed: bool) -> &Mutex<Vec<sys::CUevent>> {
        if timed { &self.timed } else { &self.plain }
    }

    fn create(&self, timed: bool) -> Result<sys::CUevent> {
        let flags = if timed { sys::CU_EVENT_DEFAULT } else { sys::CU_EVENT_DISABLE_TIMING };
        // SAFETY: the caller has made the context current.
        unsafe { self.context.driver.api().event_create(flags) }
    }
}

impl Drop for EventPool {
    fn drop(&mut self) {
        if self.context.bind().is_err() {
            return;
        }
        for list in [&mut self.plain, &mut self.timed] {
            for raw in list.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
                // SAFETY: in the pool, so nobody else has it.
                let _ = unsafe { self.context.driver.api().event_destroy(raw) };
            }
        }
    }
}
