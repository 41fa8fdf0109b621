/* The public calls: check, stamp, append. [any thread]
 *
 * Nothing here prints, exits, raises or waits for the daemon, except flush
 * and close for a stated time. In a forked child every call returns
 * TRD_ECLOSED: the stamp page reads zero there. */
#include "tracerd/client.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"
#include "client/sys.h"
#include "proto/place.h"
#include "tracerd/stats.h"

enum {
    DEFAULT_JOURNAL_BYTES = 32 << 20,
    DEFAULT_SPOOL_BYTES = 1 << 30,
    WAIT_FIRST_NS = 50000,
    WAIT_MAX_NS = 2000000,
    SAMPLE_BYTES = 16, /* of the widest dtype */
    FEW_SAMPLES = 64
};

/* Large arrays are on the stack only where they are needed. */
#if defined(__GNUC__)
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE
#endif

/* ---- fork ---- */

static unsigned fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    fork_generation++;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static volatile uint32_t *stamp_page(void)
{
    void *page = trd__sys.map(JOURNAL_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (page == MAP_FAILED)
        return NULL;
    madvise(page, JOURNAL_PAGE, MADV_WIPEONFORK);
    *(volatile uint32_t *)page = 1;
    return page;
}

int trd__usable(const struct trd_client *c)
{
    return c && *c->stamp && c->generation == fork_generation;
}

/* ---- directory ---- */

/* 0 when dir is a directory of ours that nobody else may enter;
 * TRD_ENOTFOUND when it is not there. */
static int is_private(const char *dir)
{
    struct stat st;
    if (trd__sys.lstat(dir, &st))
        return TRD_ENOTFOUND;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077)
        return TRD_EACCES;
    return 0;
}

static int find_dir(const char *asked, char *out, size_t cap)
{
    struct place_env env = {asked ? asked : getenv("TRACERD_DIR"),
                            getenv("XDG_RUNTIME_DIR"), geteuid()};
    size_t parent_n;
    int failed;
    for (unsigned i = 0; !(failed = place_dir(&env, i, out, cap, &parent_n));
         i++) {
        trd__sys.mkdir(out, 0700);
        /* what is there and not ours is refused: the daemon, which looks in
           the same order, is in no later one either */
        failed = is_private(out);
        if (failed != TRD_ENOTFOUND)
            return failed;
    }
    return failed == TRD_ENOTFOUND ? TRD_EACCES : failed;
}

/* ---- open ---- */

void trd_client_options_init(struct trd_client_options *o)
{
    memset(o, 0, sizeof *o);
    o->size = sizeof *o;
    o->journal_bytes = DEFAULT_JOURNAL_BYTES;
    o->spool_bytes = DEFAULT_SPOOL_BYTES;
}

static char *keep(char **at, const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = memcpy(*at, text, n);
    *at += n;
    return copy;
}

