/* Importing text logs and journals through the real daemon: the cases of
 * torn, glued, foreign and repeated lines, and that nothing comes twice. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cli.h"
#include "tests/lib/rig.h"

#include "tracerd/client.h"

/* One field of the records of a run, a line each, in their order. */
static const struct cli *column(const char *run, const char *sql)
{
    return cli_expect(0,
                      "$T -r %s -o csv sql 'SELECT %s FROM v_record ORDER BY "
                      "attempt, rank, stream, seq' | tail -n +2",
                      run, sql);
}

static void test_import__small_log(void **state)
{
    (void)state;
    const struct cli *c = cli_expect(
        0, "$T -o json import $GOLDEN/seed-small.log --run small --date "
           "2026-03-01");
    cli_has(c->out, "\"run\":\"small\",\"attempt\":0,\"rank\":0,\"records\":"
                    "24,\"new\":24,\"bad\":0}");
    assert_string_equal(c->err, "");
    c = cli_expect(0, "$T -r small -o json query "
                      "backward-CustomLinear-2-1-output");
    cli_has(c->out, "\"labels\":[\"text\",\"repeated\"]");
    cli_has(c->out, "\"dtype\":\"text\",\"shape\":[16,12,512],\"n\":98304,"
                    "\"max\":0.04025,\"min\":-0.04651");
    c = cli_expect(0, "$T -r small -o json query grad-layer1.weight-2");
    cli_has(c->out, "\"step\":2,\"iteration\":2,");
    cli_has(c->out, "\"max\":-0.00435,");
    assert_int_equal(cli_lines(c->out), 1);
}

static void test_import__twice_adds_nothing(void **state)
{
    (void)state;
    cli_expect(0, "$T import $GOLDEN/seed-small.log --run twice");
    const struct cli *c =
        cli_expect(0, "$T -o json import $GOLDEN/seed-small.log --run twice");
    cli_has(c->out, "\"run\":\"twice\",\"attempt\":0,\"rank\":0,\"records\":"
                    "24,\"new\":0,");
    cli_expect(0, "cp $GOLDEN/seed-small.log elsewhere.log; touch -d "
                  "2020-01-01 elsewhere.log; $T import elsewhere.log --run "
                  "twice");
    c = cli_expect(0, "$T -r twice -o csv sql 'SELECT count(*), "
                      "count(DISTINCT stream) FROM v_record' | tail -1");
    assert_string_equal(c->out, "24,1\n");
}

static void test_import__the_daemon_starts_anew_between(void **state)
{
    (void)state;
    cli_expect(0, "$T import $GOLDEN/seed-small.log --run anew");
    cli_stop_daemon();
    cli_start_daemon();
    cli_has(cli_expect(0, "$T -o json import $GOLDEN/seed-small.log --run "
                          "anew")->out,
            "\"new\":0");
}

/* H52 */
static void test_import__interleaved_lines(void **state)
{
    (void)state;
    const struct cli *c = cli_expect(
        2, "$T -o json import $CASES/H52_interleaved.txt --run glued");
    cli_has(c->out, "\"records\":2,\"new\":2,\"bad\":3}");
    cli_has(c->err, "H52_interleaved.txt:2:");
    cli_has(c->err, "H52_interleaved.txt:4:");
    cli_has(c->err, "H52_interleaved.txt:5:1: ");
    assert_int_equal(cli_lines(c->err), 3);
    assert_string_equal(column("glued", "name, max")->out,
                        "forward-Linear-1-1-output,0.0\n"
                        "forward-Linear-1-3-output,12.0\n");
}

