/* See fake_half.h. Dense float32 tensors only. */
#include "tests/lib/fake_half.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "client/stats/cuda.h"

#define SHOWN __attribute__((visibility("default")))

enum { RESULTS = 1 << 14 };

struct fake_result {
    struct trd__cuda_result result;
    float samples[64];
};

struct trd__cuda {
    struct trd__cuda_config config;
    pthread_mutex_t lock;
    struct fake_result ready[RESULTS];
    unsigned first, n;
    struct trd__cuda_item graph[TRD__CUDA_BATCH]; /* the last captured launch */
    uint32_t graph_n;
    uint64_t replayed, dropped;
};

extern SHOWN struct fake_half fake_half;
SHOWN struct fake_half fake_half;

static int devices(void)
{
    return FAKE_DEVICES;
}

static int open_device(const struct trd__cuda_config *config,
                       struct trd__cuda **out)
{
    int failed = atomic_exchange(&fake_half.fail_open, 0);
    struct trd__cuda *c;
    if (failed)
        return failed;
    if (config->device >= FAKE_DEVICES)
        return TRD_EUNSUPPORTED;
    c = calloc(1, sizeof *c);
    if (!c)
        return TRD_ENOMEM;
    c->config = *config;
    pthread_mutex_init(&c->lock, NULL);
    atomic_fetch_add(&fake_half.opened, 1);
    *out = c;
    return 0;
}

static void run(struct trd__cuda *c, const struct trd__cuda_item *item,
                uint64_t replay)
{
    struct fake_result *out = &c->ready[(c->first + c->n) % RESULTS];
    struct trd__cuda_result *r = &out->result;
    const float *x = item->data;
    struct trd__tree tree = {.n = 0};
    struct trd_want want = {.samples = item->k};
    if (c->n == RESULTS || fake_half.drop) {
        fake_half.drop -= fake_half.drop > 0;
        c->dropped++;
        return;
    }
    memset(r, 0, sizeof *r);
    r->tag = item->tag;
    r->replay = replay;
    r->n = item->n;
    r->job.dtype = (int)item->dtype;
    r->job.narrow = item->n > TRD__WIDE_N;
    r->job.pilot.f = (double)x[0];
    trd__tally_init(&r->tally, r->job.dtype);
    for (uint64_t at = 0; at < item->n; at += TRD__TILE) {
        uint64_t left = item->n - at;
        struct trd__sum sum;
        trd__kernel_c.tiles[TRD_F32](
            &r->job, x + at, at / TRD__TILE,
            left < TRD__TILE ? (uint32_t)left : TRD__TILE, &r->tally, &sum);
        trd__tree_add(&tree, &sum);
    }
    r->sum = trd__tree_total(&tree);
    r->sample_n = trd_sample_count(item->n, &want);
    for (uint32_t i = 0; i < r->sample_n; i++)
        out->samples[i] = x[trd_sample_index(item->n, &want, i)];
    c->n++;
}

static int launch(struct trd__cuda *c, void *stream,
                  const struct trd__cuda_item *items, uint32_t n,
                  int *captured)
{
    fake_half.stream = stream;
    if (fake_half.fail_launch)
        return fake_half.fail_launch;
    pthread_mutex_lock(&c->lock);
    *captured = fake_half.capturing;
    for (uint32_t i = 0; i < n; i++) {
        if (*captured)
            c->graph[i] = items[i];
        else
            run(c, &items[i], 0);
    }
    if (*captured)
        c->graph_n = n;
    pthread_mutex_unlock(&c->lock);
    atomic_fetch_add(&fake_half.launches, 1);
    return 0;
}

static int poll_results(struct trd__cuda *c, struct trd__cuda_result *result,
                        void *samples, uint64_t *bins)
{
    int got = 0;
    (void)bins;
    if (fake_half.hold)
        return 0;
    pthread_mutex_lock(&c->lock);
    for (; c->graph_n && fake_half.replays > 0; fake_half.replays--) {
        for (uint32_t i = 0; i < c->graph_n; i++)
            run(c, &c->graph[i], c->replayed);
        c->replayed++;
    }
    if (c->n) {
        struct fake_result *from = &c->ready[c->first];
        *result = from->result;
        memcpy(samples, from->samples,
               from->result.sample_n * sizeof *from->samples);
        c->first = (c->first + 1) % RESULTS;
        c->n--;
        got = 1;
    }
    pthread_mutex_unlock(&c->lock);
    return got;
}

static void counters(struct trd__cuda *c, struct trd__cuda_counters *out)
{
    pthread_mutex_lock(&c->lock);
    out->dropped = c->dropped;
    pthread_mutex_unlock(&c->lock);
}

static void close_device(struct trd__cuda *c, int timeout_ms)
{
    (void)timeout_ms;
    if (!c)
        return;
    atomic_fetch_add(&fake_half.closed, 1);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

extern SHOWN const struct trd__cuda_half trd_cuda_half_1;
SHOWN const struct trd__cuda_half trd_cuda_half_1 = {
    sizeof trd_cuda_half_1, devices,  open_device, launch,
    poll_results,           counters, close_device};
