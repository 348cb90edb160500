//! The devices of this process, one per ordinal, and their control side, which C has no functions for: faults, launch
//! records, leaks, injections.

use super::{Code, Context, DeviceConfig, Handle, Outcome, lock};
use crate::checks::counters::Counters;
use crate::machine::chip::ChipFile;
use crate::machine::fault::{Fault, FaultKind};
use crate::machine::finding::Findings;
use crate::machine::injection::{Call, FaultInjection};
use crate::memory::Memory;
use crate::timing::report::Timing;
use std::sync::{Arc, Mutex, OnceLock};

pub(crate) struct Device {
    pub(crate) ordinal: i32,
    pub(crate) config: DeviceConfig,
    primary: Mutex<Primary>,
    /// The pool that streams allocate from.
    pub(crate) pool: OnceLock<Handle>,
    pub(crate) control: Mutex<Control>,
}

#[derive(Default)]
struct Primary {
    retained: u32,
    context: Option<Arc<Context>>,
    /// `CUctx_flags` of the next primary context.
    flags: u32,
    /// Contexts that the program created.
    created: Vec<Arc<Context>>,
    /// Number of those so far.
    number: u64,
}

/// State behind the control functions of a device.
#[derive(Default)]
pub(crate) struct Control {
    pub(crate) records: Vec<LaunchRecord>,
    pub(crate) copies: Copies,
    /// Launches are not timed, though the device has a clock.
    pub(crate) untimed: bool,
    fault: Option<Fault>,
    findings: Findings,
    leaks: Vec<Leak>,
    /// Failures to come, `nth` counted from now.
    injections: Vec<FaultInjection>,
}

/// Copies between the host and a device, in either direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copies {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Copies {
    /// Microseconds that they take on a chip, one after the other: modelled, not measured.
    pub fn microseconds(&self, chip: &ChipFile) -> f64 {
        self.count as f64 * chip.copy.value + self.bytes as f64 / (1e3 * chip.link.value)
    }
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
    /// Whether it was a cooperative launch.
    pub cooperative: bool,
    /// Whether it was a programmatic launch, allowed to overlap the kernel before it in its stream.
    pub programmatic: bool,
    /// Counters of the launch; all zero unless [`DeviceConfig::counters`].
    pub counters: Counters,
    /// Modelled time, if [`DeviceConfig::clock`] names a chip.
    pub timing: Option<Timing>,
}

/// An object of a context that was not given back; sizes as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the names say it
pub enum Leak {
    DeviceMemory { address: u64, bytes: u64 },
    HostMemory { address: usize, bytes: usize },
    Stream,
    Event,
    Module,
    Graph,
    GraphExec,
}

static DEVICES: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());

/// Adds a device and returns its ordinal. Ordinals count up from 0 and stay for the life of the process.
pub fn add_device(config: DeviceConfig) -> i32 {
    let mut devices = lock(&DEVICES);
    let ordinal = i32::try_from(devices.len()).unwrap_or(i32::MAX);
    let control = Mutex::new(Control { injections: config.faults.clone(), ..Control::default() });
    devices.push(Arc::new(Device { ordinal, config, primary: Mutex::default(), pool: OnceLock::new(), control }));
    ordinal
}

pub(crate) fn device_count() -> usize {
    lock(&DEVICES).len()
}

pub(crate) fn device(ordinal: i32) -> Outcome<Arc<Device>> {
    let index = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
    lock(&DEVICES).get(index).cloned().ok_or(Code::INVALID_DEVICE)
}

/// The device memory that a range of page-locked host memory belongs to, and its device address, if the race check is
/// on.
pub(crate) fn mapped(address: usize, bytes: usize) -> Option<(Arc<Memory>, u64)> {
    let devices = lock(&DEVICES).clone();
    let contexts = devices.iter().filter(|device| device.config.checks.racecheck).flat_map(|device| device.contexts());
    contexts.into_iter().find_map(|context| {
        let seen = context.state().pinned(address, bytes)?;
        Some((context.memory.clone(), seen))
    })
}

/// The last fault of the device's kernels. It outlives the context.
pub fn last_fault(ordinal: i32) -> Option<Fault> {
    lock(&device(ordinal).ok()?.control).fault.clone()
}

/// What the checks have found on a device so far: each distinct race, uninitialised use and leak once. It outlives the
/// context.
pub fn findings(ordinal: i32) -> Findings {
    let Ok(device) = device(ordinal) else { return Findings::default() };
    device.contexts().iter().for_each(|context| device.collect(&context.memory));
    let mut findings = lock(&device.control).findings.clone();
    if device.config.silenced.contains(&FaultKind::Leak) {
        return findings;
    }
    for leak in leaks(ordinal) {
        let (object, address) = match leak {
            Leak::DeviceMemory { address, bytes } => (format!("device memory of {bytes} bytes"), Some(address)),
            Leak::HostMemory { address, bytes } => {
                (format!("page-locked memory of {bytes} bytes"), Some(address as u64))
            }
            Leak::Stream => ("a stream".into(), None),
            Leak::Event => ("an event".into(), None),
            Leak::Module => ("a module".into(), None),
            Leak::Graph => ("a graph".into(), None),
            Leak::GraphExec => ("an instantiated graph".into(), None),
        };
        let fault = Fault::new(FaultKind::Leak, "the program", format!("{object} was not given back"));
        findings.add(Fault { address, kernel: object, ..fault });
    }
    findings
}

/// The launches that the device executed so far, in order of completion; empty unless the device counts or models time.
pub fn reports(ordinal: i32) -> Vec<LaunchRecord> {
    device(ordinal).map(|device| lock(&device.control).records.clone()).unwrap_or_default()
}

