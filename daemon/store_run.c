/* Run files of the SQLite engine: opening, creating, closing, and putting a
 * damaged one aside. Writer thread. */
#include "daemon/store_sqlite.h"

#include "daemon/log.h"
#include "proto/point.h"
#include "schema.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define APPLICATION_ID 1414677316
#define SCHEMA_VERSION 1

enum { BUSY_MS = 5 };

static const char *const statement_sql[STATEMENT_COUNT] = {
    [SQL_BEGIN] = "BEGIN IMMEDIATE",
    [SQL_COMMIT] = "COMMIT",
    [SQL_RECORD] =
        "INSERT INTO record VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,"
        "?,?,?,?,?,?,?,?,?)",
    [SQL_EXTRA] = "INSERT INTO extra VALUES(?,?,?,?,?)",
    [SQL_QUEUE] = "INSERT INTO queue VALUES(?,?,?,?)",
    [SQL_QUEUE_GONE] = "DELETE FROM queue WHERE id <= ?",
    [SQL_REFUSED] =
        "INSERT INTO refused VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,"
        "?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [SQL_LOSS] = "INSERT OR IGNORE INTO loss VALUES(?,?,?,?,?,?,?)",
    [SQL_LOSS_MORE] = "UPDATE loss SET last = ?3, count = count + ?4, bytes = "
                      "bytes + ?5 WHERE stream = ?1 AND seq = ?2",
    [SQL_CLOCK] = "INSERT OR IGNORE INTO clock VALUES(?,?,?)",
    [SQL_MARK] = "UPDATE stream SET seq = ?2, dict_n = ?3, iteration = ?4, "
                 "last_ns = ?5 WHERE id = ?1",
    [SQL_STATE] = "UPDATE stream SET state = ?2 WHERE id = ?1",
    [SQL_DICT] = "INSERT OR IGNORE INTO dict VALUES(?,?,?)",
    [SQL_OBJECT_PUT] = "INSERT OR IGNORE INTO object(class, instance, module)"
                       " VALUES(?,?,?)",
    [SQL_OBJECT_GET] = "SELECT id FROM object WHERE class = ? AND "
                       "instance = ? AND module = ?",
    [SQL_PATH_PUT] = "INSERT OR IGNORE INTO path(text) VALUES(?)",
    [SQL_PATH_GET] = "SELECT id FROM path WHERE text = ?",
    [SQL_SHAPE_PUT] = "INSERT OR IGNORE INTO shape(dims, n) VALUES(?,?)",
    [SQL_SHAPE_GET] = "SELECT id FROM shape WHERE dims = ?",
    [SQL_NOTE_PUT] = "INSERT OR IGNORE INTO note(text) VALUES(?)",
    [SQL_NOTE_GET] = "SELECT id FROM note WHERE text = ?",
};

/* ---- a connection to one file ---- */

int file_get_int(sqlite3 *db, const char *sql, int64_t *out)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &q, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        *out = sqlite3_column_int64(q, 0);
        rc = SQLITE_OK;
    }
    sqlite3_finalize(q);
    return rc;
}

int file_get_meta(sqlite3 *db, const char *key, char *out, size_t cap)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, "SELECT value FROM meta WHERE key = ?", -1,
                                &q, NULL);
    out[0] = '\0';
    if (rc == SQLITE_OK) {
        sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
        rc = sqlite3_step(q);
    }
    if (rc == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(q, 0);
        snprintf(out, cap, "%s", text ? text : "");
    }
    sqlite3_finalize(q);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int file_look_at(sqlite3 *db, enum content *out)
{
    int64_t id = 0, version = 0, tables = 0;
    int rc = file_get_int(db, "PRAGMA application_id", &id);
    if (rc == SQLITE_OK)
        rc = file_get_int(db, "PRAGMA user_version", &version);
    if (rc == SQLITE_OK)
        rc = file_get_int(db, "SELECT count(*) FROM sqlite_master", &tables);
    if (id == APPLICATION_ID && version == SCHEMA_VERSION)
        *out = CONTENT_OURS;
    else
        *out = tables || id ? CONTENT_FOREIGN : CONTENT_EMPTY;
    return rc;
}

