/* Bytes of version 1, kept for ever: what an old program wrote must decode,
 * and what we write must be the same bytes. TRD_REWRITE=1 writes the files
 * anew, which only a new format version may do.
 *
 * A golden file is text: rows of 16 bytes that are not all zero, as offset
 * and hex digits; the first line is the length. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/unit.h"

#include "client/journal.h"
#include "client/spool.h"
#include "proto/crc32c.h"
#include "proto/frame.h"
#include "proto/query.h"
#include "tracerd/client.h"

static void path_of(const char *name, char *out, size_t cap)
{
    const char *data = getenv("TRD_TEST_DATA");
    assert_non_null(data);
    snprintf(out, cap, "%s/golden/%s", data, name);
}

static void rewrite(const char *path, const uint8_t *bytes, size_t n)
{
    static const uint8_t zero[16];
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%zu\n", n);
    for (size_t i = 0; i < n; i += 16) {
        size_t row = n - i < 16 ? n - i : 16;
        if (!memcmp(bytes + i, zero, row))
            continue;
        fprintf(f, "%08zx ", i);
        for (size_t k = 0; k < row; k++)
            fprintf(f, "%02x", bytes[i + k]);
        fprintf(f, "\n");
    }
    fclose(f);
}

static uint8_t *load(const char *path, size_t *n)
{
    char hex[64];
    size_t at;
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s is missing", path);
    assert_int_equal(fscanf(f, "%zu", n), 1);
    uint8_t *bytes = calloc(1, *n);
    assert_non_null(bytes);
    while (fscanf(f, "%zx %63s", &at, hex) == 2)
        for (size_t k = 0; hex[2 * k]; k++) {
            unsigned v;
            assert_int_equal(sscanf(hex + 2 * k, "%2x", &v), 1);
            assert_true(at + k < *n);
            bytes[at + k] = (uint8_t)v;
        }
    fclose(f);
    return bytes;
}

/* Compares what we write now with the file; the caller frees the result. */
static uint8_t *golden(const char *name, const uint8_t *bytes, size_t n)
{
    char path[4096];
    size_t kept;
    path_of(name, path, sizeof path);
    if (getenv("TRD_REWRITE"))
        rewrite(path, bytes, n);
    uint8_t *old = load(path, &kept);
    assert_int_equal(kept, n);
    assert_memory_equal(old, bytes, n);
    return old;
}

static size_t framed(uint8_t *out, uint16_t type, uint64_t seq, size_t n)
{
    struct frame f = {.version = 1, .type = type, .len = (uint32_t)n,
                      .crc = crc32c(0, out + FRAME_HEADER_BYTES, n),
                      .epoch = 0x0123456789abcdef, .seq = seq};
    frame_put(out, &f);
    return FRAME_HEADER_BYTES + n;
}

static struct hello a_hello(void)
{
    struct hello h = {.version_min = 1, .version_max = 1, .rank = 1,
                      .attempt = 2, .world = 4, .pid = 1234,
                      .start_time = 5678,
                      .boot_id = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
                                  13, 14, 15},
                      .mono_ns = 1000, .real_ns = 1790000000000000000,
                      .first_seq = 1, .last_seq = 3, .dict_n = 3,
                      .max_len = FRAME_MAX_BYTES, .run = slice_of("train-1"),
                      .job = slice_of("job"), .host = slice_of("node"),
                      .client = slice_of("0.1.0"),
                      .journal = slice_of("train-1.1.89abcdef.journal"),
                      .info = slice_of("{}")};
    return h;
}

static void test_golden__hello_of_version_1(void **state)
{
    (void)state;
    uint8_t bytes[1024];
    struct hello h = a_hello(), back;
    struct frame f;
    size_t n;
    assert_int_equal(hello_put(&h, bytes + FRAME_HEADER_BYTES, 512, &n), 0);
    n = framed(bytes, FRAME_HELLO, 0, n);
    uint8_t *old = golden("v1-hello.txt", bytes, n);
    assert_int_equal(frame_get(old, &f), 0);
    assert_int_equal(frame_check(&f, old + FRAME_HEADER_BYTES), 0);
    assert_int_equal(hello_get(old + FRAME_HEADER_BYTES, f.len, &back), 0);
    assert_slice(back.run, "train-1");
    free(old);
}

