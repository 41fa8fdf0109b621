/* The C half of the Python module: from a torch.Tensor to the library.
 *
 * view.c describes a tensor, figures.c makes a dict of its figures, tracer.c
 * is the Client, record.c makes its records, same.c saves reading a tensor
 * twice, hooks.h has what the hooks of modules are made of; here they become a
 * module. For a tensor that view.c does not
 * read, record() and stats() answer False or None, and the Python half
 * resolves it first.
 *
 * Threads: any that holds the GIL. Of all these files' symbols only the
 * module's init function is public. */
#include "client/python/py.h"

#include "client/python/figures.h"
#include "client/python/hooks.h"
#include "client/python/same.h"
#include "client/python/tracer.h"
#include "client/python/view.h"
#include "tracerd/stats.h"

/* setup(Tensor, Parameter, strided, stream, transform): what of torch is
 * looked at. stream(device) gives the current stream, or is None; transform()
 * gives None where no transform is at work. Returns whether the exchange
 * functions are there. Once is enough. */
static PyObject *setup(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tensor, *parameter, *strided, *stream, *transform;
    if (!PyArg_ParseTuple(args, "OOOOO", &tensor, &parameter, &strided,
                          &stream, &transform))
        return NULL;
    same_setup(transform);
    int exchange = view_setup(tensor, parameter, strided, stream);
    return exchange < 0 ? NULL : PyBool_FromLong(exchange);
}

/* use_exchange(on): which of the two ways is taken, for tests. Returns
 * whether the exchange functions are used from now on. */
static PyObject *use_exchange(PyObject *module, PyObject *on)
{
    (void)module;
    return PyBool_FromLong(view_use_exchange(PyObject_IsTrue(on) > 0));
}

/* use_device(stream): tensors of the CPU are taken for those of CUDA device
 * 0, on the stream of that address, for tests; None ends it. */
static PyObject *use_device(PyObject *module, PyObject *stream)
{
    (void)module;
    void *address = stream == Py_None ? NULL : PyLong_AsVoidPtr(stream);
    if (PyErr_Occurred())
        return NULL;
    view_use_device(stream != Py_None, address);
    return py_none();
}

/* device_of(tensor) -> the index of its CUDA device, -1 for the CPU, or None
 * where the tensor must be resolved. */
static PyObject *device_of(PyObject *module, PyObject *tensor)
{
    (void)module;
    struct view v;
    return view_of(tensor, &v) ? py_none() : PyLong_FromLong(v.device);
}

/* threads(n): how many may work on one large tensor. */
static PyObject *threads(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned n;
    if (!PyArg_ParseTuple(args, "I", &n))
        return NULL;
    int rc = trd_stats_threads(n);
    if (rc)
        return PyErr_Format(PyExc_ValueError, "%s", trd_strerror(rc));
    return py_none();
}

/* kernel() -> name of the instruction set that reads tensors. */
static PyObject *kernel(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(trd_stats_kernel());
}

/* places(n, k, sampling, sampling_arg) -> list of the elements of n that are
 * samples. */
static PyObject *places(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long n, arg;
    unsigned k;
    int sampling;
    if (!PyArg_ParseTuple(args, "KIiK", &n, &k, &sampling, &arg))
        return NULL;
    const struct trd_want want = {.samples = k,
                                  .sampling = (enum trd_sampling)sampling,
                                  .sampling_arg = arg};
    if (k > TRD_MAX_SAMPLES || !trd_sampling_name(sampling) ||
        (sampling == TRD_EVERY && !arg)) {
        PyErr_SetString(PyExc_ValueError, trd_strerror(TRD_EINVAL));
        return NULL;
    }
    uint32_t count = trd_sample_count(n, &want);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *place =
            PyLong_FromUnsignedLongLong(trd_sample_index(n, &want, i));
        if (!place) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SetItem(list, (Py_ssize_t)i, place);
    }
    return list;
}

