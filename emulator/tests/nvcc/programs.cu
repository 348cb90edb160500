// Small CUDA programs whose PTX, as nvcc makes it, the emulator must run. Every kernel takes (in, out, n).
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mma.h>
#include <cuda_pipeline.h>
#include <cooperative_groups.h>
using namespace nvcuda;
#define K extern "C" __global__ void

// 1. Sum by a tree in shared memory, one block.
K reduce_shared(const float* in, float* out, int n) {
    __shared__ float s[256];
    float v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += in[i];
    s[threadIdx.x] = v;
    __syncthreads();
    for (int d = blockDim.x / 2; d > 0; d /= 2) {
        if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = s[0];
}

// 2. Sum by shuffles, a block per row of 256.
K reduce_shuffle(const float* in, float* out, int n) {
    __shared__ float warp_sum[8];
    float v = in[blockIdx.x * 256 + threadIdx.x];
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < 8 ? warp_sum[threadIdx.x] : 0;
        for (int d = 4; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffff, v, d);
        if (threadIdx.x == 0) out[blockIdx.x] = v;
    }
}

// 3. Sum of integers by one atomic a block.
K reduce_atomic(const int* in, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = i < n ? in[i] : 0;
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
    if (threadIdx.x % 32 == 0) atomicAdd(out, v);
}

// 4. Inclusive scan of 256 numbers (Hillis-Steele).
K scan_block(const int* in, int* out, int n) {
    __shared__ int s[2][256];
    int t = threadIdx.x, p = 0;
    s[0][t] = in[t];
    __syncthreads();
    for (int d = 1; d < 256; d *= 2) {
        s[1 - p][t] = s[p][t] + (t >= d ? s[p][t - d] : 0);
        p = 1 - p;
        __syncthreads();
    }
    out[t] = s[p][t];
}

// 5. Inclusive scan of a warp by shuffles.
K scan_warp(const int* in, int* out, int n) {
    int v = in[threadIdx.x];
    for (int d = 1; d < 32; d *= 2) {
        int o = __shfl_up_sync(0xffffffff, v, d);
        if (threadIdx.x >= d) v += o;
    }
    out[threadIdx.x] = v;
}

// 6. Histogram with shared and global atomics.
K histogram(const unsigned* in, unsigned* out, int n) {
    __shared__ unsigned h[64];
    if (threadIdx.x < 64) h[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[in[i] & 63], 1u);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&out[threadIdx.x], h[threadIdx.x]);
}

// 7. Transpose of a 64 x 64 matrix in tiles of 16.
K transpose(const float* in, float* out, int n) {
    __shared__ float t[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    t[threadIdx.y][threadIdx.x] = in[y * n + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x;
    y = blockIdx.x * 16 + threadIdx.y;
    out[y * n + x] = t[threadIdx.x][threadIdx.y];
}

// 8. Tiled product of two n x n matrices: in holds A, then B.
K matmul_tiled(const float* in, float* out, int n) {
    __shared__ float a[16][16], b[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float s = 0;
    for (int k = 0; k < n; k += 16) {
        a[threadIdx.y][threadIdx.x] = in[row * n + k + threadIdx.x];
        b[threadIdx.y][threadIdx.x] = in[n * n + (k + threadIdx.y) * n + col];
        __syncthreads();
        for (int i = 0; i < 16; i++) s += a[threadIdx.y][i] * b[i][threadIdx.x];
        __syncthreads();
    }
    out[row * n + col] = s;
}

// 9. 16 x 16 x 32 product in f16 by wmma.
K matmul_wmma_f16(const half* in, float* out, int n) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 0.0f);
    for (int k = 0; k < 32; k += 16) {
        wmma::load_matrix_sync(a, in + k, 32);
        wmma::load_matrix_sync(b, in + 16 * 32 + k, 32);
        wmma::mma_sync(c, a, b, c);
    }
    wmma::store_matrix_sync(out, c, 16, wmma::mem_row_major);
}

// 10. 16 x 16 x 16 product in int8 by wmma.
K matmul_wmma_s8(const signed char* in, int* out, int n) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> c;
    wmma::fill_fragment(c, 0);
    wmma::load_matrix_sync(a, in, 16);
    wmma::load_matrix_sync(b, in + 256, 16);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(out, c, 16, wmma::mem_row_major);
}

