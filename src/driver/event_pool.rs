//! Events that wait to be recorded: each stream has a pool of them.

use std::sync::{Arc, Mutex, PoisonError};

use super::context::Context;
use super::sys;
use crate::Result;

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
