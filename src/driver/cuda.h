/*
 * The part of NVIDIA's driver API that kiln uses: types, constants, and the list of functions.
 *
 * Includes nothing, so that it can be read by a compiler without CUDA and by a libclang without system headers.
 * Enumerations are `unsigned int` with macros: the same width as in NVIDIA's header, and the same on every platform.
 * Reference: https://docs.nvidia.com/cuda/cuda-driver-api/index.html
 */
#ifndef KILN_CUDA_H
#define KILN_CUDA_H

#ifdef _MSC_VER
typedef unsigned __int64 size_t;
#else
typedef __SIZE_TYPE__ size_t;
#endif

typedef unsigned int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef void (*CUhostFn)(void *user);

typedef struct CUuuid_st {
    unsigned char bytes[16];
} CUuuid;

/* 128 bytes whose meaning only the driver and the device know. */
#ifdef _MSC_VER
#define KILN_ALIGNED(bytes) __declspec(align(bytes))
#else
#define KILN_ALIGNED(bytes) __attribute__((aligned(bytes)))
#endif
typedef struct KILN_ALIGNED(64) CUtensorMap_st {
    unsigned long long opaque[16];
} CUtensorMap;

typedef unsigned int CUtensorMapDataType;
#define CU_TENSOR_MAP_DATA_TYPE_UINT8 0
#define CU_TENSOR_MAP_DATA_TYPE_UINT64 4
typedef unsigned int CUtensorMapInterleave;
#define CU_TENSOR_MAP_INTERLEAVE_NONE 0
typedef unsigned int CUtensorMapSwizzle;
#define CU_TENSOR_MAP_SWIZZLE_NONE 0
typedef unsigned int CUtensorMapL2promotion;
#define CU_TENSOR_MAP_L2_PROMOTION_L2_128B 2
typedef unsigned int CUtensorMapFloatOOBfill;
#define CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE 0

/* Results that the code tells apart; every name is in codes.rs. */
#define CUDA_SUCCESS 0
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_OUT_OF_MEMORY 2
#define CUDA_ERROR_NO_DEVICE 100
#define CUDA_ERROR_INVALID_DEVICE 101
#define CUDA_ERROR_NOT_FOUND 500
#define CUDA_ERROR_NOT_READY 600

typedef unsigned int CUdevice_attribute;
#define CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK 1
#define CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK 8
#define CU_DEVICE_ATTRIBUTE_WARP_SIZE 10
#define CU_DEVICE_ATTRIBUTE_CLOCK_RATE 13
#define CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT 16
#define CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT 17
#define CU_DEVICE_ATTRIBUTE_INTEGRATED 18
#define CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY 19
#define CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE 36
#define CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH 37
#define CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE 38
#define CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR 39
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR 75
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR 76
#define CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR 81
#define CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR 82
#define CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED 86
#define CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH 95
#define CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN 97
#define CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK 111

typedef unsigned int CUfunction_attribute;
#define CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK 0
#define CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES 1
#define CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES 3
#define CU_FUNC_ATTRIBUTE_NUM_REGS 4
#define CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES 8

typedef unsigned int CUjit_option;
#define CU_JIT_INFO_LOG_BUFFER 3
#define CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES 4
#define CU_JIT_ERROR_LOG_BUFFER 5
#define CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES 6

#define CU_MEMHOSTALLOC_PORTABLE 1
#define CU_MEMHOSTALLOC_DEVICEMAP 2
#define CU_STREAM_NON_BLOCKING 1
#define CU_EVENT_DEFAULT 0
#define CU_EVENT_DISABLE_TIMING 2

typedef unsigned int CUstreamCaptureMode;
#define CU_STREAM_CAPTURE_MODE_THREAD_LOCAL 1

typedef unsigned int CUlaunchAttributeID;
#define CU_LAUNCH_ATTRIBUTE_COOPERATIVE 2
#define CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION 4
#define CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION 6