// 11. 16 x 8 x 8 product in f16 by mma, fragments placed by hand.
K matmul_mma_f16(const half* in, float* out, int n) {
    int l = threadIdx.x, g = l / 4, t = l % 4;
    const unsigned* a = (const unsigned*)in;
    const unsigned* b = (const unsigned*)(in + 16 * 8);
    unsigned a0 = a[g * 4 + t], a1 = a[(g + 8) * 4 + t], b0 = b[g * 4 + t];
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3) : "r"(a0), "r"(a1), "r"(b0));
    out[g * 8 + 2 * t] = c0;
    out[g * 8 + 2 * t + 1] = c1;
    out[(g + 8) * 8 + 2 * t] = c2;
    out[(g + 8) * 8 + 2 * t + 1] = c3;
}

// 12. 8 x 8 x 16 product in int8 by mma.
K matmul_mma_s8(const int* in, int* out, int n) {
    int l = threadIdx.x, g = l / 4, t = l % 4;
    int a = in[g * 4 + t], b = in[32 + g * 4 + t], c0 = 0, c1 = 0;
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(c0), "+r"(c1) : "r"(a), "r"(b));
    out[g * 8 + 2 * t] = c0;
    out[g * 8 + 2 * t + 1] = c1;
}

// 13. ldmatrix, plain and transposed.
K load_matrices(const half* in, unsigned* out, int n) {
    __shared__ __align__(16) half s[64 * 4];
    for (int i = threadIdx.x; i < 256; i += 32) s[i] = in[i];
    __syncwarp();
    unsigned p = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x * 8]);
    unsigned r[4], q[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(q[0]), "=r"(q[1]), "=r"(q[2]), "=r"(q[3]) : "r"(p));
    for (int i = 0; i < 4; i++) {
        out[threadIdx.x * 8 + i] = r[i];
        out[threadIdx.x * 8 + 4 + i] = q[i];
    }
}

// 14. Softmax of rows of n, one warp a row.
K softmax(const float* in, float* out, int n) {
    const float* x = in + blockIdx.x * n;
    float m = -INFINITY, s = 0;
    for (int i = threadIdx.x; i < n; i += 32) m = fmaxf(m, x[i]);
    for (int d = 16; d > 0; d /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, d));
    for (int i = threadIdx.x; i < n; i += 32) s += expf(x[i] - m);
    for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(0xffffffff, s, d);
    for (int i = threadIdx.x; i < n; i += 32) out[blockIdx.x * n + i] = expf(x[i] - m) / s;
}

// 15. Layer norm of rows of n.
K layer_norm(const float* in, float* out, int n) {
    const float* x = in + blockIdx.x * n;
    float s = 0, q = 0;
    for (int i = threadIdx.x; i < n; i += 32) { s += x[i]; q += x[i] * x[i]; }
    for (int d = 16; d > 0; d /= 2) { s += __shfl_xor_sync(0xffffffff, s, d); q += __shfl_xor_sync(0xffffffff, q, d); }
    float mean = s / n, inv = rsqrtf(q / n - mean * mean + 1e-5f);
    for (int i = threadIdx.x; i < n; i += 32) out[blockIdx.x * n + i] = (x[i] - mean) * inv;
}

// 16. Dot products of int8 quads.
K dot_q8(const int* in, int* out, int n) {
    int s = 0;
    for (int i = threadIdx.x; i < n; i += 32) s = __dp4a(in[i], in[n + i], s);
    for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(0xffffffff, s, d);
    if (threadIdx.x == 0) out[0] = s;
}

