//! The primary context of a device, and the calls that may wait for the whole device.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::library::Driver;
use super::sys;
use super::sys::{CUcontext, CUdevice, CUdeviceptr};
use crate::{Error, Result};

/// Work that stays on a device until it is told to go, such as a kernel that waits for requests.
///
/// Allocating, freeing, loading and unloading may wait for everything on the device, so they would never return beside
/// it. [`Device::add_resident`](super::Device::add_resident) has them call [`park`](Resident::park) first.
pub trait Resident: Send + Sync {
    /// Ends the work, its state kept, and returns when it is off the device. Must not allocate or free on the device.
    fn park(&self);
}

/// A share of a primary context. Everything made in it holds one, so it outlives them.
pub(crate) struct Context {
    pub(crate) driver: Driver,
    pub(crate) ordinal: i32,
    pub(crate) device: CUdevice,
    raw: CUcontext,
    residents: Mutex<Vec<Weak<dyn Resident>>>,
}

// SAFETY: a context may be current in any number of threads; the driver locks what it must.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn retain(driver: &Driver, ordinal: i32) -> Result<Arc<Context>> {
        let found = driver.device_count()?;
        if ordinal < 0 || ordinal >= found {
            return Err(Error::NoDevice { ordinal, found });
        }
        // SAFETY: the ordinal is in range, and the device is what it names.
        let (device, raw) = unsafe {
            let device = driver.api().device_get(ordinal)?;
            (device, driver.api().primary_context_retain(device)?)
        };
        Ok(Arc::new(Context { driver: driver.clone(), ordinal, device, raw, residents: Mutex::default() }))
    }

    /// Makes the context current in this thread. Other code may have set another since, so it is asked, not remembered:
    /// that is a read of thread-local memory in the driver.
    pub(crate) fn bind(&self) -> Result<()> {
        let api = self.driver.api();
        // SAFETY: the context is live as long as `self`.
        unsafe { if api.context_current()? == self.raw { Ok(()) } else { api.context_set_current(self.raw) } }
    }

    /// Whether objects of one may be used with the other.
    pub(crate) fn same_as(&self, other: &Context) -> bool {
        self.raw == other.raw && self.driver.same_as(&other.driver)
    }

    pub(crate) fn add_resident(&self, resident: &Arc<dyn Resident>) {
        let mut residents = self.residents.lock().unwrap_or_else(PoisonError::into_inner);
        residents.retain(|resident| resident.strong_count() > 0);
        residents.push(Arc::downgrade(resident));
    }

    /// Parks what is resident and makes the context current: to be called before all that may wait for the device.
    pub(crate) fn quiesce(&self) -> Result<()> {
        // Collected first: parking takes its time and may come back here.
        let residents: Vec<_> = {
            let residents = self.residents.lock().unwrap_or_else(PoisonError::into_inner);
            residents.iter().filter_map(Weak::upgrade).collect()
        };
        residents.iter().for_each(|resident| resident.park());
        self.bind()
    }

    /// Device memory, `bytes` > 0.
    pub(crate) fn allocate(&self, what: &'static str, bytes: usize) -> Result<CUdeviceptr> {
        self.quiesce()?;
        // SAFETY: the context is current.
        unsafe { self.driver.api().memory_allocate(bytes) }.map_err(|error| self.explain(what, bytes, error))
    }

    /// Page-locked host memory, zeroed and mapped, `bytes` > 0.
    pub(crate) fn allocate_host(&self, what: &'static str, bytes: usize) -> Result<*mut u8> {
        self.quiesce()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current, and what is allocated has `bytes` bytes.
        unsafe {
            let host = self.driver.api().host_allocate(bytes, flags);
            let host = host.map_err(|error| self.explain(what, bytes, error))?.cast::<u8>();
            host.write_bytes(0, bytes);
            Ok(host)
        }
    }

    /// Puts the sizes into an out-of-memory error.
    #[cold]
    fn explain(&self, what: &'static str, bytes: usize, error: Error) -> Error {
        if error.code() != Some(sys::CUDA_ERROR_OUT_OF_MEMORY) {
            return error;
        }
        // SAFETY: the context is current: an allocation in it was just refused.
        let (free, total) = unsafe { self.driver.api().memory_info() }.unwrap_or_default();
        Error::OutOfMemory { what, needed: bytes as u64, free: free as u64, total: total as u64 }
    }

    /// The error of the wrong driver or device, or nothing.
    pub(crate) fn check_same(&self, other: &Context, what: &'static str) -> Result<()> {
        self.driver.check_same(&other.driver, what)?;
        if self.same_as(other) {
            return Ok(());
        }
        Err(Error::WrongDevice { what, found: other.ordinal, expected: self.ordinal })
    }

    /// Free and total bytes.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64)> {
        self.bind()?;
        // SAFETY: the context is current.
        let (free, total) = unsafe { self.driver.api().memory_info()? };
        Ok((free as u64, total as u64))
    }

    pub(crate) fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<i32> {
        // SAFETY: the device is live; an unknown attribute is an error.
        unsafe { self.driver.api().device_attribute(attribute, self.device) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`, and everything made in it is gone. A failure leaves nothing to do.
        let _ = unsafe { self.driver.api().primary_context_release(self.device) };
    }
}

/// `len * size` bytes, or the overflow.
pub(crate) fn byte_len<T>(what: &'static str, len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(|| Error::SizeOverflow {
        what,
        found: format!("{len} elements of {} bytes", size_of::<T>()),
        limit: isize::MAX as u64,
    })
}
