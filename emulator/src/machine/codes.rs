//! `CUresult`: every code of the driver API, with its name and a sentence.

use std::ffi::CStr;
use std::fmt;

/// A `CUresult` other than `CUDA_SUCCESS`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(u32);

macro_rules! codes {
    ($($constant:ident = $value:literal, $sentence:literal;)*) => {
        impl Code {
            $(#[doc = concat!("`CUDA_ERROR_", stringify!($constant), "`: ", $sentence, ".")]
              pub const $constant: Code = Code($value);)*

            /// Name and sentence of a `CUresult`, as C has them.
            pub(crate) fn texts(result: u32) -> Option<(&'static CStr, &'static CStr)> {
                let (name, sentence) = match result {
                    0 => ("CUDA_SUCCESS\0", "no error\0"),
                    $($value => (
                        concat!("CUDA_ERROR_", stringify!($constant), "\0"), concat!($sentence, "\0"),
                    ),)*
                    _ => return None,
                };
                let text = |text: &'static str| CStr::from_bytes_with_nul(text.as_bytes()).ok();
                Some((text(name)?, text(sentence)?))
            }
        }

        impl fmt::Display for Code {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($value => f.write_str(concat!("CUDA_ERROR_", stringify!($constant), ": ", $sentence)),)*
                    other => write!(f, "CUresult {other}"),
                }
            }
        }
    };
}

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "initialization error";
    DEINITIALIZED = 4, "driver shutting down";
    PROFILER_DISABLED = 5, "profiler disabled while using an external profiling tool";
    PROFILER_NOT_INITIALIZED = 6, "profiler not initialized";
    PROFILER_ALREADY_STARTED = 7, "profiler already started";
    PROFILER_ALREADY_STOPPED = 8, "profiler already stopped";
    STUB_LIBRARY = 34, "the library is a stub without a driver";
    CALL_REQUIRES_NEWER_DRIVER = 36, "the call requires a newer driver";
    DEVICE_UNAVAILABLE = 46, "the device is busy or unavailable";
    MULTICAST_RESOURCE_FULL = 47, "no room is left for another multicast object";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    DEVICE_NOT_LICENSED = 102, "the device has no valid licence";
    INVALID_IMAGE = 200, "device kernel image is invalid";
    INVALID_CONTEXT = 201, "invalid device context";
    CONTEXT_ALREADY_CURRENT = 202, "context already current";
    MAP_FAILED = 205, "mapping of a buffer failed";
    UNMAP_FAILED = 206, "unmapping of a buffer failed";
    ARRAY_IS_MAPPED = 207, "array is mapped";
    ALREADY_MAPPED = 208, "resource already mapped";
    NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    ALREADY_ACQUIRED = 210, "resource already acquired";
    NOT_MAPPED = 211, "resource not mapped";
    NOT_MAPPED_AS_ARRAY = 212, "resource not mapped as an array";
    NOT_MAPPED_AS_POINTER = 213, "resource not mapped as a pointer";
    ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    UNSUPPORTED_LIMIT = 215, "limit is not supported on this architecture";
    CONTEXT_ALREADY_IN_USE = 216, "context already in use by another thread";
    PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    INVALID_PTX = 218, "a PTX JIT compilation failed";
    INVALID_GRAPHICS_CONTEXT = 219, "invalid graphics context";
    NVLINK_UNCORRECTABLE = 220, "uncorrectable NVLink error";
    JIT_COMPILER_NOT_FOUND = 221, "PTX JIT compiler library not found";
    UNSUPPORTED_PTX_VERSION = 222, "the provided PTX was compiled with an unsupported toolchain.";
    JIT_COMPILATION_DISABLED = 223, "PTX JIT compilation was disabled";
    UNSUPPORTED_EXEC_AFFINITY = 224, "execution affinity is not supported";
    UNSUPPORTED_DEVSIDE_SYNC = 225, "device-side synchronization is not supported";
    CONTAINED = 226, "error contained by the device";
    INSUFFICIENT_LOADER_VERSION = 227, "the loader is too old for the fat binary";
    INVALID_SOURCE = 300, "device kernel source is invalid";
    FILE_NOT_FOUND = 301, "file not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "a symbol of a shared object was not found";
    SHARED_OBJECT_INIT_FAILED = 303, "shared object initialization failed";
    OPERATING_SYSTEM = 304, "an operating system call failed";
    INVALID_HANDLE = 400, "invalid resource handle";
    ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    LOSSY_QUERY = 402, "the query would lose information";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
    LAUNCH_INCOMPATIBLE_TEXTURING = 703, "launch with incompatible texturing mode";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, "the primary context is already active";
    CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    ASSERT = 710, "device-side assert triggered";
    TOO_MANY_PEERS = 711, "peer mapping resources exhausted";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "this memory is already page-locked";
    HOST_MEMORY_NOT_REGISTERED = 713, "this pointer is not that of registered memory";
    HARDWARE_STACK_ERROR = 714, "hardware stack error";
    ILLEGAL_INSTRUCTION = 715, "an illegal instruction was encountered";
    MISALIGNED_ADDRESS = 716, "misaligned address";
    INVALID_ADDRESS_SPACE = 717, "operation on an address of the wrong space";
    INVALID_PC = 718, "invalid program counter";
    LAUNCH_FAILED = 719, "unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "too many blocks in cooperative launch";
    TENSOR_MEMORY_LEAK = 721, "tensor memory was not given back";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    SYSTEM_NOT_READY = 802, "the system is not ready";
    SYSTEM_DRIVER_MISMATCH = 803, "the driver does not match the system";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "forward compatibility is not offered on this device";
    MPS_CONNECTION_FAILED = 805, "the MPS client could not connect";
    MPS_RPC_FAILURE = 806, "a remote call of MPS failed";
    MPS_SERVER_NOT_READY = 807, "the MPS server is not ready";
    MPS_MAX_CLIENTS_REACHED = 808, "too many clients of MPS";
    MPS_MAX_CONNECTIONS_REACHED = 809, "too many connections to MPS";
    MPS_CLIENT_TERMINATED = 810, "the MPS server ended the client";
    CDP_NOT_SUPPORTED = 811, "dynamic parallelism is not supported";
    CDP_VERSION_MISMATCH = 812, "the version of dynamic parallelism does not match";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from another thread";
    TIMEOUT = 909, "a wait timed out";
    GRAPH_EXEC_UPDATE_FAILURE = 910, "the graph update failed";
    EXTERNAL_DEVICE = 911, "an external device failed";
    INVALID_CLUSTER_SIZE = 912, "misconfigured cluster size";
    FUNCTION_NOT_LOADED = 913, "the function is not loaded";
    INVALID_RESOURCE_TYPE = 914, "the resource has the wrong type";
    INVALID_RESOURCE_CONFIGURATION = 915, "the resource is insufficient or misconfigured";
    KEY_ROTATION = 916, "a key was being changed";
    STREAM_DETACHED = 917, "the stream lost its context";
    GRAPH_RECAPTURE_FAILURE = 918, "the graph could not be captured again";
    UNKNOWN = 999, "unknown error";
}

impl Code {
    /// Any `CUresult`; 0 would be success and becomes [`Code::UNKNOWN`].
    pub const fn new(value: u32) -> Code {
        if value == 0 { Code::UNKNOWN } else { Code(value) }
    }

    /// The number as the C functions return it.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Whether the context is lost with it: every later call returns the same code.
    pub const fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 700 | 702 | 710 | 714..=719)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({})", self.0)
    }
}

impl std::error::Error for Code {}
