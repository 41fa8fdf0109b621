/* The log of a run, RUN.db-wal, stays short. Writer thread.
 *
 * SQLite begins the log anew when all of it was copied to the file and no
 * reader looks into it. Readers that come and go without a gap keep it from
 * both, and the log grows by all that is written. So a run whose log passes a
 * limit is not written to until its readers are gone: of those that come
 * meanwhile none keeps anything from being copied, and when all is copied
 * they read the file itself. A reader that stays for longer than that is not
 * waited for again before the log has doubled.
 *
 * After a sync that failed, what was written before may never reach the disk:
 * the system forgets that it is to be written, and a later sync says that all
 * is well. A file that is read back shows it all the same, and a log that is
 * then copied into the run's file spoils that, if the power fails before the
 * copy is whole. So a log that an earlier connection left is written again in
 * full and synced, before anybody is told of a mark or anything is copied. */
#include "daemon/store_sqlite.h"

#include "daemon/dirs.h"
#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define MS UINT64_C(1000000)

enum {
    COPY_PAGES = 4000, /* that many are copied at once */
    MORE_PAGES = 1000, /* while the log cannot begin anew */
    HEADER_BYTES = 32, /* of the log */
    FRAME_BYTES = 24,  /* before each page */
    PAGE_BYTES = 4096,
    PAGE_MAX_BYTES = 65536
};

/* ---- what was left ---- */

void wal_keep(sqlite3 *db, bool keep)
{
    /* a connection that there was no memory for */
    if (!db)
        return;
    sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, (int)keep, NULL);
}

static uint32_t page_bytes(const uint8_t header[HEADER_BYTES])
{
    const uint8_t *p = header + 8;
    uint32_t n = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 |
                 (uint32_t)p[2] << 8 | p[3];
    return n >= 512 && n <= PAGE_MAX_BYTES ? n : 0;
}

/* Each frame that belongs to this log, over itself. */
static int write_again(sqlite3_file *wal)
{
    const sqlite3_io_methods *m = wal->pMethods;
    uint8_t header[HEADER_BYTES];
    uint8_t *frame = NULL;
    sqlite3_int64 at = HEADER_BYTES;
    int n = 0, rc = m->xRead(wal, header, HEADER_BYTES, 0);
    if (rc == SQLITE_OK)
        rc = m->xWrite(wal, header, HEADER_BYTES, 0);
    if (rc == SQLITE_OK && page_bytes(header)) {
        n = FRAME_BYTES + (int)page_bytes(header);
        frame = malloc((size_t)n);
        rc = frame ? SQLITE_OK : SQLITE_NOMEM;
    }
    for (; frame && rc == SQLITE_OK; at += n) {
        rc = m->xRead(wal, frame, n, at);
        if (rc == SQLITE_OK && memcmp(frame + 8, header + 16, 8) != 0)
            break; /* of the log before it was begun anew */
        if (rc == SQLITE_OK)
            rc = m->xWrite(wal, frame, n, at);
    }
    free(frame);
    return rc == SQLITE_IOERR_SHORT_READ ? SQLITE_OK : rc;
}

int wal_settle(sqlite3 *db, const char *path)
{
    sqlite3_file *wal = NULL;
    int rc =
        sqlite3_file_control(db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &wal);
    if (rc == SQLITE_OK && wal && wal->pMethods) {
        rc = write_again(wal);
        if (rc == SQLITE_OK)
            rc = wal->pMethods->xSync(wal, SQLITE_SYNC_NORMAL);
    }
    /* SQLite does this too, but does not say when it fails */
    if (rc == SQLITE_OK && dirs_sync_above(path) != 0)
        rc = SQLITE_IOERR_DIR_FSYNC;
    if (rc == SQLITE_OK)
        wal_keep(db, false);
    return rc;
}

/* ---- keeping it short ---- */

/* SQLITE_OK, or that a sync failed. Any other error does not matter: the log
 * is good, and it is copied another time. */
static int only_syncs(sqlite3 *db, int rc)
{
    if (rc != SQLITE_OK)
        rc = sqlite3_extended_errcode(db);
    return rc == SQLITE_IOERR_FSYNC || rc == SQLITE_IOERR_DIR_FSYNC
               ? rc
               : SQLITE_OK;
}

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

int wal_committed(struct run *r)
{
    int rc;
    if (r->wal_pages < r->wal_next)
        return SQLITE_OK;
    rc = sqlite3_wal_checkpoint_v2(r->db, NULL, SQLITE_CHECKPOINT_PASSIVE,
                                   NULL, NULL);
    r->wal_next = r->wal_pages + MORE_PAGES;
    return only_syncs(r->db, rc);
}

void wal_close(struct run *r)
{
    int keep = 1;
    sqlite3_db_config(r->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, -1, &keep);
    if (!keep)
        (void)sqlite3_wal_checkpoint_v2(r->db, NULL, SQLITE_CHECKPOINT_PASSIVE,
                                        NULL, NULL);
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

int wal_holds(struct run *r, bool *holds)
{
    uint64_t now;
    int rc;
    *holds = false;
    if (r->open_transaction || wal_bytes(r) < r->wal_limit)
        return SQLITE_OK;
    rc = sqlite3_wal_checkpoint_v2(r->db, NULL, SQLITE_CHECKPOINT_TRUNCATE,
                                   NULL, NULL);
    if (rc == SQLITE_OK) {
        r->wal_pages = 0;
        r->wal_next = COPY_PAGES;
        r->wal_limit = r->store->wal_limit;
        r->wal_wait_ns = 0;
        return SQLITE_OK;
    }
    if (only_syncs(r->db, rc) != SQLITE_OK)
        return only_syncs(r->db, rc);
    now = store_now_ns();
    if (!r->wal_wait_ns)
        begin_waiting(r, now);
    *holds = now - r->wal_wait_ns < r->store->wal_wait_ms * MS;
    if (*holds)
        return SQLITE_OK;
    r->wal_limit = 2 * wal_bytes(r);
    r->wal_wait_ns = 0;
    log_warn("wal",
             "run=%s bytes=%llu why=\"somebody reads for long\" then=\"its "
             "log grows to %llu bytes before it is waited for again\"",
             r->name, (unsigned long long)wal_bytes(r),
             (unsigned long long)r->wal_limit);
    return SQLITE_OK;
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
