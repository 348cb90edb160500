//! Modules, launches and errors, on the emulator or, with `KILN_DEVICE=cuda`, on a GPU.

use std::ffi::{CString, c_void};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{self, Gate, SAXPY, blocks_until_open, device, device_with, driver, fault, table};
use kiln::Error;
use kiln::driver::{
    Device, DeviceBuffer, Driver, Function, GpuTensor, KernelParam, LaunchConfig, MappedBuffer, Module, Stream,
    TensorMap, sys,
};
use kiln_emulator::DeviceConfig;

/// `out[i] = dyn[ntid - 1 - i]` after every thread wrote its index to dynamic shared memory.
const REVERSE: &str = r"
.version 6.3
.target sm_75
.address_size 64
.extern .shared .align 16 .b8 dyn[];
.visible .entry reverse(.param .u64 out)
.maxntid 256, 1, 1
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, dyn;
    shl.b32 %r4, %r1, 2;
    add.u32 %r5, %r3, %r4;
    st.shared.u32 [%r5], %r1;
    bar.sync 0;
    sub.u32 %r6, %r2, %r1;
    sub.u32 %r6, %r6, 1;
    shl.b32 %r6, %r6, 2;
    add.u32 %r6, %r3, %r6;
    ld.shared.u32 %r7, [%r6];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r7;
    ret;
}
";

/// Waits for `words[0]` to become other than 0, and answers with one more in `words[1]`.
const ANSWER: &str = r"
.version 6.3
.target sm_75
.address_size 64
.visible .entry answer(.param .u64 words)
.maxntid 1, 1, 1
{
    .reg .pred %p1;
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [words];
    cvta.to.global.u64 %rd1, %rd1;
poll:
    ld.acquire.sys.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra poll;
    add.u32 %r2, %r1, 1;
    st.release.sys.global.u32 [%rd1+4], %r2;
    ret;
}
";

fn kernel(device: &Device, ptx: &str, name: &str) -> Function {
    Module::from_ptx_str(device, ptx).unwrap().function(name).unwrap()
}

/// Enqueues `y += a * x`.
fn saxpy(
    function: &Function,
    stream: &Stream,
    a: f32,
    x: &GpuTensor<f32>,
    y: &GpuTensor<f32>,
    config: &LaunchConfig,
) -> kiln::Result<()> {
    let (n, px, py) = (x.len() as u32, x.as_ptr(), y.as_ptr());
    stream.enqueue([x.reads("x"), y.writes("y")], |stream| {
        let params = [KernelParam::new(&n), KernelParam::new(&a), KernelParam::new(&px), KernelParam::new(&py)];
        // SAFETY: the kernel's four parameters; x and y have n elements and are noted.
        unsafe { function.launch(stream, config, &params) }
    })
}

#[test]
fn saxpy_matches_the_host_on_odd_sizes() {
    let device = device();
    let stream = device.stream().unwrap();
    let function = kernel(&device, SAXPY, "saxpy");
    for n in [1usize, 31, 128, 129, 1000] {
        // Exact in f32, so that a fused and a separate multiplication agree.
        let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let y: Vec<f32> = (0..n).map(|i| 0.5 * i as f32 - 3.0).collect();
        let gx = GpuTensor::from_host(&device, &x).unwrap();
        let gy = GpuTensor::from_host(&device, &y).unwrap();
        let config = LaunchConfig::linear(n.div_ceil(128) as u32, 128);
        saxpy(&function, &stream, 2.0, &gx, &gy, &config).unwrap();
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2.0 * x + y).collect();
        assert_eq!(gy.to_host().unwrap(), expected, "n = {n}");
    }
    assert_eq!(fault(&device), None);
}

