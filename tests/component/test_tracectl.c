/* tracectl's words and exit codes, its json and csv, live and from files. */
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/cli.h"
#include "tests/lib/rig.h"

#include "tracerd/client.h"

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
    cli_has(cli_expect(2, "$T export --format xlsx")->err, "seed, csv");
    cli_has(cli_expect(2, "$T export")->err, "--format");
    cli_has(cli_expect(2, "$T import")->err, "needs a FILE");
    cli_has(cli_expect(2, "$T --store clickhouse://x runs")->err,
            "it names no database");
    cli_has(cli_expect(2, "$T --store clickhouse://u:p@x/d runs")->err,
            "a password does not belong there");
    cli_has(cli_expect(2, "$T --store clickhouse://x/d -d y runs")->err,
            "leave -s and -d out");
    cli_has(cli_expect(2, "$T -s x runs -d y")->err, "give one of them");
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
    cli_has(cli_expect(0, "$T help names")->out, "grad-PARAMETER-ITERATION");
    cli_has(cli_expect(0, "$T help sql")->out, "v_histogram");
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
    cli_has(c->err, "has 132 bytes, the limit is 107");
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

/* The same words from the daemon, a file and a directory. */
static void missing(const char *question, const char *words)
{
    static const char *const sources[] = {"-r there", "-r $DATA/there.db",
                                          "-d $DATA -r there"};
    for (int i = 0; i < 3; i++) {
        const struct cli *c =
            cli_expect(1, "$T %s query %s", sources[i], question);
        assert_string_equal(c->err, words);
        assert_string_equal(c->out, "");
    }
}

static void test_cli__what_is_missing_and_what_there_is(void **state)
{
    (void)state;
    static const char text[] =
        "101500000001,1,forward-Log-1-1-output,0,[0]-\n"
        "101500000002,2,forward-Log-1-2-output,0,[0]-\n"
        "101500000003,3,forward-Sum-1-1-output,0,[0]-\n"
        "101500000003,4,forward-Sum-2-5-output,0,[0]-\n"
        "101500000004,5,grad-layer1.weight,0,[0]-\n";
    cli_write_file("there.txt", text, sizeof text - 1);
    for (int rank = 0; rank < 2; rank++)
        cli_expect(0, "$T import there.txt --run there --rank %d", rank);
    missing("forward-Log-2", "tracectl: run 'there' has no 'Log-2': 'Log' has "
                             "instance 1\n");
    missing("forward-Sum-7-1-output",
            "tracectl: run 'there' has no 'Sum-7': 'Sum' has instances 1 to "
            "2\n");
    missing("forward-Lag-1-1",
            "tracectl: run 'there' has no object, module or path 'Lag'; "
            "nearest: 'Log'\n");
    missing("user-layer1.wait", "tracectl: run 'there' has no parameter or "
                                "user value 'layer1.wait'; nearest: "
                                "'layer1.weight'\n");
    missing("backward-Log-1",
            "tracectl: pass backward: 'Log-1' of run 'there' has forward\n");
    missing("forward-Log-1-9", "tracectl: step 9: 'forward-Log-1' of run "
                               "'there' has steps 1 to 2\n");
    missing("'forward-Sum-*-7'", "tracectl: step 7: 'forward-Sum-*' of run "
                                 "'there' has steps 1 and 5\n");
    missing("forward-Log-1-1-input", "tracectl: io input: 'forward-Log-1-1' "
                                     "of run 'there' has output\n");
    missing("forward-Log-1-1-output.3",
            "tracectl: position 3: 'forward-Log-1-1-output' of run 'there' "
            "has position 0\n");
    missing("forward-Log-1 --rank 2",
            "tracectl: rank 2: run 'there' has ranks 0 to 1\n");
    missing("forward-Log-1 --attempt 1",
            "tracectl: attempt 1: run 'there' has attempt 0\n");
    missing("forward-Log-1-2 --rank 1 --iteration 9",
            "tracectl: iteration 9: 'forward-Log-1-2' of run 'there', rank "
            "1, has iteration 2\n");
    missing("forward --microbatch 4",
            "tracectl: microbatch 4: 'forward' of run 'there' has "
            "microbatch 1\n");
    missing("'*Log*9*'", "tracectl: run 'there' has no record of '*Log*9*'\n");
    for (int i = 0; i < 2; i++)
        assert_string_equal(
            cli_expect(1, "$T %s -r absent query forward-Log-1",
                       i ? "-d $DATA" : "")->err,
            "tracectl: no run 'absent'; 'tracectl runs' lists what there "
            "is\n");
}

