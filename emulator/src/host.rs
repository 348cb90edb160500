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
pub trait Word: sealed::Sealed {
    /// Its value.
    type Value;
    #[doc(hidden)]
    fn get(&self, order: Atomic) -> Self::Value;
    #[doc(hidden)]
    fn set(&self, value: Self::Value, order: Atomic);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! words {
    ($($word:ty: $value:ty;)*) => {
        $(impl sealed::Sealed for $word {}
        impl Word for $word {
            type Value = $value;
            fn get(&self, order: Atomic) -> $value {
                self.load(order)
            }
            fn set(&self, value: $value, order: Atomic) {
                self.store(value, order);
            }
        })*
    };
}

words! {
    AtomicU32: u32;
    AtomicU64: u64;
}

/// Loads a word. An error is a race: something has written the word that nothing orders before this load.
pub fn load<W: Word>(word: &W, order: Ordering) -> Result<W::Value, Fault> {
    access(word, order, false, || word.get(if order == Ordering::Acquire { Atomic::Acquire } else { Atomic::Relaxed }))
}

/// Stores a word. An error is a race: something accesses the word that nothing orders before this store.
pub fn store<W: Word>(word: &W, value: W::Value, order: Ordering) -> Result<(), Fault> {
    access(word, order, true, || {
        word.set(value, if order == Ordering::Release { Atomic::Release } else { Atomic::Relaxed });
    })
}

fn access<W: Word, T>(word: &W, order: Ordering, write: bool, run: impl FnOnce() -> T) -> Result<T, Fault> {
    let bytes = size_of_val(word);
    // Memory that no device can see cannot race with one.
    let Some((memory, address)) = mapped(std::ptr::from_ref(word).addr(), bytes) else { return Ok(run()) };
    let sem = match order {
        Ordering::Plain => Sem::Weak,
        Ordering::Relaxed => Sem::Relaxed,
        Ordering::Acquire => Sem::Acquire,
        Ordering::Release => Sem::Release,
    };
    let access = Access {
        bytes: bytes as u32,
        count: 1,
        write,
        atomic: false,
        sem,
        scope: Scope::Sys,
        nc: false,
        proxy: false,
        pending: false,
        constant_space: false,
    };
    let mut witness = memory.witness();
    if let Ok((a, offset)) = memory.range(address, bytes as u64) {
        witness.host_access(&a, offset, &access).map_err(|f| *f)?;
    }
    Ok(run())
}