#[test]
fn a_launch_is_one_call_that_waits_for_nothing() {
    let device = device();
    let stream = device.stream().unwrap();
    let function = kernel(&device, SAXPY, "saxpy");
    let x = GpuTensor::from_host(&device, &[1.0f32; 64]).unwrap();
    let y = GpuTensor::zeros(&device, 64).unwrap();
    let config = LaunchConfig::linear(1, 64);
    let gate = Gate::close(&stream);
    let (outcome, calls) = table::calls_of(|| saxpy(&function, &stream, 1.0, &x, &y, &config));
    outcome.unwrap();
    let own: Vec<_> = calls.into_iter().filter(|call| !call.starts_with("cuCtx")).collect();
    assert_eq!(own, ["cuLaunchKernel"]);
    // The form that returns an event: from the pool, not made.
    let (event, calls) = table::calls_of(|| {
        saxpy(&function, &stream, 1.0, &x, &y, &config)?;
        stream.record()
    });
    let event = event.unwrap();
    let own: Vec<_> = calls.into_iter().filter(|call| !call.starts_with("cuCtx")).collect();
    assert_eq!(own, ["cuLaunchKernel", "cuEventRecord"]);
    assert!(!event.has_happened().unwrap());
    gate.open();
    event.synchronize().unwrap();
    assert!(event.has_happened().unwrap());
    // What is known to be done is not waited for again.
    let (seen, calls) = table::calls_of(|| y.to_host().unwrap());
    assert_eq!(seen, [2.0; 64]);
    assert_eq!(calls.iter().filter(|call| **call == "cuEventRecord").count(), 1, "the copy's own");
}

#[test]
fn dropping_an_output_in_flight_waits_for_the_kernel() {
    let device = device();
    let stream = device.stream().unwrap();
    let function = kernel(&device, SAXPY, "saxpy");
    let x = GpuTensor::from_host(&device, &[1.0f32; 64]).unwrap();
    let y = GpuTensor::zeros(&device, 64).unwrap();
    let gate = Gate::close(&stream);
    saxpy(&function, &stream, 1.0, &x, &y, &LaunchConfig::linear(1, 64)).unwrap();
    blocks_until_open(&gate, || drop((x, y)));
    stream.synchronize().unwrap();
    assert_eq!(fault(&device), None);
}

#[test]
fn ptx_newer_than_the_driver_names_the_driver_it_needs() {
    let device = device();
    let needed = [("6.3", "10.0 or later"), ("8.5", "12.5 or later"), ("9.9", "later than 13.1")];
    for (version, cuda) in needed {
        let text = format!("// comment\n.version {version}\n.target sm_75\n.address_size 64\n");
        let error = table::failing("cuModuleLoadDataEx", 222, || Module::from_ptx_str(&device, &text)).unwrap_err();
        let named =
            matches!(&error, Error::PtxTooNew { version: found, cuda: needed } if found == version && *needed == cuda);
        assert!(named, "{error}");
    }
}

#[test]
fn dropping_a_module_in_flight_waits_for_the_kernel() {
    let device = device();
    let stream = device.stream().unwrap();
    let function = kernel(&device, SAXPY, "saxpy");
    let x = GpuTensor::from_host(&device, &[1.0f32; 64]).unwrap();
    let y = GpuTensor::zeros(&device, 64).unwrap();
    let gate = Gate::close(&stream);
    saxpy(&function, &stream, 3.0, &x, &y, &LaunchConfig::linear(1, 64)).unwrap();
    let ((), calls) = blocks_until_open(&gate, || table::calls_of(|| drop(function)));
    let mut own: Vec<_> = calls.into_iter().filter(|call| !call.ends_with("Current")).collect();
    own.dedup();
    assert_eq!(own, ["cuStreamQuery", "cuCtxSynchronize", "cuModuleUnload"]);
    assert_eq!(y.to_host().unwrap(), [3.0; 64]);
    assert_eq!(fault(&device), None);
}

