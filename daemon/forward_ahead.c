/* The block after the one that is being sent: while the engine is busy with
 * one, a thread reads the next, so that neither waits for the other. It has
 * the run's connection and names for itself between start and wait. */
#include "daemon/forward.h"

#include <sqlite3.h>
#include <string.h>

#include "daemon/thread.h"

static void *run(void *context)
{
    struct ahead *a = context;
    a->rc = block_read(a->db, a->names, a->after, &a->block);
    return NULL;
}

void ahead_start(struct ahead *a, const struct forward_run *of,
                 sqlite3 *db, struct names *names, int64_t after)
{
    a->of = of;
    a->db = db;
    a->names = names;
    a->after = after;
    a->rc = SQLITE_ABORT;
    a->running = thread_start(&a->thread, run, a) == 0;
}

void ahead_wait(struct ahead *a)
{
    if (a->running)
        pthread_join(a->thread, NULL);
    a->running = false;
}

bool ahead_take(struct ahead *a, const struct forward_run *of, int64_t after,
                struct block *b)
{
    bool good = a->of == of && a->after == after && a->rc == SQLITE_OK;
    a->of = NULL;
    if (good) {
        struct block old = *b;
        *b = a->block;
        a->block = old;
    }
    return good;
}
