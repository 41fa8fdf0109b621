/* What other programs do to the files while daemon and client are at work:
 * they lock a run, read it for long, delete, cut, replace or copy files.
 * TRD_TEST_SLOW=1 holds a lock for a minute, too. */
#include "tests/lib/rig.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/journal.h"
#include "tests/lib/oracle.h"
#include "tests/lib/unit.h"
#include "tracerd/client.h"

enum {
    BATCH = 1000,
    WAL_LIMIT_BYTES = 64 * 1024 * 1024, /* as tracerd(8) says */
    YOUNG_MS = 5000 /* a journal without a head may still be made so long */
};

static struct rig rig;

static int set_up(void **state)
{
    (void)state;
    rig_init(&rig);
    rig_start(&rig);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_fini(&rig);
    return 0;
}

/* ---- clients ---- */

struct tracer {
    struct trd_client *c;
    uint32_t site;
    uint64_t step; /* records that were accepted */
};

static struct tracer open_tracer(const char *run)
{
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    struct trd_client_options o;
    struct tracer t = {.step = 0};
    trd_client_options_init(&o);
    o.dir = rig.dir;
    o.run = run;
    assert_int_equal(trd_client_open(&o, &t.c), 0);
    assert_int_equal(trd_site(t.c, &s, &t.site), 0);
    return t;
}

/* A submit is no system call, so nothing that a daemon does holds it up. */
static void submit(struct tracer *t, uint64_t n)
{
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    struct trd_tensor tensor = {data, TRD_F32, 1, shape, NULL};
    for (uint64_t i = 0; i < n; i++) {
        struct trd_when when = {.step = ++t->step, .iteration = t->step,
                                .microbatch = 1};
        assert_int_equal(trd_submit_cpu(t->c, t->site, &when, &tensor, 4), 0);
    }
}

static struct trd_counters counters(struct tracer *t)
{
    struct trd_counters n;
    trd_counters(t->c, &n);
    return n;
}

static void until_durable(struct tracer *t)
{
    long long end = rig_now_ms() + 60000;
    while (counters(t).durable < t->step) {
        if (rig_now_ms() > end)
            fail_msg("%" PRIu64 " of %" PRIu64 " durable\n%s",
                     counters(t).durable, t->step, rig_log(&rig));
        rig_pause();
    }
}

static const char *path_of(const char *run, const char *tail)
{
    static char path[2 * RIG_PATH];
    snprintf(path, sizeof path, "%s/%s.db%s", rig.data, run, tail);
    return path;
}

/* One number of a run's file; -1: none. */
static int64_t number(const char *run, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int64_t v = -1;
    if (!sqlite3_open_v2(path_of(run, ""), &db, SQLITE_OPEN_READWRITE, NULL) &&
        !sqlite3_busy_timeout(db, RIG_WAIT_MS) &&
        !sqlite3_prepare_v2(db, sql, -1, &s, NULL) &&
        sqlite3_step(s) == SQLITE_ROW)
        v = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return v;
}

/* ---- other programs ---- */

/* A process that has done sql to the run's file and keeps the connection
 * until it is killed. */
