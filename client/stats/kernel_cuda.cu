/* The statistics on the device: one kernel, made for several classes of
 * dtypes. The bits are those of kernel_c.c.
 *
 * A block takes one chunk, a run of a power of two of tiles of one tensor;
 * each of its warps takes an equal run of these, in batches of up to 32. Sums
 * go up the tree: batch, warp, block; the block that comes last to a tensor
 * does the rest, takes a place in the ring and writes the result there.
 *
 * Invariants: reads only the elements; leaves the scratch as it found it, all
 * zeros but for the count of runs, so that a captured launch may be repeated;
 * waits for nothing. A full ring costs the result, which is counted.
 *
 * Two runs of one captured launch may not overlap: they share its scratch.
 * One graph's never do. */
#include "client/stats/cuda_fast.cuh"
#include "proto/sampling.h"

#ifndef TRD_CUDA_EMULATED
extern __shared__ uint4 cuda_dynamic[];
#define DYNAMIC_SHARED ((unsigned char *)cuda_dynamic)
#endif

enum { BLOCK_BYTES = (sizeof(struct cuda_block) + 15) / 16 * 16 };

/* ---- what is left when all chunks are done ---- */

/* The sum of the tensor from those of its chunks; in thread 0 of warp 0. */
DEVICE struct trd__sum chunks_sum(const struct trd__sum *part, uint32_t chunks,
                                  struct cuda_block *b)
{
    uint32_t warps = blockDim.x / CUDA_WARP;
    uint32_t groups = (chunks + CUDA_WARP - 1) / CUDA_WARP;
    struct batch_tree tree = {b->level[0], 0};

    for (uint32_t g = threadIdx.x / CUDA_WARP; g < groups; g += warps) {
        uint32_t i = g * CUDA_WARP + lane_id();
        struct trd__sum s = sum_zero();

        if (i < chunks) {
            s.a.hi = __ldcg(&part[i].a.hi);
            s.a.lo = __ldcg(&part[i].a.lo);
            s.b.hi = __ldcg(&part[i].b.hi);
            s.b.lo = __ldcg(&part[i].b.lo);
            s.unit = __ldcg(&part[i].unit);
        }
        s = warp_tree(s);
        if (lane_id() == 0)
            b->sum[g] = s;
    }
    __syncthreads();
    if (threadIdx.x >= CUDA_WARP)
        return sum_zero();
    for (uint32_t g = 0; g < groups; g += CUDA_WARP) {
        uint32_t i = g + lane_id();
        struct trd__sum s = warp_tree(i < groups ? b->sum[i] : sum_zero());
        if (lane_id() == 0)
            batch_add(&tree, s);
    }
    return lane_id() == 0 ? batch_total(&tree) : sum_zero();
}

DEVICE void tally_of_words(int dtype, const cuda_u64 *word,
                           struct trd__tally *t)
{
    t->nan = word[CUDA_NAN];
    t->pinf = word[CUDA_PINF];
    t->ninf = word[CUDA_NINF];
    t->zero = word[CUDA_ZERO];
    t->subnormal = word[CUDA_SUBNORMAL];
    t->finite = word[CUDA_FINITE];
    t->hash = word[CUDA_HASH];
    if (is_wide_int(dtype)) {
        uint64_t bias = (uint64_t)(dtype == TRD_I64) << 63;
        t->max.u = word[CUDA_MAX] ^ bias;
        t->min.u = ~word[CUDA_MIN] ^ bias;
        t->absmax.u = word[CUDA_ABSMAX];
        t->absmin.u = ~word[CUDA_ABSMIN];
        return;
    }
    t->max.f = t->finite ? f64_of_key(word[CUDA_MAX])
                         : -f64_of(DECODE_F64_INF);
    t->min.f = t->finite ? f64_of_key(~word[CUDA_MIN])
                         : f64_of(DECODE_F64_INF);
    t->absmax.u = word[CUDA_ABSMAX];
    t->absmin.u = word[CUDA_ABSMIN] ? ~word[CUDA_ABSMIN] : DECODE_F64_INF;
}

/* A place in the ring, or ~0. The true tail is far away: looked at only where
 * the ring seems full. */
DEVICE cuda_u64 take_place(const struct cuda_launch *l)
{
    cuda_u64 at = atomicAdd(&l->head->head, 0);

    for (;;) {
        cuda_u64 seen;
        if (at - atomicAdd(&l->head->tail, 0) >= l->slots) {
            cuda_u64 tail = l->words->tail;
            atomicMax(&l->head->tail, tail);
            if (at - tail >= l->slots)
                return ~(cuda_u64)0;
        }
        seen = atomicCAS(&l->head->head, at, at + 1);
        if (seen == at)
            return at;
        at = seen;
    }
}

