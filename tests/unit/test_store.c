/* The SQLite engine by itself: transactions, marks, runs, dictionaries. */
#include "daemon/store.h"
#include "tests/lib/unit.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/store_sqlite.h"
#include "tests/lib/rig.h"
#include "tracerd/client.h"

static struct rig rig; /* its directories only */
static const struct store_ops *const ops = &store_sqlite;
static struct store *store;
static struct rig_entries dict, data[4];

/* A stream as the daemon keeps one. */
struct speaker {
    struct marks marks;
    struct store_stream *stream;
    struct store_welcome welcome;
};
static struct speaker a, b;

static void open_store(void)
{
    char why[512] = "";
    if (ops->open(rig.data, &store, why, sizeof why))
        fail_msg("%s", why);
}

static int set_up(void **state)
{
    char path[2 * RIG_PATH];
    (void)state;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    rig_init(&rig);
    snprintf(path, sizeof path, "%s/log", rig.base);
    log_open(path);
    snprintf(rig.data, sizeof rig.data, "%s", rig.base);
    open_store();
    rig_fill_dict(&dict);
    return 0;
}

static void leave(struct speaker *s)
{
    if (s->stream)
        ops->leave(store, s->stream);
    s->stream = NULL;
}

static int tear_down(void **state)
{
    (void)state;
    leave(&a);
    leave(&b);
    ops->close(store);
    store = NULL;
    log_close();
    rig_fini(&rig);
    return 0;
}

static void hello(struct speaker *s, uint64_t epoch, const struct hello *h)
{
    struct store_hello sh = {.epoch = epoch, .uid = 1000, .hello = *h};
    memset(&s->marks, 0, sizeof s->marks);
    ops->hello(store, &sh, &s->marks, &s->stream, &s->welcome);
}

static void open_speaker(struct speaker *s, uint64_t epoch, uint32_t rank)
{
    struct hello h = rig_hello();
    h.rank = rank;
    hello(s, epoch, &h);
    assert_int_equal(s->welcome.reason, 0);
    assert_non_null(s->stream);
}

static void put_dict(struct speaker *s)
{
    struct batch batch = {dict.n, 1};
    batch_put(dict.bytes, &batch);
    ops->dict(store, s->stream, dict.bytes, dict.n_bytes);
}

/* The payload stays until the commit: one buffer each. */
static void put_data(struct speaker *s, int buffer, uint64_t seq, uint32_t n)
{
    struct batch batch = {n, 0};
    rig_fill_data(&data[buffer], seq, n);
    batch_put(data[buffer].bytes, &batch);
    ops->data(store, s->stream, seq, data[buffer].bytes, data[buffer].n_bytes);
}

static int64_t ask(const char *run, const char *sql)
{
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int64_t v = -1;
    snprintf(path, sizeof path, "%s/%s.db", rig.data, run);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW)
        v = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return v;
}

static void test_store__marks_follow_commit_and_sync(void **state)
{
    (void)state;
    open_speaker(&a, 1, 0);
    put_dict(&a);
    put_data(&a, 0, 1, 10);
    assert_int_equal(atomic_load(&a.marks.committed), 0);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 0);
    ops->commit(store);
    assert_int_equal(atomic_load(&a.marks.committed), 10);
    assert_int_equal(atomic_load(&a.marks.durable), 0);
    assert_int_equal(atomic_load(&a.marks.dict_durable), 0);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 10);
    ops->sync(store);
    assert_int_equal(atomic_load(&a.marks.durable), 10);
    assert_int_equal(atomic_load(&a.marks.dict_durable), RIG_DICT_N);
}

static void test_store__what_is_not_committed_is_not_there(void **state)
{
    (void)state;
    open_speaker(&a, 1, 0);
    put_dict(&a);
    put_data(&a, 0, 1, 10);
    ops->commit(store);
    put_data(&a, 0, 11, 10);
    leave(&a);
    ops->close(store); /* as if killed: nothing of the open transaction */
    open_store();
    open_speaker(&a, 1, 0);
    assert_int_equal(a.welcome.seq, 10);
    assert_int_equal(atomic_load(&a.marks.durable), 10);
    assert_int_equal(a.welcome.dict_n, RIG_DICT_N);
    put_data(&a, 0, 1, 20); /* all again */
    ops->commit(store);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 20);
    assert_int_equal(ask("run", "SELECT count(*) FROM dict"), RIG_DICT_N);
}

