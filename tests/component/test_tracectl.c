/* tracectl's words and exit codes, its json and csv, live and from files. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/cli.h"

static void test_cli__usage(void **state)
{
    (void)state;
    cli_has(cli_expect(2, "$T")->err, "tracectl: no command");
    cli_has(cli_expect(2, "$T dance")->err, "tracectl: no command 'dance'");
    cli_has(cli_expect(2, "$T --loud runs")->err, "no option '--loud'");
    cli_has(cli_expect(2, "$T query --rank x forward-A-1")->err,
            "--rank needs a number, not 'x'");
    cli_has(cli_expect(2, "$T query --rank")->err, "--rank needs a value");
    cli_has(cli_expect(2, "$T -o xml runs")->err, "no format 'xml'");
    cli_has(cli_expect(2, "$T query")->err, "needs a NAME");
    cli_has(cli_expect(2, "$T query forward-A-1 --as thing")->err,
            "object or module");
    cli_has(cli_expect(2, "$T export --format parquet")->err, "seed, csv");
    cli_has(cli_expect(2, "$T export")->err, "--format");
    cli_has(cli_expect(2, "$T import")->err, "needs a FILE");
    cli_has(cli_expect(2, "$T --store clickhouse://x runs")->err, "--store");
    assert_string_equal(cli_expect(2, "$T")->out, "");
}

static void test_cli__help(void **state)
{
    (void)state;
    const struct cli *c = cli_expect(0, "$T help");
    cli_has(c->out, "usage: tracectl");
    cli_has(c->out, "query");
    assert_string_equal(c->err, "");
    cli_has(cli_expect(0, "$T --help")->out, "usage: tracectl");
    cli_has(cli_expect(0, "$T help import")->out, "YYYY-MM-DD");
    cli_has(cli_expect(0, "$T export --help")->out, "--format");
    cli_has(cli_expect(2, "$T help dance")->err, "no command");
    cli_has(cli_expect(0, "$T --version")->out, "tracectl ");
}

static void test_cli__malformed_names(void **state)
{
    (void)state;
    cli_has(cli_expect(2, "$T query sideways-A-1")->err,
            "tracectl: 'sideways-A-1' is not a name");
    cli_expect(2, "$T query ''");
    cli_expect(2, "$T query forward-");
    cli_expect(2, "$T -d nowhere.db query sideways-A-1");
}

static void test_cli__files_that_are_no_runs(void **state)
{
    (void)state;
    assert_string_equal(cli_expect(3, "$T -d none.db query forward-A-1")->err,
                        "tracectl: cannot open 'none.db': no such file\n");
    cli_write_file("text.db", "not a database", 14);
    cli_has(cli_expect(3, "$T -d text.db runs")->err,
            "'text.db' is not a run of tracerd: not an SQLite file");
    cli_write_file("empty.db", "", 0);
    cli_has(cli_expect(3, "$T -r empty.db query forward-A-1")->err,
            "not an SQLite file");
    sqlite3 *db;
    assert_int_equal(sqlite3_open("other.db", &db), SQLITE_OK);
    sqlite3_exec(db, "CREATE TABLE t(x)", NULL, NULL, NULL);
    sqlite3_close(db);
    cli_has(cli_expect(3, "$T -d other.db runs")->err,
            "an SQLite file of another program");
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run version");
    cli_expect(0, "sleep 0.1; cp $DATA/version.db newer.db");
    assert_int_equal(sqlite3_open("newer.db", &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "PRAGMA application_id = 1414677316;"
                                  "PRAGMA user_version = 2",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    cli_has(cli_expect(3, "$T -d newer.db runs")->err, "use a newer one");
    mkdir("folder.db", 0700);
    cli_has(cli_expect(3, "$T query forward-A-1 -r nodir/x.db")->err,
            "no such file");
}

static void test_cli__no_daemon(void **state)
{
    (void)state;
    const struct cli *c = cli_expect(3, "$T -s $PWD/nowhere runs");
    cli_has(c->err, "tracectl: no daemon answers in '");
    cli_has(c->err, "/nowhere': no such directory; start one with 'tracerd "
                    "--dir ");
    mkdir("open", 0755);
    chmod("open", 0755);
    cli_has(cli_expect(3, "$T -s open runs")->err, "not private");
    mkdir("private", 0700);
    cli_has(cli_expect(3, "$T -s private runs")->err, "there is no socket");
    cli_has(cli_expect(3, "$T -s private import $CASES/H53_midnight.txt "
                          "--run x")->err,
            "there is no socket");
    cli_write_file("private/query.sock", "", 0);
    cli_has(cli_expect(3, "$T -s private runs")->err, "is not a socket");
    unlink("private/query.sock");
    struct sockaddr_un a = {.sun_family = AF_UNIX,
                            .sun_path = "private/query.sock"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    chmod("private/query.sock", 0600);
    cli_has(cli_expect(3, "$T -s private runs")->err, "nobody listens");
    close(fd);
    cli_has(cli_expect(3, "cp $T private/f; $T -s private/f runs")->err,
            "not a directory");
}

static void test_cli__socket_path_too_long(void **state)
{
    (void)state;
    char dir[160];
    memset(dir, 'd', sizeof dir);
    dir[120] = '\0';
    mkdir(dir, 0700);
    const struct cli *c = cli_expect(3, "$T -s %s runs", dir);
    cli_has(c->err, "has 131 bytes, the limit is 107");
    cli_expect(3, "$T -s %s import $CASES/H53_midnight.txt --run x", dir);
}

static void test_cli__nothing_found(void **state)
{
    (void)state;
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run few");
    cli_expect(1, "$T -r few query forward-Linear-9-1");
    cli_expect(1, "$T -r few query forward-Conv-1-1");
    cli_expect(1, "$T -r few query forward-Linear-1-1 --rank 3");
    cli_expect(1, "$T -r absent query forward-Linear-1-1");
    cli_expect(1, "$T -d $DATA -r few query forward-Linear-9-1");
    cli_expect(1, "$T -d $DATA -r few query forward-Conv-1-1");
    cli_expect(1, "$T -d $DATA -r absent query forward-Linear-1-1");
    cli_expect(1, "$T -r few sql 'SELECT 1 WHERE 0'");
    cli_expect(1, "mkdir bare; $T -d bare runs");
    cli_expect(1, "$T -d bare query forward-A-1");
    assert_string_equal(
        cli_run("$T -r few query forward-Linear-9-1")->out, "");
}

static const char fields[] =
    "run,attempt,rank,seq,ts_ns,pass,class,instance,object,module,step,"
    "iteration,microbatch,recompute,io,position,path,dtype,shape,n,max,min,"
    "mean,std,l2,absmax,absmin,nan,pinf,ninf,zero,subnormal,hash,samples,"
    "name,labels,finite_max,finite_min,finite_mean,finite_std,finite_l2\n";

static void test_cli__csv_has_the_promised_fields(void **state)
{
    (void)state;
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run fields "
                  "--date 2026-03-01 --rank 2 --attempt 1");
    const struct cli *c =
        cli_expect(0, "$T -r fields -o csv query forward-Linear-1-1-input");
    assert_memory_equal(c->out, fields, sizeof fields - 1);
    cli_has(c->out,
            "fields,1,2,1,1772405999999998000,forward,Linear,1,Linear-1,,1,1,"
            "1,0,input,0,0,text,2,2,1.0,1.0,1.0,0.0,,,,,,,,,,1.0 1.0,"
            "forward-Linear-1-1-input,text,1.0,1.0,1.0,0.0,\n");
    assert_int_equal(cli_lines(c->out), 2);
}

static void test_cli__json_has_the_promised_fields(void **state)
{
    (void)state;
    char expected[2048] = "", *at, *name;
    cli_expect(0, "$T import $CASES/H55_nan_inf_tokens.txt --run jf");
    const struct cli *c =
        cli_expect(0, "$T -r jf -o json query forward-Linear-3-1");
    assert_int_equal(cli_lines(c->out), 1);
    cli_has_not(c->out, "finite_max"); /* where all is finite */
    /* the names in order */
    char *list = strdup(fields);
    const char *text = c->out;
    for (name = strtok_r(list, ",", &at);
         name && strcmp(name, "finite_max") != 0;
         name = strtok_r(NULL, ",", &at)) {
        snprintf(expected, sizeof expected, "%c\"%s\":",
                 strcmp(name, "run") == 0 ? '{' : ',', name);
        text = strstr(text, expected);
        if (!text)
            fail_msg("%s is not in its place: %s", name, c->out);
    }
    free(list);
    c = cli_expect(0, "$T -r jf -o json query forward-Linear-1-1");
    cli_has(c->out, "\"max\":\"nan\",\"min\":\"nan\",\"mean\":\"nan\"");
    cli_has(c->out, "\"samples\":[1.0,\"nan\",\"-inf\",\"inf\"]");
    cli_has(c->out, "\"l2\":null");
    cli_has(c->out, "\"labels\":[\"text\"],\"finite_max\":null,");
}

