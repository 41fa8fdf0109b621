/* Every call of the daemon fails once, and from then on, one after the other:
 * malloc, files (SQLite's too), locks, sockets, threads.
 *
 * Each case: a daemon with one fault, a real client that submits records, the
 * end of both, a daemon without faults. Whatever happened, the daemon ends by
 * itself and not by a signal, the client never waits, and at last every
 * record is stored once. */
#include <unistd.h>

#include "tests/fault/sweep.h"
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include "tracerd/client.h"

enum { RECORDS = 40 };

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

static void check(struct rig *r)
{
    oracle_process(r, "run", getpid(), RECORDS, 0, 0);
    oracle_run(r, "run");
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
}

static void run_case(int op, int64_t nth, int how)
{
    struct rig *r = &ingest.rig;
    sweep_arm(op, nth, how);
    sweep_start(r);
    train(r, how & FAULT_STICKY ? 100 : 1000);
    if (how & FAULT_STICKY) /* it would keep the daemon from ending well */
        sweep_page->op = -1;
    sweep_end(r);
    oracle_start(r);
    check(r);
}

int main(void)
{
    const struct sweep s = {.run_case = run_case, .side = "daemon", .some = 4};
    return sweep_main(&s);
}
