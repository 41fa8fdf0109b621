/* Mean, std and l2 against sums in long double, two passes: the kinds of data
 * that break the usual formulas, and outlier channels of any period. */
#include "tests/unit/stats_rig.h"

enum { N = 65 * 1024 + 77 }; /* few narrow tiles: the hardest for the mean */

/* A compensated sum, so that long double may be as narrow as double. */
struct sum {
    long double s, c;
};

static void add(struct sum *sum, long double v)
{
    long double t = sum->s + v;
    sum->c += fabsl(sum->s) >= fabsl(v) ? (sum->s - t) + v : (v - t) + sum->s;
    sum->s = t;
}

static long double total(const struct sum *sum)
{
    return sum->s + sum->c;
}

struct bounds {
    double mean; /* of std */
    double std;  /* relative, l2 too */
};

static const struct bounds narrow = {5e-9, 4e-8};
static const struct bounds worst = {1e-6, 1e-6};
static const struct bounds wide = {1e-13, 1e-13};

static void check(const char *what, int dtype, const void *data,
                  const double *x, size_t n, struct bounds bounds)
{
    struct trd_stats s = stats_of(dtype, data, n);
    struct sum sum = {0, 0}, spread = {0, 0}, rest = {0, 0}, squares = {0, 0};
    long double mean, std, l2;
    double off_mean, off_std, off_l2;

    for (size_t i = 0; i < n; i++) {
        add(&sum, (long double)x[i]);
        add(&squares, (long double)x[i] * (long double)x[i]);
    }
    mean = total(&sum) / (long double)n;
    for (size_t i = 0; i < n; i++) {
        long double d = (long double)x[i] - mean;
        add(&spread, d * d);
        add(&rest, d);
    }
    std =
        sqrtl((total(&spread) - total(&rest) * total(&rest) / (long double)n) /
              (long double)n);
    l2 = sqrtl(total(&squares));
    off_mean = (double)(fabsl((long double)s.mean - mean) / std);
    off_std = (double)(fabsl((long double)s.std - std) / std);
    off_l2 = (double)(fabsl((long double)s.l2 - l2) / l2);
    /* The mean itself is rounded to fp64. */
    if (off_mean > bounds.mean + fabs(s.mean) * 0x1p-52 / s.std ||
        off_std > bounds.std || off_l2 > bounds.std) {
        print_error("%s: mean off by %.2g std, std by %.2g, l2 by %.2g\n", what,
                    off_mean, off_std, off_l2);
        fail();
    }
}

/* The same values as fp32 and as fp64. */
static void check_both(const char *what, double *x, size_t n)
{
    float *f = malloc(n * sizeof *f);

    assert_non_null(f);
    check(what, TRD_F64, x, x, n, wide);
    for (size_t i = 0; i < n; i++)
        x[i] = (double)(f[i] = (float)x[i]);
    check(what, TRD_F32, f, x, n, narrow);
    free(f);
}

static double x[N];
static uint64_t rng;

static void fill_normal(double mean, double std)
{
    rng = 11;
    for (size_t i = 0; i < N; i++)
        x[i] = mean + std * rng_normal(&rng);
}

static void test_accuracy__activations(void **state)
{
    (void)state;
    fill_normal(0, 1e-2);
    check_both("N(0, 1e-2)", x, N);
    fill_normal(1, 1e-3);
    check_both("N(1, 1e-3)", x, N);
}

static void test_accuracy__large_means(void **state)
{
    (void)state;
    fill_normal(1000, 1e-2);
    check_both("N(1000, 1e-2)", x, N);
    fill_normal(1e6, 1);
    check_both("N(1e6, 1)", x, N);
}

static void test_accuracy__an_outlier_in_front(void **state)
{
    (void)state;
    fill_normal(1e4, 0.1);
    x[0] = 1e7;
    check_both("N(1e4, 0.1), first 1e7", x, N);
    fill_normal(0, 1);
    x[0] = 1e12;
    check_both("N(0, 1), first 1e12", x, N);
}

