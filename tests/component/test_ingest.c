/* Records from a raw client into the run's file, through a real tracerd. */
#include "tests/lib/rig.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/crc32c.h"
#include "proto/place.h"
#include "tracerd/client.h"

static struct rig rig;
static struct rig_client c;
static struct rig_entries e;

static int set_up(void **state)
{
    (void)state;
    c.fd = -1;
    rig_init(&rig);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_close(&c);
    rig_fini(&rig);
    return 0;
}

/* One number out of data/RUN.db; -1 when it is not there. */
static int64_t ask(const char *run, const char *sql)
{
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int64_t v = -1;
    snprintf(path, sizeof path, "%s/%s.db", rig.data, run);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK) {
        sqlite3_busy_timeout(db, 5000);
        if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
            sqlite3_step(s) == SQLITE_ROW)
            v = sqlite3_column_int64(s, 0);
        sqlite3_finalize(s);
    }
    sqlite3_close(db);
    return v;
}

static char *ask_text(const char *run, const char *sql)
{
    static char text[512];
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    snprintf(path, sizeof path, "%s/%s.db", rig.data, run);
    text[0] = '\0';
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW)
        snprintf(text, sizeof text, "%s",
                 (const char *)sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    sqlite3_close(db);
    return text;
}

static void send_dict(void)
{
    rig_fill_dict(&e);
    rig_send_dict(&c, &e, 1);
}

static void send_records(uint64_t seq, uint32_t n)
{
    rig_fill_data(&e, seq, n);
    rig_send_data(&c, &e, seq);
}

static void send_gap(uint64_t first, uint64_t last, uint32_t cause)
{
    struct gap g = {first, last, 100, cause};
    uint8_t payload[64];
    size_t n;
    assert_int_equal(gap_put(&g, payload, sizeof payload, &n), 0);
    rig_send(&c, FRAME_GAP, first, payload, n);
}

/* Every seq is in a record or covered by a loss, once. */
static void check_contiguous(const char *run, int64_t last)
{
    assert_int_equal(ask(run,
                         "SELECT (SELECT count(*) FROM record) + "
                         "(SELECT coalesce(sum(last - seq + 1), 0) FROM loss)"),
                     last);
    assert_int_equal(ask(run, "SELECT count(DISTINCT stream || '.' || seq) = "
                              "count(*) FROM record"),
                     1);
}

static void expect_nack(unsigned reason)
{
    rig_expect(&c, FRAME_NACK);
    assert_int_equal(c.refusal.reason, reason);
    rig_hung_up(c.fd);
    rig_close(&c);
}

static void test_ingest__a_record_is_stored_with_all_figures(void **state)
{
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    assert_string_equal(c.run, "run");
    assert_int_equal(c.welcome.committed_seq, 0);
    assert_true(c.welcome.credit_bytes >= FRAME_MAX_BYTES);
    send_dict();
    send_records(1, 1);
    rig_committed(&c, 1);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 1);
    assert_string_equal(
        ask_text("run",
                 "SELECT name || ' ' || path || ' ' || dtype || ' ' || shape "
                 "|| ' ' || n || ' ' || max || ' ' || min || ' ' || mean || "
                 "' ' || std || ' ' || l2 || ' ' || absmax || ' ' || absmin "
                 "|| ' ' || zero || ' ' || hash FROM v_record"),
        "forward-Linear-1-1-input 0 float32 4 8 32 2.5 -2.5 0.125 1.5 8.0 "
        "2.5 0.25 1 fedcba9876543211");
    assert_int_equal(ask("run", "SELECT count(*) FROM v_sample"), 16);
    assert_int_equal(ask("run", "SELECT value FROM v_sample WHERE sample = 3"),
                     4);
    assert_int_equal(ask("run", "SELECT n IS NULL AND given IS NULL AND note "
                                "IS NULL FROM record"),
                     1);
    assert_int_equal(ask("run", "SELECT iteration = 1 AND last_ns = 1000 AND "
                                "seq = 1 AND dict_n = 4 FROM stream"),
                     1);
    rig_stop(&rig);
}

static void put_record(uint64_t seq, const struct wire_record *m)
{
    rig_entries_init(&e);
    rig_add_record(&e, seq, m);
    rig_send_data(&c, &e, seq);
}

