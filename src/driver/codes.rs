//! Names and meanings of the driver's results. A table of ours: an error can be named before a driver is found, and after
//! its context is gone.

use crate::Error;

/// `(code, name, meaning)`, ascending.
static CODES: &[(u32, &str, &str)] = &[
    (1, "CUDA_ERROR_INVALID_VALUE", "an argument is outside its range"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY", "no memory is left for the call"),
    (3, "CUDA_ERROR_NOT_INITIALIZED", "the driver was not initialised"),
    (4, "CUDA_ERROR_DEINITIALIZED", "the driver is shutting down with the process"),
    (5, "CUDA_ERROR_PROFILER_DISABLED", "a profiler is attached and forbids the call"),
    (6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "the profiler was not initialised"),
    (7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "the profiler runs already"),
    (8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "the profiler has stopped already"),
    (
        34,
        "CUDA_ERROR_STUB_LIBRARY",
        "the library is the toolkit's stub; put the real driver before it in the search path",
    ),
    (36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "install a newer driver"),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "another process holds the device exclusively"),
    (47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL", "the device has no room for another multicast object"),
    (100, "CUDA_ERROR_NO_DEVICE", "the driver sees no device; look at CUDA_VISIBLE_DEVICES"),
    (101, "CUDA_ERROR_INVALID_DEVICE", "there is no device of that ordinal"),
    (102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "the virtual GPU has no licence"),
    (200, "CUDA_ERROR_INVALID_IMAGE", "the module is damaged"),
    (201, "CUDA_ERROR_INVALID_CONTEXT", "the context is not current or was destroyed"),
    (202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "the context is current already"),
    (205, "CUDA_ERROR_MAP_FAILED", "memory could not be mapped"),
    (206, "CUDA_ERROR_UNMAP_FAILED", "memory could not be unmapped"),
    (207, "CUDA_ERROR_ARRAY_IS_MAPPED", "the array is mapped"),
    (208, "CUDA_ERROR_ALREADY_MAPPED", "the resource is mapped already"),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "the PTX is for a later device; bake it for this target"),
    (210, "CUDA_ERROR_ALREADY_ACQUIRED", "the resource was acquired already"),
    (211, "CUDA_ERROR_NOT_MAPPED", "the resource is not mapped"),
    (212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "the resource is not mapped as an array"),
    (213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "the resource is not mapped as a pointer"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE", "the device's memory is damaged"),
    (215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "the device has no such limit"),
    (216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "another thread holds the context"),
    (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "the devices cannot read each other"),
    (218, "CUDA_ERROR_INVALID_PTX", "the PTX does not compile"),
    (219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "the graphics context is invalid"),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "the link between devices is damaged"),
    (221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "the driver's PTX compiler is not installed"),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the PTX is newer than the driver; install a newer driver"),
    (223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "unset CUDA_DISABLE_PTX_JIT"),
    (224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "the context is limited to fewer multiprocessors than supported"),
    (
        225,
        "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC",
        "the PTX waits for work that a kernel launched, which the driver does not compile",
    ),
    (
        226,
        "CUDA_ERROR_CONTAINED",
        "the device contained a fault of its hardware or of a peer's memory; the context is lost, start the process anew",
    ),
    (227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION", "the image needs a newer loader; install a newer driver"),
    (300, "CUDA_ERROR_INVALID_SOURCE", "the module's source is invalid"),
    (301, "CUDA_ERROR_FILE_NOT_FOUND", "there is no file of that name"),
    (302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "a symbol of a shared library is missing"),
    (303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "a shared library of the driver could not start"),
    (304, "CUDA_ERROR_OPERATING_SYSTEM", "the operating system refused; look at its limit of locked memory"),
    (400, "CUDA_ERROR_INVALID_HANDLE", "a handle is not live"),
    (401, "CUDA_ERROR_ILLEGAL_STATE", "an object is not in a state that the call takes"),
    (402, "CUDA_ERROR_LOSSY_QUERY", "the answer would leave something out"),
    (500, "CUDA_ERROR_NOT_FOUND", "there is nothing of that name"),
    (600, "CUDA_ERROR_NOT_READY", "the work is still running"),
    (
        700,
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "a kernel used memory that it has not; the context is lost, start the process anew",
    ),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many registers or threads for a block; launch smaller blocks"),
    (
        702,
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "a kernel ran longer than the display allows; the context is lost, start the process anew",
    ),
    (703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "the launch mixes modes of texturing"),
    (704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "the devices can read each other already"),
    (705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "the devices were not told to read each other"),
    (708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "the primary context is already in use"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context was destroyed"),
    (710, "CUDA_ERROR_ASSERT", "an assertion in a kernel failed; the context is lost, start the process anew"),
    (711, "CUDA_ERROR_TOO_MANY_PEERS", "the device can read no further device"),
    (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "the memory is page-locked already"),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the memory was not page-locked by the driver"),
    (
        714,
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "a kernel's stack is damaged; the context is lost, start the process anew",
    ),
    (
        715,
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "a kernel met an illegal instruction; the context is lost, start the process anew",
    ),
    (
        716,
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "a kernel used a misaligned address; the context is lost, start the process anew",
    ),
    (
        717,
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "a kernel used an address of the wrong state space; the context is lost, start the process anew",
    ),
    (718, "CUDA_ERROR_INVALID_PC", "a kernel jumped outside its code; the context is lost, start the process anew"),
    (719, "CUDA_ERROR_LAUNCH_FAILED", "a kernel failed; the context is lost, start the process anew"),
    (720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "the grid does not fit the device at once; launch fewer blocks"),
    (
        721,
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
        "a kernel ended without freeing its tensor memory; the context is lost, start the process anew",
    ),
    (800, "CUDA_ERROR_NOT_PERMITTED", "the operation is not permitted"),
    (801, "CUDA_ERROR_NOT_SUPPORTED", "the device or driver does not support it"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY", "a service of the driver is not running"),
    (
        803,
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "kernel module and library of the driver differ; reboot after an update",
    ),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility is not for this device"),
    (
        805,
        "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "the MPS daemon cannot be reached; start it, or unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    (806, "CUDA_ERROR_MPS_RPC_FAILURE", "the MPS server did not answer; look at its log"),
    (
        807,
        "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "the MPS server takes no clients now, as after another client's failure; try again",
    ),
    (808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "the MPS server has no room for another client; end one"),
    (
        809,
        "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        "the MPS server has no room for another connection to the device; end a client",
    ),
    (
        810,
        "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        "the MPS server ended this client, as after another client's failure; the context is lost, start the process anew",
    ),
    (811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "kernels that launch kernels are not supported here, as under MPS"),
    (812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "the image mixes versions of kernels that launch kernels"),
    (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "the call is not allowed while a stream is captured"),
    (901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture was broken by an earlier error"),
    (902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "the call would merge two captures"),
    (903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture was not begun on this stream"),
    (904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "another stream was captured and not joined"),
    (905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "captured work would depend on work outside the capture"),
    (906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the call would wait for the legacy stream"),
    (907, "CUDA_ERROR_CAPTURED_EVENT", "the event was recorded in a capture and never happens"),
    (908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "a capture ends in the thread that began it"),
    (909, "CUDA_ERROR_TIMEOUT", "the time allowed has passed"),
    (910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph differs too much to be updated"),
    (911, "CUDA_ERROR_EXTERNAL_DEVICE", "work handed to a device outside CUDA failed"),
    (912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "the cluster does not fit the device; launch smaller clusters"),
    (913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "the function is not loaded yet"),
    (914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "the resource is of another type than the call takes"),
    (915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "the resources do not suffice, or not together"),
    (916, "CUDA_ERROR_KEY_ROTATION", "changing the keys of confidential computing failed"),
    (917, "CUDA_ERROR_STREAM_DETACHED", "the context of the stream was destroyed"),
    (918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE", "capturing the graph anew failed"),
    (
        919,
        "CUDA_ERROR_FABRIC_NOT_READY",
        "the fabric between devices is not ready; wait for its manager, and try again",
    ),
    (999, "CUDA_ERROR_UNKNOWN", "the driver gives no reason"),
];

/// Name and meaning of a result.
pub(crate) fn describe(code: u32) -> (&'static str, &'static str) {
    match CODES.binary_search_by_key(&code, |entry| entry.0) {
        Ok(index) => (CODES[index].1, CODES[index].2),
        Err(_) => ("a code that this version does not know", "look it up in cuda.h of the driver's CUDA version"),
    }
}

/// The error for a failed call.
#[cold]
pub(crate) fn failure(call: &'static str, code: u32) -> Error {
    let (name, meaning) = describe(code);
    Error::Cuda { call, code, name, meaning }
}

/// The error for an optional function that this driver lacks.
#[cold]
pub(crate) fn missing(call: &'static str) -> Error {
    let since = match call {
        "cuDeviceGetUuid" => "9.2",
        "cuDeviceGetUuid_v2" => "11.4",
        "cuLaunchHostFunc" | "cuGraphLaunch" | "cuGraphExecDestroy" | "cuGraphDestroy" | "cuStreamEndCapture" => "10.0",
        "cuStreamBeginCapture" => "10.1",
        "cuGraphInstantiateWithFlags" => "11.4",
        "cuLaunchKernelEx" => "11.8",
        "cuTensorMapEncodeTiled" => "12.0",
        "cuFuncLoad" => "12.4",
        _ => "11.0",
    };
    Error::MissingFunction { call, since }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_so_that_the_search_finds_each() {
        assert!(CODES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn codes_that_lose_the_context_say_so() {
        // Those of which NVIDIA's header says that the process, or the context, has to be made anew.
        let lost = [226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810];
        let says = |code| describe(code).1.ends_with("the context is lost, start the process anew");
        let found: Vec<u32> = CODES.iter().map(|entry| entry.0).filter(|code| says(*code)).collect();
        assert_eq!(found, lost);
    }

    #[test]
    fn an_unknown_code_is_still_reported() {
        let text = failure("cuInit", 12345).to_string();
        assert!(text.contains("12345") && text.contains("cuInit"), "{text}");
    }
}
