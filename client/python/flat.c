/* The tensors of arguments and results.
 *
 * Tensors in plain tuples, lists and dicts are found here; with anything else
 * in the way, or with very many, flatten.py does it all. */
#include "client/python/hooks.h"

#include <string.h>

#include "client/python/view.h"

enum {
    DIGITS = 32,
    DEPTH = 8,    /* as flatten.py */
    MOST = 512    /* of tensors, and of items on the way */
};

/* "0" to "31", made by flat_init(). */
static PyObject *digits[DIGITS];

/* What may be passed by; the others are for flatten.py. */
enum walked { ODD = -2, FAILED = -1, DONE = 0 };

int flat_init(void)
{
    for (int i = 0; i < DIGITS; i++)
        if (!digits[i] && !(digits[i] = PyUnicode_FromFormat("%d", i)))
            return -1;
    return 0;
}

static void start(struct flat *f)
{
    f->n = 0;
    f->room = FLAT_FEW;
    f->at = f->few;
}

void flat_clear(struct flat *f)
{
    struct flat_item *at = f->at;
    for (Py_ssize_t i = 0; i < f->n; i++) {
        Py_DECREF(at[i].path);
        Py_DECREF(at[i].tensor);
    }
    if (at != f->few)
        PyMem_Free(at);
    start(f);
}

bool flat_again(const struct flat *f, Py_ssize_t i)
{
    for (Py_ssize_t j = 0; j < i; j++)
        if (f->at[j].tensor == f->at[i].tensor)
            return true;
    return false;
}

/* Steals the path. */
static int add(struct flat *f, PyObject *path, PyObject *tensor)
{
    if (f->n == f->room) {
        size_t bytes = (size_t)f->room * sizeof *f->at;
        struct flat_item *more = PyMem_Malloc(2 * bytes);
        if (!more) {
            Py_DECREF(path);
            PyErr_NoMemory();
            return FAILED;
        }
        memcpy(more, f->at, bytes);
        if (f->at != f->few)
            PyMem_Free(f->at);
        f->at = more;
        f->room *= 2;
    }
    Py_INCREF(tensor);
    f->at[f->n++] = (struct flat_item){.path = path, .tensor = tensor};
    return DONE;
}

static PyObject *path_of(PyObject *prefix, Py_ssize_t i)
{
    if (prefix)
        return PyUnicode_FromFormat("%U.%zd", prefix, i);
    if (i >= DIGITS)
        return PyUnicode_FromFormat("%zd", i);
    Py_INCREF(digits[i]);
    return digits[i];
}

static PyObject *path_under(PyObject *prefix, PyObject *key)
{
    if (prefix)
        return PyUnicode_FromFormat("%U.%U", prefix, key);
    Py_INCREF(key);
    return key;
}

static bool is_plain(PyObject *o)
{
    return o == Py_None || PyLong_Check(o) || PyFloat_Check(o) ||
           PyUnicode_Check(o) || PyBytes_Check(o) || PyComplex_Check(o);
}

static bool is_container(PyObject *o)
{
    return PyTuple_CheckExact(o) || PyList_CheckExact(o) ||
           PyDict_CheckExact(o);
}

static int walk(struct flat *f, PyObject *o, PyObject *prefix, int depth,
                int *budget);

/* One item of a container, of which the path is stolen. */
static int step(struct flat *f, PyObject *item, PyObject *path, int depth,
                int *budget)
{
    int rc = ODD;
    if (!path)
        return FAILED;
    if (known_is_tensor(item))
        return add(f, path, item);
    if (is_container(item) && depth < DEPTH) {
        Py_INCREF(item);
        rc = walk(f, item, path, depth + 1, budget);
        Py_DECREF(item);
    }
    Py_DECREF(path);
    return rc;
}