#[test]
fn ptx_that_does_not_compile_gives_the_log() {
    let device = device();
    let broken = SAXPY.replace("fma.rn.f32", "fmaa.rn.f32");
    let error = Module::from_ptx_str(&device, &broken).unwrap_err();
    let Error::JitFailed { log, code, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*code, 218);
    // Line and token are what a reader needs; both the emulator and NVIDIA's compiler give them.
    let line = broken.lines().position(|line| line.contains("fmaa")).unwrap() + 1;
    assert!(log.contains(&line.to_string()) && log.contains("fmaa"), "{log}");
}

#[test]
fn what_is_not_ptx_text_is_refused_before_the_driver_sees_it() {
    let device = device();
    let text = |bytes: &[u8]| CString::new(bytes).unwrap();
    let cases = [
        (text(b"\x7fELF\x02\x01\x01"), "control character at byte 0"),
        (text(b"\x50\xed\x55\xba\x01"), "not UTF-8 at 1"),
        (text(b"BC\xc0\xde"), "not UTF-8 at 2"),
        (text(b".version 6.3\n\x01"), "control character at byte 13"),
        (text(b"!<arch>\n"), "found !<arch>,"),
        (text(b" \n"), "found nothing,"),
        (text(b"// .version 6.3"), "found nothing,"),
        (text(b"/* .version 6.3 */ .target sm_75"), "found .target,"),
    ];
    for (image, found) in cases {
        let (outcome, calls) = table::calls_of(|| Module::from_ptx(&device, &image));
        let Err(error @ Error::InvalidArgument { .. }) = outcome else { panic!("{image:?}: {outcome:?}") };
        assert!(error.to_string().contains(found), "{error}");
        assert_eq!(calls, [""; 0], "{image:?}");
    }
    // Comments may come first, and say anything.
    Module::from_ptx_str(&device, &format!("\n// of .target\n/* and */ /**/{SAXPY}")).unwrap();
}

#[test]
fn text_that_is_not_ascii_is_refused_with_its_line() {
    // In a comment too: the driver 580 says "Unexpected non-ASCII character encountered on line 2".
    let error = Module::from_ptx_str(&device(), &format!("\n// \u{fc}ber .target\n{SAXPY}")).unwrap_err();
    let Error::JitFailed { log, code, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*code, 218);
    assert!(log.contains("non-ASCII character") && log.contains("line 2"), "{log}");
}

#[test]
fn text_may_end_with_nuls_but_hold_none() {
    let device = device();
    for end in ["", "\0", "\0\0\0"] {
        Module::from_ptx_str(&device, &format!("{SAXPY}{end}")).unwrap();
    }
    let inside = Module::from_ptx_str(&device, &format!("{SAXPY}\0 "));
    let Err(Error::InvalidArgument { found, .. }) = &inside else { panic!("{inside:?}") };
    assert!(found.contains(&format!("a NUL at byte {}", SAXPY.len())), "{found}");
}

#[test]
fn a_kernel_that_is_not_there_is_named() {
    let module = Module::from_ptx_str(&device(), SAXPY).unwrap();
    let error = module.function("daxpy").unwrap_err();
    assert!(matches!(&error, Error::KernelNotFound { kernel } if kernel == "daxpy"), "{error:?}");
    assert!(matches!(module.function("sax\0py"), Err(Error::InvalidArgument { .. })));
}

#[test]
fn geometry_that_cannot_run_is_refused_before_the_driver() {
    let device = device();
    let stream = device.stream().unwrap();
    let function = kernel(&device, SAXPY, "saxpy");
    let x = GpuTensor::from_host(&device, &[1.0f32; 4]).unwrap();
    let y = GpuTensor::zeros(&device, 4).unwrap();
    for config in [
        LaunchConfig::linear(0, 32),
        LaunchConfig::linear(1, 0),
        LaunchConfig::linear(1, function.max_threads_per_block() + 1),
        LaunchConfig::new([1, 1, 1], [1 << 16, 1 << 16, 1 << 16]),
    ] {
        let (outcome, calls) = table::calls_of(|| saxpy(&function, &stream, 1.0, &x, &y, &config));
        assert!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{config:?}: {outcome:?}");
        assert!(!calls.contains(&"cuLaunchKernel"));
    }
}

