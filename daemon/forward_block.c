/* Rows of a run's file as ClickHouse takes them. Forwarder's thread.
 *
 * Columns of streams and losses are described by their SQL: the SELECT gives
 * them in the order of the INSERT, so a row is put without knowing what it
 * means. Records, of which there are a million times as many, are made of what
 * came, and of names that are kept ready. */
#include "daemon/forward.h"

#include <assert.h>
#include <sqlite3.h>
#include <string.h>

#include "daemon/chunk.h"
#include "daemon/columns.h"
#include "proto/histogram.h"

/* X(name, type), and the SQL of what is read as it is. The first column of
 * each table is the run. */
#define RECORD_COLUMNS(X)                                                      \
    X(epoch, UInt64) X(attempt, UInt32) X(rank, UInt32) X(class, String)       \
    X(instance, UInt32) X(module, String) X(path, String) X(shape, String)     \
    X(note, String) X(step, UInt64) X(object, UInt64) X(pass, UInt8)           \
    X(stream, UInt64) X(io, UInt8) X(position, UInt32) X(seq, UInt64)          \
    X(ts_ns, Int64) X(t_ns, Int64) X(iteration, UInt64) X(microbatch, UInt32)  \
    X(labels, UInt32) X(dtype, UInt8) X(n, Int64) X(nans, Nullable(Int64))     \
    X(pinf, Nullable(Int64)) X(ninf, Nullable(Int64))                          \
    X(zero, Nullable(Int64)) X(subnormal, Nullable(Int64))                     \
    X(max, Nullable(Float64)) X(min, Nullable(Float64))                        \
    X(absmin, Nullable(Float64)) X(max_int, Nullable(Int64))                   \
    X(min_int, Nullable(Int64)) X(absmin_int, Nullable(Int64))                 \
    X(mean, Nullable(Float64)) X(std, Nullable(Float64))                       \
    X(l2, Nullable(Float64)) X(hash, Nullable(UInt64)) X(samples, String)      \
    X(given, Nullable(UInt8)) X(sampling, UInt8) X(sampling_arg, UInt64)       \
    X(histogram, String)

#define STREAM_COLUMNS(X)                                                      \
    X(id, UInt64, "id")                                                        \
    X(attempt, UInt32, "attempt")                                              \
    X(rank, UInt32, "rank")                                                    \
    X(epoch, UInt64, "epoch")                                                  \
    X(world, UInt32, "world")                                                  \
    X(pid, UInt32, "pid")                                                      \
    X(start_time, UInt64, "start_time")                                        \
    X(boot_id, String, "boot_id")                                              \
    X(host, String, "host")                                                    \
    X(uid, UInt32, "uid")                                                      \
    X(client, String, "client")                                                \
    X(real_ns, Int64, "real_ns")                                               \
    X(mono_ns, Int64, "mono_ns")                                               \
    X(info, String, "info")                                                    \
    X(seq, UInt64, "seq")                                                      \
    X(iteration, UInt64, "iteration")                                          \
    X(last_ns, Int64, "last_ns")                                               \
    X(state, String, "state")                                                  \
    X(block_ms, UInt64, "block_ms")                                            \
    X(spool_bytes, UInt64, "spool_bytes")                                      \
    X(job, String, "(SELECT value FROM meta WHERE key = 'job')")               \
    X(store_id, String, "(SELECT value FROM meta WHERE key = 'store_id')")     \
    X(created_ns, Int64, "(SELECT value FROM meta WHERE key = 'created_ns')")  \
    X(version, String, "(SELECT value FROM meta WHERE key = 'version')")       \
    X(written_ns, UInt64, "?1")

#define LOSS_COLUMNS(X)                                                        \
    X(stream, UInt64, "l.stream")                                              \
    X(seq, UInt64, "l.seq")                                                    \
    X(epoch, UInt64, "s.epoch")                                                \
    X(rank, UInt32, "s.rank")                                                  \
    X(attempt, UInt32, "s.attempt")                                            \
    X(last, UInt64, "l.last")                                                  \
    X(count, UInt64, "l.count")                                                \
    X(bytes, UInt64, "l.bytes")                                                \
    X(cause, String, "l.cause")                                                \
    X(t_ns, Int64, "l.t_ns")                                                   \
    X(ts_ns, Int64, "s.real_ns + l.t_ns")                                      \
    X(written_ns, UInt64, "?1")

