/* Frames of the ingest socket: FORMAT.md, "Frames". Pure. */
#include "proto/frame.h"

#include "proto/crc32c.h"

enum { CRC_AT = 36 };

void frame_put(uint8_t out[FRAME_HEADER_BYTES], const struct frame *f)
{
    struct writer w = writer_of(out, FRAME_HEADER_BYTES);
    put_u32(&w, WIRE_MAGIC);
    put_u16(&w, f->version);
    put_u16(&w, f->type);
    put_u32(&w, f->len);
    put_u32(&w, f->crc);
    put_u64(&w, f->epoch);
    put_u64(&w, f->seq);
    put_u32(&w, f->flags);
    put_u32(&w, crc32c(0, out, CRC_AT));
}

static uint32_t length_limit(uint16_t type)
{
    return type == FRAME_DATA || type == FRAME_DICT ? FRAME_MAX_BYTES
                                                    : FRAME_CONTROL_MAX_BYTES;
}

int frame_get(const uint8_t in[FRAME_HEADER_BYTES], struct frame *out)
{
    struct reader r = reader_of(in, FRAME_HEADER_BYTES);
    struct frame f;
    uint32_t magic = get_u32(&r);
    f.version = get_u16(&r);
    f.type = get_u16(&r);
    f.len = get_u32(&r);
    f.crc = get_u32(&r);
    f.epoch = get_u64(&r);
    f.seq = get_u64(&r);
    f.flags = get_u32(&r);
    if (magic != WIRE_MAGIC || get_u32(&r) != crc32c(0, in, CRC_AT))
        return TRD_ECORRUPT;
    if (f.version != WIRE_VERSION && f.type != FRAME_HELLO)
        return TRD_EVERSION;
    if (f.len > length_limit(f.type))
        return TRD_ELIMIT;
    *out = f;
    return 0;
}

int frame_check(const struct frame *f, const void *payload)
{
    return crc32c(0, payload, f->len) == f->crc ? 0 : TRD_ECORRUPT;
}

/* The common end of the put functions. */
static int written(const struct writer *w, const void *out, size_t *n)
{
    if (w->bad)
        return TRD_ELIMIT;
    *n = (size_t)(w->at - (const uint8_t *)out);
    return 0;
}

/* Strings and JSON of a peer are shown to people: no NUL inside. */
static struct slice get_info(struct reader *r)
{
    struct slice s = {"", 0};
    size_t n = get_u32(r);
    const uint8_t *p = n > WIRE_INFO_MAX ? NULL : get_bytes(r, n);
    if (!p || (n && memchr(p, 0, n))) {
        r->bad = true;
        return s;
    }
    s.text = (const char *)p;
    s.n = n;
    return s;
}

int hello_put(const struct hello *h, void *out, size_t cap, size_t *n)
{
    if (h->run.n > TRD_MAX_RUN || h->job.n > WIRE_STRING_MAX ||
        h->host.n > WIRE_STRING_MAX || h->client.n > WIRE_STRING_MAX ||
        h->journal.n > WIRE_STRING_MAX || h->info.n > WIRE_INFO_MAX ||
        h->spool.n > WIRE_STRING_MAX)
        return TRD_ELIMIT;
    struct writer w = writer_of(out, cap);
    put_u16(&w, h->version_min);
    put_u16(&w, h->version_max);
    put_u32(&w, h->features);
    put_u32(&w, h->required);
    put_u32(&w, h->rank);
    put_u32(&w, h->attempt);
    put_u32(&w, h->world);
    put_u32(&w, h->pid);
    put_u64(&w, h->start_time);
    put_bytes(&w, h->boot_id, sizeof h->boot_id);
    put_u64(&w, h->mono_ns);
    put_u64(&w, h->real_ns);
    put_u64(&w, h->first_seq);
    put_u64(&w, h->last_seq);
    put_u32(&w, h->dict_n);
    put_u32(&w, h->max_len);
    put_string(&w, h->run.text, h->run.n);
    put_string(&w, h->job.text, h->job.n);
    put_string(&w, h->host.text, h->host.n);
    put_string(&w, h->client.text, h->client.n);
    put_string(&w, h->journal.text, h->journal.n);
    put_u32(&w, (uint32_t)h->info.n);
    put_bytes(&w, h->info.text, h->info.n);
    if (h->spool.n || h->block_ms || h->spool_bytes) {
        put_string(&w, h->spool.text, h->spool.n);
        put_u32(&w, h->block_ms);
        put_u64(&w, h->spool_bytes);
    }
    return written(&w, out, n);
}

