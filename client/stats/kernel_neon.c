/* The tiles of kernel_simd.h in 16-byte vectors: AArch64's Advanced SIMD,
 * which every such machine has. Run under an emulator only so far: its bits
 * are proven, its speed is not.
 *
 * Invariants: as kernel_simd.h. */
#include "client/stats/kernel_list.h"

#include <arm_neon.h>
#include <string.h>

typedef uint8x16_t vec;
typedef float32x4_t vecf;
typedef float64x2_t vecd;

enum {
    VEC = 16,         /* bytes of a vector */
    NARROW_PARTS = 2, /* passes over the columns of a tile, for registers */
    WIDE_PARTS = 4
};

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const void *p)
{
    return vld1q_u8(p);
}

INLINE void store(void *p, vec v)
{
    vst1q_u8(p, v);
}

/* ---- lanes of 1, 2, 4 or 8 bytes ---- */

#define U8(v) (v)
#define U16(v) vreinterpretq_u16_u8(v)
#define U32(v) vreinterpretq_u32_u8(v)
#define U64(v) vreinterpretq_u64_u8(v)
#define S8(v) vreinterpretq_s8_u8(v)
#define S16(v) vreinterpretq_s16_u8(v)
#define S32(v) vreinterpretq_s32_u8(v)
#define S64(v) vreinterpretq_s64_u8(v)
#define OF_U16(v) vreinterpretq_u8_u16(v)
#define OF_U32(v) vreinterpretq_u8_u32(v)
#define OF_U64(v) vreinterpretq_u8_u64(v)
#define OF_S8(v) vreinterpretq_u8_s8(v)
#define OF_S16(v) vreinterpretq_u8_s16(v)
#define OF_S32(v) vreinterpretq_u8_s32(v)
#define OF_S64(v) vreinterpretq_u8_s64(v)

INLINE vec all(uint64_t code, unsigned size)
{
    switch (size) {
    case 1:
        return vdupq_n_u8((uint8_t)code);
    case 2:
        return OF_U16(vdupq_n_u16((uint16_t)code));
    case 4:
        return OF_U32(vdupq_n_u32((uint32_t)code));
    default:
        return OF_U64(vdupq_n_u64(code));
    }
}

INLINE vec and(vec a, vec b)
{
    return vandq_u8(a, b);
}

INLINE vec xor(vec a, vec b)
{
    return veorq_u8(a, b);
}

INLINE vec add(vec a, vec b, unsigned size)
{
    return size == 1   ? vaddq_u8(a, b)
           : size == 2 ? OF_U16(vaddq_u16(U16(a), U16(b)))
           : size == 4 ? OF_U32(vaddq_u32(U32(a), U32(b)))
                       : OF_U64(vaddq_u64(U64(a), U64(b)));
}

/* There are no extremes of 64-bit lanes. */
INLINE vec max_s(vec a, vec b, unsigned size)
{
    return size == 1   ? OF_S8(vmaxq_s8(S8(a), S8(b)))
           : size == 2 ? OF_S16(vmaxq_s16(S16(a), S16(b)))
           : size == 4 ? OF_S32(vmaxq_s32(S32(a), S32(b)))
                       : vbslq_u8(OF_U64(vcgtq_s64(S64(a), S64(b))), a, b);
}

INLINE vec max_u(vec a, vec b, unsigned size)
{
    return size == 1   ? vmaxq_u8(a, b)
           : size == 2 ? OF_U16(vmaxq_u16(U16(a), U16(b)))
           : size == 4 ? OF_U32(vmaxq_u32(U32(a), U32(b)))
                       : vbslq_u8(OF_U64(vcgtq_u64(U64(a), U64(b))), a, b);
}

INLINE vec min_s(vec a, vec b, unsigned size)
{
    return size == 1   ? OF_S8(vminq_s8(S8(a), S8(b)))
           : size == 2 ? OF_S16(vminq_s16(S16(a), S16(b)))
           : size == 4 ? OF_S32(vminq_s32(S32(a), S32(b)))
                       : vbslq_u8(OF_U64(vcgtq_s64(S64(a), S64(b))), b, a);
}

INLINE vec min_u(vec a, vec b, unsigned size)
{
    return size == 1   ? vminq_u8(a, b)
           : size == 2 ? OF_U16(vminq_u16(U16(a), U16(b)))
           : size == 4 ? OF_U32(vminq_u32(U32(a), U32(b)))
                       : vbslq_u8(OF_U64(vcgtq_u64(U64(a), U64(b))), b, a);
}

