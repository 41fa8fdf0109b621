/* The GPUs of a client: what was queued there, and the way back into the
 * journal. A launch remembers what its results belong to in a table; the
 * sender takes results from the rings and hands them over. */
#ifndef CLIENT_DEVICE_H
#define CLIENT_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "client/stats/cuda.h"
#include "tracerd/client.h"

enum {
    DEVICES_MAX = 32,
    DEVICES_PENDING = 1 << 16,      /* tensors queued at once, all devices */
    DEVICES_RING_BYTES = 8 << 20    /* pinned, of one device, about */
};

/* What a result belongs to. */
struct trd__origin {
    uint32_t site, shape;
    uint32_t dtype;
    uint64_t t_ns;
    struct trd_when when;
    int captured; /* stays: each replay of its graph brings results */
};

/* Takes one finished result. [sender] */
typedef void trd__deliver(void *arg, const struct trd__origin *origin,
                          const struct trd_stats *stats, const void *samples);

struct trd__devices {
    const struct trd__cuda_half *half;
    pthread_mutex_t lock; /* opens one at a time */
    struct device {
        struct trd__cuda *_Atomic cuda;
        struct trd__cuda_config config;
        uint32_t k;       /* samples that fit */
        uint64_t dropped; /* [sender] as last seen */
    } device[DEVICES_MAX];
    struct slot {
        struct trd__origin origin;
        _Atomic uint32_t next; /* free slot behind it, plus 1 */
    } *slot;                   /* DEVICES_PENDING, lazily touched */
    _Atomic uint64_t free;     /* first free slot plus 1; upper half counts */
    _Atomic uint64_t queued, done; /* tensors, but for captured ones */
    _Atomic int captured;          /* graphs may bring results at any time */
    uint8_t *samples;              /* [sender] of one result */
    uint64_t *bins;
    struct trd_histogram *histogram;
    trd__deliver *deliver;
    void *arg;
};

/* 0, TRD_EUNSUPPORTED (no CUDA half), TRD_ENOMEM. [open of a device] */
int trd__devices_init(struct trd__devices *d, trd__deliver *deliver,
                      void *arg);

/* See trd_cuda_open(). config holds sampling and histogram. [any thread] */
int trd__devices_open(struct trd__devices *d, int device, uint32_t k,
                      const struct trd__cuda_config *config);

/* Queues items on the stream; origins beside them. *lost: how many of them
 * will bring nothing. TRD_EUNSUPPORTED, TRD_ELIMIT, TRD_EIO. [any thread] */
int trd__devices_launch(struct trd__devices *d, int device, void *stream,
                        struct trd__cuda_item *items,
                        const struct trd__origin *origins, uint32_t n,
                        uint32_t *lost);

/* Delivers what is ready; how many were dropped for want of a slot since the
 * last call. [sender] */
uint64_t trd__devices_poll(struct trd__devices *d);

/* Tensors whose results are still to come. [any thread] */
uint64_t trd__devices_pending(struct trd__devices *d);

/* [close; the sender has ended] */
void trd__devices_fini(struct trd__devices *d);

#endif
