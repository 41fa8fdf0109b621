/* Calls of modules, the threads that are in them, and the log of the latest
 * ones. */
#include "client/python/hooks.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

enum {
    FRAMES = 32,   /* of a thread, at first */
    THREADS = 256, /* that are known at once; more share what is free */
    MIN_RING = 64
};

/* Made once, by calls_init(). */
static PyObject *call_type, *recorder_type;

/* ---- Call ---- */

struct call *call_new(PyObject *thing, uint64_t step, uint64_t iteration,
                      uint32_t microbatch, uint32_t labels, bool active)
{
    struct call *c = PyObject_New(struct call, (PyTypeObject *)call_type);
    if (!c)
        return NULL;
    Py_INCREF(thing);
    c->thing = thing;
    c->step = step;
    c->iteration = iteration;
    c->microbatch = microbatch;
    c->labels = labels;
    c->active = active;
    c->hooked = c->again = c->repeated = c->leaves = 0;
    c->serial = c->task = -1;
    c->address = 0;
    return c;
}

void call_drop(struct call *c)
{
    Py_XDECREF((PyObject *)c);
}

/* Call(thing, step, iteration, microbatch, labels, active) */
static PyObject *call_make(PyTypeObject *type, PyObject *args, PyObject *named)
{
    (void)type;
    (void)named;
    PyObject *thing;
    unsigned long long step, iteration;
    unsigned microbatch, labels;
    int active;
    if (!PyArg_ParseTuple(args, "OKKIIp", &thing, &step, &iteration,
                          &microbatch, &labels, &active))
        return NULL;
    return (PyObject *)call_new(thing, step, iteration, microbatch, labels,
                                active);
}

static void call_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    Py_DECREF(((struct call *)o)->thing);
    PyObject_Free(o);
    Py_DECREF(type);
}

