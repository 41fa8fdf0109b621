/* The host half of the statistics on the device: memory, launches, the ring.
 *
 * All memory is made by open: the pinned ring, scratch for some streams, an
 * arena for captured launches. A stream keeps a scratch area while it has
 * work: work on one stream is in order, so its launches may share it. A
 * captured launch gets one of its own, for good, since its graph may run on
 * any stream.
 *
 * Invariants: launch and poll call nothing of CUDA that waits or allocates;
 * the thread's device and its error state are as before afterwards. */
#include "client/stats/cuda_dtypes.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum {
    MOST_SAMPLE_BYTES = TRD_MAX_SAMPLES * TRD__MAX_ELEMENT,
    MOST_SHARED = 65536,
    ARENA_PARTS = 16 << 20, /* bytes for the chunks of captured launches */
    ARENA_BINS = 32 << 20   /* for their bins, where there are any */
};

/* Scratch as the host knows it. */
struct stream_area {
    unsigned long long id; /* of the stream */
    bool used;
    uint64_t launched;
};

struct trd__cuda {
    struct trd__cuda_config config;
    pthread_mutex_t lock; /* guards stream[], captured and arena_used */
    struct stream_area stream[TRD__CUDA_STREAMS];
    uint32_t captured;
    uint64_t parts_used, bins_used; /* of the arenas */
    uint64_t tail;                  /* of the ring, by the reader */
    uint64_t dropped;               /* on the device, as last seen */
    uint64_t not_launched;          /* results of launches that failed */
    uint64_t slot_bytes;
    uint32_t samples_at, bins_at;
    unsigned char *ring;             /* pinned */
    struct cuda_shared_words *words; /* pinned */
    unsigned char *ring_device;
    struct cuda_shared_words *words_device;
    struct cuda_head *head; /* device, as what follows */
    struct cuda_area *area; /* of the streams, then of captured launches */
    struct trd__sum *part, *arena_part;
    cuda_u64 *bins, *arena_bins;
    cuda_u64 *unread; /* where captured launches count their runs */
};

#ifdef TRD_CUDA_EMULATED
/* What tests vary: warps of a block, and doublings of each chunk. */
extern "C" __attribute__((visibility("default"))) uint32_t
    trd_cuda_emulated_geometry[2];
uint32_t trd_cuda_emulated_geometry[2] = {CUDA_WARPS, 0};
#define MOST_WARPS trd_cuda_emulated_geometry[0]
#define DOUBLINGS trd_cuda_emulated_geometry[1]
#else
#define MOST_WARPS CUDA_WARPS
#define DOUBLINGS 0
#endif

const void *trd__cuda_general(void);
const void *trd__cuda_f32(void);
const void *trd__cuda_f16(void);
const void *trd__cuda_bf16(void);
const void *trd__cuda_byte(void);

const void *trd__cuda_kernel(int which)
{
    switch (which) {
    case CUDA_F32:
        return trd__cuda_f32();
    case CUDA_F16:
        return trd__cuda_f16();
    case CUDA_BF16:
        return trd__cuda_bf16();
    case CUDA_BYTE:
        return trd__cuda_byte();
    default:
        return trd__cuda_general();
    }
}

/* More would count beyond 32 bits in a warp. */
static const uint64_t MOST_ELEMENTS = UINT64_C(1) << 44;

