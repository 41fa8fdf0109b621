/* The query endpoint of a real tracerd, asked by libnanomsg and by peers
 * that mean no good. */
#include "tests/lib/rig.h"

#include <poll.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>

#include "proto/place.h"
#include "proto/row.h"

static struct rig rig;
static struct rig_client c;
static struct rig_entries e;
static int sock = -1;
static char *reply; /* the last answer; of nanomsg */
static struct page page;
static struct cell cells[PAGE_MAX_COLUMNS];

static int set_up(void **state)
{
    (void)state;
    c.fd = -1;
    rig_init(&rig);
    rig_start(&rig);
    return 0;
}

static void hang_up(void)
{
    if (reply)
        nn_freemsg(reply);
    reply = NULL;
    if (sock >= 0)
        nn_close(sock);
    sock = -1;
}

static int tear_down(void **state)
{
    (void)state;
    hang_up();
    rig_close(&c);
    rig_fini(&rig);
    return 0;
}

static void dial(int domain)
{
    char url[RIG_PATH + 32];
    int ms = RIG_WAIT_MS;
    hang_up();
    snprintf(url, sizeof url, "ipc://%s/" PLACE_QUERY, rig.dir);
    sock = nn_socket(domain, NN_REQ);
    assert_true(sock >= 0);
    nn_setsockopt(sock, NN_SOL_SOCKET, NN_RCVTIMEO, &ms, sizeof ms);
    nn_setsockopt(sock, NN_SOL_SOCKET, NN_SNDTIMEO, &ms, sizeof ms);
    assert_true(nn_connect(sock, url) >= 0);
}

/* Asks and reads the page. */
static enum page_status ask(const struct query *q)
{
    uint8_t message[SP_REQUEST_MAX_BYTES];
    size_t n;
    int got;
    if (sock < 0)
        dial(AF_SP);
    if (reply)
        nn_freemsg(reply);
    reply = NULL;
    assert_int_equal(query_put(q, message, sizeof message, &n), 0);
    assert_int_equal(nn_send(sock, message, n, 0), (int)n);
    got = nn_recv(sock, &reply, NN_MSG, 0);
    if (got < 0)
        fail_msg("no answer: %s", nn_strerror(nn_errno()));
    assert_int_equal(page_get(reply, (size_t)got, &page), 0);
    return page.status;
}

static struct query records(const char *name)
{
    struct query q;
    query_init(&q, QUERY_RECORDS);
    q.run = slice_of("run");
    q.name = slice_of(name);
    return q;
}

static struct query sql(const char *text)
{
    struct query q;
    query_init(&q, QUERY_SQL);
    q.sql = slice_of(text);
    return q;
}

static void message_has(const char *text)
{
    char copy[2048];
    snprintf(copy, sizeof copy, "%.*s", (int)page.message.n, page.message.text);
    if (!strstr(copy, text))
        fail_msg("'%s' does not say '%s'", copy, text);
}

/* A run with n records of one object. */
static void fill(uint64_t n)
{
    rig_open(&rig, &c, 77);
    rig_fill_dict(&e);
    rig_send_dict(&c, &e, 1);
    for (uint64_t seq = 1; seq <= n; seq += 500) {
        uint64_t left = n - seq + 1;
        rig_fill_data(&e, seq, left < 500 ? (uint32_t)left : 500);
        rig_send_data(&c, &e, seq);
    }
    rig_committed(&c, n);
}

static void test_query_endpoint__records_by_name(void **state)
{
    struct query q;
    struct row row;
    (void)state;
    fill(20);
    q = records("forward-Linear-1-7-input");
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 1);
    assert_int_equal(page.columns, ROW_COLUMN_COUNT);
    assert_int_equal(page_row(&page, cells), 1);
    assert_int_equal(row_get(cells, &row), 0);
    assert_int_equal(row.step, 7);
    assert_int_equal(row.seq, 7);
    assert_int_equal(row.stats.sample_n, 16);
    assert_true(row.stats.max.f == 2.5);
    q = records("forward-layer1-7"); /* the module */
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 1);
    q = records("forward-Lin*");
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 20);
    q = records("");
    q.run = slice_of(""); /* the newest */
    q.limit = 5;
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 5);
    assert_int_equal(page.cursor.n, 0);
}

