//! Modules and kernels through the C functions: results, refusals, faults, records.

use crate::kernels::KERNELS;
use crate::support::{Arg, Device, NON_BLOCKING, made, ok, pointers};
use kiln_emulator::{
    Call, Checks, Code, DeviceConfig, FaultInjection, FaultKind, Leak, inject, last_fault, leaks, reports,
};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// `y[i] += a * x[i]` for `i < n`; parameters of 8, 8, 4 and 4 bytes.
const SAXPY: &str = r"
.version 7.0
.target sm_80
.address_size 64

.global .align 4 .u32 calls = 7;

.visible .entry saxpy(
    .param .u64 x,
    .param .u64 y,
    .param .f32 a,
    .param .u32 n
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<6>;

    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [a];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    ld.global.f32 %f3, [%rd5];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%rd5], %f4;
DONE:
    ret;
}
";

/// A kernel of a fixed block that uses dynamic shared memory: thread numbers, 64 for every block.
const FIXED: &str = r"
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry fixed(.param .u64 out)
.reqntid 64, 1, 1
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    mov.u64 %rd3, dynamic;
    add.s64 %rd3, %rd3, %rd2;
    st.shared.u32 [%rd3], %r1;
    ld.shared.u32 %r2, [%rd3];
    mov.u32 %r3, %ctaid.x;
    mul.wide.u32 %rd4, %r3, 256;
    add.s64 %rd1, %rd1, %rd2;
    add.s64 %rd1, %rd1, %rd4;
    st.global.u32 [%rd1], %r2;
    ret;
}
";

#[test]
fn saxpy_matches_the_host() {
    let device = Device::new(DeviceConfig { counters: true, ..DeviceConfig::default() });
    let n = 1000u32;
    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.25 - 3.0).collect();
    let y: Vec<f32> = (0..n).map(|i| 100.0 - i as f32).collect();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 1.5f32.mul_add(*x, *y)).collect();
    let (dx, dy) = (device.upload(&x), device.upload(&y));
    let function = device.kernel(SAXPY, "saxpy");
    let stream = device.stream(NON_BLOCKING);
    ok(device.launch(function, 8, 128, stream, &[Arg::U64(dx), Arg::U64(dy), Arg::F32(1.5), Arg::U32(n)]));
    // SAFETY: a handle of this device.
    ok(unsafe { (device.api.stream_synchronize)(stream) });
    assert_eq!(device.download::<f32>(dy, n as usize), expected);
    let records = reports(device.ordinal);
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].kernel.as_str(), records[0].grid, records[0].block), ("saxpy", [8, 1, 1], [128, 1, 1]));
}

#[test]
fn parameters_are_taken_by_one_pointer_each() {
    let device = Device::new(DeviceConfig::default());
    let (dx, dy) = (device.upload(&[2.0f32]), device.upload(&[1.0f32]));
    let function = device.kernel(SAXPY, "saxpy");
    let args = [Arg::U64(dx), Arg::U64(dy), Arg::F32(3.0), Arg::U32(1)];
    ok(device.launch(function, 1, 1, 0, &args));
    assert_eq!(device.download::<f32>(dy, 1), [7.0]);
    let mut packed = [null_mut()];
    for (extra, code) in [(null_mut(), Code::INVALID_VALUE), (packed.as_mut_ptr(), Code::NOT_SUPPORTED)] {
        // SAFETY: no parameters are given, or an empty list of what is packed.
        let none = unsafe { (device.api.launch)(function, 1, 1, 1, 1, 1, 1, 0, 0, null_mut(), extra) };
        assert_eq!(none, code.raw());
    }
}

