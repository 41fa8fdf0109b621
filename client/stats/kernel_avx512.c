/* The tiles of kernel_simd.h in 64-byte vectors: AVX-512 F, BW, DQ and VL,
 * with FMA and F16C. Compiled with these; cpu.c asks before it calls.
 *
 * Invariants: as kernel_simd.h. */
#include "client/stats/kernel_list.h"

#include <immintrin.h>

typedef __m512i vec;
typedef __m512 vecf;
typedef __m512d vecd;

enum {
    VEC = 64,         /* bytes of a vector */
    NARROW_PARTS = 1, /* passes over the columns of a tile, for registers */
    WIDE_PARTS = 1
};

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const void *p)
{
    return _mm512_loadu_si512(p);
}

INLINE void store(void *p, vec v)
{
    _mm512_storeu_si512(p, v);
}

/* ---- lanes of 1, 2, 4 or 8 bytes ---- */

INLINE vec all(uint64_t code, unsigned size)
{
    switch (size) {
    case 1:
        return _mm512_set1_epi8((char)code);
    case 2:
        return _mm512_set1_epi16((short)code);
    case 4:
        return _mm512_set1_epi32((int)code);
    default:
        return _mm512_set1_epi64((long long)code);
    }
}

INLINE vec and(vec a, vec b)
{
    return _mm512_and_si512(a, b);
}

INLINE vec xor(vec a, vec b)
{
    return _mm512_xor_si512(a, b);
}

#define BY_SIZE(op, a, b)                                                     \
    size == 1   ? _mm512_##op##8(a, b)                                        \
    : size == 2 ? _mm512_##op##16(a, b)                                       \
    : size == 4 ? _mm512_##op##32(a, b)                                       \
                : _mm512_##op##64(a, b)

INLINE vec add(vec a, vec b, unsigned size)
{
    return BY_SIZE(add_epi, a, b);
}

INLINE vec max_s(vec a, vec b, unsigned size)
{
    return BY_SIZE(max_epi, a, b);
}

INLINE vec max_u(vec a, vec b, unsigned size)
{
    return BY_SIZE(max_epu, a, b);
}

INLINE vec min_s(vec a, vec b, unsigned size)
{
    return BY_SIZE(min_epi, a, b);
}

INLINE vec min_u(vec a, vec b, unsigned size)
{
    return BY_SIZE(min_epu, a, b);
}

INLINE vec abs_s(vec a, unsigned size)
{
    return size == 1   ? _mm512_abs_epi8(a)
           : size == 2 ? _mm512_abs_epi16(a)
           : size == 4 ? _mm512_abs_epi32(a)
                       : _mm512_abs_epi64(a);
}

#define MASK_BY_SIZE(op, a, b)                                                \
    size == 1   ? _mm512_##op##8_mask(a, b)                                   \
    : size == 2 ? _mm512_##op##16_mask(a, b)                                  \
    : size == 4 ? _mm512_##op##32_mask(a, b)                                  \
                : _mm512_##op##64_mask(a, b)

INLINE uint64_t mask_eq(vec a, vec b, unsigned size)
{
    return MASK_BY_SIZE(cmpeq_epi, a, b);
}

INLINE uint64_t mask_lt(vec a, vec b, unsigned size)
{
    return MASK_BY_SIZE(cmplt_epu, a, b);
}

INLINE bool any_eq(vec a, vec b, unsigned size)
{
    return mask_eq(a, b, size) != 0;
}

INLINE bool any_lt(vec a, vec b, unsigned size)
{
    return mask_lt(a, b, size) != 0;
}

/* Lanes of yes where a < b as unsigned, of no elsewhere. */
INLINE vec pick_lt(vec a, vec b, vec yes, vec no, unsigned size)
{
    uint64_t m = mask_lt(a, b, size);

    return size == 1   ? _mm512_mask_blend_epi8(m, no, yes)
           : size == 2 ? _mm512_mask_blend_epi16((__mmask32)m, no, yes)
           : size == 4 ? _mm512_mask_blend_epi32((__mmask16)m, no, yes)
                       : _mm512_mask_blend_epi64((__mmask8)m, no, yes);
}

/* The lanes `bytes` further on, turned round; a power of two. */
INLINE vec turn(vec v, unsigned bytes)
{
    switch (bytes) {
    case 32:
        return _mm512_shuffle_i64x2(v, v, 0x4e);
    case 16:
        return _mm512_shuffle_i64x2(v, v, 0xb1);
    case 8:
        return _mm512_shuffle_epi32(v, 0x4e);
    case 4:
        return _mm512_shuffle_epi32(v, 0xb1);
    case 2:
        return _mm512_rol_epi32(v, 16);
    default:
        return _mm512_or_si512(_mm512_slli_epi16(v, 8),
                               _mm512_srli_epi16(v, 8));
    }
}

INLINE uint64_t first_word(vec v)
{
    return (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(v));
}

/* Counters of lanes. */
typedef uint64_t count;

INLINE count count_none(void)
{
    return 0;
}

INLINE count count_eq(count c, vec a, vec b, unsigned size)
{
    return c + (uint64_t)__builtin_popcountll(mask_eq(a, b, size));
}

INLINE count count_lt(count c, vec a, vec b, unsigned size)
{
    return c + (uint64_t)__builtin_popcountll(mask_lt(a, b, size));
}

INLINE uint32_t count_total(count c, unsigned size)
{
    (void)size;
    return (uint32_t)c;
}

/* ---- hash ---- */

/* (lo + 2^32) (hi + 2^32) = lo hi + ((lo + hi) << 32)  mod 2^64 */
struct hash {
    vec product, halves;
};

