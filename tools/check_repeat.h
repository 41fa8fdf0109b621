/* Calls that got the same bits and gave others.
 *
 * A call's inputs are one hash over those of its tensors. Two calls of a
 * module are held against each other where its parameters are the same: on one
 * rank within an iteration, if no gradient of it was recorded in between, as
 * an optimizer's step does; on two ranks of one data-parallel group, the same
 * call; of classes without parameters, on any two ranks.
 *
 * Sure is that of classes known to be functions of their inputs, whose
 * parameters are known not to have changed. Of others it is a note: they may
 * draw random numbers, keep a state or get other arguments than tensors. */
#ifndef TOOLS_CHECK_REPEAT_H
#define TOOLS_CHECK_REPEAT_H

#include "tools/scan.h"

/* A row of the step that is looked at. */
struct check_row {
    struct scan_row row;
    size_t object;      /* its index */
};

struct repeat;

struct repeat_place {
    struct check_row at;  /* the first output of the later call */
    bool note;
    bool across;          /* of ranks that should be replicas */
    char detail[128];
};

/* group: of each rank, its data-parallel group. 0 or an exit code, told. */
int repeat_open(struct scan *s, const uint32_t *group, size_t ranks,
                struct repeat **out);
/* All rows of an object's step. */
int repeat_look(struct repeat *p, const struct check_row *row, size_t n);
/* Calls take for what is left when all rows were looked at; the scan is read
 * once more if there is any. */
int repeat_end(struct repeat *p,
               int (*take)(void *to, const struct repeat_place *place),
               void *to);
void repeat_close(struct repeat *p);

#endif