/* Counts a lost result, and tells the host; whoever comes last says the last
 * number. */
DEVICE void drop(const struct cuda_launch *l)
{
    cuda_u64 n = atomicAdd(&l->head->dropped, 1) + 1;
    cuda_u64 now = n;

    do {
        n = now;
        l->words->dropped = n;
        __threadfence_system();
        now = atomicAdd(&l->head->dropped, 0);
    } while (now != n);
}

/* By the whole block. */
static __device__ __noinline__ void
finish_item(const struct cuda_launch *l, uint32_t index, union trd_value pilot,
            struct cuda_block *b)
{
    const struct cuda_item *it = &l->item[index];
    struct cuda_area *area = l->area;
    uint32_t count = it->packed ? 0
                                : sampling_count(it->n, it->k,
                                                 (int)l->sampling,
                                                 l->sampling_arg);
    cuda_u64 *bins = l->bins ? l->bins + (size_t)index * TRD_MAX_BINS : NULL;
    struct cuda_slot *slot;
    struct trd__sum sum;

    for (uint32_t i = threadIdx.x; i < CUDA_WORDS; i += blockDim.x) {
        b->word[i] = __ldcg(&area->word[index][i]);
        area->word[index][i] = 0;
    }
    sum = chunks_sum(l->part + it->chunk0, it->chunks, b);
    if (threadIdx.x == 0) {
        struct trd__cuda_result *r = &b->result;

        r->tag = it->tag;
        r->replay = l->captured ? __ldcg(&area->runs) : 0;
        r->job.dtype = it->dtype;
        r->job.narrow = it->narrow;
        r->job.pilot = pilot;
        r->n = it->n;
        tally_of_words(it->dtype, b->word, &r->tally);
        r->sum = sum;
        r->sample_n = count;
        area->ticket[index] = 0;
        b->place = take_place(l);
        if (b->place == ~(cuda_u64)0)
            drop(l);
    }
    __syncthreads();
    slot = (struct cuda_slot *)(l->ring + b->place % l->slots * l->slot_bytes);
    if (b->place != ~(cuda_u64)0) {
        unsigned char *samples = (unsigned char *)slot + l->samples_at;
        const uint64_t *from = (const uint64_t *)&b->result;
        uint64_t *to = (uint64_t *)&slot->result;

        for (uint32_t i = threadIdx.x; i < sizeof b->result / 8;
             i += blockDim.x)
            to[i] = from[i];
        for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
            store_raw(samples + i * it->size,
                      element_of(it, sampling_index(it->n, count,
                                                    (int)l->sampling,
                                                    l->sampling_arg, i)),
                      it->size);
        if (bins) {
            uint64_t *out = (uint64_t *)((unsigned char *)slot + l->bins_at);
            for (uint32_t i = threadIdx.x; i < TRD_MAX_BINS; i += blockDim.x)
                out[i] = __ldcg(&bins[i]);
        }
    }
    if (bins)
        for (uint32_t i = threadIdx.x; i < TRD_MAX_BINS; i += blockDim.x)
            bins[i] = 0;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x)
        return;
    __threadfence_system();
    if (b->place != ~(cuda_u64)0)
        slot->sequence = b->place + 1;
    if (atomicAdd(&area->items_done, 1u) == l->items - 1) {
        area->items_done = 0;
        area->runs++;
        __threadfence_system();
        *l->done = area->runs;
    }
}

/* ---- a warp's tiles ---- */

/* As many of the n tiles from `first` on as are fast: tile i's sums in thread
 * i; result: a mask that has 0 for those. */
template <class F>
DEVICE uint32_t fast_part(const F &f, const struct word_keys<F> &keys,
                          const struct cuda_item *it, union trd_value pilot,
                          uint64_t first, uint32_t n,
                          const unsigned char *stop, float min_normal,
                          struct fast_state<F> *state, cuda_u64 *word,
                          struct trd__sum *sum)
{
    if constexpr (F::SIZE != 0) {
        uint64_t full = it->n / TRD__TILE;
        uint32_t fast = full > first ? at_most(full - first, n) : 0;
        struct fast_tile mine = {0, 0, 0, 0};
        uint32_t bad;
        uint64_t h = 0;

        fast -= fast % (CUDA_WARP * F::LANES / TRD__LANES);
        if (!fast)
            return ALL;
        bad = fast_batch(f, keys, it->data + first * TRD__TILE * F::SIZE, stop,
                         fast, min_normal, state, &mine);
        if (lane_id() < fast && !(bad >> lane_id() & 1)) {
            *sum = sum_of_tile(mine.s, mine.q, TRD__TILE,
                               dd_two((double)mine.k, -pilot.f), 0);
            h = hash_of_tile(mine.hash, first + lane_id());
        }
        h = warp_add(h);
        if (lane_id() == 0)
            atomicAdd(&word[CUDA_HASH], (cuda_u64)h);
        return (fast < CUDA_WARP ? ALL << fast : 0) | bad;
    }
    return ALL;
}