/* Copies the strings and fills the hello that introduces this process. */
static int introduce(struct trd_client *c, const struct trd_client_options *o,
                     struct journal_head *head, char *journal_name,
                     size_t cap)
{
    struct hello *h = &c->sender.hello;
    const char *run = o->run ? o->run : "run";
    const char *job = o->job ? o->job : "";
    const char *info = o->info ? o->info : "";
    char host[256] = "";
    if (!place_run_ok(run, strlen(run)))
        return TRD_ENAME;
    if (strlen(job) > WIRE_STRING_MAX || strlen(info) > WIRE_INFO_MAX)
        return TRD_ELIMIT;
    gethostname(host, sizeof host - 1);
    if (trd__sys.random(&head->epoch, sizeof head->epoch))
        return TRD_EIO;
    head->epoch &= INT64_MAX; /* a plain integer in every store */
    head->pid = (uint32_t)getpid();
    head->start_time = trd__start_time(head->pid);
    head->ring_bytes = o->journal_bytes;
    trd__boot_id(head->boot_id);
    int n = snprintf(journal_name, cap, "%s.%u.%08x" JOURNAL_SUFFIX, run,
                     o->rank, (unsigned)head->epoch);
    if (n < 0 || (size_t)n >= cap)
        return TRD_ENAME;
    c->strings = malloc(strlen(run) + strlen(job) + strlen(info) +
                        strlen(host) + strlen(journal_name) + 5);
    if (!c->strings)
        return TRD_ENOMEM;
    char *at = c->strings;
    h->version_min = h->version_max = WIRE_VERSION;
    h->rank = o->rank;
    h->attempt = o->attempt;
    h->world = o->world;
    h->pid = head->pid;
    h->start_time = head->start_time;
    memcpy(h->boot_id, head->boot_id, sizeof h->boot_id);
    h->mono_ns = trd__sys.mono_ns();
    h->real_ns = trd__sys.real_ns();
    h->first_seq = 1;
    h->max_len = FRAME_MAX_BYTES;
    h->run = slice_of(keep(&at, run));
    h->job = slice_of(keep(&at, job));
    h->info = slice_of(keep(&at, info));
    h->host = slice_of(keep(&at, host));
    h->journal = slice_of(keep(&at, journal_name));
    h->client = slice_of(TRD_VERSION);
    memcpy(c->sender.run, run, strlen(run) + 1);
    return 0;
}

/* What is chosen for a full journal, which the run then tells. */
static void open_spool(struct trd_client *c,
                       const struct trd_client_options *o, uint64_t epoch)
{
    struct hello *h = &c->sender.hello;
    struct trd__spool *sp = &c->sender.spool;
    const char *dir = o->spool_dir ? o->spool_dir : getenv("TRACERD_SPOOL");
    h->block_ms = o->block_ms;
    h->spool = slice_of("");
    sp->fd = -1;
    if (!dir || !dir[0] || !o->spool_bytes)
        return;
    int failed =
        trd__spool_open(sp, dir, o->spool_bytes, h->run, h->rank, epoch);
    atomic_store(&c->shared.spool_error, failed);
    if (failed)
        return;
    h->spool = slice_of(sp->path);
    h->spool_bytes = o->spool_bytes;
}

static int open_journal(struct trd_client *c, const char *asked_dir,
                        const char *name, const struct journal_head *head)
{
    static const struct slice none = {"", 0};
    uint8_t hello[JOURNAL_HELLO_MAX];
    size_t n = 0;
    int failed = hello_put(&c->sender.hello, hello, sizeof hello, &n);
    if (failed)
        return failed;
    c->open_error = find_dir(asked_dir, c->sender.dir, sizeof c->sender.dir);
    if (c->open_error)
        c->sender.dir[0] = 0;
    else
        c->open_error = trd__journal_open(&c->journal, c->sender.dir, name,
                                          head, hello, n);
    if (!c->open_error)
        return 0;
    /* records still reach a running daemon, but do not survive us */
    c->sender.hello.journal = none;
    return trd__journal_open(&c->journal, NULL, name, head, hello, n);
}

