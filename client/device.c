/* Queues tensors on GPUs and brings their results back. [any thread, sender]
 *
 * Invariants: no lock, no wait and no allocation but in opening; a slot is
 * owned by the one who took it from the free list until the sender puts it
 * back; so many tensors are queued at most that the ring of a device cannot
 * overflow but by replayed graphs. */
#include "client/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/sys.h"

enum { SLOTS_MAX = 8192, SLOTS_MIN = 256, CLOSE_MS = 100 };

/* ---- the free list ---- */

static struct slot *take_slot(struct trd__devices *d)
{
    uint64_t head = atomic_load(&d->free);
    for (;;) {
        uint32_t first = (uint32_t)head;
        if (!first)
            return NULL;
        struct slot *s = &d->slot[first - 1];
        /* the count keeps a slot that came back meanwhile apart */
        uint64_t next = ((head >> 32) + 1) << 32 | atomic_load(&s->next);
        if (atomic_compare_exchange_weak(&d->free, &head, next))
            return s;
    }
}

static void put_slot(struct trd__devices *d, struct slot *s)
{
    uint32_t number = (uint32_t)(s - d->slot) + 1;
    uint64_t head = atomic_load(&d->free);
    uint64_t next;
    do {
        atomic_store(&s->next, (uint32_t)head);
        next = ((head >> 32) + 1) << 32 | number;
    } while (!atomic_compare_exchange_weak(&d->free, &head, next));
}

/* ---- opening ---- */

int trd__devices_init(struct trd__devices *d, trd__deliver *deliver,
                      void *arg)
{
    size_t bytes = DEVICES_PENDING * sizeof *d->slot;
    memset(d, 0, sizeof *d);
    d->half = trd__cuda_half();
    if (!d->half)
        return TRD_EUNSUPPORTED;
    d->deliver = deliver;
    d->arg = arg;
    d->slot = trd__sys.map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (d->slot == MAP_FAILED)
        d->slot = NULL;
    d->samples = malloc(TRD_MAX_SAMPLES * TRD__MAX_ELEMENT);
    d->bins = malloc(TRD_MAX_BINS * sizeof *d->bins);
    d->histogram = malloc(sizeof *d->histogram);
    pthread_mutex_init(&d->lock, NULL);
    if (!d->slot || !d->samples || !d->bins || !d->histogram) {
        trd__devices_fini(d);
        return TRD_ENOMEM;
    }
    for (uint32_t i = DEVICES_PENDING; i > 0; i--)
        put_slot(d, &d->slot[i - 1]);
    return 0;
}

/* As many slots as fit into the memory, within bounds. */
static uint32_t slots_for(const struct trd__cuda_config *config)
{
    size_t bytes = sizeof(struct trd__cuda_result) + config->sample_bytes +
                   (config->histogram ? TRD_MAX_BINS * sizeof(uint64_t) : 0);
    uint32_t slots = SLOTS_MAX;
    while (slots > SLOTS_MIN && slots * bytes > DEVICES_RING_BYTES)
        slots /= 2;
    return slots;
}

int trd__devices_open(struct trd__devices *d, int device, uint32_t k,
                      const struct trd__cuda_config *config)
{
    if (device < 0 || device >= DEVICES_MAX || k > TRD_MAX_SAMPLES)
        return TRD_EINVAL;
    struct device *at = &d->device[device];
    struct trd__cuda *cuda = NULL;
    int failed = 0;
    pthread_mutex_lock(&d->lock);
    if (!atomic_load(&at->cuda)) {
        at->k = k;
        at->config = *config;
        at->config.device = device;
        at->config.sample_bytes = k * TRD__MAX_ELEMENT;
        at->config.slots = slots_for(&at->config);
        failed = d->half->open(&at->config, &cuda);
        if (!failed)
            atomic_store(&at->cuda, cuda);
    } else if (k > at->k) {
        failed = TRD_EINVAL;
    }
    pthread_mutex_unlock(&d->lock);
    return failed;
}

void trd__devices_fini(struct trd__devices *d)
{
    for (int i = 0; i < DEVICES_MAX; i++)
        if (atomic_load(&d->device[i].cuda))
            d->half->close(atomic_load(&d->device[i].cuda), CLOSE_MS);
    if (d->slot)
        trd__sys.unmap(d->slot, DEVICES_PENDING * sizeof *d->slot);
    free(d->samples);
    free(d->bins);
    free(d->histogram);
    pthread_mutex_destroy(&d->lock);
}

