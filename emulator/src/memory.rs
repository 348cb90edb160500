//! Device memory: allocations at addresses that are never used twice, backed by the host's memory.
//!
//! Kernels access bytes in place through relaxed atomics of the access's width, so that blocks on several threads, and
//! a host that polls mapped memory, may race without undefined behaviour. The table of allocations is replaced, never
//! changed: a running kernel keeps the one it has until its next look.

use crate::checks::GlobalShadow;
use crate::checks::order::Operation;
use crate::checks::witness::Witness;
use crate::exec::access::Access;
use std::alloc::{Layout, alloc, dealloc};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The first device address.
pub(crate) const GLOBAL_BASE: u64 = 0x10_0000_0000;
/// The window of shared memory in the generic address space.
pub(crate) const SHARED_BASE: u64 = 0x7100_0000_0000;
/// The window of local memory.
pub(crate) const LOCAL_BASE: u64 = 0x7200_0000_0000;
/// The window of kernel parameters.
pub(crate) const PARAM_BASE: u64 = 0x7300_0000_0000;
/// Size of each window.
pub(crate) const WINDOW: u64 = 1 << 32;

const ALIGN: u64 = 512;
/// Unmapped bytes after each allocation, so that an access past the end hits nothing.
const GUARD: u64 = 4096;
const POISON: u8 = 0xa5;

/// What went wrong with device memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryError {
    /// The device's memory is used up.
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes left.
        left: u64,
    },
    /// An address that is not the start of a live allocation.
    NotAllocated {
        /// The address.
        address: u64,
    },
    /// A range that is not inside one live allocation.
    OutOfBounds {
        /// First address of the range.
        address: u64,
        /// Its length.
        bytes: u64,
    },
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::OutOfMemory { asked, left } => {
                write!(f, "out of device memory: {asked} bytes asked for, {left} left")
            }
            MemoryError::NotAllocated { address } => write!(f, "{address:#x} is not the start of a live allocation"),
            MemoryError::OutOfBounds { address, bytes } => {
                write!(f, "{bytes} bytes at {address:#x} are not inside one live allocation")
            }
        }
    }
}

impl std::error::Error for MemoryError {}

/// One allocation.
pub(crate) struct Allocation {
    /// First device address.
    pub(crate) base: u64,
    /// Bytes that may be accessed.
    pub(crate) size: u64,
    /// The bytes.
    pub(crate) data: *mut u8,
    /// How `data` was allocated; `None` for memory of the host.
    layout: Option<Layout>,
    /// One bit a byte: written by something. Absent for memory of the host, which counts as written.
    pub(crate) written: Option<Box<[AtomicU8]>>,
    /// Written as a whole, or by a launch that kept no account of it: everything counts as written.
    pub(crate) assumed: AtomicBool,
    /// Race-check state, made on first use.
    pub(crate) shadow: std::sync::OnceLock<crate::checks::GlobalShadow>,
}

// SAFETY: the bytes are only touched through atomics or by `Memory` under its lock; the pointer is owned.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated with this layout in `Memory::alloc`.
            unsafe { dealloc(self.data, layout) }
        }
    }
}

impl Allocation {
    /// Marks bytes as written.
    #[inline]
    pub(crate) fn mark(&self, offset: u64, bytes: u64) {
        let Some(map) = &self.written else { return };
        if self.assumed.load(Ordering::Relaxed) {
            return;
        }
        if offset == 0 && bytes == self.size {
            self.assumed.store(true, Ordering::Relaxed);
            return;
        }
        let (mut i, end) = (offset as usize, (offset + bytes) as usize);
        while i < end {
            if i % 8 == 0 && end - i >= 8 {
                map[i / 8].store(0xff, Ordering::Relaxed);
                i += 8;
            } else {
                let n = (8 - i % 8).min(end - i);
                let bits = ((1u16 << n) - 1) << (i % 8);
                if u16::from(map[i / 8].load(Ordering::Relaxed)) & bits != bits {
                    map[i / 8].fetch_or(bits as u8, Ordering::Relaxed);
                }
                i += n;
            }
        }
    }