#[test]
fn modules_name_their_kernels_and_variables() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let module = device.load(SAXPY).unwrap();
    let function = device.function(module, "saxpy");
    assert_eq!(device.function(module, "saxpy"), function);
    // SAFETY: handles of this device, values in locals.
    unsafe {
        assert_eq!((api.module_function)(&mut 0, module, c"sax".as_ptr()), Code::NOT_FOUND.raw());
        let (mut address, mut bytes) = (0, 0);
        ok((api.module_global)(&mut address, &mut bytes, module, c"calls".as_ptr()));
        assert_eq!((bytes, device.download::<u32>(address, 1)), (4, vec![7]));
        assert_eq!((api.module_global)(&mut address, &mut bytes, module, c"saxpy".as_ptr()), Code::NOT_FOUND.raw());
        assert_eq!(made(|out| (api.function_attribute)(out, 0, function)), 1024);
        assert_eq!(made(|out| (api.function_attribute)(out, 1, function)), 0);
        ok((api.module_unload)(module));
        assert_eq!(device.launch(function, 1, 1, 0, &[]), Code::INVALID_HANDLE.raw(), "unloaded");
        assert_eq!((api.copy_out)((&raw mut address).cast(), address, 4), Code::INVALID_VALUE.raw());
    }
}

#[test]
fn a_failed_load_says_where() {
    let device = Device::new(DeviceConfig::default());
    let broken = SAXPY.replace("fma.rn.f32 %f4", "fmq.rn.f32 %f4");
    let line = 1 + broken.lines().position(|line| line.contains("fmq")).unwrap();
    let (code, log) = device.load(&broken).unwrap_err();
    assert_eq!(code, Code::INVALID_PTX.raw());
    assert!(log.contains(&format!("line {line}")) && log.contains("fmq"), "{log}");
    let (code, _) = device.load("").unwrap_err();
    assert_eq!(code, Code::INVALID_PTX.raw());
    let (code, log) = device.load(&SAXPY.replace("sm_80", "sm_100")).unwrap_err();
    assert_eq!(code, Code::INVALID_PTX.raw());
    assert!(log.contains("sm_100") && log.contains("sm_90"), "{log}");
    let (code, log) = device.load(&SAXPY.replace(".version 7.0", ".version 9.9")).unwrap_err();
    assert_eq!(code, Code::UNSUPPORTED_PTX_VERSION.raw());
    assert!(log.contains("9.9"), "{log}");
    let (code, _) = device.load("\u{7f}ELF").unwrap_err();
    assert_eq!(code, Code::NO_BINARY_FOR_GPU.raw());
    device.load(SAXPY).unwrap();
}

#[test]
fn launches_beyond_the_limits_are_refused() {
    let device = Device::new(DeviceConfig { multiprocessors: 2, ..DeviceConfig::with_sm(8, 6) });
    let api = &device.api;
    let out = device.alloc(1 << 10);
    let saxpy = device.kernel(SAXPY, "saxpy");
    let fixed = device.kernel(FIXED, "fixed");
    let invalid = Code::INVALID_VALUE.raw();
    let args = [Arg::U64(out), Arg::U64(out), Arg::F32(0.0), Arg::U32(0)];
    let shaped = |function, grid: [u32; 3], block: [u32; 3], shared: u32| {
        let mut pointers = pointers(&args);
        // SAFETY: at least as many arguments as either kernel has.
        unsafe {
            (api.launch)(
                function,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared,
                0,
                pointers.as_mut_ptr(),
                null_mut(),
            )
        }
    };
    for (grid, block) in [
        ([0, 1, 1], [1, 1, 1]),
        ([1, 65536, 1], [1, 1, 1]),
        ([1, 1, 1], [0, 1, 1]),
        ([1, 1, 1], [1025, 1, 1]),
        ([1, 1, 1], [1, 1, 65]),
        ([1, 1, 1], [32, 32, 2]),
    ] {
        assert_eq!(shaped(saxpy, grid, block, 0), invalid, "{grid:?} {block:?}");
    }
    ok(shaped(saxpy, [1, 1, 1], [32, 32, 1], 0));
    assert_eq!(shaped(fixed, [1, 1, 1], [32, 1, 1], 256), invalid, ".reqntid 64");
    ok(shaped(fixed, [1, 1, 1], [64, 1, 1], 256));
    assert_eq!(shaped(fixed, [1, 1, 1], [64, 1, 1], 64 << 10), invalid, "above 48 KB without the attribute");
    // SAFETY: handles of this device, values in locals.
    unsafe {
        assert_eq!((api.set_function_attribute)(fixed, 8, 100 << 10), invalid, "above the device's 99 KB");
        ok((api.set_function_attribute)(fixed, 8, 99 << 10));
        assert_eq!(made(|out| (api.function_attribute)(out, 8, fixed)), 99 << 10);
        ok(shaped(fixed, [1, 1, 1], [64, 1, 1], 64 << 10));
        assert_eq!(made(|out| (api.occupancy)(out, fixed, 64, 64 << 10)), 1);
        assert_eq!(made(|out| (api.occupancy)(out, fixed, 64, 24 << 10)), 4, "100 KB hold four times 25");
        assert_eq!(made(|out| (api.occupancy)(out, saxpy, 1024, 0)), 1, "48 warps");
        let cooperative = |blocks| device.launch_cooperative(fixed, [blocks, 64], 64 << 10, 0, &args);
        let results: Vec<u32> = [2, 3].map(cooperative).into();
        assert_eq!(results, [0, Code::COOPERATIVE_LAUNCH_TOO_LARGE.raw()], "two multiprocessors, one block on each");
    }
    ok(device.synchronize());
    assert_eq!(device.download::<u32>(out, 64), (0..64).collect::<Vec<u32>>());
}