int hello_get(const void *payload, size_t n, struct hello *out)
{
    struct reader r = reader_of(payload, n);
    struct hello h;
    memset(&h, 0, sizeof h);
    h.version_min = get_u16(&r);
    h.version_max = get_u16(&r);
    h.features = get_u32(&r);
    h.required = get_u32(&r);
    if (r.bad)
        return TRD_ETRUNC;
    if (h.version_min > WIRE_VERSION || h.version_max < WIRE_VERSION ||
        h.required)
        return TRD_EVERSION;
    h.rank = get_u32(&r);
    h.attempt = get_u32(&r);
    h.world = get_u32(&r);
    h.pid = get_u32(&r);
    h.start_time = get_u64(&r);
    const uint8_t *boot = get_bytes(&r, sizeof h.boot_id);
    if (boot)
        memcpy(h.boot_id, boot, sizeof h.boot_id);
    h.mono_ns = get_u64(&r);
    h.real_ns = get_u64(&r);
    h.first_seq = get_u64(&r);
    h.last_seq = get_u64(&r);
    h.dict_n = get_u32(&r);
    h.max_len = get_u32(&r);
    h.run = get_string(&r, TRD_MAX_RUN);
    h.job = get_string(&r, WIRE_STRING_MAX);
    h.host = get_string(&r, WIRE_STRING_MAX);
    h.client = get_string(&r, WIRE_STRING_MAX);
    h.journal = get_string(&r, WIRE_STRING_MAX);
    h.info = get_info(&r);
    h.spool = slice_of("");
    if (!r.bad && reader_left(&r)) {
        h.spool = get_string(&r, WIRE_STRING_MAX);
        h.block_ms = get_u32(&r);
        h.spool_bytes = get_u64(&r);
    }
    if (r.bad)
        return TRD_ETRUNC;
    if (h.rank >= RANK_LIMIT || h.attempt >= ATTEMPT_LIMIT ||
        h.dict_n > DICT_MAX_ENTRIES || h.real_ns > INT64_MAX / 2 ||
        h.mono_ns > INT64_MAX || h.first_seq == 0 ||
        h.first_seq > INT64_MAX || h.last_seq > INT64_MAX ||
        h.spool_bytes > INT64_MAX)
        return TRD_EINVAL;
    *out = h;
    return 0;
}

int welcome_put(const struct welcome *m, void *out, size_t cap, size_t *n)
{
    if (m->run.n > TRD_MAX_RUN)
        return TRD_ELIMIT;
    struct writer w = writer_of(out, cap);
    put_u16(&w, m->version);
    put_u32(&w, m->features);
    put_bytes(&w, m->store_id, sizeof m->store_id);
    put_u64(&w, m->stream);
    put_u64(&w, m->committed_seq);
    put_u64(&w, m->durable_seq);
    put_u32(&w, m->dict_n);
    put_u32(&w, m->credit_bytes);
    put_u32(&w, m->max_len);
    put_u32(&w, m->idle_ms);
    put_string(&w, m->run.text, m->run.n);
    return written(&w, out, n);
}

int welcome_get(const void *payload, size_t n, struct welcome *out)
{
    struct reader r = reader_of(payload, n);
    struct welcome m;
    memset(&m, 0, sizeof m);
    m.version = get_u16(&r);
    m.features = get_u32(&r);
    const uint8_t *id = get_bytes(&r, sizeof m.store_id);
    if (id)
        memcpy(m.store_id, id, sizeof m.store_id);
    m.stream = get_u64(&r);
    m.committed_seq = get_u64(&r);
    m.durable_seq = get_u64(&r);
    m.dict_n = get_u32(&r);
    m.credit_bytes = get_u32(&r);
    m.max_len = get_u32(&r);
    m.idle_ms = get_u32(&r);
    m.run = get_string(&r, TRD_MAX_RUN);
    if (r.bad)
        return TRD_ETRUNC;
    if (m.version != WIRE_VERSION)
        return TRD_EVERSION;
    if (m.durable_seq > m.committed_seq || m.max_len > FRAME_MAX_BYTES ||
        m.max_len < ENTRY_MAX_BYTES + BATCH_BYTES ||
        m.dict_n > DICT_MAX_ENTRIES)
        return TRD_EINVAL;
    *out = m;
    return 0;
}

