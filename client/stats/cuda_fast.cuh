/* Full narrow tiles in aligned memory, at the speed of the memory: each warp
 * does several tiles at once, 64 / LANES threads a tile, LANES neighbouring
 * lanes a thread, 16 (or 8) bytes a load.
 *
 * Nothing here looks at NaN or infinities: a tile that has some does not hold
 * (kernel.h), its tally is thrown away, and cuda_element.cuh does it again.
 *
 * A policy F says what a dtype's elements are:
 *   LANES, WORDS   lanes and 32-bit words of one load
 *   DTYPE          dtype of all tiles, or what element_tile() takes for it
 *   SIZE           bytes of an element
 *   struct found   extremes and zeros of one thread
 *   value(x, i)    element i of memory x
 *   words(...)     the elements of one load, added up
 *   merge(...)     adds one tile's found to another
 *   hand_in(...)   the same to a thread_tally
 *   below(...)     how many elements of a load are subnormal */
#ifndef CLIENT_STATS_CUDA_FAST_CUH
#define CLIENT_STATS_CUDA_FAST_CUH

#include "client/stats/cuda_element.cuh"
#include "client/stats/cuda_packed.cuh"

/* ---- elements that become fp32 one by one ---- */

/* |x| twice, less 1: zero is the largest, and the others order as they do. */
DEVICE uint32_t double_less_one(float x)
{
    uint32_t bits = f32_bits(x);
    return bits + bits - 1;
}

struct single_found {
    float max, min;
    uint32_t least; /* of double_less_one() */
    float zero;     /* of a tile: below 2^24 */
    uint32_t zeros; /* of tiles before */
};

template <int LANES_> struct single {
    enum { LANES = LANES_ };
    typedef struct single_found found;

    static __device__ __forceinline__ void clear(found *f)
    {
        f->max = -f32_of(DECODE_F32_INF);
        f->min = f32_of(DECODE_F32_INF);
        f->least = ALL;
        f->zero = 0;
        f->zeros = 0;
    }

    static __device__ __forceinline__ void element(float x, float k, float *s,
                                                   float *q, found *f)
    {
        uint32_t twice = double_less_one(x);
        float d = x - k;

        *s += d;
        *q = fmaf(d, d, *q);
        f->max = fmaxf(f->max, x);
        f->min = fminf(f->min, x);
        f->least = twice < f->least ? twice : f->least;
        f->zero += one_if_zero(x);
    }

    static __device__ __forceinline__ void merge(found *f, const found *o)
    {
        f->max = fmaxf(f->max, o->max);
        f->min = fminf(f->min, o->min);
        f->least = o->least < f->least ? o->least : f->least;
        f->zeros += (uint32_t)o->zero + o->zeros;
    }

    static __device__ __forceinline__ float max_of(const found *f)
    {
        return f->max;
    }

    static __device__ __forceinline__ float min_of(const found *f)
    {
        return f->min;
    }

    /* Whether something not zero is below the limit. */
    static __device__ __forceinline__ bool has_below(const found *f,
                                                     float min_normal)
    {
        return f->least < double_less_one(min_normal) && min_normal != 0;
    }

    static __device__ __forceinline__ void hand_in(const found *f,
                                                   struct thread_tally *t)
    {
        t->count[CUDA_ZERO] += f->zeros;
        tally_key(t, key_f64((double)f->max), 0);
        tally_key(t, key_f64((double)f->min), 0);
        larger(&t->extreme[CUDA_ABSMAX - CUDA_MAX],
               f64_bits(fmax(fabs((double)f->max), fabs((double)f->min))));
        if (f->least != ALL)
            larger(&t->extreme[CUDA_ABSMIN - CUDA_MAX],
                   ~f64_bits((double)f32_of(f->least / 2 + 1)));
    }
};

struct fast_f32 : single<4> {
    enum { WORDS = 4, DTYPE = TRD_F32, SIZE = 4 };

    __device__ __forceinline__ fast_f32(const struct cuda_item *,
                                        const float *)
    {
    }

