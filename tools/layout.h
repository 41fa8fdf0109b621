/* Which share of the batch and of the model the ranks of a run have.
 *
 * A rank's coordinates say it where the framework knew them. Where not, ranks
 * that own about the same modules are one stage of a pipeline, and ranks of a
 * stage whose first input is the same have the same share of the batch. */
#ifndef TOOLS_LAYOUT_H
#define TOOLS_LAYOUT_H

#include <string.h>

#include "tools/scan.h"

struct layout_rank {
    uint32_t rank;
    uint32_t data;   /* share of the batch, LAYOUT_UNKNOWN */
    uint32_t stage;  /* of the pipeline, LAYOUT_UNKNOWN */
    bool guessed;    /* the stage */
    const struct scan_stream *stream;
};

struct layout {
    struct layout_rank *rank; /* sorted by rank */
    size_t n;
};

#define LAYOUT_UNKNOWN UINT32_MAX

/* Place and size along a dimension; NULL: it has none. */
static inline const struct scan_place *
layout_place(const struct layout_rank *r, const char *name)
{
    for (size_t i = 0; i < r->stream->places; i++)
        if (strcmp(r->stream->place[i].name, name) == 0)
            return &r->stream->place[i];
    return NULL;
}

/* From coordinates alone. 0 or an exit code, told. */
int layout_open(const struct scan *s, struct layout *out);
void layout_close(struct layout *l);

/* Have both runs the same ranks, and these the same coordinates? */
bool layout_is_same(const struct layout *a, const struct layout *b);
/* Index of a rank; n for none. */
size_t layout_index(const struct layout *l, uint32_t rank);
/* The stage, 0 where it is not known. */
uint32_t layout_stage(const struct layout *l, uint32_t rank);

/* Fills in what coordinates do not say. owned: which objects of the run are
 * on which rank, a byte each, ranks of an object side by side. Reads the
 * first step of the run. 0 or an exit code, told. */
int layout_guess(struct layout *l, struct scan *s, const uint8_t *owned);
/* How many shares and stages there are. */
void layout_count(const struct layout *l, uint32_t *data, uint32_t *stages);

#endif
