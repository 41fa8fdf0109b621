/* The queue of a run: records on their way to a ClickHouse. Writer thread.
 *
 * With a forwarder, records go into table queue instead of table record, in
 * the transaction of their marks: many to a row and as they came, for each is
 * read once more and taken away. What the engine has is taken away in later
 * transactions, a bounded part in each; what it refuses moves to table
 * refused with the reason. When more waits than may, clients get no credit,
 * as with a full disk. */
#include "daemon/store_sqlite.h"

#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>

enum { TAKE_AWAY_ROWS = 32768 }; /* at once: some 50 ms */

/* id, total: number and bytes of the last record, counted from the first. */
#define QUEUE_TABLE                                                            \
    "CREATE TABLE IF NOT EXISTS queue("                                        \
    "id INTEGER PRIMARY KEY, n, total, records)"
#define ROW                                                                    \
    "step, object, pass, stream, io, position, seq, t_ns, iteration,"          \
    " microbatch, labels, note, path, dtype, shape, n, nan, pinf, ninf, zero," \
    " subnormal, max, min, absmin, mean, std, l2, hash, samples, given, id,"   \
    " sampling, sampling_arg, histogram"
#define REFUSED_TABLE                                                          \
    "CREATE TABLE IF NOT EXISTS refused(" ROW ", reason)"

