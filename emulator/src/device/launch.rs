//! Kernel launches: the request, the room on the multiprocessors, the watchdog.

use super::context::State;
use super::module::Function;
use super::registry::LaunchRecord;
use super::{Call, Code, Command, Context, DeviceConfig, Handle, Outcome, Ptr, Stream, handles, lock};
use crate::checks::order::{Operation, Place};
use crate::launch::Launch;
use crate::machine::fault::{Fault, FaultKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// A launch in a stream or graph, with a copy of its parameters.
pub(crate) struct KernelLaunch {
    pub(crate) function: Arc<Function>,
    /// Packed at the parameters' offsets.
    pub(crate) params: Box<[u8]>,
    pub(crate) shape: Shape,
    pub(crate) cooperative: bool,
    pub(crate) cluster: Option<[u32; 3]>,
    /// Whether it may overlap the kernel before it, up to its `griddepcontrol.wait`. It never does here, but its
    /// accesses before the wait are checked as if it did.
    pub(crate) programmatic: bool,
}

/// Blocks, threads of a block, and bytes of dynamic shared memory, laid out as in `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
}

impl KernelLaunch {
    /// Copies the parameters, given by a pointer each. Packed ones (`extra`) are not supported.
    pub(crate) fn new(function: Handle, shape: Shape, pointers: Ptr<Ptr<u8>>, extra: usize) -> Outcome<KernelLaunch> {
        if extra != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let function = handles::get::<Function>(function)?;
        let mut params = vec![0; function.info.param_bytes as usize];
        for (index, param) in function.info.params.iter().enumerate() {
            let bytes = pointers.get(index)?.bytes(param.size as usize)?;
            params[param.offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        let params = params.into();
        Ok(KernelLaunch { function, params, shape, cooperative: false, cluster: None, programmatic: false })
    }

    fn request(&self) -> Launch<'_> {
        Launch {
            module: &self.function.module.module,
            kernel: &self.function.info.name,
            grid: self.shape.grid,
            block: self.shape.block,
            dynamic_shared: self.shape.dynamic_shared,
            params: &self.params,
            cooperative: self.cooperative,
            cluster: self.cluster,
        }
    }

    pub(crate) fn queue(self, stream: Handle) -> Outcome {
        let stream = Stream::resolve(stream)?;
        if stream.context.handle != self.function.module.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        if self.shape.dynamic_shared > self.function.max_dynamic_shared.load(Ordering::Relaxed) {
            return Err(Code::INVALID_VALUE);
        }
        self.request().check(&stream.context.device.config).map_err(|fault| Code::new(fault.cuda_code()))?;
        stream.submit(Call::Launch, Command::Launch(self), None).map(drop)
    }

    /// Runs the launch to its end on the calling thread and helpers.
    pub(crate) fn run(&self, context: &Arc<Context>, place: &Place, idle: &AtomicU64) -> Outcome {
        let (device, request) = (&context.device, self.request());
        let config = match lock(&device.control).untimed {
            true => &DeviceConfig { clock: None, ..device.config.clone() },
            false => &device.config,
        };
        let run = || {
            let checked = request.check(config)?;
            // Who waits for room does nothing meanwhile.
            idle.store(LOOK, Ordering::Release);
            let room = context.enter(checked.blocks, checked.per_multiprocessor, self.cooperative);
            idle.store(0, Ordering::Release);
            let begin = Instant::now();
            let watch = |progress, steps| context.watch(begin, idle, progress, steps);
            let result = checked.run(&context.memory, Some(&watch), place.clone());
            idle.store(0, Ordering::Release);
            drop(room);
            result
        };
        let report = run();
        device.collect(&context.memory);
        let report = report.map_err(|fault| context.lose(&mut context.state(), fault))?;
        if report.counters.is_some() || report.timing.is_some() {
            lock(&device.control).records.push(LaunchRecord {
                kernel: request.kernel.to_owned(),
                grid: request.grid,
                block: request.block,
                cooperative: self.cooperative,
                programmatic: self.programmatic,
                counters: report.counters.unwrap_or_default(),
                timing: report.timing,
            });
        }
        Ok(())
    }
}

/// Warp instructions of polling in vain after which a kernel counts as waiting for others, and the interval of looks
/// whether any other work can go on.
pub(crate) const LOOK: u64 = 2000;

/// Parts of a multiprocessor that room is counted in; every occupancy from 1 to 32 divides it evenly enough.
const PARTS: u64 = 1 << 16;

/// Room of a launch on the multiprocessors, given back on drop.
struct Room<'a> {
    context: &'a Context,
    taken: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.context.state().taken -= self.taken;
        self.context.changed.notify_all();
    }
}

/// A queued cooperative launch, with the room of its blocks.
pub(crate) struct Grid {
    kernel: String,
    op: Operation,
    blocks: u64,
    /// Parts of a multiprocessor that one block takes.
    each: u64,
}

