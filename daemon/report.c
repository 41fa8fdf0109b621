/* The state of the daemon as keys and values. Loop thread.
 *
 * Keys are a promise; new ones come at the end of their group. A row
 * `problem` is a sentence about something that is wrong now and what to do;
 * while there is one the daemon is not healthy. */
#include "daemon/report.h"

#include "proto/clickhouse/house.h"
#include "tracerd/client.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define U(v) ((unsigned long long)(v))
#define MIB(v) (U(v) >> 20)

enum { FAILING_S = 5 };

static uint64_t mono_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* Clients come again after a second, so a store that fails shows again. */
static bool is_failing(const struct store_counters *c)
{
    uint64_t last = atomic_load(&c->failed_ns);
    return last && mono_ns() - last < FAILING_S * UINT64_C(1000000000);
}

static void daemon_rows(const struct report *r, struct status *out)
{
    const struct server_counters *s = server_counters(r->server);
    const struct answer_counters *q = answer_counters(r->answer);

    status_add(out, "version", "%s", TRD_VERSION);
    status_add(out, "pid", "%ld", (long)getpid());
    status_add(out, "dir", "%s", r->config->dir);
    status_add(out, "data", "%s", r->config->data);
    status_add(out, "store", "%s",
               *r->config->store ? r->config->store : r->hub->ops->name);
    status_add(out, "started_ns", "%llu", U(r->started_ns));
    status_add(out, "uptime_s", "%llu",
               U((mono_ns() - r->started_mono_ns) / 1000000000));
    status_add(out, "clients", "%u", s->connections);
    status_add(out, "clients_limit", "%u", r->config->clients);
    status_add(out, "clients_accepted", "%llu", U(s->accepted));
    status_add(out, "clients_refused", "%llu", U(s->refused));
    status_add(out, "malformed", "%llu", U(s->malformed + q->wrong));
    status_add(out, "frames", "%llu", U(s->frames));
    status_add(out, "bytes", "%llu", U(s->bytes));
}

static void store_rows(const struct report *r, struct status *out)
{
    const struct store_counters *c = r->hub->ops->counters(r->hub->store);

    status_add(out, "records", "%llu", U(atomic_load(&c->records)));
    status_add(out, "commits", "%llu", U(atomic_load(&c->commits)));
    status_add(out, "syncs", "%llu", U(atomic_load(&c->syncs)));
    status_add(out, "store_failures", "%llu", U(atomic_load(&c->failures)));
    status_add(out, "runs_open", "%u", atomic_load(&c->runs_open));
    status_add(out, "streams_open", "%u", atomic_load(&c->streams_open));
    status_add(out, "memory_bytes", "%llu", U(r->hub->used));
    status_add(out, "memory_limit_bytes", "%llu", U(r->hub->limit));
    status_add(out, "dictionary_entries", "%llu",
               U(atomic_load(&c->dict_entries)));
    status_add(out, "store_failing", "%u", is_failing(c));
    status_add(out, "runs_open_bytes", "%llu",
               U(atomic_load(&c->runs_bytes)));
    status_add(out, "wal_bytes", "%llu", U(atomic_load(&c->wal_bytes)));
    status_add(out, "wal_waits", "%llu", U(atomic_load(&c->wal_waits)));
    status_add(out, "disk_free_bytes", "%llu",
               U(atomic_load(&c->disk_free_bytes)));
    status_add(out, "disk_needed_bytes", "%llu",
               U(atomic_load(&c->disk_needed_bytes)));
    status_add(out, "disk_reserve_bytes", "%llu",
               U(atomic_load(&c->reserve_bytes)));
    status_add(out, "disk_full", "%u", atomic_load(&c->disk_full));
}

/* What is on its way to a store elsewhere. */
static void queue_rows(const struct report *r, struct status *out)
{
    const struct store_counters *c = r->hub->ops->counters(r->hub->store);
    uint64_t down = atomic_load(&c->forward_down_ns);

    if (!*r->config->store)
        return;
    status_add(out, "queue_rows", "%llu", U(atomic_load(&c->queue_rows)));
    status_add(out, "queue_bytes", "%llu", U(atomic_load(&c->queue_bytes)));
    status_add(out, "queue_limit_bytes", "%llu",
               U(r->config->store_queue_mb) << 20);
    status_add(out, "queue_full", "%u", atomic_load(&c->queue_full));
    status_add(out, "queue_fills", "%llu", U(atomic_load(&c->queue_fills)));
    status_add(out, "forwarded", "%llu", U(atomic_load(&c->forwarded)));
    status_add(out, "forward_refused", "%llu",
               U(atomic_load(&c->forward_refused)));
    status_add(out, "forward_failures", "%llu",
               U(atomic_load(&c->forward_failures)));
    status_add(out, "store_down", "%u", down != 0);
    if (down)
        status_add(out, "store_down_s", "%llu",
                   U((mono_ns() - down) / 1000000000));
}

