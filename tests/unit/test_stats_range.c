/* The ends of the range of every dtype, where sums of that dtype overflow, and
 * values that lie as close as two can: for lengths that make wide tiles,
 * narrow ones and short ones. */
#include "tests/unit/stats_rig.h"

enum { LONGEST = 100001 };

static const size_t lengths[] = {1,    2,     3,     1023,  1024,  1025,
                                 4096, 65519, 65520, 65536, 65537, LONGEST};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

/* Bits of the largest and of the smallest finite element. */
struct range {
    int dtype;
    uint64_t max, min;
    double max_value, min_value;
};

static const struct range ranges[] = {
    {TRD_F16, 0x7bff, 0xfbff, 65504, -65504},
    {TRD_BF16, 0x7f7f, 0xff7f, 0x1.fep127, -0x1.fep127},
    {TRD_F32, 0x7f7fffff, 0xff7fffff, 0x1.fffffep127, -0x1.fffffep127},
    {TRD_F8_E4M3FN, 0x7e, 0xfe, 448, -448},
    {TRD_F8_E5M2, 0x7b, 0xfb, 57344, -57344},
    {TRD_F8_E4M3FNUZ, 0x7f, 0xff, 240, -240},
    {TRD_F8_E5M2FNUZ, 0x7f, 0xff, 57344, -57344},
    {TRD_F8_E8M0FNU, 254, 0, 0x1p127, 0x1p-127},
    {TRD_I8, 0x7f, 0x80, 127, -128},
    {TRD_I16, 0x7fff, 0x8000, 32767, -32768},
    {TRD_I32, 0x7fffffff, 0x80000000, 2147483647.0, -2147483648.0},
    {TRD_I64, INT64_MAX, UINT64_C(1) << 63, 0x1p63, -0x1p63},
    {TRD_U8, 0xff, 0, 255, 0},
    {TRD_U16, 0xffff, 0, 65535, 0},
    {TRD_U32, 0xffffffff, 0, 4294967295.0, 0},
    {TRD_U64, UINT64_MAX, 0, 0x1p64, 0},
    {TRD_BOOL, 1, 0, 1, 0},
};
enum { RANGES = sizeof ranges / sizeof *ranges };

static unsigned char data[LONGEST * 8];

/* even, odd, even, odd, ... */
static void fill(int dtype, uint64_t even, uint64_t odd)
{
    unsigned size = trd_dtype_bytes(dtype);

    for (size_t i = 0; i < LONGEST; i++)
        memcpy(data + i * size, i % 2 ? &odd : &even, size);
}

static double figure(union trd_value v, int kind)
{
    return kind == TRD_KIND_SIGNED     ? (double)v.i
           : kind == TRD_KIND_UNSIGNED ? (double)v.u
                                       : v.f;
}

static void check_equal_elements(int dtype, double value)
{
    int kind = trd_dtype_kind(dtype);

    for (int l = 0; l < LENGTHS; l++) {
        size_t n = lengths[l];
        struct trd_stats s = stats_of(dtype, data, n);
        double l2 = fabs(value) * sqrt((double)n);
        assert_int_equal(s.has, TRD_HAS_ALL);
        assert_double(figure(s.max, kind), value);
        assert_double(figure(s.min, kind), value);
        assert_double(s.mean, value);
        assert_double(s.std, 0);
        assert_near(s.l2, l2, 1e-15 * l2);
    }
}

static void test_range__means_of_the_largest_do_not_overflow(void **state)
{
    (void)state;
    for (int r = 0; r < RANGES; r++) {
        fill(ranges[r].dtype, ranges[r].max, ranges[r].max);
        check_equal_elements(ranges[r].dtype, ranges[r].max_value);
        fill(ranges[r].dtype, ranges[r].min, ranges[r].min);
        check_equal_elements(ranges[r].dtype, ranges[r].min_value);
    }
}

/* The two in turn are half a range off their mean. Narrow tiles round all
 * their squares alike, where they do not hold them. */
static void check_both_ends(const struct range *r, size_t n)
{
    struct trd_stats s = stats_of(r->dtype, data, n);
    int kind = trd_dtype_kind(r->dtype);
    double half = r->max_value / 2 - r->min_value / 2;
    double middle = r->max_value / 2 + r->min_value / 2;
    double squares = sqrt(half * half + middle * middle);
    double off = trd__is_narrow(r->dtype) && n > TRD__WIDE_N ? 1e-6 : 1e-13;

    if (r->dtype == TRD_I64) /* no double is as large */
        middle = -0.5;
    assert_double(figure(s.max, kind), r->max_value);
    assert_double(figure(s.min, kind), r->min_value);
    if (kind == TRD_KIND_SIGNED)
        assert_true(s.absmax.u == UINT64_C(1)
                                      << (8 * trd_dtype_bytes(r->dtype) - 1));
    else
        assert_double(figure(s.absmax, kind), r->max_value);
    assert_near(s.mean, middle, 1e-13 * half);
    assert_near(s.std, half, off * half);
    assert_near(s.l2, squares * sqrt((double)n),
                off * squares * sqrt((double)n));
}

