/* Four clients stream while the daemon and the clients are killed at random,
 * again and again. At the end every record that was accepted is stored once,
 * or stands under a loss with its exact count.
 *
 * The seed is printed; TRD_SEED=N repeats one. TRD_FAULT_HOURS=N is a soak of
 * N hours instead. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include "tracerd/client.h"

enum {
    CLIENTS = 4,
    DAEMON_KILLS = 60,
    CLIENT_KILLS = 20,
    PROCESSES = CLIENTS + CLIENT_KILLS
};

/* What the clients leave behind: shared memory, so a kill takes nothing. */
struct process {
    pid_t pid;
    bool killed;
    _Atomic uint64_t accepted; /* trd_submit() returned 0 so often */
    _Atomic uint64_t refused;  /* and so often not */
};

static struct process *process; /* PROCESSES */
static unsigned process_n;
static _Atomic int *stop;
static uint64_t rng;
static bool slow; /* a soak shall not fill the disk by itself */

static uint64_t random_below(uint64_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % n;
}

static void nap_us(long us)
{
    const struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

/* A rank: streams until it is told to stop, or killed. */
static void stream(struct process *me, uint32_t rank)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    const int64_t shape[1] = {4};
    uint32_t id = 0;
    trd_client_options_init(&o);
    o.dir = ingest.rig.dir;
    o.run = "run";
    o.job = "storm";
    o.rank = rank;
    o.world = CLIENTS;
    o.journal_bytes = 8 << 20;
    if (trd_client_open(&o, &c) || trd_site(c, &s, &id))
        _exit(3);
    for (uint64_t i = 1; !*stop; i++) {
        /* slower than the store, so that the journal seldom is full */
        const float data[4] = {1, 2, 3, (float)i};
        struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        if (trd_submit_cpu(c, id, &when, &t, 4))
            me->refused++;
        else
            me->accepted++;
        if (slow || i % 32 == 0)
            nap_us(4000);
    }
    trd_client_close(c);
    _exit(0);
}

static void start_client(uint32_t rank)
{
    struct process *p = &process[process_n++];
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        stream(p, rank);
    p->pid = pid;
}

static void kill_one(unsigned *alive)
{
    uint32_t rank = (uint32_t)random_below(CLIENTS);
    pid_t pid = process[alive[rank]].pid;
    int status;
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    process[alive[rank]].killed = true;
    alive[rank] = process_n;
    start_client(rank);
}

