/* The C half of the Python module: from a torch.Tensor to the library.
 *
 * The only file that knows Python. It is built against the limited API, so
 * one binary serves every CPython from 3.10 on, and it reads tensors either
 * through the table of functions that torch.Tensor.__dlpack_c_exchange_api__
 * offers (no Python call at all) or, where torch has none, through the
 * tensor's attributes. Both give the same view of the same memory.
 *
 * Threads: any that holds the GIL. It is released round the statistics of
 * large tensors and round everything that waits; a client that is closed in
 * the meantime is freed by the last call that leaves it.
 *
 * Only a plain dense CPU tensor is read here. For all others record() and
 * stats() answer False or None, and the Python half resolves them first: the
 * exchange functions succeed, with no data or with bits still to be
 * conjugated, on tensors that must not be read as they are. */
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030a0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "client/python/dlpack.h"
#include "proto/figures.h"
#include "tracerd/client.h"
#include "tracerd/stats.h"

/* From this size on the statistics take long enough (some 5 us) that other
 * threads should run meanwhile. */
enum { BIG_BYTES = 64 * 1024 };

/* ---- What is known of torch ----------------------------------------- */

/* Set once by setup(), under the GIL; never freed. */
static struct {
    PyObject *tensor;    /* torch.Tensor */
    PyObject *parameter; /* torch.nn.Parameter */
    PyObject *strided;   /* torch.strided */
    PyObject *dtypes;    /* dict: torch dtype -> int */
    const struct dl_exchange_api *api; /* NULL: attributes only */
    const struct dl_exchange_api *found_api;
} torch;

/* Attribute names, interned when the module is made. */
#define NAMES(X)                                                              \
    X(data_ptr)                                                               \
    X(device)                                                                 \
    X(dtype)                                                                  \
    X(is_conj)                                                                \
    X(is_cpu)                                                                 \
    X(is_neg)                                                                 \
    X(is_nested)                                                              \
    X(is_quantized)                                                           \
    X(layout)                                                                 \
    X(shape)                                                                  \
    X(stride)

static struct {
#define NAME_MEMBER(name) PyObject *name;
    NAMES(NAME_MEMBER)
#undef NAME_MEMBER
} names;

/* ---- A tensor as the library wants it ------------------------------- */

struct view {
    struct trd_tensor tensor;
    uint64_t n;
    int64_t shape[TRD_MAX_DIMS], strides[TRD_MAX_DIMS];
};

/* -1 also for what is no integer, e.g. a symbolic size; error cleared. */
static int int64_of(PyObject *o, int64_t *out)
{
    long long v = o ? PyLong_AsLongLong(o) : -1;
    if (!o || (v == -1 && PyErr_Occurred())) {
        PyErr_Clear();
        return -1;
    }
    *out = v;
    return 0;
}

/* Reads a tuple of integers; its length, or -1. */
static int int64s_of(PyObject *tuple, int64_t out[TRD_MAX_DIMS])
{
    Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (n < 0 || n > TRD_MAX_DIMS)
        return -1;
    for (Py_ssize_t i = 0; i < n; i++)
        if (int64_of(PyTuple_GetItem(tuple, i), &out[i]))
            return -1;
    return (int)n;
}

static int count_elements(struct view *v)
{
    uint64_t n = 1;
    for (int i = 0; i < v->tensor.ndim; i++)
        if (v->shape[i] < 0 ||
            __builtin_mul_overflow(n, (uint64_t)v->shape[i], &n))
            return -1;
    v->n = n;
    return 0;
}

/* 1 if the method of no arguments answers true or fails. */
static int says_yes(PyObject *o, PyObject *method)
{
    PyObject *answer = PyObject_CallMethodObjArgs(o, method, NULL);
    if (!answer) {
        PyErr_Clear();
        return 1;
    }
    int yes = answer != Py_False;
    Py_DECREF(answer);
    return yes;
}

static int attribute_is(PyObject *o, PyObject *name, PyObject *wanted)
{
    PyObject *value = PyObject_GetAttr(o, name);
    if (!value) {
        PyErr_Clear();
        return 0;
    }
    int same = value == wanted;
    Py_DECREF(value);
    return same;
}

