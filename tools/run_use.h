/* Who uses the file of a run: programs that have it open, and processes that
 * may still write to it. */
#ifndef TOOLS_RUN_USE_H
#define TOOLS_RUN_USE_H

#include <sqlite3.h>

/* Whether another program has the file open: a daemon, or a reader. */
int run_in_use(const char *path);

/* Whether a process lives that sent records and did not say goodbye. */
int run_is_written(sqlite3 *db);

/* Opens the file for this program alone: others find it locked until it is
 * closed. What was left in its log is in the file then, and no log is beside
 * it. NULL: somebody has it open, or it cannot be written; *why tells. */
sqlite3 *run_take(const char *path, const char **why);

#endif
