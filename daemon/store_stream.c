/* Streams of a run: found, made, resumed. Writer thread. */
#include "daemon/store_sqlite.h"

#include "tracerd/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct stream *stream_known(struct run *r, uint64_t epoch)
{
    struct stream *t = r->streams;
    while (t && t->epoch != epoch)
        t = t->next;
    return t;
}

static struct stream *stream_new(struct run *r, uint64_t epoch)
{
    struct stream *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->run = r;
    t->epoch = epoch;
    t->next = r->streams;
    r->streams = t;
    return t;
}

static int prepare_once(struct run *r, const char *sql, sqlite3_stmt **stmt)
{
    return sqlite3_prepare_v2(r->db, sql, -1, stmt, NULL);
}

/* Marks of a stream that the file has and this process has not seen: what
 * the file held when it was opened is durable. */
static int stream_read(struct run *r, uint64_t epoch, struct stream **out)
{
    sqlite3_stmt *q = NULL;
    struct stream *t = NULL;
    int rc = prepare_once(r,
                          "SELECT id, real_ns, seq, dict_n, iteration, "
                          "last_ns FROM stream WHERE epoch = ?",
                          &q);
    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(q, 1, (sqlite3_int64)epoch);
        rc = sqlite3_step(q);
    }
    if (rc == SQLITE_ROW) {
        rc = SQLITE_NOMEM;
        t = stream_new(r, epoch);
    }
    if (t) {
        t->id = sqlite3_column_int64(q, 0);
        t->real_ns = sqlite3_column_int64(q, 1);
        t->seq = (uint64_t)sqlite3_column_int64(q, 2);
        t->dict_n = (uint32_t)sqlite3_column_int64(q, 3);
        t->iteration = sqlite3_column_int64(q, 4);
        t->last_ns = sqlite3_column_int64(q, 5);
        t->committed = t->durable = t->seq;
        t->dict_committed = t->dict_durable = t->dict_n;
        rc = SQLITE_OK;
    }
    sqlite3_finalize(q);
    *out = t;
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int64_t stream_base(const struct hello *h)
{
    return (int64_t)h->attempt << 40 | (int64_t)h->rank << 12;
}

/* The next free number of this attempt and rank; 0 when there is none. */
static int next_id(struct run *r, const struct hello *h, int64_t *id)
{
    sqlite3_stmt *q = NULL;
    int64_t base = stream_base(h);
    int rc = prepare_once(r,
                          "SELECT coalesce(max(id), ?1) + 1 FROM stream "
                          "WHERE id > ?1 AND id <= ?1 + 4095",
                          &q);
    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(q, 1, base);
        rc = sqlite3_step(q);
    }
    if (rc == SQLITE_ROW) {
        *id = sqlite3_column_int64(q, 0);
        if (*id > base + 4095)
            *id = 0;
        rc = SQLITE_OK;
    }
    sqlite3_finalize(q);
    return rc;
}

static void boot_text(const uint8_t id[16], char out[33])
{
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", id[i]);
}

static int bind_slice(sqlite3_stmt *q, int i, struct slice s)
{
    return sqlite3_bind_text(q, i, s.text, (int)s.n, SQLITE_TRANSIENT);
}

static int stream_insert(struct run *r, const struct store_hello *sh,
                         struct stream *t)
{
    const struct hello *h = &sh->hello;
    sqlite3_stmt *q = NULL;
    char boot[33];
    int rc = prepare_once(
        r,
        "INSERT INTO stream(id, attempt, rank, epoch, world, pid, start_time,"
        " boot_id, host, uid, client, real_ns, mono_ns, info, seq, dict_n,"
        " state, block_ms, spool_bytes)"
        " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,0,0,'open',?,?)",
        &q);
    if (rc != SQLITE_OK)
        return rc;
    boot_text(h->boot_id, boot);
    sqlite3_bind_int64(q, 1, t->id);
    sqlite3_bind_int64(q, 2, h->attempt);
    sqlite3_bind_int64(q, 3, h->rank);
    sqlite3_bind_int64(q, 4, (sqlite3_int64)t->epoch);
    sqlite3_bind_int64(q, 5, h->world);
    sqlite3_bind_int64(q, 6, h->pid);
    sqlite3_bind_int64(q, 7, (sqlite3_int64)h->start_time);
    sqlite3_bind_text(q, 8, boot, -1, SQLITE_STATIC);
    bind_slice(q, 9, h->host);
    sqlite3_bind_int64(q, 10, sh->uid);
    bind_slice(q, 11, h->client);
    sqlite3_bind_int64(q, 12, (sqlite3_int64)h->real_ns);
    sqlite3_bind_int64(q, 13, (sqlite3_int64)h->mono_ns);
    bind_slice(q, 14, h->info);
    sqlite3_bind_int64(q, 15, h->block_ms);
    sqlite3_bind_int64(q, 16, (sqlite3_int64)h->spool_bytes);
    rc = sqlite3_step(q);
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int stream_set_state(struct run *r, const struct stream *t, const char *state)
{
    sqlite3_stmt *q = r->statement[SQL_STATE];
    int rc = run_begin(r);
    if (rc != SQLITE_OK)
        return rc;
    sqlite3_bind_int64(q, 1, t->id);
    sqlite3_bind_text(q, 2, state, -1, SQLITE_STATIC);
    return run_step(r, SQL_STATE);
}

/* What the client no longer keeps and the store has not is lost, and the
 * run tells so. */
static int admit_loss(struct run *r, struct stream *t, uint64_t first_seq)
{
    struct wire_loss l = {.cause = TRD_LOST_STORE};
    struct timespec now;
    int rc;

    if (first_seq <= t->seq + 1)
        return SQLITE_OK;
    clock_gettime(CLOCK_REALTIME, &now);
    l.count = first_seq - t->seq - 1;
    l.t_ns =
        (uint64_t)(now.tv_sec * INT64_C(1000000000) + now.tv_nsec - t->real_ns);
    if (l.t_ns > INT64_MAX)
        l.t_ns = 0;
    rc = run_begin(r);
    if (rc == SQLITE_OK)
        rc = loss_add(r, t, t->seq + 1, first_seq - 1, &l);
    return rc;
}

static int stream_create(struct run *r, const struct store_hello *h,
                         struct stream **out)
{
    int64_t id = 0;
    int rc = run_begin(r);
    if (rc == SQLITE_OK)
        rc = next_id(r, &h->hello, &id);
    if (rc != SQLITE_OK || !id)
        return rc;
    *out = stream_new(r, h->epoch);
    if (!*out)
        return SQLITE_NOMEM;
    (*out)->id = id;
    (*out)->real_ns = (int64_t)h->hello.real_ns;
    return stream_insert(r, h, *out);
}

int stream_find(struct run *r, const struct store_hello *h, struct stream **out)
{
    int rc = SQLITE_OK;
    *out = stream_known(r, h->epoch);
    if (!*out)
        rc = stream_read(r, h->epoch, out);
    if (rc != SQLITE_OK)
        return rc;
    if (!*out)
        rc = stream_create(r, h, out);
    else
        rc = stream_set_state(r, *out, "open");
    if (rc == SQLITE_OK && *out && !(*out)->shared.marks)
        rc = words_load(r, *out);
    if (rc == SQLITE_OK && *out)
        rc = admit_loss(r, *out, h->hello.first_seq);
    return rc;
}
