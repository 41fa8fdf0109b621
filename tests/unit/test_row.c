/* Stored rows: the schema, the SQL over it and the views, in real SQLite. */
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>

#include "tests/lib/unit.h"

#include "proto/row.h"
#include "tracerd/stats.h"
#include "schema.h"

static sqlite3 *db;

static void run(const char *sql)
{
    char *error = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &error))
        fail_msg("%s: %s", sql, error);
}

static int open_db(void **state)
{
    (void)state;
    sqlite3_open(":memory:", &db);
    run(schema_sql);
    run("INSERT INTO meta VALUES('name', 'r');"
        "INSERT INTO stream VALUES"
        " (0,0,0,11,2,1,1,'b','h',0,'c',1000,5,'',9,2,50,9,'open',"
        "  0,0),"
        " (4096,0,1,12,2,1,1,'b','h',0,'c',2000,5,'',4,2,60,9,'ended',"
        "  250,1024);"
        "INSERT INTO object VALUES(1,'Linear',1,'a'),(2,'Conv-1',2,'b'),"
        " (3,'We[ir]d',1,'c');"
        "INSERT INTO path VALUES(1,'0'),(2,'a.weight');"
        "INSERT INTO shape VALUES(1,'2 2',4),(2,'',1),(3,'0',0);");
    return 0;
}

static int close_db(void **state)
{
    (void)state;
    return sqlite3_close(db);
}

static void record(const char *values)
{
    char sql[1024];
    snprintf(sql, sizeof sql, "INSERT INTO record VALUES(%s)", values);
    run(sql);
}

static void some_records(void)
{
    /* step object pass stream io position seq t iter mb labels note path
     * dtype shape n nan pinf ninf zero sub max min absmin mean std
     * l2 hash samples given */
    record("1,1,1,0,1,0,1,10,1,1,0,NULL,1,2,1,NULL,0,0,0,0,0,"
           "4.0,1.0,1.0,2.5,1.5,6.0,-1,x'0000803f00008040',NULL");
    record("1,1,1,4096,1,0,1,10,1,1,0,NULL,1,2,1,NULL,1,0,0,0,0,"
           "4.0,1.0,1.0,2.5,1.5,6.0,255,NULL,NULL");
    record("2,1,1,0,2,1,2,20,2,1,0,NULL,1,2,1,NULL,0,1,0,0,0,"
           "4.0,1.0,1.0,2.5,1.5,6.0,5,NULL,NULL");
    record("1,2,2,0,1,0,3,30,1,1,1,NULL,1,13,2,NULL,0,0,0,0,0,"
           "-5,-5,5,-5.0,0.0,5.0,6,x'fbffffffffffffff',NULL");
    record("1,1,3,0,0,0,4,40,1,0,8,NULL,2,23,1,NULL,NULL,NULL,NULL,NULL,"
           "NULL,NULL,1.5,NULL,0.5,NULL,NULL,NULL,NULL,129");
    record("1,3,1,0,1,0,5,50,1,1,0,NULL,1,2,3,NULL,0,0,0,0,0,"
           "NULL,NULL,NULL,NULL,NULL,NULL,7,NULL,NULL");
}

static int bind_all(sqlite3_stmt *s, const struct sql *q)
{
    for (unsigned i = 0; i < q->n; i++)
        if (q->bind[i].type == CELL_INT)
            sqlite3_bind_int64(s, (int)i + 1, q->bind[i].i);
        else
            sqlite3_bind_text(s, (int)i + 1, q->bind[i].s.text,
                              (int)q->bind[i].s.n, SQLITE_STATIC);
    return 0;
}

static struct cell cell_of(sqlite3_stmt *s, int i)
{
    struct cell c = {.type = CELL_NULL, .s = {"", 0}};
    switch (sqlite3_column_type(s, i)) {
    case SQLITE_INTEGER:
        c.type = CELL_INT;
        c.i = sqlite3_column_int64(s, i);
        break;
    case SQLITE_FLOAT:
        c.type = CELL_REAL;
        c.f = sqlite3_column_double(s, i);
        break;
    case SQLITE_TEXT:
    case SQLITE_BLOB:
        c.type = CELL_BLOB;
        c.s.text = sqlite3_column_blob(s, i);
        c.s.n = (size_t)sqlite3_column_bytes(s, i);
        break;
    }
    return c;
}

