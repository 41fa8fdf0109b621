/* Bits of elements to values, one element at a time: what dtype.c and the
 * CUDA kernels share. Pure functions in the common subset of C and C++, for
 * host and device. Values are exact but for |z| of complex numbers; NaN stays
 * a NaN and infinities keep their sign. */
#ifndef CLIENT_STATS_DECODE_H
#define CLIENT_STATS_DECODE_H

#include "client/stats/reduce.h"
#include "tracerd/record.h"

#include <string.h>

#define DECODE_F32_INF UINT32_C(0x7f800000)
#define DECODE_F64_INF UINT64_C(0x7ff0000000000000)

REDUCE uint32_t f32_bits(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

REDUCE float f32_of(uint32_t u)
{
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

REDUCE uint64_t f64_bits(double v)
{
    uint64_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

REDUCE double f64_of(uint64_t u)
{
    double v;
    memcpy(&v, &u, sizeof v);
    return v;
}

/* The small floats: sign, exponent, `mantissa` bits; value of exponent 0 is
 * subnormal, of the others 2^(exponent - bias). */
struct small_float {
    unsigned bits, mantissa, bias;
    unsigned inf; /* code of +inf, 0 for none */
    unsigned nan; /* smallest positive NaN code, 0 for none but -0 */
};

/* The format of fp16, of complex32's parts, and of fp8. */
REDUCE struct small_float small_format(int dtype)
{
    struct small_float f = {16, 10, 15, 0x7c00, 0x7c01};

    f.bits = dtype == TRD_F16 || dtype == TRD_C32 ? 16 : 8;
    if (dtype == TRD_F8_E4M3FN || dtype == TRD_F8_E4M3FNUZ) {
        f.mantissa = 3;
        f.bias = dtype == TRD_F8_E4M3FN ? 7 : 8;
        f.inf = 0;
        f.nan = dtype == TRD_F8_E4M3FN ? 0x7f : 0;
    } else if (dtype == TRD_F8_E5M2 || dtype == TRD_F8_E5M2FNUZ) {
        f.mantissa = 2;
        f.bias = dtype == TRD_F8_E5M2 ? 15 : 16;
        f.inf = dtype == TRD_F8_E5M2 ? 0x7c : 0;
        f.nan = dtype == TRD_F8_E5M2 ? 0x7d : 0;
    }
    return f;
}

REDUCE float small_widen(uint32_t code, struct small_float f)
{
    uint32_t sign = code >> (f.bits - 1);
    uint32_t magnitude = code & ~(UINT32_MAX << (f.bits - 1));
    uint32_t out;

    if (f.nan ? magnitude >= f.nan : sign && !magnitude)
        return f32_of(sign << 31 | (DECODE_F32_INF + 1));
    if (f.inf && magnitude == f.inf)
        out = DECODE_F32_INF;
    else if (magnitude >> f.mantissa)
        out = (magnitude << (23 - f.mantissa)) + ((127 - f.bias) << 23);
    else /* no product is subnormal in fp32 */
        out = f32_bits((float)magnitude *
                       f32_of((128 - f.bias - f.mantissa) << 23));
    return f32_of(sign << 31 | out);
}

REDUCE float e8m0_widen(uint32_t code)
{
    if (code == 255)
        return f32_of(DECODE_F32_INF + 1);
    return f32_of(code ? code << 23 : UINT32_C(1) << 22);
}

REDUCE bool f64_is_inf(double v)
{
    return (f64_bits(v) & INT64_MAX) == DECODE_F64_INF;
}

REDUCE bool f64_is_nan(double v)
{
    return (f64_bits(v) & INT64_MAX) > DECODE_F64_INF;
}

REDUCE bool f64_is_finite(double v)
{
    return (f64_bits(v) & INT64_MAX) < DECODE_F64_INF;
}

/* 2^k, -1074 <= k <= 1023. */
REDUCE double f64_power(int k)
{
    return f64_of(k >= -1022 ? (uint64_t)(k + 1023) << 52
                             : UINT64_C(1) << (k + 1074));
}

/* v 2^k, rounded once: going up in two steps is exact. */
REDUCE double f64_scale(double v, int k)
{
    return k > 1023 ? v * 0x1p1023 * f64_power(k - 1023) : v * f64_power(k);
}

/* Exponent of a finite v > 0: 2^result <= v < 2^(result + 1). */
REDUCE int f64_exponent(double v)
{
    int e = (int)(f64_bits(v) >> 52);
    return e ? e - 1023 : (int)(f64_bits(v * 0x1p54) >> 52) - 1023 - 54;
}

/* |z| where neither square over- or underflows. */
REDUCE double complex_magnitude(double re, double im)
{
    if (f64_is_inf(re) || f64_is_inf(im))
        return f64_of(DECODE_F64_INF);
    return sqrt(fma(re, re, im * im));
}

/* |z| of any parts. */
REDUCE double complex_magnitude_wide(double re, double im)
{
    double larger = fabs(re) > fabs(im) ? fabs(re) : fabs(im);
    int e;

    if (f64_is_inf(re) || f64_is_inf(im))
        return f64_of(DECODE_F64_INF);
    if (f64_is_nan(re) || f64_is_nan(im))
        return f64_of(DECODE_F64_INF + 1);
    if (larger == 0)
        return 0;
    e = f64_exponent(larger);
    return f64_scale(
        complex_magnitude(f64_scale(re, -e), f64_scale(im, -e)), e);
}

/* Smallest normal number of the dtype, 0 where it has no subnormals. */
REDUCE double dtype_min_normal(int dtype)
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

#endif
