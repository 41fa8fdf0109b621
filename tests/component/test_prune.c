/* tracectl prune: iterations of a run and runs of a directory, with and
 * without a daemon, and what is left when it is killed or has no room. */
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cli.h"
#include "tests/lib/rig.h"

#include "tracerd/client.h"

enum { RECORDS = 4000, EPOCH = 5101, ODD = 1234 };

static struct rig_entries e;
static struct rig_client c;

/* Records 1 to 4000, of which number n is of iteration n, one of them with a
 * NaN, and a loss behind. */
static void fill(const char *run, uint64_t epoch)
{
    struct hello h = rig_hello();
    h.run = slice_of(run);
    h.job = slice_of(run);
    h.pid = 0; /* a process that is gone */
    assert_true(rig_greet(cli_rig(), &c, epoch, &h));
    rig_fill_dict(&e);
    rig_send_dict(&c, &e, 1);
    for (uint64_t seq = 1; seq <= RECORDS; seq += 500) {
        rig_entries_init(&e);
        for (uint64_t i = seq; i < seq + 500; i++) {
            struct wire_record m = rig_record(i);
            m.stats.nan = i == ODD;
            rig_add_record(&e, i, &m);
        }
        rig_send_data(&c, &e, seq);
    }
    rig_entries_init(&e);
    rig_add_loss(&e, RECORDS + 1, TRD_LOST_RING_FULL, 7);
    rig_send_data(&c, &e, RECORDS + 1);
    rig_durable(&c, RECORDS + 1);
}

static int set_up(void **state)
{
    int rc = cli_setup(state);
    fill("whole", EPOCH);
    rig_close(&c);
    cli_stop_daemon();
    cli_expect(0, "cp $DATA/whole.db .");
    return rc;
}

/* ---- iterations ---- */

static void test_prune__every_and_last(void **state)
{
    struct stat before, after;
    (void)state;
    cli_expect(0, "cp whole.db a.db && chmod 640 a.db");
    assert_int_equal(stat("a.db", &before), 0);
    cli_has(cli_expect(0, "$T -o json prune a.db --keep-every 100 "
                          "--keep-last 10 --dry-run")->out,
            "{\"file\":\"a.db\",\"done\":\"would prune\",\"records\":3950,");
    cli_expect(0, "cmp a.db whole.db && ! ls a.db.new");
    cli_has(cli_expect(0, "$T -o csv prune a.db --keep-every 100 "
                          "--keep-last 10")->out,
            "a.db,pruned,3950,");
    assert_int_equal(cli_number("a.db", "SELECT count(*) FROM record"), 50);
    assert_int_equal(cli_number("a.db", "SELECT count(*) FROM record WHERE "
                                        "(iteration - 1) % 100 = 0"),
                     40);
    assert_int_equal(cli_number("a.db", "SELECT min(iteration) FROM (SELECT "
                                        "iteration FROM record ORDER BY 1 DESC "
                                        "LIMIT 10)"),
                     3991);
    assert_int_equal(stat("a.db", &after), 0);
    assert_int_equal(after.st_mode & 0777, 0640);
    assert_true(after.st_size * 4 < before.st_size);
    cli_expect(0, "! ls a.db?*");
}

static void test_prune__what_is_gone_is_told(void **state)
{
    (void)state;
    cli_expect(0, "cp whole.db b.db");
    cli_expect(0, "$T prune b.db --keep-every 1000");
    cli_has(cli_expect(0, "$T -o csv verify b.db")->out,
            "b.db,good,4,\"4 records, 7 lost\"");
    cli_has(cli_expect(0, "$T -o csv -d b.db sql \"SELECT attempt, rank, seq, "
                          "last, count, rule FROM v_pruned\"")->out,
            "attempt,rank,seq,last,count,rule\n"
            "0,0,2,1000,999,every 1000\n"
            "0,0,1002,2000,999,every 1000\n"
            "0,0,2002,3000,999,every 1000\n"
            "0,0,3002,4000,999,every 1000\n");
    cli_has(cli_expect(0, "$T -o csv -d b.db sql \"SELECT records, lost, "
                          "pruned FROM v_run\"")->out, "4,7,3996\n");
    cli_has(cli_expect(0, "$T -o csv -d b.db runs")->out, ",4,7,");
    cli_has(cli_expect(0, "$T -o csv -d b.db runs")->out, ",3996\n");
    cli_has(cli_run("$T -d b.db -o csv status")->out,
            "run.whole.pruned,3996\n");
    cli_has(cli_run("$T -d b.db -o csv status")->out, "run.whole.records,4\n");
    /* once more, of what is left */
    cli_has(cli_expect(0, "$T -o csv prune b.db --keep-last 1000")->out,
            "b.db,pruned,3,");
    cli_has(cli_expect(0, "$T -o csv -d b.db sql \"SELECT count(*), "
                          "sum(count), sum(rule = 'last 1000') FROM "
                          "v_pruned\"")->out, "7,3999,3\n");
    cli_has(cli_expect(0, "$T -o csv verify b.db")->out,
            "b.db,good,1,\"1 records, 7 lost\"");
    cli_has(cli_expect(1, "$T prune b.db --keep-last 1000")->err,
            "nothing of 'b.db' is to go");
}