static int view_by_exchange(PyObject *o, struct view *out)
{
    struct dl_tensor d;
    if (torch.api->tensor_from_py(o, &d)) {
        PyErr_Clear(); /* sparse, quantized, meta, inside a transform */
        return -1;
    }
    if (d.device.type != DL_CPU || d.ndim < 0 || d.ndim > TRD_MAX_DIMS)
        return -1;
    out->tensor.data = d.data ? (const char *)d.data + d.byte_offset : NULL;
    out->tensor.dtype = dtype_of_dlpack(d.dtype);
    out->tensor.ndim = d.ndim;
    size_t bytes = (size_t)d.ndim * sizeof(int64_t);
    if (bytes) {
        memcpy(out->shape, d.shape, bytes);
        if (d.strides)
            memcpy(out->strides, d.strides, bytes);
    }
    out->tensor.shape = out->shape;
    out->tensor.strides = d.strides ? out->strides : NULL;
    return 0;
}

/* The code of a torch dtype, TRD_OPAQUE for one the library does not know;
 * -1 with the error cleared. */
static int dtype_of_object(PyObject *dtype)
{
    PyObject *known = PyDict_GetItemWithError(torch.dtypes, dtype);
    if (known)
        return (int)PyLong_AsLong(known);
    int code = -1;
    PyObject *text = PyErr_Occurred() ? NULL : PyObject_Str(dtype);
    PyObject *bytes = text ? PyUnicode_AsUTF8String(text) : NULL;
    const char *name = bytes ? PyBytes_AsString(bytes) : NULL;
    if (name) {
        const char *dot = strrchr(name, '.');
        code = trd_dtype_parse(dot ? dot + 1 : name);
        if (code <= 0)
            code = TRD_OPAQUE;
        PyObject *number = PyLong_FromLong(code);
        if (number)
            PyDict_SetItem(torch.dtypes, dtype, number);
        Py_XDECREF(number);
    }
    PyErr_Clear();
    Py_XDECREF(bytes);
    Py_XDECREF(text);
    return code;
}

static int view_by_attributes(PyObject *o, struct view *out)
{
    if (!attribute_is(o, names.is_cpu, Py_True) ||
        !attribute_is(o, names.layout, torch.strided) ||
        !attribute_is(o, names.is_quantized, Py_False) ||
        !attribute_is(o, names.is_nested, Py_False))
        return -1;
    int result = -1, ndim = -1, code = -1;
    PyObject *pointer = PyObject_CallMethodObjArgs(o, names.data_ptr, NULL);
    PyObject *shape = pointer ? PyObject_GetAttr(o, names.shape) : NULL;
    PyObject *strides =
        shape ? PyObject_CallMethodObjArgs(o, names.stride, NULL) : NULL;
    PyObject *dtype = strides ? PyObject_GetAttr(o, names.dtype) : NULL;
    if (!dtype)
        goto out;
    ndim = int64s_of(shape, out->shape);
    code = dtype_of_object(dtype);
    if (ndim < 0 || code < 0 || int64s_of(strides, out->strides) != ndim)
        goto out;
    void *address = PyLong_AsVoidPtr(pointer);
    if (!address && PyErr_Occurred())
        goto out;
    out->tensor.data = address;
    out->tensor.dtype = (enum trd_dtype)code;
    out->tensor.ndim = ndim;
    out->tensor.shape = out->shape;
    out->tensor.strides = out->strides;
    result = 0;
out:
    PyErr_Clear();
    Py_XDECREF(dtype);
    Py_XDECREF(strides);
    Py_XDECREF(shape);
    Py_XDECREF(pointer);
    return result;
}

/* 0 if the object is a plain dense CPU tensor whose memory holds its
 * elements as they are; -1 (never an exception) for everything else. */
static int view_of(PyObject *o, struct view *out)
{
    PyObject *type = (PyObject *)Py_TYPE(o);
    if (!torch.tensor || (type != torch.tensor && type != torch.parameter))
        return -1;
    if (torch.api ? view_by_exchange(o, out) : view_by_attributes(o, out))
        return -1;
    if (count_elements(out))
        return -1;
    /* Both bits are set by views only: x.conj() and x.conj().imag. */
    int kind = trd_dtype_kind(out->tensor.dtype);
    if (kind == TRD_KIND_COMPLEX &&
        (says_yes(o, names.is_conj) || says_yes(o, names.is_neg)))
        return -1;
    if (kind == TRD_KIND_FLOAT && says_yes(o, names.is_neg))
        return -1;
    /* Storage that was freed or never existed. */
    if (!out->tensor.data && out->n)
        return -1;
    return 0;
}

