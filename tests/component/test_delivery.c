/* The real client and the real daemon, with kills in between: everything
 * that was submitted is stored once. */
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/unit.h"

#include "tests/lib/rig.h"
#include "tracerd/client.h"

static struct rig rig;

static int setup(void **state)
{
    (void)state;
    rig_init(&rig);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rig_fini(&rig);
    return 0;
}

static struct trd_client *client(const char *job, uint32_t rank)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    trd_client_options_init(&o);
    o.dir = rig.dir;
    o.run = "run";
    o.job = job;
    o.rank = rank;
    o.world = 2;
    assert_int_equal(trd_client_open(&o, &c), 0);
    return c;
}

static uint32_t site(struct trd_client *c)
{
    uint32_t id = 0;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    assert_int_equal(trd_site(c, &s, &id), 0);
    return id;
}

static void submit(struct trd_client *c, uint32_t at, uint64_t step)
{
    const float data[4] = {1, 2, 3, (float)step};
    const int64_t shape[1] = {4};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    struct trd_when when = {.step = step, .iteration = step, .microbatch = 1};
    assert_int_equal(trd_submit_cpu(c, at, &when, &t, 16), 0);
}

/* A number from a stored run; -1 while there is no such file or table. */
static long long number(const char *run, const char *sql)
{
    char path[RIG_PATH + 64];
    sqlite3 *db;
    sqlite3_stmt *s = NULL;
    long long v = -1;
    snprintf(path, sizeof path, "%s/%s.db", rig.data, run);
    if (!sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) &&
        !sqlite3_busy_timeout(db, RIG_WAIT_MS) &&
        !sqlite3_prepare_v2(db, sql, -1, &s, NULL) &&
        sqlite3_step(s) == SQLITE_ROW)
        v = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return v;
}

/* n records with seq 1..n, each once, and each step once. */
static void holds(const char *run, int rank, long long n)
{
    char sql[512];
    snprintf(sql, sizeof sql,
             "SELECT count(*) = %lld AND count(DISTINCT seq) = %lld"
             " AND min(seq) = 1 AND max(seq) = %lld"
             " AND count(DISTINCT step) = %lld"
             " FROM v_record WHERE rank = %d",
             n, n, n, n, rank);
    assert_int_equal(number(run, sql), 1);
    assert_int_equal(number(run, "SELECT count(*) FROM loss"), 0);
    assert_int_equal(
        number(run, "SELECT integrity_check = 'ok' FROM"
                    " pragma_integrity_check"),
        1);
}

static uint64_t committed(struct trd_client *c)
{
    struct trd_counters n;
    trd_counters(c, &n);
    return n.committed;
}

/* Every other kill comes at once, the rest while the store is at work. */
static void test_delivery__daemon_killed_again_and_again(void **state)
{
    (void)state;
    enum { KILLS = 12, EACH = 3000 };
    rig_start(&rig);
    struct trd_client *c = client("job", 0);
    uint32_t at = site(c);
    uint64_t step = 0;
    for (int kill_n = 0; kill_n < KILLS; kill_n++) {
        uint64_t before = committed(c);
        for (int i = 0; i < EACH; i++) {
            submit(c, at, ++step);
            if (i != EACH / 2 + 37 * kill_n)
                continue;
            if (kill_n % 2)
                rig_until(committed(c) > before);
            rig_kill(&rig);
        }
        rig_start(&rig);
    }
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    trd_client_close(c);
    holds("run", 0, KILLS * EACH);
    assert_int_equal(number("run", "SELECT count(*) FROM stream"), 1);
    rig_stop(&rig);
}

static void test_delivery__killed_rank_loses_nothing(void **state)
{
    (void)state;
    enum { RECORDS = 5000 };
    rig_start(&rig);
    pid_t child = fork();
    if (!child) {
        struct trd_client *c = client("job", 1);
        uint32_t at = site(c);
        for (uint64_t i = 1; i <= RECORDS; i++)
            submit(c, at, i);
        kill(getpid(), SIGKILL);
    }
    waitpid(child, NULL, 0);
    rig_until(number("run", "SELECT max(seq) FROM stream") == RECORDS);
    holds("run", 1, RECORDS);
    rig_until(number("run", "SELECT count(*) FROM stream"
                            " WHERE state = 'dead'") == 1);
    rig_stop(&rig);
}