    __device__ __forceinline__ float value(const unsigned char *x,
                                           uint32_t i) const
    {
        return ((const float *)x)[i];
    }

    __device__ __forceinline__ void words(const uint32_t *w, float k, float *s,
                                          float *q, found *f) const
    {
#pragma unroll
        for (int e = 0; e < LANES; e++)
            element(f32_of(w[e]), k, &s[e], &q[e], f);
    }

    __device__ __forceinline__ uint32_t below(const uint32_t *w,
                                              float min_normal) const
    {
        uint32_t n = 0;
#pragma unroll
        for (int e = 0; e < LANES; e++)
            n += double_less_one(f32_of(w[e])) < double_less_one(min_normal);
        return n;
    }
};

/* One-byte dtypes: a table has their values. */
struct fast_byte : single<8> {
    enum { WORDS = 2, DTYPE = ONE_BYTE, SIZE = 1 };
    const float *table;

    __device__ __forceinline__ fast_byte(const struct cuda_item *,
                                         const float *values)
        : table(values)
    {
    }

    __device__ __forceinline__ float value(const unsigned char *x,
                                           uint32_t i) const
    {
        return table[x[i]];
    }

    __device__ __forceinline__ float lane(const uint32_t *w, int e) const
    {
        return table[w[e / 4] >> 8 * (e % 4) & 255];
    }

    __device__ __forceinline__ void words(const uint32_t *w, float k, float *s,
                                          float *q, found *f) const
    {
#pragma unroll
        for (int e = 0; e < LANES; e++)
            element(lane(w, e), k, &s[e], &q[e], f);
    }

    __device__ __forceinline__ uint32_t below(const uint32_t *w,
                                              float min_normal) const
    {
        uint32_t n = 0;
#pragma unroll
        for (int e = 0; e < LANES; e++)
            n += double_less_one(lane(w, e)) < double_less_one(min_normal);
        return n;
    }
};

/* ---- fp16 and bf16: extremes and zeros two at a time ---- */

/* The count of halves that a mask of 0 or 0xffff each had set, from the sum
 * of up to 2^15 masks: -(65536 high) + 65535 low. */
DEVICE uint32_t masks_counted(uint32_t sum)
{
    uint32_t low = (0 - sum) & 0xffff;
    uint32_t both = sum + low; /* 65536 (low - high) */
    return low + low - (uint32_t)((int32_t)both >> 16);
}

struct pair_found {
    uint32_t max, min, least; /* least: of |x|, NaN for zeros */
    uint32_t zero;            /* sum of masks */
    uint32_t zeros;           /* of tiles before */
};

