/* SQL that a real tracerd is asked: it reads and nothing else, and has
 * bounds. */
#include "tests/component/query_rig.h"

#include <sqlite3.h>
#include <stdlib.h>

static void test_query_sql__sql_reads_and_nothing_else(void **state)
{
    static const char *const bad[] = {
        "DELETE FROM record",
        "INSERT INTO note VALUES(9, 'x')",
        "ATTACH '/tmp/x.db' AS x",
        "PRAGMA journal_mode=DELETE",
        "PRAGMA query_only=0",
        "PRAGMA user_version=7",
        "SELECT load_extension('x')",
        "SELECT 1; SELECT 2",
        "BEGIN",
        "VACUUM INTO '/tmp/x.db'",
        "CREATE TEMP TABLE t(x)",
        "this is not sql",
        "",
    };
    struct query q;
    (void)state;
    fill(20);
    q = sql("SELECT count(*) AS n, 1.5, 'text', x'0102', NULL FROM record;");
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 1);
    assert_int_equal(page.columns, 5);
    assert_memory_equal(page.name[0].text, "n", 1);
    page_row(&page, cells);
    assert_int_equal(cells[0].i, 20);
    assert_true(cells[1].f == 1.5);
    assert_int_equal(cells[2].type, CELL_TEXT);
    assert_int_equal(cells[3].type, CELL_BLOB);
    assert_int_equal(cells[4].type, CELL_NULL);
    q = sql("SELECT name FROM v_record ORDER BY seq");
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 20);
    q = sql("PRAGMA table_info(record)");
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 30);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        q = sql(bad[i]);
        if (ask(&q) != PAGE_BAD)
            fail_msg("'%s' was let through", bad[i]);
        assert_true(page.message.n > 0);
    }
}

static void test_query_sql__sql_comes_by_pages(void **state)
{
    struct query q = sql("WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT "
                         "i + 1 FROM n WHERE i < 100000) SELECT i, "
                         "'some text to fill the pages' FROM n");
    char cursor[64];
    int64_t next = 1;
    (void)state;
    fill(1);
    do {
        assert_int_equal(ask(&q), PAGE_OK);
        while (page_row(&page, cells))
            assert_int_equal(cells[0].i, next++);
        memcpy(cursor, page.cursor.text, page.cursor.n);
        q.cursor.text = cursor;
        q.cursor.n = page.cursor.n;
    } while (page.cursor.n);
    assert_int_equal(next, 100001);
    q = sql("SELECT zeroblob(600000), zeroblob(600000)");
    assert_int_equal(ask(&q), PAGE_BAD);
    q = sql("SELECT zeroblob(2000000000)");
    assert_int_equal(ask(&q), PAGE_BAD);
    message_has("longer than 1024 KiB");
}

static void test_query_sql__printf_has_bounds(void **state)
{
    static const struct {
        const char *sql, *text; /* the only cell */
    } good[] = {
        {"SELECT printf('%.*f', 3, 3.14159)", "3.142"},
        {"SELECT printf('%*d|%-*s|', 5, 7, 3, 'x')", "    7|x  |"},
        {"SELECT format('%%%5d %c%n%s', 1, 'a', 'b')", "%    1 ab"},
        {"SELECT printf('%.*f', '2', 1)", "1.00"},
        {"SELECT printf('%1000d', 1) = printf('%*d', -1000, 1)", NULL},
        {"SELECT printf('%*')", ""},
    };
    static const char *const wide[] = {
        "SELECT printf('%1001d', 1)",
        "SELECT printf('%.1001f', 1)",
        "SELECT printf('%.*f', 1001, 1)",
        "SELECT printf('%d %*d', 1, -1001, 1)",
        "SELECT printf('%%%s%*.*d', 'x', 1, 9000000000, 1)",
        "SELECT format('%-0*d', '1001', 1)",
    };
    struct query q;
    (void)state;
    fill(1);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        q = sql(good[i].sql);
        assert_int_equal(ask(&q), PAGE_OK);
        assert_int_equal(page_row(&page, cells), 1);
        if (!good[i].text)
            continue;
        assert_int_equal(cells[0].s.n, strlen(good[i].text));
        assert_memory_equal(cells[0].s.text, good[i].text, cells[0].s.n);
    }
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        q = sql(wide[i]);
        assert_int_equal(ask(&q), PAGE_BAD);
        message_has("at most 1000");
    }
}

