/* Where two runs part, and the module that is to blame.
 *
 * Records of the same name are paired (align.h) and the error of each pair
 * measured in units of rounding (diff.h). Rounding alone makes errors that a
 * module hands on and lets grow a little; a module that computes something
 * else makes an error out of nothing. So a call is judged by its gain,
 *     gain = error of what it gives / max(1, error of what it got),
 * and is guilty when that is above COMPARE_GAIN times what the same module
 * gained an iteration before: weights of runs that rounded differently drift
 * apart, but no faster than that. What a call got is its inputs; backward,
 * the gradient of its output and its forward inputs and outputs; for the
 * gradient of a parameter all four. The culprit is the guilty call that was
 * first, in the order of the first run. A module in a module ends first, so
 * it is the innermost.
 *
 * In dtypes of 16 bits and less most rounding is hidden by that of the last
 * step, so gains are small: COMPARE_GAIN_NARROW. And moments tell more than
 * elements do, since roundings of n elements cancel: their own gain,
 *     moments of what it gives
 *         / max(moments of what it got, max(1, error of that) / sqrt(n)),
 * is above COMPARE_GAIN_MOMENTS only where all elements are off alike.
 *
 * docs/compare.md has the evidence. */
#ifndef TOOLS_COMPARE_H
#define TOOLS_COMPARE_H

#include "tools/scan.h"
#include "tools/tracectl.h"

#define COMPARE_GAIN 100.0
#define COMPARE_GAIN_NARROW 8.0
#define COMPARE_GAIN_MOMENTS 40.0

enum { COMPARE_RANKED = 20, COMPARE_REASON = 256 };

enum compare_verdict {
    COMPARE_SAME,     /* all bits that both sides know are equal */
    COMPARE_ROUNDING, /* no more than rounding explains */
    COMPARE_UNSURE,   /* more than that, and nobody is to blame */
    COMPARE_DIFFERS
};

struct compare_pair;

struct compare_options {
    const char *map;      /* files, or NULL */
    const char *rules;
    int64_t skip;         /* iterations up to this one are left out */
    void (*progress)(void *state, uint64_t done, uint64_t of);
    /* Each pair that is judged, with both rows, which stay until it returns
     * (of merged shards the merged one). NULL: nobody asks. */
    void (*pair)(void *state, const struct compare_pair *p,
                 const struct scan_row *a, const struct scan_row *b);
    /* What is off first as far as was looked, each time that it is another
     * record. NULL: nobody asks. */
    void (*first)(void *state, const struct compare_pair *p);
    void *state;
};

/* A pair of records, as the first run names it. */
struct compare_pair {
    bool there;
    bool apart;           /* copies of it on ranks of a run differ */
    int pass, io;
    int64_t step, iteration, microbatch, position, seq, path;
    uint32_t rank, rank_b; /* of merged shards the first */
    uint32_t call;        /* pairs of one call in a group have one number */
    uint32_t stage;       /* of the pipeline of the first run */
    uint64_t n;           /* elements */
    size_t object;        /* index in the first run's objects; SIZE_MAX none */
    struct diff diff;
    double before;        /* error of what its call got; -1 unknown */
};

struct compare_missing {
    size_t object;        /* index in the objects of its side; SIZE_MAX: of
                             no object */
    uint64_t records;
    int64_t first, last;  /* steps */
};

/* X(name, text, what): why records that correspond were not compared. */
#define COMPARE_CAUSES(X)                                                     \
    X(COMPARE_PARTIAL, "partial", "parts of a sum that ranks add up later")   \
    X(COMPARE_PIECES, "pieces", "shards whose sizes do not add up")           \
    X(COMPARE_STAGES, "stages", "what else the stages of a pipeline have")    \
    X(COMPARE_OWN, "own", "values that depend on the part of the batch")      \
    X(COMPARE_BATCHES, "batches", "batches that are no multiples")            \
    X(COMPARE_LOCAL, "local", "local gradients of other parts of the batch")

enum compare_cause {
#define COMPARE_CAUSE_MEMBER(name, text, what) name,
    COMPARE_CAUSES(COMPARE_CAUSE_MEMBER)
#undef COMPARE_CAUSE_MEMBER
    COMPARE_CAUSE_N
};

/* Of a run: how many ranks, and how these share batch and model. */
struct compare_ranks {
    uint32_t ranks, data, stages;
};

/* How the ranks of one run were paired with those of the other. */
struct compare_layout {
    bool same;            /* rank with rank; the rest is 0 */
    struct compare_ranks a, b;
    uint64_t copies, merged, batch; /* pairs of copies, of merged shards, of
                                       merged parts of the batch */
    uint64_t uncompared[COMPARE_CAUSE_N]; /* records */
    double factor;        /* gradients of B are so many times those of A */
};

struct compare_result {
    enum compare_verdict verdict;
    struct compare_layout layout;
    struct compare_pair first, culprit;
    char reason[COMPARE_REASON];   /* of the culprit, or of the verdict */
    uint64_t compared, equal, rounding, differ, blind;
    uint64_t only_a, only_b, shape, dtype, nan, nan_alike;
    uint64_t functions_a, functions_b; /* records of functions that are in
                                          one run only: no difference */
    double most;          /* the largest error that is a number */
    struct compare_pair ranked[COMPARE_RANKED]; /* worst first */
    size_t ranked_n;
    struct compare_missing *missing_a, *missing_b; /* to be freed by
                                                      compare_free() */
    size_t missing_a_n, missing_b_n;
    bool text;            /* a side is a text log */
};

/* What a repeated run shows: gains that are no guilt. */
struct compare_noise;
void compare_noise_free(struct compare_noise *n);

/* noise: what to allow for, or NULL. learn: where the gains of this
 * comparison are put, or NULL. 0 or an exit code, told. */
int compare_runs(struct scan *a, struct scan *b,
                 const struct compare_options *o,
                 const struct compare_noise *noise,
                 struct compare_noise **learn, struct compare_result *out);
void compare_free(struct compare_result *r);

#endif
