/* Every call of the daemon fails once, and from then on, one after the other:
 * malloc, files (SQLite's too), locks, sockets, threads.
 *
 * Each case: a daemon with one fault, a real client that submits records, the
 * end of both, a daemon without faults. Whatever happened, the daemon ends by
 * itself and not by a signal, the client never waits, and at last every
 * record is stored once. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "tests/fault/sweep.h"
#include "tests/lib/ingest.h"

#include "tracerd/client.h"

enum { RECORDS = 40 };

static bool in_case;
static int64_t this_call;

/* Starts a daemon with the shim in it; false where it did not get ready. */
static bool start_faulty(struct rig *r)
{
    int code;
    sweep_preload(true);
    code = rig_try(r);
    sweep_preload(false);
    if (code == -1)
        return true;
    if (code >= 128 || code == 0)
        fail_msg("the daemon ended with %d:\n%s", code, rig_log(r));
    return false;
}

/* Ends a daemon that may have ended already; no signal but ours. */
static void end_faulty(struct rig *r)
{
    int status;
    if (!r->pid)
        return;
    kill(r->pid, SIGTERM);
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    r->pid = 0;
    if (!WIFEXITED(status))
        fail_msg("the daemon died of signal %d:\n%s", WTERMSIG(status),
                 rig_log(r));
}

static void train(struct rig *r, int flush_ms)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    uint32_t id = 0;
    trd_client_options_init(&o);
    o.dir = r->dir;
    o.run = "run";
    o.journal_bytes = 1 << 20;
    assert_int_equal(trd_client_open(&o, &c), 0);
    assert_int_equal(trd_site(c, &s, &id), 0);
    for (uint64_t i = 1; i <= RECORDS; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        assert_int_equal(trd_submit_cpu(c, id, &when, &t, 4), 0);
        if (i == RECORDS / 2)
            trd_flush(c, flush_ms);
    }
    trd_flush(c, flush_ms);
    trd_client_close(c);
}

/* Where the records ended up: the run, and one that took its place. */
static void check(void)
{
    rig_until(ingest_ask("run", "SELECT count(DISTINCT step) FROM record") ==
              RECORDS);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"),
                     RECORDS);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    assert_int_equal(ingest_ask("run", "SELECT integrity_check = 'ok' FROM"
                                       " pragma_integrity_check"),
                     1);
}

/* One case; whether the fault came. */
static bool run_case(int op, int64_t nth, int how)
{
    struct rig *r = &ingest.rig;
    bool fired;
    ingest_set_up(NULL);
    in_case = true;
    this_call = nth;
    sweep_arm(op, nth, how);
    start_faulty(r);
    train(r, how & FAULT_STICKY ? 100 : 1000);
    if (how & FAULT_STICKY) /* it would keep the daemon from ending well */
        sweep_page->op = -1;
    end_faulty(r);
    fired = sweep_page->fired > 0;
    rig_start(r);
    check();
    ingest_tear_down(NULL);
    in_case = false;
    return fired;
}

/* A case that failed left its daemon and files. */
static int tear_down(void **state)
{
    if (in_case) {
        print_error("call %lld of them; the log:\n%s\n",
                    (long long)this_call, rig_log(&ingest.rig));
        ingest_tear_down(state);
    }
    in_case = false;
    return 0;
}

static void test_faults__the_one_asked_for(void **state)
{
    int op, how;
    int64_t nth;
    (void)state;
    assert_true(sweep_asked(&op, &nth, &how));
    print_message("fired: %d\n", run_case(op, nth, how));
}

#define SWEEP(name, code)                                                     \
    static void test_faults__##name##_fails_once(void **state)                \
    {                                                                         \
        (void)state;                                                          \
        sweep_run(FAULT_##name, 0, run_case);                                 \
    }                                                                         \
    static void test_faults__##name##_fails_from_then_on(void **state)        \
    {                                                                         \
        (void)state;                                                          \
        sweep_run(FAULT_##name, FAULT_STICKY, run_case);                      \
    }
FAULT_OPS(SWEEP)
#undef SWEEP

static void test_faults__a_write_does_half_its_work(void **state)
{
    (void)state;
    sweep_run(FAULT_pwrite, FAULT_SHORT, run_case);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TESTS(name, code)                                                     \
    cmocka_unit_test_teardown(test_faults__##name##_fails_once, tear_down),   \
        cmocka_unit_test_teardown(test_faults__##name##_fails_from_then_on,   \
                                  tear_down),
        FAULT_OPS(TESTS)
#undef TESTS
            cmocka_unit_test_teardown(test_faults__a_write_does_half_its_work,
                                      tear_down),
    };
    const struct CMUnitTest one[] = {
        cmocka_unit_test_teardown(test_faults__the_one_asked_for, tear_down)};
    int64_t nth;
    int op, how;
    int failed = sweep_init();
    if (failed)
        return failed;
    failed = sweep_asked(&op, &nth, &how)
                 ? cmocka_run_group_tests(one, NULL, NULL)
                 : cmocka_run_group_tests(tests, NULL, NULL);
    sweep_fini();
    return failed;
}
