/* A full journal with a spool: outages of the daemon, kills at each step, disks
 * without room, directories that are not safe. */
#include "tests/lib/outage.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/sys.h"
#include "proto/spool.h"

/* ---- outages ---- */

static void test_spool__daemon_comes_after_four_rings(void **state)
{
    (void)state;
    told->stay = 1;
    outage_start(NULL);
    outage_until(told->submitted);
    assert_int_equal(told->accepted, OUTAGE_MANY);
    assert_int_equal(told->at_end.durable, 0);
    assert_int_equal(told->at_end.spool_error, 0);
    assert_true(told->at_end.spool_used_bytes >= 3 * OUTAGE_RING);
    struct stat st;
    assert_int_equal(stat(outage_spool(), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    oracle_start(&ingest.rig);
    outage_until(!outage_spool()); /* while its process lives */
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    outage_check(0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"),
                     OUTAGE_MANY);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    assert_int_equal(ingest_ask("run", "SELECT block_ms FROM v_run"),
                     OUTAGE_PATIENCE_MS);
    assert_int_equal(ingest_ask("run", "SELECT spool_bytes FROM v_run"),
                     1 << 30);
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
    oracle_held(7, 1, "four rings while there is no daemon, with a spool");
}

static void test_spool__process_ends_before_a_daemon_comes(void **state)
{
    (void)state;
    outage_start(NULL);
    assert_int_equal(outage_end(), 0);
    assert_int_equal(told->accepted, OUTAGE_MANY);
    assert_non_null(outage_spool());
    oracle_start(&ingest.rig);
    outage_check(0);
    assert_int_equal(ingest_ask("run", "SELECT state = 'ended' FROM stream"),
                     1);
    rig_stop(&ingest.rig);
}

static void test_spool__process_killed_before_a_daemon_comes(void **state)
{
    (void)state;
    told->stay = 1;
    outage_start(NULL);
    outage_until(told->submitted);
    outage_kill();
    oracle_start(&ingest.rig);
    outage_check(0);
    assert_int_equal(ingest_ask("run", "SELECT state = 'dead' FROM stream"),
                     1);
    rig_stop(&ingest.rig);
}

static uint64_t (*true_mono)(void), begun_ns;

/* A clock by which no stall of this machine is long. */
static uint64_t slow_mono(void)
{
    return begun_ns + (true_mono() - begun_ns) / 1000;
}

static struct trd_client *open_slowly(uint64_t ring)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    true_mono = trd__sys.mono_ns;
    begun_ns = true_mono();
    trd__sys.mono_ns = slow_mono;
    trd_client_options_init(&o);
    o.dir = ingest.rig.dir;
    o.run = "run";
    o.journal_bytes = ring;
    o.spool_dir = outage_dir;
    assert_int_equal(trd_client_open(&o, &c), 0);
    return c;
}

/* The ring is often more than half full and never nearly full, and the daemon
 * frees some of it again and again: it works only while that is waited for,
 * so that it is behind however slow the client is. */
static void test_spool__none_while_a_daemon_comes_after(void **state)
{
    enum { RING = 32 << 20, RECORDS = 16 * 1024 };
    const struct trd_site place = {.pass = TRD_USER, .class_name = "",
                                   .module = "", .path = "x"};
    static const int64_t shape[1] = {OUTAGE_ELEMENTS};
    static float x[OUTAGE_ELEMENTS];
    const struct trd_tensor t = {x, TRD_F32, 1, shape, NULL};
    struct trd_counters n;
    uint32_t site;
    int pauses = 0;
    (void)state;
    oracle_start(&ingest.rig);
    struct trd_client *c = open_slowly(RING);
    assert_int_equal(trd_site(c, &place, &site), 0);
    outage_until((trd_counters(c, &n), n.connected));
    kill(ingest.rig.pid, SIGSTOP);
    for (uint64_t i = 1; i <= RECORDS; i++) {
        struct trd_when when = {.step = i, .iteration = i};
        trd_counters(c, &n);
        assert_int_equal(n.spool_used_bytes, 0);
        if (n.journal_used_bytes > RING / 10 * 8) {
            uint64_t durable = n.durable;
            pauses++;
            kill(ingest.rig.pid, SIGCONT);
            outage_until((trd_counters(c, &n), n.durable > durable));
            kill(ingest.rig.pid, SIGSTOP);
        }
        assert_int_equal(trd_submit_cpu(c, site, &when, &t, OUTAGE_ELEMENTS),
                         0);
    }
    kill(ingest.rig.pid, SIGCONT);
    assert_true(pauses > 0);
    assert_null(outage_spool());
    outage_until(trd_flush(c, 1) == 0);
    trd_client_close(c);
    trd__sys.mono_ns = true_mono;
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"),
                     RECORDS);
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
}