static uint64_t rounded(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- open and close ---- */

static int devices(void)
{
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return n;
}

static void *device_memory(size_t bytes)
{
    void *p = NULL;

    if (cudaMalloc(&p, bytes) != cudaSuccess)
        return NULL;
    if (cudaMemset(p, 0, bytes) != cudaSuccess) {
        cudaFree(p);
        return NULL;
    }
    return p;
}

static void *pinned_memory(size_t bytes, void **on_device)
{
    void *p = NULL;

    if (cudaHostAlloc(&p, bytes,
                      cudaHostAllocMapped | cudaHostAllocPortable) !=
        cudaSuccess)
        return NULL;
    memset(p, 0, bytes);
    if (cudaHostGetDevicePointer(on_device, p, 0) != cudaSuccess) {
        cudaFreeHost(p);
        return NULL;
    }
    return p;
}

static void release(struct trd__cuda *c)
{
    cudaFree(c->head);
    cudaFree(c->area);
    cudaFree(c->part);
    cudaFree(c->arena_part);
    cudaFree(c->bins);
    cudaFree(c->arena_bins);
    cudaFree(c->unread);
    cudaFreeHost(c->ring);
    cudaFreeHost(c->words);
    cudaGetLastError();
}

static bool reserve(struct trd__cuda *c)
{
    size_t parts = sizeof *c->part * CUDA_CHUNKS * TRD__CUDA_STREAMS;
    size_t bins = sizeof *c->bins * TRD_MAX_BINS * TRD__CUDA_BATCH *
                  TRD__CUDA_STREAMS;
    void *ring = NULL, *words = NULL;

    c->ring = (unsigned char *)pinned_memory(c->slot_bytes * c->config.slots,
                                             &ring);
    c->words = (struct cuda_shared_words *)pinned_memory(sizeof *c->words,
                                                         &words);
    c->ring_device = (unsigned char *)ring;
    c->words_device = (struct cuda_shared_words *)words;
    c->head = (struct cuda_head *)device_memory(sizeof *c->head);
    c->area = (struct cuda_area *)device_memory(
        sizeof *c->area * (TRD__CUDA_STREAMS + TRD__CUDA_CAPTURED));
    c->part = (struct trd__sum *)device_memory(parts);
    c->arena_part = (struct trd__sum *)device_memory(ARENA_PARTS);
    c->unread = (cuda_u64 *)device_memory(sizeof *c->unread);
    if (c->config.histogram) {
        c->bins = (cuda_u64 *)device_memory(bins);
        c->arena_bins = (cuda_u64 *)device_memory(ARENA_BINS);
        if (!c->bins || !c->arena_bins)
            return false;
    }
    return c->ring && c->words && c->head && c->area && c->part &&
           c->arena_part && c->unread;
}

static uint32_t shared_bytes(const struct trd__cuda *c, bool gather)
{
    return trd__cuda_shared_bytes(c->config.histogram != TRD_HISTOGRAM_NONE) +
           (gather ? CUDA_STAGE : 0);
}

/* A first launch loads the code, and may wait for the device: so that is
 * now. */
static int load_kernels(const struct trd__cuda *c)
{
    struct cuda_launch nothing;
    void *args[1] = {&nothing};
    cudaStream_t stream;
    cudaError_t e;

    memset(&nothing, 0, sizeof nothing);
    e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (e != cudaSuccess)
        return TRD_ENOMEM;
    for (int i = 0; i < CUDA_CLASSES && e == cudaSuccess; i++) {
        const void *kernel = trd__cuda_kernel(i);
        e = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_SHARED);
        if (e == cudaSuccess)
            e = cudaLaunchKernel(kernel, dim3(1), dim3(CUDA_WARP), args,
                                 shared_bytes(c, false), stream);
    }
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return e == cudaSuccess ? 0 : TRD_EUNSUPPORTED;
}

static bool config_is_sound(const struct trd__cuda_config *c)
{
    return c && c->device >= 0 && c->slots && !(c->slots & (c->slots - 1)) &&
           c->sample_bytes <= MOST_SAMPLE_BYTES &&
           (uint32_t)c->sampling < TRD_SAMPLING_COUNT &&
           (uint32_t)c->histogram < TRD_HISTOGRAM_COUNT &&
           (c->sampling != TRD_EVERY || c->sampling_arg);
}

static int open_device(const struct trd__cuda_config *config,
                       struct trd__cuda **out)
{
    struct trd__cuda *c = (struct trd__cuda *)calloc(1, sizeof *c);
    int r;

    if (!c)
        return TRD_ENOMEM;
    c->config = *config;
    c->samples_at = (uint32_t)rounded(sizeof(struct cuda_slot), CUDA_ALIGN);
    c->bins_at =
        (uint32_t)rounded(c->samples_at + config->sample_bytes, CUDA_ALIGN);
    c->slot_bytes = rounded(
        c->bins_at + (config->histogram ? TRD_MAX_BINS * sizeof(uint64_t) : 0),
        128);
    r = reserve(c) ? load_kernels(c) : TRD_ENOMEM;
    if (r < 0) {
        release(c);
        free(c);
        return r;
    }
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return 0;
}

/* Calls that allocate are not allowed while another thread captures, unless
 * this thread says that it knows. */
static int open_half(const struct trd__cuda_config *config,
                     struct trd__cuda **out)
{
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int n = devices();
    int before, r;

    if (!config_is_sound(config) || !out)
        return TRD_EINVAL;
    if (!n)
        return TRD_EUNSUPPORTED;
    if (config->device >= n)
        return TRD_EINVAL;
    if (cudaGetDevice(&before) != cudaSuccess ||
        cudaSetDevice(config->device) != cudaSuccess) {
        cudaGetLastError();
        return TRD_EUNSUPPORTED;
    }
    cudaThreadExchangeStreamCaptureMode(&mode);
    r = open_device(config, out);
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaSetDevice(before);
    cudaGetLastError();
    return r;
}

