/* A tensor's elements in row-major order, whatever its strides. */
#ifndef CLIENT_STATS_WALK_H
#define CLIENT_STATS_WALK_H

#include "tracerd/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One dimension of what is left after merging. */
struct walk_dim {
    uint64_t extent; /* 1 only in a walk of one element or none */
    uint64_t stride; /* bytes, modulo 2^64 */
    uint64_t index;  /* of the next element */
};

struct trd__walk {
    const unsigned char *data;
    size_t size; /* bytes of an element */
    uint64_t n;  /* elements */
    int ndim;
    struct walk_dim dim[TRD_MAX_DIMS]; /* innermost first */
};

/* Checks the tensor and lays the walk on its first element. Elements are
 * `size` bytes. TRD_EINVAL, TRD_ELIMIT, TRD_ENODATA as trd_stats_cpu(). */
int trd__walk_init(struct trd__walk *walk, const struct trd_tensor *tensor,
                   size_t size);

/* The elements lie one behind the other, from walk->data on. */
bool trd__walk_is_contiguous(const struct trd__walk *walk);

/* Lays the walk on an element, index < n. */
void trd__walk_seek(struct trd__walk *walk, uint64_t index);

/* Copies the next count elements and steps behind them. The caller keeps
 * within n. */
void trd__walk_read(struct trd__walk *walk, void *out, uint64_t count);

#endif