static struct hello a_hello_with_policy(void)
{
    struct hello h = a_hello();
    h.spool = slice_of("/var/spool/train-1.1.89abcdef.spool");
    h.block_ms = 250;
    h.spool_bytes = 1 << 30;
    return h;
}

static void test_golden__hello_with_a_policy_of_version_1(void **state)
{
    (void)state;
    uint8_t bytes[1024];
    struct hello h = a_hello_with_policy(), back;
    struct frame f;
    size_t n;
    assert_int_equal(hello_put(&h, bytes + FRAME_HEADER_BYTES, 512, &n), 0);
    n = framed(bytes, FRAME_HELLO, 0, n);
    uint8_t *old = golden("v1-policy.txt", bytes, n);
    assert_int_equal(frame_get(old, &f), 0);
    assert_int_equal(hello_get(old + FRAME_HEADER_BYTES, f.len, &back), 0);
    assert_slice(back.spool, "/var/spool/train-1.1.89abcdef.spool");
    assert_int_equal(back.block_ms, 250);
    assert_int_equal(back.spool_bytes, 1 << 30);
    free(old);
}

static void test_golden__answers_of_version_1(void **state)
{
    (void)state;
    uint8_t bytes[2048];
    size_t n, all = 0;
    struct welcome w = {.version = 1, .store_id = {9, 8, 7}, .stream = 4097,
                        .committed_seq = 3, .durable_seq = 2, .dict_n = 3,
                        .credit_bytes = 4 << 20, .max_len = FRAME_MAX_BYTES,
                        .idle_ms = 5000, .run = slice_of("train-1-2")};
    struct ack a = {3, 3, 3, 1 << 20};
    struct gap g = {4, 9, 0, TRD_LOST_STORE};
    struct ping p = {11, 12};
    struct refusal r = {REASON_BUSY, 100, slice_of("too many clients")};
    welcome_put(&w, bytes + all + FRAME_HEADER_BYTES, 256, &n);
    all += framed(bytes + all, FRAME_WELCOME, 0, n);
    ack_put(&a, bytes + all + FRAME_HEADER_BYTES, 256, &n);
    all += framed(bytes + all, FRAME_ACK, 0, n);
    gap_put(&g, bytes + all + FRAME_HEADER_BYTES, 256, &n);
    all += framed(bytes + all, FRAME_GAP, 4, n);
    ping_put(&p, bytes + all + FRAME_HEADER_BYTES, 256, &n);
    all += framed(bytes + all, FRAME_PING, 0, n);
    refusal_put(&r, bytes + all + FRAME_HEADER_BYTES, 256, &n);
    all += framed(bytes + all, FRAME_REFUSE, 0, n);
    all += framed(bytes + all, FRAME_BYE, 9, 0);
    free(golden("v1-answers.txt", bytes, all));
}

/* A journal with its dictionary, two records and a loss. */
static void fill(struct trd__journal *j)
{
    uint8_t body[256], samples[8] = {0x00, 0x3c, 0x00, 0xbc, 0, 0x40, 0, 0};
    uint32_t object, site, shape;
    struct writer w = writer_of(body, sizeof body);
    struct wire_object o = {1, slice_of("CustomLinear"), slice_of("layer1")};
    object_put(&w, &o);
    trd__journal_intern(j, ENTRY_OBJECT, body, (size_t)(w.at - body),
                        &object);
    w = writer_of(body, sizeof body);
    struct wire_site s = {object, TRD_FORWARD, TRD_INPUT, 0, slice_of("0")};
    site_put(&w, &s);
    trd__journal_intern(j, ENTRY_SITE, body, (size_t)(w.at - body), &site);
    w = writer_of(body, sizeof body);
    struct wire_shape h = {2, {2, 2}};
    shape_put(&w, &h);
    trd__journal_intern(j, ENTRY_SHAPE, body, (size_t)(w.at - body), &shape);
    for (uint32_t i = 1; i <= 2; i++) {
        struct wire_record r = {
            .site = site, .shape = shape, .dtype = TRD_F16, .t_ns = 100 * i,
            .when = {.step = i, .iteration = i, .microbatch = 1},
            .stats = {.n = 4, .zero = 1, .max.f = 2, .min.f = -1,
                      .absmax.f = 2, .absmin.f = 1, .mean = 0.5,
                      .std = 1.118033988749895, .l2 = 2.449489742783178,
                      .hash = 0x1122334455667788, .has = TRD_HAS_ALL,
                      .sample_n = 4},
            .samples = samples};
        w = writer_of(body, sizeof body);
        record_put(&w, &r);
        trd__journal_put(j, ENTRY_RECORD, body, (size_t)(w.at - body), NULL,
                         0);
    }
    w = writer_of(body, sizeof body);
    struct wire_loss l = {TRD_LOST_RING_FULL, 7, 700, 300};
    loss_put(&w, &l);
    trd__journal_put(j, ENTRY_LOSS, body, (size_t)(w.at - body), NULL, 0);
}

