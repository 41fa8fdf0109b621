/* The query endpoint. Loop thread, but for job_work() (a worker's, except
 * for the daemon's state, which is told at once).
 *
 * A connection has one question at a time: while it is being answered
 * nothing is read from it. So what a peer can make grow is one request, one
 * page and what the kernel buffers. Whatever a hostile peer sends ends its
 * own connection only. */
#include "daemon/answer.h"

#include "daemon/log.h"
#include "daemon/process.h"
#include "daemon/sp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

enum {
    BACKLOG = 128,
    CONNECTIONS_MAX = 256,
    READ_BYTES = 64 * 1024,
    TICK_MS = 200,
    SEND_MS = 60000, /* from an answer's first byte to its last */
    PAGE_BYTES = SP_MAX_BYTES - SP_BACK_MAX
};

struct asker {
    struct answer *answer;
    struct asker *next, **link;
    uv_pipe_t pipe;
    struct sp_reader reader;
    struct job *job; /* being answered or sent */
    bool reading, closing, closed;
    uint64_t born_ns;
    uint64_t since_ns; /* of what is expected of the peer now; 0: nothing */
    uint8_t *left;     /* bytes read behind a whole message */
    size_t left_n, left_at;
};

struct job {
    uv_work_t work;
    uv_write_t write;
    struct job *next;    /* waiting for a worker */
    struct asker *asker; /* NULL: it went away */
    struct answer *answer;
    uint8_t *message;
    size_t message_n, back_n;
    struct ask ask;
    struct status status; /* for that verb */
    bool has_status;
    bool brief;         /* may have the place that is kept for such */
    bool kept;          /* has it */
    _Atomic int cancel; /* nobody waits for the answer */
    uint8_t *page;      /* SP head, back words, page */
    size_t page_n;      /* of all three */
};

struct answer {
    struct answer_options o;
    uv_pipe_t listener;
    uv_timer_t tick;
    struct asker *askers;
    struct job *waiting, **waiting_tail;
    bool closing, unaccepted;
    bool kept_taken; /* one place is for brief questions only */
    struct answer_counters counters;
    uint8_t buffer[READ_BYTES]; /* lent to one read at a time */
};

static void asker_close(struct asker *k);
static void asker_go_on(struct asker *k);

static uint64_t now_ns(const struct answer *a)
{
    return uv_now(a->o.loop) * MS;
}

/* ---- questions ---- */

static size_t say_bad(uint8_t *out, size_t cap, const char *why)
{
    struct page_writer p;
    page_open(&p, out, cap, PAGE_BAD, slice_of(why));
    return page_close(&p, slice_of(""));
}

/* The request does not hold. */
static size_t say_wrong(const struct job *j, int error, uint8_t *out)
{
    struct reader r =
        reader_of(j->message + j->back_n, j->message_n - j->back_n);
    char why[96];
    if (error != TRD_EVERSION)
        return say_bad(out, PAGE_BYTES, "not a request of this protocol");
    get_u32(&r); /* the magic was looked at */
    snprintf(why, sizeof why,
             "a request of version %u; this daemon answers version 1",
             get_u16(&r));
    return say_bad(out, PAGE_BYTES, why);
}

/* Any thread: nothing of the loop is touched. */
static void job_work(uv_work_t *work)
{
    struct job *j = work->data;
    uint8_t *out = j->page + SP_HEAD_BYTES + j->back_n;
    struct query q;
    size_t n;
    int rc = query_get(j->message + j->back_n, j->message_n - j->back_n, &q);

    if (rc)
        n = say_wrong(j, rc, out);
    else if (q.verb == QUERY_STATUS && j->has_status)
        n = status_page(&j->status, out, PAGE_BYTES);
    else
        n = store_ask(&j->ask, &q, out, PAGE_BYTES);
    if (n == 0)
        n = say_bad(out, PAGE_BYTES, "the answer does not fit a page");
    memcpy(j->page + SP_HEAD_BYTES, j->message, j->back_n);
    sp_head_put(j->page, j->back_n + n);
    j->page_n = SP_HEAD_BYTES + j->back_n + n;
}

