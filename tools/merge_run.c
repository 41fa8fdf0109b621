/* Merging runs: streams, losses and what else is told by stream are copied as
 * they are; objects, paths, shapes and notes get new numbers; the records of
 * all runs are taken step by step, as the table is clustered, so that each
 * goes near its end.
 *
 * The runs are taken in the order of their first stream, and nothing is made
 * up, so the same runs give the same bytes in whatever order they are named.
 * Of each run a page and the numbers of its dictionary are in memory. Clocks
 * may be apart: every stream keeps its own. */
#include "tools/merge_run.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/out.h"
#include "tools/run_file.h"
#include "tools/run_fresh.h"
#include "tools/run_use.h"
#include "tools/verify.h"
#include "tracerd/base.h"

/* Where the new numbers go: the columns of a record. */
enum { AT_STEP = 0, AT_OBJECT = 1, AT_NOTE = 11, AT_PATH = 12, AT_SHAPE = 14 };
enum { COLUMNS = 30, IDS_MAX = 1 << 28 };

/* X(kind, columns): tables whose rows get new numbers. */
#define WORDS(X)                                                              \
    X(object, "class, instance, module")                                      \
    X(path, "text")                                                           \
    X(shape, "dims, n")                                                       \
    X(note, "text")

enum word {
#define WORD_MEMBER(name, columns) WORD_##name,
    WORDS(WORD_MEMBER)
#undef WORD_MEMBER
    WORD_N
};

static const struct {
    const char *table, *columns;
} word_table[WORD_N] = {
#define WORD_TABLE(name, columns) {#name, columns},
    WORDS(WORD_TABLE)
#undef WORD_TABLE
};

struct ids {
    int64_t *to; /* by the run's number; 0: none */
    int64_t n;
};

struct input {
    const char *path;
    sqlite3 *db;
    sqlite3_stmt *rows; /* of record, in its order */
    int64_t first;      /* its first stream */
    struct ids ids[WORD_N];
    int more;           /* rows is at a row */
};

struct merge {
    struct input *in;
    size_t n;
    struct fresh fresh;
    struct merge_result *result;
};

static int failed(const struct merge *m, const char *doing)
{
    return ctl_fail(CTL_FAILED, "cannot merge into '%s': %s: %s",
                    m->fresh.name, doing, sqlite3_errmsg(m->fresh.db));
}

static int unreadable(const struct input *in)
{
    return run_file_bad(in->path, sqlite3_errmsg(in->db));
}

/* ---- the runs ---- */

static int by_first(const void *a, const void *b)
{
    const struct input *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return strcmp(x->path, y->path);
}

static int open_inputs(struct merge *m, char **path)
{
    int code = 0;
    for (size_t i = 0; code == 0 && i < m->n; i++) {
        struct input *in = &m->in[i];
        sqlite3_stmt *s = NULL;
        in->path = path[i];
        code = run_file_open(in->path, &in->db);
        if (code)
            break;
        if (run_is_written(in->db))
            return ctl_fail(CTL_FAILED, "a process that writes to '%s' still "
                                        "runs", in->path);
        if (sqlite3_exec(in->db, "BEGIN", NULL, NULL, NULL) != SQLITE_OK ||
            sqlite3_prepare_v2(in->db, "SELECT coalesce(min(id), 0) FROM "
                                       "stream", -1, &s, NULL) != SQLITE_OK ||
            sqlite3_step(s) != SQLITE_ROW)
            code = unreadable(in);
        else
            in->first = sqlite3_column_int64(s, 0);
        sqlite3_finalize(s);
    }
    if (code == 0)
        qsort(m->in, m->n, sizeof *m->in, by_first);
    return code;
}

static char *job_of(const struct input *in)
{
    sqlite3_stmt *s = NULL;
    char *job = NULL;
    if (sqlite3_prepare_v2(in->db, "SELECT value FROM meta WHERE key = 'job'",
                           -1, &s, NULL) == SQLITE_OK)
        job = sqlite3_mprintf("%s", sqlite3_step(s) == SQLITE_ROW
                                        ? (const char *)
                                              sqlite3_column_text(s, 0)
                                        : "");
    sqlite3_finalize(s);
    return job;
}

/* How much of it all nodes of a job say alike: what their launchers have of
 * their own, pid and start, stands at its end. All of it where nothing else
 * does. */
static size_t common_of(const char *job)
{
    size_t n = strlen(job);
    for (int i = 0; i < 2; i++) {
        size_t digits = 0;
        while (digits < n && isdigit((unsigned char)job[n - 1 - digits]))
            digits++;
        if (digits == 0 || digits == n || job[n - 1 - digits] != '/')
            return strlen(job);
        n -= digits + 1;
    }
    return strspn(job, "/") < n ? n : strlen(job);
}

