/* The tiles of kernel_simd.h in 32-byte vectors: AVX2, FMA and F16C.
 * Compiled with these; cpu.c asks before it calls.
 *
 * Invariants: as kernel_simd.h. */
#include "client/stats/kernel_list.h"

#include <immintrin.h>

typedef __m256i vec;
typedef __m256 vecf;
typedef __m256d vecd;

enum {
    VEC = 32,         /* bytes of a vector */
    NARROW_PARTS = 2, /* passes over the columns of a tile, for registers */
    WIDE_PARTS = 4
};

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const void *p)
{
    return _mm256_loadu_si256(p);
}

INLINE void store(void *p, vec v)
{
    _mm256_storeu_si256(p, v);
}

/* ---- lanes of 1, 2, 4 or 8 bytes ---- */

INLINE vec all(uint64_t code, unsigned size)
{
    switch (size) {
    case 1:
        return _mm256_set1_epi8((char)code);
    case 2:
        return _mm256_set1_epi16((short)code);
    case 4:
        return _mm256_set1_epi32((int)code);
    default:
        return _mm256_set1_epi64x((long long)code);
    }
}

INLINE vec and(vec a, vec b)
{
    return _mm256_and_si256(a, b);
}

INLINE vec xor(vec a, vec b)
{
    return _mm256_xor_si256(a, b);
}

INLINE vec add(vec a, vec b, unsigned size)
{
    return size == 1   ? _mm256_add_epi8(a, b)
           : size == 2 ? _mm256_add_epi16(a, b)
           : size == 4 ? _mm256_add_epi32(a, b)
                       : _mm256_add_epi64(a, b);
}

/* Of 64-bit lanes there is only one comparison, the signed one. */
INLINE vec above64(vec a, vec b, bool is_signed)
{
    vec bias = all(is_signed ? 0 : UINT64_C(1) << 63, 8);
    return _mm256_cmpgt_epi64(xor(a, bias), xor(b, bias));
}

#define BY_SIZE(op, a, b, last)                                               \
    size == 1   ? _mm256_##op##8(a, b)                                        \
    : size == 2 ? _mm256_##op##16(a, b)                                       \
    : size == 4 ? _mm256_##op##32(a, b)                                       \
                : (last)

INLINE vec max_s(vec a, vec b, unsigned size)
{
    return BY_SIZE(max_epi, a, b,
                   _mm256_blendv_epi8(b, a, above64(a, b, true)));
}

INLINE vec max_u(vec a, vec b, unsigned size)
{
    return BY_SIZE(max_epu, a, b,
                   _mm256_blendv_epi8(b, a, above64(a, b, false)));
}

INLINE vec min_s(vec a, vec b, unsigned size)
{
    return BY_SIZE(min_epi, a, b,
                   _mm256_blendv_epi8(a, b, above64(a, b, true)));
}

INLINE vec min_u(vec a, vec b, unsigned size)
{
    return BY_SIZE(min_epu, a, b,
                   _mm256_blendv_epi8(a, b, above64(a, b, false)));
}

INLINE vec abs_s(vec a, unsigned size)
{
    vec sign = _mm256_cmpgt_epi64(_mm256_setzero_si256(), a);

    return size == 1   ? _mm256_abs_epi8(a)
           : size == 2 ? _mm256_abs_epi16(a)
           : size == 4 ? _mm256_abs_epi32(a)
                       : _mm256_sub_epi64(xor(a, sign), sign);
}

INLINE vec lanes_eq(vec a, vec b, unsigned size)
{
    return size == 1   ? _mm256_cmpeq_epi8(a, b)
           : size == 2 ? _mm256_cmpeq_epi16(a, b)
           : size == 4 ? _mm256_cmpeq_epi32(a, b)
                       : _mm256_cmpeq_epi64(a, b);
}

/* The opposite of a < b. */
INLINE vec lanes_ge(vec a, vec b, unsigned size)
{
    return lanes_eq(max_u(a, b, size), a, size);
}

INLINE bool any_eq(vec a, vec b, unsigned size)
{
    return _mm256_movemask_epi8(lanes_eq(a, b, size)) != 0;
}