/// A kernel of so many threads that has 250 words at once.
fn many_registers(threads: u32) -> String {
    let loads: String = (0..250).map(|i| format!("    ld.global.u32 %r{i}, [%rd1+{}];\n", 4 * i)).collect();
    let sums: String = (1..250).map(|i| format!("    add.u32 %r0, %r0, %r{i};\n")).collect();
    format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry many(.param .u64 out)\n.reqntid {threads}\n{{\n    \
         .reg .b32 %r<250>;\n    .reg .b64 %rd<2>;\n    ld.param.u64 %rd1, [out];\n{loads}{sums}    \
         st.global.u32 [%rd1], %r0;\n    ret;\n}}\n"
    )
}

#[test]
fn a_thread_has_the_registers_that_whole_warps_of_a_scheduler_leave_it() {
    let device = Device::new(DeviceConfig::default());
    // A scheduler has two warps of eight, three of nine and of twelve: a third of its 16384 registers is 170 a thread.
    for (warps, registers) in [(8, 255), (9, 168), (12, 168), (13, 128)] {
        let many = device.kernel(&many_registers(32 * warps), "many");
        // SAFETY: handles of this device, values in locals.
        unsafe {
            assert!(made(|out| (device.api.function_attribute)(out, 4, many)) <= registers, "{warps} warps");
            assert!(made(|out| (device.api.occupancy)(out, many, 32 * warps as i32, 0)) >= 1, "{warps} warps");
        }
    }
}

#[test]
fn launch_attributes_are_read() {
    let device = Device::new(DeviceConfig { multiprocessors: 1, counters: true, ..DeviceConfig::default() });
    let out = device.alloc(512);
    let fixed = device.kernel(FIXED, "fixed");
    let launch = |grid, attributes: &[(u32, [u32; 3])]| {
        device.launch_with(attributes, fixed, [grid, 64], 256, 0, &[Arg::U64(out)])
    };
    ok(launch(1, &[]));
    ok(launch(1, &[(6, [1, 0, 0]), (2, [1, 0, 0])]));
    assert_eq!(launch(1000, &[(2, [1, 0, 0])]), Code::COOPERATIVE_LAUNCH_TOO_LARGE.raw());
    assert_eq!(launch(3, &[(4, [2, 1, 1])]), Code::INVALID_VALUE.raw(), "the grid is no multiple of the cluster");
    assert_eq!(launch(16, &[(4, [16, 1, 1])]), Code::INVALID_CLUSTER_SIZE.raw());
    ok(launch(2, &[(4, [2, 1, 1])]));
    assert_eq!(launch(1, &[(99, [0; 3])]), Code::INVALID_VALUE.raw());
    ok(device.synchronize());
    let how: Vec<_> = reports(device.ordinal).iter().map(|record| (record.cooperative, record.programmatic)).collect();
    assert_eq!(how, [(false, false), (true, true), (false, false)]);
}

