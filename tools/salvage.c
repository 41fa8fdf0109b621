/* Saves what is left of a damaged run: `tracectl verify --repair`.
 *
 * All rows that can still be read are copied into a new file. Where reading
 * fails, the other side of the damage is looked for from the end and by
 * halves. What then does not fit together is dropped, and each sequence
 * number below a stream's mark that has no record becomes a loss. The damaged
 * file is only read; at the end it gets another name and the new one takes
 * its place. Nothing is done while anybody has the file open. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/place.h"
#include "proto/record.h"
#include "proto/row.h"
#include "schema.h"
#include "tools/db_cell.h"
#include "tools/run_file.h"
#include "tools/run_use.h"
#include "tools/verify.h"

enum {
    TRIES_MAX = 100000,        /* ranges of one table that are tried */
    PATH_BYTES = PATH_MAX + 64
};

struct salvage {
    const char *path;
    char fresh[PATH_BYTES], aside[PATH_BYTES];
    sqlite3 *from, *to;
    unsigned tries;
    int64_t records, lost;
};

static int failed(const struct salvage *s, const char *doing)
{
    return ctl_fail(CTL_FAILED, "cannot repair '%s': %s: %s", s->path, doing,
                    s->to ? sqlite3_errmsg(s->to) : ctl_errno(errno));
}

/* ---- nobody has it open ---- */

/* The lock of a data directory, so that no tracerd starts meanwhile; -1:
 * there is none to take. */
static int lock_dir(const char *path, int *fd)
{
    char lock[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    *fd = -1;
    if (snprintf(lock, sizeof lock, "%.*s%s", slash ? (int)(slash - path) + 1
                                                    : 0,
                 path, PLACE_LOCK) >= (int)sizeof lock)
        return ctl_fail(CTL_BAD, "the path is too long");
    *fd = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (*fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) != 0)
        return ctl_fail(CTL_FAILED,
                        "a tracerd serves the directory of '%s': stop it "
                        "first",
                        path);
    return 0;
}

/* ---- copying ---- */

/* A table, the column it is cut by, and what all of its rows have. */
struct part {
    const char *table, *key;
    int64_t stream; /* -1: the table is not cut by streams first */
};

/* Puts more behind a text. */
static void append(char *text, int cap, const char *format, ...)
{
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    sqlite3_vsnprintf(cap - (int)n, text + n, format, args);
    va_end(args);
}

/* Copies rows of key lo to hi until one cannot be read; *at is the key of
 * the last that was. A SQLite code of the damaged file. */
static int copy_rows(struct salvage *s, const struct part *p, int64_t lo,
                     int64_t hi, int backwards, int64_t *at)
{
    char sql[2048], where[64] = "";
    sqlite3_stmt *in = NULL, *out = NULL;
    int rc, columns;

    if (p->stream >= 0)
        snprintf(where, sizeof where, "stream = %lld AND ",
                 (long long)p->stream);
    snprintf(sql, sizeof sql,
             "SELECT %s, * FROM %s WHERE %s%s BETWEEN %lld AND %lld "
             "ORDER BY %s %s",
             p->key, p->table, where, p->key, (long long)lo, (long long)hi,
             p->key, backwards ? "DESC" : "ASC");
    rc = sqlite3_prepare_v2(s->from, sql, -1, &in, NULL);
    if (rc != SQLITE_OK)
        return rc;
    columns = sqlite3_column_count(in) - 1;
    /* by name: the first runs have fewer columns */
    snprintf(sql, sizeof sql, "INSERT OR IGNORE INTO %s", p->table);
    for (int i = 1; i <= columns; i++)
        append(sql, sizeof sql, "%s\"%w\"", i > 1 ? "," : "(",
               sqlite3_column_name(in, i));
    for (int i = 1; i <= columns; i++)
        append(sql, sizeof sql, "%s", i > 1 ? ",?" : ") VALUES(?");
    append(sql, sizeof sql, ")");
    rc = sqlite3_prepare_v2(s->to, sql, -1, &out, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(in)) == SQLITE_ROW) {
        *at = sqlite3_column_int64(in, 0);
        for (int i = 0; i < columns; i++)
            sqlite3_bind_value(out, i + 1, sqlite3_column_value(in, i + 1));
        sqlite3_step(out); /* one that does not fit is one that is damaged */
        sqlite3_reset(out);
        rc = SQLITE_OK;
    }
    sqlite3_finalize(in);
    sqlite3_finalize(out);
    return rc == SQLITE_DONE ? SQLITE_OK : rc ? rc : SQLITE_ERROR;
}

