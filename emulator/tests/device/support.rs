//! What the driver tests share: the C functions as `resolve` gives them, and a device with its context made current.
#![allow(dead_code)]

use kiln_emulator::{DeviceConfig, add_device, resolve};
use std::ffi::{CStr, CString, c_char, c_void};

pub(crate) type Handle = usize;

macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver's functions, one field each.
        pub(crate) struct Api {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Api {
            pub(crate) fn load() -> Api {
                Api {
                    $($field: {
                        let name = CString::new($symbol).unwrap();
                        let pointer = resolve(&name).unwrap_or_else(|| panic!("{} is not resolved", $symbol));
                        // SAFETY: the signature is that of NVIDIA's header for this symbol.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> u32>(pointer.as_ptr())
                        }
                    },)*
                }
            }
        }
    };
}

functions! {
    init = "cuInit"(u32);
    driver_version = "cuDriverGetVersion"(*mut i32);
    device_count = "cuDeviceGetCount"(*mut i32);
    device_get = "cuDeviceGet"(*mut i32, i32);
    device_name = "cuDeviceGetName"(*mut c_char, i32, i32);
    device_attribute = "cuDeviceGetAttribute"(*mut i32, i32, i32);
    device_memory = "cuDeviceTotalMem_v2"(*mut usize, i32);
    retain = "cuDevicePrimaryCtxRetain"(*mut Handle, i32);
    release = "cuDevicePrimaryCtxRelease_v2"(i32);
    set_current = "cuCtxSetCurrent"(Handle);
    get_current = "cuCtxGetCurrent"(*mut Handle);
    synchronize = "cuCtxSynchronize"();
    mem_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    alloc = "cuMemAlloc_v2"(*mut u64, usize);
    free = "cuMemFree_v2"(u64);
    host_alloc = "cuMemHostAlloc"(*mut *mut c_void, usize, u32);
    host_free = "cuMemFreeHost"(*mut c_void);
    host_pointer = "cuMemHostGetDevicePointer_v2"(*mut u64, *mut c_void, u32);
    copy_in = "cuMemcpyHtoD_v2"(u64, *const c_void, usize);
    copy_out = "cuMemcpyDtoH_v2"(*mut c_void, u64, usize);
    copy = "cuMemcpyDtoD_v2"(u64, u64, usize);
    copy_in_async = "cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, Handle);
    copy_out_async = "cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle);
    copy_async = "cuMemcpyDtoDAsync_v2"(u64, u64, usize, Handle);
    fill8_async = "cuMemsetD8Async"(u64, u8, usize, Handle);
    fill32_async = "cuMemsetD32Async"(u64, u32, usize, Handle);
    module_load = "cuModuleLoadDataEx"(*mut Handle, *const c_char, u32, *mut u32, *mut *mut c_void);
    module_unload = "cuModuleUnload"(Handle);
    module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    module_global = "cuModuleGetGlobal_v2"(*mut u64, *mut usize, Handle, *const c_char);
    function_attribute = "cuFuncGetAttribute"(*mut i32, u32, Handle);
    set_function_attribute = "cuFuncSetAttribute"(Handle, u32, i32);
    occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor"(*mut i32, Handle, i32, usize);
    launch = "cuLaunchKernel"(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void);
    launch_cooperative = "cuLaunchCooperativeKernel"(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void);
    launch_ex = "cuLaunchKernelEx"(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
    launch_host = "cuLaunchHostFunc"(Handle, Option<extern "C" fn(*mut c_void)>, *mut c_void);
    stream_create = "cuStreamCreate"(*mut Handle, u32);
    stream_destroy = "cuStreamDestroy_v2"(Handle);
    stream_synchronize = "cuStreamSynchronize"(Handle);
    stream_query = "cuStreamQuery"(Handle);
    stream_wait = "cuStreamWaitEvent"(Handle, Handle, u32);
    event_create = "cuEventCreate"(*mut Handle, u32);
    event_record = "cuEventRecord"(Handle, Handle);
    event_query = "cuEventQuery"(Handle);
    event_synchronize = "cuEventSynchronize"(Handle);
    event_elapsed = "cuEventElapsedTime"(*mut f32, Handle, Handle);
    event_destroy = "cuEventDestroy_v2"(Handle);
    capture_begin = "cuStreamBeginCapture_v2"(Handle, u32);
    capture_end = "cuStreamEndCapture"(Handle, *mut Handle);
    graph_instantiate = "cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64);
    graph_launch = "cuGraphLaunch"(Handle, Handle);
    graph_exec_destroy = "cuGraphExecDestroy"(Handle);
    graph_destroy = "cuGraphDestroy"(Handle);
    encode_tiled = "cuTensorMapEncodeTiled"(*mut c_void, u32, u32, u64, *const u64, *const u64, *const u32, *const u32, u32, u32, u32, u32);
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    pub(crate) stream: Handle,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) count: u32,
}

