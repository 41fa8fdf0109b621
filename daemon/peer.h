/* One connection of the ingest endpoint, and what all of them share. Only
 * server.c and peer.c know this header. Loop thread. */
#ifndef DAEMON_PEER_H
#define DAEMON_PEER_H

#include "daemon/server.h"

#define MS UINT64_C(1000000)

struct peer {
    struct intake intake; /* first */
    struct server *server;
    struct peer *next, **link;
    uv_pipe_t pipe;
    uint8_t head[FRAME_HEADER_BYTES];
    uint32_t head_n;
    struct frame frame;
    struct work *body; /* being received; NULL: a header is */
    uint32_t body_n;
    uint64_t born_ns, acked_ns;
    uint64_t frame_ns; /* first byte of the frame; 0: none */
    uint32_t turn_bytes;
    uint32_t pid; /* of the other end, as the kernel says */
    bool reading, tired, closing, closed, hungry;
    bool waits_room;    /* a header is whole, its payload has no memory */
    uint64_t linger_ns; /* when the socket was closed; 0: it is not */
};

struct server {
    struct server_options o;
    uv_pipe_t listener;
    uv_timer_t tick;
    uv_idle_t turn;
    struct peer *peers;
    unsigned open_handles;
    bool stopped, unaccepted;
    bool told_full; /* the disk, as clients were told last */
    int spare_fd;   /* given up when nothing can be accepted; -1: it was */
    struct server_counters counters;
};

/* Not yet connected and on no list; NULL: no memory. */
struct peer *peer_new(struct server *s);
/* It is heard from now on. */
void peer_begin(struct peer *p);
/* Says why and closes; one log line. */
void peer_refuse(struct peer *p, unsigned reason, const char *why);
/* The socket goes at once, the rest when the writer lets go of it. */
void peer_close(struct peer *p);
/* Says the marks, where the peer reads at all. */
void peer_ack(struct peer *p);
/* Says the last marks and that it may come back later, and closes. */
void peer_dismiss(struct peer *p);

/* What time brings: silence, half a frame, a process that is gone. */
void peer_tick(struct peer *p, uint64_t now);
/* Its stream is let go without waiting for the process's end. */
void peer_forget(struct peer *p);
/* Reads or does not, as its state wants it. */
void peer_want_read(struct peer *p);
/* Goes on with a payload that waits for memory. False: there still is none. */
bool peer_feed(struct peer *p);

static inline uint64_t server_now_ns(const struct server *s)
{
    return uv_now(s->o.loop) * MS;
}

#endif
