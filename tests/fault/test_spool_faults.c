/* The disk of the spool fails: writes that do half of their work or none,
 * reads that fail, a file that cannot be removed. The training goes on, and
 * what it was told is accepted is stored once, or lost with its count. */
#include "tests/fault/sweep.h"
#include "tests/lib/outage.h"

#include <stdio.h>
#include <unistd.h>

/* A process with the fault in it from its start; all is submitted. */
static void begin(int op, int64_t nth, int how)
{
    told->stay = 1;
    sweep_arm(op, nth, how);
    sweep_preload(true);
    outage_start(NULL);
    sweep_preload(false);
    outage_until(told->submitted);
    assert_int_equal(told->accepted + told->refused, told->records);
}

/* A daemon comes, without the fault. */
static void finish(void)
{
    oracle_start(&ingest.rig);
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    assert_true(sweep_page->fired > 0);
    outage_check(0);
    rig_stop(&ingest.rig);
}

static void again(void **state)
{
    outage_tear_down(state);
    outage_set_up(state);
}

static void test_spool__writes_do_half_of_their_work(void **state)
{
    /* of the head, the words, records */
    for (int nth = 1; nth <= 4; nth++) {
        if (nth > 1)
            again(state);
        begin(FAULT_pwrite, nth, FAULT_SHORT);
        assert_int_equal(told->refused, 0);
        finish();
    }
    oracle_held(13, 4, "a write to the spool does half of its work");
}

/* The ring keeps what was not written, and the file what was. */
static void test_spool__a_write_fails(void **state)
{
    for (int nth = 1; nth <= 4; nth++) {
        if (nth > 1)
            again(state);
        told->block_ms = 100;
        begin(FAULT_pwrite, nth, 0);
        finish();
    }
    oracle_held(12, 4, "a write to the spool fails");
}

static void test_spool__writes_fail_from_then_on(void **state)
{
    for (int nth = 1; nth <= 7; nth += 3) {
        if (nth > 1)
            again(state);
        told->block_ms = 100;
        begin(FAULT_pwrite, nth, FAULT_STICKY);
        assert_true(told->refused > 0);
        assert_int_equal(told->at_end.spool_error, TRD_EIO);
        finish();
    }
    oracle_held(12, 3, "writes to the spool fail from then on");
}

/* After a while, for which the records wait. */
static void test_spool__a_write_fails_and_is_done_again(void **state)
{
    (void)state;
    begin(FAULT_pwrite, 5, 0); /* with all patience */
    assert_int_equal(told->refused, 0);
    assert_int_equal(told->at_end.spool_error, 0);
    finish();
}

static void test_spool__a_read_fails(void **state)
{
    for (int nth = 1; nth <= 3; nth++) {
        if (nth > 1)
            again(state);
        begin(FAULT_pread, nth, 0);
        finish();
        assert_int_equal(outage_lost("store_lost"), 0);
    }
    oracle_held(12, 3, "a read of the spool fails");
}

/* Its own process cannot read it: after some tries that is a loss, and the
 * ring goes on. */
static void test_spool__reads_fail_for_ever(void **state)
{
    (void)state;
    begin(FAULT_pread, 1, FAULT_STICKY);
    finish();
    assert_true(outage_lost("store_lost") > 0);
    oracle_held(12, 1, "the spool cannot be read");
}

/* The file stays, its records are not stored twice. */
static void test_spool__it_cannot_be_removed(void **state)
{
    (void)state;
    begin(FAULT_unlink, 1, FAULT_STICKY);
    oracle_start(&ingest.rig);
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    assert_int_equal(told->refused, 0);
    outage_until(!outage_journal()); /* by the daemon */
    outage_until(!outage_spool());
    outage_check(0);
    rig_stop(&ingest.rig);
    oracle_held(33, 1, "a client that cannot remove its spool");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        outage_test(test_spool__writes_do_half_of_their_work),
        outage_test(test_spool__a_write_fails),
        outage_test(test_spool__writes_fail_from_then_on),
        outage_test(test_spool__a_write_fails_and_is_done_again),
        outage_test(test_spool__a_read_fails),
        outage_test(test_spool__reads_fail_for_ever),
        outage_test(test_spool__it_cannot_be_removed),
    };
    int failed = argc == 1 ? sweep_init() : 0;
    if (!failed)
        failed = outage_main(argc, argv, tests, sizeof tests / sizeof *tests);
    if (argc == 1)
        sweep_fini();
    return failed;
}
