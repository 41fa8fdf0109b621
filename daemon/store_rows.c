/* Records into rows. Writer thread.
 *
 * The records of a transaction are first only noted with their key, then
 * sorted by the primary key and inserted: table record is clustered, so
 * inserts in order touch each page once. With a forwarder they go into the
 * queue, as they came. */
#include "daemon/store_sqlite.h"

#include "daemon/columns.h"
#include "daemon/order.h"
#include "proto/histogram.h"
#include "tracerd/client.h"

#include <stdlib.h>

static const struct word *word_of(const struct stream *t, uint32_t id,
                                  unsigned kind)
{
    if (id == 0 || id > t->dict_n || t->words[id - 1].kind != kind)
        return NULL;
    return &t->words[id - 1];
}

static int pend(struct run *r, const struct pending *p)
{
    if (r->rows_n == r->rows_cap) {
        size_t cap = r->rows_cap ? 2 * r->rows_cap : 4096;
        struct pending *more = realloc(r->rows, cap * sizeof *more);
        if (!more)
            return SQLITE_NOMEM;
        r->rows = more;
        r->rows_cap = cap;
    }
    r->rows[r->rows_n++] = *p;
    return SQLITE_OK;
}

/* Counts of this size may be added for ever: 64 bits hold the sum. */
static bool is_small(const struct wire_loss *l)
{
    return l->count <= UINT32_MAX && l->bytes <= UINT32_MAX;
}

/* Whether it goes on where the stream's last row of losses ended. */
static bool continues(const struct stream *t, uint64_t first,
                      const struct wire_loss *l)
{
    return t->loss_grows && t->loss_last + 1 == first &&
           t->loss_cause == l->cause && is_small(l);
}

int loss_add(struct run *r, struct stream *t, uint64_t first, uint64_t last,
             const struct wire_loss *l)
{
    bool more = continues(t, first, l);
    sqlite3_stmt *q = r->statement[more ? SQL_LOSS_MORE : SQL_LOSS];
    const char *cause = wire_cause_name(l->cause);
    int rc;

    if (!more) {
        t->loss_first = first;
        t->loss_grows = is_small(l);
    }
    t->loss_last = last;
    t->loss_cause = l->cause;
    sqlite3_bind_int64(q, 1, t->id);
    sqlite3_bind_int64(q, 2, (sqlite3_int64)t->loss_first);
    sqlite3_bind_int64(q, 3, (sqlite3_int64)last);
    sqlite3_bind_int64(q, 4, (sqlite3_int64)l->count);
    sqlite3_bind_int64(q, 5, (sqlite3_int64)l->bytes);
    if (!more) {
        sqlite3_bind_text(q, 6, cause ? cause : "error", -1, SQLITE_STATIC);
        sqlite3_bind_int64(q, 7, (sqlite3_int64)l->t_ns);
    }
    rc = run_step(r, more ? SQL_LOSS_MORE : SQL_LOSS);
    if (rc != SQLITE_OK)
        return rc;
    t->seq = last;
    t->moved = true;
    t->lost += l->count;
    if (l->cause < TRD_CAUSE_COUNT)
        r->fresh_losses[l->cause] += l->count;
    return SQLITE_OK;
}

/* One whose checksum holds and whose body does not: nobody can ever read it,
 * and its number is taken. */
static int add_unreadable(struct run *r, struct stream *t,
                          const struct entry *e, uint64_t seq)
{
    struct wire_loss l = {.cause = TRD_LOST_ERROR,
                          .count = 1,
                          .bytes = e->len,
                          .t_ns = (uint64_t)t->last_ns};
    return loss_add(r, t, seq, seq, &l);
}

static int add_loss(struct run *r, struct stream *t, const struct entry *e,
                    uint64_t seq)
{
    struct wire_loss l;
    if (loss_get(e, &l))
        return add_unreadable(r, t, e, seq);
    return loss_add(r, t, seq, seq, &l);
}

static int add_unknown(struct run *r, struct stream *t, const struct entry *e,
                       uint64_t seq, uint64_t t_ns)
{
    struct wire_loss l = {
        .cause = TRD_LOST_STORE, .count = 1, .bytes = e->len, .t_ns = t_ns};
    return loss_add(r, t, seq, seq, &l);
}

