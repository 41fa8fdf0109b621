/* Checks the file of a run: SQLite's own structure, references between the
 * tables, that every sequence number is stored once or lost, and that every
 * record is read as every other program reads it.
 *
 * All of it in one read transaction, so a run that is being written is seen
 * at one moment. SQLite has no checksum over a page: a bit that is wrong in
 * the middle of a figure is not found, by nobody. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/record.h"
#include "proto/row.h"
#include "tools/db_cell.h"
#include "tools/verify.h"

enum {
    APPLICATION_ID = 1414677316, /* "TRCD", see schema.sql */
    USER_VERSION = 1,
    HEAD_BYTES = 100, /* of an SQLite file */
    ID_AT = 68,
    BUSY_MS = 10000
};

/* ---- the file ---- */

enum head { HEAD_OURS, HEAD_DAMAGED, HEAD_OTHER };

/* By the head alone. A file of ours whose first bytes are gone still has its
 * mark. */
static enum head judge_head(const uint8_t *head, ssize_t n)
{
    static const uint8_t mark[4] = {0x54, 0x52, 0x43, 0x44};
    static const char magic[16] = "SQLite format 3";
    int is_sqlite = n >= 16 && memcmp(head, magic, 16) == 0;
    int is_ours = n >= ID_AT + 4 && memcmp(head + ID_AT, mark, 4) == 0;
    if (is_ours)
        return is_sqlite ? HEAD_OURS : HEAD_DAMAGED;
    return is_sqlite && n < HEAD_BYTES ? HEAD_DAMAGED : HEAD_OTHER;
}

const char *verify_open(const char *path, sqlite3 **db)
{
    int rc = sqlite3_open_v2(path, db, SQLITE_OPEN_READONLY, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_busy_timeout(*db, BUSY_MS);
        sqlite3_db_config(*db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        rc = sqlite3_exec(*db, "PRAGMA query_only=1; BEGIN;"
                               "SELECT count(*) FROM sqlite_master",
                          NULL, NULL, NULL);
    }
    return rc == SQLITE_OK ? NULL
           : *db           ? sqlite3_errmsg(*db)
                           : "out of memory";
}

/* False: told that nothing more can be said. */
static int look_at_head(struct verify *v)
{
    uint8_t head[HEAD_BYTES];
    ssize_t n;
    int fd = open(v->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        verify_cannot(v, CTL_FAILED, "unreadable", ctl_errno(errno));
        return 0;
    }
    n = read(fd, head, sizeof head);
    if (n < 0)
        verify_cannot(v, CTL_FAILED, "unreadable", ctl_errno(errno));
    close(fd);
    if (n < 0)
        return 0;
    if (n == 0) {
        verify_found(v, "head", 1, "the file is empty");
        return 0;
    }
    switch (judge_head(head, n)) {
    case HEAD_OTHER:
        verify_cannot(v, CTL_BAD, "not_ours", "not a run of tracerd");
        return 0;
    case HEAD_DAMAGED:
        verify_found(v, "head", 1, "the first bytes are damaged");
        return 0;
    case HEAD_OURS:
        break;
    }
    return 1;
}

/* ---- questions ---- */

static int prepare(struct verify *v, sqlite3 *db, const char *sql,
                   sqlite3_stmt **out)
{
    if (sqlite3_prepare_v2(db, sql, -1, out, NULL) == SQLITE_OK)
        return 0;
    verify_found(v, "unreadable", 1, "%s", sqlite3_errmsg(db));
    return -1;
}

static int64_t ask(struct verify *v, sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s = NULL;
    int64_t n = 0;
    int rc;
    if (prepare(v, db, sql, &s))
        return 0;
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        n = sqlite3_column_int64(s, 0);
    else if (rc != SQLITE_DONE)
        verify_found(v, "unreadable", 1, "%s", sqlite3_errmsg(db));
    sqlite3_finalize(s);
    return n;
}

static void check_pages(struct verify *v, sqlite3 *db)
{
    sqlite3_stmt *s = NULL;
    char sql[64];
    int rc;
    snprintf(sql, sizeof sql, "PRAGMA integrity_check(%d)",
             (int)VERIFY_SHOWN);
    if (prepare(v, db, sql, &s))
        return;
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(s, 0);
        if (text && strcmp(text, "ok") != 0)
            verify_found(v, "pages", 1, "%s", text);
    }
    if (rc != SQLITE_DONE)
        verify_found(v, "pages", 1, "%s", sqlite3_errmsg(db));
    sqlite3_finalize(s);
}

