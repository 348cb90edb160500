//! A device: its primary context, its limits, and a stream for copies.

use once_cell::sync::OnceCell;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::context::{Context, Limits, ModuleLoads};
use super::library::Driver;
use super::resident::Resident;
use super::stream::{Stream, StreamInner, Streams};
use super::sys;
use crate::{Error, Result};

/// A GPU, or whatever the driver shows as one. Cheap to clone, usable from every thread.
///
/// Calls make the device's primary context current in the calling thread and leave it so, as the CUDA runtime does.
#[derive(Clone)]
pub struct Device {
    inner: Arc<DeviceInner>,
}

/// The devices that are open in this process.
static OPEN: OnceCell<Mutex<Vec<Known>>> = OnceCell::new();

/// A device that was opened.
struct Known {
    driver: Driver,
    ordinal: i32,
    inner: Weak<DeviceInner>,
    /// The context: streams and graphs may keep it alive for longer than the device.
    context: Weak<Context>,
    streams: Weak<Streams>,
}

struct DeviceInner {
    context: Arc<Context>,
    streams: Arc<Streams>,
    /// The stream of blocking copies, on which nothing else runs.
    copies: Arc<StreamInner>,
    name: String,
    sm: u32,
    multiprocessors: u32,
    l2_cache: u32,
    shared_memory_optin: u32,
    total_memory: u64,
}

impl Device {
    /// Opens the device of that ordinal, counted from 0. A device that is open already is given again. A process has
    /// one context per driver and ordinal, which lives as long as anything made in it.
    pub fn open(driver: &Driver, ordinal: i32) -> Result<Device> {
        let mut open = OPEN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|known| known.context.strong_count() > 0);
        let same = |known: &&mut Known| known.ordinal == ordinal && known.driver.same_as(driver);
        let known = open.iter_mut().find(same);
        if let Some(inner) = known.as_ref().and_then(|known| known.inner.upgrade()) {
            return Ok(Device { inner });
        }
        let context = known.as_ref().and_then(|known| known.context.upgrade());
        let streams = known.as_ref().and_then(|known| known.streams.upgrade()).unwrap_or_default();
        let device = Device::create(context.map_or_else(|| Context::retain(driver, ordinal), Ok)?, streams)?;
        let (inner, context) = (Arc::downgrade(&device.inner), Arc::downgrade(device.context()));
        let streams = Arc::downgrade(&device.inner.streams);
        match known {
            Some(known) => (known.inner, known.context, known.streams) = (inner, context, streams),
            None => open.push(Known { driver: driver.clone(), ordinal, inner, context, streams }),
        }
        Ok(device)
    }

    fn create(context: Arc<Context>, streams: Arc<Streams>) -> Result<Device> {
        let driver = context.driver.clone();
        let read = |attribute| context.attribute(attribute).map(|value| u32::try_from(value).unwrap_or(0));
        let major = read(sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = read(sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = read(sys::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let l2_cache = read(sys::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        let shared_memory_optin = read(sys::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        // SAFETY: the context's device is live.
        let (name, total_memory) = unsafe {
            (driver.api().device_name(context.device)?, driver.api().device_total_memory(context.device)? as u64)
        };
        let copies = StreamInner::create(&context, &streams)?;
        let sm = major * 10 + minor;
        let inner = DeviceInner {
            context,
            streams,
            copies,
            name,
            sm,
            multiprocessors,
            l2_cache,
            shared_memory_optin,
            total_memory,
        };
        Ok(Device { inner: Arc::new(inner) })
    }

    /// The driver this device was opened by.
    pub fn driver(&self) -> &Driver {
        &self.inner.context.driver
    }

    /// Ordinal, counted from 0.
    pub fn ordinal(&self) -> i32 {
        self.inner.context.ordinal
    }

    /// The product's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Compute capability as in `sm_90`: ten times major, plus minor.
    pub fn sm(&self) -> u32 {
        self.inner.sm
    }

    /// Bytes of the L2 cache.
    pub fn l2_cache_bytes(&self) -> u32 {
        self.inner.l2_cache
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.inner.multiprocessors
    }

    /// Bytes of shared memory that a block can have, static and dynamic together, when a kernel opts in.
    pub fn shared_memory_per_block(&self) -> u32 {
        self.inner.shared_memory_optin
    }

    /// Bytes of memory.
    pub fn total_memory(&self) -> u64 {
        self.inner.total_memory
    }

    /// Free and total bytes now; other processes take their share.
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        self.inner.context.memory_info()
    }

    /// Whether a watchdog kills kernels of seconds, as on devices that drive a display.
    pub fn kills_long_kernels(&self) -> Result<bool> {
        Ok(self.attribute(sys::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT)? != 0)
    }

    /// Whether all blocks of a launch can be made resident together.
    pub fn supports_cooperative_launch(&self) -> Result<bool> {
        Ok(self.attribute(sys::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? != 0)
    }

    /// One attribute, a `CU_DEVICE_ATTRIBUTE_` constant of [`sys`].
    pub fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<i32> {
        self.inner.context.attribute(attribute)
    }

    /// The device's identity across processes and reboots, where the driver tells it. For a MIG device, drivers before
    /// CUDA 11.4 give that of its GPU.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let (api, device) = (self.driver().api(), self.inner.context.device);
        // SAFETY: the context's device is live.
        let uuid = match unsafe { api.device_uuid_v2(device) } {
            // SAFETY: as above.
            Err(Error::MissingFunction { .. }) => unsafe { api.device_uuid(device) },
            found => found,
        };
        Ok(uuid?.bytes)
    }

    /// A new stream.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// Waits for all work on the device. Resident work is parked first, and goes on later.
    ///
    /// # Errors
    /// [`Error::Stalled`](crate::Error::Stalled) if a stream of this device is not done within [`Limits::wait`]. Work
    /// that no [`Stream`] knows of is waited for without a limit.
    pub fn synchronize(&self) -> Result<()> {
        let _quiet = self.inner.context.quiesce()?;
        self.inner.streams.wait()?;
        // SAFETY: the context is current.
        unsafe { self.driver().api().context_synchronize() }
    }

    /// The modules that were loaded since the device was opened, and the time that took.
    pub fn module_loads(&self) -> ModuleLoads {
        self.inner.context.loads()
    }

    /// The limits of work and waits.
    pub fn limits(&self) -> Limits {
        self.inner.context.limits()
    }

    /// Sets the limits of work and waits from now on, for every holder of this device.
    pub fn set_limits(&self, limits: Limits) {
        self.inner.context.set_limits(limits);
    }

    /// Makes the primary context current in this thread, for calls of [`Api`](super::Api).
    pub fn bind(&self) -> Result<()> {
        self.inner.context.bind()
    }

    /// Registers resident work: as long as it lives, allocations, frees, loads and unloads park it first.
    pub fn add_resident(&self, resident: &Arc<dyn Resident>) {
        self.inner.context.add_resident(resident);
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    pub(crate) fn copies(&self) -> &Arc<StreamInner> {
        &self.inner.copies
    }
}

impl PartialEq for Device {
    /// Whether both are the same device of the same driver.
    fn eq(&self, other: &Device) -> bool {
        self.context().same_as(other.context())
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.ordinal())
            .field("name", &self.name())
            .field("sm", &self.sm())
            .field("multiprocessors", &self.multiprocessors())
            .finish_non_exhaustive()
    }
}

impl Stream {
    /// A stream that waits for no other, the legacy stream included.
    pub fn new(device: &Device) -> Result<Stream> {
        Ok(Stream { inner: StreamInner::create(device.context(), &device.inner.streams)? })
    }
}
