/* The forwarder's thread: which run's turn it is, sending, trying again.
 *
 * Invariants. `sent` moves only after the engine has confirmed, or a row of
 * the block is in the list of refused ones; it never goes back. Rows are sent
 * in the order of the queue, and a run's streams and losses after the rows
 * they count: read in the same transaction, or, while a whole block waits
 * behind them, later. No transaction is open for longer than a block is
 * read. */
#include "daemon/forward.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/log.h"
#include "daemon/store_sqlite.h"
#include "daemon/thread.h"
#include "tracerd/client.h"

#define MS UINT64_C(1000000)

enum {
    POLL_MS = 200,     /* rows gather so long */
    HEADS_MS = 1000,   /* between two times that streams are sent */
    BEHIND_MS = 5000,  /* the same, while more waits than a block */
    AGAIN_MIN_MS = 250,
    AGAIN_MAX_MS = 15000,
    LATE_MS = 5000,    /* an answer */
    BUSY_MS = 1000
};

struct refused_row {
    struct refused_row *next;
    int64_t id;
    char *reason;
};

struct forward_run {
    struct forward_run *next;
    char *path, *name;
    _Atomic int64_t queued, sent, total;
    _Atomic int done; /* nothing waits */
    _Atomic int left; /* the writer has let go */
    struct refused_row *refused; /* under lock, oldest first */
    /* the thread's own */
    sqlite3 *db;
    struct names *names;
    int64_t seen;         /* data_version, as streams were sent */
    int64_t object;       /* the last one that was sent */
    uint64_t heads_ns;    /* when they were */
    uint64_t written_ns;  /* of them */
};

struct forward {
    struct forward_options o;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct forward_run *runs; /* list under lock; taken out by the thread */
    _Atomic uint64_t end_ns;  /* what waits is sent until then; 0: on */
    /* the thread's own */
    struct house *house;
    struct block block;
    struct message message;   /* of the rows that are being sent */
    struct ahead ahead;       /* never running but while one is sent */
    bool ready;               /* tables are there */
    uint64_t asked_ns;        /* since when an answer is waited for; 0: none */
    uint64_t again_ms;        /* 0: all is well */
    uint64_t again_ns;        /* not before */
};

static uint64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec;
}

static uint64_t mono_ns(void)
{
    return now_ns(CLOCK_MONOTONIC);
}

/* Whether to give up what is being asked. Asked now and then: so it also
 * notes that an answer is late. */
static bool is_over(void *context)
{
    struct forward *f = context;
    _Atomic uint64_t *down = &f->o.counters->forward_down_ns;
    uint64_t end = atomic_load(&f->end_ns), now = mono_ns();
    if (f->asked_ns && now - f->asked_ns > LATE_MS * MS && !atomic_load(down))
        atomic_store(down, f->asked_ns);
    return end && now > end;
}

/* ---- the engine ---- */

/* As many daemons lose an engine at once, they do not come back at once. */
static uint64_t jitter(uint64_t ms)
{
    uint64_t x = mono_ns() / 1000;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    return ms * 3 / 4 + x % (ms / 2 + 1);
}

static void went_wrong(struct forward *f)
{
    struct store_counters *c = f->o.counters;
    int code = house_code(f->house);
    if (!f->again_ms && !atomic_load(&c->forward_down_ns))
        atomic_store(&c->forward_down_ns, mono_ns());
    if (!f->again_ms || code != atomic_load(&c->forward_code))
        log_error("store_down",
                  "store=\"%s\" error=\"%s\" then=\"records wait in the runs' "
                  "files and are sent later\"",
                  f->o.place.shown, house_why(f->house));
    if (!f->again_ms)
        f->again_ms = AGAIN_MIN_MS;
    else if (f->again_ms < AGAIN_MAX_MS)
        f->again_ms *= 2;
    atomic_fetch_add(&c->forward_failures, 1);
    atomic_store(&c->forward_code, code);
    f->again_ns = mono_ns() + jitter(f->again_ms) * MS;
    f->ready = false;
}

static void went_well(struct forward *f)
{
    if (f->again_ms)
        log_info("store_up", "store=\"%s\" then=\"what waits is sent\"",
                 f->o.place.shown);
    f->again_ms = 0;
    atomic_store(&f->o.counters->forward_down_ns, 0);
    atomic_store(&f->o.counters->forward_code, 0);
}