static void test_ingest__figures_follow_their_dtype(void **state)
{
    struct wire_record m;
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    send_dict();

    m = rig_record(1);
    m.dtype = TRD_I64;
    m.stats.max.i = INT64_MAX;
    m.stats.min.i = INT64_MIN;
    m.stats.absmax.u = UINT64_C(1) << 63;
    m.stats.absmin.u = 0;
    m.stats.sample_n = 0;
    put_record(1, &m);

    m = rig_record(2);
    m.stats.n = 0;
    m.stats.has = TRD_HAS_COUNTS;
    m.stats.zero = 0;
    m.stats.sample_n = 0;
    put_record(2, &m);

    m = rig_record(3);
    m.dtype = TRD_TEXT;
    m.stats.has = TRD_HAS_RANGE | TRD_HAS_MEAN | TRD_IS_GIVEN;
    m.stats.max.f = (double)INFINITY;
    m.stats.min.f = -(double)INFINITY;
    m.stats.mean = (double)NAN;
    m.stats.std = 1;
    m.stats.sample_n = 0;
    m.when.note = RIG_NOTE;
    put_record(3, &m);

    rig_committed(&c, 3);
    assert_int_equal(
        ask("run", "SELECT max = 9223372036854775807 AND typeof(max) = "
                   "'integer' AND min = -9223372036854775807 - 1 AND absmin "
                   "IS NULL AND samples IS NULL FROM record WHERE seq = 1"),
        1);
    assert_int_equal(ask("run", "SELECT absmax = 9223372036854775808.0 FROM "
                                "v_record WHERE seq = 1"),
                     1);
    assert_int_equal(
        ask("run", "SELECT n = 0 AND max IS NULL AND mean IS NULL AND l2 IS "
                   "NULL AND hash IS NULL AND nan = 0 FROM record WHERE seq "
                   "= 2"),
        1);
    assert_int_equal(
        ask("run", "SELECT given = 2 + 12 + 16 AND max IS NULL AND "
                   "std = 1 AND nan IS NULL AND note = 1 FROM record WHERE "
                   "seq = 3"),
        1);
    assert_string_equal(
        ask_text("run", "SELECT max || ' ' || min || ' ' || labels FROM "
                        "v_record WHERE seq = 3"),
        "Inf -Inf  note");
    rig_stop(&rig);
}

static void test_ingest__duplicates_are_acknowledged_and_not_stored(void **s)
{
    (void)s;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    send_dict();
    send_dict();
    send_records(1, 10);
    rig_committed(&c, 10);
    send_records(1, 10);
    c.got.type = 0;
    rig_expect(&c, FRAME_ACK);
    assert_int_equal(c.ack.committed_seq, 10);
    send_records(6, 10); /* half of it is new */
    rig_committed(&c, 15);
    check_contiguous("run", 15);
    rig_stop(&rig);
}

static void test_ingest__gap_then_late(void **state)
{
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    send_dict();
    send_records(1, 5);
    send_gap(6, 9, TRD_LOST_RING_FULL);
    send_records(10, 5);
    rig_committed(&c, 14);
    send_gap(6, 9, TRD_LOST_RING_FULL); /* late: known */
    send_records(6, 3);
    rig_expect(&c, FRAME_ACK);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 10);
    assert_int_equal(ask("run", "SELECT count = 4 AND seq = 6 AND last = 9 "
                                "AND cause = 'ring_full' AND bytes = 100 FROM "
                                "loss"),
                     1);
    check_contiguous("run", 14);
    send_records(20, 1);
    expect_nack(REASON_GAP);
    rig_stop(&rig);
}

static void test_ingest__losses_in_the_data_take_their_number(void **state)
{
    struct wire_record m = rig_record(2);
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    send_dict();
    rig_entries_init(&e);
    rig_add_loss(&e, 1, TRD_LOST_OOM, 123);
    rig_add_record(&e, 2, &m);
    rig_send_data(&c, &e, 1);
    rig_committed(&c, 2);
    assert_int_equal(ask("run", "SELECT count = 123 AND seq = 1 AND last = 1 "
                                "AND cause = 'oom' FROM loss"),
                     1);
    check_contiguous("run", 2);
    rig_stop(&rig);
}

static void test_ingest__unknown_names_count_as_lost(void **state)
{
    struct wire_record m = rig_record(2);
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    send_dict();
    rig_fill_data(&e, 1, 1);
    m.site = 99;
    rig_add_record(&e, 2, &m);
    m = rig_record(3);
    m.shape = RIG_SITE; /* a number of another kind */
    rig_add_record(&e, 3, &m);
    rig_send_data(&c, &e, 1);
    rig_committed(&c, 3);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 1);
    assert_int_equal(ask("run", "SELECT sum(count) FROM loss WHERE cause = "
                                "'store_lost'"),
                     2);
    check_contiguous("run", 3);
    rig_stop(&rig);
}

