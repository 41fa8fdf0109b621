/* The statistics of a tensor in memory: checks, modes, blocks of tiles, and
 * what comes beside the figures. On the caller's thread and on those of the
 * pool; allocates nothing.
 *
 * A contiguous tensor is handed to the kernel where it lies, runs of tiles at
 * a time; any other is gathered into a buffer of some. Threads take blocks
 * of tiles: aligned runs of a power of two, so that each is a subtree.
 *
 * Invariants: *out, samples and *histogram are untouched on failure. Between
 * trd__modes_enter() and trd__modes_leave() the floating-point modes are those
 * of kernel.h; the arithmetic is all in compute(), which the compiler may not
 * move out from between. */
#include "client/stats/kernel.h"
#include "client/stats/walk.h"
#include "proto/sampling.h"
#include "tracerd/stats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#if defined(__GNUC__)
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE
#endif

enum {
    BLOCKS = 256,                 /* at most, of one tensor */
    WORTH_THREADS_BYTES = 4 << 20, /* above this others may help */
    GATHER_BYTES = 64 << 10 /* of tiles that are gathered at once; several, so
                               that a transposed tensor is read in columns */
};

#if defined(__x86_64__)
/* No x87 instruction is in here, so one register holds all the modes. Setting
 * those of the x87 unit as well, as <fenv.h> does, takes longer than a small
 * tensor. */
void trd__modes_enter(trd__modes *caller)
{
    *caller = __builtin_ia32_stmxcsr();
    /* all exceptions masked, to nearest, subnormals kept */
    __builtin_ia32_ldmxcsr(0x1f80);
}

void trd__modes_leave(const trd__modes *caller)
{
    __builtin_ia32_ldmxcsr(*caller);
}
#else
void trd__modes_enter(trd__modes *caller)
{
    fegetenv(caller);
    fesetenv(FE_DFL_ENV);
}

void trd__modes_leave(const trd__modes *caller)
{
    fesetenv(caller);
}
#endif

/* ---- one tensor ---- */

/* What the threads of one call share. */
struct call {
    struct trd__job job;
    trd__tiles *tiles;
    const struct trd__walk *walk;
    uint64_t block; /* tiles of a block, a power of two */
    uint32_t blocks;
    _Atomic uint32_t next;
    struct trd__sum *sum; /* of each block */
    enum trd_histogram_kind histogram;
    pthread_mutex_t lock; /* guards what follows */
    struct trd__tally tally;
    uint64_t *bins; /* NULL: no histogram */
};

/* What one thread counts. */
struct share {
    struct trd__walk walk;
    struct trd__tally tally;
    uint64_t *bins;
};

/* Whether one of m elements, at most 64, is finite: the first is the pilot. */
static bool is_pilot(struct trd__job *job, const void *elements, uint32_t m)
{
    double x[64];

    if (job->dtype == TRD_I64 || job->dtype == TRD_U64) {
        memcpy(&job->pilot, elements, sizeof job->pilot);
        return true;
    }
    trd__decode64(job->dtype, elements, m, x);
    for (uint32_t i = 0; i < m; i++)
        if (isfinite(x[i])) {
            job->pilot.f = x[i];
            return true;
        }
    return false;
}

static void find_pilot_gathered(struct trd__job *job,
                                const struct trd__walk *of, uint64_t n)
{
    struct trd__walk walk = *of;
    unsigned char few[64 * TRD__MAX_ELEMENT];

    trd__walk_seek(&walk, 0);
    for (uint64_t at = 0; at < n;) {
        uint32_t m = at == 0 ? 1 : n - at < 64 ? (uint32_t)(n - at) : 64;

        trd__walk_read(&walk, few, m);
        if (is_pilot(job, few, m))
            return;
        at += m;
    }
}

