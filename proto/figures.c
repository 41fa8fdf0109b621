/* Bits of an element to numbers, and numpy's form of the figures. Pure. */
#include "proto/figures.h"

#include <math.h>
#include <string.h>

#include "proto/bytes.h"

/* The layout of a float dtype: mantissa and exponent widths, bias. */
struct layout {
    unsigned man, exp;
    int bias;
};

static struct layout layout_of(int dtype)
{
    switch (dtype) {
    case TRD_F16:
    case TRD_C32:
        return (struct layout){10, 5, 15};
    case TRD_BF16:
        return (struct layout){7, 8, 127};
    case TRD_F8_E4M3FN:
        return (struct layout){3, 4, 7};
    case TRD_F8_E5M2:
        return (struct layout){2, 5, 15};
    case TRD_F8_E4M3FNUZ:
        return (struct layout){3, 4, 8};
    case TRD_F8_E5M2FNUZ:
        return (struct layout){2, 5, 16};
    case TRD_F32:
    case TRD_C64:
        return (struct layout){23, 8, 127};
    default:
        return (struct layout){52, 11, 1023};
    }
}

/* Codes outside the sign-exponent-mantissa rule: NaN and infinities. */
static int special(int dtype, uint64_t bits, uint64_t e, uint64_t m,
                   struct layout l, double *v)
{
    switch (dtype) {
    case TRD_F8_E4M3FN:
        *v = (double)NAN;
        return (bits & 0x7f) == 0x7f;
    case TRD_F8_E4M3FNUZ:
    case TRD_F8_E5M2FNUZ:
        *v = (double)NAN;
        return bits == 0x80;
    default:
        *v = m ? (double)NAN : (double)INFINITY;
        return e == (UINT64_C(1) << l.exp) - 1;
    }
}

/* float is what most samples are, and the processor knows it. A subnormal one
 * is left to arithmetic, which a processor set to flush cannot spoil. */
static bool is_plain(int dtype, uint64_t bits)
{
    uint64_t e = bits >> 23 & 0xff;
    return (dtype == TRD_F32 || dtype == TRD_C64) && e && e != 0xff;
}

static double plain(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float v;
    memcpy(&v, &low, sizeof v);
    return (double)v;
}

double float_from_bits(int dtype, uint64_t bits)
{
    if (is_plain(dtype, bits))
        return plain(bits);
    if (dtype == TRD_F8_E8M0FNU)
        return bits == 0xff ? (double)NAN : ldexp(1.0, (int)bits - 127);
    struct layout l = layout_of(dtype);
    uint64_t m = bits & ((UINT64_C(1) << l.man) - 1);
    uint64_t e = bits >> l.man & ((UINT64_C(1) << l.exp) - 1);
    int negative = (int)(bits >> (l.man + l.exp) & 1);
    double v;
    if (!special(dtype, bits, e, m, l, &v)) {
        if (e)
            m |= UINT64_C(1) << l.man;
        v = ldexp((double)m, (e ? (int)e : 1) - l.bias - (int)l.man);
    }
    return negative ? -v : v;
}

static uint64_t load(const void *element, unsigned n)
{
    struct reader r = reader_of(element, n);
    return get_le(&r, n);
}

uint64_t element_bits(int dtype, const void *element)
{
    unsigned n = trd_dtype_bytes(dtype);
    uint64_t v = load(element, n);
    if (dtype == TRD_BOOL)
        return v != 0;
    if (trd_dtype_kind(dtype) == TRD_KIND_SIGNED && n < 8 &&
        v >> (8 * n - 1))
        v |= ~UINT64_C(0) << 8 * n;
    return v;
}

static double signed_f64(uint64_t bits)
{
    int64_t v;
    memcpy(&v, &bits, sizeof v);
    return (double)v;
}

double element_f64(int dtype, const void *element)
{
    unsigned n = trd_dtype_bytes(dtype);
    switch (trd_dtype_kind(dtype)) {
    case TRD_KIND_FLOAT:
        return float_from_bits(dtype, load(element, n));
    case TRD_KIND_SIGNED:
        return signed_f64(element_bits(dtype, element));
    case TRD_KIND_COMPLEX:
        return hypot(float_from_bits(dtype, load(element, n / 2)),
                     float_from_bits(
                         dtype, load((const uint8_t *)element + n / 2,
                                     n / 2)));
    default:
        return (double)element_bits(dtype, element);
    }
}

static double value_f64(int dtype, union trd_value v)
{
    switch (trd_dtype_kind(dtype)) {
    case TRD_KIND_SIGNED:
        return (double)v.i;
    case TRD_KIND_UNSIGNED:
        return (double)v.u;
    default:
        return v.f;
    }
}

enum { MAX, MIN, MEAN, STD, L2, FIGURES };

unsigned trd_stats_numpy(const struct trd_stats *s, int dtype, double out[5])
{
    unsigned holds = 0;
    for (int i = 0; i < FIGURES; i++)
        out[i] = (double)NAN;
    if (s->n == 0)
        return 0;
    if (s->has & TRD_HAS_RANGE) {
        out[MAX] = value_f64(dtype, s->max);
        out[MIN] = value_f64(dtype, s->min);
        holds |= 1u << MAX | 1u << MIN;
    }
    if (s->has & TRD_HAS_MEAN) {
        out[MEAN] = s->mean;
        out[STD] = s->std;
        holds |= 1u << MEAN;
        /* given with l2 it is of a dump that has none */
        if (!(s->has & TRD_IS_GIVEN && s->has & TRD_HAS_L2))
            holds |= 1u << STD;
    }
    if (s->has & TRD_HAS_L2) {
        out[L2] = s->l2;
        holds |= 1u << L2;
    }
    if (s->has & TRD_IS_GIVEN || !(s->nan || s->pinf || s->ninf))
        return holds;
    if (s->nan) {
        for (int i = 0; i < FIGURES; i++)
            out[i] = (double)NAN;
    } else {
        if (s->pinf)
            out[MAX] = (double)INFINITY;
        else if (!(s->has & TRD_HAS_RANGE))
            out[MAX] = -(double)INFINITY;
        if (s->ninf)
            out[MIN] = -(double)INFINITY;
        else if (!(s->has & TRD_HAS_RANGE))
            out[MIN] = (double)INFINITY;
        out[MEAN] = s->pinf && s->ninf ? (double)NAN
                    : s->pinf          ? (double)INFINITY
                                       : -(double)INFINITY;
        out[STD] = (double)NAN;
        out[L2] = (double)INFINITY;
    }
    return (1u << FIGURES) - 1;
}