static void test_prune__around_what_is_not_finite(void **state)
{
    (void)state;
    cli_expect(0, "cp whole.db c.db");
    cli_has(cli_expect(0, "$T -o csv prune c.db --keep-around 3")->out,
            "c.db,pruned,3993,");
    assert_int_equal(cli_number("c.db", "SELECT min(iteration) FROM record"),
                     ODD - 3);
    assert_int_equal(cli_number("c.db", "SELECT max(iteration) FROM record"),
                     ODD + 3);
    cli_expect(0, "$T verify c.db");
}

static void test_prune__around_a_finding_of_check(void **state)
{
    (void)state;
    cli_expect(0, "cp whole.db d.db");
    cli_sql("d.db", "UPDATE record SET nan = 0;"
                    "UPDATE record SET subnormal = 20, dtype = 3,"
                    " samples = zeroblob(32) WHERE iteration = 2000");
    cli_has(cli_expect(1, "$T -o csv check d.db")->out, "underflow,");
    cli_expect(0, "$T prune d.db --keep-around 0");
    assert_int_equal(cli_number("d.db", "SELECT count(*) FROM record"), 1);
    assert_int_equal(cli_number("d.db", "SELECT iteration FROM record"), 2000);
}

static void test_prune__extras_and_repair_keep_what_is_told(void **state)
{
    (void)state;
    cli_expect(0, "cp whole.db e.db");
    cli_sql("e.db",
            "INSERT INTO extra SELECT stream, seq, 1, 4, NULL FROM record");
    cli_expect(0, "$T prune e.db --keep-every 1000");
    assert_int_equal(cli_number("e.db", "SELECT count(*) FROM extra"), 4);
    cli_expect(0, "$T verify e.db");
    cli_has(cli_expect(0, "$T verify --repair e.db")->out,
            "4 records saved, 0 lost");
    assert_int_equal(cli_number("e.db", "SELECT sum(count) FROM v_pruned"),
                     3996);
    cli_has(cli_expect(0, "$T -o csv -d e.db runs")->out, ",3996\n");
    cli_expect(0, "rm e.db.damaged-*");
}

static void test_prune__runs_of_before_are_read(void **state)
{
    (void)state;
    cli_expect(0, "cp whole.db old.db");
    cli_sql("old.db", "DROP VIEW v_pruned; DROP VIEW v_run; DROP TABLE pruned");
    cli_expect(0, "$T verify old.db");
    cli_expect(0, "$T -d old.db runs");
    cli_expect(0, "$T prune old.db --keep-last 5");
    cli_has(cli_expect(0, "$T verify -o csv old.db")->out, "old.db,good,5,");
    assert_int_equal(cli_number("old.db", "SELECT pruned FROM v_run"), 3995);
}

static void test_prune__gaps_are_not_called_pruned(void **state)
{
    (void)state;
    cli_expect(0, "cp whole.db gap.db");
    cli_sql("gap.db", "DELETE FROM record WHERE seq = 77");
    cli_expect(0, "cp gap.db before.db");
    cli_has(cli_expect(3, "$T prune gap.db --keep-last 5")->err,
            "'gap.db' is left as it is: its sequence numbers do not hold");
    cli_expect(0, "cmp gap.db before.db && ! ls gap.db.new");
}

/* ---- who is at it ---- */

static void test_prune__a_run_that_somebody_has_open(void **state)
{
    sqlite3 *db = NULL;
    (void)state;
    cli_expect(0, "cp whole.db used.db");
    assert_int_equal(sqlite3_open("used.db", &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN; SELECT count(*) FROM stream",
                                  NULL, NULL, NULL), SQLITE_OK);
    cli_has(cli_expect(3, "$T prune used.db --keep-last 5")->err,
            "'used.db' is left as it is: another program has it open");
    sqlite3_close(db);
    cli_expect(0, "$T prune used.db --keep-last 5");
}

static void test_prune__a_run_of_a_living_process(void **state)
{
    char text[128];
    (void)state;
    cli_expect(0, "cp whole.db alive.db");
    snprintf(text, sizeof text,
             "UPDATE stream SET state = 'open', boot_id = '', start_time = 0,"
             " pid = %ld", (long)getpid());
    cli_sql("alive.db", text);
    cli_has(cli_expect(3, "$T prune alive.db --keep-last 5")->err,
            "'alive.db' is left as it is: a process that writes to it still "
            "runs");
    cli_sql("alive.db", "UPDATE stream SET start_time = 1"); /* a later one's */
    cli_expect(0, "$T prune alive.db --keep-last 5");
}

