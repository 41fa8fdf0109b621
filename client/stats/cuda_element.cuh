/* Tiles element by element: every dtype, any length, wide or narrow. One warp
 * a tile; thread t has lanes t and t + 32. Slower than cuda_fast.cuh, which
 * hands over what it cannot do. */
#ifndef CLIENT_STATS_CUDA_ELEMENT_CUH
#define CLIENT_STATS_CUDA_ELEMENT_CUH

#include "client/stats/cuda_warp.cuh"

/* The bits of one element. */
struct raw {
    uint64_t lo, hi;
};

DEVICE struct raw load_raw(const unsigned char *p, unsigned size)
{
    struct raw r = {0, 0};

    switch (size) {
    case 1:
        r.lo = *p;
        break;
    case 2:
        r.lo = *(const uint16_t *)p;
        break;
    case 4:
        r.lo = *(const uint32_t *)p;
        break;
    case 8:
        r.lo = *(const uint64_t *)p;
        break;
    default:
        r.lo = *(const uint64_t *)p;
        r.hi = *(const uint64_t *)(p + 8);
    }
    return r;
}

DEVICE struct raw load_unaligned(const unsigned char *p, unsigned size)
{
    struct raw r = {0, 0};

    for (unsigned i = 0; i < size; i++) {
        uint64_t byte = (uint64_t)p[i] << i % 8 * 8;
        if (i < 8)
            r.lo |= byte;
        else
            r.hi |= byte;
    }
    return r;
}

DEVICE struct raw load_any(const unsigned char *p, unsigned size)
{
    unsigned align = size < 8 ? size : 8;

    return (uintptr_t)p % align ? load_unaligned(p, size) : load_raw(p, size);
}

DEVICE void store_raw(unsigned char *p, struct raw r, unsigned size)
{
    switch (size) {
    case 1:
        *p = (unsigned char)r.lo;
        break;
    case 2:
        *(uint16_t *)p = (uint16_t)r.lo;
        break;
    case 4:
        *(uint32_t *)p = (uint32_t)r.lo;
        break;
    case 8:
        *(uint64_t *)p = r.lo;
        break;
    default:
        *(uint64_t *)p = r.lo;
        *(uint64_t *)(p + 8) = r.hi;
    }
}

/* As trd__decode64(). */
DEVICE double value_of(int dtype, struct raw r)
{
    uint32_t v = (uint32_t)r.lo;
    struct small_float half = small_format(TRD_C32);

    switch (dtype) {
    case TRD_F32:
        return (double)f32_of(v);
    case TRD_BF16:
        return (double)f32_of(v << 16);
    case TRD_F16:
    case TRD_F8_E4M3FN:
    case TRD_F8_E5M2:
    case TRD_F8_E4M3FNUZ:
    case TRD_F8_E5M2FNUZ:
        return (double)small_widen(v, small_format(dtype));
    case TRD_F8_E8M0FNU:
        return (double)e8m0_widen(v);
    case TRD_I8:
        return (double)(int8_t)v;
    case TRD_I16:
        return (double)(int16_t)v;
    case TRD_I32:
        return (double)(int32_t)v;
    case TRD_U8:
    case TRD_U16:
    case TRD_U32:
        return (double)v;
    case TRD_BOOL:
        return v ? 1.0 : 0.0;
    case TRD_F64:
        return f64_of(r.lo);
    case TRD_C32:
        return complex_magnitude((double)small_widen(v & 0xffff, half),
                                 (double)small_widen(v >> 16, half));
    case TRD_C64:
        return complex_magnitude((double)f32_of(v),
                                 (double)f32_of((uint32_t)(r.lo >> 32)));
    case TRD_C128:
        return complex_magnitude_wide(f64_of(r.lo), f64_of(r.hi));
    default:
        return 0;
    }
}

DEVICE bool is_wide_int(int dtype)
{
    return dtype == TRD_I64 || dtype == TRD_U64;
}

