/* The error of a pair of records, from what records hold. Pure. */
#include "tools/diff.h"

#include <math.h>
#include <string.h>

#include "proto/figures.h"

const char *diff_kind_name(enum diff_kind kind)
{
    static const char *const name[DIFF_KIND_N] = {
#define DIFF_KIND_TEXT(member, text) text,
        DIFF_KINDS(DIFF_KIND_TEXT)
#undef DIFF_KIND_TEXT
    };
    return name[kind];
}

const char *diff_figure_name(enum diff_figure by)
{
    static const char *const name[DIFF_FIGURE_N] = {
#define DIFF_FIGURE_TEXT(member, text) text,
        DIFF_FIGURES(DIFF_FIGURE_TEXT)
#undef DIFF_FIGURE_TEXT
    };
    return name[by];
}

double diff_unit(int dtype)
{
    switch (dtype) {
    case TRD_F64:
    case TRD_C128:
        return 0x1p-53;
    case TRD_F32:
    case TRD_C64:
    case TRD_TEXT:
        return 0x1p-24;
    case TRD_F16:
    case TRD_C32:
        return 0x1p-11;
    case TRD_BF16:
        return 0x1p-8;
    case TRD_F8_E4M3FN:
    case TRD_F8_E4M3FNUZ:
        return 0x1p-4;
    case TRD_F8_E5M2:
    case TRD_F8_E5M2FNUZ:
        return 0x1p-3;
    case TRD_F8_E8M0FNU:
        return 0x1p-1;
    default:
        return 0;
    }
}

/* Are the figures somebody else's, of a log or a dump? */
static bool is_given(const struct diff_side *s)
{
    return s->has & TRD_IS_GIVEN;
}

static bool is_text(const struct diff_side *s)
{
    return s->dtype == TRD_TEXT;
}

double diff_rms(const struct diff_side *s)
{
    uint64_t finite = s->n - s->nan - s->pinf - s->ninf;
    if (s->has & TRD_HAS_L2 && finite && finite <= s->n)
        return s->l2 / sqrt((double)finite);
    if (s->has & TRD_HAS_MEAN && isfinite(s->mean) && isfinite(s->std))
        return hypot(s->mean, s->std);
    return 0;
}

/* ---- what is no number ---- */

static bool same_shape(const struct diff_side *a, const struct diff_side *b)
{
    return a->n == b->n && a->shape.n == b->shape.n &&
           memcmp(a->shape.text, b->shape.text, a->shape.n) == 0;
}

/* One is NaN, or infinite in another way. */
static bool differ_in_kind(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) != isnan(b);
    return (isinf(a) || isinf(b)) && a != b;
}

/* The figures as others have them, not over finite elements only. */
static struct diff_side over_all(const struct diff_side *s)
{
    struct diff_side all = *s;
    if (is_given(s) || !(s->nan || s->pinf || s->ninf))
        return all;
    if (s->pinf)
        all.max = INFINITY;
    if (s->ninf)
        all.min = -INFINITY;
    all.mean = s->pinf ? INFINITY : -INFINITY;
    if (s->pinf && s->ninf)
        all.mean = NAN;
    all.std = NAN;
    if (s->nan)
        all.max = all.min = all.mean = NAN;
    all.has |= TRD_HAS_RANGE | TRD_HAS_MEAN;
    return all;
}

static bool kinds_differ(const struct diff_side *x, const struct diff_side *y)
{
    struct diff_side a = over_all(x), b = over_all(y);
    uint32_t both = a.has & b.has;
    if (both & TRD_HAS_RANGE &&
        (differ_in_kind(a.max, b.max) || differ_in_kind(a.min, b.min)))
        return true;
    if (!(both & TRD_HAS_MEAN))
        return false;
    /* where a mean is finite, a std that is not is unknown */
    return differ_in_kind(a.mean, b.mean) ||
           (!isfinite(a.mean) && differ_in_kind(a.std, b.std));
}

static bool counts_differ(const struct diff_side *a,
                          const struct diff_side *b)
{
    if (is_given(a) || is_given(b))
        return kinds_differ(a, b);
    return a->nan != b->nan || a->pinf != b->pinf || a->ninf != b->ninf;
}

static bool has_nonfinite(const struct diff_side *s)
{
    return s->nan || s->pinf || s->ninf ||
           (is_given(s) && s->has & TRD_HAS_RANGE &&
            !(isfinite(s->max) && isfinite(s->min))) ||
           (is_given(s) && s->has & TRD_HAS_MEAN && !isfinite(s->mean));
}

static bool is_blind(const struct diff_side *s)
{
    return !(s->has & (TRD_HAS_HASH | TRD_HAS_RANGE | TRD_HAS_MEAN)) && s->n;
}

/* ---- numbers ---- */

struct sum {
    struct diff d;
    double rest;    /* what text leaves open */
    double factor;  /* that makes b's figures a's */
};

static void take(struct sum *s, enum diff_figure by, double distance,
                 double scale)
{
    double error;
    distance -= s->rest;
    if (!(distance > 0))
        return;
    error = scale > 0 ? distance / scale / s->d.unit : DIFF_ALL;
    error = fmin(error, DIFF_ALL);
    if (by == DIFF_BY_L2 || by == DIFF_BY_MEAN || by == DIFF_BY_STD)
        s->d.moments = fmax(s->d.moments, error);
    if (error > s->d.error) {
        s->d.error = error;
        s->d.by = by;
    }
}

