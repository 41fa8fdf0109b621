/* The hooks of PyTorch modules and tensors: what of them runs in C.
 *
 * A Recorder is what the hooks of one attach() share; a Gate stands at the
 * entrance or the exit of one module; a Call is one call of one module; a
 * GradHook waits on a tensor or a node of the graph. What is odd - other
 * containers, subclasses of tensors, devices, repetitions, errors - is handed
 * to the Python half, and behaves the same either way.
 *
 * Threads: any that holds the GIL, which alone guards all of this. Wherever
 * Python is called another thread may come in between. */
#ifndef CLIENT_PYTHON_HOOKS_H
#define CLIENT_PYTHON_HOOKS_H

#include "client/python/py.h"

#include <stdbool.h>
#include <stdint.h>

#include "client/python/tracer.h"
#include "tracerd/record.h"

/* ---- what is known of torch and of the Python half (known.c) ---- */

/* X(name): keys of the dict that hooks_setup() takes. */
#define KNOWN(X)                                                              \
    X(Tensor)                                                                 \
    X(Parameter)                                                              \
    X(OrderedDict)                                                            \
    X(GradHook)        /* a class on ours, see hooks.py */                    \
    X(last)            /* class of nodes that lead nowhere, or None */        \
    X(graph_task)      /* () -> number of the backward pass, or -1 */         \
    X(is_grad_enabled) /* () -> bool */                                       \
    X(transform)       /* () -> None unless vmap or grad is at work */        \
    X(tracing)         /* () -> None unless torch.jit or ONNX traces */       \
    X(modes)           /* () -> how many modes of functions are on */         \
    X(unseen)          /* () -> context in which there are none */            \
    X(is_compiling)    /* () -> bool */                                       \
    X(compiler)        /* dict with the flag it reads, or None */             \
    X(raised)          /* () -> the exception of the call that ends */        \
    X(several)         /* (places, hook): hooks for the sum of some edges */  \
    X(inert)           /* () -> what takes a hook's place in a copy */        \
    X(globals)         /* dict in which the functions below are looked up */

/* X(name): attributes and methods. */
#define HOOK_NAMES(X)                                                         \
    X(__call__)                                                               \
    X(__enter__)                                                              \
    X(__exit__)                                                               \
    X(_backward_hooks)                                                        \
    X(_begin_pass)                                                            \
    X(_in_checkpoint)                                                         \
    X(_is_compiling_flag)                                                     \
    X(_is_inside)                                                             \
    X(_keep_leaf)                                                             \
    X(_put_odd)                                                               \
    X(_put_raised)                                                            \
    X(_register_hook_dict)                                                    \
    X(count)                                                                  \
    X(failed)                                                                 \
    X(flatten)                                                                \
    X(flatten_call)                                                           \
    X(forget)                                                                 \
    X(grad_fn)                                                                \
    X(is_leaf)                                                                \
    X(leaf)                                                                   \
    X(missed)                                                                 \
    X(memory_of)                                                              \
    X(next_functions)                                                         \
    X(output_nr)                                                              \
    X(register_hook)                                                          \
    X(register_prehook)                                                       \
    X(remove)                                                                 \
    X(requires_grad)                                                          \
    X(wanted)

/* Set once by hooks_setup(), under the GIL; never freed. */
struct known {
#define KNOWN_MEMBER(name) PyObject *name;
    KNOWN(KNOWN_MEMBER)
#undef KNOWN_MEMBER
    bool shared; /* tensors have a dict of hooks that nodes look into */
};
extern struct known known;

extern struct hook_names {
#define HOOK_NAME_MEMBER(name) PyObject *name;
    HOOK_NAMES(HOOK_NAME_MEMBER)
#undef HOOK_NAME_MEMBER
} hook_names;

/* show_call(type, function): type.__call__ is the function from now on, but
 * calls go to what the type has in C, which does the same. For Dynamo, which
 * looks at the attribute and cannot look into C. */
PyObject *hooks_show_call(PyObject *module, PyObject *args);
/* Makes the types, when the module is made: 0, or -1 with an exception. */
int hooks_init(PyObject *module);
/* hooks_setup(known): a dict of the KNOWN; `shared` may be changed by a
 * later call. */