/* ---- where elements lie ---- */

DEVICE void divide(uint64_t a, uint64_t b, uint64_t *quotient, uint64_t *rest)
{
    if ((a | b) >> 32) {
        *quotient = a / b;
        *rest = a % b;
    } else {
        *quotient = (uint32_t)a / (uint32_t)b;
        *rest = (uint32_t)a % (uint32_t)b;
    }
}

struct cursor {
    uint64_t index[TRD_CUDA_DIMS];
};

/* Lays the cursor `steps` behind where it stands. */
DEVICE void cursor_step(struct cursor *c, const struct cuda_item *it,
                        uint64_t steps)
{
#pragma unroll
    for (int d = 0; d < TRD_CUDA_DIMS; d++) {
        uint64_t carry = 0;
        if (d >= it->ndim)
            continue;
        c->index[d] += steps;
        if (d + 1 < it->ndim && c->index[d] >= it->dim[d].extent)
            divide(c->index[d], it->dim[d].extent, &carry, &c->index[d]);
        steps = carry;
    }
}

DEVICE void cursor_seek(struct cursor *c, const struct cuda_item *it,
                        uint64_t element)
{
#pragma unroll
    for (int d = 0; d < TRD_CUDA_DIMS; d++)
        c->index[d] = 0;
    cursor_step(c, it, element);
}

DEVICE const unsigned char *cursor_at(const struct cursor *c,
                                      const struct cuda_item *it)
{
    uint64_t offset = 0;

#pragma unroll
    for (int d = 0; d < TRD_CUDA_DIMS; d++)
        if (d < it->ndim)
            offset += c->index[d] * it->dim[d].stride;
    return (const unsigned char *)((uintptr_t)it->data + (uintptr_t)offset);
}

static __device__ __noinline__ struct raw
element_of(const struct cuda_item *it, uint64_t element)
{
    struct cursor c;

    cursor_seek(&c, it, element);
    return load_any(cursor_at(&c, it), it->size);
}

/* Copies a tile of m elements to the warp's stage, one behind the other. */
static __device__ __noinline__ void gather_tile(const struct cuda_item *it,
                                                uint64_t tile, uint32_t m,
                                                unsigned char *stage)
{
    struct cursor c;

    __syncwarp();
    cursor_seek(&c, it, tile * TRD__TILE + lane_id());
    for (uint32_t i = lane_id(); i < m; i += CUDA_WARP) {
        store_raw(stage + i * it->size, load_any(cursor_at(&c, it), it->size),
                  it->size);
        cursor_step(&c, it, CUDA_WARP);
    }
    __syncwarp();
}

/* P: the first finite element of tile 0. */
static __device__ __noinline__ union trd_value
find_pilot(const struct cuda_item *it)
{
    uint32_t m = at_most(it->n, TRD__TILE);
    union trd_value pilot;

    pilot.u = 0;
    if (!m || it->packed)
        return pilot;
    if (is_wide_int(it->dtype)) {
        pilot.u = element_of(it, 0).lo;
        return pilot;
    }
    pilot.f = value_of(it->dtype, element_of(it, 0));
    if (f64_is_finite(pilot.f))
        return pilot;
    for (uint32_t i = 0; i < m; i += CUDA_WARP) {
        uint32_t e = i + lane_id();
        double x = e < m ? value_of(it->dtype, element_of(it, e)) : 0;
        uint32_t found = __ballot_sync(ALL, e < m && f64_is_finite(x));
        if (found) {
            pilot.f = __shfl_sync(ALL, x, __ffs(found) - 1);
            return pilot;
        }
    }
    pilot.f = 0;
    return pilot;
}

/* ---- hash ---- */

DEVICE uint64_t hash_key(uint32_t word)
{
    return hash_mix((word % 16 + UINT64_C(1)) * HASH_STEP) ^
           hash_mix((16 + word / 16 + UINT64_C(1)) * HASH_STEP);
}

