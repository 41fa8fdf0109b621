/* The sender thread: connect, say hello, send dictionary and records, read
 * acknowledgements, free the journal, back off. [sender]
 *
 * - It never blocks in a send: one frame is on its way at a time, and while
 *   the socket is full acknowledgements are still read.
 * - After a hello it starts again behind what the daemon has committed.
 * - Space is freed only when durable, the window moves when committed.
 * - Records that were moved to the spool (spill.c) end where the ring begins;
 *   they are sent first.
 * - Before each use a descriptor is compared with the one we opened: the
 *   application may have closed it and got the number for something else. */
#include "client/sender.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/spill.h"
#include "client/sys.h"
#include "proto/crc32c.h"
#include "proto/place.h"
#include "proto/point.h"

#define MS UINT64_C(1000000)

enum {
    BACKOFF_FIRST_MS = 5,
    BACKOFF_MAX_MS = 2000,
    REFUSED_MS = 60000,  /* "do not try again" still means: now and then */
    WELCOME_MS = 5000,
    BUSY_POLL_MS = 5,    /* records are flowing */
    QUIET_POLL_MS = 50,
    SPOOL_TRIES = 3,     /* to read it, before its records are lost */
    NICE = 10
};

static uint64_t now(void)
{
    return trd__sys.mono_ns();
}

/* ---- connection ---- */

/* The record before the oldest one that is kept. */
static uint64_t kept_after(const struct trd__sender *s)
{
    return s->spool.last_seq ? s->spool.first_seq - 1
                             : s->journal->state.durable_seq;
}

/* Starts again with the oldest record. */
static void forget_window(struct trd__sender *s)
{
    s->sent_at = s->sent_n = 0;
    s->unacked_bytes = 0;
    s->out_n = s->tail_n = s->done = 0;
    s->in_n = 0;
    s->said_bye = 0;
    s->pos = s->journal->state.durable_pos;
    s->seq = kept_after(s);
}

/* A descriptor that is no longer ours is not closed. */
static int is_ours(const struct trd__sender *s)
{
    return trd__is_still(s->fd, s->dev, s->ino);
}

/* The next try comes after a time that doubles, and not before wait_ms. */
static void disconnect(struct trd__sender *s, int error, uint32_t wait_ms)
{
    if (s->fd >= 0 && is_ours(s))
        trd__sys.close(s->fd);
    s->fd = -1;
    s->welcomed = 0;
    atomic_store(&s->shared->connected, 0);
    if (error)
        atomic_store(&s->shared->last_error, error);
    s->backoff_ms = s->backoff_ms ? 2 * s->backoff_ms : BACKOFF_FIRST_MS;
    if (s->backoff_ms > BACKOFF_MAX_MS)
        s->backoff_ms = BACKOFF_MAX_MS;
    if (wait_ms < s->backoff_ms)
        wait_ms = s->backoff_ms;
    /* a quarter of jitter, so that many ranks do not come back at once */
    uint64_t at = now();
    s->next_try_ns = at + wait_ms * MS - at % (wait_ms * MS / 4 + 1);
    forget_window(s);
}

static int peer_is_us(int fd)
{
    struct ucred peer;
    socklen_t n = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n))
        return 0;
    return peer.uid == geteuid() || peer.uid == 0;
}

static void queue(struct trd__sender *s, uint16_t type, uint64_t seq,
                  size_t head_n, const uint8_t *tail, size_t tail_n)
{
    uint8_t *head = s->out + FRAME_HEADER_BYTES;
    struct frame f = {.version = WIRE_VERSION,
                      .type = type,
                      .len = (uint32_t)(head_n + tail_n),
                      .epoch = s->journal->head.epoch,
                      .seq = seq};
    f.crc = crc32c(crc32c(0, head, head_n), tail, tail_n);
    frame_put(s->out, &f);
    s->out_n = FRAME_HEADER_BYTES + head_n;
    s->tail = tail;
    s->tail_n = tail_n;
    s->done = 0;
}