static bool is_big(const struct view *v)
{
    unsigned bytes = trd_dtype_bytes(v->tensor.dtype);
    return bytes && v->n > BIG_BYTES / bytes;
}

static uint32_t labels_of(int dtype)
{
    switch (trd_dtype_kind(dtype)) {
    case TRD_KIND_COMPLEX:
        return TRD_L_COMPLEX;
    case TRD_KIND_PACKED:
        return dtype == TRD_OPAQUE ? TRD_L_UNSUPPORTED : TRD_L_PACKED;
    default:
        return 0;
    }
}

/* ---- Figures as a dict ---------------------------------------------- */

/* Puts a value (a new reference, or NULL after a failure) into the dict. */
static int put(PyObject *dict, const char *key, PyObject *value)
{
    int rc = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return rc;
}

static PyObject *none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *float_or_none(bool holds, double v)
{
    return holds ? PyFloat_FromDouble(v) : none();
}

static PyObject *count_or_none(bool holds, uint64_t v)
{
    return holds ? PyLong_FromUnsignedLongLong(v) : none();
}

/* max or min, exact. */
static PyObject *extreme(bool holds, int kind, union trd_value v)
{
    if (!holds)
        return none();
    if (kind == TRD_KIND_UNSIGNED)
        return PyLong_FromUnsignedLongLong(v.u);
    if (kind == TRD_KIND_SIGNED)
        return PyLong_FromLongLong(v.i);
    return PyFloat_FromDouble(v.f);
}

/* absmax or absmin, exact; unsigned also where the dtype is not. */
static PyObject *magnitude(bool holds, bool whole, union trd_value v)
{
    if (!holds)
        return none();
    return whole ? PyLong_FromUnsignedLongLong(v.u) : PyFloat_FromDouble(v.f);
}

static PyObject *complex_pair(int dtype, const char *at)
{
    double re, im;
    if (dtype == TRD_C128) {
        memcpy(&re, at, 8);
        memcpy(&im, at + 8, 8);
    } else if (dtype == TRD_C64) {
        float part[2];
        memcpy(part, at, 8);
        re = (double)part[0];
        im = (double)part[1];
    } else {
        re = element_f64(TRD_F16, at);
        im = element_f64(TRD_F16, at + 2);
    }
    return Py_BuildValue("[dd]", re, im);
}

static PyObject *sample_list(int dtype, const char *bytes, uint32_t n)
{
    int kind = trd_dtype_kind(dtype);
    size_t step = trd_dtype_bytes(dtype);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < n; i++) {
        const char *at = bytes + i * step;
        PyObject *v;
        if (kind == TRD_KIND_COMPLEX)
            v = complex_pair(dtype, at);
        else if (kind == TRD_KIND_SIGNED)
            v = PyLong_FromLongLong((int64_t)element_bits(dtype, at));
        else if (kind == TRD_KIND_UNSIGNED || kind == TRD_KIND_PACKED)
            v = PyLong_FromUnsignedLongLong(element_bits(dtype, at));
        else
            v = PyFloat_FromDouble(element_f64(dtype, at));
        if (!v || PyList_Append(list, v)) {
            Py_DECREF(list);
            list = NULL;
        }
        Py_XDECREF(v);
    }
    return list;
}

static PyObject *shape_list(const struct view *v)
{
    PyObject *list = PyList_New(v->tensor.ndim);
    for (int i = 0; list && i < v->tensor.ndim; i++) {
        PyObject *extent = PyLong_FromLongLong(v->shape[i]);
        if (!extent) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SetItem(list, i, extent);
    }
    return list;
}

static PyObject *hash_text(bool holds, uint64_t hash)
{
    char text[24];
    if (!holds)
        return none();
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return PyUnicode_FromString(text);
}