/* H_t, in every thread. */
static __device__ __noinline__ uint64_t hash_bytes(const unsigned char *tile,
                                                   uint32_t bytes)
{
    uint32_t words = bytes / 8;
    uint64_t h = 0;

    for (uint32_t j = lane_id(); j < words; j += CUDA_WARP)
        h += hash_word(*(const uint64_t *)(tile + j * 8), hash_key(j));
    if (bytes % 8 && lane_id() == 0) {
        struct raw rest = load_unaligned(tile + words * 8, bytes % 8);
        h += hash_word(rest.lo, hash_key(words));
    }
    return warp_add(h);
}

/* ---- sums ---- */

DEVICE uint32_t probe_of(uint32_t m, int which)
{
    return which == 0 ? 0 : (which == 1 ? 331 : 677) * m / TRD__TILE;
}

/* halves() of kernel_c.c, from a thread's two lanes. */
DEVICE double halves(double low, double high)
{
    return warp_add(low + high);
}

/* One tile, aligned to its elements, in memory that this warp can read. */
struct tile {
    const unsigned char *bytes;
    uint32_t m;
    uint64_t index;
    int dtype;
    unsigned size;
    union trd_value pilot;
};

DEVICE double tile_value(const struct tile *t, uint32_t i)
{
    return value_of(t->dtype, load_raw(t->bytes + i * t->size, t->size));
}

DEVICE bool narrow_tile(const struct tile *t, struct trd__sum *sum)
{
    float k = median_f32((float)tile_value(t, probe_of(t->m, 0)),
                         (float)tile_value(t, probe_of(t->m, 1)),
                         (float)tile_value(t, probe_of(t->m, 2)));
    float s[2][2] = {{0, 0}, {0, 0}}; /* of lane and half */
    float q[2] = {0, 0};
    double sum_d, sum_q;

#pragma unroll 1
    for (int half = 0; half < 2; half++)
#pragma unroll 2
        for (uint32_t r = 0; r < TRD__HALF / CUDA_WARP; r++) {
            uint32_t i = (uint32_t)half * TRD__HALF + r * CUDA_WARP +
                         lane_id();
            if (i < t->m) {
                float d = (float)tile_value(t, i) - k;
                int l = r % 2;
                if (half)
                    s[l][1] += d;
                else
                    s[l][0] += d;
                q[l] = fmaf(d, d, q[l]);
            }
        }
    sum_d = halves((double)s[0][0] + (double)s[0][1],
                   (double)s[1][0] + (double)s[1][1]);
    sum_q = halves((double)q[0], (double)q[1]);
    if (!narrow_holds(sum_d, sum_q, t->m))
        return false;
    *sum = sum_of_tile(sum_d, sum_q, t->m, dd_two((double)k, -t->pilot.f), 0);
    return true;
}

/* `first`: the tile's first finite element. */
DEVICE struct trd__sum wide_tile(const struct tile *t, uint32_t finite,
                                 double first, double largest)
{
    double x0 = tile_value(t, probe_of(t->m, 0));
    double x1 = tile_value(t, probe_of(t->m, 1));
    double x2 = tile_value(t, probe_of(t->m, 2));
    double k = first;
    double s[2] = {0, 0}, q[2] = {0, 0};
    double pilot = fabs(t->pilot.f);
    double scale, sum_d, sum_q;
    int32_t unit;

    if (!finite)
        return sum_zero();
    if (f64_is_finite(x0) && f64_is_finite(x1) && f64_is_finite(x2))
        k = median_f64(x0, x1, x2);
    largest = pilot > largest ? pilot : largest;
    unit = largest >= 0x1p470 ? 1 : largest < 0x1p-400 ? -1 : 0;
    scale = sum_scale(unit);
    k *= scale;
#pragma unroll 2
    for (uint32_t r = 0; r < TRD__TILE / CUDA_WARP; r++) {
        uint32_t i = r * CUDA_WARP + lane_id();
        double x = i < t->m ? tile_value(t, i) : k;
        double d = i < t->m && f64_is_finite(x) ? x * scale - k : 0;
        s[r % 2] += d;
        q[r % 2] = fma(d, d, q[r % 2]);
    }
    sum_d = halves(s[0], s[1]);
    sum_q = halves(q[0], q[1]);
    return sum_of_tile(sum_d, sum_q, finite,
                       dd_two(k, -(t->pilot.f * scale)), unit);
}

