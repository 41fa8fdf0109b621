/* The CUDA half on a GPU: bits against the reference, bandwidth, streams,
 * graphs, memory that is freed or overwritten right after the call, tensors of
 * more than 2^31 elements, a full ring. Exit 77 without a GPU.
 * usage: gpu_check LIBRARY [bits | speed | streams | graph | reuse | large |
 * ring]... */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>
#include <dlfcn.h>
extern "C" {
#include "tests/kernel/emu_rig.h"
}

enum { SAMPLE_BYTES = 4096 * 16, K = 100, WAIT_MS = 20000 };

#define NEED(call)                                                            \
    do {                                                                      \
        cudaError_t e_ = (call);                                              \
        if (e_ != cudaSuccess) {                                              \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,     \
                    cudaGetErrorString(e_));                                  \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

static const struct trd__cuda_half *half_of;
static unsigned char samples[SAMPLE_BYTES];
static uint64_t bins[TRD_MAX_BINS];
static uint64_t failures;

static void expect(bool holds, const char *what)
{
    if (holds)
        return;
    failures++;
    fprintf(stderr, "FAILED: %s\n", what);
}

static struct trd__cuda_config config_of(uint32_t slots,
                                         enum trd_sampling sampling,
                                         uint64_t arg,
                                         enum trd_histogram_kind histogram)
{
    struct trd__cuda_config c;

    c.device = 0;
    c.slots = slots;
    c.sample_bytes = SAMPLE_BYTES;
    c.sampling = sampling;
    c.sampling_arg = arg;
    c.histogram = histogram;
    return c;
}

static struct trd__cuda *opened(const struct trd__cuda_config *config)
{
    struct trd__cuda *cuda = NULL;
    int r = half_of->open(config, &cuda);

    if (r < 0) {
        fprintf(stderr, "open: %s\n", trd_strerror(r));
        exit(1);
    }
    return cuda;
}

static void launch(struct trd__cuda *cuda, cudaStream_t stream,
                   const struct trd__cuda_item *items, uint32_t n)
{
    int captured;
    int r = half_of->launch(cuda, stream, items, n, &captured);

    if (r < 0) {
        fprintf(stderr, "launch: %s\n", trd_strerror(r));
        exit(1);
    }
}

/* The tensor's copy on the device, as shifted as it is. */
struct on_device {
    struct emu_tensor host;
    unsigned char *memory;
    struct trd__cuda_item item;
};

static void make(const struct emu_case *c, uint64_t tag, struct on_device *d)
{
    emu_make(c, &d->host);
    NEED(cudaMalloc((void **)&d->memory, d->host.bytes + 1));
    NEED(cudaMemcpy(d->memory, d->host.memory, d->host.bytes,
                    cudaMemcpyHostToDevice));
    emu_item(&d->host.t, K, tag, &d->item);
    d->item.data = d->memory + ((const unsigned char *)d->host.t.data -
                                d->host.memory);
}

static void drop(struct on_device *d)
{
    NEED(cudaFree(d->memory));
    emu_free(&d->host);
}

static void check(const struct trd__cuda_config *config,
                  struct trd__cuda *cuda, struct on_device *all,
                  const char *what)
{
    struct trd__cuda_result result;

    if (half_of->poll(cuda, &result, samples, bins) != 1) {
        expect(false, "a result is there after its stream is done");
        return;
    }
    expect(emu_same(config, &all[result.tag].host.t, K, &result, samples,
                    bins),
           what);
}

static const int dtypes[] = {
    TRD_F64,         TRD_F32,        TRD_F16,         TRD_BF16,
    TRD_F8_E4M3FN,   TRD_F8_E5M2,    TRD_F8_E4M3FNUZ, TRD_F8_E5M2FNUZ,
    TRD_F8_E8M0FNU,  TRD_I8,         TRD_I16,         TRD_I32,
    TRD_I64,         TRD_U8,         TRD_U16,         TRD_U32,
    TRD_U64,         TRD_BOOL,       TRD_C32,         TRD_C64,
    TRD_C128,        TRD_F4_E2M1X2,
};

/* ---- bits ---- */

static void bits_with(const struct trd__cuda_config *config, uint64_t seed)
{
    static const uint64_t lengths[] = {0,     1,     7,      64,      1000,
                                       1024,  1025,  65536,  65537,   70001,
                                       99999, 300000, 1048576, 4000001};
    struct trd__cuda *cuda = opened(config);
    cudaStream_t stream;

    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int dtype : dtypes)
        for (uint64_t n : lengths)
            for (int fill = 0; fill < FILL_COUNT; fill++) {
                struct emu_case c;
                struct on_device d;

                if (n > 100000 && fill % 4)
                    continue;
                c.dtype = dtype;
                c.n = n;
                c.fill = fill;
                c.view = fill % 3 ? VIEW_DENSE : (int)(seed++ % VIEW_COUNT);
                c.seed = seed * 1000003 + n;
                make(&c, 0, &d);
                launch(cuda, stream, &d.item, 1);
                NEED(cudaStreamSynchronize(stream));
                check(config, cuda, &d, trd_dtype_name(dtype));
                drop(&d);
            }
    half_of->close(cuda, WAIT_MS);
    NEED(cudaStreamDestroy(stream));
}

