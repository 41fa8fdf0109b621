/* The arithmetic that every kernel shares, host or device: double-double,
 * the sums of tiles, the hash. Operation by operation part of the contract in
 * kernel.h. Pure functions in the common subset of C and C++. */
#ifndef CLIENT_STATS_REDUCE_H
#define CLIENT_STATS_REDUCE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define REDUCE static inline __host__ __device__
#else
#define REDUCE static inline
#endif

/* An unevaluated sum, |lo| at most half a unit in the last place of hi. */
struct dd {
    double hi, lo;
};

/* a + b exactly. */
REDUCE struct dd dd_two(double a, double b)
{
    struct dd r;
    double t;
    r.hi = a + b;
    t = r.hi - a;
    r.lo = (a - (r.hi - t)) + (b - t);
    return r;
}

/* The same for |a| >= |b| or a = 0. */
REDUCE struct dd dd_fast(double a, double b)
{
    struct dd r;
    r.hi = a + b;
    r.lo = b - (r.hi - a);
    return r;
}

REDUCE struct dd dd_add(struct dd a, struct dd b)
{
    struct dd s = dd_two(a.hi, b.hi);
    struct dd t = dd_two(a.lo, b.lo);
    s = dd_fast(s.hi, s.lo + t.hi);
    return dd_fast(s.hi, s.lo + t.lo);
}

REDUCE struct dd dd_add_d(struct dd a, double b)
{
    struct dd s = dd_two(a.hi, b);
    return dd_fast(s.hi, s.lo + a.lo);
}

REDUCE struct dd dd_neg(struct dd a)
{
    a.hi = -a.hi;
    a.lo = -a.lo;
    return a;
}

REDUCE struct dd dd_mul_d(struct dd a, double b)
{
    double p = a.hi * b;
    return dd_fast(p, fma(a.lo, b, fma(a.hi, b, -p)));
}

REDUCE struct dd dd_mul(struct dd a, struct dd b)
{
    double p = a.hi * b.hi;
    double e = fma(a.hi, b.hi, -p);
    return dd_fast(p, fma(a.lo, b.hi, fma(a.hi, b.lo, e)));
}

REDUCE struct dd dd_div(struct dd a, struct dd b)
{
    double q1 = a.hi / b.hi;
    struct dd r = dd_add(a, dd_neg(dd_mul_d(b, q1)));
    double q2 = r.hi / b.hi;
    r = dd_add(r, dd_neg(dd_mul_d(b, q2)));
    return dd_add_d(dd_fast(q1, q2), r.hi / b.hi);
}

/* An integer exactly. */
REDUCE struct dd dd_of_u64(uint64_t v)
{
    return dd_fast((double)(v >> 32) * 4294967296.0, (double)(v & 0xffffffffu));
}

/* Sums over the tiles of a subtree. */
struct trd__sum {
    struct dd a;  /* sum of x - P, in units of 2^(600 unit) */
    struct dd b;  /* sum of (x - P)^2, in that unit's square */
    int32_t unit; /* -1, 0 or 1 */
};

/* An absent tile: the identity of sum_merge(). */
REDUCE struct trd__sum sum_zero(void)
{
    struct trd__sum z;
    z.a.hi = z.a.lo = z.b.hi = z.b.lo = 0;
    z.unit = -1;
    return z;
}

/* The factor that takes a value to units of 2^(600 unit). */
REDUCE double sum_scale(int32_t unit)
{
    return unit > 0 ? 0x1p-600 : unit < 0 ? 0x1p600 : 1.0;
}

/* A tile's sums from its S and Q, the count of its finite elements and
 * D = K - P. */
REDUCE struct trd__sum sum_of_tile(double s, double q, uint32_t finite,
                                   struct dd d, int32_t unit)
{
    struct trd__sum r;
    r.a = dd_add_d(dd_mul_d(d, (double)finite), s);
    r.b = dd_add_d(dd_mul(d, dd_add_d(r.a, s)), q);
    r.unit = unit;
    return r;
}

/* A narrow tile of m elements may stay one: Q is in range, and K less than
 * four standard deviations off the mean. */
REDUCE bool narrow_holds(double s, double q, uint32_t m)
{
    return q >= 0x1p-100 && q <= 0x1p120 &&
           16 * (s * s) <= 15 * ((double)m * q);
}

/* The sum in the next larger unit. */
REDUCE struct trd__sum sum_raise(struct trd__sum s)
{
    s.a.hi *= 0x1p-600;
    s.a.lo *= 0x1p-600;
    s.b.hi = s.b.hi * 0x1p-600 * 0x1p-600;
    s.b.lo = s.b.lo * 0x1p-600 * 0x1p-600;
    s.unit++;
    return s;
}

/* Two siblings of the tree, the lower tile index first. */
REDUCE struct trd__sum sum_merge(struct trd__sum l, struct trd__sum r)
{
    while (l.unit < r.unit)
        l = sum_raise(l);
    while (r.unit < l.unit)
        r = sum_raise(r);
    l.a = dd_add(l.a, r.a);
    l.b = dd_add(l.b, r.b);
    return l;
}

/* Median of three; of equal values either, which no figure can tell. */
REDUCE double median_f64(double a, double b, double c)
{
    double lo = a < b ? a : b;
    double hi = a < b ? b : a;
    double m = hi < c ? hi : c;
    return lo > m ? lo : m;
}

REDUCE float median_f32(float a, float b, float c)
{
    float lo = a < b ? a : b;
    float hi = a < b ? b : a;
    float m = hi < c ? hi : c;
    return lo > m ? lo : m;
}

/* A bijection of 64-bit numbers (David Stafford's thirteenth). */
#define HASH_MIX_1(z) (((z) ^ (z) >> 30) * UINT64_C(0xbf58476d1ce4e5b9))
#define HASH_MIX_2(z) (((z) ^ (z) >> 27) * UINT64_C(0x94d049bb133111eb))
#define HASH_MIX_3(z) ((z) ^ (z) >> 31)
#define HASH_MIX(z) HASH_MIX_3(HASH_MIX_2(HASH_MIX_1(z)))
#define HASH_STEP UINT64_C(0x9e3779b97f4a7c15) /* C, and between keys */

REDUCE uint64_t hash_mix(uint64_t z)
{
    return HASH_MIX(z);
}

/* key_j = A[j mod 16] ^ R[j div 16], A[i] = K(i), R[i] = K(16 + i), where
 * K(i) = mix((i + 1) C); j < 2048. */
#define HASH_K(i) HASH_MIX(((uint64_t)(i) + 1) * HASH_STEP)

/* One word's part of H_t. */
REDUCE uint64_t hash_word(uint64_t w, uint64_t key)
{
    uint64_t x = w ^ key;
    uint64_t lo = (x & 0xffffffffu) | UINT64_C(1) << 32;
    uint64_t hi = x >> 32 | UINT64_C(1) << 32;
    return lo * hi;
}

/* A tile's part of the tensor's sum, and the hash from that. */
REDUCE uint64_t hash_of_tile(uint64_t h, uint64_t index)
{
    return hash_mix(h + index * HASH_STEP);
}

REDUCE uint64_t hash_of_tensor(uint64_t sum, uint64_t n)
{
    return hash_mix(sum + n);
}

#endif