static void test_query_sql__a_long_question_is_ended(void **state)
{
    struct query q = sql("WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT "
                         "i + 1 FROM n) SELECT count(*) FROM n");
    char path[2 * RIG_PATH];
    long long start;
    FILE *f;
    (void)state;
    rig_stop(&rig);
    snprintf(path, sizeof path, "%s/conf", rig.base);
    f = fopen(path, "w");
    fputs("query_seconds = 1\n", f);
    fclose(f);
    rig.args[0] = "--config";
    rig.args[1] = path;
    rig_start(&rig);
    fill(1);
    start = rig_now_ms();
    assert_int_equal(ask(&q), PAGE_FAILED);
    message_has("1 s");
    assert_true(rig_now_ms() - start >= 900);
    rig.args[0] = NULL;
}

/* One step of SQLite does not look at the clock, so none may be long. */
static void test_query_sql__no_step_is_long(void **state)
{
#define LONG "replace(hex(zeroblob(500000)), '0', 'a')"
    static const char *const steps[] = {
        "SELECT instr(hex(zeroblob(15000000)), hex(zeroblob(7000000)) || '1')",
        "SELECT instr(" LONG ", substr(" LONG ", 500000) || 'b')",
        "SELECT replace(" LONG ", substr(" LONG ", 500000) || 'b', 'x')",
        "SELECT trim(" LONG ", replace(hex(zeroblob(400000)), '0', 'c') || "
        "'a')",
        "SELECT " LONG " LIKE '%' || substr(" LONG ", 500000) || 'b'",
        "SELECT " LONG " GLOB '*' || substr(" LONG ", 500000) || 'b'",
        "SELECT json_patch('{}', '{}')",
    };
    (void)state;
    fill(1);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct query q = sql(steps[i]);
        long long start = rig_now_ms();
        ask(&q);
        if (rig_now_ms() - start > 3000)
            fail_msg("%s took %lld ms", steps[i], rig_now_ms() - start);
    }
#undef LONG
}

/* The most memory that the daemon ever had. */
static long most_kb(void)
{
    char path[64], line[256];
    long kb = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/status", (int)rig.pid);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0)
            kb = strtol(line + 6, NULL, 10);
    fclose(f);
    return kb;
}

/* Neither for long nor with much memory, whatever is asked for. */
static void test_query_sql__bombs(void **state)
{
#define NUMBERS                                                               \
    "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n) "
    static const char *const bombs[] = {
        NUMBERS "SELECT randomblob(500000) FROM n ORDER BY 1",
        NUMBERS "SELECT hex(randomblob(1000)) FROM n GROUP BY 1",
        NUMBERS "SELECT DISTINCT randomblob(1000) FROM n LIMIT 1 OFFSET 9e9",
        NUMBERS "SELECT group_concat(hex(randomblob(1000))) FROM n",
        NUMBERS "SELECT json_group_array(hex(randomblob(1000))) FROM n",
        NUMBERS "SELECT count(*) FROM n a, n b, n c",
        "WITH RECURSIVE n(t) AS (VALUES('x') UNION SELECT t || t FROM n) "
        "SELECT max(length(t)) FROM n",
        "WITH RECURSIVE n(i, t) AS (VALUES(1, '') UNION SELECT i + 1, "
        "hex(randomblob(1000)) FROM n) SELECT count(*) FROM n",
        "SELECT printf('%1000000000d', 1)",
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT hex(zeroblob(1000000000))",
        "SELECT quote(zeroblob(900000)) || quote(zeroblob(900000))",
        "SELECT count(*) FROM record a, record b, record c, record d, record "
        "e, record f, record g, record h",
        "SELECT count(*) FROM v_record a, v_record b, v_record c, v_record d",
    };
    long long start;
    long before;
    FILE *f;
    char path[2 * RIG_PATH];
    (void)state;
    rig_stop(&rig);
    snprintf(path, sizeof path, "%s/conf", rig.base);
    f = fopen(path, "w");
    fputs("query_seconds = 1\n", f);
    fclose(f);
    rig.args[0] = "--config";
    rig.args[1] = path;
    rig_start(&rig);
    rig.args[0] = NULL;
    fill(200);
    before = most_kb();
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        struct query q = sql(bombs[i]);
        start = rig_now_ms();
        ask(&q);
        if (rig_now_ms() - start > 10000)
            fail_msg("%s took %lld ms", bombs[i], rig_now_ms() - start);
    }