static void queue_hello(struct trd__sender *s)
{
    size_t n = 0;
    s->hello.first_seq = kept_after(s) + 1;
    s->hello.last_seq = trd__journal_last(s->journal);
    s->hello.dict_n = atomic_load(&s->journal->dict_n);
    if (!hello_put(&s->hello, s->out + FRAME_HEADER_BYTES,
                   sizeof s->out - FRAME_HEADER_BYTES, &n))
        queue(s, FRAME_HELLO, 0, n, NULL, 0);
}

static int try_connect(struct trd__sender *s)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (!s->dir[0]) /* none that is ours alone */
        return TRD_EACCES;
    if (place_socket(s->dir, PLACE_INGEST, to.sun_path, sizeof to.sun_path))
        return TRD_EPATH;
    int fd = trd__sys.socket();
    if (fd < 0)
        return TRD_EIO;
    fd = trd__sys.move_high(fd);
    if (trd__sys.connect(fd, (struct sockaddr *)&to, sizeof to)) {
        int nobody = errno == ENOENT || errno == ECONNREFUSED;
        trd__sys.close(fd);
        return nobody ? TRD_ENODAEMON : TRD_EIO;
    }
    if (trd__remember(fd, &s->dev, &s->ino)) {
        trd__sys.close(fd);
        return TRD_EIO;
    }
    if (!peer_is_us(fd)) {
        trd__sys.close(fd);
        return TRD_EACCES;
    }
    s->fd = fd;
    s->born_ns = s->heard_ns = s->spoke_ns = now();
    forget_window(s);
    queue_hello(s);
    POINT(connected);
    return 0;
}

/* ---- what the daemon says ---- */

/* Moves the window over what is committed, frees what is durable. */
static void advance(struct trd__sender *s, uint64_t committed,
                    uint64_t durable)
{
    struct journal_state *state = &s->journal->state;
    uint64_t freed = state->durable_pos, last = state->durable_seq;
    if (durable > s->seq)
        durable = s->seq; /* no more than was said */
    for (uint32_t i = 0; i < s->sent_n; i++) {
        struct trd__sent *b = &s->sent[(s->sent_at + i) % SENDER_WINDOW];
        if (b->last_seq > committed)
            break;
        if (!b->committed)
            s->unacked_bytes -= b->bytes;
        b->committed = 1;
    }
    while (s->sent_n && s->sent[s->sent_at].last_seq <= durable) {
        if (s->sent[s->sent_at].last_seq > last) { /* not in the spool */
            freed = s->sent[s->sent_at].end_pos;
            last = s->sent[s->sent_at].last_seq;
        }
        s->sent_at = (s->sent_at + 1) % SENDER_WINDOW;
        s->sent_n--;
    }
    if (durable > s->durable_seq)
        s->durable_seq = durable;
    trd__spill_free(s);
    if (committed > state->committed_seq)
        state->committed_seq = committed;
    state->sent_seq = s->seq;
    for (unsigned i = 0; i < TRD_CAUSE_COUNT; i++)
        state->lost[i] = atomic_load(&s->shared->lost[i]);
    if (freed != state->durable_pos) {
        state->durable_pos = freed;
        state->durable_seq = last;
        trd__journal_publish(s->journal);
        s->calm_ns = now();
    }
    atomic_store(&s->shared->committed_seq, state->committed_seq);
    atomic_store(&s->shared->durable_seq, s->durable_seq);
}

static void remember(struct trd__sender *s, const struct trd__run *run,
                     uint64_t last_seq, int committed)
{
    struct trd__sent *b =
        &s->sent[(s->sent_at + s->sent_n++) % SENDER_WINDOW];
    b->last_seq = last_seq;
    b->end_pos = run->end_pos;
    b->bytes = (uint32_t)run->n;
    b->committed = committed;
    if (!committed)
        s->unacked_bytes += b->bytes;
    s->pos = run->end_pos;
    s->seq = last_seq;
}

/* What a daemon has already is not sent again. The batches that skip over
 * it end exactly at the high-water mark. */
