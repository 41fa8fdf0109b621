/* The statistics of a tensor: exact values, the ends of the range, NaN and
 * infinities, samples, arguments. */
#include "tests/unit/stats_rig.h"

/* ---- exact values ---- */

static void test_stats__small_integers_exactly(void **state)
{
    static const float x[] = {1, -2, 3, 0, 4, -6};
    struct trd_stats s = stats_of(TRD_F32, x, 6);
    (void)state;
    assert_int_equal(s.n, 6);
    assert_int_equal(s.has, TRD_HAS_ALL);
    assert_int_equal(s.zero, 1);
    assert_double(s.max.f, 4);
    assert_double(s.min.f, -6);
    assert_double(s.absmax.f, 6);
    assert_double(s.absmin.f, 1);
    assert_double(s.mean, 0);
    assert_double(s.std, sqrt(11));
    assert_double(s.l2, sqrt(66));
}

/* Many tiles, narrow ones, whose sums fp32 holds. */
static void test_stats__long_tensors_exactly(void **state)
{
    enum { N = 100000 };
    static float x[N];
    struct trd_stats s;
    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 2 ? 3 : -1);
    s = stats_of(TRD_F32, x, N);
    assert_double(s.mean, 1);
    assert_double(s.std, 2);
    assert_double(s.l2, sqrt(5.0 * N));
}

static void test_stats__constant_tensors_have_no_spread(void **state)
{
    enum { N = 70000 };
    static const float values[] = {0, 0.1f, -3e38f, 1e-45f, 1e-30f, 7};
    static float x[N];
    (void)state;
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        struct trd_stats s;
        for (int i = 0; i < N; i++)
            x[i] = values[v];
        s = stats_of(TRD_F32, x, N);
        assert_double(s.mean, (double)values[v]);
        assert_double(s.std, 0);
        assert_near(s.l2, sqrt(N) * fabs((double)values[v]), 1e-15 * s.l2);
    }
}

/* The squares vanish in fp32 and the sum of differences is 0. */
static void test_stats__tiny_values_keep_their_spread(void **state)
{
    enum { N = 3 * 1024 * 30 };
    static float x[N];
    double tiny = (double)1e-30f;
    struct trd_stats s;
    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 3 - 1) * 1e-30f;
    s = stats_of(TRD_F32, x, N);
    assert_near(s.mean, 0, 1e-13 * tiny);
    assert_near(s.std, tiny * sqrt(2.0 / 3), 1e-13 * tiny);
    assert_near(s.l2, tiny * sqrt(2.0 / 3 * N), 1e-13 * s.l2);
}

static void test_stats__figures_beyond_the_fp32_range(void **state)
{
    enum { N = 70000 };
    static float x[N];
    double huge = (double)3e38f;
    struct trd_stats s;
    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = i % 2 ? 3e38f : -3e38f;
    s = stats_of(TRD_F32, x, N);
    assert_near(s.mean, 0, 1e-13 * huge);
    assert_near(s.std, huge, 1e-13 * huge);
    assert_near(s.l2, huge * sqrt(N), 1e-13 * s.l2);
}

/* ---- the fp64 range ---- */

