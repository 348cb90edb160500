//! Waits of the host: polling with backoff, up to a limit since the last progress.

use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Polls that follow each other without a pause.
const SPINS: u32 = 200;
/// Time in which a wait yields to other threads, before it sleeps between polls.
const YIELDS: Duration = Duration::from_millis(2);
/// The sleep between two polls.
const SLEEP: Duration = Duration::from_micros(50);

/// One wait of the host: it spins, then yields, then sleeps. It is at most 50 us late, plus the system timer's slack,
/// 50 us on Linux.
pub(crate) struct Patience {
    limit: Duration,
    since: Instant,
    looks: u32,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Patience {
        Patience { limit, since: Instant::now(), looks: 0 }
    }

    /// Restarts the limit, since there was progress.
    pub(crate) fn progress(&mut self) {
        (self.since, self.looks) = (Instant::now(), 0);
    }

    /// Pauses before the next poll; [`Error::Stalled`] for `what` once the limit is over.
    pub(crate) fn pause(&mut self, what: &'static str) -> Result<()> {
        self.looks = self.looks.saturating_add(1);
        if self.looks < SPINS {
            std::hint::spin_loop();
            return Ok(());
        }
        let waited = self.since.elapsed();
        if waited > self.limit {
            return Err(Error::Stalled { what, waited });
        }
        if waited < YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
        Ok(())
    }

    /// Time left before the limit.
    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.since.elapsed())
    }
}
