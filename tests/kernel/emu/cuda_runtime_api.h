/* CUDA as a C++ compiler for the host takes it: the words of the language,
 * the warp and block functions on fibers (fibers.cpp), and as much of the
 * runtime as client/stats/cuda_host.cu calls (runtime.cpp). Comes first, so
 * that the kernels' source is compiled as it stands. */
#ifndef EMU_CUDA_RUNTIME_API_H
#define EMU_CUDA_RUNTIME_API_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- the language ---- */

#define TRD_CUDA_EMULATED 1
#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))

struct emu_index {
    unsigned x;
};

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

struct alignas(8) uint2 {
    uint32_t x, y;
};

struct emu_index emu_thread_index(void);
struct emu_index emu_block_index(void);
struct emu_index emu_block_size(void);
unsigned char *emu_shared(void);

#define threadIdx emu_thread_index()
#define blockIdx emu_block_index()
#define blockDim emu_block_size()
#define DYNAMIC_SHARED emu_shared()

/* Every thread of the warp hands one word in and gets all 32. */
const uint64_t *emu_exchange(uint64_t mine);
void emu_barrier(void);

static inline void __syncthreads(void)
{
    emu_barrier();
}

static inline void __syncwarp(void)
{
    emu_exchange(0);
}

template <class V> static inline V emu_shuffle(V v, unsigned from)
{
    uint64_t word = 0;
    V r;

    static_assert(sizeof v <= sizeof word, "one word at most");
    memcpy(&word, &v, sizeof v);
    word = emu_exchange(word)[from % 32];
    memcpy(&r, &word, sizeof r);
    return r;
}

template <class V> static inline V __shfl_sync(unsigned, V v, unsigned from)
{
    return emu_shuffle(v, from);
}

template <class V> static inline V __shfl_xor_sync(unsigned, V v, unsigned w)
{
    return emu_shuffle(v, threadIdx.x % 32 ^ w);
}

template <class V> static inline V __shfl_down_sync(unsigned, V v, unsigned w)
{
    unsigned lane = threadIdx.x % 32;
    return emu_shuffle(v, lane + w < 32 ? lane + w : lane);
}

static inline uint32_t __ballot_sync(unsigned, int holds)
{
    const uint64_t *all = emu_exchange(holds != 0);
    uint32_t r = 0;
    for (int i = 0; i < 32; i++)
        r |= (uint32_t)all[i] << i;
    return r;
}

static inline int __any_sync(unsigned mask, int holds)
{
    return __ballot_sync(mask, holds) != 0;
}

static inline uint32_t __reduce_add_sync(unsigned, uint32_t v)
{
    const uint64_t *all = emu_exchange(v);
    uint32_t r = 0;
    for (int i = 0; i < 32; i++)
        r += (uint32_t)all[i];
    return r;
}

static inline uint32_t __reduce_max_sync(unsigned, uint32_t v)
{
    const uint64_t *all = emu_exchange(v);
    uint32_t r = 0;
    for (int i = 0; i < 32; i++)
        r = (uint32_t)all[i] > r ? (uint32_t)all[i] : r;
    return r;
}

static inline uint32_t __reduce_min_sync(unsigned mask, uint32_t v)
{
    return ~__reduce_max_sync(mask, ~v);
}

template <class V> static inline V __ldg(const V *p)
{
    if ((uintptr_t)p % alignof(V))
        abort(); /* as the device would */
    return *p;
}

template <class V> static inline V __ldcg(const V *p)
{
    return *p;
}

template <class V> static inline V atomicAdd(V *p, V v)
{
    V old = *p;
    *p = old + v;
    return old;
}

static inline unsigned long long atomicAdd(unsigned long long *p, int v)
{
    return atomicAdd(p, (unsigned long long)v);
}

template <class V> static inline V atomicMax(V *p, V v)
{
    V old = *p;
    *p = v > old ? v : old;
    return old;
}

template <class V> static inline V atomicCAS(V *p, V expected, V v)
{
    V old = *p;
    if (old == expected)
        *p = v;
    return old;
}

static inline void __threadfence(void)
{
}

static inline void __threadfence_system(void)
{
}

static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}

static inline int __clzll(long long v)
{
    return v ? __builtin_clzll((unsigned long long)v) : 64;
}

/* ---- the runtime ---- */

enum cudaError_t { cudaSuccess = 0, cudaErrorUnknown = 999 };
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum {
    cudaStreamNonBlocking = 1,
    cudaHostAllocPortable = 1,
    cudaHostAllocMapped = 2
};

struct dim3 {
    unsigned x, y, z;
    explicit dim3(unsigned n) : x(n), y(1), z(1) {}
};

typedef struct emu_stream *cudaStream_t;

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetLastError(void);
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMemset(void *p, int v, size_t bytes);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void **device, void *p, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamGetId(cudaStream_t s, unsigned long long *id);
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *is);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode);
cudaError_t cudaFuncSetAttribute(const void *f, cudaFuncAttribute a, int v);
cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args,
                             size_t shared, cudaStream_t s);

/* ---- between fibers.cpp, runtime.cpp and half.cpp ---- */

extern const size_t emu_parameter_bytes;
void emu_call(const void *kernel, void *parameters);

/* Runs all blocks of one launch. */
void emu_run_grid(const void *kernel, void *parameters, unsigned blocks,
                  unsigned threads, size_t shared);

#endif
