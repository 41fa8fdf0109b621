/* The SQLite engine: one file a run. Writer thread; this file has the table
 * of functions, transactions and marks.
 *
 * Invariants. A stream's high-water mark is written in the transaction of
 * the rows it stands for, so every record is there exactly once whatever is
 * killed when. A mark is published only after COMMIT, and as durable only
 * after the WAL was synced. WAL and synchronous=NORMAL do not sync on
 * commit; sync() does what FULL would, for all commits so far at once. After
 * a sync that failed, a run is closed and its log is settled (store_wal.c).
 * A run that another program has locked waits and holds up no other. */
#include "daemon/store_sqlite.h"

#include "daemon/log.h"
#include "daemon/order.h"
#include "proto/point.h"
#include "tracerd/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    ROOM_FACTOR = 2, /* bytes on the disk of one received, at the most */
    IDLE_CLOSE_S = 10,
    LOCKED_S = 5, /* then its clients are told, and send again later */
    AGAIN_S = 2   /* found locked after longer than this: another lock */
};

uint64_t store_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void store_failed(struct store *s, const char *why)
{
    atomic_store(&s->counters.failed_why, why);
    atomic_store(&s->counters.failed_ns, store_now_ns());
}

int run_step(struct run *r, enum statement s)
{
    sqlite3_stmt *stmt = r->statement[s];
    int rc = sqlite3_step(stmt);
    int reset = sqlite3_reset(stmt);
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : reset;
}

int run_begin(struct run *r)
{
    int rc;
    if (r->open_transaction)
        return SQLITE_OK;
    rc = run_step(r, SQL_BEGIN);
    POINT(transaction_begun);
    if (rc == SQLITE_OK && !r->settled) {
        rc = wal_settle(r->db, r->path);
        r->settled = rc == SQLITE_OK;
        if (rc != SQLITE_OK)
            sqlite3_exec(r->db, "ROLLBACK", NULL, NULL, NULL);
    }
    r->open_transaction = rc == SQLITE_OK;
    return rc;
}

bool run_ready(struct run *r)
{
    uint64_t now;

    if (r->locked)
        return false;
    if ((run_begin(r) & 0xff) != SQLITE_BUSY)
        return true; /* any other error shows when it is written */
    now = store_now_ns();
    r->locked = true;
    if (now - r->busy_ns > AGAIN_S * UINT64_C(1000000000)) {
        r->locked_ns = now;
        log_warn("locked",
                 "run=%s then=\"its records wait until the other program "
                 "lets go\"",
                 r->name);
    }
    r->busy_ns = now;
    return false;
}

/* durable goes last: a reader that takes it first never sees it ahead. */
void run_publish(struct stream *t)
{
    struct marks *m = t->shared.marks;
    if (!m)
        return;
    atomic_store(&m->committed, t->committed);
    atomic_store(&m->lost, t->lost);
    atomic_store(&m->dict_durable, t->dict_durable);
    atomic_store(&m->durable, t->durable);
}

static void stream_fail(struct stream *t, unsigned reason)
{
    if (t->shared.marks)
        atomic_store(&t->shared.marks->failed, reason);
}

/* ---- opening ---- */

static int test_step(sqlite3 *db, const char *sql)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

static int test_read(const char *path)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    int ok =
        sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(db, "SELECT x FROM test", -1, &stmt, NULL) ==
            SQLITE_OK &&
        sqlite3_step(stmt) == SQLITE_ROW && sqlite3_column_int(stmt, 0) == 42;
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return ok ? SQLITE_OK : SQLITE_ERROR;
}

static void test_remove(const char *path)
{
    static const char *const tails[] = {"", "-wal", "-shm", "-journal"};
    char name[PATH_MAX + 64];
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        snprintf(name, sizeof name, "%s%s", path, tails[i]);
        unlink(name);
    }
}

/* A row committed and read back by another connection, in the way and the
 * place that runs are stored. */
