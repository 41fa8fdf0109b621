/* NaN and infinities at every place, in the parts of complex numbers; the
 * subnormals of every format while the caller flushes them; empty tensors of
 * every kind; counts that 32 bits do not hold. */
#include "tests/unit/stats_rig.h"

#include <stdio.h>

/* ---- every place in a tile ---- */

struct special {
    int dtype;
    uint32_t nan, pinf, ninf; /* bits; 0: the dtype has none */
};

static const struct special specials[] = {
    {TRD_F32, 0x7fc00000, 0x7f800000, 0xff800000},
    {TRD_F32, 0xff800001, 0x7f800000, 0xff800000},
    {TRD_F16, 0x7e00, 0x7c00, 0xfc00},
    {TRD_BF16, 0xffff, 0x7f80, 0xff80},
    {TRD_F8_E5M2, 0x7d, 0x7c, 0xfc},
    {TRD_F8_E4M3FN, 0xff, 0, 0},
    {TRD_F8_E4M3FNUZ, 0x80, 0, 0},
};
enum { SPECIALS = sizeof specials / sizeof *specials };

/* Finite elements of any magnitude that the dtype has, small ones mostly. */
static void fill_finite(int dtype, unsigned char *to, size_t n)
{
    unsigned size = trd_dtype_bytes(dtype);
    uint64_t rng = 41;

    for (size_t i = 0; i < n; i++) {
        float v = (float)rng_normal(&rng);
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        if (dtype == TRD_BF16)
            bits >>= 16;
        else if (dtype != TRD_F32) /* any but the highest exponents */
            bits = (uint32_t)(rng_next(&rng) % (size == 2 ? 0x7000 : 0x70)) | 1;
        memcpy(to + i * size, &bits, size);
    }
}

static void check_tally(const struct trd__tally *t, const struct special *s,
                        uint32_t bits, uint32_t m)
{
    assert_int_equal(t->nan, bits == s->nan);
    assert_int_equal(t->pinf, bits == s->pinf);
    assert_int_equal(t->ninf, bits == s->ninf);
    assert_int_equal(t->finite, m - 1);
}

/* A narrow tile with one such element is the wide tile of the others, on
 * every kernel; m elements, the special one at `at`. */
static void check_place(const struct special *s, unsigned char *tile,
                        uint32_t m, uint32_t at, uint32_t bits)
{
    unsigned size = trd_dtype_bytes(s->dtype);
    struct trd__job job = {s->dtype, false, {0.5}};
    struct trd__tally want, got;
    struct trd__sum want_sum, got_sum;
    uint32_t kept = 0;

    memcpy(&kept, tile + at * size, size);
    memcpy(tile + at * size, &bits, size);
    trd__tally_init(&want, s->dtype);
    trd__kernel_c.tiles[s->dtype](&job, tile, 7, m, &want, &want_sum);
    check_tally(&want, s, bits, m);
    job.narrow = true;
    for (int k = 0; trd__kernels()[k]; k++) {
        trd__tiles *tiles = trd__kernels()[k]->tiles[s->dtype];
        if (!tiles)
            continue;
        trd__tally_init(&got, s->dtype);
        tiles(&job, tile, 7, m, &got, &got_sum);
        assert_memory_equal(&got, &want, sizeof got);
        assert_int_equal(got_sum.unit, want_sum.unit);
        assert_memory_equal(&got_sum.a, &want_sum.a, sizeof got_sum.a);
        assert_memory_equal(&got_sum.b, &want_sum.b, sizeof got_sum.b);
    }
    memcpy(tile + at * size, &kept, size);
}

static void test_special__nan_and_infinities_at_every_place(void **state)
{
    static const uint32_t lengths[] = {1, 2, 65, 331, 1023, 1024};
    static unsigned char tile[TRD__TILE * 4];
    (void)state;
    for (int i = 0; i < SPECIALS; i++) {
        const struct special *s = &specials[i];
        fill_finite(s->dtype, tile, TRD__TILE);
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (uint32_t at = 0; at < lengths[l]; at++) {
                check_place(s, tile, lengths[l], at, s->nan);
                if (!s->pinf)
                    continue;
                check_place(s, tile, lengths[l], at, s->pinf);
                check_place(s, tile, lengths[l], at, s->ninf);
            }
    }
}

/* Of a tensor: before, in and behind the first tile, and at its end. */
static void test_special__nan_anywhere_in_a_long_tensor(void **state)
{
    enum { N = 65 * 1024 + 700 };
    static const size_t places[] = {0,       1,       331,   677,
                                    1023,    1024,    65535, 65536,
                                    N - 700, N - 699, N - 2, N - 1};
    static float x[N];
    struct trd_stats clean;
    (void)state;
    fill_finite(TRD_F32, (unsigned char *)x, N);
    clean = stats_of(TRD_F32, x, N);
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        float kept = x[places[p]];
        struct trd_stats s;
        double v[5];
        x[places[p]] = NAN;
        s = stats_of(TRD_F32, x, N);
        x[places[p]] = kept;
        assert_int_equal(s.nan, 1);
        assert_int_equal(s.has, TRD_HAS_ALL);
        assert_double(s.max.f, clean.max.f);
        assert_double(s.min.f, clean.min.f);
        assert_near(s.mean * (N - 1), clean.mean * N - (double)kept,
                    1e-8 * N * clean.std);
        assert_int_equal(trd_stats_numpy(&s, TRD_F32, v), 31);
        for (int i = 0; i < 5; i++)
            assert_double(v[i], NAN);
    }
}

