/* The cases of tests/cases that are about figures: tensors that other tools
 * got wrong, with the right answers. Reads HNN.json and HNN.NAME.bin from
 * $TRD_TEST_DATA/cases; a program without that variable exits 77. */
#include "tests/unit/stats_rig.h"

#include <stdio.h>

/* ---- as much of JSON as the case files have ---- */

static char *read_file(const char *name, size_t *size)
{
    char path[4096];
    char *data;
    FILE *f;
    long n;

    snprintf(path, sizeof path, "%s/cases/%s", getenv("TRD_TEST_DATA"), name);
    f = fopen(path, "rb");
    if (!f)
        print_error("cannot open %s\n", path);
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    n = ftell(f);
    assert_true(n >= 0);
    rewind(f);
    data = calloc(1, (size_t)n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)n, f), (size_t)n);
    fclose(f);
    *size = (size_t)n;
    return data;
}

/* The value of a member of the object that starts at `at` and holds no other
 * object; NULL where it has no such member. */
static const char *member(const char *at, const char *name)
{
    char quoted[64];
    const char *end = strchr(at + 1, '}');
    const char *found;

    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    found = strstr(at, quoted);
    if (!found || !end || found > end)
        return NULL;
    return found + strlen(quoted) + strspn(found + strlen(quoted), " \n");
}

/* A number, "nan", "inf" or "-inf"; false for null. */
static bool number(const char *at, double *value)
{
    assert_non_null(at);
    if (!strncmp(at, "null", 4))
        return false;
    *value = strtod(*at == '"' ? at + 1 : at, NULL);
    return true;
}

static double figure(const char *at, const char *name)
{
    double v = 0;
    assert_true(number(member(at, name), &v));
    return v;
}

/* Steps over an array's items: NULL behind the last. */
static const char *item(const char *at)
{
    at += strcspn(at, ",]");
    if (*at == ']')
        return NULL;
    return at + 1 + strspn(at + 1, " \n");
}

static const char *first_item(const char *array)
{
    array += 1 + strspn(array + 1, " \n");
    return *array == ']' ? NULL : array;
}

/* ---- one tensor of a case ---- */

struct entry {
    const char *json; /* its object */
    const char *bin;  /* its elements */
    int dtype;
    int ndim;
    int64_t shape[8];
    uint64_t n;
};

static double range_figure(union trd_value v, int dtype)
{
    int kind = trd_dtype_kind(dtype);
    return kind == TRD_KIND_SIGNED     ? (double)v.i
           : kind == TRD_KIND_UNSIGNED ? (double)v.u
                                       : v.f;
}

/* mean, std and l2 of n <= 65536 elements: as good as fp64 gets, but where
 * the reference's own sums are not. */
static void check_sums(double mean, double std, double l2, const char *json,
                       const char *prefix)
{
    char name[32];
    double want_std, want_l2;

    snprintf(name, sizeof name, "%sstd", prefix);
    want_std = figure(json, name);
    assert_near(std, want_std, 1e-13 * want_std);
    snprintf(name, sizeof name, "%sl2", prefix);
    want_l2 = figure(json, name);
    assert_near(l2, want_l2, 1e-13 * want_l2);
    snprintf(name, sizeof name, "%smean", prefix);
    assert_near(mean, figure(json, name), 1e-13 * want_std + 1e-15 * want_l2);
}

static void check_counts(const struct trd_stats *s, const struct entry *e)
{
    assert_int_equal(s->n, e->n);
    assert_int_equal(s->nan, (uint64_t)figure(e->json, "nan"));
    assert_int_equal(s->pinf + s->ninf, (uint64_t)figure(e->json, "inf"));
    assert_int_equal(s->zero, (uint64_t)figure(e->json, "zeros"));
    assert_int_equal(s->subnormal, (uint64_t)figure(e->json, "subnormal"));
}