/* Runs a question as daemon and tools do; the seqs it gives, in order. */
static unsigned ask(const char *name, struct query *q, uint64_t *seqs,
                    struct row *last)
{
    struct name_query parsed;
    struct sql sql;
    const char *why;
    unsigned n = 0;
    sqlite3_stmt *s;
    if (name_parse(slice_of(name), (enum name_as)q->as, &parsed, &why))
        fail_msg("%s", why);
    for (unsigned i = 0; i < parsed.n; i++) {
        assert_int_equal(sql_exists(&parsed.reading[i], &sql), 0);
        sqlite3_prepare_v2(db, sql.text, -1, &s, NULL);
        bind_all(s, &sql);
        int found = sqlite3_step(s) == SQLITE_ROW;
        sqlite3_finalize(s);
        if (!found)
            continue;
        assert_int_equal(sql_records(q, &parsed.reading[i], &sql), 0);
        if (sqlite3_prepare_v2(db, sql.text, -1, &s, NULL))
            fail_msg("%s\n%s", sqlite3_errmsg(db), sql.text);
        bind_all(s, &sql);
        while (sqlite3_step(s) == SQLITE_ROW) {
            struct cell c[ROW_COLUMN_COUNT];
            for (int k = 0; k < ROW_COLUMN_COUNT; k++)
                c[k] = cell_of(s, k);
            assert_int_equal(row_get(c, last), 0);
            /* the next step takes the row's memory back */
            static char class_name[64];
            memcpy(class_name, last->class_name.text, last->class_name.n);
            last->class_name.text = class_name;
            seqs[n++] = last->seq;
        }
        sqlite3_finalize(s);
        break;
    }
    return n;
}

static void test_row__query_by_object_pass_and_step(void **state)
{
    (void)state;
    struct query q;
    struct row r;
    uint64_t seq[8];
    query_init(&q, QUERY_RECORDS);
    some_records();
    assert_int_equal(ask("forward-Linear-1-1", &q, seq, &r), 2);
    assert_int_equal(r.rank, 1);
    assert_int_equal(r.stats.nan, 1);
    assert_int_equal(r.ts_ns, 2010);
    q.rank = 0;
    assert_int_equal(ask("forward-Linear-1-1", &q, seq, &r), 1);
    assert_slice(r.class_name, "Linear");
    assert_int_equal(r.ndim, 2);
    assert_int_equal(r.shape[1], 2);
    assert_int_equal(r.stats.has, TRD_HAS_ALL);
    assert_int_equal(r.stats.sample_n, 2);
    q.rank = -1;
    assert_int_equal(ask("forward-Linear-1-5", &q, seq, &r), 0);
    assert_int_equal(ask("forward-Linear-1-2-output.1", &q, seq, &r), 1);
    assert_int_equal(ask("forward-Linear-1-2-output", &q, seq, &r), 0);
    assert_int_equal(ask("backward-Conv-1-2-1", &q, seq, &r), 1);
    assert_int_equal(r.stats.max.i, -5);
    assert_int_equal(r.stats.absmax.u, 5);
    assert_true(r.labels & TRD_L_RECOMPUTE);
    assert_int_equal(ask("*-*-*-1", &q, seq, &r), 5);
    assert_int_equal(ask("*near-1-1*", &q, seq, &r), 2);
    assert_int_equal(ask("*-2-output", &q, seq, &r), 1);
    assert_int_equal(ask("*weight-1", &q, seq, &r), 1);
    assert_int_equal(ask("*Conv*-in?ut", &q, seq, &r), 1);
    assert_int_equal(ask("*We[ir]d*", &q, seq, &r), 1);
    assert_int_equal(ask("forward-We[ir]?-1-1", &q, seq, &r), 1);
    assert_int_equal(r.stats.has, TRD_HAS_COUNTS | TRD_HAS_HASH);
    assert_int_equal(ask("forward-a-2", &q, seq, &r), 1);
    assert_int_equal(ask("forward-b", &q, seq, &r), 0);
}

