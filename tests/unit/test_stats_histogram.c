/* Exponent histograms against a count by the values themselves: every dtype,
 * all elements and rows, contiguous or not. */
#include "tests/unit/stats_rig.h"

enum { N = 65536 + 20 * 1024 + 700 };

static unsigned char *data; /* random bits, N elements of 16 bytes */

static int make_data(void **state)
{
    uint64_t rng = 61;

    (void)state;
    data = malloc(N * 16);
    assert_non_null(data);
    for (size_t i = 0; i < N * 16; i += 8) {
        uint64_t r = rng_next(&rng);
        r >>= i % 5 ? 0 : r % 64; /* some small integers */
        memcpy(data + i, &r, 8);
    }
    return 0;
}

static int free_data(void **state)
{
    (void)state;
    free(data);
    return 0;
}

/* ---- the bin of an element, by its value ---- */

static unsigned bits_needed(uint64_t v)
{
    unsigned bits = 0;

    while (bits < 64 && v >> bits)
        bits++;
    return bits;
}

static unsigned bin_of_integer(int dtype, const unsigned char *at)
{
    unsigned size = trd_dtype_bytes(dtype);
    uint64_t v = 0;
    int64_t sign;

    memcpy((unsigned char *)&v + 8 - size, at, size); /* at the upper end */
    if (dtype == TRD_BOOL)
        return v != 0;
    if (trd_dtype_kind(dtype) == TRD_KIND_UNSIGNED)
        return bits_needed(v >> (64 - 8 * size));
    memcpy(&sign, &v, sizeof sign);
    return bits_needed((sign < 0 ? 0 - v : v) >> (64 - 8 * size));
}

static unsigned bin_of_value(int dtype, const unsigned char *at)
{
    unsigned bins = trd_dtype_bins(dtype);
    double v;

    trd__decode64(dtype, at, 1, &v);
    if (dtype == TRD_F8_E4M3FNUZ || dtype == TRD_F8_E5M2FNUZ) {
        if (isnan(v)) /* its code is that of a negative zero */
            return 0;
    } else if (isnan(v) || isinf(v)) {
        return bins - 1;
    }
    v = fabs(v);
    if (v == 0 || v < (trd_dtype_kind(dtype) == TRD_KIND_COMPLEX
                           ? DBL_MIN
                           : trd__min_normal(dtype)))
        return 0;
    return (unsigned)(ilogb(v) - trd_bin_exponent(dtype, 0));
}

static bool counts(enum trd_histogram_kind kind, size_t n, size_t i)
{
    size_t tile = i / 1024, row = i % 1024 / 64;

    return kind == TRD_HISTOGRAM_EXACT || n <= 65536 ||
           row == (tile + tile / 16) % 16;
}

static void check(int dtype, size_t n, enum trd_histogram_kind kind)
{
    static struct trd_histogram got;
    static uint64_t want[TRD_MAX_BINS];
    int64_t shape = (int64_t)n;
    struct trd_tensor t = {data, (enum trd_dtype)dtype, 1, &shape, NULL};
    struct trd_want how = {.histogram = kind};
    struct trd_stats s;
    int type = trd_dtype_kind(dtype);
    unsigned bins = trd_dtype_bins(dtype), size = trd_dtype_bytes(dtype);

    memset(want, 0, sizeof want);
    for (size_t i = 0; i < n; i++)
        if (counts(kind, n, i))
            want[type == TRD_KIND_SIGNED || type == TRD_KIND_UNSIGNED
                     ? bin_of_integer(dtype, data + i * size)
                     : bin_of_value(dtype, data + i * size)]++;
    assert_int_equal(trd_stats_cpu_as(&t, &how, &s, NULL, &got), 0);
    assert_ptr_equal(s.histogram, &got);
    assert_int_equal(got.kind, kind);
    assert_true(got.n >= 1 && got.first + got.n <= bins);
    assert_true(got.count[0] && got.count[got.n - 1]);
    for (unsigned b = 0; b < bins; b++)
        assert_int_equal(b >= got.first && b < got.first + got.n
                             ? got.count[b - got.first]
                             : 0,
                         want[b]);
}

static void test_histogram__bins_are_exponents(void **state)
{
    (void)state;
    for (int d = 1; d < TRD_DTYPE_LIMIT; d++) {
        if (d == TRD_TEXT || !trd_dtype_bins(d))
            continue;
        check(d, 1, TRD_HISTOGRAM_EXACT);
        check(d, 63, TRD_HISTOGRAM_ROWS);
        check(d, 5000, TRD_HISTOGRAM_EXACT);
        check(d, 70000, TRD_HISTOGRAM_EXACT);
    }
}

