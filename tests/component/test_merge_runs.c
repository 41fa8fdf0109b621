/* tracectl merge: runs of several nodes, whose dictionaries differ and whose
 * clocks are apart. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/cli.h"
#include "tests/lib/rig.h"

#include "tracerd/client.h"

enum { RECORDS = 1000, HOUR_S = 3600 };

static struct rig_entries e;
static struct rig_client c;

/* A rank's records, after words that only this one has. */
static void fill(const char *run, uint32_t rank, uint32_t attempt,
                 const char *job)
{
    struct hello h = rig_hello();
    char text[32];
    h.run = slice_of(run);
    h.job = slice_of(job);
    h.rank = rank;
    h.attempt = attempt;
    h.pid = 0;
    h.real_ns += rank * (uint64_t)HOUR_S * 1000000000;
    assert_true(rig_greet(cli_rig(), &c, 7000 + 10 * attempt + rank, &h));
    rig_fill_dict(&e);
    for (uint32_t i = 0; i < rank; i++) {
        snprintf(text, sizeof text, "only%u.%u", rank, i);
        rig_add_object(&e, RIG_DICT_N + 1 + i, text, 1, text);
    }
    rig_send_dict(&c, &e, 1);
    for (uint64_t seq = 1; seq <= RECORDS; seq += 500) {
        rig_entries_init(&e);
        for (uint64_t i = seq; i < seq + 500; i++) {
            struct wire_record m = rig_record(i);
            m.stats.hash = i * 100 + rank;
            m.when.note = i % 2 ? 0 : RIG_NOTE;
            rig_add_record(&e, i, &m);
        }
        rig_send_data(&c, &e, seq);
    }
    rig_entries_init(&e);
    rig_add_loss(&e, RECORDS + 1, TRD_LOST_RING_FULL, 1 + rank);
    rig_send_data(&c, &e, RECORDS + 1);
    rig_durable(&c, RECORDS + 1);
    rig_close(&c);
}

static int set_up(void **state)
{
    int rc = cli_setup(state);
    fill("n2", 2, 0, "job");
    fill("n0", 0, 0, "job-"); /* a name of its own: another job meanwhile */
    fill("n1", 1, 0, "job--");
    fill("again", 0, 1, "job---");
    fill("other", 5, 0, "different");
    cli_stop_daemon();
    cli_expect(0, "cp $DATA/*.db . && rm -f *-wal *-shm");
    return rc;
}

static void same_job(void)
{
    static const char *const runs[] = {"n0.db", "n1.db", "n2.db", "again.db"};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        cli_sql(runs[i], "UPDATE meta SET value = 'job' WHERE key = 'job'");
}

static void test_merge__all_of_all_runs(void **state)
{
    (void)state;
    same_job();
    cli_has(cli_expect(0, "$T merge n0.db n1.db n2.db again.db --out "
                          "all.db")->out,
            "all.db: 4000 records of 4 runs\n");
    cli_has(cli_expect(0, "$T -o csv verify all.db")->out,
            "all.db,good,4000,\"4000 records, 7 lost\"");
    cli_has(cli_expect(0, "$T -o csv -d all.db sql \"SELECT attempt, rank, "
                          "records, lost FROM v_run ORDER BY 1, 2\"")->out,
            "0,0,1000,1\n0,1,1000,2\n0,2,1000,3\n1,0,1000,1\n");
    for (int i = 0; i < 3; i++) {
        sqlite3 *db = NULL;
        sqlite3_stmt *s = NULL;
        char text[512];
        assert_int_equal(sqlite3_open("all.db", &db), SQLITE_OK);
        snprintf(text, sizeof text, "ATTACH 'n%d.db' AS a", i);
        assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
#define FIGURES                                                               \
    "rank, seq, name, ts_ns, hash, labels, shape, path, max, samples"
        assert_int_equal(
            sqlite3_prepare_v2(db,
                               "SELECT count(*) FROM (SELECT " FIGURES
                               " FROM a.v_record EXCEPT SELECT " FIGURES
                               " FROM main.v_record WHERE attempt = 0)",
                               -1, &s, NULL),
            SQLITE_OK);
        assert_int_equal(sqlite3_step(s), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int64(s, 0), 0);
        sqlite3_finalize(s);
        sqlite3_close(db);
    }
    /* of words each once */
    assert_int_equal(cli_number("all.db", "SELECT count(*) FROM object"), 4);
    assert_int_equal(cli_number("all.db", "SELECT count(*) FROM path"), 1);
    cli_has(cli_expect(0, "$T -d all.db runs")->out, "all ");
}

static void test_merge__the_order_of_the_words_does_not_matter(void **state)
{
    (void)state;
    same_job();
    cli_expect(0, "$T merge n0.db n1.db n2.db --out a.db");
    cli_expect(0, "mkdir -p two && $T merge n2.db n0.db n1.db --out two/a.db");
    cli_expect(0, "cmp a.db two/a.db");
}