static int self_test(const char *data, bool *full, char *why, size_t cap)
{
    char path[PATH_MAX + 32];
    sqlite3 *db = NULL;
    int rc;

    snprintf(path, sizeof path, "%s/.selftest-%ld", data, (long)getpid());
    test_remove(path);
    rc = sqlite3_open(path, &db);
    if (rc == SQLITE_OK)
        rc = test_step(db, "PRAGMA journal_mode=WAL;"
                           "CREATE TABLE test(x); BEGIN;"
                           "INSERT INTO test VALUES(42); COMMIT");
    if (rc == SQLITE_OK)
        rc = test_read(path);
    if (rc != SQLITE_OK)
        snprintf(why, cap, "cannot store a row in '%s': %s", data,
                 db ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
    *full = rc != SQLITE_OK && space_is_short(db, rc);
    sqlite3_close(db);
    test_remove(path);
    return rc == SQLITE_OK ? 0 : TRD_EIO;
}

static int store_sqlite_open(const char *data, struct store **out, char *why,
                             size_t cap)
{
    struct store *s;
    bool full;
    int rc;

    if (strlen(data) + TRD_MAX_RUN + 32 > PATH_MAX) {
        snprintf(why, cap, "the data path is too long: '%.100s...'", data);
        return TRD_ELIMIT;
    }
    /* on a full disk questions are answered all the same */
    rc = self_test(data, &full, why, cap);
    if (rc && !full)
        return rc;
    s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(why, cap, "%s", trd_strerror(TRD_ENOMEM));
        return TRD_ENOMEM;
    }
    snprintf(s->data, sizeof s->data, "%s", data);
    s->wal_limit = WAL_LIMIT_BYTES;
    s->wal_wait_ms = WAL_WAIT_MS;
    space_open(s);
    if (full)
        space_spent(s);
    sweep_open(s);
    *out = s;
    return 0;
}

static int store_sqlite_forward(struct store *s, struct forward_options *o,
                                uint64_t limit, char *why)
{
    int rc;
    o->counters = &s->counters;
    rc = forward_open(o, &s->forward, why);
    s->queue_limit = limit;
    if (!rc)
        leftover_open(s);
    return rc;
}

static void commit_run(struct run *r);

/* Sends what waits, for a moment, and takes away what was sent. */
static void forward_end(struct store *s)
{
    struct run *next;
    forward_stop(s->forward);
    for (struct run *r = s->runs; r; r = next) {
        next = r->next;
        if (queue_has_sent(r) && run_ready(r))
            commit_run(r);
    }
}

static void store_sqlite_close(struct store *s)
{
    if (!s)
        return;
    if (s->forward)
        forward_end(s);
    while (s->runs)
        run_close(s->runs);
    if (s->forward)
        forward_free(s->forward);
    leftover_close(s);
    known_free(s);
    sweep_close(s);
    free(s);
}

/* ---- streams ---- */

static void refuse(struct store_welcome *a, unsigned reason, uint32_t retry_ms,
                   const char *why)
{
    a->reason = reason;
    a->retry_ms = retry_ms;
    snprintf(a->why, sizeof a->why, "%s", why);
}

static void store_sqlite_hello(struct store *s, const struct store_hello *h,
                               struct marks *marks, struct store_stream **out,
                               struct store_welcome *a)
{
    struct stream *t = NULL;
    struct run *r;
    int rc;

    *out = NULL;
    memset(a, 0, sizeof *a);
    r = run_find(s, h, a);
    if (!r)
        return;
    if (!run_ready(r)) {
        refuse(a, REASON_STORE, 1000,
               r->wal_wait_ns ? "readers of the run are waited for"
                              : "another program has the run locked");
        return;
    }
    rc = stream_find(r, h, &t);
    if (rc != SQLITE_OK) {
        run_fail(r, rc, "hello");
        if (space_is_full(s))
            refuse(a, REASON_STORE, FULL_MS, "the disk of the runs is full");
        else
            refuse(a, REASON_STORE, 1000, "the run's file cannot be written");
        return;
    }
    if (!t) {
        refuse(a, REASON_QUOTA, 0, "too many processes of this rank");
        return;
    }
    if (t->shared.marks) {
        refuse(a, REASON_OWNED, 1000, "the stream is alive elsewhere");
        return;
    }
    t->shared.marks = marks;
    run_publish(t);
    r->connected++;
    atomic_fetch_add(&s->counters.streams_open, 1);
    memcpy(a->store_id, r->store_id, sizeof a->store_id);
    a->stream = (uint64_t)t->id;
    a->seq = t->seq;
    a->dict_n = t->dict_n;
    snprintf(a->run, sizeof a->run, "%s", r->name);
    *out = &t->shared;
}

static bool store_sqlite_ready(struct store *s, struct store_stream *shared,
                               bool writes)
{
    struct stream *t = (struct stream *)shared;
    struct run *r = t->run;
    int rc;
    (void)s;
    if (!r)
        return true;
    if (writes && !r->locked) {
        rc = wal_holds(r, &r->locked);
        if (rc != SQLITE_OK) {
            run_fail(r, rc, "checkpoint");
            return true;
        }
    }
    if (!writes ? !r->locked : run_ready(r))
        return true;
    if (r->wal_wait_ns)
        return false;
    if (store_now_ns() - r->locked_ns < LOCKED_S * UINT64_C(1000000000))
        return false;
    run_fail(r, SQLITE_BUSY, "lock");
    return true;
}

static void store_sqlite_unlock(struct store *s)
{
    for (struct run *r = s->runs; r; r = r->next)
        r->locked = false;
}