static int add_record(struct run *r, struct stream *t, const struct entry *e,
                      uint64_t seq, const uint8_t *at)
{
    struct wire_record m;
    struct pending p = {.stream = t->id, .seq = (int64_t)seq, .entry = at};
    const struct word *site, *shape, *note = NULL;
    int rc;

    if (record_get(e, &m))
        return add_unreadable(r, t, e, seq);
    site = word_of(t, m.site, ENTRY_SITE);
    shape = word_of(t, m.shape, ENTRY_SHAPE);
    if (m.when.note)
        note = word_of(t, m.when.note, ENTRY_NOTE);
    if (!site || !shape || (m.when.note && !note))
        return add_unknown(r, t, e, seq, m.t_ns);
    p.step = (int64_t)m.when.step;
    p.shape_n = shape->u.n;
    p.object = site->u.site.object;
    p.position = site->u.site.position;
    p.path = site->id;
    p.shape = shape->id;
    p.note = note ? note->id : 0;
    p.pass = site->pass;
    p.io = site->io;
    rc = r->queue ? queue_add(r, &p, e) : pend(r, &p);
    if (rc != SQLITE_OK)
        return rc;
    if ((int64_t)m.when.iteration > t->iteration)
        t->iteration = (int64_t)m.when.iteration;
    if ((int64_t)m.t_ns > t->last_ns)
        t->last_ns = (int64_t)m.t_ns;
    t->seq = seq;
    t->moved = true;
    return SQLITE_OK;
}

static int add_entry(struct run *r, struct stream *t, uint64_t seq,
                     const uint8_t *at, const struct entry *e)
{
    switch (e->kind) {
    case ENTRY_RECORD:
        return add_record(r, t, e, seq, at);
    case ENTRY_LOSS:
        return add_loss(r, t, e, seq);
    default:
        return add_unreadable(r, t, e, seq);
    }
}

int rows_add(struct run *r, struct stream *t, uint64_t seq,
             const uint8_t *payload, size_t n)
{
    struct batch b;
    uint64_t skip;
    size_t at = BATCH_BYTES;

    if (batch_get(payload, n, &b) ||
        order_check(t->seq, seq, b.n, &skip) != ORDER_NEW)
        return SQLITE_OK;
    for (uint32_t i = 0; i < b.n; i++) {
        struct entry e = entry_checked(payload + at);
        int rc = SQLITE_OK;
        if (i >= skip)
            rc = add_entry(r, t, seq + i, payload + at, &e);
        if (rc != SQLITE_OK)
            return rc;
        at += entry_span(e.len);
    }
    return SQLITE_OK;
}

#define COMPARE(member)                                                        \
    if (a->member != b->member)                                                \
        return a->member < b->member ? -1 : 1;

static int by_key(const void *left, const void *right)
{
    const struct pending *a = left, *b = right;
    COMPARE(step)
    COMPARE(object)
    COMPARE(pass)
    COMPARE(stream)
    COMPARE(io)
    COMPARE(position)
    COMPARE(seq)
    return 0;
}

enum column {
    COL_STEP = 1,
    COL_OBJECT,
    COL_PASS,
    COL_STREAM,
    COL_IO,
    COL_POSITION,
    COL_SEQ,
    COL_T_NS,
    COL_ITERATION,
    COL_MICROBATCH,
    COL_LABELS,
    COL_NOTE,
    COL_PATH,
    COL_DTYPE,
    COL_SHAPE,
    COL_N,
    COL_NAN,
    COL_PINF,
    COL_NINF,
    COL_ZERO,
    COL_SUBNORMAL,
    COL_MAX,
    COL_MIN,
    COL_ABSMIN,
    COL_MEAN,
    COL_STD,
    COL_L2,
    COL_HASH,
    COL_SAMPLES,
    COL_GIVEN,
    /* of table refused */
    COL_ID,
    COL_SAMPLING,
    COL_SAMPLING_ARG,
    COL_HISTOGRAM,
    COL_REASON
};

static void bind_cell(sqlite3_stmt *q, int i, struct cell c)
{
    if (c.type == CELL_INT)
        sqlite3_bind_int64(q, i, c.i);
    else if (c.type == CELL_REAL)
        sqlite3_bind_double(q, i, c.f);
}

static void bind_key(sqlite3_stmt *q, const struct pending *p)
{
    sqlite3_bind_int64(q, COL_STEP, p->step);
    sqlite3_bind_int64(q, COL_OBJECT, p->object);
    sqlite3_bind_int64(q, COL_PASS, p->pass);
    sqlite3_bind_int64(q, COL_STREAM, p->stream);
    sqlite3_bind_int64(q, COL_IO, p->io);
    sqlite3_bind_int64(q, COL_POSITION, p->position);
    sqlite3_bind_int64(q, COL_SEQ, p->seq);
    if (p->note)
        sqlite3_bind_int64(q, COL_NOTE, p->note);
    sqlite3_bind_int64(q, COL_PATH, p->path);
    sqlite3_bind_int64(q, COL_SHAPE, p->shape);
}