static void test_delivery__daemon_started_later_takes_over(void **state)
{
    (void)state;
    struct trd_client *c = client("job", 0);
    uint32_t at = site(c);
    for (uint64_t i = 1; i <= 700; i++)
        submit(c, at, i);
    trd_client_close(c); /* this process lives on */
    rig_start(&rig);
    rig_until(number("run", "SELECT max(seq) FROM stream") == 700);
    holds("run", 0, 700);
    rig_stop(&rig);
}

static void test_delivery__both_killed_and_started_again(void **state)
{
    (void)state;
    rig_start(&rig);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (!child) {
        struct trd_client *c = client("job", 0);
        uint32_t at = site(c);
        for (uint64_t i = 1; i <= 4000; i++)
            submit(c, at, i);
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    char word;
    assert_int_equal(read(ready[0], &word, 1), 1);
    rig_kill(&rig);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    rig_start(&rig);
    rig_until(number("run", "SELECT max(seq) FROM stream") == 4000);
    holds("run", 0, 4000);
    rig_stop(&rig);
    close(ready[0]);
    close(ready[1]);
}

static void test_delivery__ranks_of_a_job_share_a_run(void **state)
{
    (void)state;
    char name[TRD_MAX_RUN + 1];
    rig_start(&rig);
    struct trd_client *a = client("job-a", 0), *b = client("job-a", 1);
    struct trd_client *other = client("job-b", 0);
    submit(a, site(a), 1);
    submit(b, site(b), 1);
    assert_int_equal(trd_flush(a, RIG_WAIT_MS), 0);
    assert_int_equal(trd_flush(b, RIG_WAIT_MS), 0);
    submit(other, site(other), 1);
    assert_int_equal(trd_flush(other, RIG_WAIT_MS), 0);
    /* whoever said hello first has the plain name */
    trd_run_name(a, name, sizeof name);
    assert_int_equal(number(name, "SELECT count(*) FROM record"), 2);
    trd_run_name(other, name, sizeof name);
    assert_int_equal(number(name, "SELECT count(*) FROM record"), 1);
    assert_int_equal(number("run", "SELECT 1"), 1);
    assert_int_equal(number("run-2", "SELECT 1"), 1);
    trd_client_close(a);
    trd_client_close(b);
    trd_client_close(other);
    rig_stop(&rig);
}

static void test_delivery__close_waits_for_the_disk(void **state)
{
    (void)state;
    rig_start(&rig);
    struct trd_client *c = client("job", 0);
    submit(c, site(c), 1);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    trd_client_close(c);
    rig_until(number("run", "SELECT count(*) FROM stream"
                            " WHERE state = 'ended'") == 1);
    rig_stop(&rig);
    char *log = rig_log(&rig);
    assert_null(strstr(log, "journal_adopted")); /* nothing was left */
    free(log);
}

static void test_delivery__losses_are_rows_with_their_count(void **state)
{
    (void)state;
    rig_start(&rig);
    struct trd_client *c = client("job", 0);
    submit(c, site(c), 1);
    trd_lost(c, TRD_LOST_ERROR, 5);
    submit(c, site(c), 2);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    assert_int_equal(number("run", "SELECT count FROM v_loss"
                                   " WHERE cause = 'error'"),
                     5);
    assert_int_equal(number("run", "SELECT count(*) FROM record"), 2);
    trd_client_close(c);
    rig_stop(&rig);
}

int main(void)
{
#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_delivery__daemon_killed_again_and_again),
        RIG_TEST(test_delivery__killed_rank_loses_nothing),
        RIG_TEST(test_delivery__daemon_started_later_takes_over),
        RIG_TEST(test_delivery__both_killed_and_started_again),
        RIG_TEST(test_delivery__ranks_of_a_job_share_a_run),
        RIG_TEST(test_delivery__close_waits_for_the_disk),
        RIG_TEST(test_delivery__losses_are_rows_with_their_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