int file_connect(const char *path, sqlite3 **db)
{
    int rc = sqlite3_open_v2(
        path, db,
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    /* one thread writes all runs: a lock on one must not hold up the rest */
    if (rc == SQLITE_OK)
        sqlite3_busy_timeout(*db, BUSY_MS);
    return rc;
}

bool file_is_damage(int code)
{
    return (code & 0xff) == SQLITE_CORRUPT || (code & 0xff) == SQLITE_NOTADB;
}

/* What goes behind ".corrupt-": the second, and a number where there is one
 * of that second already. */
static void name_aside(const char *path, char when[48])
{
    char to[PATH_MAX + 64];
    time_t now = time(NULL);
    struct tm tm;
    struct stat st;
    size_t n;

    gmtime_r(&now, &tm);
    n = strftime(when, 32, "%Y%m%dT%H%M%S", &tm);
    for (unsigned k = 2; k < 1000; k++) {
        snprintf(to, sizeof to, "%s.corrupt-%s", path, when);
        if (lstat(to, &st) != 0)
            return;
        snprintf(when + n, 48 - n, "-%u", k);
    }
}

/* A damaged file stays for whoever can read something out of it. */
void file_put_aside(const char *path)
{
    static const char *const tails[] = {"", "-wal", "-shm"};
    char from[PATH_MAX + 16], to[PATH_MAX + 64], when[48];

    name_aside(path, when);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        snprintf(from, sizeof from, "%s%s", path, tails[i]);
        snprintf(to, sizeof to, "%s.corrupt-%s%s", path, when, tails[i]);
        if (rename(from, to) != 0 && errno != ENOENT)
            log_error("rename",
                      "file=\"%s\" error=\"%s\" then=\"the damaged "
                      "file stays where it is\"",
                      from, strerror(errno));
    }
    log_error("corrupt",
              "file=\"%s\" then=\"moved to %s.corrupt-%s; a new "
              "file is begun\"",
              path, path, when);
}

/* ---- opening and closing ---- */