static void test_query_endpoint__nothing_says_what_there_is(void **state)
{
    struct query q = records("forward-Linear-1-1");
    (void)state;
    assert_int_equal(ask(&q), PAGE_NOTHING);
    message_has("no run 'run'");
    q.run = slice_of("");
    assert_int_equal(ask(&q), PAGE_NOTHING);
    fill(20);
    q = records("forward-Liner-1-1");
    assert_int_equal(ask(&q), PAGE_NOTHING);
    message_has("'Linear'");
    q = records("forward-Linear-1-99");
    assert_int_equal(ask(&q), PAGE_NOTHING);
    message_has("1 to 20");
    q = records("sideways-Linear-1-1");
    assert_int_equal(ask(&q), PAGE_BAD);
    q = records("forward-Linear-1-1");
    q.run = slice_of("../../etc/passwd");
    assert_int_equal(ask(&q), PAGE_BAD);
}

static void check_pages(struct query q, uint64_t n)
{
    static char cursor[256];
    uint64_t rows = 0, last = 0, pages = 0;
    do {
        assert_int_equal(ask(&q), PAGE_OK);
        while (page_row(&page, cells)) {
            struct row row;
            assert_int_equal(row_get(cells, &row), 0);
            assert_int_equal(row.seq, last + 1);
            last = row.seq;
            rows++;
        }
        memcpy(cursor, page.cursor.text, page.cursor.n);
        q.cursor.text = cursor;
        q.cursor.n = page.cursor.n;
        pages++;
    } while (page.cursor.n);
    assert_int_equal(rows, n);
    assert_true(pages > 1);
}

static void test_query_endpoint__many_records_come_by_pages(void **state)
{
    struct query q;
    (void)state;
    fill(5000);
    q = records("");
    check_pages(q, 5000);
    q.order = ORDER_SEQ;
    check_pages(q, 5000);
    q = records("forward-Linear-1");
    check_pages(q, 5000);
}

static void test_query_endpoint__runs_are_listed(void **state)
{
    struct query q;
    struct hello h = rig_hello();
    struct rig_client other;
    (void)state;
    query_init(&q, QUERY_RUNS);
    assert_int_equal(ask(&q), PAGE_NOTHING);
    fill(20);
    h.run = slice_of("another");
    assert_true(rig_greet(&rig, &other, 5, &h));
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 2);
    assert_int_equal(page_row(&page, cells), 1);
    assert_int_equal(cells[0].s.n, 7);
    assert_int_equal(page_row(&page, cells), 1);
    assert_memory_equal(cells[0].s.text, "run", 3);
    assert_int_equal(cells[6].i, 20); /* records */
    rig_close(&other);
}

static void test_query_endpoint__sql_reads_and_nothing_else(void **state)
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

static void test_query_endpoint__sql_comes_by_pages(void **state)
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

static void test_query_endpoint__printf_has_bounds(void **state)
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

static void test_query_endpoint__a_long_question_is_ended(void **state)
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
    assert_in_range(rig_now_ms() - start, 900, 4000);
    rig.args[0] = NULL;
}