static void job_free(struct job *j)
{
    if (j->asker)
        j->asker->job = NULL;
    free(j->message);
    free(j->status.row);
    free(j->page);
    free(j);
}

static void on_sent(uv_write_t *write, int status)
{
    struct job *j = write->data;
    struct asker *k = j->asker;
    job_free(j);
    if (!k)
        return;
    k->since_ns = 0;
    if (status != 0)
        asker_close(k);
    else
        asker_go_on(k);
}

static void start_waiting(struct answer *a);

/* Long questions may have all places but one, so that 'what runs are there'
 * is answered while they go on. */
static bool take_place(struct answer *a, struct job *j)
{
    if (a->counters.running < a->o.at_once) {
        a->counters.running++;
        return true;
    }
    if (!j->brief || a->kept_taken)
        return false;
    j->kept = a->kept_taken = true;
    return true;
}

static void leave_place(struct answer *a, struct job *j)
{
    if (j->kept)
        a->kept_taken = false;
    else
        a->counters.running--;
}

static void send_answer(struct job *j)
{
    uv_buf_t buf = uv_buf_init((char *)j->page, (unsigned)j->page_n);
    if (!j->asker || j->asker->closing) {
        job_free(j);
        return;
    }
    j->write.data = j;
    j->asker->since_ns = now_ns(j->answer);
    if (uv_write(&j->write, (uv_stream_t *)&j->asker->pipe, &buf, 1, on_sent) !=
        0) {
        struct asker *k = j->asker;
        job_free(j);
        asker_close(k);
    }
}

static void on_answered(uv_work_t *work, int status)
{
    struct job *j = work->data;
    struct answer *a = j->answer;
    (void)status;
    leave_place(a, j);
    start_waiting(a);
    send_answer(j);
}

static void start(struct answer *a, struct job *j)
{
    if (uv_queue_work(a->o.loop, &j->work, job_work, on_answered) != 0) {
        struct asker *k = j->asker;
        leave_place(a, j);
        job_free(j);
        if (k)
            asker_close(k);
    }
}

static void start_waiting(struct answer *a)
{
    struct job **at = &a->waiting;
    while (*at) {
        struct job *j = *at;
        if (j->asker && !take_place(a, j)) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        if (j->asker)
            start(a, j);
        else
            job_free(j);
    }
    a->waiting_tail = at;
}

/* 0: not a request. */
static unsigned verb_of(const struct job *j)
{
    struct query q;
    return query_get(j->message + j->back_n, j->message_n - j->back_n, &q) == 0
               ? q.verb
               : 0;
}

/* Takes message. */
static void ask(struct asker *k, uint8_t *message, size_t n)
{
    struct answer *a = k->answer;
    struct job *j = calloc(1, sizeof *j);
    size_t back_n = sp_back_bytes(message, n);

    if (!j || !back_n) {
        if (!back_n)
            a->counters.wrong++;
        free(message);
        free(j);
        asker_close(k);
        return;
    }
    j->work.data = j;
    j->answer = a;
    j->asker = k;
    j->message = message;
    j->message_n = n;
    j->back_n = back_n;
    j->ask.data = a->o.data;
    j->ask.seconds = a->o.seconds;
    j->ask.stop = &j->cancel;
    j->page = malloc(SP_HEAD_BYTES + SP_MAX_BYTES);
    k->job = j;
    k->since_ns = 0;
    a->counters.questions++;
    if (!j->page) {
        job_free(j);
        asker_close(k);
        return;
    }
    if (verb_of(j) == QUERY_STATUS) {
        a->o.status(a->o.context, &j->status);
        j->has_status = true;
        job_work(&j->work);
        send_answer(j);
        return;
    }
    j->brief = verb_of(j) == QUERY_RUNS;
    *a->waiting_tail = j;
    a->waiting_tail = &j->next;
    start_waiting(a);
}

