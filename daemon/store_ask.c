/* Questions about stored runs. Any thread; nothing is shared but a small
 * memory of when runs were created.
 *
 * A question opens the run's file by itself, reads, and closes it, so a slow
 * one holds up nobody but the cleaning of the WAL, for at most the time
 * limit. The connection can write as far as the file system is concerned,
 * because the last reader of a WAL has to tidy up; query_only keeps the SQL
 * from it, and an authorizer what a user types from everything else. */
#include "daemon/store_ask.h"

#include "daemon/store_space.h"
#include "proto/missing.h"
#include "proto/place.h"

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#define APPLICATION_ID 1414677316

enum {
    PROGRESS_STEPS = 1000, /* between two looks at the clock */
    /* no single step of SQLite looks at the clock: what bounds it is how
     * much it can be given. The longest value of a run is 64 KiB */
    VALUE_MAX_BYTES = 1024 * 1024,
    /* a question's; caches and sorting take less, but what a function
     * gathers row by row may take any */
    MEMORY_BYTES = 256 * 1024 * 1024
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* ---- pages ---- */

size_t ask_say(struct question *k, enum page_status status, const char *format,
               ...)
{
    struct page_writer p;
    va_list args;
    va_start(args, format);
    vsnprintf(k->message, sizeof k->message, format, args);
    va_end(args);
    page_open(&p, k->out, k->cap, status, slice_of(k->message));
    return page_close(&p, slice_of(""));
}

size_t ask_say_failed(struct question *k)
{
    if (sqlite3_errcode(k->db) == SQLITE_INTERRUPT && k->too_much)
        return ask_say(k, PAGE_BAD,
                       "not answered with %d MiB of memory; ask for less, or "
                       "open the file itself",
                       (int)(MEMORY_BYTES >> 20));
    if (sqlite3_errcode(k->db) == SQLITE_INTERRUPT)
        return ask_say(
            k, PAGE_FAILED,
            "not answered within %u s; ask for less, or open the file "
            "itself",
            k->a->seconds);
    return ask_say(k, PAGE_FAILED, "cannot read run '%s': %s", k->run,
                   sqlite3_errmsg(k->db));
}

struct cell ask_cell(sqlite3_stmt *s, int i)
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
        c.type = CELL_TEXT;
        c.s.text = (const char *)sqlite3_column_text(s, i);
        c.s.n = (size_t)sqlite3_column_bytes(s, i);
        break;
    case SQLITE_BLOB:
        c.type = CELL_BLOB;
        c.s.text = sqlite3_column_blob(s, i);
        c.s.n = (size_t)sqlite3_column_bytes(s, i);
        break;
    default:
        break;
    }
    if (!c.s.text) /* an empty blob, or no memory: never a null pointer */
        c.s = slice_of("");
    return c;
}

/* False when the row does not fit; the page stays good. */
bool ask_put_row(struct page_writer *p, const struct cell *cells, int n)
{
    for (int i = 0; i < n; i++) {
        if (page_cell(p, &cells[i]))
            return false;
    }
    return true;
}

bool ask_page_is_full(const struct page_writer *p)
{
    return (size_t)(p->w.at - p->start) >= PAGE_ROWS_BYTES;
}

/* ---- files ---- */

int ask_progress(void *context)
{
    struct question *k = context;
    if (k->memory_most && sqlite3_memory_used() > k->memory_most)
        k->too_much = true;
    return atomic_load(k->a->stop) || now_ns() > k->deadline_ns || k->too_much;
}

static void path_of(const struct ask *a, const char *run, char out[PATH_MAX])
{
    if (snprintf(out, PATH_MAX, "%s/%s.db", a->data, run) >= PATH_MAX)
        out[0] = '\0';
}

int64_t ask_int(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s = NULL;
    int64_t v = -1;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW)
        v = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return v;
}

static void close_run(struct question *k)
{
    sqlite3_close(k->db);
    k->db = NULL;
}

