/* What is known of torch, and a tensor as the library wants it.
 *
 * Tensors are read either through the table of functions that
 * torch.Tensor.__dlpack_c_exchange_api__ offers (no Python call at all) or,
 * where torch has none, through the tensor's attributes. Both give the same
 * view of the same memory. */
#include "client/python/view.h"

#include <limits.h>
#include <string.h>

#include "client/python/dlpack.h"

/* From this size on the statistics take long enough (some 5 us) that other
 * threads should run meanwhile. */
enum { BIG_BYTES = 64 * 1024 };

/* ---- What is known of torch ----------------------------------------- */

/* Set once by view_setup(), under the GIL; never freed. */
static struct {
    PyObject *tensor;    /* torch.Tensor */
    PyObject *parameter; /* torch.nn.Parameter */
    PyObject *strided;   /* torch.strided */
    PyObject *stream;    /* device index -> stream; NULL: no CUDA */
    PyObject *dtypes;    /* dict: torch dtype -> int */
    const struct dl_exchange_api *api; /* NULL: attributes only */
    const struct dl_exchange_api *found_api;
} torch;

/* Tests: the CPU is device 0. */
static bool cpu_is_device;
static void *device_stream;

/* Attribute names, interned by view_init(). */
#define NAMES(X)                                                              \
    X(data_ptr)                                                               \
    X(device)                                                                 \
    X(dtype)                                                                  \
    X(index)                                                                  \
    X(is_conj)                                                                \
    X(is_cpu)                                                                 \
    X(is_cuda)                                                                \
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

int view_init(void)
{
#define NAME_INTERN(name)                                                     \
    if (!names.name && !(names.name = PyUnicode_InternFromString(#name)))     \
        return -1;
    NAMES(NAME_INTERN)
#undef NAME_INTERN
    return 0;
}

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

int view_setup(PyObject *tensor, PyObject *parameter, PyObject *strided,
               PyObject *stream)
{
    if (!torch.tensor) {
        torch.dtypes = PyDict_New();
        if (!torch.dtypes)
            return -1;
        Py_INCREF(parameter);
        Py_INCREF(strided);
        Py_INCREF(tensor);
        if (stream != Py_None) {
            Py_INCREF(stream);
            torch.stream = stream;
        }
        torch.parameter = parameter;
        torch.strided = strided;
        torch.tensor = tensor;
        torch.found_api = torch.api = find_api(tensor);
    }
    return torch.found_api != NULL;
}

bool view_use_exchange(bool on)
{
    torch.api = on ? torch.found_api : NULL;
    return torch.api != NULL;
}

void view_use_device(bool on, void *stream)
{
    cpu_is_device = on;
    device_stream = stream;
}

int view_stream(int device, void **stream)
{
    *stream = device_stream;
    if (cpu_is_device)
        return 0;
    if (torch.api && torch.api->work_stream) {
        if (!torch.api->work_stream(DL_CUDA, device, stream))
            return 0;
        PyErr_Clear();
    }
    PyObject *o = torch.stream
                      ? PyObject_CallFunction(torch.stream, "i", device)
                      : NULL;
    if (o)
        *stream = PyLong_AsVoidPtr(o);
    Py_XDECREF(o);
    if (o && !PyErr_Occurred())
        return 0;
    PyErr_Clear();
    return -1;
}

/* ---- A tensor as the library wants it ------------------------------- */

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

int view_int64s(PyObject *tuple, int64_t out[TRD_MAX_DIMS])
{
    Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (n < 0 || n > TRD_MAX_DIMS)
        return -1;
    for (Py_ssize_t i = 0; i < n; i++)
        if (int64_of(PyTuple_GetItem(tuple, i), &out[i]))
            return -1;
    return (int)n;
}

int view_count(struct view *v)
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
    if (d.ndim < 0 || d.ndim > TRD_MAX_DIMS)
        return -1;
    if (d.device.type == DL_CUDA && torch.stream)
        out->device = d.device.id;
    else if (d.device.type == DL_CPU)
        out->device = VIEW_CPU;
    else
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

/* 0 and out->device for a tensor of the CPU or a CUDA device. */
static int device_by_attributes(PyObject *o, struct view *out)
{
    int64_t index;
    out->device = VIEW_CPU;
    if (attribute_is(o, names.is_cpu, Py_True))
        return 0;
    if (!torch.stream || !attribute_is(o, names.is_cuda, Py_True))
        return -1;
    PyObject *device = PyObject_GetAttr(o, names.device);
    PyObject *number = device ? PyObject_GetAttr(device, names.index) : NULL;
    int failed = int64_of(number, &index) || index < 0 || index > INT_MAX;
    if (!failed)
        out->device = (int)index;
    PyErr_Clear();
    Py_XDECREF(number);
    Py_XDECREF(device);
    return failed ? -1 : 0;
}

static int view_by_attributes(PyObject *o, struct view *out)
{
    if (device_by_attributes(o, out) ||
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
    ndim = view_int64s(shape, out->shape);
    code = dtype_of_object(dtype);
    if (ndim < 0 || code < 0 || view_int64s(strides, out->strides) != ndim)
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

int view_address(PyObject *o, const void **address)
{
    struct view v;
    if (!torch.tensor ||
        (torch.api ? view_by_exchange(o, &v) : view_by_attributes(o, &v)))
        return -1;
    *address = v.tensor.data;
    return 0;
}

int view_of(PyObject *o, struct view *out)
{
    PyObject *type = (PyObject *)Py_TYPE(o);
    if (!torch.tensor || (type != torch.tensor && type != torch.parameter))
        return -1;
    if (torch.api ? view_by_exchange(o, out) : view_by_attributes(o, out))
        return -1;
    if (view_count(out))
        return -1;
    out->parameter = type == torch.parameter;
    if (cpu_is_device && out->device == VIEW_CPU)
        out->device = 0;
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

bool view_is_here(const struct view *v)
{
    return v->device == VIEW_CPU || cpu_is_device;
}

bool view_is_big(const struct view *v)
{
    unsigned bytes = trd_dtype_bytes(v->tensor.dtype);
    return bytes && v->n > BIG_BYTES / bytes;
}

uint32_t view_labels(int dtype)
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
