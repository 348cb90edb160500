//! Page-locked host memory: made here or registered, seen by kernels under a device address of its own.

use std::alloc::{Layout, alloc, dealloc};
use std::sync::Arc;

use super::abi::Outcome;
use super::codes::Code;
use super::config::Call;
use super::context::{Context, State};
use super::machine::Memory;

const PAGE: usize = 4096;
/// What fresh page-locked memory holds: nobody may count on zeros.
const FRESH: u8 = 0xcd;

/// A page-locked range; unmapped, and freed if it was made here, when dropped.
pub(crate) struct HostRange {
    address: usize,
    pub(crate) bytes: usize,
    pub(crate) device: u64,
    /// Set if the memory was allocated here.
    layout: Option<Layout>,
    memory: Arc<Memory>,
}

impl HostRange {
    /// Where it begins for the host.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.layout.is_none()
    }
}

impl Drop for HostRange {
    fn drop(&mut self) {
        // Unknown to the memory only if it was never mapped.
        let _ = self.memory.free(self.device);
        if let Some(layout) = self.layout {
            // SAFETY: allocated in `allocate_host` with this layout, and the range is dropped once.
            unsafe { dealloc(self.address as *mut u8, layout) };
        }
    }
}

impl State {
    /// The page-locked range that holds all of `address..address + bytes`.
    pub(crate) fn pinned(&self, address: usize, bytes: usize) -> Option<&HostRange> {
        let (&start, range) = self.host.range(..=address).next_back()?;
        (address.checked_add(bytes)? <= start + range.bytes).then_some(range)
    }

    fn overlaps_pinned(&self, address: usize, bytes: usize) -> bool {
        self.host
            .range(..address.saturating_add(bytes))
            .next_back()
            .is_some_and(|(&start, range)| start + range.bytes > address)
    }

    /// Whether a device address is that of page-locked host memory.
    pub(crate) fn is_host(&self, address: u64) -> bool {
        self.host.values().any(|range| (range.device..range.device + range.bytes as u64).contains(&address))
    }
}

impl Context {
    /// `cuMemHostAlloc`.
    pub(crate) fn allocate_host(&self, bytes: usize, flags: u32) -> Outcome<usize> {
        if bytes == 0 || flags & !7 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.state().captures.refuse_unsafe()?;
        self.device.injected(Call::Allocate)?;
        self.drain("cuMemHostAlloc")?;
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| Code::OUT_OF_MEMORY)?;
        // SAFETY: the size is not zero.
        let pointer = unsafe { alloc(layout) };
        if pointer.is_null() {
            return Err(Code::OUT_OF_MEMORY);
        }
        // SAFETY: allocated just above with this size.
        unsafe { pointer.write_bytes(FRESH, bytes) };
        // SAFETY: the memory lives until the range is dropped, which unmaps it first; how the host accesses it while
        // kernels run is the C caller's part.
        let device = unsafe { self.memory.map_host(pointer, bytes as u64) };
        let range =
            HostRange { address: pointer as usize, bytes, device, layout: Some(layout), memory: self.memory.clone() };
        self.state().host.insert(pointer as usize, range);
        Ok(pointer as usize)
    }

    /// `cuMemFreeHost`, which waits for everything that might still use the memory.
    pub(crate) fn free_host(&self, address: usize) -> Outcome {
        self.state().captures.refuse_unsafe()?;
        if self.state().host.get(&address).is_none_or(HostRange::is_registered) {
            return Err(Code::INVALID_VALUE);
        }
        let waited = self.wait_for_all("cuMemFreeHost");
        let range = self.state().host.remove(&address);
        drop(range);
        waited
    }

    /// `cuMemHostRegister`.
    pub(crate) fn register_host(&self, address: usize, bytes: usize, flags: u32) -> Outcome {
        if address == 0 || bytes == 0 || address.checked_add(bytes).is_none() || flags & !0xf != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if flags & 0xc != 0 {
            return Err(Code::NOT_SUPPORTED); // I/O memory, read-only
        }
        self.state().captures.refuse_unsafe()?;
        self.drain("cuMemHostRegister")?;
        let mut state = self.state();
        if state.overlaps_pinned(address, bytes) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        // SAFETY: the C caller keeps the memory valid until it is unregistered, which unmaps it.
        let device = unsafe { self.memory.map_host(address as *mut u8, bytes as u64) };
        let range = HostRange { address, bytes, device, layout: None, memory: self.memory.clone() };
        state.host.insert(address, range);
        Ok(())
    }

    /// `cuMemHostUnregister`.
    pub(crate) fn unregister_host(&self, address: usize) -> Outcome {
        self.state().captures.refuse_unsafe()?;
        match self.state().host.get(&address) {
            None => return Err(Code::HOST_MEMORY_NOT_REGISTERED),
            Some(range) if !range.is_registered() => return Err(Code::INVALID_VALUE),
            Some(_) => {}
        }
        let waited = self.wait_for_all("cuMemHostUnregister");
        let range = self.state().host.remove(&address);
        drop(range);
        waited
    }

    /// `cuMemHostGetDevicePointer`: where kernels see the host address.
    pub(crate) fn device_pointer(&self, address: usize) -> Outcome<u64> {
        let state = self.state();
        let (&start, range) = state.host.range(..=address).next_back().ok_or(Code::INVALID_VALUE)?;
        if address >= start + range.bytes {
            return Err(Code::INVALID_VALUE);
        }
        Ok(range.device + (address - start) as u64)
    }
}
