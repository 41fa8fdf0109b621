/* Requests and pages of the query endpoint: FORMAT.md, "Queries". Pure. */
#include "proto/query.h"

#include "proto/name.h"

enum { QUERY_VERSION = 1, PAGE_VERSION = 1, PAGE_MESSAGE_MAX = 1024 };

/* Field tags of a request; each is u8 tag, u32 length, bytes. */
enum {
    TAG_AS = 1,
    TAG_ORDER,
    TAG_RANK,
    TAG_ATTEMPT,
    TAG_ITERATION,
    TAG_MICROBATCH,
    TAG_LIMIT,
    TAG_RUN,
    TAG_NAME,
    TAG_SQL,
    TAG_CURSOR
};

void query_init(struct query *q, uint32_t verb)
{
    const struct slice none = {"", 0};
    memset(q, 0, sizeof *q);
    q->verb = verb;
    q->rank = q->attempt = q->iteration = q->microbatch = -1;
    q->run = q->name = q->sql = q->cursor = none;
}

static void put_field(struct writer *w, uint16_t *n, uint8_t tag,
                      struct slice s)
{
    put_u8(w, tag);
    put_u32(w, (uint32_t)s.n);
    put_bytes(w, s.text, s.n);
    ++*n;
}

static void put_number(struct writer *w, uint16_t *n, uint8_t tag, int64_t v)
{
    put_u8(w, tag);
    put_u32(w, 8);
    put_u64(w, (uint64_t)v);
    ++*n;
}

int query_put(const struct query *q, void *out, size_t cap, size_t *n)
{
    struct writer w = writer_of(out, cap);
    uint16_t fields = 0;
    put_u32(&w, QUERY_MAGIC);
    put_u16(&w, QUERY_VERSION);
    put_u16(&w, (uint16_t)q->verb);
    uint8_t *count = put_room(&w, 2);
    if (q->as)
        put_number(&w, &fields, TAG_AS, q->as);
    if (q->order)
        put_number(&w, &fields, TAG_ORDER, q->order);
    if (q->rank >= 0)
        put_number(&w, &fields, TAG_RANK, q->rank);
    if (q->attempt >= 0)
        put_number(&w, &fields, TAG_ATTEMPT, q->attempt);
    if (q->iteration >= 0)
        put_number(&w, &fields, TAG_ITERATION, q->iteration);
    if (q->microbatch >= 0)
        put_number(&w, &fields, TAG_MICROBATCH, q->microbatch);
    if (q->limit)
        put_number(&w, &fields, TAG_LIMIT, (int64_t)q->limit);
    if (q->run.n)
        put_field(&w, &fields, TAG_RUN, q->run);
    if (q->name.n)
        put_field(&w, &fields, TAG_NAME, q->name);
    if (q->sql.n)
        put_field(&w, &fields, TAG_SQL, q->sql);
    if (q->cursor.n)
        put_field(&w, &fields, TAG_CURSOR, q->cursor);
    if (w.bad || (size_t)(w.at - (uint8_t *)out) > SP_REQUEST_MAX_BYTES)
        return TRD_ELIMIT;
    struct writer patch = writer_of(count, 2);
    put_u16(&patch, fields);
    *n = (size_t)(w.at - (uint8_t *)out);
    return 0;
}

/* A number field: 8 bytes, not negative. */
static int64_t number(struct slice s, bool *bad)
{
    struct reader r = reader_of(s.text, s.n);
    uint64_t v = get_u64(&r);
    if (s.n != 8 || v > INT64_MAX)
        *bad = true;
    return *bad ? 0 : (int64_t)v;
}

static void set_field(struct query *q, uint8_t tag, struct slice s, bool *bad)
{
    switch (tag) {
    case TAG_AS:
        q->as = (uint32_t)number(s, bad);
        break;
    case TAG_ORDER:
        q->order = (uint32_t)number(s, bad);
        break;
    case TAG_RANK:
        q->rank = number(s, bad);
        break;
    case TAG_ATTEMPT:
        q->attempt = number(s, bad);
        break;
    case TAG_ITERATION:
        q->iteration = number(s, bad);
        break;
    case TAG_MICROBATCH:
        q->microbatch = number(s, bad);
        break;
    case TAG_LIMIT:
        q->limit = (uint64_t)number(s, bad);
        break;
    case TAG_RUN:
        q->run = s;
        break;
    case TAG_NAME:
        q->name = s;
        break;
    case TAG_SQL:
        q->sql = s;
        break;
    case TAG_CURSOR:
        q->cursor = s;
        break;
    default: /* of a later version */
        break;
    }
}

int query_get(const void *message, size_t n, struct query *out)
{
    struct reader r = reader_of(message, n);
    struct query q;
    bool bad = false;
    uint32_t magic = get_u32(&r);
    uint16_t version = get_u16(&r);
    query_init(&q, get_u16(&r));
    uint16_t fields = get_u16(&r);
    if (r.bad)
        return TRD_ETRUNC;
    if (magic != QUERY_MAGIC)
        return TRD_ECORRUPT;
    if (version != QUERY_VERSION)
        return TRD_EVERSION;
    if (n > SP_REQUEST_MAX_BYTES || fields > QUERY_MAX_FIELDS)
        return TRD_ELIMIT;
    for (unsigned i = 0; i < fields; i++) {
        uint8_t tag = get_u8(&r);
        uint32_t len = get_u32(&r);
        const uint8_t *p = get_bytes(&r, len);
        if (!p)
            return TRD_ETRUNC;
        struct slice s = {(const char *)p, len};
        set_field(&q, tag, s, &bad);
    }
    if (bad || q.verb < QUERY_RUNS || q.verb > QUERY_STATUS ||
        q.as > NAME_AS_MODULE || q.order > ORDER_SEQ ||
        q.run.n > WIRE_STRING_MAX)
        return TRD_EINVAL;
    *out = q;
    return 0;
}

