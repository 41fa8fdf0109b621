/* What the client and its CUDA half agree on. The half is a shared library of
 * its own, tracerd_cuda, opened by name at run time where there is a GPU; it
 * knows kernels and streams, and nothing of records.
 *
 * A launch computes tallies and sums of several tensors and writes one result
 * for each into a ring in pinned memory. The place is taken on the device, so
 * a replayed graph takes new ones. The host reads the ring and finishes the
 * figures with trd__finish(): so they have the bits of the reference.
 *
 * No function waits for the device, and none but open and close allocates. */
#ifndef CLIENT_STATS_CUDA_H
#define CLIENT_STATS_CUDA_H

#include "client/stats/kernel.h"

#define TRD__CUDA_LIBRARY "libtracerd_cuda.so.0"
#define TRD__CUDA_SYMBOL "trd_cuda_half_1"

enum {
    TRD__CUDA_BATCH = 16,    /* tensors of one launch */
    TRD__CUDA_STREAMS = 32,  /* streams that may have work at once */
    TRD__CUDA_CAPTURED = 256 /* launches that graphs may hold */
};

struct trd__cuda; /* one device */

/* Made once, when tracing starts. */
struct trd__cuda_config {
    int device;
    uint32_t slots;        /* of the ring, a power of two */
    uint32_t sample_bytes; /* room for the samples of one result */
    enum trd_sampling sampling; /* of all tensors */
    uint64_t sampling_arg;
    enum trd_histogram_kind histogram;
};

/* One tensor. */
struct trd__cuda_item {
    const void *data; /* device memory, element (0, ..., 0) */
    uint64_t n;
    uint64_t tag;     /* comes back with the result */
    uint32_t dtype;   /* any with a kernel in trd__kernel_c */
    uint32_t k;       /* samples; k elements fit sample_bytes */
    uint32_t ndim;    /* as merged by struct trd__walk; 1 to TRD_CUDA_DIMS */
    struct {
        uint64_t extent;
        uint64_t stride; /* bytes, modulo 2^64 */
    } dim[TRD_CUDA_DIMS]; /* innermost first */
};

/* What comes back. */
struct trd__cuda_result {
    uint64_t tag;
    uint64_t replay;       /* 0 at first; then how often its graph had run */
    struct trd__job job;
    uint64_t n;
    struct trd__tally tally;
    struct trd__sum sum;   /* of the whole tree */
    uint32_t sample_n;
};

struct trd__cuda_counters {
    uint64_t dropped; /* results that found no slot, or whose launch failed
                         where another one of the call had not */
};

/* The half's one symbol is a `const struct trd__cuda_half`. */
struct trd__cuda_half {
    size_t size; /* of this structure, as the half was built */

    /* 1 or more where the driver is there, otherwise 0. */
    int (*devices)(void);

    /* Pinned ring, device memory, kernels loaded: all that may wait or
     * allocate. TRD_EUNSUPPORTED, TRD_ENOMEM, TRD_EINVAL. */
    int (*open)(const struct trd__cuda_config *config,
                struct trd__cuda **out);

    /* Queues n <= TRD__CUDA_BATCH items on the stream: one launch a dtype
     * and width. The current device of the calling thread is as before
     * afterwards. Any thread. *captured: the launch went into a graph.
     * TRD_ELIMIT (streams, captured launches; nothing was queued), TRD_EIO (a
     * launch failed, others of this call may have been queued; the error is
     * taken off, so that the framework does not see it). */
    int (*launch)(struct trd__cuda *cuda, void *stream,
                  const struct trd__cuda_item *items, uint32_t n,
                  int *captured);

    /* The oldest result that is ready: 1, or 0 where there is none. samples
     * holds sample_bytes; bins (TRD_MAX_BINS) may be NULL where the ring has
     * no histogram. One thread at a time. */
    int (*poll)(struct trd__cuda *cuda, struct trd__cuda_result *result,
                void *samples, uint64_t *bins);

    void (*counters)(struct trd__cuda *cuda, struct trd__cuda_counters *out);

    /* Waits up to timeout_ms for kernels that still run, then frees; leaves
     * the memory alone where they do not end. NULL is fine. */
    void (*close)(struct trd__cuda *cuda, int timeout_ms);
};

/* ---- cuda.c ---- */

/* The half, opened at the first call; NULL where there is none or no GPU.
 * Any thread; may block for the loader. */
const struct trd__cuda_half *trd__cuda_half(void);

/* Describes a tensor to it, but for the tag: TRD_EINVAL, TRD_ELIMIT,
 * TRD_ENODATA as trd_stats_cpu(), TRD_EUNSUPPORTED where no kernel reads such
 * a one. */
int trd__cuda_item(const struct trd_tensor *tensor, uint32_t k,
                   struct trd__cuda_item *out);

/* The figures of a result, in any floating-point modes. *histogram is filled
 * where the ring has one. */
void trd__cuda_finish(const struct trd__cuda_result *result,
                      const struct trd__cuda_config *config,
                      const uint64_t *bins, struct trd_stats *out,
                      struct trd_histogram *histogram);

#endif
