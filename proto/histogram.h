/* An exponent histogram as the store keeps it: few bytes, and of a form that
 * plain SQL can read, see schema.sql. Pure. */
#ifndef PROTO_HISTOGRAM_H
#define PROTO_HISTOGRAM_H

#include "proto/record.h"

enum {
    HISTOGRAM_HEAD_BYTES = 5, /* u8 kind, u8 dtype, u8 bytes of a count, u16
                                 first bin */
    HISTOGRAM_MAX_BYTES = HISTOGRAM_HEAD_BYTES + 8 * TRD_MAX_BINS
};

struct histogram {
    int kind; /* enum trd_histogram_kind, 0: there is none */
    uint32_t first, n;
    unsigned width; /* bytes of a count */
    const uint8_t *counts;
};

/* Writes what record_get() gave; the result is the length. */
size_t histogram_put(const struct wire_histogram *h, uint32_t dtype,
                     uint8_t out[HISTOGRAM_MAX_BYTES]);

/* TRD_ECORRUPT when it is none, or none of this dtype. Points into the
 * caller's bytes. */
int histogram_get(struct slice stored, int dtype, struct histogram *out);

/* Count i < n, of bin first + i. */
uint64_t histogram_count(const struct histogram *h, uint32_t i);

#endif
