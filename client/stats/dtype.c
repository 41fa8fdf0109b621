/* Element decoding: bits to values, for every dtype. Any thread.
 *
 * Invariants: values are exact but for |z| of complex numbers; elements may
 * lie at any alignment; NaN stays a NaN and infinities keep their sign. */
#include "client/stats/kernel.h"

#include <string.h>

enum { F32_INF = 0x7f800000 };

/* The small floats: sign, exponent, `mantissa` bits; value of exponent 0 is
 * subnormal, of the others 2^(exponent - bias). */
struct small_float {
    unsigned bits, mantissa, bias;
    unsigned inf; /* code of +inf, 0 for none */
    unsigned nan; /* smallest positive NaN code, 0 for none but -0 */
};

static const struct small_float small_f16 = {16, 10, 15, 0x7c00, 0x7c01};
static const struct small_float small_e4m3fn = {8, 3, 7, 0, 0x7f};
static const struct small_float small_e5m2 = {8, 2, 15, 0x7c, 0x7d};
static const struct small_float small_e4m3fnuz = {8, 3, 8, 0, 0};
static const struct small_float small_e5m2fnuz = {8, 2, 16, 0, 0};

static uint32_t bits_of(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

static inline float widen(uint32_t code, const struct small_float *f)
{
    uint32_t sign = code >> (f->bits - 1);
    uint32_t magnitude = code & ~(UINT32_MAX << (f->bits - 1));
    uint32_t out;

    if (f->nan ? magnitude >= f->nan : sign && !magnitude)
        return float_of(sign << 31 | (F32_INF + 1));
    if (f->inf && magnitude == f->inf)
        out = F32_INF;
    else if (magnitude >> f->mantissa)
        out = (magnitude << (23 - f->mantissa)) + ((127 - f->bias) << 23);
    else /* no product is subnormal in fp32 */
        out = bits_of((float)magnitude *
                      float_of((128 - f->bias - f->mantissa) << 23));
    return float_of(sign << 31 | out);
}

static float widen_e8m0(uint32_t code)
{
    if (code == 255)
        return float_of(F32_INF + 1);
    return float_of(code ? code << 23 : UINT32_C(1) << 22);
}

bool trd__is_narrow(int dtype)
{
    switch (dtype) {
    case TRD_F32:
    case TRD_F16:
    case TRD_BF16:
    case TRD_F8_E4M3FN:
    case TRD_F8_E5M2:
    case TRD_F8_E4M3FNUZ:
    case TRD_F8_E5M2FNUZ:
    case TRD_F8_E8M0FNU:
    case TRD_I8:
    case TRD_I16:
    case TRD_U8:
    case TRD_U16:
    case TRD_BOOL:
        return true;
    default:
        return false;
    }
}

double trd__min_normal(int dtype)
{
    switch (dtype) {
    case TRD_F64:
    case TRD_C128:
        return 0x1p-1022;
    case TRD_F32:
    case TRD_BF16:
    case TRD_C64:
        return 0x1p-126;
    case TRD_F16:
    case TRD_C32:
    case TRD_F8_E5M2:
        return 0x1p-14;
    case TRD_F8_E4M3FN:
        return 0x1p-6;
    case TRD_F8_E4M3FNUZ:
        return 0x1p-7;
    case TRD_F8_E5M2FNUZ:
        return 0x1p-15;
    default:
        return 0;
    }
}

/* One loop a dtype: `type` is the element, `v` the loaded one. */
#define DECODE(type, value)                                                    \
    for (uint32_t i = 0; i < n; i++) {                                         \
        type v;                                                                \
        memcpy(&v, (const unsigned char *)elements + i * sizeof v, sizeof v);  \
        x[i] = (value);                                                        \
    }                                                                          \
    break

void trd__decode32(int dtype, const void *elements, uint32_t n, float *x)
{
    switch (dtype) {
    case TRD_F32:
        memcpy(x, elements, n * sizeof *x);
        break;
    case TRD_BF16:
        DECODE(uint16_t, float_of((uint32_t)v << 16));
    case TRD_F16:
        DECODE(uint16_t, widen(v, &small_f16));
    case TRD_F8_E4M3FN:
        DECODE(uint8_t, widen(v, &small_e4m3fn));
    case TRD_F8_E5M2:
        DECODE(uint8_t, widen(v, &small_e5m2));
    case TRD_F8_E4M3FNUZ:
        DECODE(uint8_t, widen(v, &small_e4m3fnuz));
    case TRD_F8_E5M2FNUZ:
        DECODE(uint8_t, widen(v, &small_e5m2fnuz));
    case TRD_F8_E8M0FNU:
        DECODE(uint8_t, widen_e8m0(v));
    case TRD_I8:
        DECODE(int8_t, (float)v);
    case TRD_I16:
        DECODE(int16_t, (float)v);
    case TRD_U8:
        DECODE(uint8_t, (float)v);
    case TRD_U16:
        DECODE(uint16_t, (float)v);
    case TRD_BOOL:
        DECODE(uint8_t, v ? 1.0f : 0.0f);
    default:
        break;
    }
}

struct complex32 {
    uint16_t re, im;
};

struct complex64 {
    float re, im;
};

struct complex128 {
    double re, im;
};

/* |z| where neither square over- or underflows. */
static double magnitude(double re, double im)
{
    if (isinf(re) || isinf(im))
        return INFINITY;
    return sqrt(fma(re, re, im * im));
}

static double magnitude_c128(double re, double im)
{
    double larger = fmax(fabs(re), fabs(im));
    int e;

    if (isinf(re) || isinf(im))
        return INFINITY;
    if (isnan(re) || isnan(im))
        return NAN;
    if (larger == 0)
        return 0;
    e = ilogb(larger);
    return ldexp(magnitude(ldexp(re, -e), ldexp(im, -e)), e);
}

void trd__decode64(int dtype, const void *elements, uint32_t n, double *x)
{
    switch (dtype) {
    case TRD_F64:
        memcpy(x, elements, n * sizeof *x);
        break;
    case TRD_I32:
        DECODE(int32_t, (double)v);
    case TRD_U32:
        DECODE(uint32_t, (double)v);
    case TRD_C32:
        DECODE(struct complex32, magnitude((double)widen(v.re, &small_f16),
                                           (double)widen(v.im, &small_f16)));
    case TRD_C64:
        DECODE(struct complex64, magnitude((double)v.re, (double)v.im));
    case TRD_C128:
        DECODE(struct complex128, magnitude_c128(v.re, v.im));
    default:
        /* through fp32, a little at a time to need little stack */
        for (uint32_t i = 0; i < n; i += 64) {
            float few[64];
            uint32_t m = n - i < 64 ? n - i : 64;
            trd__decode32(dtype,
                          (const unsigned char *)elements +
                              (size_t)i * trd_dtype_bytes(dtype),
                          m, few);
            for (uint32_t j = 0; j < m; j++)
                x[i + j] = (double)few[j];
        }
        break;
    }
}
