/* Hooks that see gradients, and where they are put.
 *
 * torch keeps the hooks of a tensor in a dict, made with the first, that the
 * tensor's node looks into. Tensor.register_hook() does so in Python and
 * makes a handle for each; here the dict is filled the same way without a
 * handle, where torch has the same two doors to it. Hooks of the user's stay
 * in their order and keep their handles. */
#include "client/python/hooks.h"

#include <stddef.h>

enum { BACKWARD_OUTPUT = TRD_BACKWARD * 4 + SLOT_OUTPUT,
       BACKWARD_INPUT = TRD_BACKWARD * 4 + SLOT_INPUT };

/* No tp_traverse: what it owns does not lead back to it but through nodes of
 * the graph, whose hooks the garbage collector does not see either. They go
 * with the graph. */
struct grad {
    PyObject ob_base;
    struct gate *gate; /* these three are owned */
    struct call *call;
    PyObject *path;
    PyObject *handle; /* of a leaf's hook, or NULL */
    enum grad_kind kind;
    unsigned slot;
    uint32_t label;
    Py_ssize_t at;
    long long number;
};

static PyObject *grad_type;

PyObject *grad_hook(struct gate *g, struct call *call, enum grad_kind kind,
                    unsigned slot, Py_ssize_t at, PyObject *path,
                    long long number, uint32_t label)
{
    PyTypeObject *type = (PyTypeObject *)known.GradHook;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct grad *h = (struct grad *)alloc(type, 0);
    if (!h)
        return NULL;
    Py_INCREF((PyObject *)g);
    Py_INCREF((PyObject *)call);
    Py_INCREF(path);
    h->gate = g;
    h->call = call;
    h->path = path;
    h->handle = NULL;
    h->kind = kind;
    h->slot = slot;
    h->label = label;
    h->at = at;
    h->number = number;
    return (PyObject *)h;
}

static void grad_dealloc(PyObject *o)
{
    struct grad *h = (struct grad *)o;
    PyTypeObject *type = Py_TYPE(o);
    Py_DECREF((PyObject *)h->gate);
    Py_DECREF((PyObject *)h->call);
    Py_DECREF(h->path);
    Py_XDECREF(h->handle);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(o);
    Py_DECREF(type);
}

/* ---- a gradient comes ---- */

/* The gradient in the first argument, borrowed: NULL where there is none, or
 * with an exception. */
static PyObject *gradient_of(const struct grad *h, PyObject *grad)
{
    if (h->kind == GRAD_EDGE || h->kind == GRAD_NODE)
        grad = PyTuple_GetItem(grad, (Py_ssize_t)h->number);
    return grad == Py_None ? NULL : grad;
}

static int see(struct grad *h, PyObject *grad)
{
    struct recorder *r = h->gate->recorder;
    uint32_t labels = r->gradient_labels | h->label;
    if ((PyObject *)Py_TYPE(grad) != known.Tensor) {
        /* it may be a stand-in, of compiled autograd */
        int compiling = known_answer(known.is_compiling);
        if (compiling)
            return compiling < 0 ? -1 : 0;
    }
    if (h->slot == BACKWARD_INPUT && h->call->leaves) {
        h->call->task = known_task();
        if (PyErr_Occurred())
            return -1;
    }
    return gate_put(h->gate, h->slot, h->at, h->path, h->call, labels, grad);
}

/* A leaf may be used elsewhere too: it waits for the backward pass of its own
 * call. */
static int see_leaf(struct grad *h, PyObject *grad)
{
    long long task = known_task();
    if (PyErr_Occurred())
        return -1;
    if (h->call->task != task)
        return 0;
    int rc = see(h, grad);
    PyObject *handle = h->handle;
    h->handle = NULL;
    if (!handle)
        return rc;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *gone =
        PyObject_CallMethodObjArgs(handle, hook_names.remove, NULL);
    if (!gone)
        PyErr_Clear();
    Py_XDECREF(gone);
    Py_DECREF(handle);
    PyErr_Restore(type, value, trace);
    return rc;
}

