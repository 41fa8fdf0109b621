/* The import's side of the ingest socket.
 *
 * Invariants: a DATA frame follows the DICT frames it needs; what is sent
 * and not committed stays below the daemon's credit; every acknowledgement
 * that has arrived is read before a frame is sent, so neither side waits for
 * the other's full buffer. */
#include "tools/ingest.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto/crc32c.h"
#include "proto/place.h"
#include "tools/source.h"

enum {
    SENT_MAX = 256,           /* frames that are not committed */
    WINDOW_MAX = 4 << 20,     /* bytes of them, whatever the credit */
    PATIENCE_MS = 60000,      /* without any progress */
    BUSY_TRIES = 20,
    BUSY_MS = 500
};

volatile sig_atomic_t ingest_stop;

struct batch_buffer {
    uint8_t bytes[FRAME_MAX_BYTES];
    size_t len;      /* with BATCH_BYTES; 0: empty */
    uint32_t n;
    uint64_t first;  /* seq or id */
};

struct sent {
    uint64_t seq;    /* last one of the frame */
    uint64_t bytes;  /* sent in all when it was */
};

struct ingest {
    int fd;
    uint64_t epoch;
    struct welcome welcome;
    char run[TRD_MAX_RUN + 1];
    struct ack ack;
    struct batch_buffer words, records;
    struct sent sent[SENT_MAX];
    unsigned sent_at, sent_n;
    uint64_t bytes, bytes_committed;
    uint8_t in[FRAME_CONTROL_MAX_BYTES];
};

static uint64_t now_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int lost_daemon(void)
{
    if (ingest_stop)
        return ctl_fail(CTL_FAILED, "stopped by a signal");
    return ctl_fail(CTL_FAILED, "the daemon closed the connection");
}

static int send_bytes(struct ingest *in, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    while (n > 0) {
        ssize_t got = send(in->fd, p, n, MSG_NOSIGNAL);
        if (got < 0 && errno == EINTR && !ingest_stop)
            continue;
        if (got <= 0)
            return -1;
        p += got;
        n -= (size_t)got;
    }
    return 0;
}

static int send_frame(struct ingest *in, enum frame_type type, uint64_t seq,
                      const void *payload, size_t n)
{
    uint8_t head[FRAME_HEADER_BYTES];
    struct frame f = {.version = WIRE_VERSION,
                      .type = type,
                      .len = (uint32_t)n,
                      .crc = crc32c(0, payload, n),
                      .epoch = in->epoch,
                      .seq = seq};
    frame_put(head, &f);
    if (send_bytes(in, head, sizeof head) || send_bytes(in, payload, n))
        return -1;
    return 0;
}

static int read_bytes(struct ingest *in, void *out, size_t n)
{
    uint8_t *p = out;
    while (n > 0) {
        ssize_t got = recv(in->fd, p, n, 0);
        if (got < 0 && errno == EINTR && !ingest_stop)
            continue;
        if (got <= 0)
            return lost_daemon();
        p += got;
        n -= (size_t)got;
    }
    return 0;
}

static int read_frame(struct ingest *in, struct frame *f)
{
    uint8_t head[FRAME_HEADER_BYTES];
    int code = read_bytes(in, head, sizeof head);
    if (code)
        return code;
    if (frame_get(head, f) || f->len > sizeof in->in)
        return ctl_fail(CTL_FAILED, "the daemon's answer is damaged");
    code = read_bytes(in, in->in, f->len);
    if (code == 0 && frame_check(f, in->in))
        return ctl_fail(CTL_FAILED, "the daemon's answer is damaged");
    return code;
}

/* 1: something can be read; 0: not within ms. */
static int readable(const struct ingest *in, int ms)
{
    struct pollfd p = {.fd = in->fd, .events = POLLIN};
    return poll(&p, 1, ms) > 0;
}