static void test_prune__beside_a_daemon(void **state)
{
    (void)state;
    cli_start_daemon();
    fill("busy", EPOCH + 1);
    cli_has(cli_expect(3, "$T -s $DIR prune busy --keep-last 5")->err,
            "busy.db' is left as it is: another program has it open");
    cli_has(cli_expect(0, "$T -s $DIR -o csv prune whole --keep-last 5")->out,
            "whole.db,pruned,3995,");
    rig_close(&c);
    /* its process comes again to a run that was pruned */
    fill("whole", EPOCH);
    rig_entries_init(&e);
    {
        struct wire_record m = rig_record(RECORDS + 2);
        rig_add_record(&e, RECORDS + 2, &m);
    }
    rig_send_data(&c, &e, RECORDS + 2);
    rig_durable(&c, RECORDS + 2);
    rig_close(&c);
    cli_stop_daemon();
    cli_has(cli_expect(0, "$T verify -o csv $DATA/whole.db")->out,
            ",good,6,\"6 records, 7 lost\"");
    cli_expect(0, "rm $DATA/busy.db; cp whole.db $DATA");
}

/* ---- crashes and a full disk ---- */

static void test_prune__killed_at_any_moment(void **state)
{
    int64_t n;
    (void)state;
    for (int i = 0; i < 40; i++) {
        cli_expect(0, "cp whole.db k.db");
        cli_run("timeout --foreground -s KILL 0.%03d $T prune k.db "
                "--keep-last 50", 2 * i);
        n = cli_number("k.db", "SELECT count(*) FROM record");
        assert_true(n == RECORDS || n == 50);
        cli_expect(0, "$T verify k.db");
        cli_expect(0, "rm -f k.db k.db-*");
    }
    /* what it left keeps nobody from doing it */
    cli_write_file("k.db.new", "half of it", 10);
    cli_expect(0, "cp whole.db k.db && $T prune k.db --keep-last 50");
    cli_expect(0, "$T verify k.db && ! ls k.db.new");
}

static void test_prune__no_room_for_the_new_file(void **state)
{
    (void)state;
    cli_expect(0, "cp whole.db full.db");
    cli_has(cli_expect(3, "(trap '' XFSZ; ulimit -f 600; "
                          "$T prune full.db --keep-last 3000)")->err,
            "cannot prune 'full.db': ");
    cli_expect(0, "cmp full.db whole.db && ! ls full.db.new");
    cli_run("(ulimit -f 600; $T prune full.db --keep-last 3000)");
    cli_expect(0, "cmp full.db whole.db && rm -f full.db.new");
}

/* ---- runs of a directory ---- */

/* Written to so many days ago, by a process that said goodbye. */
static void stored(const char *dir, const char *name, int days)
{
    char path[2 * RIG_PATH];
    snprintf(path, sizeof path, "%s/%s.db", dir, name);
    cli_expect(0, "mkdir -p %s && cp whole.db %s", dir, path);
    cli_sql(path, "UPDATE stream SET state = 'ended'");
    cli_expect(0, "touch -d '%d days ago' %s", days, path);
}

static void test_prune__runs_by_age(void **state)
{
    (void)state;
    stored("runs", "old", 40);
    stored("runs", "older", 90);
    stored("runs", "new", 1);
    cli_expect(0, "echo text > runs/other.txt");
    cli_has(cli_expect(0, "$T -d runs -o csv prune --keep-days 30 "
                          "--dry-run")->out,
            "runs/older.db,would remove,4000,");
    cli_expect(0, "ls runs/old.db runs/older.db");
    cli_has(cli_expect(0, "$T -d runs -o csv prune --keep-days 30")->out,
            "runs/older.db,removed,4000,");
    cli_expect(0, "test \"$(cd runs; ls *.db *.txt | xargs)\" = "
                  "'new.db other.txt'");
    cli_has(cli_expect(1, "$T -d runs prune --keep-days 30")->err,
            "no run of 'runs' is to go");
    cli_expect(0, "rm -r runs");
}

static void test_prune__runs_by_size(void **state)
{
    sqlite3 *db = NULL;
    (void)state;
    stored("runs", "a", 3);
    stored("runs", "b", 2);
    stored("runs", "c", 1);
    stored("runs", "d", 0);
    /* all take more than three MB, three of them less */
    assert_int_equal(sqlite3_open("runs/a.db", &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN; SELECT * FROM meta", NULL, NULL,
                                  NULL), SQLITE_OK);
    cli_has(cli_expect(0, "$T -d runs -o csv prune --keep-mb 3")->out,
            "runs/a.db,left,4000,");
    sqlite3_close(db);
    cli_expect(0, "ls -l runs/a.db runs/c.db runs/d.db && ! ls runs/b.db");
    cli_expect(0, "rm -r runs");
}