typedef union CUlaunchAttributeValue_union {
    char pad[64];
    int cooperative;
    struct {
        unsigned int x;
        unsigned int y;
        unsigned int z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
} CUlaunchAttributeValue;

typedef struct CUlaunchAttribute_st {
    CUlaunchAttributeID id;
    char pad[4];
    CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig_st {
    unsigned int gridDimX;
    unsigned int gridDimY;
    unsigned int gridDimZ;
    unsigned int blockDimX;
    unsigned int blockDimY;
    unsigned int blockDimZ;
    unsigned int sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

#define KILN_CU_OPTIONAL 0
#define KILN_CU_REQUIRED 1

/*
 * X(field, symbol, need, parameters), every function once. The symbol is the versioned name that the library exports:
 * the bare name of a function that has versions is the old ABI. Optional functions are missing from old drivers and
 * from small ones; using one that is missing is an error then, not at load.
 */
#define KILN_CU_FUNCTIONS(X)                                                                                           \
    X(cuInit, "cuInit", KILN_CU_REQUIRED, (unsigned int flags))                                                        \
    X(cuDriverGetVersion, "cuDriverGetVersion", KILN_CU_REQUIRED, (int *version))                                      \
    X(cuDeviceGetCount, "cuDeviceGetCount", KILN_CU_REQUIRED, (int *count))                                            \
    X(cuDeviceGet, "cuDeviceGet", KILN_CU_REQUIRED, (CUdevice * device, int ordinal))                                  \
    X(cuDeviceGetName, "cuDeviceGetName", KILN_CU_REQUIRED, (char *name, int size, CUdevice device))                   \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", KILN_CU_REQUIRED,                                                  \
      (int *value, CUdevice_attribute attribute, CUdevice device))                                                     \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", KILN_CU_REQUIRED, (size_t * bytes, CUdevice device))                    \
    X(cuDeviceGetUuid, "cuDeviceGetUuid", KILN_CU_OPTIONAL, (CUuuid * uuid, CUdevice device))                          \
    X(cuDeviceGetUuid_v2, "cuDeviceGetUuid_v2", KILN_CU_OPTIONAL, (CUuuid * uuid, CUdevice device))                    \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", KILN_CU_REQUIRED, (CUcontext * context, CUdevice device))  \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", KILN_CU_REQUIRED, (CUdevice device))                  \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", KILN_CU_REQUIRED, (CUcontext context))                                       \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", KILN_CU_REQUIRED, (CUcontext * context))                                     \
    X(cuCtxSynchronize, "cuCtxSynchronize", KILN_CU_REQUIRED, (void))                                                  \
    X(cuMemGetInfo, "cuMemGetInfo_v2", KILN_CU_REQUIRED, (size_t * free, size_t * total))                              \
    X(cuMemAlloc, "cuMemAlloc_v2", KILN_CU_REQUIRED, (CUdeviceptr * pointer, size_t bytes))                            \
    X(cuMemFree, "cuMemFree_v2", KILN_CU_REQUIRED, (CUdeviceptr pointer))                                              \
    X(cuMemHostAlloc, "cuMemHostAlloc", KILN_CU_REQUIRED, (void **pointer, size_t bytes, unsigned int flags))          \
    X(cuMemFreeHost, "cuMemFreeHost", KILN_CU_REQUIRED, (void *pointer))                                               \
    X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", KILN_CU_REQUIRED,                                     \
      (CUdeviceptr * pointer, void *host, unsigned int flags))                                                         \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", KILN_CU_REQUIRED, (CUdeviceptr to, const void *from, size_t bytes))             \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", KILN_CU_REQUIRED, (void *to, CUdeviceptr from, size_t bytes))                   \
    X(cuMemcpyDtoD, "cuMemcpyDtoD_v2", KILN_CU_REQUIRED, (CUdeviceptr to, CUdeviceptr from, size_t bytes))             \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", KILN_CU_REQUIRED,                                                     \
      (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                                               \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", KILN_CU_REQUIRED,                                                     \
      (void *to, CUdeviceptr from, size_t bytes, CUstream stream))                                                     \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", KILN_CU_REQUIRED,                                                     \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                                               \
    X(cuMemsetD8Async, "cuMemsetD8Async", KILN_CU_REQUIRED,                                                            \
      (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))                                            \
    X(cuMemsetD32Async, "cuMemsetD32Async", KILN_CU_REQUIRED,                                                          \
      (CUdeviceptr to, unsigned int value, size_t count, CUstream stream))                                             \
    X(cuModuleLoadDataEx, "cuModuleLoadDataEx", KILN_CU_REQUIRED,                                                      \
      (CUmodule * module, const void *image, unsigned int count, CUjit_option *options, void **values))                \
    X(cuModuleUnload, "cuModuleUnload", KILN_CU_REQUIRED, (CUmodule module))                                           \
    X(cuModuleGetFunction, "cuModuleGetFunction", KILN_CU_REQUIRED,                                                    \
      (CUfunction * function, CUmodule module, const char *name))                                                      \
    X(cuModuleGetGlobal, "cuModuleGetGlobal_v2", KILN_CU_REQUIRED,                                                     \
      (CUdeviceptr * pointer, size_t * bytes, CUmodule module, const char *name))                                      \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", KILN_CU_REQUIRED,                                                      \
      (int *value, CUfunction_attribute attribute, CUfunction function))                                               \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", KILN_CU_REQUIRED,                                                      \
      (CUfunction function, CUfunction_attribute attribute, int value))                                                \
    X(cuFuncLoad, "cuFuncLoad", KILN_CU_OPTIONAL, (CUfunction function))                                               \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor", KILN_CU_REQUIRED,    \
      (int *blocks, CUfunction function, int block_size, size_t dynamic_shared))                                       \
    X(cuLaunchKernel, "cuLaunchKernel", KILN_CU_REQUIRED,                                                              \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,       \
       unsigned int block_y, unsigned int block_z, unsigned int dynamic_shared, CUstream stream, void **parameters,    \
       void **extra))                                                                                                  \
    X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", KILN_CU_REQUIRED,                                        \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,       \
       unsigned int block_y, unsigned int block_z, unsigned int dynamic_shared, CUstream stream, void **parameters))   \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", KILN_CU_OPTIONAL,                                                          \
      (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))                            \
    X(cuLaunchHostFunc, "cuLaunchHostFunc", KILN_CU_OPTIONAL, (CUstream stream, CUhostFn function, void *user))        \
    X(cuStreamCreate, "cuStreamCreate", KILN_CU_REQUIRED, (CUstream * stream, unsigned int flags))                     \
    X(cuStreamDestroy, "cuStreamDestroy_v2", KILN_CU_REQUIRED, (CUstream stream))                                      \
    X(cuStreamSynchronize, "cuStreamSynchronize", KILN_CU_REQUIRED, (CUstream stream))                                 \
    X(cuStreamQuery, "cuStreamQuery", KILN_CU_REQUIRED, (CUstream stream))                                             \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", KILN_CU_REQUIRED, (CUstream stream, CUevent event, unsigned int flags))  \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", KILN_CU_OPTIONAL, (CUstream stream, CUstreamCaptureMode mode))  \
    X(cuStreamEndCapture, "cuStreamEndCapture", KILN_CU_OPTIONAL, (CUstream stream, CUgraph * graph))                  \
    X(cuEventCreate, "cuEventCreate", KILN_CU_REQUIRED, (CUevent * event, unsigned int flags))                         \
    X(cuEventRecord, "cuEventRecord", KILN_CU_REQUIRED, (CUevent event, CUstream stream))                              \
    X(cuEventQuery, "cuEventQuery", KILN_CU_REQUIRED, (CUevent event))                                                 \
    X(cuEventSynchronize, "cuEventSynchronize", KILN_CU_REQUIRED, (CUevent event))                                     \
    X(cuEventElapsedTime, "cuEventElapsedTime", KILN_CU_REQUIRED, (float *milliseconds, CUevent start, CUevent end))   \
    X(cuEventDestroy, "cuEventDestroy_v2", KILN_CU_REQUIRED, (CUevent event))                                          \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", KILN_CU_OPTIONAL,                                    \
      (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                                                   \
    X(cuGraphLaunch, "cuGraphLaunch", KILN_CU_OPTIONAL, (CUgraphExec exec, CUstream stream))                           \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", KILN_CU_OPTIONAL, (CUgraphExec exec))                                  \
    X(cuGraphDestroy, "cuGraphDestroy", KILN_CU_OPTIONAL, (CUgraph graph))                                             \
    X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled", KILN_CU_OPTIONAL,                                              \
      (CUtensorMap * map, CUtensorMapDataType type, unsigned int rank, void *address, const unsigned long long *sizes, \
       const unsigned long long *strides, const unsigned int *box, const unsigned int *element_strides,                \
       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,                 \
       CUtensorMapFloatOOBfill fill))

