/* Rows of stored records and the SQL that selects them. Pure text. */
#include "proto/row.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { CURSOR_NAME_KEYS = 7, CURSOR_SEQ_KEYS = 2 };

uint32_t given_code(double v)
{
    if (isnan(v))
        return GIVEN_NAN;
    if (isinf(v))
        return v > 0 ? GIVEN_PINF : GIVEN_NINF;
    return GIVEN_NUMBER;
}

double given_value(uint32_t code, bool there, double v)
{
    switch (code) {
    case GIVEN_PINF:
        return (double)INFINITY;
    case GIVEN_NINF:
        return -(double)INFINITY;
    case GIVEN_NUMBER:
        return there ? v : (double)NAN;
    default:
        return (double)NAN;
    }
}

/* ---- rows ---- */

struct cells {
    const struct cell *at;
    bool bad;
};

static int64_t whole(struct cells *c, enum row_column column)
{
    const struct cell *cell = &c->at[column];
    if (cell->type == CELL_NULL)
        return 0;
    if (cell->type != CELL_INT)
        c->bad = true;
    return cell->i;
}

static uint32_t small(struct cells *c, enum row_column column)
{
    int64_t v = whole(c, column);
    if (v < 0 || v > UINT32_MAX)
        c->bad = true;
    return (uint32_t)v;
}

static struct slice words(struct cells *c, enum row_column column)
{
    const struct cell *cell = &c->at[column];
    struct slice none = {"", 0};
    if (cell->type == CELL_NULL)
        return none;
    if (cell->type != CELL_TEXT && cell->type != CELL_BLOB)
        c->bad = true;
    return cell->s;
}

static bool there(const struct cells *c, enum row_column column)
{
    return c->at[column].type != CELL_NULL;
}

static double real(struct cells *c, enum row_column column)
{
    const struct cell *cell = &c->at[column];
    if (cell->type == CELL_INT)
        return (double)cell->i;
    if (cell->type != CELL_REAL)
        c->bad = true;
    return cell->f;
}

/* max, min, absmin: whole for integer dtypes. */
static union trd_value value(struct cells *c, enum row_column column,
                             int dtype)
{
    union trd_value v = {.u = 0};
    int kind = trd_dtype_kind(dtype);
    if (!there(c, column))
        return v;
    if (kind == TRD_KIND_SIGNED || kind == TRD_KIND_UNSIGNED)
        v.i = whole(c, column);
    else
        v.f = real(c, column);
    return v;
}

/* The largest magnitude is that of max or of min. */
static union trd_value absmax(int dtype, union trd_value max,
                              union trd_value min)
{
    union trd_value v = max;
    switch (trd_dtype_kind(dtype)) {
    case TRD_KIND_SIGNED:
        if (min.i < 0 && (max.i < 0 || 0 - min.u > max.u))
            v.u = 0 - min.u;
        break;
    case TRD_KIND_UNSIGNED:
        break;
    default:
        v.f = fmax(fabs(max.f), fabs(min.f));
    }
    return v;
}

/* "16 12 512" */
static void shape(struct cells *c, struct row *r)
{
    struct slice s = words(c, ROW_SHAPE);
    uint64_t d = 0;
    for (size_t i = 0; i < s.n; i++) {
        unsigned digit = (unsigned)((unsigned char)s.text[i] - '0');
        if (digit < 10 && d <= ((uint64_t)INT64_MAX - digit) / 10) {
            d = d * 10 + digit;
        } else if (s.text[i] != ' ') {
            c->bad = true;
            return;
        }
        if (s.text[i] == ' ' || i + 1 == s.n) {
            if (r->ndim == TRD_MAX_DIMS) {
                c->bad = true;
                return;
            }
            r->shape[r->ndim++] = (int64_t)d;
            d = 0;
        }
    }
}

static double given(struct cells *c, enum row_column column, int64_t code)
{
    bool number = there(c, column);
    return given_value((uint32_t)code & 3, number,
                       number ? real(c, column) : 0);
}

