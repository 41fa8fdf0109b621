/* Questions for records by name: readings against the run's dictionary, the
 * pages, and what to say when there is nothing. Any thread. */
#include "daemon/store_ask.h"

#include "proto/missing.h"

#include <stdlib.h>

static sqlite3_stmt *prepare(struct question *k, const struct sql *sql)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(k->db, sql->text, -1, &s, NULL) != SQLITE_OK)
        return NULL;
    for (unsigned i = 0; i < sql->n; i++) {
        const struct cell *c = &sql->bind[i];
        if (c->type == CELL_INT)
            sqlite3_bind_int64(s, (int)i + 1, c->i);
        else
            sqlite3_bind_text(s, (int)i + 1, c->s.text, (int)c->s.n,
                              SQLITE_TRANSIENT);
    }
    return s;
}

/* The first reading that the run knows; NULL for none. */
static const struct name_reading *find_reading(struct question *k,
                                               const struct name_query *names,
                                               struct sql *sql)
{
    for (unsigned i = 0; i < names->n; i++) {
        sqlite3_stmt *s;
        int rc;
        if (sql_exists(&names->reading[i], sql))
            continue;
        s = prepare(k, sql);
        rc = s ? sqlite3_step(s) : SQLITE_ERROR;
        sqlite3_finalize(s);
        if (rc == SQLITE_ROW)
            return &names->reading[i];
    }
    return NULL;
}

/* Runs a statement for missing_say(). */
static int ask_rows(void *context, const struct sql *sql, missing_take *take,
                    void *to)
{
    enum { COLUMNS = 3 };
    struct cell cells[COLUMNS];
    struct question *k = context;
    sqlite3_stmt *s = prepare(k, sql);
    int rc = SQLITE_ERROR;
    while (s && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        for (int i = 0; i < sqlite3_column_count(s) && i < COLUMNS; i++)
            cells[i] = ask_cell(s, i);
        take(to, cells);
    }
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? 0 : -1;
}

static size_t say_missing(struct question *k, const struct name_query *names,
                          const struct name_reading *reading, struct sql *sql)
{
    const struct missing m = {.run = k->run,
                              .q = k->q,
                              .names = k->q->name.n ? names : NULL,
                              .reading = reading,
                              .ask = ask_rows,
                              .context = k};
    char text[MISSING_BYTES];
    if (missing_say(&m, sql, text))
        return ask_say_failed(k);
    return ask_say(k, PAGE_NOTHING, "%s", text);
}

static const char *const record_columns[] = {
#define RECORD_COLUMN_NAME(name, sql) #name,
    ROW_COLUMNS(RECORD_COLUMN_NAME)
#undef RECORD_COLUMN_NAME
};

/* Fills a page from the statement. *rc is the last code of SQLite. */
static size_t record_page(struct question *k, sqlite3_stmt *s, int *rc,
                          uint32_t *rows)
{
    struct cell cells[ROW_COLUMN_COUNT];
    uint8_t cursor[ROW_CURSOR_MAX];
    struct slice where = {(const char *)cursor, 0};
    size_t cursor_n = 0;
    struct page_writer p;
    bool full = false;

    page_open(&p, k->out, k->cap, PAGE_OK, slice_of(k->run));
    page_columns(&p, record_columns, ROW_COLUMN_COUNT);
    while (!full && (*rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct row row;
        for (int i = 0; i < ROW_COLUMN_COUNT; i++)
            cells[i] = ask_cell(s, i);
        if (row_get(cells, &row)) {
            *rc = SQLITE_CORRUPT;
            break;
        }
        if (!ask_put_row(&p, cells, ROW_COLUMN_COUNT))
            full = true;
        else
            cursor_n = row_cursor(&row, k->q->order, cursor);
        full = full || ask_page_is_full(&p);
    }
    *rows = p.rows;
    if (full || (*rc != SQLITE_DONE && p.rows))
        where.n = cursor_n;
    return page_close(&p, where);
}

static size_t run_records(struct question *k, const struct name_query *names,
                          const struct name_reading *r, struct sql *sql)
{
    sqlite3_stmt *s;
    uint32_t rows = 0;
    size_t n;
    int rc = sql_records(k->q, r, sql);

    if (rc == TRD_EINVAL)
        return ask_say(k, PAGE_BAD, "a cursor of another question");
    if (rc)
        return ask_say(k, PAGE_BAD, "the name is too long");
    s = prepare(k, sql);
    if (!s)
        return ask_say_failed(k);
    n = record_page(k, s, &rc, &rows);
    if (rows == 0 && rc == SQLITE_CORRUPT)
        n = ask_say(k, PAGE_FAILED,
                    "run '%s' has a record that does not hold; "
                    "'tracectl verify' tells more",
                    k->run);
    else if (rows == 0 && rc != SQLITE_DONE)
        n = ask_say_failed(k);
    else if (rows == 0 && !k->q->cursor.n)
        n = say_missing(k, names, r, sql);
    sqlite3_finalize(s);
    return n;
}

size_t ask_records(struct question *k)
{
    const struct name_reading *reading = NULL;
    struct name_query names;
    const char *why = "";
    struct sql *sql;
    size_t n = ask_open(k);

    if (n)
        return n;
    if (k->q->name.n && name_parse(k->q->name, k->q->as, &names, &why))
        return ask_say(k, PAGE_BAD, "'%.*s': %s",
                       (int)(k->q->name.n < 200 ? k->q->name.n : 200),
                       k->q->name.text, why);
    sql = malloc(sizeof *sql); /* large for a stack */
    if (!sql)
        return ask_say(k, PAGE_FAILED, "out of memory");
    if (k->q->name.n)
        reading = find_reading(k, &names, sql);
    if (k->q->name.n && !reading)
        n = ask_progress(k) ? ask_say_failed(k)
                            : say_missing(k, &names, NULL, sql);
    else
        n = run_records(k, &names, reading, sql);
    free(sql);
    return n;
}