static PyObject *figures(const struct view *v, const struct trd_stats *s,
                         const char *samples)
{
    int dtype = v->tensor.dtype, kind = trd_dtype_kind(dtype);
    bool whole = kind == TRD_KIND_SIGNED || kind == TRD_KIND_UNSIGNED;
    bool range = s->has & TRD_HAS_RANGE, abs = s->has & TRD_HAS_ABS;
    bool mean = s->has & TRD_HAS_MEAN, l2 = s->has & TRD_HAS_L2;
    bool counts = s->has & TRD_HAS_COUNTS || !s->n; /* of nothing: none */
    /* 0 says that no element is non-zero */
    bool small = whole ? s->absmin.u != 0 : s->absmin.f > 0;
    double np[5];
    unsigned holds = trd_stats_numpy(s, dtype, np);
    PyObject *d = PyDict_New();
    if (!d)
        return NULL;
    if (put(d, "dtype", PyUnicode_FromString(trd_dtype_name(dtype))) ||
        put(d, "shape", shape_list(v)) ||
        put(d, "n", PyLong_FromUnsignedLongLong(s->n)) ||
        put(d, "max", whole ? extreme(range, kind, s->max)
                            : float_or_none(holds & 1, np[0])) ||
        put(d, "min", whole ? extreme(range, kind, s->min)
                            : float_or_none(holds & 2, np[1])) ||
        put(d, "mean", float_or_none(holds & 4, np[2])) ||
        put(d, "std", float_or_none(holds & 8, np[3])) ||
        put(d, "l2", float_or_none(holds & 16, np[4])) ||
        put(d, "absmax", magnitude(abs, whole, s->absmax)) ||
        put(d, "absmin", magnitude(abs && small, whole, s->absmin)) ||
        put(d, "nan", count_or_none(counts, s->nan)) ||
        put(d, "pinf", count_or_none(counts, s->pinf)) ||
        put(d, "ninf", count_or_none(counts, s->ninf)) ||
        put(d, "zero", count_or_none(counts, s->zero)) ||
        put(d, "subnormal", count_or_none(counts, s->subnormal)) ||
        put(d, "hash", hash_text(s->has & TRD_HAS_HASH, s->hash)) ||
        put(d, "samples", sample_list(dtype, samples, s->sample_n)))
        goto fail;
    if (counts && (s->nan || s->pinf || s->ninf) &&
        (put(d, "finite_max", extreme(range, kind, s->max)) ||
         put(d, "finite_min", extreme(range, kind, s->min)) ||
         put(d, "finite_mean", float_or_none(mean, s->mean)) ||
         put(d, "finite_std", float_or_none(mean, s->std)) ||
         put(d, "finite_l2", float_or_none(l2, s->l2))))
        goto fail;
    return d;
fail:
    Py_DECREF(d);
    return NULL;
}

static int compute(const struct view *v, uint32_t k, struct trd_stats *s,
                   void *samples)
{
    if (!is_big(v))
        return trd_stats_cpu(&v->tensor, k, s, samples);
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = trd_stats_cpu(&v->tensor, k, s, samples);
    Py_END_ALLOW_THREADS
    return rc;
}

/* stats(tensor, k) -> dict, or None where the tensor must be resolved. */
static PyObject *stats(PyObject *module, PyObject *const *args,
                       Py_ssize_t n_args)
{
    (void)module;
    struct view v;
    struct trd_stats s;
    if (n_args != 2) {
        PyErr_SetString(PyExc_TypeError, "stats(tensor, k)");
        return NULL;
    }
    unsigned long k = PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    if (k > TRD_MAX_SAMPLES)
        return PyErr_Format(PyExc_ValueError, "more than %d samples",
                            TRD_MAX_SAMPLES);
    if (view_of(args[0], &v))
        return none();
    memset(&s, 0, sizeof s);
    size_t room = k * (size_t)trd_dtype_bytes(v.tensor.dtype);
    char *samples = PyMem_Malloc(room + 1);
    if (!samples)
        return PyErr_NoMemory();
    int rc = compute(&v, (uint32_t)k, &s, samples);
    PyObject *d = NULL;
    if (rc == TRD_EUNSUPPORTED) {
        memset(&s, 0, sizeof s);
        s.n = v.n;
        rc = 0;
    }
    if (rc)
        PyErr_SetString(rc == TRD_ENOMEM ? PyExc_MemoryError
                                         : PyExc_ValueError,
                        trd_strerror(rc));
    else
        d = figures(&v, &s, samples);
    PyMem_Free(samples);
    return d;
}

/* ---- The client ------------------------------------------------------ */

struct client {
    PyObject ob_base;
    struct trd_client *c; /* NULL once closed */
    struct trd_client *leaving; /* closed while calls were still inside */
    unsigned inside; /* calls that run without the GIL */
};

static void enter(struct client *self)
{
    self->inside++;
}

static void leave(struct client *self)
{
    if (--self->inside || !self->leaving)
        return;
    struct trd_client *c = self->leaving;
    self->leaving = NULL;
    Py_BEGIN_ALLOW_THREADS
    trd_client_close(c);
    Py_END_ALLOW_THREADS
}

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