    /// Whether all of some bytes were written; at most 8 of them, not across a multiple of 8.
    #[inline]
    pub(crate) fn is_written(&self, offset: u64, bytes: u64) -> bool {
        let Some(map) = &self.written else { return true };
        if self.assumed.load(Ordering::Relaxed) {
            return true;
        }
        let bits = (((1u16 << bytes) - 1) << (offset % 8)) as u8;
        map[(offset / 8) as usize].load(Ordering::Relaxed) & bits == bits
    }
}

/// The live allocations, in order of address, and what was freed.
#[derive(Default, Clone)]
pub(crate) struct Table {
    pub(crate) live: Vec<Arc<Allocation>>,
    /// Freed ranges, for the message.
    freed: Arc<Vec<(u64, u64)>>,
}

impl Table {
    /// Index of the allocation that holds an address.
    pub(crate) fn find(&self, address: u64) -> Option<usize> {
        let after = self.live.partition_point(|a| a.base <= address);
        let i = after.checked_sub(1)?;
        (address - self.live[i].base < self.live[i].size.max(1)).then_some(i)
    }

    /// The allocation nearest below an address.
    pub(crate) fn below(&self, address: u64) -> Option<&Allocation> {
        let after = self.live.partition_point(|a| a.base <= address);
        after.checked_sub(1).map(|i| &*self.live[i])
    }

    /// Whether an address lies in memory that was freed.
    pub(crate) fn was_freed(&self, address: u64) -> bool {
        self.freed.iter().any(|&(base, size)| address.wrapping_sub(base) < size)
    }
}

struct Inner {
    next: u64,
    used: u64,
}

