//! The primary context of a device, and the calls that may wait for the whole device.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::library::Driver;
#[cfg(feature = "gguf")]
use super::resident::Pass;
use super::resident::{Claim, Gate, Quiet, Resident, Turn, Turns};
use super::sys;
use super::sys::{CUcontext, CUdevice, CUdeviceptr};
use crate::{Error, Result};

/// Limits of work and waits on a device; see [`Device::set_limits`](super::Device::set_limits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The longest wait of the host without any progress; then the call fails with
    /// [`Error::Stalled`](crate::Error::Stalled). 60 s. A copy between the device and borrowed memory is waited for as long
    /// as it takes.
    pub wait: Duration,
    /// The longest wait of a block of a resident kernel for the others, by the device's clock; then all blocks leave. 10 s,
    /// and half an hour at most: a longer one counts as that.
    pub device_wait: Duration,
    /// The longest launch of a resident kernel that nobody else waits for, by the device's clock: 1 s where a watchdog
    /// kills kernels, else 60 s.
    pub run: Duration,
    /// The longest launch of a resident kernel that other work waits for, by the device's clock. 0.2 s.
    pub turn: Duration,
}

impl Limits {
    pub(crate) const fn new(watched: bool) -> Limits {
        let run = Duration::from_secs(if watched { 1 } else { 60 });
        let (wait, device_wait) = (Duration::from_secs(60), Duration::from_secs(10));
        Limits { wait, device_wait, run, turn: Duration::from_millis(200) }
    }

    /// With another [`wait`](Limits::wait).
    #[must_use]
    pub const fn with_wait(mut self, wait: Duration) -> Limits {
        self.wait = wait;
        self
    }

    /// With another [`device_wait`](Limits::device_wait).
    #[must_use]
    pub const fn with_device_wait(mut self, device_wait: Duration) -> Limits {
        self.device_wait = device_wait;
        self
    }

    /// With another [`run`](Limits::run).
    #[must_use]
    pub const fn with_run(mut self, run: Duration) -> Limits {
        self.run = run;
        self
    }

    /// With another [`turn`](Limits::turn).
    #[must_use]
    pub const fn with_turn(mut self, turn: Duration) -> Limits {
        self.turn = turn;
        self
    }
}

/// Modules that were loaded onto a device, whoever holds them now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ModuleLoads {
    /// Those of PTX, which the driver compiled, or found compiled in its cache.
    pub compiled: u32,
    /// Those of machine code.
    pub machine_code: u32,
    /// The time that all loads took, those that failed included.
    pub time: Duration,
}

/// Who keeps device memory for later that others may need meanwhile.
pub(crate) trait Keeper: Send + Sync {
    /// Frees it; whether there was any.
    fn give_up(&self) -> bool;
}