/* In between it takes some of it. */
static void test_spool__daemon_killed_while_it_drains(void **state)
{
    enum { KILLS = 5 };
    int64_t have = 0;
    (void)state;
    told->stay = 1;
    told->records = 4 * OUTAGE_MANY;
    outage_start(NULL);
    outage_until(told->submitted);
    for (int i = 0; i < KILLS; i++) {
        rig_start(&ingest.rig);
        outage_until(!outage_spool() ||
                   ingest_ask("run", "SELECT seq FROM stream") > have);
        rig_kill(&ingest.rig);
        have = ingest_ask("run", "SELECT seq FROM stream");
    }
    oracle_start(&ingest.rig);
    outage_until(!outage_spool());
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    outage_check(0);
    rig_stop(&ingest.rig);
    oracle_held(6, KILLS, "daemon killed while it takes a spool");
}

/* Records go on coming while the spool is taken, and it stops again. */
static void test_spool__outages_one_after_the_other(void **state)
{
    (void)state;
    told->records = 4 * OUTAGE_MANY;
    told->stay = 1;
    told->slow_us = 200;
    outage_start(NULL);
    for (int i = 0; i < 3; i++) {
        outage_until(outage_spool() || told->submitted);
        rig_start(&ingest.rig);
        outage_until(!outage_spool() || told->submitted);
        if (i < 2)
            rig_kill(&ingest.rig);
    }
    outage_until(told->submitted);
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    outage_check(0);
    assert_int_equal(told->refused, 0);
    rig_stop(&ingest.rig);
}

static void test_spool__stopped_daemon(void **state)
{
    (void)state;
    told->stay = 1;
    told->slow_us = 100;
    rig_start(&ingest.rig);
    outage_start(NULL);
    outage_until(told->accepted > 10);
    kill(ingest.rig.pid, SIGSTOP);
    outage_until(told->submitted);
    assert_int_equal(told->refused, 0);
    assert_true(told->at_end.spool_used_bytes > OUTAGE_RING);
    kill(ingest.rig.pid, SIGCONT);
    outage_until(!outage_spool());
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    outage_check(0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"),
                     OUTAGE_MANY);
    rig_stop(&ingest.rig);
    oracle_held(8, 1, "daemon stopped for four rings, with a spool");
}

/* A program that closes what it does not know, and opens its own. */
static void test_spool__application_closes_its_descriptor(void **state)
{
    (void)state;
    told->stay = 1;
    told->close_spool = 1;
    outage_start(NULL);
    outage_until(told->submitted);
    assert_int_equal(told->refused, 0);
    oracle_start(&ingest.rig);
    outage_until(!outage_spool());
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    outage_check(0);
    rig_stop(&ingest.rig);
    oracle_held(29, 1, "the descriptor of the spool");
}

/* ---- kills ---- */

static void test_spool__client_killed_at_each_step(void **state)
{
    static const char *const points[] = {
        "spool_made 1",  "spool_written 1", "spool_written 2",
        "spool_written 9", "spool_freed 1", "spool_freed 7",
        "state_published 3", "ring_zeroed 3",
    };
    enum { N = sizeof points / sizeof *points };
    for (size_t i = 0; i < N; i++) {
        if (i) {
            outage_tear_down(state);
            outage_set_up(state);
        }
        outage_start(points[i]);
        if (!WIFSIGNALED(outage_end()))
            fail_msg("%s did not come", points[i]);
        oracle_start(&ingest.rig);
        outage_check(1);
        rig_stop(&ingest.rig);
    }
    oracle_held(1, N, "while the ring goes to the spool");
}

/* With the daemon there, so that the spool is taken. */
static void test_spool__client_killed_when_it_removes_the_spool(void **state)
{
    (void)state;
    told->stay = 1;
    outage_start("spool_removed 1");
    outage_until(told->submitted);
    oracle_start(&ingest.rig);
    assert_true(WIFSIGNALED(outage_end()));
    outage_check(0);
    rig_stop(&ingest.rig);
    oracle_held(37, 1, "after the client has removed its spool");
}

static void test_spool__daemon_killed_when_it_removes_the_spool(void **state)
{
    static const char *const points[] = {"journal_adopted 1",
                                         "spool_cleared 1",
                                         "journal_removed 1"};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        if (i) {
            outage_tear_down(state);
            outage_set_up(state);
        }
        outage_start(NULL);
        assert_int_equal(outage_end(), 0);
        setenv("TRACERD_POINT", points[i], 1);
        rig_start(&ingest.rig);
        unsetenv("TRACERD_POINT");
        outage_until(!rig_alive(&ingest.rig));
        ingest.rig.pid = 0;
        oracle_start(&ingest.rig);
        outage_check(0);
        assert_int_equal(outage_lost("store_lost"), 0);
        rig_stop(&ingest.rig);
    }
    oracle_held(37, 3, "while the daemon removes spool and journal");
}

/* ---- no room ---- */

/* The daemon comes in the end; what found no room is counted. */
static void check_refused(int error)
{
    outage_until(told->submitted);
    assert_int_equal(told->accepted + told->refused, told->records);
    assert_true(told->refused > 0);
    assert_int_equal(told->at_end.spool_error, error);
    assert_int_equal(told->at_end.lost[TRD_LOST_RING_FULL], told->refused);
    oracle_start(&ingest.rig);
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    outage_check(0);
    assert_int_equal(outage_lost("ring_full"), told->refused);
    rig_stop(&ingest.rig);
}