#[test]
fn a_fault_sticks_and_is_explained() {
    let device = Device::new(DeviceConfig::default());
    let api = &device.api;
    let (dx, dy) = (device.upload(&[1.0f32; 8]), device.upload(&[1.0f32; 8]));
    let function = device.kernel(SAXPY, "saxpy");
    let args = [Arg::U64(dx), Arg::U64(dy), Arg::F32(1.0), Arg::U32(9)];
    ok(device.launch(function, 1, 32, 0, &args));
    assert_eq!(device.synchronize(), Code::ILLEGAL_ADDRESS.raw(), "one element past the end");
    // SAFETY: handles and addresses of this device, values in locals.
    unsafe {
        assert_eq!((api.alloc)(&mut 0, 4), Code::ILLEGAL_ADDRESS.raw());
        assert_eq!(device.launch(function, 1, 32, 0, &args), Code::ILLEGAL_ADDRESS.raw());
        assert_eq!((api.free)(dx), Code::ILLEGAL_ADDRESS.raw());
        let fault = last_fault(device.ordinal).unwrap();
        assert_eq!((fault.kind, fault.kernel.as_str()), (FaultKind::OutOfBounds, "saxpy"));
        assert_eq!(SAXPY.lines().nth(fault.ptx_line as usize - 1).unwrap().trim(), "ld.global.f32 %f2, [%rd4];");
        assert_eq!((fault.thread, fault.address), (Some([8, 0, 0]), Some(dx + 32)));
        // A new context is sound again.
        ok((api.release)(device.ordinal));
        let context = made(|out| (api.retain)(out, device.ordinal));
        ok((api.set_current)(context));
        device.alloc(4);
        ok(device.synchronize());
    }
}

#[test]
fn injected_launch_and_load_failures_come_as_on_a_device() {
    let device = Device::new(DeviceConfig::default());
    let word = device.upload(&[0u32]);
    let fixed = device.kernel(FIXED, "fixed");
    let injected = |call, code| inject(device.ordinal, FaultInjection { call, nth: 1, code });
    injected(Call::Load, Code::NO_BINARY_FOR_GPU);
    assert_eq!(device.load(FIXED).unwrap_err().0, Code::NO_BINARY_FOR_GPU.raw());
    injected(Call::Launch, Code::LAUNCH_OUT_OF_RESOURCES);
    assert_eq!(device.launch(fixed, 1, 64, 0, &[Arg::U64(word)]), Code::LAUNCH_OUT_OF_RESOURCES.raw());
    injected(Call::Launch, Code::LAUNCH_FAILED);
    ok(device.launch(fixed, 1, 64, 0, &[Arg::U64(word)]));
    assert_eq!(device.synchronize(), Code::LAUNCH_FAILED.raw());
    // SAFETY: an ordinal.
    ok(unsafe { (device.api.release)(device.ordinal) });
    assert!(leaks(device.ordinal).contains(&Leak::Module));
}