static const uint8_t req[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

static int by_hand(void)
{
    uint8_t greeting[8];
    int fd = rig_connect(rig.dir, PLACE_QUERY);
    assert_true(fd >= 0);
    rig_write(fd, req, sizeof req);
    assert_true(rig_read(fd, greeting, sizeof greeting));
    assert_int_equal(greeting[5], 0x31);
    return fd;
}

/* Sends and does not wait for the answer. */
static int send_only(const struct query *q)
{
    uint8_t message[2048];
    size_t n;
    int fd = by_hand();
    assert_int_equal(query_put(q, message + 13, sizeof message - 13, &n), 0);
    memset(message, 0, 13);
    message[0] = 1;
    message[8] = (uint8_t)((n + 4) & 0xff);
    message[7] = (uint8_t)((n + 4) >> 8);
    message[9] = 0x80;
    rig_write(fd, message, n + 13);
    return fd;
}

/* One step of SQLite does not look at the clock, so none may be long. */
static void test_query_endpoint__no_step_is_long(void **state)
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
static void test_query_endpoint__bombs(void **state)
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
static void test_query_endpoint__functions_are_sqlites(void **state)
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

static void test_query_endpoint__json_of_a_process_can_be_taken_apart(void **s)
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

/* Long questions have all places but one. */
static void test_query_endpoint__short_questions_pass_long_ones(void **state)
{
    struct query forever = sql("WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL "
                               "SELECT i + 1 FROM n) SELECT count(*) FROM n");
    struct query q;
    int fds[6];
    long long start;
    (void)state;
    fill(1);
    for (int i = 0; i < 6; i++)
        fds[i] = send_only(&forever);
    start = rig_now_ms();
    for (int i = 0; i < 20; i++) {
        query_init(&q, i % 2 ? QUERY_STATUS : QUERY_RUNS);
        assert_int_equal(ask(&q), PAGE_OK);
    }
    assert_in_range(rig_now_ms() - start, 0, 3000);
    rig_stop(&rig);
    for (int i = 0; i < 6; i++)
        close(fds[i]);
}

/* A file that another program has for itself: whoever opens it waits. */
static void test_query_endpoint__stop_leaves_a_stuck_worker_behind(void **state)
{
    char path[2 * RIG_PATH];
    struct query q = sql("SELECT count(*) FROM record");
    sqlite3 *db = NULL;
    long long start;
    int fd;
    (void)state;
    fill(10);
    snprintf(path, sizeof path, "%s/stuck.db", rig.data);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE t(x); BEGIN EXCLUSIVE",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    q.run = slice_of("stuck");
    fd = send_only(&q);
    rig_pause();
    start = rig_now_ms();
    rig_stop(&rig);
    assert_in_range(rig_now_ms() - start, 0, 4000);
    rig_logged(&rig, "left=");
    close(fd);
    sqlite3_close(db);
    rig_durable(&c, 10);
    assert_int_equal(rig_connect(rig.dir, PLACE_QUERY), -1);
}

/* In place, as by cp: the file is the same and what it holds is not. */
static void test_query_endpoint__newest_is_looked_for_in_what_is_there(void **s)
{
    char command[2 * RIG_PATH];
    struct rig_client other;
    struct hello h = rig_hello();
    struct query q = sql("SELECT name FROM v_run");
    (void)s;
    q.run = slice_of("");
    fill(1);
    h.run = slice_of("second");
    assert_true(rig_greet(&rig, &other, 5, &h));
    rig_close(&other);
    h.run = slice_of("third");
    assert_true(rig_greet(&rig, &other, 6, &h));
    rig_close(&other);
    rig_close(&c);
    rig_stop(&rig);
    rig_start(&rig);
    assert_int_equal(ask(&q), PAGE_OK);
    page_row(&page, cells);
    assert_memory_equal(cells[0].s.text, "third", 5);
    snprintf(command, sizeof command, "cd %s && cat run.db > third.db",
             rig.data);
    assert_int_equal(system(command), 0);
    assert_int_equal(ask(&q), PAGE_OK);
    page_row(&page, cells);
    assert_memory_equal(cells[0].s.text, "second", 6);
}

static void test_query_endpoint__stop_does_not_wait_for_a_question(void **s)
{
    struct query q = sql("WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT "
                         "i + 1 FROM n) SELECT count(*) FROM n");
    uint8_t message[1024];
    size_t n;
    long long start;
    (void)s;
    fill(1);
    dial(AF_SP);
    assert_int_equal(query_put(&q, message, sizeof message, &n), 0);
    assert_int_equal(nn_send(sock, message, n, 0), (int)n);
    q = sql("SELECT 1"); /* by another: the first is running by then */
    hang_up();
    assert_int_equal(ask(&q), PAGE_OK);
    start = rig_now_ms();
    rig_stop(&rig);
    assert_in_range(rig_now_ms() - start, 0, 3000);
}

static void test_query_endpoint__status_tells_of_the_daemon(void **state)
{
    struct query q;
    bool version = false, stream = false, number = false;
    (void)state;
    fill(20);
    query_init(&q, QUERY_STATUS);
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.columns, 2);
    while (page_row(&page, cells)) {
        if (cells[0].s.n == 7 && !memcmp(cells[0].s.text, "version", 7))
            version = cells[1].s.n == strlen(TRD_VERSION);
        if (cells[0].s.n == 7 && !memcmp(cells[0].s.text, "records", 7))
            number = cells[1].type == CELL_INT && cells[1].i == 20;
        if (cells[0].s.n == 6 && !memcmp(cells[0].s.text, "stream", 6))
            stream = memmem(cells[1].s.text, cells[1].s.n, "committed=20",
                            12) != NULL;
    }
    assert_true(version);
    assert_true(number);
    assert_true(stream);
}

