/* Records from a raw client into the run's file, through a real tracerd: the
 * conversation, from hello to bye, and what is stored of it. */
#include "tests/lib/ingest.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/crc32c.h"
#include "tracerd/client.h"

static void test_ingest__a_record_is_stored_with_all_figures(void **state)
{
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    assert_string_equal(ingest.c.run, "run");
    assert_int_equal(ingest.c.welcome.committed_seq, 0);
    assert_true(ingest.c.welcome.credit_bytes >= FRAME_MAX_BYTES);
    ingest_send_dict();
    ingest_send_records(1, 1);
    rig_committed(&ingest.c, 1);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 1);
    assert_string_equal(
        ingest_ask_text(
            "run", "SELECT name || ' ' || path || ' ' || dtype || ' ' || shape "
                   "|| ' ' || n || ' ' || max || ' ' || min || ' ' || mean || "
                   "' ' || std || ' ' || l2 || ' ' || absmax || ' ' || absmin "
                   "|| ' ' || zero || ' ' || hash FROM v_record"),
        "forward-Linear-1-1-input 0 float32 4 8 32 2.5 -2.5 0.125 1.5 8.0 2.5 "
        "0.25 1 fedcba9876543211");
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_sample"), 16);
    assert_int_equal(
        ingest_ask("run", "SELECT value FROM v_sample WHERE sample = 3"), 4);
    assert_int_equal(
        ingest_ask(
            "run",
            "SELECT n IS NULL AND given IS NULL AND note IS NULL FROM record"),
        1);
    assert_int_equal(
        ingest_ask("run", "SELECT iteration = 1 AND last_ns = 1000 AND seq = 1 "
                          "AND dict_n = 4 FROM stream"),
        1);
    rig_stop(&ingest.rig);
}

static void put_record(uint64_t seq, const struct wire_record *m)
{
    rig_entries_init(&ingest.e);
    rig_add_record(&ingest.e, seq, m);
    rig_send_data(&ingest.c, &ingest.e, seq);
}

static void test_ingest__figures_follow_their_dtype(void **state)
{
    struct wire_record m;
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();

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

    rig_committed(&ingest.c, 3);
    assert_int_equal(
        ingest_ask("run",
                   "SELECT max = 9223372036854775807 AND typeof(max) = "
                   "'integer' AND min = -9223372036854775807 - 1 AND absmin IS "
                   "NULL AND samples IS NULL FROM record WHERE seq = 1"),
        1);
    assert_int_equal(ingest_ask("run", "SELECT absmax = 9223372036854775808.0 "
                                       "FROM v_record WHERE seq = 1"),
                     1);
    assert_int_equal(
        ingest_ask(
            "run",
            "SELECT n = 0 AND max IS NULL AND mean IS NULL AND l2 IS NULL AND "
            "hash IS NULL AND nan = 0 FROM record WHERE seq = 2"),
        1);
    assert_int_equal(
        ingest_ask("run",
                   "SELECT given = 2 + 12 + 16 AND max IS NULL AND std = 1 AND "
                   "nan IS NULL AND note = 1 FROM record WHERE seq = 3"),
        1);
    assert_string_equal(
        ingest_ask_text("run", "SELECT max || ' ' || min || ' ' || labels FROM "
                               "v_record WHERE seq = 3"),
        "Inf -Inf  note");
    rig_stop(&ingest.rig);
}

static void test_ingest__duplicates_are_acknowledged_and_not_stored(void **s)
{
    (void)s;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_committed(&ingest.c, 10);
    ingest_send_records(1, 10);
    ingest.c.got.type = 0;
    rig_expect(&ingest.c, FRAME_ACK);
    assert_int_equal(ingest.c.ack.committed_seq, 10);
    ingest_send_records(6, 10); /* half of it is new */
    rig_committed(&ingest.c, 15);
    ingest_contiguous("run", 15);
    rig_stop(&ingest.rig);
}

static void test_ingest__gap_then_late(void **state)
{
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 5);
    ingest_send_gap(6, 9, TRD_LOST_RING_FULL);
    ingest_send_records(10, 5);
    rig_committed(&ingest.c, 14);
    ingest_send_gap(6, 9, TRD_LOST_RING_FULL); /* late: known */
    ingest_send_records(6, 3);
    rig_expect(&ingest.c, FRAME_ACK);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 10);
    assert_int_equal(
        ingest_ask("run", "SELECT count = 4 AND seq = 6 AND last = 9 AND cause "
                          "= 'ring_full' AND bytes = 100 FROM loss"),
        1);
    ingest_contiguous("run", 14);
    ingest_send_records(20, 1);
    ingest_nack(REASON_GAP);
    rig_stop(&ingest.rig);
}

