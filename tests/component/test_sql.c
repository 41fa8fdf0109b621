/* tracectl sql reads and does nothing else, whoever has made the statement or
 * the file. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/cli.h"

/* Whatever would write, reach another file, load code or change the
 * connection, asked of the daemon and of the file. */
static const char *const hostile[] = {
    "UPDATE record SET seq = 1",
    "REPLACE INTO meta VALUES('name', 'x')",
    "INSERT INTO meta SELECT 'a', 'b' RETURNING key",
    "DELETE FROM loss RETURNING *",
    "WITH x AS (SELECT 1) DELETE FROM record",
    "CREATE TABLE t(x)",
    "CREATE VIEW v AS SELECT 1",
    "CREATE TEMP VIEW v AS SELECT 1",
    "CREATE INDEX i ON record(seq)",
    "CREATE TEMP TRIGGER t AFTER INSERT ON meta BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE t USING fts5(x)",
    "CREATE VIRTUAL TABLE t USING fts3(x)",
    "CREATE VIRTUAL TABLE temp.t USING rtree(a, b, c)",
    "ALTER TABLE record RENAME TO r",
    "ALTER TABLE meta ADD COLUMN x",
    "DROP VIEW v_record",
    "REINDEX",
    "ANALYZE",
    "BEGIN",
    "BEGIN EXCLUSIVE",
    "COMMIT",
    "SAVEPOINT s",
    "ROLLBACK",
    "VACUUM INTO 'stolen.db'",
    "ATTACH 'stolen.db' AS x",
    "ATTACH ':memory:' AS x",
    "ATTACH 'file:/etc/passwd?mode=ro' AS x",
    "DETACH main",
    "PRAGMA query_only = 0",
    "PRAGMA writable_schema = 1",
    "PRAGMA journal_mode = OFF",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA user_version = 9",
    "PRAGMA application_id = 9",
    "PRAGMA trusted_schema = 1",
    "PRAGMA temp_store_directory = '/tmp'",
    "PRAGMA mmap_size = 1000000000",
    "PRAGMA hard_heap_limit = 1",
    "PRAGMA busy_timeout = 1",
    "PRAGMA incremental_vacuum",
    "PRAGMA optimize",
    "PRAGMA database_list",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_journal_mode",
    "SELECT * FROM dbstat",
    "SELECT * FROM sqlite_dbpage",
    "SELECT load_extension('libc.so.6')",
    "SELECT load_extension('libc.so.6', 'system')",
    "SELECT writefile('stolen.db', 'x')",
    "SELECT readfile('/etc/passwd')",
    "SELECT edit('x', 'sh')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT fts3_tokenizer('simple', x'0102030405060708')",
    "SELECT 1; DROP TABLE record",
    "EXPLAIN DELETE FROM record",
};

static void test_sql__hostile_statements(void **state)
{
    static const char *const sources[] = {"", "-d $DATA"};
    static const char sum[] =
        "cksum $DATA/reading.db; ls -A $DATA | grep -v -e -wal -e -shm; ls; ls "
        "$DIR";
    (void)state;
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run reading; sleep 0.1");
    char *before = strdup(cli_expect(0, sum)->out);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        for (size_t k = 0; k < sizeof sources / sizeof *sources; k++) {
            const struct cli *c = cli_expect(2, "$T %s -r reading sql \"%s\"",
                                             sources[k], hostile[i]);
            assert_string_equal(c->out, "");
            assert_int_equal(cli_lines(c->err), 1);
        }
    assert_string_equal(cli_expect(0, sum)->out, before);
    free(before);
}

/* A run from elsewhere: its views are code of somebody we do not know. */
static void test_sql__a_hostile_file(void **state)
{
    static const char *const views[] = {
        "SELECT load_extension('libc.so.6') AS class",
        "SELECT readfile('/etc/passwd') AS class",
        "SELECT fts3_tokenizer('simple') AS class",
        "SELECT key AS class FROM pragma_database_list",
    };
    (void)state;
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        sqlite3 *db = NULL;
        char sql[512];
        cli_expect(0, "$T import $CASES/H53_midnight.txt --run odd; $T -d "
                      "$DATA/odd.db sql 'SELECT 1'; cp $DATA/odd.db $DATA/"
                      "bad.db");
        char *path = strdup(cli_run("printf %%s $DATA/bad.db")->out);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        snprintf(sql, sizeof sql,
                 "DROP VIEW v_object; CREATE VIEW v_object AS %s", views[i]);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
        free(path);
        cli_expect(2, "$T -d $DATA/bad.db sql 'SELECT * FROM v_object'");
        cli_expect(2, "$T -r bad sql 'SELECT * FROM v_object'");
        cli_expect(0, "$T runs");
    }
    cli_expect(0, "rm -f $DATA/bad.db*");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sql__hostile_statements),
        cmocka_unit_test(test_sql__a_hostile_file),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
