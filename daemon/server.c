/* The ingest endpoint: accepting, who may come, time, the end. What a
 * connection does is in peer.c. Loop thread. */
#include "daemon/peer.h"

#include "daemon/log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BACKLOG = 1024,
    STRANGERS_MAX = 64, /* connections that do not say hello */
    TICK_MS = 100
};

static const char too_many_strangers[] = "too many connections without a hello";

/* ---- accepting ---- */

/* It has not said who it is, though it had the time: of a hundred processes
 * that start together none is one. */
static bool is_stranger(const struct peer *p, uint64_t now)
{
    return !p->closing && p->intake.session.state == SESSION_NEW &&
           now - p->born_ns > TICK_MS * MS;
}

/* A newcomer may be one who has something to say: of those who had the time
 * the oldest makes room. */
static void limit_strangers(struct server *s)
{
    struct peer *oldest = NULL;
    unsigned n = 0;
    for (struct peer *p = s->peers; p; p = p->next) {
        if (is_stranger(p, server_now_ns(s))) {
            oldest = p;
            n++;
        }
    }
    if (n >= STRANGERS_MAX)
        peer_refuse(oldest, REASON_BUSY, too_many_strangers);
}

static int admit(struct server *s, struct peer *p)
{
    struct ucred cred;
    socklen_t n = sizeof cred;
    uv_os_fd_t fd;

    if (uv_fileno((uv_handle_t *)&p->pipe, &fd) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) != 0) {
        peer_close(p);
        return -1;
    }
    p->pid = (uint32_t)cred.pid;
    p->intake.uid = cred.uid;
    if (geteuid() != 0 && cred.uid != geteuid()) {
        peer_refuse(p, REASON_DENIED, "this tracerd serves another user");
        return -1;
    }
    if (process_short_of_descriptors(fd)) {
        peer_refuse(p, REASON_BUSY, "too few descriptors are left");
        return -1;
    }
    if (s->counters.connections > s->o.clients) {
        peer_refuse(p, REASON_BUSY, "too many clients");
        return -1;
    }
    limit_strangers(s);
    return 0;
}

/* Nothing can be accepted, and libuv asks again until it can: it gets the
 * descriptor that is kept for this, else that of somebody who will come
 * back. */
static void make_room(struct server *s, int status)
{
    struct peer *p = s->peers;
    log_warn("accept", "error=\"%s\" then=\"some clients have to wait\"",
             uv_strerror(status));
    if (s->spare_fd >= 0) {
        close(s->spare_fd);
        s->spare_fd = -1;
        return;
    }
    while (p && p->closing)
        p = p->next;
    if (p)
        peer_refuse(p, REASON_BUSY, "no descriptor is left");
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct server *s = listener->data;
    struct peer *p;

    if (status < 0) {
        if (status == UV_EMFILE || status == UV_ENFILE)
            make_room(s, status);
        return;
    }
    p = peer_new(s);
    s->unaccepted = !p; /* libuv asks no more: the next tick does */
    if (!p)
        return;
    p->intake.live = true;
    p->server = s;
    p->pipe.data = p;
    p->next = s->peers;
    if (p->next)
        p->next->link = &p->next;
    s->peers = p;
    p->link = &s->peers;
    s->open_handles++;
    s->counters.connections++;
    s->counters.accepted++;
    p->born_ns = server_now_ns(s);
    if (uv_accept(listener, (uv_stream_t *)&p->pipe) != 0) {
        peer_close(p);
        return;
    }
    if (admit(s, p) == 0)
        peer_begin(p);
}

/* ---- time ---- */

static void feed_waiting(struct server *s)
{
    for (struct peer *p = s->peers; p; p = p->next) {
        if (!peer_feed(p))
            return; /* whoever comes next would find none either */
    }
}

/* Those who send nothing get no acknowledgement, and would not know. */
static void tell_credit(struct server *s)
{
    bool full = hub_is_full(s->o.hub);
    if (full == s->told_full)
        return;
    s->told_full = full;
    for (struct peer *p = s->peers; p; p = p->next) {
        if (p->intake.session.state == SESSION_OPEN)
            peer_ack(p);
    }
}

static void keep_spare(struct server *s)
{
    if (s->spare_fd < 0)
        s->spare_fd = open("/", O_RDONLY | O_CLOEXEC);
}

static void on_tick(uv_timer_t *timer)
{
    struct server *s = timer->data;
    struct peer *next;
    uint64_t now = server_now_ns(s);
    unsigned n = 0;
    if (s->unaccepted && !s->stopped)
        on_connection((uv_stream_t *)&s->listener, 0);
    for (struct peer *p = s->peers; p; p = next) {
        next = p->next;
        if (is_stranger(p, now) && ++n > STRANGERS_MAX)
            peer_refuse(p, REASON_BUSY, too_many_strangers);
        peer_tick(p, now);
    }
    feed_waiting(s);
    tell_credit(s);
    if (!s->stopped)
        keep_spare(s);
}

void server_room(struct server *s)
{
    feed_waiting(s);
}

/* ---- the whole ---- */

/* The memory of a server that has no handle left. */
void server_free(struct server *s)
{
    free(s);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct server *s = handle->data;
    s->open_handles--;
}

int server_open(const struct server_options *o, struct server **out)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s)
        return TRD_ENOMEM;
    s->o = *o;
    s->spare_fd = -1;
    keep_spare(s);
    uv_pipe_init(o->loop, &s->listener, 0);
    uv_timer_init(o->loop, &s->tick);
    uv_idle_init(o->loop, &s->turn);
    s->listener.data = s->tick.data = s->turn.data = s;
    s->open_handles = 3;
    *out = s;
    if (uv_pipe_open(&s->listener, o->fd) != 0 ||
        uv_listen((uv_stream_t *)&s->listener, BACKLOG, on_connection) != 0)
        return TRD_EIO;
    uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    return 0;
}

void server_limit(struct server *s, uint32_t clients)
{
    s->o.clients = clients;
}

const struct server_counters *server_counters(const struct server *s)
{
    return &s->counters;
}

void server_stop(struct server *s)
{
    if (s->stopped)
        return;
    s->stopped = true;
    uv_close((uv_handle_t *)&s->listener, on_handle_closed);
    uv_close((uv_handle_t *)&s->turn, on_handle_closed);
    if (s->spare_fd >= 0)
        close(s->spare_fd);
    s->spare_fd = -1;
    for (struct peer *p = s->peers; p; p = p->next) {
        peer_want_read(p);
        peer_forget(p);
    }
}

void server_close(struct server *s)
{
    struct peer *next;
    server_stop(s);
    for (struct peer *p = s->peers; p; p = next) {
        next = p->next;
        peer_dismiss(p);
    }
    if (!uv_is_closing((uv_handle_t *)&s->tick))
        uv_close((uv_handle_t *)&s->tick, on_handle_closed);
}
