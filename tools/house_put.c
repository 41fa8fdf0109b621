/* Rows of a ClickHouse say all about themselves; a file has each word once. */
#include "tools/house_put.h"

#include <stdlib.h>

#include "tools/house_memo.h"

#define COLUMN(name, column, ...) ", " column
#define TYPE(name, column, type) type
#define MARK(name, column) ", ?"
const char *const house_record_columns = &HOUSE_RECORD(COLUMN)[2];
const char house_record_types[] = HOUSE_RECORD(TYPE);

/* X(name, column): those of table record behind step. Fields that follow each
 * other in both lists are set together. */
#define PUT_COLUMNS(X)                                                         \
    X(OBJECT, "object") X(PASS, "pass") X(STREAM, "stream") X(IO, "io")        \
    X(POSITION, "position") X(SEQ, "seq") X(T_NS, "t_ns")                      \
    X(ITERATION, "iteration") X(MICROBATCH, "microbatch") X(LABELS, "labels")  \
    X(NOTE, "note") X(PATH, "path") X(DTYPE, "dtype") X(SHAPE, "shape")        \
    X(N, "n") X(NANS, "nan") X(PINF, "pinf") X(NINF, "ninf") X(ZERO, "zero")   \
    X(SUBNORMAL, "subnormal") X(MAX, "max") X(MIN, "min") X(ABSMIN, "absmin")  \
    X(MEAN, "mean") X(STD, "std") X(L2, "l2") X(HASH, "hash")                  \
    X(SAMPLES, "samples") X(GIVEN, "given")

/* Parameters of PUT_RECORD. */
enum {
    TO_STEP = 1,
#define TO(name, column) TO_##name,
    PUT_COLUMNS(TO)
#undef TO
    TO_COUNT
};

/* What a record names; the kinds of keys. */
enum word { STREAM, OBJECT, NOTE, PATH, SHAPE, WORDS };

enum { PUT_RECORD = WORDS, PUT_EXTRA, PUTS };

static const char *const find_sql[WORDS] = {
    [STREAM] = "SELECT id, 0 FROM stream WHERE epoch = ?1",
    /* clang takes one split text among others for a lost comma */
    [OBJECT] = ("SELECT id, 0 FROM object WHERE class = ?1"
                " AND instance = ?2 AND module = ?3"),
    [NOTE] = "SELECT id, 0 FROM note WHERE text = ?1",
    [PATH] = "SELECT id, 0 FROM path WHERE text = ?1",
    [SHAPE] = "SELECT id, n FROM shape WHERE dims = ?1",
};

/* NULL: made elsewhere. */
static const char *const put_sql[PUTS] = {
    [NOTE] = "INSERT OR IGNORE INTO note(text) VALUES(?1)",
    [PATH] = "INSERT OR IGNORE INTO path(text) VALUES(?1)",
    [SHAPE] = "INSERT OR IGNORE INTO shape(dims, n) VALUES(?1, ?2)",
    [PUT_RECORD] = ("INSERT OR IGNORE INTO record(step" PUT_COLUMNS(COLUMN)
                    ") VALUES(?1" PUT_COLUMNS(MARK) ")"),
    [PUT_EXTRA] = "INSERT OR IGNORE INTO extra VALUES(?1, ?2, ?3, ?4, ?5)",
};

enum given { GIVEN_NULL, GIVEN_WHOLE, GIVEN_OTHER };

struct house_put {
    sqlite3_stmt *find[WORDS];
    sqlite3_stmt *put[PUTS];
    /* the parameters of PUT_RECORD, most of which a row has from the last */
    enum given given[TO_COUNT];
    int64_t whole[TO_COUNT];
    struct house_memo memo;
};

int house_put_open(sqlite3 *db, struct house_put **out)
{
    struct house_put *p = calloc(1, sizeof *p);
    int rc = p ? SQLITE_OK : SQLITE_NOMEM;
    for (int i = 0; rc == SQLITE_OK && i < WORDS; i++)
        rc = sqlite3_prepare_v2(db, find_sql[i], -1, &p->find[i], NULL);
    for (int i = 0; rc == SQLITE_OK && i < PUTS; i++)
        if (put_sql[i])
            rc = sqlite3_prepare_v2(db, put_sql[i], -1, &p->put[i], NULL);
    if (rc == SQLITE_OK)
        *out = p;
    else
        house_put_close(p);
    return rc;
}

