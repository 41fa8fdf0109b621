/* How far two records of the same tensor lie apart, in units of rounding.
 *
 * Records hold no tensor, only its hash, moments, extremes and samples; each
 * of these bounds the error of the tensor from below:
 *   hash      equal: the bits are equal, the error is 0
 *   samples   the RMS of their differences estimates that of all
 *   l2, std, mean   |l2(a) - l2(b)| <= l2(a - b), and so on
 *   extremes  |max(a) - max(b)| <= max|a - b|
 * The error is the largest of them over the tensor's RMS (the extremes' over
 * its largest magnitude), divided by the unit roundoff of the coarser of the
 * two dtypes; where bits differ it is at least DIFF_LEAST. A mean is never
 * divided by a mean, so nothing is large because something is near zero.
 * Figures of text logs are exact to DIFF_TEXT only, which is taken off. */
#ifndef TOOLS_DIFF_H
#define TOOLS_DIFF_H

#include <stdbool.h>

#include "proto/bytes.h"
#include "tracerd/stats.h"

/* What is compared of a record. Figures are over finite elements. */
struct diff_side {
    int dtype;               /* enum trd_dtype */
    struct slice shape;      /* "16 12 512" */
    uint64_t n;              /* elements */
    uint32_t has;            /* TRD_HAS_*, TRD_IS_GIVEN */
    uint64_t nan, pinf, ninf;
    double max, min, mean, std, l2;
    uint64_t hash;
    int sampling;            /* enum trd_sampling */
    uint64_t sampling_arg;
    struct slice samples;    /* elements of dtype */
};

/* X(name, text): what the two are to one another. */
#define DIFF_KINDS(X)                                                         \
    X(DIFF_EQUAL, "equal")       /* bit for bit, or as far as text tells */   \
    X(DIFF_NEAR, "near")         /* numbers; error says how near */           \
    X(DIFF_NAN, "nan")           /* NaN or infinity against a number */       \
    X(DIFF_SHAPE, "shape")                                                    \
    X(DIFF_DTYPE, "dtype")       /* no common kind of number */               \
    X(DIFF_BLIND, "blind")       /* a side has no figures */

enum diff_kind {
#define DIFF_KIND_MEMBER(name, text) name,
    DIFF_KINDS(DIFF_KIND_MEMBER)
#undef DIFF_KIND_MEMBER
    DIFF_KIND_N
};

/* X(name, text): the figure that tells the error. */
#define DIFF_FIGURES(X)                                                       \
    X(DIFF_BY_HASH, "hash")                                                   \
    X(DIFF_BY_SAMPLES, "samples")                                             \
    X(DIFF_BY_L2, "l2")                                                       \
    X(DIFF_BY_STD, "std")                                                     \
    X(DIFF_BY_MEAN, "mean")                                                   \
    X(DIFF_BY_EXTREMES, "extremes")                                           \
    X(DIFF_BY_COUNTS, "counts")

enum diff_figure {
#define DIFF_FIGURE_MEMBER(name, text) name,
    DIFF_FIGURES(DIFF_FIGURE_MEMBER)
#undef DIFF_FIGURE_MEMBER
    DIFF_FIGURE_N
};

struct diff {
    enum diff_kind kind;
    enum diff_figure by;
    double error;    /* units of rounding; DIFF_ALL where there is no number */
    double moments;  /* what l2, mean and std alone say of it */
    double unit;     /* one of them, relative to the tensor's RMS */
    bool nan_alike;  /* both have as many NaN and infinities, not none */
    bool mixed;      /* dtypes differ */
};

#define DIFF_LEAST 0.5
#define DIFF_ALL 1e12
#define DIFF_TEXT 1e-5

/* What is known of a pair besides; zeros for nothing. */
struct diff_how {
    double scale;   /* what the error is taken relative to where that is more
                       than the tensors' RMS */
    double factor;  /* b is so many times a if it is not a; 0: it is a */
    double inexact; /* error of mean, std and l2, relative to the RMS */
};

/* Threads: any. Blocks: never. Errors: none. */
struct diff diff_of(const struct diff_side *a, const struct diff_side *b,
                    const struct diff_how *how);

/* Root of the mean square of the finite elements; 0 where unknown. */
double diff_rms(const struct diff_side *s);
/* Unit roundoff of a dtype, half the distance of 1 to the next number; 0 for
 * one that is not of floats. Text counts as float32. */
double diff_unit(int dtype);

const char *diff_kind_name(enum diff_kind kind);
const char *diff_figure_name(enum diff_figure by);

#endif