static void check_bits(void)
{
    struct trd__cuda_config a =
        config_of(64, TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda_config b =
        config_of(64, TRD_RANDOM, 12345, TRD_HISTOGRAM_EXACT);
    struct trd__cuda_config c =
        config_of(64, TRD_EVERY, 1000, TRD_HISTOGRAM_ROWS);

    bits_with(&a, 1);
    bits_with(&b, 2);
    bits_with(&c, 3);
    printf("bits: %llu tensors compared\n", (unsigned long long)emu_compared);
}

/* ---- speed ---- */

__global__ void read_all(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t x = 0;

    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint4 v = p[i];
        x ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (x == 0x12345678)
        *out = x;
}

__global__ void fill_normal(uint32_t *p, size_t words, int dtype)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t r = hash_mix(i + 1);
        float a = (float)((double)(uint32_t)r / 4294967296.0 - 0.5);
        float b = (float)((double)(uint32_t)(r >> 32) / 4294967296.0 - 0.5);
        uint32_t ua = __float_as_uint(a), ub = __float_as_uint(b);

        if (dtype == TRD_F32)
            p[i] = ua;
        else if (dtype == TRD_BF16)
            p[i] = ua >> 16 | (ub & 0xffff0000u);
        else if (dtype == TRD_F16) /* 0.5 to 1, of both signs */
            p[i] = ((uint32_t)r & 0x83ff83ffu) | 0x38003800u;
        else
            p[i] = (uint32_t)r & 0xbfbfbfbfu;
    }
}

template <class F> static double seconds_of(cudaStream_t stream, F once)
{
    cudaEvent_t from, to;
    float ms = 0, best = 1e30f;

    NEED(cudaEventCreate(&from));
    NEED(cudaEventCreate(&to));
    once();
    for (int i = 0; i < 5; i++) {
        NEED(cudaEventRecord(from, stream));
        for (int j = 0; j < 8; j++)
            once();
        NEED(cudaEventRecord(to, stream));
        NEED(cudaEventSynchronize(to));
        NEED(cudaEventElapsedTime(&ms, from, to));
        best = ms < best ? ms : best;
    }
    NEED(cudaEventDestroy(from));
    NEED(cudaEventDestroy(to));
    return best / 8 / 1e3;
}

static void check_speed(void)
{
    static const int of[] = {TRD_F32, TRD_BF16, TRD_F16, TRD_F8_E4M3FN,
                             TRD_I16, TRD_F64,  TRD_I64};
    struct trd__cuda_config config =
        config_of(1024, TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    unsigned char *memory, *other;
    size_t most = (size_t)1 << 30;
    cudaDeviceProp properties;
    cudaStream_t stream;

    NEED(cudaGetDeviceProperties(&properties, 0));
    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&memory, most));
    NEED(cudaMalloc((void **)&other, most));
    printf("speed on %s, GB/s; read: a plain kernel, copy: read and write\n",
           properties.name);
    printf("%-14s %9s %8s %8s %8s %7s\n", "dtype", "bytes", "us", "stats",
           "read", "ratio");
    for (int dtype : of)
        for (size_t bytes = most; bytes >= 1 << 20; bytes /= 8) {
            struct trd__cuda_item item;
            struct trd__cuda_result result;
            double stats, read;
            size_t n = bytes / trd_dtype_bytes(dtype);

            fill_normal<<<1024, 256, 0, stream>>>((uint32_t *)memory,
                                                  bytes / 4, dtype);
            memset(&item, 0, sizeof item);
            item.data = memory;
            item.n = n;
            item.dtype = (uint32_t)dtype;
            item.k = 64;
            item.ndim = 1;
            item.dim[0].extent = n;
            item.dim[0].stride = trd_dtype_bytes(dtype);
            stats = seconds_of(stream, [&] {
                launch(cuda, stream, &item, 1);
            });
            while (half_of->poll(cuda, &result, samples, NULL))
                ;
            read = seconds_of(stream, [&] {
                read_all<<<(unsigned)properties.multiProcessorCount * 8, 256,
                           0, stream>>>((const uint4 *)memory, bytes / 16,
                                        (uint32_t *)other);
            });
            printf("%-14s %9zu %8.1f %8.0f %8.0f %6.1f%%\n",
                   trd_dtype_name(dtype), bytes, stats * 1e6,
                   (double)bytes / stats / 1e9, (double)bytes / read / 1e9,
                   100 * read / stats);
        }
    {
        double copy = seconds_of(stream, [&] {
            NEED(cudaMemcpyAsync(other, memory, most,
                                 cudaMemcpyDeviceToDevice, stream));
        });
        printf("copy %.0f GB/s each way, together %.0f\n",
               (double)most / copy / 1e9, 2.0 * (double)most / copy / 1e9);
    }
    half_of->close(cuda, WAIT_MS);
    NEED(cudaFree(memory));
    NEED(cudaFree(other));
    NEED(cudaStreamDestroy(stream));
}

