/* Every element code of every dtype of one or two bytes, against a decoder
 * written from the definition of the formats; and the edges of the wider. */
#include "tests/unit/stats_rig.h"

enum special { IEEE, NAN_ALL_ONES, NAN_MINUS_ZERO };

/* What a code means. */
struct meaning {
    double value;
    bool nan, subnormal;
};

static struct meaning float_code(unsigned code, int exponent_bits,
                                 int mantissa_bits, int bias, enum special how)
{
    int width = 1 + exponent_bits + mantissa_bits;
    int sign = (code >> (width - 1)) & 1 ? -1 : 1;
    int exponent = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    int mantissa = (int)code & ((1 << mantissa_bits) - 1);
    int last = (1 << exponent_bits) - 1;
    struct meaning m = {0, false, false};

    if (how == IEEE && exponent == last) {
        m.nan = mantissa != 0;
        m.value = sign < 0 ? -INFINITY : INFINITY;
    } else if (how == NAN_ALL_ONES && exponent == last &&
               mantissa == (1 << mantissa_bits) - 1) {
        m.nan = true;
    } else if (how == NAN_MINUS_ZERO && sign < 0 && !exponent && !mantissa) {
        m.nan = true;
    } else if (exponent == 0) {
        m.value = sign * ldexp(mantissa, 1 - bias - mantissa_bits);
        m.subnormal = mantissa != 0;
    } else {
        m.value =
            sign * ldexp(1 + ldexp(mantissa, -mantissa_bits), exponent - bias);
    }
    return m;
}

static struct meaning meaning_of(int dtype, unsigned code)
{
    struct meaning m = {0, false, false};

    switch (dtype) {
    case TRD_F16:
        return float_code(code, 5, 10, 15, IEEE);
    case TRD_BF16:
        return float_code(code, 8, 7, 127, IEEE);
    case TRD_F8_E5M2:
        return float_code(code, 5, 2, 15, IEEE);
    case TRD_F8_E4M3FN:
        return float_code(code, 4, 3, 7, NAN_ALL_ONES);
    case TRD_F8_E4M3FNUZ:
        return float_code(code, 4, 3, 8, NAN_MINUS_ZERO);
    case TRD_F8_E5M2FNUZ:
        return float_code(code, 5, 2, 16, NAN_MINUS_ZERO);
    case TRD_F8_E8M0FNU:
        m.nan = code == 255;
        m.value = ldexp(1, (int)code - 127);
        return m;
    case TRD_I8:
        m.value = code < 128 ? (int)code : (int)code - 256;
        return m;
    case TRD_I16:
        m.value = code < 32768 ? (int)code : (int)code - 65536;
        return m;
    case TRD_BOOL:
        m.value = code != 0;
        return m;
    default:
        m.value = code;
        return m;
    }
}

static double figure(union trd_value v, int kind)
{
    return kind == TRD_KIND_SIGNED     ? (double)v.i
           : kind == TRD_KIND_UNSIGNED ? (double)v.u
                                       : v.f;
}

/* absmax and absmin of signed integers are unsigned. */
static double magnitude_figure(union trd_value v, int kind)
{
    return figure(v, kind == TRD_KIND_SIGNED ? TRD_KIND_UNSIGNED : kind);
}

static void check_code(int dtype, unsigned code)
{
    struct meaning m = meaning_of(dtype, code);
    struct trd_stats s = stats_of(dtype, &code, 1);
    bool infinite = !m.nan && isinf(m.value);
    int kind = trd_dtype_kind(dtype);

    assert_int_equal(s.n, 1);
    assert_int_equal(s.nan, m.nan);
    assert_int_equal(s.pinf, infinite && m.value > 0);
    assert_int_equal(s.ninf, infinite && m.value < 0);
    assert_int_equal(s.zero, !m.nan && m.value == 0);
    assert_int_equal(s.subnormal, m.subnormal);
    if (m.nan || infinite) {
        assert_int_equal(s.has, TRD_HAS_COUNTS | TRD_HAS_HASH);
        return;
    }
    assert_int_equal(s.has, TRD_HAS_ALL);
    assert_double(figure(s.max, kind), m.value + 0.0);
    assert_double(figure(s.min, kind), m.value + 0.0);
    assert_double(magnitude_figure(s.absmax, kind), fabs(m.value));
    assert_double(magnitude_figure(s.absmin, kind), fabs(m.value));
    assert_double(s.mean, m.value + 0.0);
    assert_double(s.std, 0);
    assert_double(s.l2, fabs(m.value));
}

static const int small_dtypes[] = {
    TRD_F16,         TRD_BF16,        TRD_F8_E5M2,    TRD_F8_E4M3FN,
    TRD_F8_E4M3FNUZ, TRD_F8_E5M2FNUZ, TRD_F8_E8M0FNU, TRD_I8,
    TRD_I16,         TRD_U8,          TRD_U16,        TRD_BOOL,
};
enum { SMALL_N = sizeof small_dtypes / sizeof *small_dtypes };