PyObject *hooks_setup(PyObject *module, PyObject *dict);

/* The truth of an attribute, or of a call without arguments; -1 with an
 * exception. */
int known_attribute(PyObject *o, PyObject *name);
int known_answer(PyObject *function);
/* Whether the call without arguments gives None; -1 with an exception. */
int known_none(PyObject *function);
/* The number that the attribute or the call gives; -1 may be one: ask
 * PyErr_Occurred(). */
long long known_number(PyObject *o, PyObject *name);
long long known_task(void);
/* Whether this runs in order to be compiled; -1 with an exception. */
int known_compiling(void);
/* What is asked of tensors from here on is not seen by modes and subclasses of
 * the program's, to which each attribute is a function. 0, or -1 with an
 * exception; *guard, which may be NULL, is for known_show() in any case. */
int known_hide(PyObject **guard);
/* Ends it. Any exception is kept. */
void known_show(PyObject *guard);
/* A function of the Python half, borrowed; NULL with an exception. */
PyObject *known_function(PyObject *name);

static inline bool known_is_tensor(PyObject *o)
{
    return (PyObject *)Py_TYPE(o) == known.Tensor ||
           PyObject_TypeCheck(o, (PyTypeObject *)known.Tensor);
}

/* ---- tensors of arguments and results (flat.c) ---- */

enum { FLAT_FEW = 8 };

struct flat_item {
    PyObject *path; /* both are owned */
    PyObject *tensor;
};

/* Tensors by position. at points into itself: not to be copied. */
struct flat {
    Py_ssize_t n, room;
    struct flat_item *at;
    struct flat_item few[FLAT_FEW];
};

int flat_init(void);
/* The tensors of a result, or of the arguments of a call, as flatten.py has
 * them. 0, or -1 with an exception and nothing to clear. */
int flat_value(struct flat *f, PyObject *value);
int flat_call(struct flat *f, PyObject *args, PyObject *kwargs);
/* The same as a list of (path, tensor); NULL with an exception. */
PyObject *flat_list(const struct flat *f);
/* See memory_of() of recompute.py; -1 with an exception. */
int flat_memory(const struct flat *f, uint64_t *address);
/* Whether an earlier one is the same tensor. */
bool flat_again(const struct flat *f, Py_ssize_t i);
void flat_clear(struct flat *f);

/* ---- calls (calls.c) ---- */

/* One call of one module, as its records need it. Not seen by the garbage
 * collector: it owns nothing that leads back to it. */
struct call {
    PyObject ob_base;
    PyObject *thing; /* a names.Object */
    unsigned long long step, iteration;
    unsigned microbatch, labels;
    char active;
    char hooked;   /* its tensors have gradient hooks */
    char again;    /* it is itself a repetition */
    char repeated;
    char leaves;   /* hooks on leaves wait for its backward pass */
    long long serial;           /* in the log; -1: not there */
    unsigned long long address; /* of its first input */
    long long task; /* backward pass in which its output's gradient came */
};

/* A new reference, or NULL with an exception. */
struct call *call_new(PyObject *thing, uint64_t step, uint64_t iteration,
                      uint32_t microbatch, uint32_t labels, bool active);
void call_drop(struct call *c); /* NULL will do */

/* Where the gradient of an input goes. */
struct edge {
    PyObject *node, *path; /* owned */
    long long number;      /* of the node's inputs */
    Py_ssize_t at;         /* position of the tensor */
};

struct edges {
    Py_ssize_t n;
    struct edge edge[];
};

void edges_free(struct edges *e); /* NULL will do */

/* A module that a thread is in. */
struct frame {
    PyObject *thing;   /* owned */
    struct call *call; /* owned; NULL: nothing is recorded of it */
    struct edges *edges;
    uint32_t microbatch, labels;
    bool again;
    bool unseen; /* no pass of the training: nor is what runs within */
};

/* Of one thread: the calls it is in, and its latest repetition. */
struct here {
    struct here *next;
    uint64_t thread;
    struct frame *frame;
    size_t depth, room;
    unsigned busy; /* the thread is in a hook */
    struct call *before;
};

