// The microbenchmarks that the clock is validated with (ptx/validation.rs), after the descriptions of those that were
// published.
#include <cooperative_groups.h>
#if __CUDA_ARCH__ >= 900
#include <cstdint>
#include <cuda/ptx>
#endif
#define K extern "C" __global__ void

// Loads by one thread, one behind the other: each has the address of the next.
K chase(const unsigned long long* word, unsigned hops, unsigned long long* out) {
#pragma unroll 1
    for (; hops; hops--) word = (const unsigned long long*)*word;
    *out = (unsigned long long)word;
}

// Eight chains of one operation a thread, which depend on themselves and their neighbours.
#define RATE(name, type, each)                                                    \
    K rate_##name(type* out, unsigned rounds, type y, type z) {                   \
        type x[8];                                                                \
        for (int i = 0; i < 8; i++) x[i] = threadIdx.x + i * y;                   \
        _Pragma("unroll 1") for (; rounds; rounds--) {                            \
            _Pragma("unroll") for (int k = 0; k < 8; k++) {                       \
                _Pragma("unroll") for (int i = 0; i < 8; i++) x[i] = each;        \
            }                                                                     \
        }                                                                         \
        for (int i = 1; i < 8; i++) x[0] += x[i];                                 \
        out[threadIdx.x] = x[0];                                                  \
    }

RATE(ffma, float, x[i] * y + z)
RATE(imad, unsigned, x[i] * y + x[(i + 1) % 8])
RATE(dp4a, unsigned, __dp4a(x[i], y, x[(i + 1) % 8]))
RATE(lop3, unsigned, (x[i] & x[(i + 1) % 8]) ^ y)
RATE(popc, unsigned, __popc(x[i]))
RATE(shfl, unsigned, __shfl_xor_sync(~0u, x[i], 1))

// Barriers of a block, and fences of the device, sixteen in a round.
K barriers(unsigned rounds) {
#pragma unroll 1
    for (; rounds; rounds--) {
#pragma unroll
        for (int k = 0; k < 16; k++) __syncthreads();
    }
}

K fences(unsigned rounds) {
#pragma unroll 1
    for (; rounds; rounds--) {
#pragma unroll
        for (int k = 0; k < 16; k++) __threadfence();
    }
}

// An element of 8 bytes a thread: written, read, scaled, scaled and added to another (gpu-stream of RRZE-HPC/gpu-benches).
K stream_init(double* a, const double* __restrict__ b, const double* __restrict__ c, size_t n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    a[i] = 0.23;
}

K stream_read(double* a, const double* __restrict__ b, const double* __restrict__ c, size_t n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double value = b[i];
    if (value == 123.0) a[i] = value;
}

K stream_scale(double* a, const double* __restrict__ b, const double* __restrict__ c, size_t n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    a[i] = b[i] * 1.2;
}

K stream_triad(double* a, const double* __restrict__ b, const double* __restrict__ c, size_t n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    a[i] = b[i] * 1.2 + c[i];
}

// Every thread reads 16 bytes in a round, a grid's length from the round before.
K sweep(const uint4* __restrict__ from, unsigned rounds, unsigned* out) {
    unsigned sum = 0;
    const uint4* next = from + blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (; rounds; rounds--, next += gridDim.x * blockDim.x) {
        uint4 value = *next;
        sum ^= value.x ^ value.y ^ value.z ^ value.w;
    }
    if (sum == 77) *out = sum;
}

K nothing() {}

// Elements of 8 bytes are scaled between barriers of the grid (gpu-small-kernels of RRZE-HPC/gpu-benches): by an atomic
// operation of each block on a word that is looked at until all have come, or by a cooperative group.
__device__ void scale(double* a, const double* b, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) a[i] = b[i] * 0.25;
}

K meet_by_atomics(volatile int* counts, double* __restrict__ a, double* __restrict__ b, int n, int rounds) {
    for (int round = 0; round < rounds; round++) {
        scale(a, b, n);
        __syncthreads();
        __threadfence();
        if (threadIdx.x == 0) {
            atomicAdd((int*)&counts[round], 1);
            while (counts[round] != gridDim.x) {
            }
        }
        __syncthreads();
    }
}

K meet_as_a_group(double* __restrict__ a, double* __restrict__ b, int n, int rounds) {
    for (int round = 0; round < rounds; round++) {
        scale(a, b, n);
        cooperative_groups::this_grid().sync();
    }
}

// A block's ring of two bulk copies of so many bytes each.
#if __CUDA_ARCH__ >= 900
K ring(const char* from, unsigned bytes, unsigned rounds) {
    namespace ptx = cuda::ptx;
    __shared__ alignas(16) char data[2][32768];
    __shared__ uint64_t full[2];
    ptx::mbarrier_init(&full[0], 1);
    ptx::mbarrier_init(&full[1], 1);
    ptx::fence_proxy_async(ptx::space_shared);
    const char* next = from + (size_t)blockIdx.x * bytes;
#pragma unroll 1
    for (unsigned round = 0; round <= rounds; round++) {
        unsigned slot = round & 1, before = slot ^ 1;
        if (round < rounds) {
            ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[slot], bytes);
            ptx::cp_async_bulk(ptx::space_shared, ptx::space_global, data[slot], next, bytes, &full[slot]);
            next += (size_t)gridDim.x * bytes;
        }
        if (round) {
            while (!ptx::mbarrier_try_wait_parity(&full[before], (round - 1) >> 1 & 1)) {
            }
        }
    }
}
#endif
