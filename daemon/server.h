/* The ingest endpoint: connections of clients on the loop. */
#ifndef DAEMON_SERVER_H
#define DAEMON_SERVER_H

#include <uv.h>

#include "daemon/intake.h"

struct server;

struct server_options {
    uv_loop_t *loop;
    struct hub *hub;
    int fd;                /* bound socket; taken over */
    uint32_t clients;      /* connections at once */
    /* A process is gone, or its connection is: its journal may be there. */
    void (*orphan)(void *context);
    void *context;
};

struct server_counters {
    uint64_t accepted, refused, malformed, frames, bytes;
    uint32_t connections;
};

/* Starts to listen. TRD_ENOMEM, or TRD_EIO: *out is there to be closed. */
int server_open(const struct server_options *o, struct server **out);
void server_limit(struct server *s, uint32_t clients);
const struct server_counters *server_counters(const struct server *s);

/* Memory came free: connections that wait for it go on. */
void server_room(struct server *s);

/* Stops accepting and reading; what was received is with the writer. */
void server_stop(struct server *s);
/* Says the last marks and goodbye to everybody and closes all handles. */
void server_close(struct server *s);
/* After the loop has closed them and the hub has stopped. */
void server_free(struct server *s);

#endif