static bool is_idle(const struct trd__cuda *c, uint32_t i)
{
    return __atomic_load_n(&c->words->done[i], __ATOMIC_ACQUIRE) ==
           c->stream[i].launched;
}

static bool all_idle(const struct trd__cuda *c)
{
    for (uint32_t i = 0; i < TRD__CUDA_STREAMS; i++)
        if (c->stream[i].used && !is_idle(c, i))
            return false;
    return true;
}

/* A graph may run again at any time: what its launches use stays. */
static void close_half(struct trd__cuda *c, int timeout_ms)
{
    const struct timespec moment = {0, 1000000};
    int before;

    if (!c)
        return;
    while (!all_idle(c) && timeout_ms-- > 0)
        nanosleep(&moment, NULL);
    if (!c->captured && all_idle(c) && cudaGetDevice(&before) == cudaSuccess &&
        cudaSetDevice(c->config.device) == cudaSuccess) {
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        cudaThreadExchangeStreamCaptureMode(&mode);
        release(c);
        cudaThreadExchangeStreamCaptureMode(&mode);
        cudaSetDevice(before);
    }
    cudaGetLastError();
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- launch ---- */

static bool is_contiguous(const struct trd__cuda_item *it, uint32_t size)
{
    return it->n <= 1 || (it->ndim == 1 && it->dim[0].stride == size);
}

static bool is_dense(const struct trd__cuda_item *it)
{
    return is_contiguous(it, bytes_of(it->dtype)) &&
           (uintptr_t)it->data % CUDA_ALIGN == 0;
}

static int item_class(const struct trd__cuda_item *it)
{
    return is_dense(it) ? class_of(it->dtype) : CUDA_GENERAL;
}

static int check_item(const struct trd__cuda *c,
                      const struct trd__cuda_item *it)
{
    uint32_t size = bytes_of(it->dtype);

    if (!size)
        return TRD_EUNSUPPORTED;
    if (it->ndim < 1 || it->ndim > TRD_CUDA_DIMS ||
        (it->k > c->config.sample_bytes / size && !is_packed(it->dtype)))
        return TRD_EINVAL;
    for (uint32_t d = 0; it->n && d < it->ndim; d++)
        if (!it->dim[d].extent)
            return TRD_EINVAL;
    if (it->n > MOST_ELEMENTS)
        return TRD_ELIMIT;
    return it->n && !it->data ? TRD_ENODATA : 0;
}

static void fill_item(const struct trd__cuda_item *from, int which,
                      struct cuda_item *to)
{
    uint32_t pass = pass_of(which);

    to->data = (const unsigned char *)from->data;
    to->n = from->n;
    to->tiles = from->n / TRD__TILE + (from->n % TRD__TILE != 0);
    to->tag = from->tag;
    to->k = from->k;
    to->dtype = (uint16_t)from->dtype;
    to->size = (uint16_t)bytes_of(from->dtype);
    to->narrow = from->n > TRD__WIDE_N && is_narrow(from->dtype);
    to->dense = is_dense(from);
    to->packed = is_packed(from->dtype);
    to->ndim = (uint8_t)from->ndim;
    for (uint32_t d = 0; d < from->ndim; d++) {
        to->dim[d].extent = from->dim[d].extent;
        to->dim[d].stride = from->dim[d].stride;
    }
    to->chunk_log2 = 0;
    while (1u << to->chunk_log2 < CUDA_WARPS * (to->narrow ? pass : 1))
        to->chunk_log2++;
    to->chunk_log2 += DOUBLINGS;
}

static uint64_t chunks_of(const struct cuda_item *it)
{
    uint64_t n = (it->tiles + (UINT64_C(1) << it->chunk_log2) - 1) >>
                 it->chunk_log2;
    return n ? n : 1;
}

/* Cuts the items into chunks; the same doubling for all keeps them alike. */
static uint32_t cut_into_chunks(struct cuda_launch *l)
{
    for (;;) {
        uint64_t total = 0;

        for (uint32_t i = 0; i < l->items; i++) {
            l->item[i].chunk0 = (uint32_t)total;
            l->item[i].chunks = (uint32_t)chunks_of(&l->item[i]);
            total += chunks_of(&l->item[i]);
        }
        if (total <= CUDA_CHUNKS)
            return (uint32_t)total;
        for (uint32_t i = 0; i < l->items; i++)
            l->item[i].chunk_log2++;
    }
}

/* Scratch for a stream that is not capturing: its own, an unused one, or that
 * of a stream that has no work. */
static int stream_area(struct trd__cuda *c, unsigned long long id)
{
    int found = -1;

    for (int i = 0; i < TRD__CUDA_STREAMS; i++) {
        if (c->stream[i].used && c->stream[i].id == id)
            return i;
        if (found < 0 && !c->stream[i].used)
            found = i;
    }
    for (int i = 0; found < 0 && i < TRD__CUDA_STREAMS; i++)
        if (is_idle(c, (uint32_t)i))
            found = i;
    if (found >= 0) {
        c->stream[found].used = true;
        c->stream[found].id = id;
    }
    return found;
}

/* Scratch of its own for a launch that goes into a graph. */
static bool captured_area(struct trd__cuda *c, struct cuda_launch *l,
                          uint32_t chunks)
{
    uint64_t parts = sizeof *l->part * chunks;
    uint64_t bins = sizeof *l->bins * TRD_MAX_BINS * l->items;

    if (c->captured == TRD__CUDA_CAPTURED ||
        parts > ARENA_PARTS - c->parts_used ||
        (c->bins && bins > ARENA_BINS - c->bins_used))
        return false;
    l->captured = 1;
    l->area = c->area + TRD__CUDA_STREAMS + c->captured++;
    l->part = c->arena_part + c->parts_used / sizeof *l->part;
    l->done = (volatile uint64_t *)c->unread;
    c->parts_used += parts;
    if (c->bins) {
        l->bins = c->arena_bins + c->bins_used / sizeof *l->bins;
        c->bins_used += bins;
    }
    return true;
}

/* The launches of one call, a class each. */
struct plan {
    uint32_t n;
    int area; /* of the stream, -1 in a capture */
    int which[CUDA_CLASSES];
    uint32_t chunks[CUDA_CLASSES], warps[CUDA_CLASSES];
    bool gather[CUDA_CLASSES];
    struct cuda_launch launch[CUDA_CLASSES];
};

static void plan_launches(const struct trd__cuda *c,
                          const struct trd__cuda_item *items, uint32_t n,
                          struct plan *p)
{
    for (int which = 0; which < CUDA_CLASSES; which++) {
        struct cuda_launch *l = &p->launch[p->n];
        uint32_t warps = MOST_WARPS;
        bool gather = false;

        memset(l, 0, sizeof *l);
        for (uint32_t i = 0; i < n; i++)
            if (item_class(&items[i]) == which)
                fill_item(&items[i], which, &l->item[l->items++]);
        if (!l->items)
            continue;
        for (uint32_t i = 0; i < l->items; i++) {
            gather = gather || !l->item[i].dense;
            while (!l->item[i].dense &&
                   warps * l->item[i].size * TRD__TILE > CUDA_STAGE)
                warps /= 2;
        }
        l->head = c->head;
        l->words = c->words_device;
        l->ring = c->ring_device;
        l->slots = c->config.slots;
        l->slot_bytes = c->slot_bytes;
        l->samples_at = c->samples_at;
        l->bins_at = c->bins_at;
        l->sampling = (uint32_t)c->config.sampling;
        l->sampling_arg = c->config.sampling_arg;
        l->histogram = (uint32_t)c->config.histogram;
        p->which[p->n] = which;
        p->chunks[p->n] = cut_into_chunks(l);
        p->warps[p->n] = warps;
        p->gather[p->n++] = gather;
    }
}

/* Scratch for all launches, or for none of them. */
static bool take_scratch(struct trd__cuda *c, bool capturing,
                         unsigned long long id, struct plan *p)
{
    uint32_t captured = c->captured;
    uint64_t parts = c->parts_used, bins = c->bins_used;

    p->area = capturing ? -1 : stream_area(c, id);
    if (!capturing && p->area < 0)
        return false;
    for (uint32_t i = 0; i < p->n; i++) {
        struct cuda_launch *l = &p->launch[i];

        if (!capturing) {
            l->area = c->area + p->area;
            l->part = c->part + (size_t)p->area * CUDA_CHUNKS;
            l->bins = c->bins ? c->bins + (size_t)p->area * TRD__CUDA_BATCH *
                                              TRD_MAX_BINS
                              : NULL;
            l->done = &c->words_device->done[p->area];
        } else if (!captured_area(c, l, p->chunks[i])) {
            c->captured = captured;
            c->parts_used = parts;
            c->bins_used = bins;
            return false;
        }
    }
    return true;
}

/* Where one fails after another has not, the call cannot be taken back: what
 * is missing counts as dropped. */
static int launch_planned(struct trd__cuda *c, cudaStream_t stream,
                          struct plan *p)
{
    uint32_t launched = 0, dropped = 0;

    for (uint32_t i = 0; i < p->n; i++) {
        void *args[1] = {&p->launch[i]};

        if (p->area >= 0)
            c->stream[p->area].launched++;
        if (cudaLaunchKernel(trd__cuda_kernel(p->which[i]),
                             dim3(p->chunks[i]), dim3(p->warps[i] * CUDA_WARP),
                             args, shared_bytes(c, p->gather[i]),
                             stream) == cudaSuccess) {
            launched++;
            continue;
        }
        cudaGetLastError();
        if (p->area >= 0)
            c->stream[p->area].launched--;
        dropped += p->launch[i].items;
    }
    if (launched)
        __atomic_add_fetch(&c->not_launched, dropped, __ATOMIC_RELAXED);
    return launched || !p->n ? 0 : TRD_EIO;
}

static int launch_items(struct trd__cuda *c, cudaStream_t stream,
                        const struct trd__cuda_item *items, uint32_t n,
                        int *captured)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    struct plan p;
    int r;

    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
        status == cudaStreamCaptureStatusInvalidated)
        return TRD_EIO;
    if (status == cudaStreamCaptureStatusNone &&
        cudaStreamGetId(stream, &id) != cudaSuccess)
        return TRD_EIO;
    *captured = status == cudaStreamCaptureStatusActive;
    p.n = 0;
    plan_launches(c, items, n, &p);
    pthread_mutex_lock(&c->lock);
    r = take_scratch(c, *captured, id, &p) ? launch_planned(c, stream, &p)
                                           : TRD_ELIMIT;
    pthread_mutex_unlock(&c->lock);
    return r;
}

