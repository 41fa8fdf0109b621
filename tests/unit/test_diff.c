/* The error of a pair of records, in units of rounding. */
#include "tests/lib/unit.h"

#include <math.h>

#include "tools/diff.h"

/* Four elements of float32 and what a record says of them. */
static struct diff_side of(const float x[4], uint64_t hash)
{
    struct diff_side s = {.dtype = TRD_F32, .shape = slice_of("4"), .n = 4,
                          .has = TRD_HAS_ALL, .hash = hash};
    double sum = 0, square = 0;
    uint64_t finite = 0;
    s.max = -INFINITY;
    s.min = INFINITY;
    for (int i = 0; i < 4; i++) {
        s.nan += isnan(x[i]) != 0;
        s.pinf += isinf(x[i]) && x[i] > 0;
        s.ninf += isinf(x[i]) && x[i] < 0;
        if (!isfinite(x[i]))
            continue;
        finite++;
        sum += x[i];
        square += (double)x[i] * x[i];
        s.max = fmax(s.max, x[i]);
        s.min = fmin(s.min, x[i]);
    }
    s.mean = finite ? sum / (double)finite : 0;
    s.l2 = sqrt(square);
    s.std = finite ? sqrt(fmax(0, square / (double)finite - s.mean * s.mean))
                   : 0;
    if (!finite)
        s.has &= ~(uint32_t)(TRD_HAS_RANGE | TRD_HAS_MEAN | TRD_HAS_L2);
    s.samples.text = (const char *)x;
    s.samples.n = 4 * sizeof *x;
    return s;
}

static const struct diff_how plain;

static void test_diff__equal_hashes_are_equal_whatever_else_says(void **state)
{
    const float x[4] = {1, 2, 3, 4}, y[4] = {1, 2, 3, 5};
    struct diff_side a = of(x, 7), b = of(y, 7);
    struct diff d = diff_of(&a, &b, &plain);
    (void)state;
    assert_int_equal(d.kind, DIFF_EQUAL);
    assert_true(d.error == 0);
    assert_false(d.nan_alike);
}

static void test_diff__one_unit_in_one_of_four_samples(void **state)
{
    const float x[4] = {1, 1, 1, 1};
    const float y[4] = {1, 1, 1, 1 + 0x1p-23f};
    struct diff_side a = of(x, 1), b = of(y, 2);
    struct diff d = diff_of(&a, &b, &plain);
    (void)state;
    assert_int_equal(d.kind, DIFF_NEAR);
    /* the largest differs by two units of 2^-24 */
    assert_int_equal(d.by, DIFF_BY_EXTREMES);
    assert_true(fabs(d.error - 2) < 1e-6);
    assert_true(d.unit == 0x1p-24);
}

static void test_diff__bits_that_no_figure_tells_are_half_a_unit(void **state)
{
    const float x[4] = {1, 2, 3, 4};
    struct diff_side a = of(x, 1), b = of(x, 2);
    struct diff d = diff_of(&a, &b, &plain);
    (void)state;
    assert_int_equal(d.kind, DIFF_NEAR);
    assert_int_equal(d.by, DIFF_BY_HASH);
    assert_true(d.error == DIFF_LEAST);
}

static void test_diff__means_near_zero_are_no_ratio(void **state)
{
    const float x[4] = {1, -1, 1, -1};
    const float y[4] = {1, -1, 1, -1 + 0x1p-24f};
    struct diff_side a = of(x, 1), b = of(y, 2);
    struct diff d;
    (void)state;
    assert_true(a.mean == 0 && b.mean != 0);
    d = diff_of(&a, &b, &plain);
    assert_true(d.error <= 1);
}

static void test_diff__zeros_against_zeros_of_another_sign(void **state)
{
    const float x[4] = {0, 0, 0, 0}, y[4] = {0, 0, 0, -0.0f};
    struct diff_side a = of(x, 1), b = of(y, 2);
    struct diff d = diff_of(&a, &b, &plain);
    (void)state;
    assert_int_equal(d.kind, DIFF_NEAR);
    assert_true(d.error == DIFF_LEAST);
}