static void test_ingest__bye_is_durable_and_ends_the_stream(void **state)
{
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    send_dict();
    send_records(1, 100);
    rig_send(&c, FRAME_BYE, 100, "", 0);
    rig_durable(&c, 100);
    rig_hung_up(c.fd);
    rig_close(&c);
    assert_string_equal(ask_text("run", "SELECT state FROM stream"), "ended");
    rig_stop(&rig);
}

static void test_ingest__durable_follows_without_a_word(void **state)
{
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    send_dict();
    send_records(1, 10);
    rig_durable(&c, 10);
    assert_int_equal(c.ack.dict_n, RIG_DICT_N);
    rig_stop(&rig);
}

static void test_ingest__ping_is_answered_and_a_clock_kept(void **state)
{
    struct ping p = {1000, 2000};
    uint8_t payload[16];
    size_t n;
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    assert_int_equal(ping_put(&p, payload, sizeof payload, &n), 0);
    rig_send(&c, FRAME_PING, 0, payload, n);
    rig_expect(&c, FRAME_PONG);
    rig_send(&c, FRAME_PING, 0, payload, n);
    rig_expect(&c, FRAME_PONG);
    rig_send(&c, FRAME_BYE, 0, "", 0);
    rig_hung_up(c.fd);
    assert_int_equal(ask("run", "SELECT count(*) FROM clock WHERE mono_ns = "
                                "1000 AND real_ns = 2000"),
                     1);
    rig_stop(&rig);
}

static void test_ingest__killed_again_and_again_stores_once(void **state)
{
    uint64_t sent = 0;
    (void)state;
    for (int round = 0; round < 6; round++) {
        struct hello h = rig_hello();
        rig_start(&rig);
        h.first_seq = 1;
        assert_true(rig_greet(&rig, &c, 77, &h));
        assert_true(c.welcome.committed_seq <= sent);
        rig_fill_dict(&e);
        rig_send_dict(&c, &e, 1);
        /* everything behind the mark again, then more */
        for (uint64_t seq = c.welcome.committed_seq + 1; seq <= sent + 2000;
             seq += 100)
            send_records(seq, 100);
        sent += 2000;
        if (round % 2)
            rig_committed(&c, sent - 1000);
        rig_kill(&rig);
        rig_close(&c);
    }
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    for (uint64_t seq = c.welcome.committed_seq + 1; seq <= sent; seq += 100)
        send_records(seq, 100);
    rig_send(&c, FRAME_BYE, sent, "", 0);
    rig_hung_up(c.fd);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), sent);
    assert_int_equal(ask("run", "SELECT count(*) FROM loss"), 0);
    assert_int_equal(ask("run", "SELECT count(*) FROM stream"), 1);
    check_contiguous("run", (int64_t)sent);
    assert_string_equal(ask_text("run", "PRAGMA integrity_check"), "ok");
    rig_stop(&rig);
}

static void test_ingest__runs_are_found_by_name_and_job(void **state)
{
    struct hello h = rig_hello();
    struct rig_client other;
    (void)state;
    rig_start(&rig);
    assert_true(rig_greet(&rig, &c, 1, &h)); /* run, job */
    h.rank = 1;
    assert_true(rig_greet(&rig, &other, 2, &h));
    assert_string_equal(other.run, "run");
    assert_int_equal(other.welcome.stream, 1 << 12 | 1);
    rig_close(&other);
    h.rank = 0; /* restarted in place: another stream of the same run */
    assert_true(rig_greet(&rig, &other, 3, &h));
    assert_string_equal(other.run, "run");
    assert_int_equal(other.welcome.stream, 2);
    rig_close(&other);
    h.job = slice_of("job two");
    assert_true(rig_greet(&rig, &other, 4, &h));
    assert_string_equal(other.run, "run-2");
    rig_close(&other);
    h.job = slice_of("");
    assert_true(rig_greet(&rig, &other, 5, &h));
    assert_string_equal(other.run, "run-3");
    rig_close(&other);
    assert_true(rig_greet(&rig, &other, 6, &h));
    assert_string_equal(other.run, "run-4");
    rig_close(&other);
    rig_close(&c);
    rig_stop(&rig);
    rig_start(&rig); /* and the same from the files */
    assert_true(rig_greet(&rig, &other, 5, &h));
    assert_string_equal(other.run, "run-3");
    rig_close(&other);
    h.job = slice_of("job two");
    assert_true(rig_greet(&rig, &other, 7, &h));
    assert_string_equal(other.run, "run-2");
    rig_close(&other);
    rig_stop(&rig);
}

