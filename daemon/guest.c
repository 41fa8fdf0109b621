/* One journal of a dead process, spoken through a session as its process
 * would have: hello, dictionary, records, gaps for what is torn, bye. Loop
 * thread, but for load_work() and more_work() (a worker's).
 *
 * The same epoch resumes where the connection had come to, so nothing is
 * stored twice. The file is read into memory and never mapped: whatever
 * happens to it cannot fault. What the process had moved to a spool comes
 * before what is in the ring; a spool that is not there is a loss. */
#include "daemon/guest.h"

#include "daemon/log.h"
#include "daemon/spool.h"
#include "proto/crc32c.h"
#include "tracerd/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

enum {
    LOAD_BYTES = 1024 * 1024,
    UNDER_WAY_MAX = 16 /* frames at the writer */
};

enum stage {
    STAGE_LOAD, /* being read */
    STAGE_HELLO,
    STAGE_WELCOME, /* the hello is with the store */
    STAGE_DICT,
    STAGE_SPOOL,   /* the records of the spool */
    STAGE_RECORDS, /* those of the ring */
    STAGE_BYE,
    STAGE_ENDING, /* the bye is with the store */
    STAGE_LEAVING /* nothing more is sent */
};

/* What comes next of spool or ring. */
enum next {
    NEXT_END,
    NEXT_ENTRY,
    NEXT_HOLE,
    NEXT_WAIT /* it is being read */
};

struct guest {
    struct intake intake; /* first */
    struct guest_options o;
    struct guest_report report; /* what will be told at the end */
    uv_work_t work;
    uint8_t *image; /* anonymous memory of o.size bytes */
    bool loaded;    /* the whole file, or more of the spool, was read */
    int load_errno; /* why the file was not; 0: it ended too early */
    bool loading;   /* a worker has it */
    enum stage stage;
    struct journal_head head;
    struct journal_state state;
    struct journal_walk walk;
    struct spool spool;
    enum spool_found found;
    char spool_path[WIRE_STRING_MAX + 1];
    const char *spool_why; /* it is not good, or not now */
    uint64_t dict_at;
    struct entry entry; /* looked at and not yet sent */
    uint64_t entry_seq;
    uint64_t hole_last; /* of a hole, which begins with entry_seq */
    enum next next;     /* what it is */
    bool walked;
};

/* ---- the end ---- */

static void guest_free(struct guest *g)
{
    struct guest_options o = g->o;
    struct guest_report report = g->report;
    if (g->image)
        munmap(g->image, (size_t)g->o.size);
    spool_fini(&g->spool);
    intake_fini(&g->intake);
    free(g);
    o.over(o.context, &report);
}

static void leave(struct guest *g)
{
    if (g->intake.link)
        intake_leave(&g->intake, STORE_LEFT);
    else
        guest_free(g);
}

/* Ends this attempt: at once, or when worker and writer let go. */
static void guest_end(struct guest *g, enum guest_fate fate, const char *why)
{
    g->report.fate = fate;
    snprintf(g->report.why, sizeof g->report.why, "%s", why);
    g->stage = STAGE_LEAVING;
    if (!g->loading)
        leave(g);
}

/* The spool cannot be read, but may later. */
static void spool_later(struct guest *g, const char *why)
{
    char all[sizeof g->report.why];
    snprintf(all, sizeof all, "its spool '%.160s': %s", g->spool_path, why);
    guest_end(g, GUEST_LATER, all);
}

static void guest_bad(struct guest *g, const char *why)
{
    guest_end(g, GUEST_BAD, why);
}

/* All of it is durable. The journal goes after the spool that only it
 * names. */
static void guest_done(struct guest *g)
{
    if (!spool_remove(&g->spool))
        log_warn("spool",
                 "file=\"%s\" error=\"%s\" then=\"it stays; all of it is "
                 "stored\"",
                 g->spool_path, strerror(errno));
    snprintf(g->report.run, sizeof g->report.run, "%s", g->intake.run);
    g->report.attempt = g->intake.attempt;
    g->report.rank = g->intake.rank;
    g->report.clean = g->state.clean;
    guest_end(g, GUEST_ADOPTED, "");
}

/* ---- speaking ---- */

/* Hands one frame over whose payload was written into work. False when the
 * guest came to its end by it. */
static bool speak(struct guest *g, struct work *work, uint16_t type,
                  uint64_t seq, size_t n)
{
    struct verdict v;
    work->frame.version = WIRE_VERSION;
    work->frame.type = type;
    work->frame.epoch = g->head.epoch;
    work->frame.seq = seq;
    work->frame.len = (uint32_t)n;
    work->frame.crc = crc32c(0, work->payload, n);
    v = intake_frame(&g->intake, work,
                     g->state.clean ? STORE_ENDED : STORE_DEAD,
                     uv_now(g->o.loop) * MS);
    if (!(v.act & DO_CLOSE))
        return true;
    if (v.reason == REASON_OWNED)
        guest_end(g, GUEST_LATER, "the stream is alive elsewhere");
    else
        guest_bad(g, v.why);
    return false;
}