/* H53 */
static void test_import__midnight(void **state)
{
    (void)state;
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run night --date "
                  "2026-03-01");
    const struct cli *c = column("night", "seq, ts_ns, name");
    assert_string_equal(
        c->out,
        "1,1772405999999998000,forward-Linear-1-1-input\n"
        "2,1772405999999999000,forward-Linear-1-1-output\n"
        "3,1772406000000003000,forward-Linear-1-2-input\n"
        "4,1772406000000450000,forward-Linear-1-2-output\n");
    /* the file's time of change is the day of the last line */
    cli_expect(0, "cp $CASES/H53_midnight.txt m.txt; touch -d '2026-03-02 "
                  "00:00:01' m.txt; $T import m.txt --run night2");
    cli_has(column("night2", "ts_ns")->out, "1772405999999998000\n");
    cli_expect(0, "touch -d '2026-03-02 23:59:59' m.txt; $T import m.txt "
                  "--run night3");
    cli_has(column("night3", "ts_ns")->out, "1772405999999998000\n");
    /* two midnights, and small steps back that are none */
    cli_expect(0,
               "for t in 235959 000001 000000 235958 120000 235959 000000; "
               "do echo \"${t}000000,1,forward-A-1-1-output,0,[0]-\"; done "
               "> d.txt; $T import d.txt --run days --date 2026-07-01");
    assert_string_equal(column("days", "(ts_ns - 1782856800000000000) / "
                                       "1000000000")->out,
                        "86399\n86401\n86400\n86398\n129600\n172799\n"
                        "172800\n");
    cli_has(cli_expect(2, "$T import m.txt --run x --date 2026-02-30")->err,
            "--date is YYYY-MM-DD");
}

/* H54 */
static void test_import__torn_tails(void **state)
{
    (void)state;
    const struct cli *c = cli_expect(
        0, "$T import $CASES/H54_no_final_newline.txt --run torn0");
    assert_int_equal(cli_lines(column("torn0", "seq")->out), 3);
    c = cli_expect(2, "$T import $CASES/H54_cut_mid_number.txt --run torn1");
    cli_has(c->err, "H54_cut_mid_number.txt:3:");
    assert_int_equal(cli_lines(column("torn1", "seq")->out), 2);
    c = cli_expect(2, "$T import $CASES/H54_cut_mid_utf8.txt --run torn2");
    cli_has(c->err, "H54_cut_mid_utf8.txt:3:24: the name is not UTF-8");
    assert_int_equal(cli_lines(column("torn2", "seq")->out), 2);
}

/* Every cut point of line 3: two records and one bad line, or, where nothing
 * of it is left, two records alone. */
static void test_import__torn_at_every_byte(void **state)
{
    (void)state;
    size_t n;
    char name[4096], out[64], *at;
    snprintf(name, sizeof name, "%s/H54_full.txt", getenv("CASES"));
    char *text = cli_read_file(name, &n);
    size_t third = (size_t)(strrchr(text, '1') - text); /* any place in it */
    while (third > 0 && text[third - 1] != '\n')
        third--;
    while (third > 0 && strchr(text + third, '\n') != text + n - 1)
        third = (size_t)(strchr(text + third, '\n') - text) + 1;
    for (size_t cut = third; cut < n; cut++) {
        snprintf(out, sizeof out, "cut%03zu.txt", cut);
        cli_write_file(out, text, cut);
    }
    free(text);
    cli_expect(2, "$T -o csv import cut*.txt --run sweep > sweep.csv");
    const struct cli *c = cli_expect(0, "tail -n +2 sweep.csv");
    assert_int_equal(cli_lines(c->out), n - third);
    size_t line = 0;
    for (char *row = strtok_r(c->out, "\n", &at); row;
         row = strtok_r(NULL, "\n", &at), line++) {
        const char *want = line == 0               ? ",2,2,0"
                           : line == n - third - 1 ? ",3,3,0"
                                                   : ",2,2,1";
        if (strcmp(row + strlen(row) - 6, want) != 0)
            fail_msg("cut %zu: %s", line, row);
    }
}

