/* Every kernel of this machine against the reference: the same bits for every
 * dtype, length, alignment, fill, number of threads and cut into runs.
 *
 * TRD_SEED=N chooses the cases; the seed is printed, and what differs is said
 * with all that is needed to see it again. */
#include "tests/kernel/kernel_rig.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLOW 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 1
#endif
#ifndef SLOW
#define SLOW 0
#endif

enum {
    MANY = SLOW ? 1 : 16, /* a measure of how many cases to try */
    POOL = 9000,          /* elements of a fill that cases take theirs from */
    SHORT = 4097,
    LARGE = SLOW ? 200000 : 2200000,
    SAMPLES = 16
};

static uint64_t seed;
static uint64_t cases;

/* ---- what is compared ---- */

struct outcome {
    struct trd_stats stats;
    unsigned char samples[SAMPLES * TRD__MAX_ELEMENT];
    struct trd_histogram histogram;
};

/* What a case is, for the message. */
struct about {
    const char *kernel;
    int dtype;
    uint64_t n;
    const void *data;
    enum fill fill;
    unsigned threads;
};

static void differ(const struct about *a, const char *field)
{
    print_error("kernel %s, %s, n %llu, alignment %u, fill %s, %u thread(s), "
                "seed %llu: %s differs\n",
                a->kernel, trd_dtype_name(a->dtype), (unsigned long long)a->n,
                (unsigned)((uintptr_t)a->data % 64), fill_name(a->fill),
                a->threads, (unsigned long long)seed, field);
    fail();
}

