/* Exponent histograms of every dtype against a slow count from the words of
 * record.h: element by element, bit by bit. */
#include "tests/unit/stats_rig.h"

#include <stdio.h>

#include "tracerd/stats.h"

enum {
    SMALL_N = 65536, /* up to here `rows` counts all elements */
    LARGE_N = 200003
};

static unsigned char bytes[LARGE_N * 16 + 1];
static unsigned char turned[LARGE_N * 16];

/* ---- the slow count ---- */

struct format {
    int dtype;
    unsigned exponent, mantissa; /* bits; of a part for complex */
};

static const struct format formats[] = {
    {TRD_F64, 11, 52},        {TRD_F32, 8, 23},
    {TRD_F16, 5, 10},         {TRD_BF16, 8, 7},
    {TRD_F8_E4M3FN, 4, 3},    {TRD_F8_E5M2, 5, 2},
    {TRD_F8_E4M3FNUZ, 4, 3},  {TRD_F8_E5M2FNUZ, 5, 2},
    {TRD_F8_E8M0FNU, 8, 0},
};

static uint64_t bits_at(const unsigned char *p, unsigned n)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < n; i++)
        v += (uint64_t)p[i] << 8 * i;
    return v;
}

static unsigned length_of(uint64_t v)
{
    unsigned n = 0;
    while (n < 64 && v >> n)
        n++;
    return n;
}

static unsigned slow_integer(int dtype, const unsigned char *p)
{
    unsigned size = trd_dtype_bytes(dtype);
    uint64_t v = bits_at(p, size);
    if (dtype == TRD_BOOL)
        return v != 0;
    if (trd_dtype_kind(dtype) == TRD_KIND_SIGNED && p[size - 1] >= 128) {
        for (unsigned i = size; i < 8; i++)
            v += UINT64_C(255) << 8 * i;
        v = 0 - v;
    }
    return length_of(v);
}

static long double part_at(int dtype, const unsigned char *p)
{
    double d;
    float f;
    if (dtype == TRD_C128) {
        memcpy(&d, p, sizeof d);
        return (long double)d;
    }
    if (dtype == TRD_C64) {
        memcpy(&f, p, sizeof f);
        return (long double)f;
    }
    unsigned h = (unsigned)bits_at(p, 2), e = h >> 10 & 31, m = h & 1023;
    long double v = e == 31  ? (m ? (long double)NAN : (long double)INFINITY)
                    : e == 0 ? ldexpl((long double)m, -24)
                             : ldexpl((long double)(m + 1024), (int)e - 25);
    return h >> 15 ? -v : v;
}

static unsigned slow_complex(int dtype, const unsigned char *p)
{
    unsigned half = trd_dtype_bytes(dtype) / 2;
    long double re = part_at(dtype, p), im = part_at(dtype, p + half);
    double z = (double)hypotl(re, im);
    uint64_t v;
    memcpy(&v, &z, sizeof v);
    return (unsigned)(v >> 52 & 2047);
}

static unsigned slow_bin(int dtype, const unsigned char *p)
{
    if (trd_dtype_kind(dtype) == TRD_KIND_COMPLEX)
        return slow_complex(dtype, p);
    if (trd_dtype_kind(dtype) != TRD_KIND_FLOAT)
        return slow_integer(dtype, p);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].dtype == dtype)
            return (unsigned)(bits_at(p, trd_dtype_bytes(dtype)) >>
                              formats[i].mantissa) %
                   (1u << formats[i].exponent);
    fail();
    return 0;
}

/* Whether the rule counts element i of n. */
static bool is_counted(enum trd_histogram_kind kind, uint64_t n, uint64_t i)
{
    uint64_t t = i / 1024;
    return kind == TRD_HISTOGRAM_EXACT || n <= SMALL_N ||
           i % 1024 / 64 == (t + t / 16) % 16;
}

static void slow_histogram(int dtype, enum trd_histogram_kind kind, uint64_t n,
                           uint64_t *count)
{
    unsigned size = trd_dtype_bytes(dtype);
    memset(count, 0, TRD_MAX_BINS * sizeof *count);
    for (uint64_t i = 0; i < n; i++)
        if (is_counted(kind, n, i))
            count[slow_bin(dtype, bytes + i * size)]++;
}

/* ---- comparisons ---- */

static void check(int dtype, const struct trd_stats *s,
                  const struct trd_histogram *h, enum trd_histogram_kind kind,
                  const uint64_t *want)
{
    uint32_t bins = trd_dtype_bins(dtype);
    assert_ptr_equal(s->histogram, h);
    assert_int_equal(h->kind, kind);
    assert_true(h->first + h->n <= bins && bins <= TRD_MAX_BINS);
    assert_true(!h->n || (h->count[0] && h->count[h->n - 1]));
    for (uint32_t b = 0; b < TRD_MAX_BINS; b++) {
        uint64_t got =
            b < h->first || b >= h->first + h->n ? 0 : h->count[b - h->first];
        if (got != want[b]) {
            print_error("%s bin %u: %llu, not %llu\n", trd_dtype_name(dtype),
                        b, (unsigned long long)got,
                        (unsigned long long)want[b]);
            fail();
        }
    }
}