static void test_ingest__one_connection_a_stream(void **state)
{
    struct hello h = rig_hello();
    struct rig_client other;
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    h.pid = (uint32_t)getppid(); /* somebody else says it is that stream */
    h.start_time = 0;
    assert_false(rig_greet(&rig, &other, 77, &h));
    assert_int_equal(other.refusal.reason, REASON_OWNED);
    assert_true(other.refusal.retry_ms > 0);
    rig_close(&other);
    /* the same process again takes over; the first is closed */
    rig_open(&rig, &other, 77);
    rig_hung_up(c.fd);
    rig_close(&c);
    rig_close(&other);
    /* of a process that is gone */
    h.pid = 1;
    h.start_time = 999999999;
    assert_true(rig_greet(&rig, &c, 78, &h));
    rig_open(&rig, &other, 78);
    rig_hung_up(c.fd);
    rig_close(&other);
    rig_stop(&rig);
}

static void test_ingest__a_replaced_file_is_told(void **state)
{
    char path[2 * RIG_PATH];
    struct hello h = rig_hello();
    uint8_t store_id[16];
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    memcpy(store_id, c.welcome.store_id, 16);
    send_dict();
    send_records(1, 10);
    rig_durable(&c, 10);
    snprintf(path, sizeof path, "%s/run.db", rig.data);
    assert_int_equal(unlink(path), 0);
    expect_nack(REASON_STORE);
    h.first_seq = 11; /* the client has forgotten what was durable */
    assert_true(rig_greet(&rig, &c, 77, &h));
    assert_memory_not_equal(store_id, c.welcome.store_id, 16);
    assert_int_equal(c.welcome.dict_n, 0);
    send_dict();
    send_records(11, 5);
    rig_committed(&c, 15);
    assert_int_equal(ask("run", "SELECT count = 10 AND seq = 1 AND last = 10 "
                                "AND cause = 'store_lost' FROM loss"),
                     1);
    check_contiguous("run", 15);
    rig_stop(&rig);
}

static void test_ingest__a_damaged_file_is_put_aside(void **state)
{
    char command[3 * RIG_PATH];
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    send_dict();
    send_records(1, 10);
    rig_durable(&c, 10);
    rig_close(&c);
    rig_stop(&rig);
    snprintf(command, sizeof command,
             "printf 'this is no database at all, not even nearly a page of "
             "one, but it is long enough to be read as a header, is it not' "
             "> %s/run.db",
             rig.data);
    assert_int_equal(system(command), 0);
    rig_start(&rig);
    rig_open(&rig, &c, 78);
    assert_string_equal(c.run, "run");
    rig_logged(&rig, "corrupt");
    snprintf(command, sizeof command, "ls %s | grep -q 'run.db.corrupt-'",
             rig.data);
    assert_int_equal(system(command), 0);
    rig_stop(&rig);
}

static void test_ingest__bad_hellos_are_refused(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    rig_start(&rig);
    h.run = slice_of("../etc");
    assert_false(rig_greet(&rig, &c, 1, &h));
    assert_int_equal(c.refusal.reason, REASON_MALFORMED);
    assert_int_equal(c.refusal.retry_ms, 0);
    rig_hung_up(c.fd);
    rig_close(&c);
    h = rig_hello();
    h.version_min = h.version_max = 9;
    assert_false(rig_greet(&rig, &c, 1, &h));
    assert_int_equal(c.refusal.reason, REASON_VERSION);
    rig_close(&c);
    h = rig_hello();
    h.required = 1;
    assert_false(rig_greet(&rig, &c, 1, &h));
    assert_int_equal(c.refusal.reason, REASON_VERSION);
    rig_close(&c);
    h = rig_hello();
    h.journal = slice_of("../x");
    assert_false(rig_greet(&rig, &c, 1, &h));
    assert_int_equal(c.refusal.reason, REASON_MALFORMED);
    rig_close(&c);
    rig_stop(&rig);
}

