// What bindgen makes of cuda.h; made again with `KILN_BINDINGS=generate`.

pub const CU_TENSOR_MAP_DATA_TYPE_UINT8: u32 = 0;
pub const CU_TENSOR_MAP_DATA_TYPE_UINT64: u32 = 4;
pub const CU_TENSOR_MAP_INTERLEAVE_NONE: u32 = 0;
pub const CU_TENSOR_MAP_SWIZZLE_NONE: u32 = 0;
pub const CU_TENSOR_MAP_L2_PROMOTION_L2_128B: u32 = 2;
pub const CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE: u32 = 0;
pub const CUDA_SUCCESS: u32 = 0;
pub const CUDA_ERROR_INVALID_VALUE: u32 = 1;
pub const CUDA_ERROR_OUT_OF_MEMORY: u32 = 2;
pub const CUDA_ERROR_NO_DEVICE: u32 = 100;
pub const CUDA_ERROR_INVALID_DEVICE: u32 = 101;
pub const CUDA_ERROR_NOT_FOUND: u32 = 500;
pub const CUDA_ERROR_NOT_READY: u32 = 600;
pub const CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: u32 = 1;
pub const CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: u32 = 8;
pub const CU_DEVICE_ATTRIBUTE_WARP_SIZE: u32 = 10;
pub const CU_DEVICE_ATTRIBUTE_CLOCK_RATE: u32 = 13;
pub const CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: u32 = 16;
pub const CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT: u32 = 17;
pub const CU_DEVICE_ATTRIBUTE_INTEGRATED: u32 = 18;
pub const CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: u32 = 19;
pub const CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: u32 = 36;
pub const CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: u32 = 37;
pub const CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: u32 = 38;
pub const CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: u32 = 39;
pub const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: u32 = 75;
pub const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: u32 = 76;
pub const CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: u32 = 81;
pub const CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: u32 = 82;
pub const CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED: u32 = 86;
pub const CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: u32 = 95;
pub const CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: u32 = 97;
pub const CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: u32 = 111;
pub const CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: u32 = 0;
pub const CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: u32 = 1;
pub const CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: u32 = 3;
pub const CU_FUNC_ATTRIBUTE_NUM_REGS: u32 = 4;
pub const CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: u32 = 8;
pub const CU_JIT_INFO_LOG_BUFFER: u32 = 3;
pub const CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: u32 = 4;
pub const CU_JIT_ERROR_LOG_BUFFER: u32 = 5;
pub const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: u32 = 6;
pub const CU_MEMHOSTALLOC_PORTABLE: u32 = 1;
pub const CU_MEMHOSTALLOC_DEVICEMAP: u32 = 2;
pub const CU_STREAM_NON_BLOCKING: u32 = 1;
pub const CU_EVENT_DEFAULT: u32 = 0;
pub const CU_EVENT_DISABLE_TIMING: u32 = 2;
pub const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: u32 = 1;
pub const CU_LAUNCH_ATTRIBUTE_COOPERATIVE: u32 = 2;
pub const CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: u32 = 4;
pub const CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;
pub const KILN_CU_OPTIONAL: u32 = 0;
pub const KILN_CU_REQUIRED: u32 = 1;
pub type CUresult = ::std::os::raw::c_uint;
pub type CUdevice = ::std::os::raw::c_int;
pub type CUdeviceptr = ::std::os::raw::c_ulonglong;
#[repr(C)]
#[derive(Debug)]
pub struct CUctx_st {
    _unused: [u8; 0],
}
pub type CUcontext = *mut CUctx_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUmod_st {
    _unused: [u8; 0],
}
pub type CUmodule = *mut CUmod_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUfunc_st {
    _unused: [u8; 0],
}
pub type CUfunction = *mut CUfunc_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type CUstream = *mut CUstream_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUevent_st {
    _unused: [u8; 0],
}
pub type CUevent = *mut CUevent_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUgraph_st {
    _unused: [u8; 0],
}
pub type CUgraph = *mut CUgraph_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUgraphExec_st {
    _unused: [u8; 0],
}
pub type CUgraphExec = *mut CUgraphExec_st;
pub type CUhostFn = ::std::option::Option<unsafe extern "C" fn(user: *mut ::std::os::raw::c_void)>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUuuid_st {
    pub bytes: [::std::os::raw::c_uchar; 16usize],
}
pub type CUuuid = CUuuid_st;
#[repr(C)]
#[repr(align(64))]
#[derive(Debug, Copy, Clone)]
pub struct CUtensorMap_st {
    pub opaque: [::std::os::raw::c_ulonglong; 16usize],
}
pub type CUtensorMap = CUtensorMap_st;
pub type CUtensorMapDataType = ::std::os::raw::c_uint;
pub type CUtensorMapInterleave = ::std::os::raw::c_uint;
pub type CUtensorMapSwizzle = ::std::os::raw::c_uint;
pub type CUtensorMapL2promotion = ::std::os::raw::c_uint;
pub type CUtensorMapFloatOOBfill = ::std::os::raw::c_uint;
pub type CUdevice_attribute = ::std::os::raw::c_uint;
pub type CUfunction_attribute = ::std::os::raw::c_uint;
pub type CUjit_option = ::std::os::raw::c_uint;
pub type CUstreamCaptureMode = ::std::os::raw::c_uint;
pub type CUlaunchAttributeID = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub union CUlaunchAttributeValue_union {
    pub pad: [::std::os::raw::c_char; 64usize],
    pub cooperative: ::std::os::raw::c_int,
    pub clusterDim: CUlaunchAttributeValue_union__bindgen_ty_1,
    pub programmaticStreamSerializationAllowed: ::std::os::raw::c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUlaunchAttributeValue_union__bindgen_ty_1 {
    pub x: ::std::os::raw::c_uint,
    pub y: ::std::os::raw::c_uint,
    pub z: ::std::os::raw::c_uint,
}
pub type CUlaunchAttributeValue = CUlaunchAttributeValue_union;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct CUlaunchAttribute_st {
    pub id: CUlaunchAttributeID,
    pub pad: [::std::os::raw::c_char; 4usize],
    pub value: CUlaunchAttributeValue,
}
pub type CUlaunchAttribute = CUlaunchAttribute_st;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUlaunchConfig_st {
    pub gridDimX: ::std::os::raw::c_uint,
    pub gridDimY: ::std::os::raw::c_uint,
    pub gridDimZ: ::std::os::raw::c_uint,
    pub blockDimX: ::std::os::raw::c_uint,
    pub blockDimY: ::std::os::raw::c_uint,
    pub blockDimZ: ::std::os::raw::c_uint,
    pub sharedMemBytes: ::std::os::raw::c_uint,
    pub hStream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub numAttrs: ::std::os::raw::c_uint,
}
pub type CUlaunchConfig = CUlaunchConfig_st;
#[doc = " The driver table: one pointer per function of the list, null where an optional function is missing."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct kiln_cu_api {
    pub cuInit: ::std::option::Option<unsafe extern "C" fn(flags: ::std::os::raw::c_uint) -> CUresult>,
    pub cuDriverGetVersion:
        ::std::option::Option<unsafe extern "C" fn(version: *mut ::std::os::raw::c_int) -> CUresult>,
    pub cuDeviceGetCount: ::std::option::Option<unsafe extern "C" fn(count: *mut ::std::os::raw::c_int) -> CUresult>,
    pub cuDeviceGet:
        ::std::option::Option<unsafe extern "C" fn(device: *mut CUdevice, ordinal: ::std::os::raw::c_int) -> CUresult>,
    pub cuDeviceGetName: ::std::option::Option<
        unsafe extern "C" fn(
            name: *mut ::std::os::raw::c_char,
            size: ::std::os::raw::c_int,
            device: CUdevice,
        ) -> CUresult,
    >,
    pub cuDeviceGetAttribute: ::std::option::Option<
        unsafe extern "C" fn(
            value: *mut ::std::os::raw::c_int,
            attribute: CUdevice_attribute,
            device: CUdevice,
        ) -> CUresult,
    >,
    pub cuDeviceTotalMem: ::std::option::Option<unsafe extern "C" fn(bytes: *mut usize, device: CUdevice) -> CUresult>,
    pub cuDeviceGetUuid: ::std::option::Option<unsafe extern "C" fn(uuid: *mut CUuuid, device: CUdevice) -> CUresult>,
    pub cuDeviceGetUuid_v2:
        ::std::option::Option<unsafe extern "C" fn(uuid: *mut CUuuid, device: CUdevice) -> CUresult>,
    pub cuDevicePrimaryCtxRetain:
        ::std::option::Option<unsafe extern "C" fn(context: *mut CUcontext, device: CUdevice) -> CUresult>,
    pub cuDevicePrimaryCtxRelease: ::std::option::Option<unsafe extern "C" fn(device: CUdevice) -> CUresult>,
    pub cuCtxSetCurrent: ::std::option::Option<unsafe extern "C" fn(context: CUcontext) -> CUresult>,
    pub cuCtxGetCurrent: ::std::option::Option<unsafe extern "C" fn(context: *mut CUcontext) -> CUresult>,
    pub cuCtxSynchronize: ::std::option::Option<unsafe extern "C" fn() -> CUresult>,
    pub cuMemGetInfo: ::std::option::Option<unsafe extern "C" fn(free: *mut usize, total: *mut usize) -> CUresult>,
    pub cuMemAlloc: ::std::option::Option<unsafe extern "C" fn(pointer: *mut CUdeviceptr, bytes: usize) -> CUresult>,
    pub cuMemFree: ::std::option::Option<unsafe extern "C" fn(pointer: CUdeviceptr) -> CUresult>,
    pub cuMemHostAlloc: ::std::option::Option<
        unsafe extern "C" fn(
            pointer: *mut *mut ::std::os::raw::c_void,
            bytes: usize,
            flags: ::std::os::raw::c_uint,
        ) -> CUresult,
    >,
    pub cuMemFreeHost: ::std::option::Option<unsafe extern "C" fn(pointer: *mut ::std::os::raw::c_void) -> CUresult>,
    pub cuMemHostGetDevicePointer: ::std::option::Option<
        unsafe extern "C" fn(
            pointer: *mut CUdeviceptr,
            host: *mut ::std::os::raw::c_void,
            flags: ::std::os::raw::c_uint,
        ) -> CUresult,
    >,
    pub cuMemcpyHtoD: ::std::option::Option<
        unsafe extern "C" fn(to: CUdeviceptr, from: *const ::std::os::raw::c_void, bytes: usize) -> CUresult,
    >,
    pub cuMemcpyDtoH: ::std::option::Option<
        unsafe extern "C" fn(to: *mut ::std::os::raw::c_void, from: CUdeviceptr, bytes: usize) -> CUresult,
    >,
    pub cuMemcpyDtoD:
        ::std::option::Option<unsafe extern "C" fn(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> CUresult>,
    pub cuMemcpyHtoDAsync: ::std::option::Option<
        unsafe extern "C" fn(
            to: CUdeviceptr,
            from: *const ::std::os::raw::c_void,
            bytes: usize,
            stream: CUstream,
        ) -> CUresult,
    >,
    pub cuMemcpyDtoHAsync: ::std::option::Option<
        unsafe extern "C" fn(
            to: *mut ::std::os::raw::c_void,
            from: CUdeviceptr,
            bytes: usize,
            stream: CUstream,
        ) -> CUresult,
    >,
    pub cuMemcpyDtoDAsync: ::std::option::Option<
        unsafe extern "C" fn(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult,
    >,
    pub cuMemsetD8Async: ::std::option::Option<
        unsafe extern "C" fn(
            to: CUdeviceptr,
            value: ::std::os::raw::c_uchar,
            count: usize,
            stream: CUstream,
        ) -> CUresult,
    >,
    pub cuMemsetD32Async: ::std::option::Option<
        unsafe extern "C" fn(
            to: CUdeviceptr,
            value: ::std::os::raw::c_uint,
            count: usize,
            stream: CUstream,
        ) -> CUresult,
    >,
    pub cuModuleLoadDataEx: ::std::option::Option<
        unsafe extern "C" fn(
            module: *mut CUmodule,
            image: *const ::std::os::raw::c_void,
            count: ::std::os::raw::c_uint,
            options: *mut CUjit_option,
            values: *mut *mut ::std::os::raw::c_void,
        ) -> CUresult,
    >,
    pub cuModuleUnload: ::std::option::Option<unsafe extern "C" fn(module: CUmodule) -> CUresult>,
    pub cuModuleGetFunction: ::std::option::Option<
        unsafe extern "C" fn(
            function: *mut CUfunction,
            module: CUmodule,
            name: *const ::std::os::raw::c_char,
        ) -> CUresult,
    >,
    pub cuModuleGetGlobal: ::std::option::Option<
        unsafe extern "C" fn(
            pointer: *mut CUdeviceptr,
            bytes: *mut usize,
            module: CUmodule,
            name: *const ::std::os::raw::c_char,
        ) -> CUresult,
    >,
    pub cuFuncGetAttribute: ::std::option::Option<
        unsafe extern "C" fn(
            value: *mut ::std::os::raw::c_int,
            attribute: CUfunction_attribute,
            function: CUfunction,
        ) -> CUresult,
    >,
    pub cuFuncSetAttribute: ::std::option::Option<
        unsafe extern "C" fn(
            function: CUfunction,
            attribute: CUfunction_attribute,
            value: ::std::os::raw::c_int,
        ) -> CUresult,
    >,
    pub cuFuncLoad: ::std::option::Option<unsafe extern "C" fn(function: CUfunction) -> CUresult>,
    pub cuOccupancyMaxActiveBlocksPerMultiprocessor: ::std::option::Option<
        unsafe extern "C" fn(
            blocks: *mut ::std::os::raw::c_int,
            function: CUfunction,
            block_size: ::std::os::raw::c_int,
            dynamic_shared: usize,
        ) -> CUresult,
    >,
    pub cuLaunchKernel: ::std::option::Option<
        unsafe extern "C" fn(
            function: CUfunction,
            grid_x: ::std::os::raw::c_uint,
            grid_y: ::std::os::raw::c_uint,
            grid_z: ::std::os::raw::c_uint,
            block_x: ::std::os::raw::c_uint,
            block_y: ::std::os::raw::c_uint,
            block_z: ::std::os::raw::c_uint,
            dynamic_shared: ::std::os::raw::c_uint,
            stream: CUstream,
            parameters: *mut *mut ::std::os::raw::c_void,
            extra: *mut *mut ::std::os::raw::c_void,
        ) -> CUresult,
    >,
    pub cuLaunchCooperativeKernel: ::std::option::Option<
        unsafe extern "C" fn(
            function: CUfunction,
            grid_x: ::std::os::raw::c_uint,
            grid_y: ::std::os::raw::c_uint,
            grid_z: ::std::os::raw::c_uint,
            block_x: ::std::os::raw::c_uint,
            block_y: ::std::os::raw::c_uint,
            block_z: ::std::os::raw::c_uint,
            dynamic_shared: ::std::os::raw::c_uint,
            stream: CUstream,
            parameters: *mut *mut ::std::os::raw::c_void,
        ) -> CUresult,
    >,
    pub cuLaunchKernelEx: ::std::option::Option<
        unsafe extern "C" fn(
            config: *const CUlaunchConfig,
            function: CUfunction,
            parameters: *mut *mut ::std::os::raw::c_void,
            extra: *mut *mut ::std::os::raw::c_void,
        ) -> CUresult,
    >,
    pub cuLaunchHostFunc: ::std::option::Option<
        unsafe extern "C" fn(stream: CUstream, function: CUhostFn, user: *mut ::std::os::raw::c_void) -> CUresult,
    >,
    pub cuStreamCreate:
        ::std::option::Option<unsafe extern "C" fn(stream: *mut CUstream, flags: ::std::os::raw::c_uint) -> CUresult>,
    pub cuStreamDestroy: ::std::option::Option<unsafe extern "C" fn(stream: CUstream) -> CUresult>,
    pub cuStreamSynchronize: ::std::option::Option<unsafe extern "C" fn(stream: CUstream) -> CUresult>,
    pub cuStreamQuery: ::std::option::Option<unsafe extern "C" fn(stream: CUstream) -> CUresult>,
    pub cuStreamWaitEvent: ::std::option::Option<
        unsafe extern "C" fn(stream: CUstream, event: CUevent, flags: ::std::os::raw::c_uint) -> CUresult,
    >,
    pub cuStreamBeginCapture:
        ::std::option::Option<unsafe extern "C" fn(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult>,
    pub cuStreamEndCapture:
        ::std::option::Option<unsafe extern "C" fn(stream: CUstream, graph: *mut CUgraph) -> CUresult>,
    pub cuEventCreate:
        ::std::option::Option<unsafe extern "C" fn(event: *mut CUevent, flags: ::std::os::raw::c_uint) -> CUresult>,
    pub cuEventRecord: ::std::option::Option<unsafe extern "C" fn(event: CUevent, stream: CUstream) -> CUresult>,
    pub cuEventQuery: ::std::option::Option<unsafe extern "C" fn(event: CUevent) -> CUresult>,
    pub cuEventSynchronize: ::std::option::Option<unsafe extern "C" fn(event: CUevent) -> CUresult>,
    pub cuEventElapsedTime:
        ::std::option::Option<unsafe extern "C" fn(milliseconds: *mut f32, start: CUevent, end: CUevent) -> CUresult>,
    pub cuEventDestroy: ::std::option::Option<unsafe extern "C" fn(event: CUevent) -> CUresult>,
    pub cuGraphInstantiateWithFlags: ::std::option::Option<
        unsafe extern "C" fn(exec: *mut CUgraphExec, graph: CUgraph, flags: ::std::os::raw::c_ulonglong) -> CUresult,
    >,
    pub cuGraphLaunch: ::std::option::Option<unsafe extern "C" fn(exec: CUgraphExec, stream: CUstream) -> CUresult>,
    pub cuGraphExecDestroy: ::std::option::Option<unsafe extern "C" fn(exec: CUgraphExec) -> CUresult>,
    pub cuGraphDestroy: ::std::option::Option<unsafe extern "C" fn(graph: CUgraph) -> CUresult>,
    pub cuTensorMapEncodeTiled: ::std::option::Option<
        unsafe extern "C" fn(
            map: *mut CUtensorMap,
            type_: CUtensorMapDataType,
            rank: ::std::os::raw::c_uint,
            address: *mut ::std::os::raw::c_void,
            sizes: *const ::std::os::raw::c_ulonglong,
            strides: *const ::std::os::raw::c_ulonglong,
            box_: *const ::std::os::raw::c_uint,
            element_strides: *const ::std::os::raw::c_uint,
            interleave: CUtensorMapInterleave,
            swizzle: CUtensorMapSwizzle,
            promotion: CUtensorMapL2promotion,
            fill: CUtensorMapFloatOOBfill,
        ) -> CUresult,
    >,
}
#[doc = " One entry of the list, for those who want to walk over it."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct kiln_cu_symbol {
    #[doc = " Versioned name, NUL-terminated."]
    pub name: *const ::std::os::raw::c_char,
    #[doc = " Where its pointer stands in the table, in bytes."]
    pub offset: usize,
    #[doc = " KILN_CU_REQUIRED or KILN_CU_OPTIONAL."]
    pub need: ::std::os::raw::c_uint,
}
#[doc = " Finds a function by its versioned name; null where there is none."]
pub type kiln_cu_resolver = ::std::option::Option<
    unsafe extern "C" fn(
        name: *const ::std::os::raw::c_char,
        user: *mut ::std::os::raw::c_void,
    ) -> *mut ::std::os::raw::c_void,
>;
unsafe extern "C" {
    #[doc = " Fills the table. Returns null, or the first required symbol that the resolver did not know."]
    pub fn kiln_cu_fill(
        api: *mut kiln_cu_api,
        resolve: kiln_cu_resolver,
        user: *mut ::std::os::raw::c_void,
    ) -> *const ::std::os::raw::c_char;
    #[doc = " The list of functions, `*count` long."]
    pub fn kiln_cu_symbols(count: *mut usize) -> *const kiln_cu_symbol;
    #[doc = " Opens a shared library. Returns null and a NUL-terminated reason where it cannot be opened."]
    pub fn kiln_cu_open(
        path: *const ::std::os::raw::c_char,
        reason: *mut ::std::os::raw::c_char,
        reason_size: usize,
    ) -> *mut ::std::os::raw::c_void;
    #[doc = " A resolver over a library that kiln_cu_open gave."]
    pub fn kiln_cu_lookup(
        name: *const ::std::os::raw::c_char,
        library: *mut ::std::os::raw::c_void,
    ) -> *mut ::std::os::raw::c_void;
}
