/* Which run a hello belongs to, and what became of runs nobody speaks for
 * any more. Writer thread.
 *
 * A name is tried as NAME, NAME-2, NAME-3, ...: the file that already has
 * the epoch is meant, else the first of the same job, else a new one. */
#include "daemon/store_sqlite.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum {
    NAMES_MAX = 9999, /* NAME-9999 is the last that is tried */
    HOLES_MAX = 16,   /* deleted runs between others */
    OPEN_RUNS_MAX = 256,
    KNOWN_MAX = 16384
};

/* ---- files that are not open ---- */

void known_drop(struct store *s, dev_t dev, ino_t ino)
{
    struct known **p = &s->known;
    while (*p) {
        struct known *k = *p;
        if (k->key.dev != dev || k->key.ino != ino) {
            p = &k->next;
            continue;
        }
        *p = k->next;
        free(k->job);
        free(k->epochs);
        free(k);
    }
}

void known_free(struct store *s)
{
    while (s->known)
        known_drop(s, s->known->key.dev, s->known->key.ino);
}

static int read_epochs(sqlite3 *db, struct known *k)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, "SELECT epoch FROM stream", -1, &q, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        uint64_t *more = realloc(k->epochs, (k->epochs_n + 1) * sizeof *more);
        rc = more ? SQLITE_OK : SQLITE_NOMEM;
        if (!more)
            break;
        k->epochs = more;
        k->epochs[k->epochs_n++] = (uint64_t)sqlite3_column_int64(q, 0);
    }
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int known_read(const char *path, struct known *k, bool *ours)
{
    char job[WIRE_STRING_MAX + 1] = "";
    enum content content = CONTENT_FOREIGN;
    sqlite3 *db = NULL;
    int rc = file_connect(path, &db);
    wal_keep(db, true);
    if (rc == SQLITE_OK)
        rc = file_look_at(db, &content);
    *ours = content != CONTENT_FOREIGN;
    k->empty = content == CONTENT_EMPTY;
    if (rc == SQLITE_OK && content == CONTENT_OURS)
        rc = file_get_meta(db, "job", job, sizeof job);
    if (rc == SQLITE_OK && content == CONTENT_OURS)
        rc = read_epochs(db, k);
    sqlite3_close(db);
    k->job = strdup(job);
    return rc == SQLITE_OK && !k->job ? SQLITE_NOMEM : rc;
}

/* What is known of the file; *out is NULL when it is not a run of ours. */
static int known_get(struct store *s, const char *path, const struct stat *st,
                     const struct known **out)
{
    struct file_key key = file_key_of(st);
    struct known *k;
    bool ours = true;
    size_t n = 0;
    int rc;

    for (k = s->known; k; k = k->next, n++) {
        if (file_key_same(&k->key, &key)) {
            *out = k;
            return SQLITE_OK;
        }
    }
    if (n >= KNOWN_MAX)
        known_free(s);
    known_drop(s, st->st_dev, st->st_ino); /* what it was before */
    k = calloc(1, sizeof *k);
    if (!k)
        return SQLITE_NOMEM;
    k->key = key;
    rc = known_read(path, k, &ours);
    k->next = s->known;
    s->known = k;
    *out = ours ? k : NULL;
    if (rc != SQLITE_OK || !ours)
        known_drop(s, st->st_dev, st->st_ino);
    return rc;
}

static bool known_has(const struct known *k, uint64_t epoch)
{
    for (size_t i = 0; i < k->epochs_n; i++) {
        if (k->epochs[i] == epoch)
            return true;
    }
    return false;
}

/* ---- which run a hello means ---- */

static struct run *run_by_name(struct store *s, const char *name)
{
    struct run *r = s->runs;
    while (r && strcmp(r->name, name) != 0)
        r = r->next;
    return r;
}

/* Whether an open run has the stream, and whether it has any. Not knowing is
 * no "no": the stream would go on in another run. */
static int run_has(struct run *r, uint64_t epoch, bool *has, bool *any)
{
    sqlite3_stmt *q = NULL;
    int rc;
    *has = *any = true;
    for (struct stream *t = r->streams; t; t = t->next) {
        if (t->epoch == epoch)
            return SQLITE_OK;
    }
    rc = sqlite3_prepare_v2(r->db, "SELECT total(epoch = ?), count(*)"
                                   " FROM stream",
                            -1, &q, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(q, 1, (sqlite3_int64)epoch);
        rc = sqlite3_step(q);
    }
    if (rc == SQLITE_ROW) {
        *has = sqlite3_column_int64(q, 0) > 0;
        *any = r->streams || sqlite3_column_int64(q, 1) > 0;
    }
    sqlite3_finalize(q);
    return rc == SQLITE_ROW ? SQLITE_OK : rc;
}

static void name_of(struct slice base, unsigned k, char out[TRD_MAX_RUN + 1])
{
    char tail[16] = "";
    size_t n;
    if (k > 1)
        snprintf(tail, sizeof tail, "-%u", k);
    n = strlen(tail);
    if (base.n > TRD_MAX_RUN - n)
        base.n = TRD_MAX_RUN - n;
    memcpy(out, base.text, base.n);
    memcpy(out + base.n, tail, n + 1);
}

static bool equal(struct slice job, const char *other)
{
    return strlen(other) == job.n && !memcmp(job.text, other, job.n);
}

/* A file that a killed daemon had just made: nobody's records are in it, so
 * its name is still free. */
static bool unused(const struct known *k, struct slice job)
{
    return !k->epochs_n && (k->empty || equal(job, k->job));
}

