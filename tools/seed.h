/* The export that writes what the original script would have written. */
#ifndef TOOLS_SEED_H
#define TOOLS_SEED_H

#include <stdio.h>

#include "proto/row.h"

struct seed;

/* Rows must come in the order of (stream, seq). The functions give 0 or an
 * exit code, told on stderr. */
int seed_open(FILE *file, struct seed **out);
int seed_record(struct seed *s, const struct row *r);

struct seed_result {
    uint64_t lines;     /* written */
    uint64_t left_out;  /* records whose figures no line can show */
    uint64_t other_samples; /* records whose samples are not equidistant */
    uint64_t streams;   /* processes, one after the other */
    int several_ranks;
};
/* Writes what is still held back and frees s; NULL is fine. */
int seed_close(struct seed *s, struct seed_result *out);

#endif
