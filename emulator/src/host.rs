//! The host's own accesses to page-locked memory, as far as a test wants them checked.
//!
//! The emulator does not see what a program does with its own memory. Where a test makes the host's accesses to a
//! mailbox through [`load`] and [`store`], the host takes part in the race check as one thread of system scope: it is
//! ordered after what it has waited for (`cuStreamSynchronize`, `cuEventQuery`, ...) and what it has acquired, and
//! before what it asks for later and whoever acquires what it releases. All accesses of the host to these words must
//! then be made here, by whichever of its threads.

use crate::Fault;
use crate::device::mapped;
use crate::exec::access::Access;
use crate::exec::inst::{Scope, Sem};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering as Atomic};

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

/// A word that host and device may share: [`AtomicU32`] or [`AtomicU64`].
pub trait Word {
    /// Its value.
    type Value: Copy;
    /// Stores a value, or loads it.
    #[doc(hidden)]
    fn access(&self, store: Option<Self::Value>) -> Self::Value;
}

macro_rules! words {
    ($($word:ty: $value:ty),*) => {
        $(impl Word for $word {
            type Value = $value;
            fn access(&self, store: Option<$value>) -> $value {
                // Real order may be stricter than what is checked.
                store.inspect(|&value| self.store(value, Atomic::Release)).unwrap_or_else(|| self.load(Atomic::Acquire))
            }
        })*
    };
}

words!(AtomicU32: u32, AtomicU64: u64);

/// Loads a word. An error is a race: something has written the word that nothing orders before this load.
pub fn load<W: Word>(word: &W, order: Ordering) -> Result<W::Value, Fault> {
    access(word, order, None)
}

/// Stores a word. An error is a race: something accesses the word that nothing orders before this store.
pub fn store<W: Word>(word: &W, value: W::Value, order: Ordering) -> Result<(), Fault> {
    access(word, order, Some(value)).map(drop)
}

fn access<W: Word>(word: &W, order: Ordering, store: Option<W::Value>) -> Result<W::Value, Fault> {
    let bytes = size_of_val(word);
    // Memory that no device can see cannot race with one.
    let Some((memory, address)) = mapped(std::ptr::from_ref(word).addr(), bytes) else { return Ok(word.access(store)) };
    let sem = match order {
        Ordering::Plain => Sem::Weak,
        Ordering::Relaxed => Sem::Relaxed,
        Ordering::Acquire => Sem::Acquire,
        Ordering::Release => Sem::Release,
    };
    let access = Access { sem, scope: Scope::Sys, ..Access::new(bytes as u32, 1, store.is_some()) };
    // No launch synchronises between the check and the access.
    let mut witness = memory.witness();
    if let Ok((a, offset)) = memory.range(address, bytes as u64) {
        witness.host_access(&a, offset, &access).map_err(|f| *f)?;
    }
    Ok(word.access(store))
}
