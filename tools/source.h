/* Where answers come from: the daemon, or a run's file.
 *
 * A source answers a query page by page; source_row() walks over all pages.
 * What goes wrong is told on stderr here, once; the functions give the exit
 * code to end with. */
#ifndef TOOLS_SOURCE_H
#define TOOLS_SOURCE_H

#include "proto/query.h"
#include "tools/tracectl.h"

struct source;

/* The ways to answer. ask writes one page of at most cap bytes. */
struct source_ops {
    int (*ask)(void *state, const struct query *q, void *page, size_t cap,
               size_t *n);
    void (*close)(void *state);
};

/* Opens what ctl and run (NULL: ctl->run) name. 0, CTL_BAD or CTL_FAILED. */
int source_open(const struct ctl *ctl, const char *run, struct source **out);
void source_close(struct source *s);

/* For a question about a whole run: reads the file itself where the daemon
 * tells its place and it can be read. A dump in the order of seq is sorted
 * once then, and not again for each page. The run is settled by this. 0 or
 * an exit code. */
int source_use_file(struct source *s);

/* The path of the file that holds a run, for what reads whole runs: run is a
 * .db file, or a name in -d or of the daemon. To be freed. 0 or an exit code,
 * told. */
int source_path(const struct ctl *ctl, const char *run, char **out);

/* Asks for the first page. The run of q is set here. 0 or an exit code. The
 * strings of q must stay until the last row. */
int source_ask(struct source *s, struct query *q);
/* 1: *cells are the next row's, until the next call; 0: that was the last;
 * a negative number: minus the exit code. */
int source_row(struct source *s, const struct cell **cells);

uint32_t source_columns(const struct source *s);
/* Names of the columns; they stay in place over all pages. */
const struct slice *source_column_names(const struct source *s);
/* The name of the run that is asked; "" where there is none. */
const char *source_run(const struct source *s);
/* The name of the run that a question without one is put to; "" when there
 * is none. Asks for it: the page before is gone. */
const char *source_newest(struct source *s);
/* The status and the message of the last page. */
int source_status(const struct source *s);

/* The backends. path of a file or a directory of runs; run "" the newest. */
int source_live_open(const char *dir, const struct source_ops **ops,
                     void **state);
int source_db_open(const char *path, const char *run,
                   const struct source_ops **ops, void **state);
/* url of a ClickHouse. */
int source_house_open(const char *url, const char *run,
                      const struct source_ops **ops, void **state);
/* A file with all of the run, which goes when the program ends. */
int source_house_path(const char *url, const char *run, char **out);

/* The directory of the daemon, dir or the default, whether it is there or
 * not. Tells nothing; 0 or an error of place_dir(). */
int source_where(const char *dir, char *out, size_t cap);
/* The same. Checks that it is there
 * and private; 0 or CTL_FAILED, told. */
int source_dir(const char *dir, char *out, size_t cap);
/* Connects a plain socket to name in the directory, after checking length,
 * owner and mode, and the peer's user. The descriptor, or -1, told. */
int source_connect(const char *dir, const char *name);

#endif
