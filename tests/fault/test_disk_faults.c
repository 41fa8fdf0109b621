/* A disk that has no room for some writes, as a quota or another program
 * would make it: at any moment, and then there is room again. */
#include <unistd.h>

#include "tests/fault/sweep.h"
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

enum { CASES = 12 };

static void start(void)
{
    sweep_arm(-1, 0, 0);
    sweep_preload(true);
    rig_start(&ingest.rig);
    sweep_preload(false);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
}

/* All of it is there, nothing is lost. Stops the daemon. */
static void check(uint64_t sent)
{
    oracle_process(&ingest.rig, "run", getpid(), sent, 0, 0);
    oracle_run(&ingest.rig, "run");
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
}

/* The store fails, says why, and everything is there in the end. */
static void test_disk_faults__no_room_for_a_while(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    start();
    sweep_arm(FAULT_pwrite, 1, FAULT_STICKY);
    ingest_send_records(11, 10);
    rig_expect(&ingest.c, FRAME_NACK);
    assert_int_equal(ingest.c.refusal.reason, REASON_STORE);
    rig_close(&ingest.c);
    rig_logged(&ingest.rig, "disk_full");
    assert_false(rig_greet(&ingest.rig, &ingest.c, 77, &h));
    assert_true(ingest.c.refusal.retry_ms > 0);
    rig_close(&ingest.c);
    sweep_page->op = -1;
    rig_until(rig_greet(&ingest.rig, &ingest.c, 77, &h) ||
              (rig_close(&ingest.c), false));
    assert_int_equal(ingest.c.welcome.committed_seq, 10);
    rig_logged(&ingest.rig, "disk_room");
    ingest_send_records(11, 10);
    rig_durable(&ingest.c, 20);
    rig_close(&ingest.c);
    check(20);
    oracle_held(11, 1, "no write has room for a while");
}

/* One write, or half of one, whichever it is: nothing is stored twice. */
static void one_write(int nth, int how)
{
    struct hello h = rig_hello();
    uint64_t have;
    start();
    sweep_arm(FAULT_pwrite, nth, how);
    ingest_send_records(11, 200);
    while (ingest.c.ack.committed_seq < 210 && rig_recv(&ingest.c))
        continue;
    rig_close(&ingest.c);
    sweep_page->op = -1;
    rig_until(rig_greet(&ingest.rig, &ingest.c, 77, &h) ||
              (rig_close(&ingest.c), false));
    have = ingest.c.welcome.committed_seq;
    assert_true(have == 10 || have == 210);
    if (have == 10)
        ingest_send_records(11, 200);
    rig_durable(&ingest.c, 210);
    rig_close(&ingest.c);
    check(210);
}

static void test_disk_faults__no_room_for_one_write(void **state)
{
    for (int nth = 1; nth <= CASES; nth++) {
        one_write(nth, nth % 2 ? 0 : FAULT_SHORT);
        ingest_tear_down(state);
        ingest_set_up(state);
    }
    oracle_held(11, CASES, "one write, or half of one, has no room");
}

/* The reserve cannot be made: nothing is taken until it can. */
static void test_disk_faults__no_room_for_the_reserve(void **state)
{
    (void)state;
    sweep_arm(FAULT_allocate, 1, FAULT_STICKY);
    sweep_preload(true);
    rig_start(&ingest.rig);
    sweep_preload(false);
    rig_logged(&ingest.rig, "disk_full");
    sweep_page->op = -1;
    rig_logged(&ingest.rig, "disk_room");
    rig_open(&ingest.rig, &ingest.c, 77);
    assert_true(ingest.c.welcome.credit_bytes > 0);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
    rig_close(&ingest.c);
    check(10);
    oracle_held(11, 1, "no room for the reserve");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_disk_faults__no_room_for_a_while),
        ingest_test(test_disk_faults__no_room_for_one_write),
        ingest_test(test_disk_faults__no_room_for_the_reserve),
    };
    int failed = sweep_init();
    if (failed)
        return failed;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    sweep_fini();
    return failed;
}
