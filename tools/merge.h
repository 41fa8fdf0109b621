/* A tensor out of its shards, as far as records tell.
 *
 * Counts and extremes add up exactly, moments by Chan's formulas, no hash
 * does. A sample of the whole is one of a shard where the shard's samples
 * happen to have that element. Pure. */
#ifndef TOOLS_MERGE_H
#define TOOLS_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/diff.h"

/* How shards lie in the whole. */
enum merge_way {
    MERGE_NOT,      /* not at all */
    MERGE_BLOCKS,   /* one after the other along a dimension */
    MERGE_DEALT,    /* row i of the whole is of shard i mod n, as a sampler
                       deals a batch out */
    MERGE_FLAT,     /* ranges of the flattened tensor, or so it seems where
                       the whole has lost its shape */
    MERGE_GRID      /* along several dimensions; samples do not map */
};

struct merge_plan {
    enum merge_way way;
    unsigned dim;   /* for blocks and dealt ones */
    uint64_t pad;   /* zeros at the end of the last shards */
};

/* Samples of one and the same elements. */
struct merge_samples {
    char *whole, *shards; /* room for as many as the whole has */
    size_t n;             /* of each, in elements */
};

/* How shards of these shapes make a whole of that one. padded: they may be
 * filled up with fewer zeros than there are shards, if they are flat. */
struct merge_plan merge_plan(const struct diff_side *whole,
                             const struct diff_side *const *shard, size_t n,
                             bool padded);

/* The figures of all of them. The shape is that of the first, of which it
 * borrows the text; there are no samples and no hash. */
void merge_sides(const struct diff_side *const *shard, size_t n,
                 uint64_t pad, struct diff_side *out);

/* Finds the samples that both have. */
void merge_samples(const struct merge_plan *plan,
                   const struct diff_side *whole,
                   const struct diff_side *const *shard, size_t n,
                   struct merge_samples *out);

#endif