/* H55 */
static void test_import__nan_and_inf(void **state)
{
    (void)state;
    static const char *const forms[] = {"csv", "json"};
    cli_expect(0, "$T import $CASES/H55_nan_inf_tokens.txt --run tokens");
    const struct cli *c = cli_expect(
        0, "$T -r tokens export --format csv | cut -d, -f21-24,34");
    assert_string_equal(c->out,
                        "max,min,mean,std,samples\n"
                        "nan,nan,nan,nan,1.0 nan -inf inf\n"
                        "inf,-inf,nan,nan,inf -inf\n"
                        "-0.08331,-0.3999,-0.24385,0.03987,-0.21252 -0.2793\n"
                        "-inf,-inf,-inf,nan,-inf -inf\n"
                        "2.5,2.5,2.5,0.0,2.5\n"
                        "nan,inf,-inf,nan,1.0\n"
                        "nan,nan,nan,nan,nan\n");
    c = cli_expect(0, "$T -r tokens export --format json");
    cli_has_not(c->out, ":nan");
    cli_has_not(c->out, ":inf");
    cli_has_not(c->out, "[nan");
    cli_has_not(c->out, ",nan");
    cli_has_not(c->out, ":-inf");
    /* text and back: the same values */
    cli_expect(0, "$T -r tokens export --format seed --out back.txt && "
                  "$T import back.txt --run tokens2");
    for (int i = 0; i < 2; i++)
        cli_expect(0,
                   "for r in tokens tokens2; do $T -r $r export --format %s "
                   "| sed 's/tokens2/tokens/; s/1[0-9]\\{18\\}/T/' > $r.out; "
                   "done; cmp tokens.out tokens2.out",
                   forms[i]);
}

/* H58 */
static void test_import__line_ends_and_byte_order_mark(void **state)
{
    (void)state;
    static const char *const files[] = {"H58_crlf", "H58_mixed_bom"};
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run ends --date "
                  "2026-03-01");
    char *expected =
        strdup(cli_expect(0, "$T -r ends export --format json | sed "
                             "'s/\"run\":\"[^\"]*\"//'")->out);
    for (int i = 0; i < 2; i++) {
        cli_expect(0, "$T import $CASES/%s.txt --run %s --date 2026-03-01",
                   files[i], files[i]);
        const struct cli *c =
            cli_expect(0, "$T -r %s export --format json | sed "
                          "'s/\"run\":\"[^\"]*\"//'",
                       files[i]);
        assert_string_equal(c->out, expected);
    }
    free(expected);
}

/* H63 */
static void test_import__same_name_again(void **state)
{
    (void)state;
    cli_expect(0, "$T import $CASES/H63_grad_lines_without_step.txt --run "
                  "again");
    assert_int_equal(cli_lines(column("again", "seq")->out), 6);
    cli_has(cli_expect(0, "$T -r again -o json query grad-layer1.weight-1")
                ->out,
            "\"max\":0.00015,");
    cli_has(cli_expect(0, "$T -r again -o json query grad-layer1.weight-2")
                ->out,
            "\"max\":0.00029,");
    assert_int_equal(
        cli_lines(cli_expect(0, "$T -r again -o json query "
                                "grad-layer1.weight")->out),
        2);
    const struct cli *c =
        cli_expect(0, "$T -r again -o csv query forward-Pair-1-1 | cut -d, "
                      "-f5,16,21 | tail -2 | cut -d, -f2-");
    assert_string_equal(c->out, "0,1.0\n1,2.0\n");
}

/* H25 */
static void test_import__odd_class_names(void **state)
{
    (void)state;
    static char text[16384], name[301];
    memset(name, 'A', 300);
    const char *const classes[] = {"Conv-1-2", "Linear",  "线性层", name,
                                   "grad",     "x.y<z>",  "forward-Linear-1",
                                   "Conv"};
    size_t n = 0;
    for (int step = 1; step <= 2; step++)
        for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
            n += (size_t)snprintf(
                text + n, sizeof text - n,
                "101500000001,%zu,forward-%s-1-%d-output,0,[1, 2]-%zu.00000,"
                "1.00000,1.00000,0.00000,1.00000,1.00000\n",
                i + 1, classes[i], step, i);
    cli_write_file("odd.txt", text, n);
    cli_expect(0, "$T import odd.txt --run odd");
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        char part[400];
        const struct cli *c = cli_expect(
            0, "$T -r odd -o json query 'forward-%s-1-2'", classes[i]);
        assert_int_equal(cli_lines(c->out), 1);
        snprintf(part, sizeof part, "\"class\":\"%s\",\"instance\":1,",
                 classes[i]);
        cli_has(c->out, part);
        cli_has(c->out, "\"step\":2,");
        snprintf(part, sizeof part, "\"max\":%zu.0,", i);
        cli_has(c->out, part);
    }
    cli_expect(0, "$T -r odd export --format seed | cut -d, -f3- > odd.out; "
                  "cut -d, -f3- odd.txt | cmp - odd.out");
}

