/* What a page shows of one run, or of two side by side.
 *
 * Records are read twice. The first time the verdict is found (compare.h,
 * check.h), and of each object in each pass how many records there are and
 * which is the worst. That tells what a page of bounded size has room for.
 * The second time this is gathered. Memory and page do not grow with the
 * records, but for one iteration of one rank, which is sorted before it is
 * thinned.
 *
 * Whatever is thinned keeps the worst of what it stands for; and the culprit,
 * the first that is off, the ranked and all findings stay, whatever the
 * bounds. The page says how many of how many it shows.
 *
 * "Value" is what colours and curves show: of two runs the error of a pair
 * (diff.h), of one the RMS of the tensor; NAN for none, INFINITY where there
 * is no number for it. */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include <stdio.h>

#include "tools/check.h"

enum {
    REPORT_PASSES = TRD_OPTIM + 1,
    REPORT_OBJECTS = 10000,  /* of the tree */
    REPORT_COLUMNS = 240,    /* of a map */
    REPORT_CELLS = 400000,   /* of a map */
    REPORT_RANKS = 1024,     /* of the table of ranks */
    REPORT_BINS = 2000,      /* points of a curve along the order */
    REPORT_FOCUS = 1000000,  /* records of one iteration that are sorted */
    REPORT_POINTS = 60000,   /* of all histories together */
    REPORT_EACH = 100,       /* of one history */
    REPORT_HEAD = 4,         /* points that its name takes the room of */
    REPORT_HISTORIES = 6,    /* of an object in a pass */
    REPORT_SAMPLED = 600,    /* records whose samples are there */
    REPORT_VALUES = 64,      /* samples of one of them */
    REPORT_MISSING = 500,    /* objects of one side only, of each side */
    REPORT_FINDINGS = 200,   /* of check */
    REPORT_FIGURES = 6       /* max, min, mean, std, l2, not finite */
};

/* A record among those of its object and pass. */
struct report_at {
    int64_t step, seq;
    uint32_t rank;
};

/* An object in a pass. */
struct report_place {
    uint64_t records, off, nonfinite;
    double worst;            /* value of what it gives */
    int64_t seq;             /* the first there is */
    struct report_at at;     /* of the worst */
    int32_t row, nan_row;    /* in the maps; -1: not there */
    uint32_t quota;          /* histories it may still have */
    int32_t history;         /* its first one; -1 */
    bool must, sampled;
};

struct report_rank {
    uint64_t records, off, nonfinite;
    double worst;
};

/* Iterations that share a column of the maps: from first on, width each. */
struct report_columns {
    int64_t first, width;
    size_t n;
};

/* A point of a curve along the order of execution: the worst of some. */
struct report_point {
    struct compare_pair pair;
    double value;
    uint64_t of;             /* 0: no point */
    bool must;
};

struct report_figures {
    bool there;
    double of[REPORT_FIGURES];
};

struct report_moment {
    int64_t iteration;
    uint64_t of;             /* records it stands for; 0: none */
    double value;
    struct report_figures a, b;
};

/* One tensor's place in the model over time. */
struct report_history {
    size_t place;
    int io;
    int64_t position, path;
    uint32_t rank;
    int32_t next;            /* of the same place; -1 */
};

/* One record and its samples. */
struct report_side {
    bool there;
    int dtype;
    char shape[64];
    uint64_t n, hash;
    bool hashed;
    struct report_figures figures;
    size_t samples;          /* it has; the first REPORT_VALUES are kept */
    double value[REPORT_VALUES];
};
struct report_sampled {
    struct compare_pair pair;
    int sampling;
    uint64_t sampling_arg;
    struct report_side a, b;
};

struct report {
    struct scan *a, *b;                  /* b NULL: one run */
    const struct compare_options *o;
    const struct compare_noise *noise;
    void (*progress)(void *state, uint64_t done, uint64_t of);
    void *state;

    struct compare_result compare;
    struct check_result check;
    uint64_t records;                    /* pairs, or records of the one */
    size_t objects;                      /* of a; one more for none */
    struct report_place *place;          /* by object and pass */
    size_t *order;                       /* of places, by weight */
    size_t places;                       /* of order: with records */
    int32_t *shown;                      /* number of an object on the page */
    size_t objects_shown, objects_seen;
    int64_t iteration_lo, iteration_hi, iteration_gcd, seq_lo, seq_hi;
    struct report_rank rank[REPORT_RANKS];
    size_t ranks;

    struct report_columns columns;
    size_t rows, rows_of, nan_rows, nan_rows_of, rank_rows;
    float *map, *nan, *rank_map;         /* rows by columns; nan: a, b */
    uint32_t focus_rank;                 /* whose order the curves are in */
    int64_t focus;                       /* iteration of the second curve */
    struct report_point *whole, *close;  /* REPORT_BINS each, then sorted */
    size_t close_n, close_room;
    struct report_history *history;
    struct report_moment *moment;        /* `each` of each history */
    size_t histories, histories_room, histories_of, each;
    int64_t bin;                         /* iterations that share a moment */
    struct report_sampled *sampled;
    size_t sampled_n, sampled_room;
};

/* The verdict, and what there is. a, b, o and noise are set, the rest is 0.
 * 0 or an exit code, told. */
int report_survey(struct report *r);
/* What goes on the page. */
int report_gather(struct report *r);
void report_free(struct report *r);

/* Calls take() with each record or pair. */
typedef int report_take(struct report *r, const struct compare_pair *p,
                        const struct scan_row *a, const struct scan_row *b);
int report_walk(struct report *r, report_take *take,
                struct compare_result *result);

double report_value(const struct report *r, const struct compare_pair *p,
                    const struct scan_row *a);
/* Elements that are not finite. */
uint64_t report_nonfinite(const struct scan_row *row);
/* Is it what a call gives, or of no call? */
bool report_given(const struct compare_pair *p);
size_t report_place_of(const struct report *r, const struct compare_pair *p);
/* The records that stay whatever the bounds, one after the other; NULL at
 * the end. */
const struct compare_pair *report_must(const struct report *r, size_t i);

/* The page itself (report_json.c). 0 or an exit code, told. */
int report_write(struct report *r, FILE *f);

#endif
