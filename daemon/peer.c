/* A connection of a client. Loop thread.
 *
 * It reads a header of 40 bytes, then exactly its payload, so nothing is
 * ever left over in a buffer and a payload is received where the writer will
 * read it. Memory for it is taken only when the header holds; while there is
 * none the connection is not read (back-pressure). It is closed for any
 * malformed thing, never asserted on. */
#include "daemon/peer.h"

#include "daemon/log.h"
#include "daemon/reply.h"
#include "proto/point.h"

#include <stdlib.h>
#include <string.h>

enum {
    TURN_BYTES = 256 * 1024,     /* of one connection a loop turn */
    OUT_MAX_BYTES = 64 * 1024,   /* unread by the peer: no more is said */
    OUT_DROP_BYTES = 256 * 1024, /* unread by the peer: it is closed */
    ACK_REPEAT_MS = 1000,
    LINGER_MS = 1000 /* after a connection: is its process gone? */
};

/* ---- sending ---- */

/* The payload stands at bytes + FRAME_HEADER_BYTES. */
static void send_frame(struct peer *p, enum frame_type type, uint64_t seq,
                       uint8_t bytes[REPLY_BYTES], size_t n)
{
    if (!p->closing && reply_send((uv_stream_t *)&p->pipe, type,
                                  p->intake.session.epoch, seq, bytes, n))
        peer_close(p);
}

/* Acks and pongs may be left out while the peer does not read: the next one
 * says the same or more. */
static bool peer_reads(struct peer *p)
{
    size_t n = uv_stream_get_write_queue_size((uv_stream_t *)&p->pipe);
    if (n > OUT_DROP_BYTES)
        peer_close(p);
    return n <= OUT_MAX_BYTES;
}

void peer_ack(struct peer *p)
{
    uint8_t bytes[REPLY_BYTES];
    struct marks *m = &p->intake.marks;
    struct ack a;
    size_t n;

    if (p->closing || !peer_reads(p))
        return;
    a.durable_seq = atomic_load(&m->durable); /* first: never ahead */
    a.dict_n = atomic_load(&m->dict_durable);
    a.committed_seq = atomic_load(&m->committed);
    a.credit_bytes = hub_credit(p->intake.hub);
    if (ack_put(&a, bytes + FRAME_HEADER_BYTES,
                sizeof bytes - FRAME_HEADER_BYTES, &n))
        return;
    p->acked_ns = server_now_ns(p->server);
    POINT(answering);
    send_frame(p, FRAME_ACK, 0, bytes, n);
    POINT(answered);
}

static void send_refusal(struct peer *p, enum frame_type type, unsigned reason,
                         uint32_t retry_ms, const char *why)
{
    uint8_t bytes[REPLY_BYTES];
    struct refusal r = {
        .reason = (uint16_t)reason,
        .retry_ms = retry_ms,
        .text = slice_of(why),
    };
    size_t n;
    if (refusal_put(&r, bytes + FRAME_HEADER_BYTES,
                    sizeof bytes - FRAME_HEADER_BYTES, &n) == 0)
        send_frame(p, type, 0, bytes, n);
}

static uint32_t retry_of(unsigned reason, bool greeted)
{
    if (reason == REASON_MALFORMED && !greeted)
        return 0; /* this hello will not get better */
    switch (reason) {
    case REASON_BUSY:
    case REASON_OWNED:
    case REASON_STORE:
    case REASON_STOPPING:
        return 1000;
    case REASON_CRC:
    case REASON_GAP:
    case REASON_MALFORMED:
        return 200; /* after a hello the marks are right again */
    default:
        return 0;
    }
}

