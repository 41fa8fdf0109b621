/* The wall clock is set, by seconds to a year, while a daemon and clients are
 * at work; fault 17. Order, durations and liveness come from numbers and from
 * the clock that nobody sets. TRD_CLOCK_SHIM names the library of clock.c. */
#include "tests/lib/rig.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/sys.h"
#include "tests/lib/oracle.h"
#include "tests/lib/unit.h"
#include "tracerd/client.h"

#define S INT64_C(1000000000)
enum { PART = 100 };

static struct rig rig;
static _Atomic int64_t *wrong; /* of the daemon's clock, and of ours */
static uint64_t (*true_ns)(void);

static uint64_t wrong_ns(void)
{
    return true_ns() + (uint64_t)atomic_load(wrong);
}

/* The daemon with the clock of the test. */
static void start_daemon(void)
{
    setenv("LD_PRELOAD", getenv("TRD_CLOCK_SHIM"), 1);
    oracle_start(&rig);
    unsetenv("LD_PRELOAD");
}

static int set_up(void **state)
{
    char path[2 * RIG_PATH];
    int fd;
    (void)state;
    rig_init(&rig);
    snprintf(path, sizeof path, "%s/clock", rig.base);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof *wrong), 0);
    wrong = mmap(NULL, sizeof *wrong, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                 0);
    assert_true((void *)wrong != MAP_FAILED);
    close(fd);
    setenv("TRD_CLOCK", path, 1);
    true_ns = trd__sys.real_ns;
    trd__sys.real_ns = wrong_ns;
    start_daemon();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_fini(&rig);
    trd__sys.real_ns = true_ns;
    munmap((void *)(uintptr_t)wrong, sizeof *wrong);
    return 0;
}

/* ---- a client ---- */

static struct trd_client *c;
static uint32_t site;

static void open_client(uint32_t rank)
{
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    struct trd_client_options o;
    trd_client_options_init(&o);
    o.dir = rig.dir;
    o.run = "run";
    o.job = "job";
    o.rank = rank;
    assert_int_equal(trd_client_open(&o, &c), 0);
    assert_int_equal(trd_site(c, &s, &site), 0);
}

static void submit(uint64_t from, uint64_t n)
{
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    struct trd_tensor tensor = {data, TRD_F32, 1, shape, NULL};
    for (uint64_t i = from; i < from + n; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        assert_int_equal(trd_submit_cpu(c, site, &when, &tensor, 4), 0);
    }
}

static int64_t number(const char *sql)
{
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int64_t v = -1;
    snprintf(path, sizeof path, "%s/run.db", rig.data);
    if (!sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) &&
        !sqlite3_busy_timeout(db, RIG_WAIT_MS) &&
        !sqlite3_prepare_v2(db, sql, -1, &s, NULL) &&
        sqlite3_step(s) == SQLITE_ROW)
        v = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return v;
}

/* ---- what is told ---- */

/* One number of tracectl's status. */
static long long told(const char *key)
{
    char text[2048];
    long long v = -1;
    FILE *f;
    snprintf(text, sizeof text,
             "$TRD_TRACECTL -s %s -o csv status | sed -n 's/^%s,//p'",
             rig.dir, key);
    f = popen(text, "r");
    assert_non_null(f);
    if (fscanf(f, "%lld", &v) != 1)
        v = -1;
    pclose(f);
    return v;
}

static void no_negative_time(void)
{
    char command[2048];
    long long uptime = told("uptime_s");
    if (uptime < 0 || uptime > 600)
        fail_msg("up for %lld s", uptime);
    assert_int_equal(number("SELECT count(*) FROM stream WHERE last_ns < 0"),
                     0);
    assert_int_equal(number("SELECT count(*) FROM v_loss WHERE ts_ns < 0"), 0);
    snprintf(command, sizeof command,
             "$TRD_TRACECTL -s %s -o csv runs | awk -F, 'NR == 1 { if ($2 "
             "\",\" $3 != \"started_ns,ended_ns\") exit 2 } NR > 1 { if ($3 < "
             "$2) exit 1 }'", rig.dir);
    assert_int_equal(system(command), 0);
}

/* In the order of numbers; the times of a stream go on with them. */
static void in_order(uint64_t n)
{
    assert_int_equal(number("SELECT count(*) FROM record"), (int64_t)n);
    assert_int_equal(
        number("SELECT count(*) FROM (SELECT seq, step, ts_ns, lag(ts_ns) OVER"
               " w AS before, lag(step) OVER w AS prior FROM v_record WHERE"
               " rank = 0 WINDOW w AS (ORDER BY seq)) WHERE ts_ns < before"
               " OR step != prior + 1"),
        0);
}

/* Two that are not finished: of one the maker is alive, it holds the lock. */
static int leave_unfinished(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[2 * RIG_PATH];
    int fd;
    snprintf(path, sizeof path, "%s/dead.journal.new", rig.dir);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    snprintf(path, sizeof path, "%s/alive.journal.new", rig.dir);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_SETLK, &lock), 0);
    return fd;
}

static void one_is_removed(bool far, int fd)
{
    char path[2 * RIG_PATH];
    snprintf(path, sizeof path, "%s/dead.journal.new", rig.dir);
    if (far)
        rig_until(access(path, F_OK) != 0);
    unlink(path);
    snprintf(path, sizeof path, "%s/alive.journal.new", rig.dir);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
    close(fd);
}

/* A process that dies under the clock as it is now is found to be dead. */
static void one_dies(void)
{
    pid_t pid;
    int status;
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        open_client(1);
        submit(1, PART / 2);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    rig_until(number("SELECT count(*) FROM stream WHERE rank = 1 AND state ="
                     " 'dead' AND seq = 50") == 1);
}

/* ---- the cases ---- */

static void is_set_by(int64_t ns)
{
    struct trd_counters n;
    int lock;
    set_up(NULL);
    open_client(0);
    submit(1, PART);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    lock = leave_unfinished();
    atomic_store(wrong, ns);
    submit(PART + 1, PART);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    no_negative_time();
    one_dies();
    one_is_removed(ns > 60 * S || ns < -60 * S, lock);
    /* its connection is what it was */
    trd_counters(c, &n);
    assert_int_equal(n.connects, 1);
    assert_int_equal(number("SELECT count(*) FROM stream WHERE rank = 0 AND"
                            " state = 'open'"), 1);
    in_order(2 * PART + PART / 2);
    /* and goes on with a daemon that knows the new time only */
    rig_kill(&rig);
    submit(2 * PART + 1, PART);
    start_daemon();
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    atomic_store(wrong, 0); /* back again */
    submit(3 * PART + 1, PART);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    no_negative_time();
    in_order(4 * PART + PART / 2);
    trd_client_close(c);
    oracle_process(&rig, "run", getpid(), 4 * PART, 0, 0);
    oracle_run(&rig, "run");
    rig_stop(&rig);
    tear_down(NULL);
}

static void test_clock__is_set_while_all_run(void **state)
{
    static const int64_t jumps[] = {-21 * S / 10, 3600 * S, -3600 * S,
                                    366 * 86400 * S, -366 * 86400 * S};
    size_t n = sizeof jumps / sizeof *jumps;
    (void)state;
    for (size_t i = 0; i < n; i++)
        is_set_by(jumps[i]);
    oracle_held(17, n, "real time set by -2.1 s, an hour, a year and back");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock__is_set_while_all_run),
    };
    if (!getenv("TRD_TRACERD") || !getenv("TRD_CLOCK_SHIM"))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