static void test_query_endpoint__not_a_request_is_answered_so(void **state)
{
    int got;
    (void)state;
    dial(AF_SP);
    assert_int_equal(nn_send(sock, "hello", 5, 0), 5);
    got = nn_recv(sock, &reply, NN_MSG, 0);
    assert_true(got > 0);
    assert_int_equal(page_get(reply, (size_t)got, &page), 0);
    assert_int_equal(page.status, PAGE_BAD);
}

/* A raw REQ socket sends many before it reads one. */
static void test_query_endpoint__raw_req_with_many_on_the_way(void **state)
{
    enum { N = 200 };
    uint8_t message[1024];
    struct query q = sql("SELECT 1");
    bool seen[N] = {false};
    size_t n;
    (void)state;
    fill(1);
    dial(AF_SP_RAW);
    assert_int_equal(query_put(&q, message + 4, sizeof message - 4, &n), 0);
    for (unsigned sent = 0, got = 0; got < N;) {
        if (sent < N && sent - got < 16) {
            struct writer w = writer_of(message, 4);
            put_u8(&w, 0x80);
            put_u8(&w, 0);
            put_u8(&w, 0);
            put_u8(&w, (uint8_t)sent);
            assert_int_equal(nn_send(sock, message, n + 4, 0), (int)n + 4);
            sent++;
            continue;
        }
        char *text = NULL;
        struct nn_iovec iov = {&text, NN_MSG};
        char control[64];
        struct nn_msghdr head = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        int rc = nn_recvmsg(sock, &head, 0);
        assert_true(rc > 0);
        nn_freemsg(text);
        got++;
        seen[got - 1] = true;
    }
    assert_true(seen[N - 1]);
}

/* ---- by hand ---- */

static void hostile(const void *bytes, size_t n)
{
    int fd = by_hand();
    rig_write_any(fd, bytes, n);
    rig_hung_up(fd);
    close(fd);
    assert_true(rig_alive(&rig));
}

