/* Answering from a run's file, or a directory of them, without the daemon.
 *
 * Files are opened read-only and asked with the daemon's own SQL (row.h), so
 * that an answer is the same either way. Records in the order of names are
 * read a page at a time with nothing open in between: a reader that waits
 * for a pager does not keep the writer's log from shrinking. Where a page
 * cannot be found again cheaply (sorted by seq, a statement of the user) one
 * statement stays open over all pages. */
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/missing.h"
#include "proto/sql.h"
#include "tools/db_cell.h"
#include "tools/run_file.h"
#include "tools/source.h"

struct db {
    sqlite3 *sql;         /* the run asked; NULL before the first question */
    sqlite3_stmt *open;   /* a statement that goes on over pages */
    int first;            /* 1: its next row is waiting already */
    char *path;           /* as given: a file or a directory */
    char *run;            /* of the directory, "" the newest */
    int is_dir;
    char name[TRD_MAX_RUN + 1]; /* as the file of sql has it */
};

/* ---- cells and pages ---- */

static void put_columns(struct page_writer *p, sqlite3_stmt *s)
{
    const char *names[PAGE_MAX_COLUMNS];
    int n = sqlite3_column_count(s);
    for (int i = 0; i < n; i++)
        names[i] = sqlite3_column_name(s, i);
    page_columns(p, names, (uint32_t)n);
}

static int put_row(struct page_writer *p, sqlite3_stmt *s)
{
    for (int i = 0; i < sqlite3_column_count(s); i++) {
        struct cell c = db_cell(s, i);
        if (page_cell(p, &c))
            return TRD_ELIMIT;
    }
    return 0;
}

static int page_full(const struct page_writer *p)
{
    return p->w.at - p->start >= PAGE_ROWS_BYTES;
}

static size_t message_page(void *page, size_t cap, enum page_status status,
                           const char *text)
{
    struct page_writer p;
    page_open(&p, page, cap, status, slice_of(text));
    return page_close(&p, slice_of(""));
}

/* What SQLite complains of: bad data, a bad statement, or neither. */
static int sql_failed(const struct db *d, int code)
{
    const char *why = sqlite3_errmsg(d->sql);
    switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return ctl_fail(CTL_BAD, "the run's file is damaged: %s", why);
    case SQLITE_ERROR:
    case SQLITE_AUTH:
    case SQLITE_MISUSE:
    case SQLITE_RANGE:
    case SQLITE_TOOBIG:
        return ctl_fail(CTL_BAD, "the statement fails: %s", why);
    default:
        return ctl_fail(CTL_FAILED, "the run cannot be read: %s", why);
    }
}

/* ---- records ---- */

static int prepare(struct db *d, const struct sql *text, sqlite3_stmt **out)
{
    sqlite3_stmt *s;
    int code = sqlite3_prepare_v2(d->sql, text->text, -1, &s, NULL);
    for (unsigned i = 0; code == SQLITE_OK && i < text->n; i++) {
        const struct cell *c = &text->bind[i];
        int at = (int)i + 1;
        code = c->type == CELL_INT
                   ? sqlite3_bind_int64(s, at, c->i)
                   : sqlite3_bind_text(s, at, c->s.text, (int)c->s.n,
                                       SQLITE_TRANSIENT);
    }
    if (code != SQLITE_OK) {
        sqlite3_finalize(s);
        return sql_failed(d, code);
    }
    *out = s;
    return 0;
}

/* The first reading that the run's dictionary knows; n when none is. */
static int choose(struct db *d, const struct name_query *names,
                  struct sql *text, unsigned *out)
{
    for (*out = 0; *out < names->n; ++*out) {
        sqlite3_stmt *s = NULL;
        if (sql_exists(&names->reading[*out], text))
            return ctl_fail(CTL_BAD, "the name is too long");
        int code = prepare(d, text, &s);
        if (code)
            return code;
        code = sqlite3_step(s);
        sqlite3_finalize(s);
        if (code == SQLITE_ROW)
            return 0;
        if (code != SQLITE_DONE)
            return sql_failed(d, code);
    }
    return 0;
}