/* ---- streams ---- */

static void check_streams(void)
{
    enum { STREAMS = 12, ROUNDS = 40 };
    struct trd__cuda_config config =
        config_of(1024, TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_ROWS);
    struct trd__cuda *cuda = opened(&config);
    struct trd__cuda_counters counters;
    struct on_device d[STREAMS];
    cudaStream_t stream[STREAMS];

    for (int i = 0; i < STREAMS; i++) {
        struct emu_case c;
        c.dtype = dtypes[(i * 5 + 1) % 22];
        c.n = i % 3 ? 200000 + 1234 * (uint64_t)i : 5000;
        c.fill = i % FILL_COUNT;
        c.view = VIEW_DENSE;
        c.seed = (uint64_t)i;
        make(&c, (uint64_t)i, &d[i]);
        NEED(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < STREAMS; i++)
            launch(cuda, stream[i], &d[i].item, 1);
    NEED(cudaDeviceSynchronize());
    for (int i = 0; i < STREAMS * ROUNDS; i++)
        check(&config, cuda, d, "streams at once");
    half_of->counters(cuda, &counters);
    expect(counters.dropped == 0, "no result was dropped");
    half_of->close(cuda, WAIT_MS);
    for (int i = 0; i < STREAMS; i++) {
        NEED(cudaStreamDestroy(stream[i]));
        drop(&d[i]);
    }
    printf("streams: %d launches on %d streams\n", STREAMS * ROUNDS, STREAMS);
}

/* ---- graphs ---- */

static void check_graph(void)
{
    enum { REPLAYS = 20 };
    struct trd__cuda_config config =
        config_of(1024, TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_EXACT);
    struct trd__cuda *cuda = opened(&config);
    struct emu_case of[3] = {{TRD_F32, 900000, FILL_NORMAL, VIEW_DENSE, 1},
                             {TRD_BF16, 500, FILL_NORMAL, VIEW_DENSE, 2},
                             {TRD_F32, 70000, FILL_SPECIAL, VIEW_SHIFTED, 3}};
    struct trd__cuda_item items[3];
    struct trd__cuda_result result;
    struct on_device d[3];
    cudaStream_t stream;
    cudaGraphExec_t exec;
    cudaGraph_t graph;
    int captured;

    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (uint64_t i = 0; i < 3; i++) {
        make(&of[i], i, &d[i]);
        items[i] = d[i].item;
    }
    NEED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    expect(half_of->launch(cuda, stream, items, 3, &captured) == 0,
           "a launch is captured");
    NEED(cudaStreamEndCapture(stream, &graph));
    expect(captured == 1, "it says so");
    NEED(cudaGraphInstantiate(&exec, graph, 0));
    for (uint64_t replay = 0; replay < REPLAYS; replay++) {
        d[0].host.memory[7 * replay] ^= 32;
        NEED(cudaMemcpyAsync(d[0].memory, d[0].host.memory, d[0].host.bytes,
                             cudaMemcpyHostToDevice, stream));
        NEED(cudaGraphLaunch(exec, stream));
        NEED(cudaStreamSynchronize(stream));
        for (int i = 0; i < 3; i++) {
            expect(half_of->poll(cuda, &result, samples, bins) == 1,
                   "a replay brings results");
            expect(result.replay == replay, "replays are counted");
            expect(emu_same(&config, &d[result.tag].host.t, K, &result,
                            samples, bins),
                   "a replay reads what is there");
        }
    }
    NEED(cudaGraphExecDestroy(exec));
    NEED(cudaGraphDestroy(graph));
    NEED(cudaStreamDestroy(stream));
    half_of->close(cuda, WAIT_MS);
    for (int i = 0; i < 3; i++)
        drop(&d[i]);
    printf("graph: %d replays\n", REPLAYS);
}

/* ---- memory in stream order ---- */

static void check_reuse(void)
{
    enum { ROUNDS = 200 };
    struct trd__cuda_config config =
        config_of(1024, TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    struct emu_case c = {TRD_BF16, 3000000, FILL_NORMAL, VIEW_DENSE, 9};
    struct on_device d;
    unsigned char *pinned;
    cudaStream_t stream;

    make(&c, 0, &d);
    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    NEED(cudaMallocHost((void **)&pinned, d.host.bytes));
    memcpy(pinned, d.host.memory, d.host.bytes);
    for (int i = 0; i < ROUNDS; i++) {
        struct trd__cuda_item item = d.item;
        unsigned char *memory;

        NEED(cudaMallocAsync((void **)&memory, d.host.bytes, stream));
        NEED(cudaMemcpyAsync(memory, pinned, d.host.bytes,
                             cudaMemcpyHostToDevice, stream));
        item.data = memory;
        launch(cuda, stream, &item, 1);
        if (i % 2)
            NEED(cudaMemsetAsync(memory, 0x55, d.host.bytes, stream));
        NEED(cudaFreeAsync(memory, stream));
    }
    NEED(cudaStreamSynchronize(stream));
    for (int i = 0; i < ROUNDS; i++)
        check(&config, cuda, &d, "memory freed in stream order");
    half_of->close(cuda, WAIT_MS);
    NEED(cudaFreeHost(pinned));
    NEED(cudaStreamDestroy(stream));
    drop(&d);
    printf("reuse: %d tensors freed right after the call\n", ROUNDS);
}

/* ---- more than 2^31 elements ---- */

static void check_large(void)
{
    struct trd__cuda_config config =
        config_of(16, TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_ROWS);
    struct trd__cuda *cuda = opened(&config);
    int64_t n = (INT64_C(1) << 31) + 12345;
    uint64_t *memory = (uint64_t *)malloc((size_t)n + 8);
    struct trd__cuda_result result;
    struct trd__cuda_item item;
    unsigned char *device;
    struct trd_tensor t;

    if (!memory)
        exit(1);
    for (int64_t i = 0; i <= n / 8; i++)
        memory[i] = hash_mix((uint64_t)i);
    t.data = memory;
    t.dtype = TRD_I8;
    t.ndim = 1;
    t.shape = &n;
    t.strides = NULL;
    NEED(cudaMalloc((void **)&device, (size_t)n));
    NEED(cudaMemcpy(device, memory, (size_t)n, cudaMemcpyHostToDevice));
    emu_item(&t, K, 0, &item);
    item.data = device;
    launch(cuda, NULL, &item, 1);
    NEED(cudaDeviceSynchronize());
    expect(half_of->poll(cuda, &result, samples, bins) == 1 &&
               emu_same(&config, &t, K, &result, samples, bins),
           "more than 2^31 elements");
    half_of->close(cuda, WAIT_MS);
    NEED(cudaFree(device));
    free(memory);
    printf("large: %lld elements\n", (long long)n);
}

/* ---- a full ring ---- */

static void check_ring(void)
{
    struct trd__cuda_config config =
        config_of(8, TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    struct emu_case c = {TRD_F32, 100000, FILL_NORMAL, VIEW_DENSE, 4};
    struct trd__cuda_counters counters;
    struct trd__cuda_result result;
    struct on_device d;

    make(&c, 0, &d);
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < 100; i++)
            launch(cuda, NULL, &d.item, 1);
        NEED(cudaDeviceSynchronize());
        half_of->counters(cuda, &counters);
        expect(counters.dropped == 92 * (uint64_t)round,
               "what finds no slot is counted");
        for (int i = 0; i < 8; i++)
            check(&config, cuda, &d, "what was in the ring");
        expect(half_of->poll(cuda, &result, samples, bins) == 0,
               "no more than the ring holds");
    }
    half_of->close(cuda, WAIT_MS);
    drop(&d);
    printf("ring: full, and counted\n");
}

static const struct {
    const char *name;
    void (*run)(void);
} checks[] = {
    {"bits", check_bits},   {"streams", check_streams}, {"graph", check_graph},
    {"reuse", check_reuse}, {"large", check_large},     {"ring", check_ring},
    {"speed", check_speed},
};

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int n = 0;

    if (!library) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "which library?");
        return 2;
    }
    half_of = (const struct trd__cuda_half *)dlsym(library,
                                                   TRD__CUDA_SYMBOL);
    if (!half_of || half_of->size != sizeof *half_of) {
        fprintf(stderr, "not a CUDA half of this version\n");
        return 1;
    }
    if (cudaGetDeviceCount(&n) != cudaSuccess || !n) {
        struct trd__cuda_config config =
            config_of(64, TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
        struct trd__cuda *cuda;

        expect(half_of->devices() == 0, "no device without a driver");
        expect(half_of->open(&config, &cuda) == TRD_EUNSUPPORTED,
               "open says so");
        printf("no GPU here\n");
        return failures ? 1 : 77;
    }
    for (const auto &check : checks) {
        bool asked = argc < 3;
        for (int i = 2; i < argc; i++)
            asked = asked || !strcmp(argv[i], check.name);
        if (asked)
            check.run();
    }
    printf("%llu failures\n", (unsigned long long)failures);
    return failures != 0;
}
