/* Four clients stream while the daemon and the clients are killed at random,
 * again and again. At the end every record that was accepted is stored once,
 * or stands under a loss with its exact count.
 *
 * The seed is printed; TRD_SEED=N repeats one. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/ingest.h"

#include "tracerd/client.h"

enum {
    CLIENTS = 4,
    DAEMON_KILLS = 60,
    CLIENT_KILLS = 20,
    PROCESSES = CLIENTS + CLIENT_KILLS,
    WAIT_MS = 60000
};

/* What the clients leave behind: shared memory, so a kill takes nothing. */
struct process {
    pid_t pid;
    _Atomic uint64_t accepted; /* trd_submit() returned 0 so often */
    _Atomic uint64_t refused;  /* and so often not */
};

static struct process *process; /* PROCESSES */
static unsigned process_n;
static _Atomic int *stop;
static uint64_t rng;

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
        if (i % 32 == 0)
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
            rig_start(&ingest.rig);
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

/* Of what a process was told is accepted: what the store has or calls lost.
 * By the high-water mark, which is cheap; check() counts the rows. */
static int64_t kept(pid_t pid)
{
    char sql[512];
    snprintf(sql, sizeof sql,
             "SELECT s.seq - (SELECT count(*) FROM loss l WHERE l.stream ="
             " s.id AND l.cause = 'ring_full') FROM stream s WHERE pid = %d",
             (int)pid);
    return ingest_ask("run", sql);
}

/* What is there of a process when it is all, or after a while. */
static int64_t wait_for(pid_t pid, int64_t least)
{
    long long end = rig_now_ms() + WAIT_MS;
    int64_t got = kept(pid);
    while (got < least && rig_now_ms() < end) {
        rig_pause();
        got = kept(pid);
    }
    return got < 0 ? 0 : got; /* killed before its first word */
}

static void check(void)
{
    uint64_t accepted = 0, refused = 0;
    for (unsigned i = 0; i < process_n; i++) {
        /* a kill may fall between the journal and the count of accepted */
        int64_t least = (int64_t)process[i].accepted;
        int64_t got = wait_for(process[i].pid, least);
        if (got < least || got > least + 1)
            fail_msg("process %u: %lld of %lld records\n%s", i, (long long)got,
                     (long long)least, rig_log(&ingest.rig));
        accepted += process[i].accepted;
        refused += process[i].refused;
    }
    assert_int_equal(
        ingest_ask("run", "SELECT count(*) FROM stream s WHERE s.seq !="
                          " (SELECT count(*) FROM record r"
                          "  WHERE r.stream = s.id)"
                          " + (SELECT total(last - seq + 1) FROM loss l"
                          "    WHERE l.stream = s.id)"),
        0);
    assert_int_equal(
        ingest_ask("run", "SELECT count(*) - (SELECT count(*) FROM (SELECT"
                          " DISTINCT stream, seq FROM record)) FROM record"),
        0);
    assert_int_equal(
        ingest_ask("run", "SELECT count(*) FROM record r JOIN loss l"
                          " ON l.stream = r.stream"
                          " AND r.seq BETWEEN l.seq AND l.last"),
        0);
    assert_int_equal(ingest_ask("run", "SELECT integrity_check = 'ok' FROM"
                                       " pragma_integrity_check"),
                     1);
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

static int tear_down(void **state)
{
    *stop = 1; /* for those that a failure has left */
    return ingest_tear_down(state);
}

int main(void)
{
#define STORM(name) cmocka_unit_test_setup_teardown(name, ingest_set_up, tear_down)
    const struct CMUnitTest tests[] = {
        STORM(test_storm__a_fixed_seed),
        STORM(test_storm__another_seed),
        STORM(test_storm__a_new_seed_each_time),
    };
    void *shared = mmap(NULL, PROCESSES * sizeof *process + sizeof *stop,
                        PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    process = shared;
    stop = (_Atomic int *)(process + PROCESSES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
