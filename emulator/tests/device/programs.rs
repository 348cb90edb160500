//! Functions that programs other than kiln use: contexts, memory of several kinds, questions.

use crate::support::{Arg, Device, Handle, ok};
use kiln_emulator::{Code, DeviceConfig, Leak, last_fault, leaks, resolve};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

/// Calls a driver function by its name. The values are the arguments, of the types beside them.
macro_rules! call {
    ($name:literal $(, $value:expr => $type:ty)*) => {{
        let name = CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()).expect("a name");
        let function = resolve(name).expect($name);
        // SAFETY: the signature is that of NVIDIA's header; pointers are to locals or null.
        unsafe {
            let function: unsafe extern "C" fn($($type),*) -> u32 = std::mem::transmute(function.as_ptr());
            function($($value),*)
        }
    }};
}

/// Triples the words of a range, one a thread.
const TRIPLE: &str = "
.version 7.8
.target sm_90
.address_size 64
.visible .entry triple(.param .u64 words)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    mul.lo.u32 %r2, %r2, 3;
    st.global.u32 [%rd3], %r2;
    ret;
}";

fn current() -> Handle {
    let mut handle = 0;
    ok(call!("cuCtxGetCurrent", &mut handle => *mut Handle));
    handle
}

#[test]
fn contexts_are_stacked_in_each_thread() {
    let device = Device::new(DeviceConfig::default());
    let mut own = 0;
    ok(call!("cuCtxCreate_v4", &mut own => *mut Handle, 0 => usize, 4 => u32, device.ordinal => i32));
    assert_eq!(current(), own);
    let (mut flags, mut ordinal, mut popped) = (0, -1, 0);
    ok(call!("cuCtxGetFlags", &mut flags => *mut u32));
    ok(call!("cuCtxGetDevice", &mut ordinal => *mut i32));
    assert_eq!((flags, ordinal), (4, device.ordinal));
    std::thread::spawn(|| assert_eq!(current(), 0)).join().expect("a thread has a stack of its own");
    ok(call!("cuCtxPopCurrent_v2", &mut popped => *mut Handle));
    assert_eq!((popped, current()), (own, device.context));
    ok(call!("cuCtxPushCurrent_v2", own => Handle));
    // Null takes the top away, a handle replaces it.
    ok(call!("cuCtxSetCurrent", 0 => Handle));
    assert_eq!(current(), device.context);
    ok(call!("cuCtxPushCurrent_v2", own => Handle));
    ok(call!("cuCtxDestroy_v2", own => Handle));
    assert_eq!(current(), device.context);
    assert_eq!(call!("cuCtxDestroy_v2", own => Handle), Code::INVALID_CONTEXT.raw());
    assert_eq!(call!("cuCtxDestroy_v2", device.context => Handle), Code::INVALID_CONTEXT.raw(), "it is primary");
    ok(call!("cuCtxPopCurrent_v2", null_mut() => *mut Handle));
    assert_eq!(call!("cuCtxPopCurrent_v2", null_mut() => *mut Handle), Code::INVALID_CONTEXT.raw());
}

#[test]
fn memory_of_a_context_is_its_own() {
    let device = Device::new(DeviceConfig::default());
    let outer = device.upload(&[1u32]);
    let mut own = 0;
    ok(call!("cuCtxCreate_v2", &mut own => *mut Handle, 0 => u32, device.ordinal => i32));
    let inner = device.upload(&[2u32]);
    assert_ne!(inner, outer);
    assert_eq!(call!("cuMemFree_v2", outer => u64), Code::INVALID_VALUE.raw());
    ok(call!("cuCtxDestroy_v2", own => Handle));
    assert_eq!(device.download::<u32>(outer, 1), [1]);
    assert!(leaks(device.ordinal).contains(&Leak::DeviceMemory { address: inner, bytes: 4 }));
}