#[test]
fn a_stream_of_another_device_is_an_error() {
    if common::is_left_out_on_gpu("it needs two devices") {
        return;
    }
    let (here, there) = (device(), device());
    let function = kernel(&here, SAXPY, "saxpy");
    // SAFETY: refused before anything is launched.
    let error = unsafe { function.launch(&there.stream().unwrap(), &LaunchConfig::linear(1, 32), &[]) }.unwrap_err();
    assert!(matches!(error, Error::WrongDevice { what: "stream", .. }), "{error:?}");
}

#[test]
fn shared_memory_beyond_48_kilobytes_is_opted_in_once() {
    let device = device();
    let stream = device.stream().unwrap();
    let function = kernel(&device, REVERSE, "reverse");
    let out = DeviceBuffer::<u32>::zeroed(&device, 256).unwrap();
    let launch = |bytes: u32| {
        let pointer = out.as_ptr();
        stream.enqueue([out.writes("out")], |stream| {
            let config = LaunchConfig::linear(1, 256).with_dynamic_shared(bytes);
            // SAFETY: the kernel's one parameter, 256 elements, noted.
            unsafe { function.launch(stream, &config, &[KernelParam::new(&pointer)]) }
        })
    };
    let count = |bytes| {
        let (outcome, calls) = table::calls_of(|| launch(bytes));
        outcome.unwrap();
        calls.into_iter().filter(|call| *call == "cuFuncSetAttribute").count()
    };
    assert_eq!(count(1024), 0);
    assert_eq!(count(60 * 1024), 1);
    assert_eq!(count(64 * 1024), 0);
    assert_eq!(out.to_host().unwrap(), (0..256).rev().collect::<Vec<u32>>());

    let limit = function.max_dynamic_shared();
    let error = launch(limit + 1).unwrap_err();
    assert!(
        matches!(&error, Error::SharedMemory { kernel, needed, limit: most, .. }
            if kernel == "reverse" && *needed == u64::from(limit) + 1 && *most == u64::from(limit)),
        "{error:?}"
    );
    launch(limit).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(fault(&device), None);
}

#[test]
fn each_kind_of_launch_takes_its_own_function() {
    let device = device();
    let stream = device.stream().unwrap();
    let function = kernel(&device, SAXPY, "saxpy");
    let x = GpuTensor::from_host(&device, &[1.0f32; 64]).unwrap();
    let y = GpuTensor::zeros(&device, 64).unwrap();
    let plain = LaunchConfig::linear(2, 32);
    let mut expected = 0.0;
    let kinds = [
        (plain, "cuLaunchKernel"),
        (plain.with_cooperative(), "cuLaunchCooperativeKernel"),
        (plain.with_programmatic(), "cuLaunchKernelEx"),
    ];
    for (config, call) in kinds.into_iter().take(if device.sm() >= 90 { 3 } else { 2 }) {
        // A programmatic launch may begin early, and this kernel does not wait by itself.
        stream.synchronize().unwrap();
        let (outcome, calls) = table::calls_of(|| saxpy(&function, &stream, 1.0, &x, &y, &config));
        outcome.unwrap();
        assert_eq!(calls.into_iter().filter(|call| call.starts_with("cuLaunch")).collect::<Vec<_>>(), [call]);
        expected += 1.0;
        assert_eq!(y.to_host().unwrap(), [expected; 64]);
    }
    let most = function.resident_blocks(32, 0).unwrap();
    assert!(most >= device.multiprocessors(), "{most} blocks");
    // As an attribute the wish is heard as well.
    let too_large = LaunchConfig::linear(most + 1, 32).with_cooperative();
    for config in [too_large, too_large.with_programmatic()].into_iter().take(if device.sm() >= 90 { 2 } else { 1 }) {
        let error = saxpy(&function, &stream, 1.0, &x, &y, &config).unwrap_err();
        assert_eq!(error.code(), Some(720), "{config:?}: {error:?}");
    }
}

