//! The C functions, each under the versioned name that libcuda exports, and the resolver that finds them.
//!
//! A function here turns handles and pointers into values and calls the part that knows; it decides nothing.
#![allow(non_snake_case)]

mod context;
mod device;
mod event;
mod graph;
mod launch;
mod memory;
mod module;
mod stream;

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

macro_rules! symbols {
    ($($file:ident: $($name:ident)*;)*) => {
        /// Finds a driver function by its versioned symbol name, such as `c"cuMemAlloc_v2"`; `None` for what this
        /// driver does not have. The bare names of functions that have versions are the old ABI and not offered.
        ///
        /// The pointer is that of an `extern "C"` function with the signature of NVIDIA's `cuda.h` 13.0.
        pub fn resolve(name: &CStr) -> Option<NonNull<c_void>> {
            let function = match name.to_str().ok()? {
                $($(stringify!($name) => $file::$name as *const (),)*)*
                _ => return None,
            };
            NonNull::new(function as *mut c_void)
        }

        #[cfg(test)]
        const NAMES: &[&str] = &[$($(stringify!($name),)*)*];
    };
}

symbols! {
    device: cuInit cuDriverGetVersion cuGetErrorName cuGetErrorString cuDeviceGetCount cuDeviceGet cuDeviceGetName
        cuDeviceGetAttribute cuDeviceTotalMem_v2 cuDeviceGetUuid cuDeviceGetUuid_v2;
    context: cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxGetState
        cuCtxSetCurrent cuCtxGetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxSynchronize cuCtxGetDevice
        cuCtxGetStreamPriorityRange;
    memory: cuMemGetInfo_v2 cuMemAlloc_v2 cuMemFree_v2 cuMemHostAlloc cuMemFreeHost cuMemHostGetDevicePointer_v2
        cuMemHostRegister_v2 cuMemHostUnregister cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyDtoD_v2 cuMemcpyHtoDAsync_v2
        cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemsetD8_v2 cuMemsetD16_v2 cuMemsetD32_v2 cuMemsetD8Async
        cuMemsetD16Async cuMemsetD32Async;
    module: cuModuleLoadData cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction cuModuleGetGlobal_v2
        cuFuncGetAttribute cuFuncSetAttribute cuFuncLoad cuOccupancyMaxActiveBlocksPerMultiprocessor
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags;
    launch: cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel cuLaunchHostFunc;
    stream: cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamSynchronize cuStreamQuery
        cuStreamWaitEvent cuStreamGetPriority cuStreamGetFlags;
    event: cuEventCreate cuEventRecord cuEventQuery cuEventSynchronize cuEventElapsedTime cuEventElapsedTime_v2
        cuEventDestroy_v2;
    graph: cuStreamBeginCapture_v2 cuStreamEndCapture cuStreamIsCapturing cuGraphInstantiateWithFlags cuGraphLaunch
        cuGraphExecDestroy cuGraphDestroy cuGraphGetNodes cuGraphExecKernelNodeSetParams_v2;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn every_symbol_is_its_own_function() {
        let mut found: Vec<_> = NAMES.iter().map(|name| resolve(&CString::new(*name).unwrap()).unwrap()).collect();
        found.sort();
        found.dedup();
        // Two pairs are the same function under both names, and the compiler may or may not merge them.
        assert!(found.len() + 2 >= NAMES.len());
        assert_eq!(resolve(c"cuMemAlloc"), None, "the bare name is the old ABI");
    }
}
