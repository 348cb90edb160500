//! Device memory: typed buffers that free themselves when their last use is over.

use std::ops::Range;

use super::context::byte_len;
use super::device::Device;
use super::in_flight::{Access, Record, Slot, Use};
use super::page_locked::PinnedBuffer;
use super::pointer::{DevicePtr, DeviceRepr, check_range};
use super::stream::Stream;
use super::sys::CUdeviceptr;
use crate::{Error, Result};

/// `len` elements of device memory.
///
/// Dropping waits for the last use; see the [module](super) on why that is sound. Moving a
/// buffer moves no memory; a forgotten buffer is never freed.
pub struct DeviceBuffer<T: DeviceRepr> {
    device: Device,
    pointer: DevicePtr<T>,
    len: usize,
    slot: Slot,
}

impl<T: DeviceRepr> DeviceBuffer<T> {
    /// Allocates without filling: whatever bytes were there before are its elements.
    pub fn uninitialized(device: &Device, len: usize) -> Result<DeviceBuffer<T>> {
        let bytes = byte_len::<T>("device buffer", len)?;
        // The driver refuses to allocate nothing; nothing has the address 0.
        let address = if bytes == 0 { 0 } else { device.context().allocate("device buffer", bytes)? };
        Ok(DeviceBuffer { device: device.clone(), pointer: DevicePtr::new(address), len, slot: Slot::default() })
    }

    /// Allocates and fills with zero bytes.
    pub fn zeroed(device: &Device, len: usize) -> Result<DeviceBuffer<T>> {
        let mut buffer = DeviceBuffer::uninitialized(device, len)?;
        let copies = Stream { inner: device.copies().clone() };
        buffer.fill_bytes(&copies, 0)?;
        buffer.slot.lock().wait(Access::Write)?;
        Ok(buffer)
    }

