/* The share that a module has in the gradient of its input: the edges of the
 * graph that lead from its outputs to its inputs. share.py tells why; it also
 * adds up where there are several. */
#include "client/python/hooks.h"

#include <string.h>

enum {
    BACKWARD_OUTPUT = TRD_BACKWARD * 4 + SLOT_OUTPUT,
    MOST_NODES = 64, /* between output and input; a usual layer has some 5 */
    FEW_LEFT = 64
};

/* ---- before the call ---- */

static const struct edge *edge_of(const struct edges *e, PyObject *node,
                                  long long number)
{
    for (Py_ssize_t i = 0; i < e->n; i++)
        if (e->edge[i].node == node && e->edge[i].number == number)
            return &e->edge[i];
    return NULL;
}

/* Adds the edge of one input, or watches it. Steals the node. */
static int add_edge(struct edges *e, PyObject *node, Py_ssize_t at,
                    const struct flat_item *item)
{
    long long number = known_number(item->tensor, hook_names.output_nr);
    if (number == -1 && PyErr_Occurred()) {
        Py_DECREF(node);
        return -1;
    }
    /* of a tensor that is there twice the shares cannot be told apart */
    if (edge_of(e, node, number)) {
        Py_DECREF(node);
        return 0;
    }
    Py_INCREF(item->path);
    e->edge[e->n++] = (struct edge){
        .node = node, .path = item->path, .number = number, .at = at};
    return 0;
}

struct edges *walk_edges(struct gate *g, struct call *call,
                         const struct flat *inputs, bool *failed)
{
    struct edges *e = NULL;
    int rc = 0;
    for (Py_ssize_t i = 0; !rc && i < inputs->n; i++) {
        const struct flat_item *item = &inputs->at[i];
        PyObject *node = Py_None;
        /* a sum of sharded gradients would be a collective */
        if ((PyObject *)Py_TYPE(item->tensor) == known.Tensor) {
            node = PyObject_GetAttr(item->tensor, hook_names.grad_fn);
            if (!node) {
                rc = -1;
                break;
            }
            if (node == Py_None)
                Py_DECREF(node);
        }
        if (node == Py_None) {
            if (!flat_again(inputs, i))
                rc = grads_watch(g, call, BACKWARD_OUTPUT, i, item->path,
                                 item->tensor);
            continue;
        }
        if (!e) {
            e = PyMem_Malloc(sizeof *e +
                             (size_t)inputs->n * sizeof e->edge[0]);
            if (e)
                e->n = 0;
        }
        if (!e) {
            Py_DECREF(node);
            PyErr_NoMemory();
            rc = -1;
            break;
        }
        rc = add_edge(e, node, i, item);
    }
    *failed = rc != 0;
    if (rc) {
        edges_free(e);
        return NULL;
    }
    return e;
}

/* ---- after the call ---- */

/* Nodes, each owned: those to visit (left) and those visited (seen). */
struct walk {
    PyObject *seen[MOST_NODES];
    unsigned n_seen;
    PyObject **left, *few[FEW_LEFT];
    size_t n_left, room;
    bool sure; /* all were seen */
    /* of each input: that it is an output, and where its share comes by */
    struct found {
        bool through;
        Py_ssize_t n;
        PyObject *node; /* the first, owned */
        long long number;
        PyObject *all; /* list of (node, number), where there are several */
    } *found;
};

static int push(struct walk *w, PyObject *node)
{
    if (w->n_left == w->room) {
        size_t bytes = w->room * sizeof *w->left;
        PyObject **more = PyMem_Malloc(2 * bytes);
        if (!more) {
            Py_DECREF(node);
            PyErr_NoMemory();
            return -1;
        }
        memcpy(more, w->left, bytes);
        if (w->left != w->few)
            PyMem_Free(w->left);
        w->left = more;
        w->room *= 2;
    }
    w->left[w->n_left++] = node;
    return 0;
}

static int append(PyObject *list, PyObject *node, long long number)
{
    PyObject *pair = Py_BuildValue("(OL)", node, number);
    int rc = pair ? PyList_Append(list, pair) : -1;
    Py_XDECREF(pair);
    return rc;
}

/* The share comes by at the node's input of that number. */
static int found_at(struct found *f, PyObject *node, long long number)
{
    if (!f->n++) {
        Py_INCREF(node);
        f->node = node;
        f->number = number;
        return 0;
    }
    if (!f->all) {
        f->all = PyList_New(0);
        if (!f->all || append(f->all, f->node, f->number))
            return -1;
    }
    return append(f->all, node, number);
}

static bool is_seen(const struct walk *w, const PyObject *node)
{
    for (unsigned i = 0; i < w->n_seen; i++)
        if (w->seen[i] == node)
            return true;
    return false;
}

