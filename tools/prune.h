/* Taking records out of one run, or a run out of its directory. */
#ifndef TOOLS_PRUNE_H
#define TOOLS_PRUNE_H

#include <stdint.h>
#include <time.h>

/* Which iterations stay: those that any of these keeps, and records of no
 * iteration. */
struct prune_rule {
    int64_t every;  /* 1, 1 + n, 1 + 2n, ...; 0: not said */
    int64_t last;   /* the last n; 0: not said */
    int64_t around; /* so many before and behind one with a value that is not
                     * finite or a finding of check; -1: not said */
};

struct prune_result {
    int64_t records, iterations; /* that are gone, or would be */
    int64_t bytes;               /* that they gave back; with dry about */
};

/* Makes the run anew without them, in place of what it was. A crash leaves
 * one of both. dry: counts only. CTL_FOUND, CTL_NOTHING where nothing is to
 * go, or another exit code, told. */
int prune_run(const char *path, const struct prune_rule *rule, int dry,
              struct prune_result *out);

/* Removes the file unless it is in use; NULL or why it was left. */
const char *prune_remove(const char *path);
/* NULL, or why it would be left. Looks only. */
const char *prune_kept(const char *path);

/* What the file and its log take, and when they were written to last (NULL:
 * not asked). */
int64_t prune_bytes(const char *path, time_t *used);

#endif