static void test_row__given_figures_come_back_as_given(void **state)
{
    (void)state;
    struct query q;
    struct row r;
    uint64_t seq[8];
    double numpy[5];
    query_init(&q, QUERY_RECORDS);
    some_records();
    assert_int_equal(ask("grad-a.weight-1", &q, seq, &r), 1);
    assert_true(isnan(r.stats.max.f));   /* code 1 */
    assert_true(r.stats.min.f == 1.5);   /* code 0 */
    assert_true(r.stats.mean == 0.5);    /* code 0 */
    assert_true(isinf(r.stats.std));     /* code 2 */
    assert_int_equal(trd_stats_numpy(&r.stats, r.dtype, numpy), 15);
    assert_true(isnan(numpy[0]) && numpy[1] == 1.5);
    assert_int_equal(given_code((double)NAN) | given_code(1.5) << 2 |
                         given_code((double)INFINITY) << 6,
                     129);
}

static void test_row__pages_go_on_behind_the_cursor(void **state)
{
    (void)state;
    for (uint32_t order = ORDER_NAME; order <= ORDER_SEQ; order++) {
        struct query q;
        struct row r;
        uint64_t all[8], one[8];
        uint8_t cursor[ROW_CURSOR_MAX];
        if (order == ORDER_NAME)
            some_records();
        query_init(&q, QUERY_RECORDS);
        q.order = order;
        unsigned n = ask("*", &q, all, &r);
        assert_int_equal(n, 6);
        q.limit = 1;
        for (unsigned i = 0; i < n; i++) {
            assert_int_equal(ask("*", &q, one, &r), 1);
            assert_int_equal(one[0], all[i]);
            q.cursor.n = row_cursor(&r, order, cursor);
            q.cursor.text = (const char *)cursor;
        }
        assert_int_equal(ask("*", &q, one, &r), 0);
        q.cursor.n = 3;
        struct sql sql;
        assert_int_equal(sql_records(&q, NULL, &sql), TRD_EINVAL);
    }
}

static double number(const char *sql)
{
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL))
        fail_msg("%s", sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    double v = sqlite3_column_type(s, 0) == SQLITE_NULL
                   ? (double)NAN
                   : sqlite3_column_double(s, 0);
    sqlite3_finalize(s);
    return v;
}

static void test_view__record_has_numpys_form(void **state)
{
    (void)state;
    some_records();
    assert_true(isnan(number("SELECT max FROM v_record WHERE nan > 0")));
    assert_true(isinf(number("SELECT max FROM v_record WHERE pinf > 0")));
    assert_true(number("SELECT min FROM v_record WHERE pinf > 0") == 1);
    assert_true(isnan(number("SELECT std FROM v_record WHERE pinf > 0")));
    assert_true(
        number("SELECT finite_max FROM v_record WHERE pinf > 0") == 4);
    assert_true(isinf(
        number("SELECT std FROM v_record WHERE name = 'grad-a.weight-1'")));
    assert_true(number("SELECT count(*) FROM v_record WHERE name = "
                       "'forward-Linear-1-2-output.1'") == 1);
    assert_true(number("SELECT count(*) FROM v_record WHERE hash = "
                       "'ffffffffffffffff'") == 1);
    assert_true(number("SELECT count(*) FROM v_record WHERE labels = "
                       "'recompute' AND recompute") == 1);
}

