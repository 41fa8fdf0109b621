/* The statistics of a tensor in memory: checks, modes, tiles, figures. On the
 * caller's thread; allocates nothing.
 *
 * A contiguous tensor is handed to the kernel where it lies, runs of tiles at
 * a time; any other is gathered into a buffer of one tile.
 *
 * Invariants: *out and samples are untouched on failure. Between
 * trd__modes_enter() and trd__modes_leave() the floating-point modes are those
 * of kernel.h; the arithmetic is all in compute(), which the compiler may not
 * move out from between. */
#include "client/stats/kernel.h"
#include "client/stats/walk.h"

#include <fenv.h>
#include <string.h>

#if defined(__GNUC__)
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE
#endif

void trd__modes_enter(fenv_t *caller)
{
    fegetenv(caller);
    fesetenv(FE_DFL_ENV);
#if defined(__SSE__)
    /* ISO C has no word for flushing subnormals; 0x8040 are its two bits. */
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() & ~0x8040u);
#endif
}

void trd__modes_leave(const fenv_t *caller)
{
    fesetenv(caller);
}

uint64_t trd__sample_index(uint64_t n, uint32_t k, uint32_t i)
{
    uint64_t count = n < k ? n : k;

    if (i == 0 || count < 2)
        return 0;
    if (i + UINT64_C(1) == count)
        return n - 1;
    return (uint64_t)((double)i * ((double)(n - 1) / (double)(count - 1)));
}

/* ---- the tree over tiles ---- */

void trd__tree_add(struct trd__tree *tree, const struct trd__sum *sum)
{
    struct trd__sum s = *sum;
    int i = 0;

    for (; tree->n >> i & 1; i++)
        s = sum_merge(tree->level[i], s);
    tree->level[i] = s;
    tree->n++;
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
    out->mean = ldexp(mean.hi, back) + 0.0; /* -0 becomes +0 */
    out->std = ldexp(sqrt(dd_div(m2, count).hi), back);
    out->l2 = ldexp(sqrt(squares.hi), back);
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

/* ---- one tensor ---- */

/* The first finite element. Looks at one, then at a few at a time. */
static void find_pilot(struct trd__job *job, struct trd__walk *walk)
{
    unsigned char few[64 * TRD__MAX_ELEMENT];
    double x[64];
    uint64_t at = 0;

    trd__walk_seek(walk, 0);
    if (job->dtype == TRD_I64 || job->dtype == TRD_U64) {
        trd__walk_read(walk, &job->pilot, 1);
        return;
    }
    while (at < walk->n) {
        uint64_t left = walk->n - at;
        uint32_t m = at == 0 ? 1 : left < 64 ? (uint32_t)left : 64;

        trd__walk_read(walk, few, m);
        trd__decode64(job->dtype, few, m, x);
        for (uint32_t i = 0; i < m; i++)
            if (isfinite(x[i])) {
                job->pilot.f = x[i];
                return;
            }
        at += m;
    }
}

static NOINLINE void run_contiguous(const struct trd__job *job,
                                    trd__tiles *tiles,
                                    const struct trd__walk *walk,
                                    struct trd__tally *tally,
                                    struct trd__tree *tree)
{
    struct trd__sum sums[TRD__RUN];

    for (uint64_t at = 0; at < walk->n;) {
        uint64_t left = walk->n - at;
        uint32_t m = TRD__RUN * TRD__TILE;

        if (left < m)
            m = (uint32_t)left;
        tiles(job, walk->data + at * walk->size, at / TRD__TILE, m, tally,
              sums);
        for (uint32_t i = 0; i * TRD__TILE < m; i++)
            trd__tree_add(tree, &sums[i]);
        at += m;
    }
}

static NOINLINE void run_gathered(const struct trd__job *job, trd__tiles *tiles,
                                  struct trd__walk *walk,
                                  struct trd__tally *tally,
                                  struct trd__tree *tree)
{
    _Alignas(64) unsigned char tile[TRD__TILE * TRD__MAX_ELEMENT];
    struct trd__sum sum;

    trd__walk_seek(walk, 0);
    for (uint64_t at = 0; at < walk->n;) {
        uint64_t left = walk->n - at;
        uint32_t m = left < TRD__TILE ? (uint32_t)left : TRD__TILE;

        trd__walk_read(walk, tile, m);
        tiles(job, tile, at / TRD__TILE, m, tally, &sum);
        trd__tree_add(tree, &sum);
        at += m;
    }
}

static NOINLINE void compute(int dtype, trd__tiles *tiles,
                             struct trd__walk *walk, uint32_t k,
                             struct trd_stats *out, unsigned char *samples)
{
    struct trd__job job = {dtype, false, {0}};
    struct trd__tally tally;
    struct trd__tree tree;
    struct trd__sum sum;

    job.narrow = trd__is_narrow(dtype) && walk->n > TRD__WIDE_N;
    trd__tally_init(&tally, dtype);
    tree.n = 0;
    if (walk->n && trd_dtype_kind(dtype) != TRD_KIND_PACKED)
        find_pilot(&job, walk);
    if (trd__walk_is_contiguous(walk))
        run_contiguous(&job, tiles, walk, &tally, &tree);
    else
        run_gathered(&job, tiles, walk, &tally, &tree);
    sum = trd__tree_total(&tree);
    trd__finish(&job, walk->n, &tally, &sum, out);

    for (uint32_t i = 0; i < k; i++) {
        trd__walk_seek(walk, trd__sample_index(walk->n, k, i));
        trd__walk_read(walk, samples + i * walk->size, 1);
    }
    out->sample_n = k;
}

int trd__stats_with(const struct trd__kernel *kernel,
                    const struct trd_tensor *tensor, uint32_t k,
                    struct trd_stats *out, void *samples)
{
    struct trd__walk walk;
    struct trd_stats result;
    trd__tiles *tiles;
    fenv_t caller;
    int dtype;
    int r;

    if (!tensor || !out || k > TRD_MAX_SAMPLES)
        return TRD_EINVAL;
    dtype = (int)tensor->dtype;
    if (dtype < 0 || dtype >= TRD_DTYPE_LIMIT)
        return TRD_EUNSUPPORTED;
    tiles = kernel->tiles[dtype];
    if (!tiles)
        tiles = trd__kernel_c.tiles[dtype];
    if (!tiles)
        return TRD_EUNSUPPORTED;
    r = trd__walk_init(&walk, tensor, trd_dtype_bytes(dtype));
    if (r < 0)
        return r;
    if (trd_dtype_kind(dtype) == TRD_KIND_PACKED)
        k = 0;
    if (k > walk.n)
        k = (uint32_t)walk.n;
    if (k && !samples)
        return TRD_EINVAL;

    trd__modes_enter(&caller);
    compute(dtype, tiles, &walk, k, &result, samples);
    trd__modes_leave(&caller);
    *out = result;
    return 0;
}

int trd_stats_cpu(const struct trd_tensor *tensor, uint32_t k,
                  struct trd_stats *out, void *samples)
{
    return trd__stats_with(&trd__kernel_c, tensor, k, out, samples);
}
