/* The Client's methods that make records.
 *
 * A tensor of a CUDA device whose half is open is queued on the current
 * stream, all those of one call in one launch; everything else is read here
 * and now, unless it was read before and has not changed. */
#include <string.h>

#include "client/python/figures.h"
#include "client/python/tracer.h"
#include "client/python/view.h"

enum {
    HEAD = 6,  /* arguments that say where and when */
    BATCH = 16 /* tensors that are queued at once */
};

/* Unsigned arguments; 0 or -1 with an exception. */
static int numbers_of(PyObject *const *args, Py_ssize_t n, uint64_t *out)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsUnsignedLongLong(args[i]);
        if (out[i] == (uint64_t)-1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static PyObject *answer(bool yes)
{
    PyObject *o = yes ? Py_True : Py_False;
    Py_INCREF(o);
    return o;
}

/* What is one tensor's and what is the call's. */
struct moment {
    uint32_t site;
    uint32_t k;
    bool keep; /* the figures may serve again */
    struct trd_when when;
};

static struct moment moment_of(const uint64_t v[HEAD], uint64_t k)
{
    struct moment m = {
        .site = (uint32_t)v[0],
        .k = k > TRD_MAX_SAMPLES ? TRD_MAX_SAMPLES + 1 : (uint32_t)k,
        .when = {.step = v[1],
                 .iteration = v[2],
                 .microbatch = (uint32_t)v[3],
                 .labels = (uint32_t)v[4],
                 .note = (uint32_t)v[5]}};
    return m;
}

/* ---- tensors of the CPU ---- */

/* Reads the tensor and keeps the figures; -1 where that cannot be done and
 * the library's own way is to be taken. */
static int submit_and_keep(struct client *self, const struct moment *m,
                           const struct view *v, PyObject *tensor,
                           const struct same_look *look)
{
    struct trd_want want = self->want;
    struct trd_client *c = self->c;
    struct trd_stats stats;
    int rc = -1;
    want.samples = m->k;
    size_t room = m->k * (size_t)trd_dtype_bytes(v->tensor.dtype);
    char *samples = PyMem_Malloc(room + 1);
    struct trd_histogram *histogram =
        want.histogram ? PyMem_Malloc(sizeof *histogram) : NULL;
    if (!samples || (want.histogram && !histogram))
        goto out;
    tracer_enter(self);
    rc = figures_compute(v, &want, &stats, samples, histogram);
    if (!rc) {
        trd_submit(c, m->site, &m->when, &v->tensor, &stats, samples);
        if (self->same)
            same_keep(self->same, tensor, v, &want, look, &stats, samples);
    }
    tracer_leave(self);
out:
    PyMem_Free(histogram);
    PyMem_Free(samples);
    return rc ? -1 : 0;
}

static void submit_here(struct client *self, struct moment *m,
                        const struct view *v, PyObject *tensor)
{
    struct same_look look = {.able = false};
    struct trd_client *c = self->c;
    const struct trd_want want = {.samples = m->k};
    const struct trd_stats *stats = NULL;
    const void *samples = NULL;
    if (self->same && m->k <= TRD_MAX_SAMPLES)
        stats = same_find(self->same, tensor, v, &want, &look, &samples);
    if (stats && self->c) {
        m->when.labels |= TRD_L_SAME;
        self->same_n++;
        self->same_bytes += v->n * trd_dtype_bytes(v->tensor.dtype);
        trd_submit(c, m->site, &m->when, &v->tensor, stats, samples);
        return;
    }
    if (!self->c ||
        (look.able && m->keep && !submit_and_keep(self, m, v, tensor, &look)))
        return;
    if (!view_is_big(v)) {
        trd_submit_cpu(c, m->site, &m->when, &v->tensor, m->k);
        return;
    }
    tracer_enter(self);
    Py_BEGIN_ALLOW_THREADS
    trd_submit_cpu(c, m->site, &m->when, &v->tensor, m->k);
    Py_END_ALLOW_THREADS
    tracer_leave(self);
}

/* ---- tensors of CUDA devices ---- */

/* Tensors of one device that wait for their launch. */
struct batch {
    int device;
    uint32_t n;
    struct trd_item item[BATCH];
    struct view view[BATCH];
};

static bool is_open(const struct client *self, const struct view *v,
                    uint32_t k)
{
    return v->device >= 0 && v->device < TRACER_DEVICES &&
           k < self->device_k[v->device];
}

static void launch(struct client *self, struct batch *b)
{
    void *stream;
    if (!b->n || !self->c)
        return;
    if (view_stream(b->device, &stream))
        trd_lost(self->c, TRD_LOST_DEVICE, b->n);
    else
        trd_submit_cuda(self->c, b->item, b->n, b->device, stream);
    b->n = 0;
}

static void add(struct client *self, struct batch *b, const struct moment *m,
                const struct view *v)
{
    if (b->n == BATCH || (b->n && b->device != v->device))
        launch(self, b);
    struct trd_item *item = &b->item[b->n];
    struct view *view = &b->view[b->n++];
    b->device = v->device;
    *view = *v;
    view->tensor.shape = view->shape;
    view->tensor.strides = v->tensor.strides ? view->strides : NULL;
    item->site = m->site;
    item->when = m->when;
    item->tensor = view->tensor;
    item->k = m->k;
}

/* A single one. */
static void submit_there(struct client *self, const struct moment *m,
                         const struct view *v)
{
    struct trd_item item = {.site = m->site,
                            .when = m->when,
                            .tensor = v->tensor,
                            .k = m->k};
    void *stream;
    if (view_stream(v->device, &stream))
        trd_lost(self->c, TRD_LOST_DEVICE, 1);
    else
        trd_submit_cuda(self->c, &item, 1, v->device, stream);
}

/* ---- record ---- */

/* True when it was recorded or counted as lost, or the client is closed. */
static bool put_one(struct client *self, struct moment *m, PyObject *tensor)
{
    struct view view;
    if (!self->c)
        return true;
    if (view_of(tensor, &view))
        return false;
    m->when.labels |= view_labels(view.tensor.dtype);
    if (view.device == VIEW_CPU)
        submit_here(self, m, &view, tensor);
    else if (is_open(self, &view, m->k))
        submit_there(self, m, &view);
    else
        return false;
    return true;
}

static PyObject *record(PyObject *o, PyObject *const *args,
                        Py_ssize_t n_args, bool keep)
{
    uint64_t v[HEAD], k;
    if (n_args != HEAD + 2)
        return tracer_misuse("record takes 8 arguments");
    if (numbers_of(args, HEAD, v) || numbers_of(args + HEAD + 1, 1, &k))
        return NULL;
    struct moment m = moment_of(v, k);
    m.keep = keep;
    return answer(put_one((struct client *)o, &m, args[HEAD]));
}

int record_tensor(struct client *self, uint32_t site,
                  const struct trd_when *when, PyObject *tensor, uint32_t k)
{
    struct moment m = {.site = site, .k = k, .keep = true, .when = *when};
    return put_one(self, &m, tensor);
}

/* record(site, step, iteration, microbatch, labels, note, tensor, k): True
 * when it was recorded or counted as lost, False when the tensor must be
 * resolved first. Raises for wrong arguments only. */
PyObject *method_record(PyObject *o, PyObject *const *args,
                        Py_ssize_t n_args)
{
    return record(o, args, n_args, true);
}

/* record_once(...): the same for a tensor that no weak reference may be made
 * to, since torch.utils.swap_tensors() would refuse it: a parameter's
 * gradient, or whatever the user hands in. */
PyObject *method_record_once(PyObject *o, PyObject *const *args,
                             Py_ssize_t n_args)
{
    return record(o, args, n_args, false);
}

/* One of several; false when it must be resolved. */
static bool put_of(struct client *self, struct moment *m, PyObject *tensor,
                   struct batch *b)
{
    struct view view;
    if (view_of(tensor, &view))
        return false;
    m->when.labels |= view_labels(view.tensor.dtype);
    if (view.device == VIEW_CPU)
        submit_here(self, m, &view, tensor);
    else if (is_open(self, &view, m->k))
        add(self, b, m, &view);
    else
        return false;
    return true;
}

void record_tensors(struct client *self, const uint32_t *site,
                    const struct trd_when *when, PyObject *const *tensor,
                    Py_ssize_t n, uint32_t k, bool *odd)
{
    struct batch b;
    b.n = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        struct moment m = {
            .site = site[i], .k = k, .keep = true, .when = *when};
        odd[i] = self->c && !put_of(self, &m, tensor[i], &b);
    }
    launch(self, &b);
}