static void test_view__samples_of_every_dtype_decode(void **state)
{
    (void)state;
    const struct {
        int dtype;
        const char *hex;
        double value;
    } rows[] = {
        {TRD_F64, "000000000000f0bf", -1}, {TRD_F64, "0100000000000000",
                                            0x1p-1074},
        {TRD_F32, "0000c03f", 1.5},        {TRD_F32, "01000080", -0x1p-149},
        {TRD_F16, "ff7b", 65504},          {TRD_F16, "0100", 0x1p-24},
        {TRD_BF16, "803f", 1},             {TRD_BF16, "80ff", -INFINITY},
        {TRD_F8_E4M3FN, "7e", 448},        {TRD_F8_E4M3FN, "01", 0x1p-9},
        {TRD_F8_E5M2, "7b", 57344},        {TRD_F8_E5M2, "7c", INFINITY},
        {TRD_F8_E4M3FNUZ, "7f", 240},      {TRD_F8_E5M2FNUZ, "7f", 57344},
        {TRD_F8_E8M0FNU, "80", 2},         {TRD_I8, "80", -128},
        {TRD_I16, "0080", -32768},         {TRD_I32, "ffffffff", -1},
        {TRD_I64, "ffffffffffffffff", -1}, {TRD_U8, "ff", 255},
        {TRD_U16, "ffff", 65535},          {TRD_U32, "ffffffff", 4294967295},
        {TRD_BOOL, "01", 1},               {TRD_TEXT, "000000000000e03f", .5},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char sql[512];
        snprintf(sql, sizeof sql,
                 "DELETE FROM record; INSERT INTO record VALUES(1,1,1,0,1,0,1"
                 ",1,1,1,0,NULL,1,%d,2,NULL,0,0,0,0,0,NULL,NULL,NULL,NULL,"
                 "NULL,NULL,7,x'%s',NULL)",
                 rows[i].dtype, rows[i].hex);
        run(sql);
        double v = number("SELECT value FROM v_sample");
        if (v != rows[i].value)
            fail_msg("%s %s: %g", trd_dtype_name(rows[i].dtype), rows[i].hex,
                     v);
    }
    run("UPDATE record SET dtype = 20, samples = x'0000803f000000c0'");
    assert_true(number("SELECT imag FROM v_sample") == -2);
    run("UPDATE record SET dtype = 2, samples = x'0000c07f'");
    assert_true(isnan(number("SELECT value FROM v_sample")));
}

static int is(const char *sql, const char *expected)
{
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL))
        fail_msg("%s", sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    const char *text = (const char *)sqlite3_column_text(s, 0);
    int same = expected ? text && !strcmp(text, expected) : !text;
    if (!same)
        print_error("%s: %s\n", sql, text ? text : "NULL");
    sqlite3_finalize(s);
    return same;
}

/* Records of 1000 elements with two samples: seq 1 equidistant, 2 every, 3
 * random, 4 every with the largest distance. Histograms: seq 3, 4. */
static void extra_records(void)
{
    run("INSERT INTO shape VALUES(4,'1000',1000)");
    for (int seq = 1; seq <= 4; seq++) {
        char values[256];
        snprintf(values, sizeof values,
                 "%d,1,1,0,1,0,%d,10,1,1,0,NULL,1,%d,4,NULL,0,0,0,0,0,NULL,"
                 "NULL,NULL,NULL,NULL,NULL,7,x'0000803f00008040',NULL",
                 seq, seq, seq < 4 ? TRD_F32 : TRD_I32);
        record(values);
    }
    run("INSERT INTO extra VALUES(0,2,1,16,NULL),"
        "(0,3,2,-1,x'0102027e00030000002c01'),(0,4,1,-1,x'020c010001')");
}

static void test_row__rules_and_histograms_come_back(void **state)
{
    (void)state;
    struct query q;
    struct row r;
    uint64_t seq[8];
    query_init(&q, QUERY_RECORDS);
    extra_records();
    assert_int_equal(ask("forward-Linear-1-1", &q, seq, &r), 1);
    assert_int_equal(r.stats.sampling, TRD_EQUIDISTANT);
    assert_int_equal(r.histogram.kind, TRD_HISTOGRAM_NONE);
    assert_int_equal(ask("forward-Linear-1-2", &q, seq, &r), 1);
    assert_int_equal(r.stats.sampling, TRD_EVERY);
    assert_int_equal(r.stats.sampling_arg, 16);
    assert_int_equal(r.histogram.kind, TRD_HISTOGRAM_NONE);
    assert_int_equal(ask("forward-Linear-1-3", &q, seq, &r), 1);
    assert_int_equal(r.stats.sampling, TRD_RANDOM);
    assert_true(r.stats.sampling_arg == UINT64_MAX);
    assert_int_equal(r.histogram.kind, TRD_HISTOGRAM_ROWS);
    assert_int_equal(r.histogram.first, 126);
    assert_int_equal(r.histogram.n, 3);
    assert_int_equal(r.histogram.width, 2);
}

