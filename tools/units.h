/* The modules and paths of two runs whose ranks hold different parts.
 *
 * A unit is what has one name in both runs, whatever objects and ranks it is
 * spread over. Layers that each stage of a pipeline numbers from 0, and
 * experts that each rank of an expert-parallel group does, get the number
 * that they have in the whole model. */
#ifndef TOOLS_UNITS_H
#define TOOLS_UNITS_H

#include "tools/align.h"

struct units;

/* Of a run: its layout, and which of its objects are on which rank, a byte
 * each, ranks of an object side by side. */
struct units_side {
    const struct scan *scan;
    const struct layout *layout;
    const uint8_t *owned;
};

/* Both sides stay where they are until units_close(). 0 or an exit code,
 * told. */
int units_open(const struct units_side *a, const struct units_side *b,
               const struct align *names, struct units **out);
void units_close(struct units *u);

/* How many there are; numbers are below. */
size_t units_n(const struct units *u);
/* The unit of an object on a rank (indices); SIZE_MAX: none. */
size_t units_of(const struct units *u, bool second, size_t object,
                size_t rank);
/* The objects of a unit, and how many. */
const size_t *units_objects(const struct units *u, bool second, size_t unit,
                            size_t *n);
/* A number for the name of a path on a rank, the same in both runs; -1
 * without memory. */
int64_t units_path(struct units *u, bool second, int64_t path, size_t rank);

#endif