impl Grid {
    /// The grid of a launch. `None` for a kernel without instructions by which blocks wait for each other, since each
    /// of its blocks ends and gives its room back.
    fn of(launch: &KernelLaunch, place: &Place, config: &DeviceConfig) -> Option<Grid> {
        let request = launch.request();
        let meets = request.module.kernels.get(request.kernel).is_some_and(|(_, code)| code.takes_turns);
        let checked = request.check(config).ok().filter(|_| meets)?;
        let kernel = request.kernel.to_owned();
        let op = Operation::new(format!("kernel {kernel}"), place.clone());
        Some(Grid { kernel, op, blocks: checked.blocks, each: parts(checked.per_multiprocessor) })
    }

    /// Room of all its blocks but the last.
    fn all_but_one(&self) -> u64 {
        (self.blocks - 1).saturating_mul(self.each)
    }

    /// Whether two grids can take so much of `room` that neither can start its last block.
    fn excludes(&self, other: &Grid, room: u64) -> bool {
        let held = self.all_but_one().saturating_add(other.all_but_one());
        room.saturating_sub(held) < self.each.min(other.each)
    }
}

/// Parts of a multiprocessor that a block takes.
fn parts(per_multiprocessor: u32) -> u64 {
    PARTS / u64::from(per_multiprocessor.max(1))
}

impl Context {
    /// Loses the context to a fault. A lost context keeps its first fault.
    fn lose(&self, state: &mut State, fault: Fault) -> Code {
        *state.sticky.get_or_insert_with(|| self.device.note(fault))
    }

    /// Notes newly queued cooperative launches, and loses the context if one of them and an earlier, unordered one can
    /// keep each other from starting. Only under [`DeviceConfig::interleave_cooperative`].
    pub(crate) fn interleave(&self, state: &mut State, work: &Command, place: &Place) {
        let config = &self.device.config;
        if !config.interleave_cooperative {
            return;
        }
        let room = u64::from(config.multiprocessors) * PARTS;
        let queued: Vec<Grid> =
            work.cooperative().iter().filter_map(|launch| Grid::of(launch, place, config)).collect();
        state.grids.retain(|earlier| !place.settled.holds(earlier.op.place.position));
        let mut pairs = queued.iter().flat_map(|grid| state.grids.iter().map(move |earlier| (grid, earlier)));
        let deadlock = |(grid, earlier): &(&Grid, &Grid)| {
            let ordered = grid.op.follows(&earlier.op);
            !ordered && grid.excludes(earlier, room)
        };
        let fault = pairs.find(deadlock).map(|(grid, earlier)| {
            let message = format!(
                "{} with {} blocks and {} with {} do not fit on {} multiprocessors together, and nothing orders them: \
                 started in turns, each waits for room that the other holds; have the host wait for one before it \
                 launches the other, or launch fewer blocks",
                earlier.op, earlier.blocks, grid.op, grid.blocks, config.multiprocessors,
            );
            Fault::new(FaultKind::Deadlock, &grid.kernel, message)
        });
        state.grids.extend(queued);
        if let Some(fault) = fault {
            self.lose(state, fault);
            self.changed.notify_all();
        }
    }

    /// Waits for room for `blocks` blocks of which `per_multiprocessor` fit on each multiprocessor: for all of them if
    /// the launch is cooperative, else for one, then takes as much as there is.
    ///
    /// Kernels of several streams so run side by side only as far as the multiprocessors hold their blocks, and work
    /// behind a persistent kernel waits for it as on the chip.
    fn enter(&self, blocks: u64, per_multiprocessor: u32, cooperative: bool) -> Room<'_> {
        let each = parts(per_multiprocessor);
        let all = blocks.saturating_mul(each);
        let least = if cooperative { all } else { each };
        let room = u64::from(self.device.config.multiprocessors) * PARTS;
        let full = |state: &mut State| room - state.taken < least;
        let mut state = self.changed.wait_while(self.state(), full).unwrap_or_else(PoisonError::into_inner);
        let taken = all.min(room - state.taken);
        state.taken += taken;
        Room { context: self, taken }
    }

    /// The reason to end a launch: it takes too long, or host and launch wait for each other.
    fn watch(&self, begin: Instant, idle: &AtomicU64, progress: bool, steps: u64) -> Option<(FaultKind, String)> {
        let config = &self.device.config;
        if let Some(limit) = config.launch_timeout.filter(|&limit| begin.elapsed() > limit) {
            let message = format!("the launch took more than the device's {} ms", limit.as_millis());
            return Some((FaultKind::StepLimit, message));
        }
        if progress {
            idle.store(0, Ordering::Release);
            return None;
        }
        let steps = steps.max(1);
        let polled = idle.fetch_add(steps, Ordering::AcqRel) + steps;
        if (polled - steps) / LOOK == polled / LOOK {
            return None;
        }
        if self.check().is_err() {
            return Some((FaultKind::Deadlock, "the context was lost while the kernel polled".into()));
        }
        let Some(calls) = self.stuck() else {
            idle.store(LOOK, Ordering::Release);
            return None;
        };
        (polled >= config.deadlock_steps).then(|| {
            let what = "the kernel polls what nobody changes, and every host thread of its context is blocked behind";
            (FaultKind::Deadlock, format!("{what} it, in {}", calls.join(", ")))
        })
    }
}
