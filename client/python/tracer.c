/* The Client type: Python's arguments into the library's calls. */
#include "client/python/tracer.h"

#include <string.h>

static const char *const cause_text[TRD_CAUSE_COUNT] = {
#define CAUSE_TEXT(name, text) text,
    TRD_CAUSES(CAUSE_TEXT)
#undef CAUSE_TEXT
};

void tracer_enter(struct client *self)
{
    self->inside++;
}

void tracer_leave(struct client *self)
{
    if (--self->inside || !self->leaving)
        return;
    struct trd_client *c = self->leaving;
    self->leaving = NULL;
    Py_BEGIN_ALLOW_THREADS
    trd_client_close(c);
    Py_END_ALLOW_THREADS
}

PyObject *tracer_misuse(const char *how)
{
    PyErr_SetString(PyExc_TypeError, how);
    return NULL;
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

/* lost(n, cause="error"): records that could not be made. */
static PyObject *client_lost(PyObject *o, PyObject *args)
{
    struct client *self = (struct client *)o;
    unsigned long long n;
    const char *cause = "error";
    if (!PyArg_ParseTuple(args, "K|s", &n, &cause))
        return NULL;
    for (int i = 0; i < TRD_CAUSE_COUNT; i++) {
        if (strcmp(cause, cause_text[i]))
            continue;
        if (self->c)
            trd_lost(self->c, (enum trd_cause)i, n);
        return py_none();
    }
    return PyErr_Format(PyExc_ValueError, "no such cause: %s", cause);
}

/* open_device(index, k) -> bool: tensors of the CUDA device, with up to k
 * samples, need not be resolved from now on. May take a while. */
static PyObject *client_open_device(PyObject *o, PyObject *args)
{
    struct client *self = (struct client *)o;
    int device, rc = TRD_EINVAL;
    unsigned k;
    if (!PyArg_ParseTuple(args, "iI", &device, &k))
        return NULL;
    struct trd_client *c = self->c;
    if (c && device >= 0 && device < TRACER_DEVICES && k <= TRD_MAX_SAMPLES) {
        tracer_enter(self);
        Py_BEGIN_ALLOW_THREADS
        rc = trd_cuda_open(c, device, k);
        Py_END_ALLOW_THREADS
        tracer_leave(self);
        if (!rc && self->device_k[device] <= k)
            self->device_k[device] = k + 1;
    }
    return PyBool_FromLong(!rc);
}

/* saved() -> (tensors, bytes) that were not read again. */
static PyObject *client_saved(PyObject *o, PyObject *unused)
{
    (void)unused;
    struct client *self = (struct client *)o;
    return Py_BuildValue("(KK)", (unsigned long long)self->same_n,
                         (unsigned long long)self->same_bytes);
}

/* forget(): no tensor counts as read before. */
static PyObject *client_forget(PyObject *o, PyObject *unused)
{
    (void)unused;
    struct client *self = (struct client *)o;
    if (self->same)
        same_forget(self->same);
    return py_none();
}

/* watch(function): its number changes with whatever may write to tensors
 * behind torch's back, or None. */
static PyObject *client_watch(PyObject *o, PyObject *function)
{
    struct client *self = (struct client *)o;
    if (self->same)
        same_watch(self->same, function);
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
        tracer_enter(self);
        Py_BEGIN_ALLOW_THREADS
        rc = trd_flush(c, timeout_ms);
        Py_END_ALLOW_THREADS
        tracer_leave(self);
    }
    return PyLong_FromLong(rc);
}

static PyObject *lost_dict(const uint64_t lost[TRD_CAUSE_COUNT])
{
    PyObject *d = PyDict_New();
    for (int i = 0; d && i < TRD_CAUSE_COUNT; i++) {
        if (lost[i] &&
            py_put(d, cause_text[i], PyLong_FromUnsignedLongLong(lost[i]))) {
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
                            : py_none()) ||
        py_put(d, "blocked_ns", PyLong_FromUnsignedLongLong(c.blocked_ns)) ||
        py_put(d, "spool_used_bytes",
               PyLong_FromUnsignedLongLong(c.spool_used_bytes)) ||
        py_put(d, "spool_error",
               c.spool_error
                   ? PyUnicode_FromString(trd_strerror(c.spool_error))
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
    if (self->same)
        same_forget(self->same); /* a call may still be looking into it */
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
    same_destroy(((struct client *)o)->same);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(o);
    Py_DECREF(type);
}

static PyMethodDef client_methods[] = {
#define RECORD_METHOD(name, text)                                             \
    {#name, PY_FAST(method_##name), METH_FASTCALL, text},
    RECORD_METHODS(RECORD_METHOD)
#undef RECORD_METHOD
    {"site", client_site, METH_VARARGS,
     "site(pass, io, position, instance, class_name, module, path) -> int"},
    {"note", client_note, METH_VARARGS, "note(text) -> int"},
    {"lost", client_lost, METH_VARARGS, "lost(n, cause=\"error\")"},
    {"open_device", client_open_device, METH_VARARGS,
     "open_device(index, k) -> bool"},
    {"saved", client_saved, METH_NOARGS, "saved() -> (tensors, bytes)"},
    {"forget", client_forget, METH_NOARGS, "forget()"},
    {"watch", client_watch, METH_O, "watch(function)"},
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

bool tracer_check(PyObject *o)
{
    return (PyObject *)Py_TYPE(o) == client_type;
}

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
    const char *run, *job, *info, *dir = NULL, *spool = NULL;
    unsigned rank, world, attempt, block_ms = 0;
    unsigned long long journal_bytes;
    int thread, sampling = 0, histogram = 0, same = 0;
    unsigned long long sampling_arg = 0, spool_bytes;
    trd_client_options_init(&options);
    spool_bytes = options.spool_bytes;
    if (!PyArg_ParseTuple(args, "zzzIIIKp|ziKipIzK", &run, &job, &info, &rank,
                          &world, &attempt, &journal_bytes, &thread, &dir,
                          &sampling, &sampling_arg, &histogram, &same,
                          &block_ms, &spool, &spool_bytes))
        return NULL;
    if (!trd_sampling_name(sampling) || !trd_histogram_name(histogram) ||
        (sampling == TRD_EVERY && !sampling_arg)) {
        PyErr_SetString(PyExc_ValueError, trd_strerror(TRD_EINVAL));
        return NULL;
    }
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
    options.sampling = (enum trd_sampling)sampling;
    options.sampling_arg = sampling_arg;
    options.histogram = (enum trd_histogram_kind)histogram;
    options.block_ms = block_ms;
    options.spool_dir = spool;
    options.spool_bytes = spool_bytes;
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
    self->want.sampling = options.sampling;
    self->want.sampling_arg = options.sampling_arg;
    self->want.histogram = options.histogram;
    /* without memory for it every tensor is read */
    self->same = same ? same_create() : NULL;
    return (PyObject *)self;
}