static void test_diff__zeros_against_numbers_are_finite(void **state)
{
    const float x[4] = {0, 0, 0, 0}, y[4] = {0, 0, 0, 1e-30f};
    struct diff_side a = of(x, 1), b = of(y, 2);
    struct diff d = diff_of(&a, &b, &plain);
    (void)state;
    assert_true(isfinite(d.error) && d.error > 1e6 && d.error < 1e8);
    /* but of a sum whose terms are of size one it is nothing */
    d = diff_of(&a, &b, &(struct diff_how){.scale = 1});
    assert_true(d.error == DIFF_LEAST);
}

static void test_diff__not_a_number_against_numbers(void **state)
{
    static const struct {
        float a, b;
        enum diff_kind kind;
    } row[] = {
        {NAN, 1, DIFF_NAN},        {1, NAN, DIFF_NAN},
        {INFINITY, 1, DIFF_NAN},   {INFINITY, -INFINITY, DIFF_NAN},
        {NAN, INFINITY, DIFF_NAN}, {0, NAN, DIFF_NAN},
        {NAN, NAN, DIFF_NEAR},     {INFINITY, INFINITY, DIFF_NEAR},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const float x[4] = {1, 2, 3, row[i].a}, y[4] = {1, 2, 3, row[i].b};
        struct diff_side a = of(x, 1), b = of(y, 2);
        struct diff d = diff_of(&a, &b, &plain);
        assert_int_equal(d.kind, row[i].kind);
        assert_int_equal(d.nan_alike, row[i].kind == DIFF_NEAR);
    }
}

static void test_diff__nans_at_other_places_are_seen_by_samples(void **state)
{
    const float x[4] = {NAN, 1, 2, 3}, y[4] = {1, NAN, 2, 3};
    struct diff_side a = of(x, 1), b = of(y, 2);
    struct diff d = diff_of(&a, &b, &plain);
    (void)state;
    assert_int_equal(d.kind, DIFF_NAN);
    assert_int_equal(d.by, DIFF_BY_SAMPLES);
}

static void test_diff__shapes_and_kinds_of_number(void **state)
{
    const float x[4] = {1, 2, 3, 4};
    struct diff_side a = of(x, 1), b = of(x, 1);
    (void)state;
    b.shape = slice_of("2 2");
    assert_int_equal(diff_of(&a, &b, &plain).kind, DIFF_SHAPE);
    b = of(x, 1);
    b.dtype = TRD_I32;
    assert_int_equal(diff_of(&a, &b, &plain).kind, DIFF_DTYPE);
    b = of(x, 1);
    b.has = 0;
    assert_int_equal(diff_of(&a, &b, &plain).kind, DIFF_BLIND);
}

static void test_diff__the_coarser_dtype_gives_the_unit(void **state)
{
    const float x[4] = {1, 1, 1, 1}, y[4] = {1, 1, 1, 1 + 0x1p-8f};
    static const uint8_t bf16[8] = {0x80, 0x3f, 0x80, 0x3f,
                                    0x80, 0x3f, 0x80, 0x3f};
    struct diff_side a = of(y, 1), b = of(x, 2);
    struct diff d;
    (void)state;
    b.dtype = TRD_BF16;
    b.samples.text = (const char *)bf16;
    b.samples.n = sizeof bf16;
    d = diff_of(&a, &b, &plain);
    assert_true(d.mixed);
    assert_true(d.unit == 0x1p-8);
    assert_true(d.error <= 1);
}

static void test_diff__whole_numbers_have_no_rounding(void **state)
{
    static const int32_t x[4] = {1, 2, 3, 40}, y[4] = {1, 2, 3, 41};
    struct diff_side a = {.dtype = TRD_I32, .shape = slice_of("4"), .n = 4,
                          .has = TRD_HAS_ALL, .max = 40, .min = 1,
                          .hash = 1, .samples = {(const char *)x, 16}};
    struct diff_side b = a;
    (void)state;
    b.max = 41;
    b.hash = 2;
    b.samples.text = (const char *)y;
    assert_true(diff_of(&a, &b, &plain).error > 1e6);
}

/* A text log has five decimals and no hash. */
static struct diff_side text_of(double max, double min, double mean,
                                double std)
{
    struct diff_side s = {.dtype = TRD_TEXT, .shape = slice_of("4"), .n = 4,
                          .has = TRD_IS_GIVEN | TRD_HAS_RANGE | TRD_HAS_MEAN,
                          .max = max, .min = min, .mean = mean, .std = std};
    return s;
}