/* Records the tensors of a list; indices of those that must be resolved go
 * to *odd, a list that is made when there is one. 0, or -1 with an exception
 * for wrong arguments. */
static int record_list(struct client *self, PyObject *sites,
                       PyObject *tensors, const struct moment *of_all,
                       struct batch *b, PyObject **odd)
{
    for (Py_ssize_t i = 0; i < PyList_Size(tensors) && self->c; i++) {
        struct moment m = *of_all;
        PyObject *pair = PyList_GetItem(tensors, i);
        PyObject *site = PyList_GetItem(sites, i);
        if (!site || !pair)
            return -1;
        PyObject *tensor =
            PyTuple_Check(pair) ? PyTuple_GetItem(pair, 1) : NULL;
        if (!tensor) {
            tracer_misuse("tensors come as pairs (path, tensor)");
            return -1;
        }
        m.site = (uint32_t)PyLong_AsUnsignedLong(site);
        if (PyErr_Occurred())
            return -1;
        if (put_of(self, &m, tensor, b))
            continue;
        PyObject *number = PyLong_FromSsize_t(i);
        if (number && !*odd)
            *odd = PyList_New(0);
        int failed = !number || !*odd || PyList_Append(*odd, number);
        Py_XDECREF(number);
        if (failed)
            return -1;
    }
    return 0;
}

