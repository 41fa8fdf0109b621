/* What a warp does together: sums of registers, trees of sums, tallies. All
 * 32 threads take part in everything here. */
#ifndef CLIENT_STATS_CUDA_WARP_CUH
#define CLIENT_STATS_CUDA_WARP_CUH

#include "client/stats/cuda_types.h"

#define DEVICE static __device__ __forceinline__
#define ALL 0xffffffffu

/* A block's shared memory; bins follow where there is a histogram, then the
 * stage. */
struct cuda_block {
    cuda_u64 word[CUDA_WORDS];
    struct trd__sum sum[CUDA_CHUNKS / CUDA_WARP];
    struct trd__sum level[CUDA_WARPS][CUDA_LEVELS];
    struct trd__cuda_result result;
    float table[256]; /* values of one-byte elements */
    uint64_t key[2 * TRD__TILE / TRD__LANES]; /* R, for rows of 32 words */
    cuda_u64 place;   /* in the ring; ~0: none */
    uint32_t last;
};

DEVICE unsigned lane_id(void)
{
    return threadIdx.x % CUDA_WARP;
}

DEVICE uint32_t at_most(uint64_t n, uint32_t most)
{
    return n < most ? (uint32_t)n : most;
}

template <class V> DEVICE V warp_add(V v)
{
    for (int w = CUDA_WARP / 2; w; w /= 2)
        v += __shfl_xor_sync(ALL, v, w);
    return v;
}

template <class V> DEVICE V warp_max(V v)
{
    for (int w = CUDA_WARP / 2; w; w /= 2) {
        V other = __shfl_xor_sync(ALL, v, w);
        v = other > v ? other : v;
    }
    return v;
}

/* The largest 64-bit word, by halves. */
DEVICE uint64_t warp_max_u64(uint64_t v)
{
    uint32_t high = __reduce_max_sync(ALL, (uint32_t)(v >> 32));
    uint32_t low = (uint32_t)(v >> 32) == high ? (uint32_t)v : 0;
    return (uint64_t)high << 32 | __reduce_max_sync(ALL, low);
}

DEVICE struct trd__sum sum_from(struct trd__sum s, unsigned offset)
{
    struct trd__sum o;

    o.a.hi = __shfl_down_sync(ALL, s.a.hi, offset);
    o.a.lo = __shfl_down_sync(ALL, s.a.lo, offset);
    o.b.hi = __shfl_down_sync(ALL, s.b.hi, offset);
    o.b.lo = __shfl_down_sync(ALL, s.b.lo, offset);
    o.unit = __shfl_down_sync(ALL, s.unit, offset);
    return o;
}

/* The tree over the 32 sums of a warp: in thread 0. Not inlined: it is rare,
 * and long. */
static __device__ __noinline__ struct trd__sum warp_tree(struct trd__sum s)
{
    for (unsigned w = 1; w < CUDA_WARP; w *= 2) {
        struct trd__sum right = sum_from(s, w);
        if (lane_id() % (2 * w) == 0)
            s = sum_merge(s, right);
    }
    return s;
}

/* Sums of a run of batches, as struct trd__tree; by one thread. */
struct batch_tree {
    struct trd__sum *level;
    uint32_t n;
};

DEVICE void batch_add(struct batch_tree *t, struct trd__sum s)
{
    int i = 0;

    for (; t->n >> i & 1; i++)
        s = sum_merge(t->level[i], s);
    t->level[i] = s;
    t->n++;
}

DEVICE struct trd__sum batch_total(const struct batch_tree *t)
{
    struct trd__sum s = sum_zero();

    for (int i = 0; t->n >> i; i++)
        if (t->n >> i & 1)
            s = sum_merge(t->level[i], s);
    return s;
}

/* Keys: 64-bit words that order as values do, 0 below all. */
DEVICE uint64_t key_f64(double v)
{
    uint64_t bits = f64_bits(v);
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

DEVICE double f64_of_key(uint64_t key)
{
    return f64_of(key >> 63 ? key & INT64_MAX : ~key);
}

/* What one thread found; counts are of one tile or one warp's part of a
 * chunk, which stays below 2^32. */
struct thread_tally {
    uint32_t count[CUDA_FINITE + 1];
    uint64_t extreme[CUDA_WORDS - CUDA_MAX];
};

DEVICE void tally_clear(struct thread_tally *t)
{
    for (int i = 0; i <= CUDA_FINITE; i++)
        t->count[i] = 0;
    for (int i = 0; i < CUDA_WORDS - CUDA_MAX; i++)
        t->extreme[i] = 0;
}

DEVICE void larger(uint64_t *a, uint64_t b)
{
    *a = b > *a ? b : *a;
}

DEVICE void tally_key(struct thread_tally *t, uint64_t key, uint64_t magnitude)
{
    larger(&t->extreme[CUDA_MAX - CUDA_MAX], key);
    larger(&t->extreme[CUDA_MIN - CUDA_MAX], ~key);
    larger(&t->extreme[CUDA_ABSMAX - CUDA_MAX], magnitude);
    if (magnitude)
        larger(&t->extreme[CUDA_ABSMIN - CUDA_MAX], ~magnitude);
}

/* Adds the tallies of a warp's threads to the block's words. */
DEVICE void tally_hand_in(const struct thread_tally *t, cuda_u64 *word)
{
    for (int i = 0; i <= CUDA_FINITE; i++) {
        uint32_t sum = __reduce_add_sync(ALL, t->count[i]);
        if (sum && lane_id() == 0)
            atomicAdd(&word[i], (cuda_u64)sum);
    }
    for (int i = CUDA_MAX; i < CUDA_WORDS; i++) {
        uint64_t most = warp_max_u64(t->extreme[i - CUDA_MAX]);
        if (most && lane_id() == 0)
            atomicMax(&word[i], (cuda_u64)most);
    }
}

#endif