static void skip_committed(struct trd__sender *s, uint64_t committed)
{
    struct trd__run run;
    uint64_t spooled =
        committed < s->spool.last_seq ? committed : s->spool.last_seq;
    if (s->seq < spooled)
        s->seq = spooled;
    while (s->seq < committed && s->sent_n < SENDER_WINDOW) {
        size_t n = 0, records = 0;
        uint64_t pos = s->pos;
        trd__journal_peek(s->journal, &pos, JOURNAL_SEGMENT, &run);
        if (!run.records)
            break;
        while (records < run.records && s->seq + records < committed) {
            struct reader r = reader_of(run.bytes + n, 4);
            n += entry_span(get_u32(&r) & 0xffffff);
            records++;
        }
        run.end_pos = pos + n;
        run.n = n;
        remember(s, &run, s->seq + records, 1);
    }
}

static int on_welcome(struct trd__sender *s, const uint8_t *payload, size_t n)
{
    struct welcome w;
    int failed = welcome_get(payload, n, &w);
    if (failed)
        return failed;
    if (w.committed_seq > trd__journal_last(s->journal))
        return TRD_ECORRUPT; /* it knows more of us than we do */
    s->welcomed = 1;
    s->backoff_ms = 0;
    s->credit_bytes = w.credit_bytes;
    s->max_len = w.max_len;
    s->words_sent = w.dict_n;
    if (s->words_sent > atomic_load(&s->journal->dict_n))
        return TRD_ECORRUPT;
    pthread_mutex_lock(&s->name_lock);
    memcpy(s->run, w.run.text, w.run.n);
    s->run[w.run.n] = 0;
    pthread_mutex_unlock(&s->name_lock);
    atomic_store(&s->shared->connected, 1);
    atomic_store(&s->shared->last_error, 0);
    atomic_fetch_add(&s->shared->connects, 1);
    uint64_t kept = kept_after(s);
    if (w.committed_seq < kept) {
        /* its file was replaced: these are gone, and it must know */
        struct gap gap = {w.committed_seq + 1, kept, 0, TRD_LOST_STORE};
        size_t gap_n = 0;
        atomic_fetch_add(&s->shared->lost[TRD_LOST_STORE],
                         gap.last - gap.first + 1);
        if (!gap_put(&gap, s->out + FRAME_HEADER_BYTES, 64, &gap_n))
            queue(s, FRAME_GAP, gap.first, gap_n, NULL, 0);
    }
    skip_committed(s, w.committed_seq);
    advance(s, w.committed_seq, w.durable_seq);
    return 0;
}

/* A REFUSE without a time means: not this hello. A NACK ends this connection
 * only; the next hello may do better. */
static int on_refusal(struct trd__sender *s, const struct frame *f,
                      const uint8_t *payload)
{
    struct refusal r;
    int failed = refusal_get(payload, f->len, &r);
    if (failed)
        return failed;
    int error = r.reason == REASON_VERSION  ? TRD_EVERSION
                : r.reason == REASON_BUSY   ? TRD_EBUSY
                : r.reason == REASON_DENIED ? TRD_EACCES
                                            : TRD_EREFUSED;
    uint32_t wait_ms = r.retry_ms                ? r.retry_ms
                       : f->type == FRAME_REFUSE ? REFUSED_MS
                                                 : 0;
    disconnect(s, error, wait_ms < REFUSED_MS ? wait_ms : REFUSED_MS);
    return 0;
}

static int on_frame(struct trd__sender *s, const struct frame *f,
                    const uint8_t *payload)
{
    struct ack a;
    int failed;
    switch (f->type) {
    case FRAME_WELCOME:
        return s->welcomed ? TRD_ECORRUPT : on_welcome(s, payload, f->len);
    case FRAME_ACK:
        failed = ack_get(payload, f->len, &a);
        if (failed || !s->welcomed)
            return TRD_ECORRUPT;
        s->credit_bytes = a.credit_bytes;
        POINT(acknowledged);
        advance(s, a.committed_seq, a.durable_seq);
        return 0;
    case FRAME_REFUSE:
    case FRAME_NACK:
        return on_refusal(s, f, payload);
    case FRAME_PONG:
        return 0;
    default:
        return f->flags & FRAME_OPTIONAL ? 0 : TRD_ECORRUPT;
    }
}