/* In numpy's form, where NaN and infinities count. */
static void check_numpy(const struct trd_stats *s, const struct entry *e)
{
    static const char *const names[5] = {"max", "min", "mean", "std", "l2"};
    double got[5], want;
    unsigned mask = trd_stats_numpy(s, e->dtype, got);

    for (int i = 0; i < 5; i++) {
        if (!number(member(e->json, names[i]), &want)) {
            assert_false(mask >> i & 1);
            assert_true(isnan(got[i]));
            continue;
        }
        assert_true(mask >> i & 1);
        if (i < 2 || !isfinite(want))
            assert_double(got[i], want + 0.0);
    }
    if (mask && isfinite(got[2]) && isfinite(got[3]))
        check_sums(got[2], got[3], got[4], e->json, "");
}

/* Over the finite elements, where the file has them apart. */
static void check_finite(const struct trd_stats *s, const struct entry *e)
{
    double want;

    if (!member(e->json, "finite_max"))
        return;
    if (!number(member(e->json, "finite_max"), &want)) {
        assert_int_equal(s->has, TRD_HAS_COUNTS | TRD_HAS_HASH);
        return;
    }
    assert_int_equal(s->has, TRD_HAS_ALL);
    assert_double(range_figure(s->max, e->dtype), want);
    assert_double(range_figure(s->min, e->dtype),
                  figure(e->json, "finite_min"));
    check_sums(s->mean, s->std, s->l2, e->json, "finite_");
}

static double sample_value(int dtype, const unsigned char *bits)
{
    struct trd_stats s = stats_of(dtype, bits, 1);
    double v[5];

    trd_stats_numpy(&s, dtype, v);
    return v[0];
}

static void check_samples(const struct trd_stats *s, const struct entry *e,
                          const unsigned char *samples)
{
    unsigned size = trd_dtype_bytes(e->dtype);
    const char *index = first_item(member(e->json, "sample_idx"));
    const char *value = first_item(member(e->json, "samples"));
    uint32_t i = 0;

    for (; index; i++, index = item(index), value = item(value)) {
        uint64_t at = strtoull(index, NULL, 10);
        double want = 0;
        assert_int_equal(sample_at(e->n, 16, i), at);
        assert_memory_equal(samples + i * size, e->bin + at * size, size);
        assert_true(number(value, &want));
        assert_double(sample_value(e->dtype, samples + i * size), want + 0.0);
    }
    assert_int_equal(s->sample_n, i);
}

static void check_entry(const struct entry *e)
{
    struct trd_tensor t = {e->bin, (enum trd_dtype)e->dtype, e->ndim, e->shape,
                           NULL};
    unsigned char samples[16 * TRD__MAX_ELEMENT];
    struct trd_stats s, flushed;
    unsigned was;

    assert_int_equal(trd_stats_cpu(&t, 16, &s, samples), 0);
    check_counts(&s, e);
    check_numpy(&s, e);
    check_finite(&s, e);
    check_samples(&s, e, samples);

    was = flush_on();
    assert_int_equal(trd_stats_cpu(&t, 16, &flushed, samples), 0);
    flush_restore(was);
    assert_same(&s, &flushed);
}

static void load_entry(struct entry *e, const char *json)
{
    char name[64];
    const char *at = member(json, "dtype");
    size_t size;

    e->json = json;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 1, "\""), at + 1);
    e->dtype = trd_dtype_parse(name);
    assert_int_not_equal(e->dtype, 0);
    e->ndim = 0;
    e->n = 1;
    for (at = first_item(member(json, "shape")); at; at = item(at)) {
        assert_true(e->ndim < 8);
        e->shape[e->ndim] = strtoll(at, NULL, 10);
        e->n *= (uint64_t)e->shape[e->ndim++];
    }
    at = member(json, "bin");
    assert_non_null(at);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 1, "\""), at + 1);
    e->bin = read_file(name, &size);
    assert_int_equal(size, e->n * trd_dtype_bytes(e->dtype));
}