/* The cursor behind the row the statement stands on. */
static int cursor_of(sqlite3_stmt *s, uint32_t order,
                     uint8_t out[ROW_CURSOR_MAX], size_t *n)
{
    struct cell cells[ROW_COLUMN_COUNT];
    struct row row;
    for (int i = 0; i < ROW_COLUMN_COUNT; i++)
        cells[i] = db_cell(s, i);
    if (row_get(cells, &row))
        return ctl_fail(CTL_BAD, "a record of the run is damaged");
    *n = row_cursor(&row, order, out);
    return 0;
}

/* Rows of s until the page is full. *more: the statement has further rows,
 * and it stands on the last one written, or,
 * where it is kept for the next page, on the first one not written. */
static int fill(struct db *d, sqlite3_stmt *s, struct page_writer *p,
                int keep, int *more)
{
    int code = SQLITE_ROW;
    *more = 0;
    if (!d->first)
        code = sqlite3_step(s);
    d->first = 0;
    for (; code == SQLITE_ROW; code = sqlite3_step(s)) {
        if (put_row(p, s)) {
            if (p->rows == 0 || !keep)
                return ctl_fail(CTL_BAD, "a row is longer than a page");
            d->first = 1; /* it comes first on the next page */
            *more = 1;
            return 0;
        }
        if (page_full(p)) {
            *more = 1;
            return 0;
        }
    }
    return code == SQLITE_DONE ? 0 : sql_failed(d, code);
}

/* Runs a statement for missing_say(). */
static int ask_rows(void *context, const struct sql *text, missing_take *take,
                    void *to)
{
    enum { COLUMNS = 3 };
    struct cell cells[COLUMNS];
    sqlite3_stmt *s = NULL;
    int code = prepare(context, text, &s);
    if (code)
        return code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        for (int i = 0; i < sqlite3_column_count(s) && i < COLUMNS; i++)
            cells[i] = db_cell(s, i);
        take(to, cells);
    }
    sqlite3_finalize(s);
    return code == SQLITE_DONE ? 0 : sql_failed(context, code);
}

