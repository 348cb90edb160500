// What device code calls of the system, and functions by their addresses. make.sh makes its PTX.
#include <assert.h>
#include <stdio.h>

// A line a thread, with every conversion of printf.
extern "C" __global__ void prints(int *count) {
    int i = threadIdx.x;
    int n = printf("[%d|%5d|%-5d|%05d|%+d|% d|%.3d|%8.3d]\n", -7, 42, 42, -42, 7, 7, 5, -5);
    n += printf("[%u|%x|%X|%#x|%#o|%o|%i]\n", 4294967295u, 48879u, 48879u, 255u, 8u, 8u, -2147483647);
    n += printf("[%ld|%lld|%llu|%lx|%hd|%hhu]\n", -5000000000L, -5000000000LL, 18446744073709551615ULL,
                0xdeadbeefcafeUL, 70000, 511);
    n += printf("[%f|%.2f|%10.3f|%-10.1f|%010.2f|%.0f|%#.0f|%F]\n", 3.14159265, 2.675, -1.5f, 2.25, -3.5, 2.5, 2.0,
                1.0 / 0.0);
    n += printf("[%e|%.2E|%g|%g|%g|%G|%#g|%.3g|%g]\n", 123456.789, 0.00012345, 0.0001, 0.00001234, 1234567.0, 1e-10,
                1.0, 99999.0, 100000.0);
    n += printf("[%a|%.2a|%A|%a|%.0a|%a]\n", 1.5, 3.999, 0.1, 0.0, 1.5, 5e-324);
    n += printf("[%c|%5c|%-3c|%s|%8s|%-8s|%.2s|%%|%p|%p]\n", 'A', 'B', 'C', "word", "word", "word", "word", (void *)16,
                (void *)0);
    n += printf("[%*d|%-*d|%*d|%.*f|%.*s]\n", 6, 42, 6, 42, -6, 42, 2, 1.005, -1, "all");
    n += printf("[%f|%e|%g|%+.1f|% f]\n", -0.0, 0.0, 0.0, 0.05, __longlong_as_double(0x7ff8000000000000LL));
    n += printf("[%.0e|%#.0e|%.10g|%zu]\n", 12345.0, 12345.0, 0.1, (size_t)7);
    count[i] = n;
}

// Threads of several warps say who they are, if they are odd.
extern "C" __global__ void says_who() {
    if (threadIdx.x & 1) printf("block %d thread %d of %s\n", blockIdx.x, threadIdx.x, threadIdx.x < 32 ? "one" : "two");
}

// All values must be below a limit.
extern "C" __global__ void asserts(const int *values, int limit) {
    assert(values[blockIdx.x * blockDim.x + threadIdx.x] < limit && "too large");
}

// A list on the heap, as long as the thread's number, summed and freed.
struct Link {
    Link *next;
    int value;
};
extern "C" __global__ void lists(int *sums) {
    Link *list = nullptr;
    for (int i = 0; i < threadIdx.x; i++) {
        Link *link = (Link *)malloc(sizeof(Link));
        if (!link) return;
        link->next = list;
        link->value = i;
        list = link;
    }
    int sum = 0;
    while (list) {
        Link *next = list->next;
        sum += list->value;
        free(list);
        list = next;
    }
    sums[threadIdx.x] = sum;
}

// Functions through a table in memory.
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }
__device__ __noinline__ int negative(int x) { return -x; }
typedef int (*Function)(int);
__device__ Function table[3] = {twice, square, negative};
extern "C" __global__ void calls(const int *which, int *out) {
    out[threadIdx.x] = table[which[threadIdx.x]](threadIdx.x);
}

// Virtual functions of objects that kernels make.
struct Shape {
    __device__ virtual float area() const = 0;
    __device__ virtual ~Shape() {}
};
struct Square : Shape {
    float side;
    __device__ Square(float side) : side(side) {}
    __device__ float area() const override { return side * side; }
};
struct Circle : Shape {
    float radius;
    __device__ Circle(float radius) : radius(radius) {}
    __device__ float area() const override { return 3 * radius * radius; }
};
extern "C" __global__ void areas(float *out) {
    float size = threadIdx.x;
    Shape *shape = threadIdx.x % 3 ? (Shape *)new Square(size) : new Circle(size);
    out[threadIdx.x] = shape->area();
    delete shape;
}