static bool same_job(struct slice job, const char *other)
{
    return job.n && equal(job, other);
}

enum fit {
    FIT_FREE,  /* no such file */
    FIT_OTHER, /* another run, or a file that is not ours */
    FIT_JOB,   /* the same job */
    FIT_EPOCH  /* the very stream */
};

static int fit_of(struct store *s, const struct store_hello *h,
                  const char *name, const char *path, enum fit *out)
{
    struct run *r = run_by_name(s, name);
    const struct known *k = NULL;
    struct stat st;
    int rc;

    *out = FIT_OTHER;
    if (lstat(path, &st) != 0) {
        *out = FIT_FREE;
        return errno == ENOENT ? SQLITE_OK : SQLITE_IOERR;
    }
    if (r && r->ino == st.st_ino && r->dev == st.st_dev) {
        bool has, any;
        rc = run_has(r, h->epoch, &has, &any);
        *out = has                                    ? FIT_EPOCH
               : !any && equal(h->hello.job, r->job) ? FIT_FREE
               : same_job(h->hello.job, r->job)       ? FIT_JOB
                                                      : FIT_OTHER;
        return rc;
    }
    if (!S_ISREG(st.st_mode))
        return SQLITE_OK;
    rc = known_get(s, path, &st, &k);
    if (file_is_damage(rc)) {
        file_put_aside(path);
        *out = FIT_FREE;
        return SQLITE_OK;
    }
    if (rc == SQLITE_OK && k)
        *out = known_has(k, h->epoch)           ? FIT_EPOCH
               : unused(k, h->hello.job)        ? FIT_FREE
               : same_job(h->hello.job, k->job) ? FIT_JOB
                                                : FIT_OTHER;
    return rc;
}

static void path_of(const struct store *s, const char *name, char out[PATH_MAX])
{
    /* the length was checked when the store was opened */
    if (snprintf(out, PATH_MAX, "%s/%s.db", s->data, name) >= PATH_MAX)
        out[0] = '\0';
}

/* The number behind the name, 0 when none is left. */
static int choose(struct store *s, const struct store_hello *h, unsigned *out)
{
    unsigned free_k = 0, job_k = 0, holes = 0;
    char name[TRD_MAX_RUN + 1], path[PATH_MAX];

    *out = 0;
    for (unsigned k = 1; k <= NAMES_MAX && holes < HOLES_MAX; k++) {
        enum fit fit;
        int rc;
        name_of(h->hello.run, k, name);
        path_of(s, name, path);
        rc = fit_of(s, h, name, path, &fit);
        if (rc != SQLITE_OK)
            return rc;
        if (fit == FIT_EPOCH) {
            *out = k;
            return SQLITE_OK;
        }
        if (fit == FIT_JOB && !job_k)
            job_k = k;
        if (fit == FIT_FREE) {
            holes++;
            if (!free_k)
                free_k = k;
        }
    }
    *out = job_k ? job_k : free_k;
    return SQLITE_OK;
}

static struct run *refused(struct store_welcome *a, unsigned reason,
                           uint32_t retry_ms, const char *why, int code)
{
    a->reason = reason;
    a->retry_ms = retry_ms;
    snprintf(a->why, sizeof a->why, "%s%s%s", why, code ? ": " : "",
             code ? sqlite3_errstr(code) : "");
    return NULL;
}

/* Room for one more: a run that ended stays open for some seconds, and many
 * short ones in a row would use the limit up. */
static void close_idlest(struct store *s)
{
    struct run *idlest = NULL;
    for (struct run *r = s->runs; r; r = r->next)
        if (run_is_idle(r) && !r->unsafe && !queue_has_sent(r) &&
            (!idlest || r->idle_ns < idlest->idle_ns))
            idlest = r;
    if (idlest)
        run_close(idlest);
}

struct run *run_find(struct store *s, const struct store_hello *h,
                     struct store_welcome *a)
{
    char name[TRD_MAX_RUN + 1], path[PATH_MAX];
    struct run *r;
    unsigned k;
    int rc = choose(s, h, &k);

    if (rc != SQLITE_OK && space_is_full(s)) /* not even to read it */
        return refused(a, REASON_STORE, FULL_MS,
                       "the disk of the runs is full", 0);
    if (rc != SQLITE_OK)
        return refused(a, REASON_STORE, 1000, "a run's file cannot be read",
                       rc);
    if (!k)
        return refused(a, REASON_QUOTA, 0, "too many runs of this name", 0);
    name_of(h->hello.run, k, name);
    path_of(s, name, path);
    r = run_by_name(s, name);
    if (r) {
        struct stat st;
        if (stat(path, &st) == 0 && st.st_ino == r->ino && st.st_dev == r->dev)
            return r;
        run_fail(r, SQLITE_READONLY_DBMOVED, "file");
    }
    if (atomic_load(&s->counters.runs_open) >= OPEN_RUNS_MAX)
        close_idlest(s);
    if (atomic_load(&s->counters.runs_open) >= OPEN_RUNS_MAX)
        return refused(a, REASON_BUSY, 2000, "too many runs are open", 0);
    rc = run_open(s, name, path, h->hello.job, &r);
    if (rc == SQLITE_FULL)
        return refused(a, REASON_STORE, FULL_MS,
                       "the disk of the runs is full", 0);
    if (rc != SQLITE_OK)
        return refused(a, REASON_STORE, 1000, "the run's file cannot be opened",
                       rc);
    return r;
}