/* Reads what is there; closes on anything malformed. */
static void listen_to(struct trd__sender *s)
{
    while (s->fd >= 0) {
        if (!is_ours(s)) {
            disconnect(s, TRD_EIO, 0);
            return;
        }
        ssize_t got =
            trd__sys.recv(s->fd, s->in + s->in_n, sizeof s->in - s->in_n);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            disconnect(s, TRD_EIO, 0);
            return;
        }
        s->in_n += (size_t)got;
        s->heard_ns = now();
        size_t at = 0;
        while (s->fd >= 0 && s->in_n - at >= FRAME_HEADER_BYTES) {
            struct frame f;
            int failed = frame_get(s->in + at, &f);
            if (!failed && f.len > sizeof s->in - FRAME_HEADER_BYTES)
                failed = TRD_ELIMIT;
            if (!failed && s->in_n - at < FRAME_HEADER_BYTES + f.len)
                break;
            if (!failed)
                failed = frame_check(&f, s->in + at + FRAME_HEADER_BYTES);
            if (!failed && f.epoch != s->journal->head.epoch)
                failed = TRD_ECORRUPT;
            if (!failed)
                failed = on_frame(s, &f, s->in + at + FRAME_HEADER_BYTES);
            if (failed) {
                disconnect(s, failed, 0);
                return;
            }
            at += FRAME_HEADER_BYTES + f.len;
        }
        if (s->fd < 0) /* a refusal closed it and emptied the buffer */
            return;
        memmove(s->in, s->in + at, s->in_n - at);
        s->in_n -= at;
    }
}

/* ---- GPUs ---- */

/* Results of GPUs that are ready become records. */
static void look_at_devices(struct trd__sender *s)
{
    struct trd__devices *d = atomic_load(&s->devices);
    uint64_t dropped = d ? trd__devices_poll(d) : 0;
    if (dropped)
        trd__lost(s->shared, TRD_LOST_DEVICE, dropped);
}

/* Results that will come by themselves. */
static int awaits_devices(struct trd__sender *s)
{
    struct trd__devices *d = atomic_load(&s->devices);
    return d && trd__devices_pending(d);
}

/* ---- what we say ---- */

/* 1: the frame is out, 0: the socket is full, -1: the connection is gone. */
static int push(struct trd__sender *s)
{
    while (s->done < s->out_n + s->tail_n) {
        struct iovec part[2];
        size_t n = 0;
        if (s->done < s->out_n)
            part[n++] = (struct iovec){s->out + s->done, s->out_n - s->done};
        size_t skip = s->done > s->out_n ? s->done - s->out_n : 0;
        if (s->tail_n > skip)
            part[n++] = (struct iovec){(void *)(uintptr_t)(s->tail + skip),
                                       s->tail_n - skip};
        if (!is_ours(s)) {
            disconnect(s, TRD_EIO, 0);
            return -1;
        }
        POINT(sending);
        ssize_t sent = trd__sys.send(s->fd, part, n);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN)
            return 0;
        if (sent <= 0) {
            disconnect(s, TRD_EIO, 0);
            return -1;
        }
        POINT(sent);
        s->done += (size_t)sent;
        s->spoke_ns = now();
    }
    s->out_n = s->tail_n = s->done = 0;
    return 1;
}

static void queue_batch(struct trd__sender *s, uint16_t type, uint64_t seq,
                        uint32_t first, const struct trd__run *run)
{
    struct batch b = {run->records, first};
    batch_put(s->out + FRAME_HEADER_BYTES, &b);
    queue(s, type, seq, BATCH_BYTES, run->bytes, run->n);
}

static int queue_words(struct trd__sender *s)
{
    struct trd__run run;
    trd__journal_words(s->journal, s->words_sent, s->max_len - BATCH_BYTES,
                       &run);
    if (!run.records)
        return 0;
    queue_batch(s, FRAME_DICT, 0, s->words_sent + 1, &run);
    s->words_sent += run.records;
    return 1;
}