/* The engine is not to blame: what waits is read and made again. */
static void no_memory(struct forward *f)
{
    log_error("forward", "error=\"out of memory\" then=\"tried again\"");
    f->again_ns = mono_ns() + AGAIN_MIN_MS * MS;
}

/* Rows [first, last) of a block. */
static enum house_result send(struct forward *f, const struct block *b,
                              size_t first, size_t last)
{
    enum house_result rc = HOUSE_OK;
    if (!block_native(b, first, last, &f->message)) {
        no_memory(f);
        return HOUSE_DOWN;
    }
    f->asked_ns = mono_ns();
    if (!f->ready) {
        rc = house_make_tables(f->house, &f->o.place);
        f->ready = rc == HOUSE_OK;
    }
    if (rc == HOUSE_OK)
        rc = house_ask(f->house, b->of->insert, f->message.at, f->message.n,
                       NULL, NULL);
    else
        rc = HOUSE_DOWN;
    f->asked_ns = 0;
    if (rc == HOUSE_DOWN)
        went_wrong(f);
    else
        went_well(f);
    return rc;
}

/* ---- one run ---- */

static bool refuse(struct forward *f, struct forward_run *r, int64_t id)
{
    struct refused_row *x = calloc(1, sizeof *x), **p = &r->refused;
    if (x)
        x->reason = strdup(house_why(f->house));
    if (!x || !x->reason) {
        free(x);
        return false;
    }
    x->id = id;
    pthread_mutex_lock(&f->lock);
    while (*p)
        p = &(*p)->next;
    *p = x;
    pthread_mutex_unlock(&f->lock);
    if (atomic_fetch_add(&f->o.counters->forward_refused, 1) == 0)
        log_error("store_refuses",
                  "run=%s error=\"%s\" then=\"such records are kept in table "
                  "refused of the run's file\"",
                  r->name, house_why(f->house));
    return true;
}

/* Rows [first, last) of the block, in halves where the engine does not take
 * them. False: stopped somewhere. */
static bool send_rows(struct forward *f, struct forward_run *r, size_t first,
                      size_t last)
{
    const struct block *b = &f->block;
    switch (send(f, b, first, last)) {
    case HOUSE_OK:
        atomic_fetch_add(&f->o.counters->forwarded, last - first);
        return true;
    case HOUSE_REFUSED:
        if (last - first == 1)
            return refuse(f, r, b->id[first]);
        return send_rows(f, r, first, first + (last - first) / 2) &&
               send_rows(f, r, first + (last - first) / 2, last);
    default:
        return false;
    }
}