static void compare(const struct about *a, const struct outcome *got,
                    const struct outcome *want)
{
    struct trd_stats g = got->stats, w = want->stats;

#define SAME(field)                                                           \
    if (memcmp(&g.field, &w.field, sizeof g.field))                           \
    differ(a, #field)
    SAME(n);
    SAME(nan);
    SAME(pinf);
    SAME(ninf);
    SAME(zero);
    SAME(subnormal);
    SAME(max);
    SAME(min);
    SAME(absmax);
    SAME(absmin);
    SAME(mean);
    SAME(std);
    SAME(l2);
    SAME(hash);
    SAME(has);
#undef SAME
    g.histogram = w.histogram = NULL;
    if (memcmp(&g, &w, sizeof g))
        differ(a, "another field");
    if (memcmp(got->samples, want->samples, sizeof got->samples))
        differ(a, "a sample");
    if (want->stats.histogram &&
        (got->histogram.kind != want->histogram.kind ||
         got->histogram.first != want->histogram.first ||
         got->histogram.n != want->histogram.n ||
         memcmp(got->histogram.count, want->histogram.count,
                want->histogram.n * sizeof *want->histogram.count)))
        differ(a, "the histogram");
    cases++;
}

static void stats_by(const struct trd__kernel *kernel, unsigned threads,
                     const struct trd_tensor *t, struct outcome *out)
{
    struct trd_want want = {.samples = SAMPLES,
                            .histogram = TRD_HISTOGRAM_ROWS};

    memset(out, 0, sizeof *out);
    assert_int_equal(trd__stats_with(kernel, threads, t, &want, &out->stats,
                                     out->samples, &out->histogram),
                     0);
}

/* One tensor, every kernel but the reference, against that. */
static void check(const struct trd_tensor *t, enum fill fill, unsigned threads)
{
    static struct outcome want, got;
    struct about a = {NULL, (int)t->dtype, 1, t->data, fill, threads};

    for (int i = 0; i < t->ndim; i++)
        a.n *= (uint64_t)t->shape[i];
    stats_by(&trd__kernel_c, 1, t, &want);
    for (const struct trd__kernel *const *k = trd__kernels(); *k; k++) {
        a.kernel = (*k)->name;
        if (*k == &trd__kernel_c && threads == 1)
            continue;
        if (!(*k)->tiles[t->dtype] && threads == 1)
            continue; /* that is the reference as well */
        stats_by(*k, threads, t, &got);
        compare(&a, &got, &want);
    }
}

static void check_flat(int dtype, const void *data, size_t n, enum fill fill,
                       unsigned threads)
{
    int64_t shape = (int64_t)n;
    struct trd_tensor t = {data, (enum trd_dtype)dtype, 1, &shape, NULL};
    check(&t, fill, threads);
}

static bool has_values(int dtype)
{
    return trd__kernel_c.tiles[dtype] != NULL;
}

/* ---- whole tensors ---- */

/* A window of the pool at the edge of the memory. */
static void check_window(const struct guarded *g, const unsigned char *pool,
                         int dtype, size_t n, enum fill fill,
                         unsigned threads, uint64_t *rng)
{
    size_t size = trd_dtype_bytes(dtype);
    uint64_t r = rng_next(rng);
    size_t from = below(rng, POOL - n + 1);
    size_t shift = r % 3 == 0 ? 0 : r / 4 % 64;
    unsigned char *data =
        guarded_place(g, n * size, shift, r / 256 % 4 != 0);

    if (n)
        memcpy(data, pool + from * size, n * size);
    check_flat(dtype, data, n, fill, threads);
}

static void test_kernel__short_tensors_of_every_length(void **state)
{
    struct guarded g = guarded_open((SHORT + 8) * TRD__MAX_ELEMENT);
    unsigned char *pool = malloc((size_t)POOL * TRD__MAX_ELEMENT);
    uint64_t rng = seed;
    (void)state;
    assert_non_null(pool);
    for (int dtype = 0; dtype < TRD_DTYPE_LIMIT; dtype++) {
        unsigned fill = (unsigned)dtype;
        if (!has_values(dtype))
            continue;
        for (size_t n = 0; n <= SHORT; n += SLOW ? 1 + below(&rng, 30) : 1) {
            if (n % 100 == 0 || SLOW) {
                fill = (fill + 1) % FILL_COUNT;
                fill_elements(dtype, (enum fill)fill, POOL, &rng, pool);
            }
            check_window(&g, pool, dtype, n, (enum fill)fill, 1, &rng);
        }
    }
    guarded_close(&g);
    free(pool);
}

static void test_kernel__short_tensors_of_every_fill(void **state)
{
    struct guarded g = guarded_open((SHORT + 8) * TRD__MAX_ELEMENT);
    unsigned char *pool = malloc((size_t)POOL * TRD__MAX_ELEMENT);
    uint64_t rng = seed + 1;
    (void)state;
    assert_non_null(pool);
    for (int dtype = 0; dtype < TRD_DTYPE_LIMIT; dtype++)
        for (int fill = 0; has_values(dtype) && fill < FILL_COUNT; fill++)
            for (int i = 0; i < 2 * MANY; i++) {
                if (i % 4 == 0)
                    fill_elements(dtype, (enum fill)fill, POOL, &rng, pool);
                check_window(&g, pool, dtype, below(&rng, SHORT + 1),
                             (enum fill)fill,
                             1 + (i % 8 == 7) * (unsigned)below(&rng, 4),
                             &rng);
            }
    guarded_close(&g);
    free(pool);
}

static size_t large_length(uint64_t *rng)
{
    uint64_t r = below(rng, 6);

    if (r < 2) /* where narrow tiles begin */
        return 65536 + below(rng, 5) - 2;
    if (r == 2)
        return 65537 + below(rng, 70000);
    if (r == 3)
        return (size_t)below(rng, LARGE - 2) + 1;
    return ((size_t)1 << (12 + below(rng, SLOW ? 6 : 10))) + below(rng, 3) - 1;
}

static void test_kernel__large_tensors_and_threads(void **state)
{
    struct guarded g = guarded_open((size_t)LARGE * TRD__MAX_ELEMENT + 64);
    uint64_t rng = seed + 2;
    (void)state;
    for (int dtype = 0; dtype < TRD_DTYPE_LIMIT; dtype++) {
        size_t size = trd_dtype_bytes(dtype);
        if (!has_values(dtype))
            continue;
        for (int i = 0; i < MANY; i++) {
            enum fill fill = (enum fill)below(&rng, FILL_COUNT);
            size_t n = large_length(&rng);
            unsigned char *data = guarded_place(&g, n * size, below(&rng, 3),
                                                rng_next(&rng) % 4 != 0);

            if (i % 4 == 0)
                fill = FILL_NORMAL;
            fill_elements(dtype, fill, n, &rng, data);
            for (unsigned threads = 1; threads <= 4; threads += 1 + i % 3)
                check_flat(dtype, data, n, fill, threads);
        }
    }
    guarded_close(&g);
}

static void test_kernel__views(void **state)
{
    enum { N = 150000 };
    struct guarded g = guarded_open((size_t)N * TRD__MAX_ELEMENT);
    uint64_t rng = seed + 3;
    (void)state;
    for (int dtype = 0; dtype < TRD_DTYPE_LIMIT; dtype++) {
        size_t size = trd_dtype_bytes(dtype);
        if (!has_values(dtype))
            continue;
        for (int i = 0; i < 2 * MANY; i++) {
            enum fill fill = (enum fill)below(&rng, FILL_COUNT);
            int64_t rows = 1 + (int64_t)below(&rng, 300);
            int64_t columns = 1 + (int64_t)below(&rng, 300);
            int64_t shape[2] = {rows, columns};
            int64_t strides[2] = {columns, 1};
            unsigned char *first = g.at + g.bytes - (size_t)N * size;
            struct trd_tensor t = {first, (enum trd_dtype)dtype, 2, shape,
                                   strides};

            if (i % 8 == 0)
                fill_elements(dtype, fill, N, &rng, first);
            switch (below(&rng, 5)) {
            case 0: /* transposed */
                strides[0] = 1;
                strides[1] = rows;
                break;
            case 1: /* backwards, up to the edge */
                t.data = first + ((size_t)N - 1) * size;
                strides[0] = -columns;
                strides[1] = -1;
                break;
            case 2: /* rows of a wider matrix */
                strides[0] = columns + 100;
                break;
            case 3: /* one row for all */
                strides[0] = 0;
                break;
            default: /* one element for all of a row */
                strides[0] = 1;
                strides[1] = 0;
                break;
            }
            check(&t, fill, 1 + (unsigned)below(&rng, 2));
        }
    }
    guarded_close(&g);
}

/* ---- tallies and sums of runs ---- */

enum { RUN_TILES = 5 };

struct parts {
    struct trd__tally tally;
    struct trd__sum sums[RUN_TILES];
};

/* Zeros of either sign are the same here: no figure can tell. */
static bool same_double(double a, double b)
{
    return a == b || !memcmp(&a, &b, sizeof a);
}

/* Sums that are 0 may be so in any unit. */
static bool same_sum(const struct trd__sum *a, const struct trd__sum *b)
{
    bool zero = a->a.hi == 0 && a->a.lo == 0 && a->b.hi == 0 && a->b.lo == 0;

    return same_double(a->a.hi, b->a.hi) && same_double(a->a.lo, b->a.lo) &&
           same_double(a->b.hi, b->b.hi) && same_double(a->b.lo, b->b.lo) &&
           (zero || a->unit == b->unit);
}

static bool same_value(int dtype, union trd_value a, union trd_value b)
{
    return dtype == TRD_I64 || dtype == TRD_U64 ? a.u == b.u
                                                : same_double(a.f, b.f);
}

static void compare_parts(const struct about *a, const struct parts *got,
                          const struct parts *want)
{
    const struct trd__tally *g = &got->tally, *w = &want->tally;

#define SAME(field)                                                           \
    if (g->field != w->field)                                                 \
    differ(a, "tally " #field)
    SAME(nan);
    SAME(pinf);
    SAME(ninf);
    SAME(zero);
    SAME(subnormal);
    SAME(finite);
    SAME(hash);
#undef SAME
#define SAME(field)                                                           \
    if (!same_value(a->dtype, g->field, w->field))                            \
    differ(a, "tally " #field)
    SAME(max);
    SAME(min);
    SAME(absmax);
    SAME(absmin);
#undef SAME
    for (uint64_t i = 0; i * TRD__TILE < a->n; i++)
        if (!same_sum(&got->sums[i], &want->sums[i]))
            differ(a, "the sum of a tile");
    cases++;
}

/* The parts of n elements, in runs of `run` tiles at most. */
static void parts_by(const struct trd__kernel *kernel,
                     const struct trd__job *job, const unsigned char *data,
                     uint64_t first, uint32_t n, uint32_t run,
                     struct parts *out)
{
    trd__tally_init(&out->tally, job->dtype);
    for (uint32_t tile = 0; tile * TRD__TILE < n; tile += run) {
        uint32_t left = n - tile * TRD__TILE;
        uint32_t m = left < run * TRD__TILE ? left : run * TRD__TILE;
        size_t at = (size_t)tile * TRD__TILE * trd_dtype_bytes(job->dtype);

        kernel->tiles[job->dtype](job, data + at, first + tile, m,
                                  &out->tally, out->sums + tile);
    }
}

/* The value of an element that is finite, at best the first one. */
static union trd_value pilot_of(int dtype, const void *data, uint64_t *rng)
{
    union trd_value p = {0};

    if (dtype == TRD_I64 || dtype == TRD_U64) {
        memcpy(&p, data, sizeof p);
        return p;
    }
    trd__decode64(dtype, data, 1, &p.f);
    if (!isfinite(p.f) || below(rng, 8) == 0)
        p.f = 0;
    return p;
}

static void check_run(int dtype, bool narrow, const unsigned char *data,
                      uint32_t n, enum fill fill, uint64_t *rng)
{
    trd__modes caller;
    struct parts want, got;
    struct trd__job job = {dtype, narrow, pilot_of(dtype, data, rng)};
    struct about a = {NULL, dtype, n, data, fill, 1};
    uint64_t first = rng_next(rng) >> 20;

    trd__modes_enter(&caller);
    parts_by(&trd__kernel_c, &job, data, first, n, RUN_TILES, &want);
    for (const struct trd__kernel *const *k = trd__kernels(); *k; k++) {
        if (!(*k)->tiles[dtype] || *k == &trd__kernel_c)
            continue;
        a.kernel = (*k)->name;
        parts_by(*k, &job, data, first, n, RUN_TILES, &got);
        compare_parts(&a, &got, &want);
        parts_by(*k, &job, data, first, n, 1 + (uint32_t)below(rng, 3), &got);
        compare_parts(&a, &got, &want);
    }
    trd__modes_leave(&caller);
}

static void test_kernel__runs_cut_anyhow(void **state)
{
    enum { N = RUN_TILES * TRD__TILE };
    struct guarded g = guarded_open(N * TRD__MAX_ELEMENT + 64);
    unsigned char *pool = malloc((size_t)POOL * TRD__MAX_ELEMENT);
    uint64_t rng = seed + 4;
    (void)state;
    assert_non_null(pool);
    for (int dtype = 0; dtype < TRD_DTYPE_LIMIT; dtype++) {
        size_t size = trd_dtype_bytes(dtype);
        if (!has_values(dtype) || trd_dtype_kind(dtype) == TRD_KIND_COMPLEX ||
            trd_dtype_kind(dtype) == TRD_KIND_PACKED)
            continue;
        for (int i = 0; i < 6 * MANY * FILL_COUNT; i++) {
            enum fill fill = (enum fill)(i / 2 % FILL_COUNT);
            uint32_t tiles = (uint32_t)below(&rng, RUN_TILES + 1);
            uint32_t n = tiles * TRD__TILE;
            bool narrow = trd__is_narrow(dtype) && rng_next(&rng) % 4;
            unsigned char *data;

            if (tiles < RUN_TILES && rng_next(&rng) % 2)
                n += 1 + (uint32_t)below(&rng, TRD__TILE - 1);
            n += n == 0;
            data = guarded_place(&g, n * size, below(&rng, 64),
                                 rng_next(&rng) % 4 != 0);
            if (i % 2 == 0)
                fill_elements(dtype, fill, POOL, &rng, pool);
            memcpy(data, pool + below(&rng, POOL - n + 1) * size, n * size);
            check_run(dtype, narrow, data, n, fill, &rng);
        }
    }
    guarded_close(&g);
    free(pool);
}

/* Each code of a dtype of one or two bytes in a tile of its own, among others
 * that let it be an extreme. */
static void test_kernel__every_code(void **state)
{
    struct guarded g = guarded_open(TRD__TILE * 2);
    uint64_t rng = seed + 5;
    (void)state;
    for (int dtype = 0; dtype < TRD_DTYPE_LIMIT; dtype++) {
        unsigned size = trd_dtype_bytes(dtype);
        unsigned char *data;
        if (!has_values(dtype) || size > 2 ||
            trd_dtype_kind(dtype) == TRD_KIND_PACKED)
            continue;
        data = g.at + g.bytes - (size_t)TRD__TILE * size;
        for (uint64_t code = 0; code < UINT64_C(1) << (8 * size);
             code += size == 1 ? 1 : SLOW ? 97 : 5) {
            uint64_t other = code_of(dtype, 1);

            for (uint32_t i = 0; i < TRD__TILE; i++)
                memcpy(data + i * size, i % 7 ? &code : &other, size);
            check_run(dtype, trd__is_narrow(dtype) && code / 3 % 2, data,
                      TRD__TILE, FILL_CODES, &rng);
        }
    }
    guarded_close(&g);
}

static int choose_seed(void **state)
{
    const char *asked = getenv("TRD_SEED");
    (void)state;
    seed = asked ? strtoull(asked, NULL, 0) : 20260701;
    print_message("TRD_SEED=%llu\n", (unsigned long long)seed);
    for (const struct trd__kernel *const *k = trd__kernels(); *k; k++)
        print_message("kernel %s\n", (*k)->name);
    return 0;
}

static int say_cases(void **state)
{
    (void)state;
    print_message("%llu cases\n", (unsigned long long)cases);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel__short_tensors_of_every_length),
        cmocka_unit_test(test_kernel__short_tensors_of_every_fill),
        cmocka_unit_test(test_kernel__large_tensors_and_threads),
        cmocka_unit_test(test_kernel__views),
        cmocka_unit_test(test_kernel__runs_cut_anyhow),
        cmocka_unit_test(test_kernel__every_code),
    };
    return cmocka_run_group_tests(tests, choose_seed, say_cases);
}