/* Bytes of records that may go out now. */
static size_t allowance(const struct trd__sender *s)
{
    size_t most = s->max_len - BATCH_BYTES;
    size_t credit = s->credit_bytes < SENDER_CREDIT_MAX ? s->credit_bytes
                                                        : SENDER_CREDIT_MAX;
    if (s->sent_n == SENDER_WINDOW || !credit)
        return 0;
    if (!s->unacked_bytes)
        return most;
    credit = credit > s->unacked_bytes ? credit - s->unacked_bytes : 0;
    return credit < most ? credit : most;
}

/* Records of the spool that cannot be read any more. */
static int queue_unread(struct trd__sender *s, uint64_t last,
                        enum trd_cause cause)
{
    struct gap gap = {s->seq + 1, last, 0, cause};
    size_t n = 0;
    if (gap_put(&gap, s->out + FRAME_HEADER_BYTES, 64, &n))
        return 0;
    atomic_fetch_add(&s->shared->lost[cause], last - s->seq);
    queue(s, FRAME_GAP, gap.first, n, NULL, 0);
    s->seq = last;
    return 1;
}

/* The next records are in the spool. A file that cannot be read now is tried
 * again with the next connection, but not for ever. */
static int queue_spooled(struct trd__sender *s, size_t max)
{
    struct trd__run run;
    uint64_t lost = 0;
    if (!max)
        return 0;
    if (trd__spool_read(&s->spool, s->seq, max, &run, &lost)) {
        if (++s->spool_unread >= SPOOL_TRIES)
            return queue_unread(s, s->spool.last_seq, TRD_LOST_STORE);
        disconnect(s, TRD_EIO, 0);
        return 0;
    }
    s->spool_unread = 0;
    if (lost)
        return queue_unread(s, lost, TRD_LOST_TORN);
    if (!run.records)
        return 0;
    run.end_pos = s->journal->state.durable_pos;
    queue_batch(s, FRAME_DATA, s->seq + 1, 0, &run);
    remember(s, &run, s->seq + run.records, 0);
    return 1;
}

/* The next records are in the ring. */
static int queue_records(struct trd__sender *s, const struct trd__run *run)
{
    if (!run->records || run->n > allowance(s))
        return 0;
    queue_batch(s, FRAME_DATA, s->seq + 1, 0, run);
    remember(s, run, s->seq + run->records, 0);
    return 1;
}

/* Chooses the next frame; 0 when there is nothing to say. */
static int queue_next(struct trd__sender *s)
{
    struct trd__run run;
    int spooled = s->seq < s->spool.last_seq;
    uint64_t pos = s->pos;
    trd__journal_peek(s->journal, &pos, s->max_len - BATCH_BYTES, &run);
    /* records may speak of words up to now: those go first */
    if (queue_words(s))
        return 1;
    if (spooled ? queue_spooled(s, allowance(s)) : queue_records(s, &run))
        return 1;
    if (s->fd < 0)
        return 0;
    uint64_t at = now();
    if (at - s->spoke_ns >= IDLE_MS * MS) {
        struct ping p = {at, trd__sys.real_ns()};
        size_t n = 0;
        ping_put(&p, s->out + FRAME_HEADER_BYTES, 64, &n);
        queue(s, FRAME_PING, 0, n, NULL, 0);
        return 1;
    }
    if (atomic_load(&s->shared->stop) && !s->said_bye && !spooled &&
        !run.records && !awaits_devices(s)) {
        s->said_bye = 1;
        queue(s, FRAME_BYE, s->seq, 0, NULL, 0);
        return 1;
    }
    return 0;
}

/* 1 if something went out. */
static int speak(struct trd__sender *s)
{
    int moved = 0;
    while (s->fd >= 0) {
        if (!s->out_n && (!s->welcomed || !queue_next(s)))
            break;
        if (push(s) <= 0)
            break;
        moved = 1;
        listen_to(s);
    }
    return moved;
}

/* ---- the thread ---- */