static void test_accuracy__small_gradients(void **state)
{
    (void)state;
    fill_normal(0, 1e-9);
    check_both("N(0, 1e-9)", x, N);
    fill_normal(0, 1e-25); /* squares below the fp32 range */
    check_both("N(0, 1e-25)", x, N);
    fill_normal(0, 1e25);
    check_both("N(0, 1e25)", x, N);
}

static void test_accuracy__one_massive_channel(void **state)
{
    static const size_t periods[] = {2,   3,   64,  107, 128, 173,  321,
                                     331, 346, 512, 677, 768, 1000, 1024};
    (void)state;
    for (size_t p = 0; p < sizeof periods / sizeof *periods; p++)
        for (size_t phase = 0; phase < 2; phase++) {
            size_t n = N / periods[p] * periods[p];
            fill_normal(0, 1);
            for (size_t i = phase; i < n; i += periods[p])
                x[i] += 1000;
            check_both("outlier channel", x, n);
        }
}

static void test_accuracy__lognormal(void **state)
{
    (void)state;
    fill_normal(0, 4);
    for (size_t i = 0; i < N; i++)
        x[i] = exp(x[i]);
    check_both("lognormal", x, N);
}

static void test_accuracy__relu(void **state)
{
    (void)state;
    fill_normal(0, 1);
    for (size_t i = 0; i < N; i++)
        x[i] = x[i] > 0 ? x[i] : 0;
    check_both("ReLU", x, N);
}

static void test_accuracy__short_tensors_are_as_good_as_fp64(void **state)
{
    static float f[65536];
    (void)state;
    fill_normal(1000, 1e-2);
    for (size_t i = 0; i < 65536; i++)
        x[i] = (double)(f[i] = (float)x[i]);
    for (size_t n = 10; n <= 65536; n = n * 3 + 1)
        check("short", TRD_F32, f, x, n, wide);
    check("short", TRD_F32, f, x, 65536, wide);
}

static void test_accuracy__sixteen_bit_floats(void **state)
{
    static uint16_t bits[N];
    (void)state;
    fill_normal(0, 1);
    for (size_t i = 0; i < N; i++) { /* cut to bfloat16 */
        float f = (float)x[i];
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        bits[i] = (uint16_t)(u >> 16);
        u &= 0xffff0000;
        memcpy(&f, &u, sizeof f);
        x[i] = (double)f;
    }
    check("bfloat16", TRD_BF16, bits, x, N, narrow);
}

/* v cut to a small float of so many mantissa bits, its code to *code; 0 where
 * it would be subnormal. */
static double cut(double v, int mantissa, int bias, int sign, unsigned *code)
{
    int e;
    double m = frexp(fabs(v), &e);

    *code = v < 0 ? (unsigned)sign : 0;
    if (v == 0 || e - 1 + bias < 1)
        return 0;
    m = floor(ldexp(m, mantissa + 1));
    *code |= (unsigned)(e - 1 + bias) << mantissa;
    *code |= (unsigned)m & ((1u << mantissa) - 1);
    return copysign(ldexp(m, e - mantissa - 1), v);
}

static void test_accuracy__halves_and_eighths(void **state)
{
    static uint16_t half[N];
    static uint8_t eighth[N];
    static const double means[] = {0, 1, 100};
    unsigned code;
    (void)state;
    for (int m = 0; m < 3; m++) {
        fill_normal(means[m], 1);
        for (size_t i = 0; i < N; i++) {
            x[i] = cut(x[i], 10, 15, 0x8000, &code);
            half[i] = (uint16_t)code;
        }
        check("float16", TRD_F16, half, x, N, narrow);
        fill_normal(means[m], 1 + means[m] / 5);
        for (size_t i = 0; i < N; i++) {
            x[i] = cut(x[i], 3, 7, 0x80, &code);
            eighth[i] = (uint8_t)code;
        }
        /* few values: their rounding errors are alike */
        check("float8_e4m3fn", TRD_F8_E4M3FN, eighth, x, N, worst);
        fill_normal(means[m], 1 + means[m] / 5);
        for (size_t i = 0; i < N; i++) {
            x[i] = cut(x[i], 2, 15, 0x80, &code);
            eighth[i] = (uint8_t)code;
        }
        check("float8_e5m2", TRD_F8_E5M2, eighth, x, N, worst);
    }
}