static void store_sqlite_dict(struct store *s, struct store_stream *shared,
                              const uint8_t *payload, size_t n)
{
    struct stream *t = (struct stream *)shared;
    struct run *r = t->run;
    int rc;
    (void)s;
    if (!r)
        return;
    rc = run_begin(r);
    if (rc == SQLITE_OK)
        rc = words_add(r, t, payload, n);
    if (rc == SQLITE_TOOBIG)
        stream_fail(t, REASON_QUOTA);
    else if (rc != SQLITE_OK)
        run_fail(r, rc, "dictionary");
}

static void store_sqlite_data(struct store *s, struct store_stream *shared,
                              uint64_t seq, const uint8_t *payload, size_t n)
{
    struct stream *t = (struct stream *)shared;
    struct run *r = t->run;
    int rc;
    if (!r)
        return;
    rc = run_begin(r);
    if (rc == SQLITE_OK)
        rc = rows_add(r, t, seq, payload, n);
    if (rc != SQLITE_OK)
        run_fail(r, rc, "records");
    else
        atomic_fetch_add(&s->counters.bytes, n);
    s->fresh_bytes += n;
}

static void store_sqlite_gap(struct store *s, struct store_stream *shared,
                             const struct gap *g)
{
    struct stream *t = (struct stream *)shared;
    struct run *r = t->run;
    struct wire_loss l = {.cause = g->cause, .bytes = g->bytes};
    uint64_t skip;
    int rc;
    (void)s;

    if (!r)
        return;
    if (order_check(t->seq, g->first, g->last - g->first + 1, &skip) !=
        ORDER_NEW)
        return;
    l.t_ns = (uint64_t)t->last_ns;
    l.count = g->last - g->first + 1 - skip;
    rc = run_begin(r);
    if (rc == SQLITE_OK)
        rc = loss_add(r, t, g->first + skip, g->last, &l);
    if (rc != SQLITE_OK)
        run_fail(r, rc, "gap");
}

static void store_sqlite_clock(struct store *s, struct store_stream *shared,
                               const struct ping *p)
{
    struct stream *t = (struct stream *)shared;
    struct run *r = t->run;
    int rc;
    (void)s;
    if (!r)
        return;
    rc = run_begin(r);
    if (rc == SQLITE_OK) {
        sqlite3_stmt *q = r->statement[SQL_CLOCK];
        sqlite3_bind_int64(q, 1, t->id);
        sqlite3_bind_int64(q, 2, (sqlite3_int64)p->mono_ns);
        sqlite3_bind_int64(q, 3, (sqlite3_int64)p->real_ns);
        rc = run_step(r, SQL_CLOCK);
    }
    if (rc != SQLITE_OK)
        run_fail(r, rc, "clock");
}

static void store_sqlite_end(struct store *s, struct store_stream *shared,
                             enum store_end end)
{
    static const char *const words[] = {
        [STORE_LEFT] = "open", [STORE_ENDED] = "ended", [STORE_DEAD] = "dead"};
    struct stream *t = (struct stream *)shared;
    int rc;
    (void)s;
    if (!t->run)
        return;
    rc = stream_set_state(t->run, t, words[end]);
    if (rc != SQLITE_OK)
        run_fail(t->run, rc, "state");
}

static void store_sqlite_leave(struct store *s, struct store_stream *shared)
{
    struct stream *t = (struct stream *)shared;
    struct run *r = t->run;

    atomic_fetch_sub(&s->counters.streams_open, 1);
    t->shared.marks = NULL;
    if (!r) {
        atomic_fetch_sub(&s->counters.dict_entries, t->words_cap);
        free(t->words);
        free(t);
        return;
    }
    words_free(r, t);
    if (--r->connected == 0)
        r->idle_ns = store_now_ns();
}

/* ---- transactions ---- */

static int write_marks(struct run *r)
{
    sqlite3_stmt *q = r->statement[SQL_MARK];
    for (struct stream *t = r->streams; t; t = t->next) {
        int rc;
        if (!t->moved)
            continue;
        sqlite3_bind_int64(q, 1, t->id);
        sqlite3_bind_int64(q, 2, (sqlite3_int64)t->seq);
        sqlite3_bind_int64(q, 3, t->dict_n);
        sqlite3_bind_int64(q, 4, t->iteration);
        sqlite3_bind_int64(q, 5, t->last_ns);
        rc = run_step(r, SQL_MARK);
        if (rc != SQLITE_OK)
            return rc;
    }
    return SQLITE_OK;
}