#[test]
fn primary_contexts_have_flags_and_can_be_reset() {
    let device = Device::new(DeviceConfig::default());
    let state = || {
        let (mut flags, mut active) = (9, 9);
        ok(call!("cuDevicePrimaryCtxGetState", device.ordinal => i32, &mut flags => *mut u32, &mut active => *mut i32));
        (flags, active)
    };
    assert_eq!(state(), (0, 1));
    ok(call!("cuDevicePrimaryCtxSetFlags_v2", device.ordinal => i32, 4 => u32));
    assert_eq!(state(), (4, 1));
    let wrong = call!("cuDevicePrimaryCtxSetFlags_v2", device.ordinal => i32, 3 => u32);
    assert_eq!(wrong, Code::INVALID_VALUE.raw(), "to spin and to yield exclude each other");
    device.alloc(16);
    ok(call!("cuDevicePrimaryCtxReset_v2", device.ordinal => i32));
    assert_eq!(state(), (0, 0));
    assert_eq!(leaks(device.ordinal), []);
    assert_eq!(device.synchronize(), Code::CONTEXT_IS_DESTROYED.raw());
    ok(call!("cuDevicePrimaryCtxRelease_v2", device.ordinal => i32));
}

#[test]
fn limits_are_kept_and_unknown_ones_refused() {
    let _device = Device::new(DeviceConfig::default());
    let get = |limit: u32| {
        let mut value = 0usize;
        (call!("cuCtxGetLimit", &mut value => *mut usize, limit => u32), value)
    };
    assert_eq!(get(0), (0, 1024));
    ok(call!("cuCtxSetLimit", 0 => u32, 4096 => usize));
    assert_eq!(get(0), (0, 4096));
    assert_eq!(get(77).0, Code::UNSUPPORTED_LIMIT.raw());
}

/// Writes what `malloc(bytes)` returns.
const TAKE: &str = "
    .version 7.0
    .target sm_75
    .address_size 64
    .extern .func (.param .b64 out) malloc (.param .b64 bytes);
    .visible .entry take(.param .u64 out, .param .u64 bytes)
    {
        .reg .b64 %rd<3>;
        ld.param.u64 %rd1, [out];
        ld.param.u64 %rd2, [bytes];
        {
            .param .b64 x;
            .param .b64 y;
            st.param.b64 [x], %rd2;
            call.uni (y), malloc, (x);
            ld.param.b64 %rd2, [y];
        }
        st.global.u64 [%rd1], %rd2;
        ret;
    }";

#[test]
fn the_heap_of_kernels_is_as_large_as_its_limit_says() {
    let device = Device::new(DeviceConfig { heap_bytes: 1 << 10, ..DeviceConfig::default() });
    let (take, out) = (device.kernel(TAKE, "take"), device.upload(&[0u64]));
    let has = |bytes: u64| {
        ok(device.launch(take, 1, 1, 0, &[Arg::U64(out), Arg::U64(bytes)]));
        device.download::<u64>(out, 1) != [0]
    };
    let mut value = 0usize;
    ok(call!("cuCtxGetLimit", &mut value => *mut usize, 2 => u32));
    assert_eq!(value, 1 << 10);
    ok(call!("cuCtxSetLimit", 2 => u32, 4096 => usize));
    assert!(has(4000) && !has(100));
    let late = call!("cuCtxSetLimit", 2 => u32, 8192 => usize);
    assert_eq!(late, Code::INVALID_VALUE.raw(), "a kernel has used the heap");
    assert!(!has(100), "what was refused changes nothing");
}

#[test]
fn streams_allocate_and_free_in_their_order() {
    let device = Device::new(DeviceConfig::default());
    let (stream, triple) = (device.stream(1), device.kernel(TRIPLE, "triple"));
    let mut address = 0;
    ok(call!("cuMemAllocAsync", &mut address => *mut u64, 16 => usize, stream => Handle));
    ok(call!("cuMemsetD32Async", address => u64, 5 => u32, 4 => usize, stream => Handle));
    ok(device.launch(triple, 1, 4, stream, &[Arg::U64(address)]));
    let mut words = [0u32; 4];
    let out = words.as_mut_ptr().cast::<c_void>();
    ok(call!("cuMemcpyDtoHAsync_v2", out => *mut c_void, address => u64, 16 => usize, stream => Handle));
    ok(call!("cuMemFreeAsync", address => u64, stream => Handle));
    let twice = call!("cuMemFreeAsync", address => u64, stream => Handle);
    assert_eq!(twice, Code::INVALID_VALUE.raw());
    ok(device.finish(stream));
    assert_eq!(words, [15; 4]);
    assert!(!leaks(device.ordinal).iter().any(|leak| matches!(leak, Leak::DeviceMemory { .. })));
    // A kernel behind the free uses what is gone.
    ok(device.launch(triple, 1, 4, stream, &[Arg::U64(address)]));
    assert_eq!(device.finish(stream), Code::ILLEGAL_ADDRESS.raw());
}