static struct work *room(struct guest *g, uint32_t bytes)
{
    struct frame f = {.len = bytes};
    bool oom;
    return intake_room(&g->intake, &f, &oom);
}

/* The hello the process would send now. */
static bool say_hello(struct guest *g)
{
    struct work *work = room(g, FRAME_CONTROL_MAX_BYTES);
    struct hello h;
    size_t n;

    if (!work)
        return false;
    if (journal_hello_get(g->image, &g->head, &h)) {
        intake_drop(&g->intake, work);
        guest_bad(g, "its hello does not hold");
        return false;
    }
    h.first_seq = g->state.durable_seq + 1;
    if (g->found == SPOOL_THERE && g->spool.head.first_seq < h.first_seq)
        h.first_seq = g->spool.head.first_seq;
    if (hello_put(&h, work->payload, FRAME_CONTROL_MAX_BYTES, &n)) {
        intake_drop(&g->intake, work);
        guest_bad(g, "its hello does not hold");
        return false;
    }
    g->stage = STAGE_WELCOME;
    return speak(g, work, FRAME_HELLO, 0, n);
}

static void put_entry(struct writer *w, const struct entry *e)
{
    put_bytes(w, e->body - ENTRY_HEADER_BYTES, e->len);
    for (size_t n = e->len; n < entry_span(e->len); n++)
        put_u8(w, 0);
}

static bool fits(const struct writer *w, const struct entry *e)
{
    return (size_t)(w->end - w->at) >= entry_span(e->len);
}

/* A frame of dictionary entries. */
static bool say_dict(struct guest *g)
{
    struct work *work = room(g, FRAME_MAX_BYTES);
    struct batch b = {.n = 0, .first = g->intake.session.dict_have + 1};
    struct writer w;
    uint64_t at = g->dict_at;
    struct entry e;
    int rc = 0;

    if (!work)
        return false;
    w = writer_of(work->payload + BATCH_BYTES, FRAME_MAX_BYTES - BATCH_BYTES);
    while ((rc = journal_dict_next(g->image, &g->head, &at, &e)) == 1) {
        if (e.number < b.first) {
            g->dict_at = at;
            continue; /* the store has it */
        }
        if (e.number != b.first + b.n || !fits(&w, &e))
            break; /* out of order: nothing behind it can be told apart */
        put_entry(&w, &e);
        b.n++;
        g->dict_at = at;
    }
    if (b.n == 0) { /* the end, or damage: records that need more are lost */
        intake_drop(&g->intake, work);
        g->stage = STAGE_SPOOL;
        return true;
    }
    batch_put(work->payload, &b);
    return speak(g, work, FRAME_DICT, 0,
                 (size_t)(w.at - (uint8_t *)work->payload));
}

static void next_of_ring(struct guest *g)
{
    switch (journal_next(&g->walk, &g->entry, &g->entry_seq)) {
    case JOURNAL_ENTRY:
        g->next = NEXT_ENTRY;
        break;
    case JOURNAL_HOLE:
        g->next = NEXT_HOLE;
        g->hole_last = g->walk.seq - 1;
        break;
    default:
        g->next = NEXT_END;
    }
}

static void next_of_spool(struct guest *g)
{
    enum spool_step step;
    do { /* the words are in the journal */
        step = spool_step(&g->spool, &g->entry, &g->entry_seq);
    } while (step == SPOOL_WORD);
    g->next = step == SPOOL_ENTRY  ? NEXT_ENTRY
              : step == SPOOL_HOLE ? NEXT_HOLE
              : step == SPOOL_MORE ? NEXT_WAIT
                                   : NEXT_END;
    g->hole_last = g->spool.walk.seq - 1;
}

/* Whether the store has it already; what it has of a hole is cut off. */
static bool is_known(struct guest *g)
{
    uint64_t have = g->intake.session.have;
    if (g->next == NEXT_ENTRY) {
        g->report.records += g->entry_seq <= have;
        return g->entry_seq <= have;
    }
    if (g->next != NEXT_HOLE)
        return false;
    if (g->entry_seq <= have)
        g->entry_seq = have + 1;
    return g->hole_last <= have;
}

/* Makes sure that entry, next hold what comes next. */
static void look_ahead(struct guest *g)
{
    if (g->walked)
        return;
    do {
        if (g->stage == STAGE_SPOOL)
            next_of_spool(g);
        else
            next_of_ring(g);
    } while (is_known(g));
    g->walked = true;
}