/* What no writer of ours makes: an error, not a crash. */
static void test_row__damaged_extras_are_refused(void **state)
{
    static const char *const bad[] = {
        "sampling = 3", "sampling = -1", "sampling = 'x'",
        "sampling = 1, sampling_arg = 0", "histogram = x''",
        "histogram = 1", "histogram = x'0102'", "histogram = x'0302010000'",
        "histogram = x'0103010000'", "histogram = x'0102030000'",
        "histogram = x'0102010101'", "histogram = x'01020200000001ff'"};
    (void)state;
    struct query q;
    struct sql sql;
    query_init(&q, QUERY_RECORDS);
    extra_records();
    run("DELETE FROM record WHERE seq != 3; DELETE FROM extra WHERE seq != 3");
    assert_int_equal(sql_records(&q, NULL, &sql), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[256];
        sqlite3_stmt *s;
        struct cell c[ROW_COLUMN_COUNT];
        struct row r;
        snprintf(text, sizeof text, "UPDATE extra SET %s", bad[i]);
        run("SAVEPOINT whole");
        run(text);
        assert_int_equal(sqlite3_prepare_v2(db, sql.text, -1, &s, NULL), 0);
        assert_int_equal(sqlite3_step(s), SQLITE_ROW);
        for (int k = 0; k < ROW_COLUMN_COUNT; k++)
            c[k] = cell_of(s, k);
        if (row_get(c, &r) != TRD_ECORRUPT)
            fail_msg("%s", bad[i]);
        sqlite3_finalize(s);
        run("ROLLBACK TO whole; RELEASE whole");
    }
}

static void test_view__rules_are_words_and_elements(void **state)
{
    (void)state;
    extra_records();
    assert_true(is("SELECT sampling FROM v_record WHERE seq = 1", NULL));
    assert_true(is("SELECT sampling FROM v_record WHERE seq = 2", "every 16"));
    assert_true(is("SELECT sampling FROM v_record WHERE seq = 3",
                   "random seed 18446744073709551615"));
    assert_true(is("SELECT sampling FROM v_record WHERE seq = 4",
                   "every 18446744073709551615"));
    assert_true(is("SELECT group_concat(element) FROM v_sample WHERE seq = 1",
                   "0,999"));
    assert_true(is("SELECT group_concat(element) FROM v_sample WHERE seq = 2",
                   "0,16"));
    assert_true(is("SELECT element FROM v_sample WHERE seq = 4", "0"));
}

/* SQL has no unsigned 64 bits, and yet finds what was drawn. */
static void test_view__random_elements_are_those_drawn(void **state)
{
    static const uint64_t lengths[] = {1, 5, 16, 17, 1000, 65537,
                                       (UINT64_C(1) << 31) + 5,
                                       (UINT64_C(1) << 53) + 3,
                                       UINT64_C(1) << 62, INT64_MAX};
    static const uint64_t seeds[] = {0, 1, 7, UINT32_MAX, UINT64_C(1) << 63,
                                     UINT64_C(0xbf58476d1ce4e5b9), UINT64_MAX};
    (void)state;
    some_records();
    run("DELETE FROM record WHERE seq > 1 OR stream > 0;"
        "UPDATE record SET dtype = 14; INSERT INTO extra VALUES(0,1,2,0,NULL)");
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t s = 0; s < sizeof seeds / sizeof *seeds; s++) {
            struct trd_want want = {.samples = 16, .sampling = TRD_RANDOM,
                                    .sampling_arg = seeds[s]};
            uint32_t count = trd_sample_count(lengths[l], &want);
            char sql[256], expected[16 * 21 + 1];
            size_t at = 0;
            snprintf(sql, sizeof sql,
                     "UPDATE record SET n = %lld, samples = zeroblob(%u);"
                     "UPDATE extra SET sampling_arg = %lld",
                     (long long)lengths[l], (unsigned)count,
                     (long long)seeds[s]);
            run(sql);
            for (uint32_t i = 0; i < count; i++)
                at += (size_t)snprintf(
                    expected + at, sizeof expected - at, "%s%llu",
                    i ? "," : "",
                    (unsigned long long)trd_sample_index(lengths[l], &want,
                                                         i));
            assert_true(is("SELECT group_concat(element) FROM v_sample",
                           expected));
        }
}

