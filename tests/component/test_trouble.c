/* What becomes of records when a stored file is locked, cut, replaced or
 * damaged under the daemon. */
#include "tests/lib/ingest.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static sqlite3 *lock_run(const char *run)
{
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    snprintf(path, sizeof path, "%s/%s.db", ingest.rig.data, run);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL),
                     SQLITE_OK);
    return db;
}

/* Waits for longer than the daemon does. */
static void outwait_lock(void)
{
    struct hello h = rig_hello();
    rig_expect(&ingest.c, FRAME_NACK);
    assert_int_equal(ingest.c.refusal.reason, REASON_STORE);
    assert_true(ingest.c.refusal.retry_ms > 0);
    rig_close(&ingest.c);
    assert_false(rig_greet(&ingest.rig, &ingest.c, 77, &h));
    assert_int_equal(ingest.c.refusal.reason, REASON_STORE);
    assert_true(ingest.c.refusal.retry_ms > 0);
    rig_close(&ingest.c);
}

static void test_trouble__a_locked_run_holds_up_no_other(void **state)
{
    struct rig_client other;
    struct hello h = rig_hello();
    uint64_t sent = 10;
    sqlite3 *db;
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_committed(&ingest.c, 10);
    h.run = slice_of("other");
    assert_true(rig_greet(&ingest.rig, &other, 78, &h));
    rig_fill_dict(&ingest.e);
    rig_send_dict(&other, &ingest.e, 1);

    db = lock_run("run");
    for (uint64_t seq = 1; seq <= 200; seq += 10) {
        long long start = rig_now_ms();
        ingest_send_records(sent + 1, 10);
        sent += 10;
        rig_fill_data(&ingest.e, seq, 10);
        rig_send_data(&other, &ingest.e, seq);
        rig_committed(&other, seq + 9);
        assert_in_range(rig_now_ms() - start, 0, 200);
    }
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 10);
    sqlite3_close(db); /* lets go */
    rig_committed(&ingest.c, sent);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), sent);

    h = rig_hello();
    db = lock_run("run"); /* and for long */
    ingest_send_records(sent + 1, 10);
    outwait_lock();
    sqlite3_close(db);
    rig_until(rig_greet(&ingest.rig, &ingest.c, 77, &h) ||
              (rig_close(&ingest.c), false));
    assert_int_equal(ingest.c.welcome.committed_seq, sent);
    ingest_send_records(sent + 1, 10);
    rig_send(&ingest.c, FRAME_BYE, sent + 10, "", 0);
    rig_hung_up(ingest.c.fd);
    ingest_contiguous("run", (int64_t)sent + 10);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    rig_close(&other);
    rig_stop(&ingest.rig);
}

/* A lock does not keep the daemon, nor does it lose what is told as kept. */
static void test_trouble__stop_with_a_locked_run(void **state)
{
    long long start;
    sqlite3 *db;
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
    db = lock_run("run");
    ingest_send_records(11, 10);
    start = rig_now_ms();
    rig_stop(&ingest.rig);
    assert_in_range(rig_now_ms() - start, 0, 8000);
    assert_int_equal(ingest.c.ack.committed_seq, 10);
    sqlite3_close(db);
    rig_close(&ingest.c);
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    assert_int_equal(ingest.c.welcome.committed_seq, 10);
    rig_stop(&ingest.rig);
}

static void test_trouble__a_cut_file_is_put_aside(void **state)
{
    char path[2 * RIG_PATH], command[3 * RIG_PATH];
    uint8_t store_id[16];
    struct hello h = rig_hello();
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    memcpy(store_id, ingest.c.welcome.store_id, 16);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
    snprintf(path, sizeof path, "%s/run.db", ingest.rig.data);
    assert_int_equal(truncate(path, 8192), 0);
    ingest_nack(REASON_STORE);
    h.first_seq = 11;
    assert_true(rig_greet(&ingest.rig, &ingest.c, 77, &h));
    assert_memory_not_equal(store_id, ingest.c.welcome.store_id, 16);
    assert_int_equal(ingest_ask("run",
                                "SELECT count = 10 AND cause = 'store_lost' "
                                "FROM loss"),
                     1);
    snprintf(command, sizeof command, "ls %s | grep -q 'run.db.corrupt-'",
             ingest.rig.data);
    assert_int_equal(system(command), 0);
    rig_stop(&ingest.rig);
}

/* Somebody makes it smaller and leaves it whole. */
static void test_trouble__a_vacuum_is_no_damage(void **state)
{
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 500);
    ingest_send_records(501, 500);
    rig_durable(&ingest.c, 1000);
    snprintf(path, sizeof path, "%s/run.db", ingest.rig.data);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    sqlite3_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL);
    assert_int_equal(sqlite3_exec(db,
                                  "DELETE FROM record WHERE seq < 900;"
                                  "VACUUM;"
                                  "PRAGMA wal_checkpoint(TRUNCATE)",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    sleep(2); /* it was looked at */
    ingest_send_records(1001, 10);
    rig_committed(&ingest.c, 1010);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 111);
    rig_stop(&ingest.rig);
}

static void test_trouble__a_replaced_file_is_told(void **state)
{
    char path[2 * RIG_PATH];
    struct hello h = rig_hello();
    uint8_t store_id[16];
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    memcpy(store_id, ingest.c.welcome.store_id, 16);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
    snprintf(path, sizeof path, "%s/run.db", ingest.rig.data);
    assert_int_equal(unlink(path), 0);
    ingest_nack(REASON_STORE);
    h.first_seq = 11; /* the client has forgotten what was durable */
    assert_true(rig_greet(&ingest.rig, &ingest.c, 77, &h));
    assert_memory_not_equal(store_id, ingest.c.welcome.store_id, 16);
    assert_int_equal(ingest.c.welcome.dict_n, 0);
    ingest_send_dict();
    ingest_send_records(11, 5);
    rig_committed(&ingest.c, 15);
    assert_int_equal(
        ingest_ask("run", "SELECT count = 10 AND seq = 1 AND last = 10 AND "
                          "cause = 'store_lost' FROM loss"),
        1);
    ingest_contiguous("run", 15);
    rig_stop(&ingest.rig);
}

static void test_trouble__a_damaged_file_is_put_aside(void **state)
{
    char command[3 * RIG_PATH];
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
    snprintf(
        command, sizeof command,
        "printf 'this is no database at all, not even nearly a page of one, "
        "but it is long enough to be read as a header, is it not' > %s/run.db",
        ingest.rig.data);
    assert_int_equal(system(command), 0);
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 78);
    assert_string_equal(ingest.c.run, "run");
    rig_logged(&ingest.rig, "corrupt");
    snprintf(command, sizeof command, "ls %s | grep -q 'run.db.corrupt-'",
             ingest.rig.data);
    assert_int_equal(system(command), 0);
    rig_stop(&ingest.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_trouble__a_locked_run_holds_up_no_other),
        ingest_test(test_trouble__stop_with_a_locked_run),
        ingest_test(test_trouble__a_cut_file_is_put_aside),
        ingest_test(test_trouble__a_vacuum_is_no_damage),
        ingest_test(test_trouble__a_replaced_file_is_told),
        ingest_test(test_trouble__a_damaged_file_is_put_aside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
