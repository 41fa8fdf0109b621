/* The figures of a view, and as a dict.
 *
 * Threads: any that holds the GIL; it is released round the statistics of
 * large tensors. */
#ifndef CLIENT_PYTHON_FIGURES_H
#define CLIENT_PYTHON_FIGURES_H

#include "client/python/py.h"

#include "client/python/view.h"
#include "tracerd/stats.h"

/* trd_stats_cpu_as() of a view. */
int figures_compute(const struct view *v, const struct trd_want *want,
                    struct trd_stats *s, void *samples,
                    struct trd_histogram *histogram);

/* stats(tensor, k, sampling=0, sampling_arg=0, histogram=0) -> dict, or None
 * where the tensor must be resolved. */
PyObject *figures_stats(PyObject *module, PyObject *const *args,
                        Py_ssize_t n_args);

#endif