// 17. A device function that is called, with an array in local memory.
__device__ __noinline__ int sort_median(int* v, int n) {
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && v[j - 1] > v[j]; j--) { int t = v[j]; v[j] = v[j - 1]; v[j - 1] = t; }
    return v[n / 2];
}
K median(const int* in, int* out, int n) {
    int v[9];
    for (int i = 0; i < 9; i++) v[i] = in[(threadIdx.x * 7 + i * 5) % n];
    out[threadIdx.x] = sort_median(v, 9);
}

// 18. A barrier over the grid by atomics and volatile polling; n blocks.
__device__ unsigned arrived;
K grid_barrier(const int* in, int* out, int n) {
    if (threadIdx.x == 0) {
        out[blockIdx.x] = in[blockIdx.x] * 3;
        __threadfence();
        atomicAdd(&arrived, 1u);
        while (*(volatile unsigned*)&arrived < gridDim.x) {}
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) out[gridDim.x + blockIdx.x] = out[(blockIdx.x + 1) % gridDim.x];
}

// 19. The last block sums what all have written.
__device__ unsigned finished;
K last_block(const float* in, float* out, int n) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        out[1 + blockIdx.x] = in[blockIdx.x] + 1;
        __threadfence();
        last = atomicAdd(&finished, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        __threadfence();
        float s = 0;
        for (int i = 0; i < gridDim.x; i++) s += out[1 + i];
        out[0] = s;
    }
}

// 20. Votes, matches and population counts.
K votes(const int* in, int* out, int n) {
    int v = in[threadIdx.x];
    unsigned odd = __ballot_sync(0xffffffff, v & 1);
    int rank = __popc(odd & ((1u << threadIdx.x) - 1));
    out[threadIdx.x] = (v & 1) ? rank : -1;
    out[32 + threadIdx.x] = __any_sync(0xffffffff, v > 90) * 2 + __all_sync(0xffffffff, v >= 0);
    out[64 + threadIdx.x] = __clz(v) * 100 + __ffs(v) + __brev(v) % 7;
}

// 21. 64-bit integers: products, quotients, shifts.
K wide_integers(const unsigned long long* in, unsigned long long* out, int n) {
    unsigned long long a = in[threadIdx.x], b = in[n + threadIdx.x];
    out[threadIdx.x * 4] = a * b;
    out[threadIdx.x * 4 + 1] = __umul64hi(a, b);
    out[threadIdx.x * 4 + 2] = a / (b | 1) + a % (b | 1);
    out[threadIdx.x * 4 + 3] = ((long long)a >> (b & 63)) ^ (a << (b & 31));
}

// 22. Doubles: root, quotient, fused product.
K doubles(const double* in, double* out, int n) {
    double a = in[threadIdx.x], b = in[n + threadIdx.x];
    out[threadIdx.x * 3] = sqrt(a * a + b * b);
    out[threadIdx.x * 3 + 1] = a / b;
    out[threadIdx.x * 3 + 2] = fma(a, b, floor(a));
}

// 23. Half precision arithmetic, packed and not.
K halves(const half2* in, half2* out, int n) {
    half2 a = in[threadIdx.x], b = in[n + threadIdx.x];
    out[threadIdx.x * 2] = __hfma2(a, b, a);
    out[threadIdx.x * 2 + 1] = __halves2half2(__hmul(__low2half(a), __high2half(b)), __hadd(__high2half(a), __low2half(b)));
}

// 24. A switch with many cases, by jump table or compares.
K cases(const int* in, int* out, int n) {
    int v = in[threadIdx.x], r;
    switch (v % 9) {
        case 0: r = v + 1; break;
        case 1: r = v * v; break;
        case 2: r = v ^ 0x55; break;
        case 3: r = -v; break;
        case 4: r = v << 3; break;
        case 5: r = v / 3; break;
        case 6: r = ~v; break;
        case 7: r = v % 5; break;
        default: r = 7; break;
    }
    out[threadIdx.x] = r;
}