#[test]
fn pools_are_the_devices_memory() {
    let device = Device::new(DeviceConfig::default());
    let (mut pool, mut again, mut used, mut address) = (0, 0, 0u64, 0);
    ok(call!("cuDeviceGetDefaultMemPool", &mut pool => *mut Handle, device.ordinal => i32));
    ok(call!("cuDeviceGetMemPool", &mut again => *mut Handle, device.ordinal => i32));
    assert_eq!(pool, again);
    ok(call!("cuMemAllocFromPoolAsync", &mut address => *mut u64, 512 => usize, pool => Handle, 0 => Handle));
    ok(call!("cuMemPoolGetAttribute", pool => Handle, 7 => u32, &mut used => *mut u64));
    assert_eq!(used, 512);
    let mut threshold = 1u64 << 40;
    ok(call!("cuMemPoolSetAttribute", pool => Handle, 4 => u32, &mut threshold => *mut u64));
    threshold = 0;
    ok(call!("cuMemPoolGetAttribute", pool => Handle, 4 => u32, &mut threshold => *mut u64));
    assert_eq!(threshold, 1 << 40);
    assert_eq!(call!("cuMemPoolDestroy", pool => Handle), Code::INVALID_VALUE.raw(), "it is the device's");
}

#[test]
fn managed_memory_is_one_for_both_sides() {
    let device = Device::new(DeviceConfig::default());
    let mut address = 0u64;
    ok(call!("cuMemAllocManaged", &mut address => *mut u64, 8192 => usize, 1 => u32));
    // SAFETY: memory of that size, which no kernel uses now.
    let words = unsafe { std::slice::from_raw_parts_mut(address as *mut u32, 2048) };
    words.fill(7);
    ok(device.launch(device.kernel(TRIPLE, "triple"), 1, 32, 0, &[Arg::U64(address + 4)]));
    ok(device.synchronize());
    assert_eq!((words[0], words[1], words[32], words[33]), (7, 21, 21, 7));
    let asked = |number: u32| {
        let mut value = 0u64;
        ok(call!("cuPointerGetAttribute", &mut value => *mut u64, number => u32, address + 8 => u64));
        value
    };
    // Managed; of the device; where each side sees it; where it begins, and its bytes.
    assert_eq!((asked(8), asked(2), asked(3), asked(4)), (1, 2, address + 8, address + 8));
    assert_eq!((asked(11), asked(12)), (address, 8192));
    ok(call!("cuMemPrefetchAsync_v2", address => u64, 8192 => usize, 1 => u64, 0 => u32, 0 => Handle));
    let beyond = call!("cuMemAdvise_v2", address + 8 => u64, 8192 => usize, 1 => u32, 1 => u64);
    assert_eq!(beyond, Code::INVALID_VALUE.raw());
    ok(call!("cuMemFree_v2", address => u64));
    assert_eq!(call!("cuMemFree_v2", address => u64), Code::INVALID_VALUE.raw());
}

#[test]
fn registered_memory_is_page_locked_until_it_is_not() {
    let device = Device::new(DeviceConfig::default());
    let mut words = vec![2u32; 64];
    let host = words.as_mut_ptr();
    ok(call!("cuMemHostRegister_v2", host => *mut u32, 256 => usize, 2 => u32));
    let again = call!("cuMemHostRegister_v2", host => *mut u32, 4 => usize, 2 => u32);
    assert_eq!(again, Code::HOST_MEMORY_ALREADY_REGISTERED.raw());
    let (mut seen, mut flags) = (0, 0);
    ok(call!("cuMemHostGetDevicePointer_v2", &mut seen => *mut u64, host => *mut u32, 0 => u32));
    ok(call!("cuMemHostGetFlags", &mut flags => *mut u32, host => *mut u32));
    assert_eq!(flags, 2);
    ok(device.launch(device.kernel(TRIPLE, "triple"), 1, 32, 0, &[Arg::U64(seen)]));
    ok(device.synchronize());
    let free = call!("cuMemFreeHost", host => *mut u32);
    assert_eq!(free, Code::INVALID_VALUE.raw(), "the driver did not allocate it");
    ok(call!("cuMemHostUnregister", host => *mut u32));
    assert_eq!(call!("cuMemHostUnregister", host => *mut u32), Code::HOST_MEMORY_NOT_REGISTERED.raw());
    assert_eq!((words[0], words[31], words[32]), (6, 6, 2));
}