INLINE bool any_lt(vec a, vec b, unsigned size)
{
    return _mm256_movemask_epi8(lanes_ge(a, b, size)) != -1;
}

/* Lanes of yes where a < b as unsigned, of no elsewhere. */
INLINE vec pick_lt(vec a, vec b, vec yes, vec no, unsigned size)
{
    return _mm256_blendv_epi8(yes, no, lanes_ge(a, b, size));
}

/* The lanes `bytes` further on, turned round; a power of two. */
INLINE vec turn(vec v, unsigned bytes)
{
    switch (bytes) {
    case 16:
        return _mm256_permute4x64_epi64(v, 0x4e);
    case 8:
        return _mm256_shuffle_epi32(v, 0x4e);
    case 4:
        return _mm256_shuffle_epi32(v, 0xb1);
    case 2:
        return _mm256_or_si256(_mm256_slli_epi32(v, 16),
                               _mm256_srli_epi32(v, 16));
    default:
        return _mm256_or_si256(_mm256_slli_epi16(v, 8),
                               _mm256_srli_epi16(v, 8));
    }
}

INLINE uint64_t first_word(vec v)
{
    return (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(v));
}

/* Counters of lanes: in bytes of them. */
typedef uint32_t count;

INLINE count count_none(void)
{
    return 0;
}

INLINE count count_eq(count c, vec a, vec b, unsigned size)
{
    uint32_t m = (uint32_t)_mm256_movemask_epi8(lanes_eq(a, b, size));
    return c + (uint32_t)__builtin_popcount(m);
}

INLINE count count_lt(count c, vec a, vec b, unsigned size)
{
    uint32_t m = (uint32_t)_mm256_movemask_epi8(lanes_ge(a, b, size));
    return c + (uint32_t)__builtin_popcount(~m);
}

INLINE uint32_t count_total(count c, unsigned size)
{
    return c / size;
}

/* ---- hash ---- */

/* (lo + 2^32) (hi + 2^32) = lo hi + ((lo + hi) << 32)  mod 2^64 */
struct hash {
    vec product, halves;
};

INLINE struct hash hash_none(void)
{
    struct hash h = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    return h;
}

INLINE void hash_add(struct hash *h, vec w, const uint64_t *key)
{
    vec x = xor(w, _mm256_load_si256((const void *)key));
    vec product = _mm256_mul_epu32(x, _mm256_shuffle_epi32(x, 0xb1));

    h->product = _mm256_add_epi64(h->product, product);
    h->halves = _mm256_add_epi32(h->halves, x);
}

INLINE uint64_t hash_total(const struct hash *h)
{
    vec lower = _mm256_slli_epi64(h->halves, 32);
    vec upper = and(h->halves, all(~UINT64_C(0) << 32, 8));
    vec sum = add(h->product, add(lower, upper, 8), 8);
    __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sum),
                                _mm256_extracti128_si256(sum, 1));

    return (uint64_t)_mm_cvtsi128_si64(two) +
           (uint64_t)_mm_extract_epi64(two, 1);
}

/* ---- values ---- */

INLINE vecf allf(float x)
{
    return _mm256_set1_ps(x);
}

INLINE vecd alld(double x)
{
    return _mm256_set1_pd(x);
}

INLINE float firstf(vecf x)
{
    return _mm256_cvtss_f32(x);
}

INLINE double firstd(vecd x)
{
    return _mm256_cvtsd_f64(x);
}