int trd_client_open(const struct trd_client_options *options,
                    struct trd_client **out)
{
    struct trd_client_options o;
    struct journal_head head;
    char name[TRD_MAX_RUN + 64];
    if (!options || !out || options->size < sizeof(size_t) ||
        options->size > 4096)
        return TRD_EINVAL;
    trd_client_options_init(&o);
    memcpy(&o, options,
           options->size < sizeof o ? options->size : sizeof o);
    if (o.rank >= RANK_LIMIT || o.attempt >= ATTEMPT_LIMIT ||
        !trd_sampling_name((int)o.sampling) ||
        (o.sampling == TRD_EVERY && !o.sampling_arg) ||
        !trd_histogram_name((int)o.histogram) ||
        o.spool_bytes > INT64_MAX || journal_layout(o.journal_bytes, &head))
        return TRD_EINVAL;
    memset(&head, 0, sizeof head);
    pthread_once(&fork_once, watch_forks);
    struct trd_client *c = calloc(1, sizeof *c);
    if (!c)
        return TRD_ENOMEM;
    c->generation = fork_generation;
    c->journal.fd = -1;
    c->sender.fd = -1;
    c->want.sampling = o.sampling;
    c->want.sampling_arg = o.sampling_arg;
    c->want.histogram = o.histogram;
    c->block_ns = o.block_ms * UINT64_C(1000000);
    pthread_mutex_init(&c->sender.name_lock, NULL);
    pthread_mutex_init(&c->device_lock, NULL);
    c->stamp = stamp_page();
    int failed = c->stamp ? introduce(c, &o, &head, name, sizeof name)
                          : TRD_ENOMEM;
    if (!failed) {
        open_spool(c, &o, head.epoch);
        failed = open_journal(c, o.dir, name, &head);
    }
    if (failed)
        goto out;
    c->sender.journal = &c->journal;
    c->sender.shared = &c->shared;
    atomic_store(&c->shared.last_error, c->open_error);
    if (!o.no_thread && trd__sender_start(&c->sender))
        atomic_store(&c->shared.last_error, TRD_EIO);
    *out = c;
    return 0;
out:
    trd__spool_close(&c->sender.spool, 0);
    if (c->stamp)
        trd__sys.unmap((void *)(uintptr_t)c->stamp, JOURNAL_PAGE);
    pthread_mutex_destroy(&c->sender.name_lock);
    pthread_mutex_destroy(&c->device_lock);
    free(c->strings);
    free(c);
    return failed;
}

void trd_client_close(struct trd_client *c)
{
    if (!c || !trd__usable(c))
        return; /* a forked child owns nothing of it */
    trd__lost_flush(&c->shared, &c->journal,
                    trd__sys.mono_ns() - c->sender.hello.mono_ns);
    int done = trd__sender_stop(&c->sender);
    if (trd__gpus_close(c))
        done = 0; /* losses that the daemon will find in the journal */
    if (atomic_load(&c->shared.any_pending)) { /* a ring full to the end */
        c->journal.reserve = 0;
        trd__lost_flush(&c->shared, &c->journal,
                        trd__sys.mono_ns() - c->sender.hello.mono_ns);
        done = 0;
    }
    trd__spool_close(&c->sender.spool, done);
    c->journal.state.clean = 1;
    trd__journal_publish(&c->journal);
    /* nothing was ever said: there is nothing to take over */
    int empty = !trd__journal_last(&c->journal);
    trd__journal_close(&c->journal, done || empty);
    trd__sys.unmap((void *)(uintptr_t)c->stamp, JOURNAL_PAGE);
    pthread_mutex_destroy(&c->sender.name_lock);
    pthread_mutex_destroy(&c->device_lock);
    free(c->strings);
    free(c);
}

/* ---- names ---- */

static int name_ok(const char *text)
{
    return text && strlen(text) <= TRD_MAX_NAME;
}

static int intern_object(struct trd_client *c, const struct trd_site *site,
                         uint32_t *id)
{
    uint8_t body[2 * TRD_MAX_NAME + 64];
    struct writer w = writer_of(body, sizeof body);
    struct wire_object o = {site->instance, slice_of(site->class_name),
                            slice_of(site->module)};
    *id = 0;
    if (!site->class_name[0])
        return 0;
    int failed = object_put(&w, &o);
    return failed ? failed
                  : trd__journal_intern(&c->journal, ENTRY_OBJECT, body,
                                        (size_t)(w.at - body), id);
}