/* The bytes are not a frame: the connection ends, the daemon does not. */
static void send_garbage(const void *bytes, size_t n)
{
    int fd = rig_connect(rig.dir, PLACE_INGEST);
    assert_true(fd >= 0);
    rig_write_any(fd, bytes, n);
    rig_hung_up(fd);
    close(fd);
}

static void test_ingest__garbage_and_other_protocols(void **state)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    static const uint8_t tls[] = {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3};
    static const uint8_t sp[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    uint8_t noise[4096];
    uint32_t x = 12345;
    (void)state;
    rig_start(&rig);
    send_garbage(http, sizeof http - 1);
    send_garbage(tls, sizeof tls);
    send_garbage(sp, sizeof sp);
    for (int i = 0; i < 50; i++) {
        for (size_t k = 0; k < sizeof noise; k++) {
            x = x * 1664525 + 1013904223;
            noise[k] = (uint8_t)(x >> 24);
        }
        if (i % 2)
            memcpy(noise, "TRC1", 4);
        send_garbage(noise, sizeof noise);
    }
    assert_true(rig_alive(&rig));
    rig_open(&rig, &c, 77);
    rig_stop(&rig);
}

static void test_ingest__a_frame_cut_at_every_byte(void **state)
{
    static uint8_t bytes[FRAME_HEADER_BYTES + 2048];
    struct hello h = rig_hello();
    struct frame f = {.version = WIRE_VERSION, .type = FRAME_HELLO};
    size_t n;
    (void)state;
    assert_int_equal(hello_put(&h, bytes + FRAME_HEADER_BYTES, 2048, &n), 0);
    f.len = (uint32_t)n;
    f.epoch = 77;
    f.crc = crc32c(0, bytes + FRAME_HEADER_BYTES, n);
    frame_put(bytes, &f);
    n += FRAME_HEADER_BYTES;
    rig_start(&rig);
    for (size_t cut = 0; cut < n; cut++) {
        int fd = rig_connect(rig.dir, PLACE_INGEST);
        assert_true(fd >= 0);
        rig_write(fd, bytes, cut);
        close(fd);
    }
    assert_true(rig_alive(&rig));
    rig_open(&rig, &c, 77);
    assert_int_equal(c.welcome.committed_seq, 0);
    rig_stop(&rig);
}

static void test_ingest__data_cut_and_bits_flipped(void **state)
{
    static uint8_t payload[FRAME_MAX_BYTES];
    uint8_t head[FRAME_HEADER_BYTES];
    struct batch b = {3, 0};
    struct frame f = {
        .version = WIRE_VERSION, .type = FRAME_DATA, .seq = 1, .epoch = 77};
    (void)state;
    rig_start(&rig);
    rig_fill_data(&e, 1, 3);
    memcpy(payload, e.bytes, e.n_bytes);
    batch_put(payload, &b);
    for (size_t bit = 0; bit < e.n_bytes * 8; bit += 13) {
        rig_open(&rig, &c, 77);
        assert_int_equal(c.welcome.committed_seq, 0);
        f.len = (uint32_t)e.n_bytes;
        payload[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (bit % 2) /* the frame's own checksum holds: the entry's must not */
            f.crc = crc32c(0, payload, e.n_bytes);
        frame_put(head, &f);
        rig_write_any(c.fd, head, sizeof head);
        rig_write_any(c.fd, payload, e.n_bytes);
        payload[bit / 8] ^= (uint8_t)(1 << bit % 8);
        /* padding is not checked by anybody but the frame */
        while (rig_recv(&c) && c.got.type != FRAME_NACK)
            if (c.got.type == FRAME_ACK && c.ack.committed_seq)
                break;
        rig_close(&c);
        if (ask("run", "SELECT count(*) FROM record") +
                ask("run", "SELECT count(*) FROM loss") >
            0)
            break;
    }
    assert_true(rig_alive(&rig));
    rig_stop(&rig);
}

static void test_ingest__hostile_lengths(void **state)
{
    static const uint32_t lengths[] = {0,
                                       1,
                                       FRAME_CONTROL_MAX_BYTES,
                                       FRAME_MAX_BYTES,
                                       FRAME_MAX_BYTES + 1,
                                       UINT32_MAX};
    uint8_t head[FRAME_HEADER_BYTES];
    (void)state;
    rig_start(&rig);
    for (unsigned type = 0; type < 14; type++) {
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct frame f = {.version = WIRE_VERSION,
                              .type = (uint16_t)type,
                              .len = lengths[i],
                              .epoch = 77,
                              .seq = UINT64_MAX};
            int fd = rig_connect(rig.dir, PLACE_INGEST);
            frame_put(head, &f);
            rig_write_any(fd, head, sizeof head);
            shutdown(fd, SHUT_WR);
            rig_hung_up(fd);
            close(fd);
        }
    }
    /* counts that do not fit what is there */
    for (int i = 0; i < 4; i++) {
        static const uint32_t counts[] = {0, 4, UINT32_MAX, 1u << 31};
        struct batch b = {counts[i], 0};
        rig_open(&rig, &c, 77);
        send_dict();
        rig_fill_data(&e, 1, 3);
        batch_put(e.bytes, &b);
        rig_send(&c, FRAME_DATA, 1, e.bytes, e.n_bytes);
        expect_nack(REASON_MALFORMED);
    }
    assert_true(rig_alive(&rig));
    rig_stop(&rig);
}