/* What a node's dictionary has, though no record may have come of it. The
 * rank only says which shard has it. */
#define OBJECT_COLUMNS(X)                                                      \
    X(object, UInt64, "id")                                                    \
    X(class, String, "class")                                                  \
    X(instance, UInt32, "instance")                                            \
    X(module, String, "module")                                                \
    X(rank, UInt32, "0")

#define NAME(name, ...) ", " #name
#define TYPE(name, type, ...) {#name, #type},
#define SQL(name, type, sql) ", " sql

#define LAYOUT(table, COLUMNS)                                                 \
    static const struct column_type table##_columns[] = {                      \
        {"run", "String"}, COLUMNS(TYPE)};                                     \
    const struct layout table##_layout = {                                     \
        "INSERT INTO " #table "(run" COLUMNS(NAME) ") FORMAT Native",          \
        table##_columns, sizeof table##_columns / sizeof *table##_columns};    \
    static_assert(sizeof table##_columns / sizeof *table##_columns <=          \
                      BLOCK_COLUMNS,                                           \
                  "columns of a block")

LAYOUT(record, RECORD_COLUMNS);
LAYOUT(stream, STREAM_COLUMNS);
LAYOUT(loss, LOSS_COLUMNS);
LAYOUT(object, OBJECT_COLUMNS);

static const char queue_sql[] =
    "SELECT id, n, total, records FROM queue WHERE id > ?1 ORDER BY id";
static const char stream_sql[] =
    "SELECT 0" STREAM_COLUMNS(SQL) " FROM stream";
static const char loss_sql[] =
    "SELECT 0" LOSS_COLUMNS(SQL)
    " FROM loss l JOIN stream s ON s.id = l.stream";
static const char object_sql[] =
    "SELECT id" OBJECT_COLUMNS(SQL)
    " FROM object WHERE id > ?1 ORDER BY id LIMIT 131072";
static_assert(BLOCK_ROWS == 131072, "as object_sql has it");

/* ---- what is read as it is ---- */

static void put_cell(struct block *b, sqlite3_stmt *q, int i)
{
    /* the length is right after the bytes were asked for */
    const void *text = block_wants_text(b) ? sqlite3_column_blob(q, i) : NULL;
    if (block_wants_text(b))
        block_text(b, text, (size_t)sqlite3_column_bytes(q, i));
    else
        block_number(b, (uint64_t)sqlite3_column_int64(q, i));
}

/* The first column is the row's number here, and then is the run's name. */
static int read_all(sqlite3 *db, const char *sql, const struct layout *of,
                    const char *run, int64_t bound, struct block *b)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &q, NULL);
    block_clear(b, of);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(q, 1, bound);
    while (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        if (block_row(b, sqlite3_column_int64(q, 0)))
            block_text(b, run, strlen(run));
        for (unsigned i = 1; !b->bad && i < of->n; i++)
            put_cell(b, q, (int)i);
        rc = b->bad ? SQLITE_NOMEM : SQLITE_OK;
    }
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* ---- records ---- */

static void put_maybe(struct block *b, bool there, uint64_t v)
{
    if (there)
        block_number(b, v);
    else
        block_null(b);
}

/* As a double whatever it is; as an integer where it is one. */
static void put_double(struct block *b, struct cell c, bool is_unsigned)
{
    double v = c.f;
    uint64_t bits;
    if (c.type == CELL_INT)
        v = is_unsigned ? (double)(uint64_t)c.i : (double)c.i;
    memcpy(&bits, &v, sizeof bits);
    put_maybe(b, c.type != CELL_NULL, bits);
}

