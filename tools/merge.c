/* Merging what records say of shards. Pure. */
#include "tools/merge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/sampling.h"

/* ---- shapes ---- */

struct dims {
    uint64_t at[TRD_MAX_DIMS];
    unsigned n;
};

static struct dims dims_of(const struct diff_side *s)
{
    const char *text = s->shape.text, *end = text + s->shape.n;
    struct dims d = {.n = 0};
    while (text < end && d.n < TRD_MAX_DIMS) {
        uint64_t v = 0;
        for (; text < end && *text != ' '; text++)
            v = 10 * v + (uint64_t)(*text - '0');
        d.at[d.n++] = v;
        text += text < end;
    }
    return d;
}

/* Do all shards have the whole's dimensions but for one that adds up? */
static bool adds_up(const struct dims *whole,
                    const struct diff_side *const *shard, size_t n,
                    unsigned dim)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        struct dims d = dims_of(shard[i]);
        if (d.n != whole->n)
            return false;
        sum += d.at[dim];
        d.at[dim] = whole->at[dim];
        if (memcmp(d.at, whole->at, d.n * sizeof *d.at) != 0)
            return false;
    }
    return sum == whole->at[dim];
}

/* Are they all alike, and as many as fit into the whole? */
static bool is_grid(const struct dims *whole,
                    const struct diff_side *const *shard, size_t n)
{
    struct dims first = dims_of(shard[0]);
    uint64_t fit = 1;
    if (first.n != whole->n)
        return false;
    for (size_t i = 1; i < n; i++)
        if (shard[i]->shape.n != shard[0]->shape.n ||
            memcmp(shard[i]->shape.text, shard[0]->shape.text,
                   shard[0]->shape.n) != 0)
            return false;
    for (unsigned i = 0; i < first.n; i++) {
        if (first.at[i] == 0 || whole->at[i] % first.at[i] ||
            whole->at[i] / first.at[i] > n)
            return false;
        fit *= whole->at[i] / first.at[i];
        if (fit > n)
            return false;
    }
    return fit == n;
}

static bool are_flat(const struct diff_side *const *shard, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (dims_of(shard[i]).n != 1)
            return false;
    return true;
}

struct merge_plan merge_plan(const struct diff_side *whole,
                             const struct diff_side *const *shard, size_t n,
                             bool padded)
{
    struct merge_plan plan = {.way = MERGE_NOT};
    struct dims w = dims_of(whole);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (shard[i]->dtype != shard[0]->dtype || shard[i]->n > UINT64_MAX -
                                                                    sum)
            return plan;
        sum += shard[i]->n;
    }
    if (sum < whole->n || (sum > whole->n && !padded))
        return plan;
    for (plan.dim = 0; sum == whole->n && plan.dim < w.n; plan.dim++)
        if (adds_up(&w, shard, n, plan.dim)) {
            plan.way = MERGE_BLOCKS;
            return plan;
        }
    if ((are_flat(shard, n) && sum - whole->n < n) ||
        (w.n == 1 && sum == whole->n)) {
        plan.way = MERGE_FLAT;
        plan.pad = sum - whole->n;
    } else if (sum == whole->n && is_grid(&w, shard, n)) {
        plan.way = MERGE_GRID;
    }
    return plan;
}

/* ---- figures ---- */

static double least(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : fmin(a, b);
}

static double most(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : fmax(a, b);
}

static uint64_t finite_of(const struct diff_side *s)
{
    return s->n - s->nan - s->pinf - s->ninf;
}

/* Adds the moments of m more finite elements to those of n. */
static void add_moments(struct diff_side *to, double n,
                        const struct diff_side *s, double m)
{
    double d = s->mean - to->mean, sum = n + m;
    double square = n * to->std * to->std + m * s->std * s->std +
                    d * d * (n * m / sum);
    to->mean += d * (m / sum);
    to->std = sqrt(square / sum);
    to->l2 = hypot(to->l2, s->l2);
}

/* Takes zeros away that are no elements of the tensor. */
static void drop_zeros(struct diff_side *to, double n, double pad)
{
    double left = n - pad, mean = to->mean * (n / left);
    double square = (to->std * to->std + to->mean * to->mean) * (n / left);
    to->std = sqrt(fmax(0, square - mean * mean));
    to->mean = mean;
    /* an extreme of 0 may be that of the zeros */
    if (!(to->max > 0 && to->min < 0))
        to->has &= ~(uint32_t)TRD_HAS_RANGE;
}