struct recorder {
    PyObject ob_base;
    PyObject *client; /* or what stands for one */
    PyObject *record; /* its method */
    PyObject *root;   /* its calls are the micro-batches */
    unsigned samples;
    char forward, backward;
    char input_gradients; /* else of outputs only */
    char direct; /* client is a struct client, and reads what it can */
    char active, closed;
    long long iteration;
    unsigned microbatch, gradient_labels;
    unsigned long long calls;
    /* the log: the latest calls of the training, a ring */
    struct call **ring;
    size_t ring_room; /* a power of two */
    unsigned long long ring_next;
    long long ring_iteration; /* of the latest one */
    struct here *here;
};

int calls_init(PyObject *module);
bool recorder_check(PyObject *o);

/* What the recorder knows of this thread; NULL with an exception. It stays
 * where it is as long as the recorder lives. */
struct here *here_of(struct recorder *r);
/* 0, or -1 with an exception. Steals the references of the frame. */
int here_push(struct here *h, struct frame *f);
void frame_clear(struct frame *f);
void here_clear(struct here *h);
/* Adds a call to the log. */
void recorder_log(struct recorder *r, struct call *c);
/* Counts and tells of the exception that is set: 0. -1 where it is one that
 * must surface, such as KeyboardInterrupt. */
int recorder_failed(struct recorder *r);

/* ---- entrances and exits (gate.c) ---- */

enum { SLOT_INPUT = 1, SLOT_OUTPUT = 2 }; /* + 4 * pass */

struct site {
    PyObject *path; /* owned */
    unsigned slot;
    Py_ssize_t at;
    uint32_t id;
};

enum { GATE_SITES = 32 };

/* Both are hooks, too: Entry(recorder, thing) before a forward, Exit() after
 * it. */
struct gate {
    PyObject ob_base;
    struct recorder *recorder; /* owned */
    PyObject *thing;
    unsigned missed; /* calls that found no room on the stack */
    unsigned n;
    struct site site[GATE_SITES]; /* those that were used */
};

int gate_init(PyObject *module);
/* What a hook of the gate gives back: None, or NULL where rc is not 0 and its
 * exception must surface. */
PyObject *gate_hook_done(struct gate *g, int rc);
/* One record. 0, or -1 with an exception. */
int gate_put(struct gate *g, unsigned slot, Py_ssize_t at, PyObject *path,
             struct call *call, uint32_t labels, PyObject *tensor);

/* ---- gradients (grads.c, walk.c) ---- */

/* X(name, why) */
enum grad_kind {
    GRAD_TENSOR, /* called with the gradient of a tensor */
    GRAD_LEAF,   /* the same, of a leaf: goes when it has seen its own */
    GRAD_EDGE,   /* after a node: with what it sends and what it got */
    GRAD_NODE    /* before a node: with what it gets */
};

int grads_init(PyObject *module);
/* A hook, or NULL with an exception. number: which of a node's gradients. */
PyObject *grad_hook(struct gate *g, struct call *call, enum grad_kind kind,
                    unsigned slot, Py_ssize_t at, PyObject *path,
                    long long number, uint32_t label);
/* Puts a hook on the tensor at `at`, if it has a gradient. 0, or -1 with an
 * exception. */
int grads_watch(struct gate *g, struct call *call, unsigned slot,
                Py_ssize_t at, PyObject *path, PyObject *tensor);
/* On every tensor, once. */
int grads_watch_all(struct gate *g, struct call *call, unsigned slot,
                    const struct flat *f);

/* Where the gradients of a call's inputs go, or NULL where there are none;
 * *failed is set with an exception. Inputs without an edge of their own are
 * watched. */
struct edges *walk_edges(struct gate *g, struct call *call,
                         const struct flat *inputs, bool *failed);
/* Puts hooks where the shares of the inputs come by, see share.py. 0, or -1
 * with an exception. */
int walk_place(struct gate *g, struct call *call, const struct edges *e,
               const struct flat *outputs);

#endif