static void committed(struct run *r, size_t rows)
{
    struct store_counters *c = &r->store->counters;
    r->open_transaction = false;
    r->unsafe = true;
    for (struct stream *t = r->streams; t; t = t->next) {
        if (!t->moved)
            continue;
        t->moved = false;
        t->committed = t->seq;
        t->dict_committed = t->dict_n;
        run_publish(t);
    }
    atomic_fetch_add(&c->records, rows);
    atomic_fetch_add(&c->commits, 1);
    for (int i = 0; i < TRD_CAUSE_COUNT; i++) {
        if (!r->fresh_losses[i])
            continue;
        atomic_fetch_add(&c->lost[i], r->fresh_losses[i]);
        atomic_fetch_add(&c->losses, r->fresh_losses[i]);
        atomic_store(&c->lost_ns, store_now_ns());
        r->fresh_losses[i] = 0;
    }
}

static void commit_run(struct run *r)
{
    size_t rows = r->rows_n + queue_fresh(r);
    int rc = r->queue ? queue_flush(r) : rows_insert(r);
    POINT(rows_inserted);
    if (rc == SQLITE_OK)
        rc = queue_take_away(r);
    if (rc == SQLITE_OK)
        rc = write_marks(r);
    POINT(committing);
    if (rc == SQLITE_OK)
        rc = run_step(r, SQL_COMMIT);
    POINT(committed);
    if (rc != SQLITE_OK) {
        run_fail(r, rc, "commit");
        return;
    }
    run_trust(r);
    committed(r, rows);
    queue_committed(r);
    rc = wal_committed(r);
    if (rc != SQLITE_OK)
        run_fail(r, rc, "checkpoint");
}

static void store_sqlite_commit(struct store *s)
{
    struct run *next;
    space_need(s, ROOM_FACTOR * s->fresh_bytes);
    s->fresh_bytes = 0;
    for (struct run *r = s->runs; r; r = next) {
        next = r->next;
        if (r->open_transaction)
            commit_run(r);
    }
    queue_measure(s);
}

/* Syncs the WAL through its own file object, which also syncs the directory
 * the first time, exactly as a commit with synchronous=FULL would. */
static int sync_wal(struct run *r)
{
    sqlite3_file *wal = NULL;
    int rc =
        sqlite3_file_control(r->db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &wal);
    if (rc != SQLITE_OK || !wal || !wal->pMethods)
        return rc;
    return wal->pMethods->xSync(wal, SQLITE_SYNC_NORMAL);
}

static void sync_run(struct run *r)
{
    int rc;
    POINT(syncing);
    rc = sync_wal(r);
    POINT(synced);
    if (rc != SQLITE_OK) {
        /* after a failed sync nobody knows what the disk has */
        run_fail(r, rc, "sync");
        return;
    }
    r->unsafe = false;
    atomic_fetch_add(&r->store->counters.syncs, 1);
    for (struct stream *t = r->streams; t; t = t->next) {
        if (t->durable == t->committed && t->dict_durable == t->dict_committed)
            continue;
        t->durable = t->committed;
        t->dict_durable = t->dict_committed;
        run_publish(t);
    }
}

static void store_sqlite_sync(struct store *s)
{
    struct run *next;
    for (struct run *r = s->runs; r; r = next) {
        next = r->next;
        if (r->unsafe)
            sync_run(r);
    }
}

static void store_sqlite_tidy(struct store *s)
{
    uint64_t now = store_now_ns();
    struct run *next;
    space_look(s);
    wal_measure(s);
    sweep_some(s);
    keep_look(s);
    if (!s->sweep_n)
        leftover_some(s);
    queue_measure(s);
    for (struct run *r = s->runs; r; r = next) {
        int rc = run_check_file(r);
        next = r->next;
        if (rc != SQLITE_OK) {
            run_fail(r, rc, "file");
            continue;
        }
        if (!r->connected && !r->open_transaction && queue_has_sent(r)) {
            if (!run_ready(r))
                continue;
            commit_run(r);
            continue;
        }
        if (run_is_idle(r) &&
            now - r->idle_ns > IDLE_CLOSE_S * UINT64_C(1000000000)) {
            if (r->unsafe)
                sync_run(r); /* fails the run itself if it must */
            else
                run_close(r);
        }
    }
}

static const struct store_counters *store_sqlite_counters(const struct store *s)
{
    return &s->counters;
}

const struct store_ops store_sqlite = {
    .name = "sqlite",
    .open = store_sqlite_open,
    .close = store_sqlite_close,
    .forward = store_sqlite_forward,
    .hello = store_sqlite_hello,
    .ready = store_sqlite_ready,
    .unlock = store_sqlite_unlock,
    .dict = store_sqlite_dict,
    .data = store_sqlite_data,
    .gap = store_sqlite_gap,
    .clock = store_sqlite_clock,
    .end = store_sqlite_end,
    .leave = store_sqlite_leave,
    .commit = store_sqlite_commit,
    .sync = store_sqlite_sync,
    .tidy = store_sqlite_tidy,
    .keep = keep_set,
    .counters = store_sqlite_counters,
};
