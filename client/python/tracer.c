/* The Client type: Python's arguments into the library's calls. */
#include "client/python/tracer.h"

#include <stdbool.h>
#include <string.h>

#include "client/python/figures.h"
#include "client/python/view.h"
#include "tracerd/client.h"

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
                            .labels = (uint32_t)v[4] | view_labels(dtype),
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
    if (!view_is_big(&view)) {
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
    int rc = figures_compute(&view, (uint32_t)k, &s, samples);
    struct view shown = view;
    shown.tensor.shape = shown.shape;
    shown.tensor.strides = NULL;
    shown.tensor.ndim = view_int64s(args[8], shown.shape);
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
    view.tensor.ndim = view_int64s(args[7], view.shape);
    if (view.tensor.ndim < 0 || view_count(&view)) {
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
    return py_none();
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
            py_put(d, cause[i], PyLong_FromUnsignedLongLong(lost[i]))) {
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
    if (py_put(d, "submitted", PyLong_FromUnsignedLongLong(c.submitted)) ||
        py_put(d, "committed", PyLong_FromUnsignedLongLong(c.committed)) ||
        py_put(d, "durable", PyLong_FromUnsignedLongLong(c.durable)) ||
        py_put(d, "lost", lost_dict(c.lost)) ||
        py_put(d, "connects", PyLong_FromUnsignedLongLong(c.connects)) ||
        py_put(d, "journal_used_bytes",
               PyLong_FromUnsignedLongLong(c.journal_used_bytes)) ||
        py_put(d, "journal_bytes",
               PyLong_FromUnsignedLongLong(c.journal_bytes)) ||
        py_put(d, "connected", PyBool_FromLong(c.connected)) ||
        py_put(d, "last_error",
               c.last_error ? PyUnicode_FromString(trd_strerror(c.last_error))
                            : py_none())) {
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
    return py_none();
}

static void client_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    shut((struct client *)o);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(o);
    Py_DECREF(type);
}

static PyMethodDef client_methods[] = {
    {"record", PY_FAST(client_record), METH_FASTCALL,
     "record(site, step, iteration, microbatch, labels, note, tensor, k)"},
    {"record_as", PY_FAST(client_record_as), METH_FASTCALL,
     "record_as(site, step, iteration, microbatch, labels, note, tensor, k, "
     "shape)"},
    {"record_shape", PY_FAST(client_record_shape), METH_FASTCALL,
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

/* Made once, by tracer_init(). */
static PyObject *client_type;

int tracer_init(void)
{
    if (!client_type)
        client_type = PyType_FromSpec(&client_spec);
    return client_type ? 0 : -1;
}

PyObject *tracer_open(PyObject *module, PyObject *args)
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
