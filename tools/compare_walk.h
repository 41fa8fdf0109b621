/* What the two ways through a pair of runs share: rank with rank, and the
 * ranks of other layouts. Private to compare*.c. */
#ifndef TOOLS_COMPARE_WALK_H
#define TOOLS_COMPARE_WALK_H

#include "tools/align.h"
#include "tools/compare.h"
#include "tools/rules.h"
#include "tools/verdict.h"

/* A row that is kept until its partner has come. */
struct walk_row {
    struct scan_row row;
    size_t samples;        /* where they are in the arena */
    int64_t path;          /* a number that means the same on both sides */
    uint32_t share;        /* of the batch: of micro-batches and ranks */
    uint32_t call;         /* of the object in its micro-batch */
    size_t rank;           /* index in the layout */
    double scale;          /* beside a log: what a gradient sums up */
};

struct walk_side {
    struct scan *scan;
    struct layout layout;
    struct walk_row *row;
    size_t n, room;
    char *arena;
    size_t arena_n, arena_room;
    struct compare_missing *missing;
    size_t missing_n, missing_at; /* how many, and the last that was met */
    uint64_t only, functions;     /* in this run only */
};

struct walk {
    const struct compare_options *o;
    struct walk_side a, b;
    struct align *align;
    struct rules *rules;
    struct verdict *verdict;
    struct compare_layout layout;
    uint64_t done, told;
    struct compare_pair first; /* that was told */
    bool alike;      /* ranks have the same coordinates, as far as known */
    bool text;
    bool log;        /* a side knows parameters by their names alone */
};

/* 0 or an exit code, told, like what follows. */
int walk_keep(struct walk_side *s, const struct scan_row *r, int64_t path);
/* Counts a row that is on one side only; object: its index there. */
int walk_miss(struct walk_side *s, size_t object, const struct scan_row *r);
/* Judges a pair, of which p has everything that is not of the rows. */
int walk_pair(struct walk *w, struct compare_pair *p,
              const struct scan_row *a, const struct scan_row *b,
              const struct diff_how *how);
/* The index among the first run's objects of what a pair is of. */
size_t walk_object(const struct walk *w, const struct scan_row *a,
                   const struct scan_row *b);
/* Is it a record that a comparison leaves out? */
bool walk_leaves_out(const struct walk *w, const struct scan_row *r);
void walk_tell(struct walk *w);
/* Tells of what is off first, when a step or an iteration is over. */
void walk_tell_first(struct walk *w);
/* Names that belong to parameters and users, not to places in a call. */
static inline bool walk_by_path(int pass)
{
    return pass > TRD_BACKWARD;
}
/* Beside a log, records of parameters are paired by their names, whatever
 * module has them; so they come apart from the modules' calls. */
static inline bool walk_is_apart(const struct walk *w,
                                 const struct scan_row *r)
{
    return w->log && walk_by_path(r->pass) && r->pass != TRD_USER;
}

/* The whole way for runs whose layouts differ. */
int layout_walk(struct walk *w);

#endif