/* The sums of `run` tiles (a power of two) from `first` on, of those that
 * there are; in thread 0. */
template <class F>
DEVICE struct trd__sum warp_run(const struct cuda_launch *l,
                                const struct cuda_item *it,
                                union trd_value pilot, uint64_t first,
                                uint64_t run, struct cuda_block *b,
                                uint32_t *bins, unsigned char *stage)
{
    unsigned warp = threadIdx.x / CUDA_WARP;
    struct batch_tree tree = {b->level[warp], 0};
    uint64_t end = first + run < it->tiles ? first + run : it->tiles;
    uint64_t full = it->n / TRD__TILE;
    const unsigned char *stop =
        it->data + (end < full ? end : full) * TRD__TILE * it->size;
    bool rows = l->histogram == TRD_HISTOGRAM_ROWS && it->n > TRD__WIDE_N;
    float min_normal = (float)dtype_min_normal(it->dtype);
    F f(it, b->table);
    struct word_keys<F> keys(lane_id() % (TRD__LANES / F::LANES), b->key);
    struct fast_state<F> state;
    struct tile t;

    F::clear(&state.found);
    state.held = state.subnormal = 0;
    t.dtype = it->dtype;
    t.size = it->size;
    t.pilot = pilot;
#pragma unroll 1
    for (; first < end; first += CUDA_WARP) {
        const unsigned char *bytes = it->data + first * TRD__TILE * it->size;
        uint32_t n = at_most(end - first, CUDA_WARP);
        uint32_t slow = n < CUDA_WARP ? (1u << n) - 1 : ALL;
        struct trd__sum sum = sum_zero();

        if (it->narrow)
            slow &= fast_part(f, keys, it, pilot, first, n, stop, min_normal,
                              &state, b->word, &sum);
        while (slow) {
            uint32_t i = (uint32_t)__ffs((int)slow) - 1;
            struct trd__sum one;

            slow &= slow - 1;
            t.index = first + i;
            t.m = at_most(it->n - t.index * TRD__TILE, TRD__TILE);
            t.bytes = bytes + (size_t)i * TRD__TILE * it->size;
            if (F::SIZE == 0 && !it->dense) {
                gather_tile(it, t.index, t.m, stage);
                t.bytes = stage;
            }
            one = element_tile<(int)F::DTYPE>(t, it->narrow, it->packed,
                                              b->word);
            if (lane_id() == i)
                sum = one;
            if (F::SIZE == 0 && !it->dense && bins)
                bins_tile(t, rows, bins);
        }
        if (it->dense && bins)
            for (uint32_t i = 0; i < n; i++) {
                t.index = first + i;
                t.m = at_most(it->n - t.index * TRD__TILE, TRD__TILE);
                t.bytes = bytes + (size_t)i * TRD__TILE * it->size;
                bins_tile(t, rows, bins);
            }
        sum = warp_tree(sum);
        if (lane_id() == 0)
            batch_add(&tree, sum);
        tree.n = __shfl_sync(ALL, tree.n, 0);
    }
    if (F::SIZE != 0 && it->narrow) {
        struct thread_tally tally;
        tally_clear(&tally);
        if (state.held)
            F::hand_in(&state.found, &tally);
        tally.count[CUDA_FINITE] =
            state.held * (TRD__TILE / (TRD__LANES / F::LANES));
        tally.count[CUDA_SUBNORMAL] = state.subnormal;
        tally_hand_in(&tally, b->word);
    }
    return lane_id() == 0 ? batch_total(&tree) : sum_zero();
}

/* ---- the kernel ---- */

/* No tile is fast. */
struct fast_none : single<8> {
    enum { WORDS = 2, DTYPE = ANY_DTYPE, SIZE = 0 };

    __device__ __forceinline__ fast_none(const struct cuda_item *,
                                         const float *)
    {
    }
    __device__ __forceinline__ float value(const unsigned char *,
                                           uint32_t) const
    {
        return 0;
    }
    __device__ __forceinline__ void words(const uint32_t *, float, float *,
                                          float *, found *) const
    {
    }
    __device__ __forceinline__ uint32_t below(const uint32_t *, float) const
    {
        return 0;
    }
};