static bool same_places(const struct diff_side *a, const struct diff_side *b)
{
    return a->sampling == b->sampling && a->sampling_arg == b->sampling_arg;
}

/* The samples' share. False where one is a number and the other is not. */
static bool take_samples(struct sum *s, const struct diff_side *a,
                         const struct diff_side *b, double scale)
{
    size_t wide_a = trd_dtype_bytes(a->dtype);
    size_t wide_b = trd_dtype_bytes(b->dtype), n = 0;
    double square = 0;
    if (!wide_a || !wide_b || !same_places(a, b) ||
        a->samples.n / wide_a != b->samples.n / wide_b)
        return true;
    for (size_t i = 0; i < a->samples.n / wide_a; i++) {
        double x = element_f64(a->dtype, a->samples.text + i * wide_a);
        double y = element_f64(b->dtype, b->samples.text + i * wide_b) *
                   s->factor;
        double d = fabs(x - y);
        if (differ_in_kind(x, y))
            return false;
        if (!isfinite(x))
            continue;
        d = fmax(0, d - s->rest);
        square += d * d;
        n++;
    }
    if (n) {
        double rest = s->rest;
        s->rest = 0;
        take(s, DIFF_BY_SAMPLES, sqrt(square / (double)n), scale);
        s->rest = rest;
    }
    return true;
}

static void take_extremes(struct sum *s, const struct diff_side *a,
                          const struct diff_side *b, double scale)
{
    double max = b->max * s->factor, min = b->min * s->factor;
    double most = fmax(fmax(fabs(a->max), fabs(a->min)),
                       fmax(fabs(max), fabs(min)));
    if (!(a->has & b->has & TRD_HAS_RANGE))
        return;
    most = fmax(most, scale);
    take(s, DIFF_BY_EXTREMES, fabs(a->max - max), most);
    take(s, DIFF_BY_EXTREMES, fabs(a->min - min), most);
}

static struct diff other(enum diff_kind kind, enum diff_figure by)
{
    struct diff d = {kind, by, DIFF_ALL, DIFF_ALL, 0, false, false};
    return d;
}

static void take_moments(struct sum *s, const struct diff_side *a,
                         const struct diff_side *b, double rms,
                         double inexact)
{
    double root = sqrt((double)(a->n ? a->n : 1)), rest = s->rest;
    s->rest += inexact * rms;
    if (a->has & b->has & TRD_HAS_L2)
        take(s, DIFF_BY_L2, fabs(a->l2 - b->l2 * s->factor) / root, rms);
    if (a->has & b->has & TRD_HAS_MEAN) {
        take(s, DIFF_BY_MEAN, fabs(a->mean - b->mean * s->factor), rms);
        take(s, DIFF_BY_STD, fabs(a->std - b->std * s->factor), rms);
    }
    s->rest = rest;
}

static struct diff compare(const struct diff_side *a,
                           const struct diff_side *b, double unit,
                           const struct diff_how *how)
{
    bool text = is_text(a) || is_text(b);
    bool others = is_given(a) || is_given(b);
    /* the sums of a dump are of the tensor's own dtype */
    double inexact = others && !text ? fmax(how->inexact, 4 * unit)
                                     : how->inexact;
    struct sum s = {.d = {.kind = DIFF_NEAR, .unit = unit},
                    .rest = text ? DIFF_TEXT * (1 + 1e-6) : 0,
                    .factor = how->factor > 0 ? 1 / how->factor : 1};
    double rms = fmax(diff_rms(a), diff_rms(b) * s.factor);
    rms = fmax(rms, how->scale);
    s.d.error = others ? 0 : DIFF_LEAST;
    s.d.mixed = a->dtype != b->dtype && !text;
    if (!take_samples(&s, a, b, rms))
        return other(DIFF_NAN, DIFF_BY_SAMPLES);
    take_moments(&s, a, b, rms, inexact);
    take_extremes(&s, a, b, how->scale);
    if (others && s.d.error == 0)
        s.d.kind = DIFF_EQUAL;
    return s.d;
}

struct diff diff_of(const struct diff_side *a, const struct diff_side *b,
                    const struct diff_how *how)
{
    double unit = fmax(diff_unit(a->dtype), diff_unit(b->dtype));
    bool floats = diff_unit(a->dtype) > 0 && diff_unit(b->dtype) > 0;
    bool text = is_text(a) || is_text(b); /* which tells no dtype */
    struct diff d = {.kind = DIFF_EQUAL, .unit = unit};
    if (!same_shape(a, b))
        return other(DIFF_SHAPE, DIFF_BY_COUNTS);
    if (a->dtype != b->dtype && !floats && !text)
        return other(DIFF_DTYPE, DIFF_BY_COUNTS);
    if (a->n == 0 && b->n == 0)
        return d;
    if (is_blind(a) || is_blind(b)) {
        d.kind = DIFF_BLIND;
        return d;
    }
    if (a->dtype == b->dtype && a->has & b->has & TRD_HAS_HASH &&
        a->hash == b->hash) {
        d.nan_alike = has_nonfinite(a);
        return d;
    }
    if (counts_differ(a, b))
        return other(DIFF_NAN, DIFF_BY_COUNTS);
    /* of whole numbers no difference is rounding */
    d = compare(a, b, floats || text ? unit : 0x1p-53, how);
    d.nan_alike = d.kind != DIFF_NAN && has_nonfinite(a);
    return d;
}