static void check_length(int dtype, enum trd_histogram_kind kind, uint64_t n)
{
    static struct trd_histogram h;
    static uint64_t want[TRD_MAX_BINS];
    int64_t shape = (int64_t)n;
    struct trd_tensor t = {bytes, (enum trd_dtype)dtype, 1, &shape, NULL};
    struct trd_want asked = {.histogram = kind};
    struct trd_stats plain, s;
    memset(&h, 0xaa, sizeof h);
    slow_histogram(dtype, kind, n, want);
    assert_int_equal(trd_stats_cpu(&t, 0, &plain, NULL), 0);
    assert_null(plain.histogram);
    assert_int_equal(trd_stats_cpu_as(&t, &asked, &s, NULL, &h), 0);
    check(dtype, &s, &h, kind, want);
    s.histogram = NULL; /* and nothing else is changed by it */
    assert_same(&plain, &s);
}

static void fill(uint64_t seed)
{
    for (size_t i = 0; i + 8 <= sizeof bytes; i += 8) {
        uint64_t v = rng_next(&seed);
        memcpy(bytes + i, &v, sizeof v);
    }
}

/* That are computed: figures of dtype text come from a log. */
static void each_dtype(void (*test)(int dtype))
{
    for (int dtype = 1; dtype < TRD_DTYPE_LIMIT; dtype++)
        if (trd_dtype_bins(dtype) && dtype != TRD_TEXT)
            test(dtype);
}

/* ---- the tests ---- */

static void lengths_of(int dtype)
{
    static const uint64_t lengths[] = {0,    1,    63,      64,
                                       65,   1023, 1024,    1025,
                                       5000, 16383, SMALL_N, SMALL_N + 1,
                                       70001};
    fill((uint64_t)dtype);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_length(dtype, TRD_HISTOGRAM_ROWS, lengths[i]);
        check_length(dtype, TRD_HISTOGRAM_EXACT, lengths[i]);
    }
}

static void test_bins__every_dtype_at_every_edge(void **state)
{
    (void)state;
    each_dtype(lengths_of);
}

/* Each pattern of 16 bits and less, so every bin there is. */
static void patterns_of(int dtype)
{
    unsigned size = trd_dtype_bytes(dtype);
    if (size > 2)
        return;
    for (uint32_t i = 0; i < 65536; i++)
        for (unsigned b = 0; b < size; b++)
            bytes[i * size + b] = (unsigned char)(i >> 8 * b);
    check_length(dtype, TRD_HISTOGRAM_EXACT, 65536);
}

static void test_bins__every_pattern_of_short_dtypes(void **state)
{
    (void)state;
    each_dtype(patterns_of);
}

/* Integers of each length, both signs, the extremes among them. */
static void magnitudes_of(int dtype)
{
    unsigned size = trd_dtype_bytes(dtype);
    uint64_t n = 0;
    if (trd_dtype_kind(dtype) != TRD_KIND_SIGNED &&
        trd_dtype_kind(dtype) != TRD_KIND_UNSIGNED)
        return;
    for (unsigned shift = 0; shift < 8 * size; shift++) {
        uint64_t one = UINT64_C(1) << shift;
        const uint64_t some[] = {one, one - 1, 0 - one, 1 - one};
        for (int i = 0; i < 4; i++)
            memcpy(bytes + n++ * size, &some[i], size);
    }
    check_length(dtype, TRD_HISTOGRAM_EXACT, n);
}

static void test_bins__integers_of_every_length(void **state)
{
    (void)state;
    each_dtype(magnitudes_of);
}

/* Whatever the number of threads, and read across the grain too. */
static void threads_of(int dtype)
{
    static struct trd_histogram h;
    static uint64_t want[TRD_MAX_BINS];
    unsigned size = trd_dtype_bytes(dtype);
    enum { ROWS = 401, COLUMNS = LARGE_N / ROWS, N = ROWS * COLUMNS };
    const int64_t shape[2] = {ROWS, COLUMNS}, strides[2] = {1, ROWS};
    fill(1000 + (uint64_t)dtype);
    for (uint64_t r = 0; r < ROWS; r++)
        for (uint64_t c = 0; c < COLUMNS; c++)
            memcpy(turned + (c * ROWS + r) * size,
                   bytes + (r * COLUMNS + c) * size, size);
    for (int kind = TRD_HISTOGRAM_ROWS; kind < TRD_HISTOGRAM_COUNT; kind++) {
        const struct trd_want asked = {
            .histogram = (enum trd_histogram_kind)kind};
        slow_histogram(dtype, asked.histogram, N, want);
        for (unsigned threads = 1; threads <= 4; threads++)
            for (int across = 0; across < 2; across++) {
                struct trd_tensor t = {across ? turned : bytes,
                                       (enum trd_dtype)dtype, 2, shape,
                                       across ? strides : NULL};
                struct trd_stats s;
                memset(&h, 0xaa, sizeof h);
                assert_int_equal(trd__stats_with(trd__kernel_best(), threads,
                                                 &t, &asked, &s, NULL, &h),
                                 0);
                check(dtype, &s, &h, asked.histogram, want);
            }
    }
}

