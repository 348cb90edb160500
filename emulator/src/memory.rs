//! Device memory: allocations at addresses that are never used twice, backed by the host's memory.
//!
//! Kernels load with acquire and store with release, through atomics of the access's width; copies and fills go through
//! relaxed atomics of aligned words of eight bytes. So blocks on several threads, a host that polls mapped memory, and
//! copies beside them may race. (Rust's model leaves open what racing atomics of different widths do; that they act on
//! whole bytes is the machine's promise.) The table of allocations is replaced, never changed: a running kernel keeps its
//! table until its next look.

use crate::checks::allocation::AllocationChecks;
use crate::checks::order::Operation;
use crate::checks::witness::Witness;
use crate::machine::fault::OrFault;
use crate::machine::finding::Findings;
use crate::machine::lock::lock;
use crate::timing::timekeeper::L2;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The first device address.
pub(crate) const GLOBAL_BASE: u64 = 0x10_0000_0000;
/// The windows of shared memory, local memory and parameters in the generic address space, and their size.
pub(crate) const SHARED_BASE: u64 = 0x7100_0000_0000;
pub(crate) const LOCAL_BASE: u64 = 0x7200_0000_0000;
pub(crate) const PARAM_BASE: u64 = 0x7300_0000_0000;
/// Addresses of functions begin here: no memory has them.
pub(crate) const CODE_BASE: u64 = 0x7400_0000_0000;
pub(crate) const WINDOW: u64 = 1 << 32;
/// Bytes of a copy's buffer.
const STRETCH: usize = 4096;
/// Contents of fresh memory of every kind.
pub(crate) const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;

const ALIGN: u64 = 512;
/// Unmapped bytes after each allocation, so that an access past the end hits nothing.
const GUARD: u64 = 4096;
/// Most freed ranges that are remembered.
const FREED: usize = 4096;

/// Errors of device memory.
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
            Self::OutOfMemory { asked, left } => write!(f, "{asked} bytes asked for, {left} left on the device"),
            Self::NotAllocated { address } => write!(f, "{address:#x} is not the start of a live allocation"),
            Self::OutOfBounds { address, bytes } => {
                write!(f, "{bytes} bytes at {address:#x} are in no live allocation")
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
    /// The bytes: those of `owned`, or the host's where `owned` is empty.
    pub(crate) data: *mut u8,
    owned: Vec<u64>,
    /// Check state.
    pub(crate) checks: AllocationChecks,
}

// SAFETY: the bytes are only touched through atomics; the pointer is owned, or its owner vouches for it.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// The aligned word that holds a byte, and the byte's index in it. `None` where part of the word is not mapped.
    fn word(&self, offset: u64) -> Option<(usize, &AtomicU64)> {
        let at = self.data.wrapping_add(offset as usize);
        let before = at.addr() % 8;
        let first = offset.checked_sub(before as u64)?;
        if self.owned.is_empty() && first + 8 > self.size {
            return None;
        }
        // SAFETY: aligned and in the allocation: owned memory ends with a whole word. All threads use atomics.
        Some((before, unsafe { &*at.sub(before).cast() }))
    }

    /// A byte outside every mapped word.
    fn byte(&self, offset: u64) -> &AtomicU8 {
        // SAFETY: the callers checked the range. All threads use atomics.
        unsafe { &*self.data.add(offset as usize).cast() }
    }

    /// The aligned words within a range in bounds, and the number of bytes before the first of them.
    fn words(&self, offset: u64, bytes: usize) -> (usize, &[AtomicU64]) {
        let start = self.data.wrapping_add(offset as usize);
        let before = (start.addr().wrapping_neg() % 8).min(bytes);
        let count = (bytes - before) / 8;
        if count == 0 {
            return (before, &[]);
        }
        // SAFETY: aligned words inside the range. All threads use atomics.
        (before, unsafe { std::slice::from_raw_parts(start.add(before).cast(), count) })
    }

    /// Copies out a range in bounds.
    fn load(&self, offset: u64, out: &mut [u8]) {
        let (before, words) = self.words(offset, out.len());
        let (first, rest) = out.split_at_mut(before);
        let (eights, last) = rest.split_at_mut(8 * words.len());
        self.load_edge(offset, first);
        for (word, eight) in words.iter().zip(eights.chunks_exact_mut(8)) {
            eight.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        self.load_edge(offset + (before + 8 * words.len()) as u64, last);
    }

    /// Copies in a range in bounds.
    fn store(&self, offset: u64, from: &[u8]) {
        let (before, words) = self.words(offset, from.len());
        let (first, rest) = from.split_at(before);
        let (eights, last) = rest.split_at(8 * words.len());
        self.store_edge(offset, first);
        for (word, eight) in words.iter().zip(eights.chunks_exact(8)) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(eight);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        self.store_edge(offset + (before + 8 * words.len()) as u64, last);
    }

    /// Copies out some bytes of one word.
    fn load_edge(&self, offset: u64, out: &mut [u8]) {
        if out.is_empty() {
            return;
        }
        match self.word(offset) {
            Some((before, word)) => {
                let word = word.load(Ordering::Relaxed).to_ne_bytes();
                out.copy_from_slice(&word[before..before + out.len()]);
            }
            None => (offset..).zip(out).for_each(|(at, byte)| *byte = self.byte(at).load(Ordering::Relaxed)),
        }
    }

    /// Copies in some bytes of one word, atomically: others may write its remaining bytes at the same time.
    fn store_edge(&self, offset: u64, from: &[u8]) {
        if from.is_empty() {
            return;
        }
        match self.word(offset) {
            Some((before, word)) => {
                let set = |old: u64| {
                    let mut word = old.to_ne_bytes();
                    word[before..before + from.len()].copy_from_slice(from);
                    Some(u64::from_ne_bytes(word))
                };
                let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
            }
            None => (offset..).zip(from).for_each(|(at, byte)| self.byte(at).store(*byte, Ordering::Relaxed)),
        }
    }
}