static int finished(struct trd__sender *s)
{
    if (!atomic_load(&s->shared->stop))
        return 0;
    if (now() >= atomic_load(&s->shared->deadline))
        return 1;
    return s->durable_seq == trd__journal_last(s->journal) &&
           (s->said_bye || s->fd < 0) && !s->out_n && !awaits_devices(s);
}

static int wake_is_ours(const struct trd__sender *s)
{
    return trd__is_still(s->wake, s->wake_dev, s->wake_ino);
}

static void rest(struct trd__sender *s, int busy)
{
    struct trd__devices *d = atomic_load(&s->devices);
    struct pollfd set[2] = {{.fd = -1, .events = POLLIN},
                            {.fd = s->fd, .events = POLLIN}};
    char drain[8];
    int ms = busy ? BUSY_POLL_MS : QUIET_POLL_MS;
    /* nothing wakes us when a GPU has a result */
    if (awaits_devices(s) || (d && atomic_load(&d->captured)) || s->crowded)
        ms = BUSY_POLL_MS;
    if (s->out_n)
        set[1].events |= POLLOUT;
    if (atomic_load(&s->shared->stop))
        ms = 1;
    if (wake_is_ours(s))
        set[0].fd = s->wake;
    if (trd__sys.poll(set, s->fd >= 0 ? 2 : 1, ms) <= 0 || !set[0].revents)
        return;
    while (wake_is_ours(s) &&
           recv(s->wake, drain, sizeof drain, MSG_DONTWAIT) > 0)
        continue;
}

static void *run(void *arg)
{
    struct trd__sender *s = arg;
    int busy = 0;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    while (!finished(s)) {
        uint64_t at = now();
        look_at_devices(s);
        if (atomic_load(&s->shared->any_pending))
            trd__lost_tell(s->shared, s->journal, at - s->hello.mono_ns);
        if (s->fd < 0 && (at >= s->next_try_ns ||
                          atomic_load(&s->shared->stop))) {
            int failed = try_connect(s);
            if (failed)
                disconnect(s, failed, 0);
            if (failed && atomic_load(&s->shared->stop) && !awaits_devices(s))
                break; /* the journal keeps it for a later daemon */
        }
        if (s->fd >= 0) {
            listen_to(s);
            busy = speak(s);
            uint64_t limit = s->welcomed ? IDLE_MS * IDLE_MISSES : WELCOME_MS;
            if (s->fd >= 0 && now() - s->heard_ns > limit * MS)
                disconnect(s, TRD_ETIMEDOUT, 0);
        }
        if (!trd__spill(s))
            rest(s, busy);
    }
    trd__spill_rest(s);
    atomic_store(&s->shared->stop, 2);
    return NULL;
}

int trd__sender_start(struct trd__sender *s)
{
    s->fd = -1;
    s->wake = trd__sys.event();
    if (s->wake >= 0)
        s->wake = trd__sys.move_high(s->wake);
    forget_window(s);
    s->calm_ns = now();
    if (s->wake >= 0 &&
        trd__remember(s->wake, &s->wake_dev, &s->wake_ino)) {
        trd__sys.close(s->wake);
        s->wake = -1;
    }
    /* nobody can wake it then: it looks by itself now and then */
    if (trd__sys.thread(&s->thread, run, s)) {
        if (s->wake >= 0)
            trd__sys.close(s->wake);
        s->wake = -1;
        return TRD_EIO;
    }
    s->started = 1;
    return 0;
}

void trd__sender_wake(struct trd__sender *s)
{
    /* a full socket wakes it all the same */
    if (s->started && wake_is_ours(s) &&
        send(s->wake, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return;
}

int trd__sender_stop(struct trd__sender *s)
{
    if (!s->started)
        return 0;
    POINT(closing);
    atomic_store(&s->shared->deadline, now() + SENDER_CLOSE_MS * MS);
    atomic_store(&s->shared->stop, 1);
    trd__sender_wake(s);
    pthread_join(s->thread, NULL);
    int done = s->durable_seq == trd__journal_last(s->journal);
    if (s->fd >= 0 && is_ours(s))
        trd__sys.close(s->fd);
    if (wake_is_ours(s))
        trd__sys.close(s->wake);
    s->started = 0;
    return done;
}
