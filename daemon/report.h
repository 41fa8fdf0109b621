/* What the daemon tells of itself when it is asked for its state. */
#ifndef DAEMON_REPORT_H
#define DAEMON_REPORT_H

#include "daemon/adopt.h"
#include "daemon/answer.h"
#include "daemon/config.h"
#include "daemon/server.h"

/* The parts it is made of. */
struct report {
    const struct config *config;
    const struct hub *hub;
    const struct server *server;
    const struct answer *answer;
    const struct adopt *adopt;
    uint64_t started_ns;      /* real time */
    uint64_t started_mono_ns; /* the clock that nobody sets */
};

/* Loop thread. */
void report_fill(const struct report *r, struct status *out);

#endif