static void read_journal(const uint8_t *image, uint64_t size)
{
    struct journal_head head;
    struct journal_state state;
    struct journal_walk walk;
    struct entry e;
    struct wire_record r;
    struct wire_loss l;
    uint64_t seq, at = 0;
    assert_int_equal(journal_head_get(image, size, &head), 0);
    assert_int_equal(journal_state_get(image, &state), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(journal_dict_next(image, &head, &at, &e), 1);
    assert_int_equal(journal_dict_next(image, &head, &at, &e), 0);
    journal_walk_init(&walk, image, &head, &state);
    for (unsigned i = 1; i <= 2; i++) {
        assert_int_equal(journal_next(&walk, &e, &seq), JOURNAL_ENTRY);
        assert_int_equal(record_get(&e, &r), 0);
        assert_int_equal(r.when.step, i);
        assert_true(r.stats.std == 1.118033988749895);
    }
    assert_int_equal(journal_next(&walk, &e, &seq), JOURNAL_ENTRY);
    assert_int_equal(loss_get(&e, &l), 0);
    assert_int_equal(l.count, 7);
    assert_int_equal(journal_next(&walk, &e, &seq), JOURNAL_END);
}

static void test_golden__journal_of_version_1(void **state)
{
    (void)state;
    uint8_t hello[512];
    size_t n;
    struct hello h = a_hello();
    struct trd__journal j;
    struct journal_head head = {.epoch = 0x0123456789abcdef, .pid = 1234,
                                .start_time = 5678, .boot_id = {1},
                                .ring_bytes = JOURNAL_MIN_BYTES};
    hello_put(&h, hello, sizeof hello, &n);
    assert_int_equal(trd__journal_open(&j, NULL, "x", &head, hello, n), 0);
    fill(&j);
    uint8_t *old = golden("v1-journal.txt", j.map, j.head.size);
    read_journal(old, j.head.size);
    free(old);
    trd__journal_close(&j, 0);
}

static void read_spool(const uint8_t *bytes, size_t n)
{
    static const enum spool_step steps[] = {
        SPOOL_WORD, SPOOL_WORD, SPOOL_WORD, SPOOL_ENTRY, SPOOL_ENTRY,
        SPOOL_ENTRY, SPOOL_END};
    struct spool_head head;
    struct spool_walk walk;
    struct hello h;
    struct entry e;
    uint64_t seq;
    assert_int_equal(spool_head_get(bytes, n, &head), 0);
    assert_true(head.epoch == 0x0123456789abcdef);
    assert_int_equal(head.first_seq, 1);
    assert_int_equal(spool_hello_get(bytes, n, &head, &h), 0);
    assert_int_equal(h.block_ms, 250);
    spool_walk_init(&walk, &head);
    size_t at = (size_t)spool_entries_at(&head), used;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++, at += used)
        assert_int_equal(spool_next(&walk, bytes + at, n - at, true, &used,
                                    &e, &seq),
                         steps[i]);
    assert_int_equal(walk.seq, 4);
}

