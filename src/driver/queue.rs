//! First come, first served.

use std::collections::VecDeque;

/// Those who wait for one thing, by their tickets. Whoever has one takes it back: behind the wait, or given up.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    given: u64,
    waiting: VecDeque<u64>,
}

impl Queue {
    /// A ticket behind all others.
    pub(crate) fn join(&mut self) -> u64 {
        self.given += 1;
        self.waiting.push_back(self.given);
        self.given
    }

    /// Takes a ticket back, wherever it stands.
    pub(crate) fn leave(&mut self, ticket: u64) {
        self.waiting.retain(|waiting| *waiting != ticket);
    }

    /// The ticket in front.
    pub(crate) fn front(&self) -> Option<u64> {
        self.waiting.front().copied()
    }

    /// Whether nobody waits before that one.
    pub(crate) fn is_first(&self, ticket: u64) -> bool {
        self.front().is_none_or(|front| front == ticket)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn who_came_first_is_first_also_behind_one_that_gave_up() {
        let mut queue = Queue::default();
        let [a, b, c] = [(); 3].map(|()| queue.join());
        assert!(queue.is_first(a) && !queue.is_first(b));
        queue.leave(b);
        assert_eq!(queue.front(), Some(a));
        queue.leave(a);
        assert!(queue.is_first(c));
        queue.leave(c);
        assert!(queue.is_empty() && queue.front().is_none());
    }
}