/* Every tensor of the file that has its elements beside it. */
static void check_case(const char *file, int expected)
{
    size_t size;
    char *json = read_file(file, &size);
    const char *at = strstr(json, "\"tensors\"");
    int n = 0;

    assert_non_null(at);
    at = strchr(at, '{') + 1;
    while ((at = strpbrk(at, "{}")) && *at == '{') {
        struct entry e;
        if (member(at, "bin")) {
            load_entry(&e, at);
            check_entry(&e);
            free((void *)(uintptr_t)e.bin);
            n++;
        }
        at = strchr(at, '}') + 1;
    }
    assert_int_equal(n, expected);
    free(json);
}

static void test_case_H01__fp16_means_do_not_overflow(void **state)
{
    (void)state;
    check_case("H01.json", 2);
}

static void test_case_H01__fp16_ones(void **state)
{
    static uint16_t ones[65520];
    struct trd_stats s;
    (void)state;
    for (int i = 0; i < 65520; i++)
        ones[i] = 0x3c00;
    s = stats_of(TRD_F16, ones, 65520);
    assert_double(s.mean, 1);
    assert_double(s.std, 0);
    assert_double(s.l2, sqrt(65520));
}

static void test_case_H02__l2_above_the_fp32_range(void **state)
{
    (void)state;
    check_case("H02.json", 2);
}

static void test_case_H03__std_of_close_values(void **state)
{
    (void)state;
    check_case("H03.json", 3);
}

static void test_case_H04__twenty_million_ones(void **state)
{
    enum { N = 20000000 };
    float *ones = malloc(2 * N * sizeof *ones);
    int64_t shape = N, stride = 2;
    struct trd_tensor column = {ones + 1, TRD_F32, 1, &shape, &stride};
    struct trd_stats a, b;

    (void)state;
    assert_non_null(ones);
    for (size_t i = 0; i < 2 * N; i++)
        ones[i] = 1;
    a = stats_of(TRD_F32, ones, N);
    assert_double(a.mean, 1);
    assert_double(a.std, 0);
    assert_double(a.l2, sqrt(N));
    assert_int_equal(trd_stats_cpu(&column, 0, &b, NULL), 0);
    assert_same(&a, &b);
    free(ones);
}

static void test_case_H05__nan_wherever_it_stands(void **state)
{
    (void)state;
    check_case("H05.json", 9);
}

/* Minutes where nothing is optimised: only on request. */
static void test_case_H06__more_than_2_31_elements(void **state)
{
    static const uint8_t one = 1, zero = 0;
    int64_t shape = INT64_C(2147483656), stride = 0;
    struct trd_tensor t = {&one, TRD_U8, 1, &shape, &stride};
    struct trd_stats s;
    uint8_t samples[16];

    (void)state;
    if (!getenv("TRD_TEST_SLOW"))
        skip();
    assert_int_equal(trd_stats_cpu(&t, 16, &s, samples), 0);
    assert_true(s.n == UINT64_C(2147483656));
    assert_int_equal(s.zero, 0);
    assert_int_equal(s.max.u, 1);
    assert_int_equal(s.min.u, 1);
    assert_double(s.mean, 1);
    assert_double(s.std, 0);
    assert_near(s.l2, 46340.950098158326, 1e-11);
    t.data = &zero;
    assert_int_equal(trd_stats_cpu(&t, 16, &s, samples), 0);
    assert_true(s.zero == UINT64_C(2147483656));
}

static void test_case_H07__sample_positions_are_numpys(void **state)
{
    size_t size;
    char *json = read_file("H07.json", &size);
    const char *at = strchr(json, '[');
    int rows = 0;

    (void)state;
    while ((at = strchr(at, '{'))) {
        uint64_t n = strtoull(member(at, "n"), NULL, 10);
        uint32_t k = (uint32_t)strtoul(member(at, "k"), NULL, 10);
        const char *index = first_item(member(at, "idx"));
        uint32_t i = 0;
        for (; index; i++, index = item(index))
            assert_int_equal(sample_at(n, k, i),
                             strtoull(index, NULL, 10));
        assert_int_equal(i, n < k ? n : k);
        rows++;
        at++;
    }
    assert_int_equal(rows, 22);
    free(json);
}

static void test_case_H08__every_fp8_code(void **state)
{
    (void)state;
    check_case("H08.json", 3);
}

