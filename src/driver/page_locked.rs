//! Page-locked host memory: pinned for copies, mapped for kernels that talk to the host while they run.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::context::byte_len;
use super::device::Device;
use super::in_flight::{Access, Slot, Use};
use super::pointer::{DevicePtr, DeviceRepr, check_range};
use crate::{Error, Result};

/// Page-locked memory, and the record of its uses.
struct PageLocked<T: DeviceRepr> {
    device: Device,
    host: NonNull<T>,
    len: usize,
    slot: Slot,
}

// SAFETY: owns its memory; elements are plain data, and the owner decides who reaches them.
unsafe impl<T: DeviceRepr> Send for PageLocked<T> {}
// SAFETY: as above; through a shared reference it gives only its address.
unsafe impl<T: DeviceRepr> Sync for PageLocked<T> {}

impl<T: DeviceRepr> PageLocked<T> {
    fn new(device: &Device, what: &'static str, len: usize) -> Result<PageLocked<T>> {
        let bytes = byte_len::<T>(what, len)?;
        let host = if bytes == 0 { None } else { NonNull::new(device.context().allocate_host(what, bytes)?) };
        let host = host.map_or(NonNull::dangling(), NonNull::cast);
        Ok(PageLocked { device: device.clone(), host, len, slot: Slot::default() })
    }

    fn reads(&self, name: &'static str) -> Use<'_> {
        Use { slot: &self.slot, context: self.device.context(), access: Access::Read, name }
    }

    fn writes(&self, name: &'static str) -> Use<'_> {
        Use { slot: &self.slot, context: self.device.context(), access: Access::Write, name }
    }
}

impl<T: DeviceRepr> Drop for PageLocked<T> {
    fn drop(&mut self) {
        if self.len == 0 || size_of::<T>() == 0 {
            return;
        }
        // Where waiting fails the work may still run, or the context is lost: either way the memory stays as it is.
        let Ok(_quiet) = self.device.context().quiesce() else { return };
        if self.slot.lock().wait(Access::Write).is_ok() {
            // SAFETY: allocated by `new`, and no work uses it any more.
            let _ = unsafe { self.device.driver().api().host_free(self.host.as_ptr().cast()) };
        }
    }
}

/// Page-locked host memory, for copies that run while the host does something else.
///
/// The host sees its elements only after the device's last use.
pub struct PinnedBuffer<T: DeviceRepr>(PageLocked<T>);

impl<T: DeviceRepr> PinnedBuffer<T> {
    /// Allocates `len` elements of zero bytes.
    pub fn zeroed(device: &Device, len: usize) -> Result<PinnedBuffer<T>> {
        PageLocked::new(device, "pinned buffer", len).map(PinnedBuffer)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The elements, after the device's last write; blocks.
    pub fn as_slice(&self) -> Result<&[T]> {
        self.0.slot.lock().wait(Access::Read)?;
        // SAFETY: that many elements, zeroed at first. The device writes no more, and work that does is enqueued by a
        // mutable reference, which the slice excludes.
        Ok(unsafe { std::slice::from_raw_parts(self.0.host.as_ptr(), self.0.len) })
    }

    /// The elements, after the device's last use; blocks.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.0.slot.lock().wait(Access::Write)?;
        // SAFETY: as above, and the device reads no more either.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.host.as_ptr(), self.0.len) })
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.host.as_ptr()
    }

    pub(crate) fn range(&self, what: &str, range: Range<usize>) -> Result<Range<usize>> {
        check_range(what, range.start, range.end.saturating_sub(range.start), self.0.len)
    }

    /// For [`Stream::enqueue`](super::Stream::enqueue): the work reads this buffer, called `name` in errors.
    pub fn reads(&self, name: &'static str) -> Use<'_> {
        self.0.reads(name)
    }

    /// For [`Stream::enqueue`](super::Stream::enqueue): the work writes this buffer, called `name` in errors. The
    /// mutable reference keeps slices of it from being borrowed meanwhile.
    pub fn writes(&mut self, name: &'static str) -> Use<'_> {
        self.0.writes(name)
    }
}

impl<T: DeviceRepr> std::fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedBuffer").field("len", &self.0.len).finish_non_exhaustive()
    }
}

mod sealed {
    /// Seals [`MappedWord`](super::MappedWord): only two types have a known atomic.
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// Words that host and device can pass to each other while a kernel runs: `u32` and `u64`.
pub trait MappedWord: DeviceRepr + sealed::Sealed {
    /// The host's view of such a word.
    type Atomic: Sync;
}

impl MappedWord for u32 {
    type Atomic = AtomicU32;
}

impl MappedWord for u64 {
    type Atomic = AtomicU64;
}

/// Host memory that kernels read and write in place, also while they run.
///
/// The host reaches it by atomics only. Give each word one writer, and order by release and acquire: read-modify-write
/// shared by host and device is atomic only on devices that say so.
pub struct MappedBuffer<T: MappedWord> {
    memory: PageLocked<T>,
    pointer: DevicePtr<T>,
}

impl<T: MappedWord> MappedBuffer<T> {
    /// Allocates `len` words of zero.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] where the device cannot reach them; what the driver says of the allocation.
    pub fn zeroed(device: &Device, len: usize) -> Result<MappedBuffer<T>> {
        let memory = PageLocked::<T>::new(device, "mapped buffer", len)?;
        let address = match len {
            0 => 0,
            // SAFETY: the context is current since the allocation, which was of mapped memory.
            _ => unsafe { device.driver().api().host_device_pointer(memory.host.as_ptr().cast(), 0)? },
        };
        // On a device that maps no host memory a driver may succeed and give no address.
        if len != 0 && (address == 0 || !address.is_multiple_of(size_of::<T>() as u64)) {
            return Err(Error::InvalidAddress {
                call: "cuMemHostGetDevicePointer",
                what: "mapped buffer",
                found: address,
                alignment: size_of::<T>() as u64,
            });
        }
        Ok(MappedBuffer { memory, pointer: DevicePtr::new(address) })
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.memory.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.memory.len == 0
    }

    /// The host's view, at any time.
    pub fn words(&self) -> &[T::Atomic] {
        const { assert!(size_of::<T>() == size_of::<T::Atomic>() && align_of::<T>() <= align_of::<T::Atomic>()) };
        // SAFETY: that many words, zeroed at first, page-aligned, of the size asserted. The host makes no other
        // reference to them; what the device does to them is outside the language, as with any shared memory.
        unsafe { std::slice::from_raw_parts(self.memory.host.as_ptr().cast(), self.memory.len) }
    }

    /// The device's address of word 0.
    pub fn as_ptr(&self) -> DevicePtr<T> {
        self.pointer
    }

    /// For [`Stream::enqueue`](super::Stream::enqueue): the work reads this buffer, called `name` in errors.
    pub fn reads(&self, name: &'static str) -> Use<'_> {
        self.memory.reads(name)
    }

    /// For [`Stream::enqueue`](super::Stream::enqueue): the work writes this buffer, called `name` in errors.
    pub fn writes(&self, name: &'static str) -> Use<'_> {
        self.memory.writes(name)
    }
}

impl<T: MappedWord> std::fmt::Debug for MappedBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedBuffer")
            .field("pointer", &self.pointer)
            .field("len", &self.memory.len)
            .finish_non_exhaustive()
    }
}