#[test]
fn mapped_memory_that_the_device_cannot_reach_is_an_error_and_freed() {
    unsafe extern "C" fn gives<const ADDRESS: u64>(
        address: *mut sys::CUdeviceptr,
        _host: *mut c_void,
        _flags: u32,
    ) -> sys::CUresult {
        // SAFETY: the caller passes a place for it.
        unsafe { *address = ADDRESS };
        sys::CUDA_SUCCESS
    }
    let ordinal = device().ordinal();
    let refused = |found, function| {
        let mut table = *driver().api().table();
        table.cuMemHostGetDevicePointer = Some(function);
        // SAFETY: the functions of a driver; the address of the one replaced is never used.
        let device = Device::open(&unsafe { Driver::from_table(table) }.unwrap(), ordinal).unwrap();
        let (outcome, calls) = table::calls_of(|| MappedBuffer::<u64>::zeroed(&device, 3));
        assert!(matches!(outcome, Err(Error::InvalidAddress { found: was, alignment: 8, .. }) if was == found));
        assert!(calls.contains(&"cuMemFreeHost"), "{calls:?}");
        MappedBuffer::<u64>::zeroed(&device, 0).expect("no words need no address");
    };
    refused(0, gives::<0>);
    refused(0x1004, gives::<0x1004>);
    let (outcome, calls) = table::calls_of(|| {
        table::failing("cuMemHostGetDevicePointer", 801, || MappedBuffer::<u32>::zeroed(&device(), 3))
    });
    assert!(matches!(outcome, Err(Error::Cuda { call: "cuMemHostGetDevicePointer", code: 801, .. })), "{outcome:?}");
    assert!(calls.contains(&"cuMemFreeHost"), "{calls:?}");
}

#[test]
fn host_and_kernel_talk_through_mapped_memory() {
    let device = device();
    let stream = device.stream().unwrap();
    let function = kernel(&device, ANSWER, "answer");
    let words = MappedBuffer::<u32>::zeroed(&device, 2).unwrap();
    let pointer = words.as_ptr();
    stream
        .enqueue([words.writes("words")], |stream| {
            // SAFETY: the kernel's one parameter, two words, noted.
            unsafe { function.launch(stream, &LaunchConfig::linear(1, 1), &[KernelParam::new(&pointer)]) }
        })
        .unwrap();
    assert!(!stream.is_idle().unwrap(), "the kernel waits for the host");
    words.words()[0].store(41, Ordering::Release);
    let patience = Instant::now() + Duration::from_secs(20);
    while words.words()[1].load(Ordering::Acquire) == 0 {
        assert!(Instant::now() < patience, "no answer; {:?}", fault(&device));
        std::thread::yield_now();
    }
    assert_eq!(words.words()[1].load(Ordering::Acquire), 42);
    drop(words);
    assert!(stream.is_idle().unwrap(), "dropping waited for the kernel");
    assert_eq!(fault(&device), None);
}

/// A kernel that fails is learnt of by whoever waits next; the error then stays, and nothing hangs or panics.
#[test]
fn a_kernel_that_reads_outside_is_an_error_for_whoever_waits() {
    if common::is_left_out_on_gpu("it would take the context, which all tests share, with it") {
        return;
    }
    let device = device();
    let stream = device.stream().unwrap();
    let function = kernel(&device, SAXPY, "saxpy");
    let y = GpuTensor::<f32>::zeros(&device, 64).unwrap();
    let (n, a, nowhere, py) = (64u32, 1.0f32, 0x10u64, y.as_ptr());
    stream
        .enqueue([y.writes("y")], |stream| {
            let params =
                [KernelParam::new(&n), KernelParam::new(&a), KernelParam::new(&nowhere), KernelParam::new(&py)];
            // SAFETY: none: x is no memory, which the emulator finds.
            unsafe { function.launch(stream, &LaunchConfig::linear(1, 64), &params) }
        })
        .unwrap();
    let error = y.to_host().unwrap_err();
    assert!(matches!(error.code(), Some(700 | 719)), "{error:?}");
    assert!(fault(&device).is_some());
    assert!(GpuTensor::<f32>::zeros(&device, 1).is_err(), "the context is lost");
    drop((y, function, stream));
}