/* X(rows, words): what refers to a row that is not there. */
#define REFERENCES(X)                                                         \
    X("record r WHERE stream NOT IN (SELECT id FROM stream)",                 \
      "records of an unknown stream")                                         \
    X("record r WHERE object != 0 AND NOT EXISTS"                             \
      " (SELECT 1 FROM object WHERE id = r.object)",                          \
      "records of an unknown object")                                         \
    X("record r WHERE NOT EXISTS (SELECT 1 FROM path WHERE id = r.path)",     \
      "records without a path")                                               \
    X("record r WHERE NOT EXISTS (SELECT 1 FROM shape WHERE id = r.shape)",   \
      "records without a shape")                                              \
    X("record r WHERE note IS NOT NULL AND NOT EXISTS"                        \
      " (SELECT 1 FROM note WHERE id = r.note)",                              \
      "records of an unknown note")                                           \
    X("record WHERE pass NOT IN (SELECT id FROM pass) OR"                     \
      " dtype NOT IN (SELECT id FROM dtype) OR"                               \
      " io NOT IN (SELECT id FROM io)",                                       \
      "records with an unknown pass, dtype or io")                            \
    X("loss WHERE stream NOT IN (SELECT id FROM stream)",                     \
      "losses of an unknown stream")                                          \
    X("dict WHERE stream NOT IN (SELECT id FROM stream)",                     \
      "words of an unknown stream")                                           \
    X("clock WHERE stream NOT IN (SELECT id FROM stream)",                    \
      "clocks of an unknown stream")                                          \
    X("(SELECT stream, seq FROM extra EXCEPT SELECT stream, seq FROM record)",\
      "extras without their record")                                          \
    X("stream t WHERE dict_n != (SELECT count(*) FROM dict WHERE stream ="    \
      " t.id) OR dict_n != (SELECT coalesce(max(id), 0) FROM dict WHERE"      \
      " stream = t.id)",                                                      \
      "streams whose dictionary has a hole")

static void check_references(struct verify *v, sqlite3 *db)
{
    static const struct {
        const char *sql, *words;
    } checks[] = {
#define REFERENCE(rows, words) {"SELECT count(*) FROM " rows, words},
        REFERENCES(REFERENCE)
#undef REFERENCE
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        int64_t n = ask(v, db, checks[i].sql);
        if (n > 0)
            verify_found(v, "reference", n, "%s", checks[i].words);
    }
}

static void check_words(struct verify *v, sqlite3 *db)
{
    sqlite3_stmt *s = NULL;
    struct entry e;
    int64_t bad = 0;
    int rc;
    if (prepare(v, db, "SELECT entry FROM dict", &s))
        return;
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        const void *blob = sqlite3_column_blob(s, 0);
        bad += !blob ||
               entry_get(blob, (size_t)sqlite3_column_bytes(s, 0), &e) != 0;
    }
    if (bad)
        verify_found(v, "word", bad, "dictionary entries that do not decode");
    if (rc != SQLITE_DONE)
        verify_found(v, "unreadable", 1, "dict: %s", sqlite3_errmsg(db));
    sqlite3_finalize(s);
}

/* ---- sequence numbers ---- */

/* Ranges that touch are told as one. */
struct range {
    void (*told)(void *context, int64_t stream, int64_t first, int64_t last,
                 const char *what);
    void *context;
    int64_t stream, first, last;
    const char *what; /* NULL: none is kept */
};

static void range_flush(struct range *r)
{
    if (r->what)
        r->told(r->context, r->stream, r->first, r->last, r->what);
    r->what = NULL;
}

static void range_add(struct range *r, int64_t stream, int64_t first,
                      int64_t last, const char *what)
{
    if (r->what == what && r->stream == stream && first == r->last + 1) {
        r->last = last;
        return;
    }
    range_flush(r);
    r->stream = stream;
    r->first = first;
    r->last = last;
    r->what = what;
}

int verify_knows_pruned(sqlite3 *db)
{
    return sqlite3_table_column_metadata(db, "main", "pruned", "last", NULL,
                                         NULL, NULL, NULL,
                                         NULL) == SQLITE_OK;
}