static void bind_figures(sqlite3_stmt *q, const struct wire_record *m)
{
    const struct trd_stats *s = &m->stats;
    struct columns c;
    columns_of(m, &c);
    if (c.counts) {
        sqlite3_bind_int64(q, COL_NAN, (sqlite3_int64)s->nan);
        sqlite3_bind_int64(q, COL_PINF, (sqlite3_int64)s->pinf);
        sqlite3_bind_int64(q, COL_NINF, (sqlite3_int64)s->ninf);
        sqlite3_bind_int64(q, COL_ZERO, (sqlite3_int64)s->zero);
        sqlite3_bind_int64(q, COL_SUBNORMAL, (sqlite3_int64)s->subnormal);
    }
    bind_cell(q, COL_MAX, c.max);
    bind_cell(q, COL_MIN, c.min);
    bind_cell(q, COL_ABSMIN, c.absmin);
    bind_cell(q, COL_MEAN, c.mean);
    bind_cell(q, COL_STD, c.std);
    bind_cell(q, COL_L2, c.l2);
    bind_cell(q, COL_GIVEN, c.given);
}

static void bind_record(sqlite3_stmt *q, const struct pending *p,
                        const struct wire_record *m)
{
    const struct trd_stats *s = &m->stats;
    sqlite3_bind_int64(q, COL_T_NS, (sqlite3_int64)m->t_ns);
    sqlite3_bind_int64(q, COL_ITERATION, (sqlite3_int64)m->when.iteration);
    sqlite3_bind_int64(q, COL_MICROBATCH, m->when.microbatch);
    sqlite3_bind_int64(q, COL_LABELS, m->when.labels);
    sqlite3_bind_int64(q, COL_DTYPE, m->dtype);
    if ((int64_t)s->n != p->shape_n)
        sqlite3_bind_int64(q, COL_N, (sqlite3_int64)s->n);
    bind_figures(q, m);
    if (s->has & TRD_HAS_HASH)
        sqlite3_bind_int64(q, COL_HASH, (sqlite3_int64)s->hash);
    if (s->sample_n)
        sqlite3_bind_blob(q, COL_SAMPLES, m->samples,
                          (int)(s->sample_n * trd_dtype_bytes((int)m->dtype)),
                          SQLITE_STATIC);
}

enum extra_column {
    EXTRA_STREAM = 1,
    EXTRA_SEQ,
    EXTRA_SAMPLING,
    EXTRA_SAMPLING_ARG,
    EXTRA_HISTOGRAM
};

/* At three parameters in a row; histogram stays until the step. */
static void bind_extra(sqlite3_stmt *q, int at, const struct wire_record *m,
                       uint8_t histogram[HISTOGRAM_MAX_BYTES])
{
    if (m->stats.sampling) {
        sqlite3_bind_int64(q, at, m->stats.sampling);
        sqlite3_bind_int64(q, at + 1, (sqlite3_int64)m->stats.sampling_arg);
    }
    if (m->histogram.kind)
        sqlite3_bind_blob(q, at + 2, histogram,
                          (int)histogram_put(&m->histogram, m->dtype,
                                             histogram),
                          SQLITE_STATIC);
}

static int insert_extra(struct run *r, const struct pending *p,
                        const struct wire_record *m)
{
    sqlite3_stmt *q = r->statement[SQL_EXTRA];
    uint8_t histogram[HISTOGRAM_MAX_BYTES];

    sqlite3_clear_bindings(q);
    sqlite3_bind_int64(q, EXTRA_STREAM, p->stream);
    sqlite3_bind_int64(q, EXTRA_SEQ, p->seq);
    bind_extra(q, EXTRA_SAMPLING, m, histogram);
    return run_step(r, SQL_EXTRA);
}

static int insert_one(struct run *r, const struct pending *p)
{
    sqlite3_stmt *q = r->statement[SQL_RECORD];
    struct entry e = entry_checked(p->entry);
    struct wire_record m;
    int rc;

    if (record_get(&e, &m))
        return SQLITE_INTERNAL; /* it was read before, and nobody wrote */
    sqlite3_clear_bindings(q);
    bind_key(q, p);
    bind_record(q, p, &m);
    rc = run_step(r, SQL_RECORD);
    if (rc == SQLITE_OK && (m.stats.sampling || m.histogram.kind))
        rc = insert_extra(r, p, &m);
    return rc;
}

int rows_insert(struct run *r)
{
    int rc = SQLITE_OK;
    if (r->rows_n)
        qsort(r->rows, r->rows_n, sizeof *r->rows, by_key);
    for (size_t i = 0; rc == SQLITE_OK && i < r->rows_n; i++)
        rc = insert_one(r, &r->rows[i]);
    r->rows_n = 0;
    return rc;
}

int rows_refuse(struct run *r, const struct pending *p,
                const struct wire_record *m, int64_t id, const char *reason)
{
    sqlite3_stmt *q = r->statement[SQL_REFUSED];
    uint8_t histogram[HISTOGRAM_MAX_BYTES];

    sqlite3_clear_bindings(q);
    bind_key(q, p);
    bind_record(q, p, m);
    sqlite3_bind_int64(q, COL_ID, id);
    bind_extra(q, COL_SAMPLING, m, histogram);
    sqlite3_bind_text(q, COL_REASON, reason, -1, SQLITE_STATIC);
    return run_step(r, SQL_REFUSED);
}
