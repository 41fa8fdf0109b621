/* The queue of a run: records on their way to a ClickHouse. Writer thread.
 *
 * With a forwarder, records go into table queue instead of table record, in
 * the transaction of their marks. What the engine has is taken away in later
 * transactions, a bounded part in each; what it refuses moves to table
 * refused with the reason. When more waits than may, clients get no credit,
 * as with a full disk. */
#include "daemon/store_sqlite.h"

#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>

enum { TAKE_AWAY_ROWS = 32768 }; /* at once: some 50 ms */

/* total: bytes of this row and all before it, as they came. */
#define QUEUE_COLUMNS                                                          \
    "step, object, pass, stream, io, position, seq, t_ns, iteration,"          \
    " microbatch, labels, note, path, dtype, shape, n, nan, pinf, ninf, zero," \
    " subnormal, max, min, absmin, mean, std, l2, hash, samples, given,"
#define QUEUE_MORE ", total, sampling, sampling_arg, histogram"

static int64_t get(sqlite3 *db, const char *sql, int *rc)
{
    sqlite3_stmt *q = NULL;
    int64_t v = 0;
    if (*rc != SQLITE_OK)
        return 0;
    *rc = sqlite3_prepare_v2(db, sql, -1, &q, NULL);
    if (*rc == SQLITE_OK)
        *rc = sqlite3_step(q);
    if (*rc == SQLITE_ROW) {
        v = sqlite3_column_int64(q, 0);
        *rc = SQLITE_OK;
    }
    sqlite3_finalize(q);
    return v;
}

int queue_open(struct run *r)
{
    int rc;
    if (!r->store->forward)
        return SQLITE_OK;
    rc = sqlite3_exec(r->db,
                      "CREATE TABLE IF NOT EXISTS queue(" QUEUE_COLUMNS
                      " id INTEGER PRIMARY KEY" QUEUE_MORE ");"
                      "CREATE TABLE IF NOT EXISTS refused(" QUEUE_COLUMNS
                      " id" QUEUE_MORE ", reason)",
                      NULL, NULL, NULL);
    r->queue_id = get(r->db, "SELECT coalesce(max(id), 0) FROM queue", &rc);
    r->queue_gone = get(r->db, "SELECT coalesce(min(id), 1) - 1 FROM queue",
                        &rc);
    r->queue_total = get(
        r->db, "SELECT total FROM queue ORDER BY id DESC LIMIT 1", &rc);
    if (rc == SQLITE_DONE) /* empty */
        rc = SQLITE_OK;
    r->queue_base = get(
        r->db, "SELECT total FROM queue ORDER BY id LIMIT 1", &rc);
    if (rc == SQLITE_DONE)
        rc = SQLITE_OK;
    return rc;
}

int queue_start(struct run *r)
{
    if (!r->store->forward)
        return SQLITE_OK;
    r->queue = forward_add(r->store->forward, r->path, r->name);
    if (!r->queue)
        return SQLITE_NOMEM;
    forward_queued(r->store->forward, r->queue, r->queue_id);
    return SQLITE_OK;
}

void queue_close(struct run *r)
{
    if (r->queue)
        forward_leave(r->store->forward, r->queue);
    r->queue = NULL;
}

void queue_committed(struct run *r)
{
    if (r->queue)
        forward_queued(r->store->forward, r->queue, r->queue_id);
}

static int keep_refused(struct run *r, int64_t id, const char *reason)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(r->db,
                                "INSERT INTO refused SELECT *, ?2"
                                " FROM queue WHERE id = ?1",
                                -1, &q, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(q, 1, id);
        sqlite3_bind_text(q, 2, reason, -1, SQLITE_STATIC);
        rc = sqlite3_step(q);
    }
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int move_refused(struct run *r)
{
    int rc = SQLITE_OK;
    int64_t id;
    char *reason;
    while (rc == SQLITE_OK &&
           forward_refused(r->store->forward, r->queue, &id, &reason)) {
        rc = keep_refused(r, id, reason);
        free(reason);
    }
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