/* Nothing more comes from the daemon. */
static int hung_up(const struct ingest *in)
{
    uint8_t byte;
    ssize_t got = recv(in->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

static int refused(const struct ingest *in, const struct frame *f)
{
    struct refusal r;
    if (refusal_get(in->in, f->len, &r))
        return ctl_fail(CTL_FAILED, "the daemon refuses");
    const char *name = wire_reason_name(r.reason);
    return ctl_fail(CTL_FAILED, "the daemon refuses (%s): %.*s",
                    name ? name : "unknown reason", (int)r.text.n,
                    r.text.text);
}

static void take_ack(struct ingest *in, const struct ack *a)
{
    in->ack = *a;
    while (in->sent_n && in->sent[in->sent_at].seq <= a->committed_seq) {
        in->bytes_committed = in->sent[in->sent_at].bytes;
        in->sent_at = (in->sent_at + 1) % SENT_MAX;
        in->sent_n--;
    }
}

/* Reads one frame of the daemon's. */
static int take_frame(struct ingest *in)
{
    struct frame f;
    struct ack a;
    int code = read_frame(in, &f);
    if (code)
        return code;
    if (f.type == FRAME_NACK || f.type == FRAME_REFUSE)
        return refused(in, &f);
    if (f.type == FRAME_ACK && ack_get(in->in, f.len, &a) == 0)
        take_ack(in, &a);
    return 0;
}

/* Reads what has come; waits for the first frame up to IDLE_MS, and pings
 * when none came so that the daemon does not take us for dead. */
static int take_frames(struct ingest *in, int wait)
{
    int code = 0;
    if (wait && !readable(in, IDLE_MS) && !ingest_stop) {
        uint8_t payload[16];
        size_t n = 0;
        struct ping p = {now_ns(CLOCK_MONOTONIC), now_ns(CLOCK_REALTIME)};
        if (ping_put(&p, payload, sizeof payload, &n) ||
            send_frame(in, FRAME_PING, 0, payload, n))
            return lost_daemon();
    }
    if (ingest_stop)
        return lost_daemon();
    while (code == 0 && readable(in, 0))
        code = take_frame(in);
    return code;
}

/* The daemon's last words are more telling than a broken pipe. */
static int send_failed(struct ingest *in)
{
    while (readable(in, 100)) {
        int code = take_frame(in);
        if (code)
            return code;
    }
    return lost_daemon();
}

/* Waits until a frame of n bytes has room in the window. */
static int wait_room(struct ingest *in, size_t n)
{
    uint64_t last = in->ack.committed_seq;
    uint64_t until = now_ns(CLOCK_MONOTONIC) + PATIENCE_MS * 1000000ull;
    int code = take_frames(in, 0);
    while (code == 0) {
        uint64_t window = in->ack.credit_bytes < WINDOW_MAX
                              ? in->ack.credit_bytes
                              : WINDOW_MAX;
        uint64_t open = in->bytes - in->bytes_committed;
        if (in->sent_n < SENT_MAX &&
            (open + n <= window || (in->sent_n == 0 && window > 0)))
            return 0;
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        if (in->ack.committed_seq != last) {
            last = in->ack.committed_seq;
            until = now + PATIENCE_MS * 1000000ull;
        }
        if (now > until)
            return ctl_fail(CTL_FAILED,
                            "the daemon takes nothing more: is its disk "
                            "full?");
        code = take_frames(in, 1);
    }
    return code;
}

static int flush_buffer(struct ingest *in, struct batch_buffer *b,
                        enum frame_type type)
{
    struct batch head = {b->n, type == FRAME_DICT ? (uint32_t)b->first : 0};
    if (b->len == 0)
        return 0;
    batch_put(b->bytes, &head);
    int code = wait_room(in, b->len);
    if (code)
        return code;
    if (send_frame(in, type, type == FRAME_DICT ? 0 : b->first, b->bytes,
                   b->len))
        return send_failed(in);
    in->bytes += b->len;
    if (type == FRAME_DATA) {
        unsigned at = (in->sent_at + in->sent_n++) % SENT_MAX;
        in->sent[at].seq = b->first + b->n - 1;
        in->sent[at].bytes = in->bytes;
    }
    b->len = 0;
    b->n = 0;
    return 0;
}

static int flush_records(struct ingest *in)
{
    int code = flush_buffer(in, &in->words, FRAME_DICT);
    return code ? code : flush_buffer(in, &in->records, FRAME_DATA);
}

/* Appends an entry; *full when it has to wait for a flush. */
static int append(const struct ingest *in, struct batch_buffer *b,
                  uint64_t number, const uint8_t *entry, size_t len)
{
    size_t at = b->len ? b->len : BATCH_BYTES;
    size_t span = entry_span(len);
    if (at + span > in->welcome.max_len)
        return 0;
    memcpy(b->bytes + at, entry, len);
    memset(b->bytes + at + len, 0, span - len);
    if (b->n++ == 0)
        b->first = number;
    b->len = at + span;
    return 1;
}

int ingest_word(struct ingest *in, uint32_t id, const uint8_t *entry,
                size_t len)
{
    if (id <= in->welcome.dict_n)
        return 0;
    if (append(in, &in->words, id, entry, len))
        return 0;
    int code = flush_buffer(in, &in->words, FRAME_DICT);
    if (code == 0 && !append(in, &in->words, id, entry, len))
        code = ctl_fail(CTL_BAD, "a name is longer than a frame");
    return code;
}

int ingest_record(struct ingest *in, uint64_t seq, const uint8_t *entry,
                  size_t len)
{
    if (ingest_stop)
        return lost_daemon();
    if (seq <= in->welcome.committed_seq)
        return 0;
    if (append(in, &in->records, seq, entry, len))
        return 0;
    int code = flush_records(in);
    if (code == 0 && !append(in, &in->records, seq, entry, len))
        code = ctl_fail(CTL_BAD, "a record is longer than a frame");
    return code;
}

int ingest_gap(struct ingest *in, uint64_t first, uint64_t last,
               uint32_t cause)
{
    uint8_t payload[64];
    size_t n = 0;
    if (last <= in->welcome.committed_seq)
        return 0;
    if (first <= in->welcome.committed_seq)
        first = in->welcome.committed_seq + 1;
    struct gap g = {first, last, 0, cause};
    int code = flush_records(in);
    if (code == 0)
        code = wait_room(in, sizeof payload);
    if (code)
        return code;
    if (gap_put(&g, payload, sizeof payload, &n) ||
        send_frame(in, FRAME_GAP, first, payload, n))
        return send_failed(in);
    in->bytes += n;
    unsigned at = (in->sent_at + in->sent_n++) % SENT_MAX;
    in->sent[at].seq = last;
    in->sent[at].bytes = in->bytes;
    return 0;
}

int ingest_finish(struct ingest *in, uint64_t last_seq, int dead)
{
    static const uint8_t how = BYE_DEAD;
    uint64_t until = now_ns(CLOCK_MONOTONIC) + PATIENCE_MS * 1000000ull;
    uint64_t last = in->ack.durable_seq;
    int code = flush_records(in);
    if (code)
        return code;
    if (last_seq < in->welcome.committed_seq)
        last_seq = in->welcome.committed_seq;
    if (send_frame(in, FRAME_BYE, last_seq, &how, dead ? sizeof how : 0))
        return send_failed(in);
    /* it hangs up when how the stream ended is stored too */
    for (;;) {
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        if (in->ack.durable_seq != last) {
            last = in->ack.durable_seq;
            until = now + PATIENCE_MS * 1000000ull;
        }
        if (now > until)
            return ctl_fail(CTL_FAILED, "the daemon does not confirm; import "
                                        "again to be sure");
        if (ingest_stop)
            return lost_daemon();
        if (!readable(in, IDLE_MS))
            continue;
        if (hung_up(in))
            break;
        code = take_frame(in);
        if (code)
            return code;
    }
    return in->ack.durable_seq < last_seq ? lost_daemon() : 0;
}

/* One try. *again: the daemon asks to come back after so many ms; not set,
 * but told, on the last one. */
static int say_hello(struct ingest *in, const struct hello *h, int last_try,
                     int *again)
{
    size_t n = 0;
    struct frame f;
    struct refusal r;
    uint8_t *payload = malloc(FRAME_CONTROL_MAX_BYTES);
    int code;
    *again = 0;
    if (!payload)
        return ctl_fail(CTL_FAILED, "out of memory");
    if (hello_put(h, payload, FRAME_CONTROL_MAX_BYTES, &n)) {
        free(payload);
        return ctl_fail(CTL_BAD, "the hello is too long");
    }
    code = send_frame(in, FRAME_HELLO, 0, payload, n);
    free(payload);
    if (code)
        return send_failed(in);
    code = read_frame(in, &f);
    if (code)
        return code;
    if (!last_try && f.type == FRAME_REFUSE &&
        refusal_get(in->in, f.len, &r) == 0 && r.retry_ms) {
        *again = r.retry_ms < BUSY_MS ? (int)r.retry_ms : BUSY_MS;
        return CTL_FAILED;
    }
    if (f.type != FRAME_WELCOME)
        return refused(in, &f);
    if (welcome_get(in->in, f.len, &in->welcome))
        return ctl_fail(CTL_FAILED, "the daemon's welcome is damaged");
    memcpy(in->run, in->welcome.run.text, in->welcome.run.n);
    in->run[in->welcome.run.n] = '\0';
    in->welcome.run = slice_of(in->run);
    in->ack.committed_seq = in->welcome.committed_seq;
    in->ack.durable_seq = in->welcome.durable_seq;
    in->ack.credit_bytes = in->welcome.credit_bytes;
    return 0;
}

/* The name belongs to another job: the daemon has given a longer one. */
static void tell_name(const struct hello *h, const struct ingest *in)
{
    if (h->run.n != strlen(in->run) ||
        memcmp(h->run.text, in->run, h->run.n) != 0)
        ctl_fail(0,
                 "the name '%.*s' is taken by another job's run: this is "
                 "stored as run '%s'",
                 (int)h->run.n, h->run.text, in->run);
}

int ingest_open(const char *dir, const struct hello *h, uint64_t epoch,
                struct ingest **out)
{
    struct ingest *in = calloc(1, sizeof *in);
    int code = CTL_FAILED, again = 1;
    if (!in)
        return ctl_fail(CTL_FAILED, "out of memory");
    in->fd = -1;
    for (int i = 0; i < BUSY_TRIES && again && !ingest_stop; i++) {
        in->epoch = epoch;
        in->fd = source_connect(dir, PLACE_INGEST);
        if (in->fd < 0)
            break;
        code = say_hello(in, h, i + 1 == BUSY_TRIES, &again);
        if (code == 0) {
            tell_name(h, in);
            *out = in;
            return 0;
        }
        close(in->fd);
        in->fd = -1;
        if (again) {
            struct timespec t = {0, again * 1000000L};
            nanosleep(&t, NULL);
        }
    }
    ingest_close(in);
    return code ? code : CTL_FAILED;
}

const struct welcome *ingest_welcome(const struct ingest *in)
{
    return &in->welcome;
}

void ingest_close(struct ingest *in)
{
    if (!in)
        return;
    if (in->fd >= 0)
        close(in->fd);
    free(in);
}
