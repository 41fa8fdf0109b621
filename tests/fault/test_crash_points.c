/* Both sides killed at each place of proto/point.h: there for the first time,
 * the second, and a later one. Then all starts again, in either order, and
 * what was accepted is in the runs, once, and no file stays that nobody
 * needs.
 *
 * Which side has a point and how often it comes there is counted by a first
 * run without a kill; one that nobody comes to is a failure, so that this
 * keeps up with the list. The seed is printed; TRD_SEED=N repeats one,
 * TRD_FAULT_CASE="POINT NTH ORDER" one case. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/point.h"
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include "tracerd/client.h"

enum {
    ROUNDS = 3,     /* clients that a process opens and closes, a run each */
    RECORDS = 70,   /* of a client, of 16 KiB each: two segments of a ring */
    ELEMENTS = 4096,
    RING = 2 << 20,
    JOURNALS = 3,   /* of dead processes, there from the start */
    LEFT = 50,      /* records in each of them */
    DEAD_PID = 1,   /* as rig_journal() makes them */
    WAIT_MS = 60000,
    FLUSH_MS = 10000,
    REPEATS = 3,
    ORDERS = 3
};

static const char *const point_name[POINT_N] = {
#define POINT_NAME(name) #name,
    POINTS(POINT_NAME)
#undef POINT_NAME
};

/* Those that are tested elsewhere, by what they begin with. */
static const char *const elsewhere[] = {
    "spool_", /* a client's directory for what its ring cannot hold */
};

static const char *const run_name[ROUNDS] = {"run", "two", "three"};

static const char *self;
static uint64_t rng;

/* What is shared with the processes, in files of /tmp. */
struct told {
    _Atomic uint64_t accepted[ROUNDS], refused[ROUNDS];
};
static struct {
    char path[32];
    _Atomic uint64_t *n; /* POINT_N */
} of_daemon, of_client;

static uint64_t random_below(uint64_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % n;
}

static void *map_file(const char *path, size_t n)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)n) == 0)
        at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return at == MAP_FAILED ? NULL : at;
}

/* A new one; path has room for 32 bytes. */
static void *new_file(char *path, size_t n)
{
    int fd;
    snprintf(path, 32, "/tmp/trd-told-XXXXXX");
    fd = mkstemp(path);
    if (fd < 0)
        return NULL;
    close(fd);
    return map_file(path, n);
}

/* ---- the training process ---- */

static int train_round(const char *dir, uint32_t rank, int round,
                       struct told *told)
{
    static float data[ELEMENTS];
    const int64_t shape[1] = {ELEMENTS};
    struct trd_client_options o;
    struct trd_client *c = NULL;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    uint32_t id = 0;
    trd_client_options_init(&o);
    o.dir = dir;
    o.run = run_name[round];
    o.job = "job";
    o.rank = rank;
    o.world = 2;
    o.journal_bytes = RING;
    if (trd_client_open(&o, &c) || trd_site(c, &s, &id))
        return 3;
    for (uint64_t i = 1; i <= RECORDS; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        data[i] = (float)i;
        if (trd_submit_cpu(c, id, &when, &t, ELEMENTS))
            told->refused[round]++;
        else
            told->accepted[round]++;
        if (i == RECORDS / 2)
            trd_flush(c, FLUSH_MS);
    }
    trd_flush(c, FLUSH_MS);
    trd_client_close(c);
    return 0;
}

static int train(char **argv)
{
    struct told *told = map_file(argv[3], sizeof *told);
    uint32_t rank = (uint32_t)atoi(argv[4]);
    int failed = !told;
    for (int i = 0; i < ROUNDS && !failed; i++)
        failed = train_round(argv[2], rank, i, told);
    return failed;
}

/* ---- processes of a case ---- */

struct process {
    pid_t pid;
    int status;
    bool over;
    char path[32];
    struct told *told;
};

static void start_process(struct process *p, uint32_t rank, const char *point)
{
    char text[16];
    memset(p, 0, sizeof *p);
    p->told = new_file(p->path, sizeof *p->told);
    assert_non_null(p->told);
    snprintf(text, sizeof text, "%u", rank);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (!p->pid) {
        if (point)
            setenv("TRACERD_POINT", point, 1);
        execl(self, self, "train", ingest.rig.dir, p->path, text,
              (char *)NULL);
        _exit(127);
    }
}