static void test_cli__live_and_file_answer_alike(void **state)
{
    (void)state;
    static const char *const questions[] = {
        "query forward-Linear-1-1", "query 'backward-*-1'",
        "query grad", "query 'forward-CustomLinear-?-2-input'",
        "query forward-MyModel-1 --limit 2",
        "query forward-CustomLinear --iteration 2",
        "export --format json", "export --format seed",
        "sql 'SELECT * FROM v_record'", "sql 'SELECT name FROM v_run'"};
    cli_expect(0, "$T import $GOLDEN/seed-small.log --run alike");
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++)
        for (int form = 0; form < 3; form++) {
            static const char *const forms[] = {"text", "json", "csv"};
            const struct cli *c =
                cli_run("$T -r alike -o %s %s", forms[form], questions[i]);
            char *live = strdup(c->out);
            int code = c->code;
            c = cli_run("$T -d $DATA -r alike -o %s %s", forms[form],
                        questions[i]);
            assert_string_equal(c->out, live);
            assert_int_equal(c->code, code);
            c = cli_run("$T -d $DATA/alike.db -o %s %s", forms[form],
                        questions[i]);
            assert_string_equal(c->out, live);
            c = cli_run("$T -r $DATA/alike.db %s -o %s", questions[i],
                        forms[form]);
            assert_string_equal(c->out, live);
            free(live);
        }
}

