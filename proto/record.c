/* Entries of DATA, DICT and the journal: FORMAT.md, "Entries". Pure. */
#include "proto/record.h"

#include "proto/crc32c.h"
#include "proto/sampling.h"

enum {
    HAS_KNOWN = TRD_HAS_ALL | TRD_IS_GIVEN,
    HAS_MORE = 128, /* in the body only: a mask of these follows */
    MORE_SAMPLING = 1,
    MORE_HISTOGRAM = 2,
    COUNTS = 5
};

static void store_u32(uint8_t *at, uint32_t v)
{
    struct writer w = writer_of(at, 4);
    put_u32(&w, v);
}

uint32_t entry_crc(uint32_t word, const uint8_t *entry)
{
    uint8_t head[4];
    store_u32(head, word);
    uint32_t len = word & 0xffffff;
    return crc32c(crc32c(0, head, 4), entry + 8, len - 8);
}

uint32_t entry_seal(uint8_t *entry, uint32_t kind, uint32_t len,
                    uint32_t number)
{
    uint32_t word = entry_word(kind, len);
    store_u32(entry + 8, number);
    store_u32(entry + 4, entry_crc(word, entry));
    return word;
}

int entry_get(const void *bytes, size_t left, struct entry *out)
{
    struct reader r = reader_of(bytes, left);
    uint32_t word = get_u32(&r);
    uint32_t crc = get_u32(&r);
    uint32_t number = get_u32(&r);
    uint32_t len = word & 0xffffff;
    if (r.bad)
        return TRD_ETRUNC;
    if (len < ENTRY_HEADER_BYTES || len > ENTRY_MAX_BYTES)
        return TRD_ECORRUPT;
    if (len > left)
        return TRD_ETRUNC;
    if (crc != entry_crc(word, bytes))
        return TRD_ECORRUPT;
    out->kind = word >> 24;
    out->len = len;
    out->number = number;
    out->body = (const uint8_t *)bytes + ENTRY_HEADER_BYTES;
    out->body_n = len - ENTRY_HEADER_BYTES;
    return 0;
}

static int wrote(const struct writer *w)
{
    return w->bad ? TRD_ELIMIT : 0;
}

/* A body is read to its last byte: what is left over is damage. */
static int read_all(const struct reader *r)
{
    return r->bad || reader_left(r) ? TRD_ECORRUPT : 0;
}

/* max, min, absmax, absmin: exact in fp32 for every float dtype narrower
 * than fp64, whole numbers for integers, fp64 for the rest. */
static bool fits_f32(uint32_t dtype)
{
    return trd_dtype_kind((int)dtype) == TRD_KIND_FLOAT && dtype != TRD_F64 &&
           dtype != TRD_TEXT;
}

/* The fp32 bits of a double that fp32 holds exactly. By integers, since a
 * training may have told the processor to flush subnormals to zero. */
static uint32_t f32_bits(double v)
{
    uint64_t d;
    memcpy(&d, &v, sizeof d);
    uint32_t sign = (uint32_t)(d >> 32) & UINT32_C(0x80000000);
    int exponent = (int)(d >> 52 & 0x7ff) - 1023;
    uint64_t mantissa = d & ((UINT64_C(1) << 52) - 1);
    if (exponent == 1024) /* infinite or NaN */
        return sign | UINT32_C(0x7f800000) | (uint32_t)(mantissa >> 29);
    if (exponent >= -126)
        return sign | (uint32_t)(exponent + 127) << 23 |
               (uint32_t)(mantissa >> 29);
    if (exponent < -149)
        return sign;
    mantissa |= UINT64_C(1) << 52;
    return sign | (uint32_t)(mantissa >> (29 - 126 - exponent));
}

static void put_value(struct writer *w, uint32_t dtype, union trd_value v)
{
    int kind = trd_dtype_kind((int)dtype);
    if (fits_f32(dtype)) {
        put_u32(w, f32_bits(v.f));
    } else if (kind == TRD_KIND_SIGNED || kind == TRD_KIND_UNSIGNED) {
        put_u64(w, v.u);
    } else {
        put_f64(w, v.f);
    }
}