template <class P> struct fast_pair {
    enum { LANES = 8, WORDS = 4, DTYPE = P::DTYPE, SIZE = 2 };
    typedef struct pair_found found;

    __device__ __forceinline__ fast_pair(const struct cuda_item *,
                                         const float *)
    {
    }

    static __device__ __forceinline__ void clear(found *f)
    {
        f->max = P::INFINITE | P::INFINITE << 16 | 0x80008000u;
        f->min = P::INFINITE | P::INFINITE << 16;
        f->least = ALL;
        f->zero = f->zeros = 0;
    }

    __device__ __forceinline__ float value(const unsigned char *x,
                                           uint32_t i) const
    {
        return P::low(((const uint16_t *)x)[i]);
    }

    __device__ __forceinline__ void words(const uint32_t *w, float k, float *s,
                                          float *q, found *f) const
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            uint32_t zero = pair_zero_mask(w[i]);
            float low = P::low(w[i]) - k;
            float high = P::high(w[i]) - k;

            s[2 * i] += low;
            q[2 * i] = fmaf(low, low, q[2 * i]);
            s[2 * i + 1] += high;
            q[2 * i + 1] = fmaf(high, high, q[2 * i + 1]);
            f->max = P::max(f->max, w[i]);
            f->min = P::min(f->min, w[i]);
            f->least = P::min(f->least, (w[i] & 0x7fff7fffu) | zero);
            f->zero += zero;
        }
    }

    __device__ __forceinline__ uint32_t below(const uint32_t *w, float) const
    {
        uint32_t n = 0;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            n += ((w[i] & 0x7fff) - 1) < P::NORMAL - 1;
            n += ((w[i] >> 16 & 0x7fff) - 1) < P::NORMAL - 1;
        }
        return n;
    }

    static __device__ __forceinline__ void merge(found *f, const found *o)
    {
        f->max = P::max(f->max, o->max);
        f->min = P::min(f->min, o->min);
        f->least = P::min(f->least, o->least);
        f->zeros += masks_counted(o->zero) + o->zeros;
    }

    static __device__ __forceinline__ float max_of(const found *f)
    {
        return fmaxf(P::low(f->max), P::high(f->max));
    }

    static __device__ __forceinline__ float min_of(const found *f)
    {
        return fminf(P::low(f->min), P::high(f->min));
    }

    static __device__ __forceinline__ uint32_t least_of(const found *f)
    {
        uint32_t low = f->least & 0xffff, high = f->least >> 16;
        return low < high ? low : high;
    }

    static __device__ __forceinline__ bool has_below(const found *f, float)
    {
        return least_of(f) < P::NORMAL;
    }

    static __device__ __forceinline__ void hand_in(const found *f,
                                                   struct thread_tally *t)
    {
        struct single_found one;
        uint32_t least = least_of(f);

        one.max = max_of(f);
        one.min = min_of(f);
        one.least = least > 0x7fff ? ALL : double_less_one(P::low(least));
        one.zeros = f->zeros;
        single<8>::hand_in(&one, t);
    }
};

/* ---- one pass: a few tiles of a warp ---- */

/* The keys of row r's words: A of this thread, which stay, and R, which is
 * known when compiling, or in shared memory where a row has two. */
template <class F> struct word_keys {
    enum {
        PER_LOAD = F::WORDS / 2,
        PER_ROW = TRD__LANES * F::SIZE / 8, /* 8, 16 or 32 */
        KEPT = PER_ROW < 16 ? 2 : PER_LOAD
    };
    uint64_t a[KEPT];
    const uint64_t *r; /* of this thread's half of row 0 */

    __device__ __forceinline__ word_keys(uint32_t thread, const uint64_t *rows)
        : r(rows + thread * PER_LOAD / 16)
    {
        for (int i = 0; i < KEPT; i++) {
            uint32_t word = PER_ROW < 16 ? thread + PER_ROW * i
                                         : thread * PER_LOAD + i;
            a[i] = hash_mix((word % 16 + UINT64_C(1)) * HASH_STEP);
        }
    }

    __device__ __forceinline__ uint64_t of(int row, int i) const
    {
        if (PER_ROW == 8)
            return a[row % 2] ^ HASH_K(16 + row / 2);
        if (PER_ROW == 16)
            return a[i] ^ HASH_K(16 + row);
        return a[i] ^ r[2 * row];
    }
};

/* H_t so far: products, and the halves that go to the upper 32 bits. */
struct hash_parts {
    uint64_t product;
    uint32_t upper;
};

DEVICE void hash_add(struct hash_parts *h, uint32_t low, uint32_t high,
                     uint64_t key)
{
    low ^= (uint32_t)key;
    high ^= (uint32_t)(key >> 32);
    h->product += (uint64_t)low * high;
    h->upper += low + high;
}

template <int WORDS> struct load_of;
template <> struct load_of<4> {
    static __device__ __forceinline__ void take(uint32_t *w,
                                                const unsigned char *p)
    {
        uint4 v = __ldg((const uint4 *)p);
        w[0] = v.x;
        w[1] = v.y;
        w[2] = v.z;
        w[3] = v.w;
    }
};
template <> struct load_of<2> {
    static __device__ __forceinline__ void take(uint32_t *w,
                                                const unsigned char *p)
    {
        uint2 v = __ldg((const uint2 *)p);
        w[0] = v.x;
        w[1] = v.y;
    }
};