/* ---- complex parts ---- */

enum { KINDS = 6 };
static const double parts[KINDS] = {3, 0, -0.0, INFINITY, -INFINITY, NAN};
static const uint16_t half_parts[KINDS] = {0x4200, 0,      0x8000,
                                           0x7c00, 0xfc00, 0x7e00};

static void put_complex(int dtype, int re, int im, unsigned char *to)
{
    float f[2] = {(float)parts[re], (float)parts[im]};

    if (dtype == TRD_C128) {
        memcpy(to, &parts[re], 8);
        memcpy(to + 8, &parts[im], 8);
    } else if (dtype == TRD_C64) {
        memcpy(to, f, 8);
    } else {
        memcpy(to, &half_parts[re], 2);
        memcpy(to + 2, &half_parts[im], 2);
    }
}

static void test_special__complex_parts(void **state)
{
    static const int dtypes[] = {TRD_C32, TRD_C64, TRD_C128};
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int re = 0; re < KINDS; re++)
            for (int im = 0; im < KINDS; im++) {
                bool inf = isinf(parts[re]) || isinf(parts[im]);
                bool nan = !inf && (isnan(parts[re]) || isnan(parts[im]));
                bool zero = parts[re] == 0 && parts[im] == 0;
                unsigned char z[16];
                struct trd_stats s;
                put_complex(dtypes[d], re, im, z);
                s = stats_of(dtypes[d], z, 1);
                assert_int_equal(s.pinf, inf);
                assert_int_equal(s.ninf, 0);
                assert_int_equal(s.nan, nan);
                assert_int_equal(s.zero, zero);
                assert_int_equal(s.subnormal, 0);
                assert_int_equal(s.has, inf || nan
                                            ? TRD_HAS_COUNTS | TRD_HAS_HASH
                                            : TRD_HAS_ALL);
                if (!inf && !nan)
                    assert_double(s.max.f, sqrt(parts[re] * parts[re] +
                                                parts[im] * parts[im]));
            }
}

/* ---- subnormals while the caller flushes them ---- */

/* The largest subnormal code; codes from 1 to it are all of them. */
struct subnormal {
    int dtype;
    uint64_t last;
    double least;
};

static const struct subnormal subnormals[] = {
    {TRD_F64, (UINT64_C(1) << 52) - 1, 0x1p-1074},
    {TRD_F32, 0x7fffff, 0x1p-149},
    {TRD_F16, 0x3ff, 0x1p-24},
    {TRD_BF16, 0x7f, 0x1p-133},
    {TRD_F8_E4M3FN, 7, 0x1p-9},
    {TRD_F8_E5M2, 3, 0x1p-16},
    {TRD_F8_E4M3FNUZ, 7, 0x1p-10},
    {TRD_F8_E5M2FNUZ, 3, 0x1p-17},
};

static struct trd_stats stats_by(int dtype, const void *data, size_t n,
                                 unsigned threads)
{
    int64_t shape = (int64_t)n;
    struct trd_tensor t = {data, (enum trd_dtype)dtype, 1, &shape, NULL};
    struct trd_want want = {.samples = 0};
    struct trd_stats s;

    assert_int_equal(
        trd__stats_with(trd__kernel_best(), threads, &t, &want, &s, NULL, NULL),
        0);
    return s;
}

/* All codes of the small formats, some from both ends of the wide ones, of
 * both signs, n elements. */
static void check_flushed(const struct subnormal *f, size_t n)
{
    static unsigned char data[70000 * 8];
    unsigned size = trd_dtype_bytes(f->dtype);
    uint64_t sign = UINT64_C(1) << (8 * size - 1);
    struct trd_stats plain, flushed, helped;
    unsigned was;

    for (size_t i = 0; i < n; i++) {
        uint64_t code = 1 + i / 2 % 1024 % f->last;
        if (i / 2 % 2048 >= 1024)
            code = f->last + 1 - code;
        code |= i % 2 ? sign : 0;
        memcpy(data + i * size, &code, size);
    }
    plain = stats_of(f->dtype, data, n);
    was = flush_on();
    flushed = stats_of(f->dtype, data, n);
    helped = stats_by(f->dtype, data, n, 2);
    flush_restore(was);
    assert_same(&flushed, &plain);
    assert_same(&helped, &plain);
    assert_int_equal(plain.subnormal, n);
    assert_int_equal(plain.zero, 0);
    assert_double(plain.absmin.f, f->least);
    if (n % 2 == 0) {
        assert_double(plain.max.f, -plain.min.f);
        assert_near(plain.mean, 0, 1e-13 * plain.std + f->least);
    }
    assert_true(plain.std >= 0 && plain.l2 >= plain.absmax.f);
}