/* As a text log or a dump had them; what it had not is NULL without a code. */
static void given_figures(struct cells *c, struct row *r)
{
    struct trd_stats *s = &r->stats;
    int64_t code = whole(c, ROW_GIVEN);
    int kind = trd_dtype_kind(r->dtype);
    s->has |= TRD_IS_GIVEN;
    if ((there(c, ROW_MAX) || code & 3) && (there(c, ROW_MIN) || code & 12)) {
        s->has |= TRD_HAS_RANGE;
        if (kind == TRD_KIND_SIGNED || kind == TRD_KIND_UNSIGNED) {
            s->max = value(c, ROW_MAX, r->dtype);
            s->min = value(c, ROW_MIN, r->dtype);
        } else {
            s->max.f = given(c, ROW_MAX, code);
            s->min.f = given(c, ROW_MIN, code >> 2);
        }
    }
    if (there(c, ROW_MEAN) || code & 0x30) {
        s->has |= TRD_HAS_MEAN;
        s->mean = given(c, ROW_MEAN, code >> 4);
        s->std = given(c, ROW_STD, code >> 6);
    }
    if (there(c, ROW_L2)) {
        s->has |= TRD_HAS_L2;
        s->l2 = real(c, ROW_L2);
    }
}

static void figures(struct cells *c, struct row *r)
{
    struct trd_stats *s = &r->stats;
    s->n = (uint64_t)whole(c, ROW_N);
    if (there(c, ROW_NAN)) {
        s->has |= TRD_HAS_COUNTS;
        s->nan = (uint64_t)whole(c, ROW_NAN);
        s->pinf = (uint64_t)whole(c, ROW_PINF);
        s->ninf = (uint64_t)whole(c, ROW_NINF);
        s->zero = (uint64_t)whole(c, ROW_ZERO);
        s->subnormal = (uint64_t)whole(c, ROW_SUBNORMAL);
    }
    if (there(c, ROW_HASH)) {
        s->has |= TRD_HAS_HASH;
        s->hash = (uint64_t)whole(c, ROW_HASH);
    }
    if (there(c, ROW_GIVEN)) {
        given_figures(c, r);
        return;
    }
    if (there(c, ROW_MAX) && there(c, ROW_MIN)) {
        s->has |= TRD_HAS_RANGE | TRD_HAS_ABS;
        s->max = value(c, ROW_MAX, r->dtype);
        s->min = value(c, ROW_MIN, r->dtype);
        s->absmin = value(c, ROW_ABSMIN, r->dtype);
        s->absmax = absmax(r->dtype, s->max, s->min);
    }
    if (there(c, ROW_MEAN) && there(c, ROW_STD)) {
        s->has |= TRD_HAS_MEAN;
        s->mean = real(c, ROW_MEAN);
        s->std = real(c, ROW_STD);
    }
    if (there(c, ROW_L2)) {
        s->has |= TRD_HAS_L2;
        s->l2 = real(c, ROW_L2);
    }
}

static void sampling(struct cells *c, struct trd_stats *s)
{
    uint32_t rule = small(c, ROW_SAMPLING);
    s->sampling = (enum trd_sampling)rule;
    s->sampling_arg = (uint64_t)whole(c, ROW_SAMPLING_ARG);
    if (rule >= TRD_SAMPLING_COUNT ||
        (rule == TRD_EVERY && !s->sampling_arg))
        c->bad = true;
}

static void histogram(struct cells *c, struct row *r)
{
    if (there(c, ROW_HISTOGRAM) &&
        histogram_get(words(c, ROW_HISTOGRAM), r->dtype, &r->histogram))
        c->bad = true;
}