static void test_case_H09__subnormals_under_flush_to_zero(void **state)
{
    (void)state;
    check_case("H09.json", 3);
}

static void test_case_H10__integers_and_bool(void **state)
{
    static const int64_t ids[] = {16777217, 16777216, 0};
    struct trd_stats s = stats_of(TRD_I64, ids, 3);
    (void)state;
    check_case("H10.json", 6);
    assert_int_equal(s.max.i, 16777217);
}

static void test_case_H11__empty_and_scalar(void **state)
{
    (void)state;
    check_case("H11.json", 4);
}

static void test_case_H12__the_contiguous_copies(void **state)
{
    (void)state;
    check_case("H12.json", 5);
}

static void check_view(const float *base, int ndim, const int64_t *shape,
                       const int64_t *strides, const char *copy)
{
    struct trd_tensor t = {base, TRD_F32, ndim, shape, strides};
    struct trd_stats got, want;
    float samples[16];
    size_t size;
    char *dense = read_file(copy, &size);

    assert_int_equal(trd_stats_cpu(&t, 16, &got, samples), 0);
    want = stats_of(TRD_F32, dense, size / sizeof(float));
    want.sample_n = got.sample_n;
    assert_same(&got, &want);
    for (uint32_t i = 0; i < got.sample_n; i++)
        assert_memory_equal(&samples[i],
                            dense + 4 * sample_at(size / 4, 16, i), 4);
    free(dense);
}

static void test_case_H12__the_views_themselves(void **state)
{
    static const int64_t slice[2][2] = {{3, 2}, {4, 1}};
    static const int64_t transposed[2][2] = {{4, 3}, {1, 4}};
    static const int64_t step[2][1] = {{5}, {4}};
    static const int64_t nhwc[2][4] = {{1, 2, 3, 4}, {24, 1, 8, 2}};
    float ramp[24], image[24];
    (void)state;
    for (int i = 0; i < 24; i++) {
        ramp[i] = (float)i;
        image[(i % 12) * 2 + i / 12] = (float)i; /* channels last */
    }
    check_view(ramp + 1, 2, slice[0], slice[1], "H12.slice.bin");
    check_view(ramp, 2, transposed[0], transposed[1], "H12.t.bin");
    check_view(ramp + 3, 1, step[0], step[1], "H12.step.bin");
    check_view(image, 4, nhwc[0], nhwc[1], "H12.nhwc.bin");
}

static void test_case_H15__complex_is_not_its_real_part(void **state)
{
    static const float z[] = {3, 4, 0, 0, 1, -1};
    struct trd_stats s = stats_of(TRD_C64, z, 3);
    (void)state;
    check_case("H15.json", 2);
    assert_double(s.max.f, 5);
    assert_double(s.min.f, 0);
    assert_near(s.l2, 5.196152422706632, 1e-15);
    assert_int_equal(s.zero, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_case_H01__fp16_means_do_not_overflow),
        cmocka_unit_test(test_case_H01__fp16_ones),
        cmocka_unit_test(test_case_H02__l2_above_the_fp32_range),
        cmocka_unit_test(test_case_H03__std_of_close_values),
        cmocka_unit_test(test_case_H04__twenty_million_ones),
        cmocka_unit_test(test_case_H05__nan_wherever_it_stands),
        cmocka_unit_test(test_case_H06__more_than_2_31_elements),
        cmocka_unit_test(test_case_H07__sample_positions_are_numpys),
        cmocka_unit_test(test_case_H08__every_fp8_code),
        cmocka_unit_test(test_case_H09__subnormals_under_flush_to_zero),
        cmocka_unit_test(test_case_H10__integers_and_bool),
        cmocka_unit_test(test_case_H11__empty_and_scalar),
        cmocka_unit_test(test_case_H12__the_contiguous_copies),
        cmocka_unit_test(test_case_H12__the_views_themselves),
        cmocka_unit_test(test_case_H15__complex_is_not_its_real_part),
    };

    if (!getenv("TRD_TEST_DATA"))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