#[test]
fn memory_that_is_used_up_is_an_error_with_sizes() {
    let device = if common::on_gpu() {
        device()
    } else {
        device_with(DeviceConfig { memory_bytes: 1 << 20, ..DeviceConfig::default() })
    };
    let wanted = device.total_memory() as usize + 1;
    let error = DeviceBuffer::<u8>::uninitialized(&device, wanted).unwrap_err();
    assert!(
        matches!(error, Error::OutOfMemory { needed, total, .. } if needed == wanted as u64 && total < needed),
        "{error:?}"
    );
    let error = DeviceBuffer::<u64>::uninitialized(&device, usize::MAX / 4).unwrap_err();
    assert!(matches!(error, Error::SizeOverflow { .. }), "{error:?}");
    // Not lost: what fits is given.
    DeviceBuffer::<u8>::zeroed(&device, 1000).unwrap();
}

#[test]
fn a_call_that_fails_is_named_with_its_code() {
    let device = device();
    let stream = device.stream().unwrap();
    let function = kernel(&device, SAXPY, "saxpy");
    let x = GpuTensor::from_host(&device, &[1.0f32; 4]).unwrap();
    let y = GpuTensor::zeros(&device, 4).unwrap();
    let config = LaunchConfig::linear(1, 32);
    let error = table::failing("cuLaunchKernel", 701, || saxpy(&function, &stream, 1.0, &x, &y, &config)).unwrap_err();
    assert!(
        matches!(error, Error::Cuda { call: "cuLaunchKernel", code: 701, .. })
            && error.to_string().contains("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
        "{error:?}"
    );
    saxpy(&function, &stream, 1.0, &x, &y, &config).unwrap();
    assert_eq!(y.to_host().unwrap(), [1.0; 4]);

    let error = table::failing("cuMemAlloc", 2, || GpuTensor::<f32>::zeros(&device, 1000)).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { needed: 4000, .. }), "{error:?}");
    for (call, code) in [("cuMemcpyHtoDAsync", 1), ("cuEventRecord", 400)] {
        let error = table::failing(call, code, || GpuTensor::from_host(&device, &[1u8])).unwrap_err();
        assert!(matches!(error, Error::Cuda { call: found, code: got, .. } if found == call && got == code), "{error}");
    }
    assert!(table::failing("cuStreamCreate", 2, || device.stream()).is_err());
}

#[test]
fn empty_and_partial_copies_stay_in_range() {
    let device = device();
    let mut buffer = DeviceBuffer::<u16>::from_host(&device, &[]).unwrap();
    assert!(buffer.is_empty() && buffer.to_host().unwrap().is_empty());
    assert!(buffer.copy_from_host(0, &[1]).is_err());
    let mut buffer = DeviceBuffer::from_host(&device, &[0u16; 5]).unwrap();
    buffer.copy_from_host(3, &[8, 9]).unwrap();
    assert_eq!(buffer.to_host().unwrap(), [0, 0, 0, 8, 9]);
    let mut part = [0u16; 3];
    buffer.copy_to_host(2, &mut part).unwrap();
    assert_eq!(part, [0, 8, 9]);
    for (at, len) in [(4, 2), (6, 0), (usize::MAX, 1)] {
        let error = buffer.copy_from_host(at, &vec![0; len]).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{at} {len}: {error:?}");
    }
    let tensor = GpuTensor::from(buffer).with_shape(&[5, 1]).unwrap();
    assert_eq!((tensor.shape(), tensor.len()), (&[5usize, 1][..], 5));
    assert!(tensor.with_shape(&[2, 2]).is_err());
}

