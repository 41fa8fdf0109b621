/* The C half of the Python module: from a torch.Tensor to the library.
 *
 * view.c reads a tensor, figures.c makes a dict of its figures, tracer.c is
 * the Client; here they become a module. For a tensor that view.c does not
 * read, record() and stats() answer False or None, and the Python half
 * resolves it first.
 *
 * Threads: any that holds the GIL. Of all these files' symbols only the
 * module's init function is public. */
#include "client/python/py.h"

#include "client/python/figures.h"
#include "client/python/tracer.h"
#include "client/python/view.h"
#include "tracerd/record.h"

/* setup(Tensor, Parameter, strided): what of torch is looked at. Returns
 * whether the exchange functions are there. Once is enough. */
static PyObject *setup(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tensor, *parameter, *strided;
    if (!PyArg_ParseTuple(args, "OOO", &tensor, &parameter, &strided))
        return NULL;
    int exchange = view_setup(tensor, parameter, strided);
    return exchange < 0 ? NULL : PyBool_FromLong(exchange);
}

/* use_exchange(on): which of the two ways is taken, for tests. Returns
 * whether the exchange functions are used from now on. */
static PyObject *use_exchange(PyObject *module, PyObject *on)
{
    (void)module;
    return PyBool_FromLong(view_use_exchange(PyObject_IsTrue(on) > 0));
}

static PyMethodDef module_methods[] = {
    {"setup", setup, METH_VARARGS, "setup(Tensor, Parameter, strided)"},
    {"use_exchange", use_exchange, METH_O, "use_exchange(on) -> bool"},
    {"stats", PY_FAST(figures_stats), METH_FASTCALL,
     "stats(tensor, k) -> dict or None"},
    {"open", tracer_open, METH_VARARGS,
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
    return tracer_init();
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