void peer_refuse(struct peer *p, unsigned reason, const char *why)
{
    const char *name = wire_reason_name(reason);
    bool greeted = p->intake.session.state >= SESSION_OPEN;
    if (p->closing)
        return;
    p->server->counters.refused++;
    log_warn("peer_closed",
             "run=%s rank=%u pid=%u reason=%s why=\"%s\" "
             "then=\"the connection is closed\"",
             *p->intake.run ? p->intake.run : "-", p->intake.rank, p->pid,
             name ? name : "?", why);
    send_refusal(p, greeted ? FRAME_NACK : FRAME_REFUSE, reason,
                 p->intake.welcome.reason ? p->intake.welcome.retry_ms
                                          : retry_of(reason, greeted),
                 why);
    peer_close(p);
}

static void peer_malformed(struct peer *p, const struct verdict *v)
{
    p->server->counters.malformed++;
    peer_refuse(p, v->reason, v->why);
}

/* ---- life of a connection ---- */

static void peer_free(struct peer *p)
{
    if (!p->closed || p->intake.link || p->intake.under_way || p->linger_ns)
        return;
    if (p->link) {
        *p->link = p->next;
        if (p->next)
            p->next->link = p->link;
    }
    intake_fini(&p->intake);
    free(p);
}

static void on_closed(uv_handle_t *handle)
{
    struct peer *p = handle->data;
    p->closed = true;
    p->server->open_handles--;
    peer_free(p);
}

/* The socket goes at once. Of a stream that did not say bye it is watched
 * for a moment whether its process is gone, and only then it leaves. */
void peer_close(struct peer *p)
{
    if (p->closing)
        return;
    p->closing = true;
    p->reading = false;
    intake_drop(&p->intake, p->body);
    p->body = NULL;
    p->server->counters.connections--;
    if (p->intake.link && p->intake.leave) {
        if (p->intake.session.state == SESSION_OPEN &&
            !p->intake.welcome.reason && !p->server->stopped)
            p->linger_ns = server_now_ns(p->server);
        else
            intake_leave(&p->intake, STORE_LEFT);
    }
    uv_close((uv_handle_t *)&p->pipe, on_closed);
}

static void linger_end(struct peer *p, enum store_end end)
{
    p->linger_ns = 0;
    intake_leave(&p->intake, end);
}

static void linger_look(struct peer *p, uint64_t now)
{
    if (!process_alive(&p->intake.owner)) {
        linger_end(p, *p->intake.journal ? STORE_LEFT : STORE_DEAD);
        p->server->o.orphan(p->server->o.context);
    } else if (now - p->linger_ns > LINGER_MS * MS) {
        linger_end(p, STORE_LEFT);
    }
}

static void on_evict(struct intake *i)
{
    struct peer *p = (struct peer *)i;
    peer_close(p);
    if (p->linger_ns)
        linger_end(p, STORE_LEFT);
}

static void on_gone(struct intake *i)
{
    struct peer *p = (struct peer *)i;
    p->server->o.orphan(p->server->o.context);
    peer_free(p);
}

static void on_moved(struct intake *i)
{
    struct peer *p = (struct peer *)i;
    uint32_t failed = atomic_load(&i->marks.failed);
    if (failed)
        peer_refuse(p, failed,
                    failed == REASON_QUOTA ? "too many different names"
                                           : "the store failed");
    else
        peer_ack(p);
}

static void on_ended(struct intake *i)
{
    struct peer *p = (struct peer *)i;
    peer_ack(p);
    peer_close(p);
}

