/* Figures as a dict, in the form that numpy gives them. */
#include "client/python/figures.h"

#include <stdio.h>
#include <string.h>

#include "client/stats/kernel.h"
#include "proto/figures.h"

static PyObject *float_or_none(bool holds, double v)
{
    return holds ? PyFloat_FromDouble(v) : py_none();
}

static PyObject *count_or_none(bool holds, uint64_t v)
{
    return holds ? PyLong_FromUnsignedLongLong(v) : py_none();
}

/* max or min, exact. */
static PyObject *extreme(bool holds, int kind, union trd_value v)
{
    if (!holds)
        return py_none();
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
        return py_none();
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
        return py_none();
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return PyUnicode_FromString(text);
}

/* [rule, argument] */
static PyObject *sampling_pair(const struct trd_stats *s)
{
    return Py_BuildValue("[sK]", trd_sampling_name((int)s->sampling),
                         (unsigned long long)s->sampling_arg);
}

static PyObject *count_list(const struct trd_histogram *h)
{
    PyObject *list = PyList_New((Py_ssize_t)h->n);
    for (uint32_t i = 0; list && i < h->n; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(h->count[i]);
        if (!count) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SetItem(list, (Py_ssize_t)i, count);
    }
    return list;
}

static PyObject *histogram_dict(int dtype, const struct trd_histogram *h)
{
    if (!h)
        return py_none();
    PyObject *d = PyDict_New();
    if (!d)
        return NULL;
    if (py_put(d, "kind",
               PyUnicode_FromString(trd_histogram_name((int)h->kind))) ||
        py_put(d, "first_exponent",
               h->n ? PyLong_FromLong(trd_bin_exponent(dtype, h->first))
                    : py_none()) ||
        py_put(d, "counts", count_list(h))) {
        Py_DECREF(d);
        return NULL;
    }
    return d;
}

static PyObject *figures(const struct view *v, const struct trd_want *want,
                         const struct trd_stats *s, const char *samples)
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
    if (py_put(d, "dtype", PyUnicode_FromString(trd_dtype_name(dtype))) ||
        py_put(d, "shape", shape_list(v)) ||
        py_put(d, "n", PyLong_FromUnsignedLongLong(s->n)) ||
        py_put(d, "max", whole ? extreme(range, kind, s->max)
                               : float_or_none(holds & 1, np[0])) ||
        py_put(d, "min", whole ? extreme(range, kind, s->min)
                               : float_or_none(holds & 2, np[1])) ||
        py_put(d, "mean", float_or_none(holds & 4, np[2])) ||
        py_put(d, "std", float_or_none(holds & 8, np[3])) ||
        py_put(d, "l2", float_or_none(holds & 16, np[4])) ||
        py_put(d, "absmax", magnitude(abs, whole, s->absmax)) ||
        py_put(d, "absmin", magnitude(abs && small, whole, s->absmin)) ||
        py_put(d, "nan", count_or_none(counts, s->nan)) ||
        py_put(d, "pinf", count_or_none(counts, s->pinf)) ||
        py_put(d, "ninf", count_or_none(counts, s->ninf)) ||
        py_put(d, "zero", count_or_none(counts, s->zero)) ||
        py_put(d, "subnormal", count_or_none(counts, s->subnormal)) ||
        py_put(d, "hash", hash_text(s->has & TRD_HAS_HASH, s->hash)) ||
        py_put(d, "samples", sample_list(dtype, samples, s->sample_n)))
        goto fail;
    if (counts && (s->nan || s->pinf || s->ninf) &&
        (py_put(d, "finite_max", extreme(range, kind, s->max)) ||
         py_put(d, "finite_min", extreme(range, kind, s->min)) ||
         py_put(d, "finite_mean", float_or_none(mean, s->mean)) ||
         py_put(d, "finite_std", float_or_none(mean, s->std)) ||
         py_put(d, "finite_l2", float_or_none(l2, s->l2))))
        goto fail;
    if (want->sampling && py_put(d, "sampling", sampling_pair(s)))
        goto fail;
    if (want->histogram &&
        py_put(d, "histogram", histogram_dict(dtype, s->histogram)))
        goto fail;
    return d;
fail:
    Py_DECREF(d);
    return NULL;
}

int figures_compute(const struct view *v, const struct trd_want *want,
                    struct trd_stats *s, void *samples,
                    struct trd_histogram *histogram)
{
    if (!view_is_big(v))
        return trd_stats_cpu_as(&v->tensor, want, s, samples, histogram);
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = trd_stats_cpu_as(&v->tensor, want, s, samples, histogram);
    Py_END_ALLOW_THREADS
    return rc;
}

/* 0, or -1 with an exception. */
static int want_of(PyObject *const *args, Py_ssize_t n_args,
                   struct trd_want *out)
{
    unsigned long long v[4] = {0, 0, 0, 0};
    if (n_args < 2 || n_args > 5) {
        PyErr_SetString(
            PyExc_TypeError,
            "stats(tensor, k, sampling=0, sampling_arg=0, histogram=0)");
        return -1;
    }
    for (Py_ssize_t i = 1; i < n_args; i++) {
        v[i - 1] = PyLong_AsUnsignedLongLong(args[i]);
        if (PyErr_Occurred())
            return -1;
    }
    if (v[0] > TRD_MAX_SAMPLES) {
        PyErr_Format(PyExc_ValueError, "more than %d samples",
                     TRD_MAX_SAMPLES);
        return -1;
    }
    if (v[1] >= TRD_SAMPLING_COUNT || v[3] >= TRD_HISTOGRAM_COUNT) {
        PyErr_SetString(PyExc_ValueError, trd_strerror(TRD_EINVAL));
        return -1;
    }
    out->samples = (uint32_t)v[0];
    out->sampling = (enum trd_sampling)v[1];
    out->sampling_arg = v[2];
    out->histogram = (enum trd_histogram_kind)v[3];
    return 0;
}

/* The figures of a view as a dict, or NULL with an exception. */
static PyObject *stats_of(const struct view *v, const struct trd_want *want,
                          char *samples, struct trd_histogram *histogram)
{
    struct trd_stats s;
    memset(&s, 0, sizeof s);
    int rc = figures_compute(v, want, &s, samples, histogram);
    if (rc == TRD_EUNSUPPORTED) {
        memset(&s, 0, sizeof s);
        s.n = v->n;
        rc = 0;
    }
    if (rc) {
        PyErr_SetString(rc == TRD_ENOMEM ? PyExc_MemoryError
                                         : PyExc_ValueError,
                        trd_strerror(rc));
        return NULL;
    }
    /* the training may flush subnormals to zero: figures do not */
    trd__modes caller;
    trd__modes_enter(&caller);
    PyObject *d = figures(v, want, &s, samples);
    trd__modes_leave(&caller);
    return d;
}

PyObject *figures_stats(PyObject *module, PyObject *const *args,
                        Py_ssize_t n_args)
{
    (void)module;
    struct view v;
    struct trd_want want;
    if (want_of(args, n_args, &want))
        return NULL;
    if (view_of(args[0], &v) || !view_is_here(&v))
        return py_none();
    size_t room = want.samples * (size_t)trd_dtype_bytes(v.tensor.dtype);
    char *samples = PyMem_Malloc(room + 1);
    struct trd_histogram *histogram =
        want.histogram ? PyMem_Malloc(sizeof *histogram) : NULL;
    PyObject *d = NULL;
    if (!samples || (want.histogram && !histogram))
        PyErr_NoMemory();
    else
        d = stats_of(&v, &want, samples, histogram);
    PyMem_Free(histogram);
    PyMem_Free(samples);
    return d;
}