/* The records first to last will not come. */
static bool say_gap(struct guest *g, uint64_t first, uint64_t last,
                    enum trd_cause cause)
{
    struct work *work = room(g, 64);
    struct gap gap = {.first = first, .last = last, .cause = cause};
    size_t n;
    if (!work)
        return false;
    g->walked = false;
    if (gap_put(&gap, work->payload, 64, &n)) {
        intake_drop(&g->intake, work);
        guest_bad(g, "its sequence numbers do not hold");
        return false;
    }
    return speak(g, work, FRAME_GAP, gap.first, n);
}

static void more_work(uv_work_t *work)
{
    struct guest *g = work->data;
    g->loaded = spool_load(&g->spool);
}

static void on_more(uv_work_t *work, int status)
{
    struct guest *g = work->data;
    g->loading = false;
    if (g->stage == STAGE_LEAVING)
        leave(g);
    else if (status != 0 || !g->loaded)
        spool_later(g, "it cannot be read");
    else
        guest_feed(g);
}

static bool read_on(struct guest *g)
{
    if (g->loading)
        return false;
    g->walked = false;
    g->loading = true;
    if (uv_queue_work(g->o.loop, &g->work, more_work, on_more) != 0) {
        g->loading = false;
        spool_later(g, "it cannot be read");
    }
    return false;
}

/* Spool or ring have nothing more. What the ring gave up and the spool should
 * have is lost. */
static bool say_end(struct guest *g)
{
    uint64_t have = g->intake.session.have;
    if (g->stage == STAGE_RECORDS) {
        g->stage = STAGE_BYE;
        return true;
    }
    if (have < g->state.durable_seq)
        return say_gap(g, have + 1, g->state.durable_seq, TRD_LOST_STORE);
    g->stage = STAGE_RECORDS;
    g->walked = false;
    return true;
}

/* A frame of records. */
static bool say_records(struct guest *g)
{
    struct work *work;
    struct batch b = {.n = 0, .first = 0};
    struct writer w;
    uint64_t first;

    look_ahead(g);
    if (g->next == NEXT_END)
        return say_end(g);
    if (g->next == NEXT_WAIT)
        return read_on(g);
    if (g->next == NEXT_HOLE)
        return say_gap(g, g->entry_seq, g->hole_last, TRD_LOST_TORN);
    work = room(g, FRAME_MAX_BYTES);
    if (!work)
        return false;
    first = g->entry_seq;
    w = writer_of(work->payload + BATCH_BYTES, FRAME_MAX_BYTES - BATCH_BYTES);
    while (g->next == NEXT_ENTRY && fits(&w, &g->entry)) {
        put_entry(&w, &g->entry);
        b.n++;
        g->walked = false;
        look_ahead(g);
    }
    g->report.records += b.n;
    batch_put(work->payload, &b);
    return speak(g, work, FRAME_DATA, first,
                 (size_t)(w.at - (uint8_t *)work->payload));
}

static bool say_bye(struct guest *g)
{
    struct work *work = room(g, 0);
    if (!work)
        return false;
    g->stage = STAGE_ENDING;
    return speak(g, work, FRAME_BYE, g->intake.session.have, 0);
}

/* As much as there is room for. A step that says false may have freed g. */
void guest_feed(struct guest *g)
{
    bool more = !g->loading;
    while (more && g->intake.under_way < UNDER_WAY_MAX &&
           !hub_is_full(g->intake.hub)) {
        switch (g->stage) {
        case STAGE_HELLO:
            more = say_hello(g);
            break;
        case STAGE_DICT:
            more = say_dict(g);
            break;
        case STAGE_SPOOL:
        case STAGE_RECORDS:
            more = say_records(g);
            break;
        case STAGE_BYE:
            more = say_bye(g);
            break;
        default:
            return;
        }
    }
}

static void on_welcomed(struct intake *i)
{
    struct guest *g = (struct guest *)i;
    if (g->stage != STAGE_WELCOME)
        return;
    if (!i->welcome.reason) {
        g->stage = STAGE_DICT;
        guest_feed(g);
    } else if (i->welcome.retry_ms) {
        guest_end(g, GUEST_LATER, i->welcome.why);
    } else {
        guest_bad(g, i->welcome.why);
    }
}

static void on_moved(struct intake *i)
{
    struct guest *g = (struct guest *)i;
    unsigned failed = atomic_load(&i->marks.failed);
    if (g->stage == STAGE_LEAVING || !failed)
        return;
    if (failed == REASON_QUOTA)
        guest_bad(g, "too many different names");
    else
        guest_end(g, GUEST_LATER, "the store failed");
}