/// The memory of one device.
pub struct Memory {
    limit: u64,
    inner: Mutex<Inner>,
    table: RwLock<Arc<Table>>,
    version: AtomicU64,
    witness: Mutex<Witness>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Memory of at most `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Memory {
        Memory {
            limit: limit_bytes,
            inner: Mutex::new(Inner { next: GLOBAL_BASE, used: 0 }),
            table: RwLock::default(),
            version: AtomicU64::new(0),
            witness: Mutex::default(),
        }
    }

    /// A copy or fill is about to touch a range: compares it with what is not ordered before it.
    pub(crate) fn touched(
        &self,
        op: &Arc<Operation>,
        address: u64,
        bytes: u64,
        write: bool,
    ) -> Result<(), Box<crate::Fault>> {
        let Ok((a, offset)) = self.range(address, bytes) else { return Ok(()) };
        let shadow = a.shadow.get_or_init(|| GlobalShadow::new(a.size));
        let compared = shadow.range(op, offset, offset + bytes, write);
        compared.map_err(|other| other.fault(op, write, "device", a.base))
    }

    /// The host accesses a word: checked and done while no launch synchronises.
    pub(crate) fn host_access<T>(
        &self,
        address: u64,
        access: &Access,
        run: impl FnOnce() -> T,
    ) -> Result<T, crate::Fault> {
        let mut witness = self.witness();
        if let Ok((a, offset)) = self.range(address, u64::from(access.bytes)) {
            witness.host_access(&a, offset, access).map_err(|f| *f)?;
        }
        Ok(run())
    }

    /// What the race check knows of this memory.
    pub(crate) fn witness(&self) -> MutexGuard<'_, Witness> {
        lock(&self.witness)
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes whenever the table does.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn change(&self, f: impl FnOnce(&mut Table)) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let mut new = Table::clone(&table);
        f(&mut new);
        *table = Arc::new(new);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Allocates device memory, aligned to 512 bytes. Its contents are poison and count as not written.
    pub fn alloc(&self, bytes: u64) -> Result<u64, MemoryError> {
        let mut inner = lock(&self.inner);
        let left = self.limit.saturating_sub(inner.used);
        let room = bytes.max(1).div_ceil(ALIGN).checked_mul(ALIGN).filter(|&r| r <= left);
        let failed = MemoryError::OutOfMemory { asked: bytes, left };
        let Some(room) = room else { return Err(failed) };
        let layout = usize::try_from(room).ok().and_then(|r| Layout::from_size_align(r, ALIGN as usize).ok());
        let Some(layout) = layout else { return Err(failed) };
        // SAFETY: the size is not zero.
        let data = unsafe { alloc(layout) };
        if data.is_null() {
            return Err(failed);
        }
        // SAFETY: `room` bytes were just allocated.
        unsafe { data.write_bytes(POISON, room as usize) };
        let written = (0..room.div_ceil(8)).map(|_| AtomicU8::new(0)).collect();
        let base = inner.next;
        inner.next += room + GUARD;
        inner.used += room;
        let allocation = Allocation {
            base,
            size: bytes,
            data,
            layout: Some(layout),
            written: Some(written),
            assumed: false.into(),
            shadow: Default::default(),
        };
        self.change(|t| t.live.push(Arc::new(allocation)));
        Ok(base)
    }

    /// Lets kernels see `bytes` of the host's memory at the returned device address.
    ///
    /// # Safety
    /// The memory must stay valid, and be accessed by the host only through atomics while kernels run, until it is
    /// freed here.
    pub unsafe fn map_host(&self, host: *mut u8, bytes: u64) -> u64 {
        let mut inner = lock(&self.inner);
        // The offset within a page is kept, so that alignment means the same on both sides.
        let base = inner.next.next_multiple_of(4096) + host as u64 % 4096;
        inner.next = (base + bytes).next_multiple_of(4096) + GUARD;
        let allocation = Allocation {
            base,
            size: bytes,
            data: host,
            layout: None,
            written: None,
            assumed: false.into(),
            shadow: Default::default(),
        };
        self.change(|t| t.live.push(Arc::new(allocation)));
        base
    }

    /// Frees what `alloc` or `map_host` returned. A kernel that still uses it is told at its next access.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        let mut inner = lock(&self.inner);
        let table = self.table();
        let found = table.live.iter().position(|a| a.base == address);
        let i = found.ok_or(MemoryError::NotAllocated { address })?;
        let a = &table.live[i];
        if let Some(layout) = a.layout {
            inner.used -= layout.size() as u64;
        }
        self.change(|t| {
            let a = t.live.remove(i);
            let mut freed = Vec::clone(&t.freed);
            if freed.len() >= 4096 {
                freed.drain(..2048);
            }
            freed.push((a.base, a.size));
            t.freed = Arc::new(freed);
        });
        Ok(())
    }

    fn range(&self, address: u64, bytes: u64) -> Result<(Arc<Allocation>, u64), MemoryError> {
        let table = self.table();
        let found = table.find(address).map(|i| table.live[i].clone());
        let a = found.ok_or(MemoryError::OutOfBounds { address, bytes })?;
        let offset = address - a.base;
        if bytes > a.size - offset { Err(MemoryError::OutOfBounds { address, bytes }) } else { Ok((a, offset)) }
    }

    /// Copies bytes to the device.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (a, offset) = self.range(address, bytes.len() as u64)?;
        // SAFETY: the range was checked; racing kernels are the caller's mistake, as on the device.
        unsafe { std::ptr::copy(bytes.as_ptr(), a.data.add(offset as usize), bytes.len()) };
        a.mark(offset, bytes.len() as u64);
        Ok(())
    }

    /// Copies bytes from the device.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        if out.is_empty() {
            return Ok(());
        }
        let (a, offset) = self.range(address, out.len() as u64)?;
        // SAFETY: the range was checked.
        unsafe { std::ptr::copy(a.data.add(offset as usize), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies within the device; ranges may overlap. What was never written stays so.
    pub fn copy(&self, dst: u64, src: u64, bytes: u64) -> Result<(), MemoryError> {
        if bytes == 0 {
            return Ok(());
        }
        let (s, from) = self.range(src, bytes)?;
        let (d, to) = self.range(dst, bytes)?;
        // SAFETY: both ranges were checked; `copy` allows overlap.
        unsafe { std::ptr::copy(s.data.add(from as usize), d.data.add(to as usize), bytes as usize) };
        if d.written.is_some() {
            let state: Vec<bool> = (0..bytes).map(|i| s.is_written(from + i, 1)).collect();
            if state.iter().all(|&w| w) {
                d.mark(to, bytes);
            } else {
                (0..bytes).filter(|&i| state[i as usize]).for_each(|i| d.mark(to + i, 1));
            }
        }
        Ok(())
    }

    /// Sets `count` bytes.
    pub fn set_u8(&self, address: u64, value: u8, count: u64) -> Result<(), MemoryError> {
        if count == 0 {
            return Ok(());
        }
        let (a, offset) = self.range(address, count)?;
        // SAFETY: the range was checked.
        unsafe { a.data.add(offset as usize).write_bytes(value, count as usize) };
        a.mark(offset, count);
        Ok(())
    }

    /// Sets `count` 32-bit words.
    pub fn set_u32(&self, address: u64, value: u32, count: u64) -> Result<(), MemoryError> {
        if count == 0 {
            return Ok(());
        }
        let bytes = count.checked_mul(4).ok_or(MemoryError::OutOfBounds { address, bytes: count })?;
        let (a, offset) = self.range(address, bytes)?;
        for i in 0..count as usize {
            // SAFETY: the range was checked.
            unsafe { a.data.add(offset as usize + 4 * i).cast::<u32>().write_unaligned(value) };
        }
        a.mark(offset, bytes);
        Ok(())
    }

    /// Whether every byte of a range was written by something.
    pub fn initialised(&self, address: u64, bytes: u64) -> Result<bool, MemoryError> {
        let (a, offset) = self.range(address, bytes)?;
        Ok((0..bytes).all(|i| a.is_written(offset + i, 1)))
    }

    /// Bytes in use, in units of 512.
    pub fn used(&self) -> u64 {
        lock(&self.inner).used
    }

    /// Live allocations: address and size.
    pub fn live_allocations(&self) -> Vec<(u64, u64)> {
        self.table().live.iter().map(|a| (a.base, a.size)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_aligned_distinct_and_checked() {
        let m = Memory::new(1 << 20);
        let (a, b) = (m.alloc(10).unwrap(), m.alloc(1000).unwrap());
        assert_eq!((a % 512, b % 512), (0, 0));
        m.write(a, &[1, 2, 3]).unwrap();
        let mut out = [0; 3];
        m.read(a, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3]);
        assert!(m.write(a, &[0; 11]).is_err());
        assert!(matches!(m.alloc(1 << 21), Err(MemoryError::OutOfMemory { .. })));
        m.free(a).unwrap();
        assert_eq!(m.free(a), Err(MemoryError::NotAllocated { address: a }));
        assert!(m.table().was_freed(a));
        assert_ne!(m.alloc(10).unwrap(), a, "a freed address is not used again");
    }

    #[test]
    fn copies_carry_what_was_never_written() {
        let m = Memory::new(1 << 20);
        let (a, b) = (m.alloc(64).unwrap(), m.alloc(64).unwrap());
        m.write(a + 3, &[7; 30]).unwrap();
        m.copy(b, a, 64).unwrap();
        assert!(m.initialised(b + 3, 30).unwrap());
        assert!(!m.initialised(b + 2, 2).unwrap());
        assert!(!m.initialised(b + 33, 1).unwrap());
    }
}