static void test_golden__spool_of_version_1(void **state)
{
    (void)state;
    char dir[] = "/tmp/trd-golden-XXXXXX";
    uint8_t bytes[4096];
    struct hello h = a_hello_with_policy();
    struct trd__journal j;
    struct trd__spool sp = {.fd = -1};
    struct trd__run run;
    uint64_t pos = 0;
    struct journal_head head = {.epoch = 0x0123456789abcdef, .pid = 1234,
                                .start_time = 5678, .boot_id = {1},
                                .ring_bytes = JOURNAL_MIN_BYTES};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(trd__journal_open(&j, NULL, "x", &head, "", 0), 0);
    fill(&j);
    assert_int_equal(
        trd__spool_open(&sp, dir, 1 << 20, h.run, h.rank, head.epoch), 0);
    trd__journal_peek(&j, &pos, 1024, &run);
    assert_int_equal(trd__spool_append(&sp, &j, &h, &run, 1), 0);
    FILE *f = fopen(sp.path, "r");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    trd__spool_close(&sp, 1);
    trd__journal_close(&j, 0);
    assert_int_equal(rmdir(dir), 0);
    uint8_t *old = golden("v1-spool.txt", bytes, n);
    read_spool(old, n);
    free(old);
}

static void test_golden__data_and_dictionary_of_version_1(void **state)
{
    (void)state;
    uint8_t bytes[2048];
    struct trd__journal j;
    struct trd__run run;
    size_t all = 0;
    uint64_t pos = 0;
    struct journal_head head = {.ring_bytes = JOURNAL_MIN_BYTES};
    assert_int_equal(trd__journal_open(&j, NULL, "x", &head, "", 0), 0);
    fill(&j);
    for (int i = 0; i < 2; i++) {
        uint8_t *payload = bytes + all + FRAME_HEADER_BYTES;
        if (i == 0)
            trd__journal_words(&j, 0, 1024, &run);
        else
            trd__journal_peek(&j, &pos, 1024, &run);
        struct batch b = {run.records, i == 0};
        batch_put(payload, &b);
        memcpy(payload + BATCH_BYTES, run.bytes, run.n);
        all += framed(bytes + all, i ? FRAME_DATA : FRAME_DICT,
                      i ? 1 : 0, BATCH_BYTES + run.n);
    }
    free(golden("v1-data.txt", bytes, all));
    trd__journal_close(&j, 0);
}

/* Two records with what most do without: a rule, a rule and a histogram. */
static void fill_more(struct trd__journal *j)
{
    static const uint8_t samples[4] = {0x00, 0x3c, 0x00, 0xbc};
    static struct trd_histogram h = {
        .kind = TRD_HISTOGRAM_EXACT, .first = 14, .n = 3,
        .count = {1, 0, 300}};
    for (uint32_t i = 1; i <= 2; i++) {
        uint8_t body[RECORD_HISTOGRAM_BYTES];
        struct writer w = writer_of(body, sizeof body);
        struct wire_record r = {
            .site = 2, .shape = 3, .dtype = TRD_F16, .t_ns = 100 * i,
            .when = {.step = i, .iteration = i, .microbatch = 1},
            .stats = {.n = 400, .hash = 0x1122334455667788,
                      .has = TRD_HAS_HASH, .sample_n = 2,
                      .sampling = i == 1 ? TRD_EVERY : TRD_RANDOM,
                      .sampling_arg = i == 1 ? 200 : UINT64_MAX},
            .samples = samples};
        if (i == 2)
            r.stats.histogram = &h;
        assert_int_equal(record_put(&w, &r), 0);
        trd__journal_put(j, ENTRY_RECORD, body, (size_t)(w.at - body), NULL,
                         0);
    }
}

static void read_more(const uint8_t *payload, size_t n)
{
    static const uint8_t counts[] = {1, 0, 0xac, 0x02};
    struct wire_record r[2];
    size_t at = BATCH_BYTES;
    for (int i = 0; i < 2; i++) {
        struct entry e;
        assert_int_equal(entry_get(payload + at, n - at, &e), 0);
        assert_int_equal(record_get(&e, &r[i]), 0);
        at += entry_span(e.len);
    }
    assert_int_equal(at, n);
    assert_int_equal(r[0].stats.sampling, TRD_EVERY);
    assert_int_equal(r[0].stats.sampling_arg, 200);
    assert_int_equal(r[0].histogram.kind, 0);
    assert_int_equal(r[0].stats.has, TRD_HAS_HASH);
    assert_int_equal(r[1].stats.sampling, TRD_RANDOM);
    assert_true(r[1].stats.sampling_arg == UINT64_MAX);
    assert_int_equal(r[1].histogram.kind, TRD_HISTOGRAM_EXACT);
    assert_int_equal(r[1].histogram.first, 14);
    assert_int_equal(r[1].histogram.n, 3);
    assert_int_equal(r[1].histogram.counts.n, sizeof counts);
    assert_memory_equal(r[1].histogram.counts.text, counts, sizeof counts);
}

