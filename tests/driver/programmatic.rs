//! Programmatic dependent launch: kernels of the language that begin before the kernel before them ends, in a stream and
//! in a graph, and what goes wrong without their wait.

use crate::{bake, common};
use kiln::Result;
use kiln::driver::{Device, DeviceBuffer, Function, Graph, KernelParam, LaunchConfig, Stream};
use kiln_codegen::Kernel;
use kiln_codegen::ptx::{Builder, Global, LoadKind, U32};
use kiln_emulator::DeviceConfig;

const N: usize = 64;

/// `y[i] = 3 i + 1`, written after the next launch may have begun.
#[derive(Debug)]
struct Produce;

impl Kernel for Produce {
    fn name(&self) -> &str {
        "produce"
    }

    fn block(&self) -> u32 {
        N as u32
    }

    fn build(&self, b: &mut Builder) {
        let y = b.param::<Global<U32>>("y"); // [N]
        b.griddepcontrol_launch_dependents();
        b.griddepcontrol_wait();
        let tid = b.tid();
        let value = b.mad::<U32>(tid, 3, 1);
        let at = b.index(y, tid);
        b.st(at, value);
    }
}

/// The reading of what the kernel before has written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reads {
    BehindTheWait,
    BeforeTheWait,
    /// Behind the wait, as if it were constant.
    AsConstant,
}

/// `out[i] = y[i] + 1`.
#[derive(Debug)]
struct Consume(Reads);

impl Kernel for Consume {
    fn name(&self) -> &str {
        "consume"
    }

    fn block(&self) -> u32 {
        N as u32
    }

    fn build(&self, b: &mut Builder) {
        let y = b.param::<Global<U32>>("y"); // [N]
        let out = b.param::<Global<U32>>("out"); // [N]
        let tid = b.tid();
        let (y, out) = (b.index(y, tid), b.index(out, tid));
        b.griddepcontrol_launch_dependents();
        let value = match self.0 {
            Reads::BehindTheWait => {
                b.griddepcontrol_wait();
                b.ld(y, LoadKind::Ordinary)
            }
            Reads::BeforeTheWait => {
                let value = b.ld(y, LoadKind::Ordinary);
                b.griddepcontrol_wait();
                value
            }
            Reads::AsConstant => {
                b.griddepcontrol_wait();
                b.ld(y, LoadKind::Constant)
            }
        };
        let value = b.add(value, 1);
        b.st(out, value);
    }
}

/// Both kernels one behind the other, the second programmatic, launched or recorded: what they leave in `out`.
fn chain(device: &Device, reads: Reads, recorded: bool) -> Result<Vec<u32>> {
    let module = bake::module(90, None, &[Box::new(Produce), Box::new(Consume(reads))]).load(device)?;
    let (produce, consume) = (module.function("produce")?, module.function("consume")?);
    let y = DeviceBuffer::from_host(device, &[0u32; N])?;
    let out = DeviceBuffer::from_host(device, &[0u32; N])?;
    let (at_y, at_out) = (y.as_ptr(), out.as_ptr());
    let (y_param, out_param) = (KernelParam::new(&at_y), KernelParam::new(&at_out));
    let config = LaunchConfig::linear(1, N as u32).with_programmatic();
    let launch = |stream: &Stream, function: &Function, params: &[KernelParam<'_>]| {
        // SAFETY: the kernels' parameters, whose buffers have N elements and are noted; both kernels wait.
        unsafe { function.launch(stream, &config, params) }
    };
    let both = |stream: &Stream| {
        launch(stream, &produce, &[y_param])?;
        launch(stream, &consume, &[y_param, out_param])
    };
    let stream = device.stream()?;
    let uses = [y.writes("y"), out.writes("out")];
    if recorded {
        let graph = Graph::capture(&stream, both)?.instantiate()?;
        // SAFETY: as above.
        stream.enqueue(uses, |stream| unsafe { graph.launch(stream) })?;
    } else {
        stream.enqueue(uses, both)?;
    }
    out.to_host()
}

/// A device that has programmatic launches.
fn device() -> Option<Device> {
    let device = common::device_with(DeviceConfig::with_sm(9, 0));
    if device.sm() < 90 {
        println!("SKIPPED: sm_{} has no programmatic launches", device.sm());
    }
    (device.sm() >= 90).then_some(device)
}

#[test]
fn a_kernel_that_waits_sees_what_the_kernel_before_it_wrote() {
    let Some(device) = device() else { return };
    let expected: Vec<u32> = (0..N as u32).map(|i| 3 * i + 2).collect();
    for recorded in [false, true] {
        assert_eq!(chain(&device, Reads::BehindTheWait, recorded).unwrap(), expected, "recorded: {recorded}");
    }
    assert_eq!(common::fault(&device), None);
}

#[test]
fn a_read_of_what_the_kernel_before_wrote_is_caught_unless_it_has_been_waited_for() {
    if common::is_left_out_on_gpu("only the emulator's checks see it") || common::tries_seeds() {
        return;
    }
    let missing = [
        (Reads::BeforeTheWait, "Race", "a griddepcontrol.wait before this is missing"),
        (Reads::AsConstant, "StaleRead", "a non-coherent load may only read"),
    ];
    for (reads, kind, what) in missing {
        for recorded in [false, true] {
            let device = device().expect("the emulator has them");
            assert!(chain(&device, reads, recorded).is_err(), "{reads:?}, recorded: {recorded}");
            let fault = common::fault(&device).expect("a fault");
            assert!(fault.contains(kind) && fault.contains(what), "{reads:?}, recorded: {recorded}: {fault}");
        }
    }
}