void house_put_close(struct house_put *p)
{
    if (!p)
        return;
    for (int i = 0; i < WORDS; i++)
        sqlite3_finalize(p->find[i]);
    for (int i = 0; i < PUTS; i++)
        sqlite3_finalize(p->put[i]);
    house_memo_clear(&p->memo);
    free(p);
}

static void bind_slice(sqlite3_stmt *q, int i, struct slice s)
{
    sqlite3_bind_text(q, i, s.text, (int)s.n, SQLITE_STATIC);
}

void house_bind_text(sqlite3_stmt *q, int i, const struct house_field *f)
{
    if (!f->null)
        bind_slice(q, i, f->s);
}

void house_bind_whole(sqlite3_stmt *q, int i, const struct house_field *f)
{
    if (!f->null)
        sqlite3_bind_int64(q, i, house_whole(f));
}

int house_put_step(sqlite3_stmt *q)
{
    sqlite3_step(q);
    int rc = sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    return rc;
}

/* ---- words ---- */

static void bind_key(sqlite3_stmt *q, const struct memo_key *k)
{
    if (k->kind == STREAM)
        sqlite3_bind_int64(q, 1, k->number);
    else
        bind_slice(q, 1, k->a);
    if (k->kind != OBJECT)
        return;
    sqlite3_bind_int64(q, 2, k->number);
    bind_slice(q, 3, k->b);
}

/* Its row. Where there is none and none can be made: 0, which a record
 * without an object has, and -1 for a stream, as 0 is one. */
static int look_up(struct house_put *p, struct memo_entry *e)
{
    enum word which = (enum word)e->key.kind;
    sqlite3_stmt *q = p->put[which];
    int rc = SQLITE_OK;
    if (q) {
        bind_key(q, &e->key);
        if (which == SHAPE)
            sqlite3_bind_int64(q, 2, e->key.number);
        rc = house_put_step(q);
    }
    if (rc != SQLITE_OK)
        return rc;
    q = p->find[which];
    bind_key(q, &e->key);
    e->id = which == STREAM ? -1 : 0;
    if (sqlite3_step(q) == SQLITE_ROW) {
        e->id = sqlite3_column_int64(q, 0);
        e->n = sqlite3_column_int64(q, 1);
    }
    rc = sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    e->known = rc == SQLITE_OK;
    return rc;
}

/* *out is valid until the next one. */
static int find(struct house_put *p, const struct memo_key *key,
                struct memo_entry **out)
{
    struct memo_entry *e = house_memo_at(&p->memo, key);
    *out = e;
    return e->known ? SQLITE_OK : look_up(p, e);
}

struct words {
    int64_t id[WORDS];
    int64_t elements; /* that the shape says */
};

static int find_words(struct house_put *p, const struct house_field *c,
                      struct words *out)
{
    const struct memo_key keys[WORDS] = {
        [STREAM] = {.kind = STREAM, .number = house_whole(&c[AT_EPOCH])},
        [OBJECT] = {OBJECT, house_whole(&c[AT_INSTANCE]), c[AT_CLASS].s,
                    c[AT_MODULE].s},
        [NOTE] = {.kind = NOTE, .a = c[AT_NOTE].s},
        [PATH] = {.kind = PATH, .a = c[AT_PATH].s},
        [SHAPE] = {.kind = SHAPE, house_whole(&c[AT_N]), c[AT_SHAPE].s},
    };
    struct memo_entry *e;
    out->elements = 0;
    for (int i = 0; i < WORDS; i++) {
        out->id[i] = 0;
        if (i == NOTE && !keys[i].a.n)
            continue;
        int rc = find(p, &keys[i], &e);
        if (rc != SQLITE_OK)
            return rc;
        out->id[i] = e->id;
        out->elements = e->n;
    }
    return SQLITE_OK;
}

/* ---- records ---- */

static void set_whole(struct house_put *p, int i, int64_t v)
{
    if (p->given[i] == GIVEN_WHOLE && p->whole[i] == v)
        return;
    sqlite3_bind_int64(p->put[PUT_RECORD], i, v);
    p->given[i] = GIVEN_WHOLE;
    p->whole[i] = v;
}

static void set_null(struct house_put *p, int i)
{
    if (p->given[i] != GIVEN_NULL)
        sqlite3_bind_null(p->put[PUT_RECORD], i);
    p->given[i] = GIVEN_NULL;
}