static union trd_value get_value(struct reader *r, uint32_t dtype)
{
    union trd_value v = {.u = 0};
    int kind = trd_dtype_kind((int)dtype);
    if (fits_f32(dtype)) {
        uint32_t bits = get_u32(r);
        float f;
        memcpy(&f, &bits, sizeof f);
        v.f = (double)f;
    } else if (kind == TRD_KIND_SIGNED || kind == TRD_KIND_UNSIGNED) {
        v.u = get_u64(r);
    } else {
        v.f = get_f64(r);
    }
    return v;
}

/* Each sample has an element of its own. */
static bool samples_ok(const struct trd_stats *s)
{
    int rule = (int)s->sampling;
    return trd_sampling_name(rule) &&
           (rule != TRD_EVERY || s->sampling_arg) &&
           s->sample_n <=
               sampling_count(s->n, TRD_MAX_SAMPLES, rule, s->sampling_arg);
}

static const struct trd_histogram *histogram_of(const struct trd_stats *s)
{
    return s->histogram && s->histogram->kind ? s->histogram : NULL;
}

static bool bins_ok(uint32_t dtype, uint32_t first, uint32_t n)
{
    uint32_t bins = trd_dtype_bins((int)dtype);
    return bins && (n ? n <= bins && first <= bins - n : !first);
}

static bool histogram_ok(uint32_t dtype, const struct trd_stats *s)
{
    const struct trd_histogram *h = histogram_of(s);
    uint64_t left = s->n;
    if (!h)
        return true;
    if (!trd_histogram_name((int)h->kind) || !bins_ok(dtype, h->first, h->n))
        return false;
    for (uint32_t i = 0; i < h->n; i++) {
        if (h->count[i] > left)
            return false;
        left -= h->count[i];
    }
    return !h->n || (h->count[0] && h->count[h->n - 1]);
}

bool record_figures_ok(uint32_t dtype, const struct trd_stats *s)
{
    return s->n <= INT64_MAX && s->nan <= s->n && s->pinf <= s->n &&
           s->ninf <= s->n && s->zero <= s->n && s->subnormal <= s->n &&
           !(s->has & ~(uint32_t)HAS_KNOWN) && samples_ok(s) &&
           histogram_ok(dtype, s);
}

/* What most records do without. */
static void put_more(struct writer *w, const struct trd_stats *s,
                     unsigned more)
{
    const struct trd_histogram *h = histogram_of(s);
    put_u8(w, (uint8_t)more);
    if (more & MORE_SAMPLING) {
        put_u8(w, (uint8_t)s->sampling);
        put_varint(w, s->sampling_arg);
    }
    if (!h)
        return;
    put_u8(w, (uint8_t)h->kind);
    put_varint(w, h->first);
    put_varint(w, h->n);
    for (uint32_t i = 0; i < h->n; i++)
        put_varint(w, h->count[i]);
}

int record_head_put(struct writer *w, const struct wire_record *r)
{
    const struct trd_stats *s = &r->stats;
    unsigned more = (s->sampling ? MORE_SAMPLING : 0u) |
                    (histogram_of(s) ? MORE_HISTOGRAM : 0u);
    put_u8(w, (uint8_t)r->dtype);
    put_u8(w, (uint8_t)(s->has | (more ? HAS_MORE : 0u)));
    put_varint(w, r->site);
    put_varint(w, r->shape);
    put_varint(w, r->t_ns);
    put_varint(w, r->when.step);
    put_varint(w, r->when.iteration);
    put_varint(w, r->when.microbatch);
    put_varint(w, r->when.labels);
    put_varint(w, r->when.note);
    put_varint(w, s->n);
    if (s->has & TRD_HAS_COUNTS) {
        const uint64_t count[COUNTS] = {s->nan, s->pinf, s->ninf, s->zero,
                                        s->subnormal};
        unsigned mask = 0;
        for (unsigned i = 0; i < COUNTS; i++)
            mask |= (unsigned)(count[i] != 0) << i;
        put_u8(w, (uint8_t)mask);
        for (unsigned i = 0; i < COUNTS; i++)
            if (count[i])
                put_varint(w, count[i]);
    }
    if (s->has & TRD_HAS_RANGE) {
        put_value(w, r->dtype, s->max);
        put_value(w, r->dtype, s->min);
    }
    if (s->has & TRD_HAS_ABS) {
        put_value(w, r->dtype, s->absmax);
        put_value(w, r->dtype, s->absmin);
    }
    if (s->has & TRD_HAS_MEAN) {
        put_f64(w, s->mean);
        put_f64(w, s->std);
    }
    if (s->has & TRD_HAS_L2)
        put_f64(w, s->l2);
    if (s->has & TRD_HAS_HASH)
        put_u64(w, s->hash);
    if (more)
        put_more(w, s, more);
    put_varint(w, s->sample_n);
    return wrote(w);
}