int row_get(const struct cell cells[ROW_COLUMN_COUNT], struct row *out)
{
    struct cells c = {cells, false};
    struct row r;
    memset(&r, 0, sizeof r);
    r.stream = (uint64_t)whole(&c, ROW_STREAM);
    r.attempt = small(&c, ROW_ATTEMPT);
    r.rank = small(&c, ROW_RANK);
    r.seq = (uint64_t)whole(&c, ROW_SEQ);
    r.ts_ns = whole(&c, ROW_TS_NS);
    r.pass = (int)small(&c, ROW_PASS);
    r.object = (uint64_t)whole(&c, ROW_OBJECT);
    r.class_name = words(&c, ROW_CLASS);
    r.instance = (uint64_t)whole(&c, ROW_INSTANCE);
    r.module = words(&c, ROW_MODULE);
    r.step = (uint64_t)whole(&c, ROW_STEP);
    r.iteration = (uint64_t)whole(&c, ROW_ITERATION);
    r.microbatch = small(&c, ROW_MICROBATCH);
    r.io = (int)small(&c, ROW_IO);
    r.position = (uint64_t)whole(&c, ROW_POSITION);
    r.path = words(&c, ROW_PATH);
    r.dtype = (int)small(&c, ROW_DTYPE);
    r.labels = small(&c, ROW_LABELS);
    r.note = words(&c, ROW_NOTE);
    shape(&c, &r);
    figures(&c, &r);
    r.samples = words(&c, ROW_SAMPLES);
    sampling(&c, &r.stats);
    histogram(&c, &r);
    unsigned bytes = trd_dtype_bytes(r.dtype);
    if (c.bad || !trd_dtype_name(r.dtype) || !trd_pass_name(r.pass) ||
        r.io > TRD_OUTPUT ||
        (bytes ? r.samples.n % bytes : r.samples.n) ||
        (bytes && r.samples.n / bytes > TRD_MAX_SAMPLES))
        return TRD_ECORRUPT;
    r.stats.sample_n = bytes ? (uint32_t)(r.samples.n / bytes) : 0;
    *out = r;
    return 0;
}

/* ---- statements ---- */

/* Appends text; after the first overflow nothing more. */
struct builder {
    struct sql *sql;
    size_t n;
    bool bad;
};

static struct builder builder_of(struct sql *out)
{
    struct builder b = {out, 0, false};
    out->n = 0;
    out->patterns = 0;
    out->text[0] = 0;
    return b;
}

#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static void
say(struct builder *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = b->bad ? 0
                   : vsnprintf(b->sql->text + b->n, SQL_TEXT_MAX - b->n,
                               format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= SQL_TEXT_MAX - b->n)
        b->bad = true;
    else
        b->n += (size_t)n;
}

/* The number of the parameter that will hold the cell. */
static unsigned bind(struct builder *b, struct cell c)
{
    if (b->sql->n == SQL_MAX_BINDS) {
        b->bad = true;
        return 1;
    }
    b->sql->bind[b->sql->n++] = c;
    return b->sql->n;
}

static unsigned bind_int(struct builder *b, int64_t v)
{
    struct cell c = {.type = CELL_INT, .i = v};
    return bind(b, c);
}

static unsigned bind_text(struct builder *b, struct slice s)
{
    struct cell c = {.type = CELL_TEXT, .s = s};
    return bind(b, c);
}

/* SQLite's GLOB also knows [sets]: our names do not. */
static unsigned bind_pattern(struct builder *b, struct slice s)
{
    struct sql *q = b->sql;
    struct slice out = {"", 0};
    if (q->patterns == sizeof q->pattern / sizeof q->pattern[0]) {
        b->bad = true;
        return 1;
    }
    char *to = q->pattern[q->patterns++];
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (n + 3 > SQL_PATTERN_MAX) {
            b->bad = true;
            return 1;
        }
        if (s.text[i] == '[') {
            to[n++] = '[';
            to[n++] = '[';
            to[n++] = ']';
        } else {
            to[n++] = s.text[i];
        }
    }
    out.text = to;
    out.n = n;
    return bind_text(b, out);
}

static bool all(struct slice s)
{
    return s.n == 1 && s.text[0] == '*';
}

/* column = text, or a pattern */
static void match_text(struct builder *b, const char *column, struct slice s)
{
    if (name_has_wildcard(s))
        say(b, " AND %s GLOB ?%u", column, bind_pattern(b, s));
    else
        say(b, " AND %s = ?%u", column, bind_text(b, s));
}