static bool same_job(const char *a, const char *b)
{
    size_t n = common_of(a);
    return n == common_of(b) && memcmp(a, b, n) == 0;
}

static int check_jobs(const struct merge *m)
{
    char *first = job_of(&m->in[0]);
    int code = first ? 0 : CTL_FAILED;
    for (size_t i = 1; code == 0 && i < m->n; i++) {
        char *job = job_of(&m->in[i]);
        if (!job || !same_job(job, first))
            code = ctl_fail(CTL_BAD,
                            "'%s' is of job '%s' and '%s' of job '%s'; "
                            "--other-jobs merges them all the same",
                            m->in[0].path, first, m->in[i].path,
                            job ? job : "");
        sqlite3_free(job);
    }
    sqlite3_free(first);
    return code;
}

/* The same rank of the same attempt, or the same process, in two runs. */
static int tell_overlap(struct merge *m)
{
    static const char sql[] =
        "SELECT a.run, b.run, b.attempt, b.rank FROM who a JOIN who b"
        " ON a.run < b.run AND (a.epoch = b.epoch"
        " OR (a.attempt = b.attempt AND a.rank = b.rank)) LIMIT 1";
    sqlite3_stmt *s = NULL;
    int code = 0;
    int rc = sqlite3_prepare_v2(m->fresh.db, sql, -1, &s, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW)
        code = ctl_fail(CTL_BAD, "'%s' and '%s' both have attempt %lld rank "
                                 "%lld",
                        m->in[sqlite3_column_int(s, 0)].path,
                        m->in[sqlite3_column_int(s, 1)].path,
                        (long long)sqlite3_column_int64(s, 2),
                        (long long)sqlite3_column_int64(s, 3));
    else if (rc != SQLITE_DONE)
        code = failed(m, "comparing");
    sqlite3_finalize(s);
    return code;
}

static int check_overlap(struct merge *m)
{
    sqlite3_stmt *put = NULL;
    int rc = fresh_exec(&m->fresh, "CREATE TEMP TABLE who(run, attempt, rank,"
                                   " epoch); CREATE INDEX temp.who_rank ON"
                                   " who(attempt, rank); CREATE INDEX"
                                   " temp.who_epoch ON who(epoch)");
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(m->fresh.db, "INSERT INTO who VALUES(?,?,?,?)",
                                -1, &put, NULL);
    for (size_t i = 0; rc == SQLITE_OK && i < m->n; i++) {
        sqlite3_stmt *s = NULL;
        if (sqlite3_prepare_v2(m->in[i].db, "SELECT attempt, rank, epoch FROM "
                                            "stream", -1, &s, NULL) !=
            SQLITE_OK)
            rc = SQLITE_ERROR;
        while (rc == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW) {
            sqlite3_bind_int64(put, 1, (sqlite3_int64)i);
            for (int k = 0; k < 3; k++)
                sqlite3_bind_int64(put, k + 2, sqlite3_column_int64(s, k));
            sqlite3_step(put);
            rc = sqlite3_reset(put);
        }
        sqlite3_finalize(s);
    }
    sqlite3_finalize(put);
    return rc == SQLITE_OK ? tell_overlap(m) : failed(m, "comparing");
}

/* ---- what is told by stream, and the words ---- */

/* Room for the numbers that the table of old has. A SQLite code. */
static int make_ids(struct merge *m, enum word w, struct ids *out)
{
    char sql[128];
    sqlite3_stmt *s = NULL;
    int64_t most = 0;
    int rc;
    snprintf(sql, sizeof sql, "SELECT coalesce(max(id), 0) FROM old.%s",
             word_table[w].table);
    rc = sqlite3_prepare_v2(m->fresh.db, sql, -1, &s, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        most = sqlite3_column_int64(s, 0);
        rc = most < 0 || most > IDS_MAX ? SQLITE_CORRUPT : SQLITE_OK;
    }
    sqlite3_finalize(s);
    if (rc != SQLITE_OK)
        return rc;
    out->n = most + 1;
    out->to = calloc((size_t)out->n, sizeof *out->to);
    return out->to ? SQLITE_OK : SQLITE_NOMEM;
}

