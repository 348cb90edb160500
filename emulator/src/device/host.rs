//! Checked accesses by the host to page-locked memory.
//!
//! The emulator cannot see the accesses of a program to its own memory. A test that makes the host's accesses to a
//! mailbox through [`load`] and [`store`] lets the host take part in the race check, as one thread of system scope. Work
//! that it has waited for (`cuStreamSynchronize`, `cuEventQuery`, ...) and releases that it has acquired happen before
//! its accesses; these happen before work enqueued later, and before acquires of its releases. All accesses of the host
//! to such a word must then be made here, by any of its threads.

use super::registry::mapped;
use crate::machine::access::{Access, Scope, Sem};
use crate::machine::fault::Fault;
use std::sync::atomic::{AtomicU32, Ordering as Atomic};

/// Memory ordering of an access by the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// A plain access, not atomic.
    Plain,
    /// An atomic access that orders nothing.
    Relaxed,
    /// An acquire load: it happens before later accesses.
    Acquire,
    /// A release store: earlier accesses happen before it.
    Release,
}

/// Loads a word. An error is a race with a write that does not happen before this load.
pub fn load(word: &AtomicU32, order: Ordering) -> Result<u32, Fault> {
    access(word, order, false, || word.load(Atomic::Acquire))
}

/// Stores a word. An error is a race with an access that does not happen before this store.
pub fn store(word: &AtomicU32, value: u32, order: Ordering) -> Result<(), Fault> {
    access(word, order, true, || word.store(value, Atomic::Release))
}

/// Checks an access, then runs it, with an ordering at least as strong as the one checked.
fn access<T>(word: &AtomicU32, order: Ordering, write: bool, run: impl FnOnce() -> T) -> Result<T, Fault> {
    // Memory that no device can see cannot race with one.
    let Some((memory, address)) = mapped(std::ptr::from_ref(word).addr(), size_of_val(word)) else { return Ok(run()) };
    let sem = match order {
        Ordering::Plain => Sem::Weak,
        Ordering::Relaxed => Sem::Relaxed,
        Ordering::Acquire => Sem::Acquire,
        Ordering::Release => Sem::Release,
    };
    let access = Access { sem, scope: Scope::Sys, ..Access::new(4, 1, write) };
    // No launch synchronises between the check and the access.
    let mut witness = memory.witness();
    if let Ok((a, offset)) = memory.range(address, 4) {
        witness.host_access(&a.checks, offset, &access).map_err(|f| *f)?;
    }
    Ok(run())
}