/* column = number, or a pattern over its digits; nothing when left off */
static void match_number(struct builder *b, const char *column,
                         struct slice s)
{
    if (!s.n || all(s))
        return;
    if (name_has_wildcard(s)) {
        say(b, " AND CAST(%s AS TEXT) GLOB ?%u", column, bind_pattern(b, s));
        return;
    }
    int64_t v = 0;
    for (size_t i = 0; i < s.n && v >= 0; i++)
        v = v > (INT64_MAX - 9) / 10 ? -1 : v * 10 + (s.text[i] - '0');
    say(b, " AND %s = ?%u", column, bind_int(b, v));
}

static void match_object(struct builder *b, const struct name_reading *r)
{
    if (r->kind == NAME_OBJECT) {
        match_text(b, "class", r->who);
        match_number(b, "instance", r->instance);
    } else {
        match_text(b, "module", r->who);
    }
}

static int finish(const struct builder *b)
{
    return b->bad ? TRD_ELIMIT : 0;
}

int sql_exists(const struct name_reading *r, struct sql *out)
{
    struct builder b = builder_of(out);
    switch (r->kind) {
    case NAME_ALL:
    case NAME_TEXT:
        say(&b, "SELECT 1");
        break;
    case NAME_OBJECT:
    case NAME_MODULE:
        say(&b, "SELECT 1 FROM object WHERE 1");
        match_object(&b, r);
        say(&b, " LIMIT 1");
        break;
    case NAME_PATH:
        say(&b, "SELECT 1 FROM path WHERE 1");
        match_text(&b, "text", r->who);
        say(&b, " LIMIT 1");
        break;
    }
    return finish(&b);
}

static void match_pass(struct builder *b, struct slice pass)
{
    if (all(pass))
        return;
    if (name_has_wildcard(pass)) {
        say(b, " AND r.pass IN (SELECT id FROM pass WHERE name GLOB ?%u)",
            bind_pattern(b, pass));
        return;
    }
    for (int i = 1; trd_pass_name(i); i++)
        if (name_match(pass, slice_of(trd_pass_name(i))))
            say(b, " AND r.pass = %d", i);
}

/* The printed name, or its beginning up to a '-' or '.', like name_put(). */
static void match_name(struct builder *b, struct slice pattern)
{
    unsigned n = bind_pattern(b, pattern);
    say(b, " AND (SELECT name GLOB ?%u OR name GLOB ?%u || '[-.]*' FROM"
           " (SELECT (SELECT name FROM pass WHERE id = r.pass) || '-' ||"
           " CASE WHEN r.pass > 2 THEN p.text || '-' || r.step"
           " ELSE o.class || '-' || o.instance || '-' || r.step || '-' ||"
           " (SELECT name FROM io WHERE id = r.io) ||"
           " CASE WHEN r.position THEN '.' || r.position ELSE '' END END"
           " AS name))",
        n, n);
}

static void match_reading(struct builder *b, const struct name_reading *r)
{
    match_pass(b, r->pass);
    match_number(b, "r.step", r->step);
    if (r->kind == NAME_OBJECT || r->kind == NAME_MODULE) {
        say(b, " AND r.object IN (SELECT id FROM object WHERE 1");
        match_object(b, r);
        say(b, ")");
    } else if (r->kind == NAME_PATH) {
        say(b, " AND r.pass > 2 AND r.path IN (SELECT id FROM path WHERE 1");
        match_text(b, "text", r->who);
        say(b, ")");
    } else if (r->kind == NAME_TEXT) {
        match_name(b, r->who);
    }
    if (r->io) {
        say(b, " AND r.io = %d", (int)r->io);
        match_number(b, "r.position", r->position);
    }
}

static const char *const order_keys[] = {
    [ORDER_NAME] = "r.step, r.object, r.pass, r.stream, r.io, r.position, "
                   "r.seq",
    [ORDER_SEQ] = "r.stream, r.seq",
};

static int match_cursor(struct builder *b, const struct query *q)
{
    unsigned keys =
        q->order == ORDER_NAME ? CURSOR_NAME_KEYS : CURSOR_SEQ_KEYS;
    if (!q->cursor.n)
        return 0;
    if (q->cursor.n != 8 * (size_t)keys)
        return TRD_EINVAL;
    struct reader r = reader_of(q->cursor.text, q->cursor.n);
    say(b, " AND (%s) > (", order_keys[q->order]);
    for (unsigned i = 0; i < keys; i++)
        say(b, "%s?%u", i ? ", " : "", bind_int(b, (int64_t)get_u64(&r)));
    say(b, ")");
    return 0;
}