static void test_cli__sql_only_reads(void **state)
{
    (void)state;
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run reading");
    static const char *const wrong[] = {
        "DELETE FROM record",
        "INSERT INTO meta VALUES(1,2)",
        "DROP TABLE record",
        "ATTACH 'x.db' AS x",
        "SELECT load_extension('x')",
        "PRAGMA journal_mode=DELETE",
        "SELECT 1; SELECT 2",
        "VACUUM",
        "SELECT nothing",
        "CREATE TEMP TABLE x(a)",
        "",
        "-- nothing"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct cli *c =
            cli_expect(2, "$T -r reading sql \"%s\"", wrong[i]);
        assert_string_equal(c->out, "");
        assert_int_equal(cli_lines(c->err), 1);
        cli_expect(2, "$T -d $DATA -r reading sql \"%s\"", wrong[i]);
    }
    assert_int_equal(access("x.db", F_OK), -1);
    const struct cli *c = cli_expect(
        0, "$T -d $DATA -r reading -o csv sql "
           "\"SELECT 1 AS a, 2.5 AS b, 'x,y' AS c, NULL AS d, x'00ff' AS e; "
           "-- end\"");
    assert_string_equal(c->out, "a,b,c,d,e\n1,2.5,\"x,y\",,00ff\n");
    c = cli_expect(0, "$T -r reading -o json sql "
                      "\"SELECT 1 AS a, 9e999 AS b, 'x\\\"' AS c, NULL AS "
                      "d, x'00ff' AS e\"");
    assert_string_equal(
        c->out,
        "{\"a\":1,\"b\":\"inf\",\"c\":\"x\\\"\",\"d\":null,\"e\":\"00ff\"}\n");
}

