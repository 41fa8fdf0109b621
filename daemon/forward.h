/* The forwarder: one thread that brings the queues of the runs into a
 * ClickHouse.
 *
 * What clients hear as durable is in the run's file, in table queue. The
 * forwarder reads it there, never writes there, and says how far it is; the
 * writer thread then takes rows away. A row that was sent and not yet taken
 * away when either of them dies is sent again, and the engine knows it by its
 * key. */
#ifndef DAEMON_FORWARD_H
#define DAEMON_FORWARD_H

#include <pthread.h>

#include "daemon/block.h"
#include "daemon/store.h"
#include "proto/clickhouse/house.h"

struct forward;
struct forward_run;

struct forward_options {
    struct house_place place;
    struct store_counters *counters; /* valid until forward_close() */
};
/* Starts the thread; the engine need not be there. TRD_ENOMEM, TRD_EIO, or
 * TRD_EINVAL: none in this build. */
int forward_open(const struct forward_options *o, struct forward **out,
                 char why[HOUSE_WHY_BYTES]);
/* Sends what waits, as far as the engine takes it in FORWARD_LAST_MS; ends
 * the thread and lets go of all runs' connections. */
void forward_stop(struct forward *f);
/* After forward_stop(): no run may be asked any more. */
void forward_free(struct forward *f);

/* ---- writer thread ---- */

/* A run that was opened. NULL: out of memory. */
struct forward_run *forward_add(struct forward *f, const char *path,
                                const char *name);
/* The run is closed; r is gone. */
void forward_leave(struct forward_run *r);
/* Records up to id are committed. */
void forward_queued(struct forward_run *r, int64_t id);
/* The last record the engine has, and what table queue says as its total. */
int64_t forward_sent(const struct forward_run *r, int64_t *total);
/* Nothing waits, not even a stream's state. */
bool forward_is_done(const struct forward_run *r);
/* The next row that the engine refused, up to forward_sent(); reason is to be
 * freed. False: no more. */
bool forward_refused(struct forward *f, struct forward_run *r, int64_t *id,
                     char **reason);

/* ---- its parts: the forwarder's thread ---- */

enum { FORWARD_LAST_MS = 3000 };

/* Each block is a part that the engine merges with others: the larger, the
 * less it has to do. One is sent, as a message of its size, while the next is
 * read. */
enum { BLOCK_ROWS = 131072, BLOCK_BYTES = 40 * 1024 * 1024 };

struct sqlite3;
struct sqlite3_stmt;

/* What the rows of a run say instead of numbers, as far as it was asked for
 * lately. */
struct names;
struct names *names_new(const char *run); /* NULL: out of memory */
void names_free(struct names *c);

enum name_kind { NAME_STREAM, NAME_OBJECT, NAME_PATH, NAME_SHAPE, NAME_NOTE };
enum { NAME_PARTS = 4 };
struct name {
    char *text; /* of all parts; valid until the next name */
    struct {
        size_t n;       /* bytes of text */
        int64_t number; /* the same, where the column is no string */
    } part[NAME_PARTS];
    unsigned n;
    int64_t real_ns; /* of a stream */
};
/* A SQLite code. */
int names_get(struct names *c, struct sqlite3 *db, enum name_kind kind,
              int64_t id, const struct name **out);

/* The values of its columns, into the row that is being made. */
void names_put(const struct name *name, struct block *b);

extern const struct layout record_layout;
extern const struct layout stream_layout;
extern const struct layout loss_layout;
extern const struct layout object_layout;
/* The records of table queue behind id after, whole rows of it. A SQLite
 * code. */
int block_read(struct sqlite3 *db, struct names *c, int64_t after,
               struct block *b);
/* All streams, all losses of a run, written at written_ns. */
int streams_read(struct sqlite3 *db, const char *run, uint64_t written_ns,
                 struct block *b);
int losses_read(struct sqlite3 *db, const char *run, uint64_t written_ns,
                struct block *b);
/* The objects behind id after, at the most BLOCK_ROWS. */
int objects_read(struct sqlite3 *db, const char *run, int64_t after,
                 struct block *b);

/* A block that is read while another is sent. */
struct ahead {
    struct block block;
    const struct forward_run *of; /* NULL: there is none */
    int64_t after;
    int rc;                       /* a SQLite code */
    bool running;
    pthread_t thread;
    struct sqlite3 *db;
    struct names *names;
};
/* Begins to read what is behind id after. Until ahead_wait() nobody else uses
 * db and names. Where there is no thread, nothing is read. */
void ahead_start(struct ahead *a, const struct forward_run *of,
                 struct sqlite3 *db, struct names *names, int64_t after);
void ahead_wait(struct ahead *a);
/* Changes *b for what was read, if it was that. */
bool ahead_take(struct ahead *a, const struct forward_run *of, int64_t after,
                struct block *b);

#endif