static PyObject *misuse(const char *how)
{
    PyErr_SetString(PyExc_TypeError, how);
    return NULL;
}

static struct trd_when when_of(const uint64_t v[6], int dtype)
{
    struct trd_when when = {.step = v[1],
                            .iteration = v[2],
                            .microbatch = (uint32_t)v[3],
                            .labels = (uint32_t)v[4] | labels_of(dtype),
                            .note = (uint32_t)v[5]};
    return when;
}

/* record(site, step, iteration, microbatch, labels, note, tensor, k): True
 * when it was recorded or counted as lost, False when the tensor must be
 * resolved first. Raises for wrong arguments only. */
static PyObject *client_record(PyObject *o, PyObject *const *args,
                               Py_ssize_t n_args)
{
    struct client *self = (struct client *)o;
    uint64_t v[6], k;
    struct view view;
    if (n_args != 8)
        return misuse("record takes 8 arguments");
    if (numbers_of(args, 6, v) || numbers_of(args + 7, 1, &k))
        return NULL;
    if (!self->c)
        return answer(true);
    if (view_of(args[6], &view))
        return answer(false);
    struct trd_when when = when_of(v, view.tensor.dtype);
    if (!is_big(&view)) {
        trd_submit_cpu(self->c, (uint32_t)v[0], &when, &view.tensor,
                       (uint32_t)k);
        return answer(true);
    }
    struct trd_client *c = self->c;
    enter(self);
    Py_BEGIN_ALLOW_THREADS
    trd_submit_cpu(c, (uint32_t)v[0], &when, &view.tensor, (uint32_t)k);
    Py_END_ALLOW_THREADS
    leave(self);
    return answer(true);
}

/* record_as(..., tensor, k, shape): the figures of tensor under another
 * shape, for values that stand for a larger tensor. */
static PyObject *client_record_as(PyObject *o, PyObject *const *args,
                                  Py_ssize_t n_args)
{
    struct client *self = (struct client *)o;
    uint64_t v[6], k;
    struct view view;
    if (n_args != 9)
        return misuse("record_as takes 9 arguments");
    if (numbers_of(args, 6, v) || numbers_of(args + 7, 1, &k))
        return NULL;
    if (!self->c)
        return answer(true);
    if (k > TRD_MAX_SAMPLES || view_of(args[6], &view))
        return answer(false);
    struct trd_stats s;
    memset(&s, 0, sizeof s);
    size_t room = (size_t)k * trd_dtype_bytes(view.tensor.dtype);
    char *samples = PyMem_Malloc(room + 1);
    if (!samples)
        return PyErr_NoMemory();
    struct trd_client *c = self->c;
    struct trd_when when = when_of(v, view.tensor.dtype);
    enter(self);
    int rc = compute(&view, (uint32_t)k, &s, samples);
    struct view shown = view;
    shown.tensor.shape = shown.shape;
    shown.tensor.strides = NULL;
    shown.tensor.ndim = int64s_of(args[8], shown.shape);
    if (rc || shown.tensor.ndim < 0)
        trd_lost(c, TRD_LOST_ERROR, 1);
    else
        trd_submit(c, (uint32_t)v[0], &when, &shown.tensor, &s, samples);
    leave(self);
    PyMem_Free(samples);
    return answer(true);
}

/* record_shape(site, step, iteration, microbatch, labels, note, dtype,
 * shape): no figures, for a tensor that cannot be read. */