/* A page: magic, version, status, message, columns, rows (patched), names,
 * rows of cells, cursor. */
void page_open(struct page_writer *p, void *out, size_t cap,
               enum page_status status, struct slice message)
{
    memset(p, 0, sizeof *p);
    p->w = writer_of(out, cap);
    p->start = out;
    if (message.n > PAGE_MESSAGE_MAX)
        message.n = PAGE_MESSAGE_MAX;
    put_u32(&p->w, PAGE_MAGIC);
    put_u16(&p->w, PAGE_VERSION);
    put_u16(&p->w, (uint16_t)status);
    put_string(&p->w, message.text, message.n);
    p->counts = put_room(&p->w, 6); /* u16 columns, u32 rows */
}

void page_columns(struct page_writer *p, const char *const *names, uint32_t n)
{
    for (uint32_t i = 0; i < n && i < PAGE_MAX_COLUMNS; i++)
        put_string(&p->w, names[i], strlen(names[i]));
    p->columns = n < PAGE_MAX_COLUMNS ? n : PAGE_MAX_COLUMNS;
}

static void put_cell(struct writer *w, const struct cell *c)
{
    put_u8(w, (uint8_t)c->type);
    switch (c->type) {
    case CELL_INT:
        put_u64(w, (uint64_t)c->i);
        break;
    case CELL_REAL:
        put_f64(w, c->f);
        break;
    case CELL_TEXT:
    case CELL_BLOB:
        put_u32(w, (uint32_t)c->s.n);
        put_bytes(w, c->s.text, c->s.n);
        break;
    case CELL_NULL:
        break;
    }
}

/* Room that the cursor at the end needs. */
enum { PAGE_TAIL = 2 + 1024 };

int page_cell(struct page_writer *p, const struct cell *c)
{
    if (p->w.bad)
        return TRD_ELIMIT;
    if (p->cells == 0)
        p->row = p->w.at;
    struct writer w = p->w;
    w.end -= (size_t)(w.end - w.at) > PAGE_TAIL ? PAGE_TAIL
                                                : (size_t)(w.end - w.at);
    put_cell(&w, c);
    if (w.bad) {
        p->w.at = p->row;
        p->cells = 0;
        return TRD_ELIMIT;
    }
    p->w.at = w.at;
    if (++p->cells == p->columns) {
        p->cells = 0;
        p->rows++;
    }
    return 0;
}

size_t page_close(struct page_writer *p, struct slice cursor)
{
    if (p->cells) /* a row that was not finished */
        p->w.at = p->row;
    if (cursor.n > PAGE_TAIL - 2)
        return 0;
    put_string(&p->w, cursor.text, cursor.n);
    if (p->w.bad)
        return 0;
    struct writer patch = writer_of(p->counts, 6);
    put_u16(&patch, (uint16_t)p->columns);
    put_u32(&patch, p->rows);
    return (size_t)(p->w.at - p->start);
}

static int get_cell(struct reader *r, struct cell *c)
{
    const struct slice none = {"", 0};
    c->type = (enum cell_type)get_u8(r);
    c->i = 0;
    c->f = 0;
    c->s = none;
    switch (c->type) {
    case CELL_NULL:
        break;
    case CELL_INT: {
        uint64_t v = get_u64(r);
        memcpy(&c->i, &v, sizeof v);
        break;
    }
    case CELL_REAL:
        c->f = get_f64(r);
        break;
    case CELL_TEXT:
    case CELL_BLOB: {
        uint32_t n = get_u32(r);
        const uint8_t *p = get_bytes(r, n);
        if (p) {
            c->s.text = (const char *)p;
            c->s.n = n;
        }
        break;
    }
    default:
        r->bad = true;
    }
    return r->bad ? TRD_ETRUNC : 0;
}

/* Strings of a page may hold any byte. */
static struct slice get_text(struct reader *r)
{
    struct slice s = {"", 0};
    uint16_t n = get_u16(r);
    const uint8_t *p = get_bytes(r, n);
    if (p) {
        s.text = (const char *)p;
        s.n = n;
    }
    return s;
}

int page_get(const void *message, size_t n, struct page *out)
{
    struct reader r = reader_of(message, n);
    struct page p;
    struct cell c;
    memset(&p, 0, sizeof p);
    uint32_t magic = get_u32(&r);
    uint16_t version = get_u16(&r);
    uint16_t status = get_u16(&r);
    p.message = get_text(&r);
    p.columns = get_u16(&r);
    p.rows = get_u32(&r);
    if (r.bad)
        return TRD_ETRUNC;
    if (magic != PAGE_MAGIC)
        return TRD_ECORRUPT;
    if (version != PAGE_VERSION)
        return TRD_EVERSION;
    if (status > PAGE_FAILED || p.columns > PAGE_MAX_COLUMNS ||
        (p.rows && !p.columns))
        return TRD_ECORRUPT;
    p.status = (enum page_status)status;
    for (uint32_t i = 0; i < p.columns; i++)
        p.name[i] = get_text(&r);
    p.at = r;
    for (uint32_t i = 0; i < p.rows; i++)
        for (uint32_t k = 0; k < p.columns; k++)
            if (get_cell(&r, &c))
                return TRD_ETRUNC;
    p.cursor = get_text(&r);
    if (r.bad)
        return TRD_ETRUNC;
    *out = p;
    return 0;
}

int page_row(struct page *p, struct cell *cells)
{
    if (!p->rows)
        return 0;
    p->rows--;
    for (uint32_t k = 0; k < p->columns; k++)
        get_cell(&p->at, &cells[k]);
    return 1;
}
