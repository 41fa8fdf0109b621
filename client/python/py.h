/* The door to Python: the only file that includes Python.h, and what the
 * files of this directory do with every object.
 *
 * The module is built against the limited API, so one binary serves every
 * CPython from 3.10 on; only those without a global lock have none, and get a
 * binary each with TRD_FULL_API. There the interpreter takes its lock back
 * when it imports the module (Py_MOD_GIL_USED). Include this before anything
 * else. The caller holds the GIL. */
#ifndef CLIENT_PYTHON_PY_H
#define CLIENT_PYTHON_PY_H

#if !defined(Py_LIMITED_API) && !defined(TRD_FULL_API)
#define Py_LIMITED_API 0x030a0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* A METH_FASTCALL function passes through the type that PyMethodDef has. */
#define PY_FAST(function) ((PyCFunction)(void (*)(void))(function))

/* Puts a value (a new reference, or NULL after a failure) into the dict. */
static inline int py_put(PyObject *dict, const char *key, PyObject *value)
{
    int rc = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return rc;
}

/* Makes a type, on a base or NULL, once and shows it in the module: 0, or
 * -1. */
static inline int py_type(PyObject *module, const char *name,
                          PyType_Spec *spec, PyObject *base, PyObject **type)
{
    if (!*type && !(*type = PyType_FromSpecWithBases(spec, base)))
        return -1;
    return PyObject_SetAttrString(module, name, *type);
}

/* What a weak reference is to, only to be compared; NULL where it is gone. */
static inline const PyObject *py_referent(PyObject *weak)
{
#if !defined(Py_LIMITED_API) && PY_VERSION_HEX >= 0x030d0000
    PyObject *of;
    PyWeakref_GetRef(weak, &of);
    Py_XDECREF(of);
#else
    PyObject *of = PyWeakref_GetObject(weak);
    if (of == Py_None)
        of = NULL;
#endif
    return of;
}

static inline PyObject *py_none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

#endif