/* H49: four parts, one run */
static void test_import__attempts_and_ranks(void **state)
{
    (void)state;
    for (int attempt = 0; attempt < 2; attempt++)
        for (int rank = 0; rank < 2; rank++)
            cli_expect(0,
                       "$T import $CASES/H49_attempt%d_rank%d.txt --run "
                       "elastic --attempt %d --rank %d",
                       attempt, rank, attempt, rank);
    assert_string_equal(
        column("elastic", "attempt, rank, seq")->out,
        "0,0,1\n0,0,2\n0,0,3\n0,1,1\n0,1,2\n0,1,3\n1,0,1\n1,0,2\n1,1,1\n"
        "1,1,2\n");
    const struct cli *c = cli_expect(
        0, "$T -r elastic export --format seed --attempt 1 --rank 1");
    assert_int_equal(cli_lines(c->out), 2);
}

static void test_import__bad_lines_are_not_a_flood(void **state)
{
    (void)state;
    cli_expect(0, "seq 100 > numbers.txt; head -c 5000000 /dev/zero | tr "
                  "'\\0' x >> numbers.txt; echo >> numbers.txt; cat "
                  "$CASES/H53_midnight.txt >> numbers.txt");
    const struct cli *c =
        cli_expect(2, "$T -o json import numbers.txt --run flood");
    assert_int_equal(cli_lines(c->err), 21);
    cli_has(c->err, "numbers.txt:20:");
    cli_has(c->err, "numbers.txt: 81 more bad lines\n");
    cli_has(c->out, "\"records\":4,\"new\":4,\"bad\":101}");
    cli_expect(2, "head -c 100000 /dev/urandom > noise.txt; $T import "
                  "noise.txt --run noise");
    cli_expect(1, ": > nothing.txt; $T import nothing.txt --run nothing");
}

static void test_import__samples(void **state)
{
    (void)state;
    cli_expect(0, "echo '101500000001,1,grad-w,0,[5]-1.00000,1.00000,"
                  "1.00000,0.00000,1.00000,1.00000' > two.txt");
    cli_has(cli_expect(2, "$T import two.txt --run two")->err,
            "two.txt:1:76: fewer samples");
    cli_expect(0, "$T import two.txt --run two --samples 2");
    cli_expect(2, "$T import two.txt --run two --samples 4097");
}

static void test_import__usage(void **state)
{
    (void)state;
    cli_has(cli_expect(2, "$T import $CASES/H53_midnight.txt")->err,
            "a text log needs --run");
    cli_has(cli_expect(2, "$T import $CASES/H53_midnight.txt --run 'a b'")
                ->err,
            "cannot name a run");
    cli_has(cli_expect(3, "$T import absent.txt --run x")->err,
            "cannot open 'absent.txt': no such file");
    cli_has(cli_expect(2, "$T import . --run x")->err,
            "no dump.json of msprobe below '.'");
    cli_expect(2, "$T import a --run x --rank 99999999");
    cli_has(cli_expect(2, "$T -d $CASES/H53_midnight.txt import "
                          "$CASES/H53_midnight.txt --run x")->err,
            "is a file");
    cli_has(cli_expect(3, "$T -d absent/deep import "
                          "$CASES/H53_midnight.txt --run x")->err,
            "cannot make 'absent/deep': the directory above it is not there; "
            "run: mkdir -p 'absent/deep'");
    /* the other files are still imported */
    const struct cli *c =
        cli_expect(3, "$T -o json import absent.txt $CASES/H53_midnight.txt "
                      "--run others");
    cli_has(c->out, "\"records\":4");
}

