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

struct compare_options {
    const char *map;      /* files, or NULL */
    const char *rules;
    int64_t skip;         /* iterations up to this one are left out */
    void (*progress)(void *state, uint64_t done, uint64_t of);
    void *state;
};

/* A pair of records, as the first run names it. */
struct compare_pair {
    bool there;
    int pass, io;
    int64_t step, iteration, microbatch, position, seq, path;
    uint32_t rank;
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

struct compare_result {
    enum compare_verdict verdict;
    struct compare_pair first, culprit;
    char reason[COMPARE_REASON];   /* of the culprit, or of the verdict */
    uint64_t compared, equal, rounding, differ, blind;
    uint64_t only_a, only_b, shape, dtype, nan, nan_alike;
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