/* Around what cannot be read: from the front, from the back, and the middle
 * by halves. */
static void copy_range(struct salvage *s, const struct part *p, int64_t lo,
                       int64_t hi)
{
    int64_t front = lo, back = hi, middle;
    if (s->tries++ > TRIES_MAX ||
        copy_rows(s, p, lo, hi, 0, &front) == SQLITE_OK ||
        copy_rows(s, p, lo, hi, 1, &back) == SQLITE_OK ||
        front >= back) /* the rows of one key, from both sides */
        return;
    middle = front + (back - front) / 2;
    copy_range(s, p, front, middle);
    copy_range(s, p, middle + 1, back);
}

static void copy_table(struct salvage *s, const char *table, const char *key,
                       int64_t stream, int64_t most)
{
    const struct part p = {table, key, stream};
    s->tries = 0;
    copy_range(s, &p, 0, most);
}

/* What a run is called when nothing tells any more. */
static void copy_meta(struct salvage *s)
{
    static const char *const keys[] = {"name", "job", "store_id", "version",
                                       "created_ns"};
    const char *slash = strrchr(s->path, '/');
    const char *name = slash ? slash + 1 : s->path;
    char sql[256], *text;
    struct stat st = {.st_mtime = 0};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        sqlite3_stmt *in = NULL, *out = NULL;
        snprintf(sql, sizeof sql, "SELECT value FROM meta WHERE key = '%s'",
                 keys[i]);
        if (sqlite3_prepare_v2(s->from, sql, -1, &in, NULL) == SQLITE_OK &&
            sqlite3_step(in) == SQLITE_ROW &&
            sqlite3_prepare_v2(s->to, "INSERT INTO meta VALUES(?, ?)", -1,
                               &out, NULL) == SQLITE_OK) {
            sqlite3_bind_text(out, 1, keys[i], -1, SQLITE_STATIC);
            sqlite3_bind_value(out, 2, sqlite3_column_value(in, 0));
            sqlite3_step(out);
        }
        sqlite3_finalize(in);
        sqlite3_finalize(out);
    }
    stat(s->path, &st);
    text = sqlite3_mprintf(
        "INSERT OR IGNORE INTO meta VALUES('name', replace(%Q, '.db', '')),"
        "('job', ''), ('store_id', lower(hex(randomblob(16)))),"
        "('version', %Q), ('created_ns', %lld)",
        name, TRD_VERSION, (long long)st.st_mtime * 1000000000);
    sqlite3_exec(s->to, text, NULL, NULL, NULL);
    sqlite3_free(text);
}

static void copy_streams(struct salvage *s)
{
    sqlite3_stmt *q = NULL;
    /* ids of streams are attempt << 40 | rank << 12 | k: far apart, so they
     * are asked for one after the other where that goes */
    copy_table(s, "stream", "id", -1, INT64_MAX - 1);
    if (sqlite3_prepare_v2(s->to, "SELECT id, seq, dict_n FROM stream", -1, &q,
                           NULL) != SQLITE_OK)
        return;
    while (sqlite3_step(q) == SQLITE_ROW) {
        int64_t id = sqlite3_column_int64(q, 0);
        int64_t seq = sqlite3_column_int64(q, 1);
        copy_table(s, "dict", "id", id, sqlite3_column_int64(q, 2));
        copy_table(s, "loss", "seq", id, seq);
        copy_table(s, "pruned", "seq", id, seq);
        copy_table(s, "extra", "seq", id, seq);
        copy_table(s, "clock", "mono_ns", id, INT64_MAX - 1);
    }
    sqlite3_finalize(q);
}

/* The largest step: by the tree, else no larger than a stream is long. */
static int64_t last_step(struct salvage *s)
{
    int64_t step = run_file_ask(s->from, "SELECT max(step) FROM record");
    int64_t seq = run_file_ask(s->to, "SELECT max(seq) FROM stream");
    return step > 0 ? step : seq;
}

/* ---- making it one run again ---- */