/* ---- a daemon's policy ---- */

static void reread(const char *text)
{
    cli_write_file("keep.conf", text, strlen(text));
    assert_int_equal(kill(cli_rig()->pid, SIGHUP), 0);
}

static int is_there(const char *name)
{
    char path[2 * RIG_PATH];
    snprintf(path, sizeof path, "%s/%s.db", cli_rig()->data, name);
    return access(path, F_OK) == 0;
}

static void test_keep__a_daemon_removes_what_is_over(void **state)
{
    const char *data = cli_rig()->data;
    char text[128], path[2 * RIG_PATH];
    (void)state;
    cli_expect(0, "rm -f $DATA/*.db*; echo 'keep_days = 30' > keep.conf");
    stored(data, "old", 40);
    stored(data, "new", 1);
    stored(data, "alive", 50);
    snprintf(text, sizeof text,
             "UPDATE stream SET state = 'open', boot_id = '', start_time = 0,"
             " pid = %ld", (long)getpid());
    snprintf(path, sizeof path, "%s/alive.db", data);
    cli_sql(path, text);
    cli_expect(0, "touch -d '50 days ago' $DATA/alive.db");
    cli_rig()->args[0] = "--config";
    cli_rig()->args[1] = "keep.conf";
    cli_start_daemon();
    rig_until(!is_there("old"));
    rig_logged(cli_rig(), "why=\"keep_days\"");
    assert_true(is_there("new") && is_there("alive"));
    /* one that is written, and one that is read */
    fill("busy", EPOCH + 2);
    stored(data, "read", 60);
    cli_expect(0, "touch -d '90 days ago' $DATA/busy.db*");
    {
        sqlite3 *db = NULL;
        snprintf(path, sizeof path, "%s/read.db", data);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, "BEGIN; SELECT * FROM meta", NULL,
                                      NULL, NULL), SQLITE_OK);
        stored(data, "a", 20);
        stored(data, "b", 10);
        reread("keep_mb = 1\n"); /* each takes about one */
        rig_until(!is_there("a") && !is_there("b") && !is_there("new"));
        rig_logged(cli_rig(), "why=\"keep_mb\"");
        assert_true(is_there("busy") && is_there("alive") &&
                    is_there("read"));
        sqlite3_close(db);
    }
    reread("keep_days = 5\n");
    rig_until(!is_there("read"));
    assert_true(is_there("busy") && is_there("alive"));
    /* the daemon goes on with what it has open */
    rig_close(&c);
    cli_stop_daemon();
    cli_has(cli_expect(0, "$T -o csv verify $DATA/busy.db")->out, ",good,4000");
    cli_rig()->args[0] = NULL;
}

static void test_prune__words_that_do_not_fit(void **state)
{
    (void)state;
    cli_has(cli_expect(2, "$T prune")->err, "needs what is to be kept");
    cli_has(cli_expect(2, "$T prune a b --keep-last 1")->err, "takes one run");
    cli_has(cli_expect(2, "$T prune a.db --keep-last 1 --keep-days 2")->err,
            "not both");
    cli_has(cli_expect(2, "$T prune --keep-last 1")->err, "name the run");
    cli_has(cli_expect(2, "$T prune a.db --keep-days 1")->err, "name none");
    cli_has(cli_expect(2, "$T -d whole.db prune --keep-days 1")->err,
            "is no directory of runs");
    cli_has(cli_expect(3, "$T prune none.db --keep-last 1")->err,
            "no such file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune__every_and_last),
        cmocka_unit_test(test_prune__what_is_gone_is_told),
        cmocka_unit_test(test_prune__around_what_is_not_finite),
        cmocka_unit_test(test_prune__around_a_finding_of_check),
        cmocka_unit_test(test_prune__extras_and_repair_keep_what_is_told),
        cmocka_unit_test(test_prune__runs_of_before_are_read),
        cmocka_unit_test(test_prune__gaps_are_not_called_pruned),
        cmocka_unit_test(test_prune__a_run_that_somebody_has_open),
        cmocka_unit_test(test_prune__a_run_of_a_living_process),
        cmocka_unit_test(test_prune__beside_a_daemon),
        cmocka_unit_test(test_prune__killed_at_any_moment),
        cmocka_unit_test(test_prune__no_room_for_the_new_file),
        cmocka_unit_test(test_prune__runs_by_age),
        cmocka_unit_test(test_prune__runs_by_size),
        cmocka_unit_test(test_keep__a_daemon_removes_what_is_over),
        cmocka_unit_test(test_prune__words_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, set_up, cli_teardown);
}
