/* Between whoever speaks for a stream (a connection, a dead process's
 * journal) and the writer: judging, handing over, getting back, and the
 * bytes that are under way. Loop thread only; no socket in it. */
#ifndef DAEMON_INTAKE_H
#define DAEMON_INTAKE_H

#include "daemon/process.h"
#include "daemon/session.h"
#include "daemon/scribe.h"

struct intake;

/* What the speaker does when something comes back. */
struct intake_ops {
    /* The hello was answered: look at welcome. */
    void (*welcomed)(struct intake *i);
    /* Marks moved, or failed is set in them. */
    void (*moved)(struct intake *i);
    /* The bye is durable. */
    void (*ended)(struct intake *i);
    /* Another connection of the same stream takes over. */
    void (*evict)(struct intake *i);
    /* The leave is back: nothing refers to it any more. */
    void (*gone)(struct intake *i);
};

struct intake {
    struct intake *next;       /* all of them */
    struct intake **link;
    struct hub *hub;
    const struct intake_ops *ops;
    bool live;                 /* a socket: may be taken over */
    struct session session;
    struct store_welcome welcome;
    struct marks marks;
    struct store_stream *stream; /* the writer's */
    struct work *leave;        /* allocated before it is needed; NULL: said */
    unsigned under_way;        /* works at the writer */
    uint64_t heard_ns;         /* last whole frame */
    uint64_t told_committed, told_durable; /* marks seen last */
    uint32_t told_dict, told_failed;
    /* from the hello */
    struct process owner;
    uint32_t rank, attempt, uid;
    char run[TRD_MAX_RUN + 1];
    char journal[256];
};

struct hub {
    struct scribe *scribe;
    const struct store_ops *ops;
    struct store *store;
    struct intake *intakes;
    unsigned speaking;         /* of them, with a stream or asking for one */
    size_t used, limit;        /* bytes of works that exist */
    void (*synced)(void *context);  /* hub_sync() is done */
    void (*stopped)(void *context); /* the writer has ended */
    void *context;
    struct work *sync, *stop;       /* allocated before they are needed */
};

/* Gives a new speaker what it will need later. TRD_ENOMEM. */
int intake_init(struct intake *i, struct hub *hub,
                const struct intake_ops *ops);
/* For one that never said hello. */
void intake_fini(struct intake *i);

/* Room for a frame's payload; NULL: none now, or no memory (*oom). */
struct work *intake_room(struct intake *i, const struct frame *f, bool *oom);
void intake_drop(struct intake *i, struct work *work);

/* Judges the whole frame in work and takes work. What the verdict says
 * besides DO_STORE is left to the caller. */
struct verdict intake_frame(struct intake *i, struct work *work,
                            enum store_end end, uint64_t now_ns);

/* Nothing more will come; gone() follows later. */
void intake_leave(struct intake *i, enum store_end end);

/* Who speaks for the stream now; NULL: nobody. */
struct intake *intake_of(const struct hub *hub, uint64_t epoch);

/* How much a client may have under way; 0: nothing is taken, the disk is
 * full. */
uint32_t hub_credit(const struct hub *hub);
bool hub_is_full(const struct hub *hub);

/* Takes back what the writer has done and looks at marks. */
void hub_drain(struct hub *hub);

int hub_init(struct hub *hub);
void hub_fini(struct hub *hub);
/* Asks for all to be made durable; synced() follows. Once. */
void hub_sync(struct hub *hub);
/* Ends the writer; nothing may be handed over after it. Once. */
void hub_stop(struct hub *hub);

#endif
