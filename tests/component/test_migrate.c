/* A run that an older daemon made is made whole when it is opened to be
 * written, and stays as it was where that cannot be: locked, another user's,
 * on a full disk. Needs the right to mount; without it the program is
 * skipped. */
#include "tests/lib/ingest.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tracerd/client.h"

enum { DISK_MIB = 16, SOMEBODY = 61003 };

static char path[2 * RIG_PATH]; /* of the run */

static int set_up(void **state)
{
    char size[32];
    ingest_set_up(state);
    assert_int_equal(mkdir(ingest.rig.data, 0700), 0);
    snprintf(size, sizeof size, "size=%dm,mode=0700", (int)DISK_MIB);
    assert_int_equal(mount("tmpfs", ingest.rig.data, "tmpfs", 0, size), 0);
    snprintf(path, sizeof path, "%s/run.db", ingest.rig.data);
    return 0;
}

static int tear_down(void **state)
{
    if (ingest.rig.pid)
        rig_kill(&ingest.rig);
    umount2(ingest.rig.data, MNT_DETACH);
    return ingest_tear_down(state);
}

static void sql(const char *text)
{
    sqlite3 *db = NULL;
    char *why = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, text, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s", why);
    sqlite3_close(db);
}

/* A run with three records of epoch 77. */
static void make(void)
{
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 3);
    rig_durable(&ingest.c, 3);
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
}

/* The same as older versions made it: without what was pruned, and with a view
 * that makes up what it does not know. */
static void make_old(void)
{
    make();
    sql("DROP VIEW v_pruned; DROP VIEW v_run; DROP TABLE pruned;"
        "DROP VIEW v_record; DROP INDEX object_module;"
        "DROP TABLE sqlite_stat1;"
        "CREATE VIEW v_run AS SELECT id AS stream FROM stream;"
        "CREATE VIEW v_record AS SELECT seq, printf('%016x', hash) AS hash,"
        " max(max, -min) AS absmax FROM record;"
        "UPDATE record SET hash = NULL WHERE seq = 2;"
        "UPDATE record SET given = 0 WHERE seq = 3;"
        "UPDATE stream SET state = 'ended'");
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_record WHERE "
                                       "hash IS NULL OR absmax IS NULL"), 0);
}

/* The stream comes back and sends one more. */
static void goes_on(void)
{
    rig_open(&ingest.rig, &ingest.c, 77);
    assert_int_equal(ingest.c.welcome.committed_seq, 3);
    ingest_send_dict();
    ingest_send_records(4, 1);
    rig_committed(&ingest.c, 4);
    rig_close(&ingest.c);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_record"), 4);
    assert_int_equal(ingest_ask("run", "SELECT records FROM v_run"), 4);
    assert_int_equal(ingest_ask("run", "SELECT pruned FROM v_run"), 0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_pruned"), 0);
    assert_int_equal(ingest_ask("run", "SELECT seq FROM v_record WHERE hash "
                                       "IS NULL"), 2);
    assert_int_equal(ingest_ask("run", "SELECT seq FROM v_record WHERE absmax"
                                       " IS NULL"), 3);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM sqlite_stat1"), 1);
}

static void is_as_it_was(void)
{
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 3);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM sqlite_master "
                                       "WHERE name LIKE '%pruned'"), 0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_record WHERE "
                                       "hash IS NOT NULL"), 3);
}

/* Refused, to come again, for this reason. */
static void refused(const char *why)
{
    struct hello h = rig_hello();
    char text[WIRE_REASON_MAX + 1];
    assert_false(rig_greet(&ingest.rig, &ingest.c, 77, &h));
    assert_int_equal(ingest.c.refusal.reason, REASON_STORE);
    assert_true(ingest.c.refusal.retry_ms > 0);
    snprintf(text, sizeof text, "%.*s", (int)ingest.c.refusal.text.n,
             ingest.c.refusal.text.text);
    if (!strstr(text, why))
        fail_msg("'%s' is not about '%s'", text, why);
    rig_close(&ingest.c);
}

static void test_migrate__views_and_tables_are_made_new(void **state)
{
    (void)state;
    make_old();
    rig_start(&ingest.rig);
    goes_on();
    rig_stop(&ingest.rig);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_record"), 4);
}

static void test_migrate__nothing_is_old_but_a_view(void **state)
{
    (void)state;
    make();
    sql("DROP VIEW v_record; CREATE VIEW v_record AS SELECT seq FROM record");
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
    assert_int_equal(ingest_ask("run", "SELECT count(absmax) FROM v_record"),
                     3);
}

static void test_migrate__another_program_has_it_locked(void **state)
{
    sqlite3 *db = NULL;
    (void)state;
    make_old();
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL),
                     SQLITE_OK);
    rig_start(&ingest.rig);
    refused("database is locked");
    is_as_it_was();
    assert_int_equal(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    goes_on();
    rig_stop(&ingest.rig);
}

static void test_migrate__no_room_on_the_disk(void **state)
{
    char ballast[2 * RIG_PATH];
    struct statvfs v;
    int fd;
    (void)state;
    make_old();
    snprintf(ballast, sizeof ballast, "%s/.reserve", ingest.rig.data);
    unlink(ballast);
    snprintf(ballast, sizeof ballast, "%s/ballast", ingest.rig.data);
    assert_int_equal(statvfs(ingest.rig.data, &v), 0);
    fd = open(ballast, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(
        posix_fallocate(fd, 0, (off_t)(v.f_bavail * v.f_frsize)), 0);
    close(fd);
    rig_start(&ingest.rig);
    refused("the disk of the runs is full");
    rig_logged(&ingest.rig, "disk_full");
    assert_int_equal(unlink(ballast), 0);
    is_as_it_was();
    rig_logged(&ingest.rig, "disk_room");
    goes_on();
    rig_stop(&ingest.rig);
}

/* Whoever may read it only, may not write it for its owner. */
static void test_migrate__the_file_of_another_user(void **state)
{
    char command[8 * RIG_PATH];
    pid_t child;
    int status;
    (void)state;
    make_old();
    snprintf(command, sizeof command,
             "chown -R %d:%d %s && chown 0:0 %s && chmod 644 %s",
             (int)SOMEBODY, (int)SOMEBODY, ingest.rig.base, path, path);
    assert_int_equal(system(command), 0);
    ingest.rig.uid = SOMEBODY;
    rig_start(&ingest.rig);
    child = fork();
    if (child == 0) {
        struct hello h = rig_hello();
        if (setgid(SOMEBODY) || setuid(SOMEBODY))
            _exit(101);
        _exit(rig_greet(&ingest.rig, &ingest.c, 77, &h)
                  ? 100
                  : (int)ingest.c.refusal.reason);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), REASON_STORE);
    rig_logged(&ingest.rig, "run.db\" error=\"attempt to write a readonly "
                            "database\"");
    rig_stop(&ingest.rig);
    is_as_it_was();
}

int main(void)
{
#define MIGRATE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        MIGRATE(test_migrate__views_and_tables_are_made_new),
        MIGRATE(test_migrate__nothing_is_old_but_a_view),
        MIGRATE(test_migrate__another_program_has_it_locked),
        MIGRATE(test_migrate__no_room_on_the_disk),
        MIGRATE(test_migrate__the_file_of_another_user),
    };
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        print_message("not allowed to mount: %s\n", strerror(errno));
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
