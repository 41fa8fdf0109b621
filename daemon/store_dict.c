/* What a stream's dictionary numbers mean in the run's tables. Writer
 * thread.
 *
 * Every rank numbers objects, sites, shapes and notes by itself; the run has
 * one row for each different one. The map is kept in memory while the stream
 * is connected and rebuilt from table dict when it comes back. */
#include "daemon/store_sqlite.h"

#include "daemon/order.h"

#include <stdio.h>
#include <stdlib.h>

enum { WORDS_MAX = 8 * 1024 * 1024 }; /* of all streams together */

/* Runs put, which ignores what is there, then get. Both have the same
 * parameters; put may have one more. */
static int intern(struct run *r, enum statement put, enum statement get,
                  uint32_t *id)
{
    sqlite3_stmt *q = r->statement[get];
    int64_t v;
    int rc = run_step(r, put);
    if (rc != SQLITE_OK)
        return rc;
    rc = sqlite3_step(q);
    v = rc == SQLITE_ROW ? sqlite3_column_int64(q, 0) : 0;
    sqlite3_reset(q);
    if (rc != SQLITE_ROW)
        return rc == SQLITE_DONE ? SQLITE_CORRUPT : rc;
    if (v <= 0 || v > UINT32_MAX)
        return SQLITE_TOOBIG;
    *id = (uint32_t)v;
    return SQLITE_OK;
}

static void bind_text(struct run *r, enum statement s, int i, struct slice t)
{
    sqlite3_bind_text(r->statement[s], i, t.text, (int)t.n, SQLITE_STATIC);
}

static int add_object(struct run *r, const struct entry *e, struct word *out)
{
    struct wire_object o;
    if (object_get(e, &o))
        return SQLITE_OK;
    for (int i = 0; i < 2; i++) {
        enum statement s = i ? SQL_OBJECT_GET : SQL_OBJECT_PUT;
        bind_text(r, s, 1, o.class_name);
        sqlite3_bind_int64(r->statement[s], 2, o.instance);
        bind_text(r, s, 3, o.module);
    }
    out->kind = ENTRY_OBJECT;
    return intern(r, SQL_OBJECT_PUT, SQL_OBJECT_GET, &out->id);
}

static int add_site(struct run *r, const struct stream *t,
                    const struct entry *e, struct word *out)
{
    struct wire_site s;
    if (site_get(e, &s))
        return SQLITE_OK;
    if (s.object) {
        /* else it means nothing, and its records count as lost */
        if (s.object > t->dict_n || t->words[s.object - 1].kind != ENTRY_OBJECT)
            return SQLITE_OK;
        out->u.site.object = t->words[s.object - 1].id;
    }
    out->kind = ENTRY_SITE;
    out->pass = (uint8_t)s.pass;
    out->io = (uint8_t)s.io;
    out->u.site.position = s.position;
    bind_text(r, SQL_PATH_PUT, 1, s.path);
    bind_text(r, SQL_PATH_GET, 1, s.path);
    return intern(r, SQL_PATH_PUT, SQL_PATH_GET, &out->id);
}

static int64_t elements(const struct wire_shape *s)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < s->ndim; i++) {
        if (s->dim[i] == 0)
            return 0;
    }
    for (uint32_t i = 0; i < s->ndim; i++) {
        if (__builtin_mul_overflow(n, s->dim[i], &n))
            return INT64_MAX;
    }
    return n;
}

static int add_shape(struct run *r, const struct entry *e, struct word *out)
{
    char dims[TRD_MAX_DIMS * 21 + 1];
    struct wire_shape s;
    size_t n = 0;
    struct slice text = {dims, 0};

    if (shape_get(e, &s))
        return SQLITE_OK;
    for (uint32_t i = 0; i < s.ndim; i++)
        n += (size_t)snprintf(dims + n, sizeof dims - n, "%s%lld", i ? " " : "",
                              (long long)s.dim[i]);
    text.n = n;
    out->kind = ENTRY_SHAPE;
    out->u.n = elements(&s);
    bind_text(r, SQL_SHAPE_PUT, 1, text);
    bind_text(r, SQL_SHAPE_GET, 1, text);
    sqlite3_bind_int64(r->statement[SQL_SHAPE_PUT], 2, out->u.n);
    return intern(r, SQL_SHAPE_PUT, SQL_SHAPE_GET, &out->id);
}

