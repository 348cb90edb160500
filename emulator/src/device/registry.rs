//! The devices of this process: one per ordinal, each with its own configuration, added at run time. This is also the
//! control side that C has no functions for: faults, launch records, leaks, injections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::abi::{Handle, Outcome};
use super::codes::Code;
use super::config::{Call, DeviceConfig, FaultInjection};
use super::context::Context;
use super::handles::{self, Object};
use super::lock;
use super::machine::{Counters, Fault, Memory};
use super::residency::Residency;

/// One emulated device.
pub(crate) struct Device {
    pub(crate) ordinal: i32,
    pub(crate) config: DeviceConfig,
    pub(crate) residency: Residency,
    primary: Mutex<Primary>,
    records: Mutex<Vec<LaunchRecord>>,
    fault: Mutex<Option<Fault>>,
    leaks: Mutex<Vec<Leak>>,
    injections: Mutex<Injections>,
}

#[derive(Default)]
struct Primary {
    retained: u32,
    context: Option<Arc<Context>>,
}

#[derive(Default)]
struct Injections {
    counts: HashMap<Call, u64>,
    /// With `nth` counted from the device's first call.
    planned: Vec<FaultInjection>,
}

/// One launch that was executed.
#[derive(Debug, Clone)]
pub struct LaunchRecord {
    /// The kernel's entry name.
    pub kernel: String,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Whether all blocks had to be resident at once.
    pub cooperative: bool,
    /// Whether it was allowed to overlap the kernel before it in its stream.
    pub programmatic: bool,
    /// What the launch did, counted exactly.
    pub counters: Counters,
}

/// Something that was created in a context and not given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leak {
    /// `cuMemAlloc` without `cuMemFree`.
    DeviceMemory {
        /// Device address.
        address: u64,
        /// Size as asked for.
        bytes: u64,
    },
    /// `cuMemHostAlloc` without `cuMemFreeHost`, or `cuMemHostRegister` without `cuMemHostUnregister`.
    HostMemory {
        /// Host address.
        address: usize,
        /// Size as asked for.
        bytes: usize,
    },
    /// `cuStreamCreate` without `cuStreamDestroy`.
    Stream,
    /// `cuEventCreate` without `cuEventDestroy`.
    Event,
    /// `cuModuleLoadData` without `cuModuleUnload`.
    Module,
    /// A captured graph without `cuGraphDestroy`.
    Graph,
    /// `cuGraphInstantiate` without `cuGraphExecDestroy`.
    GraphExec,
}

impl Leak {
    pub(crate) fn of(object: &Object) -> Option<Leak> {
        match object {
            Object::Stream(..) => Some(Leak::Stream),
            Object::Event(_) => Some(Leak::Event),
            Object::Module(_) => Some(Leak::Module),
            Object::Graph(_) => Some(Leak::Graph),
            Object::GraphExec(_) => Some(Leak::GraphExec),
            Object::Context(_) | Object::Function(_) | Object::GraphNode(_) => None,
        }
    }
}

static DEVICES: RwLock<Vec<Arc<Device>>> = RwLock::new(Vec::new());

/// Adds a device and returns its ordinal. Ordinals count up from 0 and stay for the life of the process.
pub fn add_device(config: DeviceConfig) -> i32 {
    let mut devices = DEVICES.write().unwrap_or_else(PoisonError::into_inner);
    let ordinal = i32::try_from(devices.len()).unwrap_or(i32::MAX);
    devices.push(Arc::new(Device {
        ordinal,
        residency: Residency::new(config.multiprocessors),
        primary: Mutex::default(),
        records: Mutex::default(),
        fault: Mutex::default(),
        leaks: Mutex::default(),
        injections: Mutex::new(Injections { counts: HashMap::new(), planned: config.faults.clone() }),
        config,
    }));
    ordinal
}

/// How many devices were added.
pub(crate) fn device_count() -> usize {
    DEVICES.read().unwrap_or_else(PoisonError::into_inner).len()
}

pub(crate) fn device(ordinal: i32) -> Outcome<Arc<Device>> {
    let index = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
    DEVICES.read().unwrap_or_else(PoisonError::into_inner).get(index).cloned().ok_or(Code::INVALID_DEVICE)
}

