/* Entries: records, losses and dictionary words. */
#include <math.h>

#include "tests/lib/unit.h"

#include "proto/record.h"
#include "tracerd/client.h"

static uint8_t buffer[ENTRY_MAX_BYTES];

/* Writes an entry with the body already at its place. */
static size_t seal(uint32_t kind, const struct writer *w, uint32_t number)
{
    uint32_t len = (uint32_t)(w->at - buffer);
    uint32_t word = entry_seal(buffer, kind, len, number);
    struct writer head = writer_of(buffer, 4);
    put_u32(&head, word);
    return len;
}

static struct writer body(void)
{
    return writer_of(buffer + ENTRY_HEADER_BYTES,
                     sizeof buffer - ENTRY_HEADER_BYTES);
}

static struct wire_record half_record(const uint8_t *samples)
{
    struct wire_record r = {
        .site = 300,
        .shape = 301,
        .dtype = TRD_F16,
        .t_ns = 123456789012,
        .when = {.step = 1000, .iteration = 1000, .microbatch = 1},
        .stats = {.n = 98304, .zero = 17, .max.f = 0.5, .min.f = -0.25,
                  .absmax.f = 0.5, .absmin.f = 0x1p-24, .mean = 0.125,
                  .std = 0.0078125, .l2 = 3.5, .hash = 0xfeedfacecafebeef,
                  .has = TRD_HAS_ALL, .sample_n = 16},
        .samples = samples};
    return r;
}

static void test_record__half_with_16_samples_fits_120_bytes(void **state)
{
    (void)state;
    uint8_t samples[32] = {1, 2, 3};
    struct wire_record r = half_record(samples), back;
    struct entry e;
    struct writer w = body();
    assert_int_equal(record_put(&w, &r), 0);
    size_t n = seal(ENTRY_RECORD, &w, 7);
    assert_true(entry_span(n) <= 120);
    assert_int_equal(entry_get(buffer, n, &e), 0);
    assert_int_equal(e.kind, ENTRY_RECORD);
    assert_int_equal(e.number, 7);
    assert_int_equal(record_get(&e, &back), 0);
    assert_memory_equal(&back.stats, &r.stats, sizeof r.stats);
    assert_true(back.when.step == 1000 && back.when.microbatch == 1);
    assert_memory_equal(back.samples, samples, sizeof samples);
    assert_int_equal(back.t_ns, r.t_ns);
}

static void test_record__integers_keep_all_64_bits(void **state)
{
    (void)state;
    struct wire_record r = {.site = 1, .shape = 2, .dtype = TRD_I64,
                            .stats = {.n = 1, .has = TRD_HAS_RANGE |
                                                     TRD_HAS_ABS}},
                       back;
    struct entry e;
    r.stats.max.i = INT64_MAX;
    r.stats.min.i = INT64_MIN;
    r.stats.absmax.u = UINT64_C(1) << 63;
    r.stats.absmin.u = 1;
    struct writer w = body();
    assert_int_equal(record_put(&w, &r), 0);
    assert_int_equal(entry_get(buffer, seal(ENTRY_RECORD, &w, 1), &e), 0);
    assert_int_equal(record_get(&e, &back), 0);
    assert_true(back.stats.max.i == INT64_MAX);
    assert_true(back.stats.min.i == INT64_MIN);
    assert_true(back.stats.absmax.u == UINT64_C(1) << 63);
}

static void test_record__text_figures_may_be_nan_and_infinite(void **state)
{
    (void)state;
    struct wire_record r = {
        .site = 1, .shape = 2, .dtype = TRD_TEXT,
        .stats = {.n = 4, .mean = -(double)INFINITY, .std = (double)NAN,
                  .has = TRD_IS_GIVEN | TRD_HAS_RANGE | TRD_HAS_MEAN}},
        back;
    struct entry e;
    r.stats.max.f = (double)NAN;
    r.stats.min.f = (double)INFINITY;
    struct writer w = body();
    assert_int_equal(record_put(&w, &r), 0);
    assert_int_equal(entry_get(buffer, seal(ENTRY_RECORD, &w, 1), &e), 0);
    assert_int_equal(record_get(&e, &back), 0);
    assert_true(isnan(back.stats.max.f) && isinf(back.stats.min.f));
    assert_true(back.stats.mean < 0 && isnan(back.stats.std));
}

/* Bits are moved, not converted: see test_stats_same.c for the modes. */
static void test_record__fp32_extremes_are_exact(void **state)
{
    (void)state;
    const double values[] = {0x1p-149, 0x1.fffffcp-127, 0x1p-126, 0x1p-140,
                             0x1.fffffep127, 1.5, 0.0};
    for (unsigned i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct wire_record r = {.site = 1, .shape = 2, .dtype = TRD_F32,
                                .stats = {.n = 1, .has = TRD_HAS_RANGE}},
                           back;
        struct entry e;
        r.stats.max.f = values[i];
        r.stats.min.f = -values[i];
        struct writer w = body();
        assert_int_equal(record_put(&w, &r), 0);
        assert_int_equal(entry_get(buffer, seal(ENTRY_RECORD, &w, 1), &e), 0);
        assert_int_equal(record_get(&e, &back), 0);
        assert_true(back.stats.max.f == values[i]);
        assert_true(back.stats.min.f == -values[i]);
    }
}

