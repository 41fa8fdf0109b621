/* How long and how much of stored runs is kept, as the configuration says.
 * Writer thread, but for keep_set().
 *
 * Once a minute the files of the data directory are looked at; those nobody
 * wrote to for so many days go, and then the ones that were unused for
 * longest, until the rest takes no more than so many MB. A few files a second.
 * A run that is open here, that another program has open, or that has a
 * process which lives and said no goodbye, is never touched. Iterations of a
 * run are for tracectl to prune. */
#include "daemon/store_sqlite.h"

#include "daemon/log.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { AGAIN_MS = 60000, AT_ONCE = 4, DAY_S = 86400 };

struct kept {
    char path[PATH_MAX];
    time_t used;
    uint64_t bytes;
    dev_t dev;
    ino_t ino;
};

/* The files, the longest unused first. */
struct kept_list {
    struct kept *file;
    size_t n, room;
};

void keep_set(struct store *s, uint32_t days, uint32_t mb)
{
    atomic_store(&s->keep_days, days);
    atomic_store(&s->keep_mb, mb);
    atomic_store(&s->keep_changed, true);
}

/* ---- the files ---- */

static bool look_at(const char *path, struct kept *out)
{
    char log[PATH_MAX + 8];
    struct stat st;
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    snprintf(out->path, sizeof out->path, "%s", path);
    out->used = st.st_mtime;
    out->bytes = (uint64_t)st.st_size;
    out->dev = st.st_dev;
    out->ino = st.st_ino;
    snprintf(log, sizeof log, "%s-wal", path);
    if (stat(log, &st) == 0) {
        out->bytes += (uint64_t)st.st_size;
        if (st.st_size > 0 && st.st_mtime > out->used)
            out->used = st.st_mtime;
    }
    return true;
}

static bool add(struct kept_list *l, const char *path)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        struct kept *more = realloc(l->file, room * sizeof *more);
        if (!more)
            return false;
        l->file = more;
        l->room = room;
    }
    l->n += look_at(path, &l->file[l->n]);
    return true;
}

static int by_use(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    if (x->used != y->used)
        return x->used < y->used ? -1 : 1;
    return strcmp(x->path, y->path);
}

static void list(const struct store *s, struct kept_list *l)
{
    char path[PATH_MAX];
    struct dirent *e;
    DIR *d = opendir(s->data);
    while (d && (e = readdir(d))) {
        size_t n = strlen(e->d_name);
        if (n > 3 && strcmp(e->d_name + n - 3, ".db") == 0 &&
            e->d_name[0] != '.' &&
            snprintf(path, sizeof path, "%s/%s", s->data, e->d_name) <
                PATH_MAX &&
            !add(l, path))
            break;
    }
    if (d)
        closedir(d);
    if (l->n)
        qsort(l->file, l->n, sizeof *l->file, by_use);
}

/* ---- removing one ---- */

/* A connection of its own, that nobody else has one beside; NULL: somebody
 * has, or it is no run, or its process lives. */
static sqlite3 *take(const char *path)
{
    enum content content = CONTENT_FOREIGN;
    sqlite3 *db = NULL;
    bool alive = true;
    int rc = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE |
                                            SQLITE_OPEN_NOMUTEX,
                             NULL);
    wal_keep(db, true);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, "PRAGMA locking_mode = EXCLUSIVE;"
                              "BEGIN EXCLUSIVE",
                          NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = file_look_at(db, &content);
    if (rc == SQLITE_OK && content == CONTENT_OURS)
        rc = sweep_alive(db, &alive);
    if (rc == SQLITE_OK && !alive)
        return db;
    sqlite3_close(db);
    return NULL;
}

static bool is_open(const struct store *s, const struct kept *k)
{
    for (const struct run *r = s->runs; r; r = r->next) {
        if (r->dev == k->dev && r->ino == k->ino)
            return true;
    }
    return false;
}

static bool remove_run(struct store *s, const struct kept *k, const char *why)
{
    static const char *const tails[] = {"-wal", "-shm", "-journal"};
    char beside[PATH_MAX + 16];
    sqlite3 *db = is_open(s, k) ? NULL : take(k->path);
    bool gone = db && unlink(k->path) == 0;
    for (size_t i = 0; gone && i < sizeof tails / sizeof *tails; i++) {
        snprintf(beside, sizeof beside, "%s%s", k->path, tails[i]);
        unlink(beside);
    }
    sqlite3_close(db);
    if (!gone)
        return false;
    known_drop(s, k->dev, k->ino);
    log_info("removed", "file=\"%s\" bytes=%llu why=\"%s\"", k->path,
             (unsigned long long)k->bytes, why);
    return true;
}

/* Whether there may be more to remove. */
static bool remove_some(struct store *s, const struct kept_list *l)
{
    uint64_t days = atomic_load(&s->keep_days);
    uint64_t most = (uint64_t)atomic_load(&s->keep_mb) << 20, total = 0;
    time_t now = time(NULL);
    int removed = 0;
    for (size_t i = 0; i < l->n; i++)
        total += l->file[i].bytes;
    for (size_t i = 0; i < l->n && removed < AT_ONCE; i++) {
        const struct kept *k = &l->file[i];
        const char *why = NULL;
        if (days && now > k->used &&
            (uint64_t)(now - k->used) / DAY_S >= days)
            why = "keep_days";
        else if (most && total > most)
            why = "keep_mb";
        if (!why || !remove_run(s, k, why))
            continue;
        total -= k->bytes;
        removed++;
    }
    return removed == AT_ONCE;
}

void keep_look(struct store *s)
{
    struct kept_list l = {NULL, 0, 0};
    uint64_t now = store_now_ns();
    bool changed = atomic_exchange(&s->keep_changed, false);
    if (!atomic_load(&s->keep_days) && !atomic_load(&s->keep_mb))
        return;
    if (!changed && now < s->keep_next_ns)
        return;
    s->keep_next_ns = now;
    if (s->sweep_n) { /* who is dead is not known of all */
        atomic_store(&s->keep_changed, changed);
        return;
    }
    list(s, &l);
    if (!remove_some(s, &l))
        s->keep_next_ns += AGAIN_MS * UINT64_C(1000000);
    free(l.file);
}