    /// Allocates and copies from the host.
    pub fn from_host(device: &Device, source: &[T]) -> Result<DeviceBuffer<T>> {
        let mut buffer = DeviceBuffer::uninitialized(device, source.len())?;
        buffer.copy_from_host(0, source)?;
        Ok(buffer)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of element 0.
    pub fn as_ptr(&self) -> DevicePtr<T> {
        self.pointer
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// For [`Stream::enqueue`]: the work reads this buffer, called `name` in errors.
    pub fn reads(&self, name: &'static str) -> Use<'_> {
        Use { slot: &self.slot, context: self.device.context(), access: Access::Read, name }
    }

    /// For [`Stream::enqueue`]: the work writes, and may read, this buffer, called `name` in errors.
    pub fn writes(&self, name: &'static str) -> Use<'_> {
        Use { slot: &self.slot, context: self.device.context(), access: Access::Write, name }
    }

    /// Waits until no work uses the buffer any more.
    pub fn wait(&self) -> Result<()> {
        self.slot.lock().wait(Access::Write)
    }

    /// Copies to elements `at..`, after the last use; blocks.
    pub fn copy_from_host(&mut self, at: usize, source: &[T]) -> Result<()> {
        let range = self.range("destination of a copy", at, source.len())?;
        let mut record = self.slot.lock();
        record.wait(Access::Write)?;
        self.blocking_copy(&mut record, Access::Write, range, |stream, address, bytes| {
            // SAFETY: `range` checked the destination, the source has as many bytes, and it is borrowed until the copy
            // is done.
            unsafe { self.device.driver().api().copy_to_device_async(address, source.as_ptr().cast(), bytes, stream) }
        })
    }

    /// Copies from elements `at..`, after the last write; blocks.
    pub fn copy_to_host(&self, at: usize, target: &mut [T]) -> Result<()> {
        let range = self.range("source of a copy", at, target.len())?;
        // Held during the copy: nobody can enqueue a write behind our back.
        let mut record = self.slot.lock();
        record.wait(Access::Read)?;
        self.blocking_copy(&mut record, Access::Read, range, |stream, address, bytes| {
            // SAFETY: `range` checked the source, the target has as many bytes, any pattern of which is a value, and it
            // is borrowed until the copy is done.
            unsafe { self.device.driver().api().copy_to_host_async(target.as_mut_ptr().cast(), address, bytes, stream) }
        })
    }

    /// All elements, after the last write; blocks.
    pub fn to_host(&self) -> Result<Vec<T>> {
        // SAFETY: zero bytes are a value of every `DeviceRepr`.
        let mut target = vec![unsafe { std::mem::zeroed::<T>() }; self.len];
        self.copy_to_host(0, &mut target)?;
        Ok(target)
    }

    /// Enqueues filling every byte with `value`.
    pub fn fill_bytes(&mut self, stream: &Stream, value: u8) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        stream.enqueue_copy([self.writes("buffer to fill")], |stream| {
            // SAFETY: the whole buffer, which is noted as written.
            unsafe {
                let bytes = self.len * size_of::<T>();
                self.device.driver().api().set_u8_async(self.pointer.address(), value, bytes, stream.raw())
            }
        })
    }

    /// Enqueues a copy of `source[range]` to elements `at..`.
    pub fn copy_from_pinned(
        &mut self,
        stream: &Stream,
        at: usize,
        source: &PinnedBuffer<T>,
        range: Range<usize>,
    ) -> Result<()> {
        let from = source.range("source of a copy", range)?;
        let to = self.range("destination of a copy", at, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        stream.enqueue_copy([self.writes("destination of a copy"), source.reads("source of a copy")], |stream| {
            let bytes = from.len() * size_of::<T>();
            // SAFETY: both ranges were checked, and both buffers are noted as in use.
            unsafe {
                let source = source.as_ptr().add(from.start).cast();
                let target = self.pointer.add(to.start).address();
                self.device.driver().api().copy_to_device_async(target, source, bytes, stream.raw())
            }
        })
    }

    /// Enqueues a copy of elements `range` to `target[at..]`.
    pub fn copy_to_pinned(
        &self,
        stream: &Stream,
        range: Range<usize>,
        target: &mut PinnedBuffer<T>,
        at: usize,
    ) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        let from = self.range("source of a copy", range.start, len)?;
        let to = target.range("destination of a copy", at..at.saturating_add(len))?;
        if from.is_empty() {
            return Ok(());
        }
        let elements = target.as_ptr();
        stream.enqueue_copy([self.reads("source of a copy"), target.writes("destination of a copy")], |stream| {
            let bytes = from.len() * size_of::<T>();
            // SAFETY: both ranges were checked, and both buffers are noted as in use.
            unsafe {
                let target = elements.add(to.start).cast();
                let source = self.pointer.add(from.start).address();
                self.device.driver().api().copy_to_host_async(target, source, bytes, stream.raw())
            }
        })
    }

    /// Enqueues a copy of `source[range]`, on the same device, to elements `at..`.
    pub fn copy_from_device(
        &mut self,
        stream: &Stream,
        at: usize,
        source: &DeviceBuffer<T>,
        range: Range<usize>,
    ) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        let from = source.range("source of a copy", range.start, len)?;
        let to = self.range("destination of a copy", at, len)?;
        if from.is_empty() {
            return Ok(());
        }
        stream.enqueue_copy([self.writes("destination of a copy"), source.reads("source of a copy")], |stream| {
            let bytes = len * size_of::<T>();
            // SAFETY: both ranges were checked, and both buffers are noted as in use.
            unsafe {
                let source = source.pointer.add(from.start).address();
                let target = self.pointer.add(to.start).address();
                self.device.driver().api().copy_on_device_async(target, source, bytes, stream.raw())
            }
        })
    }

    /// Enqueues a copy on the device's own copy stream and waits for it. The caller holds the slot's lock and has waited.
    fn blocking_copy(
        &self,
        record: &mut Record,
        access: Access,
        range: Range<usize>,
        copy: impl FnOnce(super::sys::CUstream, CUdeviceptr, usize) -> Result<()>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let copies = self.device.copies();
        copies.context.bind()?;
        let enqueued = copy(copies.raw(), self.pointer.add(range.start).address(), range.len() * size_of::<T>());
        // Also where enqueueing failed: part of it may run.
        let ticket = copies.issue();
        // The host's memory is lent for this call only: the one wait without a limit.
        let waited = without_limit(|| copies.wait_for(ticket));
        // Where no event can be recorded the whole stream is waited for instead. Where that fails too the context is lost,
        // and the copy with it.
        if waited.is_err() && without_limit(|| copies.wait_until_idle()).is_err() {
            record.note(copies, ticket, access);
        }
        enqueued.and(waited)
    }

    /// `at..at + len`, checked to lie in the buffer.
    fn range(&self, what: &str, at: usize, len: usize) -> Result<Range<usize>> {
        check_range(what, at, len, self.len)
    }
}

/// Repeats a wait as long as it ends by its limit.
fn without_limit(wait: impl Fn() -> Result<()>) -> Result<()> {
    loop {
        match wait() {
            Err(Error::Stalled { .. }) => {}
            outcome => return outcome,
        }
    }
}

impl<T: DeviceRepr> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.pointer.address() == 0 {
            return;
        }
        // Where waiting fails the work may still run, or the context is lost: either way the memory stays as it is.
        let Ok(_quiet) = self.device.context().quiesce() else { return };
        if self.wait().is_ok() {
            // SAFETY: allocated by `uninitialized`, and no work uses it any more.
            let _ = unsafe { self.device.driver().api().memory_free(self.pointer.address()) };
        }
    }
}

impl<T: DeviceRepr> std::fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("pointer", &self.pointer)
            .field("len", &self.len)
            .field("device", &self.device.ordinal())
            .finish_non_exhaustive()
    }
}