static void test_entry__every_flipped_bit_is_found(void **state)
{
    (void)state;
    uint8_t samples[32] = {9};
    struct wire_record r = half_record(samples);
    struct entry e;
    struct writer w = body();
    assert_int_equal(record_put(&w, &r), 0);
    size_t n = seal(ENTRY_RECORD, &w, 7);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        buffer[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(entry_get(buffer, n, &e) < 0);
        buffer[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < n; cut++)
        assert_true(entry_get(buffer, cut, &e) < 0);
}

/* A body that does not match its checksum cannot reach record_get; one that
 * does, from a hostile peer, must still be refused. */
static void test_record__bodies_that_lie_are_refused(void **state)
{
    (void)state;
    uint8_t samples[32] = {0};
    struct wire_record r = half_record(samples), back;
    struct entry e;
    struct writer w = body();
    assert_int_equal(record_put(&w, &r), 0);
    size_t n = (size_t)(w.at - buffer);
    for (size_t cut = ENTRY_HEADER_BYTES; cut < n; cut++) {
        struct writer part = {buffer + cut, NULL, false};
        assert_int_equal(entry_get(buffer, seal(ENTRY_RECORD, &part, 1), &e),
                         0);
        assert_int_equal(record_get(&e, &back), TRD_ECORRUPT);
    }
    r.stats.sample_n = 16;
    r.stats.n = 15; /* more samples than elements */
    w = body();
    record_put(&w, &r);
    assert_int_equal(entry_get(buffer, seal(ENTRY_RECORD, &w, 1), &e), 0);
    assert_int_equal(record_get(&e, &back), TRD_ECORRUPT);
}

static void test_dictionary__words_survive_the_way(void **state)
{
    (void)state;
    struct entry e;
    struct writer w = body();
    struct wire_object o = {7, slice_of("Conv-1-2"), slice_of("a.b")}, o2;
    assert_int_equal(object_put(&w, &o), 0);
    assert_int_equal(entry_get(buffer, seal(ENTRY_OBJECT, &w, 5), &e), 0);
    assert_int_equal(object_get(&e, &o2), 0);
    assert_slice(o2.class_name, "Conv-1-2");
    assert_slice(o2.module, "a.b");
    w = body();
    struct wire_site s = {5, TRD_FORWARD, TRD_INPUT, 2, slice_of("x")}, s2;
    assert_int_equal(site_put(&w, &s), 0);
    assert_int_equal(entry_get(buffer, seal(ENTRY_SITE, &w, 6), &e), 0);
    assert_int_equal(site_get(&e, &s2), 0);
    assert_int_equal(s2.object, 5);
    e.number = 5; /* an object must come before the site that names it */
    assert_int_equal(site_get(&e, &s2), TRD_ECORRUPT);
    w = body();
    struct wire_shape h = {3, {16, 0, 512}}, h2;
    assert_int_equal(shape_put(&w, &h), 0);
    assert_int_equal(entry_get(buffer, seal(ENTRY_SHAPE, &w, 7), &e), 0);
    assert_int_equal(shape_get(&e, &h2), 0);
    assert_int_equal(h2.dim[2], 512);
    w = body();
    struct slice note;
    assert_int_equal(note_put(&w, slice_of("nnz=3")), 0);
    assert_int_equal(entry_get(buffer, seal(ENTRY_NOTE, &w, 8), &e), 0);
    assert_int_equal(note_get(&e, &note), 0);
    assert_slice(note, "nnz=3");
}

static void test_loss__unknown_cause_is_refused(void **state)
{
    (void)state;
    struct entry e;
    struct wire_loss l = {TRD_LOST_RING_FULL, 12, 1200, 5}, back;
    struct writer w = body();
    assert_int_equal(loss_put(&w, &l), 0);
    assert_int_equal(entry_get(buffer, seal(ENTRY_LOSS, &w, 1), &e), 0);
    assert_int_equal(loss_get(&e, &back), 0);
    assert_int_equal(back.count, 12);
    l.cause = TRD_CAUSE_COUNT;
    w = body();
    assert_int_equal(loss_put(&w, &l), 0);
    assert_int_equal(entry_get(buffer, seal(ENTRY_LOSS, &w, 1), &e), 0);
    assert_int_equal(loss_get(&e, &back), TRD_ECORRUPT);
}

static void test_varint__overlong_forms_are_refused(void **state)
{
    (void)state;
    const uint8_t largest[] = {0xff, 0xff, 0xff, 0xff, 0xff,
                               0xff, 0xff, 0xff, 0xff, 0x01};
    const uint8_t over[] = {0xff, 0xff, 0xff, 0xff, 0xff,
                            0xff, 0xff, 0xff, 0xff, 0x02};
    const uint8_t endless[] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                               0x80, 0x80, 0x80, 0x80, 0x80};
    struct reader r = reader_of(largest, sizeof largest);
    assert_true(get_varint(&r) == UINT64_MAX && !r.bad);
    r = reader_of(over, sizeof over);
    get_varint(&r);
    assert_true(r.bad);
    r = reader_of(endless, sizeof endless);
    get_varint(&r);
    assert_true(r.bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record__half_with_16_samples_fits_120_bytes),
        cmocka_unit_test(test_record__integers_keep_all_64_bits),
        cmocka_unit_test(test_record__text_figures_may_be_nan_and_infinite),
        cmocka_unit_test(test_record__fp32_extremes_are_exact),
        cmocka_unit_test(test_entry__every_flipped_bit_is_found),
        cmocka_unit_test(test_record__bodies_that_lie_are_refused),
        cmocka_unit_test(test_dictionary__words_survive_the_way),
        cmocka_unit_test(test_loss__unknown_cause_is_refused),
        cmocka_unit_test(test_varint__overlong_forms_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
