/* A run that is being made out of others, beside the place it will have.
 *
 * Until it has its name it is PATH.new, which a tracerd that starts in the
 * directory takes away, as one that was never finished. One program makes it
 * at a time. */
#ifndef TOOLS_RUN_FRESH_H
#define TOOLS_RUN_FRESH_H

#include <limits.h>
#include <sqlite3.h>

struct fresh {
    char path[PATH_MAX + 8];  /* PATH.new */
    const char *name;         /* PATH */
    int fd;                   /* holds the lock; -1: none */
    sqlite3 *db;              /* with the schema */
};

/* 0 or an exit code, told. */
int fresh_open(struct fresh *f, const char *name);
/* Attaches the file of a run to read from, called old, and begins a
 * transaction; its columns may be fewer than ours. A SQLite code. */
int fresh_attach(struct fresh *f, const char *path);
int fresh_detach(struct fresh *f);
/* Copies rows of a table of old, those where the condition holds (NULL: all).
 * A table that old does not have has no rows. A SQLite code. */
int fresh_copy(struct fresh *f, const char *table, const char *condition);
int fresh_exec(struct fresh *f, const char *sql);
/* Makes the file survive a power cut. A SQLite code; the connection is
 * closed. */
int fresh_finish(struct fresh *f);
/* Gives it its name: in place of what has it, or (replace 0) only where
 * nothing has. 0 or errno. */
int fresh_rename(struct fresh *f, int replace);
/* Removes what was not renamed, and frees all. */
void fresh_close(struct fresh *f);

#endif
