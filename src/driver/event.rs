//! Events: points in a stream, for the host and other streams to wait for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::context::Context;
use super::patience::Patience;
use super::stream::{Stream, StreamInner};
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

impl Stream {
    /// Waits until all work enqueued so far is done.
    ///
    /// # Errors
    /// [`Error::Stalled`] if it is not within [`Limits::wait`](super::Limits::wait).
    pub fn synchronize(&self) -> Result<()> {
        self.inner.record(false)?.synchronize()
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
        unsafe { self.inner.context.driver.api().stream_wait_event(self.inner.raw(), event.raw(), 0) }
    }
}

impl StreamInner {
    /// Blocks the host until the work of a ticket is done. Makes no driver call where that is known.
    pub(crate) fn wait_for(self: &Arc<Self>, ticket: u64) -> Result<()> {
        if self.is_done(ticket) {
            return Ok(());
        }
        self.record(false)?.synchronize()
    }

    /// Lets later work of `self` wait for the work of `other` up to a ticket.
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
        unsafe { self.context.driver.api().stream_wait_event(self.raw(), event.raw(), 0)? };
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
        unsafe { self.context.driver.api().event_record(event.raw(), self.raw())? };
        drop(order);
        Ok(event)
    }

    /// Lets later work wait for the work that all other streams of the context have under way now.
    #[cfg(feature = "gguf")]
    pub(crate) fn order_behind_all(self: &Arc<Self>) -> Result<()> {
        let others = self.streams.running();
        others.iter().try_for_each(|other| match self.order_after(other, other.last_ticket()) {
            // Its capture has begun meanwhile.
            Err(_) if other.is_capturing() => Ok(()),
            ordered => ordered,
        })
    }
}
