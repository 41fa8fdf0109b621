/* The log of a run, RUN.db-wal, stays short. Writer thread.
 *
 * SQLite begins the log anew when all of it was copied to the file and no
 * reader looks into it. Readers that come and go without a gap keep it from
 * both, and the log grows by all that is written. So a run whose log passes a
 * limit is not written to until its readers are gone: of those that come
 * meanwhile none keeps anything from being copied, and when all is copied
 * they read the file itself. A reader that stays for longer than that is not
 * waited for again before the log has doubled. */
#include "daemon/store_sqlite.h"

#include "daemon/log.h"

#include <stdio.h>
#include <sys/stat.h>

#define MS UINT64_C(1000000)

enum {
    COPY_PAGES = 4000, /* that many are copied at once */
    MORE_PAGES = 1000, /* while the log cannot begin anew */
    FRAME_BYTES = 24,  /* of the log, before each page */
    PAGE_BYTES = 4096
};

static int on_commit(void *context, sqlite3 *db, const char *name, int pages)
{
    struct run *r = context;
    (void)db;
    (void)name;
    if ((unsigned)pages < r->wal_pages) /* it was begun anew */
        r->wal_next = COPY_PAGES;
    r->wal_pages = (unsigned)pages;
    return SQLITE_OK;
}

static uint64_t wal_bytes(const struct run *r)
{
    return (uint64_t)r->wal_pages * (PAGE_BYTES + FRAME_BYTES);
}

void wal_open(struct run *r)
{
    r->wal_next = COPY_PAGES;
    r->wal_limit = r->store->wal_limit;
    sqlite3_wal_hook(r->db, on_commit, r);
}

void wal_committed(struct run *r)
{
    if (r->wal_pages < r->wal_next)
        return;
    /* whatever comes of it, the log is good: it is tried again later */
    (void)sqlite3_wal_checkpoint_v2(r->db, NULL, SQLITE_CHECKPOINT_PASSIVE,
                                    NULL, NULL);
    r->wal_next = r->wal_pages + MORE_PAGES;
}

static void begin_waiting(struct run *r, uint64_t now)
{
    r->wal_wait_ns = now;
    atomic_fetch_add(&r->store->counters.wal_waits, 1);
    log_info("wal",
             "run=%s bytes=%llu then=\"its records wait until its readers "
             "are gone\"",
             r->name, (unsigned long long)wal_bytes(r));
}

bool wal_holds(struct run *r)
{
    uint64_t now;
    if (r->open_transaction || wal_bytes(r) < r->wal_limit)
        return false;
    if (sqlite3_wal_checkpoint_v2(r->db, NULL, SQLITE_CHECKPOINT_TRUNCATE,
                                  NULL, NULL) == SQLITE_OK) {
        r->wal_pages = 0;
        r->wal_next = COPY_PAGES;
        r->wal_limit = r->store->wal_limit;
        r->wal_wait_ns = 0;
        return false;
    }
    now = store_now_ns();
    if (!r->wal_wait_ns)
        begin_waiting(r, now);
    if (now - r->wal_wait_ns < r->store->wal_wait_ms * MS)
        return true;
    r->wal_limit = 2 * wal_bytes(r);
    r->wal_wait_ns = 0;
    log_warn("wal",
             "run=%s bytes=%llu why=\"somebody reads for long\" then=\"its "
             "log grows to %llu bytes before it is waited for again\"",
             r->name, (unsigned long long)wal_bytes(r),
             (unsigned long long)r->wal_limit);
    return false;
}

/* What the files of the open runs take, for whoever asks. */
void wal_measure(struct store *s)
{
    char path[PATH_MAX + 8];
    uint64_t runs = 0, logs = 0;
    struct stat st;
    for (const struct run *r = s->runs; r; r = r->next) {
        snprintf(path, sizeof path, "%s-wal", r->path);
        runs += (uint64_t)r->size;
        if (stat(path, &st) == 0)
            logs += (uint64_t)st.st_size;
    }
    atomic_store(&s->counters.runs_bytes, runs);
    atomic_store(&s->counters.wal_bytes, logs);
}