INLINE vec abs_s(vec a, unsigned size)
{
    return size == 1   ? OF_S8(vabsq_s8(S8(a)))
           : size == 2 ? OF_S16(vabsq_s16(S16(a)))
           : size == 4 ? OF_S32(vabsq_s32(S32(a)))
                       : OF_S64(vabsq_s64(S64(a)));
}

INLINE vec lanes_eq(vec a, vec b, unsigned size)
{
    return size == 1   ? vceqq_u8(a, b)
           : size == 2 ? OF_U16(vceqq_u16(U16(a), U16(b)))
           : size == 4 ? OF_U32(vceqq_u32(U32(a), U32(b)))
                       : OF_U64(vceqq_u64(U64(a), U64(b)));
}

INLINE vec lanes_lt(vec a, vec b, unsigned size)
{
    return size == 1   ? vcltq_u8(a, b)
           : size == 2 ? OF_U16(vcltq_u16(U16(a), U16(b)))
           : size == 4 ? OF_U32(vcltq_u32(U32(a), U32(b)))
                       : OF_U64(vcltq_u64(U64(a), U64(b)));
}

INLINE bool any_eq(vec a, vec b, unsigned size)
{
    return vmaxvq_u8(lanes_eq(a, b, size)) != 0;
}

INLINE bool any_lt(vec a, vec b, unsigned size)
{
    return vmaxvq_u8(lanes_lt(a, b, size)) != 0;
}

/* Lanes of yes where a < b as unsigned, of no elsewhere. */
INLINE vec pick_lt(vec a, vec b, vec yes, vec no, unsigned size)
{
    return vbslq_u8(lanes_lt(a, b, size), yes, no);
}

/* The lanes `bytes` further on, turned round; a power of two. */
INLINE vec turn(vec v, unsigned bytes)
{
    switch (bytes) {
    case 8:
        return vextq_u8(v, v, 8);
    case 4:
        return vextq_u8(v, v, 4);
    case 2:
        return vextq_u8(v, v, 2);
    default:
        return vextq_u8(v, v, 1);
    }
}

INLINE uint64_t first_word(vec v)
{
    return vgetq_lane_u64(U64(v), 0);
}

/* Counters of lanes: each counts its bytes, downwards. A tile has 512 vectors
 * at most, in which 16 bits would do; 32 are as cheap. */
typedef uint32x4_t count;

INLINE count count_none(void)
{
    return vdupq_n_u32(0);
}

INLINE count count_lanes(count c, vec lanes)
{
    return vpadalq_u16(c, vpaddlq_u8(vshrq_n_u8(lanes, 7)));
}

INLINE count count_eq(count c, vec a, vec b, unsigned size)
{
    return count_lanes(c, lanes_eq(a, b, size));
}

INLINE count count_lt(count c, vec a, vec b, unsigned size)
{
    return count_lanes(c, lanes_lt(a, b, size));
}

INLINE uint32_t count_total(count c, unsigned size)
{
    return vaddvq_u32(c) / size;
}

/* ---- hash ---- */

/* (lo + 2^32) (hi + 2^32) = lo hi + ((lo + hi) << 32)  mod 2^64 */
struct hash {
    uint64x2_t product;
    uint32x4_t halves;
};

INLINE struct hash hash_none(void)
{
    struct hash h = {vdupq_n_u64(0), vdupq_n_u32(0)};
    return h;
}

INLINE void hash_add(struct hash *h, vec w, const uint64_t *key)
{
    uint64x2_t x = veorq_u64(U64(w), vld1q_u64(key));

    h->product = vmlal_u32(h->product, vmovn_u64(x), vshrn_n_u64(x, 32));
    h->halves = vaddq_u32(h->halves, vreinterpretq_u32_u64(x));
}

INLINE uint64_t hash_total(const struct hash *h)
{
    return vaddvq_u64(h->product) + ((uint64_t)vaddvq_u32(h->halves) << 32);
}

/* ---- values ---- */

INLINE vecf allf(float x)
{
    return vdupq_n_f32(x);
}

INLINE vecd alld(double x)
{
    return vdupq_n_f64(x);
}

INLINE float firstf(vecf x)
{
    return vgetq_lane_f32(x, 0);
}

INLINE double firstd(vecd x)
{
    return vgetq_lane_f64(x, 0);
}

INLINE vecf fmaf_(vecf a, vecf b, vecf c)
{
    return vfmaq_f32(c, a, b);
}

INLINE vecd fmad_(vecd a, vecd b, vecd c)
{
    return vfmaq_f64(c, a, b);
}

INLINE vecd lower(vecf x)
{
    return vcvt_f64_f32(vget_low_f32(x));
}

INLINE vecd upper(vecf x)
{
    return vcvt_high_f64_f32(x);
}

