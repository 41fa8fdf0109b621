/* Records of tensors on GPUs: the public calls, and what becomes of a result.
 * [any thread, sender]
 *
 * Everything that can be said without the GPU - names, moment, shape - is
 * checked and interned when the tensor is queued; the sender only adds the
 * figures. */
#include <string.h>
#include <time.h>

#include "client/client.h"
#include "client/sys.h"

static uint64_t since_start(const struct trd_client *c)
{
    return trd__sys.mono_ns() - c->sender.hello.mono_ns;
}

/* [sender] */
static void deliver(void *arg, const struct trd__origin *origin,
                    const struct trd_stats *stats, const void *samples)
{
    struct trd_client *c = arg;
    struct wire_record r = {.site = origin->site,
                            .shape = origin->shape,
                            .dtype = origin->dtype,
                            .t_ns = origin->t_ns,
                            .when = origin->when,
                            .stats = *stats};
    if (origin->captured)
        r.t_ns = since_start(c);
    trd__append(c, &r, samples);
}

int trd_cuda_open(struct trd_client *c, int device, uint32_t k)
{
    if (!trd__usable(c))
        return TRD_ECLOSED;
    const struct trd__cuda_config config = {
        .sampling = c->want.sampling,
        .sampling_arg = c->want.sampling_arg,
        .histogram = c->want.histogram};
    pthread_mutex_lock(&c->device_lock);
    int failed = atomic_load(&c->sender.devices)
                     ? 0
                     : trd__devices_init(&c->devices, deliver, c);
    if (!failed)
        atomic_store(&c->sender.devices, &c->devices);
    pthread_mutex_unlock(&c->device_lock);
    return failed ? failed
                  : trd__devices_open(&c->devices, device, k, &config);
}

/* What the kernel does not read, and what has no elements. */
static void put_aside(struct trd_client *c, const struct trd_item *i,
                      int failed)
{
    struct trd_when when = i->when;
    struct trd_stats stats;
    if (failed == TRD_EUNSUPPORTED || failed == TRD_ENODATA) {
        memset(&stats, 0, sizeof stats);
        when.labels |=
            failed == TRD_ENODATA ? TRD_L_NODATA : TRD_L_UNSUPPORTED;
        trd_submit(c, i->site, &when, &i->tensor, &stats, NULL);
    } else if (failed) {
        trd__lose(c, failed);
    } else {
        trd_submit_cpu(c, i->site, &when, &i->tensor, i->k);
    }
}

/* 0, or what keeps it from being queued. */
static int prepare(struct trd_client *c, const struct trd_item *i,
                   struct trd__cuda_item *item, struct trd__origin *origin)
{
    if (!trd_dtype_name((int)i->tensor.dtype) || i->k > TRD_MAX_SAMPLES)
        return TRD_EINVAL;
    int failed = trd__check_place(c, i->site, &i->when);
    if (!failed)
        failed = trd__cuda_item(&i->tensor, i->k, item);
    if (!failed)
        failed = trd__intern_shape(c, &i->tensor, &origin->shape);
    origin->site = i->site;
    origin->dtype = i->tensor.dtype;
    origin->when = i->when;
    origin->t_ns = since_start(c);
    return failed;
}

static int submit_few(struct trd_client *c, const struct trd_item *items,
                      uint32_t n, int device, void *stream)
{
    struct trd__cuda_item item[TRD__CUDA_BATCH];
    struct trd__origin origin[TRD__CUDA_BATCH];
    struct trd__devices *d = atomic_load(&c->sender.devices);
    uint32_t ready = 0, lost = 0;
    int failed = 0;
    for (uint32_t i = 0; i < n; i++) {
        int r = prepare(c, &items[i], &item[ready], &origin[ready]);
        if (r || !item[ready].n)
            put_aside(c, &items[i], r);
        else
            ready++;
    }
    if (ready && d) {
        failed = trd__devices_launch(d, device, stream, item, origin, ready,
                                     &lost);
    } else if (ready) {
        failed = TRD_EUNSUPPORTED;
        lost = ready;
    }
    if (lost)
        trd__lost(&c->shared, TRD_LOST_DEVICE, lost);
    return failed;
}

int trd_submit_cuda(struct trd_client *c, const struct trd_item *items,
                    uint32_t n, int device, void *stream)
{
    int failed = 0;
    if (!trd__usable(c))
        return TRD_ECLOSED;
    if (n && !items)
        return trd__lose(c, TRD_EINVAL);
    for (uint32_t i = 0; i < n; i += TRD__CUDA_BATCH) {
        uint32_t few = n - i < TRD__CUDA_BATCH ? n - i : TRD__CUDA_BATCH;
        int r = submit_few(c, items + i, few, device, stream);
        failed = failed ? failed : r;
    }
    return failed;
}

int trd__gpus_wait(struct trd_client *c, uint64_t end_ns)
{
    struct trd__devices *d = atomic_load(&c->sender.devices);
    const struct timespec ms = {0, 1000000};
    while (d && trd__devices_pending(d)) {
        if (trd__sys.mono_ns() >= end_ns)
            return TRD_ETIMEDOUT;
        trd__sender_wake(&c->sender);
        nanosleep(&ms, NULL);
    }
    return 0;
}

uint64_t trd__gpus_close(struct trd_client *c)
{
    struct trd__devices *d = atomic_load(&c->sender.devices);
    if (!d)
        return 0;
    uint64_t left = trd__devices_pending(d);
    if (left) {
        trd__lost(&c->shared, TRD_LOST_DEVICE, left);
        trd__lost_flush(&c->shared, &c->journal, since_start(c));
    }
    trd__devices_fini(d);
    return left;
}