/* So many fields, from parameter i on. */
static void set_fields(struct house_put *p, int i, const struct house_field *f,
                       int n)
{
    for (; n > 0; n--, i++, f++)
        if (f->null)
            set_null(p, i);
        else
            set_whole(p, i, house_whole(f));
}

static void set_real(struct house_put *p, int i, const struct house_field *f)
{
    if (f->null) {
        set_null(p, i);
        return;
    }
    sqlite3_bind_double(p->put[PUT_RECORD], i, house_real(f));
    p->given[i] = GIVEN_OTHER;
}

/* NULL where there is no byte. */
static void set_bytes(struct house_put *p, int i, const struct house_field *f)
{
    if (!f->s.n) {
        set_null(p, i);
        return;
    }
    sqlite3_bind_blob(p->put[PUT_RECORD], i, f->s.text, (int)f->s.n,
                      SQLITE_STATIC);
    p->given[i] = GIVEN_OTHER;
}

static void set_words(struct house_put *p, const struct house_field *c,
                      const struct words *w)
{
    set_whole(p, TO_OBJECT, w->id[OBJECT]);
    set_whole(p, TO_STREAM, w->id[STREAM]);
    set_whole(p, TO_PATH, w->id[PATH]);
    set_whole(p, TO_SHAPE, w->id[SHAPE]);
    if (w->id[NOTE])
        set_whole(p, TO_NOTE, w->id[NOTE]);
    else
        set_null(p, TO_NOTE);
    if (house_whole(&c[AT_N]) == w->elements)
        set_null(p, TO_N);
    else
        set_fields(p, TO_N, &c[AT_N], 1);
}

static void set_figures(struct house_put *p, const struct house_field *c)
{
    set_fields(p, TO_NANS, &c[AT_NANS], 5);
    for (int i = AT_MAX; i <= AT_L2; i++) {
        int to = TO_MAX + i - AT_MAX;
        int whole = AT_MAX_INT + i - AT_MAX; /* of integers, up to absmin */
        if (i <= AT_ABSMIN && !c[whole].null)
            set_fields(p, to, &c[whole], 1);
        else
            set_real(p, to, &c[i]);
    }
    set_fields(p, TO_HASH, &c[AT_HASH], 1);
    set_bytes(p, TO_SAMPLES, &c[AT_SAMPLES]);
    set_fields(p, TO_GIVEN, &c[AT_GIVEN], 1);
}

static int put_extra(struct house_put *p, const struct house_field *c,
                     int64_t stream)
{
    sqlite3_stmt *q = p->put[PUT_EXTRA];
    sqlite3_bind_int64(q, 1, stream);
    house_bind_whole(q, 2, &c[AT_SEQ]);
    if (house_whole(&c[AT_SAMPLING])) {
        house_bind_whole(q, 3, &c[AT_SAMPLING]);
        house_bind_whole(q, 4, &c[AT_SAMPLING_ARG]);
    }
    if (c[AT_HISTOGRAM].s.n)
        sqlite3_bind_blob(q, 5, c[AT_HISTOGRAM].s.text,
                          (int)c[AT_HISTOGRAM].s.n, SQLITE_STATIC);
    return house_put_step(q);
}

int house_put_record(struct house_put *p,
                     const struct house_field c[HOUSE_RECORD_FIELDS])
{
    struct words words;
    int rc = find_words(p, c, &words);
    if (rc != SQLITE_OK || words.id[STREAM] < 0)
        return rc;
    set_fields(p, TO_STEP, &c[AT_STEP], 1);
    set_fields(p, TO_PASS, &c[AT_PASS], 1);
    set_fields(p, TO_IO, &c[AT_IO], 3);
    set_fields(p, TO_T_NS, &c[AT_T_NS], 4);
    set_fields(p, TO_DTYPE, &c[AT_DTYPE], 1);
    set_words(p, c, &words);
    set_figures(p, c);
    sqlite3_step(p->put[PUT_RECORD]);
    rc = sqlite3_reset(p->put[PUT_RECORD]);
    if (rc == SQLITE_OK &&
        (house_whole(&c[AT_SAMPLING]) || c[AT_HISTOGRAM].s.n))
        rc = put_extra(p, c, words.id[STREAM]);
    return rc;
}