#[test]
fn fills_have_every_width_and_rows() {
    let device = Device::new(DeviceConfig::default());
    let at = device.upload(&[0u8; 64]);
    ok(call!("cuMemsetD8_v2", at => u64, 1 => u8, 3 => usize));
    ok(call!("cuMemsetD16_v2", at + 4 => u64, 0x0302 => u16, 2 => usize));
    ok(call!("cuMemsetD32_v2", at + 8 => u64, 0x0706_0504 => u32, 1 => usize));
    ok(call!("cuMemsetD2D8_v2", at + 16 => u64, 8 => usize, 9 => u8, 2 => usize, 3 => usize));
    ok(device.synchronize());
    let bytes = device.download::<u8>(at, 40);
    assert_eq!(bytes[..16], [1, 1, 1, 0, 2, 3, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0]);
    let rows = [9, 9, 0, 0, 0, 0, 0, 0].repeat(3);
    assert_eq!(bytes[16..], rows);
    assert_eq!(call!("cuMemsetD16_v2", at + 1 => u64, 0 => u16, 1 => usize), Code::INVALID_VALUE.raw());
    let too_long = call!("cuMemsetD2D32_v2", at => u64, 16 => usize, 0 => u32, 4 => usize, 5 => usize);
    assert_eq!(too_long, Code::INVALID_VALUE.raw());
    let narrow = call!("cuMemsetD2D32_v2", at => u64, 8 => usize, 0 => u32, 4 => usize, 2 => usize);
    assert_eq!(narrow, Code::INVALID_VALUE.raw());
}

#[test]
fn copies_find_their_sides_by_address() {
    let device = Device::new(DeviceConfig::default());
    let (first, second) = (device.upload(&[1u32, 2]), device.alloc(8));
    let mut host = [0u32; 2];
    let to = host.as_mut_ptr() as u64;
    ok(call!("cuMemcpy", second => u64, first => u64, 8 => usize));
    ok(call!("cuMemcpy", to => u64, second => u64, 4 => usize));
    ok(call!("cuMemcpy", to + 4 => u64, to => u64, 4 => usize));
    assert_eq!(host, [1, 1]);
    ok(call!("cuMemcpyAsync", first => u64, to => u64, 8 => usize, 0 => Handle));
    assert_eq!(device.download::<u32>(first, 2), [1, 1]);
}

#[test]
fn occupancy_says_the_best_block() {
    let device = Device::new(DeviceConfig::default());
    let triple = device.kernel(TRIPLE, "triple");
    let (mut grid, mut block, mut bytes) = (0, 0, 0usize);
    ok(call!("cuOccupancyMaxPotentialBlockSize", &mut grid => *mut i32, &mut block => *mut i32, triple => Handle,
        0 => usize, 0 => usize, 0 => i32));
    assert_eq!((grid, block), (16, 1024), "two blocks of 1024 threads on each of eight multiprocessors");
    ok(call!("cuOccupancyMaxPotentialBlockSize", &mut grid => *mut i32, &mut block => *mut i32, triple => Handle,
        0 => usize, 0 => usize, 100 => i32));
    assert_eq!((grid, block), (256, 64), "32 blocks of 64 threads are 2048, 21 of 96 fewer");
    ok(call!("cuOccupancyAvailableDynamicSMemPerBlock", &mut bytes => *mut usize, triple => Handle, 2 => i32,
        1024 => i32));
    assert_eq!(bytes, (228 / 2 - 1) << 10);
}