INLINE vecf fmaf_(vecf a, vecf b, vecf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vecd fmad_(vecd a, vecd b, vecd c)
{
    return _mm256_fmadd_pd(a, b, c);
}

INLINE vecd lower(vecf x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

INLINE vecd upper(vecf x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

/* The elements of a word of bf16 with an even index, and with an odd one. */
INLINE vecf even_bf16(vec w)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}

INLINE vecf odd_bf16(vec w)
{
    return _mm256_castsi256_ps(and(w, all(0xffff0000, 4)));
}

/* 8 elements from p on, in order, without the scale of scale_of(). */
INLINE vecf load_f32(int dtype, const unsigned char *p)
{
    __m128i h;
    vec w;

    switch (dtype) {
    case TRD_F32:
        return _mm256_loadu_ps((const void *)p);
    case TRD_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
    case TRD_BF16:
        w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    case TRD_I16:
        w = _mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)p));
        return _mm256_cvtepi32_ps(w);
    case TRD_U16:
        w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
        return _mm256_cvtepi32_ps(w);
    default:
        break;
    }

    __m128i b = _mm_loadl_epi64((const void *)p);

    h = _mm_cvtepi8_epi16(b);
    switch (dtype) {
    case TRD_I8:
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
    case TRD_U8:
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b));
    case TRD_BOOL:
        b = _mm_min_epu8(b, _mm_set1_epi8(1));
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b));
    /* as fp16 with the same bits of mantissa, but for a power of two */
    case TRD_F8_E5M2:
        return _mm256_cvtph_ps(_mm_slli_epi16(h, 8));
    case TRD_F8_E4M3FN:
    case TRD_F8_E4M3FNUZ:
        h = _mm_and_si128(_mm_slli_epi16(h, 7),
                          _mm_set1_epi16((short)0xbfff));
        return _mm256_cvtph_ps(h);
    case TRD_F8_E5M2FNUZ: /* exponent 31 is none of fp16's */
        w = _mm256_slli_epi32(_mm256_cvtepi8_epi32(b), 21);
        return _mm256_castsi256_ps(and(w, all(0x8fe00000, 4)));
    default: /* e8m0 */
        w = _mm256_slli_epi32(_mm256_cvtepu8_epi32(b), 23);
        return _mm256_castsi256_ps(max_u(w, all(1 << 22, 4), 4));
    }
}

/* 4 elements from p on, in order, of dtypes of 4 or 8 bytes and of the floats
 * of 2. */
INLINE vecd load_f64(int dtype, const unsigned char *p)
{
    __m128i w;

    switch (dtype) {
    case TRD_F32:
        return _mm256_cvtps_pd(_mm_loadu_ps((const void *)p));
    case TRD_F16:
        w = _mm_loadl_epi64((const void *)p);
        return _mm256_cvtps_pd(_mm_cvtph_ps(w));
    case TRD_BF16:
        w = _mm_cvtepu16_epi32(_mm_loadl_epi64((const void *)p));
        w = _mm_slli_epi32(w, 16);
        return _mm256_cvtps_pd(_mm_castsi128_ps(w));
    case TRD_I32:
        return _mm256_cvtepi32_pd(_mm_loadu_si128((const void *)p));
    case TRD_U32: /* less 2^31, and that back */
        w = _mm_loadu_si128((const void *)p);
        w = _mm_xor_si128(w, _mm_set1_epi32(INT32_MIN));
        return _mm256_cvtepi32_pd(w) + alld(0x1p31);
    default:
        return _mm256_loadu_pd((const void *)p);
    }
}

/* 4 int64, each rounded once: the halves become mantissas of numbers so large
 * that their unit is 2^32 and 1, and only the last sum is not exact. */
INLINE vecd of_i64(vec x)
{
    vec upper_bits = xor(_mm256_srli_epi64(x, 32),
                         _mm256_castpd_si256(alld(0x1p84 + 0x1p63)));
    vec lower_bits = _mm256_blend_epi32(
        x, _mm256_castpd_si256(alld(0x1p52)), 0xaa);

    return (_mm256_castsi256_pd(upper_bits) -
            alld(0x1p84 + 0x1p63 + 0x1p52)) +
           _mm256_castsi256_pd(lower_bits);
}

INLINE vec sub64(vec a, vec b)
{
    return _mm256_sub_epi64(a, b);
}

/* The upper half of the lanes on the lower one until one is left. */
INLINE double fold(vecd x)
{
    __m128d q = _mm256_castpd256_pd128(x) + _mm256_extractf128_pd(x, 1);

    return _mm_cvtsd_f64(q) + _mm_cvtsd_f64(_mm_unpackhi_pd(q, q));
}

#define KERNEL trd__kernel_avx2
#define KERNEL_NAME "avx2"
#include "client/stats/kernel_simd.h"
