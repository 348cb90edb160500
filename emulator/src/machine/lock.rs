//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value under a lock; that somebody panicked while holding it does not make it wrong.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
