/* Entries: records, losses and dictionary words. */
#include <math.h>

#include "tests/lib/unit.h"

#include "proto/histogram.h"
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
    /* behind these there is padding */
    assert_memory_equal(&back.stats, &r.stats,
                        offsetof(struct trd_stats, sampling));
    assert_int_equal(back.stats.sampling, TRD_EQUIDISTANT);
    assert_int_equal(back.stats.sampling_arg, 0);
    assert_null(back.stats.histogram);
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

/* Writes it and reads it back: the result of record_get(). */
static int there_and_back(const struct wire_record *r,
                          struct wire_record *back)
{
    struct entry e;
    struct writer w = body();
    assert_int_equal(record_put(&w, r), 0);
    assert_int_equal(entry_get(buffer, seal(ENTRY_RECORD, &w, 1), &e), 0);
    return record_get(&e, back);
}

static struct trd_histogram few_bins(void)
{
    struct trd_histogram h = {.kind = TRD_HISTOGRAM_ROWS, .first = 7, .n = 4,
                              .count = {3, 0, 128, 98173}};
    return h;
}

static void test_record__rule_and_histogram_survive_the_way(void **state)
{
    (void)state;
    static const uint8_t counts[] = {3, 0, 0x80, 0x01, 0xfd, 0xfe, 0x05};
    uint8_t samples[32] = {1, 2, 3};
    struct trd_histogram h = few_bins();
    struct wire_record r = half_record(samples), back;
    assert_int_equal(there_and_back(&r, &back), 0);
    assert_int_equal(back.stats.sampling, TRD_EQUIDISTANT);
    assert_int_equal(back.histogram.kind, TRD_HISTOGRAM_NONE);
    r.stats.sampling = TRD_EVERY;
    r.stats.sampling_arg = 6144;
    assert_int_equal(there_and_back(&r, &back), 0);
    assert_int_equal(back.stats.sampling, TRD_EVERY);
    assert_int_equal(back.stats.sampling_arg, 6144);
    assert_int_equal(back.stats.has, TRD_HAS_ALL);
    assert_int_equal(back.histogram.kind, TRD_HISTOGRAM_NONE);
    r.stats.sampling = TRD_RANDOM;
    r.stats.sampling_arg = UINT64_MAX;
    r.stats.histogram = &h;
    assert_int_equal(there_and_back(&r, &back), 0);
    assert_true(back.stats.sampling_arg == UINT64_MAX);
    assert_null(back.stats.histogram);
    assert_int_equal(back.histogram.kind, TRD_HISTOGRAM_ROWS);
    assert_int_equal(back.histogram.first, 7);
    assert_int_equal(back.histogram.n, 4);
    assert_int_equal(back.histogram.counts.n, sizeof counts);
    assert_memory_equal(back.histogram.counts.text, counts, sizeof counts);
    assert_memory_equal(back.samples, samples, sizeof samples);
    r.stats.sampling = TRD_EQUIDISTANT;
    h.first = h.n = 0; /* of an empty tensor */
    assert_int_equal(there_and_back(&r, &back), 0);
    assert_int_equal(back.histogram.kind, TRD_HISTOGRAM_ROWS);
    assert_int_equal(back.histogram.n, 0);
    h.kind = TRD_HISTOGRAM_NONE; /* a structure, but nothing in it */
    assert_int_equal(there_and_back(&r, &back), 0);
    assert_int_equal(back.histogram.kind, TRD_HISTOGRAM_NONE);
}

/* The same bounds where it is written and where it is read. */
static void refused(const struct wire_record *r)
{
    struct wire_record back;
    assert_false(record_figures_ok(r->dtype, &r->stats));
    assert_int_equal(there_and_back(r, &back), TRD_ECORRUPT);
}

static void test_record__rules_that_cannot_be_are_refused(void **state)
{
    (void)state;
    uint8_t samples[32] = {0};
    struct wire_record r = half_record(samples);
    assert_true(record_figures_ok(r.dtype, &r.stats));
    r.stats.sampling = TRD_SAMPLING_COUNT;
    refused(&r);
    r.stats.sampling = TRD_EVERY; /* of distance 0 */
    refused(&r);
    r.stats.sampling_arg = 6554; /* 15 of them are below 98304 */
    refused(&r);
    r.stats.sampling_arg = 6553;
    assert_true(record_figures_ok(r.dtype, &r.stats));
    r.stats.sampling_arg = UINT64_MAX;
    refused(&r);
    r.stats.sample_n = 1;
    assert_true(record_figures_ok(r.dtype, &r.stats));
}