static void storm(void)
{
    unsigned alive[CLIENTS];
    int daemons = 0, clients = 0;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        alive[i] = process_n;
        start_client(i);
    }
    while (daemons < DAEMON_KILLS || clients < CLIENT_KILLS) {
        nap_us((long)random_below(30000));
        if (clients < CLIENT_KILLS && random_below(4) == 0) {
            kill_one(alive);
            clients++;
        } else if (daemons < DAEMON_KILLS) {
            rig_kill(&ingest.rig);
            nap_us((long)random_below(10000));
            oracle_start(&ingest.rig);
            daemons++;
        }
    }
    *stop = 1;
    for (int i = 0; i < CLIENTS; i++) {
        int status;
        assert_true(waitpid(process[alive[i]].pid, &status, 0) > 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void check(void)
{
    uint64_t accepted = 0, refused = 0;
    for (unsigned i = 0; i < process_n; i++) {
        /* a kill may fall between the journal and the count of accepted, and
         * its losses may not have been told yet */
        const struct process *p = &process[i];
        oracle_process(&ingest.rig, "run", p->pid, p->accepted, 1,
                       p->killed ? UINT64_MAX : p->refused);
        accepted += p->accepted;
        refused += p->refused;
    }
    oracle_run(&ingest.rig, "run");
    print_message("%d daemon kills, %d client kills, %llu records accepted,"
                  " %llu refused\n",
                  DAEMON_KILLS, CLIENT_KILLS, (unsigned long long)accepted,
                  (unsigned long long)refused);
}

static void run_storm(uint64_t seed)
{
    const char *text = getenv("TRD_SEED");
    rng = text ? strtoull(text, NULL, 10) : seed;
    print_message("TRD_SEED=%llu\n", (unsigned long long)rng);
    rng = rng * UINT64_C(0x9e3779b97f4a7c15) + 1;
    memset(process, 0, PROCESSES * sizeof *process);
    process_n = 0;
    *stop = 0;
    rig_start(&ingest.rig);
    storm();
    check();
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
    oracle_held(6, DAEMON_KILLS + CLIENT_KILLS, "kills of four streams");
}

static void test_storm__a_fixed_seed(void **state)
{
    (void)state;
    run_storm(1);
}

static void test_storm__another_seed(void **state)
{
    (void)state;
    run_storm(2);
}

static void test_storm__a_new_seed_each_time(void **state)
{
    (void)state;
    run_storm((uint64_t)time(NULL));
}

/* ---- a soak ---- */

/* TRD_FAULT_HOURS=N: random faults for N hours instead, in rounds of a run
 * each. In the first half of a round the daemon is killed too; in the second
 * it must not grow. */
enum {
    ROUND_MS = 600000,
    GROWTH_KB = 48 * 1024, /* caches that were not full yet */
    FREE_BYTES = 4096      /* of a disk that is full */
};

static bool may_mount;

static void pause_process(pid_t pid, uint64_t ms)
{
    kill(pid, SIGSTOP);
    nap_us((long)(ms * 1000));
    kill(pid, SIGCONT);
}

/* Somebody else takes all the room there is, for a moment. */
static void fill_disk(void)
{
    char path[2 * RIG_PATH];
    struct statvfs v;
    int fd;
    snprintf(path, sizeof path, "%s/ballast", ingest.rig.data);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && statvfs(ingest.rig.data, &v) == 0);
    if (posix_fallocate(fd, 0, (off_t)(v.f_bavail * v.f_frsize - FREE_BYTES)))
        nap_us(1000); /* the daemon was quicker */
    close(fd);
    nap_us(300000);
    unlink(path);
}

/* One that was killed is checked at once, and its place is free again. */
static void kill_and_check(unsigned *alive)
{
    uint32_t rank = (uint32_t)random_below(CLIENTS);
    struct process *p = &process[alive[rank]];
    int status;
    kill(p->pid, SIGKILL);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    oracle_process(&ingest.rig, "run", p->pid, p->accepted, 1, UINT64_MAX);
    memset(p, 0, sizeof *p);
    process_n = alive[rank];
    start_client(rank);
}

static void one_fault(unsigned *alive, bool kills)
{
    struct rig *r = &ingest.rig;
    switch (random_below(5)) {
    case 0:
        if (kills) {
            rig_kill(r);
            nap_us((long)random_below(200000));
            oracle_start(r);
        }
        break;
    case 1:
        pause_process(r->pid, random_below(900));
        break;
    case 2:
        pause_process(process[alive[random_below(CLIENTS)]].pid,
                      random_below(900));
        break;
    case 3:
        kill_and_check(alive);
        break;
    default:
        if (may_mount)
            fill_disk();
    }
    nap_us((long)random_below(300000));
}

static uint64_t faults_until(unsigned *alive, long long end, bool kills)
{
    uint64_t n = 0;
    for (; rig_now_ms() < end; n++)
        one_fault(alive, kills);
    return n;
}

/* What it holds when nothing happens, or the most of some looks. */
static void must_not_grow(const struct oracle_footprint *before)
{
    struct oracle_footprint now = oracle_footprint(ingest.rig.pid);
    long long end = rig_now_ms() + 10000;
    while ((now.descriptors > before->descriptors ||
            now.threads > before->threads) &&
           rig_now_ms() < end) {
        rig_pause();
        now = oracle_footprint(ingest.rig.pid);
    }
    oracle_no_growth(before, &now, GROWTH_KB);
}

static uint64_t one_round(long long ms)
{
    unsigned alive[CLIENTS];
    struct oracle_footprint warm;
    long long begin = rig_now_ms();
    uint64_t n;
    process_n = 0;
    *stop = 0;
    memset(process, 0, PROCESSES * sizeof *process);
    oracle_start(&ingest.rig);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        alive[i] = process_n;
        start_client(i);
    }
    process_n = CLIENTS;
    n = faults_until(alive, begin + ms / 2, true);
    n += faults_until(alive, begin + ms * 5 / 8, false);
    nap_us(500000); /* all are connected again */
    warm = oracle_footprint(ingest.rig.pid);
    n += faults_until(alive, begin + ms, false);
    nap_us(500000);
    must_not_grow(&warm);
    *stop = 1;
    for (int i = 0; i < CLIENTS; i++) {
        int status;
        assert_true(waitpid(process[alive[i]].pid, &status, 0) > 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        oracle_process(&ingest.rig, "run", process[alive[i]].pid,
                       process[alive[i]].accepted, 0,
                       process[alive[i]].refused);
    }
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
    return n;
}

/* Data on a small disk of its own, where that is allowed. */
static void make_disk(void)
{
    may_mount = mkdir(ingest.rig.data, 0700) == 0 &&
                unshare(CLONE_NEWNS) == 0 &&
                mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                mount("tmpfs", ingest.rig.data, "tmpfs", 0,
                      "size=512m,mode=0700") == 0;
}

static void test_storm__a_soak(void **state)
{
    double hours = atof(getenv("TRD_FAULT_HOURS"));
    long long left = (long long)(hours * 3600e3);
    uint64_t faults = 0;
    (void)state;
    rng = (uint64_t)time(NULL) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    slow = true;
    for (long long ms; left > 0; left -= ms) {
        ms = left < ROUND_MS ? left : ROUND_MS;
        make_disk();
        faults += one_round(ms);
        umount2(ingest.rig.data, MNT_DETACH);
        ingest_tear_down(state);
        ingest_set_up(state);
        print_message("%llu faults\n", (unsigned long long)faults);
    }
    oracle_held(44, faults, "random kills, stops and full disks");
}

static int tear_down(void **state)
{
    *stop = 1; /* for those that a failure has left */
    return ingest_tear_down(state);
}

int main(void)
{
#define STORM(name)                                                           \
    cmocka_unit_test_setup_teardown(name, ingest_set_up, tear_down)
    const struct CMUnitTest tests[] = {
        STORM(test_storm__a_fixed_seed),
        STORM(test_storm__another_seed),
        STORM(test_storm__a_new_seed_each_time),
    };
    const struct CMUnitTest soak[] = {STORM(test_storm__a_soak)};
    void *shared = mmap(NULL, PROCESSES * sizeof *process + sizeof *stop,
                        PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    process = shared;
    stop = (_Atomic int *)(process + PROCESSES);
    return getenv("TRD_FAULT_HOURS")
               ? cmocka_run_group_tests(soak, NULL, NULL)
               : cmocka_run_group_tests(tests, NULL, NULL);
}