static int add_note(struct run *r, const struct entry *e, struct word *out)
{
    struct slice text;
    if (note_get(e, &text))
        return SQLITE_OK;
    out->kind = ENTRY_NOTE;
    bind_text(r, SQL_NOTE_PUT, 1, text);
    bind_text(r, SQL_NOTE_GET, 1, text);
    return intern(r, SQL_NOTE_PUT, SQL_NOTE_GET, &out->id);
}

/* An entry that does not decode, or of an unknown kind, keeps its number and
 * means nothing: the records that use it count as lost. */
static int meaning(struct run *r, const struct stream *t, const struct entry *e,
                   struct word *out)
{
    memset(out, 0, sizeof *out);
    switch (e->kind) {
    case ENTRY_OBJECT:
        return add_object(r, e, out);
    case ENTRY_SITE:
        return add_site(r, t, e, out);
    case ENTRY_SHAPE:
        return add_shape(r, e, out);
    case ENTRY_NOTE:
        return add_note(r, e, out);
    default:
        return SQLITE_OK;
    }
}

/* Room for n words of this stream. */
static int make_room(struct run *r, struct stream *t, uint32_t n)
{
    _Atomic uint64_t *all = &r->store->counters.dict_entries;
    uint32_t cap = t->words_cap ? t->words_cap : 64;
    struct word *more;

    if (n <= t->words_cap)
        return SQLITE_OK;
    while (cap < n)
        cap *= 2;
    if (n > DICT_MAX_ENTRIES ||
        atomic_load(all) + (cap - t->words_cap) > WORDS_MAX)
        return SQLITE_TOOBIG;
    more = realloc(t->words, cap * sizeof *more);
    if (!more)
        return SQLITE_NOMEM;
    atomic_fetch_add(all, cap - t->words_cap);
    t->words = more;
    t->words_cap = cap;
    return SQLITE_OK;
}

void words_free(struct run *r, struct stream *t)
{
    atomic_fetch_sub(&r->store->counters.dict_entries, t->words_cap);
    free(t->words);
    t->words = NULL;
    t->words_cap = 0;
}

static int add_one(struct run *r, struct stream *t, const struct entry *e)
{
    struct word w;
    int rc = make_room(r, t, t->dict_n + 1);
    if (rc == SQLITE_OK)
        rc = meaning(r, t, e, &w);
    if (rc == SQLITE_OK)
        t->words[t->dict_n++] = w;
    return rc;
}

int words_add(struct run *r, struct stream *t, const uint8_t *payload, size_t n)
{
    sqlite3_stmt *q = r->statement[SQL_DICT];
    struct batch b;
    uint64_t skip;
    size_t at = BATCH_BYTES;

    if (batch_get(payload, n, &b) ||
        order_check(t->dict_n, b.first, b.n, &skip) != ORDER_NEW)
        return SQLITE_OK;
    for (uint32_t i = 0; i < b.n; i++) {
        struct entry e = entry_checked(payload + at);
        if (i >= skip) {
            int rc = add_one(r, t, &e);
            if (rc != SQLITE_OK)
                return rc;
            sqlite3_bind_int64(q, 1, t->id);
            sqlite3_bind_int64(q, 2, t->dict_n);
            sqlite3_bind_blob(q, 3, payload + at, (int)e.len, SQLITE_STATIC);
            rc = run_step(r, SQL_DICT);
            if (rc != SQLITE_OK)
                return rc;
        }
        at += entry_span(e.len);
    }
    t->moved = true;
    return SQLITE_OK;
}

int words_load(struct run *r, struct stream *t)
{
    sqlite3_stmt *q = NULL;
    uint32_t n = t->dict_n;
    int rc;

    if (n == 0)
        return SQLITE_OK;
    rc = sqlite3_prepare_v2(r->db,
                            "SELECT id, entry FROM dict WHERE stream = ? "
                            "ORDER BY id",
                            -1, &q, NULL);
    if (rc != SQLITE_OK)
        return rc;
    sqlite3_bind_int64(q, 1, t->id);
    rc = run_begin(r); /* meanings are interned again if a row is missing */
    t->dict_n = 0;
    while (rc == SQLITE_OK && t->dict_n < n) {
        struct entry e;
        rc = sqlite3_step(q);
        if (rc != SQLITE_ROW || sqlite3_column_int64(q, 0) != t->dict_n + 1 ||
            entry_get(sqlite3_column_blob(q, 1),
                      (size_t)sqlite3_column_bytes(q, 1), &e)) {
            rc = rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_CORRUPT : rc;
            break;
        }
        rc = add_one(r, t, &e);
    }
    sqlite3_finalize(q);
    return rc;
}