#[test]
fn time_between_events_is_measured() {
    let device = device();
    let stream = device.stream().unwrap();
    let begin = stream.record_timed().unwrap();
    let gate = Gate::close(&stream);
    let end = stream.record_timed().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(begin.milliseconds_until(&end).is_err(), "the second has not happened");
    gate.open();
    end.synchronize().unwrap();
    let milliseconds = begin.milliseconds_until(&end).unwrap();
    assert!((15.0..10_000.0).contains(&milliseconds), "{milliseconds} ms");
    assert!(stream.record().unwrap().milliseconds_until(&end).is_err(), "one has no time stamp");
}

#[test]
fn a_device_tells_its_limits() {
    let device = device();
    assert!(device.sm() >= 75 && device.multiprocessors() > 0 && !device.name().is_empty());
    assert!(device.shared_memory_per_block() >= 48 * 1024);
    let (free, total) = device.memory_info().unwrap();
    assert!(free <= total && total == device.total_memory());
    assert_eq!(device.attribute(sys::CU_DEVICE_ATTRIBUTE_WARP_SIZE).unwrap(), 32);
    let count = driver().device_count().unwrap();
    for ordinal in [-1, 1 << 20] {
        let error = Device::open(driver(), ordinal).unwrap_err();
        assert!(matches!(error, Error::NoDevice { ordinal: o, found } if o == ordinal && found >= count), "{error:?}");
    }
}

#[test]
fn a_tensor_map_says_what_a_matrix_needs() {
    let device = common::device();
    let data = DeviceBuffer::<u8>::zeroed(&device, 64 * 48).unwrap();
    let map =
        |from: usize, of: (u64, u64), each: (u32, u32)| TensorMap::of_rows(&device, data.as_ptr().add(from), of, each);
    // A chip that has no such copies refuses what is wrong as well.
    if !common::on_gpu() || TensorMap::is_supported(&device) {
        let whole = map(0, (48, 64), (16, 8)).unwrap();
        assert_eq!(whole.to_bytes().len(), TensorMap::BYTES);
        assert_ne!(whole.to_bytes(), map(16, (48, 63), (16, 8)).unwrap().to_bytes());
        let failed = table::failing("cuTensorMapEncodeTiled", 999, || map(0, (48, 64), (16, 8)));
        assert!(failed.unwrap_err().to_string().contains("cuTensorMapEncodeTiled"));
    }
    let wrong = [
        (8, (48, 64), (16, 8)),
        (0, (40, 64), (16, 8)),
        (0, (48, 0), (16, 8)),
        (0, ((1 << 32) + 16, 1), (16, 8)),
        (0, (48, (1 << 32) + 1), (16, 8)),
        (0, (48, 64), (24, 8)),
        (0, (48, 64), (272, 8)),
        (0, (48, 64), (16, 0)),
        (0, (48, 64), (16, 257)),
    ];
    for (from, of, each) in wrong {
        let error = map(from, of, each).map(|_| ()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{text}");
        assert!(text.contains("multiples of 16") && text.contains("1 to 256"), "{text}");
    }
    // A box's row may have 2048 bytes where elements have eight.
    let words = data.as_ptr().cast::<u64>();
    let of_words = |of, each| TensorMap::of_rows(&device, words, of, each).map(|_| ());
    if !common::on_gpu() || TensorMap::is_supported(&device) {
        of_words((384, 1), (256, 8)).unwrap();
    }
    for (of, each) in [((384, 1), (257, 8)), ((383, 1), (256, 8)), ((384, 1), (255, 8)), ((1 << 37, 1), (16, 8))] {
        assert!(matches!(of_words(of, each), Err(Error::InvalidArgument { .. })), "{of:?}, {each:?}");
    }
    let halves = data.as_ptr().cast::<u16>();
    let found = TensorMap::of_rows(&device, halves, (48, 8), (16, 8)).map(|_| ()).unwrap_err().to_string();
    assert!(found.contains("elements of 2 bytes"), "{found}");
}