static void test_histogram__rows_of_long_tensors(void **state)
{
    (void)state;
    for (int d = 1; d < TRD_DTYPE_LIMIT; d++) {
        if (d == TRD_TEXT || !trd_dtype_bins(d))
            continue;
        check(d, 65536, TRD_HISTOGRAM_ROWS);
        check(d, 65537, TRD_HISTOGRAM_ROWS);
        check(d, N, TRD_HISTOGRAM_ROWS);
    }
}

/* A row that the last tile does not reach, or only in part. */
static void test_histogram__rows_of_a_short_last_tile(void **state)
{
    (void)state;
    for (size_t more = 1; more < 1024; more += 31)
        check(TRD_BF16, 65536 + 2048 + more, TRD_HISTOGRAM_ROWS);
}

static void test_histogram__every_code_once(void **state)
{
    static uint16_t codes[65536];
    static struct trd_histogram h;
    static const int64_t shape = 65536;
    struct trd_want want = {.histogram = TRD_HISTOGRAM_EXACT};
    struct trd_tensor t = {codes, TRD_F16, 1, &shape, NULL};
    struct trd_stats s;
    (void)state;
    for (int i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    assert_int_equal(trd_stats_cpu_as(&t, &want, &s, NULL, &h), 0);
    assert_int_equal(h.first, 0);
    assert_int_equal(h.n, 32);
    for (int b = 0; b < 32; b++)
        assert_int_equal(h.count[b], 2048);
    t.dtype = TRD_I16;
    assert_int_equal(trd_stats_cpu_as(&t, &want, &s, NULL, &h), 0);
    assert_int_equal(h.n, 17);
    assert_int_equal(h.count[0], 1);
    for (int b = 1; b < 16; b++)
        assert_int_equal(h.count[b], 1 << b);
    assert_int_equal(h.count[16], 1); /* -32768 */
}

static void test_histogram__of_a_view_is_that_of_its_copy(void **state)
{
    enum { SIDE = 300 };
    static float copy[SIDE * SIDE];
    static const int64_t shape[2] = {SIDE, SIDE}, strides[2] = {1, SIDE};
    static struct trd_histogram a, b;
    struct trd_tensor view = {data, TRD_F32, 2, shape, strides};
    struct trd_tensor dense = {copy, TRD_F32, 2, shape, NULL};
    struct trd_want want = {.histogram = TRD_HISTOGRAM_ROWS};
    struct trd_stats s;
    (void)state;
    for (int i = 0; i < SIDE * SIDE; i++)
        memcpy(&copy[i], data + (i % SIDE * SIDE + i / SIDE) * 4, 4);
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    assert_int_equal(trd_stats_cpu_as(&view, &want, &s, NULL, &a), 0);
    assert_int_equal(trd_stats_cpu_as(&dense, &want, &s, NULL, &b), 0);
    assert_memory_equal(&a, &b, sizeof a);
}

/* Packed dtypes have none, and none is touched. */
static void test_histogram__where_there_is_none(void **state)
{
    static struct trd_histogram h, untouched;
    static const int64_t shape = 100;
    struct trd_want want = {.histogram = TRD_HISTOGRAM_EXACT};
    struct trd_tensor t = {data, TRD_F4_E2M1X2, 1, &shape, NULL};
    struct trd_stats s;
    (void)state;
    memset(&h, 7, sizeof h);
    untouched = h;
    assert_int_equal(trd_stats_cpu_as(&t, &want, &s, NULL, &h), 0);
    assert_null(s.histogram);
    assert_int_equal(trd_stats_cpu_as(&t, &want, &s, NULL, NULL), 0);
    t.dtype = TRD_F32;
    assert_int_equal(trd_stats_cpu_as(&t, &want, &s, NULL, NULL), TRD_EINVAL);
    want.histogram = TRD_HISTOGRAM_NONE;
    assert_int_equal(trd_stats_cpu_as(&t, &want, &s, NULL, &h), 0);
    assert_null(s.histogram);
    assert_memory_equal(&h, &untouched, sizeof h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_histogram__bins_are_exponents),
        cmocka_unit_test(test_histogram__rows_of_long_tensors),
        cmocka_unit_test(test_histogram__rows_of_a_short_last_tile),
        cmocka_unit_test(test_histogram__every_code_once),
        cmocka_unit_test(test_histogram__of_a_view_is_that_of_its_copy),
        cmocka_unit_test(test_histogram__where_there_is_none),
    };
    return cmocka_run_group_tests(tests, make_data, free_data);
}