static void test_record__histograms_that_cannot_be_are_refused(void **state)
{
    (void)state;
    struct trd_histogram h = few_bins();
    struct wire_record r = half_record(NULL), back;
    r.stats.sample_n = 0;
    r.stats.histogram = &h;
    assert_true(record_figures_ok(r.dtype, &r.stats));
    h.kind = TRD_HISTOGRAM_COUNT;
    refused(&r);
    h = few_bins();
    h.first = 29; /* float16 has 32 bins */
    refused(&r);
    h.first = UINT32_MAX;
    refused(&r);
    h.first = 28;
    assert_true(record_figures_ok(r.dtype, &r.stats));
    h.n = 0;
    refused(&r);
    h = few_bins();
    h.count[0] = 0;
    refused(&r);
    h = few_bins();
    h.count[3] = 0;
    refused(&r);
    h = few_bins();
    h.count[3]++; /* more than there are elements */
    refused(&r);
    h.count[1] = UINT64_MAX;
    h.count[3] = 2; /* and their sum overflows */
    refused(&r);
    h = few_bins();
    r.dtype = TRD_OPAQUE; /* has no exponents */
    r.stats.has = 0;
    refused(&r);
    r.dtype = TRD_F64;
    h.first = 2044;
    assert_int_equal(there_and_back(&r, &back), 0);
}

static void test_record__masks_of_later_versions_are_refused(void **state)
{
    (void)state;
    struct wire_record r = half_record(NULL), back;
    struct entry e;
    r.stats.sample_n = 0;
    r.stats.has = 0;
    r.stats.sampling = TRD_RANDOM;
    struct writer w = body();
    assert_int_equal(record_put(&w, &r), 0);
    uint8_t *mask = w.at - 4; /* mask, rule, seed, samples */
    assert_int_equal(*mask, 1);
    for (unsigned v = 0; v < 256; v++) {
        *mask = (uint8_t)v;
        assert_int_equal(entry_get(buffer, seal(ENTRY_RECORD, &w, 1), &e), 0);
        assert_int_equal(record_get(&e, &back), v == 1 ? 0 : TRD_ECORRUPT);
    }
    *mask = 1;
    mask[1] = TRD_EQUIDISTANT; /* goes without saying */
    assert_int_equal(entry_get(buffer, seal(ENTRY_RECORD, &w, 1), &e), 0);
    assert_int_equal(record_get(&e, &back), TRD_ECORRUPT);
}

static void test_record__cut_anywhere_is_refused(void **state)
{
    (void)state;
    uint8_t samples[32] = {0};
    struct trd_histogram h = few_bins();
    struct wire_record r = half_record(samples), back;
    struct entry e;
    r.stats.sampling = TRD_RANDOM;
    r.stats.sampling_arg = UINT64_MAX;
    r.stats.histogram = &h;
    struct writer w = body();
    assert_int_equal(record_put(&w, &r), 0);
    size_t n = (size_t)(w.at - buffer);
    for (size_t cut = ENTRY_HEADER_BYTES; cut < n; cut++) {
        struct writer part = {buffer + cut, NULL, false};
        assert_int_equal(entry_get(buffer, seal(ENTRY_RECORD, &part, 1), &e),
                         0);
        assert_int_equal(record_get(&e, &back), TRD_ECORRUPT);
    }
}

/* All that a record may have, every varint as long as it gets. */
static void test_record__the_longest_fits_an_entry(void **state)
{
    (void)state;
    static uint8_t samples[16 * TRD_MAX_SAMPLES];
    static struct trd_histogram h;
    const uint64_t most = INT64_MAX;
    struct wire_record r = {
        .site = UINT32_MAX, .shape = UINT32_MAX, .dtype = TRD_C128,
        .t_ns = most / 2,
        .when = {most, most, UINT32_MAX, UINT32_MAX, UINT32_MAX},
        .stats = {.n = most, .nan = most, .pinf = most, .ninf = most,
                  .zero = most, .subnormal = most, .has = TRD_HAS_ALL,
                  .sample_n = TRD_MAX_SAMPLES, .sampling = TRD_RANDOM,
                  .sampling_arg = UINT64_MAX, .histogram = &h},
        .samples = samples}, back;
    h.kind = TRD_HISTOGRAM_EXACT;
    h.n = TRD_MAX_BINS;
    for (uint32_t i = 0; i < h.n; i++)
        h.count[i] = most / TRD_MAX_BINS;
    assert_true(record_figures_ok(r.dtype, &r.stats));
    assert_int_equal(there_and_back(&r, &back), 0);
    assert_int_equal(back.histogram.n, TRD_MAX_BINS);
    assert_int_equal(back.stats.sample_n, TRD_MAX_SAMPLES);
    assert_true(ENTRY_HEADER_BYTES + RECORD_HISTOGRAM_BYTES + sizeof samples <=
                ENTRY_MAX_BYTES);
    uint8_t head[RECORD_HISTOGRAM_BYTES];
    for (uint32_t i = 0; i < h.n; i++)
        h.count[i] = UINT64_MAX; /* nobody takes it, but it is written */
    struct writer w = writer_of(head, sizeof head);
    assert_int_equal(record_head_put(&w, &r), 0);
    r.stats.histogram = NULL;
    w = writer_of(head, RECORD_HEAD_BYTES);
    assert_int_equal(record_head_put(&w, &r), 0);
}

