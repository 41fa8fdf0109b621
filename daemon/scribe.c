/* The writer thread: takes what the loop validated, puts it into the store
 * by transactions, and gives it back when it is committed.
 *
 * A transaction is closed 20 ms after it began, at 16 MiB, or when nothing
 * more is waiting and somebody does wait. What is committed is made durable
 * at least each 500 ms or 8 MiB, and at once for a bye.
 * Invariants: a work that is in the done list is committed (or its stream has
 * failed), and a bye or a stop there is durable. Works of a run that another
 * program has locked are put by; once one of a run is, all of that run behind
 * it are, until they have been tried again in their order. */
#include "daemon/scribe.h"

#include "daemon/thread.h"
#include "tracerd/base.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define MS UINT64_C(1000000)

enum {
    COMMIT_BYTES = 16 * 1024 * 1024,
    COMMIT_MS = 20,
    LINGER_MS = 4, /* waits so long for more before a commit */
    SYNC_BYTES = 8 * 1024 * 1024,
    SYNC_MS = 500,
    RETRY_MS = 50, /* works of locked runs */
    TIDY_MS = 1000
};

struct list {
    struct work *head, **tail;
};

struct scribe {
    struct scribe_options o;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct list todo, done; /* under lock */

    /* the thread's own */
    struct list put_by; /* their runs are locked */
    struct list again;  /* were put by; all of them come before todo */
    uint64_t retry_ns;  /* when what is put by was tried last */
    struct list held;   /* of the open transaction */
    uint64_t begun_ns;  /* of it; 0: none is open */
    size_t held_bytes;
    uint64_t unsafe_ns; /* oldest commit that is not durable; 0: none */
    size_t unsafe_bytes;
    uint64_t tidied_ns;
    bool urgent;    /* somebody waits for the commit */
    bool want_sync; /* and for the disk */
    bool stopping;
};