int verify_seqs(sqlite3 *db,
                void (*told)(void *context, int64_t stream, int64_t first,
                             int64_t last, const char *what),
                void *context)
{
    static const char missing[] = "missing", twice[] = "stored twice",
                      beyond[] = "behind the mark";
    /* a mark is a row too, behind all of its stream */
    static const char format[] =
        "SELECT stream, seq, seq, 0 FROM record UNION ALL "
        "SELECT stream, seq, last, 0 FROM loss UNION ALL %s"
        "SELECT id, seq + 1, seq, 1 FROM stream ORDER BY 1, 2, 4";
    char sql[512];
    struct range r = {.told = told, .context = context};
    sqlite3_stmt *s = NULL;
    int64_t stream = -1, next = 1, mark = INT64_MAX;
    int rc;
    snprintf(sql, sizeof sql, format,
             verify_knows_pruned(db) ? "SELECT stream, seq, last, 0 FROM "
                                       "pruned UNION ALL "
                                     : "");
    rc = sqlite3_prepare_v2(db, sql, -1, &s, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        int64_t id = sqlite3_column_int64(s, 0);
        int64_t first = sqlite3_column_int64(s, 1);
        int64_t last = sqlite3_column_int64(s, 2);
        rc = SQLITE_OK;
        if (id != stream) {
            next = 1;
            mark = INT64_MAX;
        }
        stream = id;
        if (first > next)
            range_add(&r, id, next, first - 1, missing);
        if (sqlite3_column_int(s, 3)) {
            mark = last;
            next = first > next ? first : next;
            if (next > first) /* a loss that reaches over it */
                range_add(&r, id, first, next - 1, beyond);
            continue;
        }
        if (first < next)
            range_add(&r, id, first, last < next ? last : next - 1, twice);
        if (last >= next && last > mark)
            range_add(&r, id, first > next ? first : next, last, beyond);
        if (last >= next)
            next = last + 1;
    }
    range_flush(&r);
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

struct gaps {
    struct verify *v;
    unsigned shown;
    int64_t more;
};

static void on_gap(void *context, int64_t stream, int64_t first, int64_t last,
                   const char *what)
{
    struct gaps *g = context;
    if (g->shown == VERIFY_SHOWN) {
        g->more += last - first + 1;
        return;
    }
    g->shown++;
    verify_found(g->v, "seq", last - first + 1,
                 "attempt %lld rank %lld: %lld to %lld %s",
                 (long long)(stream >> 40),
                 (long long)(stream >> 12 & 0xfffffff), (long long)first,
                 (long long)last, what);
}

static void check_seqs(struct verify *v, sqlite3 *db)
{
    struct gaps g = {v, 0, 0};
    int rc = verify_seqs(db, on_gap, &g);
    if (g.more)
        verify_found(v, "seq", g.more, "further sequence numbers");
    if (rc != SQLITE_OK)
        verify_found(v, "unreadable", 1, "sequence numbers: %s",
                     sqlite3_errmsg(db));
}

/* ---- records ---- */

static void check_records(struct verify *v, sqlite3 *db)
{
    struct sql *sql = malloc(sizeof *sql);
    struct cell cells[ROW_COLUMN_COUNT];
    sqlite3_stmt *s = NULL;
    unsigned shown = 0;
    int64_t bad = 0;
    struct query q;
    struct row row;
    int rc;

    query_init(&q, QUERY_RECORDS);
    if (!sql || sql_records(&q, NULL, sql)) {
        free(sql);
        verify_cannot(v, CTL_FAILED, "unreadable", "out of memory");
        return;
    }
    rc = prepare(v, db, sql->text, &s);
    for (unsigned i = 0; rc == 0 && i < sql->n; i++)
        sqlite3_bind_int64(s, (int)i + 1, sql->bind[i].i);
    while (s && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        for (int i = 0; i < ROW_COLUMN_COUNT; i++)
            cells[i] = db_cell(s, i);
        v->records++;
        if (row_get(cells, &row) == 0)
            continue;
        if (shown++ < VERIFY_SHOWN)
            verify_found(v, "record", 1,
                         "attempt %lld rank %lld seq %lld does not decode",
                         (long long)cells[ROW_ATTEMPT].i,
                         (long long)cells[ROW_RANK].i,
                         (long long)cells[ROW_SEQ].i);
        else
            bad++;
    }
    if (bad)
        verify_found(v, "record", bad, "further records do not decode");
    if (s && rc != SQLITE_DONE)
        verify_found(v, "unreadable", 1, "records: %s", sqlite3_errmsg(db));
    sqlite3_finalize(s);
    free(sql);
}

void verify_run(struct verify *v)
{
    sqlite3 *db = NULL;
    const char *why;
    int64_t version;

    if (!look_at_head(v))
        return;
    why = verify_open(v->file, &db);
    if (why && db && (sqlite3_errcode(db) & 0xff) != SQLITE_CORRUPT &&
        (sqlite3_errcode(db) & 0xff) != SQLITE_NOTADB) {
        verify_cannot(v, CTL_FAILED, "unreadable", why);
    } else if (why) {
        verify_found(v, "pages", 1, "%s", why);
    } else if ((version = ask(v, db, "PRAGMA user_version")) > USER_VERSION) {
        char text[96];
        snprintf(text, sizeof text,
                 "its format %lld is newer than this tracectl's %d; use a "
                 "newer one",
                 (long long)version, USER_VERSION);
        verify_cannot(v, CTL_FAILED, "newer", text);
    } else {
        check_pages(v, db);
        check_references(v, db);
        check_words(v, db);
        check_seqs(v, db);
        check_records(v, db);
        v->losses = (uint64_t)ask(v, db, "SELECT coalesce(sum(count), 0) "
                                         "FROM loss");
    }
    sqlite3_close(db);
}