static void test_ingest__frames_out_of_place(void **state)
{
    (void)state;
    rig_start(&rig);
    c.fd = rig_connect(rig.dir, PLACE_INGEST);
    c.epoch = 77;
    send_records(1, 1); /* no hello */
    rig_expect(&c, FRAME_REFUSE);
    rig_hung_up(c.fd);
    rig_close(&c);
    rig_open(&rig, &c, 77);
    rig_send(&c, 200, 0, "abc", 3); /* unknown and not optional */
    expect_nack(REASON_MALFORMED);
    rig_open(&rig, &c, 77);
    c.epoch = 78; /* of another stream */
    send_records(1, 1);
    expect_nack(REASON_MALFORMED);
    rig_open(&rig, &c, 77);
    rig_send(&c, FRAME_BYE, 5, "", 0); /* records 1 to 5 never came */
    expect_nack(REASON_GAP);
    rig_stop(&rig);
}

static void test_ingest__unknown_optional_frames_are_skipped(void **state)
{
    uint8_t head[FRAME_HEADER_BYTES];
    struct frame f = {.version = WIRE_VERSION,
                      .type = 999,
                      .len = 3,
                      .epoch = 77,
                      .flags = FRAME_OPTIONAL};
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    f.crc = crc32c(0, "abc", 3);
    frame_put(head, &f);
    rig_write(c.fd, head, sizeof head);
    rig_write(c.fd, "abc", 3);
    send_dict();
    send_records(1, 1);
    rig_committed(&c, 1);
    rig_stop(&rig);
}

static void test_ingest__silence_after_connecting_is_ended(void **state)
{
    long long start;
    int fd;
    (void)state;
    rig_start(&rig);
    start = rig_now_ms();
    fd = rig_connect(rig.dir, PLACE_INGEST);
    rig_write(fd, "TRC1", 4);
    rig_hung_up(fd);
    close(fd);
    assert_in_range(rig_now_ms() - start, HELLO_MS - 100, HELLO_MS + 2000);
    rig_stop(&rig);
}

static void test_ingest__stop_makes_all_durable_and_says_so(void **state)
{
    (void)state;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    send_dict();
    send_records(1, 500);
    rig_committed(&c, 500);
    rig_stop(&rig);
    rig_durable(&c, 500);
    rig_expect(&c, FRAME_NACK);
    assert_int_equal(c.refusal.reason, REASON_STOPPING);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 500);
}

static void test_ingest__too_many_clients_are_told_to_wait(void **state)
{
    struct rig_client other;
    struct hello h = rig_hello();
    char path[2 * RIG_PATH];
    FILE *f;
    (void)state;
    snprintf(path, sizeof path, "%s/conf", rig.base);
    f = fopen(path, "w");
    fputs("clients = 1\n", f);
    fclose(f);
    rig.args[0] = "--config";
    rig.args[1] = path;
    rig_start(&rig);
    rig_open(&rig, &c, 77);
    memset(&other, 0, sizeof other);
    other.fd = rig_connect(rig.dir, PLACE_INGEST);
    rig_expect(&other, FRAME_REFUSE);
    assert_int_equal(other.refusal.reason, REASON_BUSY);
    assert_true(other.refusal.retry_ms > 0);
    rig_close(&other);
    rig_close(&c);
    rig_until(rig_greet(&rig, &other, 78, &h) || (rig_close(&other), false));
    rig_close(&other);
    rig_stop(&rig);
}

