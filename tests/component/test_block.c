/* How long a submit waits for room in a full journal. */
#include "tests/lib/outage.h"

#include <signal.h>

/* ---- waiting for room ---- */

static void no_spool(void)
{
    told->spool[0] = '\0';
    told->stay = 1;
}

/* One wait for all, by the clock of the client. */
static void check_waited_once(uint32_t threads)
{
    enum { BLOCK_MS = 300 };
    no_spool();
    told->block_ms = BLOCK_MS;
    told->threads = threads;
    told->records = 2 * OUTAGE_MANY;
    outage_start(NULL);
    outage_until(told->submitted);
    assert_int_equal(told->accepted + told->refused, threads * 2 * OUTAGE_MANY);
    assert_true(told->refused > OUTAGE_MANY);
    assert_true(told->at_end.blocked_ns >= BLOCK_MS * UINT64_C(1000000));
    /* waits that overlap add up; a nap may be long on a busy machine */
    assert_true(told->at_end.blocked_ns <
                threads * (BLOCK_MS + 2000) * UINT64_C(1000000));
    assert_int_equal(told->at_end.lost[TRD_LOST_RING_FULL], told->refused);
    oracle_start(&ingest.rig);
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    outage_check(0);
    assert_int_equal(ingest_ask("run", "SELECT block_ms FROM stream"),
                     BLOCK_MS);
    rig_stop(&ingest.rig);
}

static void test_block__without_a_daemon_once(void **state)
{
    (void)state;
    check_waited_once(1);
    oracle_held(7, 1, "no daemon: one wait for room and no more");
}

static void test_block__threads_without_a_daemon_once(void **state)
{
    (void)state;
    check_waited_once(OUTAGE_THREADS);
}

static void test_block__nothing_is_dropped_with_a_daemon(void **state)
{
    (void)state;
    no_spool();
    told->threads = OUTAGE_THREADS;
    told->records = OUTAGE_MANY / 2;
    rig_start(&ingest.rig);
    outage_start(NULL);
    outage_until(told->submitted);
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    assert_int_equal(told->refused, 0);
    assert_int_equal(told->accepted, OUTAGE_THREADS * OUTAGE_MANY / 2);
    assert_true(told->at_end.blocked_ns > 0);
    outage_check(0);
    rig_stop(&ingest.rig);
}

/* The daemon stops for a while, in which all wait. */
static void test_block__until_a_stopped_daemon_goes_on(void **state)
{
    (void)state;
    no_spool();
    told->threads = OUTAGE_THREADS;
    told->records = OUTAGE_MANY / 2;
    rig_start(&ingest.rig);
    outage_start(NULL);
    outage_until(told->accepted > 10);
    kill(ingest.rig.pid, SIGSTOP);
    outage_nap_us(300000);
    assert_int_equal(told->submitted, 0);
    kill(ingest.rig.pid, SIGCONT);
    outage_until(told->submitted);
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    assert_int_equal(told->refused, 0);
    outage_check(0);
    rig_stop(&ingest.rig);
    oracle_held(8, 1, "daemon stopped while submits wait for room");
}

static void test_block__default_never_waits(void **state)
{
    (void)state;
    no_spool();
    told->block_ms = 0;
    told->records = 2 * OUTAGE_MANY;
    outage_start(NULL);
    outage_until(told->submitted);
    assert_true(told->refused > 0);
    assert_int_equal(told->at_end.blocked_ns, 0);
    oracle_start(&ingest.rig);
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    outage_check(0);
    assert_int_equal(
        ingest_ask("run", "SELECT block_ms + spool_bytes FROM stream"), 0);
    rig_stop(&ingest.rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        outage_test(test_block__without_a_daemon_once),
        outage_test(test_block__threads_without_a_daemon_once),
        outage_test(test_block__nothing_is_dropped_with_a_daemon),
        outage_test(test_block__until_a_stopped_daemon_goes_on),
        outage_test(test_block__default_never_waits),
    };
    return outage_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