static int read_ids(struct merge *m, enum word w, struct ids *out)
{
    char sql[256];
    sqlite3_stmt *s = NULL;
    int rc = make_ids(m, w, out);
    snprintf(sql, sizeof sql,
             "SELECT o.id, m.id FROM old.%s o JOIN main.%s m USING(%s)",
             word_table[w].table, word_table[w].table,
             w == WORD_shape ? "dims" : word_table[w].columns);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(m->fresh.db, sql, -1, &s, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        int64_t id = sqlite3_column_int64(s, 0);
        rc = SQLITE_OK;
        if (id > 0 && id < out->n)
            out->to[id] = sqlite3_column_int64(s, 1);
    }
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int copy_words(struct merge *m, struct input *in)
{
    int rc = SQLITE_OK;
    for (enum word w = 0; rc == SQLITE_OK && w < WORD_N; w++) {
        char sql[256];
        snprintf(sql, sizeof sql,
                 "INSERT OR IGNORE INTO main.%s(%s) SELECT %s FROM old.%s"
                 " ORDER BY id",
                 word_table[w].table, word_table[w].columns,
                 word_table[w].columns, word_table[w].table);
        rc = fresh_exec(&m->fresh, sql);
        if (rc == SQLITE_OK)
            rc = read_ids(m, w, &in->ids[w]);
    }
    return rc;
}

static int copy_small(struct merge *m)
{
    static const char *const tables[] = {"stream", "dict",  "loss",
                                         "pruned", "clock", "extra"};
    int code = 0;
    for (size_t i = 0; code == 0 && i < m->n; i++) {
        struct fresh *f = &m->fresh;
        int rc = fresh_attach(f, m->in[i].path);
        for (size_t k = 0; rc == SQLITE_OK && k < sizeof tables /
                                                       sizeof *tables;
             k++)
            rc = fresh_copy(f, tables[k], NULL);
        if (rc == SQLITE_OK)
            rc = copy_words(m, &m->in[i]);
        if (rc == SQLITE_OK)
            rc = fresh_exec(f, "INSERT INTO temp.facts SELECT key, value FROM"
                               " old.meta");
        if (rc == SQLITE_OK)
            rc = fresh_detach(f);
        if (rc != SQLITE_OK)
            code = failed(m, m->in[i].path);
    }
    return code;
}

/* Made of the runs' facts alone. The id of the store is a sum of theirs, for
 * it is another store than each of them. */
static int put_facts(struct merge *m)
{
    static const char format[] =
        "INSERT INTO meta VALUES('name', %Q), ('version', %Q);"
        "INSERT INTO meta SELECT key, value FROM temp.facts WHERE key = 'job'"
        " LIMIT 1;"
        "INSERT INTO meta SELECT key, min(value) FROM temp.facts"
        " WHERE key = 'created_ns' GROUP BY key;"
        "INSERT INTO meta SELECT key, sum(value) FROM temp.facts"
        " WHERE key = 'pruned' GROUP BY key;"
        "INSERT INTO meta VALUES('store_id', %Q)";
    const char *slash = strrchr(m->fresh.name, '/');
    const char *name = slash ? slash + 1 : m->fresh.name;
    size_t n = strlen(name);
    sqlite3_stmt *s = NULL;
    char id[33] = "00000000000000000000000000000000", *base, *sql = NULL;
    int rc = sqlite3_prepare_v2(m->fresh.db, "SELECT value FROM temp.facts "
                                             "WHERE key = 'store_id'", -1, &s,
                                NULL);
    while (rc == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(s, 0);
        for (int i = 0; i < 32 && text && text[i]; i++) {
            static const char hex[] = "0123456789abcdef";
            const char *a = strchr(hex, id[i]), *b = strchr(hex, text[i]);
            id[i] = hex[((a ? a - hex : 0) + (b ? b - hex : 0)) & 15];
        }
    }
    sqlite3_finalize(s);
    if (n > 3 && strcmp(name + n - 3, ".db") == 0)
        n -= 3;
    base = sqlite3_mprintf("%.*s", (int)n, name);
    if (base)
        sql = sqlite3_mprintf(format, base, TRD_VERSION, id);
    rc = sql ? fresh_exec(&m->fresh, sql) : SQLITE_NOMEM;
    sqlite3_free(sql);
    sqlite3_free(base);
    return rc == SQLITE_OK ? 0 : failed(m, "writing");
}

/* ---- records ---- */

static int next_row(struct input *in)
{
    int rc = sqlite3_step(in->rows);
    in->more = rc == SQLITE_ROW;
    return in->more || rc == SQLITE_DONE ? 0 : unreadable(in);
}

static int64_t new_id(const struct input *in, enum word w, int64_t id)
{
    const struct ids *ids = &in->ids[w];
    return id > 0 && id < ids->n ? ids->to[id] : 0;
}

static int put_record(struct merge *m, const struct input *in,
                      sqlite3_stmt *put)
{
    static const struct {
        int at;
        enum word word;
    } renamed[] = {{AT_OBJECT, WORD_object}, {AT_PATH, WORD_path},
                   {AT_SHAPE, WORD_shape}, {AT_NOTE, WORD_note}};
    for (int i = 0; i < COLUMNS; i++)
        sqlite3_bind_value(put, i + 1, sqlite3_column_value(in->rows, i));
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        int at = renamed[i].at;
        int64_t id = sqlite3_column_int64(in->rows, at);
        if (id)
            sqlite3_bind_int64(put, at + 1,
                               new_id(in, renamed[i].word, id));
    }
    sqlite3_step(put);
    m->result->records++;
    return sqlite3_reset(put) == SQLITE_OK ? 0 : failed(m, in->path);
}