/* The first finite element of tile 0; 0 where there is none. */
static void find_pilot(struct trd__job *job, const struct trd__walk *of)
{
    uint64_t n = of->n < TRD__TILE ? of->n : TRD__TILE;

    if (!trd__walk_is_contiguous(of)) {
        find_pilot_gathered(job, of, n);
        return;
    }
    for (uint64_t at = 0; at < n;) {
        uint32_t m = at == 0 ? 1 : n - at < 64 ? (uint32_t)(n - at) : 64;

        if (is_pilot(job, of->data + at * of->size, m))
            return;
        at += m;
    }
}

/* Counts the exponents of a tile of m elements. */
static void count_tile(const struct call *c, const unsigned char *elements,
                       uint64_t tile, uint32_t m, uint64_t *bins)
{
    uint32_t first = 0;

    if (c->histogram == TRD_HISTOGRAM_ROWS && c->walk->n > TRD__WIDE_N) {
        first = trd__bin_row(tile) * TRD__LANES;
        if (first >= m)
            return;
        m = m - first < TRD__LANES ? m - first : TRD__LANES;
    }
    trd__bins_add(c->job.dtype, elements + first * c->walk->size, m, bins);
}

/* `count` elements from element `at` of tile `tile` on, in memory. */
static void run_tiles(const struct call *c, struct share *s,
                      const unsigned char *elements, uint64_t tile, uint32_t m,
                      struct trd__tree *tree)
{
    struct trd__sum sums[TRD__RUN];

    c->tiles(&c->job, elements, tile, m, &s->tally, sums);
    trd__tree_add_run(tree, sums, (m + TRD__TILE - 1) / TRD__TILE);
    for (uint32_t i = 0; s->bins && i * TRD__TILE < m; i++) {
        uint32_t left = m - i * TRD__TILE;
        count_tile(c, elements + (size_t)i * TRD__TILE * c->walk->size,
                   tile + i, left < TRD__TILE ? left : TRD__TILE, s->bins);
    }
}

static NOINLINE void run_gathered(const struct call *c, struct share *s,
                                  uint64_t at, uint64_t end,
                                  struct trd__tree *tree)
{
    _Alignas(64) unsigned char tiles[GATHER_BYTES];
    uint32_t most = GATHER_BYTES / TRD__TILE / (uint32_t)c->walk->size;

    if (most > TRD__RUN)
        most = TRD__RUN;
    trd__walk_seek(&s->walk, at);
    while (at < end) {
        uint64_t left = end - at;
        uint32_t m = most * TRD__TILE;

        if (left < m)
            m = (uint32_t)left;
        trd__walk_read(&s->walk, tiles, m);
        run_tiles(c, s, tiles, at / TRD__TILE, m, tree);
        at += m;
    }
}

static NOINLINE void run_contiguous(const struct call *c, struct share *s,
                                    uint64_t at, uint64_t end,
                                    struct trd__tree *tree)
{
    while (at < end) {
        uint64_t left = end - at;
        uint32_t m = TRD__RUN * TRD__TILE;

        if (left < m)
            m = (uint32_t)left;
        run_tiles(c, s, c->walk->data + at * c->walk->size, at / TRD__TILE, m,
                  tree);
        at += m;
    }
}

/* Takes blocks until there is none. */
static void take_blocks(struct call *c, struct share *s)
{
    bool contiguous = trd__walk_is_contiguous(c->walk);

    s->walk = *c->walk;
    trd__tally_init(&s->tally, c->job.dtype);
    for (;;) {
        uint32_t i = atomic_fetch_add(&c->next, 1);
        uint64_t n = c->block * TRD__TILE;
        struct trd__tree tree;
        uint64_t at, left;

        if (i >= c->blocks)
            return;
        tree.n = 0;
        at = i * n;
        left = c->walk->n - at;
        if (contiguous)
            run_contiguous(c, s, at, at + (left < n ? left : n), &tree);
        else
            run_gathered(c, s, at, at + (left < n ? left : n), &tree);
        c->sum[i] = trd__tree_total(&tree);
    }
}

static void hand_in(struct call *c, const struct share *s)
{
    pthread_mutex_lock(&c->lock);
    trd__tally_merge(&c->tally, c->job.dtype, &s->tally);
    for (unsigned b = 0; s->bins && b < trd_dtype_bins(c->job.dtype); b++)
        c->bins[b] += s->bins[b];
    pthread_mutex_unlock(&c->lock);
}