int trd_site(struct trd_client *c, const struct trd_site *site, uint32_t *id)
{
    uint8_t body[TRD_MAX_NAME + 64];
    struct writer w = writer_of(body, sizeof body);
    uint32_t object;
    if (!trd__usable(c))
        return TRD_ECLOSED;
    if (!site || !id || !trd_pass_name((int)site->pass) ||
        (unsigned)site->io > TRD_OUTPUT || !site->class_name ||
        !site->module || !site->path)
        return TRD_EINVAL;
    if (!name_ok(site->class_name) || !name_ok(site->module) ||
        !name_ok(site->path))
        return TRD_ELIMIT;
    int failed = intern_object(c, site, &object);
    if (failed)
        return failed;
    struct wire_site s = {object, site->pass, site->io, site->position,
                          slice_of(site->path)};
    failed = site_put(&w, &s);
    if (!failed)
        failed = trd__journal_intern(&c->journal, ENTRY_SITE, body,
                                     (size_t)(w.at - body), id);
    return failed;
}

int trd_note(struct trd_client *c, const char *text, uint32_t *id)
{
    uint8_t body[TRD_MAX_NAME + 8];
    struct writer w = writer_of(body, sizeof body);
    if (!trd__usable(c))
        return TRD_ECLOSED;
    if (!text || !id)
        return TRD_EINVAL;
    if (!name_ok(text))
        return TRD_ELIMIT;
    int failed = note_put(&w, slice_of(text));
    if (!failed)
        failed = trd__journal_intern(&c->journal, ENTRY_NOTE, body,
                                     (size_t)(w.at - body), id);
    return failed;
}

/* ---- records ---- */

int trd__lose(struct trd_client *c, int error)
{
    enum trd_cause cause = error == TRD_EFULL    ? TRD_LOST_RING_FULL
                           : error == TRD_ELIMIT ? TRD_LOST_QUOTA
                                                 : TRD_LOST_ERROR;
    if (error == TRD_EFULL && c->journal.fd < 0)
        cause = TRD_LOST_NO_SPACE;
    trd__lost(&c->shared, cause, 1);
    return error;
}

int trd__intern_shape(struct trd_client *c, const struct trd_tensor *t,
                      uint32_t *id)
{
    uint8_t body[TRD_MAX_DIMS * 10 + 8];
    struct writer w = writer_of(body, sizeof body);
    put_u8(&w, (uint8_t)t->ndim);
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return TRD_EINVAL;
        put_varint(&w, (uint64_t)t->shape[i]);
    }
    return trd__journal_intern(&c->journal, ENTRY_SHAPE, body,
                               (size_t)(w.at - body), id);
}

static int known(const struct trd_client *c, uint32_t id)
{
    return id <= atomic_load_explicit(&c->journal.dict_n,
                                      memory_order_acquire);
}

int trd__check_place(const struct trd_client *c, uint32_t site,
                     const struct trd_when *when)
{
    if (when->step > INT64_MAX || when->iteration > INT64_MAX ||
        !known(c, site) || !known(c, when->note))
        return TRD_EINVAL;
    return site ? 0 : TRD_ELIMIT; /* its name found no room */
}

/* The body of a record. */
struct parts {
    const void *head, *tail;
    size_t head_n, tail_n;
};

static int put(struct trd_client *c, const struct parts *p)
{
    return trd__journal_put(&c->journal, ENTRY_RECORD, p->head, p->head_n,
                            p->tail, p->tail_n);
}

/* Whether nothing was freed since somebody waited in vain: a daemon that is
 * gone costs block_ms once and not with every record. */
static int is_in_vain(struct trd_client *c)
{
    return atomic_load(&c->in_vain) == atomic_load(&c->journal.tail_pos) + 1;
}

/* The journal is full, and there is somebody who frees it. */
static NOINLINE int put_waiting(struct trd_client *c, const struct parts *p)
{
    struct timespec nap = {0, WAIT_FIRST_NS};
    uint64_t start = trd__sys.mono_ns(), waited = 0;
    int failed = TRD_EFULL;
    while (failed == TRD_EFULL && waited < c->block_ns && !is_in_vain(c)) {
        trd__sender_wake(&c->sender);
        nanosleep(&nap, NULL);
        if (nap.tv_nsec < WAIT_MAX_NS)
            nap.tv_nsec *= 2;
        failed = put(c, p);
        waited = trd__sys.mono_ns() - start;
    }
    if (failed == TRD_EFULL && waited >= c->block_ns)
        atomic_store(&c->in_vain, atomic_load(&c->journal.tail_pos) + 1);
    atomic_fetch_add(&c->blocked_ns, waited);
    return failed;
}