static pid_t other_program(const char *run, const char *sql)
{
    int ready[2];
    char byte;
    pid_t pid;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        sqlite3 *db = NULL;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (sqlite3_open_v2(path_of(run, ""), &db, SQLITE_OPEN_READWRITE,
                            NULL) ||
            sqlite3_busy_timeout(db, RIG_WAIT_MS) ||
            sqlite3_exec(db, sql, NULL, NULL, NULL) ||
            write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void end_program(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* ---- H42, fault 40: a lock ---- */

/* 1000 records come while the run is locked for so long. */
static void locked_for(int seconds)
{
    char run[32];
    struct tracer t;
    pid_t other;
    snprintf(run, sizeof run, "locked%d", seconds);
    t = open_tracer(run);
    submit(&t, 10);
    until_durable(&t);
    other = other_program(run, "BEGIN IMMEDIATE");
    for (int i = 0; i < 10; i++) {
        submit(&t, 100);
        usleep((useconds_t)seconds * 100000);
    }
    assert_int_equal(counters(&t).committed, 10);
    end_program(other);
    until_durable(&t);
    for (int cause = 0; cause < TRD_CAUSE_COUNT; cause++)
        assert_int_equal(counters(&t).lost[cause], 0);
    trd_client_close(t.c);
    oracle_process(&rig, run, getpid(), 1010, 0, 0);
    oracle_run(&rig, run);
    assert_int_equal(number(run, "SELECT count(*) FROM record"), 1010);
}

static void test_locks__a_run_is_locked_while_records_come(void **state)
{
    int slow = getenv("TRD_TEST_SLOW") != NULL;
    (void)state;
    locked_for(2); /* shorter than the daemon waits */
    locked_for(8);
    if (slow)
        locked_for(60);
    assert_true(rig_alive(&rig));
    oracle_held(40, slow ? 3 : 2, "BEGIN IMMEDIATE of another program");
}

/* Exclusively: nobody may even read. */
static void test_locks__a_daemon_starts_while_a_run_is_locked(void **state)
{
    static const char *const how[] = {"BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"};
    (void)state;
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        const char *run = i ? "exclusive" : "immediate";
        struct tracer t = open_tracer(run);
        pid_t other;
        submit(&t, 10);
        until_durable(&t);
        rig_kill(&rig);
        other = other_program(run, how[i]);
        submit(&t, BATCH);
        oracle_start(&rig);
        sleep(2);
        assert_int_equal(counters(&t).committed, 10);
        end_program(other);
        until_durable(&t);
        trd_client_close(t.c);
        oracle_process(&rig, run, getpid(), BATCH + 10, 0, 0);
        oracle_run(&rig, run);
    }
    oracle_held(40, 2, "a start while a run is locked");
}

/* ---- H43, fault 39: a reader ---- */

static struct rig_client c;
static struct rig_entries e;
static uint64_t sent;

static off_t wal_size(const char *run)
{
    struct stat st;
    return stat(path_of(run, "-wal"), &st) == 0 ? st.st_size : 0;
}

/* One frame more; at most so many are on their way. */
static void stream(void)
{
    rig_fill_data(&e, sent + 1, BATCH);
    rig_send_data(&c, &e, sent + 1);
    sent += BATCH;
    if (sent > 8 * BATCH)
        rig_committed(&c, sent - 8 * BATCH);
}

/* The daemon's word for what the logs take. */
static long long told_wal(void)
{
    char command[2048];
    long long v = -1;
    FILE *f;
    snprintf(command, sizeof command,
             "$TRD_TRACECTL -s %s -o csv status | sed -n 's/^wal_bytes,//p'",
             rig.dir);
    f = popen(command, "r");
    assert_non_null(f);
    if (fscanf(f, "%lld", &v) != 1)
        v = -1;
    pclose(f);
    return v;
}

static void test_locks__a_reader_stays(void **state)
{
    long long end;
    pid_t reader;
    (void)state;
    rig_open(&rig, &c, 91);
    sent = 0;
    rig_fill_dict(&e);
    rig_send_dict(&c, &e, 1);
    stream();
    rig_committed(&c, sent);
    reader = other_program("run", "BEGIN; SELECT count(*) FROM record");
    end = rig_now_ms() + 120000;
    while (wal_size("run") <= WAL_LIMIT_BYTES + (4 << 20)) {
        stream();
        if (rig_now_ms() > end)
            fail_msg("only %lld bytes", (long long)wal_size("run"));
    }
    rig_until(told_wal() > WAL_LIMIT_BYTES);
    end_program(reader);
    end = rig_now_ms() + 60000;
    do {
        stream();
        if (rig_now_ms() > end)
            fail_msg("still %lld bytes", (long long)wal_size("run"));
    } while (wal_size("run") > WAL_LIMIT_BYTES);
    rig_until(told_wal() <= WAL_LIMIT_BYTES);
    rig_committed(&c, sent);
    assert_int_equal(number("run", "SELECT count(*) FROM record"),
                     (int64_t)sent);
    rig_close(&c);
    oracle_run(&rig, "run");
    oracle_held(39, 1, "a snapshot while the log passes its limit");
}

/* A question whose answer nobody reads on, as in a pager. */
static pid_t pager(const char *arguments, int *out)
{
    char command[2048];
    int fds[2];
    char byte;
    pid_t pid;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        dup2(fds[1], STDOUT_FILENO);
        snprintf(command, sizeof command, "exec \"$TRD_TRACECTL\" %s",
                 arguments);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &byte, 1), 1);
    *out = fds[0];
    return pid;
}