static const char mend_sql[] =
    /* a stream whose row is gone is known by its number only */
    "INSERT INTO stream(id, attempt, rank, epoch, world, pid, start_time,"
    " boot_id, host, uid, client, real_ns, mono_ns, info, seq, dict_n, state)"
    " SELECT stream, stream >> 40, stream >> 12 & 268435455, -stream - 1, 0,"
    " 0, 0, '', '', 0, '', 0, 0, '', max(seq), 0, 'dead'"
    " FROM record WHERE stream NOT IN (SELECT id FROM stream) GROUP BY stream;"
    /* what nothing refers to rightly, and what no mark stands for */
    "DELETE FROM record WHERE (object != 0 AND"
    "  object NOT IN (SELECT id FROM object))"
    " OR path NOT IN (SELECT id FROM path)"
    " OR shape NOT IN (SELECT id FROM shape)"
    " OR (note IS NOT NULL AND note NOT IN (SELECT id FROM note))"
    " OR pass NOT IN (SELECT id FROM pass) OR io NOT IN (SELECT id FROM io)"
    " OR dtype NOT IN (SELECT id FROM dtype) OR seq < 1"
    " OR seq > (SELECT seq FROM stream WHERE id = record.stream);"
    "DELETE FROM loss WHERE stream NOT IN (SELECT id FROM stream)"
    " OR seq < 1 OR last < seq"
    " OR last > (SELECT seq FROM stream WHERE id = loss.stream);"
    "DELETE FROM pruned WHERE stream NOT IN (SELECT id FROM stream)"
    " OR seq < 1 OR last < seq"
    " OR last > (SELECT seq FROM stream WHERE id = pruned.stream);"
    "INSERT INTO meta SELECT 'pruned', n FROM"
    " (SELECT sum(last - seq + 1) AS n FROM pruned) WHERE n > 0;"
    "DELETE FROM dict WHERE stream NOT IN (SELECT id FROM stream);"
    "DELETE FROM clock WHERE stream NOT IN (SELECT id FROM stream);"
    /* words behind a hole are sent again, or stay unknown */
    "UPDATE stream SET"
    " dict_n = min(dict_n, coalesce((SELECT min(d.id) FROM dict d"
    "  WHERE d.stream = stream.id AND NOT EXISTS (SELECT 1 FROM dict e"
    "   WHERE e.stream = d.stream AND e.id = d.id + 1)), 0)),"
    " state = CASE state WHEN 'open' THEN 'dead' ELSE state END;"
    "UPDATE stream SET dict_n = 0 WHERE NOT EXISTS"
    " (SELECT 1 FROM dict WHERE dict.stream = stream.id AND dict.id = 1);"
    "DELETE FROM dict WHERE id > (SELECT dict_n FROM stream"
    " WHERE id = dict.stream);";