static PyObject *client_record_shape(PyObject *o, PyObject *const *args,
                                     Py_ssize_t n_args)
{
    struct client *self = (struct client *)o;
    uint64_t v[6];
    struct view view;
    if (n_args != 8)
        return misuse("record_shape takes 8 arguments");
    if (numbers_of(args, 6, v))
        return NULL;
    PyObject *bytes = PyUnicode_AsUTF8String(args[6]);
    if (!bytes)
        return NULL;
    int code = trd_dtype_parse(PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    if (!self->c)
        return answer(true);
    memset(&view.tensor, 0, sizeof view.tensor);
    view.tensor.dtype = code > 0 ? (enum trd_dtype)code : TRD_OPAQUE;
    view.tensor.shape = view.shape;
    view.tensor.ndim = int64s_of(args[7], view.shape);
    if (view.tensor.ndim < 0 || count_elements(&view)) {
        trd_lost(self->c, TRD_LOST_ERROR, 1);
        return answer(true);
    }
    struct trd_stats s;
    memset(&s, 0, sizeof s);
    s.n = view.n;
    struct trd_when when = when_of(v, 0);
    if (code <= 0)
        when.labels |= TRD_L_UNSUPPORTED;
    trd_submit(self->c, (uint32_t)v[0], &when, &view.tensor, &s, "");
    return answer(true);
}

/* site(pass, io, position, instance, class, module, path) -> id */
static PyObject *client_site(PyObject *o, PyObject *args)
{
    struct client *self = (struct client *)o;
    int pass, io;
    unsigned position, instance;
    const char *class_name, *module, *path;
    if (!PyArg_ParseTuple(args, "iiIIsss", &pass, &io, &position, &instance,
                          &class_name, &module, &path))
        return NULL;
    struct trd_site site = {.pass = (enum trd_pass)pass,
                            .io = (enum trd_io)io,
                            .position = position,
                            .instance = instance,
                            .class_name = class_name,
                            .module = module,
                            .path = path};
    uint32_t id = 0;
    int rc = self->c ? trd_site(self->c, &site, &id) : TRD_ECLOSED;
    if (rc)
        return PyErr_Format(PyExc_ValueError, "%s", trd_strerror(rc));
    return PyLong_FromUnsignedLong(id);
}

static PyObject *client_note(PyObject *o, PyObject *args)
{
    struct client *self = (struct client *)o;
    const char *text;
    uint32_t id = 0;
    if (!PyArg_ParseTuple(args, "s", &text))
        return NULL;
    int rc = self->c ? trd_note(self->c, text, &id) : TRD_ECLOSED;
    if (rc)
        return PyErr_Format(PyExc_ValueError, "%s", trd_strerror(rc));
    return PyLong_FromUnsignedLong(id);
}

/* lost(n): records that could not be made, cause "error". */
static PyObject *client_lost(PyObject *o, PyObject *args)
{
    struct client *self = (struct client *)o;
    unsigned long long n;
    if (!PyArg_ParseTuple(args, "K", &n))
        return NULL;
    if (self->c)
        trd_lost(self->c, TRD_LOST_ERROR, n);
    return none();
}

/* flush(timeout_ms) -> 0 or an error code; waits without the GIL. */
static PyObject *client_flush(PyObject *o, PyObject *args)
{
    struct client *self = (struct client *)o;
    int timeout_ms, rc = TRD_ECLOSED;
    if (!PyArg_ParseTuple(args, "i", &timeout_ms))
        return NULL;
    struct trd_client *c = self->c;
    if (c) {
        enter(self);
        Py_BEGIN_ALLOW_THREADS
        rc = trd_flush(c, timeout_ms);
        Py_END_ALLOW_THREADS
        leave(self);
    }
    return PyLong_FromLong(rc);
}

static PyObject *lost_dict(const uint64_t lost[TRD_CAUSE_COUNT])
{
    static const char *const cause[TRD_CAUSE_COUNT] = {
#define CAUSE_NAME(name, text) text,
        TRD_CAUSES(CAUSE_NAME)
#undef CAUSE_NAME
    };
    PyObject *d = PyDict_New();
    for (int i = 0; d && i < TRD_CAUSE_COUNT; i++) {
        if (lost[i] &&
            put(d, cause[i], PyLong_FromUnsignedLongLong(lost[i]))) {
            Py_DECREF(d);
            d = NULL;
        }
    }
    return d;
}

static PyObject *client_counters(PyObject *o, PyObject *unused)
{
    (void)unused;
    struct client *self = (struct client *)o;
    struct trd_counters c;
    memset(&c, 0, sizeof c);
    if (self->c)
        trd_counters(self->c, &c);
    PyObject *d = PyDict_New();
    if (!d)
        return NULL;
    if (put(d, "submitted", PyLong_FromUnsignedLongLong(c.submitted)) ||
        put(d, "committed", PyLong_FromUnsignedLongLong(c.committed)) ||
        put(d, "durable", PyLong_FromUnsignedLongLong(c.durable)) ||
        put(d, "lost", lost_dict(c.lost)) ||
        put(d, "connects", PyLong_FromUnsignedLongLong(c.connects)) ||
        put(d, "journal_used_bytes",
            PyLong_FromUnsignedLongLong(c.journal_used_bytes)) ||
        put(d, "journal_bytes",
            PyLong_FromUnsignedLongLong(c.journal_bytes)) ||
        put(d, "connected", PyBool_FromLong(c.connected)) ||
        put(d, "last_error",
            c.last_error ? PyUnicode_FromString(trd_strerror(c.last_error))
                         : none())) {
        Py_DECREF(d);
        return NULL;
    }
    return d;
}

static PyObject *client_run_name(PyObject *o, PyObject *unused)
{
    (void)unused;
    struct client *self = (struct client *)o;
    char name[TRD_MAX_RUN + 1] = "";
    if (self->c)
        trd_run_name(self->c, name, sizeof name);
    return PyUnicode_FromString(name);
}

static void shut(struct client *self)
{
    struct trd_client *c = self->c;
    self->c = NULL;
    if (!c)
        return;
    if (self->inside) {
        self->leaving = c;
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    trd_client_close(c);
    Py_END_ALLOW_THREADS
}

static PyObject *client_close(PyObject *o, PyObject *unused)
{
    (void)unused;
    shut((struct client *)o);
    return none();
}

static void client_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    shut((struct client *)o);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(o);
    Py_DECREF(type);
}

/* A METH_FASTCALL function passes through the type that PyMethodDef has. */
#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef client_methods[] = {
    {"record", FAST(client_record), METH_FASTCALL,
     "record(site, step, iteration, microbatch, labels, note, tensor, k)"},
    {"record_as", FAST(client_record_as), METH_FASTCALL,
     "record_as(site, step, iteration, microbatch, labels, note, tensor, k, "
     "shape)"},
    {"record_shape", FAST(client_record_shape), METH_FASTCALL,
     "record_shape(site, step, iteration, microbatch, labels, note, dtype, "
     "shape)"},
    {"site", client_site, METH_VARARGS,
     "site(pass, io, position, instance, class_name, module, path) -> int"},
    {"note", client_note, METH_VARARGS, "note(text) -> int"},
    {"lost", client_lost, METH_VARARGS, "lost(n)"},
    {"flush", client_flush, METH_VARARGS, "flush(timeout_ms) -> int"},
    {"counters", client_counters, METH_NOARGS, "counters() -> dict"},
    {"run_name", client_run_name, METH_NOARGS, "run_name() -> str"},
    {"close", client_close, METH_NOARGS, "close(): waits 100 ms at most"},
    {NULL, NULL, 0, NULL}};

