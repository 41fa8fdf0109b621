/* What tests of the emulated CUDA half share: the library opened, tensors of
 * all kinds, and one launch compared with the reference bit for bit. */
#ifndef TESTS_KERNEL_EMU_RIG_H
#define TESTS_KERNEL_EMU_RIG_H

#include "client/stats/cuda.h"
#include "client/stats/walk.h"
#include "emu/control.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* The functions of emu/control.h, from the library. */
struct emu {
    const struct trd__cuda_half *half;
    uint32_t *geometry;
    void (*order)(unsigned resident, unsigned how, uint64_t seed);
    void *(*stream_new)(void);
    void (*stream_free)(void *stream);
    void (*stream_hold)(void *stream, int held);
    void (*capture_begin)(void *stream);
    void *(*capture_end)(void *stream);
    void (*graph_run)(void *graph);
    void (*graph_free)(void *graph);
    void (*fail_launches)(unsigned n);
    void (*fail_memory)(unsigned after);
    size_t (*allocations)(void);
    size_t (*launches)(void);
    int (*device)(void);
    void (*device_set)(int device);
};
extern struct emu emu;

/* Opens the library; false where it cannot be. */
bool emu_load(const char *path);

/* What a case is made of; line printed where it fails. */
struct emu_case {
    int dtype;
    uint64_t n;
    int fill;      /* enum emu_fill */
    int view;      /* enum emu_view */
    uint64_t seed;
};

enum emu_fill {
    FILL_NORMAL,   /* mean 0, deviation 1 */
    FILL_OFFSET,   /* far from 0: differences cancel */
    FILL_CONSTANT,
    FILL_ZERO,     /* of both signs */
    FILL_SPARSE,   /* zeros but for a few */
    FILL_SPECIAL,  /* NaN, infinities, subnormals among others */
    FILL_ALL_NAN,
    FILL_TINY,     /* subnormal, or near */
    FILL_HUGE,     /* squares overflow */
    FILL_BITS,     /* any bits at all */
    FILL_OUTLIER,  /* one channel a million off */
    FILL_NAN_TILE, /* the first tile has no finite element */
    FILL_STEP,     /* tiles on different levels */
    FILL_RANGE,    /* lanes so far apart that their fp64 sums round */
    FILL_COUNT
};

enum emu_view {
    VIEW_DENSE,
    VIEW_SHIFTED, /* by one element */
    VIEW_BYTE,    /* by one byte */
    VIEW_EVERY_OTHER,
    VIEW_TRANSPOSED,
    VIEW_REVERSED,
    VIEW_REPEATED, /* stride 0 outside */
    VIEW_NHWC,
    VIEW_COUNT
};

/* A tensor with memory of its own. */
struct emu_tensor {
    struct trd_tensor t;
    int64_t shape[4], strides[4];
    unsigned char *memory; /* a page that nobody may read follows */
    size_t bytes;
    void *map;
    size_t map_bytes;
};
void emu_make(const struct emu_case *c, struct emu_tensor *out);
void emu_free(struct emu_tensor *t);

/* The item of a tensor. */
void emu_item(const struct trd_tensor *t, uint32_t k, uint64_t tag,
              struct trd__cuda_item *out);

/* Whether a polled result is the reference's; says what is not. */
bool emu_same(const struct trd__cuda_config *config,
              const struct trd_tensor *t, uint32_t k,
              const struct trd__cuda_result *result, const void *samples,
              const uint64_t *bins);

extern uint64_t emu_compared; /* how often it was */

uint64_t emu_random(uint64_t *state);

#endif
