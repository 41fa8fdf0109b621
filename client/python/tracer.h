/* The Client type: a connection to tracerd, for Python.
 *
 * Threads: any that holds the GIL. It is released round large tensors and
 * round everything that waits; a client that is closed in the meantime is
 * freed by the last call that leaves it. */
#ifndef CLIENT_PYTHON_TRACER_H
#define CLIENT_PYTHON_TRACER_H

#include "client/python/py.h"

#include <stdbool.h>
#include <stdint.h>

#include "client/python/same.h"
#include "tracerd/client.h"

enum { TRACER_DEVICES = 64 };

struct client {
    PyObject ob_base;
    struct trd_client *c;       /* NULL once closed */
    struct trd_client *leaving; /* closed while calls were still inside */
    unsigned inside;            /* calls that run without the GIL */
    struct trd_want want;       /* but for the samples */
    struct same *same;          /* NULL: every tensor is read */
    uint64_t same_n, same_bytes; /* not read again */
    uint32_t device_k[TRACER_DEVICES]; /* 1 + most samples; 0: not open */
};

/* Makes the type, when the module is made: 0, or -1 with an exception. */
int tracer_init(void);

/* open(run, job, info, rank, world, attempt, journal_bytes, thread,
 * dir=None, sampling=0, sampling_arg=0, histogram=0, same=False) -> Client */
PyObject *tracer_open(PyObject *module, PyObject *args);

/* Round whatever runs without the GIL and uses self->c. */
void tracer_enter(struct client *self);
void tracer_leave(struct client *self);

/* Whether it is a Client, and no stand-in. */
bool tracer_check(PyObject *o);

PyObject *tracer_misuse(const char *how);

/* ---- record.c ---- */

/* X(name, text): the methods that make records. */
#define RECORD_METHODS(X)                                                     \
    X(record, "record(site, step, iteration, microbatch, labels, note, "      \
              "tensor, k) -> bool")                                           \
    X(record_once, "record_once(site, step, iteration, microbatch, labels, "  \
                   "note, tensor, k) -> bool")                                \
    X(record_all, "record_all(sites, step, iteration, microbatch, labels, "   \
                  "tensors, k, keep) -> list or None")                        \
    X(record_as, "record_as(site, step, iteration, microbatch, labels, "      \
                 "note, tensor, k, shape) -> bool")                           \
    X(record_shape, "record_shape(site, step, iteration, microbatch, "        \
                    "labels, note, dtype, shape) -> bool")                    \
    X(record_figures, "record_figures(site, step, iteration, microbatch, "    \
                      "labels, note, dtype, shape, figures, samples) -> bool")

#define RECORD_DECLARE(name, text)                                            \
    PyObject *method_##name(PyObject *o, PyObject *const *args,               \
                            Py_ssize_t n_args);
RECORD_METHODS(RECORD_DECLARE)
#undef RECORD_DECLARE

/* The same for the hooks, in C: 1 if the tensor was recorded or counted as
 * lost, 0 if it must be resolved first. when: its labels are the call's. */
int record_tensor(struct client *self, uint32_t site,
                  const struct trd_when *when, PyObject *tensor, uint32_t k);
/* Several tensors, those of a GPU in one launch; *odd[i] tells which must be
 * resolved. */
void record_tensors(struct client *self, const uint32_t *site,
                    const struct trd_when *when, PyObject *const *tensor,
                    Py_ssize_t n, uint32_t k, bool *odd);

#endif
