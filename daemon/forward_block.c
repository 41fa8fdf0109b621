/* Rows of a run's file as ClickHouse takes them. Forwarder's thread.
 *
 * A column is described by its type; the SELECT gives the columns in the
 * order of the INSERT, so a row is written without knowing what it means. */
#include "daemon/forward.h"

#include <sqlite3.h>
#include <stdlib.h>

#include "proto/bytes.h"

/* X(name, type, SQL): types are b, i, l (8, 32, 64 bits), f (a double), s (a
 * string); capitals may be NULL. A value of SQLite that is of another type
 * than f or l wants is NULL there: max is an integer or a real. */
#define RECORD_COLUMNS(X)                                                      \
    X(step, "l", "q.step")                                                     \
    X(object, "l", "q.object")                                                 \
    X(pass, "b", "q.pass")                                                     \
    X(stream, "l", "q.stream")                                                 \
    X(io, "b", "q.io")                                                         \
    X(position, "i", "q.position")                                             \
    X(seq, "l", "q.seq")                                                       \
    X(epoch, "l", "s.epoch")                                                   \
    X(attempt, "i", "s.attempt")                                               \
    X(rank, "i", "s.rank")                                                     \
    X(ts_ns, "l", "s.real_ns + q.t_ns")                                        \
    X(t_ns, "l", "q.t_ns")                                                     \
    X(iteration, "l", "q.iteration")                                           \
    X(microbatch, "i", "q.microbatch")                                         \
    X(labels, "i", "q.labels")                                                 \
    X(note, "s", "t.text")                                                     \
    X(class, "s", "o.class")                                                   \
    X(instance, "i", "o.instance")                                             \
    X(module, "s", "o.module")                                                 \
    X(path, "s", "p.text")                                                     \
    X(dtype, "b", "q.dtype")                                                   \
    X(shape, "s", "h.dims")                                                    \
    X(n, "l", "coalesce(q.n, h.n)")                                            \
    X(nans, "L", "q.nan")                                                      \
    X(pinf, "L", "q.pinf")                                                     \
    X(ninf, "L", "q.ninf")                                                     \
    X(zero, "L", "q.zero")                                                     \
    X(subnormal, "L", "q.subnormal")                                           \
    X(max, "F", "q.max")                                                       \
    X(min, "F", "q.min")                                                       \
    X(absmin, "F", "q.absmin")                                                 \
    X(max_int, "L", "q.max")                                                   \
    X(min_int, "L", "q.min")                                                   \
    X(absmin_int, "L", "q.absmin")                                             \
    X(mean, "F", "q.mean")                                                     \
    X(std, "F", "q.std")                                                       \
    X(l2, "F", "q.l2")                                                         \
    X(hash, "L", "q.hash")                                                     \
    X(samples, "s", "q.samples")                                               \
    X(given, "B", "q.given")                                                   \
    X(sampling, "b", "q.sampling")                                             \
    X(sampling_arg, "l", "q.sampling_arg")                                     \
    X(histogram, "s", "q.histogram")

#define STREAM_COLUMNS(X)                                                      \
    X(id, "l", "id")                                                           \
    X(attempt, "i", "attempt")                                                 \
    X(rank, "i", "rank")                                                       \
    X(epoch, "l", "epoch")                                                     \
    X(world, "i", "world")                                                     \
    X(pid, "i", "pid")                                                         \
    X(start_time, "l", "start_time")                                           \
    X(boot_id, "s", "boot_id")                                                 \
    X(host, "s", "host")                                                       \
    X(uid, "i", "uid")                                                         \
    X(client, "s", "client")                                                   \
    X(real_ns, "l", "real_ns")                                                 \
    X(mono_ns, "l", "mono_ns")                                                 \
    X(info, "s", "info")                                                       \
    X(seq, "l", "seq")                                                         \
    X(iteration, "l", "iteration")                                             \
    X(last_ns, "l", "last_ns")                                                 \
    X(state, "s", "state")                                                     \
    X(block_ms, "l", "block_ms")                                               \
    X(spool_bytes, "l", "spool_bytes")                                         \
    X(job, "s", "(SELECT value FROM meta WHERE key = 'job')")                  \
    X(store_id, "s", "(SELECT value FROM meta WHERE key = 'store_id')")        \
    X(created_ns, "l", "(SELECT value FROM meta WHERE key = 'created_ns')")    \
    X(version, "s", "(SELECT value FROM meta WHERE key = 'version')")          \
    X(written_ns, "l", "?1")

