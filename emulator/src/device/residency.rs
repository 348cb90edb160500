//! Who is resident: kernels of several streams run side by side only as far as the multiprocessors hold their blocks,
//! so that work behind a persistent kernel waits for it as on the chip.

use std::sync::{Condvar, Mutex, PoisonError};

use super::lock;

/// Room is counted in parts of a multiprocessor; every occupancy from 1 to 32 divides it evenly enough.
const PARTS: u64 = 1 << 16;

/// The room that a device's multiprocessors have left.
pub(crate) struct Residency {
    free: Mutex<u64>,
    changed: Condvar,
}

/// Room that is given back when dropped.
pub(crate) struct Resident<'a> {
    residency: &'a Residency,
    taken: u64,
}

impl Residency {
    pub(crate) fn new(multiprocessors: u32) -> Residency {
        Residency { free: Mutex::new(u64::from(multiprocessors) * PARTS), changed: Condvar::new() }
    }

    /// Waits for room for `blocks` blocks of which `per_multiprocessor` fit on each multiprocessor: for all of them if
    /// the launch is cooperative, else for one, taking as much as there is.
    pub(crate) fn enter(&self, blocks: u64, per_multiprocessor: u32, cooperative: bool) -> Resident<'_> {
        let each = PARTS / u64::from(per_multiprocessor.max(1));
        let all = blocks.saturating_mul(each);
        let least = if cooperative { all } else { each };
        let mut free = lock(&self.free);
        while *free < least {
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        let taken = all.min(*free);
        *free -= taken;
        Resident { residency: self, taken }
    }
}

impl Drop for Resident<'_> {
    fn drop(&mut self) {
        *lock(&self.residency.free) += self.taken;
        self.residency.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cooperative_launch_waits_for_room_for_all_its_blocks() {
        let residency = Residency::new(2);
        let first = residency.enter(1, 1, true);
        let entered = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _second = residency.enter(2, 1, true);
                entered.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(!entered.load(std::sync::atomic::Ordering::SeqCst), "one of two multiprocessors is taken");
            let _small = residency.enter(1, 2, false);
            drop(first);
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(!entered.load(std::sync::atomic::Ordering::SeqCst), "half a multiprocessor is taken");
            drop(_small);
        });
        assert!(entered.into_inner());
    }
}