static void test_histogram__stored_in_as_few_bytes_as_it_needs(void **state)
{
    (void)state;
    const struct {
        uint64_t most;
        unsigned width;
    } rows[] = {{255, 1}, {256, 2}, {65535, 2}, {65536, 4},
                {UINT32_MAX, 4}, {UINT64_C(1) << 32, 8}};
    uint8_t stored[HISTOGRAM_MAX_BYTES];
    struct trd_histogram h = few_bins();
    struct wire_record r = half_record(NULL), back;
    struct histogram got;
    r.stats.sample_n = 0;
    r.stats.n = INT64_MAX;
    r.stats.histogram = &h;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        h.count[2] = rows[i].most;
        h.count[3] = 9;
        assert_int_equal(there_and_back(&r, &back), 0);
        size_t n = histogram_put(&back.histogram, r.dtype, stored);
        assert_int_equal(n, HISTOGRAM_HEAD_BYTES + 4 * rows[i].width);
        struct slice s = {(const char *)stored, n};
        assert_int_equal(histogram_get(s, TRD_F16, &got), 0);
        assert_int_equal(got.kind, TRD_HISTOGRAM_ROWS);
        assert_int_equal(got.first, 7);
        assert_int_equal(got.n, 4);
        assert_int_equal(got.width, rows[i].width);
        for (uint32_t k = 0; k < 4; k++)
            assert_true(histogram_count(&got, k) == h.count[k]);
        assert_int_equal(histogram_get(s, TRD_F32, &got), TRD_ECORRUPT);
        for (s.n = 0; s.n < HISTOGRAM_HEAD_BYTES; s.n++)
            assert_int_equal(histogram_get(s, TRD_F16, &got), TRD_ECORRUPT);
    }
    struct slice s = {(const char *)stored, HISTOGRAM_HEAD_BYTES + 8};
    for (unsigned width = 0; width < 256; width++) {
        stored[2] = (uint8_t)width;
        assert_int_equal(histogram_get(s, TRD_F16, &got),
                         width == 1 || width == 2 || width == 4 || width == 8
                             ? 0
                             : TRD_ECORRUPT);
    }
    stored[2] = 1;
    stored[3] = 24; /* 24 + 8 bins: float16 has 32 */
    assert_int_equal(histogram_get(s, TRD_F16, &got), 0);
    stored[3] = 25;
    assert_int_equal(histogram_get(s, TRD_F16, &got), TRD_ECORRUPT);
    stored[3] = 33;
    s.n = HISTOGRAM_HEAD_BYTES;
    assert_int_equal(histogram_get(s, TRD_F16, &got), TRD_ECORRUPT);
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
        cmocka_unit_test(test_record__rule_and_histogram_survive_the_way),
        cmocka_unit_test(test_record__rules_that_cannot_be_are_refused),
        cmocka_unit_test(test_record__histograms_that_cannot_be_are_refused),
        cmocka_unit_test(test_record__masks_of_later_versions_are_refused),
        cmocka_unit_test(test_record__cut_anywhere_is_refused),
        cmocka_unit_test(test_record__the_longest_fits_an_entry),
        cmocka_unit_test(
            test_histogram__stored_in_as_few_bytes_as_it_needs),
        cmocka_unit_test(test_dictionary__words_survive_the_way),
        cmocka_unit_test(test_loss__unknown_cause_is_refused),
        cmocka_unit_test(test_varint__overlong_forms_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