/* More than a page of rows. */
static void test_cli__many_rows(void **state)
{
    (void)state;
    static const char sql[] =
        "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n "
        "WHERE i < 100000) SELECT i, hex(zeroblob(10)) AS t FROM n";
    static const char *const sources[] = {"", "-d $DATA"};
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run many");
    for (int i = 0; i < 2; i++)
        cli_expect(0,
                   "$T %s -r many -o csv sql \"%s\" > rows && "
                   "test $(wc -l < rows) = 100001 && "
                   "test $(tail -1 rows | cut -d, -f1) = 100000",
                   sources[i], sql);
}

static void test_cli__runs_and_status(void **state)
{
    (void)state;
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run listed "
                  "--date 2026-03-01");
    const struct cli *c = cli_expect(0, "$T runs");
    cli_has(c->out, "name");
    cli_has(c->out, "listed");
    cli_has(c->out, "2026-03-01 23:59:59");
    cli_has(cli_expect(0, "$T -d $DATA -o json runs")->out,
            "{\"name\":\"listed\",\"started_ns\":1772405999999998000,");
    cli_has(cli_expect(0, "$T -o csv runs")->out,
            "name,started_ns,ended_ns,attempts,ranks,iterations,records,"
            "losses,state\n");
    cli_has(cli_expect(0, "$T status")->out, "key");
    cli_has(cli_expect(0, "$T -d $DATA status")->out, "run.listed.records");
}

static void test_cli__damaged_run(void **state)
{
    (void)state;
    sqlite3 *db;
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run harmed");
    cli_expect(0, "$T -d $DATA -r harmed sql 'SELECT 1'; "
                  "cat $DATA/harmed.db > harmed.db; "
                  "test ! -s $DATA/harmed.db-wal || "
                  "cp $DATA/harmed.db-wal harmed.db-wal");
    assert_int_equal(sqlite3_open("harmed.db", &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db, "UPDATE record SET samples = x'00'", 0, 0, 0),
        SQLITE_OK);
    sqlite3_close(db);
    cli_has(cli_expect(2, "$T -d harmed.db query forward-Linear-1")->err,
            "damaged");
    cli_expect(2, "$T -d harmed.db export --format seed");
}

static void test_cli__a_full_disk_is_told(void **state)
{
    (void)state;
    if (access("/dev/full", W_OK) != 0)
        skip();
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run full");
    cli_has(cli_expect(3, "$T -r full query forward-Linear-1 > /dev/full")
                ->err,
            "cannot write: no space left on device");
    cli_expect(3, "$T -r full export --format seed --out /dev/full");
    cli_expect(3, "$T -r full export --format seed --out no/such/file");
    cli_expect(3, "$T help > /dev/full");
}

static void test_cli__daemon_gone_between(void **state)
{
    (void)state;
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run between");
    cli_stop_daemon();
    const struct cli *c = cli_expect(3, "$T runs");
    cli_has(c->err, "no daemon answers");
    cli_expect(0, "$T -d $DATA -r between query forward-Linear-1-1");
    cli_start_daemon();
    cli_expect(0, "$T -r between query forward-Linear-1-1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cli__usage),
        cmocka_unit_test(test_cli__help),
        cmocka_unit_test(test_cli__malformed_names),
        cmocka_unit_test(test_cli__files_that_are_no_runs),
        cmocka_unit_test(test_cli__no_daemon),
        cmocka_unit_test(test_cli__socket_path_too_long),
        cmocka_unit_test(test_cli__nothing_found),
        cmocka_unit_test(test_cli__csv_has_the_promised_fields),
        cmocka_unit_test(test_cli__json_has_the_promised_fields),
        cmocka_unit_test(test_cli__live_and_file_answer_alike),
        cmocka_unit_test(test_cli__sql_only_reads),
        cmocka_unit_test(test_cli__many_rows),
        cmocka_unit_test(test_cli__runs_and_status),
        cmocka_unit_test(test_cli__damaged_run),
        cmocka_unit_test(test_cli__a_full_disk_is_told),
        cmocka_unit_test(test_cli__daemon_gone_between),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