/* All records of the smallest step that any run is at. */
static int put_step(struct merge *m, sqlite3_stmt *put, int *more)
{
    int64_t step = INT64_MAX;
    int code = 0;
    *more = 0;
    for (size_t i = 0; i < m->n; i++)
        if (m->in[i].more) {
            int64_t here = sqlite3_column_int64(m->in[i].rows, AT_STEP);
            step = here < step ? here : step;
            *more = 1;
        }
    for (size_t i = 0; code == 0 && i < m->n; i++) {
        struct input *in = &m->in[i];
        while (code == 0 && in->more &&
               sqlite3_column_int64(in->rows, AT_STEP) == step) {
            code = put_record(m, in, put);
            if (code == 0)
                code = next_row(in);
        }
    }
    return code;
}

static int copy_records(struct merge *m)
{
    static const char into[] =
        "INSERT INTO record VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,"
        "?,?,?,?,?,?,?,?)";
    sqlite3_stmt *put = NULL;
    int code = 0, more = 1;
    for (size_t i = 0; code == 0 && i < m->n; i++) {
        struct input *in = &m->in[i];
        if (sqlite3_prepare_v2(in->db, "SELECT * FROM record ORDER BY step,"
                                       " object, pass, stream, io, position,"
                                       " seq", -1, &in->rows, NULL) !=
                SQLITE_OK ||
            sqlite3_column_count(in->rows) != COLUMNS)
            code = unreadable(in);
        else
            code = next_row(in);
    }
    if (code == 0 && (fresh_exec(&m->fresh, "BEGIN") != SQLITE_OK ||
                      sqlite3_prepare_v2(m->fresh.db, into, -1, &put, NULL) !=
                          SQLITE_OK))
        code = failed(m, "writing");
    while (code == 0 && more)
        code = put_step(m, put, &more);
    sqlite3_finalize(put);
    if (code == 0 && fresh_exec(&m->fresh, "COMMIT") != SQLITE_OK)
        code = failed(m, "writing");
    return code;
}

/* ---- all of it ---- */

/* As tracectl verify; what it finds goes to stderr. */
static int check_result(struct merge *m)
{
    struct out o;
    struct verify v = {.o = &o, .file = m->fresh.path};
    static const struct slice names[] = {
        {"file", 4}, {"kind", 4}, {"count", 5}, {"detail", 6}};
    if (out_open(&o, NULL, stderr))
        return CTL_BAD;
    out_table(&o, names, 4);
    verify_run(&v);
    if (out_close(&o))
        return CTL_FAILED;
    return v.findings ? ctl_fail(CTL_FAILED, "'%s' is not made: what came "
                                             "together does not hold; "
                                             "'tracectl verify' tells which "
                                             "run is damaged",
                                 m->fresh.name)
                      : 0;
}

static int make(struct merge *m)
{
    int code = check_overlap(m), error;
    if (code == 0 && fresh_exec(&m->fresh, "CREATE TEMP TABLE facts(key, "
                                           "value)") != SQLITE_OK)
        code = failed(m, "writing");
    if (code == 0)
        code = copy_small(m);
    if (code == 0)
        code = put_facts(m);
    if (code == 0)
        code = copy_records(m);
    if (code == 0 && fresh_finish(&m->fresh) != SQLITE_OK)
        code = failed(m, "writing");
    if (code == 0)
        code = check_result(m);
    if (code == 0 && (error = fresh_rename(&m->fresh, 0)) != 0)
        code = ctl_fail(CTL_FAILED, "cannot make '%s': %s", m->fresh.name,
                        ctl_errno(error));
    return code;
}

int merge_runs(char **path, size_t n, const char *out, int other_jobs,
               struct merge_result *result)
{
    struct merge m = {.n = n, .result = result, .fresh = {.fd = -1}};
    int code = 0;
    memset(result, 0, sizeof *result);
    m.in = calloc(n, sizeof *m.in);
    if (!m.in)
        return ctl_fail(CTL_FAILED, "out of memory");
    code = open_inputs(&m, path);
    if (code == 0 && !other_jobs)
        code = check_jobs(&m);
    if (code == 0)
        code = fresh_open(&m.fresh, out);
    if (code == 0)
        code = make(&m);
    for (size_t i = 0; i < n; i++) {
        sqlite3_finalize(m.in[i].rows);
        sqlite3_close(m.in[i].db);
        for (int w = 0; w < WORD_N; w++)
            free(m.in[i].ids[w].to);
    }
    fresh_close(&m.fresh);
    free(m.in);
    return code;
}