static void test_bins__threads_and_strides_change_nothing(void **state)
{
    (void)state;
    each_dtype(threads_of);
}

/* Elements need not lie at multiples of their size. */
static void test_bins__any_alignment(void **state)
{
    static struct trd_histogram aligned, odd;
    const int64_t shape = 3000;
    const struct trd_want asked = {.histogram = TRD_HISTOGRAM_EXACT};
    struct trd_stats s;
    (void)state;
    fill(5);
    memmove(turned, bytes + 1, sizeof turned);
    struct trd_tensor t = {turned, TRD_F64, 1, &shape, NULL};
    assert_int_equal(trd_stats_cpu_as(&t, &asked, &s, NULL, &aligned), 0);
    t.data = bytes + 1;
    assert_int_equal(trd_stats_cpu_as(&t, &asked, &s, NULL, &odd), 0);
    assert_int_equal(aligned.n, odd.n);
    assert_memory_equal(aligned.count, odd.count,
                        odd.n * sizeof odd.count[0]);
}

static void test_bins__packed_dtypes_have_none(void **state)
{
    static struct trd_histogram h;
    const int64_t shape = 8;
    const struct trd_want asked = {.histogram = TRD_HISTOGRAM_EXACT};
    struct trd_tensor t = {bytes, TRD_F4_E2M1X2, 1, &shape, NULL};
    struct trd_stats s;
    (void)state;
    assert_int_equal(trd_stats_cpu_as(&t, &asked, &s, NULL, &h), 0);
    assert_null(s.histogram);
    assert_int_equal(trd_dtype_bins(TRD_F4_E2M1X2), 0);
    assert_int_equal(trd_dtype_bins(TRD_OPAQUE), 0);
    assert_int_equal(trd_dtype_bins(0), 0);
    t.dtype = TRD_F32; /* and who asks for one has to give room for it */
    assert_int_equal(trd_stats_cpu_as(&t, &asked, &s, NULL, NULL),
                     TRD_EINVAL);
}

/* 2^exponent is in its bin, and in no other. */
static void exponents_of(int dtype)
{
    int is_whole = trd_dtype_kind(dtype) == TRD_KIND_SIGNED ||
                   trd_dtype_kind(dtype) == TRD_KIND_UNSIGNED;
    for (unsigned b = 0; b < trd_dtype_bins(dtype); b++)
        assert_int_equal(trd_bin_exponent(dtype, b) -
                             trd_bin_exponent(dtype, 0),
                         b);
    if (is_whole)
        assert_int_equal(trd_bin_exponent(dtype, 1), 0);
}

static void test_bins__exponents_rise_by_one(void **state)
{
    static const struct {
        int dtype, bin, exponent;
    } rows[] = {{TRD_F64, 1023, 0},        {TRD_F32, 127, 0},
                {TRD_BF16, 254, 127},      {TRD_F16, 15, 0},
                {TRD_F16, 1, -14},         {TRD_F8_E4M3FN, 7, 0},
                {TRD_F8_E5M2, 15, 0},      {TRD_F8_E4M3FNUZ, 8, 0},
                {TRD_F8_E5M2FNUZ, 16, 0},  {TRD_F8_E8M0FNU, 127, 0},
                {TRD_TEXT, 1023, 0},       {TRD_C32, 1023, 0},
                {TRD_C128, 1022, -1},      {TRD_I8, 8, 7},
                {TRD_U64, 64, 63}};
    (void)state;
    each_dtype(exponents_of);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(trd_bin_exponent(rows[i].dtype,
                                          (unsigned)rows[i].bin),
                         rows[i].exponent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bins__every_dtype_at_every_edge),
        cmocka_unit_test(test_bins__every_pattern_of_short_dtypes),
        cmocka_unit_test(test_bins__integers_of_every_length),
        cmocka_unit_test(test_bins__threads_and_strides_change_nothing),
        cmocka_unit_test(test_bins__any_alignment),
        cmocka_unit_test(test_bins__packed_dtypes_have_none),
        cmocka_unit_test(test_bins__exponents_rise_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
