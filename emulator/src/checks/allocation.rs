//! State of the checks for one allocation of device memory.

use super::order::Operation;
use super::shadow::GlobalShadow;
use crate::machine::fault::OrFault;
use crate::machine::lock::lock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The written bytes of an allocation, and the accesses to it.
pub(crate) struct AllocationChecks {
    /// First device address.
    pub(crate) base: u64,
    size: u64,
    /// One bit a byte: written by something. Empty where everything is assumed to be.
    written: Box<[AtomicU8]>,
    /// Everything counts as written: host memory, memory written as a whole, and memory written by a launch that ran
    /// without the check.
    assumed: AtomicBool,
    /// Held while bytes become undefined again.
    unmarking: Mutex<()>,
    /// State of the race check, made on first use.
    shadow: OnceLock<GlobalShadow>,
}

/// The bytes of a bitmap (one bit per byte of memory) that a range touches, each with its mask.
#[inline(always)]
fn map_bits(offset: u64, bytes: u64) -> impl Iterator<Item = (usize, u8)> {
    let end = offset + bytes;
    (offset / 8..end.div_ceil(8)).map(move |i| {
        let (from, to) = (offset.max(8 * i) - 8 * i, end.min(8 * i + 8) - 8 * i);
        (i as usize, ((1u16 << to) - (1 << from)) as u8)
    })
}

impl AllocationChecks {
    /// Checks of fresh memory: unwritten on the device, assumed written where it is the `host`'s.
    pub(crate) fn new(base: u64, size: u64, host: bool) -> AllocationChecks {
        let bits = if host { 0 } else { size.div_ceil(8) };
        let written = (0..bits).map(|_| AtomicU8::new(0)).collect();
        AllocationChecks {
            base,
            size,
            written,
            assumed: host.into(),
            unmarking: Mutex::default(),
            shadow: OnceLock::new(),
        }
    }

    /// Counts everything as written from now on.
    #[inline(always)]
    pub(crate) fn assume_written(&self) {
        if !self.assumed.load(Ordering::Relaxed) {
            self.assumed.store(true, Ordering::Relaxed);
        }
    }

    /// Marks bytes as written.
    #[inline]
    pub(crate) fn mark(&self, offset: u64, bytes: u64) {
        if self.assumed.load(Ordering::Relaxed) {
            return;
        }
        if offset == 0 && bytes == self.size {
            self.assumed.store(true, Ordering::Relaxed);
            return;
        }
        for (i, bits) in map_bits(offset, bytes) {
            if self.written[i].load(Ordering::Relaxed) & bits != bits {
                self.written[i].fetch_or(bits, Ordering::Relaxed);
            }
        }
    }

    /// Marks bytes as undefined: a kernel has stored there what is undefined. Host memory stays as it is.
    #[cold]
    pub(crate) fn unmark(&self, offset: u64, bytes: u64) {
        if self.is_host() {
            return;
        }
        let _held = lock(&self.unmarking);
        if self.assumed.load(Ordering::Relaxed) {
            self.written.iter().for_each(|bits| bits.store(u8::MAX, Ordering::Relaxed));
            self.assumed.store(false, Ordering::Relaxed);
        }
        for (i, bits) in map_bits(offset, bytes) {
            self.written[i].fetch_and(!bits, Ordering::Relaxed);
        }
    }

    /// Whether it is the host's memory, all of which counts as written.
    pub(crate) fn is_host(&self) -> bool {
        self.written.is_empty()
    }

    /// Whether every byte counts as written.
    #[inline(always)]
    pub(crate) fn all_written(&self) -> bool {
        self.assumed.load(Ordering::Relaxed)
    }

    /// Whether every byte of a range was written.
    #[inline]
    pub(crate) fn is_written(&self, offset: u64, bytes: u64) -> bool {
        self.assumed.load(Ordering::Relaxed)
            || map_bits(offset, bytes).all(|(i, bits)| self.written[i].load(Ordering::Relaxed) & bits == bits)
    }

    /// State of the race check.
    #[inline(always)]
    pub(super) fn shadow(&self) -> &GlobalShadow {
        self.shadow.get_or_init(|| GlobalShadow::new(self.size))
    }

    /// State of the race check, where an access has made it.
    pub(super) fn used_shadow(&self) -> Option<&GlobalShadow> {
        self.shadow.get()
    }

    /// Compares a copy or fill of a range with every access that does not happen before it, and notes it.
    pub(crate) fn touched(&self, op: &Arc<Operation>, offset: u64, bytes: u64, write: bool) -> OrFault<()> {
        let compared = self.shadow().range(op, offset, offset + bytes, write);
        compared.map_err(|(at, conflict)| conflict.fault(op, write, "device", self.base + at))
    }
}