static void test_locks__a_pager_holds_no_snapshot(void **state)
{
    char arguments[3][1024];
    (void)state;
    snprintf(arguments[0], sizeof arguments[0], "-s %s query '*'", rig.dir);
    snprintf(arguments[1], sizeof arguments[1],
             "-s %s sql 'SELECT * FROM v_record'", rig.dir);
    snprintf(arguments[2], sizeof arguments[2], "-d %s/run.db query '*'",
             rig.data);
    rig_open(&rig, &c, 92);
    sent = 0;
    rig_fill_dict(&e);
    rig_send_dict(&c, &e, 1);
    for (int i = 0; i < 20; i++)
        stream();
    rig_committed(&c, sent);
    for (int i = 0; i < 3; i++) {
        int out;
        pid_t pid = pager(arguments[i], &out);
        /* it waits for the pager, not for the daemon */
        rig_until(number("run", "PRAGMA wal_checkpoint(TRUNCATE)") == 0);
        stream();
        rig_committed(&c, sent);
        rig_until(number("run", "PRAGMA wal_checkpoint(TRUNCATE)") == 0);
        close(out);
        waitpid(pid, NULL, 0);
    }
    rig_close(&c);
    oracle_held(39, 3, "answers that wait in a pager");
}

/* ---- fault 36: files under a daemon and a client ---- */

/* What was durable in a file that is gone is told with its count; all else
 * is in the new one. */
static void told_as_lost(struct tracer *t, const char *run, uint64_t lost)
{
    until_durable(t);
    oracle_run(&rig, run);
    if (number(run, "SELECT total(count) FROM loss WHERE cause = "
                    "'store_lost'") != (int64_t)lost)
        fail_msg("%s: not %" PRIu64 " lost\n%s", run, lost, rig_log(&rig));
    assert_int_equal(number(run, "SELECT count(*) FROM record WHERE stream = "
                                 "(SELECT id FROM stream ORDER BY seq DESC "
                                 "LIMIT 1)"), (int64_t)(t->step - lost));
    assert_true(rig_alive(&rig));
}

