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

static void run_case(int op, int64_t nth, int how)
{
    struct rig *r = &ingest.rig;
    sweep_arm(op, nth, how);
    start_faulty(r);
    train(r, how & FAULT_STICKY ? 100 : 1000);
    if (how & FAULT_STICKY) /* it would keep the daemon from ending well */
        sweep_page->op = -1;
    end_faulty(r);
    rig_start(r);
    check();
}

int main(void)
{
    return sweep_main(run_case, true);
}