#define LOSS_COLUMNS(X)                                                        \
    X(stream, "l", "l.stream")                                                 \
    X(seq, "l", "l.seq")                                                       \
    X(epoch, "l", "s.epoch")                                                   \
    X(rank, "i", "s.rank")                                                     \
    X(attempt, "i", "s.attempt")                                               \
    X(last, "l", "l.last")                                                     \
    X(count, "l", "l.count")                                                   \
    X(bytes, "l", "l.bytes")                                                   \
    X(cause, "s", "l.cause")                                                   \
    X(t_ns, "l", "l.t_ns")                                                     \
    X(ts_ns, "l", "s.real_ns + l.t_ns")                                        \
    X(written_ns, "l", "?1")

#define NAME(name, type, sql) ", " #name
#define TYPE(name, type, sql) type
#define SQL(name, type, sql) ", " sql

const char block_insert[] =
    "INSERT INTO record(run" RECORD_COLUMNS(NAME) ") FORMAT RowBinary";
const char streams_insert[] =
    "INSERT INTO stream(run" STREAM_COLUMNS(NAME) ") FORMAT RowBinary";
const char losses_insert[] =
    "INSERT INTO loss(run" LOSS_COLUMNS(NAME) ") FORMAT RowBinary";

static const char record_types[] = RECORD_COLUMNS(TYPE);
static const char stream_types[] = STREAM_COLUMNS(TYPE);
static const char loss_types[] = LOSS_COLUMNS(TYPE);

/* The first two columns are not sent. The newest first rows of a queue are
 * found by their number; everything else by the keys of the dictionaries. */
static const char record_sql[] =
    "SELECT q.id, q.total" RECORD_COLUMNS(SQL)
    " FROM queue q CROSS JOIN stream s ON s.id = q.stream"
    " CROSS JOIN path p ON p.id = q.path"
    " CROSS JOIN shape h ON h.id = q.shape"
    " LEFT JOIN object o ON o.id = q.object"
    " LEFT JOIN note t ON t.id = q.note"
    " WHERE q.id > ?1 ORDER BY q.id LIMIT ?2";
static const char stream_sql[] =
    "SELECT 0, 0" STREAM_COLUMNS(SQL) " FROM stream";
static const char loss_sql[] =
    "SELECT 0, 0" LOSS_COLUMNS(SQL)
    " FROM loss l JOIN stream s ON s.id = l.stream";

/* ---- bytes ---- */

/* Room for n more, or NULL and bad. */
static uint8_t *room(struct block *b, size_t n)
{
    if (b->bad)
        return NULL;
    if (b->n + n > b->cap) {
        size_t cap = b->cap ? b->cap : 65536;
        while (cap < b->n + n)
            cap *= 2;
        uint8_t *more = realloc(b->at, cap);
        if (!more) {
            b->bad = true;
            return NULL;
        }
        b->at = more;
        b->cap = cap;
    }
    b->n += n;
    return b->at + b->n - n;
}