/* With -d: a daemon of our own, gone afterwards. */
static void test_import__without_a_daemon(void **state)
{
    (void)state;
    cli_expect(0, "mkdir -m 700 own; $T -d own import "
                  "$GOLDEN/seed-small.log --run alone");
    const struct cli *c =
        cli_expect(0, "$T -d own -o csv sql 'SELECT count(*) FROM v_record' "
                      "| tail -1");
    assert_string_equal(c->out, "24\n");
    cli_expect(0, "$T -d own/alone.db query forward-MyModel-1-1");
    cli_has(cli_expect(0, "$T -d own -o json import "
                          "$GOLDEN/seed-small.log --run alone")->out,
            "\"new\":0");
    cli_expect(1, "ls -d /tmp/tracectl-* 2>/dev/null | grep -q .");
    cli_has(cli_expect(3, "mkdir lone; cp $T lone/tracectl; PATH=/nowhere "
                          "lone/tracectl -d own import "
                          "$GOLDEN/seed-small.log --run alone")->err,
            "a private tracerd for 'own' does not start\ntracectl: its last "
            "words: cannot run 'tracerd': No such file or directory\n");
}

/* A file without a good line: no run, no daemon, no directory. */
static void test_import__nothing_good_makes_no_run(void **state)
{
    (void)state;
    cli_expect(0, "printf 'noise\\nand more\\n' > bad.txt; : > empty.txt");
    const struct cli *c =
        cli_expect(2, "$T -o json import bad.txt --run precious");
    assert_string_equal(c->out,
                        "{\"file\":\"bad.txt\",\"run\":null,\"attempt\":0,"
                        "\"rank\":0,\"records\":0,\"new\":0,\"bad\":2}\n");
    cli_expect(1, "$T import empty.txt --run precious");
    cli_expect(1, "test -e $DATA/precious.db");
    cli_expect(2, "$T -s nowhere import bad.txt --run precious");
    cli_expect(2, "mkdir -p single; cp $T single/tracectl; PATH=/nowhere "
                  "single/tracectl -d fresh import bad.txt --run precious");
    cli_expect(1, "test -e fresh");
    /* the name is free */
    cli_has(cli_expect(0, "$T -o json import $CASES/H53_midnight.txt --run "
                          "precious")->out,
            "\"run\":\"precious\"");
}

static void test_import__makes_the_directory(void **state)
{
    (void)state;
    cli_expect(0, "umask 022; $T -d newdir import $CASES/H53_midnight.txt "
                  "--run made; stat -c %%a newdir > mode");
    cli_has(cli_expect(0, "cat mode")->out, "700");
    cli_expect(0, "$T -d newdir -r made query forward-Linear-1-1");
}

/* Logs of two ranks in one file: stored, but said. */
static void test_import__counter_that_starts_again_is_told(void **state)
{
    (void)state;
    cli_expect(0, "cat $CASES/H49_attempt0_rank0.txt "
                  "$CASES/H49_attempt0_rank1.txt > both.txt");
    const struct cli *c = cli_expect(0, "$T import both.txt --run both");
    cli_has(c->err, "tracectl: both.txt:4: the count of calls starts again: "
                    "this looks like several ranks or processes one after "
                    "the other");
    assert_int_equal(cli_lines(c->err), 1);
    c = cli_expect(0, "$T import $CASES/H49_attempt0_rank0.txt --run both1");
    assert_string_equal(c->err, "");
}

static void test_import__another_name_is_told(void **state)
{
    struct hello h = rig_hello();
    struct rig_client traced;
    (void)state;
    h.run = slice_of("traced");
    assert_true(rig_greet(cli_rig(), &traced, 4712, &h));
    const struct cli *c =
        cli_expect(0, "$T import $CASES/H53_midnight.txt --run traced");
    cli_has(c->err, "tracectl: the name 'traced' is taken by another job's "
                    "run: this is stored as run 'traced-2'\n");
    rig_close(&traced);
}

static void submit(struct trd_client *client, uint32_t site, uint64_t step)
{
    const int64_t shape[] = {3};
    const float data[] = {1.5f, -2, (float)step};
    const struct trd_tensor tensor = {data, TRD_F32, 1, shape, NULL};
    const struct trd_when when = {step, step, 1, 0, 0};
    assert_int_equal(trd_submit_cpu(client, site, &when, &tensor, 16), 0);
}