static void test_range__both_ends_in_turn(void **state)
{
    (void)state;
    for (int r = 0; r < RANGES; r++) {
        fill(ranges[r].dtype, ranges[r].max, ranges[r].min);
        for (int l = 0; l < LENGTHS; l++)
            if (lengths[l] % 2 == 0)
                check_both_ends(&ranges[r], lengths[l]);
        check_both_ends(&ranges[r], LONGEST - 1);
    }
}

static void test_range__integer_extremes_keep_every_digit(void **state)
{
    (void)state;
    for (int r = 0; r < RANGES; r++) {
        int kind = trd_dtype_kind(ranges[r].dtype);
        struct trd_stats s;
        if (kind != TRD_KIND_SIGNED && kind != TRD_KIND_UNSIGNED)
            continue;
        fill(ranges[r].dtype, ranges[r].max, ranges[r].min);
        s = stats_of(ranges[r].dtype, data, 70001);
        assert_true(s.max.u == ranges[r].max);
        assert_true((s.min.u & UINT64_MAX >> (64 - 8 * trd_dtype_bytes(
                                                           ranges[r].dtype))) ==
                    ranges[r].min);
        if (kind == TRD_KIND_UNSIGNED) {
            assert_true(s.absmax.u == ranges[r].max);
            assert_true(s.absmin.u == ranges[r].max); /* but for 0 */
            assert_int_equal(s.zero, 35000);
        } else {
            assert_true(s.absmin.u == ranges[r].max);
            assert_int_equal(s.zero, 0);
        }
    }
}

/* ---- neighbours ---- */

/* A value's bits, and what the next larger one adds to it. */
struct close {
    int dtype;
    uint64_t bits;
    double value, gap;
};

static const struct close closes[] = {
    {TRD_F16, 0x3c00, 1, 0x1p-10},
    {TRD_F16, 0x7bfe, 65472, 32},
    {TRD_F16, 0x0001, 0x1p-24, 0x1p-24},
    {TRD_BF16, 0x3f80, 1, 0x1p-7},
    {TRD_BF16, 0x4780, 65536, 512},
    {TRD_F8_E4M3FN, 0x7d, 416, 32},
    {TRD_F8_E5M2, 0x3c, 1, 0.25},
    {TRD_F32, 0x3f800000, 1, 0x1p-23},
    {TRD_F32, 0x450e9400, 2281.25, 0x1p-12},
    {TRD_F32, 0x4cbebc20, 1e8, 8},
    {TRD_F32, 0x7f7ffffe, 0x1.fffffcp127, 0x1p104},
    {TRD_F32, 0x00000001, 0x1p-149, 0x1p-149},
    {TRD_F64, 0x3ff0000000000000, 1, 0x1p-52},
    {TRD_F64, 0x4197d78400000000, 1e8, 0x1p-26},
    {TRD_F64, 0x7feffffffffffffe, 0x1.ffffffffffffep1023, 0x1p971},
    {TRD_I8, 126, 126, 1},
    {TRD_U16, 65534, 65534, 1},
    {TRD_I32, 0x7ffffffe, 2147483646.0, 1},
    {TRD_I64, INT64_MAX - 1, 0x1p63, 1},
    {TRD_U64, UINT64_MAX - 1, 0x1p64, 1},
};

static void test_range__std_of_neighbours(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof closes / sizeof *closes; c++) {
        const struct close *p = &closes[c];
        fill(p->dtype, p->bits, p->bits + 1);
        for (int l = 0; l < LENGTHS; l++) {
            struct trd_stats s = stats_of(p->dtype, data, lengths[l]);
            double n = (double)lengths[l], odd = floor(n / 2) / n;
            double std = p->gap * sqrt(odd * (1 - odd));
            assert_near(s.mean, p->value + p->gap * odd,
                        1e-13 * std + fabs(p->value) * 0x1p-52);
            assert_near(s.std, std, 1e-13 * std + 0x1p-1074);
        }
    }
}

/* ---- the end of what a double holds ---- */

static void test_range__l2_beyond_fp64_is_infinite(void **state)
{
    double largest = DBL_MAX;
    uint64_t bits;
    struct trd_stats s;
    (void)state;
    memcpy(&bits, &largest, sizeof bits);
    fill(TRD_F64, bits, bits | UINT64_C(1) << 63);
    for (int l = 1; l < LENGTHS; l++) {
        s = stats_of(TRD_F64, data, lengths[l]);
        assert_double(s.l2, INFINITY);
        assert_double(s.absmax.f, DBL_MAX);
        assert_true(s.std <= DBL_MAX && s.std >= 0.9 * DBL_MAX);
        assert_true(fabs(s.mean) <= DBL_MAX);
    }
    fill(TRD_F64, bits, bits);
    for (int l = 0; l < LENGTHS; l++) {
        s = stats_of(TRD_F64, data, lengths[l]);
        assert_double(s.mean, DBL_MAX);
        assert_double(s.std, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range__means_of_the_largest_do_not_overflow),
        cmocka_unit_test(test_range__both_ends_in_turn),
        cmocka_unit_test(test_range__integer_extremes_keep_every_digit),
        cmocka_unit_test(test_range__std_of_neighbours),
        cmocka_unit_test(test_range__l2_beyond_fp64_is_infinite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
