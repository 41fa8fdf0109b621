/* Rows of a run's file as ClickHouse takes them. Forwarder's thread.
 *
 * Columns of streams and losses are described by their types: the SELECT gives
 * them in the order of the INSERT, so a row is written without knowing what it
 * means. Records, of which there are a million times as many, are made of what
 * came, and of names that are kept ready. */
#include "daemon/forward.h"

#include <sqlite3.h>
#include <stdlib.h>

#include "daemon/chunk.h"
#include "daemon/columns.h"
#include "proto/bytes.h"
#include "proto/histogram.h"

/* X(name, type, SQL): types are i, l (32, 64 bits) and s (a string). */
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

/* As put_record() writes them: first what is by name. */
const char block_insert[] =
    "INSERT INTO record(run, epoch, attempt, rank, class, instance, module,"
    " path, shape, note, step, object, pass, stream, io, position, seq, ts_ns,"
    " t_ns, iteration, microbatch, labels, dtype, n, nans, pinf, ninf, zero,"
    " subnormal, max, min, absmin, max_int, min_int, absmin_int, mean, std, l2,"
    " hash, samples, given, sampling, sampling_arg, histogram)"
    " FORMAT RowBinary";
const char streams_insert[] =
    "INSERT INTO stream(run" STREAM_COLUMNS(NAME) ") FORMAT RowBinary";
const char losses_insert[] =
    "INSERT INTO loss(run" LOSS_COLUMNS(NAME) ") FORMAT RowBinary";

static const char stream_types[] = STREAM_COLUMNS(TYPE);
static const char loss_types[] = LOSS_COLUMNS(TYPE);

static const char queue_sql[] =
    "SELECT id, n, total, records FROM queue WHERE id > ?1 ORDER BY id";
static const char stream_sql[] =
    "SELECT 0" STREAM_COLUMNS(SQL) " FROM stream";
static const char loss_sql[] =
    "SELECT 0" LOSS_COLUMNS(SQL)
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