/* What a client without a daemon leaves behind. */
static void test_import__journal(void **state)
{
    (void)state;
    struct trd_client_options o;
    struct trd_client *client;
    const struct trd_site site = {TRD_FORWARD, TRD_INPUT, 0, 1,
                                  "Linear",    "a.b",     "0"};
    uint32_t id;
    trd_client_options_init(&o);
    o.dir = "left";
    o.run = "behind";
    o.rank = 3;
    o.no_thread = 1;
    assert_int_equal(trd_client_open(&o, &client), 0);
    assert_int_equal(trd_site(client, &site, &id), 0);
    for (uint64_t step = 1; step <= 5; step++)
        submit(client, id, step);
    trd_client_close(client);
    const struct cli *c = cli_expect(0, "$T -o json import left/*.journal");
    cli_has(c->out, "\"run\":\"behind\",\"attempt\":0,\"rank\":3,\"records\":"
                    "5,\"new\":5,\"bad\":0}");
    c = cli_expect(0, "$T -o json import left/*.journal");
    cli_has(c->out, "\"records\":5,\"new\":0,");
    assert_string_equal(column("behind", "rank, seq, module, step, max")->out,
                        "3,1,a.b,1,1.5\n3,2,a.b,2,2.0\n3,3,a.b,3,3.0\n"
                        "3,4,a.b,4,4.0\n3,5,a.b,5,5.0\n");
    c = cli_expect(0, "$T -o json import left/*.journal --run renamed "
                      "--rank 1");
    cli_has(c->out, "\"run\":\"renamed\",\"attempt\":0,\"rank\":1,");
    /* cut short or damaged: told, never a crash */
    cli_has(cli_expect(2, "head -c 100000 left/*.journal > cut.journal; $T "
                          "import cut.journal")->err,
            "cannot be read");
    cli_expect(2, "head -c 100 left/*.journal > cut.journal; $T import "
                  "cut.journal");
    cli_expect(0, "$T -d own import left/*.journal");
}

/* A journal whose process died in the middle: the hole is counted as lost,
 * and status says so. The last test, for the daemon remembers. */
static void test_import__torn_journal_is_a_loss(void **state)
{
    (void)state;
    struct rig left = *cli_rig();
    cli_expect(0, "$T status");
    snprintf(left.dir, sizeof left.dir, "torn");
    assert_int_equal(mkdir("torn", 0700), 0);
    rig_journal(&left, "torn", 4711, 9, 4, false);
    const struct cli *c =
        cli_expect(2, "$T -o json import torn/torn.journal --run torn");
    cli_has(c->out, "\"records\":8,\"new\":8,\"bad\":1}");
    c = cli_expect(0, "$T -r torn -o csv sql 'SELECT seq, last, count, cause "
                      "FROM v_loss' | tail -1");
    assert_string_equal(c->out, "4,4,1,torn\n");
    cli_has(cli_expect(1, "$T status")->out, "lost");
    cli_has(cli_expect(0, "$T -d $DATA status")->out, "run.torn.lost.torn");
    cli_expect(0, "$T -r torn -o json query forward-Linear-1-3");
    cli_expect(1, "$T -r torn -o json query forward-Linear-1-4");
    cli_expect(0, "$T -r torn -o json query forward-Linear-1-5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_import__small_log),
        cmocka_unit_test(test_import__twice_adds_nothing),
        cmocka_unit_test(test_import__the_daemon_starts_anew_between),
        cmocka_unit_test(test_import__interleaved_lines),
        cmocka_unit_test(test_import__midnight),
        cmocka_unit_test(test_import__torn_tails),
        cmocka_unit_test(test_import__torn_at_every_byte),
        cmocka_unit_test(test_import__nan_and_inf),
        cmocka_unit_test(test_import__line_ends_and_byte_order_mark),
        cmocka_unit_test(test_import__same_name_again),
        cmocka_unit_test(test_import__odd_class_names),
        cmocka_unit_test(test_import__attempts_and_ranks),
        cmocka_unit_test(test_import__bad_lines_are_not_a_flood),
        cmocka_unit_test(test_import__samples),
        cmocka_unit_test(test_import__usage),
        cmocka_unit_test(test_import__without_a_daemon),
        cmocka_unit_test(test_import__nothing_good_makes_no_run),
        cmocka_unit_test(test_import__makes_the_directory),
        cmocka_unit_test(test_import__counter_that_starts_again_is_told),
        cmocka_unit_test(test_import__another_name_is_told),
        cmocka_unit_test(test_import__journal),
        cmocka_unit_test(test_import__torn_journal_is_a_loss),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
