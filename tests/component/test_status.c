/* tracectl status: what is under way, what is wrong, and its exit code. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/cli.h"
#include "tests/lib/fake_daemon.h"
#include "tests/lib/rig.h"
#include "tracerd/client.h"

static struct rig_entries e;
static struct rig_client c;

static void greet(const char *run, const char *journal, uint64_t epoch)
{
    struct hello h = rig_hello();
    h.run = slice_of(run);
    h.journal = slice_of(journal);
    assert_true(rig_greet(cli_rig(), &c, epoch, &h));
    rig_fill_dict(&e);
    rig_send_dict(&c, &e, 1);
}

static void send_records(uint64_t seq, uint32_t n)
{
    rig_fill_data(&e, seq, n);
    rig_send_data(&c, &e, seq);
}

/* The journal has 50 records, the daemon 20 of them. */
static void test_status__how_full_a_journal_is(void **state)
{
    const struct cli *s;
    (void)state;
    cli_rig()->journals_alive = true;
    rig_journal(cli_rig(), "mine", 4801, 50, 0, false);
    greet("behind", "mine.journal", 4801);
    send_records(1, 20);
    rig_durable(&c, 20);
    s = cli_expect(0, "$T -o json status");
    cli_has(s->out, "{\"key\":\"stream.1.journal\",\"value\":"
                    "\"mine.journal\"}\n");
    cli_has(s->out, "{\"key\":\"stream.1.kept\",\"value\":50}\n");
    cli_has(s->out, "{\"key\":\"stream.1.kept_bytes\",\"value\":");
    cli_has(s->out, "{\"key\":\"stream.1.journal_bytes\",\"value\":2097152}\n");
    cli_has(s->out, "{\"key\":\"run.behind.bytes\",\"value\":");
    cli_has(s->out, "{\"key\":\"run.behind.wal_bytes\",\"value\":");
    cli_has(s->out, "{\"key\":\"store_failing\",\"value\":0}\n");
    cli_has(s->out, "{\"key\":\"disk_full\",\"value\":0}\n");
    cli_has(s->out, "{\"key\":\"disk_free_bytes\",\"value\":");
    cli_has(s->out, "{\"key\":\"disk_reserve_bytes\",\"value\":");
    cli_has(s->out, "{\"key\":\"wal_bytes\",\"value\":");
    cli_has_not(s->out, "problem");
    s = cli_expect(0, "$T status | grep -A1 '^run ' | tr -s ' '");
    cli_has(s->out, " durable lost kept journal\nbehind 0 0 ");
    cli_has(s->out, " 20 20 0 50 ");
    cli_has(s->out, "% of 2 MiB\n");
    rig_close(&c);
    cli_expect(0, "rm $DIR/mine.journal");
}

/* A name that is a link is not followed, and a journal that is damaged
 * or not there is no reason not to tell the rest. */
static void test_status__a_journal_that_cannot_be_read(void **state)
{
    static const char *const names[] = {"absent.journal", "text.journal",
                                        "link.journal"};
    (void)state;
    cli_expect(0, "echo text > $DIR/text.journal; "
                  "ln -s ../log $DIR/link.journal");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        greet("odd", names[i], 4810 + i);
        cli_has_not(cli_expect(0, "$T -o json status")->out, "kept");
        rig_close(&c);
    }
    cli_expect(0, "rm -f $DIR/*.journal $DIR/*.bad");
}

static void test_status__unhealthy_while_commits_fail(void **state)
{
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    const struct cli *s;
    long long end;
    (void)state;
    greet("held", "", 4820);
    send_records(1, 10);
    rig_durable(&c, 10);
    snprintf(path, sizeof path, "%s/held.db", cli_rig()->data);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL),
                     SQLITE_OK);
    send_records(11, 10);
    rig_expect(&c, FRAME_NACK);
    rig_close(&c);
    s = cli_expect(1, "$T -o json status");
    cli_has(s->out, "{\"key\":\"store_failing\",\"value\":1}\n");
    cli_has(s->out, "{\"key\":\"problem\",\"value\":\"records cannot be "
                    "stored now (database is locked)");
    cli_has(s->out, "{\"key\":\"lost\",\"value\":0}\n");
    sqlite3_close(db);
    end = rig_now_ms() + RIG_WAIT_MS;
    do {
        usleep(200 * 1000);
        s = cli_run("$T -o json status");
    } while (s->code && rig_now_ms() < end);
    assert_int_equal(s->code, 0);
    cli_has(s->out, "{\"key\":\"store_failing\",\"value\":0}\n");
}

