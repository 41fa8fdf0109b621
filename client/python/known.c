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

PyObject *hooks_show_call(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *type, *function;
    if (!PyArg_ParseTuple(args, "O!O", &PyType_Type, &type, &function))
        return NULL;
    /* Set as an attribute, it would become what is called. */
    PyObject *dict = PyObject_GenericGetDict(type, NULL);
    int rc = dict && PyDict_Check(dict)
                 ? PyDict_SetItem(dict, hook_names.__call__, function)
                 : -1;
    Py_XDECREF(dict);
    if (rc) {
        PyErr_Clear();
        rc = PyObject_SetAttr(type, hook_names.__call__, function);
    }
    PyType_Modified((PyTypeObject *)type);
    return rc ? NULL : py_none();
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

/* torch.compiler.is_compiling() without its frame, where it is no more than
 * a flag of that module. */
int known_compiling(void)
{
    if (!PyDict_Check(known.compiler))
        return known_answer(known.is_compiling);
    PyObject *yes =
        PyDict_GetItemWithError(known.compiler, hook_names._is_compiling_flag);
    if (yes == Py_False)
        return 0;
    if (!yes)
        return PyErr_Occurred() ? -1 : 0;
    return PyObject_IsTrue(yes);
}

long long known_task(void)
{
    return number_of(PyObject_CallNoArgs(known.graph_task));
}

int known_hide(PyObject **guard)
{
    *guard = NULL;
    long long n = number_of(PyObject_CallNoArgs(known.modes));
    if (n <= 0)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *context = PyObject_CallNoArgs(known.unseen);
    PyObject *entered = context ? PyObject_CallMethodObjArgs(
                                      context, hook_names.__enter__, NULL)
                                : NULL;
    if (!entered) {
        Py_XDECREF(context);
        return -1;
    }
    Py_DECREF(entered);
    *guard = context;
    return 0;
}

void known_show(PyObject *guard)
{
    if (!guard)
        return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *done =
        PyObject_CallMethodObjArgs(guard, hook_names.__exit__, Py_None,
                                   Py_None, Py_None, NULL);
    if (!done)
        PyErr_Clear();
    Py_XDECREF(done);
    Py_DECREF(guard);
    PyErr_Restore(type, value, trace);
}

PyObject *known_function(PyObject *name)
{
    PyObject *function = PyDict_GetItemWithError(known.globals, name);
    if (!function && !PyErr_Occurred())
        PyErr_SetObject(PyExc_NameError, name);
    return function;
}