/// `CUlaunchAttribute`.
#[repr(C)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: u32,
    pub(crate) padding: u32,
    pub(crate) value: [u32; 16],
}

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const NON_BLOCKING: u32 = 1;

/// A device of its own for one test, with its primary context current in this thread.
pub(crate) struct Device {
    pub(crate) api: Api,
    pub(crate) ordinal: i32,
    pub(crate) context: Handle,
}

/// A call that must succeed.
#[track_caller]
pub(crate) fn ok(result: u32) {
    assert_eq!(result, SUCCESS, "the call failed");
}

/// The value that a call writes through its first argument.
#[track_caller]
pub(crate) fn made<T: Default>(call: impl FnOnce(*mut T) -> u32) -> T {
    let mut value = T::default();
    ok(call(&mut value));
    value
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Arg {
    U32(u32),
    U64(u64),
    F32(f32),
}

/// Addresses of the arguments, as `kernelParams` wants them.
pub(crate) fn pointers(args: &[Arg]) -> Vec<*mut c_void> {
    args.iter()
        .map(|arg| match arg {
            Arg::U32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Arg::U64(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Arg::F32(value) => std::ptr::from_ref(value).cast_mut().cast(),
        })
        .collect()
}

impl Device {
    pub(crate) fn new(config: DeviceConfig) -> Device {
        let ordinal = add_device(config);
        let api = Api::load();
        // SAFETY: arguments as NVIDIA's manual asks for them.
        unsafe {
            ok((api.init)(0));
            let context = made(|out| (api.retain)(out, ordinal));
            ok((api.set_current)(context));
            Device { api, ordinal, context }
        }
    }

    pub(crate) fn alloc(&self, bytes: usize) -> u64 {
        // SAFETY: the address is written into a local.
        unsafe { made(|out| (self.api.alloc)(out, bytes)) }
    }

    pub(crate) fn upload<T: Copy>(&self, values: &[T]) -> u64 {
        let address = self.alloc(size_of_val(values));
        // SAFETY: the source is a slice of that size.
        ok(unsafe { (self.api.copy_in)(address, values.as_ptr().cast(), size_of_val(values)) });
        // The call returns when the source was read; non-blocking streams would not wait for the rest.
        ok(self.synchronize());
        address
    }

    pub(crate) fn download<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        // SAFETY: the destination is a vector of that size.
        ok(unsafe { (self.api.copy_out)(values.as_mut_ptr().cast(), address, size_of_val(&values[..])) });
        values
    }

    /// Pinned host memory as a slice of words, and where the device sees it.
    pub(crate) fn mapped(&self, words: usize) -> (&'static [std::sync::atomic::AtomicU32], u64) {
        // SAFETY: fresh page-locked memory of that size, all of which is initialised before it is borrowed; tests do
        // not use it after they free it.
        unsafe {
            let mut host = std::ptr::null_mut();
            ok((self.api.host_alloc)(&mut host, words * 4, 2));
            host.cast::<u8>().write_bytes(0, words * 4);
            let address = made(|out| (self.api.host_pointer)(out, host, 0));
            (std::slice::from_raw_parts(host.cast(), words), address)
        }
    }

    pub(crate) fn stream(&self, flags: u32) -> Handle {
        // SAFETY: the handle is written into a local.
        unsafe { made(|out| (self.api.stream_create)(out, flags)) }
    }

    pub(crate) fn event(&self) -> Handle {
        // SAFETY: the handle is written into a local.
        unsafe { made(|out| (self.api.event_create)(out, 0)) }
    }

    /// Loads PTX and returns the module, or the code and the error log.
    pub(crate) fn load(&self, ptx: &str) -> Result<Handle, (u32, String)> {
        let text = CString::new(ptx).unwrap();
        let mut log = vec![0u8; 4096];
        let mut options = [5, 6];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut module = 0;
        // SAFETY: the log buffer has the size that its option says.
        let code =
            unsafe { (self.api.module_load)(&mut module, text.as_ptr(), 2, options.as_mut_ptr(), values.as_mut_ptr()) };
        if code == SUCCESS {
            return Ok(module);
        }
        let length = values[1] as usize;
        let text = CStr::from_bytes_until_nul(&log[..length.max(1)]).unwrap().to_string_lossy().into_owned();
        Err((code, text))
    }

    pub(crate) fn function(&self, module: Handle, name: &str) -> Handle {
        let name = CString::new(name).unwrap();
        // SAFETY: the name is NUL-terminated.
        unsafe { made(|out| (self.api.module_function)(out, module, name.as_ptr())) }
    }

    /// Loads PTX and looks up one kernel of it.
    #[track_caller]
    pub(crate) fn kernel(&self, ptx: &str, name: &str) -> Handle {
        let module = self.load(ptx).unwrap_or_else(|(code, log)| panic!("load failed with {code}: {log}"));
        self.function(module, name)
    }

    /// Launches with a one-dimensional geometry.
    pub(crate) fn launch(&self, function: Handle, grid: u32, block: u32, stream: Handle, args: &[Arg]) -> u32 {
        let mut pointers = pointers(args);
        // SAFETY: one pointer per parameter, each to a value of its size.
        unsafe {
            (self.api.launch)(function, grid, 1, 1, block, 1, 1, 0, stream, pointers.as_mut_ptr(), std::ptr::null_mut())
        }
    }

    /// Launches one block with dynamic shared memory.
    pub(crate) fn launch_shared(&self, function: Handle, block: u32, shared: u32, stream: Handle, args: &[Arg]) -> u32 {
        let mut pointers = pointers(args);
        let null = std::ptr::null_mut();
        // SAFETY: one pointer per parameter, each to a value of its size.
        unsafe { (self.api.launch)(function, 1, 1, 1, block, 1, 1, shared, stream, pointers.as_mut_ptr(), null) }
    }

    /// Launches a cooperative grid of blocks with dynamic shared memory.
    pub(crate) fn launch_cooperative(
        &self,
        function: Handle,
        [grid, block]: [u32; 2],
        shared: u32,
        stream: Handle,
        args: &[Arg],
    ) -> u32 {
        let mut pointers = pointers(args);
        let pointers = pointers.as_mut_ptr();
        // SAFETY: one pointer per parameter, each to a value of its size.
        unsafe { (self.api.launch_cooperative)(function, grid, 1, 1, block, 1, 1, shared, stream, pointers) }
    }

    /// Launches with attributes: the number of each and the first words of its value.
    pub(crate) fn launch_with(
        &self,
        attributes: &[(u32, [u32; 3])],
        function: Handle,
        [grid, block]: [u32; 2],
        shared: u32,
        stream: Handle,
        args: &[Arg],
    ) -> u32 {
        let attribute = |&(id, [x, y, z]): &(u32, [u32; 3])| {
            let mut value = [0; 16];
            value[..3].copy_from_slice(&[x, y, z]);
            LaunchAttribute { id, padding: 0, value }
        };
        let attributes: Vec<_> = attributes.iter().map(attribute).collect();
        let config = LaunchConfig {
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            dynamic_shared: shared,
            stream,
            attributes: attributes.as_ptr(),
            count: attributes.len() as u32,
        };
        // SAFETY: the attributes live during the call; one pointer per parameter, each to a value of its size.
        unsafe { (self.api.launch_ex)(&config, function, pointers(args).as_mut_ptr(), std::ptr::null_mut()) }
    }

    /// Lets a block of a function have so much dynamic shared memory.
    pub(crate) fn allow_shared(&self, function: Handle, bytes: i32) -> u32 {
        // SAFETY: a handle.
        unsafe { (self.api.set_function_attribute)(function, 8, bytes) }
    }

    /// Lets a stream wait for the present end of another.
    pub(crate) fn order(&self, from: Handle, to: Handle) {
        let event = self.event();
        // SAFETY: handles of this device.
        unsafe {
            ok((self.api.event_record)(event, from));
            ok((self.api.stream_wait)(to, event, 0));
        }
    }

    /// Begins a capture that other threads' calls do not disturb.
    pub(crate) fn capture(&self, stream: Handle) {
        // SAFETY: a handle of this device.
        ok(unsafe { (self.api.capture_begin)(stream, 2) });
    }

    /// Ends a capture and makes an executable graph of it.
    pub(crate) fn captured(&self, stream: Handle) -> Handle {
        // SAFETY: handles of this device.
        unsafe {
            let graph = made(|out| (self.api.capture_end)(stream, out));
            made(|out| (self.api.graph_instantiate)(out, graph, 0))
        }
    }

    /// Launches an executable graph.
    pub(crate) fn replay(&self, exec: Handle, stream: Handle) -> u32 {
        // SAFETY: handles of this device.
        unsafe { (self.api.graph_launch)(exec, stream) }
    }

    /// Waits for a stream.
    pub(crate) fn finish(&self, stream: Handle) -> u32 {
        // SAFETY: a handle of this device.
        unsafe { (self.api.stream_synchronize)(stream) }
    }

    /// Waits for everything.
    pub(crate) fn synchronize(&self) -> u32 {
        // SAFETY: no arguments.
        unsafe { (self.api.synchronize)() }
    }

    pub(crate) fn attribute(&self, number: i32) -> i32 {
        // SAFETY: the value is written into a local.
        unsafe { made(|out| (self.api.device_attribute)(out, number, self.ordinal)) }
    }
}