void merge_sides(const struct diff_side *const *shard, size_t n,
                 uint64_t pad, struct diff_side *out)
{
    uint32_t has = TRD_HAS_COUNTS | TRD_HAS_RANGE | TRD_HAS_MEAN |
                   TRD_HAS_L2;
    uint64_t finite = 0;
    struct diff_side o = {.dtype = shard[0]->dtype,
                          .shape = shard[0]->shape};
    for (size_t i = 0; i < n; i++) {
        const struct diff_side *s = shard[i];
        uint64_t m = finite_of(s);
        o.n += s->n;
        o.nan += s->nan;
        o.pinf += s->pinf;
        o.ninf += s->ninf;
        o.has |= s->has & TRD_IS_GIVEN;
        if (s->n && !(s->has & TRD_HAS_COUNTS))
            has &= ~(uint32_t)TRD_HAS_COUNTS;
        if (m == 0)
            continue; /* there is nothing of which it could have figures */
        has &= s->has;
        if (finite == 0) {
            o.max = s->max;
            o.min = s->min;
            o.mean = s->mean;
            o.std = s->std;
            o.l2 = s->l2;
        } else {
            o.max = most(o.max, s->max);
            o.min = least(o.min, s->min);
            add_moments(&o, (double)finite, s, (double)m);
        }
        finite += m;
    }
    o.has |= finite ? has : has & TRD_HAS_COUNTS;
    if (pad && finite > pad)
        drop_zeros(&o, (double)finite, (double)pad);
    o.n -= pad;
    *out = o;
}

/* ---- samples ---- */

static uint64_t place_of(const struct diff_side *s, size_t count, size_t i)
{
    return sampling_index(s->n, (uint32_t)count, s->sampling,
                          s->sampling_arg, (uint32_t)i);
}

/* The sample that is the element; count: there is none. */
static size_t find_sample(const struct diff_side *s, size_t count,
                          uint64_t element)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (place_of(s, count, mid) < element)
            low = mid + 1;
        else
            high = mid;
    }
    return low < count && place_of(s, count, low) == element ? low : count;
}

/* Which shard has the element of the whole, and where. n: none. */
static size_t find_shard(const struct merge_plan *plan,
                         const struct dims *whole,
                         const struct diff_side *const *shard, size_t n,
                         uint64_t *element)
{
    uint64_t inner = 1, at = *element, row, outer, width;
    size_t i = 0;
    if (plan->way == MERGE_FLAT) {
        while (i < n && at >= shard[i]->n)
            at -= shard[i++]->n;
        *element = at;
        return i;
    }
    for (unsigned d = plan->dim + 1; d < whole->n; d++)
        inner *= whole->at[d];
    row = at / inner % whole->at[plan->dim];
    outer = at / inner / whole->at[plan->dim];
    if (plan->way == MERGE_DEALT) {
        i = (size_t)(row % n);
        row /= n;
    } else {
        while (i < n && row >= dims_of(shard[i]).at[plan->dim])
            row -= dims_of(shard[i++]).at[plan->dim];
    }
    if (i == n)
        return n;
    width = dims_of(shard[i]).at[plan->dim];
    if (row >= width)
        return n;
    *element = (outer * width + row) * inner + at % inner;
    return i;
}

void merge_samples(const struct merge_plan *plan,
                   const struct diff_side *whole,
                   const struct diff_side *const *shard, size_t n,
                   struct merge_samples *out)
{
    size_t wide = trd_dtype_bytes(whole->dtype), count;
    size_t thin = trd_dtype_bytes(shard[0]->dtype);
    struct dims dims = dims_of(whole);
    out->n = 0;
    if (!wide || !thin || plan->way == MERGE_NOT || plan->way == MERGE_GRID)
        return;
    count = whole->samples.n / wide;
    for (size_t i = 0; i < count; i++) {
        uint64_t element = place_of(whole, count, i);
        size_t at = find_shard(plan, &dims, shard, n, &element), has, j;
        if (at == n)
            continue;
        has = shard[at]->samples.n / thin;
        j = find_sample(shard[at], has, element);
        if (j == has)
            continue;
        memcpy(out->whole + out->n * wide, whole->samples.text + i * wide,
               wide);
        memcpy(out->shards + out->n * thin,
               shard[at]->samples.text + j * thin, thin);
        out->n++;
    }
}
