/* The name grammar: how a record is called and how a query is read.
 *
 *   record   pass-Class-n-step-io[.position]   forward-Linear-1-2-input.1
 *            grad-<parameter path>-<iteration>, param-..., user-<name>-<count>,
 *            optim-<parameter path>.<state>-<iteration>
 *   query    the same with the end left off, * and ? anywhere, a module path
 *            instead of Class-n; the pass may be a pattern too
 *
 * A class name may hold '-', so names are read from the right, and one text
 * has several readings. They are tried in order against the dictionary of
 * the run, and the first whose object, module or path exists is meant:
 * object with instance and step, object with instance, class alone; module
 * with step, module alone; parameter path or user name likewise. Patterns of
 * grad, param and optim are read as paths first, and user names are nothing
 * else. A pattern that fits no part is last held against whole names, where *
 * may stand for several parts. */
#ifndef PROTO_NAME_H
#define PROTO_NAME_H

#include "proto/bytes.h"
#include "tracerd/record.h"

enum name_as { NAME_AS_ANY = 0, NAME_AS_OBJECT = 1, NAME_AS_MODULE = 2 };

enum name_who {
    NAME_ALL,    /* nothing but the pass was given */
    NAME_OBJECT, /* who is a class name */
    NAME_MODULE, /* who is a module path */
    NAME_PATH,   /* who is a parameter path or a user name */
    NAME_TEXT    /* who is a pattern for the printed name, or its beginning */
};

/* One reading; slices point into the text. A part that was left off has
 * n = 0. Any part may hold wildcards. */
struct name_reading {
    enum name_who kind;
    struct slice pass;
    struct slice who;
    struct slice instance;
    struct slice step;
    struct slice position; /* "0" where io is given without one */
    enum trd_io io;        /* TRD_IO_NONE: left off */
};

enum { NAME_MAX_READINGS = 8 };
struct name_query {
    unsigned n;
    struct name_reading reading[NAME_MAX_READINGS];
};

/* Parses text. TRD_ENAME, with *why a static sentence naming the fault.
 * as restricts the readings to objects or to modules and paths. */
int name_parse(struct slice text, enum name_as as, struct name_query *out,
               const char **why);

/* 1 if the part holds * or ?. */
int name_has_wildcard(struct slice part);
/* 1 if text matches pattern with * and ? (bytes). */
int name_match(struct slice pattern, struct slice text);

/* The parts of a record's name. */
struct name_parts {
    int pass;         /* enum trd_pass */
    int io;
    struct slice class_name;
    uint64_t instance, step, position;
    struct slice path; /* for grad, param, optim and user */
};
/* Writes the name, NUL-terminated; TRD_ELIMIT if cap is too small. The
 * longest is under 2 * TRD_MAX_NAME + 128 bytes. */
int name_put(const struct name_parts *p, char *out, size_t cap);

#endif