#[test]
fn mapped_memory_is_seen_while_a_kernel_runs() {
    let device = Device::new(DeviceConfig::default());
    let stream = device.stream(NON_BLOCKING);
    let (words, address) = device.mapped(2);
    let function = device.kernel(KERNELS, "mailbox");
    ok(device.launch(function, 1, 1, stream, &[Arg::U64(address)]));
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: a handle of this device.
    unsafe {
        assert_eq!((device.api.stream_query)(stream), Code::NOT_READY.raw());
        assert_eq!(words[1].load(Ordering::Acquire), 0);
        words[0].store(41, Ordering::Release);
        while words[1].load(Ordering::Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(words[1].load(Ordering::Acquire), 42);
        ok((device.api.stream_synchronize)(stream));
    }
}

#[test]
fn waiting_behind_a_kernel_that_waits_for_the_host_is_a_deadlock() {
    for blocks in [1, 2] {
        let device = Device::new(DeviceConfig { deadlock_steps: 20_000, ..DeviceConfig::default() });
        let stream = device.stream(NON_BLOCKING);
        let (_, address) = device.mapped(2);
        let other = device.alloc(16);
        let function = device.kernel(KERNELS, "mailbox");
        ok(device.launch(function, blocks, 1, stream, &[Arg::U64(address)]));
        // SAFETY: an address of this device.
        assert_eq!(unsafe { (device.api.free)(other) }, Code::LAUNCH_TIMEOUT.raw());
        let fault = last_fault(device.ordinal).unwrap();
        assert_eq!(fault.kind, FaultKind::Deadlock);
        assert!(fault.message.contains("cuMemFree"), "{fault}");
        // The mailbox is the module's first kernel.
        let line = 1 + KERNELS.lines().position(|line| line.starts_with("ld.acquire.sys")).unwrap();
        let at = format!("ld.acquire.sys.global.u32 (PTX line {line})");
        let polled = format!("polls the word at {address:#x}, which holds 0x0, at {at}");
        for block in 0..blocks {
            let warp = format!("block ({block}, 0, 0) warp 0 lanes 00000001 {polled}");
            assert!(fault.message.contains(&warp), "{fault}");
        }
    }
}

#[test]
fn a_host_that_takes_its_time_is_no_deadlock() {
    let device = Device::new(DeviceConfig { deadlock_steps: 20_000, ..DeviceConfig::default() });
    let stream = device.stream(NON_BLOCKING);
    let (words, address) = device.mapped(2);
    let function = device.kernel(KERNELS, "mailbox");
    ok(device.launch(function, 1, 1, stream, &[Arg::U64(address)]));
    std::thread::scope(|scope| {
        // A second thread that has used the context is free to write, and does, long after.
        let device = &device;
        let (used, uses) = std::sync::mpsc::channel();
        scope.spawn(move || {
            // SAFETY: a handle of this device, then none.
            unsafe {
                ok((device.api.set_current)(device.context));
                ok((device.api.set_current)(0));
            }
            used.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(300));
            words[0].store(1, Ordering::Release);
        });
        uses.recv().unwrap();
        // SAFETY: a handle of this device.
        ok(unsafe { (device.api.stream_synchronize)(stream) });
    });
    assert_eq!(words[1].load(Ordering::Acquire), 2);
}

