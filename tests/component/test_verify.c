/* tracectl verify and its --repair: runs and journals that are whole, cut,
 * damaged, of the future, or of something else. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/cli.h"
#include "tests/lib/rig.h"

#include "tracerd/client.h"

enum { RECORDS = 4000, PAGE = 4096, EPOCH = 4901 };

static struct rig_entries e;
static struct rig_client c;
static uint32_t seed = 1;

static uint32_t random_below(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

/* whole.db here: 4000 records, a loss between; whole.journal: 50 records. */
static int set_up(void **state)
{
    struct hello h = rig_hello();
    int rc = cli_setup(state);
    h.run = slice_of("whole");
    assert_true(rig_greet(cli_rig(), &c, EPOCH, &h));
    rig_fill_dict(&e);
    rig_send_dict(&c, &e, 1);
    for (uint64_t seq = 1; seq <= RECORDS; seq += 500) {
        rig_fill_data(&e, seq, 500);
        rig_send_data(&c, &e, seq);
    }
    rig_entries_init(&e);
    rig_add_loss(&e, RECORDS + 1, TRD_LOST_RING_FULL, 7);
    rig_send_data(&c, &e, RECORDS + 1);
    rig_durable(&c, RECORDS + 1);
    rig_close(&c);
    cli_stop_daemon();
    cli_rig()->journals_alive = true;
    rig_journal(cli_rig(), "whole", 4902, 50, 0, false);
    cli_expect(0, "cp $DATA/whole.db . && mv $DIR/whole.journal .");
    return rc;
}

static void poke(const char *name, size_t at, uint8_t byte)
{
    size_t n;
    char *bytes = cli_read_file(name, &n);
    assert_true(at < n);
    bytes[at] = (char)(bytes[at] ^ byte);
    cli_write_file(name, bytes, n);
    free(bytes);
}

static void test_verify__whole_files(void **state)
{
    (void)state;
    cli_has(cli_expect(0, "$T -o json verify whole.db")->out,
            "{\"file\":\"whole.db\",\"kind\":\"good\",\"count\":4000,"
            "\"detail\":\"4000 records, 7 lost\"}\n");
    cli_has(cli_expect(0, "$T -o csv verify whole.journal")->out,
            "file,kind,count,detail\n"
            "whole.journal,good,50,\"50 records, 0 lost\"\n");
    cli_expect(0, "$T -d $DATA verify whole");
    cli_expect(0, "$T verify $DATA");
    cli_expect(0, "mkdir both && cp whole.db whole.journal both");
    assert_int_equal(cli_lines(cli_expect(0, "$T -o json verify both")->out),
                     2);
}

static void test_verify__what_is_no_run(void **state)
{
    (void)state;
    cli_expect(0, "echo text > text.db; echo text > text.journal; "
                  ": > empty.db; head -c 100000 /dev/zero > zero.journal; "
                  "cp whole.db newer.db; cp whole.journal newer.journal");
    cli_sql("other.db", "CREATE TABLE t(x)");
    cli_sql("newer.db", "PRAGMA user_version=2");
    cli_has(cli_expect(2, "$T verify text.db")->out, "not a run of tracerd");
    cli_has(cli_expect(2, "$T verify other.db")->out, "not a run of tracerd");
    cli_has(cli_expect(2, "$T verify zero.journal")->out,
            "not a journal of tracerd");
    cli_has(cli_expect(1, "$T verify text.journal")->out, "its size is not");
    cli_has(cli_expect(1, "$T verify empty.db")->out, "empty");
    cli_has(cli_expect(3, "$T verify newer.db")->out,
            "its format 2 is newer than this tracectl's 1; use a newer one");
    cli_has(cli_expect(3, "$T verify absent.db")->err, "no such file");
    cli_has(cli_expect(2, "$T verify a b")->err, "takes one");
    cli_has(cli_expect(2, "$T verify --repair=yes whole.db")->err,
            "--repair has no value");
    cli_has(cli_expect(2, "$T verify --repair text.db")->err,
            "it stays as it is");
    cli_has(cli_expect(2, "$T verify --repair newer.db")->err,
            "it stays as it is");
    cli_has(cli_expect(2, "$T verify --repair whole.journal")->err,
            "tracectl import");
    cli_expect(0, "cmp newer.db newer.db && ! ls *.damaged-*");
}