static void test_diff__text_is_exact_to_five_decimals(void **state)
{
    struct diff_side a = text_of(1, -1, 0.25, 0.5), b = a;
    (void)state;
    b.max = 1.00001;
    assert_int_equal(diff_of(&a, &b, &plain).kind, DIFF_EQUAL);
    b.max = 1.00003;
    assert_int_equal(diff_of(&a, &b, &plain).kind, DIFF_NEAR);
    b.max = NAN;
    assert_int_equal(diff_of(&a, &b, &plain).kind, DIFF_NAN);
    a.max = NAN;
    assert_int_equal(diff_of(&a, &b, &plain).kind, DIFF_EQUAL);
    a.max = b.max = INFINITY;
    assert_int_equal(diff_of(&a, &b, &plain).kind, DIFF_EQUAL);
}

static void test_diff__samples_at_other_places_are_left_alone(void **state)
{
    const float x[4] = {1, 2, 3, 4}, y[4] = {4, 3, 2, 1};
    struct diff_side a = of(x, 1), b = of(y, 2);
    (void)state;
    assert_true(diff_of(&a, &b, &plain).error > 1e6);
    b.sampling = TRD_RANDOM;
    assert_true(diff_of(&a, &b, &plain).error == DIFF_LEAST);
}

static void test_diff__a_multiple_that_is_known_is_no_difference(void **state)
{
    const float x[4] = {1, -2, 3, 4}, y[4] = {2, -4, 6, 8};
    const float z[4] = {2, -4, 6, 9};
    const struct diff_how twice = {.factor = 2};
    struct diff_side a = of(x, 1), b = of(y, 2), c = of(z, 3);
    struct diff d = diff_of(&a, &b, &twice);
    (void)state;
    assert_int_equal(d.kind, DIFF_NEAR);
    assert_true(d.error == DIFF_LEAST);
    assert_true(diff_of(&b, &a, &(struct diff_how){.factor = 0.5}).error ==
                DIFF_LEAST);
    assert_true(diff_of(&a, &b, &plain).error > 1e6);
    assert_true(diff_of(&a, &c, &twice).error > 1e6);
    /* what is equal is equal */
    b = of(x, 1);
    assert_int_equal(diff_of(&a, &b, &twice).kind, DIFF_EQUAL);
}

static void test_diff__moments_are_as_exact_as_is_said(void **state)
{
    const float x[4] = {1, 2, 3, 4};
    struct diff_side a = of(x, 1), b = of(x, 2);
    (void)state;
    b.mean += 1e-6;
    b.l2 *= 1 + 1e-6;
    assert_true(diff_of(&a, &b, &plain).error > 5);
    assert_true(diff_of(&a, &b, &(struct diff_how){.inexact = 1e-5}).error ==
                DIFF_LEAST);
    /* extremes are exact whatever moments are */
    b.max += 1e-3;
    assert_true(
        diff_of(&a, &b, &(struct diff_how){.inexact = 1e-5}).error > 1e3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_diff__equal_hashes_are_equal_whatever_else_says),
        cmocka_unit_test(test_diff__one_unit_in_one_of_four_samples),
        cmocka_unit_test(test_diff__bits_that_no_figure_tells_are_half_a_unit),
        cmocka_unit_test(test_diff__means_near_zero_are_no_ratio),
        cmocka_unit_test(test_diff__zeros_against_zeros_of_another_sign),
        cmocka_unit_test(test_diff__zeros_against_numbers_are_finite),
        cmocka_unit_test(test_diff__not_a_number_against_numbers),
        cmocka_unit_test(test_diff__nans_at_other_places_are_seen_by_samples),
        cmocka_unit_test(test_diff__shapes_and_kinds_of_number),
        cmocka_unit_test(test_diff__the_coarser_dtype_gives_the_unit),
        cmocka_unit_test(test_diff__whole_numbers_have_no_rounding),
        cmocka_unit_test(test_diff__text_is_exact_to_five_decimals),
        cmocka_unit_test(test_diff__samples_at_other_places_are_left_alone),
        cmocka_unit_test(test_diff__a_multiple_that_is_known_is_no_difference),
        cmocka_unit_test(test_diff__moments_are_as_exact_as_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