static int append(struct trd_client *c, const struct wire_record *r,
                  const void *samples, int may_wait, uint8_t *head,
                  size_t cap)
{
    struct writer w = writer_of(head, cap);
    int failed = record_head_put(&w, r);
    if (failed)
        return trd__lose(c, failed);
    if (atomic_load_explicit(&c->shared.any_pending, memory_order_relaxed))
        trd__lost_tell(&c->shared, &c->journal, r->t_ns);
    struct parts p = {head, samples, (size_t)(w.at - head),
                      (size_t)r->stats.sample_n *
                          trd_dtype_bytes((int)r->dtype)};
    failed = put(c, &p);
    if (failed == TRD_EFULL && may_wait && c->block_ns && c->sender.started)
        failed = put_waiting(c, &p);
    return failed ? trd__lose(c, failed) : 0;
}

static NOINLINE int append_histogram(struct trd_client *c,
                                     const struct wire_record *r,
                                     const void *samples, int may_wait)
{
    uint8_t head[RECORD_HISTOGRAM_BYTES];
    return append(c, r, samples, may_wait, head, sizeof head);
}

static int append_any(struct trd_client *c, const struct wire_record *r,
                      const void *samples, int may_wait)
{
    uint8_t head[RECORD_HEAD_BYTES];
    if (r->stats.histogram)
        return append_histogram(c, r, samples, may_wait);
    return append(c, r, samples, may_wait, head, sizeof head);
}

int trd__append(struct trd_client *c, const struct wire_record *r,
                const void *samples)
{
    return append_any(c, r, samples, 0);
}

int trd_submit(struct trd_client *c, uint32_t site,
               const struct trd_when *when, const struct trd_tensor *tensor,
               const struct trd_stats *stats, const void *samples)
{
    struct wire_record r = {.site = site};
    if (!trd__usable(c))
        return TRD_ECLOSED;
    if (!when || !tensor || !stats || tensor->ndim < 0 ||
        tensor->ndim > TRD_MAX_DIMS || (tensor->ndim && !tensor->shape) ||
        !trd_dtype_name((int)tensor->dtype) ||
        !record_figures_ok(tensor->dtype, stats) ||
        (stats->sample_n && !samples))
        return trd__lose(c, TRD_EINVAL);
    int failed = trd__check_place(c, site, when);
    if (!failed)
        failed = trd__intern_shape(c, tensor, &r.shape);
    if (failed)
        return trd__lose(c, failed);
    r.t_ns = trd__sys.mono_ns() - c->sender.hello.mono_ns;
    r.dtype = tensor->dtype;
    r.when = *when;
    r.stats = *stats;
    return append_any(c, &r, samples, 1);
}

/* samples: room for k. */
static int submit_cpu(struct trd_client *c, uint32_t site,
                      const struct trd_when *when,
                      const struct trd_tensor *tensor, uint32_t k,
                      struct trd_histogram *histogram, uint8_t *samples)
{
    struct trd_stats stats;
    struct trd_want want = c->want;
    struct trd_when at = *when;
    want.samples = k;
    int failed = trd_stats_cpu_as(tensor, &want, &stats, samples, histogram);
    if (failed == TRD_EUNSUPPORTED || failed == TRD_ENODATA) {
        memset(&stats, 0, sizeof stats);
        at.labels |= failed == TRD_ENODATA ? TRD_L_NODATA
                                           : TRD_L_UNSUPPORTED;
    } else if (failed) {
        return trd__lose(c, failed);
    }
    return trd_submit(c, site, &at, tensor, &stats, samples);
}

/* Three, so that a small tensor needs little stack: each page of it is
 * touched. */