static void test_stats__every_code_alone(void **state)
{
    (void)state;
    for (int d = 0; d < SMALL_N; d++) {
        unsigned codes = 1u << 8 * trd_dtype_bytes(small_dtypes[d]);
        for (unsigned c = 0; c < codes; c++)
            check_code(small_dtypes[d], c);
    }
}

/* In one tensor, short enough for wide tiles and long enough for narrow. */
static void check_codes_together(int dtype, unsigned repeats)
{
    unsigned bytes = trd_dtype_bytes(dtype);
    unsigned codes = 1u << 8 * bytes;
    size_t n = (size_t)codes * repeats;
    unsigned char *data = malloc(n * bytes);
    struct trd_stats want;
    double max = -INFINITY, min = INFINITY, absmin = INFINITY;
    long double sum = 0, squares = 0, spread = 0, mean;
    uint64_t finite = 0;
    int kind = trd_dtype_kind(dtype);

    assert_non_null(data);
    memset(&want, 0, sizeof want);
    for (unsigned c = 0; c < codes; c++) {
        struct meaning m = meaning_of(dtype, c);
        want.nan += m.nan;
        want.pinf += !m.nan && m.value == INFINITY;
        want.ninf += !m.nan && m.value == -INFINITY;
        want.zero += !m.nan && m.value == 0;
        want.subnormal += m.subnormal;
        if (m.nan || isinf(m.value))
            continue;
        finite++;
        sum += (long double)m.value;
        squares += (long double)m.value * (long double)m.value;
        max = fmax(max, m.value);
        min = fmin(min, m.value);
        if (m.value != 0)
            absmin = fmin(absmin, fabs(m.value));
    }
    mean = sum / (long double)finite;
    for (unsigned c = 0; c < codes; c++) {
        struct meaning m = meaning_of(dtype, c);
        long double d = (long double)m.value - mean;
        if (!m.nan && !isinf(m.value))
            spread += d * d;
    }
    spread = sqrtl(spread / (long double)finite);
    for (size_t i = 0; i < n; i++) {
        unsigned c = (unsigned)(i / repeats);
        memcpy(data + i * bytes, &c, bytes);
    }

    struct trd_stats s = stats_of(dtype, data, n);
    assert_int_equal(s.nan, want.nan * repeats);
    assert_int_equal(s.pinf, want.pinf * repeats);
    assert_int_equal(s.ninf, want.ninf * repeats);
    assert_int_equal(s.zero, want.zero * repeats);
    assert_int_equal(s.subnormal, want.subnormal * repeats);
    assert_double(figure(s.max, kind), max);
    assert_double(figure(s.min, kind), min);
    assert_double(magnitude_figure(s.absmax, kind), fmax(max, -min));
    assert_double(magnitude_figure(s.absmin, kind), absmin);
    assert_near(s.mean, (double)mean, 5e-9 * (double)spread);
    assert_near(s.std, (double)spread, 4e-8 * (double)spread);
    assert_near(s.l2, sqrt((double)squares * repeats), 4e-8 * s.l2);
    free(data);
}

static void test_stats__every_code_in_one_tensor(void **state)
{
    (void)state;
    for (int d = 0; d < SMALL_N; d++) {
        check_codes_together(small_dtypes[d], 1);
        check_codes_together(small_dtypes[d], 300);
    }
}

static void test_stats__float32_edges(void **state)
{
    static const uint32_t bits[] = {
        0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000, 0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0xffc00000, 0x7fffffff,
    };
    struct trd_stats s = stats_of(TRD_F32, bits, 12);
    (void)state;
    assert_int_equal(s.nan, 3);
    assert_int_equal(s.pinf, 1);
    assert_int_equal(s.ninf, 1);
    assert_int_equal(s.zero, 2);
    assert_int_equal(s.subnormal, 2);
    assert_double(s.max.f, 0x1.fffffep127);
    assert_double(s.min.f, -0x1.fffffep127);
    assert_double(s.absmax.f, 0x1.fffffep127);
    assert_double(s.absmin.f, 0x1p-149);
}

static void test_stats__float64_edges(void **state)
{
    static const uint64_t bits[] = {
        0x0000000000000000, 0x8000000000000000, 0x0000000000000001,
        0x800fffffffffffff, 0x0010000000000000, 0x7fefffffffffffff,
        0xffefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
        0x7ff0000000000001, 0xfff8000000000000,
    };
    struct trd_stats s = stats_of(TRD_F64, bits, 11);
    (void)state;
    assert_int_equal(s.nan, 2);
    assert_int_equal(s.pinf, 1);
    assert_int_equal(s.ninf, 1);
    assert_int_equal(s.zero, 2);
    assert_int_equal(s.subnormal, 2);
    assert_double(s.max.f, DBL_MAX);
    assert_double(s.min.f, -DBL_MAX);
    assert_double(s.absmin.f, 0x1p-1074);
}