/* A process said hello and nothing more. */
static void test_cli__a_run_without_records(void **state)
{
    struct hello h = rig_hello();
    struct rig_client c;
    (void)state;
    h.run = slice_of("hollow");
    assert_true(rig_greet(cli_rig(), &c, 4713, &h));
    for (int i = 0; i < 2; i++) {
        const char *source = i ? "-d $DATA" : "";
        assert_string_equal(
            cli_expect(1, "$T %s -r hollow query forward-Log-1", source)->err,
            "tracectl: run 'hollow' has no records\n");
        assert_string_equal(
            cli_expect(1, "$T %s -r hollow export --format csv", source)->err,
            "tracectl: run 'hollow' has no records\n");
        assert_string_equal(
            cli_expect(1, "$T %s -r hollow sql 'SELECT name, step FROM "
                          "v_record'", source)->out,
            "name  step\n");
    }
    rig_close(&c);
}

static void test_cli__status_shows_clients(void **state)
{
    struct hello h = rig_hello();
    struct rig_entries e;
    struct rig_client c;
    (void)state;
    h.run = slice_of("watched");
    h.rank = 3;
    assert_true(rig_greet(cli_rig(), &c, 4714, &h));
    rig_fill_dict(&e);
    rig_send_dict(&c, &e, 1);
    rig_fill_data(&e, 1, 20);
    rig_send_data(&c, &e, 1);
    rig_durable(&c, 20);
    const struct cli *s = cli_expect(
        0, "$T status > status.txt; grep -A1 '^run ' status.txt | tr -s ' '; "
           "grep -E '^started +[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}$' "
           "status.txt");
    cli_has(s->out, "run attempt rank pid state lag received committed "
                    "durable lost kept journal\nwatched 0 3 ");
    cli_has(s->out, " connected 0 20 20 20");
    s = cli_expect(0, "$T -o json status");
    cli_has(s->out, "{\"key\":\"stream.1.run\",\"value\":\"watched\"}\n");
    cli_has(s->out, "{\"key\":\"stream.1.rank\",\"value\":3}\n");
    cli_has(s->out, "{\"key\":\"stream.1.committed\",\"value\":20}\n");
    cli_has(s->out, "{\"key\":\"stream.1.lag\",\"value\":0}\n");
    cli_has(s->out, "{\"key\":\"clients\",\"value\":1}\n");
    cli_has(s->out, "{\"key\":\"lost\",\"value\":0}\n");
    cli_has(s->out, "{\"key\":\"started_ns\",\"value\":1");
    rig_close(&c);
}

static void test_cli__text_of_odd_numbers(void **state)
{
    struct trd_client_options o;
    struct trd_client *client;
    const struct trd_site site = {TRD_USER, TRD_IO_NONE, 0, 0, "", "", "odd"};
    const int64_t shape[] = {3};
    const int64_t whole[] = {INT64_MIN, 9007199254740993, 12345678};
    const float some[] = {1.5f, (float)(0.0 / 0.0), -2.5f};
    struct trd_when when = {1, 1, 1, 0, 0};
    uint32_t id;
    (void)state;
    trd_client_options_init(&o);
    o.dir = getenv("DIR");
    o.run = "odd";
    assert_int_equal(trd_client_open(&o, &client), 0);
    assert_int_equal(trd_site(client, &site, &id), 0);
    struct trd_tensor t = {whole, TRD_I64, 1, shape, NULL};
    assert_int_equal(trd_submit_cpu(client, id, &when, &t, 16), 0);
    when.step = 2;
    t.data = some;
    t.dtype = TRD_F32;
    assert_int_equal(trd_submit_cpu(client, id, &when, &t, 16), 0);
    assert_int_equal(trd_flush(client, 20000), 0);
    trd_client_close(client);
    const struct cli *c = cli_expect(0, "$T -r odd query user-odd-1");
    cli_has(c->out, "-9223372036854775808 9007199254740993      12345678\n");
    cli_has_not(c->out, "finite");
    c = cli_expect(0, "$T -r odd query user-odd-2 | tr -s ' '");
    cli_has(c->out, " max nan min nan mean nan std nan l2 nan \n over finite "
                    "elements:\n max 1.5 min -2.5 mean -0.5 std 2 ");
}