static PyType_Slot client_slots[] = {
    {Py_tp_dealloc, (void *)client_dealloc},
    {Py_tp_methods, client_methods},
    {Py_tp_doc, (void *)"A connection to tracerd; made by open()."},
    {0, NULL}};

static PyType_Spec client_spec = {
    .name = "tracerd._tracerd.Client",
    .basicsize = sizeof(struct client),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = client_slots};

static PyObject *client_type;

/* open(run, job, info, rank, world, attempt, journal_bytes, thread,
 * dir=None) */
static PyObject *open_client(PyObject *module, PyObject *args)
{
    (void)module;
    struct trd_client_options options;
    const char *run, *job, *info, *dir = NULL;
    unsigned rank, world, attempt;
    unsigned long long journal_bytes;
    int thread;
    if (!PyArg_ParseTuple(args, "zzzIIIKp|z", &run, &job, &info, &rank,
                          &world, &attempt, &journal_bytes, &thread, &dir))
        return NULL;
    trd_client_options_init(&options);
    options.dir = dir;
    if (run)
        options.run = run;
    if (job)
        options.job = job;
    options.info = info;
    options.rank = rank;
    options.world = world;
    options.attempt = attempt;
    if (journal_bytes)
        options.journal_bytes = journal_bytes;
    options.no_thread = !thread;
    PyTypeObject *type = (PyTypeObject *)client_type;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct client *self = (struct client *)alloc(type, 0);
    if (!self)
        return NULL;
    int rc;
    struct trd_client *c = NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = trd_client_open(&options, &c);
    Py_END_ALLOW_THREADS
    if (rc) {
        Py_DECREF((PyObject *)self);
        PyErr_SetString(rc == TRD_ENOMEM ? PyExc_MemoryError
                                         : PyExc_ValueError,
                        trd_strerror(rc));
        return NULL;
    }
    self->c = c;
    return (PyObject *)self;
}

/* ---- The module ------------------------------------------------------ */

