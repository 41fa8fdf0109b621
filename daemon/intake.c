/* Frames to the writer and back. Loop thread.
 *
 * Invariants: an intake is on the hub's list from its hello until its leave
 * comes back; works of one stream reach the writer in the order they came;
 * every byte of a work counts in hub->used from allocation to free. */
#include "daemon/intake.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    CREDIT_MAX = 4 * 1024 * 1024,
    CREDIT_MIN = FRAME_MAX_BYTES + FRAME_HEADER_BYTES
};

int intake_init(struct intake *i, struct hub *hub, const struct intake_ops *ops)
{
    memset(i, 0, sizeof *i);
    i->hub = hub;
    i->ops = ops;
    i->leave = calloc(1, sizeof *i->leave);
    if (!i->leave)
        return TRD_ENOMEM;
    session_init(&i->session);
    return 0;
}

static void unlist(struct intake *i)
{
    if (!i->link)
        return;
    *i->link = i->next;
    if (i->next)
        i->next->link = i->link;
    i->link = NULL;
    i->hub->speaking--;
}

static void enlist(struct intake *i)
{
    struct hub *hub = i->hub;
    i->next = hub->intakes;
    if (i->next)
        i->next->link = &i->next;
    hub->intakes = i;
    i->link = &hub->intakes;
    hub->speaking++;
}

void intake_fini(struct intake *i)
{
    unlist(i);
    free(i->leave);
    i->leave = NULL;
}

struct work *intake_room(struct intake *i, const struct frame *f, bool *oom)
{
    struct hub *hub = i->hub;
    size_t room = sizeof(struct work) + f->len;
    struct work *work;

    *oom = false;
    if (hub->used + room > hub->limit)
        return NULL;
    work = malloc(room);
    if (!work) {
        *oom = true;
        return NULL;
    }
    memset(work, 0, sizeof *work);
    work->from = i;
    work->frame = *f;
    work->room = room;
    hub->used += room;
    return work;
}

void intake_drop(struct intake *i, struct work *work)
{
    if (!work)
        return;
    i->hub->used -= work->room;
    free(work);
}

static void push(struct intake *i, struct work *work)
{
    work->stream = &i->stream;
    work->from = i;
    i->under_way++;
    scribe_push(i->hub->scribe, work);
}

static enum work_kind kind_of(uint16_t frame_type)
{
    switch (frame_type) {
    case FRAME_HELLO:
        return WORK_HELLO;
    case FRAME_DICT:
        return WORK_DICT;
    case FRAME_DATA:
        return WORK_DATA;
    case FRAME_GAP:
        return WORK_GAP;
    case FRAME_PING:
        return WORK_CLOCK;
    default:
        return WORK_BYE;
    }
}

static void copy_text(char *out, size_t cap, struct slice s)
{
    size_t n = s.n < cap - 1 ? s.n : cap - 1;
    memcpy(out, s.text, n);
    out[n] = '\0';
}

static void remember(struct intake *i, const struct work *work)
{
    struct hello h;
    if (hello_get(work->payload, work->frame.len, &h))
        return;
    i->owner.pid = h.pid;
    i->owner.start_time = h.start_time;
    memcpy(i->owner.boot_id, h.boot_id, sizeof h.boot_id);
    i->rank = h.rank;
    i->attempt = h.attempt;
    copy_text(i->run, sizeof i->run, h.run);
    copy_text(i->journal, sizeof i->journal, h.journal);
}

/* One speaker a stream: the one before must be gone, or the same process
 * that connects again. */
static bool take_over(struct intake *i)
{
    struct intake *other = intake_of(i->hub, i->session.epoch);
    if (!other)
        return true;
    if (!other->live || (!process_same(&other->owner, &i->owner) &&
                         process_alive(&other->owner)))
        return false;
    other->ops->evict(other);
    return true;
}

struct verdict intake_frame(struct intake *i, struct work *work,
                            enum store_end end, uint64_t now_ns)
{
    struct verdict v =
        session_frame(&i->session, &work->frame, work->payload, now_ns);

    i->heard_ns = now_ns;
    if (!(v.act & DO_STORE)) {
        intake_drop(i, work);
        return v;
    }
    work->kind = kind_of(work->frame.type);
    work->end = end;
    if (work->kind == WORK_HELLO) {
        remember(i, work);
        if (!take_over(i)) {
            struct verdict owned = {DO_CLOSE, REASON_OWNED,
                                    "the stream is alive elsewhere"};
            i->session.state = SESSION_NEW;
            intake_drop(i, work);
            return owned;
        }
        enlist(i);
        work->welcome = &i->welcome;
        work->marks = &i->marks;
        work->uid = i->uid;
    }
    push(i, work);
    return v;
}