static void shell(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
static void shell(const char *format, ...)
{
    char command[8 * RIG_PATH];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

static void test_locks__a_run_changes_under_both(void **state)
{
    static const char *const how[] = {
        "rm $D/run.db $D/run.db-wal $D/run.db-shm",
        "rm $D/run.db",
        "mv $D/run.db $D/elsewhere",
        "truncate -s 0 $D/run.db",
        "truncate -s 8192 $D/run.db",
        ("rm $D/run.db-wal $D/run.db-shm; cp $D/other.db $D/t && mv $D/t "
         "$D/run.db"),
    };
    (void)state;
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        char name[TRD_MAX_RUN + 1];
        struct tracer t = open_tracer("other");
        submit(&t, 10);
        until_durable(&t);
        trd_client_close(t.c);
        t = open_tracer("run");
        submit(&t, 50);
        until_durable(&t);
        shell("D=%s; %s", rig.data, how[i]);
        rig_logged(&rig, "run=run doing=");
        submit(&t, 100);
        until_durable(&t);
        trd_run_name(t.c, name, sizeof name);
        told_as_lost(&t, name, 50);
        submit(&t, 10);
        told_as_lost(&t, name, 50);
        trd_client_close(t.c);
        tear_down(NULL);
        set_up(NULL);
    }
    oracle_held(36, sizeof how / sizeof *how,
                "a run deleted, moved, cut or replaced under both");
}

/* What is stored between the removal and the daemon's next look is told as
 * lost, too: everything is in the new file or counted there. */
static void test_locks__a_run_goes_while_records_come(void **state)
{
    enum { ROUNDS = 3 };
    struct tracer t = open_tracer("run");
    (void)state;
    for (int round = 1; round <= ROUNDS; round++) {
        long long end = rig_now_ms() + 1500;
        shell("rm -f %s", path_of("run", ""));
        while (rig_now_ms() < end) {
            submit(&t, 20);
            usleep(5000);
        }
    }
    until_durable(&t);
    /* a last word after the last file was seen to be gone */
    rig_until(access(path_of("run", ""), F_OK) == 0);
    submit(&t, 1);
    until_durable(&t);
    trd_client_close(t.c);
    oracle_run(&rig, "run");
    assert_int_equal(number("run", "SELECT (SELECT count(*) FROM record) + "
                                   "(SELECT total(count) FROM loss)"),
                     (int64_t)t.step);
    oracle_held(36, ROUNDS, "a run deleted while records come");
}

/* A copy of earlier, as of a backup that was played back: the same store_id,
 * fewer records. */
static void test_locks__an_older_copy_comes_back(void **state)
{
    struct tracer t = open_tracer("run");
    (void)state;
    submit(&t, 50);
    until_durable(&t);
    shell("cd %s && sqlite3 run.db 'VACUUM INTO \"old\"' 2>/dev/null || "
          "python3 -c 'import sqlite3; sqlite3.connect(\"run.db\").execute("
          "\"VACUUM INTO \\\"old\\\"\")'", rig.data);
    submit(&t, 30);
    until_durable(&t);
    shell("cd %s && mv old run.db && rm -f run.db-wal run.db-shm", rig.data);
    rig_logged(&rig, "run=run doing=");
    submit(&t, 100);
    until_durable(&t);
    told_as_lost(&t, "run", 30);
    trd_client_close(t.c);
    oracle_held(36, 1, "an older copy of the run");
}

/* Runs of another version and of other programs are left as they are. */
static void test_locks__a_run_of_another_version(void **state)
{
    static const char *const how[] = {
        "PRAGMA user_version = 2", "PRAGMA user_version = 0",
        "PRAGMA application_id = 1", "PRAGMA user_version = -1"};
    (void)state;
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        struct oracle_file f;
        char name[TRD_MAX_RUN + 1];
        struct tracer t = open_tracer("run");
        submit(&t, 50);
        until_durable(&t);
        trd_client_close(t.c);
        rig_stop(&rig);
        shell("cd %s && python3 -c 'import sqlite3; c = sqlite3.connect("
              "\"run.db\"); c.execute(\"%s\"); c.commit(); c.close()'",
              rig.data, how[i]);
        oracle_file(&f, path_of("run", ""));
        oracle_start(&rig);
        t = open_tracer("run");
        submit(&t, 20);
        until_durable(&t);
        trd_run_name(t.c, name, sizeof name);
        assert_string_equal(name, "run-2");
        trd_client_close(t.c);
        assert_int_equal(number("run-2", "SELECT count(*) FROM record"), 20);
        oracle_untouched(&f);
        tear_down(NULL);
        set_up(NULL);
    }
    oracle_held(36, sizeof how / sizeof *how, "runs of another version");
}

/* ---- journals ---- */

static void the_journal(char out[2 * RIG_PATH])
{
    char command[2 * RIG_PATH];
    FILE *f;
    snprintf(command, sizeof command, "ls %s/*" JOURNAL_SUFFIX, rig.dir);
    f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(out, 2 * RIG_PATH, f));
    pclose(f);
    out[strcspn(out, "\n")] = '\0';
}

/* $J: the journal of a living client. It goes on with the file it has; what
 * is called so now is none of its. */
static void test_locks__a_journal_changes_under_both(void **state)
{
    static const char *const how[] = {
        "rm $J",
        "mv $J $J.moved",
        "cp $J $J.copy; mv $J.copy $J",
        "echo text > $J.t; mv $J.t $J",
        "cp $J ${J%.journal}.copy.journal",
        "rm $J; mkdir $J",
    };
    (void)state;
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        char path[2 * RIG_PATH];
        struct tracer t = open_tracer("run");
        submit(&t, 50);
        until_durable(&t);
        the_journal(path);
        shell("J=%s; %s", path, how[i]);
        submit(&t, 100);
        until_durable(&t);
        rig_kill(&rig);
        submit(&t, 100);
        oracle_start(&rig);
        until_durable(&t);
        trd_client_close(t.c);
        assert_int_equal(number("run", "SELECT count(*) FROM record"), 250);
        assert_int_equal(number("run", "SELECT count(*) FROM stream"), 1);
        assert_int_equal(number("run", "SELECT count(*) FROM loss"), 0);
        oracle_run(&rig, "run");
        assert_true(rig_alive(&rig));
        tear_down(NULL);
        set_up(NULL);
    }
    oracle_held(36, sizeof how / sizeof *how,
                "a journal deleted, moved, copied or replaced under both");
}