static void test_store__ranks_share_names(void **state)
{
    (void)state;
    open_speaker(&a, 1, 0);
    open_speaker(&b, 2, 1);
    put_dict(&a);
    put_dict(&b);
    put_data(&a, 0, 1, 10);
    put_data(&b, 1, 1, 10);
    ops->commit(store);
    assert_int_equal(ask("run", "SELECT count(*) FROM object"), 1);
    assert_int_equal(ask("run", "SELECT count(*) FROM path"), 1);
    assert_int_equal(ask("run", "SELECT count(*) FROM shape WHERE dims = "
                                "'4 8' AND n = 32"),
                     1);
    assert_int_equal(ask("run", "SELECT count(*) FROM dict"), 2 * RIG_DICT_N);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 20);
    assert_int_equal(b.welcome.stream, 1 << 12 | 1);
    assert_memory_equal(a.welcome.store_id, b.welcome.store_id, 16);
}

static void test_store__rows_are_in_order_of_their_key(void **state)
{
    struct batch batch = {3, 0};
    (void)state;
    open_speaker(&a, 1, 0);
    put_dict(&a);
    rig_entries_init(&data[0]);
    for (uint64_t i = 0; i < 3; i++) {
        struct wire_record m = rig_record(1 + i);
        m.when.step = 10 - i;
        rig_add_record(&data[0], 1 + i, &m);
    }
    batch_put(data[0].bytes, &batch);
    ops->data(store, a.stream, 1, data[0].bytes, data[0].n_bytes);
    ops->commit(store);
    assert_int_equal(ask("run", "SELECT seq FROM record LIMIT 1"), 3);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 3);
}

/* Somebody is reading the file back into shape, as after a kill: whoever is
 * gone is found to be so a little later. */
static void test_store__a_locked_file_is_swept_later(void **state)
{
    struct hello h = rig_hello();
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    (void)state;
    h.pid = 1;
    h.start_time = 12345678;
    hello(&a, 1, &h);
    assert_int_equal(a.welcome.reason, 0);
    ops->commit(store);
    leave(&a);
    ops->close(store);
    snprintf(path, sizeof path, "%s/run.db", rig.data);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL),
                     SQLITE_OK);
    open_store();
    ops->tidy(store);
    assert_int_equal(ask("run", "SELECT state = 'open' FROM stream"), 1);
    sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    sqlite3_close(db);
    ops->tidy(store);
    assert_int_equal(ask("run", "SELECT state = 'dead' FROM stream"), 1);
}

/* Three records: plain, of a rule, of a rule and with a histogram. */
static void test_store__few_records_have_extras(void **state)
{
    static struct trd_histogram h = {TRD_HISTOGRAM_ROWS, 125, 2, {1, 31}};
    struct batch batch = {3, 0};
    (void)state;
    open_speaker(&a, 1, 0);
    put_dict(&a);
    rig_entries_init(&data[0]);
    for (uint64_t i = 1; i <= 3; i++) {
        struct wire_record m = rig_record(i);
        if (i > 1) {
            m.stats.sampling = TRD_RANDOM;
            m.stats.sampling_arg = 7 * i;
        }
        if (i > 2)
            m.stats.histogram = &h;
        rig_add_record(&data[0], i, &m);
    }
    batch_put(data[0].bytes, &batch);
    ops->data(store, a.stream, 1, data[0].bytes, data[0].n_bytes);
    ops->commit(store);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 3);
    assert_int_equal(ask("run", "SELECT count(*) FROM extra"), 2);
    assert_int_equal(ask("run", "SELECT sampling = 2 AND sampling_arg = 14 "
                                "AND histogram IS NULL FROM extra "
                                "WHERE seq = 2"),
                     1);
    assert_int_equal(ask("run", "SELECT hex(histogram) = '010201' || '7D00' "
                                "|| '011F' FROM extra WHERE seq = 3"),
                     1);
    assert_int_equal(ask("run", "SELECT sum(count) FROM v_histogram"), 32);
    assert_int_equal(ask("run", "SELECT sampling = 'random seed 21' FROM "
                                "v_record WHERE seq = 3"),
                     1);
    /* what was rolled back is back to nothing in both tables */
    rig_entries_init(&data[0]);
    struct wire_record m = rig_record(4);
    m.stats.histogram = &h;
    rig_add_record(&data[0], 4, &m);
    batch.n = 1;
    batch_put(data[0].bytes, &batch);
    ops->data(store, a.stream, 4, data[0].bytes, data[0].n_bytes);
    leave(&a);
    ops->close(store);
    open_store();
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 3);
    assert_int_equal(ask("run", "SELECT count(*) FROM extra"), 2);
}