static void test_view__histogram_has_a_row_a_bin(void **state)
{
    (void)state;
    extra_records();
    assert_true(is("SELECT group_concat(bin || ' ' || exponent || ' ' || "
                   "count || ' ' || kind) FROM v_histogram WHERE seq = 3",
                   "126 -1 3 rows,127 0 0 rows,128 1 300 rows"));
    assert_true(is("SELECT histogram FROM v_record WHERE seq = 1", NULL));
    assert_true(number("SELECT sum(h.count) FROM v_record r JOIN v_histogram "
                       "h USING(stream, seq) WHERE r.step = 3") == 303);
    /* no element: no row */
    assert_true(number("SELECT count(*) FROM v_histogram WHERE seq = 4") == 0);
    /* every width, and the last bin of a complex tensor */
    run("UPDATE extra SET histogram = x'02150207ff00010001ff'"
        " WHERE seq = 4");
    assert_true(is("SELECT count(*) FROM v_histogram WHERE seq = 4", "2"));
    run("UPDATE extra SET histogram = x'021501ff07ff' WHERE seq = 4");
    assert_true(is("SELECT bin || ' ' || exponent || ' ' || count || ' ' || "
                   "kind FROM v_histogram WHERE seq = 4",
                   "2047 1024 255 exact"));
    run("UPDATE extra SET histogram = x'020c042000ffffff7f' WHERE seq = 4");
    assert_true(is("SELECT bin || ' ' || exponent || ' ' || count "
                   "FROM v_histogram WHERE seq = 4",
                   "32 31 2147483647"));
    run("UPDATE extra SET histogram = x'020c080000ffffffffffffff7f' "
        "WHERE seq = 4");
    assert_true(is("SELECT bin || ' ' || exponent || ' ' || count "
                   "FROM v_histogram WHERE seq = 4",
                   "0 -1 9223372036854775807"));
}

/* The words of the schema are those of record.h. */
/* 200 records of 16 samples, of one object at as many steps. */
static void sampled_records(void)
{
    run("WITH RECURSIVE up(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM up"
        "  WHERE i < 200)"
        "INSERT INTO record(step, object, pass, stream, io, position, seq,"
        " t_ns, iteration, microbatch, labels, path, dtype, shape, samples)"
        " SELECT i, 1, 1, 0, 1, 0, i, i, i, 1, 0, 1, 2, 1, zeroblob(64)"
        " FROM up");
}

/* What a whole answer cost, one of SQLITE_STMTSTATUS_. */
static int cost(const char *sql, int counter)
{
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL))
        fail_msg("%s", sqlite3_errmsg(db));
    while (sqlite3_step(s) == SQLITE_ROW)
        continue;
    int n = sqlite3_stmt_status(s, counter, 0);
    sqlite3_finalize(s);
    return n;
}

static void test_view__samples_look_at_a_record_once(void **state)
{
    (void)state;
    sampled_records();
    /* beside the 199 steps to the next record nothing is walked through but
     * what is made for one sample */
    assert_true(cost("SELECT count(*) FROM v_sample",
                     SQLITE_STMTSTATUS_FULLSCAN_STEP) < 2 * 200);
    /* a sample's bits are read once: eight digits, then arithmetic */
    assert_true(cost("SELECT sum(value) FROM v_sample",
                     SQLITE_STMTSTATUS_VM_STEP) < 200 * 16 * 400);
    assert_true(number("SELECT count(value) FROM v_sample") == 200 * 16);
}