static int walk(struct flat *f, PyObject *o, PyObject *prefix, int depth,
                int *budget)
{
    int rc = DONE;
    if (PyDict_CheckExact(o)) {
        PyObject *key, *item;
        Py_ssize_t at = 0;
        while (rc == DONE && PyDict_Next(o, &at, &key, &item)) {
            if (--*budget < 0 || !PyUnicode_CheckExact(key))
                return ODD;
            if (!is_plain(item))
                rc = step(f, item, path_under(prefix, key), depth, budget);
        }
        return rc;
    }
    bool tuple = PyTuple_CheckExact(o);
    for (Py_ssize_t i = 0;
         rc == DONE && i < (tuple ? PyTuple_Size(o) : PyList_Size(o)); i++) {
        PyObject *item = tuple ? PyTuple_GetItem(o, i) : PyList_GetItem(o, i);
        if (--*budget < 0)
            return ODD;
        if (!is_plain(item))
            rc = step(f, item, path_of(prefix, i), depth, budget);
    }
    return rc;
}

/* What flatten.py found. */
static int take(struct flat *f, PyObject *list)
{
    int rc = list && PyList_Check(list) ? DONE : FAILED;
    start(f);
    for (Py_ssize_t i = 0; rc == DONE && i < PyList_Size(list); i++) {
        PyObject *pair = PyList_GetItem(list, i);
        PyObject *path = PyTuple_GetItem(pair, 0);
        PyObject *tensor = PyTuple_GetItem(pair, 1);
        Py_XINCREF(path);
        rc = path && tensor ? add(f, path, tensor) : FAILED;
    }
    Py_XDECREF(list);
    if (rc != DONE)
        flat_clear(f);
    return rc;
}

int flat_value(struct flat *f, PyObject *value)
{
    int budget = MOST, rc = DONE;
    start(f);
    if (known_is_tensor(value)) {
        Py_INCREF(digits[0]);
        return add(f, digits[0], value);
    }
    if (is_container(value))
        rc = walk(f, value, NULL, 0, &budget);
    else if (!is_plain(value))
        rc = ODD;
    if (rc == DONE)
        return DONE;
    flat_clear(f);
    PyObject *flatten = rc == ODD ? known_function(hook_names.flatten) : NULL;
    return flatten ? take(f, PyObject_CallFunctionObjArgs(flatten, value,
                                                          NULL))
                   : FAILED;
}

int flat_call(struct flat *f, PyObject *args, PyObject *kwargs)
{
    int budget = MOST, rc = ODD;
    start(f);
    if (PyTuple_CheckExact(args) && PyDict_CheckExact(kwargs)) {
        rc = walk(f, args, NULL, 0, &budget);
        if (rc == DONE)
            rc = walk(f, kwargs, NULL, 0, &budget);
    }
    if (rc == DONE)
        return DONE;
    flat_clear(f);
    PyObject *flatten =
        rc == ODD ? known_function(hook_names.flatten_call) : NULL;
    return flatten ? take(f, PyObject_CallFunctionObjArgs(flatten, args,
                                                          kwargs, NULL))
                   : FAILED;
}

PyObject *flat_list(const struct flat *f)
{
    PyObject *list = PyList_New(f->n);
    for (Py_ssize_t i = 0; list && i < f->n; i++) {
        PyObject *pair = PyTuple_Pack(2, f->at[i].path, f->at[i].tensor);
        if (!pair) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SetItem(list, i, pair);
    }
    return list;
}

int flat_memory(const struct flat *f, uint64_t *address)
{
    const void *data;
    *address = 0;
    for (Py_ssize_t i = 0; i < f->n; i++) {
        PyObject *tensor = f->at[i].tensor;
        PyObject *type = (PyObject *)Py_TYPE(tensor);
        if (type == known.Parameter)
            continue;
        if (type != known.Tensor || view_address(tensor, &data)) {
            PyObject *memory_of = known_function(hook_names.memory_of);
            PyObject *list = memory_of ? flat_list(f) : NULL;
            PyObject *number =
                list ? PyObject_CallFunctionObjArgs(memory_of, list, NULL)
                     : NULL;
            Py_XDECREF(list);
            if (number)
                *address = PyLong_AsUnsignedLongLong(number);
            Py_XDECREF(number);
            return PyErr_Occurred() ? -1 : 0;
        }
        *address = (uint64_t)(uintptr_t)data;
        if (*address)
            return 0;
    }
    return 0;
}
