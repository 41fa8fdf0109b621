/* The query endpoint: nanomsg's REQ sockets on the loop, questions answered
 * by worker threads. */
#ifndef DAEMON_ANSWER_H
#define DAEMON_ANSWER_H

#include <uv.h>

#include "daemon/status.h"
#include "daemon/store.h"

struct answer;

struct answer_options {
    uv_loop_t *loop;
    int fd;             /* bound socket; taken over */
    const char *data;   /* stored runs; stays valid */
    uint32_t seconds;   /* time limit of a question */
    uint32_t at_once;   /* questions at once */
    /* Fills in what the daemon knows. Loop thread. */
    void (*status)(void *context, struct status *out);
    void *context;
};

struct answer_counters {
    uint64_t questions, wrong;
    uint32_t connections, running;
};

/* TRD_ENOMEM, or TRD_EIO: *out is there to be closed. */
int answer_open(const struct answer_options *o, struct answer **out);
void answer_limit(struct answer *a, uint32_t seconds, uint32_t at_once);
const struct answer_counters *answer_counters(const struct answer *a);
/* Gives running questions up and closes all handles. */
void answer_close(struct answer *a);
/* After the loop has closed them. */
void answer_free(struct answer *a);

#endif