#define MEMBER(of, name, kind, flags)                                         \
    {#name, kind, offsetof(struct of, name), flags, NULL}

static PyMemberDef call_members[] = {
    MEMBER(call, thing, T_OBJECT, READONLY),
    MEMBER(call, step, T_ULONGLONG, READONLY),
    MEMBER(call, iteration, T_ULONGLONG, READONLY),
    MEMBER(call, microbatch, T_UINT, READONLY),
    MEMBER(call, labels, T_UINT, READONLY),
    MEMBER(call, active, T_BOOL, READONLY),
    MEMBER(call, hooked, T_BOOL, 0),
    MEMBER(call, again, T_BOOL, 0),
    MEMBER(call, repeated, T_BOOL, 0),
    MEMBER(call, serial, T_LONGLONG, 0),
    MEMBER(call, address, T_ULONGLONG, READONLY),
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot call_slots[] = {
    {Py_tp_new, (void *)call_make},
    {Py_tp_dealloc, (void *)call_dealloc},
    {Py_tp_members, call_members},
    {Py_tp_doc, (void *)"One call of one module, as its records need it."},
    {0, NULL}};

static PyType_Spec call_spec = {.name = "tracerd._tracerd.Call",
                                .basicsize = sizeof(struct call),
                                .flags = Py_TPFLAGS_DEFAULT,
                                .slots = call_slots};

/* ---- the threads ---- */

void edges_free(struct edges *e)
{
    for (Py_ssize_t i = 0; e && i < e->n; i++) {
        Py_DECREF(e->edge[i].node);
        Py_DECREF(e->edge[i].path);
    }
    PyMem_Free(e);
}

void frame_clear(struct frame *f)
{
    struct frame old = *f;
    memset(f, 0, sizeof *f);
    Py_XDECREF(old.thing);
    call_drop(old.call);
    edges_free(old.edges);
}

void here_clear(struct here *h)
{
    while (h->depth) {
        struct frame top = h->frame[--h->depth];
        frame_clear(&top);
    }
}

int here_push(struct here *h, struct frame *f)
{
    if (h->depth == h->room) {
        size_t room = h->room ? 2 * h->room : FRAMES;
        struct frame *frame =
            PyMem_Realloc(h->frame, room * sizeof *h->frame);
        if (!frame) {
            frame_clear(f);
            PyErr_NoMemory();
            return -1;
        }
        h->frame = frame;
        h->room = room;
    }
    h->frame[h->depth++] = *f;
    return 0;
}

/* A number that no other thread has or had. */
static uint64_t this_thread(void)
{
    static atomic_ullong last;
    static _Thread_local uint64_t number;
    if (!number)
        number = atomic_fetch_add(&last, 1) + 1;
    return number;
}

struct here *here_of(struct recorder *r)
{
    uint64_t thread = this_thread();
    struct here *idle = NULL, *oldest = NULL;
    unsigned n = 0;
    for (struct here *h = r->here; h; h = h->next, n++) {
        if (h->thread == thread)
            return h;
        if (h->depth || h->busy)
            continue;
        if (!h->before)
            idle = h;
        oldest = h;
    }
    if (!idle && n >= THREADS)
        idle = oldest;
    if (!idle) {
        idle = PyMem_Calloc(1, sizeof *idle);
        if (!idle) {
            PyErr_NoMemory();
            return NULL;
        }
        idle->next = r->here;
        r->here = idle;
    }
    struct call *before = idle->before;
    idle->before = NULL;
    idle->thread = thread;
    call_drop(before);
    return idle;
}

/* ---- the log ---- */

void recorder_log(struct recorder *r, struct call *c)
{
    if (!r->ring)
        return;
    struct call **place = &r->ring[r->ring_next & (r->ring_room - 1)];
    struct call *old = *place;
    Py_INCREF((PyObject *)c);
    c->serial = (long long)r->ring_next++;
    *place = c;
    r->ring_iteration = r->iteration;
    call_drop(old);
}

/* keep_calls(room): the log holds that many calls at least. Once. */
static PyObject *recorder_keep_calls(PyObject *o, PyObject *number)
{
    struct recorder *r = (struct recorder *)o;
    size_t wanted = PyLong_AsSize_t(number), room = MIN_RING;
    if (PyErr_Occurred())
        return NULL;
    while (room < wanted && room < SIZE_MAX / 64)
        room *= 2;
    if (!r->ring) {
        r->ring = PyMem_Calloc(room, sizeof(struct call *));
        r->ring_room = r->ring ? room : 0;
    }
    return r->ring ? py_none() : PyErr_NoMemory();
}

/* logged(serial) -> Call, or None when it is not in the log (any more). */
static PyObject *recorder_logged(PyObject *o, PyObject *number)
{
    struct recorder *r = (struct recorder *)o;
    long long serial = PyLong_AsLongLong(number);
    if (serial == -1 && PyErr_Occurred())
        return NULL;
    PyObject *c = NULL;
    if (r->ring && serial >= 0 &&
        (unsigned long long)serial < r->ring_next &&
        r->ring_next - (unsigned long long)serial <= r->ring_room)
        c = (PyObject *)r->ring[(size_t)serial & (r->ring_room - 1)];
    if (!c)
        return py_none();
    Py_INCREF(c);
    return c;
}

/* ---- Recorder ---- */

int recorder_failed(struct recorder *r)
{
    PyObject *type, *value, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace)
        PyException_SetTraceback(value, trace);
    PyObject *told = PyObject_CallMethodObjArgs(
        (PyObject *)r, hook_names.failed, value ? value : Py_None, NULL);
    int rc = !told && !PyErr_ExceptionMatches(PyExc_Exception) ? -1 : 0;
    Py_XDECREF(told);
    if (!told && !rc) {
        PyObject *again, *raised, *where;
        PyErr_Fetch(&again, &raised, &where);
        PyErr_NormalizeException(&again, &raised, &where);
        /* it is not ours, see Recorder.failed() */
        if (value && raised == value) {
            PyErr_Restore(again, raised, where);
            rc = -1;
        } else {
            Py_XDECREF(again);
            Py_XDECREF(raised);
            Py_XDECREF(where);
        }
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return rc;
}

/* direct(client) -> bool: records go to it without Python, if it is a
 * Client. */
static PyObject *recorder_direct(PyObject *o, PyObject *client)
{
    struct recorder *r = (struct recorder *)o;
    r->direct = client == r->client && tracer_check(client);
    return PyBool_FromLong(r->direct);
}

static int recorder_traverse(PyObject *o, visitproc visit, void *arg)
{
    struct recorder *r = (struct recorder *)o;
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(r->client);
    Py_VISIT(r->record);
    Py_VISIT(r->root);
    for (struct here *h = r->here; h; h = h->next)
        for (size_t i = 0; i < h->depth; i++) {
            struct edges *e = h->frame[i].edges;
            Py_VISIT(h->frame[i].thing);
            for (Py_ssize_t j = 0; e && j < e->n; j++)
                Py_VISIT(e->edge[j].node);
        }
    return 0;
}

static int recorder_clear(PyObject *o)
{
    struct recorder *r = (struct recorder *)o;
    r->direct = 0;
    Py_CLEAR(r->client);
    Py_CLEAR(r->record);
    Py_CLEAR(r->root);
    for (struct here *h = r->here; h; h = h->next)
        here_clear(h);
    return 0;
}

static void recorder_dealloc(PyObject *o)
{
    struct recorder *r = (struct recorder *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    recorder_clear(o);
    while (r->here) {
        struct here *h = r->here;
        r->here = h->next;
        call_drop(h->before);
        PyMem_Free(h->frame);
        PyMem_Free(h);
    }
    for (size_t i = 0; i < r->ring_room; i++)
        call_drop(r->ring[i]);
    PyMem_Free(r->ring);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(o);
    Py_DECREF(type);
}

static PyMemberDef recorder_members[] = {
    MEMBER(recorder, client, T_OBJECT, 0),
    MEMBER(recorder, record, T_OBJECT, 0),
    MEMBER(recorder, root, T_OBJECT, 0),
    MEMBER(recorder, samples, T_UINT, 0),
    MEMBER(recorder, forward, T_BOOL, 0),
    MEMBER(recorder, backward, T_BOOL, 0),
    MEMBER(recorder, input_gradients, T_BOOL, 0),
    MEMBER(recorder, active, T_BOOL, 0),
    MEMBER(recorder, closed, T_BOOL, 0),
    MEMBER(recorder, iteration, T_LONGLONG, 0),
    MEMBER(recorder, microbatch, T_UINT, 0),
    MEMBER(recorder, gradient_labels, T_UINT, 0),
    MEMBER(recorder, calls, T_ULONGLONG, 0),
    {"next_serial", T_ULONGLONG, offsetof(struct recorder, ring_next),
     READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyMethodDef recorder_methods[] = {
    {"keep_calls", recorder_keep_calls, METH_O, "keep_calls(room)"},
    {"logged", recorder_logged, METH_O, "logged(serial) -> Call or None"},
    {"direct", recorder_direct, METH_O, "direct(client) -> bool"},
    {NULL, NULL, 0, NULL}};

static PyType_Slot recorder_slots[] = {
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_dealloc, (void *)recorder_dealloc},
    {Py_tp_traverse, (void *)recorder_traverse},
    {Py_tp_clear, (void *)recorder_clear},
    {Py_tp_members, recorder_members},
    {Py_tp_methods, recorder_methods},
    {Py_tp_doc, (void *)"What the hooks of one attach() share; a base."},
    {0, NULL}};

static PyType_Spec recorder_spec = {
    .name = "tracerd._tracerd.Recorder",
    .basicsize = sizeof(struct recorder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = recorder_slots};

bool recorder_check(PyObject *o)
{
    return PyObject_TypeCheck(o, (PyTypeObject *)recorder_type);
}

int calls_init(PyObject *module)
{
    return py_type(module, "Call", &call_spec, NULL, &call_type) ||
                   py_type(module, "Recorder", &recorder_spec, NULL,
                           &recorder_type)
               ? -1
               : 0;
}