/* A tile of values: its tally and its sums. */
DEVICE struct trd__sum value_tile(const struct tile *t, bool narrow,
                                  cuda_u64 *word)
{
    double min_normal = dtype_min_normal(t->dtype);
    struct thread_tally tally;
    struct trd__sum sum;
    double largest = 0;
    uint32_t first = TRD__TILE;

    tally_clear(&tally);
#pragma unroll 1
    for (uint32_t i = lane_id(); i < t->m; i += CUDA_WARP) {
        double x = tile_value(t, i);
        double a = fabs(x);
        uint32_t *count = tally.count;

        if (!f64_is_finite(x)) {
            count[CUDA_NAN] += f64_is_nan(x);
            count[CUDA_PINF] += f64_is_inf(x) && x > 0;
            count[CUDA_NINF] += f64_is_inf(x) && x < 0;
            continue;
        }
        count[CUDA_FINITE]++;
        count[CUDA_ZERO] += a == 0;
        count[CUDA_SUBNORMAL] += a != 0 && a < min_normal;
        tally_key(&tally, key_f64(x), f64_bits(a));
        largest = a > largest ? a : largest;
        first = i < first ? i : first;
    }
    tally_hand_in(&tally, word);
    if (narrow && narrow_tile(t, &sum))
        return sum;
    first = __reduce_min_sync(ALL, first);
    return wide_tile(t, __reduce_add_sync(ALL, tally.count[CUDA_FINITE]),
                     first < t->m ? tile_value(t, first) : 0,
                     warp_max(largest));
}

/* ---- int64 and uint64 ---- */

/* a - b as sign and magnitude; both biased, so that they order unsigned. */
DEVICE uint64_t distance_of(uint64_t a, uint64_t b, bool *less)
{
    *less = a < b;
    return *less ? b - a : a - b;
}

DEVICE uint64_t median_of(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t lo = a < b ? a : b;
    uint64_t hi = a < b ? b : a;
    uint64_t m = hi < c ? hi : c;
    return lo > m ? lo : m;
}

DEVICE struct trd__sum int_tile(const struct tile *t, cuda_u64 *word)
{
    const uint64_t *x = (const uint64_t *)t->bytes;
    bool is_signed = t->dtype == TRD_I64;
    uint64_t bias = (uint64_t)is_signed << 63;
    uint64_t k = median_of(x[probe_of(t->m, 0)] ^ bias,
                           x[probe_of(t->m, 1)] ^ bias,
                           x[probe_of(t->m, 2)] ^ bias);
    double s[2] = {0, 0}, q[2] = {0, 0};
    struct thread_tally tally;
    double sum_d, sum_q;
    struct dd shift;
    bool less;

    tally_clear(&tally);
#pragma unroll 2
    for (uint32_t r = 0; r < TRD__TILE / CUDA_WARP; r++) {
        uint32_t i = r * CUDA_WARP + lane_id();
        if (i < t->m) {
            uint64_t v = x[i];
            uint64_t a = is_signed && v >> 63 ? 0 - v : v;
            double d = (double)distance_of(v ^ bias, k, &less);
            d = less ? -d : d;
            s[r % 2] += d;
            q[r % 2] = fma(d, d, q[r % 2]);
            tally.count[CUDA_FINITE]++;
            tally.count[CUDA_ZERO] += a == 0;
            tally_key(&tally, v ^ bias, a);
        }
    }
    tally_hand_in(&tally, word);
    sum_d = halves(s[0], s[1]);
    sum_q = halves(q[0], q[1]);
    shift = dd_of_u64(distance_of(k, t->pilot.u ^ bias, &less));
    return sum_of_tile(sum_d, sum_q, t->m, less ? dd_neg(shift) : shift, 0);
}

