/* Joining the runs of several nodes of one job into one. */
#ifndef TOOLS_MERGE_RUN_H
#define TOOLS_MERGE_RUN_H

#include <stddef.h>
#include <stdint.h>

struct merge_result {
    int64_t records;
};

/* Makes the file out of n runs, whose order does not matter. No two may have
 * records of one rank and attempt; other_jobs: they may be of several jobs.
 * The file is verified before it has its name. 0 or an exit code, told. */
int merge_runs(char **path, size_t n, const char *out, int other_jobs,
               struct merge_result *result);

#endif