/// The memory of the device that page-locked memory of the host belongs to, and where kernels see it, if checked.
pub(crate) fn mapped(address: usize, bytes: usize) -> Option<(Arc<Memory>, u64)> {
    let devices = DEVICES.read().unwrap_or_else(PoisonError::into_inner).clone();
    devices.iter().filter(|device| device.config.checks.racecheck).find_map(|device| {
        let context = lock(&device.primary).context.clone()?;
        let state = context.state();
        let range = state.pinned(address, bytes)?;
        Some((context.memory.clone(), range.device + (address - range.address()) as u64))
    })
}

/// The last fault of the device's kernels: what happened, where, and what is missing. It outlives the context.
pub fn last_fault(ordinal: i32) -> Option<Fault> {
    lock(&device(ordinal).ok()?.fault).clone()
}

/// The launches that the device executed so far, in order of completion; empty unless [`DeviceConfig::counters`].
pub fn reports(ordinal: i32) -> Vec<LaunchRecord> {
    device(ordinal).map(|device| lock(&device.records).clone()).unwrap_or_default()
}

/// Forgets the launches reported so far, so that the next ones can be told apart.
pub fn clear_reports(ordinal: i32) {
    if let Ok(device) = device(ordinal) {
        lock(&device.records).clear();
    }
}

/// What contexts of the device left behind when they were released, and what is alive in one that is still retained.
pub fn leaks(ordinal: i32) -> Vec<Leak> {
    let Ok(device) = device(ordinal) else { return Vec::new() };
    let mut leaks = lock(&device.leaks).clone();
    let context = lock(&device.primary).context.clone();
    if let Some(context) = context {
        leaks.extend(context.live());
        leaks.extend(handles::all_of(context.handle).iter().filter_map(Leak::of));
    }
    leaks
}

/// Makes a later call fail, counted from now: `nth` 1 is the next one.
pub fn inject(ordinal: i32, fault: FaultInjection) {
    if let Ok(device) = device(ordinal) {
        let mut injections = lock(&device.injections);
        let so_far = injections.counts.get(&fault.call).copied().unwrap_or(0);
        injections.planned.push(FaultInjection { nth: so_far.saturating_add(fault.nth), ..fault });
    }
}

impl Device {
    /// Counts a call and fails it if that was planned.
    pub(crate) fn injected(&self, call: Call) -> Outcome {
        let mut injections = lock(&self.injections);
        let count = injections.counts.entry(call).or_insert(0);
        *count += 1;
        let count = *count;
        let planned = injections.planned.iter().find(|fault| fault.call == call && fault.nth == count);
        planned.map_or(Ok(()), |fault| Err(fault.code))
    }

    pub(crate) fn record(&self, record: LaunchRecord) {
        lock(&self.records).push(record);
    }

    pub(crate) fn set_fault(&self, fault: Fault) {
        *lock(&self.fault) = Some(fault);
    }

    /// Retains the primary context, making it if nobody has.
    pub(crate) fn retain(self: &Arc<Self>) -> Handle {
        let mut primary = lock(&self.primary);
        primary.retained += 1;
        primary.context.get_or_insert_with(|| Context::create(self)).handle
    }

    /// Releases the primary context; with the last retain it is destroyed.
    pub(crate) fn release(&self) -> Outcome {
        let context = {
            let mut primary = lock(&self.primary);
            if primary.retained == 0 {
                return Err(Code::INVALID_CONTEXT);
            }
            primary.retained -= 1;
            if primary.retained > 0 {
                return Ok(());
            }
            primary.context.take()
        };
        self.destroy(context);
        Ok(())
    }

    /// Destroys the primary context whoever retains it; those retains stay counted, as in the driver.
    pub(crate) fn reset(&self) {
        let context = lock(&self.primary).context.take();
        self.destroy(context);
    }

    /// Whether the primary context exists.
    pub(crate) fn is_active(&self) -> bool {
        lock(&self.primary).context.is_some()
    }

    fn destroy(&self, context: Option<Arc<Context>>) {
        if let Some(context) = context {
            let leaks = context.destroy();
            lock(&self.leaks).extend(leaks);
        }
    }
}
