/* Faults on top of a fault: a daemon was killed, and while the next one takes
 * over what was left - journals of dead processes, a client that comes again,
 * logs of runs - a call of it fails, or it is killed too. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/fault/sweep.h"
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include "tracerd/client.h"

enum {
    JOURNALS = 3,
    LEFT = 200,   /* records in each */
    RECORDS = 40, /* of the client */
    DEAD_PID = 1, /* as rig_journal() makes them */
    KILLS = 25,
    MANY = 12     /* journals of which each may be the one at work */
};

static void leave_journals(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "left%u", i);
        rig_journal(&ingest.rig, name, 1000 + i, LEFT, 0, false);
    }
}

static struct trd_client *open_client(uint32_t *id)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    trd_client_options_init(&o);
    o.dir = ingest.rig.dir;
    o.run = "run";
    o.job = "job";
    o.rank = 1;
    o.journal_bytes = 1 << 20;
    assert_int_equal(trd_client_open(&o, &c), 0);
    assert_int_equal(trd_site(c, &s, id), 0);
    return c;
}

static void submit(struct trd_client *c, uint32_t id, uint64_t step)
{
    const float data[4] = {1, 2, 3, (float)step};
    const int64_t shape[1] = {4};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    struct trd_when when = {.step = step, .iteration = step, .microbatch = 1};
    assert_int_equal(trd_submit_cpu(c, id, &when, &t, 4), 0);
}

static void check(struct rig *r, uint64_t left, uint64_t records)
{
    oracle_process(r, "run", DEAD_PID, left, 0, 0);
    oracle_process(r, "run", getpid(), records, 0, 0);
    oracle_run(r, "run");
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
}

/* The client was at work when the daemon died, and goes on. */
static void run_case(int op, int64_t nth, int how)
{
    struct rig *r = &ingest.rig;
    struct trd_client *c;
    uint32_t id;
    rig_start(r);
    c = open_client(&id);
    for (uint64_t i = 1; i <= RECORDS / 2; i++)
        submit(c, id, i);
    trd_flush(c, 1000);
    rig_kill(r);
    leave_journals(JOURNALS);
    sweep_arm(op, nth, how);
    sweep_start(r);
    for (uint64_t i = RECORDS / 2 + 1; i <= RECORDS; i++)
        submit(c, id, i);
    trd_flush(c, how & FAULT_STICKY ? 100 : 1000);
    if (how & FAULT_STICKY) /* it would keep the daemon from ending well */
        sweep_page->op = -1;
    sweep_end(r);
    oracle_start(r);
    check(r, JOURNALS * LEFT, RECORDS);
    trd_client_close(c);
}

/* ---- kills ---- */

static int kill_again_and_again(void)
{
    struct rig *r = &ingest.rig;
    const char *text = getenv("TRD_SEED");
    uint64_t rng = text ? strtoull(text, NULL, 10) : (uint64_t)getpid();
    struct trd_client *c;
    uint32_t id;
    ingest_set_up(NULL);
    leave_journals(MANY);
    c = open_client(&id);
    srand((unsigned)rng);
    for (uint64_t i = 1; i <= KILLS; i++) {
        struct timespec t = {0, (long)(rand() % 60) * 1000000};
        submit(c, id, i);
        oracle_start(r);
        nanosleep(&t, NULL);
        rig_kill(r);
    }
    oracle_start(r);
    check(r, MANY * LEFT, KILLS);
    trd_client_close(c);
    rig_stop(r);
    oracle_verify(r, 0);
    ingest_tear_down(NULL);
    return KILLS;
}

static void test_recovery_faults__killed_again_and_again(void **state)
{
    (void)state;
    oracle_held(16, (uint64_t)kill_again_and_again(),
                "killed while it takes over what was left");
}

int main(void)
{
    const struct sweep s = {.run_case = run_case, .side = "recovery",
                            .fault = 16, .some = 2};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recovery_faults__killed_again_and_again)};
    int failed = sweep_main(&s);
    if (failed != 77 && !getenv("TRD_FAULT_CASE"))
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    return failed;
}