enum { FAST_ROWS = TRD__TILE / TRD__LANES, FAST_AHEAD = 4 };

/* Exchange of one halving step: of 2 N values this thread keeps the upper or
 * the lower N and adds those of the thread `w` away. */
template <int N> DEVICE void halve(double *v, unsigned w)
{
    bool upper = lane_id() & w;

#pragma unroll
    for (int i = 0; i < N; i++) {
        double send = upper ? v[i] : v[N + i];
        double keep = upper ? v[N + i] : v[i];
        v[i] = keep + __shfl_xor_sync(ALL, send, w);
    }
}

DEVICE void halve_in_place(double *v, unsigned w)
{
    v[0] += __shfl_xor_sync(ALL, v[0], w);
}

/* halves() of kernel_c.c over the threads of each tile: the s of LANES lanes,
 * then their q. Afterwards v[0] is S in the first half of the tile's threads
 * and Q in the second. The order of the steps is that of the distances 32,
 * 16, ... 1 between lanes; who keeps which values is arbitrary. */
DEVICE void halve_lanes(double (&v)[8]) /* 16 threads of 4 lanes */
{
    halve<4>(v, 8);
    halve<2>(v, 4);
    halve<1>(v, 2);
    halve_in_place(v, 1);
    halve_in_place(v, 4);
    halve_in_place(v, 2);
}

DEVICE void halve_lanes(double (&v)[16]) /* 8 threads of 8 lanes */
{
    halve<8>(v, 4);
    halve<4>(v, 2);
    halve<2>(v, 1);
    halve<1>(v, 2);
    halve_in_place(v, 1);
    halve_in_place(v, 2);
}

/* What a tile's threads know of it. */
struct fast_tile {
    double s, q;
    float k;
    uint64_t hash;
};

/* The tile at `tile`, by the 64 / LANES threads that call with it. */
template <class F>
DEVICE void fast_pass(const F &f, const struct word_keys<F> &keys,
                      const unsigned char *tile, struct fast_tile *out,
                      typename F::found *found)
{
    constexpr unsigned threads = TRD__LANES / F::LANES;
    unsigned thread = lane_id() % threads;
    const unsigned char *p = tile + thread * F::WORDS * 4;
    float k = median_f32(f.value(tile, 0), f.value(tile, 331),
                         f.value(tile, 677));
    float s[2][F::LANES], q[F::LANES];
    struct hash_parts h = {0, 0};
    double v[2 * F::LANES];

#pragma unroll
    for (int e = 0; e < F::LANES; e++)
        s[0][e] = s[1][e] = q[e] = 0;
#pragma unroll
    for (int row = 0; row < FAST_ROWS; row += FAST_AHEAD) {
        uint32_t w[FAST_AHEAD][F::WORDS];
#pragma unroll
        for (int r = 0; r < FAST_AHEAD; r++)
            load_of<F::WORDS>::take(w[r],
                                    p + (row + r) * TRD__LANES * F::SIZE);
#pragma unroll
        for (int r = 0; r < FAST_AHEAD; r++) {
            f.words(w[r], k, s[row / (FAST_ROWS / 2)], q, found);
#pragma unroll
            for (int i = 0; i < F::WORDS / 2; i++)
                hash_add(&h, w[r][2 * i], w[r][2 * i + 1],
                         keys.of(row + r, i));
        }
    }
#pragma unroll
    for (int e = 0; e < F::LANES; e++) {
        v[e] = (double)s[0][e] + (double)s[1][e];
        v[F::LANES + e] = (double)q[e];
    }
    halve_lanes(v);
    out->hash = h.product + ((uint64_t)h.upper << 32);
#pragma unroll
    for (unsigned w = threads / 2; w; w /= 2)
        out->hash += __shfl_xor_sync(ALL, out->hash, w);
    out->s = __shfl_sync(ALL, v[0], lane_id() - thread);
    out->q = __shfl_sync(ALL, v[0], lane_id() - thread + threads / 2);
    out->k = k;
}