static void test_ingest__losses_in_the_data_take_their_number(void **state)
{
    struct wire_record m = rig_record(2);
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    rig_entries_init(&ingest.e);
    rig_add_loss(&ingest.e, 1, TRD_LOST_OOM, 123);
    rig_add_record(&ingest.e, 2, &m);
    rig_send_data(&ingest.c, &ingest.e, 1);
    rig_committed(&ingest.c, 2);
    assert_int_equal(ingest_ask("run", "SELECT count = 123 AND seq = 1 AND "
                                       "last = 1 AND cause = 'oom' FROM loss"),
                     1);
    ingest_contiguous("run", 2);
    rig_stop(&ingest.rig);
}

static void test_ingest__unknown_names_count_as_lost(void **state)
{
    struct wire_record m = rig_record(2);
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    rig_fill_data(&ingest.e, 1, 1);
    m.site = 99;
    rig_add_record(&ingest.e, 2, &m);
    m = rig_record(3);
    m.shape = RIG_SITE; /* a number of another kind */
    rig_add_record(&ingest.e, 3, &m);
    rig_send_data(&ingest.c, &ingest.e, 1);
    rig_committed(&ingest.c, 3);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 1);
    assert_int_equal(
        ingest_ask("run",
                   "SELECT sum(count) FROM loss WHERE cause = 'store_lost'"),
        2);
    ingest_contiguous("run", 3);
    rig_stop(&ingest.rig);
}

/* Figures that no reader takes: their number is taken and counted. */
static void test_ingest__unreadable_records_are_losses(void **state)
{
    struct wire_record m;
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    rig_fill_data(&ingest.e, 1, 1);
    m = rig_record(2);
    m.when.step = UINT64_MAX;
    rig_add_record(&ingest.e, 2, &m);
    m = rig_record(3);
    m.stats.nan = m.stats.n + 1;
    rig_add_record(&ingest.e, 3, &m);
    m = rig_record(4);
    m.stats.has |= 128;
    rig_add_record(&ingest.e, 4, &m);
    rig_add_unreadable(&ingest.e, ENTRY_LOSS, 5);
    rig_add_unreadable(&ingest.e, 3, 6); /* an unknown kind */
    m = rig_record(7);
    rig_add_record(&ingest.e, 7, &m);
    rig_send_data(&ingest.c, &ingest.e, 1);
    rig_committed(&ingest.c, 7);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 2);
    assert_int_equal(ingest_ask("run", "SELECT count FROM loss WHERE cause = "
                                       "'error' AND seq = 2 AND last = 6"),
                     5);
    ingest_contiguous("run", 7);
    rig_stop(&ingest.rig);
}

/* Its number stays taken, in the next daemon as well. */
static void test_ingest__unreadable_names_mean_nothing(void **state)
{
    struct wire_record m = rig_record(1);
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    rig_fill_dict(&ingest.e);
    rig_add_unreadable(&ingest.e, ENTRY_SITE, RIG_DICT_N + 1);
    rig_add_unreadable(&ingest.e, 99, RIG_DICT_N + 2);
    rig_send_dict(&ingest.c, &ingest.e, 1);
    m.site = RIG_DICT_N + 1;
    put_record(1, &m);
    ingest_send_records(2, 1);
    rig_durable(&ingest.c, 2);
    rig_close(&ingest.c);
    rig_kill(&ingest.rig);
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    assert_int_equal(ingest.c.welcome.dict_n, RIG_DICT_N + 2);
    m = rig_record(3);
    m.site = RIG_DICT_N + 1;
    put_record(3, &m);
    ingest_send_records(4, 1);
    rig_committed(&ingest.c, 4);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 2);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss WHERE cause "
                                       "= 'store_lost'"),
                     2);
    ingest_contiguous("run", 4);
    rig_stop(&ingest.rig);
}

static void test_ingest__bye_is_durable_and_ends_the_stream(void **state)
{
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 100);
    rig_send(&ingest.c, FRAME_BYE, 100, "", 0);
    rig_durable(&ingest.c, 100);
    rig_hung_up(ingest.c.fd);
    rig_close(&ingest.c);
    assert_string_equal(ingest_ask_text("run", "SELECT state FROM stream"),
                        "ended");
    rig_stop(&ingest.rig);
}

static void test_ingest__durable_follows_without_a_word(void **state)
{
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
    assert_int_equal(ingest.c.ack.dict_n, RIG_DICT_N);
    rig_stop(&ingest.rig);
}

