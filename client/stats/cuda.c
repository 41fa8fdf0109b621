/* The CUDA half from the outside: finds and opens the library, and the
 * statistics of a single tensor. [any thread]
 *
 * Invariants: nothing is opened before somebody asks for a GPU; the library
 * stays open, since kernels may still run when we leave. */
#include "client/stats/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/stats/walk.h"
#include "tracerd/stats.h"

enum {
    TIMEOUT_MS = 600000,
    CLOSE_MS = 1000,
    NAP_NS = 50000
};

/* ---- the library ---- */

static const struct trd__cuda_half *half;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Beside the file that this code is in. */
static void *open_beside(void)
{
    static const char here;
    char path[4096];
    Dl_info info;
    const char *slash;
    int n;

    if (!dladdr(&here, &info) || !info.dli_fname)
        return NULL;
    slash = strrchr(info.dli_fname, '/');
    if (!slash)
        return NULL;
    n = snprintf(path, sizeof path, "%.*s/" TRD__CUDA_LIBRARY,
                 (int)(slash - info.dli_fname), info.dli_fname);
    if (n < 0 || (size_t)n >= sizeof path)
        return NULL;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void find_half(void)
{
    const char *asked = secure_getenv("TRACERD_CUDA_LIB");
    const struct trd__cuda_half *found;
    void *library;

    if (asked && *asked)
        library = dlopen(asked, RTLD_NOW | RTLD_LOCAL);
    else
        library = open_beside();
    if (!library && !(asked && *asked))
        library = dlopen(TRD__CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    found = dlsym(library, TRD__CUDA_SYMBOL);
    if (found && found->size >= sizeof *found && found->devices() > 0)
        half = found;
}

const struct trd__cuda_half *trd__cuda_half(void)
{
    pthread_once(&once, find_half);
    return half;
}

/* ---- one tensor of a launch ---- */

int trd__cuda_item(const struct trd_tensor *tensor, uint32_t k,
                   struct trd__cuda_item *out)
{
    int dtype = (int)tensor->dtype;
    struct trd__walk walk;
    int r;

    if (dtype < 0 || dtype >= TRD_DTYPE_LIMIT || !trd__kernel_c.tiles[dtype])
        return TRD_EUNSUPPORTED;
    r = trd__walk_init(&walk, tensor, trd_dtype_bytes(dtype));
    if (r < 0)
        return r;
    if (walk.ndim > TRD_CUDA_DIMS)
        return TRD_EUNSUPPORTED;
    memset(out, 0, sizeof *out);
    out->data = walk.data;
    out->n = walk.n;
    out->dtype = (uint32_t)dtype;
    out->k = trd_dtype_kind(dtype) == TRD_KIND_PACKED ? 0 : k;
    out->ndim = (uint32_t)walk.ndim;
    for (int i = 0; i < walk.ndim; i++) {
        out->dim[i].extent = walk.dim[i].extent;
        out->dim[i].stride = walk.dim[i].stride;
    }
    return 0;
}

void trd__cuda_finish(const struct trd__cuda_result *result,
                      const struct trd__cuda_config *config,
                      const uint64_t *bins, struct trd_stats *out,
                      struct trd_histogram *histogram)
{
    const struct trd__job *job = &result->job;
    trd__modes caller;

    trd__modes_enter(&caller);
    trd__finish(job, result->n, &result->tally, &result->sum, out);
    trd__modes_leave(&caller);
    out->sample_n = result->sample_n;
    out->sampling = config->sampling;
    out->sampling_arg =
        config->sampling == TRD_EQUIDISTANT ? 0 : config->sampling_arg;
    if (config->histogram && trd_dtype_bins(job->dtype)) {
        trd__bins_finish(job->dtype, config->histogram, bins, histogram);
        out->histogram = histogram;
    }
}

/* ---- a single tensor, waited for ---- */

static int wait_for(struct trd__cuda *cuda, struct trd__cuda_result *result,
                    void *samples, uint64_t *bins)
{
    const struct timespec nap = {0, NAP_NS};
    struct timespec start, now;

    clock_gettime(CLOCK_MONOTONIC, &start);
    while (!half->poll(cuda, result, samples, bins)) {
        nanosleep(&nap, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start.tv_sec) * 1000 > TIMEOUT_MS)
            return TRD_ETIMEDOUT;
    }
    return 0;
}

/* What cannot be on any device, or has nothing there to be read: the checks
 * and the figures are those of the CPU. */
static bool is_for_cpu(const struct trd_tensor *tensor,
                       const struct trd_want *want, struct trd_stats *out)
{
    if (!tensor || !want || !out || want->samples > TRD_MAX_SAMPLES ||
        tensor->ndim < 0 || tensor->ndim > TRD_MAX_DIMS ||
        (tensor->ndim && !tensor->shape) || !tensor->data)
        return true;
    for (int i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] <= 0)
            return true;
    return false;
}

int trd_stats_cuda(const struct trd_tensor *tensor,
                   const struct trd_want *want, int device, void *stream,
                   struct trd_stats *out, void *samples,
                   struct trd_histogram *histogram)
{
    struct trd__cuda_config config = {.device = device, .slots = 1};
    struct trd__cuda_result result;
    struct trd__cuda_item item;
    struct trd__cuda *cuda = NULL;
    uint64_t *bins = NULL;
    int captured, r;

    if (is_for_cpu(tensor, want, out))
        return trd_stats_cpu_as(tensor, want, out, samples, histogram);
    r = trd__cuda_item(tensor, want->samples, &item);
    if (r < 0)
        return r;
    if (!trd_sampling_name((int)want->sampling) ||
        !trd_histogram_name((int)want->histogram) ||
        (want->sampling == TRD_EVERY && !want->sampling_arg) ||
        (item.k && !samples) || (want->histogram && !histogram))
        return TRD_EINVAL;
    if (!trd__cuda_half())
        return TRD_EUNSUPPORTED;
    config.sample_bytes = item.k * trd_dtype_bytes((int)item.dtype);
    config.sampling = want->sampling;
    config.sampling_arg = want->sampling_arg;
    config.histogram = want->histogram;
    bins = calloc(TRD_MAX_BINS, sizeof *bins);
    if (!bins)
        return TRD_ENOMEM;
    r = half->open(&config, &cuda);
    if (!r)
        r = half->launch(cuda, stream, &item, 1, &captured);
    if (!r)
        r = captured ? TRD_EINVAL : wait_for(cuda, &result, samples, bins);
    if (!r)
        trd__cuda_finish(&result, &config, bins, out, histogram);
    half->close(cuda, CLOSE_MS);
    free(bins);
    return r;
}
