//! Jobs that wait for a thread: so many, first come, first served.

use super::Job;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The queue.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    most: usize,
}

struct State {
    jobs: VecDeque<Job>,
    open: bool,
}

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// So many wait.
    Full(usize),
    /// The server ends.
    Closed,
}

impl Queue {
    pub(super) fn new(most: usize) -> Queue {
        let state = State { jobs: VecDeque::new(), open: true };
        Queue { state: Mutex::new(state), changed: Condvar::new(), most }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job behind the others. Those whose clients have left take no room.
    pub(crate) fn put(&self, job: Job) -> Result<(), Refused> {
        let mut state = self.state();
        if !state.open {
            return Err(Refused::Closed);
        }
        state.jobs.retain(|job| !job.events.is_closed());
        if state.jobs.len() >= self.most {
            return Err(Refused::Full(state.jobs.len()));
        }
        state.jobs.push_back(job);
        self.changed.notify_one();
        Ok(())
    }

    /// The next job whose client still waits; `None` once the queue is closed and empty.
    pub(super) fn take(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            match state.jobs.pop_front() {
                Some(job) if job.events.is_closed() => {}
                Some(job) => return Some(job),
                None if !state.open => return None,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Takes no more jobs, and gives those that wait.
    pub(crate) fn close(&self) -> Vec<Job> {
        let mut state = self.state();
        state.open = false;
        self.changed.notify_all();
        state.jobs.drain(..).collect()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state().open
    }

    /// Jobs that wait.
    pub(crate) fn len(&self) -> usize {
        self.state().jobs.iter().filter(|job| !job.events.is_closed()).count()
    }
}