static PyMethodDef module_methods[] = {
    {"setup", setup, METH_VARARGS,
     "setup(Tensor, Parameter, strided, stream, transform)"},
    {"use_exchange", use_exchange, METH_O, "use_exchange(on) -> bool"},
    {"use_device", use_device, METH_O, "use_device(stream or None)"},
    {"device_of", device_of, METH_O, "device_of(tensor) -> int or None"},
    {"threads", threads, METH_VARARGS, "threads(n)"},
    {"kernel", kernel, METH_NOARGS, "kernel() -> str"},
    {"places", places, METH_VARARGS,
     "places(n, k, sampling, sampling_arg) -> list"},
    {"stats", PY_FAST(figures_stats), METH_FASTCALL,
     "stats(tensor, k, sampling=0, sampling_arg=0, histogram=0) -> dict or "
     "None"},
    {"hooks_setup", hooks_setup, METH_O, "hooks_setup(dict)"},
    {"show_call", hooks_show_call, METH_VARARGS,
     "show_call(type, function)"},
    {"open", tracer_open, METH_VARARGS,
     "open(run, job, info, rank, world, attempt, journal_bytes, thread, "
     "dir=None, sampling=0, sampling_arg=0, histogram=0, same=False) -> "
     "Client"},
    {NULL, NULL, 0, NULL}};

/* Every X(name, code, text) of a list as a dict text -> number. */
static int put_names(PyObject *module, const char *name, const char **text,
                     const long *number, size_t n)
{
    PyObject *d = PyDict_New();
    if (!d)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (py_put(d, text[i], PyLong_FromLong(number[i]))) {
            Py_DECREF(d);
            return -1;
        }
    int rc = PyObject_SetAttrString(module, name, d);
    Py_DECREF(d);
    return rc;
}

static int module_exec(PyObject *module)
{
    if (view_init())
        return -1;
#define TEXT_OF(name, code, text) text,
#define CODE_OF(name, code, text) code,
#define BIT_OF(name, bit, text) 1L << bit,
    const char *label_text[] = {TRD_LABELS(TEXT_OF)};
    const long label_bit[] = {TRD_LABELS(BIT_OF)};
    const char *pass_text[] = {TRD_PASSES(TEXT_OF)};
    const long pass_code[] = {TRD_PASSES(CODE_OF)};
    const char *sampling_text[] = {TRD_SAMPLINGS(TEXT_OF)};
    const long sampling_code[] = {TRD_SAMPLINGS(CODE_OF)};
    const char *histogram_text[] = {TRD_HISTOGRAMS(TEXT_OF)};
    const long histogram_code[] = {TRD_HISTOGRAMS(CODE_OF)};
#undef TEXT_OF
#undef CODE_OF
#undef BIT_OF
    if (put_names(module, "LABEL_BITS", label_text, label_bit,
                  sizeof label_bit / sizeof *label_bit) ||
        put_names(module, "PASSES", pass_text, pass_code,
                  sizeof pass_code / sizeof *pass_code) ||
        put_names(module, "SAMPLINGS", sampling_text, sampling_code,
                  sizeof sampling_code / sizeof *sampling_code) ||
        put_names(module, "HISTOGRAMS", histogram_text, histogram_code,
                  sizeof histogram_code / sizeof *histogram_code) ||
        PyModule_AddStringConstant(module, "version", trd_version()) ||
        PyModule_AddStringConstant(module, "REFUSED",
                                   trd_strerror(TRD_EREFUSED)) ||
        PyModule_AddIntConstant(module, "MAX_NAME", TRD_MAX_NAME) ||
        PyModule_AddIntConstant(module, "MAX_SAMPLES", TRD_MAX_SAMPLES) ||
        PyModule_AddIntConstant(module, "MAX_THREADS", TRD_MAX_THREADS) ||
        PyModule_AddIntConstant(module, "MAX_RUN", TRD_MAX_RUN))
        return -1;
    return tracer_init() || hooks_init(module) ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED}, /* it guards the hooks */
#endif
    {0, NULL}};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT,
                                        .m_name = "_tracerd",
                                        .m_methods = module_methods,
                                        .m_slots = module_slots};

PyMODINIT_FUNC PyInit__tracerd(void);
PyMODINIT_FUNC PyInit__tracerd(void)
{
    return PyModuleDef_Init(&module_def);
}