/* ---- journals ---- */

static bool gone(const char *name)
{
    char path[2 * RIG_PATH];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", rig.dir, name);
    return lstat(path, &st) != 0;
}

static void test_ingest__a_journal_is_adopted(void **state)
{
    (void)state;
    rig_journal(&rig, "a", 77, 5000, 0, false);
    rig_start(&rig);
    rig_until(gone("a.journal"));
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 5000);
    assert_int_equal(ask("run", "SELECT count(*) FROM loss"), 0);
    assert_string_equal(ask_text("run", "SELECT state FROM stream"), "dead");
    check_contiguous("run", 5000);
    rig_stop(&rig);
}

static void test_ingest__a_clean_journal_ends_its_stream(void **state)
{
    (void)state;
    rig_journal(&rig, "a", 77, 10, 0, true);
    rig_start(&rig);
    rig_until(gone("a.journal"));
    assert_string_equal(ask_text("run", "SELECT state FROM stream"), "ended");
    rig_stop(&rig);
}

static void test_ingest__a_journal_does_not_repeat_what_was_sent(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    rig_start(&rig);
    h.pid = 1;
    h.start_time = 12345678;
    assert_true(rig_greet(&rig, &c, 77, &h));
    send_dict();
    send_records(1, 60);
    rig_committed(&c, 60);
    rig_close(&c);
    rig_journal(&rig, "a", 77, 100, 0, false);
    rig_until(gone("a.journal"));
    check_contiguous("run", 100);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 100);
    assert_int_equal(ask("run", "SELECT count(*) FROM stream"), 1);
    assert_int_equal(ask("run", "SELECT count(*) FROM dict"), RIG_DICT_N);
    rig_stop(&rig);
}

static void test_ingest__a_torn_record_of_a_journal_is_a_loss(void **state)
{
    (void)state;
    rig_journal(&rig, "a", 77, 50, 20, false);
    rig_start(&rig);
    rig_until(gone("a.journal"));
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 49);
    assert_int_equal(ask("run", "SELECT seq = 20 AND last = 20 AND cause = "
                                "'torn' FROM loss"),
                     1);
    check_contiguous("run", 50);
    rig_stop(&rig);
}

static void damage(const char *name, long at, int byte)
{
    char path[2 * RIG_PATH];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", rig.dir, name);
    f = fopen(path, "r+");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    fputc(byte, f);
    fclose(f);
}