/* The elements of a word of bf16 with an even index, and with an odd one. */
INLINE vecf even_bf16(vec w)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(U32(w), 16));
}

INLINE vecf odd_bf16(vec w)
{
    return vreinterpretq_f32_u8(and(w, all(0xffff0000, 4)));
}

INLINE vecf of_half(uint16x4_t h)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}

INLINE uint16x4_t load_4x16(const unsigned char *p)
{
    return vreinterpret_u16_u8(vld1_u8(p));
}

/* 4 bytes, then zeros. */
INLINE uint8x8_t load_4x8(const unsigned char *p)
{
    uint32_t four;

    memcpy(&four, p, sizeof four);
    return vreinterpret_u8_u32(vset_lane_u32(four, vdup_n_u32(0), 0));
}

/* 4 elements from p on, in order, without the scale of scale_of(). */
INLINE vecf load_f32(int dtype, const unsigned char *p)
{
    uint8x8_t b;
    int16x4_t h;
    uint16x4_t u;
    uint32x4_t w;

    switch (dtype) {
    case TRD_F32:
        return vreinterpretq_f32_u8(load(p));
    case TRD_F16:
        return of_half(load_4x16(p));
    case TRD_BF16:
        return vreinterpretq_f32_u32(vshll_n_u16(load_4x16(p), 16));
    case TRD_I16:
        h = vreinterpret_s16_u16(load_4x16(p));
        return vcvtq_f32_s32(vmovl_s16(h));
    case TRD_U16:
        return vcvtq_f32_u32(vmovl_u16(load_4x16(p)));
    default:
        break;
    }

    b = load_4x8(p);
    h = vget_low_s16(vmovl_s8(vreinterpret_s8_u8(b)));
    u = vget_low_u16(vmovl_u8(b));

    switch (dtype) {
    case TRD_I8:
        return vcvtq_f32_s32(vmovl_s16(h));
    case TRD_U8:
        return vcvtq_f32_u32(vmovl_u16(u));
    case TRD_BOOL:
        return vcvtq_f32_u32(vmovl_u16(vmin_u16(u, vdup_n_u16(1))));
    /* as fp16 with the same bits of mantissa, but for a power of two */
    case TRD_F8_E5M2:
        return of_half(vshl_n_u16(u, 8));
    case TRD_F8_E4M3FN:
    case TRD_F8_E4M3FNUZ:
        u = vshl_n_u16(vreinterpret_u16_s16(h), 7);
        return of_half(vand_u16(u, vdup_n_u16(0xbfff)));
    case TRD_F8_E5M2FNUZ: /* exponent 31 is none of fp16's */
        w = vreinterpretq_u32_s32(vmovl_s16(h));
        w = vandq_u32(vshlq_n_u32(w, 21), vdupq_n_u32(0x8fe00000));
        return vreinterpretq_f32_u32(w);
    default: /* e8m0 */
        w = vshlq_n_u32(vmovl_u16(u), 23);
        return vreinterpretq_f32_u32(vmaxq_u32(w, vdupq_n_u32(1 << 22)));
    }
}

/* 2 elements from p on, in order, of dtypes of 4 or 8 bytes and of the floats
 * of 2. */
INLINE vecd load_f64(int dtype, const unsigned char *p)
{
    uint16x4_t h;

    switch (dtype) {
    case TRD_F32:
        return vcvt_f64_f32(vreinterpret_f32_u8(vld1_u8(p)));
    case TRD_F16:
        h = vreinterpret_u16_u8(load_4x8(p));
        return lower(of_half(h));
    case TRD_BF16:
        h = vreinterpret_u16_u8(load_4x8(p));
        return lower(vreinterpretq_f32_u32(vshll_n_u16(h, 16)));
    case TRD_I32:
        return vcvtq_f64_s64(vmovl_s32(vreinterpret_s32_u8(vld1_u8(p))));
    case TRD_U32:
        return vcvtq_f64_u64(vmovl_u32(vreinterpret_u32_u8(vld1_u8(p))));
    default:
        return vreinterpretq_f64_u8(load(p));
    }
}

/* 2 int64, each rounded once. */
INLINE vecd of_i64(vec x)
{
    return vcvtq_f64_s64(S64(x));
}

INLINE vec sub64(vec a, vec b)
{
    return OF_U64(vsubq_u64(U64(a), U64(b)));
}

/* The upper half of the lanes on the lower one until one is left. */
INLINE double fold(vecd x)
{
    return vgetq_lane_f64(x, 0) + vgetq_lane_f64(x, 1);
}

#define KERNEL trd__kernel_neon
#define KERNEL_NAME "neon"
#include "client/stats/kernel_simd.h"