static void put(struct block *b, uint64_t v, unsigned n)
{
    uint8_t *p = room(b, n);
    for (unsigned i = 0; p && i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static void put_text(struct block *b, const void *text, size_t n)
{
    size_t left = n;
    uint8_t *p;
    for (; left >= 0x80; left >>= 7)
        put(b, left | 0x80, 1);
    put(b, left, 1);
    p = room(b, n);
    if (p && n)
        memcpy(p, text, n);
}

static void put_real(struct block *b, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put(b, bits, 8);
}

/* Whether the value is there for a column of this type. */
static bool is_there(sqlite3_stmt *q, int i, char type)
{
    int has = sqlite3_column_type(q, i);
    if (type == 'F')
        return has == SQLITE_FLOAT || has == SQLITE_INTEGER;
    return has == SQLITE_INTEGER;
}

static void put_column(struct block *b, sqlite3_stmt *q, int i, char type)
{
    if (type == 'B' || type == 'L' || type == 'F') {
        bool there = is_there(q, i, type);
        put(b, !there, 1);
        if (!there)
            return;
    }
    switch (type) {
    case 'b':
    case 'B':
        put(b, (uint64_t)sqlite3_column_int64(q, i), 1);
        break;
    case 'i':
        put(b, (uint64_t)sqlite3_column_int64(q, i), 4);
        break;
    case 'l':
    case 'L':
        put(b, (uint64_t)sqlite3_column_int64(q, i), 8);
        break;
    case 'F':
        put_real(b, sqlite3_column_double(q, i));
        break;
    default: {
        /* the length is right after the bytes were asked for */
        const void *text = sqlite3_column_blob(q, i);
        put_text(b, text, (size_t)sqlite3_column_bytes(q, i));
    }
    }
}

static bool note_row(struct block *b, int64_t id)
{
    if (b->rows == b->rows_cap) {
        size_t cap = b->rows_cap ? 2 * b->rows_cap : 1024;
        int64_t *ids = realloc(b->id, cap * sizeof *ids);
        if (ids)
            b->id = ids;
        size_t *starts = realloc(b->start, cap * sizeof *starts);
        if (starts)
            b->start = starts;
        if (!ids || !starts)
            return false;
        b->rows_cap = cap;
    }
    b->id[b->rows] = id;
    b->start[b->rows++] = b->n;
    return true;
}

static int read_rows(sqlite3_stmt *q, const char *run, const char *types,
                     struct block *b)
{
    int rc = SQLITE_ROW;
    b->n = b->rows = 0;
    b->bad = false;
    while (b->n < BLOCK_BYTES && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        if (!note_row(b, sqlite3_column_int64(q, 0)))
            return SQLITE_NOMEM;
        b->total = sqlite3_column_int64(q, 1);
        put_text(b, run, strlen(run));
        for (int i = 0; types[i]; i++)
            put_column(b, q, i + 2, types[i]);
        if (b->bad)
            return SQLITE_NOMEM;
    }
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int read_all(sqlite3 *db, const char *sql, const char *run,
                    const char *types, int64_t first, struct block *b)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &q, NULL);
    if (rc == SQLITE_OK && sqlite3_bind_parameter_count(q) > 0)
        rc = sqlite3_bind_int64(q, 1, first);
    if (rc == SQLITE_OK && sqlite3_bind_parameter_count(q) > 1)
        rc = sqlite3_bind_int64(q, 2, BLOCK_ROWS);
    if (rc == SQLITE_OK)
        rc = read_rows(q, run, types, b);
    sqlite3_finalize(q);
    return rc;
}

int block_read(sqlite3 *db, const char *run, int64_t after, struct block *b)
{
    return read_all(db, record_sql, run, record_types, after, b);
}

int streams_read(sqlite3 *db, const char *run, uint64_t written_ns,
                 struct block *b)
{
    return read_all(db, stream_sql, run, stream_types, (int64_t)written_ns,
                    b);
}

int losses_read(sqlite3 *db, const char *run, uint64_t written_ns,
                struct block *b)
{
    return read_all(db, loss_sql, run, loss_types, (int64_t)written_ns, b);
}

void block_free(struct block *b)
{
    free(b->at);
    free(b->id);
    free(b->start);
}