static void test_stats__minus_zero_becomes_plus_zero(void **state)
{
    static const float minus[2] = {-0.0f, -0.0f};
    struct trd_stats s = stats_of(TRD_F32, minus, 2);
    (void)state;
    assert_double(s.max.f, 0.0);
    assert_double(s.min.f, 0.0);
    assert_double(s.absmax.f, 0.0);
    assert_double(s.absmin.f, 0.0);
    assert_double(s.mean, 0.0);
    assert_double(s.std, 0.0);
    assert_double(s.l2, 0.0);
    assert_int_equal(s.zero, 2);
}

static void test_stats__integers_keep_every_digit(void **state)
{
    static const int64_t i64[] = {INT64_MIN, INT64_MAX, -1, 3, 0};
    static const uint64_t u64[] = {UINT64_MAX, 7, (1ull << 53) + 1};
    static const int32_t i32[] = {INT32_MIN, INT32_MAX, 16777217};
    static const uint32_t u32[] = {UINT32_MAX, 5, 0};
    struct trd_stats s = stats_of(TRD_I64, i64, 5);
    (void)state;
    assert_true(s.max.i == INT64_MAX);
    assert_true(s.min.i == INT64_MIN);
    assert_true(s.absmax.u == UINT64_C(1) << 63);
    assert_true(s.absmin.u == 1);
    assert_int_equal(s.zero, 1);
    s = stats_of(TRD_U64, u64, 3);
    assert_true(s.max.u == UINT64_MAX);
    assert_true(s.min.u == 7);
    assert_true(s.absmax.u == UINT64_MAX);
    assert_true(s.absmin.u == 7);
    s = stats_of(TRD_U64, u64 + 2, 1);
    assert_true(s.max.u == (1ull << 53) + 1);
    s = stats_of(TRD_I32, i32, 3);
    assert_true(s.max.i == INT32_MAX);
    assert_true(s.min.i == INT32_MIN);
    assert_true(s.absmax.u == UINT64_C(1) << 31);
    assert_true(s.absmin.u == 16777217);
    s = stats_of(TRD_U32, u32, 3);
    assert_true(s.max.u == UINT32_MAX);
    assert_true(s.min.u == 0);
    assert_true(s.absmin.u == 5);
    s = stats_of(TRD_U32, u32 + 2, 1);
    assert_true(s.absmax.u == 0);
    assert_true(s.absmin.u == 0);
}

static void test_stats__complex_is_its_magnitude(void **state)
{
    static const float c64[] = {3,   4, 0,        0,   1,         -1,
                                NAN, 0, INFINITY, NAN, 0x1p-149f, 0};
    static const uint16_t c32[] = {0x4200, 0xc400}; /* 3 - 4i */
    static const double c128[] = {3e300, -4e300, 3e-310, 4e-310};
    static const double over[] = {DBL_MAX, DBL_MAX};
    struct trd_stats s = stats_of(TRD_C64, c64, 3);
    (void)state;
    assert_double(s.max.f, 5);
    assert_double(s.min.f, 0);
    assert_double(s.absmin.f, sqrt(2));
    assert_int_equal(s.zero, 1);
    assert_near(s.mean, (5 + sqrt(2)) / 3, 1e-15);
    assert_near(s.l2, sqrt(27), 1e-15);
    s = stats_of(TRD_C64, c64, 6);
    assert_int_equal(s.nan, 1);
    assert_int_equal(s.pinf, 1);
    assert_int_equal(s.subnormal, 1);
    s = stats_of(TRD_C32, c32, 1);
    assert_double(s.max.f, 5);
    s = stats_of(TRD_C128, c128, 2);
    assert_near(s.max.f, 5e300, 1e285);
    assert_near(s.min.f, 5e-310, 1e-323);
    assert_int_equal(s.subnormal, 1);
    s = stats_of(TRD_C128, over, 1);
    assert_int_equal(s.pinf, 1);
    assert_int_equal(s.has, TRD_HAS_COUNTS | TRD_HAS_HASH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats__every_code_alone),
        cmocka_unit_test(test_stats__every_code_in_one_tensor),
        cmocka_unit_test(test_stats__float32_edges),
        cmocka_unit_test(test_stats__float64_edges),
        cmocka_unit_test(test_stats__minus_zero_becomes_plus_zero),
        cmocka_unit_test(test_stats__integers_keep_every_digit),
        cmocka_unit_test(test_stats__complex_is_its_magnitude),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
