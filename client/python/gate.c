/* The entrance and the exit of a module: what is recorded of its calls.
 *
 * A thread's frames are looked at anew after each call of Python, during
 * which others may have come and gone. */
#include "client/python/hooks.h"

#include <stddef.h>
#include <string.h>

/* Slots: pass and io in one number, see hooks.py. */
enum {
    FORWARD_INPUT = TRD_FORWARD * 4 + SLOT_INPUT,
    FORWARD_OUTPUT = TRD_FORWARD * 4 + SLOT_OUTPUT,
    BACKWARD_INPUT = TRD_BACKWARD * 4 + SLOT_INPUT
};

static PyObject *gate_type, *entry_type, *exit_type;

/* ---- records ---- */

static bool same_path(PyObject *a, PyObject *b)
{
    return a == b || !PyUnicode_Compare(a, b);
}

/* The number of a site; 0 with an exception. (0 without one is of a site
 * that there is no room for.) */
static uint32_t site_of(struct gate *g, unsigned slot, Py_ssize_t at,
                        PyObject *path)
{
    for (unsigned i = 0; i < g->n; i++) {
        const struct site *s = &g->site[i];
        if (s->slot == slot && s->at == at && same_path(s->path, path))
            return s->id;
    }
    PyObject *number = PyObject_CallMethod((PyObject *)g->recorder, "place",
                                           "OInO", g->thing, slot, at, path);
    if (!number)
        return 0;
    uint32_t id = (uint32_t)PyLong_AsUnsignedLong(number);
    Py_DECREF(number);
    if (!PyErr_Occurred() && g->n < GATE_SITES) {
        Py_INCREF(path);
        g->site[g->n++] = (struct site){
            .path = path, .slot = slot, .at = at, .id = id};
    }
    return id;
}

/* A tensor that must be resolved first. */
static int put_odd(struct gate *g, uint32_t site, struct call *call,
                   uint32_t labels, PyObject *tensor)
{
    PyObject *id = PyLong_FromUnsignedLong(site);
    PyObject *bits = PyLong_FromUnsignedLong(labels);
    PyObject *done = id && bits
                         ? PyObject_CallMethodObjArgs(
                               (PyObject *)g->recorder, hook_names._put_odd,
                               id, (PyObject *)call, bits, tensor, NULL)
                         : NULL;
    Py_XDECREF(bits);
    Py_XDECREF(id);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* By what stands for a client. 1 recorded, 0 to be resolved, -1 with an
 * exception. */
static int put_by_python(struct gate *g, uint32_t site,
                         const struct trd_when *when, PyObject *tensor)
{
    struct recorder *r = g->recorder;
    PyObject *done = PyObject_CallFunction(
        r->record, "IKKIIIOI", site, (unsigned long long)when->step,
        (unsigned long long)when->iteration, when->microbatch, when->labels,
        0, tensor, r->samples);
    int yes = done ? PyObject_IsTrue(done) : -1;
    Py_XDECREF(done);
    return yes;
}

static struct trd_when when_of(const struct call *call, uint32_t labels)
{
    return (struct trd_when){.step = call->step,
                             .iteration = call->iteration,
                             .microbatch = call->microbatch,
                             .labels = labels};
}

int gate_put(struct gate *g, unsigned slot, Py_ssize_t at, PyObject *path,
             struct call *call, uint32_t labels, PyObject *tensor)
{
    struct recorder *r = g->recorder;
    uint32_t site = site_of(g, slot, at, path);
    if (!site && PyErr_Occurred())
        return -1;
    struct trd_when when = when_of(call, labels);
    int done = r->direct ? record_tensor((struct client *)r->client, site,
                                         &when, tensor, r->samples)
                         : put_by_python(g, site, &when, tensor);
    return done ? (done < 0 ? -1 : 0)
                : put_odd(g, site, call, labels, tensor);
}

/* The records of a call's tensors, where there are several. */
static int put_several(struct gate *g, unsigned slot, struct call *call,
                       const struct flat *f)
{
    struct recorder *r = g->recorder;
    size_t n = (size_t)f->n;
    /* numbers, tensors and marks of all of them */
    PyObject **tensor = PyMem_Malloc(
        n * (sizeof(PyObject *) + sizeof(uint32_t) + sizeof(bool)));
    if (!tensor) {
        PyErr_NoMemory();
        return -1;
    }
    uint32_t *site = (uint32_t *)(void *)(tensor + n);
    bool *odd = (bool *)(site + n);
    struct trd_when when = when_of(call, call->labels);
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++) {
        tensor[i] = f->at[i].tensor;
        site[i] = site_of(g, slot, (Py_ssize_t)i, f->at[i].path);
        rc = !site[i] && PyErr_Occurred() ? -1 : 0;
    }
    if (!rc && r->direct) {
        record_tensors((struct client *)r->client, site, &when, tensor, f->n,
                       r->samples, odd);
    } else {
        for (size_t i = 0; !rc && i < n; i++) {
            int done = put_by_python(g, site[i], &when, tensor[i]);
            odd[i] = !done;
            rc = done < 0 ? -1 : 0;
        }
    }
    for (size_t i = 0; !rc && i < n; i++)
        if (odd[i] && put_odd(g, site[i], call, call->labels, tensor[i]))
            rc = recorder_failed(r);
    PyMem_Free(tensor);
    return rc;
}