static void on_ended(struct intake *i)
{
    struct guest *g = (struct guest *)i;
    if (g->stage == STAGE_ENDING && !atomic_load(&i->marks.failed))
        guest_done(g);
}

static void on_evict(struct intake *i)
{
    (void)i; /* never asked for: only connections are taken over */
}

static void on_gone(struct intake *i)
{
    guest_free((struct guest *)i);
}

static const struct intake_ops guest_ops = {
    .welcomed = on_welcomed,
    .moved = on_moved,
    .ended = on_ended,
    .evict = on_evict,
    .gone = on_gone,
};

/* ---- reading ---- */

static bool all_zero(const uint8_t *p, size_t n)
{
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

/* What the journal says of a spool. */
static void find_spool(struct guest *g)
{
    struct hello h;
    if (journal_head_get(g->image, g->o.size, &g->head) ||
        journal_hello_get(g->image, &g->head, &h))
        return;
    snprintf(g->spool_path, sizeof g->spool_path, "%.*s", (int)h.spool.n,
             h.spool.text);
    g->found =
        spool_open(&g->spool, &h, g->head.epoch, g->o.uid, &g->spool_why);
}

/* Worker thread. Free space is zero and takes no memory. */
static void load_work(uv_work_t *work)
{
    struct guest *g = work->data;
    uint8_t *chunk = malloc(LOAD_BYTES);
    uint64_t at = 0;

    g->image = mmap(NULL, (size_t)g->o.size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g->image == MAP_FAILED)
        g->image = NULL;
    g->load_errno = g->image && chunk ? 0 : ENOMEM;
    while (g->image && chunk && at < g->o.size) {
        uint64_t left = g->o.size - at;
        size_t want = left < LOAD_BYTES ? (size_t)left : LOAD_BYTES;
        ssize_t n = pread(g->o.fd, chunk, want, (off_t)at);
        if (n < 0)
            g->load_errno = errno;
        if (n <= 0)
            break;
        for (size_t i = 0; i < (size_t)n; i += JOURNAL_PAGE) {
            size_t part =
                (size_t)n - i < JOURNAL_PAGE ? (size_t)n - i : JOURNAL_PAGE;
            if (!all_zero(chunk + i, part))
                memcpy(g->image + at + i, chunk + i, part);
        }
        at += (uint64_t)n;
    }
    g->loaded = at == g->o.size;
    free(chunk);
    if (g->loaded)
        find_spool(g);
}

static void on_loaded(uv_work_t *work, int status)
{
    struct guest *g = work->data;

    g->loading = false;
    if (g->stage == STAGE_LEAVING) {
        leave(g);
        return;
    }
    if (status != 0 || !g->image || !g->loaded) {
        char why[sizeof g->report.why];
        snprintf(why, sizeof why, "it cannot be read whole: %s",
                 g->load_errno ? strerror(g->load_errno)
                               : "it ended too early");
        guest_end(g, GUEST_LATER, why);
        return;
    }
    if (journal_head_get(g->image, g->o.size, &g->head) ||
        journal_state_get(g->image, &g->state)) {
        guest_bad(g, "its head or state does not hold");
        return;
    }
    /* that the daemon had not all that was freed tells that there is one */
    if (g->found == SPOOL_LATER ||
        (g->found == SPOOL_AWAY && g->o.patient &&
         g->state.durable_seq > g->state.committed_seq)) {
        spool_later(g, g->spool_why);
        return;
    }
    if (g->found == SPOOL_THERE &&
        g->spool.head.first_seq > g->state.durable_seq + 1) {
        spool_fini(&g->spool);
        g->found = SPOOL_BAD;
        g->spool_why = "it begins behind its journal";
    }
    if (g->found == SPOOL_BAD)
        log_warn("spool",
                 "file=\"%s\" why=\"%s\" then=\"what only it has is lost\"",
                 g->spool_path, g->spool_why);
    journal_walk_init(&g->walk, g->image, &g->head, &g->state);
    g->stage = STAGE_HELLO;
    guest_feed(g);
}

int guest_open(const struct guest_options *o, struct guest **out)
{
    struct guest *g = calloc(1, sizeof *g);
    if (!g || intake_init(&g->intake, o->hub, &guest_ops)) {
        free(g);
        return TRD_ENOMEM;
    }
    g->o = *o;
    g->intake.uid = o->uid;
    g->work.data = g;
    g->loading = true;
    spool_init(&g->spool);
    if (uv_queue_work(o->loop, &g->work, load_work, on_loaded) != 0) {
        intake_fini(&g->intake);
        free(g);
        return TRD_EIO;
    }
    *out = g;
    return 0;
}

void guest_give_up(struct guest *g)
{
    if (g->stage != STAGE_LEAVING)
        guest_end(g, GUEST_LATER, "tracerd stops");
}
