/* A daemon that may have no more memory than it has, for a while: whatever it
 * cannot do then it does later, and it does not end. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include "tracerd/client.h"

enum {
    CLIENTS = 4,
    RECORDS = 4000, /* of each */
    JOURNALS = 4,
    LEFT = 2000,    /* in each */
    DEAD_PID = 1,   /* as rig_journal() makes them */
    SAMPLES = 64
};

static void limit(pid_t pid, rlim_t bytes)
{
    struct rlimit l = {bytes, RLIM_INFINITY};
    assert_int_equal(prlimit(pid, RLIMIT_AS, &l, NULL), 0);
}

static rlim_t size_of(pid_t pid)
{
    char path[64];
    unsigned long pages = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    return pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static void stream(uint32_t rank)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    static float data[SAMPLES];
    const int64_t shape[1] = {SAMPLES};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    uint32_t id = 0;
    trd_client_options_init(&o);
    o.dir = ingest.rig.dir;
    o.run = "run";
    o.job = "job";
    o.rank = rank + 1;
    o.world = CLIENTS;
    o.journal_bytes = 8 << 20;
    if (trd_client_open(&o, &c) || trd_site(c, &s, &id))
        _exit(3);
    for (uint64_t i = 1; i <= RECORDS; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        if (trd_submit_cpu(c, id, &when, &t, SAMPLES))
            _exit(4);
    }
    trd_flush(c, 2000);
    trd_client_close(c);
    _exit(0);
}

/* more: what it may have beyond what it has. */
static void under_limit(rlim_t more)
{
    struct rig *r = &ingest.rig;
    pid_t pid[CLIENTS];
    oracle_start(r);
    limit(r->pid, size_of(r->pid) + more);
    for (unsigned i = 0; i < JOURNALS; i++) {
        char name[32];
        snprintf(name, sizeof name, "left%u", i);
        rig_journal(r, name, 1000 + i, LEFT, 0, false);
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (!pid[i])
            stream(i);
    }
    for (int i = 0; i < CLIENTS; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
    }
    if (!rig_alive(r))
        fail_msg("the daemon ended with %llu bytes more\n%s",
                 (unsigned long long)more, rig_log(r));
    limit(r->pid, RLIM_INFINITY);
    for (int i = 0; i < CLIENTS; i++)
        oracle_process(r, "run", pid[i], RECORDS, 0, 0);
    oracle_process(r, "run", DEAD_PID, JOURNALS * LEFT, 0, 0);
    oracle_run(r, "run");
    rig_stop(r);
    oracle_verify(r, 0);
}

static void test_memory__a_limit_for_the_daemon(void **state)
{
    static const rlim_t more[] = {0, 256 << 10, 1 << 20, 4 << 20, 16 << 20,
                                  48 << 20};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        under_limit(more[i]);
        ingest_tear_down(state);
        ingest_set_up(state);
    }
    oracle_held(14, sizeof more / sizeof *more,
                "RLIMIT_AS of a daemon at work");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_memory__a_limit_for_the_daemon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
