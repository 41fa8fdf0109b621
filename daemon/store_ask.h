/* What the parts that answer questions share. Any thread. */
#ifndef DAEMON_STORE_ASK_H
#define DAEMON_STORE_ASK_H

#include <sqlite3.h>

#include "daemon/file_key.h"
#include "daemon/store.h"

enum { ASK_MESSAGE_BYTES = 1024 };

/* One question while it is answered. */
struct question {
    const struct ask *a;
    const struct query *q;
    sqlite3 *db;                /* the run's, when one is open */
    char run[TRD_MAX_RUN + 1];
    uint64_t deadline_ns;
    sqlite3_int64 memory_most;  /* of all of SQLite; 0: any */
    bool too_much;              /* that was the end of it */
    uint8_t *out;               /* the page */
    size_t cap;
    char message[ASK_MESSAGE_BYTES];
};

/* A page without rows. */
__attribute__((format(printf, 3, 4))) size_t
ask_say(struct question *k, enum page_status status, const char *format, ...);
/* A page about what SQLite said last. */
size_t ask_say_failed(struct question *k);
/* Non-zero: too late, too much memory, or nobody waits. */
int ask_progress(void *question);
/* Opens the run that the question names. 0, or the length of a page that
 * says why not. */
size_t ask_open(struct question *k);
int64_t ask_int(sqlite3 *db, const char *sql); /* -1: none */

struct cell ask_cell(sqlite3_stmt *s, int i);
/* False when the row does not fit; the page stays good. */
bool ask_put_row(struct page_writer *p, const struct cell *cells, int n);
bool ask_page_is_full(const struct page_writer *p);

size_t ask_records(struct question *k);
size_t ask_sql(struct question *k);
/* Functions that take no longer than one may wait. A SQLite code. */
int ask_functions(sqlite3 *db);

#endif
