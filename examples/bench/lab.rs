//! A device with the kernels to measure: counted where it is emulated, timed where it is a GPU.

use kiln::driver::{Device, DeviceBuffer, Function, KernelParam, LaunchConfig, Module, Stream};
use kiln_codegen::bake::{self, Descriptor};
use kiln_codegen::kernels::Grid;
use kiln_codegen::{Kernel, Target};
use std::error::Error;

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arg {
    U32(u32),
    F32(f32),
    Address(u64),
}

/// A buffer's address as an argument.
pub(crate) fn at(buffer: &DeviceBuffer<f32>) -> Arg {
    Arg::Address(buffer.as_ptr().address())
}

/// A launch to be.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) kernel: String,
    /// Blocks that have something to do, for kernels that do not say it themselves.
    pub(crate) blocks: u32,
    pub(crate) args: Vec<Arg>,
}

/// What some calls take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) launches: u64,
    /// Counted, on the emulator: instructions of all lanes.
    pub(crate) instructions: u64,
    /// Counted, on the emulator: bytes in sectors of device memory that were read or written.
    pub(crate) bytes: u64,
    /// Timed, on a GPU.
    pub(crate) micros: f64,
}

/// A device with kernels loaded.
pub(crate) struct Lab {
    pub(crate) device: Device,
    emulated: bool,
    stream: Stream,
    kernels: Vec<(Descriptor, Function, u32)>,
}

impl Lab {
    pub(crate) fn new(device: &Device, emulated: bool, kernels: &[Box<dyn Kernel>]) -> Result<Lab, Box<dyn Error>> {
        let fits = |target: &&Target| target.sm() <= device.sm();
        let target = *Target::ALL.iter().rev().find(fits).ok_or("kiln has no kernels for a device this old")?;
        let emitted = bake::emit(target, None, kernels)?;
        let module = Module::from_ptx_str(device, &emitted.ptx)?;
        let load = |descriptor: Descriptor| -> kiln::Result<_> {
            let function = module.function(&descriptor.name)?;
            let resident = function.resident_blocks(descriptor.block, descriptor.dynamic_shared)?;
            Ok((descriptor, function, resident))
        };
        let kernels = emitted.kernels.into_iter().map(load).collect::<kiln::Result<_>>()?;
        Ok(Lab { device: device.clone(), emulated, stream: device.stream()?, kernels })
    }

    /// Runs the calls in order and gives what they took.
    pub(crate) fn measure(&self, calls: &[Call]) -> Result<Cost, Box<dyn Error>> {
        if self.emulated {
            kiln_emulator::clear_reports(self.device.ordinal());
            self.run(calls)?;
            self.stream.synchronize()?;
            let mut cost = Cost::default();
            for report in kiln_emulator::reports(self.device.ordinal()) {
                cost.launches += 1;
                cost.instructions += report.counters.lane_instructions;
                cost.bytes += 32 * (report.counters.read_sectors + report.counters.write_sectors);
            }
            return Ok(cost);
        }
        const TIMES: u32 = 50;
        for _ in 0..3 {
            self.run(calls)?;
        }
        let begin = self.stream.record_timed()?;
        for _ in 0..TIMES {
            self.run(calls)?;
        }
        let end = self.stream.record_timed()?;
        self.stream.synchronize()?;
        let micros = f64::from(begin.milliseconds_until(&end)?) * 1000.0 / f64::from(TIMES);
        Ok(Cost { launches: calls.len() as u64, micros, ..Cost::default() })
    }

    fn run(&self, calls: &[Call]) -> Result<(), Box<dyn Error>> {
        for call in calls {
            let found = self.kernels.iter().find(|(descriptor, ..)| descriptor.name == call.kernel);
            let (descriptor, function, resident) = found.ok_or_else(|| format!("no kernel {}", call.kernel))?;
            let sizes: Vec<u32> =
                call.args.iter().map(|arg| if matches!(arg, Arg::Address(_)) { 8 } else { 4 }).collect();
            let bytes: Vec<u32> = descriptor.params.iter().map(|param| param.ty.bytes()).collect();
            if sizes != bytes {
                return Err(format!("{} takes parameters of {bytes:?} bytes, not {sizes:?}", call.kernel).into());
            }
            let blocks = match descriptor.grid {
                Grid::Blocks(blocks) | Grid::UpTo(blocks) => blocks,
                Grid::PerRows(_) | Grid::Launch => call.blocks,
            };
            let grid = [blocks.clamp(1, *resident), 1, 1];
            let config =
                LaunchConfig::new(grid, [descriptor.block, 1, 1]).with_dynamic_shared(descriptor.dynamic_shared);
            let params: Vec<KernelParam<'_>> = call
                .args
                .iter()
                .map(|arg| match arg {
                    Arg::U32(value) => KernelParam::new(value),
                    Arg::F32(value) => KernelParam::new(value),
                    Arg::Address(value) => KernelParam::new(value),
                })
                .collect();
            // SAFETY: the parameters have the kernel's sizes; whoever made the call made its buffers for the kernel's
            // lengths, and keeps them until `measure` has waited.
            self.stream.enqueue([], |stream| unsafe { function.launch(stream, &config, &params) })?;
        }
        Ok(())
    }
}
