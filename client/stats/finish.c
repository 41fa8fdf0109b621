/* Sums of tiles to figures: the tree over tiles, then the arithmetic of
 * kernel.h on what is left of a tensor. Any thread; expects its modes. */
#include "client/stats/kernel.h"

#include <string.h>

/* ---- the tree over tiles ---- */

/* Adds the sum of an aligned subtree of 2^level tiles. */
static void add_subtree(struct trd__tree *tree, struct trd__sum s, int level)
{
    int i = level;

    for (; tree->n >> i & 1; i++)
        s = sum_merge(tree->level[i], s);
    tree->level[i] = s;
    tree->n += UINT64_C(1) << level;
}

void trd__tree_add(struct trd__tree *tree, const struct trd__sum *sum)
{
    add_subtree(tree, *sum, 0);
}

enum { RUN_LEVEL = 6 }; /* TRD__RUN tiles */

/* The parts of a run's sums side by side, so that merges of one level run at
 * once. Tile i is at the place that has its bits the other way round: then
 * neighbours are half the row apart, at every level. */
struct run {
    double a_hi[TRD__RUN], a_lo[TRD__RUN], b_hi[TRD__RUN], b_lo[TRD__RUN];
};

static unsigned reversed(unsigned i)
{
    unsigned r = 0;

    for (int bit = 0; bit < RUN_LEVEL; bit++)
        r |= (i >> bit & 1) << (RUN_LEVEL - 1 - bit);
    return r;
}

static void fold(double *hi, double *lo)
{
    for (int n = TRD__RUN / 2; n; n /= 2)
        for (int i = 0; i < n; i++) {
            struct dd l = {hi[i], lo[i]}, r = {hi[i + n], lo[i + n]};
            struct dd s = dd_add(l, r);
            hi[i] = s.hi;
            lo[i] = s.lo;
        }
}

void trd__tree_add_run(struct trd__tree *tree, const struct trd__sum *sums,
                       uint32_t n)
{
    struct trd__sum s;
    struct run run;
    bool alike = n == TRD__RUN && tree->n % TRD__RUN == 0;

    for (uint32_t i = 1; alike && i < n; i++)
        alike = sums[i].unit == sums[0].unit;
    if (!alike) {
        for (uint32_t i = 0; i < n; i++)
            trd__tree_add(tree, &sums[i]);
        return;
    }
    for (unsigned i = 0; i < TRD__RUN; i++) {
        unsigned at = reversed(i);
        run.a_hi[at] = sums[i].a.hi;
        run.a_lo[at] = sums[i].a.lo;
        run.b_hi[at] = sums[i].b.hi;
        run.b_lo[at] = sums[i].b.lo;
    }
    fold(run.a_hi, run.a_lo);
    fold(run.b_hi, run.b_lo);
    s.a.hi = run.a_hi[0];
    s.a.lo = run.a_lo[0];
    s.b.hi = run.b_hi[0];
    s.b.lo = run.b_lo[0];
    s.unit = sums[0].unit;
    add_subtree(tree, s, RUN_LEVEL);
}

/* Absent tiles are 0, the identity: every level that holds is the left
 * sibling of all that came after it. */
struct trd__sum trd__tree_total(const struct trd__tree *tree)
{
    struct trd__sum s = sum_zero();

    for (int i = 0; tree->n >> i; i++)
        if (tree->n >> i & 1)
            s = sum_merge(tree->level[i], s);
    return s;
}

/* ---- what adds up in any order ---- */

static void merge_u64(struct trd__tally *t, const struct trd__tally *o)
{
    t->max.u = o->max.u > t->max.u ? o->max.u : t->max.u;
    t->min.u = o->min.u < t->min.u ? o->min.u : t->min.u;
    t->absmax.u = o->absmax.u > t->absmax.u ? o->absmax.u : t->absmax.u;
    t->absmin.u = o->absmin.u < t->absmin.u ? o->absmin.u : t->absmin.u;
}

void trd__tally_merge(struct trd__tally *t, int dtype,
                      const struct trd__tally *o)
{
    t->nan += o->nan;
    t->pinf += o->pinf;
    t->ninf += o->ninf;
    t->zero += o->zero;
    t->subnormal += o->subnormal;
    t->finite += o->finite;
    t->hash += o->hash;
    if (dtype == TRD_U64) {
        merge_u64(t, o);
    } else if (dtype == TRD_I64) {
        int64_t max = o->max.i > t->max.i ? o->max.i : t->max.i;
        int64_t min = o->min.i < t->min.i ? o->min.i : t->min.i;
        merge_u64(t, o);
        t->max.i = max;
        t->min.i = min;
    } else {
        t->max.f = o->max.f > t->max.f ? o->max.f : t->max.f;
        t->min.f = o->min.f < t->min.f ? o->min.f : t->min.f;
        t->absmax.f = o->absmax.f > t->absmax.f ? o->absmax.f : t->absmax.f;
        t->absmin.f = o->absmin.f < t->absmin.f ? o->absmin.f : t->absmin.f;
    }
}

