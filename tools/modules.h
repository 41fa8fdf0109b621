/* Modules of a model as dumps name them, and their calls over the dumps. */
#ifndef TOOLS_MODULES_H
#define TOOLS_MODULES_H

#include "proto/bytes.h"

struct modules;

struct module {
    uint64_t hash;
    char *key;         /* class, then path */
    size_t class_n, n; /* of key */
    uint32_t instance; /* among those of its class, from 1 */
    uint64_t before;   /* calls in the dumps before this one */
    uint64_t calls, grads; /* in this one */
    uint64_t was, step; /* calls in the last one that has it, and its step */
    uint64_t dump;     /* that counted last, from 1 */
};

/* The functions give 0 or an exit code, told on stderr. */
int modules_open(struct modules **out);
void modules_close(struct modules *m);

/* A new one is made. It stays where it is. */
int modules_find(struct modules *m, struct slice class_name,
                 struct slice path, struct module **out);
/* This dump has that many of its calls, or of its gradients, at least. */
void modules_count(struct modules *m, struct module *x, bool grad,
                   uint64_t n);
/* All of the dump of this step was counted: before holds then. */
void modules_next(struct modules *m, uint64_t step);

#endif
