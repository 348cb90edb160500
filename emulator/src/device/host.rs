//! The host's own accesses to page-locked memory, as far as a test wants them checked.
//!
//! The emulator does not see what a program does with its own memory. Where a test makes the host's accesses to a
//! mailbox through [`load`] and [`store`], the host takes part in the race check as one thread of system scope: it is
//! ordered after what it has waited for (`cuStreamSynchronize`, `cuEventQuery`, ...) and what it has acquired, and
//! before what it asks for later and whoever acquires what it releases. All accesses of the host to these words must
//! then be made here, by whichever of its threads.

use super::registry::mapped;
use crate::machine::access::{Access, Scope, Sem};
use crate::machine::fault::Fault;
use std::sync::atomic::{AtomicU32, Ordering as Atomic};

/// How the host accesses a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// As an ordinary variable.
    Plain,
    /// Atomic, ordering nothing.
    Relaxed,
    /// A load that what follows it comes after.
    Acquire,
    /// A store that what is before it comes before.
    Release,
}

/// Loads a word. An error is a race: something has written the word that nothing orders before this load.
pub fn load(word: &AtomicU32, order: Ordering) -> Result<u32, Fault> {
    access(word, order, false, || word.load(Atomic::Acquire))
}

/// Stores a word. An error is a race: something accesses the word that nothing orders before this store.
pub fn store(word: &AtomicU32, value: u32, order: Ordering) -> Result<(), Fault> {
    access(word, order, true, || word.store(value, Atomic::Release))
}

/// Checks an access, then runs it: what really orders it may be stronger than what is checked.
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
