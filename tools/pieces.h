/* Pairing the records that ranks and micro-batches have of one name.
 *
 * Where each side has as many shares of the batch, these are paired in their
 * order; where one has k times as many, k of them are parts of one of the
 * other. Within a share records whose sizes are equal are copies, and those
 * whose sizes add up to the other side's are shards (merge.h).
 *
 * Samples of shards count where they may be those of the same elements: a
 * permuted shard has the moments and extremes of its part of the whole, and
 * other elements at its places. */
#ifndef TOOLS_PIECES_H
#define TOOLS_PIECES_H

#include "tools/compare_walk.h"

/* How often a batch is divided: by ranks, and by micro-batches. */
struct pieces_batch {
    uint32_t ranks, micro;
};

/* Why gradients of B may be a multiple of those of A: means over other
 * numbers of rows. */
enum pieces_factor {
    PIECES_EQUAL,
    PIECES_BY_SHARES, /* a mean over each share of the batch */
    PIECES_BY_RANKS,  /* that, divided by the number of micro-batches */
    PIECES_BY_MICRO,
    PIECES_FACTOR_N
};

struct pieces {
    struct walk *w;
    struct pieces_batch batch[2];
    size_t object;              /* of the first run, or SIZE_MAX */
    enum pieces_factor factor;
    /* nothing is judged, but counted what would be: */
    bool learning;
    uint64_t far;               /* inputs that are far apart */
    uint64_t votes[PIECES_FACTOR_N];
};

/* Pairs all rows of the walk's two sides and judges the pairs as one group.
 * The rows are sorted. 0 or an exit code, told. */
int pieces_join(struct pieces *p);
/* How many times those of A gradients of B are. */
double pieces_factor(const struct pieces *p, enum pieces_factor by);

#endif