static void test_store__a_late_start_is_a_loss(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    h.first_seq = 101;
    hello(&a, 1, &h);
    assert_int_equal(a.welcome.seq, 100);
    put_dict(&a);
    put_data(&a, 0, 101, 10);
    ops->commit(store);
    assert_int_equal(atomic_load(&a.marks.committed), 110);
    assert_int_equal(ask("run", "SELECT seq = 1 AND last = 100 AND count = "
                                "100 AND cause = 'store_lost' FROM loss"),
                     1);
    assert_int_equal(atomic_load(&ops->counters(store)->lost[TRD_LOST_STORE]),
                     100);
}

/* Losses only: so many, from seq on. */
struct told {
    uint32_t cause;
    uint64_t count;
};

static void put_losses(struct speaker *s, int buffer, uint64_t seq,
                       const struct told *losses, uint32_t n)
{
    struct batch batch = {n, 0};
    rig_entries_init(&data[buffer]);
    for (uint32_t i = 0; i < n; i++)
        rig_add_loss(&data[buffer], seq + i, losses[i].cause, losses[i].count);
    batch_put(data[buffer].bytes, &batch);
    ops->data(store, s->stream, seq, data[buffer].bytes, data[buffer].n_bytes);
}

static void test_store__losses_in_a_row_are_one_row(void **state)
{
    static const struct told first[] = {
        {TRD_LOST_RING_FULL, 1}, {TRD_LOST_RING_FULL, 5},
        {TRD_LOST_RING_FULL, 1}, {TRD_LOST_OOM, 1},
        {TRD_LOST_RING_FULL, 2}, {TRD_LOST_OOM, UINT32_MAX + UINT64_C(1)},
        {TRD_LOST_OOM, 1},
    };
    static const struct told then[] = {{TRD_LOST_OOM, 3}, {TRD_LOST_OOM, 4}};
    (void)state;
    open_speaker(&a, 1, 0);
    put_dict(&a);
    put_losses(&a, 0, 1, first, 7);
    ops->commit(store);
    put_data(&a, 0, 8, 1);
    ops->commit(store);
    put_losses(&a, 0, 9, then, 1);
    ops->commit(store);
    put_losses(&a, 0, 10, then + 1, 1);
    ops->commit(store);
    assert_int_equal(
        ask("run", "SELECT group_concat(seq || ' ' || last || ' ' || count)"
                   " = '1 3 7,4 4 1,5 5 2,6 6 4294967296,7 7 1,9 10 7'"
                   " FROM (SELECT * FROM loss ORDER BY seq)"),
        1);
    assert_int_equal(atomic_load(&ops->counters(store)->lost[TRD_LOST_OOM]),
                     UINT32_MAX + UINT64_C(10));
}

static void test_store__a_failed_commit_fails_its_streams_only(void **state)
{
    struct hello h = rig_hello();
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    (void)state;
    open_speaker(&a, 1, 0);
    h.run = slice_of("other");
    hello(&b, 2, &h);
    put_dict(&a);
    put_dict(&b);
    put_data(&a, 0, 1, 10);
    put_data(&b, 1, 1, 10);
    ops->commit(store);
    /* somebody drops a table under it */
    snprintf(path, sizeof path, "%s/run.db", rig.data);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "DROP VIEW v_record; DROP VIEW v_sample;"
                                  "DROP VIEW sample_part;"
                                  "DROP TABLE record",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    put_data(&a, 0, 11, 10);
    put_data(&b, 1, 11, 10);
    ops->commit(store);
    assert_int_equal(atomic_load(&a.marks.failed), REASON_STORE);
    assert_int_equal(atomic_load(&a.marks.committed), 10);
    assert_int_equal(atomic_load(&b.marks.failed), 0);
    assert_int_equal(atomic_load(&b.marks.committed), 20);
    put_data(&a, 0, 21, 10); /* is taken and does nothing */
    ops->commit(store);
}

