/* Questions for records by name: readings against the run's dictionary, the
 * pages, and what to say when there is nothing. Any thread. */
#include "daemon/store_ask.h"

#include "proto/row.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    NEAREST = 3,
    NEAREST_ROWS = 20000, /* names that are compared */
    NEAREST_LENGTH = 64
};

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

/* Levenshtein's distance of the first bytes. */
static unsigned distance(struct slice a, struct slice b)
{
    unsigned row[NEAREST_LENGTH + 1];
    size_t an = a.n < NEAREST_LENGTH ? a.n : NEAREST_LENGTH;
    size_t bn = b.n < NEAREST_LENGTH ? b.n : NEAREST_LENGTH;

    for (size_t j = 0; j <= bn; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= an; i++) {
        unsigned corner = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= bn; j++) {
            unsigned old = row[j];
            unsigned best = corner + (a.text[i - 1] != b.text[j - 1]);
            if (old + 1 < best)
                best = old + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
            corner = old;
        }
    }
    return row[bn];
}

struct nearest {
    unsigned distance[NEAREST];
    char name[NEAREST][NEAREST_LENGTH + 1];
    unsigned n;
};

static void consider(struct nearest *l, struct slice who, struct slice name)
{
    unsigned d, at;
    if (name.n == 0 || name.n > NEAREST_LENGTH)
        return;
    d = distance(who, name);
    if (d > 2 + who.n / 2)
        return;
    for (at = l->n; at > 0 && l->distance[at - 1] > d; at--)
        if (at < NEAREST) {
            l->distance[at] = l->distance[at - 1];
            memcpy(l->name[at], l->name[at - 1], sizeof l->name[at]);
        }
    if (at >= NEAREST)
        return;
    l->distance[at] = d;
    memcpy(l->name[at], name.text, name.n);
    l->name[at][name.n] = '\0';
    if (l->n < NEAREST)
        l->n++;
}

static void find_nearest(struct question *k, struct slice who,
                         struct nearest *l)
{
    sqlite3_stmt *s = NULL;
    unsigned rows = 0;
    if (sqlite3_prepare_v2(k->db,
                           "SELECT class FROM object UNION SELECT module FROM "
                           "object UNION SELECT text FROM path",
                           -1, &s, NULL) != SQLITE_OK)
        return;
    while (rows++ < NEAREST_ROWS && sqlite3_step(s) == SQLITE_ROW) {
        struct cell c = ask_cell(s, 0);
        consider(l, who, c.s);
    }
    sqlite3_finalize(s);
}

static size_t say_unknown(struct question *k, const struct name_query *names)
{
    struct nearest l = {.n = 0};
    struct slice who = names->n ? names->reading[0].who : slice_of("");
    char list[NEAREST * (NEAREST_LENGTH + 8)] = "";
    size_t n = 0;

    find_nearest(k, who, &l);
    for (unsigned i = 0; i < l.n; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s'%s'",
                              i ? ", " : "; nearest: ", l.name[i]);
    return ask_say(k, PAGE_NOTHING,
                   "run '%s' has no object, module or path '%.*s'%s", k->run,
                   (int)(who.n < 200 ? who.n : 200), who.text, list);
}

static size_t say_no_records(struct question *k)
{
    int64_t first = ask_int(k->db, "SELECT min(step) FROM record");
    int64_t last = ask_int(k->db, "SELECT max(step) FROM record");
    int64_t any = ask_int(k->db, "SELECT EXISTS(SELECT 1 FROM record)");
    if (any <= 0)
        return ask_say(k, PAGE_NOTHING, "run '%s' has no records yet", k->run);
    return ask_say(k, PAGE_NOTHING,
                   "no record of run '%s' is like this; its steps are %lld to "
                   "%lld",
                   k->run, (long long)first, (long long)last);
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

    page_open(&p, k->out, k->cap, PAGE_OK, slice_of(""));
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

static size_t run_records(struct question *k, const struct name_reading *r,
                          struct sql *sql)
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
        n = say_no_records(k);
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
        n = ask_progress(k) ? ask_say_failed(k) : say_unknown(k, &names);
    else
        n = run_records(k, reading, sql);
    free(sql);
    return n;
}