/* record_all(sites, step, iteration, microbatch, labels, tensors, k, keep):
 * the tensors of one call, as a list of (path, tensor), which nobody else may
 * change; sites is a list of as many numbers. None, or a list of the indices
 * of those that must be resolved first. */
PyObject *method_record_all(PyObject *o, PyObject *const *args,
                            Py_ssize_t n_args)
{
    struct client *self = (struct client *)o;
    uint64_t v[HEAD] = {0}, k;
    PyObject *odd = NULL;
    if (n_args != 8 || !PyList_Check(args[0]) || !PyList_Check(args[5]))
        return tracer_misuse("record_all takes 8 arguments, two of them "
                             "lists");
    if (numbers_of(args + 1, 4, v + 1) || numbers_of(args + 6, 1, &k))
        return NULL;
    struct moment m = moment_of(v, k);
    m.keep = PyObject_IsTrue(args[7]) > 0;
    struct batch b;
    b.n = 0;
    int failed = record_list(self, args[0], args[5], &m, &b, &odd);
    launch(self, &b);
    if (failed) {
        Py_XDECREF(odd);
        return NULL;
    }
    return odd ? odd : py_none();
}

/* record_as(..., tensor, k, shape): the figures of tensor under another
 * shape, for values that stand for a larger tensor. */
PyObject *method_record_as(PyObject *o, PyObject *const *args,
                           Py_ssize_t n_args)
{
    struct client *self = (struct client *)o;
    uint64_t v[HEAD], k;
    struct view view;
    if (n_args != HEAD + 3)
        return tracer_misuse("record_as takes 9 arguments");
    if (numbers_of(args, HEAD, v) || numbers_of(args + HEAD + 1, 1, &k))
        return NULL;
    if (!self->c)
        return answer(true);
    if (k > TRD_MAX_SAMPLES || view_of(args[HEAD], &view) ||
        view.device != VIEW_CPU)
        return answer(false);
    struct trd_want want = self->want;
    struct trd_stats s;
    memset(&s, 0, sizeof s);
    want.samples = (uint32_t)k;
    size_t room = (size_t)k * trd_dtype_bytes(view.tensor.dtype);
    char *samples = PyMem_Malloc(room + 1);
    struct trd_histogram *histogram =
        want.histogram ? PyMem_Malloc(sizeof *histogram) : NULL;
    if (!samples || (want.histogram && !histogram)) {
        PyMem_Free(samples);
        PyMem_Free(histogram);
        return PyErr_NoMemory();
    }
    struct trd_client *c = self->c;
    struct moment m = moment_of(v, k);
    m.when.labels |= view_labels(view.tensor.dtype);
    tracer_enter(self);
    int rc = figures_compute(&view, &want, &s, samples, histogram);
    struct view shown = view;
    shown.tensor.shape = shown.shape;
    shown.tensor.strides = NULL;
    shown.tensor.ndim = view_int64s(args[HEAD + 2], shown.shape);
    if (rc || shown.tensor.ndim < 0)
        trd_lost(c, TRD_LOST_ERROR, 1);
    else
        trd_submit(c, m.site, &m.when, &shown.tensor, &s, samples);
    tracer_leave(self);
    PyMem_Free(histogram);
    PyMem_Free(samples);
    return answer(true);
}

/* ---- tensors that are not read here ---- */

/* A tensor of a dtype's name and a tuple of extents, without data: 0, or -1
 * where they make none; *code is 0 for an unknown dtype. -2 with an
 * exception. */