static bool is_over(struct process *p)
{
    if (!p->over)
        p->over = waitpid(p->pid, &p->status, WNOHANG) == p->pid;
    return p->over;
}

static void end_process(struct process *p)
{
    long long end = rig_now_ms() + WAIT_MS;
    while (!is_over(p)) {
        if (rig_now_ms() > end)
            fail_msg("process %d does not end\n%s", (int)p->pid,
                     rig_log(&ingest.rig));
        rig_pause();
    }
}

static bool was_killed(const struct process *p)
{
    return WIFSIGNALED(p->status) && WTERMSIG(p->status) == SIGKILL;
}

static void kill_process(struct process *p)
{
    kill(p->pid, SIGKILL);
    end_process(p);
}

static void forget_process(struct process *p)
{
    if (!p->told)
        return;
    if (!p->over)
        kill_process(p);
    munmap(p->told, sizeof *p->told);
    unlink(p->path);
    p->told = NULL;
}

/* ---- what must hold ---- */

static void check_process(const struct process *p)
{
    bool killed = was_killed(p);
    if (!killed)
        assert_int_equal(p->status, 0);
    for (int i = 0; i < ROUNDS; i++)
        oracle_process(&ingest.rig, run_name[i], p->pid, p->told->accepted[i],
                       killed, killed ? UINT64_MAX : p->told->refused[i]);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

/* A file that only a process at work needs. */
static bool is_stray(const char *name)
{
    return strstr(name, ".new") || strstr(name, ".selftest") ||
           ends_with(name, "-journal") || ends_with(name, ".journal") ||
           ends_with(name, ".bad") || strstr(name, ".corrupt");
}

/* One of them; NULL: there is none. */
static const char *stray_in(const char *dir)
{
    static char name[512];
    bool found = false;
    struct dirent *e;
    DIR *d = opendir(dir);
    while (d && !found && (e = readdir(d))) {
        snprintf(name, sizeof name, "%s", e->d_name);
        found = is_stray(name);
    }
    if (d)
        closedir(d);
    return found ? name : NULL;
}

/* What a client was making when it was killed goes after a minute. */
static void make_old(const char *dir)
{
    const struct timespec old[2] = {{1, 0}, {1, 0}};
    struct dirent *e;
    DIR *d = opendir(dir);
    while (d && (e = readdir(d))) {
        char path[2 * RIG_PATH];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strstr(e->d_name, ".new"))
            utimensat(AT_FDCWD, path, old, 0);
    }
    if (d)
        closedir(d);
}

static void no_stray_files(void)
{
    struct rig *r = &ingest.rig;
    const char *name;
    long long end = rig_now_ms() + WAIT_MS;
    if (stray_in(r->dir) && strstr(stray_in(r->dir), ".new")) {
        rig_stop(r);
        make_old(r->dir);
        oracle_start(r);
    }
    while ((name = stray_in(r->dir)) && rig_now_ms() < end)
        rig_pause();
    if (!name)
        name = stray_in(r->data);
    if (name)
        fail_msg("%s stays\n%s", name, rig_log(r));
}

static void check(const struct process *first, const struct process *second)
{
    struct rig *r = &ingest.rig;
    check_process(first);
    check_process(second);
    oracle_process(r, run_name[0], DEAD_PID, JOURNALS * LEFT, 0, 0);
    no_stray_files();
    for (int i = 0; i < ROUNDS; i++)
        oracle_run(r, run_name[i]);
    rig_stop(r);
    oracle_verify(r, 0);
}

/* ---- cases ---- */

static struct process first, second;

static void begin_case(void)
{
    ingest_set_up(NULL);
    for (unsigned i = 0; i < JOURNALS; i++) {
        char name[32];
        snprintf(name, sizeof name, "left%u", i);
        rig_journal(&ingest.rig, name, 1000 + i, LEFT, 0, false);
    }
}