/* 0 where there is no row. */
static int get(sqlite3 *db, const char *sql, int64_t *out)
{
    int rc;
    *out = 0;
    rc = file_get_int(db, sql, out);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* ---- of earlier daemons ---- */

#define COLUMN_SQL(table, name)                                                \
    "SELECT count(*) FROM pragma_table_info('" table "') WHERE name = '" name  \
    "'"

/* Their queue had a column for each figure, which nothing here can send: what
 * waits in it is as good as refused. n: how much that is. */
static int refuse_old(sqlite3 *db, int64_t *n)
{
    int64_t total = 0;
    int rc = get(db, COLUMN_SQL("refused", "total"), &total);
    if (rc == SQLITE_OK && total)
        rc = sqlite3_exec(db, "ALTER TABLE refused DROP COLUMN total", NULL,
                          NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, REFUSED_TABLE, NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = get(db, "SELECT count(*) FROM queue", n);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db,
                          "INSERT INTO refused(" ROW ", reason)"
                          " SELECT " ROW ", 'queued by an earlier tracerd, in"
                          " a form that is not sent any more' FROM queue;"
                          "DROP TABLE queue",
                          NULL, NULL, NULL);
    return rc;
}

static int empty_old(struct run *r)
{
    int64_t old = 0, n = 0;
    int rc = get(r->db, COLUMN_SQL("queue", "samples"), &old);
    if (rc != SQLITE_OK || !old)
        return rc;
    rc = sqlite3_exec(r->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = refuse_old(r->db, &n);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(r->db, "COMMIT", NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        sqlite3_exec(r->db, "ROLLBACK", NULL, NULL, NULL);
        return rc;
    }
    atomic_fetch_add(&r->store->counters.forward_refused, (uint64_t)n);
    if (n)
        log_error("queue_old",
                  "run=%s records=%lld error=\"an earlier tracerd queued them"
                  " in a form that is not sent any more\" then=\"they are "
                  "kept in table refused of the run's file\"",
                  r->name, (long long)n);
    return SQLITE_OK;
}

int queue_open(struct run *r)
{
    int rc;
    if (!r->store->forward)
        return SQLITE_OK;
    rc = empty_old(r);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(r->db, QUEUE_TABLE ";" REFUSED_TABLE, NULL, NULL,
                          NULL);
    if (rc == SQLITE_OK)
        rc = get(r->db, "SELECT max(id) FROM queue", &r->queue_id);
    if (rc == SQLITE_OK)
        rc = get(r->db, "SELECT total FROM queue ORDER BY id DESC LIMIT 1",
                 &r->queue_total);
    if (rc == SQLITE_OK)
        rc = get(r->db, "SELECT id - n FROM queue ORDER BY id LIMIT 1",
                 &r->queue_gone);
    if (rc == SQLITE_OK)
        rc = get(r->db,
                 "SELECT total - length(records) FROM queue"
                 " ORDER BY id LIMIT 1",
                 &r->queue_base);
    r->queue_told = r->queue_id;
    return rc;
}

int queue_start(struct run *r)
{
    if (!r->store->forward)
        return SQLITE_OK;
    r->queue = forward_add(r->store->forward, r->path, r->name);
    if (!r->queue)
        return SQLITE_NOMEM;
    forward_queued(r->queue, r->queue_id);
    return SQLITE_OK;
}

void queue_close(struct run *r)
{
    if (r->queue)
        forward_leave(r->queue);
    r->queue = NULL;
    free(r->chunk.at);
}

int queue_flush(struct run *r)
{
    sqlite3_stmt *q = r->statement[SQL_QUEUE];
    struct chunk *c = &r->chunk;
    if (!c->rows)
        return SQLITE_OK;
    sqlite3_bind_int64(q, 1, r->queue_id);
    sqlite3_bind_int64(q, 2, c->rows);
    sqlite3_bind_int64(q, 3, r->queue_total);
    sqlite3_bind_blob(q, 4, c->at, (int)c->n, SQLITE_STATIC);
    c->n = c->rows = 0;
    return run_step(r, SQL_QUEUE);
}

int queue_add(struct run *r, const struct pending *p, const struct entry *e)
{
    if (!chunk_add(&r->chunk, p, e))
        return SQLITE_NOMEM;
    r->queue_id++;
    r->queue_total += e->len;
    return r->chunk.n < CHUNK_BYTES ? SQLITE_OK : queue_flush(r);
}

size_t queue_fresh(const struct run *r)
{
    return (size_t)(r->queue_id - r->queue_told);
}

void queue_committed(struct run *r)
{
    r->queue_told = r->queue_id;
    if (r->queue)
        forward_queued(r->queue, r->queue_id);
}

/* Records of the queue in its order; what is asked for comes mostly in it. */
struct search {
    sqlite3_stmt *q; /* on a row, as long as last is not 0 */
    struct reader r; /* its records behind id */
    int64_t id, last;
};

static int find_chunk(struct search *s, int64_t id)
{
    int rc;
    sqlite3_reset(s->q);
    sqlite3_bind_int64(s->q, 1, id);
    rc = sqlite3_step(s->q);
    s->last = 0;
    if (rc != SQLITE_ROW)
        return rc == SQLITE_DONE ? SQLITE_CORRUPT : rc;
    s->last = sqlite3_column_int64(s->q, 0);
    s->id = s->last - sqlite3_column_int64(s->q, 1);
    /* the length is right after the bytes were asked for */
    const void *bytes = sqlite3_column_blob(s->q, 2);
    s->r = reader_of(bytes, (size_t)sqlite3_column_bytes(s->q, 2));
    return SQLITE_OK;
}

static int keep_refused(struct run *r, struct search *s, int64_t id,
                        const char *reason)
{
    struct wire_record m;
    struct pending p;
    int rc = SQLITE_OK;
    if (id <= s->id || id > s->last)
        rc = find_chunk(s, id);
    while (rc == SQLITE_OK && s->id < id) {
        if (!chunk_next(&s->r, &p, &m))
            return SQLITE_CORRUPT;
        s->id++;
    }
    return rc == SQLITE_OK ? rows_refuse(r, &p, &m, id, reason) : rc;
}

static int move_refused(struct run *r)
{
    struct search s = {.q = NULL};
    char *reason;
    int64_t id;
    int rc = sqlite3_prepare_v2(r->db,
                                "SELECT id, n, records FROM queue"
                                " WHERE id >= ?1 ORDER BY id LIMIT 1",
                                -1, &s.q, NULL);
    while (rc == SQLITE_OK &&
           forward_refused(r->store->forward, r->queue, &id, &reason)) {
        rc = keep_refused(r, &s, id, reason);
        free(reason);
    }
    sqlite3_finalize(s.q);
    return rc;
}

bool queue_has_sent(const struct run *r)
{
    int64_t total;
    return r->queue && forward_sent(r->queue, &total) > r->queue_gone;
}

int queue_take_away(struct run *r)
{
    sqlite3_stmt *q = r->statement[SQL_QUEUE_GONE];
    int64_t total, sent;
    int rc;
    if (!queue_has_sent(r))
        return SQLITE_OK;
    sent = forward_sent(r->queue, &total);
    rc = move_refused(r);
    if (sent > r->queue_gone + TAKE_AWAY_ROWS)
        sent = r->queue_gone + TAKE_AWAY_ROWS;
    sqlite3_bind_int64(q, 1, sent);
    if (rc == SQLITE_OK)
        rc = run_step(r, SQL_QUEUE_GONE);
    if (rc == SQLITE_OK)
        r->queue_gone = sent;
    return rc;
}

bool queue_is_done(const struct run *r)
{
    return !r->queue || (forward_is_done(r->queue) && !queue_has_sent(r));
}

/* What waits, and whether it is too much. */
void queue_measure(struct store *s)
{
    struct store_counters *c = &s->counters;
    uint64_t rows = 0, bytes = 0;
    uint32_t full;
    if (!s->forward)
        return;
    for (struct run *r = s->runs; r; r = r->next) {
        int64_t total, sent = forward_sent(r->queue, &total);
        rows += (uint64_t)(r->queue_id -
                           (sent > r->queue_gone ? sent : r->queue_gone));
        bytes += (uint64_t)(r->queue_total -
                            (total > r->queue_base ? total : r->queue_base));
    }
    full = bytes > s->queue_limit;
    atomic_store(&c->queue_rows, rows);
    atomic_store(&c->queue_bytes, bytes);
    if (atomic_exchange(&c->queue_full, full) == full)
        return;
    if (full) {
        atomic_fetch_add(&c->queue_fills, 1);
        log_error("queue_full",
                  "waiting=%llu limit=%llu then=\"clients keep their records "
                  "in their journals until the store has taken some\"",
                  (unsigned long long)bytes,
                  (unsigned long long)s->queue_limit);
    } else {
        log_info("queue_room", "then=\"records are taken\"");
    }
}