static void list_init(struct list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void list_push(struct list *l, struct work *work)
{
    work->next = NULL;
    *l->tail = work;
    l->tail = &work->next;
}

static struct work *list_pop(struct list *l)
{
    struct work *work = l->head;
    if (work) {
        l->head = work->next;
        if (!l->head)
            l->tail = &l->head;
    }
    return work;
}

static void list_move(struct list *to, struct list *from)
{
    if (!from->head)
        return;
    *to->tail = from->head;
    to->tail = from->tail;
    list_init(from);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec;
}

static void on_hello(struct scribe *w, struct work *work)
{
    struct store_hello h = {.epoch = work->frame.epoch, .uid = work->uid};
    /* the session has read it before, so it holds */
    if (hello_get(work->payload, work->frame.len, &h.hello))
        return;
    w->o.ops->hello(w->o.store, &h, work->marks, work->stream, work->welcome);
}

static void on_gap(struct scribe *w, struct work *work)
{
    struct gap g;
    if (gap_get(work->payload, work->frame.len, &g) == 0)
        w->o.ops->gap(w->o.store, *work->stream, &g);
}

static void on_clock(struct scribe *w, struct work *work)
{
    struct ping p;
    if (ping_get(work->payload, work->frame.len, &p) == 0)
        w->o.ops->clock(w->o.store, *work->stream, &p);
}

/* A stream that was refused has nothing to do but to leave. */
static bool idle_stream(const struct work *work)
{
    return work->stream && work->kind != WORK_HELLO && !*work->stream;
}

/* Its run is locked, or something before it waits for one: the end of all
 * comes when nothing waits any more. */
static bool must_wait(struct scribe *w, const struct work *work)
{
    if (work->kind == WORK_SYNC || work->kind == WORK_STOP)
        return w->put_by.head != NULL;
    if (work->kind == WORK_HELLO || idle_stream(work))
        return false;
    return !w->o.ops->ready(w->o.store, *work->stream,
                            work->kind != WORK_LEAVE ||
                                work->end != STORE_LEFT);
}

static void perform(struct scribe *w, struct work *work)
{
    const struct store_ops *ops = w->o.ops;
    size_t n = work->frame.len;

    if (must_wait(w, work)) {
        list_push(&w->put_by, work);
        return;
    }
    if (!w->begun_ns)
        w->begun_ns = now_ns();
    w->held_bytes += n;
    list_push(&w->held, work);
    if (idle_stream(work))
        return;
    switch (work->kind) {
    case WORK_HELLO:
        on_hello(w, work);
        w->urgent = true;
        break;
    case WORK_DICT:
        ops->dict(w->o.store, *work->stream, work->payload, n);
        break;
    case WORK_DATA:
        ops->data(w->o.store, *work->stream, work->frame.seq, work->payload, n);
        break;
    case WORK_GAP:
        on_gap(w, work);
        break;
    case WORK_CLOCK:
        on_clock(w, work);
        break;
    case WORK_BYE:
        ops->end(w->o.store, *work->stream, work->end);
        w->urgent = w->want_sync = true;
        break;
    case WORK_LEAVE:
        if (work->end != STORE_LEFT)
            ops->end(w->o.store, *work->stream, work->end);
        ops->leave(w->o.store, *work->stream);
        *work->stream = NULL;
        w->urgent = true;
        break;
    case WORK_SYNC:
        w->urgent = w->want_sync = true;
        break;
    case WORK_STOP:
        w->urgent = w->want_sync = w->stopping = true;
        break;
    }
}

static void sync_now(struct scribe *w)
{
    w->o.ops->sync(w->o.store);
    w->unsafe_ns = 0;
    w->unsafe_bytes = 0;
    w->want_sync = false;
}

static bool sync_due(const struct scribe *w, uint64_t now)
{
    return w->unsafe_ns && (w->unsafe_bytes >= SYNC_BYTES ||
                            now - w->unsafe_ns >= SYNC_MS * MS);
}

/* Closes the transaction and gives its works back. */
static void commit(struct scribe *w)
{
    uint64_t now;
    w->o.ops->commit(w->o.store);
    now = now_ns();
    if (!w->unsafe_ns)
        w->unsafe_ns = now;
    w->unsafe_bytes += w->held_bytes;
    if (w->want_sync || sync_due(w, now))
        sync_now(w);
    w->begun_ns = 0;
    w->held_bytes = 0;
    w->urgent = false;
    pthread_mutex_lock(&w->lock);
    list_move(&w->done, &w->held);
    pthread_mutex_unlock(&w->lock);
    w->o.wake(w->o.context);
}

/* When the thread must act though nothing arrives. */
static uint64_t deadline(const struct scribe *w, uint64_t now)
{
    uint64_t at = w->tidied_ns + TIDY_MS * MS;
    if (w->begun_ns) {
        uint64_t soon = w->begun_ns + COMMIT_MS * MS;
        if (now + LINGER_MS * MS < soon)
            soon = now + LINGER_MS * MS;
        if (soon < at)
            at = soon;
    }
    if (w->unsafe_ns && w->unsafe_ns + SYNC_MS * MS < at)
        at = w->unsafe_ns + SYNC_MS * MS;
    if (w->put_by.head && w->retry_ns + RETRY_MS * MS < at)
        at = w->retry_ns + RETRY_MS * MS;
    return at;
}

/* What was put by goes before all that came since. */
static void retry(struct scribe *w)
{
    uint64_t now = now_ns();
    if (w->again.head || now - w->retry_ns < RETRY_MS * MS)
        return;
    w->retry_ns = now;
    w->o.ops->unlock(w->o.store);
    list_move(&w->again, &w->put_by);
}

/* Waits for work until the deadline; takes one. */
static struct work *next(struct scribe *w)
{
    struct work *work;
    uint64_t at;
    struct timespec t;

    retry(w);
    work = list_pop(&w->again);
    if (work)
        return work;
    at = deadline(w, now_ns());
    t.tv_sec = (time_t)(at / (1000 * MS));
    t.tv_nsec = (long)(at % (1000 * MS));
    pthread_mutex_lock(&w->lock);
    while (!w->todo.head && !w->urgent) {
        if (pthread_cond_timedwait(&w->more, &w->lock, &t) != 0)
            break;
    }
    work = list_pop(&w->todo);
    pthread_mutex_unlock(&w->lock);
    return work;
}

static void idle(struct scribe *w)
{
    uint64_t now = now_ns();
    if (sync_due(w, now)) {
        sync_now(w);
        w->o.wake(w->o.context);
    }
    if (now - w->tidied_ns >= TIDY_MS * MS) {
        w->o.ops->tidy(w->o.store);
        w->tidied_ns = now;
        w->o.wake(w->o.context); /* it may have failed somebody */
    }
}

static void *run(void *context)
{
    struct scribe *w = context;
    w->tidied_ns = now_ns();
    while (!w->stopping || w->held.head) {
        struct work *work = w->stopping ? NULL : next(w);
        if (work) {
            perform(w, work);
            if (!w->begun_ns || (w->held_bytes < COMMIT_BYTES &&
                                 now_ns() - w->begun_ns < COMMIT_MS * MS))
                continue;
        }
        if (w->held.head)
            commit(w);
        idle(w);
    }
    return NULL;
}

int scribe_open(const struct scribe_options *o, struct scribe **out)
{
    int rc;
    struct scribe *w = calloc(1, sizeof *w);
    if (!w)
        return TRD_ENOMEM;
    w->o = *o;
    list_init(&w->todo);
    list_init(&w->done);
    list_init(&w->held);
    list_init(&w->put_by);
    list_init(&w->again);
    pthread_mutex_init(&w->lock, NULL);
    thread_cond(&w->more);
    rc = thread_start(&w->thread, run, w);
    if (rc) {
        pthread_cond_destroy(&w->more);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return rc;
    }
    *out = w;
    return 0;
}

void scribe_push(struct scribe *w, struct work *work)
{
    pthread_mutex_lock(&w->lock);
    list_push(&w->todo, work);
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}

struct work *scribe_done(struct scribe *w)
{
    struct work *work;
    pthread_mutex_lock(&w->lock);
    work = list_pop(&w->done);
    pthread_mutex_unlock(&w->lock);
    return work;
}

void scribe_close(struct scribe *w)
{
    if (!w)
        return;
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