/* Apart, so that the array is on the stack only where it is needed. */
static NOINLINE void work_counting(struct call *c)
{
    uint64_t bins[TRD_MAX_BINS];
    struct share share = {.bins = bins};

    memset(bins, 0, trd_dtype_bins(c->job.dtype) * sizeof *bins);
    take_blocks(c, &share);
    hand_in(c, &share);
}

static void work(void *arg)
{
    struct call *c = arg;

    if (c->bins) {
        work_counting(c);
    } else {
        struct share share = {.bins = NULL};
        take_blocks(c, &share);
        hand_in(c, &share);
    }
}

/* One block for one thread; for several, enough that none waits long. */
static void cut_into_blocks(struct call *c, unsigned threads)
{
    uint64_t tiles = c->walk->n / TRD__TILE + (c->walk->n % TRD__TILE != 0);
    uint64_t most = threads > 1 ? BLOCKS : 1;

    c->block = threads > 1 ? TRD__RUN : 1;
    while ((tiles + c->block - 1) / c->block > most)
        c->block *= 2;
    c->blocks = (uint32_t)((tiles + c->block - 1) / c->block);
}

/* Any tensor, by whoever comes. */
static NOINLINE void compute_blocks(struct call *c, unsigned threads,
                                    struct trd__tree *tree)
{
    struct trd__sum sum[BLOCKS];

    c->sum = sum;
    pthread_mutex_init(&c->lock, NULL);
    trd__tally_init(&c->tally, c->job.dtype);
    cut_into_blocks(c, threads);
    trd__pool_run(c->blocks < threads ? c->blocks : threads, work, c);
    for (uint32_t i = 0; i < c->blocks; i++)
        trd__tree_add(tree, &sum[i]);
    pthread_mutex_destroy(&c->lock);
    c->sum = NULL;
}

/* One tile that lies as it is wanted: what a block, a share and a pool are
 * made for would cost more than the tile. */
static void compute_tile(struct call *c, struct trd__tree *tree)
{
    struct trd__sum sum;

    trd__tally_init(&c->tally, c->job.dtype);
    c->tiles(&c->job, c->walk->data, 0, (uint32_t)c->walk->n, &c->tally, &sum);
    trd__tree_add(tree, &sum);
}

static NOINLINE void compute(struct call *c, unsigned threads,
                             struct trd_stats *out)
{
    uint64_t n = c->walk->n;
    struct trd__tree tree = {.n = 0};
    struct trd__sum sum;

    c->job.narrow = trd__is_narrow(c->job.dtype) && n > TRD__WIDE_N;
    if (n && trd_dtype_kind(c->job.dtype) != TRD_KIND_PACKED)
        find_pilot(&c->job, c->walk);
    if (n && n <= TRD__TILE && !c->bins && trd__walk_is_contiguous(c->walk))
        compute_tile(c, &tree);
    else
        compute_blocks(c, threads, &tree);
    sum = trd__tree_total(&tree);
    trd__finish(&c->job, n, &c->tally, &sum, out);
}

static NOINLINE void compute_counting(struct call *c, unsigned threads,
                                      struct trd_stats *out,
                                      struct trd_histogram *histogram)
{
    uint64_t bins[TRD_MAX_BINS];

    memset(bins, 0, sizeof bins);
    c->bins = bins;
    compute(c, threads, out);
    trd__bins_finish(c->job.dtype, c->histogram, bins, histogram);
    out->histogram = histogram;
}

static void take_samples(struct trd__walk *walk, const struct trd_want *want,
                         struct trd_stats *out, unsigned char *samples)
{
    uint32_t count = trd_sample_count(walk->n, want);
    bool contiguous = trd__walk_is_contiguous(walk);