// 25. A lookup table in constant memory, bytes packed and unpacked.
__constant__ unsigned char table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
K nibbles(const unsigned char* in, unsigned* out, int n) {
    unsigned v = in[threadIdx.x];
    out[threadIdx.x] = table[v & 15] | table[v >> 4] << 8 | (unsigned)(signed char)v << 16;
}

// 26. Bitonic sort of 256 keys.
K bitonic(const int* in, int* out, int n) {
    __shared__ int s[256];
    int t = threadIdx.x;
    s[t] = in[t];
    __syncthreads();
    for (int k = 2; k <= 256; k *= 2)
        for (int j = k / 2; j > 0; j /= 2) {
            int p = t ^ j;
            if (p > t) {
                bool up = (t & k) == 0;
                if ((s[t] > s[p]) == up) { int x = s[t]; s[t] = s[p]; s[p] = x; }
            }
            __syncthreads();
        }
    out[t] = s[t];
}

// 27. Copies to shared memory that overlap computation (plain ones before sm_80).
K pipeline(const float* in, float* out, int n) {
    __shared__ float s[2][64];
    int t = threadIdx.x;
    float sum = 0;
    __pipeline_memcpy_async(&s[0][t], &in[t], 4);
    __pipeline_commit();
    for (int k = 0; k < n; k++) {
        if (k + 1 < n) __pipeline_memcpy_async(&s[(k + 1) & 1][t], &in[(k + 1) * 64 + t], 4);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += s[k & 1][63 - t];
        __syncthreads();
    }
    out[t] = sum;
}

// 28. Bfloat16 in and out.
K bfloats(const __nv_bfloat16* in, __nv_bfloat16* out, int n) {
    float v = __bfloat162float(in[threadIdx.x]);
    out[threadIdx.x] = __float2bfloat16(v * 1.5f + 0.25f);
}

// 29. Float to integer and back, with every rounding.
K roundings(const float* in, int* out, int n) {
    float v = in[threadIdx.x];
    int* o = out + threadIdx.x * 6;
    o[0] = __float2int_rn(v);
    o[1] = __float2int_rz(v);
    o[2] = __float2int_ru(v);
    o[3] = __float2int_rd(v);
    o[4] = __float_as_int(__fadd_ru(v, 1e-9f));
    o[5] = (int)__float2uint_rn(v);
}

// 30. Compare-and-swap loop: a maximum of floats.
K atomic_max_float(const float* in, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = in[i];
    int old = *(volatile int*)out;
    while (__int_as_float(old) < v) {
        int seen = atomicCAS(out, old, __float_as_int(v));
        if (seen == old) break;
        old = seen;
    }
}

// 31. The grid barrier of cooperative groups, three times; n blocks.
K grid_sync(const int* in, int* out, int n) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    int at = blockIdx.x * blockDim.x + threadIdx.x, v = in[at];
    for (int round = 0; round < 3; round++) {
        out[at] = v;
        grid.sync();
        v += out[(at + blockDim.x) % (gridDim.x * blockDim.x)];
        grid.sync();
    }
    out[at] = v;
}

// 32. NVIDIA's own functions of halves, whose PTX is written by hand.
K half_functions(const __half* in, __half* out, int n) {
    __half x = in[threadIdx.x];
    out[threadIdx.x] = hexp2(x);
    out[32 + threadIdx.x] = __low2half(h2rcp(__half2half2(x)));
    out[64 + threadIdx.x] = hsqrt(x);
    out[96 + threadIdx.x] = hceil(x);
}

// 33. A cluster of two blocks reads each other's shared memory.
#if __CUDA_ARCH__ >= 900
K __cluster_dims__(2, 1, 1) cluster_neighbours(const int* in, int* out, int n) {
    __shared__ int s[64];
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    s[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
    cluster.sync();
    int* other = cluster.map_shared_rank(s, cluster.block_rank() ^ 1);
    out[blockIdx.x * 64 + threadIdx.x] = other[63 - threadIdx.x] + cluster.num_blocks();
    cluster.sync();
}
#endif