static const struct dl_exchange_api *find_api(PyObject *tensor_type)
{
    PyObject *capsule =
        PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__");
    const struct dl_exchange_api *api = NULL;
    if (capsule)
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    PyErr_Clear();
    Py_XDECREF(capsule); /* the table itself is static in torch */
    if (!api || api->header.major != 1 || !api->tensor_from_py)
        return NULL;
    return api;
}

/* setup(Tensor, Parameter, strided): what of torch is looked at. Returns
 * whether the exchange functions are there. Once is enough. */
static PyObject *setup(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tensor, *parameter, *strided;
    if (!PyArg_ParseTuple(args, "OOO", &tensor, &parameter, &strided))
        return NULL;
    if (!torch.tensor) {
        torch.dtypes = PyDict_New();
        if (!torch.dtypes)
            return NULL;
        Py_INCREF(parameter);
        Py_INCREF(strided);
        Py_INCREF(tensor);
        torch.parameter = parameter;
        torch.strided = strided;
        torch.tensor = tensor;
        torch.found_api = torch.api = find_api(tensor);
    }
    return PyBool_FromLong(torch.found_api != NULL);
}

/* use_exchange(on): which of the two ways is taken, for tests. Returns
 * whether the exchange functions are used from now on. */
static PyObject *use_exchange(PyObject *module, PyObject *on)
{
    (void)module;
    torch.api = PyObject_IsTrue(on) > 0 ? torch.found_api : NULL;
    return PyBool_FromLong(torch.api != NULL);
}

static PyMethodDef module_methods[] = {
    {"setup", setup, METH_VARARGS, "setup(Tensor, Parameter, strided)"},
    {"use_exchange", use_exchange, METH_O, "use_exchange(on) -> bool"},
    {"stats", FAST(stats), METH_FASTCALL, "stats(tensor, k) -> dict or None"},
    {"open", open_client, METH_VARARGS,
     "open(run, job, info, rank, world, attempt, journal_bytes, thread, "
     "dir=None) -> Client"},
    {NULL, NULL, 0, NULL}};

/* Every X(name, code, text) of a list as a dict text -> number. */
static int put_names(PyObject *module, const char *name, const char **text,
                     const long *number, size_t n)
{
    PyObject *d = PyDict_New();
    if (!d)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (put(d, text[i], PyLong_FromLong(number[i]))) {
            Py_DECREF(d);
            return -1;
        }
    int rc = PyObject_SetAttrString(module, name, d);
    Py_DECREF(d);
    return rc;
}

static int module_exec(PyObject *module)
{
#define NAME_INTERN(name)                                                     \
    if (!names.name && !(names.name = PyUnicode_InternFromString(#name)))     \
        return -1;
    NAMES(NAME_INTERN)
#undef NAME_INTERN
#define TEXT_OF(name, code, text) text,
#define CODE_OF(name, code, text) code,
#define BIT_OF(name, bit, text) 1L << bit,
    const char *label_text[] = {TRD_LABELS(TEXT_OF)};
    const long label_bit[] = {TRD_LABELS(BIT_OF)};
    const char *pass_text[] = {TRD_PASSES(TEXT_OF)};
    const long pass_code[] = {TRD_PASSES(CODE_OF)};
#undef TEXT_OF
#undef CODE_OF
#undef BIT_OF
    if (put_names(module, "LABEL_BITS", label_text, label_bit,
                  sizeof label_bit / sizeof *label_bit) ||
        put_names(module, "PASSES", pass_text, pass_code,
                  sizeof pass_code / sizeof *pass_code) ||
        PyModule_AddStringConstant(module, "version", trd_version()) ||
        PyModule_AddStringConstant(module, "REFUSED",
                                   trd_strerror(TRD_EREFUSED)) ||
        PyModule_AddIntConstant(module, "MAX_NAME", TRD_MAX_NAME) ||
        PyModule_AddIntConstant(module, "MAX_SAMPLES", TRD_MAX_SAMPLES) ||
        PyModule_AddIntConstant(module, "MAX_RUN", TRD_MAX_RUN))
        return -1;
    if (!client_type)
        client_type = PyType_FromSpec(&client_spec);
    return client_type ? 0 : -1;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec}, {0, NULL}};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT,
                                        .m_name = "_tracerd",
                                        .m_methods = module_methods,
                                        .m_slots = module_slots};

PyMODINIT_FUNC PyInit__tracerd(void);
PyMODINIT_FUNC PyInit__tracerd(void)
{
    return PyModuleDef_Init(&module_def);
}