static void on_welcomed(struct intake *i)
{
    struct peer *p = (struct peer *)i;
    uint8_t bytes[REPLY_BYTES];
    struct welcome w = {
        .version = WIRE_VERSION,
        .stream = i->welcome.stream,
        .max_len = FRAME_MAX_BYTES,
        .idle_ms = IDLE_MS,
        .run = slice_of(i->welcome.run),
    };
    size_t n;

    if (p->closing)
        return;
    if (i->welcome.reason) {
        i->session.state = SESSION_ASKED; /* it gets a REFUSE */
        peer_refuse(p, i->welcome.reason, i->welcome.why);
        return;
    }
    memcpy(w.store_id, i->welcome.store_id, sizeof w.store_id);
    /* not the marks of now: what comes next continues what is told here */
    w.durable_seq = i->told_durable;
    w.dict_n = i->told_dict;
    w.committed_seq = i->session.have;
    w.credit_bytes = hub_credit(i->hub);
    i->heard_ns = p->acked_ns = server_now_ns(p->server);
    log_info("hello",
             "run=%s attempt=%u rank=%u pid=%u uid=%u epoch=%016llx "
             "committed=%llu",
             i->run, i->attempt, i->rank, i->owner.pid, i->uid,
             (unsigned long long)i->session.epoch,
             (unsigned long long)w.committed_seq);
    if (welcome_put(&w, bytes + FRAME_HEADER_BYTES,
                    sizeof bytes - FRAME_HEADER_BYTES, &n) == 0)
        send_frame(p, FRAME_WELCOME, 0, bytes, n);
    p->hungry = true;
    peer_want_read(p);
}

static const struct intake_ops peer_ops = {
    .welcomed = on_welcomed,
    .moved = on_moved,
    .ended = on_ended,
    .evict = on_evict,
    .gone = on_gone,
};

struct peer *peer_new(struct server *s)
{
    struct peer *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    if (intake_init(&p->intake, s->o.hub, &peer_ops) != 0 ||
        uv_pipe_init(s->o.loop, &p->pipe, 0) != 0) {
        intake_fini(&p->intake);
        free(p);
        return NULL;
    }
    return p;
}

/* ---- receiving ---- */

static enum store_end end_of(const struct work *work)
{
    const uint8_t *payload = (const uint8_t *)work->payload;
    return work->frame.type == FRAME_BYE && work->frame.len &&
                   payload[0] == BYE_DEAD
               ? STORE_DEAD
               : STORE_ENDED;
}

static void on_frame(struct peer *p)
{
    struct work *work = p->body;
    struct verdict v;
    uint8_t bytes[REPLY_BYTES];

    p->body = NULL;
    p->head_n = 0;
    p->body_n = 0;
    p->frame_ns = 0;
    p->server->counters.frames++;
    POINT(frame_read);
    v = intake_frame(&p->intake, work, end_of(work), server_now_ns(p->server));
    if (v.act & DO_CLOSE)
        peer_malformed(p, &v);
    if (v.act & DO_ACK)
        peer_ack(p);
    if ((v.act & DO_PONG) && peer_reads(p))
        send_frame(p, FRAME_PONG, 0, bytes, 0);
    if (p->intake.session.state == SESSION_ASKED ||
        p->intake.session.state == SESSION_LEAVING)
        p->hungry = false; /* nothing may come before the answer */
}

/* Takes memory for the payload, or waits for it. */
static void take_room(struct peer *p)
{
    bool oom;
    p->body = intake_room(&p->intake, &p->frame, &oom);
    p->waits_room = !p->body;
    if (oom) {
        peer_refuse(p, REASON_BUSY, "out of memory");
        return;
    }
    if (!p->body) {
        p->frame_ns = 0; /* we are the ones who wait */
        return;
    }
    if (p->frame.len == 0)
        on_frame(p);
}

static void handle_header(struct peer *p)
{
    int rc = frame_get(p->head, &p->frame);
    struct session *session = &p->intake.session;
    struct verdict v = rc ? session_bad_header(session, rc, p->head)
                          : session_head(session, &p->frame);
    if (v.act & DO_CLOSE)
        peer_malformed(p, &v);
    else
        take_room(p);
}

/* Another protocol shows in its first bytes; there is no need to wait for
 * forty of them. */
static bool magic_so_far(const struct peer *p)
{
    static const uint8_t magic[4] = {'T', 'R', 'C', '1'};
    uint32_t n = p->head_n < 4 ? p->head_n : 4;
    return memcmp(p->head, magic, n) == 0;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct peer *p = handle->data;
    uint32_t left;
    (void)suggested;
    if (p->body) {
        left = p->frame.len - p->body_n;
        if (left > TURN_BYTES)
            left = TURN_BYTES;
        *buf = uv_buf_init((char *)p->body->payload + p->body_n, left);
    } else {
        *buf = uv_buf_init((char *)p->head + p->head_n,
                           FRAME_HEADER_BYTES - p->head_n);
    }
}

