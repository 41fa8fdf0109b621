/* What is wrong inside one run.
 *
 * X(name, text): kinds of findings.
 *   nan, inf     the first output that has one although the inputs of its call
 *                have none: where it was born. What carries it is counted.
 *                Where no traced call made it, as with bad data, the first
 *                record that has one; of steps that a gradient scaler skipped
 *                a note
 *   range        magnitudes within a factor of 2 of the dtype's largest, in
 *                dtypes of 16 bits and less: the next step may overflow
 *   underflow    more than a tenth of the elements that are not zero are
 *                subnormal: what is smaller is lost already
 *   dead         an output, or a gradient of a parameter, that was all zeros
 *                CHECK_TIMES times, and never anything else
 *   spike        a norm CHECK_JUMP times the running mean of those before
 *   growth       a norm that grew at each record, by CHECK_RISE and more, until
 *                it was CHECK_GROWTH times as large
 *   recompute    a recomputed output whose bits are not those of the first
 *   replicas     gradients or values of a parameter that should be the same on
 *                ranks of one data-parallel group, and are not; a note, if
 *                none at all is the same
 *   repeat       two calls of a module, with the same parameters, got the same
 *                bits and gave others: nondeterminism, or a failing device.
 *                Where the module may draw random numbers or keep a state it
 *                is a note, which makes no run unhealthy
 * Of each kind a module is told once, at its first record, with a count. */
#ifndef TOOLS_CHECK_H
#define TOOLS_CHECK_H

#include "tools/compare.h"

#define CHECK_KINDS(X)                                                        \
    X(CHECK_NAN, "nan")                                                       \
    X(CHECK_INF, "inf")                                                       \
    X(CHECK_RANGE, "range")                                                   \
    X(CHECK_UNDERFLOW, "underflow")                                           \
    X(CHECK_DEAD, "dead")                                                     \
    X(CHECK_SPIKE, "spike")                                                   \
    X(CHECK_GROWS, "growth")                                                  \
    X(CHECK_RECOMPUTE, "recompute")                                           \
    X(CHECK_REPLICAS, "replicas")                                             \
    X(CHECK_REPEAT, "repeat")

enum check_kind {
#define CHECK_KIND_MEMBER(name, text) name,
    CHECK_KINDS(CHECK_KIND_MEMBER)
#undef CHECK_KIND_MEMBER
    CHECK_KIND_N
};

enum { CHECK_TIMES = 3, CHECK_DETAIL = 160 };
#define CHECK_JUMP 20.0
#define CHECK_RISE 1.2
#define CHECK_GROWTH 1e4

struct check_finding {
    enum check_kind kind;
    struct compare_pair at;   /* its first record; diff does not hold */
    uint64_t records;         /* that show it */
    bool note;                /* it may be meant */
    char detail[CHECK_DETAIL];
};

struct check_result {
    struct check_finding *finding; /* by kind, then by order, notes last; to
                                      be freed */
    size_t n, notes;               /* of them */
    uint64_t records, carriers;    /* of NaN or infinity */
};

/* 0 or an exit code, told. */
int check_run(struct scan *s, struct check_result *out);
void check_free(struct check_result *r);

const char *check_kind_name(enum check_kind kind);

#endif