/* ---- all of a tile ---- */

/* What a kernel knows of its tiles' dtype, besides a dtype. */
enum { ANY_DTYPE = 0, ONE_BYTE = -1 };

DEVICE bool is_narrow_byte(int dtype)
{
    return (dtype >= TRD_F8_E4M3FN && dtype <= TRD_I8) || dtype == TRD_U8 ||
           dtype == TRD_BOOL;
}

/* The sums of a tile, in every thread; its tally goes to the block's words.
 * D: its dtype, ANY_DTYPE or ONE_BYTE. */
template <int D>
static __device__ __noinline__ struct trd__sum
element_tile(struct tile t, bool narrow, bool packed, cuda_u64 *word)
{
    uint64_t h = hash_bytes(t.bytes, t.m * t.size);

    if (lane_id() == 0)
        atomicAdd(&word[CUDA_HASH], (cuda_u64)hash_of_tile(h, t.index));
    if (D == ONE_BYTE) {
        t.size = 1;
        if (!is_narrow_byte(t.dtype))
            __builtin_unreachable();
        return value_tile(&t, narrow, word);
    }
    if (D != ANY_DTYPE) {
        t.dtype = D;
        t.size = D == TRD_F32 ? 4 : 2;
        return value_tile(&t, narrow, word);
    }
    if (packed)
        return sum_zero();
    if (is_wide_int(t.dtype))
        return int_tile(&t, word);
    return value_tile(&t, narrow, word);
}

/* ---- histogram ---- */

/* The bin of an element, as histogram.c. */
DEVICE uint32_t bin_of(int dtype, struct raw r, unsigned size)
{
    uint64_t v = r.lo;

    switch (dtype) {
    case TRD_F32:
        return (uint32_t)v >> 23 & 255;
    case TRD_BF16:
        return (uint32_t)v >> 7 & 255;
    case TRD_F16:
        return (uint32_t)v >> 10 & 31;
    case TRD_F8_E4M3FN:
    case TRD_F8_E4M3FNUZ:
        return (uint32_t)v >> 3 & 15;
    case TRD_F8_E5M2:
    case TRD_F8_E5M2FNUZ:
        return (uint32_t)v >> 2 & 31;
    case TRD_F8_E8M0FNU:
        return (uint32_t)v;
    case TRD_F64:
        return (uint32_t)(v >> 52) & 2047;
    case TRD_C32:
    case TRD_C64:
    case TRD_C128:
        return (uint32_t)(f64_bits(value_of(dtype, r)) >> 52) & 2047;
    case TRD_BOOL:
        return v != 0;
    case TRD_I8:
    case TRD_I16:
    case TRD_I32:
    case TRD_I64:
        if (v >> (8 * size - 1))
            v = (0 - v) & UINT64_MAX >> (64 - 8 * size);
        return 64 - (uint32_t)__clzll((long long)v);
    default:
        return 64 - (uint32_t)__clzll((long long)v);
    }
}

/* Counts a tile; `rows`: one row of lanes only. */
static __device__ __noinline__ void bins_tile(struct tile t, bool rows,
                                              uint32_t *bins)
{
    uint32_t first = 0, end = t.m;

    if (rows) {
        first = (uint32_t)((t.index + t.index / 16) % 16) * TRD__LANES;
        end = first + TRD__LANES < end ? first + TRD__LANES : end;
    }
    for (uint32_t i = first + lane_id(); i < end; i += CUDA_WARP)
        atomicAdd(&bins[bin_of(t.dtype, load_raw(t.bytes + i * t.size, t.size),
                               t.size)],
                  1u);
}

#endif