/// Copies that streams of the device have made since its clock began, or since [`clear_reports`]; none without a clock.
pub fn copies(ordinal: i32) -> Copies {
    device(ordinal).map(|device| lock(&device.control).copies).unwrap_or_default()
}

/// Stops a device's clock, or lets it go on: while it stands, launches run as on a device without one and copies do not
/// count.
pub fn time_launches(ordinal: i32, timed: bool) {
    if let Ok(device) = device(ordinal) {
        lock(&device.control).untimed = !timed;
    }
}

/// Forgets the launches and copies reported so far.
pub fn clear_reports(ordinal: i32) {
    if let Ok(device) = device(ordinal) {
        let control = &mut lock(&device.control);
        control.records.clear();
        control.copies = Copies::default();
    }
}

/// The leaks of the device's contexts: objects that a released context left behind, and those alive in a retained one.
pub fn leaks(ordinal: i32) -> Vec<Leak> {
    let Ok(device) = device(ordinal) else { return Vec::new() };
    let mut leaks = lock(&device.control).leaks.clone();
    leaks.extend(device.contexts().iter().flat_map(|context| context.leaks()));
    leaks
}

/// Makes a later driver call fail; `nth` 1 is the next call of its kind.
pub fn inject(ordinal: i32, fault: FaultInjection) {
    if let Ok(device) = device(ordinal) {
        lock(&device.control).injections.push(fault);
    }
}

impl Device {
    /// Counts a call, and fails it if an injection is due.
    pub(crate) fn injected(&self, call: Call) -> Outcome {
        let injections = &mut lock(&self.control).injections;
        injections
            .iter_mut()
            .filter(|fault| fault.call == call)
            .for_each(|fault| fault.nth = fault.nth.saturating_sub(1));
        let due = injections.iter().position(|fault| fault.call == call && fault.nth == 0);
        due.map_or(Ok(()), |due| Err(injections.remove(due).code))
    }

    /// Keeps a fault for [`last_fault`], and returns its code.
    pub(crate) fn note(&self, fault: Fault) -> Code {
        let code = Code::new(fault.cuda_code());
        let control = &mut lock(&self.control);
        if fault.kind.is_finding() {
            control.findings.add(fault.clone());
        }
        control.fault = Some(fault);
        code
    }

    /// Keeps the reason of a refusal for [`last_fault`].
    pub(crate) fn refuse(&self, what: &str, reason: String) {
        lock(&self.control).fault = Some(Fault::new(FaultKind::Unsupported, what, reason));
    }

    /// Keeps a finding for [`findings`], or fails with its code where the first one is fatal.
    pub(crate) fn find(&self, fault: Box<Fault>) -> Outcome {
        let judged = self.config.judge(fault, |fault| lock(&self.control).findings.add(fault));
        judged.map_err(|fault| self.note(*fault))
    }

    /// Takes over what launches have found.
    pub(crate) fn collect(&self, memory: &Memory) {
        let found = std::mem::take(&mut *memory.found());
        if !found.is_empty() {
            lock(&self.control).findings.extend(found);
        }
    }

    /// The primary context, if it is retained.
    pub(crate) fn context(&self) -> Option<Arc<Context>> {
        lock(&self.primary).context.clone()
    }

    /// The primary context, if it is retained, and those that the program created.
    fn contexts(&self) -> Vec<Arc<Context>> {
        let primary = lock(&self.primary);
        primary.context.iter().chain(&primary.created).cloned().collect()
    }

    /// Retains the primary context, which the first retain creates.
    pub(crate) fn retain(self: &Arc<Self>) -> Handle {
        let mut primary = lock(&self.primary);
        primary.retained += 1;
        let flags = primary.flags;
        primary.context.get_or_insert_with(|| Context::create(self, 0, flags)).handle
    }

    /// Releases the primary context, which the last release destroys.
    pub(crate) fn release(&self) -> Outcome {
        let mut primary = lock(&self.primary);
        primary.retained = primary.retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        let last = if primary.retained == 0 { primary.context.take() } else { None };
        drop(primary);
        let leaks = last.map(|context| context.destroy()).unwrap_or_default();
        lock(&self.control).leaks.extend(leaks);
        Ok(())
    }

    /// Destroys the primary context with all that is in it, which so is no leak.
    pub(crate) fn reset(&self) {
        let mut primary = lock(&self.primary);
        let context = primary.context.take();
        primary.flags = 0;
        drop(primary);
        context.map(|context| context.destroy());
    }

    /// Sets the flags of the primary context, be there one or not.
    pub(crate) fn set_primary_flags(&self, flags: u32) {
        let mut primary = lock(&self.primary);
        primary.flags = flags;
        primary.context.iter().for_each(|context| context.state().settings.flags = flags);
    }

    /// The flags of the primary context, and whether there is one.
    pub(crate) fn primary_state(&self) -> (u32, bool) {
        let primary = lock(&self.primary);
        (primary.flags, primary.context.is_some())
    }

    /// Creates a context of the program's own.
    pub(crate) fn create_context(self: &Arc<Self>, flags: u32) -> Handle {
        let mut primary = lock(&self.primary);
        primary.number += 1;
        let context = Context::create(self, primary.number, flags);
        primary.created.push(context.clone());
        context.handle
    }

    /// Destroys a context that the program created. What is left in it is a leak.
    pub(crate) fn destroy_context(&self, handle: Handle) -> Outcome {
        let mut primary = lock(&self.primary);
        let found = primary.created.iter().position(|context| context.handle == handle);
        let context = primary.created.swap_remove(found.ok_or(Code::INVALID_CONTEXT)?);
        drop(primary);
        let leaks = context.destroy();
        lock(&self.control).leaks.extend(leaks);
        Ok(())
    }
}
