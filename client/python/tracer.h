/* The Client type: a connection to tracerd, for Python.
 *
 * Threads: any that holds the GIL. It is released round large tensors and
 * round everything that waits; a client that is closed in the meantime is
 * freed by the last call that leaves it. */
#ifndef CLIENT_PYTHON_TRACER_H
#define CLIENT_PYTHON_TRACER_H

#include "client/python/py.h"

/* Makes the type, when the module is made: 0, or -1 with an exception. */
int tracer_init(void);

/* open(run, job, info, rank, world, attempt, journal_bytes, thread,
 * dir=None) -> Client */
PyObject *tracer_open(PyObject *module, PyObject *args);

#endif