    if (contiguous && count == walk->n && want->sampling != TRD_RANDOM) {
        if (count) /* all of them, in their order */
            memcpy(samples, walk->data, count * walk->size);
    } else {
        for (uint32_t i = 0; i < count; i++, samples += walk->size) {
            uint64_t at = trd_sample_index(walk->n, want, i);

            if (contiguous) {
                memcpy(samples, walk->data + at * walk->size, walk->size);
                continue;
            }
            trd__walk_seek(walk, at);
            trd__walk_read(walk, samples, 1);
        }
    }
    out->sample_n = count;
    out->sampling = want->sampling;
    out->sampling_arg =
        want->sampling == TRD_EQUIDISTANT ? 0 : want->sampling_arg;
}

/* Threads help where there are more than `worth` bytes. */
static int stats_of(const struct trd__kernel *kernel, unsigned threads,
                    uint64_t worth, const struct trd_tensor *tensor,
                    const struct trd_want *want, struct trd_stats *out,
                    void *samples, struct trd_histogram *histogram)
{
    struct trd__walk walk;
    struct trd_want asked;
    struct trd_stats result;
    struct call call;
    trd__modes caller;
    int dtype;
    int r;

    if (!tensor || !out || !want || want->samples > TRD_MAX_SAMPLES ||
        !trd_sampling_name((int)want->sampling) ||
        !trd_histogram_name((int)want->histogram) ||
        (want->sampling == TRD_EVERY && !want->sampling_arg))
        return TRD_EINVAL;
    dtype = (int)tensor->dtype;
    if (dtype < 0 || dtype >= TRD_DTYPE_LIMIT)
        return TRD_EUNSUPPORTED;
    call.tiles = kernel->tiles[dtype];
    if (!call.tiles)
        call.tiles = trd__kernel_c.tiles[dtype];
    if (!call.tiles)
        return TRD_EUNSUPPORTED;
    r = trd__walk_init(&walk, tensor, trd_dtype_bytes(dtype));
    if (r < 0)
        return r;
    if (walk.n <= worth / walk.size)
        threads = 1;
    asked = *want;
    if (trd_dtype_kind(dtype) == TRD_KIND_PACKED) {
        asked.samples = 0;
        asked.histogram = TRD_HISTOGRAM_NONE;
    }
    if ((trd_sample_count(walk.n, &asked) && !samples) ||
        (asked.histogram && !histogram))
        return TRD_EINVAL;

    call.job = (struct trd__job){.dtype = dtype};
    call.walk = &walk;
    call.next = 0;
    call.histogram = asked.histogram;
    call.sum = NULL;
    call.bins = NULL;
    trd__modes_enter(&caller);
    if (asked.histogram)
        compute_counting(&call, threads, &result, histogram);
    else
        compute(&call, threads, &result);
    take_samples(&walk, &asked, &result, samples);
    trd__modes_leave(&caller);
    *out = result;
    return 0;
}

int trd__stats_with(const struct trd__kernel *kernel, unsigned threads,
                    const struct trd_tensor *tensor,
                    const struct trd_want *want, struct trd_stats *out,
                    void *samples, struct trd_histogram *histogram)
{
    return stats_of(kernel, threads, 0, tensor, want, out, samples, histogram);
}

/* ---- the public calls ---- */

static _Atomic unsigned threads_max = 1;

int trd_stats_threads(unsigned n)
{
    if (n < 1 || n > TRD_MAX_THREADS)
        return TRD_EINVAL;
    atomic_store(&threads_max, n);
    return 0;
}

int trd_stats_cpu_as(const struct trd_tensor *tensor,
                     const struct trd_want *want, struct trd_stats *out,
                     void *samples, struct trd_histogram *histogram)
{
    unsigned threads =
        atomic_load_explicit(&threads_max, memory_order_relaxed);

    return stats_of(trd__kernel_best(), threads, WORTH_THREADS_BYTES, tensor,
                    want, out, samples, histogram);
}

int trd_stats_cpu(const struct trd_tensor *tensor, uint32_t k,
                  struct trd_stats *out, void *samples)
{
    struct trd_want want = {.samples = k};
    return trd_stats_cpu_as(tensor, &want, out, samples, NULL);
}