void intake_leave(struct intake *i, enum store_end end)
{
    struct work *leave = i->leave;
    if (!leave)
        return;
    i->leave = NULL;
    leave->kind = WORK_LEAVE;
    leave->end = end;
    leave->room = sizeof *leave;
    i->hub->used += leave->room;
    push(i, leave);
}

struct intake *intake_of(const struct hub *hub, uint64_t epoch)
{
    for (struct intake *i = hub->intakes; i; i = i->next) {
        if (i->session.epoch == epoch && i->leave)
            return i;
    }
    return NULL;
}

bool hub_is_full(const struct hub *hub)
{
    const struct store_counters *c = hub->ops->counters(hub->store);
    return atomic_load(&c->disk_full) || atomic_load(&c->queue_full);
}

uint32_t hub_credit(const struct hub *hub)
{
    size_t free_bytes = hub->limit > hub->used ? hub->limit - hub->used : 0;
    size_t share = free_bytes / (hub->speaking ? hub->speaking : 1);
    if (hub_is_full(hub))
        return 0;
    if (share > CREDIT_MAX)
        share = CREDIT_MAX;
    return share < CREDIT_MIN ? CREDIT_MIN : (uint32_t)share;
}

static void on_hello(struct intake *i)
{
    if (!i->welcome.reason && atomic_load(&i->marks.failed)) {
        i->welcome.reason = REASON_STORE;
        i->welcome.retry_ms = 1000;
        snprintf(i->welcome.why, sizeof i->welcome.why,
                 "the run's file cannot be written");
    }
    i->told_durable = atomic_load(&i->marks.durable);
    i->told_dict = atomic_load(&i->marks.dict_durable);
    i->told_committed = atomic_load(&i->marks.committed);
    session_welcome(&i->session, i->told_committed, i->welcome.dict_n);
    if (!i->welcome.reason)
        memcpy(i->run, i->welcome.run, sizeof i->run);
    i->ops->welcomed(i);
}

/* Gives the work back to its speaker and frees it. */
static void take_back(struct hub *hub, struct work *work)
{
    struct intake *i = work->from;
    enum work_kind kind = work->kind;

    hub->used -= work->room;
    free(work);
    if (kind == WORK_SYNC || kind == WORK_STOP) {
        (kind == WORK_SYNC ? hub->synced : hub->stopped)(hub->context);
        return;
    }
    i->under_way--;
    if (kind == WORK_HELLO)
        on_hello(i);
    else if (kind == WORK_BYE)
        i->ops->ended(i);
    else if (kind == WORK_LEAVE) {
        unlist(i);
        i->ops->gone(i);
    }
}

static void look_at_marks(struct intake *i)
{
    uint64_t durable = atomic_load(&i->marks.durable);
    uint32_t dict = atomic_load(&i->marks.dict_durable);
    uint64_t committed = atomic_load(&i->marks.committed);
    uint32_t failed = atomic_load(&i->marks.failed);

    if (durable == i->told_durable && committed == i->told_committed &&
        dict == i->told_dict && failed == i->told_failed)
        return;
    i->told_durable = durable;
    i->told_committed = committed;
    i->told_dict = dict;
    i->told_failed = failed;
    i->ops->moved(i);
}

void hub_drain(struct hub *hub)
{
    struct work *work;
    struct intake *next;
    /* marks first: an end is told after the marks that it made */
    for (struct intake *i = hub->intakes; i; i = next) {
        next = i->next;
        if (i->session.state >= SESSION_OPEN)
            look_at_marks(i);
    }
    while ((work = scribe_done(hub->scribe)))
        take_back(hub, work);
}

int hub_init(struct hub *hub)
{
    hub->sync = calloc(1, sizeof *hub->sync);
    hub->stop = calloc(1, sizeof *hub->stop);
    return hub->sync && hub->stop ? 0 : TRD_ENOMEM;
}

void hub_fini(struct hub *hub)
{
    free(hub->sync);
    free(hub->stop);
    hub->sync = hub->stop = NULL;
}

static void tell(struct hub *hub, struct work **work, enum work_kind kind)
{
    struct work *w = *work;
    if (!w)
        return;
    *work = NULL;
    w->kind = kind;
    scribe_push(hub->scribe, w);
}

void hub_sync(struct hub *hub)
{
    tell(hub, &hub->sync, WORK_SYNC);
}

void hub_stop(struct hub *hub)
{
    tell(hub, &hub->stop, WORK_STOP);
}