template <class F>
__global__ void __launch_bounds__(CUDA_WARPS *CUDA_WARP, CUDA_RESIDENT)
    stats_kernel(const __grid_constant__ struct cuda_launch l)
{
    struct cuda_block *b = (struct cuda_block *)DYNAMIC_SHARED;
    uint32_t *bins =
        l.bins ? (uint32_t *)(DYNAMIC_SHARED + BLOCK_BYTES) : NULL;
    unsigned char *stage =
        DYNAMIC_SHARED + BLOCK_BYTES + (l.bins ? TRD_MAX_BINS * 4 : 0);
    uint32_t warps = blockDim.x / CUDA_WARP;
    uint32_t warp = threadIdx.x / CUDA_WARP;
    const struct cuda_item *it = l.item;
    uint32_t index = 0;
    uint64_t chunk, run, first;
    union trd_value pilot;
    struct trd__sum sum;

    if (!l.items)
        return;
    while (index + 1 < l.items && it[1].chunk0 <= blockIdx.x) {
        index++;
        it++;
    }
    chunk = blockIdx.x - it->chunk0;
    run = (UINT64_C(1) << it->chunk_log2) / warps;
    first = (chunk << it->chunk_log2) + warp * run;
    if constexpr (F::SIZE != 0)
        if (it->dense && first < it->n / TRD__TILE)
            fast_ahead<F>(it->data + first * TRD__TILE * F::SIZE,
                          it->data + it->n / TRD__TILE * TRD__TILE * F::SIZE);
    for (uint32_t i = threadIdx.x; i < CUDA_WORDS; i += blockDim.x)
        b->word[i] = 0;
    if (bins)
        for (uint32_t i = threadIdx.x; i < TRD_MAX_BINS; i += blockDim.x)
            bins[i] = 0;
    if (F::SIZE == 1)
        for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x) {
            struct raw code = {i, 0};
            b->table[i] = (float)value_of(it->dtype, code);
        }
    if (F::SIZE == 4)
        for (uint32_t i = threadIdx.x; i < sizeof b->key / sizeof *b->key;
             i += blockDim.x)
            b->key[i] = hash_mix((16 + i + UINT64_C(1)) * HASH_STEP);
    __syncthreads();

    pilot = find_pilot(it);
    sum = warp_run<F>(&l, it, pilot, first, run, b, bins,
                      stage + CUDA_STAGE / warps * warp);
    if (lane_id() == 0)
        b->sum[warp] = sum;
    __syncthreads();

    if (warp == 0) {
        sum = warp_tree(lane_id() < warps ? b->sum[lane_id()] : sum_zero());
        if (lane_id() == 0)
            l.part[blockIdx.x] = sum;
    }
    for (uint32_t i = threadIdx.x; i < CUDA_WORDS; i += blockDim.x) {
        cuda_u64 word = b->word[i];
        if (word && i < CUDA_ADDED)
            atomicAdd(&l.area->word[index][i], word);
        else if (word)
            atomicMax(&l.area->word[index][i], word);
    }
    if (bins)
        for (uint32_t i = threadIdx.x; i < TRD_MAX_BINS; i += blockDim.x)
            if (bins[i])
                atomicAdd(&l.bins[(size_t)index * TRD_MAX_BINS + i],
                          (cuda_u64)bins[i]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        b->last = atomicAdd(&l.area->ticket[index], 1u) == it->chunks - 1;
    __syncthreads();
    if (!b->last)
        return;
    __threadfence();
    finish_item(&l, index, pilot, b);
}

#if !defined(TRD_CUDA_CLASS) || TRD_CUDA_CLASS == 0
const void *trd__cuda_general(void)
{
    return (const void *)stats_kernel<fast_none>;
}

uint32_t trd__cuda_shared_bytes(bool histogram)
{
    return BLOCK_BYTES + (histogram ? TRD_MAX_BINS * 4 : 0);
}
#endif
#if !defined(TRD_CUDA_CLASS) || TRD_CUDA_CLASS == 1
const void *trd__cuda_f32(void)
{
    return (const void *)stats_kernel<fast_f32>;
}
#endif
#if !defined(TRD_CUDA_CLASS) || TRD_CUDA_CLASS == 2
const void *trd__cuda_f16(void)
{
    return (const void *)stats_kernel<fast_pair<pair_f16>>;
}
#endif
#if !defined(TRD_CUDA_CLASS) || TRD_CUDA_CLASS == 3
const void *trd__cuda_bf16(void)
{
    return (const void *)stats_kernel<fast_pair<pair_bf16>>;
}
#endif
#if !defined(TRD_CUDA_CLASS) || TRD_CUDA_CLASS == 4
const void *trd__cuda_byte(void)
{
    return (const void *)stats_kernel<fast_byte>;
}
#endif