static NOINLINE int submit_cpu_few(struct trd_client *c, uint32_t site,
                                   const struct trd_when *when,
                                   const struct trd_tensor *tensor, uint32_t k)
{
    uint8_t samples[FEW_SAMPLES * SAMPLE_BYTES];
    return submit_cpu(c, site, when, tensor, k, NULL, samples);
}

static NOINLINE int submit_cpu_many(struct trd_client *c, uint32_t site,
                                    const struct trd_when *when,
                                    const struct trd_tensor *tensor,
                                    uint32_t k,
                                    struct trd_histogram *histogram)
{
    uint8_t samples[TRD_MAX_SAMPLES * SAMPLE_BYTES];
    return submit_cpu(c, site, when, tensor, k, histogram, samples);
}

static NOINLINE int submit_cpu_histogram(struct trd_client *c, uint32_t site,
                                         const struct trd_when *when,
                                         const struct trd_tensor *tensor,
                                         uint32_t k)
{
    struct trd_histogram histogram;
    return submit_cpu_many(c, site, when, tensor, k, &histogram);
}

int trd_submit_cpu(struct trd_client *c, uint32_t site,
                   const struct trd_when *when,
                   const struct trd_tensor *tensor, uint32_t k)
{
    if (!trd__usable(c))
        return TRD_ECLOSED;
    if (!when || !tensor)
        return trd__lose(c, TRD_EINVAL);
    if (c->want.histogram)
        return submit_cpu_histogram(c, site, when, tensor, k);
    return k <= FEW_SAMPLES
               ? submit_cpu_few(c, site, when, tensor, k)
               : submit_cpu_many(c, site, when, tensor, k, NULL);
}

void trd_lost(struct trd_client *c, enum trd_cause cause, uint64_t count)
{
    if (trd__usable(c) && (unsigned)cause < TRD_CAUSE_COUNT && count)
        trd__lost(&c->shared, cause, count);
}

/* ---- questions ---- */

int trd_flush(struct trd_client *c, int timeout_ms)
{
    if (!trd__usable(c))
        return TRD_ECLOSED;
    uint64_t end = trd__sys.mono_ns() +
                   (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;
    int failed = trd__gpus_wait(c, end);
    if (failed)
        return failed;
    uint64_t wanted = trd__journal_last(&c->journal);
    trd__sender_wake(&c->sender);
    while (atomic_load(&c->shared.committed_seq) < wanted) {
        struct timespec ms = {0, 1000000};
        if (trd__sys.mono_ns() >= end)
            return TRD_ETIMEDOUT;
        nanosleep(&ms, NULL);
    }
    return 0;
}

void trd_counters(struct trd_client *c, struct trd_counters *out)
{
    memset(out, 0, sizeof *out);
    if (!trd__usable(c)) {
        out->last_error = TRD_ECLOSED;
        return;
    }
    out->submitted = trd__journal_last(&c->journal);
    out->committed = atomic_load(&c->shared.committed_seq);
    out->durable = atomic_load(&c->shared.durable_seq);
    for (unsigned i = 0; i < TRD_CAUSE_COUNT; i++)
        out->lost[i] = atomic_load(&c->shared.lost[i]);
    out->connects = atomic_load(&c->shared.connects);
    out->journal_bytes = c->journal.head.ring_bytes;
    out->journal_used_bytes = trd__journal_used(&c->journal);
    out->connected = atomic_load(&c->shared.connected);
    out->last_error = atomic_load(&c->shared.last_error);
    out->blocked_ns = atomic_load(&c->blocked_ns);
    out->spool_used_bytes = atomic_load(&c->shared.spool_bytes);
    out->spool_error = atomic_load(&c->shared.spool_error);
}

void trd_run_name(struct trd_client *c, char *out, size_t cap)
{
    out[0] = 0;
    if (!trd__usable(c))
        return;
    pthread_mutex_lock(&c->sender.name_lock);
    snprintf(out, cap, "%s", c->sender.run);
    pthread_mutex_unlock(&c->sender.name_lock);
}
