/* The same bits whatever the strides, the alignment, the order of tiles and
 * the caller's floating-point modes; and those of the contract. */
#include "tests/unit/stats_rig.h"

#include <fenv.h>

/* ---- strides ---- */

/* The figures and samples of a view are those of its contiguous copy. */
static void check_view(const struct trd_tensor *view)
{
    size_t size = trd_dtype_bytes((int)view->dtype);
    int64_t index[8] = {0};
    struct trd_stats got, want;
    unsigned char from_view[64 * 16], from_copy[64 * 16], *copy, *to;
    struct trd_tensor dense = *view;
    size_t n = 1;

    for (int i = 0; i < view->ndim; i++)
        n *= (size_t)view->shape[i];
    to = copy = malloc(n * size);
    assert_non_null(copy);
    for (size_t e = 0; e < n; e++, to += size) {
        const unsigned char *at = view->data;
        for (int i = 0; i < view->ndim; i++)
            at += index[i] * view->strides[i] * (int64_t)size;
        memcpy(to, at, size);
        for (int i = view->ndim; i-- > 0 && ++index[i] == view->shape[i];)
            index[i] = 0;
    }
    dense.data = copy;
    dense.strides = NULL;
    memset(from_view, 1, sizeof from_view);
    memset(from_copy, 1, sizeof from_copy);
    assert_int_equal(trd_stats_cpu(view, 64, &got, from_view), 0);
    assert_int_equal(trd_stats_cpu(&dense, 64, &want, from_copy), 0);
    assert_same(&got, &want);
    assert_memory_equal(from_view, from_copy, sizeof from_view);
    free(copy);
}

struct view {
    int64_t offset;
    int ndim;
    int64_t shape[5], strides[5];
};

/* Of a buffer of 100000 elements. */
static const struct view views[] = {
    {0, 1, {100000}, {1}},
    {3, 1, {24999}, {4}},
    {99999, 1, {100000}, {-1}},
    {50000, 1, {90000}, {0}},
    {0, 2, {250, 400}, {1, 250}},
    {0, 2, {400, 3}, {250, 1}},
    {99999, 2, {100, 900}, {-1000, -1}},
    {0, 2, {300, 300}, {1, 1}},        /* overlapping */
    {0, 2, {70000, 1}, {1, 12345678}}, /* whatever stride of extent 1 */
    {7, 3, {1, 300, 300}, {-1, 1, 300}},
    {0, 3, {30, 1, 3000}, {3000, 0, 1}},          /* contiguous after all */
    {0, 4, {2, 16, 50, 60}, {48000, 1, 960, 16}}, /* channels last */
    {500, 4, {5, 6, 7, 8}, {0, -10, 1000, 3}},
    {0, 5, {2, 3, 4, 5, 6}, {360, 120, 30, 6, 1}},
};

static void test_same__any_strides_equal_the_copy(void **state)
{
    enum { N = 100000 };
    static const int dtypes[] = {TRD_I8,  TRD_BF16, TRD_F32,       TRD_F64,
                                 TRD_U64, TRD_C128, TRD_F4_E2M1X2, TRD_C32};
    unsigned char *buffer = malloc(N * 16);
    uint64_t rng = 3;
    (void)state;
    assert_non_null(buffer);
    for (int i = 0; i < N * 16; i++)
        buffer[i] = (unsigned char)rng_next(&rng);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t v = 0; v < sizeof views / sizeof *views; v++) {
            struct trd_tensor t;
            t.data = buffer + views[v].offset * trd_dtype_bytes(dtypes[d]);
            t.dtype = (enum trd_dtype)dtypes[d];
            t.ndim = views[v].ndim;
            t.shape = views[v].shape;
            t.strides = views[v].strides;
            check_view(&t);
        }
    free(buffer);
}

static void test_same__any_alignment(void **state)
{
    enum { N = 66000 };
    unsigned char *buffer = malloc(N * 4 + 8);
    static float x[N];
    uint64_t rng = 4;
    struct trd_stats want;
    (void)state;
    assert_non_null(buffer);
    for (int i = 0; i < N; i++)
        x[i] = (float)rng_normal(&rng);
    want = stats_of(TRD_F32, x, N);
    for (int shift = 0; shift < 8; shift++) {
        struct trd_stats got;
        memcpy(buffer + shift, x, sizeof x);
        got = stats_of(TRD_F32, buffer + shift, N);
        assert_same(&got, &want);
    }
    free(buffer);
}

/* ---- tiles ---- */

/* The perfect tree, drawn in full over an array padded with absent tiles. */
static struct trd__sum full_tree(struct trd__sum *sums, size_t n)
{
    size_t width = 1;