/* Whether a line of the statement's plan begins so. */
static int plans(const char *sql, const char *line)
{
    char text[1024];
    sqlite3_stmt *s;
    int found = 0;
    snprintf(text, sizeof text, "EXPLAIN QUERY PLAN %s", sql);
    if (sqlite3_prepare_v2(db, text, -1, &s, NULL))
        fail_msg("%s", sqlite3_errmsg(db));
    while (sqlite3_step(s) == SQLITE_ROW)
        found |= !strncmp((const char *)sqlite3_column_text(s, 3), line,
                          strlen(line));
    sqlite3_finalize(s);
    return found;
}

static void test_view__a_step_is_found_by_the_key(void **state)
{
    static const char *const samples[] = {
        "SELECT value FROM v_sample WHERE of_step = 2"
        " AND of_object = 'Linear-1'",
        "SELECT name, value FROM v_record JOIN v_sample USING(stream, seq)"
        " WHERE of_step = step AND object = 'Linear-1' AND step = 2",
    };
    static const char histograms[] =
        "SELECT name, bin, count FROM v_record JOIN v_histogram"
        " USING(stream, seq) WHERE object = 'Linear-1' AND step = 2";
    (void)state;
    sampled_records();
    for (unsigned i = 0; i < 2; i++) {
        assert_true(plans(samples[i], "SEARCH r USING PRIMARY KEY (step=?"));
        assert_false(plans(samples[i], "SCAN r"));
        assert_true(cost(samples[i], SQLITE_STMTSTATUS_FULLSCAN_STEP) < 50);
    }
    assert_true(plans(histograms, "SEARCH r USING PRIMARY KEY (step=?"));
    assert_true(plans(histograms, "SEARCH extra USING PRIMARY KEY "
                                  "(stream=? AND seq=?)"));
    assert_false(plans(histograms, "SCAN c"));
    assert_true(plans("SELECT * FROM v_histogram", "SCAN extra"));
    assert_true(plans("SELECT * FROM v_histogram", "SEARCH c USING INTEGER"));
    assert_true(number("SELECT count(*) FROM v_sample WHERE of_step = 2"
                       " AND of_object = 'Linear-1' AND of_pass = 'forward'"
                       " AND of_module = 'a' AND of_rank = 0") == 16);
}

static void test_schema__knows_every_code(void **state)
{
    (void)state;
    char sql[128];
    for (int i = 0; i < TRD_SAMPLING_COUNT; i++) {
        snprintf(sql, sizeof sql, "SELECT name FROM sampling WHERE id = %d",
                 i);
        assert_true(is(sql, trd_sampling_name(i)));
    }
    for (int i = 1; i < TRD_HISTOGRAM_COUNT; i++) {
        snprintf(sql, sizeof sql, "SELECT name FROM histogram WHERE id = %d",
                 i);
        assert_true(is(sql, trd_histogram_name(i)));
    }
    for (int i = 1; trd_pass_name(i); i++) {
        snprintf(sql, sizeof sql, "SELECT name FROM pass WHERE id = %d", i);
        assert_true(is(sql, trd_pass_name(i)));
    }
    for (unsigned i = 0; trd_label_name(i); i++) {
        snprintf(sql, sizeof sql, "SELECT name FROM label WHERE bit = %u", i);
        assert_true(is(sql, trd_label_name(i)));
    }
    for (int i = 1; i < TRD_DTYPE_LIMIT; i++) {
        snprintf(sql, sizeof sql, "SELECT name FROM dtype WHERE id = %d", i);
        assert_true(is(sql, trd_dtype_name(i)));
    }
    /* an exponent in SQL is one of trd_bin_exponent() */
    for (int i = 1; i < TRD_DTYPE_LIMIT; i++) {
        if (!trd_dtype_bins(i))
            continue;
        run("DELETE FROM extra");
        snprintf(sql, sizeof sql,
                 "INSERT INTO extra VALUES(0,1,NULL,NULL,x'01%02x01030009')",
                 (unsigned)i);
        run(sql);
        assert_true(number("SELECT exponent FROM v_histogram") ==
                    trd_bin_exponent(i, 3));
    }
}