/// The live allocations, in order of address, and what was freed.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) live: Vec<Arc<Allocation>>,
    /// Freed ranges, for reports of their use.
    freed: Vec<(u64, u64)>,
    /// The first address that was never used.
    next: u64,
}

impl Table {
    /// Index of the allocation nearest below an address.
    pub(crate) fn below(&self, address: u64) -> Option<usize> {
        self.live.partition_point(|a| a.base <= address).checked_sub(1)
    }

    /// Index of the allocation that holds an address.
    pub(crate) fn find(&self, address: u64) -> Option<usize> {
        self.below(address).filter(|&i| address - self.live[i].base < self.live[i].size.max(1))
    }

    /// Whether an address lies in memory that was freed.
    pub(crate) fn was_freed(&self, address: u64) -> bool {
        self.freed.iter().any(|&(base, size)| address.wrapping_sub(base) < size)
    }

    /// Bytes in use, without the host's.
    fn used(&self) -> u64 {
        self.live.iter().map(|a| 8 * a.owned.len() as u64).sum()
    }

    /// Adds an allocation at `base`, backed by `owned` or else by `host`.
    fn add(&mut self, base: u64, size: u64, mut owned: Vec<u64>, host: Option<*mut u8>) -> u64 {
        let data = host.unwrap_or(owned.as_mut_ptr().cast());
        let checks = AllocationChecks::new(base, size, host.is_some());
        self.next = (base + size).next_multiple_of(ALIGN) + GUARD;
        self.insert(Allocation { base, size, data, owned, checks });
        base
    }

    /// Keeps the order of addresses: memory that shares the host's lies behind all other.
    fn insert(&mut self, allocation: Allocation) {
        let place = self.live.partition_point(|a| a.base < allocation.base);
        self.live.insert(place, Arc::new(allocation));
    }
}

/// The memory of one device.
pub struct Memory {
    limit: u64,
    table: Mutex<Arc<Table>>,
    witness: Mutex<Witness>,
    /// What launches found that did not end them.
    findings: Mutex<Findings>,
    /// What a modelled chip's L2 holds between launches.
    l2: Mutex<Option<L2>>,
    heap: Mutex<Heap>,
}

/// What kernels have from `malloc`.
#[derive(Default)]
struct Heap {
    /// Addresses and bytes.
    taken: BTreeMap<u64, u64>,
    /// Its size, where a program has set one.
    bytes: Option<u64>,
    /// Whether a kernel has asked for some of it.
    asked: bool,
}

impl Memory {
    /// What a modelled chip's L2 holds; a launch takes it and gives it back.
    pub(crate) fn take_l2(&self) -> Option<L2> {
        lock(&self.l2).take()
    }

    pub(crate) fn keep_l2(&self, l2: L2) {
        *lock(&self.l2) = Some(l2);
    }