#ifndef __SANITIZE_ADDRESS__
    if (most_kb() > before + 400 * 1024)
        fail_msg("memory grew from %ld to %ld KB", before, most_kb());
#endif
    print_message("memory grew from %ld to %ld KB\n", before, most_kb());
    assert_true(rig_alive(&rig));
#undef NUMBERS
}

/* The functions that were made anew give what SQLite's give. */
static void test_query_sql__functions_are_sqlites(void **state)
{
    static const char *const calls[] = {
        "printf('%d %s %5.2f|%-6s|%x', 7, 'text', 2.5, 'a', 255)",
        "printf('%016x', -3)",
        "printf('%q %Q %w %c', 'it''s', 'it''s', 'a\"b', 'xyz')",
        "printf('%.1000c', 'x')",
        "printf('%s')",
        "printf('plain')",
        "printf('in 2026 * %d%% 10000', 7)",
        "printf(NULL, 1)",
        "format('%,d %+d %05d', 1234567, 3, 4)",
        "instr('abcabc', 'ca')",
        "instr('abc', 'x')",
        "instr('abc', '')",
        "instr('', 'a')",
        "instr('', '')",
        "instr(NULL, 'a')",
        "instr('a', NULL)",
        "instr('\xc3\xa6\xc3\xb8x', 'x')",
        "instr(x'00ff01', x'01')",
        "instr(x'00ff01', 'a')",
        "instr(12345, 34)",
        "instr('aaa', 'aaa')",
        "instr('aa', 'aaa')",
        "instr(x'', x'')",
        "replace('aXbXc', 'X', '--')",
        "replace('abc', '', 'x')",
        "replace('abc', 'b', '')",
        "replace('aaaa', 'aa', 'b')",
        "replace(NULL, 'a', 'b')",
        "replace('a', NULL, 'b')",
        "replace('a', 'b', NULL)",
        "replace(121, 1, 9)",
        "replace('', 'a', 'b')",
        "trim('xxaxbxx', 'x')",
        "ltrim('xyxa', 'xy')",
        "rtrim('axyx', 'xy')",
        ("trim('\xc3\xa6"
         "a\xc3\xa6', '\xc3\xa6')"),
        "trim('abc', '')",
        "trim(NULL, 'a')",
        "trim('a', NULL)",
        "trim('aaa', 'a')",
        "trim('  a ')",
        "typeof(replace(5, '', 'x'))",
        "typeof(trim(5, 'x'))",
    };
    sqlite3 *db = NULL;
    (void)state;
    fill(1);
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char text[256];
        sqlite3_stmt *s = NULL;
        struct query q;
        snprintf(text, sizeof text, "SELECT quote(%s)", calls[i]);
        q = sql(text);
        assert_int_equal(ask(&q), PAGE_OK);
        page_row(&page, cells);
        sqlite3_prepare_v2(db, text, -1, &s, NULL);
        assert_int_equal(sqlite3_step(s), SQLITE_ROW);
        if ((size_t)sqlite3_column_bytes(s, 0) != cells[0].s.n ||
            memcmp(sqlite3_column_text(s, 0), cells[0].s.text, cells[0].s.n))
            fail_msg("%s: %.*s, not %s", calls[i], (int)cells[0].s.n,
                     cells[0].s.text, (const char *)sqlite3_column_text(s, 0));
        sqlite3_finalize(s);
    }
    sqlite3_close(db);
}

static void test_query_sql__json_of_a_process_can_be_taken_apart(void **s)
{
    struct query q = sql("SELECT e.key, e.value FROM v_run, json_each("
                         "json_object('a', 1, 'b', v_run.name)) AS e");
    (void)s;
    fill(1);
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 2);
    q = sql("SELECT fullkey FROM json_tree('[1,[2,3]]')");
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 5);
    q = sql("SELECT * FROM pragma_table_info('record')");
    assert_int_equal(ask(&q), PAGE_BAD);
    q = sql("CREATE VIRTUAL TABLE json_each USING fts5(x)");
    assert_int_equal(ask(&q), PAGE_BAD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_query_sql__sql_reads_and_nothing_else),
        TEST(test_query_sql__printf_has_bounds),
        TEST(test_query_sql__sql_comes_by_pages),
        TEST(test_query_sql__a_long_question_is_ended),
        TEST(test_query_sql__no_step_is_long),
        TEST(test_query_sql__bombs),
        TEST(test_query_sql__functions_are_sqlites),
        TEST(test_query_sql__json_of_a_process_can_be_taken_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