#[test]
fn captures_say_so() {
    let device = Device::new(DeviceConfig::default());
    let stream = device.stream(1);
    let status = || {
        let mut status = 9;
        ok(call!("cuStreamIsCapturing", stream => Handle, &mut status => *mut u32));
        status
    };
    assert_eq!(status(), 0);
    device.capture(stream);
    assert_eq!(status(), 1);
    let (mut state, mut id) = (0, 0);
    ok(call!("cuStreamGetCaptureInfo_v2", stream => Handle, &mut state => *mut u32, &mut id => *mut u64, 0 => usize,
        0 => usize, 0 => usize));
    assert!(state == 1 && id != 0);
    // SAFETY: a handle of this device.
    assert_eq!(unsafe { (device.api.stream_synchronize)(stream) }, Code::STREAM_CAPTURE_UNSUPPORTED.raw());
    assert_eq!(status(), 2);
}

#[test]
fn instantiation_takes_flags_that_change_nothing() {
    let device = Device::new(DeviceConfig::default());
    let stream = device.stream(1);
    device.capture(stream);
    let mut graph = 0;
    ok(call!("cuStreamEndCapture", stream => Handle, &mut graph => *mut Handle));
    let with = |flags: u64| {
        let mut exec = 0;
        call!("cuGraphInstantiateWithFlags", &mut exec => *mut Handle, graph => Handle, flags => u64)
    };
    assert_eq!([0, 1, 2, 8, 9].map(with), [0; 5]);
    assert_eq!((with(4), with(5)), (Code::NOT_SUPPORTED.raw(), Code::INVALID_VALUE.raw()));
}

#[test]
fn the_threads_own_stream_is_one_in_each_thread() {
    let device = Device::new(DeviceConfig::default());
    let id = |stream: Handle| {
        let mut id = 0u64;
        ok(call!("cuStreamGetId", stream => Handle, &mut id => *mut u64));
        id
    };
    assert_eq!((id(0), id(1)), (0, 0));
    let own = id(2);
    assert!(own != 0 && own == id(2));
    let context = device.context;
    let other = std::thread::spawn(move || {
        ok(call!("cuCtxSetCurrent", context => Handle));
        let mut id = 0u64;
        ok(call!("cuStreamGetId", 2 => Handle, &mut id => *mut u64));
        id
    });
    assert_ne!(other.join().expect("no panic"), own);
}

#[test]
fn every_attribute_of_a_device_is_answered() {
    let device = Device::new(DeviceConfig::default());
    let asked = |number: i32| {
        let mut value = 0;
        (call!("cuDeviceGetAttribute", &mut value => *mut i32, number => i32, device.ordinal => i32), value)
    };
    assert!((1..=143).all(|number| asked(number).0 == 0));
    assert_eq!((asked(0).0, asked(144).0), (1, 1));
    assert_eq!((asked(2).1, asked(4).1, asked(5).1, asked(106).1, asked(131).1), (1024, 64, i32::MAX, 32, -1));
}

#[test]
fn results_have_names_and_sentences() {
    let text = |which: &str, code: u32| {
        let mut text: *const c_char = null_mut();
        let result = match which {
            "name" => call!("cuGetErrorName", code => u32, &mut text => *mut *const c_char),
            _ => call!("cuGetErrorString", code => u32, &mut text => *mut *const c_char),
        };
        // SAFETY: a string of the driver, which it keeps.
        (result, (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }))
    };
    assert_eq!(text("name", 0), (0, Some(c"CUDA_SUCCESS")));
    assert_eq!(text("name", 700), (0, Some(c"CUDA_ERROR_ILLEGAL_ADDRESS")));
    assert_eq!(text("sentence", 1), (0, Some(c"invalid argument")));
    assert_eq!(text("name", 12345), (1, None));
}

#[test]
fn a_refused_module_says_why_without_a_log() {
    let device = Device::new(DeviceConfig::default());
    let mut module = 0;
    let image = c".version 7.0\n.target sm_90\n.address_size 64\n.visible .entry k() { nonsense; }";
    let code = call!("cuModuleLoadData", &mut module => *mut Handle, image.as_ptr() => *const c_char);
    assert_eq!(code, Code::INVALID_PTX.raw());
    let fault = last_fault(device.ordinal).expect("the reason").to_string();
    assert!(fault.contains("nonsense"), "{fault}");
    let none = call!("cuModuleLoad", &mut module => *mut Handle, c"/no/such.ptx".as_ptr() => *const c_char);
    assert_eq!(none, Code::FILE_NOT_FOUND.raw());
}