    while (width < n)
        width *= 2;
    for (size_t i = n; i < width; i++)
        sums[i] = sum_zero();
    for (; width > 1; width /= 2)
        for (size_t i = 0; i < width / 2; i++)
            sums[i] = sum_merge(sums[2 * i], sums[2 * i + 1]);
    return sums[0];
}

/* Tiles in runs of `run`, in reverse order, give what trd_stats_cpu gives. */
static void check_split(int dtype, const void *data, uint64_t n, uint32_t run,
                        union trd_value pilot)
{
    static struct trd__sum sums[256];
    struct trd__job job = {dtype, n > TRD__WIDE_N && trd__is_narrow(dtype),
                           pilot};
    uint64_t tiles = (n + 1023) / 1024;
    struct trd__tally tally;
    struct trd__sum total;
    struct trd_stats got, want = stats_of(dtype, data, n);

    trd__tally_init(&tally, dtype);
    for (uint64_t at = (tiles - 1) / run * run;; at -= run) {
        uint64_t left = n - at * 1024;
        uint32_t m = left < run * 1024 ? (uint32_t)left : run * 1024;
        trd__kernel_c.tiles[dtype](&job,
                                   (const unsigned char *)data +
                                       at * 1024 * trd_dtype_bytes(dtype),
                                   at, m, &tally, &sums[at]);
        if (!at)
            break;
    }
    total = full_tree(sums, tiles);
    trd__finish(&job, n, &tally, &total, &got);
    assert_same(&got, &want);
}

static void test_same__tiles_in_any_order_and_any_runs(void **state)
{
    static const uint64_t lengths[] = {1,     2,     677,   1024,   1025,  4096,
                                       65536, 65537, 66560, 131072, 200000};
    static float x[200000];
    static double y[200000];
    static int64_t z[200000];
    uint64_t rng = 5;
    (void)state;
    for (int i = 0; i < 200000; i++) {
        x[i] = (float)rng_normal(&rng);
        y[i] = ldexp(rng_normal(&rng), (int)(rng_next(&rng) % 2000) - 1000);
        z[i] = (int64_t)rng_next(&rng);
    }
    x[70000] = NAN;
    x[90000] = 1e30f;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (uint32_t run = 1; run <= 64; run += 21) {
            union trd_value p;
            p.f = (double)x[0];
            check_split(TRD_F32, x, lengths[i], run, p);
            p.f = y[0];
            check_split(TRD_F64, y, lengths[i], run, p);
            p.i = z[0];
            check_split(TRD_I64, z, lengths[i], run, p);
        }
}

/* Runs of any length, aligned or not, add up to the same. */
static void check_runs(const struct trd__sum *sums, uint64_t n,
                       const struct trd__sum *want)
{
    for (uint32_t length = 1; length <= 64; length += 21) {
        struct trd__tree tree = {.n = 0};
        struct trd__sum total;
        for (uint64_t i = 0; i < n; i += length)
            trd__tree_add_run(&tree, &sums[i],
                              n - i < length ? (uint32_t)(n - i) : length);
        total = trd__tree_total(&tree);
        assert_int_equal(total.unit, want->unit);
        assert_memory_equal(&total.a, &want->a, sizeof want->a);
        assert_memory_equal(&total.b, &want->b, sizeof want->b);
    }
}

static void test_same__carry_tree_is_the_full_tree(void **state)
{
    static struct trd__sum sums[1024];
    uint64_t rng = 6;
    (void)state;
    for (uint64_t n = 1; n <= 1000; n += 37) {
        struct trd__tree tree;
        struct trd__sum total, want;
        tree.n = 0;
        for (uint64_t i = 0; i < n; i++) {
            struct dd shift = dd_two(rng_normal(&rng), 1e-20);
            int unit = n % 2 ? 0 : (int)(rng_next(&rng) % 3) - 1;
            sums[i] = sum_of_tile(rng_normal(&rng), rng_uniform(&rng), 1024,
                                  shift, unit);
            if (n % 2 == 0 && rng_next(&rng) % 4 == 0)
                sums[i] = sum_zero();
            trd__tree_add(&tree, &sums[i]);
        }
        total = trd__tree_total(&tree);
        check_runs(sums, n, &total);
        want = full_tree(sums, n);
        assert_int_equal(total.unit, want.unit);
        assert_memory_equal(&total.a, &want.a, sizeof want.a);
        assert_memory_equal(&total.b, &want.b, sizeof want.b);
    }
}

/* ---- the contract, written a second time ---- */

static float middle(float a, float b, float c)
{
    return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
}

