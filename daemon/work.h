/* What goes from the loop to the writer and comes back: one structure, so
 * that nothing has to be allocated to report. The loop allocates it and
 * frees it when it is back; between, only the writer touches it. */
#ifndef DAEMON_WORK_H
#define DAEMON_WORK_H

#include "daemon/store.h"

enum work_kind {
    WORK_HELLO,
    WORK_DICT,
    WORK_DATA,
    WORK_GAP,
    WORK_CLOCK,
    WORK_BYE,   /* comes back when all is durable */
    WORK_LEAVE, /* the last of a stream; comes back when it is let go */
    WORK_SYNC,  /* comes back when all before it is durable */
    WORK_STOP   /* the last of all */
};

struct work {
    struct work *next;
    enum work_kind kind;
    void *from;                   /* the loop's: who it belongs to */
    struct store_stream **stream; /* the writer keeps the stream there */
    struct store_welcome *welcome; /* hello: the answer goes here */
    struct marks *marks;          /* hello: of the new stream */
    struct frame frame;
    uint32_t uid;                 /* hello: of the peer */
    enum store_end end;           /* bye, leave: how it ended */
    size_t room;                  /* bytes it counts for */
    uint8_t payload[];            /* frame.len bytes */
};

#endif