INLINE struct hash hash_none(void)
{
    struct hash h = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    return h;
}

INLINE void hash_add(struct hash *h, vec w, const uint64_t *key)
{
    vec x = xor(w, _mm512_load_si512(key));
    vec product = _mm512_mul_epu32(x, _mm512_shuffle_epi32(x, 0xb1));

    h->product = _mm512_add_epi64(h->product, product);
    h->halves = _mm512_add_epi32(h->halves, x);
}

INLINE uint64_t hash_total(const struct hash *h)
{
    vec halves = _mm512_add_epi64(_mm512_slli_epi64(h->halves, 32),
                                  _mm512_and_si512(h->halves, all(~UINT64_C(0)
                                                                  << 32, 8)));
    vec sum = _mm512_add_epi64(h->product, halves);
    __m256i four = _mm256_add_epi64(_mm512_castsi512_si256(sum),
                                    _mm512_extracti64x4_epi64(sum, 1));
    __m128i two = _mm_add_epi64(_mm256_castsi256_si128(four),
                                _mm256_extracti128_si256(four, 1));

    return (uint64_t)_mm_cvtsi128_si64(two) +
           (uint64_t)_mm_extract_epi64(two, 1);
}

/* ---- values ---- */

INLINE vecf allf(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vecd alld(double x)
{
    return _mm512_set1_pd(x);
}

INLINE float firstf(vecf x)
{
    return _mm512_cvtss_f32(x);
}

INLINE double firstd(vecd x)
{
    return _mm512_cvtsd_f64(x);
}

INLINE vecf fmaf_(vecf a, vecf b, vecf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vecd fmad_(vecd a, vecd b, vecd c)
{
    return _mm512_fmadd_pd(a, b, c);
}

INLINE vecd lower(vecf x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}

INLINE vecd upper(vecf x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

/* The elements of a word of bf16 with an even index, and with an odd one. */
INLINE vecf even_bf16(vec w)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}

INLINE vecf odd_bf16(vec w)
{
    return _mm512_castsi512_ps(and(w, all(0xffff0000, 4)));
}

/* 16 elements from p on, in order, without the scale of scale_of(). */
INLINE vecf load_f32(int dtype, const unsigned char *p)
{
    vec w;

    switch (dtype) {
    case TRD_F32:
        return _mm512_loadu_ps(p);
    case TRD_F16:
        return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
    case TRD_BF16:
        w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    case TRD_I16:
        w = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)p));
        return _mm512_cvtepi32_ps(w);
    case TRD_U16:
        w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
        return _mm512_cvtepi32_ps(w);
    default:
        break;
    }

    __m128i b = _mm_loadu_si128((const void *)p);
    __m256i h = _mm256_cvtepi8_epi16(b);

    switch (dtype) {
    case TRD_I8:
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
    case TRD_U8:
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b));
    case TRD_BOOL:
        b = _mm_min_epu8(b, _mm_set1_epi8(1));
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b));
    /* as fp16 with the same bits of mantissa, but for a power of two */
    case TRD_F8_E5M2:
        return _mm512_cvtph_ps(_mm256_slli_epi16(h, 8));
    case TRD_F8_E4M3FN:
    case TRD_F8_E4M3FNUZ:
        h = _mm256_and_si256(_mm256_slli_epi16(h, 7),
                             _mm256_set1_epi16((short)0xbfff));
        return _mm512_cvtph_ps(h);
    case TRD_F8_E5M2FNUZ: /* exponent 31 is none of fp16's */
        w = _mm512_cvtepi8_epi32(b);
        w = and(_mm512_slli_epi32(w, 21), all(0x8fe00000, 4));
        return _mm512_castsi512_ps(w);
    default: /* e8m0 */
        w = _mm512_slli_epi32(_mm512_cvtepu8_epi32(b), 23);
        return _mm512_castsi512_ps(_mm512_max_epu32(w, all(1 << 22, 4)));
    }
}

/* 8 elements from p on, in order, of dtypes of 4 or 8 bytes and of the floats
 * of 2. */
INLINE vecd load_f64(int dtype, const unsigned char *p)
{
    __m256i w;
    __m128i h;

    switch (dtype) {
    case TRD_F32:
        return _mm512_cvtps_pd(_mm256_loadu_ps((const void *)p));
    case TRD_F16:
        h = _mm_loadu_si128((const void *)p);
        return _mm512_cvtps_pd(_mm256_cvtph_ps(h));
    case TRD_BF16:
        w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
        w = _mm256_slli_epi32(w, 16);
        return _mm512_cvtps_pd(_mm256_castsi256_ps(w));
    case TRD_I32:
        return _mm512_cvtepi32_pd(_mm256_loadu_si256((const void *)p));
    case TRD_U32:
        return _mm512_cvtepu32_pd(_mm256_loadu_si256((const void *)p));
    default:
        return _mm512_loadu_pd(p);
    }
}

/* 8 int64, each rounded once. */
INLINE vecd of_i64(vec x)
{
    return _mm512_cvtepi64_pd(x);
}

INLINE vec sub64(vec a, vec b)
{
    return _mm512_sub_epi64(a, b);
}

/* The upper half of the lanes on the lower one until one is left. */
INLINE double fold(vecd x)
{
    __m256d h = _mm512_castpd512_pd256(x) + _mm512_extractf64x4_pd(x, 1);
    __m128d q = _mm256_castpd256_pd128(h) + _mm256_extractf128_pd(h, 1);

    return _mm_cvtsd_f64(q) + _mm_cvtsd_f64(_mm_unpackhi_pd(q, q));
}

#define KERNEL trd__kernel_avx512
#define KERNEL_NAME "avx512"
#include "client/stats/kernel_simd.h"