/* ---- connections ---- */

static void on_closed(uv_handle_t *handle)
{
    struct asker *k = handle->data;
    *k->link = k->next;
    if (k->next)
        k->next->link = k->link;
    sp_reader_fini(&k->reader);
    free(k->left);
    free(k);
}

static void asker_close(struct asker *k)
{
    if (k->closing)
        return;
    k->closing = true;
    k->answer->counters.connections--;
    if (k->job) {
        atomic_store(&k->job->cancel, 1);
        k->job->asker = NULL;
    }
    k->job = NULL;
    uv_close((uv_handle_t *)&k->pipe, on_closed);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct asker *k = handle->data;
    (void)suggested;
    *buf = uv_buf_init((char *)k->answer->buffer, READ_BYTES);
}

/* Feeds until a message is whole or all is used; what is behind a message
 * is kept until it is answered. */
static void feed(struct asker *k, const uint8_t *bytes, size_t n, size_t *used)
{
    enum sp_result rc = sp_reader_feed(&k->reader, bytes, n, used);
    uint8_t *message;
    size_t message_n;

    if (rc == SP_MORE) {
        if (!k->reader.greeted || k->reader.head_n || k->reader.message) {
            if (!k->since_ns)
                k->since_ns = now_ns(k->answer);
        } else {
            k->since_ns = 0;
        }
        return;
    }
    if (rc != SP_MESSAGE) {
        if (rc == SP_WRONG) {
            k->answer->counters.wrong++;
            log_warn("asker_closed",
                     "why=\"not a REQ socket, or a request "
                     "above %d bytes\" then=\"the connection "
                     "is closed\"",
                     (int)SP_REQUEST_MAX_BYTES);
        }
        asker_close(k);
        return;
    }
    message = sp_reader_take(&k->reader, &message_n);
    ask(k, message, message_n);
}

static void keep_rest(struct asker *k, const uint8_t *bytes, size_t n)
{
    if (k->closing || n == 0)
        return;
    k->left = malloc(n);
    if (!k->left) {
        asker_close(k);
        return;
    }
    memcpy(k->left, bytes, n);
    k->left_n = n;
    k->left_at = 0;
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

static void want_read(struct asker *k)
{
    bool want = !k->job && !k->closing && !k->left;
    if (k->closing || want == k->reading)
        return;
    k->reading = want;
    if (!want)
        uv_read_stop((uv_stream_t *)&k->pipe);
    else if (uv_read_start((uv_stream_t *)&k->pipe, on_alloc, on_read) != 0)
        asker_close(k);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct asker *k = stream->data;
    const uint8_t *bytes = (const uint8_t *)buf->base;
    size_t used = 0;

    if (n < 0) {
        asker_close(k);
        return;
    }
    if (n == 0)
        return;
    feed(k, bytes, (size_t)n, &used);
    if (used < (size_t)n)
        keep_rest(k, bytes + used, (size_t)n - used);
    want_read(k);
}

/* After an answer: first what was read before, then the socket. */
static void asker_go_on(struct asker *k)
{
    while (k->left && !k->job && !k->closing) {
        size_t used;
        feed(k, k->left + k->left_at, k->left_n - k->left_at, &used);
        k->left_at += used;
        if (k->left_at == k->left_n) {
            free(k->left);
            k->left = NULL;
        }
    }
    want_read(k);
}

static bool allowed(struct asker *k)
{
    struct ucred cred;
    socklen_t n = sizeof cred;
    uv_os_fd_t fd;
    if (uv_fileno((uv_handle_t *)&k->pipe, &fd) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) != 0)
        return false;
    if (geteuid() != 0 && cred.uid != geteuid()) {
        log_warn("asker_closed",
                 "pid=%ld uid=%lu why=\"this tracerd serves another user\" "
                 "then=\"the connection is closed\"",
                 (long)cred.pid, (unsigned long)cred.uid);
        return false;
    }
    return k->answer->counters.connections <= CONNECTIONS_MAX &&
           !process_short_of_descriptors(fd);
}