static void end_case(void)
{
    forget_process(&first);
    forget_process(&second);
    if (ingest.rig.base[0])
        ingest_tear_down(NULL);
    memset(&ingest.rig, 0, sizeof ingest.rig);
}

/* What was killed starts again: with the other side alive, or with that
 * killed too, and then the client or the daemon comes first. */
static void again(int order)
{
    struct rig *r = &ingest.rig;
    if (order == 1)
        start_process(&second, 1, NULL);
    if (!r->pid)
        oracle_start(r);
    if (order != 1)
        start_process(&second, 1, NULL);
    if (order == 0)
        end_process(&first);
    end_process(&second);
}

/* False: the client came to its end without it. */
static bool kill_client(const char *point, int order)
{
    rig_start(&ingest.rig);
    start_process(&first, 0, point);
    end_process(&first);
    if (order && was_killed(&first))
        rig_kill(&ingest.rig);
    again(order);
    check(&first, &second);
    return was_killed(&first);
}

/* Starts it, if the point lets it. */
static bool started(struct rig *r, const char *point)
{
    int code;
    setenv("TRACERD_POINT", point, 1);
    code = rig_try(r);
    unsetenv("TRACERD_POINT");
    if (code != -1)
        assert_int_equal(code, 128 + SIGKILL);
    return code == -1;
}

/* False: the client came to its end without it. */
static bool kill_daemon(const char *point, int order)
{
    struct rig *r = &ingest.rig;
    bool killed = !started(r, point);
    start_process(&first, 0, NULL);
    while (!killed && !is_over(&first)) {
        killed = !rig_alive(r);
        rig_pause();
    }
    if (!killed) /* it may be at its end */
        killed = !rig_alive(r);
    if (killed)
        r->pid = 0;
    else /* or it comes to the point later, when nobody looks */
        rig_kill(r);
    if (order && killed && !is_over(&first))
        kill_process(&first);
    again(order);
    check(&first, &second);
    return killed;
}

static bool one_case(enum point p, uint64_t nth, int order, bool client)
{
    char text[96];
    bool killed;
    snprintf(text, sizeof text, "%s %llu", point_name[p],
             (unsigned long long)nth);
    print_message("TRD_FAULT_CASE=\"%s %d\"\n", text, order);
    begin_case();
    killed = client ? kill_client(text, order) : kill_daemon(text, order);
    end_case();
    return killed;
}

/* ---- all of them ---- */

static struct {
    uint64_t come;   /* how often in a run without a kill */
    bool client;
} known[POINT_N];

static bool is_elsewhere(int p)
{
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (!strncmp(point_name[p], elsewhere[i], strlen(elsewhere[i])))
            return true;
    return false;
}

static void test_crash_points__each_is_reached(void **state)
{
    (void)state;
    begin_case();
    setenv("TRACERD_POINT_COUNTS", of_daemon.path, 1);
    rig_start(&ingest.rig);
    setenv("TRACERD_POINT_COUNTS", of_client.path, 1);
    start_process(&first, 0, NULL);
    unsetenv("TRACERD_POINT_COUNTS");
    end_process(&first);
    start_process(&second, 1, NULL);
    end_process(&second);
    check(&first, &second);
    end_case();
    for (int p = 0; p < POINT_N; p++) {
        known[p].client = of_client.n[p] > 0;
        known[p].come = known[p].client ? of_client.n[p] : of_daemon.n[p];
        if (!known[p].come && !is_elsewhere(p))
            fail_msg("nobody comes to %s", point_name[p]);
        print_message("%s: %llu times\n", point_name[p],
                      (unsigned long long)known[p].come);
    }
}

/* The first time, the second, and one of the later ones. */
static uint64_t choose(enum point p, int repeat)
{
    uint64_t come = known[p].come;
    if (repeat == 0 || come < 2)
        return 1;
    if (repeat == 1 || come < 3)
        return 2;
    return 3 + random_below((come - 2 + 1) / 2);
}

struct tally {
    uint64_t cases, both; /* both: of them, with both sides killed */
};

