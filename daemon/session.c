/* The state machine of a stream's conversation. Loop thread; pure.
 *
 * What passes DO_STORE is whole: checksums, lengths and order were looked at
 * here. What the bodies of its entries mean is not: a record that does not
 * decode would come again and again if it was refused, and block its stream
 * for ever. The store counts it as lost and goes on. */
#include "daemon/session.h"

#include "daemon/order.h"
#include "proto/place.h"
#include "proto/record.h"

#include <stdio.h>

static struct verdict refuse(unsigned reason, const char *why)
{
    struct verdict v = {DO_CLOSE, reason, why};
    return v;
}

static struct verdict just(unsigned act)
{
    struct verdict v = {act, 0, NULL};
    return v;
}

void session_init(struct session *s)
{
    memset(s, 0, sizeof *s);
}

void session_welcome(struct session *s, uint64_t committed_seq, uint32_t dict_n)
{
    s->state = SESSION_OPEN;
    s->have = committed_seq;
    s->dict_have = dict_n;
}

struct verdict session_bad_header(struct session *s, int error,
                                  const uint8_t head[FRAME_HEADER_BYTES])
{
    struct reader r = reader_of(head + 4, 2); /* FORMAT.md, "Frames" */
    switch (error) {
    case TRD_EVERSION:
        snprintf(s->text, sizeof s->text,
                 "a frame of version %u; this daemon speaks version %d",
                 get_u16(&r), (int)WIRE_VERSION);
        return refuse(REASON_VERSION, s->text);
    case TRD_ELIMIT:
        return refuse(REASON_TOO_BIG, "a payload above its limit");
    default:
        return refuse(REASON_MALFORMED, "not a frame");
    }
}

/* A hello begins with its versions and features, whatever comes behind. */
static struct verdict nothing_in_common(struct session *s,
                                        const uint8_t *payload, uint32_t n)
{
    struct reader r = reader_of(payload, n);
    unsigned least = get_u16(&r), most = get_u16(&r);
    unsigned long required = (get_u32(&r), get_u32(&r));
    if (least <= WIRE_VERSION && most >= WIRE_VERSION)
        snprintf(s->text, sizeof s->text,
                 "the client requires features 0x%lx, which this daemon has "
                 "not",
                 required);
    else
        snprintf(s->text, sizeof s->text,
                 "the client speaks versions %u to %u, this daemon version %d",
                 least, most, (int)WIRE_VERSION);
    return refuse(REASON_VERSION, s->text);
}

static struct verdict on_hello(struct session *s, const struct frame *f,
                               const uint8_t *payload)
{
    struct hello h;
    int rc = hello_get(payload, f->len, &h);
    if (rc == TRD_EVERSION)
        return nothing_in_common(s, payload, f->len);
    if (rc)
        return refuse(REASON_MALFORMED, "a hello that does not hold");
    if (!place_run_ok(h.run.text, h.run.n))
        return refuse(REASON_MALFORMED,
                      "a run's name has letters, digits, '.', '_' and '-', "
                      "at most 200, and does not start with '.'");
    if (h.journal.n && memchr(h.journal.text, '/', h.journal.n))
        return refuse(REASON_MALFORMED, "a journal outside the directory");
    s->epoch = f->epoch;
    s->state = SESSION_ASKED;
    return just(DO_STORE);
}

/* NULL, or what is wrong with n entries numbered from first. The padding
 * of the last one may be left off. */
static const char *check_entries(const uint8_t *payload, uint32_t len,
                                 uint32_t n, uint32_t first, unsigned *reason)
{
    size_t at = BATCH_BYTES;
    struct entry e;

    *reason = REASON_MALFORMED;
    for (uint32_t i = 0; i < n; i++) {
        int rc = at < len ? entry_get(payload + at, len - at, &e) : TRD_ETRUNC;
        if (rc == TRD_ECORRUPT)
            *reason = REASON_CRC;
        if (rc)
            return rc == TRD_ECORRUPT ? "an entry's checksum does not hold"
                                      : "fewer entries than announced";
        if (e.number != first + i)
            return "an entry out of order";
        at += entry_span(e.len);
    }
    return at < len ? "more entries than announced" : NULL;
}

