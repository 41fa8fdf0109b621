/* The scribe: one thread that alone writes to the store. */
#ifndef DAEMON_SCRIBE_H
#define DAEMON_SCRIBE_H

#include "daemon/work.h"

struct scribe;

struct scribe_options {
    const struct store_ops *ops;
    struct store *store;         /* lent until scribe_close() */
    void (*wake)(void *context); /* on the writer's thread: something is back
                                    or marks have moved */
    void *context;
};

/* Starts the thread. TRD_ENOMEM, TRD_EIO. */
int scribe_open(const struct scribe_options *o, struct scribe **out);

/* Hands over; never blocks for longer than a list operation. The caller
 * bounds how much is under way. After WORK_STOP nothing may follow. */
void scribe_push(struct scribe *w, struct work *work);

/* What is done, oldest first; NULL for none. The caller owns it again. */
struct work *scribe_done(struct scribe *w);

/* Joins the thread, which must have been told WORK_STOP. */
void scribe_close(struct scribe *w);

#endif