static bool connect_run(struct question *k, const char *path, const char *how)
{
    if (sqlite3_open_v2(path, &k->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        return false;
    sqlite3_busy_timeout(k->db, 2000);
    /* the run's log is the business of who writes it, see store_wal.c */
    sqlite3_db_config(k->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    /* the file may be of anybody: what its views call is nothing but
     * arithmetic, and nothing makes it other than it is */
    sqlite3_db_config(k->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(k->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_limit(k->db, SQLITE_LIMIT_LENGTH, VALUE_MAX_BYTES);
    sqlite3_limit(k->db, SQLITE_LIMIT_ATTACHED, 0);
    sqlite3_progress_handler(k->db, PROGRESS_STEPS, ask_progress, k);
    return sqlite3_exec(k->db, how, NULL, NULL, NULL) == SQLITE_OK &&
           sqlite3_exec(k->db, "PRAGMA query_only=1; PRAGMA cache_size=-16384",
                        NULL, NULL, NULL) == SQLITE_OK &&
           ask_int(k->db, "PRAGMA application_id") == APPLICATION_ID;
}

/* Opens run; false, with a message, when it is not there or not a run. On a
 * full disk there may be no room for what connections share: then this one
 * has the file to itself, and the index of the WAL in memory. */
static bool open_run(struct question *k, const char *run)
{
    char path[PATH_MAX];
    path_of(k->a, run, path);
    snprintf(k->run, sizeof k->run, "%s", run);
    if (connect_run(k, path, ""))
        return true;
    if (!k->db || !space_is_short(k->db, sqlite3_errcode(k->db)))
        return false;
    close_run(k);
    return connect_run(k, path, "PRAGMA locking_mode=EXCLUSIVE");
}

/* The run of a file name; false for other files. */
static bool run_of_file(const char *file, char out[TRD_MAX_RUN + 1])
{
    size_t n = strlen(file);
    if (n <= 3 || strcmp(file + n - 3, ".db") != 0 ||
        !place_run_ok(file, n - 3))
        return false;
    memcpy(out, file, n - 3);
    out[n - 3] = '\0';
    return true;
}

struct names {
    char **name;
    size_t n, cap;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_free(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->name[i]);
    free(l->name);
}

static bool names_add(struct names *l, const char *name)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        char **more = realloc(l->name, cap * sizeof *more);
        if (!more)
            return false;
        l->name = more;
        l->cap = cap;
    }
    l->name[l->n] = strdup(name);
    return l->name[l->n] && ++l->n;
}

static bool list_runs(const struct ask *a, struct names *l)
{
    char run[TRD_MAX_RUN + 1];
    struct dirent *e;
    DIR *d = opendir(a->data);
    bool ok = d != NULL;
    while (ok && (e = readdir(d))) {
        if (run_of_file(e->d_name, run))
            ok = names_add(l, run);
    }
    if (d)
        closedir(d);
    if (l->n)
        qsort(l->name, l->n, sizeof *l->name, by_name);
    return ok;
}

/* ---- the newest run ---- */

/* created_ns never changes for a file, so it is read once. */
enum { SEEN_SLOTS = 4096 };
static struct {
    struct file_key key;
    int64_t created_ns;
} seen[SEEN_SLOTS];
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

static int64_t created_of(const struct question *k, const char *run)
{
    struct question other = {
        .a = k->a, .q = k->q, .deadline_ns = k->deadline_ns};
    char path[PATH_MAX];
    struct file_key key;
    struct stat st;
    int64_t v = -1;
    size_t slot;

    path_of(k->a, run, path);
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return -1;
    key = file_key_of(&st);
    slot = (size_t)st.st_ino % SEEN_SLOTS;
    pthread_mutex_lock(&seen_lock);
    if (file_key_same(&seen[slot].key, &key))
        v = seen[slot].created_ns;
    pthread_mutex_unlock(&seen_lock);
    if (v > 0)
        return v;
    if (open_run(&other, run))
        v = ask_int(other.db,
                    "SELECT value FROM meta WHERE key = 'created_ns'");
    close_run(&other);
    if (v > 0) {
        pthread_mutex_lock(&seen_lock);
        seen[slot].key = key;
        seen[slot].created_ns = v;
        pthread_mutex_unlock(&seen_lock);
    }
    return v;
}

static bool newest_run(struct question *k, char out[TRD_MAX_RUN + 1])
{
    struct names l = {NULL, 0, 0};
    int64_t best = -1;
    list_runs(k->a, &l);
    for (size_t i = 0; i < l.n; i++) {
        int64_t v = created_of(k, l.name[i]);
        if (v > best) {
            best = v;
            snprintf(out, TRD_MAX_RUN + 1, "%s", l.name[i]);
        }
    }
    names_free(&l);
    return best >= 0;
}

static size_t say_no_run(struct question *k, const char *run)
{
    char text[MISSING_BYTES];
    missing_run(run, k->a->data, text);
    return ask_say(k, PAGE_NOTHING, "%s", text);
}

/* Opens the run that the question names. 0, or the length of a page that
 * says why not. */
size_t ask_open(struct question *k)
{
    char run[TRD_MAX_RUN + 1], path[PATH_MAX];
    struct stat st;

    if (k->q->run.n == 0) {
        if (!newest_run(k, run))
            return say_no_run(k, "");
    } else {
        if (!place_run_ok(k->q->run.text, k->q->run.n))
            return ask_say(k, PAGE_BAD,
                           "a run's name has letters, digits, '.', "
                           "'_' and '-'");
        memcpy(run, k->q->run.text, k->q->run.n);
        run[k->q->run.n] = '\0';
    }
    path_of(k->a, run, path);
    if (stat(path, &st) != 0)
        return say_no_run(k, run);
    if (!open_run(k, run))
        return ask_say(k, PAGE_FAILED, "cannot open run '%s': %s", run,
                       k->db && sqlite3_errcode(k->db) != SQLITE_OK
                           ? sqlite3_errmsg(k->db)
                           : "not a file of tracerd");
    return 0;
}

/* ---- runs ---- */

static const char *const run_columns[RUN_COLUMN_COUNT] = {RUN_COLUMNS};

/* One row; a file that cannot be read is listed with its state only. */
static bool put_run(struct question *k, struct page_writer *p, const char *run)
{
    struct cell cells[RUN_COLUMN_COUNT];
    sqlite3_stmt *s = NULL;
    bool fits;

    for (int i = 0; i < RUN_COLUMN_COUNT; i++) {
        cells[i] = (struct cell){.type = CELL_NULL};
        cells[i].s = slice_of("");
    }
    if (open_run(k, run) &&
        sqlite3_prepare_v2(k->db, sql_run, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW) {
        for (int i = 0; i < RUN_COLUMN_COUNT; i++)
            cells[i] = ask_cell(s, i);
    } else {
        cells[RUN_STATE].type = CELL_TEXT;
        cells[RUN_STATE].s = slice_of("unreadable");
    }
    /* a file that was renamed is asked for by its name */
    cells[0].type = CELL_TEXT;
    cells[0].s = slice_of(run);
    fits = ask_put_row(p, cells, RUN_COLUMN_COUNT);
    sqlite3_finalize(s);
    close_run(k);
    return fits;
}

static bool after_cursor(const struct query *q, const char *name)
{
    size_t n = strlen(name);
    size_t least = n < q->cursor.n ? n : q->cursor.n;
    int c = memcmp(name, q->cursor.text, least);
    return c > 0 || (c == 0 && n > q->cursor.n);
}

static size_t ask_runs(struct question *k)
{
    struct names l = {NULL, 0, 0};
    struct page_writer p;
    const char *last = NULL;
    bool more = false;
    uint64_t rows = 0;
    size_t n;

    if (!list_runs(k->a, &l)) {
        names_free(&l);
        return ask_say(k, PAGE_FAILED, "cannot read '%s'", k->a->data);
    }
    page_open(&p, k->out, k->cap, l.n ? PAGE_OK : PAGE_NOTHING,
              slice_of(l.n ? "" : "there is no run yet"));
    page_columns(&p, run_columns, RUN_COLUMN_COUNT);
    for (size_t i = 0; i < l.n && !more; i++) {
        if (k->q->cursor.n && !after_cursor(k->q, l.name[i]))
            continue;
        if (k->q->limit && rows == k->q->limit)
            break;
        more = ask_page_is_full(&p) || ask_progress(k) ||
               !put_run(k, &p, l.name[i]);
        if (!more) {
            last = l.name[i];
            rows++;
        }
    }
    n = page_close(&p, slice_of(more && last ? last : ""));
    names_free(&l);
    return n;
}

size_t store_ask(const struct ask *a, const struct query *q, uint8_t *out,
                 size_t cap)
{
    struct question k = {.a = a, .q = q, .out = out, .cap = cap};
    size_t n;

    k.memory_most = sqlite3_memory_used() + MEMORY_BYTES;
    k.deadline_ns = now_ns() + a->seconds * UINT64_C(1000000000);
    switch (q->verb) {
    case QUERY_RUNS:
        n = ask_runs(&k);
        break;
    case QUERY_RECORDS:
        n = ask_records(&k);
        break;
    case QUERY_SQL:
        n = ask_sql(&k);
        break;
    default:
        n = ask_say(&k, PAGE_BAD, "not a question about stored runs");
    }
    close_run(&k);
    return n;
}