static void test_verify__rows_that_do_not_fit_together(void **state)
{
    (void)state;
    cli_expect(0, "cp whole.db gap.db; cp whole.db word.db; cp whole.db "
                  "twice.db; cp whole.db bytes.db; cp whole.db mark.db");
    cli_sql("gap.db", "DELETE FROM record WHERE seq BETWEEN 101 AND 110");
    cli_has(cli_expect(1, "$T verify gap.db")->out,
            "attempt 0 rank 0: 101 to 110 missing");
    cli_sql("twice.db", "UPDATE loss SET seq = 3991");
    cli_has(cli_expect(1, "$T verify twice.db")->out,
            "attempt 0 rank 0: 3991 to 4000 stored twice");
    cli_sql("mark.db", "UPDATE stream SET seq = 4011");
    cli_has(cli_expect(1, "$T verify mark.db")->out,
            "attempt 0 rank 0: 4002 to 4011 missing");
    cli_sql("word.db", "DELETE FROM path; DELETE FROM dict WHERE id = 2");
    cli_has(cli_expect(1, "$T verify word.db")->out,
            "4000  records without a path");
    cli_has(cli_expect(1, "$T verify word.db")->out,
            "streams whose dictionary has a hole");
    cli_sql("bytes.db", "UPDATE record SET samples = x'00' WHERE seq = 12;"
                        "UPDATE dict SET entry = x'00' WHERE id = 1");
    cli_has(cli_expect(1, "$T verify bytes.db")->out,
            "attempt 0 rank 0 seq 12 does not decode");
    cli_has(cli_expect(1, "$T verify bytes.db")->out,
            "dictionary entries that do not decode");
}

/* The kind of each page is its first byte: without it nothing holds. */
static void test_verify__damaged_pages(void **state)
{
    size_t n;
    char *bytes = cli_read_file("whole.db", &n);
    unsigned found = 0;
    (void)state;
    free(bytes);
    for (size_t page = 1; page < n / PAGE; page += 1 + n / PAGE / 40) {
        cli_expect(0, "cp whole.db bad.db");
        poke("bad.db", page * PAGE, 0xff);
        cli_expect(1, "$T verify bad.db");
    }
    for (unsigned i = 0; i < 40; i++) {
        const struct cli *r;
        cli_expect(0, "cp whole.db bad.db");
        poke("bad.db", random_below((uint32_t)n),
             (uint8_t)(1 + random_below(255)));
        r = cli_run("$T verify bad.db");
        assert_in_range(r->code, 0, 3);
        found += r->code != 0;
    }
    print_message("%u of 40 bytes found wrong; the others are in figures "
                  "or in free space\n",
                  found);
    /* what is cut off the last page may have been zeros */
    for (size_t size = 0; size + PAGE <= n; size += n / 12) {
        cli_expect(0, "head -c %zu whole.db > cut.db", size);
        assert_in_range(cli_run("$T verify cut.db")->code, 1, 2);
    }
}

static void test_verify__damaged_journals(void **state)
{
    size_t n, ring = 0;
    char *bytes = cli_read_file("whole.journal", &n);
    (void)state;
    for (ring = n; ring > 0 && !bytes[ring - 1];)
        ring--; /* behind the last record */
    cli_expect(0, "cp whole.journal bad.journal");
    poke("bad.journal", ring - 3000, 0x10);
    cli_has(cli_expect(1, "$T verify bad.journal")->out, "torn");
    cli_has(cli_expect(1, "$T -o csv verify bad.journal")->out,
            "cannot be read");
    cli_expect(0, "cp whole.journal bad.journal");
    poke("bad.journal", 20, 0x10);
    cli_has(cli_expect(1, "$T verify bad.journal")->out, "head");
    cli_expect(0, "cp whole.journal bad.journal");
    poke("bad.journal", 4096 + 20, 0x10); /* the only copy of its state */
    cli_has(cli_expect(1, "$T verify bad.journal")->out, "state");
    cli_expect(0, "cp whole.journal bad.journal");
    poke("bad.journal", 65536 + 40, 0x10);
    cli_has(cli_expect(1, "$T verify bad.journal")->out,
            "the dictionary does not hold");
    for (size_t size = 0; size < n; size += n / 12) {
        cli_expect(0, "head -c %zu whole.journal > cut.journal", size);
        cli_expect(1, "$T verify cut.journal");
    }
    for (unsigned i = 0; i < 40; i++) {
        cli_expect(0, "cp whole.journal bad.journal");
        poke("bad.journal", random_below((uint32_t)n),
             (uint8_t)(1 + random_below(255)));
        assert_in_range(cli_run("$T verify bad.journal")->code, 0, 3);
    }
    free(bytes);
}