static void match_filter(struct builder *b, const char *column, int64_t v)
{
    if (v >= 0)
        say(b, " AND %s = ?%u", column, bind_int(b, v));
}

int sql_records(const struct query *q, const struct name_reading *r,
                struct sql *out)
{
    static const char *const columns[] = {
#define COLUMN_SQL(name, sql) sql,
        ROW_COLUMNS(COLUMN_SQL)
#undef COLUMN_SQL
    };
    struct builder b = builder_of(out);
    say(&b, "SELECT ");
    for (unsigned i = 0; i < ROW_COLUMN_COUNT; i++)
        say(&b, "%s%s", i ? ", " : "", columns[i]);
    /* CROSS JOIN: the record drives, the dictionaries follow by key */
    say(&b, " FROM record r CROSS JOIN stream s ON s.id = r.stream"
            " CROSS JOIN path p ON p.id = r.path"
            " CROSS JOIN shape h ON h.id = r.shape"
            " LEFT JOIN object o ON o.id = r.object"
            " LEFT JOIN note t ON t.id = r.note"
            " LEFT JOIN extra x ON x.stream = r.stream AND x.seq = r.seq"
            " WHERE 1");
    if (r)
        match_reading(&b, r);
    match_filter(&b, "s.rank", q->rank);
    match_filter(&b, "s.attempt", q->attempt);
    match_filter(&b, "r.iteration", q->iteration);
    match_filter(&b, "r.microbatch", q->microbatch);
    if (match_cursor(&b, q))
        return TRD_EINVAL;
    say(&b, " ORDER BY %s", order_keys[q->order]);
    if (q->limit)
        say(&b, " LIMIT ?%u", bind_int(&b, (int64_t)q->limit));
    return finish(&b);
}

size_t row_cursor(const struct row *r, uint32_t order,
                  uint8_t out[ROW_CURSOR_MAX])
{
    struct writer w = writer_of(out, ROW_CURSOR_MAX);
    if (order == ORDER_NAME) {
        put_u64(&w, r->step);
        put_u64(&w, r->object);
        put_u64(&w, (uint64_t)r->pass);
        put_u64(&w, r->stream);
        put_u64(&w, (uint64_t)r->io);
        put_u64(&w, r->position);
    } else {
        put_u64(&w, r->stream);
    }
    put_u64(&w, r->seq);
    return (size_t)(w.at - out);
}

/* seq counts records and losses, so no scan of the records is needed. */
const char sql_run[] =
    "SELECT (SELECT value FROM meta WHERE key = 'name') AS name,"
    " min(real_ns) AS started_ns, max(real_ns + last_ns) AS ended_ns,"
    " count(DISTINCT attempt) AS attempts, count(DISTINCT rank) AS ranks,"
    " coalesce(max(iteration), 0) AS iterations,"
    " CAST(total(seq) AS INTEGER) - CAST((SELECT total(last - seq + 1)"
    " FROM loss) AS INTEGER) - coalesce((SELECT value FROM meta"
    " WHERE key = 'pruned'), 0) AS records,"
    " CAST((SELECT total(count) FROM loss) AS INTEGER) AS losses,"
    " CASE WHEN sum(state = 'open') > 0 THEN 'open'"
    " WHEN sum(state = 'dead') > 0 THEN 'dead'"
    " WHEN sum(state = 'imported') > 0 THEN 'imported'"
    " ELSE 'ended' END AS state,"
    /* the first runs have no such columns: then it is the 0 without */
    " coalesce((SELECT block_ms FROM stream ORDER BY 1 DESC LIMIT 1), 0)"
    " AS block_ms,"
    " coalesce((SELECT spool_bytes FROM stream ORDER BY 1 DESC LIMIT 1), 0)"
    " AS spool_bytes,"
    " coalesce((SELECT value FROM meta WHERE key = 'pruned'), 0) AS pruned"
    " FROM stream, (SELECT 0 AS block_ms, 0 AS spool_bytes)";