static int shape_of(PyObject *dtype, PyObject *shape, struct view *out,
                    int *code)
{
    PyObject *bytes = PyUnicode_AsUTF8String(dtype);
    if (!bytes)
        return -2;
    *code = trd_dtype_parse(PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    memset(&out->tensor, 0, sizeof out->tensor);
    out->tensor.dtype = *code > 0 ? (enum trd_dtype)*code : TRD_OPAQUE;
    out->tensor.shape = out->shape;
    out->tensor.ndim = view_int64s(shape, out->shape);
    return out->tensor.ndim < 0 || view_count(out) ? -1 : 0;
}

/* record_shape(site, step, iteration, microbatch, labels, note, dtype,
 * shape): no figures, for a tensor that cannot be read. */
PyObject *method_record_shape(PyObject *o, PyObject *const *args,
                              Py_ssize_t n_args)
{
    struct client *self = (struct client *)o;
    uint64_t v[HEAD];
    struct view view;
    int code;
    if (n_args != HEAD + 2)
        return tracer_misuse("record_shape takes 8 arguments");
    if (numbers_of(args, HEAD, v))
        return NULL;
    int failed = shape_of(args[HEAD], args[HEAD + 1], &view, &code);
    if (failed == -2)
        return NULL;
    if (!self->c)
        return answer(true);
    if (failed) {
        trd_lost(self->c, TRD_LOST_ERROR, 1);
        return answer(true);
    }
    struct trd_stats s;
    memset(&s, 0, sizeof s);
    s.n = view.n;
    struct moment m = moment_of(v, 0);
    if (code <= 0)
        m.when.labels |= TRD_L_UNSUPPORTED;
    trd_submit(self->c, m.site, &m.when, &view.tensor, &s, "");
    return answer(true);
}

/* max, min, absmax or absmin; an exception is left for the caller. */
static union trd_value value_of(PyObject *o, int kind, bool magnitude)
{
    union trd_value v = {.u = 0};
    if (kind == TRD_KIND_UNSIGNED || (kind == TRD_KIND_SIGNED && magnitude))
        v.u = PyLong_AsUnsignedLongLong(o);
    else if (kind == TRD_KIND_SIGNED)
        v.i = PyLong_AsLongLong(o);
    else
        v.f = PyFloat_AsDouble(o);
    return v;
}

/* Of a tuple (n, has, nan, pinf, ninf, zero, subnormal, max, min, absmax,
 * absmin, mean, std, l2, hash): 0, or -1 with an exception. */
static int stats_of(PyObject *tuple, int dtype, struct trd_stats *s)
{
    uint64_t n[8];
    PyObject *at[15];
    int kind = trd_dtype_kind(dtype);
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != 15) {
        tracer_misuse("figures are a tuple of 15");
        return -1;
    }
    for (Py_ssize_t i = 0; i < 15; i++)
        at[i] = PyTuple_GetItem(tuple, i);
    if (numbers_of(at, 7, n) || numbers_of(at + 14, 1, n + 7))
        return -1;
    memset(s, 0, sizeof *s);
    s->n = n[0];
    s->has = (uint32_t)n[1];
    s->nan = n[2];
    s->pinf = n[3];
    s->ninf = n[4];
    s->zero = n[5];
    s->subnormal = n[6];
    s->max = value_of(at[7], kind, false);
    s->min = value_of(at[8], kind, false);
    s->absmax = value_of(at[9], kind, true);
    s->absmin = value_of(at[10], kind, true);
    s->mean = PyFloat_AsDouble(at[11]);
    s->std = PyFloat_AsDouble(at[12]);
    s->l2 = PyFloat_AsDouble(at[13]);
    s->hash = n[7];
    return PyErr_Occurred() ? -1 : 0;
}

/* record_figures(site, step, iteration, microbatch, labels, note, dtype,
 * shape, figures, samples): figures that were computed elsewhere, and samples
 * in the bits of the dtype, at the places of the client's sampling. */
PyObject *method_record_figures(PyObject *o, PyObject *const *args,
                                Py_ssize_t n_args)
{
    struct client *self = (struct client *)o;
    uint64_t v[HEAD];
    struct view view;
    struct trd_stats s;
    char *samples;
    Py_ssize_t n;
    int code;
    if (n_args != HEAD + 4)
        return tracer_misuse("record_figures takes 10 arguments");
    if (numbers_of(args, HEAD, v))
        return NULL;
    int failed = shape_of(args[HEAD], args[HEAD + 1], &view, &code);
    if (failed == -2)
        return NULL;
    if (stats_of(args[HEAD + 2], (int)view.tensor.dtype, &s) ||
        PyBytes_AsStringAndSize(args[HEAD + 3], &samples, &n))
        return NULL;
    if (!self->c)
        return answer(true);
    struct moment m = moment_of(v, 0);
    unsigned bytes = trd_dtype_bytes(view.tensor.dtype);
    if (failed || (n && (!bytes || (size_t)n % bytes))) {
        trd_lost(self->c, TRD_LOST_ERROR, 1);
        return answer(true);
    }
    s.sample_n = bytes ? (uint32_t)((size_t)n / bytes) : 0;
    s.sampling = self->want.sampling;
    s.sampling_arg = self->want.sampling_arg;
    m.when.labels |= view_labels(view.tensor.dtype);
    trd_submit(self->c, m.site, &m.when, &view.tensor, &s, samples);
    return answer(true);
}
