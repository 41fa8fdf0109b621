/* Tensors that were read lately, with their figures: one that is seen again
 * unchanged is not read again.
 *
 * Unchanged means: the same Python object, alive all the while, at the same
 * address with the same shape, strides and dtype; the same version counter,
 * which torch raises with every write of its own; and the same bits in some
 * 64 random places, the samples and both ends, for writes that torch does not
 * see. What is kept is a weak reference and numbers, never a tensor. */
#ifndef CLIENT_PYTHON_SAME_H
#define CLIENT_PYTHON_SAME_H

#include "client/python/py.h"

#include <stdbool.h>
#include <stdint.h>

#include "client/python/view.h"
#include "tracerd/stats.h"

struct same; /* used by any thread that holds the GIL */

/* Of one tensor, from before it is read until it is kept. */
struct same_look {
    bool able;       /* may be kept */
    int64_t version;
    int64_t writes;
};

/* Once: what says whether a transform (vmap, grad) is at work; it then
 * answers something else than None. */
void same_setup(PyObject *transform);

/* NULL without memory. */
struct same *same_create(void);
void same_destroy(struct same *s);

/* A function that counts what may write to tensors without raising their
 * version, or None. */
void same_watch(struct same *s, PyObject *writes);

/* The figures of an unchanged tensor and its samples, good until the GIL is
 * released, or NULL; *look is filled for same_keep(). */
const struct trd_stats *same_find(struct same *s, PyObject *tensor,
                                  const struct view *v,
                                  const struct trd_want *want,
                                  struct same_look *look,
                                  const void **samples);

/* Keeps the figures, unless the tensor was written to since same_find(). */
void same_keep(struct same *s, PyObject *tensor, const struct view *v,
               const struct trd_want *want, const struct same_look *look,
               const struct trd_stats *stats, const void *samples);

/* Drops all entries and weak references. */
void same_forget(struct same *s);

#endif