static int put_meta(sqlite3 *db, const char *key, const char *text, size_t n)
{
    sqlite3_stmt *q = NULL;
    int rc =
        sqlite3_prepare_v2(db, "INSERT INTO meta VALUES(?, ?)", -1, &q, NULL);
    if (rc != SQLITE_OK)
        return rc;
    sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, 2, text, (int)n, SQLITE_STATIC);
    rc = sqlite3_step(q);
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int put_meta_int(sqlite3 *db, const char *key, int64_t v)
{
    char sql[128];
    snprintf(sql, sizeof sql, "INSERT INTO meta VALUES('%s', %lld)", key,
             (long long)v);
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

static void random_hex(char out[33])
{
    uint8_t bytes[16] = {0};
    struct timespec now;
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        clock_gettime(CLOCK_REALTIME, &now);
        memcpy(bytes, &now,
               sizeof bytes < sizeof now ? sizeof bytes : sizeof now);
    }
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static int fill_meta(struct run *r, struct slice job)
{
    char store_id[33];
    struct timespec now;
    int rc;

    random_hex(store_id);
    clock_gettime(CLOCK_REALTIME, &now);
    rc = put_meta(r->db, "name", r->name, strlen(r->name));
    if (rc == SQLITE_OK)
        rc = put_meta(r->db, "job", job.text, job.n);
    if (rc == SQLITE_OK)
        rc = put_meta(r->db, "store_id", store_id, 32);
    if (rc == SQLITE_OK)
        rc = put_meta(r->db, "version", TRD_VERSION, strlen(TRD_VERSION));
    if (rc == SQLITE_OK)
        rc = put_meta_int(r->db, "created_ns",
                          now.tv_sec * INT64_C(1000000000) + now.tv_nsec);
    return rc;
}

/* Schema and facts in one transaction: a file has both or neither. */
static int initialise(struct run *r, struct slice job)
{
    int rc = sqlite3_exec(r->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(r->db, schema_sql, NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = fill_meta(r, job);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(r->db, "COMMIT", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        sqlite3_exec(r->db, "ROLLBACK", NULL, NULL, NULL);
    r->unsafe = true;
    return rc;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 87 : 0;
}

static int read_facts(struct run *r)
{
    char hex[64];
    int rc = file_get_meta(r->db, "store_id", hex, sizeof hex);
    if (rc == SQLITE_OK)
        rc = file_get_meta(r->db, "job", r->job, sizeof r->job);
    if (rc == SQLITE_OK && strlen(hex) != 32)
        rc = SQLITE_CORRUPT;
    for (int i = 0; rc == SQLITE_OK && i < 16; i++)
        r->store_id[i] =
            (uint8_t)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
    return rc;
}

static int set_up(struct run *r)
{
    int rc = sqlite3_exec(r->db,
                          "PRAGMA journal_mode=WAL;"
                          "PRAGMA synchronous=NORMAL;"
                          "PRAGMA journal_size_limit=67108864;"
                          "PRAGMA cache_size=-32768",
                          NULL, NULL, NULL);
    return rc;
}

/* What begins so in the schema, behind some SQL that goes before it. */
static int exec_part(struct run *r, const char *before, const char *head)
{
    const char *part = strstr(schema_sql, head);
    const char *end = part ? strchr(part, ';') : NULL;
    char *sql = end ? sqlite3_mprintf("%s%.*s", before, (int)(end - part), part)
                    : NULL;
    int rc = sql ? sqlite3_exec(r->db, sql, NULL, NULL, NULL) : SQLITE_NOMEM;
    sqlite3_free(sql);
    return rc;
}

/* A view as the schema has it now, in place of what the file has. */
static int renew_view(struct run *r, const char *name)
{
    char drop[64], head[64];
    snprintf(drop, sizeof drop, "DROP VIEW IF EXISTS %s;", name);
    snprintf(head, sizeof head, "CREATE VIEW %s AS", name);
    return exec_part(r, drop, head);
}

/* All of them: each version's said something wrong that the next one's does
 * not, or nothing of what came with that. */
static int renew_views(struct run *r)
{
    static const char *const views[] = {"v_record", "sample_part", "v_sample",
                                        "v_histogram", "v_run", "v_pruned"};
    int rc = SQLITE_OK;
    for (size_t i = 0; rc == SQLITE_OK && i < sizeof views / sizeof *views;
         i++)
        rc = renew_view(r, views[i]);
    return rc;
}

/* The first runs of version 1 know nothing of what a full journal means. */
static int add_policy(struct run *r)
{
    int64_t policy = 1;
    int rc = file_get_int(
        r->db,
        "SELECT count(*) FROM pragma_table_info('stream') "
        "WHERE name = 'spool_bytes'",
        &policy);
    if (rc != SQLITE_OK || policy)
        return rc;
    return sqlite3_exec(r->db,
                        "ALTER TABLE stream ADD COLUMN"
                        " block_ms INTEGER NOT NULL DEFAULT 0;"
                        "ALTER TABLE stream ADD COLUMN"
                        " spool_bytes INTEGER NOT NULL DEFAULT 0",
                        NULL, NULL, NULL);
}

static int has(struct run *r, const char *name, int64_t *there)
{
    char sql[96];
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM sqlite_master WHERE name = '%s'", name);
    return file_get_int(r->db, sql, there);
}

static int add_pruned(struct run *r)
{
    int64_t there = 1;
    int rc = has(r, "pruned", &there);
    return rc != SQLITE_OK || there ? rc
                                    : exec_part(r, "", "CREATE TABLE pruned(");
}

/* What lets a planner find an object's history. */
static int add_plans(struct run *r)
{
    int64_t there = 1;
    int rc = has(r, "object_module", &there);
    if (rc != SQLITE_OK || there)
        return rc;
    rc = exec_part(r, "", "CREATE INDEX object_module");
    if (rc == SQLITE_OK)
        rc = exec_part(r, "", "ANALYZE");
    if (rc == SQLITE_OK)
        rc = exec_part(r, "DELETE FROM sqlite_stat1 WHERE tbl = 'record';",
                       "INSERT INTO sqlite_stat1");
    return rc;
}

/* What this version's runs have and older ones of the same format have not.
 * What came last, v_record's large unsigned figures, tells whether all of it
 * is there. */
static int renew(struct run *r)
{
    int64_t renewed = 1;
    int rc = file_get_int(r->db,
                          "SELECT count(*) FROM sqlite_master WHERE name ="
                          " 'v_record' AND sql LIKE '%18446744073709551616%'",
                          &renewed);
    if (rc != SQLITE_OK || renewed)
        return rc;
    rc = sqlite3_exec(r->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = add_policy(r);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(r->db,
                          "INSERT OR IGNORE INTO pass VALUES(6,'optim')", NULL,
                          NULL, NULL);
    if (rc == SQLITE_OK)
        rc = add_pruned(r);
    if (rc == SQLITE_OK)
        rc = renew_views(r);
    if (rc == SQLITE_OK)
        rc = add_plans(r);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(r->db, "COMMIT", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        sqlite3_exec(r->db, "ROLLBACK", NULL, NULL, NULL);
    r->unsafe = true;
    return rc;
}

static int prepare_all(struct run *r)
{
    int rc = SQLITE_OK;
    for (int i = 0; rc == SQLITE_OK && i < STATEMENT_COUNT; i++) {
        bool queue = i == SQL_QUEUE || i == SQL_QUEUE_GONE || i == SQL_REFUSED;
        if (queue && !r->store->forward)
            continue; /* there are no such tables */
        rc = sqlite3_prepare_v3(r->db, statement_sql[i], -1,
                                SQLITE_PREPARE_PERSISTENT, &r->statement[i],
                                NULL);
    }
    return rc;
}

/* The run's file with something behind its name. */
static void unlink_beside(const struct run *r, const char *tail)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s%s", r->path, tail) < PATH_MAX)
        unlink(path);
}

/* A file is made under another name first, so that nobody, not even a killed
 * daemon's successor, ever sees half a run. */
static int make_file(struct run *r, struct slice job)
{
    char fresh[PATH_MAX];
    int rc;

    if (snprintf(fresh, sizeof fresh, "%s.new", r->path) >= PATH_MAX)
        return SQLITE_CANTOPEN;
    unlink_beside(r, ".new");
    unlink_beside(r, ".new-journal");
    unlink_beside(r, ".new-wal");
    unlink_beside(r, ".new-shm");
    rc = file_connect(fresh, &r->db);
    POINT(run_created);
    if (rc == SQLITE_OK)
        rc = initialise(r, job);
    POINT(run_filled);
    /* here, where nobody can have it open; the WAL is empty */
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(r->db, "PRAGMA journal_mode=WAL", NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        unlink(fresh);
        return rc; /* the connection still tells what it was */
    }
    sqlite3_close(r->db);
    r->db = NULL;
    POINT(run_closed);
    /* of a file that was there, but empty */
    unlink_beside(r, "-wal");
    unlink_beside(r, "-shm");
    if (rename(fresh, r->path) != 0)
        return SQLITE_CANTOPEN;
    rc = file_connect(r->path, &r->db);
    wal_keep(r->db, true);
    return rc;
}

static int open_db(struct run *r, struct slice job)
{
    enum content content = CONTENT_EMPTY;
    struct stat st;
    int rc = SQLITE_OK;
    if (lstat(r->path, &st) == 0) {
        rc = file_connect(r->path, &r->db);
        wal_keep(r->db, true);
        if (rc == SQLITE_OK)
            rc = file_look_at(r->db, &content);
    }
    if (rc == SQLITE_OK && content == CONTENT_EMPTY &&
        space_is_full(r->store))
        return SQLITE_FULL; /* what is left is for the runs that are there */
    if (rc == SQLITE_OK && content == CONTENT_EMPTY) {
        sqlite3_close(r->db);
        r->db = NULL;
        rc = make_file(r, job);
    }
    if (rc == SQLITE_OK)
        rc = set_up(r);
    if (rc == SQLITE_OK)
        rc = read_facts(r);
    if (rc == SQLITE_OK)
        rc = renew(r);
    if (rc == SQLITE_OK)
        rc = queue_open(r);
    if (rc == SQLITE_OK)
        rc = prepare_all(r);
    if (rc == SQLITE_OK)
        wal_open(r);
    if (rc == SQLITE_OK && stat(r->path, &st) != 0)
        rc = SQLITE_IOERR;
    if (rc == SQLITE_OK) {
        r->dev = st.st_dev;
        r->ino = st.st_ino;
        r->size = st.st_size;
        rc = queue_start(r);
    }
    return rc;
}

static void close_db(struct run *r)
{
    for (int i = 0; i < STATEMENT_COUNT; i++)
        sqlite3_finalize(r->statement[i]);
    sqlite3_close(r->db);
}

int run_open(struct store *s, const char *name, const char *path,
             struct slice job, struct run **out)
{
    struct run *r = calloc(1, sizeof *r);
    int rc;
    if (!r)
        return SQLITE_NOMEM;
    r->store = s;
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->path, sizeof r->path, "%s", path);
    rc = open_db(r, job);
    if (rc != SQLITE_OK && space_is_short(r->db, rc)) {
        space_spent(s);
        rc = SQLITE_FULL;
    } else if (rc != SQLITE_OK) {
        log_error("open",
                  "file=\"%s\" error=\"%s\" then=\"the client is "
                  "refused and tries again\"",
                  path,
                  /* behind a rollback the connection tells of that */
                  r->db && sqlite3_errcode(r->db) != SQLITE_OK
                      ? sqlite3_errmsg(r->db)
                      : sqlite3_errstr(rc));
    }
    if (rc != SQLITE_OK) {
        store_failed(s, sqlite3_errstr(rc));
        queue_close(r);
        close_db(r);
        free(r);
        if (file_is_damage(rc))
            file_put_aside(path);
        return rc;
    }
    known_drop(s, r->dev, r->ino);
    r->idle_ns = store_now_ns();
    r->next = s->runs;
    s->runs = r;
    atomic_fetch_add(&s->counters.runs_open, 1);
    log_info("run_open", "run=%s file=\"%s\"", r->name, r->path);
    *out = r;
    return SQLITE_OK;
}

static void detach(struct run *r)
{
    struct run **p = &r->store->runs;
    while (*p && *p != r)
        p = &(*p)->next;
    if (*p)
        *p = r->next;
    atomic_fetch_sub(&r->store->counters.runs_open, 1);
}

/* Streams somebody is connected to stay until they leave. */
static void drop_streams(struct run *r)
{
    while (r->streams) {
        struct stream *t = r->streams;
        r->streams = t->next;
        t->next = NULL;
        t->run = NULL;
        if (t->shared.marks) {
            atomic_store(&t->shared.marks->failed, REASON_STORE);
        } else {
            words_free(r, t);
            free(t);
        }
    }
}

bool run_is_idle(const struct run *r)
{
    return !r->connected && !r->open_transaction && queue_is_done(r);
}

void run_close(struct run *r)
{
    detach(r);
    drop_streams(r);
    queue_close(r);
    wal_close(r);
    close_db(r);
    log_info("run_close", "run=%s", r->name);
    free(r->rows);
    free(r);
}

/* By a connection that has read nothing yet. */
static bool is_whole(const char *path)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    bool whole = true;
    int rc = file_connect(path, &db);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &q, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(q, 0);
        whole = !text || strcmp(text, "ok") == 0;
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
    return whole && !file_is_damage(rc);
}

/* Only somebody else makes a run's file smaller. After a VACUUM it is still
 * whole; after a truncation its pages are missing, which SQLite would not
 * notice before it reads one. */
static bool was_cut(struct run *r, off_t size)
{
    int64_t pages = 0, page = 0;
    off_t before = r->size;
    r->size = size;
    if (size >= before)
        return false;
    if (file_get_int(r->db, "PRAGMA page_count", &pages) == SQLITE_OK &&
        file_get_int(r->db, "PRAGMA page_size", &page) == SQLITE_OK &&
        size >= pages * page)
        return false;
    return !is_whole(r->path);
}

int run_check_file(struct run *r)
{
    struct stat st;
    if (stat(r->path, &st) != 0)
        return errno == ENOENT ? SQLITE_READONLY_DBMOVED : SQLITE_OK;
    if (st.st_ino != r->ino || st.st_dev != r->dev)
        return SQLITE_READONLY_DBMOVED;
    return was_cut(r, st.st_size) ? SQLITE_CORRUPT : SQLITE_OK;
}

static bool is_suspect(const struct run *r)
{
    const struct store *s = r->store;
    return s->suspect_dev == r->dev && s->suspect_ino == r->ino;
}

void run_trust(struct run *r)
{
    if (is_suspect(r))
        r->store->suspect_ino = 0;
}

/* One read that fails can leave SQLite with pages that do not fit together in
 * a file that is whole: it must be found so twice, by two connections. */
static bool is_damaged_again(struct run *r, int code)
{
    bool again = is_suspect(r);
    if (!file_is_damage(code))
        return false;
    r->store->suspect_dev = r->dev;
    r->store->suspect_ino = r->ino;
    return again;
}

void run_fail(struct run *r, int code, const char *what)
{
    char path[PATH_MAX];
    bool damaged = is_damaged_again(r, code);
    snprintf(path, sizeof path, "%s", r->path);
    atomic_fetch_add(&r->store->counters.failures, 1);
    log_error("store",
              "run=%s doing=%s error=\"%s\" then=\"clients of the "
              "run are closed and send again\"",
              r->name, what,
              code == SQLITE_READONLY_DBMOVED ? "the file was moved away"
                                              : sqlite3_errstr(code));
    if (space_is_short(r->db, code))
        space_spent(r->store);
    if (code != SQLITE_READONLY_DBMOVED)
        store_failed(r->store, sqlite3_errstr(code));
    if (!sqlite3_get_autocommit(r->db))
        sqlite3_exec(r->db, "ROLLBACK", NULL, NULL, NULL);
    if ((code & 0xff) == SQLITE_IOERR) /* it may be that of a sync */
        wal_keep(r->db, true);
    if (code != SQLITE_READONLY_DBMOVED && !damaged)
        leftover_add(r->store, strrchr(path, '/') + 1, true);
    run_close(r);
    if (damaged)
        file_put_aside(path);
}