/* Looks at what the node leads to. */
static int visit(struct walk *w, const struct edges *e, PyObject *node)
{
    PyObject *next = PyObject_GetAttr(node, hook_names.next_functions);
    int rc = next && PyTuple_Check(next) ? 0 : -1;
    if (next && rc)
        tracer_misuse("next_functions is no tuple");
    for (Py_ssize_t i = 0; !rc && i < PyTuple_Size(next); i++) {
        PyObject *pair = PyTuple_GetItem(next, i);
        PyObject *to = pair ? PyTuple_GetItem(pair, 0) : NULL;
        PyObject *of = to ? PyTuple_GetItem(pair, 1) : NULL;
        long long number = of ? PyLong_AsLongLong(of) : -1;
        if (!of || (number == -1 && PyErr_Occurred())) {
            rc = -1;
            break;
        }
        const struct edge *edge = edge_of(e, to, number);
        if (edge) {
            rc = found_at(&w->found[edge - e->edge], node, i);
        } else if (to != Py_None && (PyObject *)Py_TYPE(to) != known.last) {
            Py_INCREF(to);
            rc = push(w, to);
        }
    }
    Py_XDECREF(next);
    return rc;
}

/* From the outputs down. */
static int walk_from(struct walk *w, const struct edges *e,
                     const struct flat *outputs)
{
    for (Py_ssize_t i = 0; i < outputs->n; i++) {
        PyObject *tensor = outputs->at[i].tensor;
        PyObject *node = PyObject_GetAttr(tensor, hook_names.grad_fn);
        if (!node)
            return -1;
        if (node == Py_None) {
            Py_DECREF(node);
            continue;
        }
        long long number = known_number(tensor, hook_names.output_nr);
        if (number == -1 && PyErr_Occurred()) {
            Py_DECREF(node);
            return -1;
        }
        const struct edge *edge = edge_of(e, node, number);
        if (edge) {
            w->found[edge - e->edge].through = true;
            Py_DECREF(node);
        } else if (push(w, node)) {
            return -1;
        }
    }
    while (w->n_left) {
        PyObject *node = w->left[--w->n_left];
        if (is_seen(w, node)) {
            Py_DECREF(node);
            continue;
        }
        if (w->n_seen == MOST_NODES) {
            Py_DECREF(node);
            w->sure = false;
            return 0;
        }
        w->seen[w->n_seen++] = node;
        if (visit(w, e, node))
            return -1;
    }
    return 0;
}

/* Calls node.METHOD(hook), whose handle is not kept. Steals the hook. */
static int put_on(PyObject *node, PyObject *method, PyObject *hook)
{
    PyObject *handle =
        hook ? PyObject_CallMethodObjArgs(node, method, hook, NULL) : NULL;
    Py_XDECREF(hook);
    Py_XDECREF(handle);
    return handle ? 0 : -1;
}

static int put_hooks(struct gate *g, struct call *call, const struct edge *e,
                     const struct found *f, bool sure)
{
    if (!sure || f->through)
        return put_on(e->node, hook_names.register_prehook,
                      grad_hook(g, call, GRAD_NODE, BACKWARD_OUTPUT, e->at,
                                e->path, e->number, TRD_L_TOTAL));
    if (f->n == 1)
        return put_on(f->node, hook_names.register_hook,
                      grad_hook(g, call, GRAD_EDGE, BACKWARD_OUTPUT, e->at,
                                e->path, f->number, TRD_L_EXACT));
    if (!f->n)
        return 0;
    PyObject *hook = grad_hook(g, call, GRAD_TENSOR, BACKWARD_OUTPUT, e->at,
                               e->path, 0, TRD_L_EXACT);
    PyObject *done =
        hook ? PyObject_CallFunctionObjArgs(known.several, f->all, hook, NULL)
             : NULL;
    Py_XDECREF(hook);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

int walk_place(struct gate *g, struct call *call, const struct edges *e,
               const struct flat *outputs)
{
    struct walk w = {.room = FEW_LEFT, .sure = true};
    struct found few[2] = {{.n = 0}};
    w.left = w.few;
    w.found = few;
    if (e->n > 2 && !(w.found = PyMem_Calloc((size_t)e->n,
                                             sizeof *w.found))) {
        PyErr_NoMemory();
        return -1;
    }
    int rc = walk_from(&w, e, outputs);
    for (Py_ssize_t i = 0; !rc && i < e->n; i++)
        rc = put_hooks(g, call, &e->edge[i], &w.found[i], w.sure);
    for (Py_ssize_t i = 0; i < e->n; i++) {
        Py_XDECREF(w.found[i].node);
        Py_XDECREF(w.found[i].all);
    }
    if (w.found != few)
        PyMem_Free(w.found);
    while (w.n_left)
        Py_DECREF(w.left[--w.n_left]);
    if (w.left != w.few)
        PyMem_Free(w.left);
    while (w.n_seen)
        Py_DECREF(w.seen[--w.n_seen]);
    return rc;
}
