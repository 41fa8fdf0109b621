/* What the hooks know of torch and of the Python half. */
#include "client/python/hooks.h"

struct known known;
struct hook_names hook_names;

PyObject *hooks_setup(PyObject *module, PyObject *dict)
{
    (void)module;
    if (!PyDict_Check(dict))
        return tracer_misuse("hooks_setup takes a dict");
#define KNOWN_TAKE(name)                                                      \
    if (!known.name) {                                                        \
        known.name = PyDict_GetItemString(dict, #name);                       \
        if (!known.name)                                                      \
            return tracer_misuse("hooks_setup: no " #name);                   \
        Py_INCREF(known.name);                                                \
    }
    KNOWN(KNOWN_TAKE)
#undef KNOWN_TAKE
    PyObject *shared = PyDict_GetItemString(dict, "shared");
    known.shared = shared && PyObject_IsTrue(shared) > 0;
    return py_none();
}

int hooks_init(PyObject *module)
{
#define HOOK_NAME_INTERN(name)                                                \
    if (!hook_names.name &&                                                   \
        !(hook_names.name = PyUnicode_InternFromString(#name)))               \
        return -1;
    HOOK_NAMES(HOOK_NAME_INTERN)
#undef HOOK_NAME_INTERN
    return flat_init() || calls_init(module) || gate_init(module) ||
                   grads_init(module)
               ? -1
               : 0;
}

static int truth_of(PyObject *o)
{
    if (!o)
        return -1;
    int yes = o == Py_True    ? 1
              : o == Py_False ? 0
                              : PyObject_IsTrue(o);
    Py_DECREF(o);
    return yes;
}

int known_attribute(PyObject *o, PyObject *name)
{
    return truth_of(PyObject_GetAttr(o, name));
}

int known_answer(PyObject *function)
{
    return truth_of(PyObject_CallNoArgs(function));
}

int known_none(PyObject *function)
{
    PyObject *o = PyObject_CallNoArgs(function);
    if (!o)
        return -1;
    int none = o == Py_None;
    Py_DECREF(o);
    return none;
}

static long long number_of(PyObject *o)
{
    long long n = o ? PyLong_AsLongLong(o) : -1;
    Py_XDECREF(o);
    return n;
}

long long known_number(PyObject *o, PyObject *name)
{
    return number_of(PyObject_GetAttr(o, name));
}

long long known_task(void)
{
    return number_of(PyObject_CallNoArgs(known.graph_task));
}

PyObject *known_function(PyObject *name)
{
    PyObject *function = PyDict_GetItemWithError(known.globals, name);
    if (!function && !PyErr_Occurred())
        PyErr_SetObject(PyExc_NameError, name);
    return function;
}