int record_put(struct writer *w, const struct wire_record *r)
{
    record_head_put(w, r);
    put_bytes(w, r->samples,
              (size_t)r->stats.sample_n * trd_dtype_bytes((int)r->dtype));
    return wrote(w);
}

static void get_counts(struct reader *r, struct trd_stats *s)
{
    uint64_t *const count[COUNTS] = {&s->nan, &s->pinf, &s->ninf, &s->zero,
                                     &s->subnormal};
    unsigned mask = get_u8(r);
    if (mask >> COUNTS)
        r->bad = true;
    for (unsigned i = 0; i < COUNTS; i++) {
        if (mask >> i & 1)
            *count[i] = get_varint(r);
        if (*count[i] > s->n)
            r->bad = true;
    }
}

/* The counts are read to see that they hold; they stay where they lie. */
static void get_histogram(struct reader *r, const struct wire_record *m,
                          struct wire_histogram *out)
{
    uint64_t left = m->stats.n, count = 1;
    out->kind = get_u8(r);
    out->first = get_varint32(r);
    out->n = get_varint32(r);
    if (!out->kind || !trd_histogram_name((int)out->kind) ||
        !bins_ok(m->dtype, out->first, out->n))
        r->bad = true;
    out->counts.text = (const char *)r->at;
    for (uint32_t i = 0; i < out->n && !r->bad; i++) {
        count = get_varint(r);
        if (count > left || (i == 0 && !count))
            r->bad = true;
        left -= count;
    }
    if (!count)
        r->bad = true;
    out->counts.n = (size_t)((const char *)r->at - out->counts.text);
}

static void get_more(struct reader *r, struct wire_record *m)
{
    unsigned more = get_u8(r);
    if (!more || more & ~(unsigned)(MORE_SAMPLING | MORE_HISTOGRAM))
        r->bad = true;
    if (more & MORE_SAMPLING) {
        m->stats.sampling = (enum trd_sampling)get_u8(r);
        m->stats.sampling_arg = get_varint(r);
        if (!m->stats.sampling)
            r->bad = true;
    }
    if (more & MORE_HISTOGRAM)
        get_histogram(r, m, &m->histogram);
}

int record_get(const struct entry *e, struct wire_record *out)
{
    struct reader r = reader_of(e->body, e->body_n);
    struct wire_record m;
    struct trd_stats *s = &m.stats;
    memset(&m, 0, sizeof m);
    m.dtype = get_u8(&r);
    unsigned has = get_u8(&r);
    s->has = has & HAS_KNOWN;
    if (!trd_dtype_name((int)m.dtype))
        return TRD_ECORRUPT;
    m.site = get_varint32(&r);
    m.shape = get_varint32(&r);
    m.t_ns = get_varint(&r);
    m.when.step = get_varint(&r);
    m.when.iteration = get_varint(&r);
    m.when.microbatch = get_varint32(&r);
    m.when.labels = get_varint32(&r);
    m.when.note = get_varint32(&r);
    s->n = get_varint(&r);
    /* the store keeps them as signed 64-bit integers; a time is added to the
     * anchor, which has half the range too */
    if (m.t_ns > INT64_MAX / 2 || m.when.step > INT64_MAX ||
        m.when.iteration > INT64_MAX || s->n > INT64_MAX)
        return TRD_ECORRUPT;
    if (s->has & TRD_HAS_COUNTS)
        get_counts(&r, s);
    if (s->has & TRD_HAS_RANGE) {
        s->max = get_value(&r, m.dtype);
        s->min = get_value(&r, m.dtype);
    }
    if (s->has & TRD_HAS_ABS) {
        s->absmax = get_value(&r, m.dtype);
        s->absmin = get_value(&r, m.dtype);
    }
    if (s->has & TRD_HAS_MEAN) {
        s->mean = get_f64(&r);
        s->std = get_f64(&r);
    }
    if (s->has & TRD_HAS_L2)
        s->l2 = get_f64(&r);
    if (s->has & TRD_HAS_HASH)
        s->hash = get_u64(&r);
    if (has & HAS_MORE)
        get_more(&r, &m);
    s->sample_n = get_varint32(&r);
    if (r.bad || !samples_ok(s))
        return TRD_ECORRUPT;
    m.samples = get_bytes(
        &r, (size_t)s->sample_n * trd_dtype_bytes((int)m.dtype));
    if (read_all(&r))
        return TRD_ECORRUPT;
    *out = m;
    return 0;
}

