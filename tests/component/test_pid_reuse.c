/* A number may name another process by now. Whoever is told by a number asks
 * for the start time and the boot, too, and signals nobody. */
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/journal.h"
#include "proto/place.h"
#include "proto/proc.h"

/* ---- an innocent process ---- */

static pid_t innocent;

/* Its exit code tells of any signal that can be caught. */
static void start_innocent(void)
{
    sigset_t all;
    int got = 0;
    fflush(NULL);
    innocent = fork();
    assert_true(innocent >= 0);
    if (innocent)
        return;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigwait(&all, &got);
    _exit(got);
}

static void end_innocent(void)
{
    int status;
    assert_int_equal(waitpid(innocent, &status, WNOHANG), 0);
    kill(innocent, SIGKILL);
    assert_int_equal(waitpid(innocent, &status, 0), innocent);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static uint64_t start_time_of(pid_t pid)
{
    char path[64], text[1024] = "", state;
    uint64_t start_time = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_int_equal(proc_stat(text, &state, &start_time), 0);
    return start_time;
}

/* ---- the lock's file ---- */

static void write_lock(const char *text)
{
    char path[2 * RIG_PATH];
    int fd;
    mkdir(ingest.rig.dir, 0700);
    snprintf(path, sizeof path, "%s/" PLACE_LOCK, ingest.rig.dir);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static pid_t read_lock(void)
{
    char path[2 * RIG_PATH];
    int pid = 0;
    FILE *f;
    snprintf(path, sizeof path, "%s/" PLACE_LOCK, ingest.rig.dir);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &pid), 1);
    fclose(f);
    return pid;
}

static pid_t dead_pid(void)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(0);
    waitpid(pid, NULL, 0);
    return pid;
}

static int status(void)
{
    char command[4 * RIG_PATH];
    snprintf(command, sizeof command, "%s -s %s status >/dev/null",
             getenv("TRD_TRACECTL"), ingest.rig.dir);
    return system(command);
}

/* Start, a second start, status and stop, whatever the file says. */
static void test_pid_reuse__a_lock_that_names_others(void **state)
{
    char innocent_text[32], dead_text[32];
    const char *text[] = {innocent_text, dead_text, "not a number\n", "",
                          "99999999999999999999\n", "-1\n", "1\n"};
    (void)state;
    start_innocent();
    snprintf(innocent_text, sizeof innocent_text, "%d\n", (int)innocent);
    snprintf(dead_text, sizeof dead_text, "%d\n", (int)dead_pid());
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        struct rig second = ingest.rig;
        write_lock(text[i]);
        rig_start(&ingest.rig);
        assert_int_equal(read_lock(), ingest.rig.pid);
        /* and while it is held, too */
        write_lock(text[i]);
        assert_true(rig_try(&second) > 0);
        assert_true(rig_alive(&ingest.rig));
        assert_int_equal(status(), 0);
        rig_stop(&ingest.rig);
    }
    end_innocent();
}

/* ---- journals ---- */

static void rewrite_head(const char *name, pid_t pid, uint64_t start_time,
                         bool other_boot)
{
    char path[2 * RIG_PATH];
    uint8_t page[JOURNAL_PAGE];
    struct journal_head head;
    struct stat st;
    int fd;
    snprintf(path, sizeof path, "%s/%s" JOURNAL_SUFFIX, ingest.rig.dir, name);
    fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(pread(fd, page, sizeof page, 0), sizeof page);
    assert_int_equal(journal_head_get(page, (uint64_t)st.st_size, &head), 0);
    head.pid = (uint32_t)pid;
    head.start_time = start_time;
    if (other_boot)
        head.boot_id[3] ^= 1;
    journal_head_put(page, &head);
    assert_int_equal(pwrite(fd, page, sizeof page, 0), sizeof page);
    close(fd);
}

static bool gone(const char *name)
{
    char path[2 * RIG_PATH];
    snprintf(path, sizeof path, "%s/%s" JOURNAL_SUFFIX, ingest.rig.dir, name);
    return access(path, F_OK) != 0;
}

static void test_pid_reuse__a_journal_of_a_number_that_lives(void **state)
{
    uint64_t start_time;
    (void)state;
    start_innocent();
    start_time = start_time_of(innocent);
    rig_journal(&ingest.rig, "earlier", 1, 10, 0, false);
    rewrite_head("earlier", innocent, start_time - 1, false);
    rig_journal(&ingest.rig, "boot", 2, 10, 0, false);
    rewrite_head("boot", innocent, start_time, true);
    rig_journal(&ingest.rig, "itself", 3, 10, 0, false);
    rewrite_head("itself", innocent, start_time, false);
    rig_start(&ingest.rig);
    rig_until(gone("earlier") && gone("boot"));
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 20);
    assert_false(gone("itself")); /* that one is alive */
    end_innocent();
    rig_until(gone("itself"));
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 30);
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
}

/* ---- streams ---- */

static void test_pid_reuse__two_processes_of_one_number(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    rig_start(&ingest.rig);
    for (uint64_t i = 1; i <= 2; i++) {
        h.start_time += i;
        assert_true(rig_greet(&ingest.rig, &ingest.c, 70 + i, &h));
        ingest_send_dict();
        ingest_send_records(1, 5);
        rig_committed(&ingest.c, 5);
        rig_close(&ingest.c);
    }
    assert_int_equal(ingest_ask("run", "SELECT count(DISTINCT start_time) = 2"
                                       " AND count(DISTINCT pid) = 1 AND "
                                       "count(*) = 2 FROM stream"),
                     1);
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_pid_reuse__a_lock_that_names_others),
        ingest_test(test_pid_reuse__a_journal_of_a_number_that_lives),
        ingest_test(test_pid_reuse__two_processes_of_one_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