/* ---- figures from sums ---- */

/* P in the unit of the sums. */
static struct dd pilot_value(const struct trd__job *job, int32_t unit)
{
    struct dd p = {0, 0};

    if (job->dtype == TRD_U64)
        return dd_of_u64(job->pilot.u);
    if (job->dtype == TRD_I64 && job->pilot.i < 0)
        return dd_neg(dd_of_u64(0 - (uint64_t)job->pilot.i));
    if (job->dtype == TRD_I64)
        return dd_of_u64((uint64_t)job->pilot.i);
    p.hi = job->pilot.f * sum_scale(unit);
    return p;
}

static void finish_sums(const struct trd__job *job, uint64_t finite,
                        const struct trd__sum *sum, struct trd_stats *out)
{
    struct dd count = dd_of_u64(finite);
    struct dd offset = dd_div(sum->a, count);
    struct dd mean = dd_add(pilot_value(job, sum->unit), offset);
    struct dd m2 = dd_add(sum->b, dd_neg(dd_mul(sum->a, offset)));
    int back = 600 * sum->unit;
    struct dd squares;

    if (m2.hi < 0)
        m2.hi = m2.lo = 0;
    squares = dd_add(m2, dd_mul(count, dd_mul(mean, mean)));
    out->mean = mean.hi;
    out->std = sqrt(dd_div(m2, count).hi);
    out->l2 = sqrt(squares.hi);
    if (back) {
        out->mean = ldexp(out->mean, back);
        out->std = ldexp(out->std, back);
        out->l2 = ldexp(out->l2, back);
    }
    out->mean += 0.0; /* -0 becomes +0 */
    /* It is at most half the range of the elements; rounding may not know. */
    if (out->std > DBL_MAX)
        out->std = DBL_MAX;
}

/* Extremes of the integers that the tally kept as doubles. */
static void finish_ints(int dtype, const struct trd__tally *t,
                        struct trd_stats *out)
{
    bool is_signed = trd_dtype_kind(dtype) == TRD_KIND_SIGNED;

    out->absmax.u = (uint64_t)t->absmax.f;
    out->absmin.u = t->absmax.f > 0 ? (uint64_t)t->absmin.f : 0;
    if (is_signed) {
        out->max.i = (int64_t)t->max.f;
        out->min.i = (int64_t)t->min.f;
    } else {
        out->max.u = (uint64_t)t->max.f;
        out->min.u = (uint64_t)t->min.f;
    }
}

void trd__finish(const struct trd__job *job, uint64_t n,
                 const struct trd__tally *tally, const struct trd__sum *sum,
                 struct trd_stats *out)
{
    int kind = trd_dtype_kind(job->dtype);

    memset(out, 0, sizeof *out);
    out->n = n;
    if (!n) {
        out->has = kind == TRD_KIND_PACKED ? 0 : TRD_HAS_COUNTS;
        return;
    }
    out->hash = hash_of_tensor(tally->hash, n);
    out->has = TRD_HAS_HASH;
    if (kind == TRD_KIND_PACKED)
        return;
    out->nan = tally->nan;
    out->pinf = tally->pinf;
    out->ninf = tally->ninf;
    out->zero = tally->zero;
    out->subnormal = tally->subnormal;
    out->has |= TRD_HAS_COUNTS;
    if (!tally->finite)
        return;
    out->has = TRD_HAS_ALL;
    if (job->dtype == TRD_I64 || job->dtype == TRD_U64) {
        out->max = tally->max;
        out->min = tally->min;
        out->absmax = tally->absmax;
        out->absmin.u = tally->absmax.u ? tally->absmin.u : 0;
    } else if (kind == TRD_KIND_SIGNED || kind == TRD_KIND_UNSIGNED) {
        finish_ints(job->dtype, tally, out);
    } else {
        out->max.f = tally->max.f + 0.0;
        out->min.f = tally->min.f + 0.0;
        out->absmax.f = tally->absmax.f;
        out->absmin.f = tally->absmax.f > 0 ? tally->absmin.f : 0;
    }
    finish_sums(job, tally->finite, sum, out);
}