static void test_special__subnormals_under_flush_to_zero(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof subnormals / sizeof *subnormals; i++) {
        check_flushed(&subnormals[i], 2);
        check_flushed(&subnormals[i], 5000);
        check_flushed(&subnormals[i], 70000);
    }
}

static void test_special__subnormal_parts_under_flush_to_zero(void **state)
{
    static const float c64[] = {0x1p-149f, 0, 0, -0x1p-149f, 0x1p-126f, 0};
    static const double c128[] = {0x1p-1074, 0, 0, -0x1p-1050, DBL_MIN, 0};
    static const uint16_t c32[] = {1, 0, 0, 0x8001, 0x0400, 0};
    static const struct {
        int dtype;
        const void *data;
        double least, normal;
    } z[] = {{TRD_C32, c32, 0x1p-24, 0x1p-14},
             {TRD_C64, c64, 0x1p-149, 0x1p-126},
             {TRD_C128, c128, 0x1p-1074, DBL_MIN}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct trd_stats plain = stats_of(z[i].dtype, z[i].data, 3), flushed;
        unsigned was = flush_on();
        flushed = stats_of(z[i].dtype, z[i].data, 3);
        flush_restore(was);
        assert_same(&flushed, &plain);
        assert_int_equal(plain.subnormal, 2);
        assert_int_equal(plain.zero, 0);
        assert_double(plain.absmin.f, z[i].least);
        assert_double(plain.max.f, z[i].normal);
    }
}

/* ---- nothing, and very much ---- */

static void test_special__empty_tensors_of_every_kind(void **state)
{
    static const struct {
        int ndim;
        int64_t shape[4];
    } shapes[] = {{1, {0}},
                  {2, {0, 0}},
                  {3, {5, 5, 0}},
                  {3, {0, 1, 7}},
                  {4, {INT64_MAX, INT64_MAX, 0, INT64_MAX}}};
    static const int64_t strides[4] = {INT64_MIN, -1, 0, INT64_MAX};
    static struct trd_histogram histogram;
    (void)state;
    for (int d = 1; d < TRD_DTYPE_LIMIT; d++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int with = 0; with < 4; with++) {
                struct trd_tensor t = {with & 1 ? &t : NULL, (enum trd_dtype)d,
                                       shapes[i].ndim, shapes[i].shape,
                                       with & 2 ? strides : NULL};
                struct trd_want want = {
                    16, (enum trd_sampling)(with % TRD_SAMPLING_COUNT), 1,
                    TRD_HISTOGRAM_EXACT};
                struct trd_stats s;
                int r = trd_stats_cpu_as(&t, &want, &s, NULL, &histogram);
                if (d == TRD_TEXT || d == TRD_OPAQUE) {
                    assert_int_equal(r, TRD_EUNSUPPORTED);
                    continue;
                }
                assert_int_equal(r, 0);
                assert_true(s.n == 0 && s.sample_n == 0 && s.nan == 0);
                assert_int_equal(s.has & ~TRD_HAS_COUNTS, 0);
                if (s.histogram)
                    assert_int_equal(s.histogram->n, 0);
            }
}

/* Seconds, or minutes where nothing is optimised: only on request. */
static void test_special__counts_above_2_32(void **state)
{
    static const uint8_t nan = 0x7f, minus = 0xf8; /* -256 */
    static const int64_t shape[2] = {(INT64_C(1) << 32) + 8, 1};
    static const int64_t strides[2] = {0, 0};
    struct trd_tensor t = {&nan, TRD_F8_E4M3FN, 2, shape, strides};
    struct trd_want want = {.histogram = TRD_HISTOGRAM_EXACT};
    static struct trd_histogram histogram;
    struct trd_stats s;
    uint64_t n = (uint64_t)shape[0];
    (void)state;
    if (!getenv("TRD_TEST_SLOW"))
        skip();
    assert_int_equal(trd_stats_cpu_as(&t, &want, &s, NULL, &histogram), 0);
    assert_true(s.n == n && s.nan == n);
    assert_true(histogram.n == 1 && histogram.count[0] == n);
    t.data = &minus;
    assert_int_equal(trd_stats_cpu_as(&t, &want, &s, NULL, &histogram), 0);
    assert_true(s.n == n && !s.nan);
    assert_double(s.mean, -256);
    assert_double(s.std, 0);
    assert_near(s.l2, 256 * sqrt((double)n), 1e-8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special__nan_and_infinities_at_every_place),
        cmocka_unit_test(test_special__nan_anywhere_in_a_long_tensor),
        cmocka_unit_test(test_special__complex_parts),
        cmocka_unit_test(test_special__subnormals_under_flush_to_zero),
        cmocka_unit_test(test_special__subnormal_parts_under_flush_to_zero),
        cmocka_unit_test(test_special__empty_tensors_of_every_kind),
        cmocka_unit_test(test_special__counts_above_2_32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
