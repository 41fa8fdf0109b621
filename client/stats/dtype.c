/* Element decoding: bits to values, for every dtype. Any thread.
 *
 * Invariants: values are exact but for |z| of complex numbers; elements may
 * lie at any alignment; NaN stays a NaN and infinities keep their sign. */
#include "client/stats/kernel.h"
#include "client/stats/decode.h"

#include <string.h>

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
    return dtype_min_normal(dtype);
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
        DECODE(uint16_t, f32_of((uint32_t)v << 16));
    case TRD_F16:
        DECODE(uint16_t, small_widen(v, small_format(TRD_F16)));
    case TRD_F8_E4M3FN:
        DECODE(uint8_t, small_widen(v, small_format(TRD_F8_E4M3FN)));
    case TRD_F8_E5M2:
        DECODE(uint8_t, small_widen(v, small_format(TRD_F8_E5M2)));
    case TRD_F8_E4M3FNUZ:
        DECODE(uint8_t, small_widen(v, small_format(TRD_F8_E4M3FNUZ)));
    case TRD_F8_E5M2FNUZ:
        DECODE(uint8_t, small_widen(v, small_format(TRD_F8_E5M2FNUZ)));
    case TRD_F8_E8M0FNU:
        DECODE(uint8_t, e8m0_widen(v));
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

static inline double magnitude_c32(struct complex32 v)
{
    struct small_float f = small_format(TRD_C32);
    return complex_magnitude((double)small_widen(v.re, f),
                             (double)small_widen(v.im, f));
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
        DECODE(struct complex32, magnitude_c32(v));
    case TRD_C64:
        DECODE(struct complex64, complex_magnitude((double)v.re, (double)v.im));
    case TRD_C128:
        DECODE(struct complex128, complex_magnitude_wide(v.re, v.im));
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
