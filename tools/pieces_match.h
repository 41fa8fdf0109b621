/* What the files of pieces share: a name's rows, and how they fall into
 * tensors. Private to pieces*.c. */
#ifndef TOOLS_PIECES_MATCH_H
#define TOOLS_PIECES_MATCH_H

#include "tools/pieces.h"

/* Rows of one name, in the order of shares and ranks. */
struct pile {
    struct walk_side *side;
    struct walk_row *row;
    size_t n;
};

/* How a pile falls into whole tensors: n / size of them. */
struct split {
    size_t size;
    bool strided;    /* piece i is of tensor i mod (n / size) */
};

/* A tensor of one side. */
struct whole {
    struct scan_row row;
    struct walk_row *first;
    const struct diff_side **shard;
    size_t n;
};

struct match {
    struct pieces *p;
    struct pile a, b;
    struct split split_a, split_b;
    bool padded, batch;
    bool flat;       /* one has all of it, without its shape */
};

/* Is there one of it in an iteration, whatever the micro-batches? */
static inline bool match_is_once(const struct walk_row *r)
{
    return r->row.pass > TRD_BACKWARD && r->row.pass != TRD_USER &&
           !(r->row.labels & TRD_L_LOCAL);
}

static inline bool match_is_eval(const struct walk_row *r)
{
    return r->row.microbatch == 0 && !match_is_once(r);
}

/* The order of names; rows of one are equal. */
int match_by_name(const void *x, const void *y);

/* The smallest splits that make tensors of one size of both. */
bool match_splits(struct match *m);
/* The same for parameters that are padded. */
bool match_padded(struct match *m);
/* The same with the rows of one stage of a pipeline; the others are left
 * out. */
bool match_stages(struct match *m);
/* Chooses which rows are shards of one tensor. 0 or an exit code, told, like
 * what follows. */
int match_order(struct match *m);
/* How many tensors there are; of copies each one. */
size_t match_tensors(const struct match *m);

/* Judges tensor i of so many, or with a place for it measures its error. */
int match_pair(struct match *m, size_t i, size_t tensors, double *error);
/* Judges two tensors. */
int match_judge(struct match *m, struct whole *a, struct whole *b,
                const struct diff_how *how);

#endif