/* Two records: every second of six as sample, exponents counted; then one of
 * defaults beside it. */
static void record_extras(const char *run)
{
    struct trd_client_options o;
    struct trd_client *client;
    const struct trd_site site = {TRD_USER, TRD_IO_NONE, 0, 0, "", "", "x"};
    const int64_t shape[] = {6};
    const float some[] = {0, 0.5f, 1, 1.5f, -12, (float)INFINITY};
    const struct trd_tensor t = {some, TRD_F32, 1, shape, NULL};
    struct trd_when when = {1, 1, 1, 0, 0};
    uint32_t id;
    trd_client_options_init(&o);
    o.dir = getenv("DIR");
    o.run = run;
    o.job = "extras";
    o.sampling = TRD_EVERY;
    o.sampling_arg = 2;
    o.histogram = TRD_HISTOGRAM_EXACT;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(trd_client_open(&o, &client), 0);
        assert_int_equal(trd_site(client, &site, &id), 0);
        assert_int_equal(trd_submit_cpu(client, id, &when, &t, 16), 0);
        assert_int_equal(trd_flush(client, 20000), 0);
        trd_client_close(client);
        o.sampling = TRD_EQUIDISTANT;
        o.histogram = TRD_HISTOGRAM_NONE;
        o.rank = 1;
    }
}

static void test_cli__rules_and_histograms(void **state)
{
    (void)state;
    record_extras("extras");
    const struct cli *c =
        cli_expect(0, "$T -r extras query user-x-1 --rank 0 | tail -n 3");
    assert_string_equal(
        c->out, "    samples: every 2\n"
                "                0             1           -12\n"
                "    exponents (exact): -1 to 3 [=@  =]  zero or subnormal 1"
                "  inf or nan 1\n");
    c = cli_expect(0, "$T -r extras -o json query user-x-1 --rank 0");
    cli_has(c->out, "\"samples\":[0.0,1.0,-12.0],\"name\":");
    cli_has(c->out, ",\"sampling\":\"every 2\",\"histogram\":{\"kind\":"
                    "\"exact\",\"first_exponent\":-127,\"counts\":[1,0,");
    cli_has(c->out, ",0,1,2,0,0,1,0,0,");
    cli_has(c->out, ",0,1]}}\n");
    c = cli_expect(0, "$T -r extras -o csv query user-x-1");
    cli_has(c->out, ",every 2,exact -127 1 0 0 ");
    cli_has(c->out, " 0 1 2 0 0 1 0 0 ");
    cli_has(c->out, ",,\n"); /* rank 1 */
    /* where both go without saying, they do */
    c = cli_expect(0, "$T -r extras query user-x-1 --rank 1; "
                      "$T -r extras -o json query user-x-1 --rank 1");
    cli_has_not(c->out, "every");
    cli_has_not(c->out, "sampling");
    cli_has_not(c->out, "histogram");
    cli_has_not(c->out, "exponents");
    c = cli_expect(0, "$T -r extras -o csv sql \"SELECT bin, exponent, count, "
                      "kind FROM v_record JOIN v_histogram USING(stream, seq) "
                      "WHERE name = 'user-x-1' AND count > 0\"");
    assert_string_equal(c->out, "bin,exponent,count,kind\n0,-127,1,exact\n"
                                "126,-1,1,exact\n127,0,2,exact\n"
                                "130,3,1,exact\n255,128,1,exact\n");
    c = cli_expect(0, "$T -r extras -o csv sql 'SELECT sample, element FROM "
                      "v_sample ORDER BY stream, sample'");
    assert_string_equal(c->out, "sample,element\n0,0\n1,2\n2,4\n0,0\n1,1\n"
                                "2,2\n3,3\n4,4\n5,5\n");
    /* the file alone says the same */
    for (int form = 0; form < 3; form++) {
        static const char *const forms[] = {"text", "json", "csv"};
        cli_expect(0, "$T -r extras -o %s query user > live; $T -d $DATA -r "
                      "extras -o %s query user | cmp - live",
                   forms[form], forms[form]);
    }
}