/// A share of a primary context. Everything made in it holds one, so it outlives them.
pub(crate) struct Context {
    pub(crate) driver: Driver,
    pub(crate) ordinal: i32,
    pub(crate) device: CUdevice,
    raw: CUcontext,
    limits: Mutex<Limits>,
    loads: Mutex<ModuleLoads>,
    gate: Gate,
    turns: Turns,
    keepers: Mutex<Vec<Weak<dyn Keeper>>>,
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
        let (device, watched) = unsafe {
            let device = driver.api().device_get(ordinal)?;
            (device, driver.api().device_attribute(sys::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, device)? != 0)
        };
        // SAFETY: the device is the driver's own.
        let raw = unsafe { driver.api().primary_context_retain(device)? };
        Ok(Arc::new(Context {
            driver: driver.clone(),
            ordinal,
            device,
            raw,
            limits: Mutex::new(Limits::new(watched)),
            loads: Mutex::default(),
            gate: Gate::default(),
            turns: Turns::default(),
            keepers: Mutex::default(),
        }))
    }

    /// Makes the context current in this thread. The driver is asked each time, a read of thread-local memory: other
    /// code may have set another.
    pub(crate) fn bind(&self) -> Result<()> {
        let api = self.driver.api();
        // SAFETY: the context is live as long as `self`.
        unsafe { if api.context_current()? == self.raw { Ok(()) } else { api.context_set_current(self.raw) } }
    }

    /// Whether objects of one context may be used with the other.
    pub(crate) fn same_as(&self, other: &Context) -> bool {
        self.raw == other.raw && self.driver.same_as(&other.driver)
    }

    /// The modules that were loaded.
    pub(crate) fn loads(&self) -> ModuleLoads {
        *self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a load that took so long, and, where it succeeded, whether it was of machine code.
    pub(crate) fn note_load(&self, took: Duration, machine_code: Option<bool>) {
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        loads.time += took;
        match machine_code {
            Some(true) => loads.machine_code += 1,
            Some(false) => loads.compiled += 1,
            None => {}
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    pub(crate) fn add_resident(&self, resident: &Arc<dyn Resident>) {
        self.gate.add(resident);
    }

    /// A guard that keeps resident work off the device. Every call that may wait for the whole device is made under one.
    /// Makes the context current.
    pub(crate) fn quiesce(&self) -> Result<Quiet<'_>> {
        let quiet = self.gate.close(self.limits().wait)?;
        self.bind()?;
        Ok(quiet)
    }

    /// A guard against [`quiesce`](Context::quiesce), held while resident work is launched and noted.
    #[cfg(feature = "gguf")]
    pub(crate) fn pass(&self) -> Result<Pass<'_>> {
        self.gate.pass(self.limits().wait)
    }

    /// Waits for a turn on the device's multiprocessors.
    pub(crate) fn turn(&self, claim: Claim) -> Result<Turn<'_>> {
        let Limits { turn, wait, .. } = self.limits();
        self.turns.take(claim, turn, wait)
    }

    /// Takes note that no launch of the stream of that number follows for now: resident work that waits for its turn need
    /// not look out for one.
    #[cfg(feature = "gguf")]
    pub(crate) fn leave_turn(&self, stream: u64) {
        self.turns.leave(stream);
    }

    /// Takes note of who keeps memory, to be asked for it where it lacks.
    #[cfg(feature = "gguf")]
    pub(crate) fn add_keeper(&self, keeper: Weak<dyn Keeper>) {
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.retain(|known| known.strong_count() > 0);
        keepers.push(keeper);
    }

    /// Has everything freed that is only kept for later; whether there was any.
    fn give_up(&self) -> bool {
        let keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        keepers.iter().filter_map(Weak::upgrade).filter(|keeper| keeper.give_up()).count() > 0
    }

    /// Allocates `bytes` of device memory, more than 0.
    pub(crate) fn allocate(&self, what: &'static str, bytes: usize) -> Result<CUdeviceptr> {
        let _quiet = self.quiesce()?;
        // SAFETY: the context is current.
        let allocate = || unsafe { self.driver.api().memory_allocate(bytes) };
        let made = match allocate() {
            Err(error) if error.code() == Some(sys::CUDA_ERROR_OUT_OF_MEMORY) && self.give_up() => allocate(),
            made => made,
        };
        made.map_err(|error| self.explain(what, bytes, error))
    }

    /// Allocates `bytes` of page-locked host memory, more than 0, mapped and zeroed.
    pub(crate) fn allocate_host(&self, what: &'static str, bytes: usize) -> Result<*mut u8> {
        let _quiet = self.quiesce()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current, and what is allocated has `bytes` bytes.
        unsafe {
            let host = self.driver.api().host_allocate(bytes, flags);
            let host = host.map_err(|error| self.explain(what, bytes, error))?.cast::<u8>();
            host.write_bytes(0, bytes);
            Ok(host)
        }
    }

    /// The out-of-memory error, with sizes.
    #[cold]
    fn explain(&self, what: &'static str, bytes: usize, error: Error) -> Error {
        if error.code() != Some(sys::CUDA_ERROR_OUT_OF_MEMORY) {
            return error;
        }
        // SAFETY: the context is current: an allocation in it was just refused.
        let (free, total) = unsafe { self.driver.api().memory_info() }.unwrap_or_default();
        Error::OutOfMemory { what, needed: bytes as u64, free: free as u64, total: total as u64 }
    }

    /// Refuses a context of another driver or device.
    pub(crate) fn check_same(&self, other: &Context, what: &'static str) -> Result<()> {
        self.driver.check_same(&other.driver, what)?;
        if self.same_as(other) {
            return Ok(());
        }
        Err(Error::WrongDevice { what, found: other.ordinal, expected: self.ordinal })
    }

    /// Free and total bytes, once what is only kept for later is freed where so many are needed.
    #[cfg(feature = "gguf")]
    pub(crate) fn memory_for(&self, needed: u64) -> Result<(u64, u64)> {
        let found = self.memory_info()?;
        if needed > found.0 && self.give_up() { self.memory_info() } else { Ok(found) }
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

/// `len * size` bytes; an error if that overflows.
pub(crate) fn byte_len<T>(what: &'static str, len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(|| Error::SizeOverflow {
        what,
        found: format!("{len} elements of {} bytes", size_of::<T>()),
        limit: isize::MAX as u64,
    })
}