static void check_scaled(const double *unit, size_t n, double scale)
{
    struct trd_stats a = stats_of(TRD_F64, unit, n), b;
    double least = 0x1p-1074 / scale; /* what a figure cannot resolve */
    double *x = malloc(n * sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = unit[i] * scale; /* a power of two */
    b = stats_of(TRD_F64, x, n);
    assert_near(b.mean / scale, a.mean, 1e-15 * a.std + least);
    assert_near(b.std / scale, a.std, 1e-15 * a.std + least);
    assert_near(b.l2 / scale, a.l2, 1e-15 * a.l2 + least);
    free(x);
}

static void test_stats__fp64_squares_out_of_range(void **state)
{
    enum { N = 5000 };
    static double x[N];
    uint64_t rng = 1;
    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = ldexp((double)(rng_next(&rng) % 4001) - 2000, -20);
    check_scaled(x, N, 0x1p1000);
    check_scaled(x, N, 0x1p600);
    check_scaled(x, N, 0x1p479); /* across the border of two units */
    check_scaled(x, N, 0x1p-395);
    check_scaled(x, N, 0x1p-600);
    check_scaled(x, N, 0x1p-1054);
}

static void test_stats__fp64_tiles_of_all_three_units(void **state)
{
    static double x[4 * 1024];
    struct trd_stats s;
    (void)state;
    for (int i = 0; i < 1024; i++) {
        x[i] = i % 2 ? 1e-300 : 0;
        x[1024 + i] = i % 2 ? 1 : -1;
        x[2048 + i] = i % 2 ? 1e300 : -1e300;
        x[3072 + i] = i % 2 ? 3 : 5;
    }
    s = stats_of(TRD_F64, x, 4096);
    assert_near(s.mean, 0, 1e285);
    assert_near(s.std, 5e299, 1e286);
    assert_near(s.l2, 3.2e301, 1e288);
    s = stats_of(TRD_F64, x, 2048);
    assert_near(s.mean, 0, 1e-16);
    assert_near(s.std, sqrt(0.5), 1e-15);
    s = stats_of(TRD_F64, x, 1024);
    assert_near(s.mean, 5e-301, 1e-315);
    assert_near(s.std, 5e-301, 1e-315);
}

static void test_stats__fp64_largest_and_smallest(void **state)
{
    static const double ends[] = {DBL_MAX, -DBL_MAX, DBL_MAX, -DBL_MAX};
    static const double same[] = {DBL_MAX, DBL_MAX};
    static const double least[] = {0x1p-1074, -0x1p-1074};
    struct trd_stats s = stats_of(TRD_F64, ends, 4);
    (void)state;
    assert_double(s.mean, 0);
    assert_double(s.std, DBL_MAX);
    assert_double(s.l2, INFINITY); /* it is 2 DBL_MAX */
    s = stats_of(TRD_F64, same, 2);
    assert_double(s.mean, DBL_MAX);
    assert_double(s.std, 0);
    s = stats_of(TRD_F64, least, 2);
    assert_double(s.mean, 0);
    assert_double(s.std, 0x1p-1074);
}

/* ---- integers that no double holds ---- */

static void test_stats__int64_differences_are_integers(void **state)
{
    enum { N = 3 * 1000 };
    static int64_t x[N];
    static uint64_t u[N];
    struct trd_stats s;
    (void)state;
    for (int i = 0; i < N; i++) {
        x[i] = -(INT64_C(1) << 60) + i % 3;
        u[i] = (UINT64_C(1) << 63) + (uint64_t)(i % 3);
    }
    s = stats_of(TRD_I64, x, N);
    assert_double(s.mean, -0x1p60); /* + 1, which a double cannot say */
    assert_near(s.std, sqrt(2.0 / 3), 1e-15);
    s = stats_of(TRD_U64, u, N);
    assert_double(s.mean, 0x1p63);
    assert_near(s.std, sqrt(2.0 / 3), 1e-15);
    assert_near(s.l2, 0x1p63 * sqrt(N), 1e6);
}

static void test_stats__int64_extremes(void **state)
{
    static const int64_t x[] = {INT64_MIN, INT64_MAX};
    struct trd_stats s = stats_of(TRD_I64, x, 2);
    (void)state;
    assert_near(s.mean, -0.5, 1e-13 * 0x1p63);
    assert_double(s.std, 0x1p63);
    assert_double(s.l2, 0x1p63 * sqrt(2));
    s = stats_of(TRD_I64, x, 1);
    assert_double(s.mean, -0x1p63);
    assert_double(s.std, 0);
}

/* ---- NaN and infinities ---- */

static void test_stats__figures_are_over_finite_elements(void **state)
{
    enum { N = 80 * 1024 };
    static float x[N], finite[N];
    size_t m = 0;
    uint64_t rng = 2;
    struct trd_stats s, f;
    (void)state;
    for (int i = 0; i < N; i++) {
        uint64_t r = rng_next(&rng) % 1000;
        x[i] = (float)rng_normal(&rng);
        if (i < 3000 || r == 0) /* two tiles without any, and the pilot */
            x[i] = NAN;
        else if (r == 1)
            x[i] = INFINITY;
        else if (r < 4)
            x[i] = -INFINITY;
        else
            finite[m++] = x[i];
    }
    s = stats_of(TRD_F32, x, N);
    f = stats_of(TRD_F32, finite, m);
    assert_int_equal(s.nan + s.pinf + s.ninf + m, N);
    assert_true(s.pinf > 40 && s.ninf > s.pinf && s.nan > 3000);
    assert_double(s.max.f, f.max.f);
    assert_double(s.min.f, f.min.f);
    assert_double(s.absmin.f, f.absmin.f);
    assert_near(s.mean, f.mean, 5e-9 * f.std);
    assert_near(s.std, f.std, 4e-8 * f.std);
    assert_near(s.l2, f.l2, 4e-8 * f.l2);
}

static void test_stats__nothing_finite(void **state)
{
    enum { N = 70000 };
    static float x[N];
    struct trd_stats s, want;
    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = NAN;
    x[N - 1] = INFINITY;
    s = stats_of(TRD_F32, x, N);
    memset(&want, 0, sizeof want);
    want.n = N;
    want.nan = N - 1;
    want.pinf = 1;
    want.hash = s.hash;
    want.has = TRD_HAS_COUNTS | TRD_HAS_HASH;
    assert_same(&s, &want);
}

static unsigned numpy_of(const float *x, size_t n, double out[5])
{
    struct trd_stats s = stats_of(TRD_F32, x, n);
    return trd_stats_numpy(&s, TRD_F32, out);
}

static void test_stats__numpys_form_of_infinities(void **state)
{
    static const float up[] = {INFINITY, 1, -2};
    static const float down[] = {-INFINITY, 1, -2};
    static const float both[] = {INFINITY, -INFINITY, 3};
    static const float all_up[] = {INFINITY, INFINITY};
    static const float all_down[] = {-INFINITY};
    static const float mixed[] = {INFINITY, NAN, 1};
    double v[5];
    (void)state;
    assert_int_equal(numpy_of(up, 3, v), 31);
    assert_double(v[0], INFINITY);
    assert_double(v[1], -2);
    assert_double(v[2], INFINITY);
    assert_double(v[3], NAN);
    assert_double(v[4], INFINITY);
    assert_int_equal(numpy_of(down, 3, v), 31);
    assert_double(v[0], 1);
    assert_double(v[1], -INFINITY);
    assert_double(v[2], -INFINITY);
    assert_int_equal(numpy_of(both, 3, v), 31);
    assert_double(v[0], INFINITY);
    assert_double(v[1], -INFINITY);
    assert_double(v[2], NAN);
    assert_int_equal(numpy_of(all_up, 2, v), 31);
    assert_double(v[0], INFINITY);
    assert_double(v[1], INFINITY);
    assert_int_equal(numpy_of(all_down, 1, v), 31);
    assert_double(v[0], -INFINITY);
    assert_double(v[1], -INFINITY);
    assert_int_equal(numpy_of(mixed, 3, v), 31);
    for (int i = 0; i < 5; i++)
        assert_double(v[i], NAN);
}

static void test_stats__numpys_form_of_what_does_not_hold(void **state)
{
    static const int64_t ids[] = {INT64_MAX, INT64_MIN};
    struct trd_stats s = stats_of(TRD_F32, NULL, 0);
    double v[5];
    (void)state;
    assert_int_equal(trd_stats_numpy(&s, TRD_F32, v), 0);
    for (int i = 0; i < 5; i++)
        assert_double(v[i], NAN);
    s = stats_of(TRD_F4_E2M1X2, ids, 16);
    assert_int_equal(trd_stats_numpy(&s, TRD_F4_E2M1X2, v), 0);
    s = stats_of(TRD_I64, ids, 2);
    assert_int_equal(trd_stats_numpy(&s, TRD_I64, v), 31);
    assert_double(v[0], 0x1p63);
    assert_double(v[1], -0x1p63);

    memset(&s, 0, sizeof s); /* as a text log gives them */
    s.n = 5;
    s.max.f = NAN;
    s.min.f = -INFINITY;
    s.mean = 1;
    s.std = 2;
    s.has = TRD_IS_GIVEN | TRD_HAS_RANGE | TRD_HAS_MEAN;
    assert_int_equal(trd_stats_numpy(&s, TRD_TEXT, v), 15);
    assert_double(v[0], NAN);
    assert_double(v[1], -INFINITY);
    assert_double(v[2], 1);
    assert_double(v[3], 2);
    assert_double(v[4], NAN);
}

/* ---- empty, packed, samples ---- */

static void test_stats__empty_tensors_have_no_figures(void **state)
{
    static const int64_t shape[] = {INT64_C(1) << 62, 0, INT64_C(1) << 62};
    static const struct trd_stats nothing = {.has = TRD_HAS_COUNTS};
    struct trd_tensor t = {NULL, TRD_BF16, 3, shape, NULL};
    struct trd_stats s;
    (void)state;
    assert_int_equal(trd_stats_cpu(&t, 16, &s, NULL), 0);
    assert_same(&s, &nothing);
}

static void test_stats__scalar_has_one_sample(void **state)
{
    static const float x = 2.5f;
    struct trd_tensor t = {&x, TRD_F32, 0, NULL, NULL};
    struct trd_stats s;
    float sample[2] = {0, 9};
    (void)state;
    assert_int_equal(trd_stats_cpu(&t, 16, &s, sample), 0);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.sample_n, 1);
    assert_double((double)sample[0], 2.5);
    assert_double((double)sample[1], 9);
    assert_double(s.mean, 2.5);
    assert_double(s.std, 0);
}

