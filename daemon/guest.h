/* One journal of a dead process, being stored. Loop thread. */
#ifndef DAEMON_GUEST_H
#define DAEMON_GUEST_H

#include <uv.h>

#include "daemon/intake.h"
#include "proto/journal.h"

struct guest;

enum guest_fate {
    GUEST_ADOPTED, /* all of it is durable */
    GUEST_BAD,     /* it does not hold, or never will be taken */
    GUEST_LATER    /* not now */
};

struct guest_report {
    enum guest_fate fate;
    char why[256];            /* bad, later */
    uint64_t records;         /* spoken, those that were known included */
    /* adopted */
    char run[TRD_MAX_RUN + 1];
    uint32_t attempt, rank;
    bool clean;               /* its process had closed it */
};

struct guest_options {
    uv_loop_t *loop;
    struct hub *hub;
    int fd;                   /* lent until over() */
    uint64_t size;            /* of the file */
    uint32_t uid;             /* its owner */
    bool patient;             /* a spool whose directory is away is waited
                                 for: later, not lost */
    /* The guest is gone. */
    void (*over)(void *context, const struct guest_report *report);
    void *context;
};

/* Begins to read the file. TRD_ENOMEM, TRD_EIO. */
int guest_open(const struct guest_options *o, struct guest **out);
/* Something came back from the writer: goes on. g may be gone after it. */
void guest_feed(struct guest *g);
/* Ends as soon as it can; over() follows, maybe at once. */
void guest_give_up(struct guest *g);

#endif
