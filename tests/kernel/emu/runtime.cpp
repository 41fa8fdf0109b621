/* The CUDA runtime, as far as the host half calls it: device memory is
 * memory, and a launch runs at once, on release of a held stream, or with its
 * graph. One thread at a time runs kernels. */
#include "emu/cuda_runtime_api.h"
#include "emu/control.h"

#include <deque>
#include <mutex>
#include <vector>

enum { DEVICES = 2 };

struct launch {
    const void *kernel;
    unsigned blocks, threads;
    size_t shared;
    std::vector<unsigned char> parameters;
};

struct emu_graph {
    std::vector<struct launch> launches;
};

struct emu_stream {
    unsigned long long id = 0;
    bool held = false;
    struct emu_graph *graph = nullptr;
    std::deque<struct launch> waiting;
};

static std::recursive_mutex lock;
static struct emu_stream legacy;
static unsigned long long last_id;
static unsigned fail_launches, fail_memory;
static size_t allocations, launches;
static thread_local int device;
static thread_local cudaError_t last_error;

static struct emu_stream *stream_of(void *s)
{
    return s ? (struct emu_stream *)s : &legacy;
}

static void run(struct launch *l)
{
    std::vector<unsigned char> parameters = l->parameters;

    launches++;
    emu_run_grid(l->kernel, parameters.data(), l->blocks, l->threads,
                 l->shared);
}

static void run_waiting(struct emu_stream *s)
{
    while (!s->waiting.empty()) {
        struct launch l = s->waiting.front();
        s->waiting.pop_front();
        run(&l);
    }
}

static cudaError_t failed(void)
{
    return last_error = cudaErrorUnknown;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = DEVICES;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *d)
{
    *d = device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int d)
{
    if (d < 0 || d >= DEVICES)
        return failed();
    device = d;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

/* Filled with what nobody should count on. */
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    if (fail_memory && --fail_memory == 0)
        return failed();
    *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!*p)
        return failed();
    memset(*p, 0xa5, bytes < 4096 ? bytes : 4096);
    allocations++;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    std::lock_guard<std::recursive_mutex> guard(lock);

    allocations -= p != NULL;
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int v, size_t bytes)
{
    memset(p, v, bytes);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    return cudaMalloc(p, bytes);
}

cudaError_t cudaHostGetDevicePointer(void **on_device, void *p, unsigned)
{
    *on_device = p;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    *s = (cudaStream_t)emu_stream_new();
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    run_waiting(stream_of(s));
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    emu_stream_free(s);
    return cudaSuccess;
}

cudaError_t cudaStreamGetId(cudaStream_t s, unsigned long long *id)
{
    *id = stream_of(s)->id;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *is)
{
    *is = stream_of(s)->graph ? cudaStreamCaptureStatusActive
                              : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *)
{
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int)
{
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block,
                             void **args, size_t shared, cudaStream_t s)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    struct emu_stream *stream = stream_of(s);
    struct launch l = {kernel, grid.x, block.x, shared, {}};

    if (fail_launches) {
        fail_launches--;
        return failed();
    }
    l.parameters.assign((unsigned char *)args[0],
                        (unsigned char *)args[0] + emu_parameter_bytes);
    if (stream->graph)
        stream->graph->launches.push_back(l);
    else if (stream->held)
        stream->waiting.push_back(l);
    else
        run(&l);
    return cudaSuccess;
}

/* ---- control.h ---- */

void *emu_stream_new(void)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    struct emu_stream *s = new emu_stream;
    s->id = ++last_id;
    return s;
}

void emu_stream_free(void *stream)
{
    emu_stream_hold(stream, 0);
    delete (struct emu_stream *)stream;
}

void emu_stream_hold(void *stream, int held)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    stream_of(stream)->held = held;
    if (!held)
        run_waiting(stream_of(stream));
}

void emu_capture_begin(void *stream)
{
    stream_of(stream)->graph = new emu_graph;
}

void *emu_capture_end(void *stream)
{
    struct emu_graph *g = stream_of(stream)->graph;
    stream_of(stream)->graph = nullptr;
    return g;
}

void emu_graph_run(void *graph)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    for (struct launch &l : ((struct emu_graph *)graph)->launches)
        run(&l);
}

void emu_graph_free(void *graph)
{
    delete (struct emu_graph *)graph;
}

void emu_fail_launches(unsigned n)
{
    fail_launches = n;
}

void emu_fail_memory(unsigned after)
{
    fail_memory = after;
}

size_t emu_allocations(void)
{
    return allocations;
}

size_t emu_launches(void)
{
    return launches;
}

int emu_device(void)
{
    return device;
}

void emu_device_set(int d)
{
    device = d;
}
