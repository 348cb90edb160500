//! Waiting that ends: by looking again and again, up to a limit since the last progress.

use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Looks that follow each other without a pause.
const SPINS: u32 = 200;
/// How long a wait yields to other threads before it sleeps between looks.
const YIELDS: Duration = Duration::from_millis(2);
/// The sleep between two looks.
const SLEEP: Duration = Duration::from_micros(50);

/// One wait of the host. It spins, then yields, then sleeps: what it waits for is seen at most 50 us late, and the system
/// timer's slack, which is as much on Linux.
pub(crate) struct Patience {
    limit: Duration,
    since: Instant,
    looks: u32,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Patience {
        Patience { limit, since: Instant::now(), looks: 0 }
    }

    /// Counts the limit anew.
    pub(crate) fn progress(&mut self) {
        (self.since, self.looks) = (Instant::now(), 0);
    }

    /// Passes some time before the next look, or says that `what` has taken too long.
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