static void put_file(const char *name)
{
    char path[2 * RIG_PATH];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", rig.dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

static void make_old(const char *name)
{
    char path[2 * RIG_PATH];
    struct timespec t[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    snprintf(path, sizeof path, "%s/%s", rig.dir, name);
    assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static void test_ingest__journals_that_do_not_hold_are_put_aside(void **state)
{
    char path[2 * RIG_PATH];
    (void)state;
    rig_journal(&rig, "head", 1, 10, 0, false);
    damage("head.journal", 20, 0x77);
    make_old("head.journal");
    rig_journal(&rig, "hello", 2, 10, 0, false);
    damage("hello.journal", 3 * 4096 + 1, 0x77);
    rig_journal(&rig, "short", 3, 10, 0, false);
    snprintf(path, sizeof path, "%s/short.journal", rig.dir);
    assert_int_equal(truncate(path, 100000), 0);
    make_old("short.journal");
    snprintf(path, sizeof path, "%s/link.journal", rig.dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    rig_journal(&rig, "good", 4, 10, 0, false);
    put_file("old.journal.new");
    make_old("old.journal.new");
    put_file("fresh.journal.new");
    rig_start(&rig);
    rig_until(gone("good.journal"));
    assert_false(gone("fresh.journal.new"));
    rig_until(gone("old.journal.new"));
    rig_until(!gone("head.journal.bad") && !gone("hello.journal.bad") &&
              !gone("short.journal.bad") && !gone("link.journal.bad"));
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 10);
    assert_true(rig_alive(&rig));
    rig_stop(&rig);
}

static void test_ingest__a_living_process_keeps_its_journal(void **state)
{
    char path[2 * RIG_PATH];
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd;
    (void)state;
    rig_journal(&rig, "mine", 77, 10, 0, false);
    rig_journal(&rig, "other", 78, 10, 0, false);
    snprintf(path, sizeof path, "%s/mine.journal", rig.dir);
    fd = open(path, O_RDWR);
    assert_int_equal(fcntl(fd, F_SETLK, &l), 0);
    rig_start(&rig);
    rig_until(gone("other.journal"));
    assert_false(gone("mine.journal"));
    close(fd); /* lets go of the lock */
    rig_until(gone("mine.journal"));
    rig_stop(&rig);
}

static void test_ingest__a_closed_journal_of_a_living_process(void **state)
{
    (void)state;
    rig.journals_alive = true;
    rig_journal(&rig, "open", 77, 10, 0, false);
    rig_journal(&rig, "closed", 78, 10, 0, true);
    rig_start(&rig);
    rig_until(gone("closed.journal"));
    assert_false(gone("open.journal"));
    assert_int_equal(ask("run", "SELECT state = 'ended' AND seq = 10 FROM "
                                "stream"),
                     1);
    rig_stop(&rig);
}

/* A process with a connection is killed: its stream is dead. */
static void test_ingest__a_killed_client_is_dead(void **state)
{
    pid_t child;
    (void)state;
    rig_start(&rig);
    child = fork();
    if (child == 0) {
        struct hello h = rig_hello();
        rig_greet(&rig, &c, 77, &h);
        send_dict();
        send_records(1, 10);
        rig_committed(&c, 10);
        raise(SIGKILL);
    }
    waitpid(child, NULL, 0);
    rig_until(strcmp(ask_text("run", "SELECT state FROM stream"), "dead") == 0);
    check_contiguous("run", 10);
    rig_stop(&rig);
}

/* Both are killed: the next daemon finds out. */
static void test_ingest__both_killed_is_dead(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    rig_start(&rig);
    h.pid = 1;
    h.start_time = 12345678;
    assert_true(rig_greet(&rig, &c, 77, &h));
    h = rig_hello();
    h.rank = 1; /* this one lives */
    struct rig_client other;
    assert_true(rig_greet(&rig, &other, 78, &h));
    rig_kill(&rig);
    rig_close(&c);
    rig_close(&other);
    rig_start(&rig);
    rig_until(ask("run", "SELECT state = 'dead' FROM stream WHERE rank = 0") ==
              1);
    assert_int_equal(ask("run", "SELECT state = 'open' FROM stream WHERE "
                                "rank = 1"),
                     1);
    rig_stop(&rig);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_ingest__a_record_is_stored_with_all_figures),
        TEST(test_ingest__figures_follow_their_dtype),
        TEST(test_ingest__duplicates_are_acknowledged_and_not_stored),
        TEST(test_ingest__gap_then_late),
        TEST(test_ingest__losses_in_the_data_take_their_number),
        TEST(test_ingest__unknown_names_count_as_lost),
        TEST(test_ingest__bye_is_durable_and_ends_the_stream),
        TEST(test_ingest__durable_follows_without_a_word),
        TEST(test_ingest__ping_is_answered_and_a_clock_kept),
        TEST(test_ingest__killed_again_and_again_stores_once),
        TEST(test_ingest__runs_are_found_by_name_and_job),
        TEST(test_ingest__one_connection_a_stream),
        TEST(test_ingest__a_replaced_file_is_told),
        TEST(test_ingest__a_damaged_file_is_put_aside),
        TEST(test_ingest__bad_hellos_are_refused),
        TEST(test_ingest__garbage_and_other_protocols),
        TEST(test_ingest__a_frame_cut_at_every_byte),
        TEST(test_ingest__data_cut_and_bits_flipped),
        TEST(test_ingest__hostile_lengths),
        TEST(test_ingest__frames_out_of_place),
        TEST(test_ingest__unknown_optional_frames_are_skipped),
        TEST(test_ingest__silence_after_connecting_is_ended),
        TEST(test_ingest__stop_makes_all_durable_and_says_so),
        TEST(test_ingest__too_many_clients_are_told_to_wait),
        TEST(test_ingest__a_journal_is_adopted),
        TEST(test_ingest__a_clean_journal_ends_its_stream),
        TEST(test_ingest__a_journal_does_not_repeat_what_was_sent),
        TEST(test_ingest__a_torn_record_of_a_journal_is_a_loss),
        TEST(test_ingest__journals_that_do_not_hold_are_put_aside),
        TEST(test_ingest__a_living_process_keeps_its_journal),
        TEST(test_ingest__a_closed_journal_of_a_living_process),
        TEST(test_ingest__a_killed_client_is_dead),
        TEST(test_ingest__both_killed_is_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