static void received(struct peer *p, uint32_t n)
{
    if (!p->frame_ns)
        p->frame_ns = server_now_ns(p->server);
    p->turn_bytes += n;
    p->server->counters.bytes += n;
    if (p->body) {
        p->body_n += n;
        if (p->body_n == p->frame.len)
            on_frame(p);
        return;
    }
    p->head_n += n;
    if (!magic_so_far(p)) {
        struct verdict v =
            session_bad_header(&p->intake.session, TRD_ECORRUPT, p->head);
        peer_malformed(p, &v);
    } else if (p->head_n == FRAME_HEADER_BYTES) {
        handle_header(p);
    }
}

static void on_turn(uv_idle_t *idle);

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct peer *p = stream->data;
    (void)buf;
    if (n < 0) {
        peer_close(p);
        return;
    }
    if (n > 0)
        received(p, (uint32_t)n);
    if (p->turn_bytes >= TURN_BYTES && !p->tired) {
        p->tired = true;
        uv_idle_start(&p->server->turn, on_turn);
    }
    peer_want_read(p);
}

void peer_want_read(struct peer *p)
{
    bool want = p->hungry && !p->tired && !p->waits_room && !p->closing &&
                !p->server->stopped;
    if (want == p->reading || p->closing)
        return;
    p->reading = want;
    if (!want)
        uv_read_stop((uv_stream_t *)&p->pipe);
    else if (uv_read_start((uv_stream_t *)&p->pipe, on_alloc, on_read) != 0)
        peer_close(p);
}

void peer_begin(struct peer *p)
{
    p->hungry = true;
    peer_want_read(p);
}

/* A loop turn later everybody may read again. */
static void on_turn(uv_idle_t *idle)
{
    struct server *s = idle->data;
    uv_idle_stop(idle);
    for (struct peer *p = s->peers; p; p = p->next) {
        p->turn_bytes = 0;
        p->tired = false;
        peer_want_read(p);
    }
}

/* ---- time ---- */

void peer_tick(struct peer *p, uint64_t now)
{
    enum session_state state = p->intake.session.state;

    if (p->linger_ns)
        linger_look(p, now);
    if (p->closing)
        return;
    if (state == SESSION_NEW && now - p->born_ns > HELLO_MS * MS) {
        peer_refuse(p, REASON_MALFORMED, "no hello in time");
        return;
    }
    if (p->frame_ns && p->reading && now - p->frame_ns > FRAME_MS * MS) {
        peer_refuse(p, REASON_MALFORMED, "a frame that does not end");
        return;
    }
    if (state != SESSION_OPEN)
        return;
    if (p->reading && now - p->intake.heard_ns > IDLE_MS * MS * IDLE_MISSES) {
        peer_refuse(p, REASON_MALFORMED, "silent for too long");
        return;
    }
    if (p->intake.session.have > atomic_load(&p->intake.marks.durable) &&
        now - p->acked_ns >= ACK_REPEAT_MS * MS)
        peer_ack(p);
}

bool peer_feed(struct peer *p)
{
    if (!p->waits_room || p->closing)
        return true;
    take_room(p);
    if (p->waits_room)
        return false;
    peer_want_read(p);
    return true;
}

void peer_forget(struct peer *p)
{
    if (p->linger_ns)
        linger_end(p, STORE_LEFT);
}

void peer_dismiss(struct peer *p)
{
    bool greeted = p->intake.session.state >= SESSION_OPEN;
    if (p->closing)
        return;
    if (greeted)
        peer_ack(p);
    send_refusal(p, greeted ? FRAME_NACK : FRAME_REFUSE, REASON_STOPPING, 1000,
                 "tracerd stops");
    peer_close(p);
}