static void test_ingest__ping_is_answered_and_a_clock_kept(void **state)
{
    struct ping p = {1000, 2000};
    uint8_t payload[16];
    size_t n;
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    assert_int_equal(ping_put(&p, payload, sizeof payload, &n), 0);
    rig_send(&ingest.c, FRAME_PING, 0, payload, n);
    rig_expect(&ingest.c, FRAME_PONG);
    rig_send(&ingest.c, FRAME_PING, 0, payload, n);
    rig_expect(&ingest.c, FRAME_PONG);
    rig_send(&ingest.c, FRAME_BYE, 0, "", 0);
    rig_hung_up(ingest.c.fd);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM clock WHERE "
                                       "mono_ns = 1000 AND real_ns = 2000"),
                     1);
    rig_stop(&ingest.rig);
}

static void test_ingest__killed_again_and_again_stores_once(void **state)
{
    uint64_t sent = 0;
    (void)state;
    for (int round = 0; round < 6; round++) {
        struct hello h = rig_hello();
        rig_start(&ingest.rig);
        h.first_seq = 1;
        assert_true(rig_greet(&ingest.rig, &ingest.c, 77, &h));
        assert_true(ingest.c.welcome.committed_seq <= sent);
        rig_fill_dict(&ingest.e);
        rig_send_dict(&ingest.c, &ingest.e, 1);
        /* everything behind the mark again, then more */
        for (uint64_t seq = ingest.c.welcome.committed_seq + 1;
             seq <= sent + 2000; seq += 100)
            ingest_send_records(seq, 100);
        sent += 2000;
        if (round % 2)
            rig_committed(&ingest.c, sent - 1000);
        rig_kill(&ingest.rig);
        rig_close(&ingest.c);
    }
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    for (uint64_t seq = ingest.c.welcome.committed_seq + 1; seq <= sent;
         seq += 100)
        ingest_send_records(seq, 100);
    rig_send(&ingest.c, FRAME_BYE, sent, "", 0);
    rig_hung_up(ingest.c.fd);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), sent);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream"), 1);
    ingest_contiguous("run", (int64_t)sent);
    assert_string_equal(ingest_ask_text("run", "PRAGMA integrity_check"), "ok");
    rig_stop(&ingest.rig);
}

static void test_ingest__runs_are_found_by_name_and_job(void **state)
{
    struct hello h = rig_hello();
    struct rig_client other;
    (void)state;
    rig_start(&ingest.rig);
    assert_true(rig_greet(&ingest.rig, &ingest.c, 1, &h)); /* run, job */
    h.rank = 1;
    assert_true(rig_greet(&ingest.rig, &other, 2, &h));
    assert_string_equal(other.run, "run");
    assert_int_equal(other.welcome.stream, 1 << 12 | 1);
    rig_close(&other);
    h.rank = 0; /* restarted in place: another stream of the same run */
    assert_true(rig_greet(&ingest.rig, &other, 3, &h));
    assert_string_equal(other.run, "run");
    assert_int_equal(other.welcome.stream, 2);
    rig_close(&other);
    h.job = slice_of("job two");
    assert_true(rig_greet(&ingest.rig, &other, 4, &h));
    assert_string_equal(other.run, "run-2");
    rig_close(&other);
    h.job = slice_of("");
    assert_true(rig_greet(&ingest.rig, &other, 5, &h));
    assert_string_equal(other.run, "run-3");
    rig_close(&other);
    assert_true(rig_greet(&ingest.rig, &other, 6, &h));
    assert_string_equal(other.run, "run-4");
    rig_close(&other);
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
    rig_start(&ingest.rig); /* and the same from the files */
    assert_true(rig_greet(&ingest.rig, &other, 5, &h));
    assert_string_equal(other.run, "run-3");
    rig_close(&other);
    h.job = slice_of("job two");
    assert_true(rig_greet(&ingest.rig, &other, 7, &h));
    assert_string_equal(other.run, "run-2");
    rig_close(&other);
    rig_stop(&ingest.rig);
}

static void test_ingest__one_connection_a_stream(void **state)
{
    struct hello h = rig_hello();
    struct rig_client other;
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    h.pid = (uint32_t)getppid(); /* somebody else says it is that stream */
    h.start_time = 0;
    assert_false(rig_greet(&ingest.rig, &other, 77, &h));
    assert_int_equal(other.refusal.reason, REASON_OWNED);
    assert_true(other.refusal.retry_ms > 0);
    rig_close(&other);
    /* the same process again takes over; the first is closed */
    rig_open(&ingest.rig, &other, 77);
    rig_hung_up(ingest.c.fd);
    rig_close(&ingest.c);
    rig_close(&other);
    /* of a process that is gone */
    h.pid = 1;
    h.start_time = 999999999;
    assert_true(rig_greet(&ingest.rig, &ingest.c, 78, &h));
    rig_open(&ingest.rig, &other, 78);
    rig_hung_up(ingest.c.fd);
    rig_close(&other);
    rig_stop(&ingest.rig);
}