int loss_put(struct writer *w, const struct wire_loss *l)
{
    put_u8(w, (uint8_t)l->cause);
    put_varint(w, l->count);
    put_varint(w, l->bytes);
    put_varint(w, l->t_ns);
    return wrote(w);
}

int loss_get(const struct entry *e, struct wire_loss *out)
{
    struct reader r = reader_of(e->body, e->body_n);
    struct wire_loss l;
    l.cause = get_u8(&r);
    l.count = get_varint(&r);
    l.bytes = get_varint(&r);
    l.t_ns = get_varint(&r);
    if (read_all(&r) || !wire_cause_name(l.cause) || l.count > INT64_MAX ||
        l.bytes > INT64_MAX || l.t_ns > INT64_MAX / 2)
        return TRD_ECORRUPT;
    *out = l;
    return 0;
}

static int put_name(struct writer *w, struct slice s)
{
    if (s.n > TRD_MAX_NAME)
        return TRD_ELIMIT;
    put_string(w, s.text, s.n);
    return 0;
}

int object_put(struct writer *w, const struct wire_object *o)
{
    put_varint(w, o->instance);
    if (put_name(w, o->class_name) || put_name(w, o->module))
        return TRD_ELIMIT;
    return wrote(w);
}

int object_get(const struct entry *e, struct wire_object *out)
{
    struct reader r = reader_of(e->body, e->body_n);
    struct wire_object o;
    o.instance = get_varint32(&r);
    o.class_name = get_string(&r, TRD_MAX_NAME);
    o.module = get_string(&r, TRD_MAX_NAME);
    if (read_all(&r))
        return TRD_ECORRUPT;
    *out = o;
    return 0;
}

int site_put(struct writer *w, const struct wire_site *s)
{
    put_varint(w, s->object);
    put_u8(w, (uint8_t)s->pass);
    put_u8(w, (uint8_t)s->io);
    put_varint(w, s->position);
    if (put_name(w, s->path))
        return TRD_ELIMIT;
    return wrote(w);
}

int site_get(const struct entry *e, struct wire_site *out)
{
    struct reader r = reader_of(e->body, e->body_n);
    struct wire_site s;
    s.object = get_varint32(&r);
    s.pass = get_u8(&r);
    s.io = get_u8(&r);
    s.position = get_varint32(&r);
    s.path = get_string(&r, TRD_MAX_NAME);
    if (read_all(&r) || !trd_pass_name((int)s.pass) || s.io > TRD_OUTPUT ||
        (s.object && s.object >= e->number))
        return TRD_ECORRUPT;
    *out = s;
    return 0;
}

int shape_put(struct writer *w, const struct wire_shape *s)
{
    put_u8(w, (uint8_t)s->ndim);
    for (uint32_t i = 0; i < s->ndim; i++)
        put_varint(w, (uint64_t)s->dim[i]);
    return wrote(w);
}

int shape_get(const struct entry *e, struct wire_shape *out)
{
    struct reader r = reader_of(e->body, e->body_n);
    uint32_t ndim = get_u8(&r);
    if (r.bad || ndim > TRD_MAX_DIMS)
        return TRD_ECORRUPT;
    out->ndim = ndim;
    for (uint32_t i = 0; i < ndim; i++) {
        uint64_t d = get_varint(&r);
        if (d > INT64_MAX)
            return TRD_ECORRUPT;
        out->dim[i] = (int64_t)d;
    }
    return read_all(&r);
}

int note_put(struct writer *w, struct slice text)
{
    return put_name(w, text) ? TRD_ELIMIT : wrote(w);
}

int note_get(const struct entry *e, struct slice *out)
{
    struct reader r = reader_of(e->body, e->body_n);
    struct slice s = get_string(&r, TRD_MAX_NAME);
    if (read_all(&r))
        return TRD_ECORRUPT;
    *out = s;
    return 0;
}
