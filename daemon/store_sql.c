/* Questions in SQL: one statement that reads, answered by pages. Any thread.
 *
 * A page is asked for again with the number of rows to skip: nothing is kept
 * here between two pages. */
#include "daemon/store_ask.h"

enum {
    PATTERN_MAX_BYTES = 256,
    EXPRESSION_MAX_DEPTH = 200,
    STATEMENT_MAX_STEPS = 100000
};

/* What a typed statement may do: read. */
static int authorize(void *context, int action, const char *first,
                     const char *second, const char *db, const char *trigger)
{
    static const char *const pragmas[] = {
        "table_info", "table_xinfo",  "table_list",    "index_list",
        "index_info", "user_version", "application_id"};
    /* json_patch: looks through one object for each member of the other */
    static const char *const denied[] = {"load_extension", "json_patch",
                                         "fts3_tokenizer"};
    (void)context;
    (void)db;
    (void)trigger;
    switch (action) {
    case SQLITE_SELECT:
    case SQLITE_READ:
    case SQLITE_RECURSIVE:
        return SQLITE_OK;
    case SQLITE_FUNCTION:
        for (size_t i = 0; i < sizeof denied / sizeof *denied; i++) {
            if (second && sqlite3_stricmp(second, denied[i]) == 0)
                return SQLITE_DENY;
        }
        return SQLITE_OK;
    case SQLITE_PRAGMA:
        for (size_t i = 0; i < sizeof pragmas / sizeof *pragmas; i++) {
            if (first && sqlite3_stricmp(first, pragmas[i]) == 0 &&
                (i < 5 || !second))
                return SQLITE_OK;
        }
        return SQLITE_DENY;
    default:
        return SQLITE_DENY;
    }
}

/* json_each and json_tree, for v_run.info: a table-valued function writes
 * its columns to the schema in memory when it is used first, which nobody
 * may who is looked after. These two do it before; no other can. */
static void connect_json(sqlite3 *db)
{
    static const char *const uses[] = {"SELECT 1 FROM json_each('0')",
                                       "SELECT 1 FROM json_tree('0')"};
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        sqlite3_stmt *s = NULL;
        sqlite3_prepare_v2(db, uses[i], -1, &s, NULL);
        sqlite3_finalize(s); /* a SQLite without them says so when asked */
    }
}

/* What somebody types may be meant badly: a step that takes the product of
 * two lengths never looks at the clock. */
static int bound(sqlite3 *db)
{
    sqlite3_limit(db, SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_MAX_BYTES);
    sqlite3_limit(db, SQLITE_LIMIT_EXPR_DEPTH, EXPRESSION_MAX_DEPTH);
    sqlite3_limit(db, SQLITE_LIMIT_VDBE_OP, STATEMENT_MAX_STEPS);
    return ask_functions(db);
}

/* What ended a statement: where it asks for what cannot be, it is bad. */
static size_t say_why(struct question *k)
{
    switch (sqlite3_errcode(k->db)) {
    case SQLITE_TOOBIG:
        return ask_say(k, PAGE_BAD,
                       "a value is longer than %d KiB; select less of it, or "
                       "open the file itself",
                       sqlite3_limit(k->db, SQLITE_LIMIT_LENGTH, -1) >> 10);
    case SQLITE_ERROR:
        return ask_say(k, PAGE_BAD, "the statement fails: %s",
                       sqlite3_errmsg(k->db));
    default:
        return ask_say_failed(k);
    }
}

static size_t sql_page(struct question *k, sqlite3_stmt *s, uint64_t skip)
{
    const char *names[PAGE_MAX_COLUMNS];
    struct cell cells[PAGE_MAX_COLUMNS];
    struct slice where = {"", 0};
    uint8_t cursor[8];
    struct writer w = writer_of(cursor, sizeof cursor);
    struct page_writer p;
    int columns = sqlite3_column_count(s), rc;
    uint64_t seen_n = 0;
    bool full = false;

    for (int i = 0; i < columns; i++) {
        names[i] = sqlite3_column_name(s, i);
        if (!names[i] || strlen(names[i]) > 1024)
            return ask_say(k, PAGE_BAD, "a column's name is too long");
    }
    page_open(&p, k->out, k->cap, PAGE_OK, slice_of(k->run));
    page_columns(&p, names, (uint32_t)columns);
    while (!full && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        if (seen_n++ < skip)
            continue;
        if (k->q->limit && p.rows == k->q->limit)
            break;
        for (int i = 0; i < columns; i++)
            cells[i] = ask_cell(s, i);
        full = !ask_put_row(&p, cells, columns) || ask_page_is_full(&p);
    }
    if (p.rows == 0 && full)
        return ask_say(k, PAGE_BAD,
                       "a row is larger than a page; select less, "
                       "or open the file itself");
    if (!full && rc != SQLITE_DONE && rc != SQLITE_ROW && p.rows == 0)
        return say_why(k);
    if (full || (rc != SQLITE_DONE && rc != SQLITE_ROW)) {
        put_u64(&w, skip + p.rows);
        where.text = (const char *)cursor;
        where.n = sizeof cursor;
    }
    return page_close(&p, where);
}

/* The statement, or NULL with a page that says what is wrong. */
static sqlite3_stmt *prepare_typed(struct question *k, size_t *page_n)
{
    struct slice text = k->q->sql;
    sqlite3_stmt *s = NULL, *second = NULL;
    const char *tail = NULL;
    int rc;

    connect_json(k->db);
    if (bound(k->db) != SQLITE_OK) {
        *page_n = ask_say_failed(k);
        return NULL;
    }
    sqlite3_set_authorizer(k->db, authorize, NULL);
    rc = sqlite3_prepare_v2(k->db, text.text, (int)text.n, &s, &tail);
    if (rc != SQLITE_OK) {
        *page_n = ask_say(k, PAGE_BAD, "%s", sqlite3_errmsg(k->db));
        return NULL;
    }
    rc = sqlite3_prepare_v2(k->db, tail, (int)(text.text + text.n - tail),
                            &second, NULL);
    sqlite3_finalize(second);
    if (rc != SQLITE_OK || second)
        *page_n = ask_say(k, PAGE_BAD, "one statement at a time");
    else if (!s || sqlite3_column_count(s) == 0)
        *page_n = ask_say(k, PAGE_BAD, "a SELECT is wanted");
    else if (!sqlite3_stmt_readonly(s))
        *page_n = ask_say(k, PAGE_BAD, "only reading is allowed");
    else if (sqlite3_column_count(s) > PAGE_MAX_COLUMNS)
        *page_n =
            ask_say(k, PAGE_BAD, "more than %d columns", (int)PAGE_MAX_COLUMNS);
    else
        return s;
    sqlite3_finalize(s);
    return NULL;
}

size_t ask_sql(struct question *k)
{
    struct reader r = reader_of(k->q->cursor.text, k->q->cursor.n);
    uint64_t skip = k->q->cursor.n ? get_u64(&r) : 0;
    sqlite3_stmt *s;
    size_t n = ask_open(k);

    if (n)
        return n;
    if (r.bad)
        return ask_say(k, PAGE_BAD, "a cursor of another question");
    s = prepare_typed(k, &n);
    if (!s)
        return n;
    n = sql_page(k, s, skip);
    sqlite3_finalize(s);
    return n;
}