static int launch_half(struct trd__cuda *c, void *stream,
                       const struct trd__cuda_item *items, uint32_t n,
                       int *captured)
{
    int ignored, before, r;

    static_assert(sizeof(struct cuda_launch) <= 4096,
                  "parameters of a kernel");
    if (!c || (n && !items) || n > TRD__CUDA_BATCH)
        return TRD_EINVAL;
    for (uint32_t i = 0; i < n; i++) {
        r = check_item(c, &items[i]);
        if (r < 0)
            return r;
    }
    if (cudaGetDevice(&before) != cudaSuccess ||
        (before != c->config.device &&
         cudaSetDevice(c->config.device) != cudaSuccess)) {
        cudaGetLastError();
        return TRD_EIO;
    }
    r = launch_items(c, (cudaStream_t)stream, items, n,
                     captured ? captured : &ignored);
    if (before != c->config.device)
        cudaSetDevice(before);
    cudaGetLastError();
    return r;
}

/* ---- what came back ---- */

static int poll_half(struct trd__cuda *c, struct trd__cuda_result *result,
                     void *samples, uint64_t *bins)
{
    const unsigned char *at =
        c->ring + (c->tail & (c->config.slots - 1)) * c->slot_bytes;
    const struct cuda_slot *slot = (const struct cuda_slot *)at;

    if (__atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE) != c->tail + 1)
        return 0;
    *result = slot->result;
    if (samples)
        memcpy(samples, at + c->samples_at,
               (size_t)result->sample_n *
                   bytes_of((uint32_t)result->job.dtype));
    if (bins && c->config.histogram)
        memcpy(bins, at + c->bins_at, TRD_MAX_BINS * sizeof *bins);
    __atomic_store_n(&c->words->tail, ++c->tail, __ATOMIC_RELEASE);
    return 1;
}

static void counters_half(struct trd__cuda *c, struct trd__cuda_counters *out)
{
    uint64_t seen = __atomic_load_n(&c->words->dropped, __ATOMIC_ACQUIRE);

    if (seen > c->dropped)
        c->dropped = seen;
    out->dropped = c->dropped +
                   __atomic_load_n(&c->not_launched, __ATOMIC_RELAXED);
}

extern "C" {
extern __attribute__((visibility("default")))
const struct trd__cuda_half trd_cuda_half_1;

const struct trd__cuda_half trd_cuda_half_1 = {
    sizeof trd_cuda_half_1, devices,   open_half,     launch_half,
    poll_half,              counters_half, close_half,
};
}