static void queue_problems(const struct report *r, struct status *out)
{
    const struct store_counters *c = r->hub->ops->counters(r->hub->store);
    uint64_t down = atomic_load(&c->forward_down_ns);
    char why[64];
    int code = atomic_load(&c->forward_code);

    if (code > 0)
        snprintf(why, sizeof why, "its error %d: %s", code,
                 house_meaning(code));
    else
        snprintf(why, sizeof why, "%s", house_meaning(code));
    if (down)
        status_add(out, "problem",
                   "the store takes nothing for %llu s (%s): %llu records "
                   "(%llu MiB of %u) wait in '%.200s'; the log has its words",
                   U((mono_ns() - down) / 1000000000), why,
                   U(atomic_load(&c->queue_rows)),
                   MIB(atomic_load(&c->queue_bytes)),
                   r->config->store_queue_mb, r->config->data);
    if (atomic_load(&c->queue_full))
        status_add(out, "problem",
                   "store_queue_mb is reached: nothing is taken until the "
                   "store has some of it; clients keep records in their "
                   "journals");
    if (atomic_load(&c->forward_refused))
        status_add(out, "problem",
                   "the store refused %llu records: table refused of the "
                   "runs' files has them and says why",
                   U(atomic_load(&c->forward_refused)));
}

static void problem_rows(const struct report *r, struct status *out)
{
    const struct store_counters *c = r->hub->ops->counters(r->hub->store);

    if (atomic_load(&c->disk_full))
        status_add(out, "problem",
                   "the disk of '%.200s' is full (%llu MiB free): nothing is "
                   "stored until %llu MiB are free; remove or move away what "
                   "you do not need",
                   r->config->data, MIB(atomic_load(&c->disk_free_bytes)),
                   MIB(atomic_load(&c->disk_needed_bytes)) + 1);
    else if (is_failing(c))
        status_add(out, "problem",
                   "records cannot be stored now (%s): clients keep them in "
                   "their journals; the log says which run and file",
                   atomic_load(&c->failed_why));
}

static void loss_rows(const struct report *r, struct status *out)
{
    const struct store_counters *c = r->hub->ops->counters(r->hub->store);

    uint64_t last = atomic_load(&c->lost_ns);

    status_add(out, "lost", "%llu", U(atomic_load(&c->losses)));
    for (unsigned i = 0; wire_cause_name(i); i++) {
        uint64_t lost = atomic_load(&c->lost[i]);
        char key[48];
        snprintf(key, sizeof key, "lost.%s", wire_cause_name(i));
        if (lost)
            status_add(out, key, "%llu", U(lost));
    }
    if (last)
        status_add(out, "lost_ago_s", "%llu",
                   U((mono_ns() - last) / 1000000000));
}

static void stream_rows(const struct report *r, struct status *out)
{
    for (const struct intake *i = r->hub->intakes; i; i = i->next) {
        uint64_t durable = atomic_load(&i->marks.durable);
        uint64_t committed = atomic_load(&i->marks.committed);
        if (i->session.state < SESSION_OPEN || !i->leave)
            continue;
        status_add(out, "stream",
                   "run=%s attempt=%u rank=%u pid=%u epoch=%016llx "
                   "received=%llu committed=%llu durable=%llu via=%s "
                   "journal=%s lost=%llu",
                   i->run, i->attempt, i->rank, i->owner.pid,
                   U(i->session.epoch), U(i->session.have), U(committed),
                   U(durable), i->live ? "socket" : "journal", i->journal,
                   U(atomic_load(&i->marks.lost)));
    }
}

void report_fill(const struct report *r, struct status *out)
{
    const struct answer_counters *q = answer_counters(r->answer);
    const struct adopt_counters *j = adopt_counters(r->adopt);

    daemon_rows(r, out);
    store_rows(r, out);
    queue_rows(r, out);
    status_add(out, "questions", "%llu", U(q->questions));
    status_add(out, "journals_alive", "%u", j->waiting);
    status_add(out, "journals_adopted", "%llu", U(j->adopted));
    status_add(out, "journals_bad", "%llu", U(j->bad));
    loss_rows(r, out);
    problem_rows(r, out);
    queue_problems(r, out);
    stream_rows(r, out);
}