/* A run may come there less often than the one that was counted. */
static void crash_at(enum point p, struct tally *tally)
{
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        uint64_t nth = choose(p, repeat);
        int order = (repeat + (int)p) % ORDERS;
        while (!one_case(p, nth, order, known[p].client)) {
            if (nth == 1)
                fail_msg("nobody came to %s", point_name[p]);
            nth = (nth + 1) / 2;
        }
        tally->cases++;
        tally->both += order > 0;
    }
}

static struct tally crash_from(enum point from, enum point to)
{
    struct tally tally = {0, 0};
    for (int p = from; p <= (int)to; p++)
        if (!is_elsewhere(p))
            crash_at(p, &tally);
    oracle_held(5, tally.both, "both killed, one of them at a point");
    return tally;
}

static void test_crash_points__a_journal_is_made(void **state)
{
    (void)state;
    struct tally t = crash_from(POINT_journal_created, POINT_journal_named);
    oracle_held(37, t.cases, "client at a step of making its journal");
}

static void test_crash_points__a_record_is_submitted(void **state)
{
    (void)state;
    struct tally t = crash_from(POINT_put_reserved, POINT_word_published);
    oracle_held(1, t.cases, "client at a step of a submit");
}

static void test_crash_points__a_record_is_sent(void **state)
{
    (void)state;
    struct tally t = crash_from(POINT_connected, POINT_journal_unlinked);
    oracle_held(2, t.cases, "client at a step from sending to freeing");
}

static void test_crash_points__a_frame_is_stored(void **state)
{
    (void)state;
    struct tally t = crash_from(POINT_frame_read, POINT_answered);
    oracle_held(4, t.cases, "daemon at a step from frame to answer");
}

static void test_crash_points__files_of_the_daemon(void **state)
{
    (void)state;
    struct tally t = crash_from(POINT_socket_bound, POINT_journal_removed);
    oracle_held(37, t.cases, "daemon at a step of making or removing a file");
}

/* TRD_FAULT_CASE. */
static void test_crash_points__the_one_asked_for(void **state)
{
    char name[64];
    int order, p = 0;
    unsigned long long nth;
    (void)state;
    assert_int_equal(sscanf(getenv("TRD_FAULT_CASE"), "%63s %llu %d", name,
                            &nth, &order),
                     3);
    while (p < POINT_N && strcmp(point_name[p], name))
        p++;
    assert_in_range(p, 0, POINT_N - 1);
    test_crash_points__each_is_reached(state);
    print_message("killed: %d\n", one_case(p, nth, order, known[p].client));
}

static int tear_down(void **state)
{
    (void)state;
    end_case();
    return 0;
}

int main(int argc, char **argv)
{
#define CRASH(name) cmocka_unit_test_teardown(name, tear_down)
    const struct CMUnitTest tests[] = {
        CRASH(test_crash_points__each_is_reached),
        CRASH(test_crash_points__a_journal_is_made),
        CRASH(test_crash_points__a_record_is_submitted),
        CRASH(test_crash_points__a_record_is_sent),
        CRASH(test_crash_points__a_frame_is_stored),
        CRASH(test_crash_points__files_of_the_daemon),
    };
    const struct CMUnitTest one[] = {
        CRASH(test_crash_points__the_one_asked_for)};
    const char *text = getenv("TRD_SEED");
    int failed;
    if (argc == 5 && !strcmp(argv[1], "train"))
        return train(argv);
    self = argv[0];
    rng = text ? strtoull(text, NULL, 10) : (uint64_t)getpid();
    print_message("TRD_SEED=%llu\n", (unsigned long long)rng);
    rng = rng * UINT64_C(0x9e3779b97f4a7c15) + 1;
    of_daemon.n = new_file(of_daemon.path, POINT_N * sizeof *of_daemon.n);
    of_client.n = new_file(of_client.path, POINT_N * sizeof *of_client.n);
    if (!of_daemon.n || !of_client.n)
        return 1;
    failed = getenv("TRD_FAULT_CASE")
                 ? cmocka_run_group_tests(one, NULL, NULL)
                 : cmocka_run_group_tests(tests, NULL, NULL);
    unlink(of_daemon.path);
    unlink(of_client.path);
    return failed;
}
