//! Kernel launches: what the driver refuses before anything runs, and the run itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::abi::{Handle, In, Outcome};
use super::chip::{BLOCK, GRID, THREADS_PER_BLOCK};
use super::codes::Code;
use super::config::Call;
use super::context::Context;
use super::machine::{self, Place};
use super::module::Function;
use super::registry::LaunchRecord;
use super::stream;
use super::work::Work;

/// Blocks in a cluster at most, on every chip that has them.
const CLUSTER: u64 = 8;

/// A launch with its parameters copied, as it waits in a stream or a graph.
pub(crate) struct KernelLaunch {
    pub(crate) function: Arc<Function>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    /// Packed at the parameters' offsets.
    pub(crate) params: Box<[u8]>,
    pub(crate) cooperative: bool,
    pub(crate) cluster: Option<[u32; 3]>,
    /// May overlap the kernel before it, as far as its `griddepcontrol.wait` allows. Here it never does, but what it
    /// accesses without having waited is checked as if it did.
    pub(crate) programmatic: bool,
}

/// `kernelParams`: an array of pointers, one per parameter.
pub(crate) type Parameters = In<In<u8>>;
/// `extra`: tags and values up to a null tag.
pub(crate) type Extra = In<usize>;

/// Copies the parameters out of whichever form the caller used.
pub(crate) fn parameters(function: &Function, pointers: Parameters, extra: Extra) -> Outcome<Box<[u8]>> {
    let mut packed = vec![0; function.info.param_bytes as usize];
    match (pointers.is_null(), extra.is_null()) {
        (false, false) => return Err(Code::INVALID_VALUE),
        (true, true) if !function.info.params.is_empty() => return Err(Code::INVALID_VALUE),
        (true, true) => {}
        (false, true) => {
            for (index, param) in function.info.params.iter().enumerate() {
                let bytes = pointers.at(index)?.bytes(param.size as usize)?;
                let offset = param.offset as usize;
                packed.get_mut(offset..offset + bytes.len()).ok_or(Code::INVALID_VALUE)?.copy_from_slice(bytes);
            }
        }
        (true, false) => {
            let (mut buffer, mut size) = (None, None);
            for index in 0.. {
                match extra.at(2 * index)? {
                    0 => break,
                    1 => buffer = Some(extra.at(2 * index + 1)?),
                    2 => {
                        let address = extra.at(2 * index + 1)?;
                        let bytes: [u8; size_of::<usize>()] = In::from_address(address)
                            .bytes(size_of::<usize>())?
                            .try_into()
                            .map_err(|_| Code::INVALID_VALUE)?;
                        size = Some(usize::from_ne_bytes(bytes));
                    }
                    _ => return Err(Code::INVALID_VALUE),
                }
            }
            let (buffer, size) = (buffer.ok_or(Code::INVALID_VALUE)?, size.ok_or(Code::INVALID_VALUE)?);
            // The buffer may end after the last parameter without the padding of the whole.
            let needed = function.info.params.iter().map(|param| (param.offset + param.size) as usize).max();
            if size < needed.unwrap_or(0) {
                return Err(Code::INVALID_VALUE);
            }
            let bytes = In::from_address(buffer).bytes(size.min(packed.len()))?;
            packed[..bytes.len()].copy_from_slice(bytes);
        }
    }
    Ok(packed.into())
}

impl KernelLaunch {
    /// Refuses what the driver refuses.
    pub(crate) fn validate(&self) -> Outcome {
        let (function, info) = (&self.function, &self.function.info);
        let within = |value: [u32; 3], limit: [u32; 3]| value.iter().zip(limit).all(|(&v, l)| v >= 1 && v <= l);
        if !within(self.grid, GRID) || !within(self.block, BLOCK) {
            return Err(Code::INVALID_VALUE);
        }
        let threads: u32 = self.block.iter().product();
        if threads > THREADS_PER_BLOCK {
            return Err(Code::INVALID_VALUE);
        }
        if info.reqntid.is_some_and(|required| required != self.block) {
            return Err(Code::INVALID_VALUE);
        }
        if info.maxntid.is_some_and(|most| threads > most.iter().product()) {
            return Err(Code::INVALID_VALUE);
        }
        if self.dynamic_shared > function.max_dynamic_shared() {
            return Err(Code::INVALID_VALUE);
        }
        let config = &function.module.context.device.config;
        let blocks: u64 = self.grid.iter().map(|&n| u64::from(n)).product();
        let resident = function.occupancy(threads, self.dynamic_shared);
        if resident == 0 {
            return Err(Code::LAUNCH_OUT_OF_RESOURCES);
        }
        if self.cooperative && blocks > u64::from(resident) * u64::from(config.multiprocessors) {
            return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        if let Some(cluster) = self.cluster {
            let size: u64 = cluster.iter().map(|&n| u64::from(n)).product();
            if config.sm.0 < 9 {
                return Err(Code::NOT_SUPPORTED);
            }
            if size == 0 || size > CLUSTER {
                return Err(Code::INVALID_CLUSTER_SIZE);
            }
            if self.grid.iter().zip(cluster).any(|(grid, cluster)| grid % cluster != 0) {
                return Err(Code::INVALID_VALUE);
            }
            // Blocks here do not see each other's shared memory.
            if size > 1 {
                return Err(Code::NOT_SUPPORTED);
            }
        }
        Ok(())
    }

    /// Validates and queues it.
    pub(crate) fn queue(self, stream: Handle) -> Outcome {
        let (context, id) = stream::resolve(stream)?;
        if context.handle != self.function.module.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        self.validate()?;
        let work = match context.device.injected(Call::Launch) {
            Err(code) if code.is_sticky() => Work::Fail(code),
            Err(code) => return Err(code),
            Ok(()) => Work::Launch(Arc::new(self)),
        };
        context.enqueue(id, work, Vec::new()).map(|_| ())
    }

    /// Runs it to its end on the calling thread and the device's helpers.
    pub(crate) fn run(&self, context: &Arc<Context>, place: &Place) -> Outcome {
        let device = &context.device;
        let threads = self.block.iter().product();
        let blocks = self.grid.iter().map(|&n| u64::from(n)).product();
        let per_multiprocessor = self.function.occupancy(threads, self.dynamic_shared);
        // Who waits for room does nothing meanwhile.
        let waits = context.state().polls(place.stream.1);
        waits.store(true, Ordering::Release);
        let resident = device.residency.enter(blocks, per_multiprocessor, self.cooperative);
        waits.store(false, Ordering::Release);
        let result = machine::execute(self, context, place);
        drop(resident);
        match result {
            Ok(report) => {
                if let Some(counters) = report.counters {
                    device.record(LaunchRecord {
                        kernel: self.function.info.name.clone(),
                        grid: self.grid,
                        block: self.block,
                        cooperative: self.cooperative,
                        programmatic: self.programmatic,
                        counters,
                    });
                }
                Ok(())
            }
            Err(fault) => {
                let code = Code::new(fault.cuda_code());
                device.set_fault(*fault);
                Err(code)
            }
        }
    }
}