static int open_db(struct forward_run *r)
{
    int rc;
    if (r->db)
        return SQLITE_OK;
    rc = sqlite3_open_v2(r->path, &r->db,
                         SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(r->db, BUSY_MS);
    /* what the log has may not be settled: it is the writer's to copy */
    if (rc == SQLITE_OK)
        rc = sqlite3_db_config(r->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1,
                               NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(r->db, "PRAGMA query_only = 1", NULL, NULL, NULL);
    return rc;
}

/* What is read of a run at one moment. */
struct moment {
    struct block streams, losses, objects;
    int64_t version; /* of the file */
};

/* Where the block is not the last that waits, streams count records that are
 * not there yet: then they are sent only now and then, so that a run shows. */
static bool heads_are_due(const struct forward *f, const struct forward_run *r)
{
    uint64_t ago = mono_ns() - r->heads_ns;
    if (!r->heads_ns || atomic_load(&f->end_ns))
        return true;
    return ago > (f->block.full ? BEHIND_MS : HEADS_MS) * MS;
}

static int read_moment(struct forward *f, struct forward_run *r,
                       struct moment *m)
{
    uint64_t now = now_ns(CLOCK_REALTIME);
    int64_t sent = atomic_load(&r->sent);
    int rc = open_db(r);
    r->written_ns = now > r->written_ns ? now : r->written_ns + 1;
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(r->db, "BEGIN", NULL, NULL, NULL);
    if (rc == SQLITE_OK && !ahead_take(&f->ahead, r, sent, &f->block))
        rc = block_read(r->db, r->names, sent, &f->block);
    if (rc == SQLITE_OK)
        rc = file_get_int(r->db, "PRAGMA data_version", &m->version);
    if (rc == SQLITE_OK && m->version != r->seen && heads_are_due(f, r)) {
        rc = streams_read(r->db, r->name, r->written_ns, &m->streams);
        if (rc == SQLITE_OK)
            rc = losses_read(r->db, r->name, r->written_ns, &m->losses);
        if (rc == SQLITE_OK)
            rc = objects_read(r->db, r->name, r->object, &m->objects);
    }
    if (r->db && !sqlite3_get_autocommit(r->db))
        sqlite3_exec(r->db, "COMMIT", NULL, NULL, NULL);
    return rc;
}

static bool send_whole(struct forward *f, const struct block *b)
{
    return !b->rows || send(f, b, 0, b->rows) == HOUSE_OK;
}

/* What was read of them; all: nothing waits behind it. */
static bool send_heads(struct forward *f, struct forward_run *r,
                       const struct moment *m, bool all)
{
    const struct block *o = &m->objects;
    if (!m->streams.rows)
        return true;
    if (!send_whole(f, &m->streams) || !send_whole(f, &m->losses) ||
        !send_whole(f, o))
        return false;
    if (o->rows)
        r->object = o->id[o->rows - 1];
    all = all && o->rows < BLOCK_ROWS;
    r->heads_ns = mono_ns();
    if (all)
        r->seen = m->version;
    return true;
}

/* The block, while the next one is read, if all of that waits: streams that
 * count no more than a block's records are read with it. */
static bool send_block(struct forward *f, struct forward_run *r,
                       int64_t queued)
{
    const struct block *b = &f->block;
    int64_t last = b->id[b->rows - 1];
    bool good;
    if (b->full && queued - last >= BLOCK_ROWS)
        ahead_start(&f->ahead, r, r->db, r->names, last);
    good = send_rows(f, r, 0, b->rows);
    ahead_wait(&f->ahead);
    if (good) {
        atomic_store(&r->total, b->total);
        atomic_store(&r->sent, last);
    }
    return good;
}

/* One block of the run. True: more may wait. */
static bool serve(struct forward *f, struct forward_run *r)
{
    struct moment m = {.version = 0};
    struct block *b = &f->block;
    int64_t queued = atomic_load(&r->queued);
    bool good = true, more = false;
    int rc = read_moment(f, r, &m);
    if (rc != SQLITE_OK) {
        /* a file that is moved or damaged is the writer's to look after */
        log_error("forward", "run=%s error=\"%s\" then=\"tried again\"",
                  r->name, r->db ? sqlite3_errmsg(r->db) : "out of memory");
        f->again_ns = mono_ns() + AGAIN_MIN_MS * MS;
        good = false;
    }
    if (good && b->rows) {
        good = send_block(f, r, queued);
        more = good && b->full;
    }
    if (good)
        good = send_heads(f, r, &m, !more);
    if (good && !more && r->seen == m.version &&
        atomic_load(&r->sent) >= queued)
        atomic_store(&r->done, 1);
    block_free(&m.streams);
    block_free(&m.losses);
    block_free(&m.objects);
    return more && good;
}

/* ---- the thread ---- */

static void free_run(struct forward_run *r)
{
    while (r->refused) {
        struct refused_row *x = r->refused;
        r->refused = x->next;
        free(x->reason);
        free(x);
    }
    sqlite3_close(r->db);
    names_free(r->names);
    free(r->path);
    free(r->name);
    free(r);
}

/* Takes out what the writer has let go. */
static void drop_left(struct forward *f)
{
    pthread_mutex_lock(&f->lock);
    for (struct forward_run **p = &f->runs; *p;) {
        struct forward_run *r = *p;
        if (atomic_load(&r->left)) {
            *p = r->next;
            f->ahead.of = NULL; /* it may be of this one */
            free_run(r);
        } else {
            p = &r->next;
        }
    }
    pthread_mutex_unlock(&f->lock);
}

/* Some of each run; true: some has more. */
static bool turn(struct forward *f)
{
    struct forward_run *r;
    bool more = false;
    drop_left(f);
    pthread_mutex_lock(&f->lock);
    r = f->runs; /* new ones go to the head, and only we take one out */
    pthread_mutex_unlock(&f->lock);
    for (; r && !is_over(f); r = r->next) {
        if (mono_ns() < f->again_ns && !atomic_load(&f->end_ns))
            return false;
        if (!atomic_load(&r->left))
            more |= serve(f, r);
    }
    return more;
}

/* Whether all that waits is sent. */
static bool all_done(struct forward *f)
{
    bool done = true;
    pthread_mutex_lock(&f->lock);
    for (struct forward_run *r = f->runs; r; r = r->next)
        done &= atomic_load(&r->sent) >= atomic_load(&r->queued);
    pthread_mutex_unlock(&f->lock);
    return done;
}

static void rest(struct forward *f)
{
    struct timespec t;
    uint64_t at = mono_ns() + POLL_MS * MS;
    t.tv_sec = (time_t)(at / (1000 * MS));
    t.tv_nsec = (long)(at % (1000 * MS));
    pthread_mutex_lock(&f->lock);
    if (!atomic_load(&f->end_ns))
        pthread_cond_timedwait(&f->more, &f->lock, &t);
    pthread_mutex_unlock(&f->lock);
}

static void *run(void *context)
{
    struct forward *f = context;
    while (!atomic_load(&f->end_ns)) {
        if (mono_ns() < f->again_ns || !turn(f))
            rest(f);
    }
    /* the last words of all runs, once; an engine that is down stays so */
    if (!f->again_ms) {
        while (turn(f) && !f->again_ms)
            continue;
        if (!all_done(f))
            log_warn("stop", "store=\"%s\" then=\"what waits is sent after "
                             "the next start\"",
                     f->o.place.shown);
    }
    return NULL;
}

int forward_open(const struct forward_options *o, struct forward **out,
                 char why[HOUSE_WHY_BYTES])
{
    struct forward *f = calloc(1, sizeof *f);
    struct house_options h = {.stop = is_over, .context = f};
    int rc;

    if (!f)
        return TRD_ENOMEM;
    f->o = *o;
    h.place = &f->o.place;
    rc = house_open(&h, &f->house, why);
    if (rc) {
        free(f);
        return rc;
    }
    pthread_mutex_init(&f->lock, NULL);
    thread_cond(&f->more);
    rc = thread_start(&f->thread, run, f);
    if (rc) {
        snprintf(why, HOUSE_WHY_BYTES, "cannot make a thread");
        forward_free(f);
        return rc;
    }
    *out = f;
    return 0;
}

void forward_stop(struct forward *f)
{
    pthread_mutex_lock(&f->lock);
    atomic_store(&f->end_ns, mono_ns() + FORWARD_LAST_MS * MS);
    pthread_cond_signal(&f->more);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    for (struct forward_run *r = f->runs; r; r = r->next) {
        sqlite3_close(r->db); /* the last connection copies the log */
        r->db = NULL;
    }
}

void forward_free(struct forward *f)
{
    while (f->runs) {
        struct forward_run *r = f->runs;
        f->runs = r->next;
        free_run(r);
    }
    house_close(f->house);
    block_free(&f->block);
    block_free(&f->ahead.block);
    free(f->message.at);
    pthread_cond_destroy(&f->more);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

struct forward_run *forward_add(struct forward *f, const char *path,
                                const char *name)
{
    struct forward_run *r = calloc(1, sizeof *r);
    if (r) {
        r->path = strdup(path);
        r->name = strdup(name);
        r->names = names_new(name);
    }
    if (!r || !r->path || !r->name || !r->names) {
        if (r)
            free_run(r);
        return NULL;
    }
    pthread_mutex_lock(&f->lock);
    r->next = f->runs;
    f->runs = r;
    pthread_mutex_unlock(&f->lock);
    return r;
}

void forward_leave(struct forward_run *r)
{
    atomic_store(&r->left, 1);
}

void forward_queued(struct forward_run *r, int64_t id)
{
    atomic_store(&r->done, 0);
    atomic_store(&r->queued, id);
}

int64_t forward_sent(const struct forward_run *r, int64_t *total)
{
    int64_t sent = atomic_load(&r->sent);
    *total = atomic_load(&r->total); /* of it or of a later one */
    return sent;
}

bool forward_is_done(const struct forward_run *r)
{
    return atomic_load(&r->done) &&
           atomic_load(&r->sent) >= atomic_load(&r->queued);
}

bool forward_refused(struct forward *f, struct forward_run *r, int64_t *id,
                     char **reason)
{
    struct refused_row *x;
    pthread_mutex_lock(&f->lock);
    x = r->refused;
    if (x)
        r->refused = x->next;
    pthread_mutex_unlock(&f->lock);
    if (!x)
        return false;
    *id = x->id;
    *reason = x->reason;
    free(x);
    return true;
}