/* Every sequence number is there or lost, the damaged file is as it was. */
static void repaired(const char *name, int64_t least)
{
    int64_t records, lost;
    cli_expect(0, "cp %s before.bin", name);
    cli_has(cli_expect(0, "$T verify --repair %s", name)->out,
            "records saved");
    cli_expect(0, "cmp before.bin %s.damaged-*[0-9]", name);
    cli_expect(0, "$T verify %s", name);
    records = cli_number(name, "SELECT count(*) FROM record");
    lost = cli_number(name, "SELECT total(last - seq + 1) FROM loss");
    assert_int_equal(records + lost, RECORDS + 1);
    assert_int_equal(cli_number(name,
                                "SELECT count(*) FROM loss WHERE cause NOT "
                                "IN ('ring_full', 'store_lost')"),
                     0);
    print_message("%lld records saved, %lld lost\n", (long long)records,
                  (long long)lost);
    assert_true(records >= least);
    cli_expect(0, "rm %s.damaged-* %s", name, name);
}

static void test_verify__repair(void **state)
{
    size_t n;
    int64_t root;
    (void)state;
    free(cli_read_file("whole.db", &n));
    root =
        cli_number("whole.db", "SELECT rootpage FROM sqlite_master WHERE name "
                               "= 'record'");
    cli_expect(0, "cp whole.db mend.db");
    cli_sql("mend.db", "DELETE FROM record WHERE seq BETWEEN 101 AND 110;"
                       "UPDATE record SET samples = x'00' WHERE seq = 12");
    repaired("mend.db", RECORDS - 11);
    /* leaves of the table: a few pages in the last third */
    cli_expect(0, "cp whole.db mend.db");
    for (size_t page = 2 * n / 3 / PAGE; page < n / PAGE; page += 40)
        poke("mend.db", page * PAGE, 0xff);
    cli_expect(1, "$T verify mend.db");
    repaired("mend.db", RECORDS * 3 / 4);
    cli_expect(0, "cp whole.db mend.db");
    poke("mend.db", (size_t)(root - 1) * PAGE, 0xff);
    repaired("mend.db", 0);
    cli_expect(0, "head -c %zu whole.db > mend.db", n / 2 / PAGE * PAGE);
    if (cli_run("$T verify --repair mend.db")->code == 0)
        cli_expect(0, "$T verify mend.db");
}

/* Not while anybody has it open. */
static void test_verify__repair_is_refused(void **state)
{
    sqlite3 *db = NULL;
    (void)state;
    cli_expect(0, "cp whole.db held.db");
    assert_int_equal(sqlite3_open("held.db", &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "SELECT count(*) FROM record", NULL,
                                  NULL, NULL),
                     SQLITE_OK);
    cli_has(cli_expect(3, "$T verify --repair held.db")->err,
            "another program has 'held.db' open");
    sqlite3_close(db);
    cli_start_daemon();
    cli_has(cli_expect(3, "$T verify --repair $DATA/whole.db")->err,
            "a tracerd serves the directory");
    cli_has(cli_expect(0, "$T verify whole")->out, "good");
    cli_has(cli_expect(0, "$T verify")->out, "whole.db");
    cli_stop_daemon();
    cli_expect(0, "! ls held.db.damaged-* && ! ls $DATA/*.damaged-*");
}

/* The daemon goes on with a run that was repaired. */
static void test_verify__a_repaired_run_goes_on(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    cli_sql("both/whole.db", "SELECT 1");
    cli_expect(0, "cp whole.db $DATA/whole.db");
    for (size_t page = 60; page < 64; page++)
        cli_expect(0, "printf '\\377' | dd of=$DATA/whole.db bs=1 seek=%zu "
                      "conv=notrunc 2>/dev/null", page * PAGE);
    cli_expect(1, "$T -d $DATA verify whole");
    cli_expect(0, "$T -d $DATA verify --repair whole");
    cli_start_daemon();
    h.run = slice_of("whole");
    assert_true(rig_greet(cli_rig(), &c, EPOCH, &h));
    assert_int_equal(c.welcome.committed_seq, RECORDS + 1);
    assert_int_equal(c.welcome.dict_n, RIG_DICT_N);
    rig_fill_data(&e, RECORDS + 2, 10);
    rig_send_data(&c, &e, RECORDS + 2);
    rig_durable(&c, RECORDS + 11);
    rig_close(&c);
    cli_expect(0, "$T verify whole");
    cli_has(cli_expect(0, "$T -r whole query forward-Linear-1-4005")->out,
            "forward-Linear-1-4005");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verify__whole_files),
        cmocka_unit_test(test_verify__what_is_no_run),
        cmocka_unit_test(test_verify__rows_that_do_not_fit_together),
        cmocka_unit_test(test_verify__damaged_pages),
        cmocka_unit_test(test_verify__damaged_journals),
        cmocka_unit_test(test_verify__repair),
        cmocka_unit_test(test_verify__repair_is_refused),
        cmocka_unit_test(test_verify__a_repaired_run_goes_on),
    };
    return cmocka_run_group_tests(tests, set_up, cli_teardown);
}