/* first: the gradient, what a node sends, or what it gets. */
static int grad_come(struct grad *h, PyObject *first)
{
    struct recorder *r = h->gate->recorder;
    if (r->closed)
        return 0;
    Py_INCREF((PyObject *)h); /* a leaf's goes while it is called */
    PyObject *grad = gradient_of(h, first);
    PyObject *unseen = NULL;
    int rc = 0;
    if (grad && !(rc = known_hide(&unseen)))
        rc = h->kind == GRAD_LEAF ? see_leaf(h, grad) : see(h, grad);
    else if (PyErr_Occurred())
        rc = -1;
    known_show(unseen);
    if (rc)
        rc = recorder_failed(r);
    Py_DECREF((PyObject *)h);
    return rc;
}

/* see(gradient), see(sent, received) or see(gradients) */
static PyObject *grad_see(PyObject *o, PyObject *const *args,
                          Py_ssize_t n_args)
{
    if (n_args < 1)
        return tracer_misuse("see takes gradients");
    return grad_come((struct grad *)o, args[0]) ? NULL : py_none();
}

static PyObject *grad_call(PyObject *o, PyObject *args, PyObject *named)
{
    struct grad *h = (struct grad *)o;
    if (named || PyTuple_Size(args) < 1)
        return tracer_misuse("the hook takes gradients");
    struct gate *g = h->gate;
    Py_INCREF((PyObject *)g);
    int rc = known_compiling(); /* compiled autograd */
    if (!rc)
        rc = grad_come(h, PyTuple_GetItem(args, 0));
    PyObject *done = gate_hook_done(g, rc < 0 ? rc : 0);
    Py_DECREF((PyObject *)g);
    return done;
}

/* ---- hooks are put ---- */

/* 0, 1 where it cannot be done, or -1 with an exception. */
static int share_dict(PyObject *tensor, PyObject *node, PyObject *hook)
{
    int rc = -1;
    PyObject *done = NULL;
    PyObject *dict = PyObject_GetAttr(tensor, hook_names._backward_hooks);
    if (dict && dict != Py_None) {
        rc = PyObject_SetItem(dict, hook, hook);
        goto out;
    }
    Py_XDECREF(dict);
    dict = dict ? PyObject_CallNoArgs(known.OrderedDict) : NULL;
    if (!dict || PyObject_SetItem(dict, hook, hook) ||
        PyObject_SetAttr(tensor, hook_names._backward_hooks, dict))
        goto out;
    done = PyObject_CallMethodObjArgs(node, hook_names._register_hook_dict,
                                      tensor, NULL);
    rc = done ? 0 : -1;
    Py_XDECREF(done);
out:
    Py_XDECREF(dict);
    return rc;
}

static int register_hook(PyObject *tensor, PyObject *hook, PyObject **handle)
{
    *handle = PyObject_CallMethodObjArgs(tensor, hook_names.register_hook,
                                         hook, NULL);
    return *handle ? 0 : -1;
}

/* The hooks of a leaf outlive the graph, so each must go by itself: when it
 * has seen its backward pass, or else a while later. */
static int watch_leaf(struct gate *g, struct call *call, Py_ssize_t at,
                      PyObject *path, PyObject *tensor)
{
    PyObject *hook = grad_hook(g, call, GRAD_LEAF, BACKWARD_OUTPUT, at, path,
                               0, TRD_L_TOTAL);
    PyObject *handle;
    if (!hook)
        return -1;
    if (register_hook(tensor, hook, &handle)) {
        Py_DECREF(hook);
        return -1;
    }
    call->leaves = 1;
    Py_INCREF(handle);
    ((struct grad *)hook)->handle = handle;
    Py_DECREF(hook);
    PyObject *kept = PyObject_CallMethodObjArgs(
        (PyObject *)g->recorder, hook_names._keep_leaf, handle, NULL);
    Py_XDECREF(kept);
    Py_DECREF(handle);
    return kept ? 0 : -1;
}