static void test_accuracy__integers(void **state)
{
    static int32_t wide_ids[N];
    static int64_t stamps[N];
    static uint8_t pixels[N];
    (void)state;
    rng = 12;
    for (size_t i = 0; i < N; i++)
        x[i] = pixels[i] = (uint8_t)(rng_next(&rng) % 256);
    check("uint8", TRD_U8, pixels, x, N, narrow);
    for (size_t i = 0; i < N; i++)
        x[i] = wide_ids[i] = (int32_t)rng_next(&rng);
    check("int32", TRD_I32, wide_ids, x, N, wide);
    for (size_t i = 0; i < N; i++) {
        stamps[i] = INT64_C(1700000000000000000) + (int64_t)(i * 512);
        x[i] = (double)(i * 512); /* exact, unlike the stamps */
    }
    struct trd_stats s = stats_of(TRD_I64, stamps, N);
    assert_near(s.std, 512 * sqrt(((double)N * N - 1) / 12), 1e-13 * s.std);
    assert_near(s.mean, 1.7e18 + 256.0 * (N - 1), 256);
}

/* Ties round to even, which on a grid of whole numbers is more often down. */
static void test_accuracy__data_on_a_grid(void **state)
{
    static const struct bounds grid = {5e-9, 1e-7};
    static float f[N];
    static int16_t codes[N];
    (void)state;
    rng = 14;
    for (size_t i = 0; i < N; i++)
        x[i] = (double)(f[i] = (float)(10000 + rng_normal(&rng)));
    check("a mean of 1e4 standard deviations", TRD_F32, f, x, N, grid);
    for (size_t i = 0; i < N; i++)
        x[i] = codes[i] = (int16_t)(rng_next(&rng) % 4096);
    check("int16", TRD_I16, codes, x, N, grid);
    for (size_t i = 0; i < N; i++)
        x[i] = (double)(f[i] = (float)round(rng_normal(&rng) * 1300));
    check("whole numbers", TRD_F32, f, x, N, grid);
}

/* Where rounding errors are all alike they do not cancel. */
static void test_accuracy__patterns_that_every_tile_repeats(void **state)
{
    static float f[N];
    (void)state;
    rng = 13;
    for (int round = 0; round < 60; round++) {
        size_t period = round % 2 ? 64 : 1024;
        size_t values = 2 + rng_next(&rng) % 6;
        for (size_t i = 0; i < values; i++)
            f[i] = (float)rng_normal(&rng);
        for (size_t i = values; i < period; i++)
            f[i] = f[rng_next(&rng) % values];
        for (size_t i = 0; i < N / 2; i++)
            x[i] = (double)(f[i] = f[i % period]);
        check("pattern", TRD_F32, f, x, N / 2, worst);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accuracy__activations),
        cmocka_unit_test(test_accuracy__large_means),
        cmocka_unit_test(test_accuracy__an_outlier_in_front),
        cmocka_unit_test(test_accuracy__small_gradients),
        cmocka_unit_test(test_accuracy__one_massive_channel),
        cmocka_unit_test(test_accuracy__lognormal),
        cmocka_unit_test(test_accuracy__relu),
        cmocka_unit_test(test_accuracy__short_tensors_are_as_good_as_fp64),
        cmocka_unit_test(test_accuracy__sixteen_bit_floats),
        cmocka_unit_test(test_accuracy__halves_and_eighths),
        cmocka_unit_test(test_accuracy__integers),
        cmocka_unit_test(test_accuracy__data_on_a_grid),
        cmocka_unit_test(test_accuracy__patterns_that_every_tile_repeats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