static void test_spool__limit_of_its_file(void **state)
{
    (void)state;
    told->stay = 1;
    told->spool_bytes = 2 * OUTAGE_RING;
    told->block_ms = 100;
    outage_start(NULL);
    outage_until(told->submitted);
    assert_in_range(told->at_end.spool_used_bytes, OUTAGE_RING,
                    2 * OUTAGE_RING);
    check_refused(TRD_ELIMIT);
}

static void test_spool__full_disk(void **state)
{
    (void)state;
    if (mount("tmpfs", outage_dir, "tmpfs", 0, "size=2m,mode=0700")) {
        print_message("no right to mount: skipped\n");
        skip();
    }
    told->stay = 1;
    told->block_ms = 100;
    outage_start(NULL);
    outage_until(told->submitted);
    assert_in_range(told->at_end.spool_used_bytes, OUTAGE_RING,
                    2 * OUTAGE_RING);
    check_refused(TRD_EIO);
    oracle_held(10, 1, "no space for the spool");
}

static void test_spool__disk_full_from_the_start(void **state)
{
    (void)state;
    if (mount("tmpfs", outage_dir, "tmpfs", 0, "size=4k,mode=0700")) {
        print_message("no right to mount: skipped\n");
        skip();
    }
    told->stay = 1;
    told->block_ms = 100;
    outage_start(NULL);
    outage_until(told->submitted);
    assert_int_equal(told->at_end.spool_used_bytes, 0);
    assert_null(outage_spool());
    check_refused(TRD_EIO);
}

/* ---- its directory ---- */

static void refused_dir(const char *dir)
{
    snprintf(told->spool, sizeof told->spool, "%s", dir);
    told->block_ms = 0;
    told->records = 2 * OUTAGE_MANY;
    outage_start(NULL);
    assert_int_equal(outage_end(), 0);
    assert_int_equal(told->at_end.spool_error, TRD_EACCES);
    assert_int_equal(told->at_end.spool_used_bytes, 0);
    assert_true(told->refused > 0);
    oracle_start(&ingest.rig);
    outage_check(0);
    assert_int_equal(ingest_ask("run", "SELECT spool_bytes FROM stream"), 0);
    rig_stop(&ingest.rig);
}

static void test_spool__directory_that_others_may_write_to(void **state)
{
    (void)state;
    assert_int_equal(chmod(outage_dir, 0777), 0);
    refused_dir(outage_dir);
    oracle_held(33, 1, "a spool's directory with mode 0777");
}

static void test_spool__directory_that_is_a_link(void **state)
{
    char path[3 * RIG_PATH];
    (void)state;
    snprintf(path, sizeof path, "%s/link", ingest.rig.base);
    assert_int_equal(symlink(outage_dir, path), 0);
    refused_dir(path);
    unlink(path);
    oracle_held(33, 1, "a spool's directory that is a symbolic link");
}

static void test_spool__directory_of_another(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(chown(outage_dir, 12345, 12345), 0);
    refused_dir(outage_dir);
}

static void test_spool__directory_that_is_not_there(void **state)
{
    char path[3 * RIG_PATH];
    (void)state;
    snprintf(path, sizeof path, "%s/none/at/all", ingest.rig.base);
    refused_dir(path);
}

static void test_spool__directory_is_made(void **state)
{
    char path[3 * RIG_PATH];
    (void)state;
    snprintf(path, sizeof path, "%s/new", outage_dir);
    snprintf(told->spool, sizeof told->spool, "%s", path);
    outage_start(NULL);
    assert_int_equal(outage_end(), 0);
    assert_non_null(outage_find(path, SPOOL_SUFFIX));
    oracle_start(&ingest.rig);
    outage_check(0);
    assert_null(outage_find(path, SPOOL_SUFFIX));
    rig_stop(&ingest.rig);
    rmdir(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        outage_test(test_spool__daemon_comes_after_four_rings),
        outage_test(test_spool__process_ends_before_a_daemon_comes),
        outage_test(test_spool__process_killed_before_a_daemon_comes),
        outage_test(test_spool__none_while_a_daemon_comes_after),
        outage_test(test_spool__daemon_killed_while_it_drains),
        outage_test(test_spool__outages_one_after_the_other),
        outage_test(test_spool__stopped_daemon),
        outage_test(test_spool__application_closes_its_descriptor),
        outage_test(test_spool__client_killed_at_each_step),
        outage_test(test_spool__client_killed_when_it_removes_the_spool),
        outage_test(test_spool__daemon_killed_when_it_removes_the_spool),
        outage_test(test_spool__limit_of_its_file),
        outage_test(test_spool__full_disk),
        outage_test(test_spool__disk_full_from_the_start),
        outage_test(test_spool__directory_that_others_may_write_to),
        outage_test(test_spool__directory_that_is_a_link),
        outage_test(test_spool__directory_of_another),
        outage_test(test_spool__directory_that_is_not_there),
        outage_test(test_spool__directory_is_made),
    };
    return outage_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