    /// Memory of at most `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Memory {
        Memory::beginning_at(GLOBAL_BASE, limit_bytes)
    }

    /// The same, with another first address.
    pub(crate) fn beginning_at(base: u64, limit_bytes: u64) -> Memory {
        let table = Table { live: Vec::new(), freed: Vec::new(), next: base };
        Memory {
            limit: limit_bytes,
            table: Mutex::new(Arc::new(table)),
            witness: Mutex::default(),
            findings: Mutex::default(),
            l2: Mutex::default(),
            heap: Mutex::default(),
        }
    }

    /// What launches over this memory have found so far, where findings do not end them.
    pub fn findings(&self) -> Findings {
        self.found().clone()
    }

    pub(crate) fn found(&self) -> MutexGuard<'_, Findings> {
        lock(&self.findings)
    }

    /// Compares a copy or fill of a range with the accesses before it, and notes it.
    pub(crate) fn touched(&self, op: &Arc<Operation>, address: u64, bytes: u64, write: bool) -> OrFault<()> {
        let Ok((a, offset)) = self.range(address, bytes) else { return Ok(()) };
        a.checks.touched(op, offset, bytes, write)
    }

    /// State of the race check beyond one launch.
    pub(crate) fn witness(&self) -> MutexGuard<'_, Witness> {
        lock(&self.witness)
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        lock(&self.table).clone()
    }

    fn change<T>(&self, f: impl FnOnce(&mut Table) -> T) -> T {
        f(Arc::make_mut(&mut lock(&self.table)))
    }

    /// Allocates device memory, aligned to 512 bytes. Its contents are poison and count as not written.
    pub fn alloc(&self, bytes: u64) -> Result<u64, MemoryError> {
        self.change(|table| {
            let left = self.limit.saturating_sub(table.used());
            let failed = MemoryError::OutOfMemory { asked: bytes, left };
            let room = bytes.max(1).checked_next_multiple_of(ALIGN).filter(|&room| room <= left);
            let Some(words) = room.and_then(|room| usize::try_from(room / 8).ok()) else { return Err(failed) };
            let mut owned = Vec::new();
            owned.try_reserve_exact(words).map_err(|_| failed)?;
            owned.resize(words, POISON);
            Ok(table.add(table.next, bytes, owned, None))
        })
    }

    /// Sets the size of the kernels' heap. Returns whether no kernel has asked for some of it yet.
    pub(crate) fn set_heap(&self, bytes: u64) -> bool {
        let mut heap = lock(&self.heap);
        if !heap.asked {
            heap.bytes = Some(bytes);
        }
        !heap.asked
    }

    /// Allocates for a kernel, out of a heap of `most` bytes unless another size was set.
    pub(crate) fn alloc_on_heap(&self, bytes: u64, most: u64) -> Option<u64> {
        let mut heap = lock(&self.heap);
        heap.asked = true;
        let (used, most): (u64, _) = (heap.taken.values().sum(), heap.bytes.unwrap_or(most));
        bytes.checked_add(used).filter(|&all| bytes > 0 && all <= most)?;
        let address = self.alloc(bytes).ok()?;
        heap.taken.insert(address, bytes);
        Some(address)
    }

    /// Frees what `alloc_on_heap` returned. Returns whether it did return the address, and nothing has freed it since.
    pub(crate) fn free_on_heap(&self, address: u64) -> bool {
        lock(&self.heap).taken.remove(&address).is_some() && self.free(address).is_ok()
    }

    /// Lets kernels see `bytes` of the host's memory at the returned device address.
    ///
    /// # Safety
    /// The memory must stay valid, and be accessed by the host only through atomics while kernels run, until it is
    /// freed here.
    pub unsafe fn map_host(&self, host: *mut u8, bytes: u64) -> u64 {
        self.change(|table| {
            // The offset within a page is kept, so that alignment means the same on both sides.
            let base = table.next.next_multiple_of(4096) + host as u64 % 4096;
            table.add(base, bytes, Vec::new(), Some(host))
        })
    }

    /// Lets kernels see `bytes` of the host's memory at the host's own address.
    ///
    /// # Safety
    /// As for [`Memory::map_host`].
    pub(crate) unsafe fn share_host(&self, host: *mut u8, bytes: u64) -> Result<u64, MemoryError> {
        let base = host as u64;
        let end = base.saturating_add(bytes);
        let in_window = |start: u64| base < start + WINDOW && end > start;
        self.change(|table| {
            let taken = table.live.iter().any(|a| base < a.base + a.size.max(1) && a.base < end);
            if taken || base < table.next || [SHARED_BASE, LOCAL_BASE, PARAM_BASE].into_iter().any(in_window) {
                return Err(MemoryError::OutOfBounds { address: base, bytes });
            }
            // The host uses addresses again.
            table.freed.retain(|&(start, size)| end <= start || start + size <= base);
            let checks = AllocationChecks::new(base, bytes, true);
            table.insert(Allocation { base, size: bytes, data: host, owned: Vec::new(), checks });
            Ok(base)
        })
    }

    /// Whether kernels see any of the host's memory.
    pub(crate) fn is_mapped(&self) -> bool {
        self.table().live.iter().any(|a| a.owned.is_empty())
    }

    /// Frees what `alloc`, `map_host` or `share_host` returned. A kernel faults at its next access to it.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        self.change(|table| {
            let found = table.live.iter().position(|a| a.base == address);
            let freed = table.live.remove(found.ok_or(MemoryError::NotAllocated { address })?);
            if table.freed.len() >= FREED {
                table.freed.drain(..FREED / 2);
            }
            table.freed.push((freed.base, freed.size));
            Ok(())
        })
    }

    /// The allocation that a range lies in, and its offset there.
    pub(crate) fn range(&self, address: u64, bytes: u64) -> Result<(Arc<Allocation>, u64), MemoryError> {
        let table = self.table();
        let a = table.find(address).map(|i| &table.live[i]).filter(|a| bytes <= a.size - (address - a.base));
        a.map(|a| (a.clone(), address - a.base)).ok_or(MemoryError::OutOfBounds { address, bytes })
    }

    /// Copies bytes to the device.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.fill(address, bytes, 1)
    }

    /// Writes `count` copies of a pattern.
    pub fn fill(&self, address: u64, pattern: &[u8], count: u64) -> Result<(), MemoryError> {
        let bytes = count.saturating_mul(pattern.len() as u64);
        if bytes == 0 {
            return Ok(());
        }
        let (a, offset) = self.range(address, bytes)?;
        let copies = (STRETCH / pattern.len()).clamp(1, count.min(STRETCH as u64) as usize);
        let repeated = if copies > 1 { pattern.repeat(copies) } else { Vec::new() };
        let stretch = if copies > 1 { repeated.as_slice() } else { pattern };
        let mut done = 0;
        while done < bytes {
            let more = (bytes - done).min(stretch.len() as u64);
            a.store(offset + done, &stretch[..more as usize]);
            done += more;
        }
        a.checks.mark(offset, bytes);
        Ok(())
    }

    /// Copies bytes from the device.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        if !out.is_empty() {
            let (a, offset) = self.range(address, out.len() as u64)?;
            a.load(offset, out);
        }
        Ok(())
    }

    /// Copies within the device; ranges may overlap. Copies of unwritten bytes count as unwritten.
    pub fn copy(&self, dst: u64, src: u64, bytes: u64) -> Result<(), MemoryError> {
        if bytes == 0 {
            return Ok(());
        }
        let (s, from) = self.range(src, bytes)?;
        let (d, to) = self.range(dst, bytes)?;
        let mut stretch = [0; STRETCH];
        let stretches = bytes.div_ceil(STRETCH as u64);
        for i in 0..stretches {
            // From the end where the destination lies behind: what is overwritten was copied before.
            let i = if dst > src { stretches - 1 - i } else { i } * STRETCH as u64;
            let stretch = &mut stretch[..(bytes - i).min(STRETCH as u64) as usize];
            s.load(from + i, stretch);
            d.store(to + i, stretch);
        }
        if s.checks.is_written(from, bytes) {
            d.checks.mark(to, bytes);
        } else {
            let written: Vec<u64> = (0..bytes).filter(|&i| s.checks.is_written(from + i, 1)).collect();
            written.into_iter().for_each(|i| d.checks.mark(to + i, 1));
        }
        Ok(())
    }

    /// Whether every byte of a range is defined: written by something, and not with an undefined value.
    pub fn initialised(&self, address: u64, bytes: u64) -> Result<bool, MemoryError> {
        let (a, offset) = self.range(address, bytes)?;
        Ok(a.checks.is_written(offset, bytes))
    }

    /// The first address in a range of an allocation that is undefined.
    pub(crate) fn first_undefined(&self, address: u64, bytes: u64) -> Option<u64> {
        let (a, offset) = self.range(address, bytes).ok()?;
        let all = a.checks.is_written(offset, bytes);
        (!all).then(|| (0..bytes).find(|&i| !a.checks.is_written(offset + i, 1)).map(|i| address + i)).flatten()
    }

    /// Bytes in use, in units of 512.
    pub fn used(&self) -> u64 {
        self.table().used()
    }

    /// Live allocations: address and size.
    pub fn live_allocations(&self) -> Vec<(u64, u64)> {
        self.table().live.iter().map(|a| (a.base, a.size)).collect()
    }
}