static void test_stats__sample_positions_rise_to_the_last(void **state)
{
    static const uint64_t n[] = {
        2, 3, 7, 16, 1000, 65537, (UINT64_C(1) << 53) + 4, UINT64_C(1) << 62};
    (void)state;
    for (uint32_t k = 1; k < 200; k++)
        for (int i = 0; i < 8; i++) {
            uint64_t count = k < n[i] ? k : n[i];
            uint64_t last = sample_at(n[i], k, 0);
            assert_int_equal(last, 0);
            for (uint32_t j = 1; j < count; j++) {
                uint64_t at = sample_at(n[i], k, j);
                assert_true(at > last && at < n[i]);
                last = at;
            }
            assert_true(last == (count > 1 ? n[i] - 1 : 0));
        }
}

/* ---- arguments ---- */

static void test_stats__wrong_arguments(void **state)
{
    static const float x[4] = {1, 2, 3, 4};
    static const int64_t shape[65] = {4}, negative[] = {-1};
    static const int64_t vast[] = {INT64_MAX, INT64_MAX};
    static const int64_t just[] = {INT64_C(1) << 31, (INT64_C(1) << 31) + 1};
    const struct trd_tensor good = {x, TRD_F32, 1, shape, NULL};
    struct trd_tensor t = good;
    struct trd_stats s, before;
    float samples[4], untouched[4] = {9, 9, 9, 9};

    (void)state;
    memset(&s, 7, sizeof s);
    before = s;
    memcpy(samples, untouched, sizeof samples);
    assert_int_equal(trd_stats_cpu(NULL, 0, &s, NULL), TRD_EINVAL);
    assert_int_equal(trd_stats_cpu(&t, 0, NULL, NULL), TRD_EINVAL);
    assert_int_equal(trd_stats_cpu(&t, 1, &s, NULL), TRD_EINVAL);
    assert_int_equal(trd_stats_cpu(&t, TRD_MAX_SAMPLES + 1, &s, samples),
                     TRD_EINVAL);
    t.ndim = -1;
    assert_int_equal(trd_stats_cpu(&t, 4, &s, samples), TRD_EINVAL);
    t.ndim = TRD_MAX_DIMS + 1;
    assert_int_equal(trd_stats_cpu(&t, 4, &s, samples), TRD_EINVAL);
    t = good;
    t.shape = NULL;
    assert_int_equal(trd_stats_cpu(&t, 4, &s, samples), TRD_EINVAL);
    t.shape = negative;
    assert_int_equal(trd_stats_cpu(&t, 4, &s, samples), TRD_EINVAL);
    t.shape = vast;
    t.ndim = 2;
    assert_int_equal(trd_stats_cpu(&t, 4, &s, samples), TRD_ELIMIT);
    t.shape = just;
    assert_int_equal(trd_stats_cpu(&t, 4, &s, samples), TRD_ELIMIT);
    t = good;
    t.data = NULL;
    assert_int_equal(trd_stats_cpu(&t, 4, &s, samples), TRD_ENODATA);
    t = good;
    static const int wrong[] = {0, TRD_TEXT, TRD_OPAQUE, TRD_DTYPE_LIMIT, 999};
    for (int i = 0; i < 5; i++) {
        t.dtype = (enum trd_dtype)wrong[i];
        assert_int_equal(trd_stats_cpu(&t, 4, &s, samples), TRD_EUNSUPPORTED);
    }
    assert_same(&s, &before);
    assert_memory_equal(samples, untouched, sizeof samples);
    assert_int_equal(trd_stats_cpu(&good, 4, &s, samples), 0);
    assert_memory_equal(samples, x, sizeof samples);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats__small_integers_exactly),
        cmocka_unit_test(test_stats__long_tensors_exactly),
        cmocka_unit_test(test_stats__constant_tensors_have_no_spread),
        cmocka_unit_test(test_stats__tiny_values_keep_their_spread),
        cmocka_unit_test(test_stats__figures_beyond_the_fp32_range),
        cmocka_unit_test(test_stats__fp64_squares_out_of_range),
        cmocka_unit_test(test_stats__fp64_tiles_of_all_three_units),
        cmocka_unit_test(test_stats__fp64_largest_and_smallest),
        cmocka_unit_test(test_stats__int64_differences_are_integers),
        cmocka_unit_test(test_stats__int64_extremes),
        cmocka_unit_test(test_stats__figures_are_over_finite_elements),
        cmocka_unit_test(test_stats__nothing_finite),
        cmocka_unit_test(test_stats__numpys_form_of_infinities),
        cmocka_unit_test(test_stats__numpys_form_of_what_does_not_hold),
        cmocka_unit_test(test_stats__empty_tensors_have_no_figures),
        cmocka_unit_test(test_stats__scalar_has_one_sample),
        cmocka_unit_test(test_stats__sample_positions_rise_to_the_last),
        cmocka_unit_test(test_stats__wrong_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