static int watch_inner(struct gate *g, struct call *call, unsigned slot,
                       Py_ssize_t at, PyObject *path, PyObject *tensor,
                       PyObject *node)
{
    PyObject *handle;
    /* all that flows into an input, not this module's share only */
    uint32_t label = slot == BACKWARD_OUTPUT ? TRD_L_TOTAL : 0;
    PyObject *hook =
        grad_hook(g, call, GRAD_TENSOR, slot, at, path, 0, label);
    if (!hook)
        return -1;
    int rc;
    if (known.shared && node) {
        rc = share_dict(tensor, node, hook);
    } else {
        rc = register_hook(tensor, hook, &handle);
        if (!rc)
            Py_DECREF(handle);
    }
    Py_DECREF(hook);
    return rc;
}

int grads_watch(struct gate *g, struct call *call, unsigned slot,
                Py_ssize_t at, PyObject *path, PyObject *tensor)
{
    PyObject *node = NULL;
    int rc = 0;
    if ((PyObject *)Py_TYPE(tensor) == known.Tensor) {
        node = PyObject_GetAttr(tensor, hook_names.grad_fn);
        if (!node)
            return -1;
        if (node != Py_None) {
            rc = watch_inner(g, call, slot, at, path, tensor, node);
            Py_DECREF(node);
            return rc;
        }
        Py_DECREF(node);
    }
    rc = known_attribute(tensor, hook_names.requires_grad);
    if (rc <= 0)
        return rc;
    rc = known_attribute(tensor, hook_names.is_leaf);
    if (rc < 0)
        return rc;
    if (!rc)
        return watch_inner(g, call, slot, at, path, tensor, NULL);
    if (slot != BACKWARD_OUTPUT)
        return 0;
    rc = PyObject_IsInstance(tensor, known.Parameter);
    return rc ? (rc < 0 ? -1 : 0) : watch_leaf(g, call, at, path, tensor);
}

int grads_watch_all(struct gate *g, struct call *call, unsigned slot,
                    const struct flat *f)
{
    for (Py_ssize_t i = 0; i < f->n; i++)
        if (!flat_again(f, i) && grads_watch(g, call, slot, i, f->at[i].path,
                                             f->at[i].tensor))
            return -1;
    return 0;
}

/* ---- GradHook ---- */

/* A copy or a pickle of what it hangs on is another tensor's. */
static PyObject *grad_copy(PyObject *o, PyObject *unused)
{
    (void)o;
    (void)unused;
    return PyObject_CallNoArgs(known.inert);
}

static PyObject *grad_reduce(PyObject *o, PyObject *unused)
{
    (void)o;
    (void)unused;
    PyObject *inert = PyObject_CallNoArgs(known.inert);
    PyObject *how =
        inert ? PyObject_CallMethod(inert, "__reduce__", NULL) : NULL;
    Py_XDECREF(inert);
    return how;
}

/* Keeps torch from warning when a hooked tensor is saved. */
static PyObject *grad_unserializable(PyObject *o, void *unused)
{
    (void)o;
    (void)unused;
    return PyBool_FromLong(1);
}

static PyMethodDef grad_methods[] = {
    {"see", PY_FAST(grad_see), METH_FASTCALL, "see(*gradients)"},
    {"__deepcopy__", grad_copy, METH_O, "__deepcopy__(memo)"},
    {"__reduce__", grad_reduce, METH_NOARGS, "__reduce__()"},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef grad_members[] = {
    {"__torch_unserializable__", grad_unserializable, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef grad_fields[] = {
    {"gate", T_OBJECT, offsetof(struct grad, gate), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot grad_slots[] = {
    {Py_tp_members, grad_fields},
    {Py_tp_call, (void *)grad_call},
    {Py_tp_dealloc, (void *)grad_dealloc},
    {Py_tp_methods, grad_methods},
    {Py_tp_getset, grad_members},
    {Py_tp_doc, (void *)"Waits for a gradient; a base."},
    {0, NULL}};

static PyType_Spec grad_spec = {
    .name = "tracerd._tracerd.GradHook",
    .basicsize = sizeof(struct grad),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = grad_slots};

int grads_init(PyObject *module)
{
    return py_type(module, "GradHook", &grad_spec, NULL, &grad_type);
}