/* ---- queueing ---- */

/* One launch of at most TRD__CUDA_BATCH tensors. */
static int launch(struct trd__devices *d, struct trd__cuda *cuda,
                  void *stream, struct trd__cuda_item *items,
                  const struct trd__origin *origins, uint32_t n)
{
    struct slot *taken[TRD__CUDA_BATCH];
    uint32_t count = 0;
    int captured = 0, failed = 0;
    for (; count < n; count++) {
        taken[count] = take_slot(d);
        if (!taken[count])
            break;
        taken[count]->origin = origins[count];
        taken[count]->origin.captured = 0;
        items[count].tag = (uint64_t)(taken[count] - d->slot);
    }
    /* before the launch: a result may be there before it returns */
    atomic_fetch_add(&d->queued, count);
    failed = count < n ? TRD_ELIMIT
                       : d->half->launch(cuda, stream, items, n, &captured);
    if (failed || captured)
        atomic_fetch_add(&d->done, count);
    /* of a launch that failed halfway results may still come: those slots
     * are given up */
    for (uint32_t i = 0; i < count && failed == TRD_ELIMIT; i++)
        put_slot(d, taken[i]);
    /* nothing captured has run yet; other slots may be somebody else's now */
    for (uint32_t i = 0; i < count && captured; i++)
        taken[i]->origin.captured = 1;
    if (captured)
        atomic_store(&d->captured, 1);
    return failed;
}

int trd__devices_launch(struct trd__devices *d, int device, void *stream,
                        struct trd__cuda_item *items,
                        const struct trd__origin *origins, uint32_t n,
                        uint32_t *lost)
{
    struct device *at =
        device >= 0 && device < DEVICES_MAX ? &d->device[device] : NULL;
    struct trd__cuda *cuda = at ? atomic_load(&at->cuda) : NULL;
    int failed = 0;
    *lost = n;
    if (!cuda)
        return TRD_EUNSUPPORTED;
    for (uint32_t i = 0; i < n; i++)
        if (items[i].k > at->k)
            return TRD_EINVAL;
    if (trd__devices_pending(d) + n > at->config.slots / 2)
        return TRD_EFULL;
    *lost = 0;
    for (uint32_t i = 0; i < n; i += TRD__CUDA_BATCH) {
        uint32_t few = n - i < TRD__CUDA_BATCH ? n - i : TRD__CUDA_BATCH;
        int r = launch(d, cuda, stream, items + i, origins + i, few);
        if (r)
            *lost += few;
        failed = failed ? failed : r;
    }
    return failed;
}

/* ---- results ---- */

static void deliver(struct trd__devices *d, const struct device *at,
                    const struct trd__cuda_result *result)
{
    struct trd_stats stats;
    if (result->tag >= DEVICES_PENDING)
        return;
    struct slot *s = &d->slot[result->tag];
    struct trd__origin origin = s->origin;
    trd__cuda_finish(result, &at->config, d->bins, &stats, d->histogram);
    if (origin.captured) {
        origin.when.step += result->replay;
        origin.when.iteration += result->replay;
        origin.when.labels |= TRD_L_GRAPH;
        origin.t_ns = 0;
    } else {
        put_slot(d, s);
    }
    d->deliver(d->arg, &origin, &stats, d->samples);
    if (!origin.captured)
        atomic_fetch_add(&d->done, 1);
}

uint64_t trd__devices_poll(struct trd__devices *d)
{
    uint64_t dropped = 0;
    for (int i = 0; i < DEVICES_MAX; i++) {
        struct device *at = &d->device[i];
        struct trd__cuda *cuda = atomic_load(&at->cuda);
        struct trd__cuda_result result;
        struct trd__cuda_counters counters;
        if (!cuda)
            continue;
        while (d->half->poll(cuda, &result, d->samples, d->bins))
            deliver(d, at, &result);
        d->half->counters(cuda, &counters);
        dropped += counters.dropped - at->dropped;
        at->dropped = counters.dropped;
    }
    /* whose they were is not known; nobody shall wait for them */
    atomic_fetch_add(&d->done, dropped);
    return dropped;
}

uint64_t trd__devices_pending(struct trd__devices *d)
{
    uint64_t done = atomic_load(&d->done);
    uint64_t queued = atomic_load(&d->queued);
    return queued > done ? queued - done : 0;
}
