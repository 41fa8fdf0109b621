/* What an earlier daemon left: streams that are open and whose processes are
 * gone, and files that it was making when it was killed.
 * Writer thread. A few files a second, so that a start with thousands of
 * runs is as quick as any; a run that is in use is left out, for its streams
 * are looked after by those who speak for them. A file that is locked has
 * another turn. */
#include "daemon/store_sqlite.h"

#include "daemon/log.h"
#include "daemon/process.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILES_AT_ONCE = 4, FILES_MAX = 100000 };

static void add(struct store *s, const char *file)
{
    char **more = realloc(s->sweep, (s->sweep_n + 1) * sizeof *more);
    if (!more)
        return;
    s->sweep = more;
    s->sweep[s->sweep_n] = strdup(file);
    if (s->sweep[s->sweep_n])
        s->sweep_n++;
}

/* A run that was not yet called one, or a self-test: only one daemon is in
 * the directory, so nobody is at work on it. */
static bool is_unfinished(const char *file)
{
    static const char *const ends[] = {"", "-journal", "-wal", "-shm"};
    const char *at = strstr(file, ".db.new");
    if (strncmp(file, ".selftest-", 10) == 0)
        return true;
    for (size_t i = 0; at && i < sizeof ends / sizeof *ends; i++) {
        if (strcmp(at + 7, ends[i]) == 0)
            return true;
    }
    return false;
}

static void remove_file(struct store *s, const char *file)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", s->data, file) < PATH_MAX &&
        unlink(path) == 0)
        log_info("removed", "file=\"%s\" why=\"never finished\"", path);
}

void sweep_open(struct store *s)
{
    struct dirent *e;
    DIR *d = opendir(s->data);
    while (d && (e = readdir(d)) && s->sweep_n < FILES_MAX) {
        size_t n = strlen(e->d_name);
        if (is_unfinished(e->d_name))
            remove_file(s, e->d_name);
        else if (n > 3 && strcmp(e->d_name + n - 3, ".db") == 0 &&
                 e->d_name[0] != '.')
            add(s, e->d_name);
    }
    if (d)
        closedir(d);
}

void sweep_close(struct store *s)
{
    while (s->sweep_n)
        free(s->sweep[--s->sweep_n]);
    free(s->sweep);
    s->sweep = NULL;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 87 : 0;
}

static bool row_alive(sqlite3_stmt *q)
{
    struct process p = {
        .pid = (uint32_t)sqlite3_column_int64(q, 1),
        .start_time = (uint64_t)sqlite3_column_int64(q, 2),
    };
    const char *boot = (const char *)sqlite3_column_text(q, 3);
    if (boot && strlen(boot) == 32) {
        for (int i = 0; i < 16; i++)
            p.boot_id[i] =
                (uint8_t)(digit(boot[2 * i]) << 4 | digit(boot[2 * i + 1]));
    }
    return process_alive(&p);
}

static int set_dead(sqlite3 *db, int64_t id)
{
    char sql[128];
    snprintf(sql, sizeof sql,
             "UPDATE stream SET state = 'dead' WHERE id = %lld", (long long)id);
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

static int set_dead_all(sqlite3 *db, unsigned *n)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db,
                                "SELECT id, pid, start_time, boot_id FROM "
                                "stream WHERE state = 'open'",
                                -1, &q, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        rc = SQLITE_OK;
        if (row_alive(q))
            continue;
        rc = set_dead(db, sqlite3_column_int64(q, 0));
        *n += rc == SQLITE_OK;
    }
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int sweep_alive(sqlite3 *db, bool *alive)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db,
                                "SELECT id, pid, start_time, boot_id FROM "
                                "stream WHERE state = 'open'",
                                -1, &q, NULL);
    *alive = false;
    while (rc == SQLITE_OK && !*alive && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        rc = SQLITE_OK;
        *alive = row_alive(q);
    }
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int sweep_db(sqlite3 *db, const char *path, unsigned *n)
{
    int rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = wal_settle(db, path);
    if (rc == SQLITE_OK)
        rc = set_dead_all(db, n);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
    return rc;
}

static bool is_open(const struct store *s, const char *path)
{
    for (const struct run *r = s->runs; r; r = r->next) {
        if (strcmp(r->path, path) == 0)
            return true;
    }
    return false;
}

/* False: somebody has the file locked, if only to recover its WAL. Waits for
 * nobody: one thread writes all runs. */
static bool sweep_file(struct store *s, const char *file)
{
    char path[PATH_MAX];
    enum content content;
    sqlite3 *db = NULL;
    unsigned n = 0;
    int rc;

    if (snprintf(path, sizeof path, "%s/%s", s->data, file) >= PATH_MAX ||
        is_open(s, path))
        return true;
    /* a file that cannot be read is the business of whoever asks for it */
    rc = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
                         NULL);
    wal_keep(db, true);
    if (rc == SQLITE_OK)
        rc = file_look_at(db, &content);
    if (rc == SQLITE_OK && content == CONTENT_OURS)
        rc = sweep_db(db, path, &n);
    sqlite3_close(db);
    if (n) {
        log_info("sweep", "file=\"%s\" dead=%u", file, n);
        leftover_add(s, file, true);
    }
    return (rc & 0xff) != SQLITE_BUSY;
}

void sweep_some(struct store *s)
{
    size_t end = s->sweep_n;
    for (int i = 0; i < FILES_AT_ONCE && end; i++) {
        char *file = s->sweep[--end];
        if (sweep_file(s, file)) {
            free(file);
            s->sweep[end] = s->sweep[--s->sweep_n];
        } else { /* another time, and others before it */
            s->sweep[end] = s->sweep[0];
            s->sweep[0] = file;
        }
    }
}
