/* Checking stored runs and journals, and saving what is left of a run. */
#ifndef TOOLS_VERIFY_H
#define TOOLS_VERIFY_H

#include <sqlite3.h>
#include <stdint.h>

#include "tools/out.h"

enum { VERIFY_SHOWN = 20 /* findings of one kind that are told singly */ };

/* What was found in a file so far. */
struct verify {
    struct out *o;
    const char *file;
    uint64_t findings, records, losses;
    int code; /* to end with: the largest of all files */
};

/* A row of the answer: a finding of this kind, CTL_NOTHING. Count: of what
 * the detail tells of. */
void verify_found(struct verify *v, const char *kind, int64_t count,
                  const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* It cannot be checked: CTL_BAD or CTL_FAILED. */
void verify_cannot(struct verify *v, int code, const char *kind,
                   const char *why);

/* Checks one file and tells all of it. */
void verify_run(struct verify *v);
void verify_journal(struct verify *v);
/* Whether the run has a table of what was pruned; older ones do not. */
int verify_knows_pruned(sqlite3 *db);
/* Of an open run: streams whose sequence numbers are not each stored once,
 * lost or pruned. told(first, last, what) for each range. A SQLite code. */
int verify_seqs(sqlite3 *db,
                void (*told)(void *context, int64_t stream, int64_t first,
                             int64_t last, const char *what),
                void *context);
/* Opens a file to look at only, whatever its state; NULL or why not. */
const char *verify_open(const char *path, sqlite3 **db);

/* Saves what is left of the run in path into a file that takes its place;
 * the damaged one is kept under another name. 0 or an exit code, told. */
int salvage_run(const char *path);

#endif
