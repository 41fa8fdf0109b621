/* A tensor as the library wants it: a view of a torch.Tensor's memory.
 *
 * Only a plain dense tensor of the CPU or of a CUDA device is described here,
 * and nothing waits for the device. All others the Python half
 * resolves first: torch's exchange functions succeed, with no data or with
 * bits still to be conjugated, on tensors that must not be read as they are.
 *
 * Threads: any that holds the GIL. A view holds no reference; it is good as
 * long as the tensor is. It points into itself: a copy must be pointed anew.
 */
#ifndef CLIENT_PYTHON_VIEW_H
#define CLIENT_PYTHON_VIEW_H

#include "client/python/py.h"

#include <stdbool.h>
#include <stdint.h>

#include "tracerd/record.h"

enum { VIEW_CPU = -1 };

struct view {
    struct trd_tensor tensor;
    uint64_t n;
    int device;     /* index of the CUDA device, or VIEW_CPU */
    bool parameter; /* a torch.nn.Parameter */
    int64_t shape[TRD_MAX_DIMS], strides[TRD_MAX_DIMS];
};

/* When the module is made: 0, or -1 with an exception. */
int view_init(void);
/* What of torch is looked at; once is enough. `stream` gives the current
 * stream of a CUDA device, or is None where torch is not built for CUDA. 1 if
 * torch's exchange functions are there, 0 if not, -1 with an exception. */
int view_setup(PyObject *tensor, PyObject *parameter, PyObject *strided,
               PyObject *stream);
/* Which of the two ways is taken, for tests. True if the exchange functions
 * are used from now on. */
bool view_use_exchange(bool on);
/* Whether tensors of the CPU are taken for those of CUDA device 0, on that
 * stream, for tests with a library that plays the device. */
void view_use_device(bool on, void *stream);

/* 0 if the object is a plain dense tensor whose memory holds its elements as
 * they are; -1 (never an exception) for everything else. */
int view_of(PyObject *o, struct view *out);
/* Where the elements of a torch.Tensor begin, whatever their bits mean: 0, or
 * -1 (never an exception) where that is nowhere to be seen. */
int view_address(PyObject *tensor, const void **address);
/* Whether the memory can be read from here. */
bool view_is_here(const struct view *v);
/* The stream that work of the device goes to now: 0, or -1. */
int view_stream(int device, void **stream);
/* Large enough that other threads should run during its statistics. */
bool view_is_big(const struct view *v);
/* Sets n from ndim and shape; -1 where they give no number. */
int view_count(struct view *v);

/* Reads a tuple of integers; its length, or -1. */
int view_int64s(PyObject *tuple, int64_t out[TRD_MAX_DIMS]);
/* The labels that a dtype brings by itself. */
uint32_t view_labels(int dtype);

#endif