static void test_query_endpoint__hostile_peers_lose_their_connection(void **s)
{
    static const uint8_t bad_type[] = {2, 0, 0,   0,   0,   0,  0,
                                       0, 4, 'a', 'b', 'c', 'd'};
    static const uint8_t huge[] = {1, 0x40, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t all_ones[] = {1,    0xff, 0xff, 0xff, 0xff,
                                       0xff, 0xff, 0xff, 0xff};
    static const uint8_t empty[] = {1, 0, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t three[] = {1, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3};
    static const uint8_t wrong_protocol[] = {0, 'S', 'P', 0, 0, 0x10, 0, 0};
    uint8_t no_bottom[9 + 4096] = {1, 0, 0, 0, 0, 0, 0, 0x10, 0};
    struct query q;
    int fd;
    (void)s;
    hostile(bad_type, sizeof bad_type);
    hostile(huge, sizeof huge);
    hostile(all_ones, sizeof all_ones);
    hostile(empty, sizeof empty);
    hostile(three, sizeof three);
    hostile(no_bottom, sizeof no_bottom);
    fd = rig_connect(rig.dir, PLACE_QUERY);
    rig_write(fd, wrong_protocol, sizeof wrong_protocol);
    rig_hung_up(fd);
    close(fd);
    fd = rig_connect(rig.dir, PLACE_QUERY); /* and one that says nothing */
    rig_hung_up(fd);
    close(fd);
    fill(1);
    q = records("");
    assert_int_equal(ask(&q), PAGE_OK);
    rig_stop(&rig);
}

static void test_query_endpoint__a_request_byte_by_byte(void **state)
{
    uint8_t message[1024], head[9];
    struct query q;
    size_t n;
    int fd;
    (void)state;
    query_init(&q, QUERY_STATUS);
    assert_int_equal(query_put(&q, message + 17, sizeof message - 17, &n), 0);
    memset(message, 0, 17);
    message[0] = 1;
    message[8] = (uint8_t)(n + 8);
    message[12] = 7;    /* a hop */
    message[13] = 0x80; /* the bottom */
    message[16] = 9;
    n += 17;
    fd = by_hand();
    for (size_t i = 0; i < n; i++)
        rig_write(fd, message + i, 1);
    assert_true(rig_read(fd, head, sizeof head));
    assert_int_equal(head[0], 1);
    assert_true(rig_read(fd, message + 100, 8));
    assert_memory_equal(message + 100, message + 9, 8);
    close(fd);
    /* cut everywhere */
    for (size_t cut = 0; cut < n; cut++) {
        fd = by_hand();
        rig_write(fd, message, cut);
        close(fd);
    }
    assert_true(rig_alive(&rig));
    rig_stop(&rig);
}

static void test_query_endpoint__many_that_do_not_read(void **state)
{
    struct query q;
    uint8_t message[1024];
    size_t n;
    int fds[32];
    (void)state;
    fill(3000);
    q = records("");
    assert_int_equal(query_put(&q, message + 13, sizeof message - 13, &n), 0);
    memset(message, 0, 13);
    message[0] = 1;
    message[8] = (uint8_t)(n + 4);
    message[9] = 0x80;
    for (int i = 0; i < 32; i++) {
        fds[i] = by_hand();
        for (int k = 0; k < 8; k++)
            rig_write_any(fds[i], message, n + 13);
    }
    q = records("forward-Linear-1-1");
    assert_int_equal(ask(&q), PAGE_OK); /* others are served meanwhile */
    rig_stop(&rig);
    for (int i = 0; i < 32; i++)
        close(fds[i]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_query_endpoint__records_by_name),
        TEST(test_query_endpoint__nothing_says_what_there_is),
        TEST(test_query_endpoint__many_records_come_by_pages),
        TEST(test_query_endpoint__runs_are_listed),
        TEST(test_query_endpoint__sql_reads_and_nothing_else),
        TEST(test_query_endpoint__printf_has_bounds),
        TEST(test_query_endpoint__sql_comes_by_pages),
        TEST(test_query_endpoint__a_long_question_is_ended),
        TEST(test_query_endpoint__no_step_is_long),
        TEST(test_query_endpoint__bombs),
        TEST(test_query_endpoint__functions_are_sqlites),
        TEST(test_query_endpoint__json_of_a_process_can_be_taken_apart),
        TEST(test_query_endpoint__short_questions_pass_long_ones),
        TEST(test_query_endpoint__stop_leaves_a_stuck_worker_behind),
        TEST(test_query_endpoint__newest_is_looked_for_in_what_is_there),
        TEST(test_query_endpoint__stop_does_not_wait_for_a_question),
        TEST(test_query_endpoint__status_tells_of_the_daemon),
        TEST(test_query_endpoint__not_a_request_is_answered_so),
        TEST(test_query_endpoint__raw_req_with_many_on_the_way),
        TEST(test_query_endpoint__hostile_peers_lose_their_connection),
        TEST(test_query_endpoint__a_request_byte_by_byte),
        TEST(test_query_endpoint__many_that_do_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