void block_put(struct block *b, uint64_t v, unsigned n)
{
    uint8_t *p = room(b, n);
    for (unsigned i = 0; p && i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

void block_text(struct block *b, const void *text, size_t n)
{
    size_t left = n;
    uint8_t *p;
    for (; left >= 0x80; left >>= 7)
        block_put(b, left | 0x80, 1);
    block_put(b, left, 1);
    p = room(b, n);
    if (p && n)
        memcpy(p, text, n);
}

static void put_column(struct block *b, sqlite3_stmt *q, int i, char type)
{
    switch (type) {
    case 'i':
        block_put(b, (uint64_t)sqlite3_column_int64(q, i), 4);
        break;
    case 'l':
        block_put(b, (uint64_t)sqlite3_column_int64(q, i), 8);
        break;
    default: {
        /* the length is right after the bytes were asked for */
        const void *text = sqlite3_column_blob(q, i);
        block_text(b, text, (size_t)sqlite3_column_bytes(q, i));
    }
    }
}

void block_columns(struct block *b, sqlite3_stmt *q, int first,
                   const char *types)
{
    for (int i = 0; types[i]; i++)
        put_column(b, q, first + i, types[i]);
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

static void clear(struct block *b)
{
    b->n = b->rows = 0;
    b->bad = b->full = false;
}

static int read_all(sqlite3 *db, const char *sql, const char *run,
                    const char *types, uint64_t written_ns, struct block *b)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &q, NULL);
    clear(b);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(q, 1, (sqlite3_int64)written_ns);
    while (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        rc = note_row(b, 0) ? SQLITE_OK : SQLITE_NOMEM;
        block_text(b, run, strlen(run));
        block_columns(b, q, 1, types);
        if (b->bad)
            rc = SQLITE_NOMEM;
    }
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* ---- records ---- */

static uint8_t *put8(uint8_t *p, uint64_t v)
{
    *p = (uint8_t)v;
    return p + 1;
}

static uint8_t *put32(uint8_t *p, uint64_t v)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
    return p + 4;
}

static uint8_t *put64(uint8_t *p, uint64_t v)
{
    for (unsigned i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
    return p + 8;
}

static uint8_t *put_real(uint8_t *p, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return put64(p, bits);
}

static uint8_t *put_bytes_of(uint8_t *p, const void *bytes, size_t n)
{
    size_t left = n;
    for (; left >= 0x80; left >>= 7)
        p = put8(p, left | 0x80);
    p = put8(p, left);
    if (n)
        memcpy(p, bytes, n);
    return p + n;
}

/* A Nullable column: a byte that says that it is NULL, or the value. */
static uint8_t *put_maybe(uint8_t *p, bool there, uint64_t v)
{
    p = put8(p, !there);
    return there ? put64(p, v) : p;
}

/* As a double whatever it is; as an integer where it is one. */
static uint8_t *put_double(uint8_t *p, struct cell c)
{
    p = put8(p, c.type == CELL_NULL);
    if (c.type == CELL_NULL)
        return p;
    return put_real(p, c.type == CELL_INT ? (double)c.i : c.f);
}

static uint8_t *put_integer(uint8_t *p, struct cell c)
{
    return put_maybe(p, c.type == CELL_INT, (uint64_t)c.i);
}

static uint8_t *put_key(uint8_t *p, const struct pending *k,
                        const struct wire_record *m, int64_t real_ns)
{
    p = put64(p, (uint64_t)k->step);
    p = put64(p, k->object);
    p = put8(p, k->pass);
    p = put64(p, (uint64_t)k->stream);
    p = put8(p, k->io);
    p = put32(p, k->position);
    p = put64(p, (uint64_t)k->seq);
    p = put64(p, (uint64_t)real_ns + m->t_ns);
    p = put64(p, m->t_ns);
    p = put64(p, m->when.iteration);
    p = put32(p, m->when.microbatch);
    p = put32(p, m->when.labels);
    p = put8(p, m->dtype);
    return put64(p, m->stats.n);
}

static uint8_t *put_figures(uint8_t *p, const struct trd_stats *s,
                            const struct columns *c)
{
    p = put_maybe(p, c->counts, s->nan);
    p = put_maybe(p, c->counts, s->pinf);
    p = put_maybe(p, c->counts, s->ninf);
    p = put_maybe(p, c->counts, s->zero);
    p = put_maybe(p, c->counts, s->subnormal);
    p = put_double(p, c->max);
    p = put_double(p, c->min);
    p = put_double(p, c->absmin);
    p = put_integer(p, c->max);
    p = put_integer(p, c->min);
    p = put_integer(p, c->absmin);
    p = put_double(p, c->mean);
    p = put_double(p, c->std);
    p = put_double(p, c->l2);
    return put_maybe(p, s->has & TRD_HAS_HASH, s->hash);
}

static uint8_t *put_rest(uint8_t *p, const struct wire_record *m,
                         struct cell given)
{
    const struct trd_stats *s = &m->stats;
    uint8_t histogram[HISTOGRAM_MAX_BYTES];
    size_t n = 0;
    p = put_bytes_of(p, m->samples,
                     s->sample_n * (size_t)trd_dtype_bytes((int)m->dtype));
    p = put8(p, given.type == CELL_NULL);
    if (given.type != CELL_NULL)
        p = put8(p, (uint64_t)given.i);
    p = put8(p, s->sampling);
    p = put64(p, s->sampling ? s->sampling_arg : 0);
    if (m->histogram.kind)
        n = histogram_put(&m->histogram, m->dtype, histogram);
    return put_bytes_of(p, histogram, n);
}

/* All but the names and the samples is below this. */
enum { REST_BYTES = 400 + HISTOGRAM_MAX_BYTES };

static int put_record(struct block *b, struct names *c, sqlite3 *db,
                      const struct pending *k, const struct wire_record *m)
{
    static const enum name_kind kinds[] = {NAME_STREAM, NAME_OBJECT, NAME_PATH,
                                           NAME_SHAPE, NAME_NOTE};
    const int64_t ids[] = {k->stream, k->object, k->path, k->shape, k->note};
    const struct name *name[sizeof ids / sizeof *ids];
    struct columns columns;
    int64_t real_ns = 0;
    uint8_t *p;

    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int rc = names_get(c, db, kinds[i], ids[i], &name[i]);
        if (rc != SQLITE_OK)
            return rc;
        p = room(b, name[i]->n);
        if (!p)
            return SQLITE_NOMEM;
        memcpy(p, name[i]->bytes, name[i]->n);
        real_ns += name[i]->real_ns;
    }
    p = room(b, REST_BYTES + m->stats.sample_n *
                                 (size_t)trd_dtype_bytes((int)m->dtype));
    if (!p)
        return SQLITE_NOMEM;
    columns_of(m, &columns);
    p = put_key(p, k, m, real_ns);
    p = put_figures(p, &m->stats, &columns);
    p = put_rest(p, m, columns.given);
    b->n = (size_t)(p - b->at);
    return SQLITE_OK;
}

/* The records of one row of table queue. */
static int put_chunk(struct block *b, struct names *c, sqlite3 *db,
                     sqlite3_stmt *q)
{
    int64_t last = sqlite3_column_int64(q, 0);
    int64_t id = last - sqlite3_column_int64(q, 1);
    /* the length is right after the bytes were asked for */
    const void *bytes = sqlite3_column_blob(q, 3);
    struct reader r = reader_of(bytes, (size_t)sqlite3_column_bytes(q, 3));
    struct wire_record m;
    struct pending k;
    int rc = SQLITE_OK;
    b->total = sqlite3_column_int64(q, 2);
    while (rc == SQLITE_OK && id < last) {
        if (!chunk_next(&r, &k, &m))
            return SQLITE_CORRUPT;
        if (!note_row(b, ++id))
            return SQLITE_NOMEM;
        rc = put_record(b, c, db, &k, &m);
    }
    return rc;
}

int block_read(sqlite3 *db, struct names *c, int64_t after, struct block *b)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, queue_sql, -1, &q, NULL);
    clear(b);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(q, 1, after);
    while (rc == SQLITE_OK && !b->full &&
           (rc = sqlite3_step(q)) == SQLITE_ROW) {
        rc = put_chunk(b, c, db, q);
        b->full = b->rows >= BLOCK_ROWS || b->n >= BLOCK_BYTES;
    }
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int streams_read(sqlite3 *db, const char *run, uint64_t written_ns,
                 struct block *b)
{
    return read_all(db, stream_sql, run, stream_types, written_ns, b);
}

int losses_read(sqlite3 *db, const char *run, uint64_t written_ns,
                struct block *b)
{
    return read_all(db, loss_sql, run, loss_types, written_ns, b);
}

void block_free(struct block *b)
{
    free(b->at);
    free(b->id);
    free(b->start);
}