/* Records that nobody can read are none. */
static int drop_unreadable(struct salvage *s)
{
    struct sql *sql = malloc(sizeof *sql);
    struct cell cells[ROW_COLUMN_COUNT];
    sqlite3_stmt *q = NULL, *drop = NULL;
    struct query all;
    struct row row;
    int rc = SQLITE_NOMEM;
    query_init(&all, QUERY_RECORDS);
    if (sql && sql_records(&all, NULL, sql) == 0)
        rc = sqlite3_exec(s->to, "CREATE TEMP TABLE bad(stream, seq)", NULL,
                          NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(s->to, sql->text, -1, &q, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(s->to, "INSERT INTO bad VALUES(?, ?)", -1,
                                &drop, NULL);
    for (unsigned i = 0; rc == SQLITE_OK && i < sql->n; i++)
        rc = sqlite3_bind_int64(q, (int)i + 1, sql->bind[i].i);
    while (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        rc = SQLITE_OK;
        for (int i = 0; i < ROW_COLUMN_COUNT; i++)
            cells[i] = db_cell(q, i);
        if (row_get(cells, &row) == 0)
            continue;
        sqlite3_bind_int64(drop, 1, cells[ROW_STREAM].i);
        sqlite3_bind_int64(drop, 2, cells[ROW_SEQ].i);
        sqlite3_step(drop);
        sqlite3_reset(drop);
    }
    sqlite3_finalize(q);
    sqlite3_finalize(drop);
    free(sql);
    if (rc != SQLITE_DONE)
        return rc;
    return sqlite3_exec(
        s->to,
        "DELETE FROM record WHERE (stream, seq) IN (SELECT * FROM bad);"
        "DELETE FROM extra WHERE (stream, seq) NOT IN"
        " (SELECT stream, seq FROM record);"
        "CREATE TEMP TABLE hole(stream, first, last)",
        NULL, NULL, NULL);
}

static void on_hole(void *context, int64_t stream, int64_t first,
                    int64_t last, const char *what)
{
    struct salvage *s = context;
    char sql[160];
    if (strcmp(what, "missing") != 0)
        return;
    s->lost += last - first + 1;
    snprintf(sql, sizeof sql, "INSERT INTO hole VALUES(%lld, %lld, %lld)",
             (long long)stream, (long long)first, (long long)last);
    sqlite3_exec(s->to, sql, NULL, NULL, NULL);
}

/* What is missing is lost, and the run tells so. */
static int count_losses(struct salvage *s)
{
    int rc = verify_seqs(s->to, on_hole, s);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(s->to,
                          "INSERT OR IGNORE INTO loss SELECT stream, first,"
                          " last, last - first + 1, 0, 'store_lost', 0"
                          " FROM hole; DROP TABLE hole; DROP TABLE bad",
                          NULL, NULL, NULL);
    s->records = run_file_ask(s->to, "SELECT count(*) FROM record");
    return rc;
}

static int fill(struct salvage *s)
{
    int rc = sqlite3_exec(s->to, "PRAGMA synchronous=FULL; BEGIN;", NULL, NULL,
                          NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(s->to, schema_sql, NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return rc;
    copy_meta(s);
    copy_table(s, "object", "id", -1, UINT32_MAX);
    copy_table(s, "path", "id", -1, UINT32_MAX);
    copy_table(s, "shape", "id", -1, UINT32_MAX);
    copy_table(s, "note", "id", -1, UINT32_MAX);
    copy_streams(s);
    copy_table(s, "record", "step", -1, last_step(s));
    rc = sqlite3_exec(s->to, mend_sql, NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = drop_unreadable(s);
    if (rc == SQLITE_OK)
        rc = count_losses(s);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(s->to, "COMMIT; PRAGMA journal_mode=WAL", NULL, NULL,
                          NULL);
    return rc;
}

/* ---- names ---- */

static void remove_fresh(const struct salvage *s)
{
    static const char *const tails[] = {"", "-wal", "-shm", "-journal"};
    char path[PATH_BYTES + 16];
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        snprintf(path, sizeof path, "%s%s", s->fresh, tails[i]);
        unlink(path);
    }
}

static int name_files(struct salvage *s)
{
    char when[32];
    time_t now = time(NULL);
    struct tm tm;
    struct stat st;
    gmtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y%m%dT%H%M%S", &tm);
    if (strlen(s->path) + 64 > PATH_MAX)
        return ctl_fail(CTL_BAD, "the path is too long");
    snprintf(s->fresh, sizeof s->fresh, "%s.repair", s->path);
    snprintf(s->aside, sizeof s->aside, "%s.damaged-%s", s->path, when);
    for (int k = 2; k < 100 && lstat(s->aside, &st) == 0; k++)
        snprintf(s->aside, sizeof s->aside, "%s.damaged-%s-%d", s->path, when,
                 k);
    return 0;
}

static int swap_files(struct salvage *s)
{
    static const char *const tails[] = {"", "-wal", "-shm"};
    char from[PATH_BYTES + 16], to[PATH_BYTES + 16];
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        snprintf(from, sizeof from, "%s%s", s->path, tails[i]);
        snprintf(to, sizeof to, "%s%s", s->aside, tails[i]);
        if (rename(from, to) != 0 && (i == 0 || errno != ENOENT))
            return failed(s, "renaming it");
    }
    return rename(s->fresh, s->path) != 0 ? failed(s, "renaming the new one")
                                          : 0;
}

int salvage_run(const char *path)
{
    struct salvage s = {.path = path};
    const char *why;
    int dir_fd = -1, code = lock_dir(path, &dir_fd);
    if (code == 0 && run_in_use(path))
        code = ctl_fail(CTL_FAILED,
                        "another program has '%s' open: end it first", path);
    if (code == 0)
        code = name_files(&s);
    if (code)
        goto out;
    why = verify_open(path, &s.from);
    if (why) {
        code = ctl_fail(CTL_BAD,
                        "nothing of '%s' can be read (%s); it stays as it is",
                        path, why);
        goto out;
    }
    if (run_file_ask(s.from, "PRAGMA user_version") != 1) {
        code = ctl_fail(CTL_BAD, "'%s' has a format this tracectl does not "
                                 "know; it stays as it is", path);
        goto out;
    }
    remove_fresh(&s);
    if (sqlite3_open(s.fresh, &s.to) != SQLITE_OK || fill(&s) != SQLITE_OK)
        code = failed(&s, "writing the new file");
    sqlite3_close(s.from);
    sqlite3_close(s.to);
    s.from = s.to = NULL;
    if (code == 0)
        code = swap_files(&s);
    if (code)
        remove_fresh(&s);
    else
        printf("%s: %lld records saved, %lld lost; the damaged file is %s\n",
               path, (long long)s.records, (long long)s.lost, s.aside);
out:
    sqlite3_close(s.from);
    if (dir_fd >= 0)
        close(dir_fd);
    return code;
}