static void test_ingest__bad_hellos_are_refused(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    rig_start(&ingest.rig);
    h.run = slice_of("../etc");
    assert_false(rig_greet(&ingest.rig, &ingest.c, 1, &h));
    assert_int_equal(ingest.c.refusal.reason, REASON_MALFORMED);
    assert_int_equal(ingest.c.refusal.retry_ms, 0);
    rig_hung_up(ingest.c.fd);
    rig_close(&ingest.c);
    h = rig_hello();
    h.version_min = h.version_max = 9;
    assert_false(rig_greet(&ingest.rig, &ingest.c, 1, &h));
    assert_int_equal(ingest.c.refusal.reason, REASON_VERSION);
    rig_close(&ingest.c);
    h = rig_hello();
    h.required = 1;
    assert_false(rig_greet(&ingest.rig, &ingest.c, 1, &h));
    assert_int_equal(ingest.c.refusal.reason, REASON_VERSION);
    rig_close(&ingest.c);
    h = rig_hello();
    h.journal = slice_of("../x");
    assert_false(rig_greet(&ingest.rig, &ingest.c, 1, &h));
    assert_int_equal(ingest.c.refusal.reason, REASON_MALFORMED);
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
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
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    f.crc = crc32c(0, "abc", 3);
    frame_put(head, &f);
    rig_write(ingest.c.fd, head, sizeof head);
    rig_write(ingest.c.fd, "abc", 3);
    ingest_send_dict();
    ingest_send_records(1, 1);
    rig_committed(&ingest.c, 1);
    rig_stop(&ingest.rig);
}

static void test_ingest__stop_makes_all_durable_and_says_so(void **state)
{
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 500);
    rig_committed(&ingest.c, 500);
    rig_stop(&ingest.rig);
    rig_durable(&ingest.c, 500);
    rig_expect(&ingest.c, FRAME_NACK);
    assert_int_equal(ingest.c.refusal.reason, REASON_STOPPING);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 500);
}

/* A process with a connection is killed: its stream is dead. */
static void test_ingest__a_killed_client_is_dead(void **state)
{
    pid_t child;
    (void)state;
    rig_start(&ingest.rig);
    child = fork();
    if (child == 0) {
        struct hello h = rig_hello();
        rig_greet(&ingest.rig, &ingest.c, 77, &h);
        ingest_send_dict();
        ingest_send_records(1, 10);
        rig_committed(&ingest.c, 10);
        raise(SIGKILL);
    }
    waitpid(child, NULL, 0);
    rig_until(strcmp(ingest_ask_text("run", "SELECT state FROM stream"),
                     "dead") == 0);
    ingest_contiguous("run", 10);
    rig_stop(&ingest.rig);
}

/* Both are killed: the next daemon finds out. */
static void test_ingest__both_killed_is_dead(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    rig_start(&ingest.rig);
    h.pid = 1;
    h.start_time = 12345678;
    assert_true(rig_greet(&ingest.rig, &ingest.c, 77, &h));
    h = rig_hello();
    h.rank = 1; /* this one lives */
    struct rig_client other;
    assert_true(rig_greet(&ingest.rig, &other, 78, &h));
    rig_kill(&ingest.rig);
    rig_close(&ingest.c);
    rig_close(&other);
    rig_start(&ingest.rig);
    rig_until(
        ingest_ask("run", "SELECT state = 'dead' FROM stream WHERE rank = 0") ==
        1);
    assert_int_equal(
        ingest_ask("run", "SELECT state = 'open' FROM stream WHERE rank = 1"),
        1);
    rig_stop(&ingest.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_ingest__a_record_is_stored_with_all_figures),
        ingest_test(test_ingest__figures_follow_their_dtype),
        ingest_test(test_ingest__duplicates_are_acknowledged_and_not_stored),
        ingest_test(test_ingest__gap_then_late),
        ingest_test(test_ingest__losses_in_the_data_take_their_number),
        ingest_test(test_ingest__unknown_names_count_as_lost),
        ingest_test(test_ingest__unreadable_records_are_losses),
        ingest_test(test_ingest__unreadable_names_mean_nothing),
        ingest_test(test_ingest__bye_is_durable_and_ends_the_stream),
        ingest_test(test_ingest__durable_follows_without_a_word),
        ingest_test(test_ingest__ping_is_answered_and_a_clock_kept),
        ingest_test(test_ingest__killed_again_and_again_stores_once),
        ingest_test(test_ingest__runs_are_found_by_name_and_job),
        ingest_test(test_ingest__one_connection_a_stream),
        ingest_test(test_ingest__bad_hellos_are_refused),
        ingest_test(test_ingest__unknown_optional_frames_are_skipped),
        ingest_test(test_ingest__stop_makes_all_durable_and_says_so),
        ingest_test(test_ingest__a_killed_client_is_dead),
        ingest_test(test_ingest__both_killed_is_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