int refusal_put(const struct refusal *m, void *out, size_t cap, size_t *n)
{
    if (m->text.n > WIRE_REASON_MAX)
        return TRD_ELIMIT;
    struct writer w = writer_of(out, cap);
    put_u16(&w, m->reason);
    put_u32(&w, m->retry_ms);
    put_string(&w, m->text.text, m->text.n);
    return written(&w, out, n);
}

int refusal_get(const void *payload, size_t n, struct refusal *out)
{
    struct reader r = reader_of(payload, n);
    struct refusal m;
    m.reason = get_u16(&r);
    m.retry_ms = get_u32(&r);
    m.text = get_string(&r, WIRE_REASON_MAX);
    if (r.bad)
        return TRD_ETRUNC;
    *out = m;
    return 0;
}

int ack_put(const struct ack *m, void *out, size_t cap, size_t *n)
{
    struct writer w = writer_of(out, cap);
    put_u64(&w, m->committed_seq);
    put_u64(&w, m->durable_seq);
    put_u32(&w, m->dict_n);
    put_u32(&w, m->credit_bytes);
    return written(&w, out, n);
}

int ack_get(const void *payload, size_t n, struct ack *out)
{
    struct reader r = reader_of(payload, n);
    struct ack m;
    m.committed_seq = get_u64(&r);
    m.durable_seq = get_u64(&r);
    m.dict_n = get_u32(&r);
    m.credit_bytes = get_u32(&r);
    if (r.bad)
        return TRD_ETRUNC;
    if (m.durable_seq > m.committed_seq)
        return TRD_EINVAL;
    *out = m;
    return 0;
}

int gap_put(const struct gap *m, void *out, size_t cap, size_t *n)
{
    struct writer w = writer_of(out, cap);
    put_u64(&w, m->first);
    put_u64(&w, m->last);
    put_u64(&w, m->bytes);
    put_u32(&w, m->cause);
    return written(&w, out, n);
}

int gap_get(const void *payload, size_t n, struct gap *out)
{
    struct reader r = reader_of(payload, n);
    struct gap m;
    m.first = get_u64(&r);
    m.last = get_u64(&r);
    m.bytes = get_u64(&r);
    m.cause = get_u32(&r);
    if (r.bad)
        return TRD_ETRUNC;
    if (m.first == 0 || m.last < m.first || m.last > INT64_MAX ||
        m.bytes > INT64_MAX || !wire_cause_name(m.cause))
        return TRD_EINVAL;
    *out = m;
    return 0;
}

int ping_put(const struct ping *m, void *out, size_t cap, size_t *n)
{
    struct writer w = writer_of(out, cap);
    put_u64(&w, m->mono_ns);
    put_u64(&w, m->real_ns);
    return written(&w, out, n);
}

int ping_get(const void *payload, size_t n, struct ping *out)
{
    struct reader r = reader_of(payload, n);
    struct ping m;
    m.mono_ns = get_u64(&r);
    m.real_ns = get_u64(&r);
    if (r.bad)
        return TRD_ETRUNC;
    if (m.mono_ns > INT64_MAX || m.real_ns > INT64_MAX)
        return TRD_EINVAL;
    *out = m;
    return 0;
}

void batch_put(uint8_t out[BATCH_BYTES], const struct batch *b)
{
    struct writer w = writer_of(out, BATCH_BYTES);
    put_u32(&w, b->n);
    put_u32(&w, b->first);
}

int batch_get(const void *payload, size_t n, struct batch *out)
{
    struct reader r = reader_of(payload, n);
    struct batch b;
    b.n = get_u32(&r);
    b.first = get_u32(&r);
    if (r.bad)
        return TRD_ETRUNC;
    *out = b;
    return 0;
}
