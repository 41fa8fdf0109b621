/* A dump.json of msprobe (mindstudio-probe), entry by entry.
 *
 *   {"task": ..., "data": {
 *     "Module.layer1.Linear.forward.0": {
 *       "input_args": [TENSOR, ...], "input_kwargs": {...},
 *       "output": [...], "parameters": {"weight": TENSOR}},
 *     "Module.layer1.Linear.backward.0": {"input": [...], "output": [...]},
 *     "Module.layer1.Linear.parameters_grad.0": {"weight": [TENSOR]},
 *     "Functional.linear.0.forward": {...}, ...}}
 *
 * TENSOR is {"type", "dtype", "shape", "Max", "Min", "Mean", "Norm"}; other
 * values are null, {"type", "value"}, lists and dicts of all that. NaN and
 * Infinity stand bare. Calls are counted from 0 in each dump.
 *
 * The file is cut into entries by their brackets and each entry is read by
 * itself: a bad one costs no other, and memory is that of one entry. Pure. */
#ifndef TOOLS_MSPROBE_H
#define TOOLS_MSPROBE_H

#include "proto/record.h"

enum {
    MSPROBE_MAX_ENTRY = 16 * 1024 * 1024, /* bytes of an entry */
    MSPROBE_MAX_DEPTH = 32,               /* of its brackets */
    MSPROBE_MAX_WHY = 256
};

struct msprobe {
    const char *at, *end, *line_from; /* line: of line_from */
    uint64_t line;                    /* of what was read last, from 1 */
    char why[MSPROBE_MAX_WHY];        /* it cannot be read */
    int ended;
};

/* What the key of an entry says. Slices point into it. */
struct msprobe_name {
    int pass;               /* TRD_FORWARD, TRD_BACKWARD or TRD_GRAD */
    struct slice class_name, module; /* of a function both are its name */
    uint64_t call;          /* from 0 */
    bool wrapped;           /* in a "module", which is left off */
};

struct msprobe_entry {
    struct slice key, value; /* as they stand in the file */
    struct msprobe_name name;
    uint64_t line;           /* of the key */
};

/* A tensor of an entry. Its figures have TRD_IS_GIVEN; std is not known: NaN,
 * and mean and l2 hold together or not at all. */
struct msprobe_tensor {
    int pass, io;            /* parameters: TRD_PARAM */
    uint32_t position;       /* among the tensors of the call */
    struct slice path;       /* in its call; a parameter's: "weight" */
    uint32_t dtype;
    struct wire_shape shape;
    struct trd_stats stats;
};

struct msprobe_take {
    /* An exit code other than 0 ends it. */
    int (*tensor)(void *to, const struct msprobe_tensor *t);
    /* path: "input_args.0.shape", "" for the entry. */
    void (*bad)(void *to, const char *path, const char *why);
    void *to;
};

/* Looks for the entries. 0, or -1 with m->why and m->line. */
int msprobe_open(struct msprobe *m, const char *bytes, size_t n);
/* 1: an entry, *named: it has a name of msprobe's. 0: the end. -1 with m->why
 * and m->line: nothing can be read from there on. */
int msprobe_next(struct msprobe *m, struct msprobe_entry *e, bool *named);
bool msprobe_is_utf8(struct slice s);
/* 0 or what take->tensor gave. */
int msprobe_tensors(const struct msprobe_entry *e,
                    const struct msprobe_take *take);

#endif