static struct verdict on_batch(struct session *s, const struct frame *f,
                               const uint8_t *payload)
{
    bool dict = f->type == FRAME_DICT;
    struct batch b;
    uint64_t first, have, skip;
    const char *why;
    unsigned reason;

    if (batch_get(payload, f->len, &b))
        return refuse(REASON_MALFORMED, "a batch that does not hold");
    if (!dict && b.first != 0)
        return refuse(REASON_MALFORMED, "a codec this daemon has not");
    first = dict ? b.first : f->seq;
    have = dict ? s->dict_have : s->have;
    if (dict &&
        (b.first > DICT_MAX_ENTRIES || b.n > DICT_MAX_ENTRIES - b.first + 1))
        return refuse(REASON_QUOTA, "too many different names");
    switch (order_check(have, first, b.n, &skip)) {
    case ORDER_BAD:
        return refuse(REASON_MALFORMED, "an empty or impossible range");
    case ORDER_JUMP:
        return refuse(REASON_GAP, dict ? "dictionary entries are missing"
                                       : "records are missing before these");
    case ORDER_DUP:
        return just(DO_ACK);
    case ORDER_NEW:
        break;
    }
    why = check_entries(payload, f->len, b.n, (uint32_t)first, &reason);
    if (why)
        return refuse(reason, why);
    if (dict)
        s->dict_have = (uint32_t)(first + b.n - 1);
    else
        s->have = first + b.n - 1;
    return just(DO_STORE);
}

static struct verdict on_gap(struct session *s, const struct frame *f,
                             const uint8_t *payload)
{
    struct gap g;
    uint64_t skip;

    if (gap_get(payload, f->len, &g) || g.first != f->seq)
        return refuse(REASON_MALFORMED, "a gap that does not hold");
    switch (order_check(s->have, g.first, g.last - g.first + 1, &skip)) {
    case ORDER_BAD:
        return refuse(REASON_MALFORMED, "an impossible range");
    case ORDER_JUMP:
        return refuse(REASON_GAP, "records are missing before this gap");
    case ORDER_DUP:
        return just(DO_ACK);
    case ORDER_NEW:
        break;
    }
    s->have = g.last;
    return just(DO_STORE);
}

static struct verdict on_ping(struct session *s, const struct frame *f,
                              const uint8_t *payload, uint64_t now_ns)
{
    struct ping p;
    if (ping_get(payload, f->len, &p))
        return refuse(REASON_MALFORMED, "a ping that does not hold");
    if (s->clock_ns &&
        now_ns - s->clock_ns < SESSION_CLOCK_S * UINT64_C(1000000000))
        return just(DO_PONG);
    s->clock_ns = now_ns;
    return just(DO_PONG | DO_STORE);
}

static struct verdict on_bye(struct session *s, const struct frame *f)
{
    if (f->seq > s->have)
        return refuse(REASON_GAP, "records are missing before the end");
    s->state = SESSION_LEAVING;
    return just(DO_STORE);
}

struct verdict session_head(const struct session *s, const struct frame *f)
{
    switch (s->state) {
    case SESSION_NEW:
        return f->type == FRAME_HELLO
                   ? just(0)
                   : refuse(REASON_MALFORMED, "the hello must come first");
    case SESSION_ASKED:
        return refuse(REASON_MALFORMED, "a frame before the welcome");
    case SESSION_LEAVING:
        return refuse(REASON_MALFORMED, "a frame after the bye");
    default:
        return f->epoch == s->epoch
                   ? just(0)
                   : refuse(REASON_MALFORMED, "a frame of another stream");
    }
}

struct verdict session_frame(struct session *s, const struct frame *f,
                             const uint8_t *payload, uint64_t now_ns)
{
    struct verdict v = session_head(s, f);
    if (v.act)
        return v;
    if (frame_check(f, payload))
        return refuse(REASON_CRC, "a payload's checksum does not hold");
    if (s->state == SESSION_NEW)
        return on_hello(s, f, payload);
    switch (f->type) {
    case FRAME_DICT:
    case FRAME_DATA:
        return on_batch(s, f, payload);
    case FRAME_GAP:
        return on_gap(s, f, payload);
    case FRAME_PING:
        return on_ping(s, f, payload, now_ns);
    case FRAME_BYE:
        return on_bye(s, f);
    case FRAME_HELLO:
        return refuse(REASON_MALFORMED, "a second hello");
    default:
        if (f->flags & FRAME_OPTIONAL)
            return just(0);
        return refuse(REASON_MALFORMED, "an unknown type of frame");
    }
}