/* What was lost is told for ever; it is trouble while somebody may do
 * something about it. */
static void test_status__losses_of_old_runs(void **state)
{
    static const char lost[] = "{\"key\":\"run.lossy.lost\",\"value\":7}\n";
    (void)state;
    greet("lossy", "", 4830);
    rig_entries_init(&e);
    rig_add_loss(&e, 1, TRD_LOST_RING_FULL, 7);
    rig_send_data(&c, &e, 1);
    rig_durable(&c, 1);
    cli_has(cli_expect(1, "$T -o json status")->out,
            "{\"key\":\"lost.ring_full\",\"value\":7}\n");
    cli_has(cli_expect(1, "$T -o json status")->out,
            "{\"key\":\"stream.1.lost\",\"value\":7}\n");
    cli_has(cli_expect(1, "$T -d $DATA -o json status")->out, lost);
    rig_send(&c, FRAME_BYE, 1, "", 0);
    rig_hung_up(c.fd);
    rig_close(&c);
    /* lately */
    cli_has(cli_expect(1, "$T -o json status")->out,
            "{\"key\":\"lost_ago_s\",");
    cli_stop_daemon();
    cli_has(cli_expect(0, "$T -d $DATA -o json status")->out, lost);
    cli_start_daemon();
    cli_expect(0, "$T status");
    cli_has(cli_expect(0, "$T -d $DATA -o json status")->out, lost);
}

/* Of a process that is gone a loss is trouble for ten minutes; a daemon of
 * before does not tell how long ago it was. */
static void test_status__losses_age(void **state)
{
    static const char gone[] = "run=r attempt=0 rank=0 pid=1 lost=0";
    static const char there[] = "run=r attempt=0 rank=0 pid=1 lost=7";
    static const struct {
        int code;
        size_t n;
        struct fake_row rows[3];
    } told[] = {
        {1, 2, {{"lost", NULL, 7}, {"lost_ago_s", NULL, 600}}},
        {0, 2, {{"lost", NULL, 7}, {"lost_ago_s", NULL, 601}}},
        {0, 3, {{"lost", NULL, 7}, {"lost_ago_s", NULL, 601},
                {"stream", gone, 0}}},
        {1, 3, {{"lost", NULL, 7}, {"lost_ago_s", NULL, 601},
                {"stream", there, 0}}},
        {1, 3, {{"lost", NULL, 7}, {"lost_ago_s", NULL, 601},
                {"problem", "the disk is full", 0}}},
        {1, 1, {{"lost", NULL, 7}}},
        {0, 1, {{"lost", NULL, 0}}},
    };
    char dir[RIG_PATH];
    (void)state;
    snprintf(dir, sizeof dir, "%.400s/fake", cli_rig()->base);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        pid_t pid = fake_daemon(dir, told[i].rows, told[i].n);
        cli_has(cli_expect(told[i].code, "$T -s %s status", dir)->out, "lost");
        fake_daemon_end(pid, dir);
    }
}

static void test_status__no_daemon(void **state)
{
    (void)state;
    cli_stop_daemon();
    cli_has(cli_expect(3, "$T status")->err,
            "there is no socket; start one with 'tracerd --dir ");
    cli_has(cli_expect(3, "$T -s /absent/dir status")->err,
            "no such directory");
    cli_start_daemon();
    cli_expect(0, "$T status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status__how_full_a_journal_is),
        cmocka_unit_test(test_status__a_journal_that_cannot_be_read),
        cmocka_unit_test(test_status__unhealthy_while_commits_fail),
        cmocka_unit_test(test_status__losses_of_old_runs),
        cmocka_unit_test(test_status__losses_age),
        cmocka_unit_test(test_status__no_daemon),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