/* Bytes of the head of a journal whose process is gone. */
static void patch(const char *path, long at, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Whole but for the head: other words are put there. */
static void reseal(const char *path, void (*change)(struct journal_head *h))
{
    uint8_t page[JOURNAL_PAGE];
    struct journal_head h;
    struct stat st;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fread(page, 1, sizeof page, f), sizeof page);
    fclose(f);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(journal_head_get(page, (uint64_t)st.st_size, &h), 0);
    change(&h);
    journal_head_put(page, &h);
    patch(path, 0, page, sizeof page);
}

static void another_boot(struct journal_head *h)
{
    h->boot_id[0] ^= 1;
}

static void old_journal(const char *name, char path[2 * RIG_PATH])
{
    rig_journal(&rig, name, 700, 40, 0, false);
    snprintf(path, 2 * RIG_PATH, "%s/%s" JOURNAL_SUFFIX, rig.dir, name);
}

/* Each is put aside as it is, and told; nothing of it is stored. One that a
 * newer client wrote is left for a newer daemon. */
static void test_locks__journals_of_other_kinds(void **state)
{
    static const uint8_t version_2[4] = {2, 0, 0, 0};
    static const uint8_t big_endian[8] = {'1', 'L', 'N', 'R',
                                          'J', 'D', 'R', 'T'};
    char path[4][2 * RIG_PATH], bad[9 * RIG_PATH];
    struct stat st;
    (void)state;
    rig_stop(&rig);
    old_journal("newer", path[0]);
    patch(path[0], 8, version_2, 4);
    old_journal("big", path[1]);
    patch(path[1], 0, big_endian, 8);
    old_journal("cut", path[2]);
    assert_int_equal(truncate(path[2], 3 * JOURNAL_PAGE + 100), 0);
    old_journal("empty", path[3]);
    assert_int_equal(truncate(path[3], 0), 0);
    oracle_start(&rig);
    rig_logged(&rig, "file=\"newer.journal\" why=\"version 2; this daemon "
                     "reads version 1\"");
    for (int i = 1; i < 4; i++) {
        long long end = rig_now_ms() + YOUNG_MS + 2 * RIG_WAIT_MS;
        snprintf(bad, sizeof bad, "%s.bad", path[i]);
        while (stat(bad, &st) != 0 && rig_now_ms() < end)
            rig_pause();
        if (stat(bad, &st) != 0)
            fail_msg("%s is not put aside\n%s", path[i], rig_log(&rig));
        assert_int_not_equal(access(path[i], F_OK), 0);
    }
    assert_int_equal(access(path[0], F_OK), 0);
    assert_int_not_equal(access(path_of("run", ""), F_OK), 0);
    assert_true(rig_alive(&rig));
    oracle_held(36, 4, "journals cut, of another version or byte order");
}

/* A number that is alive now was another's before the machine started anew:
 * the journal is a dead one's. Fault 17. */
static void test_locks__a_journal_of_another_boot(void **state)
{
    char path[2 * RIG_PATH];
    (void)state;
    rig_stop(&rig);
    rig.journals_alive = true; /* of this very process */
    old_journal("mine", path);
    reseal(path, another_boot);
    oracle_start(&rig);
    rig_until(number("run", "SELECT count(*) FROM record") == 40);
    rig_until(access(path, F_OK) != 0);
    rig_until(number("run", "SELECT count(*) FROM stream WHERE state = 'dead'")
              == 1);
    oracle_held(17, 1, "a journal of another boot, its pid alive");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_locks__a_run_is_locked_while_records_come),
        TEST(test_locks__a_daemon_starts_while_a_run_is_locked),
        TEST(test_locks__a_reader_stays),
        TEST(test_locks__a_pager_holds_no_snapshot),
        TEST(test_locks__a_run_changes_under_both),
        TEST(test_locks__a_run_goes_while_records_come),
        TEST(test_locks__an_older_copy_comes_back),
        TEST(test_locks__a_run_of_another_version),
        TEST(test_locks__a_journal_changes_under_both),
        TEST(test_locks__journals_of_other_kinds),
        TEST(test_locks__a_journal_of_another_boot),
    };
    if (!getenv("TRD_TRACERD"))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