static void test_golden__rules_and_histograms_of_version_1(void **state)
{
    (void)state;
    uint8_t bytes[1024], *payload = bytes + FRAME_HEADER_BYTES;
    struct trd__journal j;
    struct trd__run run;
    uint64_t pos = 0;
    struct journal_head head = {.ring_bytes = JOURNAL_MIN_BYTES};
    assert_int_equal(trd__journal_open(&j, NULL, "x", &head, "", 0), 0);
    fill_more(&j);
    trd__journal_peek(&j, &pos, 512, &run);
    struct batch b = {run.records, 0};
    batch_put(payload, &b);
    memcpy(payload + BATCH_BYTES, run.bytes, run.n);
    size_t n = framed(bytes, FRAME_DATA, 1, BATCH_BYTES + run.n);
    uint8_t *old = golden("v1-more.txt", bytes, n);
    read_more(old + FRAME_HEADER_BYTES, n - FRAME_HEADER_BYTES);
    free(old);
    trd__journal_close(&j, 0);
}

static void test_golden__question_and_page_of_version_1(void **state)
{
    (void)state;
    static const char *const names[] = {"rank", "max", "text", "none"};
    const struct cell row[] = {{.type = CELL_INT, .i = -1},
                               {.type = CELL_REAL, .f = 0.5},
                               {.type = CELL_TEXT, .s = slice_of("x")},
                               {.type = CELL_NULL}};
    uint8_t bytes[4096];
    struct query q;
    struct page_writer p;
    struct page page;
    size_t n;
    query_init(&q, QUERY_RECORDS);
    q.name = slice_of("forward-CustomLinear-1-2");
    q.rank = 1;
    q.limit = 100;
    assert_int_equal(query_put(&q, bytes, sizeof bytes, &n), 0);
    free(golden("v1-query.txt", bytes, n));
    page_open(&p, bytes, sizeof bytes, PAGE_OK, slice_of(""));
    page_columns(&p, names, 4);
    for (int i = 0; i < 4; i++)
        page_cell(&p, &row[i]);
    n = page_close(&p, slice_of("cursor"));
    uint8_t *old = golden("v1-page.txt", bytes, n);
    assert_int_equal(page_get(old, n, &page), 0);
    assert_int_equal(page.rows, 1);
    free(old);
}

static void test_crc32c__known_answers(void **state)
{
    (void)state;
    uint8_t bytes[32];
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(crc32c(0, bytes, 32), 0x62a8ab43);
    for (uint8_t i = 0; i < 32; i++)
        bytes[i] = i;
    assert_int_equal(crc32c(0, bytes, 32), 0x46dd794e);
    assert_int_equal(crc32c(crc32c(0, bytes, 5), bytes + 5, 27), 0x46dd794e);
}

static void test_crc32c__instruction_and_tables_agree(void **state)
{
    (void)state;
    uint8_t bytes[100];
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    assert_int_equal(crc32c_by_tables(0, "123456789", 9), 0xe3069283);
    for (size_t at = 0; at < 9; at++)
        for (size_t n = 0; at + n <= sizeof bytes; n++)
            assert_int_equal(crc32c(x, bytes + at, n),
                             crc32c_by_tables(x, bytes + at, n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c__known_answers),
        cmocka_unit_test(test_crc32c__instruction_and_tables_agree),
        cmocka_unit_test(test_golden__hello_of_version_1),
        cmocka_unit_test(test_golden__hello_with_a_policy_of_version_1),
        cmocka_unit_test(test_golden__answers_of_version_1),
        cmocka_unit_test(test_golden__journal_of_version_1),
        cmocka_unit_test(test_golden__spool_of_version_1),
        cmocka_unit_test(test_golden__data_and_dictionary_of_version_1),
        cmocka_unit_test(test_golden__rules_and_histograms_of_version_1),
        cmocka_unit_test(test_golden__question_and_page_of_version_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