static int put_all(struct gate *g, unsigned slot, struct call *call,
                   const struct flat *f)
{
    if (f->n > 1)
        return put_several(g, slot, call, f);
    return f->n ? gate_put(g, slot, 0, f->at[0].path, call, call->labels,
                           f->at[0].tensor)
                : 0;
}

/* ---- a call begins ---- */

/* Whether gradients may be watched; -1 with an exception. grad: whether they
 * are computed. */
static int may_watch(const struct recorder *r, int grad)
{
    return r->backward && grad > 0 ? known_none(known.transform)
           : grad < 0              ? -1
                                   : 0;
}

/* Clears what was left over from a forward pass that was interrupted from
 * outside. */
static int clean(struct gate *g, struct here *h, PyObject *module)
{
    if (h->frame[0].again) {
        here_clear(h);
    } else if (g->thing == g->recorder->root) {
        /* it may as well call itself */
        PyObject *inside = PyObject_CallMethodObjArgs(
            (PyObject *)g->recorder, hook_names._is_inside, module, NULL);
        if (!inside)
            return -1;
        if (inside != Py_True)
            here_clear(h);
        Py_DECREF(inside);
    }
    return 0;
}

/* The micro-batch and the labels of a call that none of ours is round. */
static int outermost(struct gate *g, int grad, struct frame *f)
{
    PyObject *r = (PyObject *)g->recorder;
    PyObject *inside = NULL;
    if (!grad) {
        inside = PyObject_CallMethodObjArgs(r, hook_names._in_checkpoint,
                                            NULL);
        if (!inside)
            return -1;
        Py_DECREF(inside);
        if (inside != Py_True) {
            f->labels = TRD_L_EVAL;
            return 0;
        }
    }
    PyObject *number =
        PyObject_CallMethodObjArgs(r, hook_names._begin_pass, g->thing, NULL);
    if (!number)
        return -1;
    f->unseen = number == Py_None;
    if (!f->unseen)
        f->microbatch = (uint32_t)PyLong_AsUnsignedLong(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

static int next_step(PyObject *thing, uint64_t *step)
{
    PyObject *count = PyObject_GetAttr(thing, hook_names.count);
    PyObject *number = count ? PyIter_Next(count) : NULL;
    Py_XDECREF(count);
    if (!number)
        return -1;
    *step = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

/* A call of the training or of an evaluation: fills the frame, and the
 * tensors where it is recorded. */
static int begin(struct gate *g, struct here *h, PyObject *module,
                 PyObject *args, PyObject *kwargs, struct flat *tensors,
                 struct frame *f)
{
    struct recorder *r = g->recorder;
    uint64_t step, address;
    r->calls++;
    if (h->depth && clean(g, h, module))
        return -1;
    if (h->depth && h->frame[0].unseen)
        return 0;
    int grad = -1;
    if (h->depth) {
        f->microbatch = h->frame[0].microbatch;
        f->labels = h->frame[0].labels;
    } else if ((grad = known_answer(known.is_grad_enabled)) < 0 ||
               outermost(g, grad, f)) {
        return -1;
    }
    if (f->unseen)
        return 0;
    if (next_step(g->thing, &step))
        return -1;
    if (!r->active)
        return 0;
    if (grad < 0 && (grad = known_answer(known.is_grad_enabled)) < 0)
        return -1;
    int watch = may_watch(r, grad);
    if (watch < 0 || flat_call(tensors, args, kwargs))
        return -1;
    if (!f->labels && flat_memory(tensors, &address))
        return -1;
    f->call = call_new(g->thing, step, (uint64_t)r->iteration, f->microbatch,
                       f->labels, true);
    if (!f->call)
        return -1;
    f->call->hooked = (char)watch;
    if (!f->labels) {
        f->call->address = address;
        recorder_log(r, f->call);
    }
    return 0;
}

/* A call within a backward pass, which repeats one that is in the log, or
 * else is not recorded. */
static int repeat(struct gate *g, struct here *h, PyObject *args,
                  PyObject *kwargs, struct flat *tensors, struct frame *f)
{
    struct recorder *r = g->recorder;
    uint64_t address;
    bool inside = h->depth && h->frame[h->depth - 1].again;
    f->again = true;
    f->labels = TRD_L_RECOMPUTE;
    if (!inside)
        here_clear(h);
    /* nothing was recorded that this might repeat */
    if (!r->active && r->ring_iteration + 1 < r->iteration)
        return 0;
    if (flat_call(tensors, args, kwargs) || flat_memory(tensors, &address))
        return -1;
    PyObject *before = h->before ? (PyObject *)h->before : Py_None;
    Py_INCREF(before);
    PyObject *call = PyObject_CallMethod(
        (PyObject *)r, "_repeat", "OKOi", g->thing,
        (unsigned long long)address, before, (int)inside);
    Py_DECREF(before);
    if (!call || call == Py_None) {
        Py_XDECREF(call);
        return call ? 0 : -1;
    }
    f->call = (struct call *)call;
    f->microbatch = f->call->microbatch;
    f->labels = f->call->labels;
    int watch = 0;
    if (f->call->hooked)
        watch = may_watch(r, known_answer(known.is_grad_enabled));
    if (watch < 0)
        return -1;
    f->call->hooked = (char)watch;
    struct call *old = h->before;
    Py_INCREF(call);
    h->before = f->call;
    call_drop(old);
    return 0;
}

/* What is recorded of a call's inputs; edges are for the frame. */
static int see_inputs(struct gate *g, struct call *call,
                      const struct flat *tensors, struct edges **edges)
{
    struct recorder *r = g->recorder;
    bool failed = false;
    if (r->forward && put_all(g, FORWARD_INPUT, call, tensors))
        return -1;
    if (!call->hooked || !tensors->n || !r->input_gradients)
        return 0;
    int leaf = known_attribute(g->thing, hook_names.leaf);
    if (leaf < 0)
        return -1;
    if (!leaf)
        return grads_watch_all(g, call, TRD_BACKWARD * 4 + SLOT_OUTPUT,
                               tensors);
    *edges = walk_edges(g, call, tensors, &failed);
    return failed ? -1 : 0;
}

static int enter(struct gate *g, struct here *h, PyObject *module,
                 PyObject *args, PyObject *kwargs, struct flat *tensors)
{
    struct frame f = {.thing = g->thing};
    long long task = known_task();
    if (task == -1 && PyErr_Occurred())
        return -1;
    int rc = task != -1
                 ? repeat(g, h, args, kwargs, tensors, &f)
                 : begin(g, h, module, args, kwargs, tensors, &f);
    if (rc) {
        call_drop(f.call);
        return -1;
    }
    struct call *call = f.call;
    Py_INCREF(f.thing);
    if (here_push(h, &f) || !call)
        return PyErr_Occurred() ? -1 : 0;
    int wanted = known_attribute(g->thing, hook_names.wanted);
    if (wanted <= 0)
        return wanted;
    struct edges *edges = NULL;
    Py_INCREF((PyObject *)call);
    rc = see_inputs(g, call, tensors, &edges);
    /* still ours: nobody entered or left a module of this thread since */
    if (edges && h->depth && h->frame[h->depth - 1].call == call)
        h->frame[h->depth - 1].edges = edges;
    else
        edges_free(edges);
    call_drop(call);
    return rc;
}

/* Counts the calls that could do nothing, now that one can. */
static int settle(struct gate *g)
{
    PyObject *number = PyLong_FromUnsignedLong(g->missed);
    PyObject *done = number ? PyObject_CallMethodObjArgs(
                                  (PyObject *)g->recorder, hook_names.missed,
                                  number, NULL)
                            : NULL;
    if (done)
        g->missed = 0;
    Py_XDECREF(number);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Whether the hooks have nothing to do; -1 with an exception. */
static int is_off(struct gate *g)
{
    if (g->recorder->closed)
        return 1;
    if (g->missed && settle(g))
        return -1;
    int none = known_none(known.tracing);
    return none < 0 ? -1 : !none;
}

static int gate_begin(struct gate *g, PyObject *module, PyObject *args,
                      PyObject *kwargs)
{
    int off = is_off(g);
    struct here *h = off ? NULL : here_of(g->recorder);
    int rc = off > 0 ? 0 : -1;
    if (h) {
        struct flat tensors = {.n = 0};
        PyObject *unseen;
        tensors.at = tensors.few;
        h->busy++;
        rc = known_hide(&unseen);
        if (!rc)
            rc = enter(g, h, module, args, kwargs, &tensors);
        flat_clear(&tensors);
        known_show(unseen);
        h->busy--;
    }
    return rc && recorder_failed(g->recorder) ? -1 : 0;
}

/* enter(module, args, kwargs) */
static PyObject *gate_enter(PyObject *o, PyObject *const *args,
                            Py_ssize_t n_args)
{
    if (n_args != 3)
        return tracer_misuse("enter takes 3 arguments");
    return gate_begin((struct gate *)o, args[0], args[1], args[2])
               ? NULL
               : py_none();
}

/* ---- a call ends ---- */

static int see_outputs(struct gate *g, const struct frame *f,
                       PyObject *output, struct flat *tensors)
{
    if (flat_value(tensors, output))
        return -1;
    if (g->recorder->forward &&
        put_all(g, FORWARD_OUTPUT, f->call, tensors))
        return -1;
    if (f->call->hooked &&
        grads_watch_all(g, f->call, BACKWARD_INPUT, tensors))
        return -1;
    return f->edges ? walk_place(g, f->call, f->edges, tensors) : 0;
}

static int leave(struct gate *g, struct here *h, PyObject *output,
                 PyObject *error, struct flat *tensors)
{
    size_t at = h->depth;
    while (at && h->frame[at - 1].thing != g->thing)
        at--;
    if (!at)
        return 0;
    while (h->depth > at) {
        struct frame inner = h->frame[--h->depth];
        frame_clear(&inner);
    }
    struct frame f = h->frame[--h->depth];
    int rc = f.call ? known_attribute(g->thing, hook_names.wanted) : 0;
    if (rc > 0 && error == Py_None) {
        rc = see_outputs(g, &f, output, tensors);
    } else if (rc > 0) {
        rc = 0;
        if (g->recorder->forward && !f.again) {
            PyObject *done = PyObject_CallMethodObjArgs(
                (PyObject *)g->recorder, hook_names._put_raised,
                (PyObject *)f.call, error, NULL);
            rc = done ? 0 : -1;
            Py_XDECREF(done);
        }
    }
    frame_clear(&f);
    return rc;
}

/* Between two passes anything may write to tensors, fused optimizers without
 * a word, and torch.utils.swap_tensors() wants none that has a weak
 * reference. */
static int forget(struct recorder *r)
{
    if (r->direct) {
        struct same *same = ((struct client *)r->client)->same;
        if (same)
            same_forget(same);
        return 0;
    }
    PyObject *done =
        PyObject_CallMethodObjArgs(r->client, hook_names.forget, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* error: what the call raised, or None. */
static int gate_end(struct gate *g, PyObject *output, PyObject *error)
{
    struct recorder *r = g->recorder;
    int off = is_off(g);
    struct here *h = off ? NULL : here_of(r);
    int rc = off > 0 ? 0 : -1;
    if (h) {
        struct flat tensors = {.n = 0};
        PyObject *unseen;
        tensors.at = tensors.few;
        h->busy++;
        rc = known_hide(&unseen);
        if (!rc)
            rc = leave(g, h, output, error, &tensors);
        flat_clear(&tensors);
        known_show(unseen);
        h->busy--;
        if (rc)
            rc = recorder_failed(r);
        if (!rc && !h->depth)
            rc = forget(r);
    }
    if (rc && PyErr_Occurred())
        rc = recorder_failed(r);
    return rc;
}

/* leave(output, error) */
static PyObject *gate_leave(PyObject *o, PyObject *const *args,
                            Py_ssize_t n_args)
{
    if (n_args != 2)
        return tracer_misuse("leave takes 2 arguments");
    return gate_end((struct gate *)o, args[0], args[1]) ? NULL : py_none();
}

/* ---- calls of hooks ---- */

/* What a hook gives back. Where the stack had no room for it, no call would
 * do: that is counted, see settle(). */
PyObject *gate_hook_done(struct gate *g, int rc)
{
    if (!rc)
        return py_none();
    if (!PyErr_ExceptionMatches(PyExc_RecursionError))
        return NULL;
    PyErr_Clear();
    g->missed++;
    return py_none();
}

/* Whether a hook was put on another module by somebody who has not said that
 * it takes keywords, as torch does that makes a model ready for quantization.
 * That module has, or gets, hooks of its own. */
static bool is_moved(PyObject *args, PyObject *named, Py_ssize_t n)
{
    return named || PyTuple_Size(args) != n;
}

/* hook(module, args, kwargs) */
static PyObject *entry_call(PyObject *o, PyObject *args, PyObject *named)
{
    struct gate *g = (struct gate *)o;
    if (is_moved(args, named, 3))
        return py_none();
    int rc = known_compiling();
    if (!rc)
        rc = gate_begin(g, PyTuple_GetItem(args, 0), PyTuple_GetItem(args, 1),
                        PyTuple_GetItem(args, 2));
    return gate_hook_done(g, rc < 0 ? rc : 0);
}

/* hook(module, args, kwargs, output) */
static PyObject *exit_call(PyObject *o, PyObject *args, PyObject *named)
{
    struct gate *g = (struct gate *)o;
    if (is_moved(args, named, 4))
        return py_none();
    int rc = known_compiling();
    if (!rc) {
        PyObject *output = PyTuple_GetItem(args, 3);
        PyObject *error = output == Py_None
                              ? PyObject_CallNoArgs(known.raised)
                              : py_none();
        rc = error ? gate_end(g, output, error) : -1;
        Py_XDECREF(error);
    }
    return gate_hook_done(g, rc < 0 ? rc : 0);
}

/* ---- Gate ---- */

/* Gate(recorder, thing) */
static PyObject *gate_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    (void)named;
    PyObject *recorder, *thing;
    if (!PyArg_ParseTuple(args, "OO", &recorder, &thing))
        return NULL;
    if (!recorder_check(recorder))
        return tracer_misuse("a Gate needs a Recorder");
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct gate *g = (struct gate *)alloc(type, 0);
    if (!g)
        return NULL;
    Py_INCREF(recorder);
    Py_INCREF(thing);
    g->recorder = (struct recorder *)recorder;
    g->thing = thing;
    return (PyObject *)g;
}

static int gate_traverse(PyObject *o, visitproc visit, void *arg)
{
    struct gate *g = (struct gate *)o;
    Py_VISIT(Py_TYPE(o));
    Py_VISIT((PyObject *)g->recorder);
    Py_VISIT(g->thing);
    return 0;
}

static void gate_dealloc(PyObject *o)
{
    struct gate *g = (struct gate *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    for (unsigned i = 0; i < g->n; i++)
        Py_DECREF(g->site[i].path);
    Py_XDECREF((PyObject *)g->recorder);
    Py_XDECREF(g->thing);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(o);
    Py_DECREF(type);
}

static PyMethodDef gate_methods[] = {
    {"enter", PY_FAST(gate_enter), METH_FASTCALL,
     "enter(module, args, kwargs)"},
    {"leave", PY_FAST(gate_leave), METH_FASTCALL, "leave(output, error)"},
    {NULL, NULL, 0, NULL}};

static PyMemberDef gate_members[] = {
    {"recorder", T_OBJECT, offsetof(struct gate, recorder), READONLY, NULL},
    {"thing", T_OBJECT, offsetof(struct gate, thing), READONLY, NULL},
    {"missed", T_UINT, offsetof(struct gate, missed), 0, NULL},
    {NULL, 0, 0, 0, NULL}};

/* No tp_clear: a cycle through it is broken at the Recorder. */
static PyType_Slot gate_slots[] = {
    {Py_tp_new, (void *)gate_new},
    {Py_tp_dealloc, (void *)gate_dealloc},
    {Py_tp_traverse, (void *)gate_traverse},
    {Py_tp_methods, gate_methods},
    {Py_tp_members, gate_members},
    {Py_tp_doc, (void *)"The entrance or the exit of a module; a base."},
    {0, NULL}};

static PyType_Slot entry_slots[] = {
    {Py_tp_call, (void *)entry_call},
    {Py_tp_doc, (void *)"A hook before a module's forward; a base."},
    {0, NULL}};

static PyType_Slot exit_slots[] = {
    {Py_tp_call, (void *)exit_call},
    {Py_tp_doc, (void *)"A hook after a module's forward; a base."},
    {0, NULL}};

/* The garbage collector's part is inherited. */
#define GATE_SPEC(of, more, slots_of)                                         \
    {                                                                         \
        .name = "tracerd._tracerd." of, .basicsize = sizeof(struct gate),     \
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | (more),           \
        .slots = slots_of                                                     \
    }

static PyType_Spec gate_spec =
    GATE_SPEC("Gate", Py_TPFLAGS_HAVE_GC, gate_slots);
static PyType_Spec entry_spec = GATE_SPEC("Entry", 0, entry_slots);
static PyType_Spec exit_spec = GATE_SPEC("Exit", 0, exit_slots);

int gate_init(PyObject *module)
{
    return py_type(module, "Gate", &gate_spec, NULL, &gate_type) ||
                   py_type(module, "Entry", &entry_spec, gate_type,
                           &entry_type) ||
                   py_type(module, "Exit", &exit_spec, gate_type, &exit_type)
               ? -1
               : 0;
}