static void put_integer(struct block *b, struct cell c)
{
    put_maybe(b, c.type == CELL_INT, (uint64_t)c.i);
}

static void put_key(struct block *b, const struct pending *k,
                    const struct wire_record *m, int64_t real_ns)
{
    block_number(b, (uint64_t)k->step);
    block_number(b, k->object);
    block_number(b, k->pass);
    block_number(b, (uint64_t)k->stream);
    block_number(b, k->io);
    block_number(b, k->position);
    block_number(b, (uint64_t)k->seq);
    block_number(b, (uint64_t)real_ns + m->t_ns);
    block_number(b, m->t_ns);
    block_number(b, m->when.iteration);
    block_number(b, m->when.microbatch);
    block_number(b, m->when.labels);
    block_number(b, m->dtype);
    block_number(b, m->stats.n);
}

static void put_figures(struct block *b, const struct wire_record *m,
                        const struct columns *c)
{
    const struct trd_stats *s = &m->stats;
    bool u = trd_dtype_kind((int)m->dtype) == TRD_KIND_UNSIGNED;
    put_maybe(b, c->counts, s->nan);
    put_maybe(b, c->counts, s->pinf);
    put_maybe(b, c->counts, s->ninf);
    put_maybe(b, c->counts, s->zero);
    put_maybe(b, c->counts, s->subnormal);
    put_double(b, c->max, u);
    put_double(b, c->min, u);
    put_double(b, c->absmin, u);
    put_integer(b, c->max);
    put_integer(b, c->min);
    put_integer(b, c->absmin);
    put_double(b, c->mean, false);
    put_double(b, c->std, false);
    put_double(b, c->l2, false);
    put_maybe(b, s->has & TRD_HAS_HASH, s->hash);
}

static void put_rest(struct block *b, const struct wire_record *m,
                     struct cell given)
{
    const struct trd_stats *s = &m->stats;
    uint8_t histogram[HISTOGRAM_MAX_BYTES];
    size_t n = 0;
    block_text(b, m->samples,
               s->sample_n * (size_t)trd_dtype_bytes((int)m->dtype));
    put_integer(b, given);
    block_number(b, s->sampling);
    block_number(b, s->sampling ? s->sampling_arg : 0);
    if (m->histogram.kind)
        n = histogram_put(&m->histogram, m->dtype, histogram);
    block_text(b, histogram, n);
}

static int put_record(struct block *b, struct names *c, sqlite3 *db,
                      const struct pending *k, const struct wire_record *m)
{
    static const enum name_kind kinds[] = {NAME_STREAM, NAME_OBJECT, NAME_PATH,
                                           NAME_SHAPE, NAME_NOTE};
    const int64_t ids[] = {k->stream, k->object, k->path, k->shape, k->note};
    const struct name *name;
    struct columns columns;
    int64_t real_ns = 0;

    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int rc = names_get(c, db, kinds[i], ids[i], &name);
        if (rc != SQLITE_OK)
            return rc;
        names_put(name, b);
        real_ns += name->real_ns;
    }
    columns_of(m, &columns);
    put_key(b, k, m, real_ns);
    put_figures(b, m, &columns);
    put_rest(b, m, columns.given);
    return b->bad ? SQLITE_NOMEM : SQLITE_OK;
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
        if (!block_row(b, ++id))
            return SQLITE_NOMEM;
        rc = put_record(b, c, db, &k, &m);
    }
    return rc;
}

int block_read(sqlite3 *db, struct names *c, int64_t after, struct block *b)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, queue_sql, -1, &q, NULL);
    block_clear(b, &record_layout);
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
    return read_all(db, stream_sql, &stream_layout, run, (int64_t)written_ns,
                    b);
}

int losses_read(sqlite3 *db, const char *run, uint64_t written_ns,
                struct block *b)
{
    return read_all(db, loss_sql, &loss_layout, run, (int64_t)written_ns, b);
}

int objects_read(sqlite3 *db, const char *run, int64_t after, struct block *b)
{
    return read_all(db, object_sql, &object_layout, run, after, b);
}
