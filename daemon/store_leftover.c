/* Runs that nobody writes and whose queues are not empty, or whose streams
 * the engine last heard of as alive. Writer thread.
 *
 * They are opened a few at a time, as a client's run would be, and closed
 * when the engine has all of it. A sweep goes first: it leaves open runs
 * out. */
#include "daemon/store_sqlite.h"

#include "daemon/log.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { FILES_AT_ONCE = 4, FILES_MAX = 100000, RUNS_MAX = 64 };

struct leftover {
    struct leftover *next;
    bool sure; /* it must be opened; else its queue tells */
    char file[];
};

void leftover_add(struct store *s, const char *file, bool sure)
{
    size_t n = strlen(file) + 1;
    struct leftover *l;
    if (!s->forward || s->leftover_n >= FILES_MAX)
        return;
    l = malloc(sizeof *l + n);
    if (!l)
        return;
    memcpy(l->file, file, n);
    l->sure = sure;
    l->next = s->leftover;
    s->leftover = l;
    s->leftover_n++;
}

void leftover_open(struct store *s)
{
    struct dirent *e;
    DIR *d = opendir(s->data);
    while (d && (e = readdir(d))) {
        size_t n = strlen(e->d_name);
        if (n > 3 && strcmp(e->d_name + n - 3, ".db") == 0 &&
            e->d_name[0] != '.')
            leftover_add(s, e->d_name, false);
    }
    if (d)
        closedir(d);
}

void leftover_close(struct store *s)
{
    while (s->leftover) {
        struct leftover *l = s->leftover;
        s->leftover = l->next;
        free(l);
    }
}

static bool has_queue(const char *path)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    bool has = false;
    if (file_connect(path, &db) == SQLITE_OK) {
        wal_keep(db, true);
        if (sqlite3_prepare_v2(db, "SELECT 1 FROM queue LIMIT 1", -1, &q,
                               NULL) == SQLITE_OK)
            has = sqlite3_step(q) == SQLITE_ROW;
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
    return has;
}

static void look_at(struct store *s, const struct leftover *l)
{
    char path[PATH_MAX], name[TRD_MAX_RUN + 1];
    size_t n = strlen(l->file) - 3;
    struct slice no_job = {"", 0};
    struct run *r;
    if (n > TRD_MAX_RUN ||
        snprintf(path, sizeof path, "%s/%s", s->data, l->file) >= PATH_MAX ||
        access(path, F_OK) != 0)
        return;
    for (r = s->runs; r; r = r->next) {
        if (strcmp(r->path, path) == 0)
            return;
    }
    if (!l->sure && !has_queue(path))
        return;
    memcpy(name, l->file, n);
    name[n] = '\0';
    (void)run_open(s, name, path, no_job, &r); /* it says what is wrong */
}

void leftover_some(struct store *s)
{
    for (int i = 0; i < FILES_AT_ONCE && s->leftover &&
                    atomic_load(&s->counters.runs_open) < RUNS_MAX;
         i++) {
        struct leftover *l = s->leftover;
        s->leftover = l->next;
        s->leftover_n--;
        look_at(s, l);
        free(l);
    }
}
