//! Events: a place in a stream, and when the stream came there.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::abi::Outcome;
use super::capture::Point;
use super::codes::Code;
use super::context::Context;
use super::lock;
use super::stream::{StreamId, Ticket};
use super::work::Work;

const DISABLE_TIMING: u32 = 2;

/// One event.
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    flags: u32,
    recorded: Mutex<Recorded>,
}

/// When a stream reached the event.
pub(crate) type Stamp = Arc<OnceLock<Instant>>;

#[derive(Clone, Default)]
enum Recorded {
    /// Never: as good as reached.
    #[default]
    Not,
    In(Ticket, Stamp),
    Captured(Point),
}

impl Event {
    pub(crate) fn new(context: &Arc<Context>, flags: u32) -> Outcome<Event> {
        // Blocking synchronisation (1) and timing (2) are known; sharing between processes (4) is not.
        if flags & !3 != 0 {
            return Err(if flags & !7 == 0 { Code::NOT_SUPPORTED } else { Code::INVALID_VALUE });
        }
        Ok(Event { context: context.clone(), flags, recorded: Mutex::default() })
    }

    fn recorded(&self) -> Recorded {
        lock(&self.recorded).clone()
    }

    /// Remembers the stream's present end.
    pub(crate) fn record(&self, stream: StreamId) -> Outcome {
        let point = self.context.state().captures.point(stream);
        if let Some(point) = point {
            *lock(&self.recorded) = Recorded::Captured(point);
            return Ok(());
        }
        let stamp = Stamp::default();
        if let Some(ticket) = self.context.enqueue(stream, Work::Stamp(stamp.clone()), Vec::new())? {
            *lock(&self.recorded) = Recorded::In(ticket, stamp);
        }
        Ok(())
    }

    /// Makes later work of `stream` (of any context) wait for the event.
    pub(crate) fn hold(&self, context: &Arc<Context>, stream: StreamId) -> Outcome {
        match self.recorded() {
            Recorded::Not => context.state().stream(stream).map(|_| ()),
            Recorded::Captured(point) => {
                let mut state = context.state();
                state.stream(stream)?;
                state.captures.join(stream, &point)
            }
            Recorded::In(ticket, _) => {
                context.state().captures.refuse(stream, Code::STREAM_CAPTURE_ISOLATION)?;
                context.enqueue(stream, Work::Nothing, vec![ticket]).map(|_| ())
            }
        }
    }

    pub(crate) fn query(&self) -> Outcome {
        match self.recorded() {
            Recorded::Not => Ok(()),
            Recorded::Captured(_) => Err(Code::CAPTURED_EVENT),
            Recorded::In(ticket, _) if self.context.is_over(std::slice::from_ref(&ticket)) => Ok(()),
            Recorded::In(..) => Err(Code::NOT_READY),
        }
    }

    pub(crate) fn synchronise(&self) -> Outcome {
        match self.recorded() {
            Recorded::Not => Ok(()),
            Recorded::Captured(_) => Err(Code::CAPTURED_EVENT),
            Recorded::In(ticket, _) => self.context.wait("cuEventSynchronize", &[ticket]),
        }
    }

    /// Milliseconds from this event to `end`.
    pub(crate) fn elapsed(&self, end: &Event) -> Outcome<f32> {
        if (self.flags | end.flags) & DISABLE_TIMING != 0 || self.context.handle != end.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        let reached = |event: &Event| match event.recorded() {
            Recorded::Not => Err(Code::INVALID_HANDLE),
            Recorded::Captured(_) => Err(Code::CAPTURED_EVENT),
            Recorded::In(_, stamp) => stamp.get().copied().ok_or(Code::NOT_READY),
        };
        let (from, to) = (reached(self)?, reached(end)?);
        let milliseconds = match to.checked_duration_since(from) {
            Some(later) => later.as_secs_f64(),
            None => -from.duration_since(to).as_secs_f64(),
        } * 1e3;
        Ok(milliseconds as f32)
    }
}