/* The upper half on the lower one until one is left. */
static double fold(const double *lane, int n)
{
    double half[32];

    if (n == 1)
        return lane[0];
    for (int i = 0; i < n / 2; i++)
        half[i] = lane[i] + lane[i + n / 2];
    return fold(half, n / 2);
}

/* Any finite fp32 in the unit 1. */
static struct trd__sum slow_wide(const float *x, int m, double pilot)
{
    double s[64] = {0}, q[64] = {0}, k = 0;
    int finite = 0;

    for (int i = m - 1; i >= 0; i--)
        if (isfinite(x[i]))
            k = (double)x[i];
    if (isfinite(x[0]) && isfinite(x[331 * m / 1024]) &&
        isfinite(x[677 * m / 1024]))
        k = (double)middle(x[0], x[331 * m / 1024], x[677 * m / 1024]);
    for (int row = 0; row < 16; row++)
        for (int lane = 0; lane < 64; lane++) {
            int i = 64 * row + lane;
            if (i >= m || !isfinite(x[i]))
                continue;
            finite++;
            s[lane] += (double)x[i] - k;
            q[lane] = fma((double)x[i] - k, (double)x[i] - k, q[lane]);
        }
    return finite ? sum_of_tile(fold(s, 64), fold(q, 64), (uint32_t)finite,
                                dd_two(k, -pilot), 0)
                  : sum_zero();
}

static struct trd__sum slow_narrow(const float *x, int m, double pilot,
                                   int *redone)
{
    float k = middle(x[0], x[331 * m / 1024], x[677 * m / 1024]);
    float upper[64] = {0}, lower[64] = {0}, q[64] = {0};
    double s64[64], q64[64], s, square;

    for (int row = 0; row < 16; row++)
        for (int lane = 0; lane < 64 && 64 * row + lane < m; lane++) {
            float d = x[64 * row + lane] - k;
            if (row < 8)
                upper[lane] += d;
            else
                lower[lane] += d;
            q[lane] = fmaf(d, d, q[lane]);
        }
    for (int lane = 0; lane < 64; lane++) {
        s64[lane] = (double)upper[lane] + (double)lower[lane];
        q64[lane] = (double)q[lane];
    }
    s = fold(s64, 64);
    square = fold(q64, 64);
    if (!(square >= ldexp(1, -100)) || !(square <= ldexp(1, 120)) ||
        16 * (s * s) > 15 * (m * square)) {
        ++*redone;
        return slow_wide(x, m, pilot);
    }
    return sum_of_tile(s, square, (uint32_t)m, dd_two((double)k, -pilot), 0);
}

/* Tiles of every kind: ordinary, far from K, too small, too large, equal,
 * with NaN, with nothing else, and a short one at the end. */
static size_t fill_kinds(float *x)
{
    size_t n = 100 * 1024 + 700;
    uint64_t rng = 8;

    for (size_t i = 0; i < n; i++) {
        size_t tile = i / 1024, at = i % 1024;
        x[i] = (float)(3 + rng_normal(&rng));
        if (tile % 10 == 1 && (at == 331 || at == 677))
            x[i] = 1000;
        if (tile % 10 == 2)
            x[i] *= 1e-30f;
        if (tile % 10 == 3)
            x[i] *= 1e30f;
        if (tile % 10 == 4)
            x[i] = 0.1f;
        if (tile % 10 == 5 && at % 100 == (tile < 50 ? 0 : 7))
            x[i] = tile < 70 ? NAN : INFINITY;
        if (tile % 10 == 6)
            x[i] = -INFINITY;
    }
    return n;
}

static void check_written_down(const float *x, size_t n)
{
    static struct trd__sum sums[128];
    struct trd__job job = {TRD_F32, n > 65536, {(double)x[0]}};
    struct trd__tally tally;
    struct trd_stats got = stats_of(TRD_F32, x, n), want;
    struct trd__sum total;
    int redone = 0;

    for (size_t t = 0; t * 1024 < n; t++) {
        int m = n - t * 1024 < 1024 ? (int)(n - t * 1024) : 1024;
        sums[t] = job.narrow
                      ? slow_narrow(x + t * 1024, m, job.pilot.f, &redone)
                      : slow_wide(x + t * 1024, m, job.pilot.f);
    }
    assert_int_equal(redone, job.narrow ? 60 : 0);
    total = full_tree(sums, (n + 1023) / 1024);
    memset(&tally, 0, sizeof tally);
    tally.finite = n - got.nan - got.pinf - got.ninf;
    trd__finish(&job, n, &tally, &total, &want);
    assert_double(got.mean, want.mean);
    assert_double(got.std, want.std);
    assert_double(got.l2, want.l2);
}