static void test_store__a_file_of_somebody_else_is_left_alone(void **state)
{
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    (void)state;
    snprintf(path, sizeof path, "%s/run.db", rig.data);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "CREATE TABLE mine(x);"
                                  "INSERT INTO mine VALUES(7)",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    open_speaker(&a, 1, 0);
    assert_string_equal(a.welcome.run, "run-2");
    assert_int_equal(ask("run", "SELECT x FROM mine"), 7);
}

static void test_store__long_names_keep_their_limit(void **state)
{
    struct hello h = rig_hello();
    char name[TRD_MAX_RUN + 1];
    (void)state;
    memset(name, 'n', TRD_MAX_RUN);
    name[TRD_MAX_RUN] = '\0';
    h.run = slice_of(name);
    h.job = slice_of("");
    hello(&a, 1, &h);
    assert_string_equal(a.welcome.run, name);
    hello(&b, 2, &h);
    memcpy(name + TRD_MAX_RUN - 2, "-2", 2);
    assert_string_equal(b.welcome.run, name);
}

static void test_store__a_stream_that_ended(void **state)
{
    (void)state;
    open_speaker(&a, 1, 0);
    put_dict(&a);
    put_data(&a, 0, 1, 10);
    ops->end(store, a.stream, STORE_ENDED);
    leave(&a);
    ops->commit(store);
    assert_int_equal(ask("run", "SELECT state = 'ended' AND seq = 10 FROM "
                                "stream"),
                     1);
    open_speaker(&a, 1, 0); /* back again */
    assert_int_equal(a.welcome.seq, 10);
    ops->commit(store);
    assert_int_equal(ask("run", "SELECT state = 'open' FROM stream"), 1);
    assert_int_equal(ask("run", "SELECT count(*) FROM stream"), 1);
    put_data(&a, 0, 11, 1); /* its names are known still */
    ops->commit(store);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), 11);
    assert_int_equal(ask("run", "SELECT count(*) FROM loss"), 0);
}

/* In place, as by cp: the inode is the same and what it holds is not. */
static void test_store__a_file_that_was_written_over(void **state)
{
    char command[6 * RIG_PATH];
    struct hello h = rig_hello();
    (void)state;
    hello(&a, 1, &h); /* job */
    assert_string_equal(a.welcome.run, "run");
    h.run = slice_of("other");
    h.job = slice_of("another job");
    hello(&b, 2, &h);
    ops->commit(store);
    leave(&a);
    leave(&b);
    ops->close(store);
    open_store();
    h = rig_hello();
    h.job = slice_of("a third job");
    hello(&a, 3, &h); /* for which run.db was read and is remembered */
    assert_string_equal(a.welcome.run, "run-2");
    snprintf(command, sizeof command, "cat %s/other.db > %s/run.db", rig.data,
             rig.data);
    assert_int_equal(system(command), 0);
    h.job = slice_of("another job");
    hello(&b, 4, &h);
    assert_string_equal(b.welcome.run, "run");
}

static void test_store__files_put_aside_at_once_keep_apart(void **state)
{
    char path[RIG_PATH + 16], command[3 * RIG_PATH];
    (void)state;
    snprintf(path, sizeof path, "%s/x.db", rig.data);
    for (int i = 0; i < 3; i++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fclose(f);
        file_put_aside(path);
    }
    snprintf(command, sizeof command,
             "test $(ls %s | grep -c 'x.db.corrupt-') = 3", rig.data);
    assert_int_equal(system(command), 0);
}

/* ---- the log and its readers ---- */

enum { LIMIT = 1 << 20 };

static sqlite3 *reader_open(void)
{
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    snprintf(path, sizeof path, "%s/run.db", rig.data);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN; SELECT count(*) FROM record",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    return db;
}