static void test_merge__what_is_merged_goes_on_being_merged(void **state)
{
    (void)state;
    same_job();
    cli_expect(0, "$T prune n0.db --keep-every 100");
    cli_expect(0, "$T merge n0.db n2.db --out some.db");
    cli_has(cli_expect(0, "$T merge some.db n1.db --out three.db")->out,
            "three.db: 2010 records of 2 runs\n");
    cli_expect(0, "$T verify three.db");
    assert_int_equal(cli_number("three.db", "SELECT sum(pruned) FROM v_run"),
                     990);
    cli_has(cli_expect(0, "$T -o csv -d three.db runs")->out, ",2010,6,");
    cli_expect(0, "cp $DATA/n0.db .");
}

static void test_merge__the_same_rank_twice(void **state)
{
    (void)state;
    same_job();
    cli_expect(0, "cp n1.db copy.db");
    cli_has(cli_expect(2, "$T merge n0.db n1.db copy.db --out no.db")->err,
            "'copy.db' and 'n1.db' both have attempt 0 rank 1");
    cli_sql("copy.db", "UPDATE stream SET epoch = 99");
    cli_has(cli_expect(2, "$T merge n1.db copy.db --out no.db")->err,
            "both have attempt 0 rank 1");
    cli_has(cli_expect(2, "$T merge n1.db n1.db --out no.db")->err,
            "'n1.db' and 'n1.db' both have");
    cli_expect(0, "! ls no.db*");
}

static void test_merge__runs_of_another_job(void **state)
{
    (void)state;
    same_job();
    cli_has(cli_expect(2, "$T merge n0.db other.db --out mix.db")->err,
            "'n0.db' is of job 'job' and 'other.db' of job 'different'; "
            "--other-jobs merges them all the same");
    cli_expect(0, "! ls mix.db*");
    cli_expect(0, "$T merge n0.db other.db --out mix.db --other-jobs");
    cli_expect(0, "$T verify mix.db");
}

static void job_is(const char *run, const char *job)
{
    char sql[256];
    snprintf(sql, sizeof sql, "UPDATE meta SET value = '%s' WHERE key = 'job'",
             job);
    cli_sql(run, sql);
}

static void test_merge__what_launchers_of_nodes_have_of_their_own(void **state)
{
    (void)state;
    job_is("n0.db", "71/node-0/29500/3141/9001");
    job_is("n1.db", "71/node-0/29500/59/9002");
    cli_expect(0, "$T merge n0.db n1.db --out nodes.db && rm nodes.db");
    job_is("n1.db", "72/node-0/29500/59/9002");
    cli_has(cli_expect(2, "$T merge n0.db n1.db --out nodes.db")->err,
            "of job '71/node-0/29500/3141/9001' and 'n1.db' of job '72/");
    job_is("n0.db", "///3141/9001"); /* no launcher said anything */
    job_is("n1.db", "///59/9002");
    cli_expect(2, "$T merge n0.db n1.db --out nodes.db");
    same_job();
}

static void test_merge__a_damaged_run_gives_none(void **state)
{
    (void)state;
    same_job();
    cli_expect(0, "cp n2.db gap.db");
    cli_sql("gap.db", "DELETE FROM record WHERE seq = 5");
    cli_has(cli_expect(3, "$T merge n0.db gap.db --out bad.db")->err,
            "attempt 0 rank 2: 5 to 5 missing");
    cli_expect(0, "! ls bad.db*");
}

static void test_merge__words_that_do_not_fit(void **state)
{
    (void)state;
    cli_has(cli_expect(2, "$T merge n0.db --out x.db")->err, "two runs");
    cli_has(cli_expect(2, "$T merge n0.db n1.db")->err, "needs --out");
    cli_has(cli_expect(2, "$T merge n0.db n1.db --out x.txt")->err,
            "needs --out FILE.db");
    cli_expect(0, "echo mine > taken.db");
    cli_has(cli_expect(2, "$T merge n0.db n1.db --out taken.db")->err,
            "'taken.db' is there already");
    cli_has(cli_expect(3, "$T merge n0.db taken.db --out x.db")->err,
            "not an SQLite file");
    cli_expect(0, "grep -q mine taken.db && ! ls x.db*");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merge__all_of_all_runs),
        cmocka_unit_test(test_merge__the_order_of_the_words_does_not_matter),
        cmocka_unit_test(test_merge__what_is_merged_goes_on_being_merged),
        cmocka_unit_test(test_merge__the_same_rank_twice),
        cmocka_unit_test(test_merge__runs_of_another_job),
        cmocka_unit_test(
            test_merge__what_launchers_of_nodes_have_of_their_own),
        cmocka_unit_test(
            test_merge__what_launchers_of_nodes_have_of_their_own),
        cmocka_unit_test(test_merge__a_damaged_run_gives_none),
        cmocka_unit_test(test_merge__words_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, set_up, cli_teardown);
}
