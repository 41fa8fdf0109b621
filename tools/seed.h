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
/* Writes what is still held back and frees s; NULL is fine. *lines are the
 * lines written, *left_out the records whose figures the script's line
 * cannot show. */
int seed_close(struct seed *s, uint64_t *lines, uint64_t *left_out);

#endif