#define KILN_CU_FIELD(field, symbol, need, parameters) CUresult(*field) parameters;

/** The driver table: one pointer per function of the list, null where an optional function is missing. */
struct kiln_cu_api {
    KILN_CU_FUNCTIONS(KILN_CU_FIELD)
};

/** One entry of the list, for those who want to walk over it. */
struct kiln_cu_symbol {
    /** Versioned name, NUL-terminated. */
    const char *name;
    /** Where its pointer stands in the table, in bytes. */
    size_t offset;
    /** KILN_CU_REQUIRED or KILN_CU_OPTIONAL. */
    unsigned int need;
};

/** Finds a function by its versioned name; null where there is none. */
typedef void *(*kiln_cu_resolver)(const char *name, void *user);

/** Fills the table. Returns null, or the first required symbol that the resolver did not know. */
const char *kiln_cu_fill(struct kiln_cu_api *api, kiln_cu_resolver resolve, void *user);

/** The list of functions, `*count` long. */
const struct kiln_cu_symbol *kiln_cu_symbols(size_t *count);

/** Opens a shared library. Returns null and a NUL-terminated reason where it cannot be opened. */
void *kiln_cu_open(const char *path, char *reason, size_t reason_size);

/** A resolver over a library that kiln_cu_open gave. */
void *kiln_cu_lookup(const char *name, void *library);

#endif