static void greet(struct asker *k)
{
    uv_buf_t buf =
        uv_buf_init((char *)(uintptr_t)sp_greeting, SP_GREETING_BYTES);
    /* the socket is new: there is room for eight bytes */
    if (uv_try_write((uv_stream_t *)&k->pipe, &buf, 1) != SP_GREETING_BYTES)
        asker_close(k);
    else
        want_read(k);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct answer *a = listener->data;
    struct asker *k;

    if (status < 0)
        return;
    k = calloc(1, sizeof *k);
    a->unaccepted = !k;
    if (!k)
        return;
    sp_reader_init(&k->reader, SP_REQUEST_MAX_BYTES + SP_BACK_MAX);
    uv_pipe_init(a->o.loop, &k->pipe, 0);
    k->pipe.data = k;
    k->answer = a;
    k->next = a->askers;
    if (k->next)
        k->next->link = &k->next;
    a->askers = k;
    k->link = &a->askers;
    a->counters.connections++;
    k->since_ns = now_ns(a);
    if (uv_accept(listener, (uv_stream_t *)&k->pipe) != 0 || !allowed(k))
        asker_close(k);
    else
        greet(k);
}

/* While its question is being answered nothing is read, so an asker that
 * went away shows only when it is looked for. */
static bool went_away(struct asker *k)
{
    uv_os_fd_t fd;
    char byte;
    return k->job && uv_fileno((uv_handle_t *)&k->pipe, &fd) == 0 &&
           recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void on_tick(uv_timer_t *timer)
{
    struct answer *a = timer->data;
    uint64_t now = now_ns(a);
    if (a->unaccepted && !a->closing)
        on_connection((uv_stream_t *)&a->listener, 0);
    for (struct asker *k = a->askers; k; k = k->next) {
        uint64_t limit = !k->reader.greeted ? HELLO_MS
                         : k->job           ? (uint64_t)SEND_MS
                                            : FRAME_MS;
        if (k->closing)
            continue;
        if ((k->since_ns && now - k->since_ns > limit * MS) || went_away(k))
            asker_close(k);
    }
}

int answer_open(const struct answer_options *o, struct answer **out)
{
    struct answer *a = calloc(1, sizeof *a);
    if (!a)
        return TRD_ENOMEM;
    a->o = *o;
    a->waiting_tail = &a->waiting;
    uv_pipe_init(o->loop, &a->listener, 0);
    uv_timer_init(o->loop, &a->tick);
    a->listener.data = a->tick.data = a;
    *out = a;
    if (uv_pipe_open(&a->listener, o->fd) != 0 ||
        uv_listen((uv_stream_t *)&a->listener, BACKLOG, on_connection) != 0)
        return TRD_EIO;
    uv_timer_start(&a->tick, on_tick, TICK_MS, TICK_MS);
    return 0;
}

void answer_limit(struct answer *a, uint32_t seconds, uint32_t at_once)
{
    a->o.seconds = seconds;
    a->o.at_once = at_once;
}

const struct answer_counters *answer_counters(const struct answer *a)
{
    return &a->counters;
}

void answer_close(struct answer *a)
{
    struct asker *next;
    if (a->closing)
        return;
    a->closing = true;
    uv_close((uv_handle_t *)&a->listener, NULL);
    uv_close((uv_handle_t *)&a->tick, NULL);
    for (struct asker *k = a->askers; k; k = next) {
        next = k->next;
        asker_close(k);
    }
    start_waiting(a); /* frees those whose asker is gone */
}

void answer_free(struct answer *a)
{
    free(a);
}