/* The name of the run, which its file tells. */
static int name_of(struct db *d, char out[TRD_MAX_RUN + 1])
{
    sqlite3_stmt *s = NULL;
    int code = sqlite3_prepare_v2(
        d->sql, "SELECT value FROM meta WHERE key = 'name'", -1, &s, NULL);
    out[0] = '\0';
    if (code == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW)
        snprintf(out, TRD_MAX_RUN + 1, "%s",
                 (const char *)sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    return code == SQLITE_OK ? 0 : sql_failed(d, code);
}

/* A question for records, from its words to its statement. */
struct wanted {
    const struct query *q;
    struct name_query names;
    const struct name_reading *reading; /* NULL: none, or none is known */
    struct sql text;
};

/* *out NULL: the run knows nothing of this name. */
static int open_records(struct db *d, struct wanted *w, sqlite3_stmt **out)
{
    const struct query *q = w->q;
    const char *why;
    unsigned at = 0;
    if (q->name.n &&
        name_parse(q->name, (enum name_as)q->as, &w->names, &why))
        return ctl_fail(CTL_BAD, "'%.*s' is not a name: %s", (int)q->name.n,
                        q->name.text, why);
    if (q->name.n) {
        int code = choose(d, &w->names, &w->text, &at);
        if (code || at == w->names.n)
            return code;
        w->reading = &w->names.reading[at];
    }
    if (sql_records(q, w->reading, &w->text))
        return ctl_fail(CTL_BAD, "the name is too long");
    return prepare(d, &w->text, out);
}

/* The page that says why nothing was found. */
static int page_missing(struct db *d, struct wanted *w, void *page,
                        size_t cap, size_t *n)
{
    char text[MISSING_BYTES], run[TRD_MAX_RUN + 1];
    const struct missing m = {.run = run,
                              .q = w->q,
                              .names = w->q->name.n ? &w->names : NULL,
                              .reading = w->reading,
                              .ask = ask_rows,
                              .context = d};
    int code = name_of(d, run);
    if (code == 0)
        code = missing_say(&m, &w->text, text);
    if (code == 0)
        *n = message_page(page, cap, PAGE_NOTHING, text);
    return code;
}

/* A page of rows; p->rows 0 when there is none. */
static int fill_records(struct db *d, const struct query *q, sqlite3_stmt *s,
                        struct page_writer *p, size_t *n)
{
    uint8_t cursor[ROW_CURSOR_MAX] = "more";
    struct slice next = {"", 0};
    int more = 0, keep = q->order == ORDER_SEQ;
    put_columns(p, s);
    int code = fill(d, s, p, keep, &more);
    if (code == 0 && more) {
        next.text = (const char *)cursor;
        next.n = 4;
        if (keep) {
            d->open = s;
            s = NULL;
        } else {
            code = cursor_of(s, q->order, cursor, &next.n);
        }
    }
    sqlite3_finalize(s);
    if (code == 0)
        *n = page_close(p, next);
    return code;
}

static int ask_records(struct db *d, const struct query *q, void *page,
                       size_t cap, size_t *n)
{
    struct page_writer p;
    sqlite3_stmt *s = NULL;
    struct wanted *w = NULL;
    int code = 0;
    if (q->order == ORDER_SEQ && q->cursor.n) {
        s = d->open;
        d->open = NULL;
    } else {
        d->first = 0;
        w = calloc(1, sizeof *w);
        if (!w)
            return ctl_fail(CTL_FAILED, "out of memory");
        w->q = q;
        code = open_records(d, w, &s);
    }
    page_open(&p, page, cap, PAGE_OK, slice_of(d->name));
    if (code == 0 && s)
        code = fill_records(d, q, s, &p, n);
    if (code == 0 && w && p.rows == 0 && !q->cursor.n)
        code = page_missing(d, w, page, cap, n);
    free(w);
    return code;
}

/* ---- the user's statement ---- */

static int word_in(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (word && sqlite3_stricmp(word, *list) == 0)
            return 1;
    return 0;
}

static int authorize(void *state, int action, const char *a, const char *b,
                     const char *c, const char *d)
{
    static const char *const pragmas[] = {
        "table_info",     "table_xinfo", "table_list",   "index_list",
        "index_info",     "index_xinfo", "user_version", "application_id",
        "integrity_check", "quick_check", NULL};
    static const char *const functions[] = {
        "load_extension", "writefile", "readfile",
        "edit",           "fts3_tokenizer", NULL};
    (void)state;
    (void)c;
    (void)d;
    switch (action) {
    case SQLITE_SELECT:
    case SQLITE_READ:
    case SQLITE_RECURSIVE:
        return SQLITE_OK;
    case SQLITE_FUNCTION:
        return word_in(b, functions) ? SQLITE_DENY : SQLITE_OK;
    case SQLITE_PRAGMA:
        return word_in(a, pragmas) ? SQLITE_OK : SQLITE_DENY;
    default:
        return SQLITE_DENY;
    }
}

/* 1 if nothing but space, comments and ';' follows a statement. */
static int is_end(const char *at)
{
    while (*at) {
        if (strncmp(at, "--", 2) == 0) {
            at += strcspn(at, "\n");
        } else if (strncmp(at, "/*", 2) == 0) {
            const char *end = strstr(at + 2, "*/");
            at = end ? end + 2 : at + strlen(at);
        } else if (strchr(" \t\r\n\f;", *at)) {
            at++;
        } else {
            return 0;
        }
    }
    return 1;
}

static int open_sql(struct db *d, const struct query *q, sqlite3_stmt **out)
{
    sqlite3_stmt *s = NULL;
    const char *tail = "";
    char *text = strndup(q->sql.text, q->sql.n);
    if (!text)
        return ctl_fail(CTL_FAILED, "out of memory");
    sql_add_functions(d->sql); /* where that failed, a use of them says so */
    sqlite3_set_authorizer(d->sql, authorize, NULL);
    int code = sqlite3_prepare_v2(d->sql, text, -1, &s, &tail);
    int single = code == SQLITE_OK && is_end(tail);
    free(text);
    if (code != SQLITE_OK)
        code = sql_failed(d, code);
    else if (!s)
        code = ctl_fail(CTL_BAD, "there is no statement");
    else if (!single)
        code = ctl_fail(CTL_BAD, "only one statement at a time");
    else if (!sqlite3_stmt_readonly(s))
        code = ctl_fail(CTL_BAD, "the statement would write");
    else if (sqlite3_column_count(s) > PAGE_MAX_COLUMNS)
        code = ctl_fail(CTL_BAD, "more than %d columns", PAGE_MAX_COLUMNS);
    if (code) {
        sqlite3_finalize(s);
        return code;
    }
    *out = s;
    return 0;
}

static int ask_sql(struct db *d, const struct query *q, void *page,
                   size_t cap, size_t *n)
{
    struct page_writer p;
    sqlite3_stmt *s = d->open;
    int more = 0, code = 0;
    d->open = NULL;
    if (!q->cursor.n) {
        sqlite3_finalize(s);
        d->first = 0;
        code = open_sql(d, q, &s);
    }
    if (code)
        return code;
    page_open(&p, page, cap, PAGE_OK, slice_of(d->name));
    put_columns(&p, s);
    code = fill(d, s, &p, 1, &more);
    if (code || !more)
        sqlite3_finalize(s);
    else
        d->open = s;
    if (code == 0)
        *n = page_close(&p, slice_of(more ? "more" : ""));
    return code;
}

/* ---- many files ---- */

/* A page of statement sql for every file; the run's name goes first where
 * with_run is set. */
static int ask_each(struct db *d, const char *sql, void *page, size_t cap,
                    size_t *n, const char *const *names, uint32_t columns)
{
    char **files = NULL;
    struct page_writer p;
    size_t files_n = 1;
    int code = d->is_dir ? run_dir_list(d->path, &files, &files_n) : 0;
    if (code)
        return code;
    page_open(&p, page, cap, PAGE_OK, slice_of(""));
    page_columns(&p, names, columns);
    for (size_t i = 0; i < files_n && code == 0; i++) {
        sqlite3_stmt *s = NULL;
        char *path = d->is_dir ? run_dir_join(d->path, files[i])
                               : strdup(d->path);
        sqlite3 *before = d->sql;
        d->sql = NULL;
        code = path ? run_file_open(path, &d->sql) : CTL_FAILED;
        if (code == 0 &&
            sqlite3_prepare_v2(d->sql, sql, -1, &s, NULL) == SQLITE_OK) {
            int step;
            while ((step = sqlite3_step(s)) == SQLITE_ROW && !put_row(&p, s))
                ;
            if (step != SQLITE_DONE)
                code = sql_failed(d, step);
        } else if (code == 0) {
            code = sql_failed(d, sqlite3_errcode(d->sql));
        } else if (d->is_dir) {
            code = 0; /* told; the others are still worth listing */
        }
        sqlite3_finalize(s);
        sqlite3_close(d->sql);
        d->sql = before;
        free(path);
    }
    if (d->is_dir)
        run_dir_free(files, files_n);
    if (code == 0)
        *n = page_close(&p, slice_of(""));
    return code;
}

static const char status_sql[] =
    "SELECT 'run.' || (SELECT value FROM meta WHERE key = 'name') || '.'"
    " || key, value FROM ("
    "SELECT 'streams' AS key, count(*) AS value FROM stream UNION ALL "
    "SELECT 'open', count(*) FROM stream WHERE state = 'open' UNION ALL "
    "SELECT 'records', coalesce(sum(seq), 0) - coalesce((SELECT"
    " sum(last - seq + 1) FROM loss), 0) - coalesce((SELECT value FROM meta"
    " WHERE key = 'pruned'), 0) FROM stream UNION ALL "
    "SELECT 'lost', coalesce(sum(count), 0) FROM loss UNION ALL "
    "SELECT 'pruned', value FROM meta WHERE key = 'pruned' UNION ALL "
    "SELECT 'lost.' || cause, sum(count) FROM loss GROUP BY cause)";

static int ask_status(struct db *d, void *page, size_t cap, size_t *n)
{
    static const char *const names[] = {"key", "value"};
    return ask_each(d, status_sql, page, cap, n, names, 2);
}

static int ask_runs(struct db *d, void *page, size_t cap, size_t *n)
{
    static const char *const names[RUN_COLUMN_COUNT] = {RUN_COLUMNS};
    return ask_each(d, sql_run, page, cap, n, names, RUN_COLUMN_COUNT);
}

/* Opens the run before the first question to it. PAGE_NOTHING: no run. */
static int need_run(struct db *d, enum page_status *status)
{
    char *path = NULL;
    int code;
    *status = PAGE_OK;
    if (d->sql)
        return *d->name ? 0 : name_of(d, d->name);
    code = d->is_dir ? run_dir_find(d->path, d->run, &path)
                     : (path = strdup(d->path)) ? 0 : CTL_FAILED;
    if (code == 0 && !path)
        *status = PAGE_NOTHING;
    else if (code == 0)
        code = run_file_open(path, &d->sql);
    free(path);
    return d->sql && code == 0 ? name_of(d, d->name) : code;
}

static int db_ask(void *state, const struct query *q, void *page, size_t cap,
                  size_t *n)
{
    struct db *d = state;
    enum page_status status;
    int code;
    if (q->verb == QUERY_RUNS)
        return ask_runs(d, page, cap, n);
    if (q->verb == QUERY_STATUS)
        return ask_status(d, page, cap, n);
    code = need_run(d, &status);
    if (code)
        return code;
    if (status == PAGE_NOTHING) {
        char text[MISSING_BYTES];
        missing_run(d->run, d->path, text);
        *n = message_page(page, cap, PAGE_NOTHING, text);
        return 0;
    }
    if (q->verb == QUERY_SQL)
        return ask_sql(d, q, page, cap, n);
    return ask_records(d, q, page, cap, n);
}

/* With -d FILE and -r NAME both must mean the same run. */
static int check_name(struct db *d)
{
    static const char sql[] =
        "SELECT count(*) FROM meta WHERE key = 'name' AND value = ?1";
    sqlite3_stmt *s = NULL;
    int same = 0;
    if (sqlite3_prepare_v2(d->sql, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_bind_text(s, 1, d->run, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW)
        same = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    if (!same)
        return ctl_fail(CTL_NOTHING, "'%s' does not hold run '%s'", d->path,
                        d->run);
    return 0;
}

static void db_close(void *state)
{
    struct db *d = state;
    sqlite3_finalize(d->open);
    sqlite3_close(d->sql);
    free(d->path);
    free(d->run);
    free(d);
}

int source_db_open(const char *path, const char *run,
                   const struct source_ops **ops, void **state)
{
    static const struct source_ops db_ops = {db_ask, db_close};
    struct stat st;
    if (stat(path, &st) != 0)
        return run_file_bad(path, ctl_errno(errno));
    struct db *d = calloc(1, sizeof *d);
    if (!d || !(d->path = strdup(path)) || !(d->run = strdup(run))) {
        if (d)
            db_close(d);
        return ctl_fail(CTL_FAILED, "out of memory");
    }
    d->is_dir = S_ISDIR(st.st_mode);
    if (!d->is_dir) {
        int code = run_file_open(path, &d->sql);
        if (code == 0 && *run)
            code = check_name(d);
        if (code) {
            db_close(d);
            return code;
        }
    }
    *ops = &db_ops;
    *state = d;
    return 0;
}