static void test_same__sums_are_those_written_down(void **state)
{
    static float x[101 * 1024];
    size_t n = fill_kinds(x);
    (void)state;
    check_written_down(x, n);
    check_written_down(x, 65536);
    check_written_down(x, 700);
}

/* Whatever the compiler, the options and the machine. */
static void test_same__bits_stay_for_ever(void **state)
{
    static float x[100000];
    struct trd_stats s;
    (void)state;
    for (uint32_t i = 0; i < 100000; i++)
        x[i] = (float)(i * 7919 % 10007) * 0.37f - 1000;
    s = stats_of(TRD_F32, x, 100000);
    assert_double(s.mean, 0x1.a990698f94856p+9);
    assert_double(s.std, 0x1.0b36c27ca3d08p+10);
    assert_double(s.l2, 0x1.a5f24606a0473p+18);
    s = stats_of(TRD_F32, x, 5000);
    assert_double(s.mean, 0x1.aa265fb02de01p+9);
    assert_double(s.std, 0x1.0b442e6ec2754p+10);
    assert_double(s.l2, 0x1.79a5b3d22bef5p+16);
}

/* ---- floating-point modes ---- */

static void fill_awkward(float *x, size_t n)
{
    uint64_t rng = 7;
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rng_normal(&rng) * pow(10, rng_uniform(&rng) * 80 - 50));
    x[5] = NAN;
    x[6] = 1e-45f;
    x[9] = -INFINITY;
}

static void test_same__flush_to_zero_changes_nothing(void **state)
{
    enum { N = 70000 };
    static float x[N];
    static const double tiny[] = {0x1p-1074, -0x1p-1060, 0x1p-1030};
    struct trd_stats a, b;
    volatile double least = DBL_MIN;
    volatile double half;
    unsigned was;
    (void)state;
    fill_awkward(x, N);
    a = stats_of(TRD_F32, x, N);
    was = flush_on();
    b = stats_of(TRD_F32, x, N);
    half = least / 2; /* the caller's mode is still there */
    flush_restore(was);
    assert_same(&a, &b);
#if defined(__SSE__)
    assert_double(half, 0);
#endif
    (void)half;
    a = stats_of(TRD_F64, tiny, 3);
    was = flush_on();
    b = stats_of(TRD_F64, tiny, 3);
    flush_restore(was);
    assert_same(&a, &b);
    assert_int_equal(b.subnormal, 3);
}

static void test_same__rounding_modes_change_nothing(void **state)
{
    enum { N = 70000 };
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    static float x[N];
    struct trd_stats a, b;
    (void)state;
    fill_awkward(x, N);
    a = stats_of(TRD_F32, x, N);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fesetround(modes[i]), 0);
        b = stats_of(TRD_F32, x, N);
        assert_int_equal(fegetround(), modes[i]);
        fesetround(FE_TONEAREST);
        assert_same(&a, &b);
    }
}

static void test_same__exception_flags_and_traps_stay(void **state)
{
    enum { N = 70000 };
    static float x[N];
    (void)state;
    fill_awkward(x, N);
    feclearexcept(FE_ALL_EXCEPT);
    stats_of(TRD_F32, x, N);
    assert_int_equal(fetestexcept(FE_ALL_EXCEPT), 0);
    feraiseexcept(FE_DIVBYZERO);
    stats_of(TRD_F32, x, N);
    assert_int_equal(fetestexcept(FE_ALL_EXCEPT), FE_DIVBYZERO);
    feclearexcept(FE_ALL_EXCEPT);
#if defined(__GLIBC__) && defined(__x86_64__)
    /* The caller traps: no signal from us, and it still traps afterwards. */
    feenableexcept(FE_INVALID | FE_OVERFLOW);
    stats_of(TRD_F32, x, N);
    assert_int_equal(fegetexcept(), FE_INVALID | FE_OVERFLOW);
    fedisableexcept(FE_ALL_EXCEPT);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same__any_strides_equal_the_copy),
        cmocka_unit_test(test_same__any_alignment),
        cmocka_unit_test(test_same__tiles_in_any_order_and_any_runs),
        cmocka_unit_test(test_same__carry_tree_is_the_full_tree),
        cmocka_unit_test(test_same__sums_are_those_written_down),
        cmocka_unit_test(test_same__bits_stay_for_ever),
        cmocka_unit_test(test_same__flush_to_zero_changes_nothing),
        cmocka_unit_test(test_same__rounding_modes_change_nothing),
        cmocka_unit_test(test_same__exception_flags_and_traps_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