#[test]
fn a_stream_that_can_still_change_something_is_no_deadlock() {
    extern "C" fn slow(_: *mut c_void) {
        std::thread::sleep(Duration::from_millis(200));
    }
    for stuck in [false, true] {
        let device = Device::new(DeviceConfig { deadlock_steps: 20_000, ..DeviceConfig::default() });
        let (stream, other) = (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
        let words = device.upload(&[0u32; 2]);
        let function = device.kernel(KERNELS, "mailbox");
        let set = device.kernel(KERNELS, "set");
        let event = device.event();
        // SAFETY: handles and addresses of this device.
        unsafe {
            ok(device.launch(function, 1, 1, stream, &[Arg::U64(words)]));
            ok((device.api.event_record)(event, stream));
            ok((device.api.launch_host)(other, Some(slow), null_mut()));
            // The kernel that sets the flag is behind a slow function, or behind the kernel that waits for it.
            if stuck {
                ok((device.api.stream_wait)(other, event, 0));
            }
            ok(device.launch(set, 1, 1, other, &[Arg::U64(words)]));
            let expected = if stuck { Code::LAUNCH_TIMEOUT.raw() } else { 0 };
            assert_eq!((device.api.stream_synchronize)(stream), expected);
        }
    }
}

#[test]
fn a_kernel_that_computes_for_long_is_no_deadlock() {
    for blocks in [1, 2] {
        let device =
            Device::new(DeviceConfig { deadlock_steps: 20_000, checks: Checks::NONE, ..DeviceConfig::default() });
        let words = device.upload(&[0u32; 2]);
        let function = device.kernel(KERNELS, "compute");
        ok(device.launch(function, blocks, 1, 0, &[Arg::U64(words)]));
        ok(device.synchronize());
    }
}

#[test]
fn a_launch_of_too_much_time_is_killed() {
    let config = DeviceConfig { launch_timeout: Some(Duration::from_millis(100)), ..DeviceConfig::default() };
    let device = Device::new(config);
    assert_eq!(device.attribute(17), 1, "kernels are timed");
    let (_, address) = device.mapped(2);
    let function = device.kernel(KERNELS, "mailbox");
    ok(device.launch(function, 1, 1, 0, &[Arg::U64(address)]));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(device.synchronize(), Code::LAUNCH_TIMEOUT.raw());
}

#[test]
fn a_resident_kernel_keeps_others_out_only_where_there_is_no_room() {
    let device = Device::new(DeviceConfig { multiprocessors: 1, ..DeviceConfig::default() });
    let api = &device.api;
    let (first, second) = (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
    let (words, address) = device.mapped(2);
    let out = device.alloc(256);
    let mailbox = device.kernel(KERNELS, "mailbox");
    let fixed = device.kernel(FIXED, "fixed");
    let args = [Arg::U64(address)];
    // SAFETY: handles of this device; one argument for one parameter.
    unsafe {
        ok(device.allow_shared(mailbox, 220 << 10));
        ok((api.launch)(mailbox, 1, 1, 1, 1, 1, 1, 0, first, pointers(&args).as_mut_ptr(), null_mut()));
        ok(device.launch_shared(fixed, 64, 256, second, &[Arg::U64(out)]));
        ok((api.stream_synchronize)(second));
        words[0].store(1, Ordering::Release);
        ok((api.stream_synchronize)(first));

        words[0].store(0, Ordering::Release);
        ok((api.launch)(mailbox, 1, 1, 1, 1, 1, 1, 220 << 10, first, pointers(&args).as_mut_ptr(), null_mut()));
        std::thread::sleep(Duration::from_millis(20));
        ok(device.allow_shared(fixed, 16 << 10));
        ok(device.launch_shared(fixed, 64, 16 << 10, second, &[Arg::U64(out)]));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!((api.stream_query)(second), Code::NOT_READY.raw(), "the shared memory is taken");
        words[0].store(1, Ordering::Release);
        ok((api.stream_synchronize)(second));
    }
}

#[test]
fn a_cooperative_launch_waits_for_room_for_all_its_blocks() {
    let device = Device::new(DeviceConfig { multiprocessors: 2, ..DeviceConfig::default() });
    let api = &device.api;
    let (first, second, third) =
        (device.stream(NON_BLOCKING), device.stream(NON_BLOCKING), device.stream(NON_BLOCKING));
    let (words, address) = device.mapped(2);
    let (out, other) = (device.alloc(512), device.alloc(256));
    let mailbox = device.kernel(KERNELS, "mailbox");
    let fixed = device.kernel(FIXED, "fixed");
    // SAFETY: handles of this device; one argument for one parameter.
    unsafe {
        // One block fits on each multiprocessor, and the first kernel takes one of them.
        for function in [mailbox, fixed] {
            ok(device.allow_shared(function, 220 << 10));
        }
        ok(device.launch_shared(mailbox, 1, 220 << 10, first, &[Arg::U64(address)]));
        std::thread::sleep(Duration::from_millis(20));
        ok(device.launch_cooperative(fixed, [2, 64], 220 << 10, second, &[Arg::U64(out)]));
        ok(device.launch_shared(fixed, 64, 220 << 10, third, &[Arg::U64(other)]));
        ok((api.stream_synchronize)(third));
        assert_eq!((api.stream_query)(second), Code::NOT_READY.raw(), "one of two multiprocessors is taken");
        words[0].store(1, Ordering::Release);
        ok((api.stream_synchronize)(second));
    }
    assert_eq!(device.download::<u32>(out, 128), (0..64).chain(0..64).collect::<Vec<u32>>());
}

#[test]
fn copies_between_host_and_device_are_counted_while_the_clock_runs() {
    let chip = kiln_emulator::chip_file("a100").unwrap();
    let device = Device::new(DeviceConfig::clocked(chip));
    let counted = || kiln_emulator::copies(device.ordinal);
    let from = device.upload(&[1u32; 1000]);
    let to = device.alloc(4000);
    // SAFETY: both are allocations of that size.
    ok(unsafe { (device.api.copy)(to, from, 4000) });
    assert_eq!(device.download::<u32>(to, 1000), [1; 1000]);
    // Not the one within the device.
    assert_eq!((counted().count, counted().bytes), (2, 8000));
    let microseconds = 2.0 * chip.copy.value + 8e-3 / chip.link.value * 1e3;
    assert!((counted().microseconds(chip) - microseconds).abs() < 1e-6, "{counted:?}", counted = counted());
    kiln_emulator::time_launches(device.ordinal, false);
    device.download::<u32>(to, 1000);
    assert_eq!(counted().count, 2);
    kiln_emulator::clear_reports(device.ordinal);
    assert_eq!(counted(), kiln_emulator::Copies::default());
}