static void test_run__counts_need_no_scan(void **state)
{
    (void)state;
    char sql[2048];
    run("INSERT INTO loss VALUES(0, 3, 5, 7, 0, 'torn', 1)");
    snprintf(sql, sizeof sql, "SELECT records FROM (%s)", sql_run);
    assert_true(number(sql) == 9 + 4 - 3);
    snprintf(sql, sizeof sql, "SELECT losses FROM (%s)", sql_run);
    assert_true(number(sql) == 7);
    assert_true(number("SELECT sum(records) FROM v_run") == 9 + 4 - 3);
    snprintf(sql, sizeof sql, "SELECT block_ms FROM (%s)", sql_run);
    assert_true(number(sql) == 250);
    snprintf(sql, sizeof sql, "SELECT spool_bytes FROM (%s)", sql_run);
    assert_true(number(sql) == 1024);
    /* records that were taken out are neither there nor lost */
    run("INSERT INTO pruned VALUES(0, 1, 2, 'last 5', 1);"
        "INSERT INTO meta VALUES('pruned', 2)");
    snprintf(sql, sizeof sql, "SELECT records FROM (%s)", sql_run);
    assert_true(number(sql) == 9 + 4 - 3 - 2);
    snprintf(sql, sizeof sql, "SELECT pruned FROM (%s)", sql_run);
    assert_true(number(sql) == 2);
    assert_true(number("SELECT sum(records) FROM v_run") == 9 + 4 - 3 - 2);
    assert_true(number("SELECT sum(pruned) FROM v_run") == 2);
    assert_true(number("SELECT count FROM v_pruned WHERE seq = 1") == 2);
    run("DELETE FROM pruned; DELETE FROM meta WHERE key = 'pruned'");
    /* counts that no 64 bits hold together are still told */
    run("INSERT INTO loss VALUES(0, 6, 6, 9223372036854775807, 0, 'x', 1),"
        " (0, 7, 7, 9223372036854775807, 0, 'x', 1)");
    snprintf(sql, sizeof sql, "SELECT losses FROM (%s)", sql_run);
    assert_true(number(sql) >= 9e18);
    assert_true(number("SELECT max(lost) FROM v_run") >= 9e18);
    /* a run of before has neither */
    run("PRAGMA legacy_alter_table = ON; CREATE TABLE older AS SELECT attempt,"
        " rank, real_ns, last_ns, iteration, seq, state FROM stream;"
        "DROP TABLE stream; ALTER TABLE older RENAME TO stream");
    snprintf(sql, sizeof sql, "SELECT spool_bytes FROM (%s)", sql_run);
    assert_true(number(sql) == 0);
}

int main(void)
{
#define DB_TEST(name) cmocka_unit_test_setup_teardown(name, open_db, close_db)
    const struct CMUnitTest tests[] = {
        DB_TEST(test_row__query_by_object_pass_and_step),
        DB_TEST(test_row__given_figures_come_back_as_given),
        DB_TEST(test_row__pages_go_on_behind_the_cursor),
        DB_TEST(test_view__record_has_numpys_form),
        DB_TEST(test_view__samples_of_every_dtype_decode),
        DB_TEST(test_row__rules_and_histograms_come_back),
        DB_TEST(test_row__damaged_extras_are_refused),
        DB_TEST(test_view__rules_are_words_and_elements),
        DB_TEST(test_view__random_elements_are_those_drawn),
        DB_TEST(test_view__histogram_has_a_row_a_bin),
        DB_TEST(test_view__samples_look_at_a_record_once),
        DB_TEST(test_view__a_step_is_found_by_the_key),
        DB_TEST(test_schema__knows_every_code),
        DB_TEST(test_run__counts_need_no_scan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