static int64_t log_bytes(void)
{
    char path[2 * RIG_PATH];
    struct stat st;
    snprintf(path, sizeof path, "%s/run.db-wal", rig.data);
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

/* Commits of 500 records until the run is to wait, at most most of them. */
static unsigned write_until_held(uint64_t *seq, unsigned most)
{
    unsigned n = 0;
    while (n < most && ops->ready(store, a.stream, true)) {
        put_data(&a, 0, *seq, 500);
        ops->commit(store);
        *seq += 500;
        n++;
    }
    return n;
}

static void open_limited(uint64_t wait_ms)
{
    store->wal_limit = LIMIT;
    store->wal_wait_ms = wait_ms;
    open_speaker(&a, 1, 0);
    put_dict(&a);
    put_data(&a, 0, 1, 10);
    ops->commit(store);
}

static void test_store__a_reader_is_waited_for_at_the_limit(void **state)
{
    uint64_t seq = 11;
    unsigned n;
    sqlite3 *reader;
    (void)state;
    open_limited(60000);
    reader = reader_open();
    n = write_until_held(&seq, 200);
    assert_in_range(n, 2, 100);
    assert_in_range(log_bytes(), LIMIT, 2 * LIMIT);
    ops->unlock(store);
    assert_false(ops->ready(store, a.stream, true));
    assert_int_equal(atomic_load(&ops->counters(store)->wal_waits), 1);
    sqlite3_close(reader);
    assert_false(ops->ready(store, a.stream, true)); /* till the next look */
    ops->unlock(store);
    assert_true(ops->ready(store, a.stream, true));
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), seq - 1);
    assert_in_range(log_bytes(), 0, 64 * 1024);
    put_data(&a, 0, seq, 10);
    ops->commit(store);
    assert_int_equal(atomic_load(&a.marks.committed), seq + 9);
    assert_int_equal(atomic_load(&a.marks.failed), 0);
}

static void test_store__readers_without_a_gap_keep_no_log(void **state)
{
    sqlite3 *reader[3];
    uint64_t seq = 11;
    int64_t longest = 0;
    (void)state;
    open_limited(60000);
    for (int i = 0; i < 3; i++)
        reader[i] = reader_open();
    for (unsigned turn = 0; turn < 120; turn++) {
        write_until_held(&seq, 4);
        if (log_bytes() > longest)
            longest = log_bytes();
        sqlite3_close(reader[turn % 3]); /* two others read on */
        reader[turn % 3] = reader_open();
        ops->unlock(store);
    }
    for (int i = 0; i < 3; i++)
        sqlite3_close(reader[i]);
    print_message("%llu records, log of at most %lld bytes\n",
                  (unsigned long long)seq, (long long)longest);
    assert_in_range(longest, LIMIT, 2 * LIMIT);
    assert_true(seq > 50000);
    assert_int_equal(ask("run", "SELECT count(*) FROM record"), seq - 1);
}

static void test_store__a_reader_that_stays_stops_nobody(void **state)
{
    uint64_t seq = 11;
    sqlite3 *reader;
    (void)state;
    open_limited(50);
    reader = reader_open();
    write_until_held(&seq, 200);
    usleep(60 * 1000);
    ops->unlock(store);
    assert_true(ops->ready(store, a.stream, true));
    write_until_held(&seq, 400); /* up to the double */
    assert_in_range(log_bytes(), 2 * LIMIT, 4 * LIMIT);
    assert_int_equal(atomic_load(&ops->counters(store)->wal_waits), 2);
    assert_int_equal(atomic_load(&a.marks.failed), 0);
    sqlite3_close(reader);
    ops->unlock(store);
    assert_true(ops->ready(store, a.stream, true));
    assert_in_range(log_bytes(), 0, 64 * 1024);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_store__marks_follow_commit_and_sync),
        TEST(test_store__what_is_not_committed_is_not_there),
        TEST(test_store__ranks_share_names),
        TEST(test_store__rows_are_in_order_of_their_key),
        TEST(test_store__a_locked_file_is_swept_later),
        TEST(test_store__few_records_have_extras),
        TEST(test_store__a_late_start_is_a_loss),
        TEST(test_store__losses_in_a_row_are_one_row),
        TEST(test_store__a_failed_commit_fails_its_streams_only),
        TEST(test_store__a_file_of_somebody_else_is_left_alone),
        TEST(test_store__long_names_keep_their_limit),
        TEST(test_store__a_stream_that_ended),
        TEST(test_store__a_file_that_was_written_over),
        TEST(test_store__files_put_aside_at_once_keep_apart),
        TEST(test_store__a_reader_is_waited_for_at_the_limit),
        TEST(test_store__readers_without_a_gap_keep_no_log),
        TEST(test_store__a_reader_that_stays_stops_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
