//! Calendars: what a resource has handed out, window by window of time.

/// Clocks of a window: no more than 100 ns on any chip.
pub(super) const WINDOW: u64 = 32;
/// Windows that are kept. A request before the oldest of them is served in the oldest.
const KEPT: u64 = 512;
/// Clocks that kept windows cover.
pub(super) const REACH: u64 = KEPT * WINDOW;
/// Parts of a unit that are told apart.
const PARTS: f64 = 64.0;

/// A resource that serves so many units a clock.
#[derive(Debug)]
pub(super) struct Calendar {
    /// Parts handed out in each kept window, window `w` at `w % KEPT`.
    used: Box<[u32]>,
    /// The oldest kept window.
    oldest: u64,
    /// All windows before this one are full or too old.
    open: u64,
    /// Parts of a window.
    capacity: u32,
    /// Parts handed out in all.
    total: u64,
}

impl Calendar {
    /// A calendar of a resource that serves `rate` units a clock.
    pub(super) fn new(rate: f64) -> Calendar {
        let capacity = ((rate * WINDOW as f64 * PARTS) as u32).max(1);
        Calendar { used: vec![0; KEPT as usize].into(), oldest: 0, open: 0, capacity, total: 0 }
    }

    /// Reserves `units` from clock `at` on. Returns the clocks at which serving begins and ends.
    pub(super) fn reserve(&mut self, at: u64, units: u32) -> (u64, u64) {
        let mut left = units * PARTS as u32;
        self.total += u64::from(left);
        let mut window = (at / WINDOW).max(self.open);
        let mut start = None;
        loop {
            self.keep(window);
            let used = &mut self.used[(window % KEPT) as usize];
            let free = self.capacity - *used;
            if free > 0 {
                // What is handed out of a window lies at its beginning.
                let begin = at.max(window * WINDOW + u64::from(*used) * WINDOW / u64::from(self.capacity));
                let start = *start.get_or_insert(begin);
                let taken = free.min(left);
                *used += taken;
                left -= taken;
                if left == 0 {
                    let clocks = (u64::from(taken) * WINDOW).div_ceil(u64::from(self.capacity));
                    return (start, begin + clocks);
                }
            }
            if self.open == window {
                self.open += 1;
            }
            window += 1;
        }
    }

    /// Makes room for a window: forgets as many old ones as needed.
    fn keep(&mut self, window: u64) {
        if window < self.oldest + KEPT {
            return;
        }
        let oldest = window + 1 - KEPT;
        for forgotten in self.oldest..oldest.min(self.oldest + KEPT) {
            self.used[(forgotten % KEPT) as usize] = 0;
        }
        self.oldest = oldest;
        self.open = self.open.max(oldest);
    }

    /// Units handed out so far.
    pub(super) fn units(&self) -> f64 {
        self.total as f64 / PARTS
    }
}