/* All elements of the tile are equal, in value: max and min are. */
template <class F> DEVICE bool all_equal(const typename F::found *found)
{
    float max = F::max_of(found), min = F::min_of(found);

#pragma unroll
    for (unsigned w = TRD__LANES / F::LANES / 2; w; w /= 2) {
        max = fmaxf(max, __shfl_xor_sync(ALL, max, w));
        min = fminf(min, __shfl_xor_sync(ALL, min, w));
    }
    return max == min;
}

template <class F>
static __device__ __noinline__ uint32_t
count_below(const F &f, const unsigned char *tile, float min_normal)
{
    constexpr unsigned threads = TRD__LANES / F::LANES;
    const unsigned char *p = tile + lane_id() % threads * F::WORDS * 4;
    uint32_t n = 0;

#pragma unroll 4
    for (int row = 0; row < FAST_ROWS; row++) {
        uint32_t w[F::WORDS];
        load_of<F::WORDS>::take(w, p + row * TRD__LANES * F::SIZE);
        n += f.below(w, min_normal);
    }
    return n;
}

/* What a warp keeps over all its tiles. */
template <class F> struct fast_state {
    typename F::found found;
    uint32_t held; /* tiles, times the threads of each */
    uint32_t subnormal;
};

/* Asks for what the next pass reads, a line a thread: so that memory has work
 * while this pass computes, and from a block's first moment on. */
template <class F>
DEVICE void fast_ahead(const unsigned char *bytes, const unsigned char *end)
{
    enum { LINE = 128, LINES = F::LANES * TRD__TILE * F::SIZE / 2 / LINE };

#pragma unroll
    for (int i = 0; i < LINES; i += CUDA_WARP) {
        const unsigned char *line = bytes + (i + lane_id()) * LINE;
        if (line < end)
            prefetch_line(line);
    }
}

/* The `n` tiles from `bytes` on, n at most 32 and a multiple of the tiles of
 * a pass. Afterwards thread i has what tile i has; result: those that do not
 * hold. The warp's tiles end at `end`. */
template <class F>
DEVICE uint32_t fast_batch(const F &f, const struct word_keys<F> &keys,
                           const unsigned char *bytes,
                           const unsigned char *end, uint32_t n,
                           float min_normal, struct fast_state<F> *state,
                           struct fast_tile *mine)
{
    constexpr unsigned threads = TRD__LANES / F::LANES;
    constexpr unsigned tiles = CUDA_WARP / threads;
    uint32_t bad = 0;

#pragma unroll 1
    for (uint32_t at = 0; at < n; at += tiles) {
        const unsigned char *tile =
            bytes + (size_t)(at + lane_id() / threads) * TRD__TILE * F::SIZE;
        unsigned owner = (lane_id() - at) % tiles * threads;
        typename F::found found;
        struct fast_tile t, moved;
        bool holds;

        fast_ahead<F>(bytes + (size_t)(at + tiles) * TRD__TILE * F::SIZE, end);
        F::clear(&found);
        fast_pass(f, keys, tile, &t, &found);
        holds = narrow_holds(t.s, t.q, TRD__TILE);
        if (__any_sync(ALL, t.q == 0)) {
            bool equal = all_equal<F>(&found);
            holds = holds || (t.q == 0 && equal);
        }
        if (holds) {
            F::merge(&state->found, &found);
            state->held++;
        }
        if (__any_sync(ALL, holds && F::has_below(&found, min_normal))) {
            uint32_t below = count_below(f, tile, min_normal);
            state->subnormal += holds ? below : 0;
        }
        moved.s = __shfl_sync(ALL, t.s, owner);
        moved.q = __shfl_sync(ALL, t.q, owner);
        moved.k = __shfl_sync(ALL, t.k, owner);
        moved.hash = __shfl_sync(ALL, t.hash, owner);
        holds = __shfl_sync(ALL, (int)holds, owner);
        if (lane_id() - at < tiles)
            *mine = moved;
        bad |= __ballot_sync(ALL, lane_id() - at < tiles && !holds);
    }
    return bad;
}

#endif