static const char fields[] =
    "run,attempt,rank,seq,ts_ns,pass,class,instance,object,module,step,"
    "iteration,microbatch,recompute,io,position,path,dtype,shape,n,max,min,"
    "mean,std,l2,absmax,absmin,nan,pinf,ninf,zero,subnormal,hash,samples,"
    "name,labels,finite_max,finite_min,finite_mean,finite_std,finite_l2,"
    "sampling,histogram\n";

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
            "forward-Linear-1-1-input,text,1.0,1.0,1.0,0.0,,,\n");
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

/* A run is called what its file is called. */
static void test_cli__newest_run_may_have_been_renamed(void **state)
{
    (void)state;
    cli_expect(0, "$T import $GOLDEN/seed-small.log --run older");
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run newer");
    rig_stop(cli_rig());
    cli_expect(0, "mv $DATA/newer.db $DATA/renamed.db");
    rig_start(cli_rig());
    cli_expect(0, "$T -o json query 'forward-Linear-1-1'");
    cli_expect(0, "$T sql 'SELECT 1'");
    cli_expect(0, "$T export --format json");
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
            "losses,state,block_ms,spool_bytes,pruned\n");
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run aged --date "
                  "2020-03-01; sleep 0.01; $T import "
                  "$CASES/H53_midnight.txt --run later --date 2030-03-01; "
                  "sleep 0.01; $T import $CASES/H53_midnight.txt --run "
                  "between --date 2021-03-01");
    for (int i = 0; i < 2; i++) {
        c = cli_expect(0, "$T %s runs | awk '$1 ~ "
                          "/name|aged|later|between/ {print $1, $NF}'",
                       i ? "-d $DATA" : "");
        /* by start; the default is the one stored last */
        assert_string_equal(c->out, "name default\naged ended\n"
                                    "between *\nlater ended\n");
    }
    c = cli_expect(0, "$T -o csv runs | cut -d, -f1 | tail -1");
    assert_string_equal(c->out, "later\n");
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
    /* a file that fails midway is not left behind, nor the old one lost */
    cli_expect(2, "mkdir -p whole; echo precious > whole/log; $T -d "
                  "harmed.db export --format csv --out whole/log");
    assert_string_equal(cli_expect(0, "cat whole/log; ls whole")->out,
                        "precious\nlog\n");
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

static void test_cli__a_name_that_was_used_again(void **state)
{
    static const char *const sources[] = {"", "-d $DATA"};
    static const char query[] = "query forward-Linear-1-1";
    (void)state;
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run again");
    for (int i = 0; i < 2; i++)
        assert_string_equal(
            cli_expect(0, "$T %s -r again %s", sources[i], query)->err, "");
    cli_expect(0, "sleep 0.1; for i in 2 3 10; do for f in "
                  "$DATA/again.db*; do cp $f $DATA/again-$i.${f##*/again.}; "
                  "done; done");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(
            cli_expect(0, "$T %s -r again %s", sources[i], query)->err,
            "tracectl: 'again' is the first of 3 runs of this name; the last "
            "is -r again-3\n");
        assert_string_equal(
            cli_expect(0, "$T %s -r again-2 %s", sources[i], query)->err, "");
    }
    cli_expect(0, "rm $DATA/again*");
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
        cmocka_unit_test(test_cli__what_is_missing_and_what_there_is),
        cmocka_unit_test(test_cli__a_run_without_records),
        cmocka_unit_test(test_cli__status_shows_clients),
        cmocka_unit_test(test_cli__text_of_odd_numbers),
        cmocka_unit_test(test_cli__rules_and_histograms),
        cmocka_unit_test(test_cli__csv_has_the_promised_fields),
        cmocka_unit_test(test_cli__json_has_the_promised_fields),
        cmocka_unit_test(test_cli__live_and_file_answer_alike),
        cmocka_unit_test(test_cli__sql_only_reads),
        cmocka_unit_test(test_cli__many_rows),
        cmocka_unit_test(test_cli__runs_and_status),
        cmocka_unit_test(test_cli__newest_run_may_have_been_renamed),
        cmocka_unit_test(test_cli__damaged_run),
        cmocka_unit_test(test_cli__a_full_disk_is_told),
        cmocka_unit_test(test_cli__a_name_that_was_used_again),
        cmocka_unit_test(test_cli__daemon_gone_between),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
