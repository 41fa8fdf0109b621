/* The same bits for any number of threads: lengths around the edges of the
 * blocks that threads take, strides, histograms, samples; and that parts
 * counted apart and merged are the whole. */
#include "tests/unit/stats_rig.h"

enum {
    TILE = TRD__TILE,
    BLOCK = 64 * TILE, /* the smallest block: elements */
    K = 23
};

static unsigned char *buffer; /* random bits */
static const size_t buffer_bytes = 5u << 20;

static int make_buffer(void **state)
{
    uint64_t rng = 51;

    (void)state;
    buffer = malloc(buffer_bytes);
    assert_non_null(buffer);
    for (size_t i = 0; i < buffer_bytes; i += 8) {
        uint64_t r = rng_next(&rng);
        memcpy(buffer + i, &r, 8);
    }
    return 0;
}

static int free_buffer(void **state)
{
    (void)state;
    free(buffer);
    return 0;
}

struct all {
    struct trd_stats stats;
    struct trd_histogram histogram;
    unsigned char samples[K * TRD__MAX_ELEMENT];
};

static void compute(const struct trd__kernel *kernel, unsigned threads,
                    const struct trd_tensor *t, enum trd_histogram_kind kind,
                    struct all *a)
{
    struct trd_want want = {K, TRD_RANDOM, 99, kind};

    memset(a, 0, sizeof *a);
    assert_int_equal(trd__stats_with(kernel, threads, t, &want, &a->stats,
                                     a->samples, &a->histogram),
                     0);
    a->stats.histogram = NULL; /* else it would be this one's address */
}

/* One thread and the reference are the measure. */
static void check_threads(const struct trd_tensor *t,
                          enum trd_histogram_kind kind)
{
    static const unsigned threads[] = {2, 3, TRD_MAX_THREADS};
    static struct all want, got;

    compute(&trd__kernel_c, 1, t, kind, &want);
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        compute(trd__kernel_best(), threads[i], t, kind, &got);
        assert_memory_equal(&got, &want, sizeof got);
    }
}

static void test_threads__lengths_around_the_edges_of_blocks(void **state)
{
    static const int64_t edges[] = {1,         TILE,      BLOCK,
                                    2 * BLOCK, 3 * BLOCK, 5 * BLOCK};
    static const int dtypes[] = {TRD_F32, TRD_U8};
    (void)state;
    for (size_t e = 0; e < sizeof edges / sizeof *edges; e++)
        for (int64_t off = -1; off <= 1; off++)
            for (int d = 0; d < 2; d++) {
                int64_t n = edges[e] + off;
                struct trd_tensor t = {buffer, (enum trd_dtype)dtypes[d], 1, &n,
                                       NULL};
                check_threads(&t, TRD_HISTOGRAM_NONE);
            }
}

/* Above 256 of the smallest blocks they become twice as large. */
static void test_threads__where_blocks_grow(void **state)
{
    static const int64_t length = 256 * BLOCK + 1, stride = 0;
    static const uint8_t one = 1;
    static struct all a;
    struct trd_tensor t = {&one, TRD_BOOL, 1, &length, &stride};
    (void)state;
    compute(trd__kernel_best(), 3, &t, TRD_HISTOGRAM_NONE, &a);
    assert_int_equal(a.stats.n, length);
    assert_int_equal(a.stats.zero, 0);
    assert_int_equal(a.stats.min.u, 1);
    assert_double(a.stats.mean, 1);
    assert_double(a.stats.std, 0);
    assert_double(a.stats.l2, sqrt((double)length));
}

static void test_threads__every_dtype(void **state)
{
    (void)state;
    for (int d = 1; d < TRD_DTYPE_LIMIT; d++) {
        int64_t n = 2 * BLOCK + 3 * TILE + 77;
        struct trd_tensor t = {buffer, (enum trd_dtype)d, 1, &n, NULL};
        if (d == TRD_TEXT || d == TRD_OPAQUE)
            continue;
        check_threads(&t, d % 2 ? TRD_HISTOGRAM_ROWS : TRD_HISTOGRAM_EXACT);
    }
}

static void test_threads__any_strides(void **state)
{
    static const struct {
        int64_t first;
        int ndim;
        int64_t shape[3], strides[3];
    } views[] = {
        {0, 2, {500, 600}, {1, 500}},         /* transposed */
        {299999, 1, {300000}, {-1}},          /* backwards */
        {1, 1, {200000}, {3}},                /* every third */
        {5, 2, {400, 500}, {0, 1}},           /* expanded */
        {0, 2, {600, 500}, {1, 2}},           /* overlapping */
        {0, 3, {3, 70000, 1}, {80000, 1, 9}}, /* rows with gaps */
        {7, 3, {1024, 2, 100}, {1, 100000, 1024}},
    };
    static const int dtypes[] = {TRD_BF16, TRD_F32, TRD_I64};
    (void)state;
    for (size_t v = 0; v < sizeof views / sizeof *views; v++)
        for (int d = 0; d < 3; d++) {
            size_t size = trd_dtype_bytes(dtypes[d]);
            struct trd_tensor t = {buffer + (size_t)views[v].first * size,
                                   (enum trd_dtype)dtypes[d], views[v].ndim,
                                   views[v].shape, views[v].strides};
            check_threads(&t, TRD_HISTOGRAM_ROWS);
        }
}

/* ---- merging ---- */

static void tally_of(int dtype, const unsigned char *data, uint32_t n,
                     struct trd__tally *tally)
{
    struct trd__sum sums[TRD__RUN];
    struct trd__job job = {.dtype = dtype};

    trd__tally_init(tally, dtype);
    if (n)
        trd__kernel_c.tiles[dtype](&job, data, 0, n, tally, sums);
}

/* Three parts, one of them of nothing, in any order; but for the hash, which
 * knows where a tile stands. */
static void test_threads__merged_tallies_are_the_whole(void **state)
{
    enum { N = 300, FIRST = 131 };
    (void)state;
    for (int d = 1; d < TRD_DTYPE_LIMIT; d++) {
        struct trd__tally whole, part[3], forth, back;
        size_t size = trd_dtype_bytes(d);
        if (!trd__kernel_c.tiles[d])
            continue;
        tally_of(d, buffer, N, &whole);
        tally_of(d, buffer, FIRST, &part[0]);
        tally_of(d, buffer, 0, &part[1]);
        tally_of(d, buffer + FIRST * size, N - FIRST, &part[2]);
        trd__tally_init(&forth, d);
        trd__tally_init(&back, d);
        for (int i = 0; i < 3; i++) {
            trd__tally_merge(&forth, d, &part[i]);
            trd__tally_merge(&back, d, &part[2 - i]);
        }
        assert_memory_equal(&forth, &back, sizeof forth);
        assert_true(forth.hash == part[0].hash + part[2].hash);
        forth.hash = whole.hash;
        assert_memory_equal(&forth, &whole, sizeof forth);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads__lengths_around_the_edges_of_blocks),
        cmocka_unit_test(test_threads__where_blocks_grow),
        cmocka_unit_test(test_threads__every_dtype),
        cmocka_unit_test(test_threads__any_strides),
        cmocka_unit_test(test_threads__merged_tallies_are_the_whole),
    };
    return cmocka_run_group_tests(tests, make_buffer, free_buffer);
}
