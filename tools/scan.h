/* Reading all records of a run's file, an object's step after the other.
 *
 * What a comparison of millions of records needs and a query does not: few
 * columns, the words of the dictionary once, and jumps to a place. Rows come
 * in the order of the table (step, object, pass, stream, io, position, seq).
 * Now and then the statement is ended and begun again where it stood, so that
 * a log that is being written can be folded meanwhile.
 *
 * What goes wrong is told on stderr; the functions give the exit code. */
#ifndef TOOLS_SCAN_H
#define TOOLS_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/diff.h"

struct scan;

struct scan_object {
    int64_t id;
    const char *class_name;
    const char *module;    /* "" for the root, and where it is not known */
    int64_t instance;
};

struct scan_row {
    int64_t step, object, iteration, microbatch, position, seq;
    int64_t path;          /* number for scan_path() */
    int64_t note;          /* and for scan_note(); 0: none */
    uint32_t rank, labels;
    int pass, io;
    uint64_t zero, subnormal; /* hold where side.has says counts do */
    struct diff_side side; /* samples stay until the next row */
};

/* Place `at` of `size` along a dimension of the parallel layout. */
struct scan_place {
    char *name;            /* "tp" */
    int64_t at, size;
};

/* A process of the attempt. */
struct scan_stream {
    int64_t id;
    uint32_t rank, world;
    bool wanted;           /* of the attempt that is read */
    char *info;            /* JSON about it, or "" */
    struct scan_place *place; /* what is known of the layout */
    size_t places;
};

/* What records that follow one another have in common. */
struct scan_group {
    int64_t step, object, iteration;
    uint32_t rank;
};

/* attempt -1: the last one of the run. 0 or an exit code. */
int scan_open(const char *file, int64_t attempt, struct scan **out);
void scan_close(struct scan *s);

const char *scan_name(const struct scan *s);   /* of the run */
int64_t scan_attempt(const struct scan *s);
uint64_t scan_records(const struct scan *s);   /* of the attempt, about */
uint64_t scan_lost(const struct scan *s);
const struct scan_stream *scan_streams(const struct scan *s, size_t *n);
const struct scan_object *scan_objects(const struct scan *s, size_t *n);
/* The index in scan_objects() of an id; SIZE_MAX: none. */
size_t scan_index(const struct scan *s, int64_t id);
/* The module of an object by its index; "" for none. */
const char *scan_module(const struct scan *s, size_t index);
/* NULL for a number that is not of the dictionary. */
const char *scan_path(const struct scan *s, int64_t path);
/* Path i of the dictionary, and its number; NULL behind the last. */
const char *scan_path_at(const struct scan *s, size_t i, int64_t *path);

/* The note that a record has besides its labels; "" for none. */
const char *scan_note(const struct scan *s, int64_t note);
/* Tells take() of all that there is, in the order of the table, until that
 * gives an exit code. Recomputed records are left out. 0 or an exit code. */
int scan_groups(struct scan *s,
                int (*take)(void *to, const struct scan_group *g), void *to);

/* From the place on, (step, object) first. 0 or an exit code. */
int scan_goto(struct scan *s, int64_t step, int64_t object);
/* 1: the row; 0: there is no more; a negative number: minus the exit code.
 * scan_peek() leaves it to be read again. Rows of other attempts are left
 * out. */
int scan_peek(struct scan *s, const struct scan_row **out);
int scan_next(struct scan *s, const struct scan_row **out);
/* As scan_peek(), but 0 as well where the next row is of another step or
 * object. Rows of other attempts that follow are not read for that: an
 * attempt that began late has none of its own for many steps. */
int scan_peek_at(struct scan *s, int64_t step, int64_t object,
                 const struct scan_row **out);

#endif
