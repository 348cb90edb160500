//! Level two: every function of the table as a method that returns a [`Result`], and nothing else.

use std::ffi::{CStr, c_char, c_void};

use super::codes::{failure, missing};
use super::sys::*;
use crate::Result;

/// The driver table with checked results. Handles and pointers are the caller's affair, so nearly all methods are unsafe.
pub struct Api {
    table: kiln_cu_api,
}

/// Turns a result into an error that names the call.
pub(crate) fn check(call: &'static str, code: CUresult) -> Result<()> {
    if code == CUDA_SUCCESS { Ok(()) } else { Err(failure(call, code)) }
}

/// Calls a function of the table, or says that it is missing.
macro_rules! call {
    ($api:expr, $field:ident($($argument:expr),* $(,)?)) => {
        match $api.table.$field {
            // SAFETY: the table holds functions of these signatures; what they ask of their arguments is passed on to
            // the caller by the enclosing function's own contract.
            Some(function) => check(stringify!($field), unsafe { function($($argument),*) }),
            None => Err(missing(stringify!($field))),
        }
    };
}

/// Methods over functions with inputs only, or with one output as the first parameter.
macro_rules! thin {
    ($($(#[$doc:meta])* $page:ident fn $method:ident = $field:ident($($name:ident: $type:ty),*) $(-> $out:ty)?;)*) => {
        impl Api {
            $(thin! { @one $(#[$doc])* $page $method $field ($($name: $type),*) $($out)? })*
        }
    };
    (@one $(#[$doc:meta])* $page:ident $method:ident $field:ident ($($name:ident: $type:ty),*)) => {
        $(#[$doc])*
        #[doc = ""]
        #[doc = thin!(@link $page $field)]
        ///
        /// # Safety
        /// Handles and pointers are live, lengths are theirs, and the context they belong to is current.
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $method(&self, $($name: $type),*) -> Result<()> {
            call!(self, $field($($name),*))
        }
    };
    (@one $(#[$doc:meta])* $page:ident $method:ident $field:ident ($($name:ident: $type:ty),*) $out:ty) => {
        $(#[$doc])*
        #[doc = ""]
        #[doc = thin!(@link $page $field)]
        ///
        /// # Safety
        /// Handles and pointers are live, lengths are theirs, and the context they belong to is current.
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $method(&self, $($name: $type),*) -> Result<$out> {
            // SAFETY: outputs are integers, floats, pointers and bytes: zero is a value of each.
            let mut out: $out = unsafe { std::mem::zeroed() };
            call!(self, $field(&mut out, $($name),*))?;
            Ok(out)
        }
    };
    (@link $page:ident $field:ident) => {
        concat!(
            "[`", stringify!($field), "`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__",
            stringify!($page), ".html)."
        )
    };
}

thin! {
    /// Initialises the driver; any number of times.
    INITIALIZE fn init = cuInit(flags: u32);
    /// Version of the driver, `1000 * major + 10 * minor`.
    VERSION fn driver_version = cuDriverGetVersion() -> i32;

    /// Number of devices.
    DEVICE fn device_count = cuDeviceGetCount() -> i32;
    /// Handle of a device.
    DEVICE fn device_get = cuDeviceGet(ordinal: i32) -> CUdevice;
    /// One attribute of a device.
    DEVICE fn device_attribute = cuDeviceGetAttribute(attribute: CUdevice_attribute, device: CUdevice) -> i32;
    /// Bytes of memory of a device.
    DEVICE fn device_total_memory = cuDeviceTotalMem(device: CUdevice) -> usize;
    /// The device's identity across processes; of a MIG device, its GPU's.
    DEVICE fn device_uuid = cuDeviceGetUuid(device: CUdevice) -> CUuuid;
    /// The device's identity across processes; of a MIG device, its own.
    DEVICE fn device_uuid_v2 = cuDeviceGetUuid_v2(device: CUdevice) -> CUuuid;

    /// Retains the device's primary context, which the first call makes.
    PRIMARY__CTX fn primary_context_retain = cuDevicePrimaryCtxRetain(device: CUdevice) -> CUcontext;
    /// Releases the device's primary context.
    PRIMARY__CTX fn primary_context_release = cuDevicePrimaryCtxRelease(device: CUdevice);
    /// Makes a context current in this thread.
    CTX fn context_set_current = cuCtxSetCurrent(context: CUcontext);
    /// The context that is current in this thread.
    CTX fn context_current = cuCtxGetCurrent() -> CUcontext;
    /// Waits for all work of the current context.
    CTX fn context_synchronize = cuCtxSynchronize();

    /// Allocates device memory; may wait for the device.
    MEM fn memory_allocate = cuMemAlloc(bytes: usize) -> CUdeviceptr;
    /// Frees device memory; may wait for the device.
    MEM fn memory_free = cuMemFree(pointer: CUdeviceptr);
    /// Allocates page-locked host memory; may wait for the device.
    MEM fn host_allocate = cuMemHostAlloc(bytes: usize, flags: u32) -> *mut c_void;
    /// Frees page-locked host memory; may wait for the device.
    MEM fn host_free = cuMemFreeHost(pointer: *mut c_void);
    /// Device address of mapped host memory.
    MEM fn host_device_pointer = cuMemHostGetDevicePointer(host: *mut c_void, flags: u32) -> CUdeviceptr;
    /// Copies host to device on the legacy stream.
    MEM fn copy_to_device = cuMemcpyHtoD(to: CUdeviceptr, from: *const c_void, bytes: usize);
    /// Copies device to host on the legacy stream, and waits.
    MEM fn copy_to_host = cuMemcpyDtoH(to: *mut c_void, from: CUdeviceptr, bytes: usize);
    /// Copies device to device on the legacy stream.
    MEM fn copy_on_device = cuMemcpyDtoD(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    /// Enqueues a copy host to device.
    MEM fn copy_to_device_async
        = cuMemcpyHtoDAsync(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    /// Enqueues a copy device to host.
    MEM fn copy_to_host_async = cuMemcpyDtoHAsync(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    /// Enqueues a copy device to device.
    MEM fn copy_on_device_async
        = cuMemcpyDtoDAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    /// Enqueues filling bytes.
    MEM fn set_u8_async = cuMemsetD8Async(to: CUdeviceptr, value: u8, count: usize, stream: CUstream);
    /// Enqueues filling 32-bit words.
    MEM fn set_u32_async = cuMemsetD32Async(to: CUdeviceptr, value: u32, count: usize, stream: CUstream);

    /// Loads a module; may wait for the device.
    MODULE fn module_load = cuModuleLoadDataEx(image: *const c_void, count: u32, options: *mut CUjit_option,
        values: *mut *mut c_void) -> CUmodule;
    /// Unloads a module; may wait for the device.
    MODULE fn module_unload = cuModuleUnload(module: CUmodule);
    /// A kernel of a module.
    MODULE fn module_function = cuModuleGetFunction(module: CUmodule, name: *const c_char) -> CUfunction;

    /// One attribute of a kernel.
    EXEC fn function_attribute = cuFuncGetAttribute(attribute: CUfunction_attribute, function: CUfunction) -> i32;
    /// Sets one attribute of a kernel.
    EXEC fn function_set_attribute
        = cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: i32);
    /// Brings a kernel's code onto the device now rather than at its first launch.
    EXEC fn function_load = cuFuncLoad(function: CUfunction);
    /// Enqueues a kernel.
    EXEC fn launch = cuLaunchKernel(function: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32,
        block_y: u32, block_z: u32, dynamic_shared: u32, stream: CUstream, parameters: *mut *mut c_void,
        extra: *mut *mut c_void);
    /// Enqueues a kernel whose blocks are all resident together.
    EXEC fn launch_cooperative = cuLaunchCooperativeKernel(function: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32,
        block_x: u32, block_y: u32, block_z: u32, dynamic_shared: u32, stream: CUstream,
        parameters: *mut *mut c_void);
    /// Enqueues a kernel with launch attributes.
    EXEC fn launch_with = cuLaunchKernelEx(config: *const CUlaunchConfig, function: CUfunction,
        parameters: *mut *mut c_void, extra: *mut *mut c_void);
    /// Enqueues a call of a host function.
    EXEC fn launch_host = cuLaunchHostFunc(stream: CUstream, function: CUhostFn, user: *mut c_void);
    /// Number of blocks of a kernel that fit one multiprocessor.
    OCCUPANCY fn occupancy = cuOccupancyMaxActiveBlocksPerMultiprocessor(function: CUfunction, block_size: i32,
        dynamic_shared: usize) -> i32;

    /// Makes a stream.
    STREAM fn stream_create = cuStreamCreate(flags: u32) -> CUstream;
    /// Destroys a stream; its work goes on.
    STREAM fn stream_destroy = cuStreamDestroy(stream: CUstream);
    /// Waits for all work of a stream.
    STREAM fn stream_synchronize = cuStreamSynchronize(stream: CUstream);
    /// Lets later work of a stream wait for an event.
    STREAM fn stream_wait_event = cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32);
    /// Begins to record a stream's work instead of running it.
    STREAM fn stream_begin_capture = cuStreamBeginCapture(stream: CUstream, mode: CUstreamCaptureMode);

    /// Makes an event.
    EVENT fn event_create = cuEventCreate(flags: u32) -> CUevent;
    /// Records an event, which happens when the stream's work so far is done.
    EVENT fn event_record = cuEventRecord(event: CUevent, stream: CUstream);
    /// Waits for an event.
    EVENT fn event_synchronize = cuEventSynchronize(event: CUevent);
    /// Milliseconds between two events.
    EVENT fn event_elapsed = cuEventElapsedTime(start: CUevent, end: CUevent) -> f32;
    /// Destroys an event.
    EVENT fn event_destroy = cuEventDestroy(event: CUevent);

    /// Makes a graph executable.
    GRAPH fn graph_instantiate = cuGraphInstantiateWithFlags(graph: CUgraph, flags: u64) -> CUgraphExec;
    /// Enqueues a graph.
    GRAPH fn graph_launch = cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    /// Destroys an executable graph.
    GRAPH fn graph_exec_destroy = cuGraphExecDestroy(exec: CUgraphExec);
    /// Destroys a graph.
    GRAPH fn graph_destroy = cuGraphDestroy(graph: CUgraph);

    /// A tensor map of boxes of a tensor.
    TENSOR__MEMORY fn tensor_map_encode_tiled = cuTensorMapEncodeTiled(element: CUtensorMapDataType, rank: u32,
        address: *mut c_void, sizes: *const u64, strides: *const u64, box_sizes: *const u32,
        element_strides: *const u32, interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle,
        promotion: CUtensorMapL2promotion, fill: CUtensorMapFloatOOBfill) -> CUtensorMap;
}

/// Functions of another form: two outputs, the output behind inputs, or a result besides success and failure.
impl Api {
    /// # Safety
    /// Each pointer of the table is null or a function of NVIDIA's signature and behaviour.
    pub unsafe fn new(table: kiln_cu_api) -> Api {
        Api { table }
    }

    /// Whether both tables hold the same functions.
    pub(crate) fn has_same_functions(&self, other: &Api) -> bool {
        const WORDS: usize = size_of::<kiln_cu_api>() / size_of::<usize>();
        const { assert!(size_of::<kiln_cu_api>() == WORDS * size_of::<usize>()) };
        // SAFETY: the table is function pointers, null or not, one behind the other.
        let words = |api: &Api| unsafe { std::mem::transmute_copy::<kiln_cu_api, [usize; WORDS]>(&api.table) };
        words(self) == words(other)
    }

    /// The table itself.
    pub fn table(&self) -> &kiln_cu_api {
        &self.table
    }

    /// Name of a device.
    ///
    /// [`cuDeviceGetName`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html).
    ///
    /// # Safety
    /// The device is one of this driver's.
    pub unsafe fn device_name(&self, device: CUdevice) -> Result<String> {
        let mut bytes = [0u8; 256];
        call!(self, cuDeviceGetName(bytes.as_mut_ptr().cast(), 255, device))?;
        Ok(CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Free and total bytes of the current context's device.
    ///
    /// [`cuMemGetInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Safety
    /// A context is current.
    pub unsafe fn memory_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        call!(self, cuMemGetInfo(&mut free, &mut total))?;
        Ok((free, total))
    }

    /// Address and bytes of a module's global variable.
    ///
    /// [`cuModuleGetGlobal`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MODULE.html).
    ///
    /// # Safety
    /// The module is live and its context current.
    pub unsafe fn module_global(&self, module: CUmodule, name: &CStr) -> Result<(CUdeviceptr, usize)> {
        let (mut pointer, mut bytes) = (0, 0);
        call!(self, cuModuleGetGlobal(&mut pointer, &mut bytes, module, name.as_ptr()))?;
        Ok((pointer, bytes))
    }

    /// Whether all work of a stream is done.
    ///
    /// [`cuStreamQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    ///
    /// # Safety
    /// The stream is live.
    pub unsafe fn stream_query(&self, stream: CUstream) -> Result<bool> {
        done(call!(self, cuStreamQuery(stream)))
    }

    /// Whether an event has happened.
    ///
    /// [`cuEventQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    ///
    /// # Safety
    /// The event is live.
    pub unsafe fn event_query(&self, event: CUevent) -> Result<bool> {
        done(call!(self, cuEventQuery(event)))
    }

    /// Ends a capture and gives its graph.
    ///
    /// [`cuStreamEndCapture`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    ///
    /// # Safety
    /// The stream is live and captured by this thread.
    pub unsafe fn stream_end_capture(&self, stream: CUstream) -> Result<CUgraph> {
        let mut graph = std::ptr::null_mut();
        call!(self, cuStreamEndCapture(stream, &mut graph))?;
        Ok(graph)
    }
}

/// `CUDA_ERROR_NOT_READY` is an answer, not a failure.
fn done(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(CUDA_ERROR_NOT_READY) => Ok(false),
        Err(error) => Err(error),
    }
}
