/* What the parts of the SQLite engine share. Writer thread only. */
#ifndef DAEMON_STORE_SQLITE_H
#define DAEMON_STORE_SQLITE_H

#include <limits.h>
#include <sqlite3.h>
#include <sys/types.h>

#include "daemon/chunk.h"
#include "daemon/file_key.h"
#include "daemon/forward.h"
#include "daemon/store.h"
#include "daemon/store_space.h"
#include "proto/record.h"

enum statement {
    SQL_BEGIN,
    SQL_COMMIT,
    SQL_RECORD,
    SQL_EXTRA,
    SQL_QUEUE,      /* with a forwarder: instead of SQL_RECORD */
    SQL_QUEUE_GONE,
    SQL_REFUSED,
    SQL_LOSS,
    SQL_LOSS_MORE,
    SQL_CLOCK,
    SQL_MARK,
    SQL_STATE,
    SQL_DICT,
    SQL_OBJECT_PUT,
    SQL_OBJECT_GET,
    SQL_PATH_PUT,
    SQL_PATH_GET,
    SQL_SHAPE_PUT,
    SQL_SHAPE_GET,
    SQL_NOTE_PUT,
    SQL_NOTE_GET,
    STATEMENT_COUNT
};

/* What a dictionary number of a stream means in the run's tables. */
struct word {
    uint8_t kind;     /* enum entry_kind; 0: means nothing */
    uint8_t pass, io; /* site */
    uint32_t id;      /* row of object, path (for a site), shape or note */
    union {
        struct {
            uint32_t object, position;
        } site;
        int64_t n; /* elements of a shape */
    } u;
};

struct stream {
    struct store_stream shared; /* first; marks NULL: not connected */
    struct stream *next;        /* in the run */
    struct run *run;            /* NULL: it failed, waits for leave() */
    int64_t id;
    uint64_t epoch;
    int64_t real_ns;            /* of its record time 0 */
    bool moved;                 /* in the open transaction */
    uint64_t seq, committed, durable;
    uint32_t dict_n, dict_committed, dict_durable;
    int64_t iteration, last_ns; /* largest of its records */
    uint64_t lost;              /* records, since this daemon knows it */
    uint64_t loss_first, loss_last; /* of its last row of losses */
    uint32_t loss_cause;
    bool loss_grows;            /* by what follows of the same cause */
    struct word *words;         /* dict_n of them while connected */
    uint32_t words_cap;
};

struct run {
    struct run *next;
    struct store *store;
    char name[TRD_MAX_RUN + 1];
    char path[PATH_MAX];
    char job[WIRE_STRING_MAX + 1];
    dev_t dev;
    ino_t ino;
    off_t size;            /* of the file, when it was looked at last */
    uint8_t store_id[16];
    sqlite3 *db;
    sqlite3_stmt *statement[STATEMENT_COUNT];
    struct stream *streams;
    unsigned connected;    /* streams with marks */
    bool open_transaction;
    bool settled;          /* wal_settle() was done */
    bool locked;           /* by another program; not tried until unlock() */
    uint64_t locked_ns;    /* since when, as far as it is */
    uint64_t busy_ns;      /* when it was found locked last */
    unsigned wal_pages;    /* of the log, at the last commit */
    unsigned wal_next;     /* that many are copied to the file next */
    uint64_t wal_limit;    /* bytes; then readers are waited for */
    uint64_t wal_wait_ns;  /* since when they are; 0: not */
    bool unsafe;           /* committed and not durable */
    uint64_t idle_ns;      /* since when nobody is connected */
    struct pending *rows;      /* of the open transaction, to be sorted */
    size_t rows_n, rows_cap;
    struct forward_run *queue; /* NULL: records go into table record */
    struct chunk chunk;        /* of the open transaction, not yet in it */
    int64_t queue_id, queue_total;  /* of the last record of the queue */
    int64_t queue_gone, queue_base; /* of what was before the first one */
    int64_t queue_told;        /* the last one that is committed */
    uint64_t fresh_losses[TRD_CAUSE_COUNT]; /* counted at commit */
};

/* A run's file that is not open, remembered so that a name used for the
 * thousandth time does not open a thousand files. */
struct known {
    struct known *next;
    struct file_key key;
    char *job;
    uint64_t *epochs;
    size_t epochs_n;
    bool empty; /* made, but not yet a run: the daemon was killed */
};

struct store {
    char data[PATH_MAX];
    struct run *runs;
    struct known *known;
    char **sweep;          /* files that were not looked at yet */
    size_t sweep_n;
    struct space space;
    _Atomic uint32_t keep_days, keep_mb; /* 0: all; any thread sets them */
    _Atomic bool keep_changed;
    uint64_t keep_next_ns; /* then the files are looked at again */
    struct forward *forward; /* NULL: runs stay here */
    uint64_t queue_limit;    /* bytes */
    struct leftover *leftover; /* not looked at yet */
    size_t leftover_n;
    dev_t suspect_dev; /* of the file that was damaged when last read */
    ino_t suspect_ino;
    uint64_t wal_limit;    /* WAL_LIMIT_BYTES */
    uint64_t wal_wait_ms;  /* WAL_WAIT_MS */
    uint64_t fresh_bytes;  /* of records, since the last commit */
    struct store_counters counters;
};

enum {
    FULL_MS = 5000, /* a client that was refused comes again */
    WAL_LIMIT_BYTES = 64 * 1024 * 1024,
    WAL_WAIT_MS = 10000 /* for readers, when it is reached */
};

uint64_t store_now_ns(void);

/* For whoever asks how it goes; why is static. */
void store_failed(struct store *s, const char *why);

enum content { CONTENT_OURS, CONTENT_EMPTY, CONTENT_FOREIGN };

/* A connection to a file that may be anything. SQLite codes. */
int file_connect(const char *path, sqlite3 **db);
int file_look_at(sqlite3 *db, enum content *out);
/* The first column of the first row; SQLITE_DONE: there is none, and *out
 * stays. */
int file_get_int(sqlite3 *db, const char *sql, int64_t *out);
int file_get_meta(sqlite3 *db, const char *key, char *out, size_t cap);
bool file_is_damage(int code);
/* A damaged file stays, renamed, for whoever can read something of it. */
void file_put_aside(const char *path);

/* The log of a run: from its opening, after each commit, before each
 * transaction (*holds: not yet, ask again later), once a second. SQLite
 * codes, of syncs alone. */
void wal_open(struct run *r);
int wal_committed(struct run *r);
int wal_holds(struct run *r, bool *holds);
void wal_measure(struct store *s);
/* Makes what an earlier connection left in the log durable, and the names of
 * the files. In a transaction that may write. */
int wal_settle(sqlite3 *db, const char *path);
/* Copies what can be copied, also where somebody reads the run still. */
void wal_close(struct run *r);
/* Whether the last connection that closes leaves the log as it is: until it
 * is settled, it must. */
void wal_keep(sqlite3 *db, bool keep);

/* Runs a prepared statement to its end and resets it. A SQLite code. */
int run_step(struct run *r, enum statement s);
/* Begins the transaction if none is open. A SQLite code. */
int run_begin(struct run *r);
/* False: another program has it locked. It may have failed by it. */
bool run_ready(struct run *r);
/* A statement failed: rolls back, fails the streams, closes the file. The
 * run is gone after it. what is a word for the log. */
void run_fail(struct run *r, int code, const char *what);
/* It was written: what was read of it before was no damage. */
void run_trust(struct run *r);
/* Opens the file, or creates it for a new run of this job. */
int run_open(struct store *s, const char *name, const char *path,
             struct slice job, struct run **out);
/* Whether the file is still there, and whole. SQLITE_READONLY_DBMOVED,
 * SQLITE_CORRUPT. */
int run_check_file(struct run *r);
/* Closes an idle or failed run; its streams are freed or left alone. */
void run_close(struct run *r);
/* Nobody writes to it, and the store of several nodes has all of it. */
bool run_is_idle(const struct run *r);
void run_publish(struct stream *t);

/* Opens or creates the run of a hello. NULL with *a filled when refused. */
struct run *run_find(struct store *s, const struct store_hello *h,
                     struct store_welcome *a);
void known_drop(struct store *s, dev_t dev, ino_t ino);
void known_free(struct store *s);

/* Runs of an earlier daemon whose queues are not empty, or whose streams
 * changed their state: opened, a few a second. */
void leftover_open(struct store *s);
void leftover_add(struct store *s, const char *file, bool sure);
void leftover_some(struct store *s);
void leftover_close(struct store *s);

void sweep_open(struct store *s);
void sweep_some(struct store *s);
void sweep_close(struct store *s);
/* Whether a process lives that did not say goodbye. A SQLite code. */
int sweep_alive(sqlite3 *db, bool *alive);

/* What is kept of the runs in the directory; any thread. 0: no limit. */
void keep_set(struct store *s, uint32_t days, uint32_t mb);
/* Once a second: removes runs that are over it. */
void keep_look(struct store *s);

/* The stream of a hello, with its dictionary; what its client no longer has
 * and the run has not becomes a loss. A SQLite code; *out NULL: no number
 * is left for this rank. */
int stream_find(struct run *r, const struct store_hello *h,
                struct stream **out);
int stream_set_state(struct run *r, const struct stream *t,
                     const char *state);

/* Reads the dictionary of a stream that comes back. A SQLite code. */
int words_load(struct run *r, struct stream *t);
/* Stores entries and what they mean. A SQLite code; SQLITE_TOOBIG: more
 * names than fit memory. */
int words_add(struct run *r, struct stream *t, const uint8_t *payload,
              size_t n);
void words_free(struct run *r, struct stream *t);

/* The queue of a run, where records go with a forwarder. The first two when
 * the file is opened. SQLite codes. */
int queue_open(struct run *r);
int queue_start(struct run *r);
void queue_close(struct run *r);
/* In a transaction: a record, and all that were not yet put into it. */
int queue_add(struct run *r, const struct pending *p, const struct entry *e);
int queue_flush(struct run *r);
/* How many the open transaction has. */
size_t queue_fresh(const struct run *r);
void queue_committed(struct run *r);
/* In a transaction: takes away what the engine has. */
int queue_take_away(struct run *r);
bool queue_has_sent(const struct run *r);
/* Nothing waits. */
bool queue_is_done(const struct run *r);
void queue_measure(struct store *s);

/* Takes the records of a payload into rows, losses into their table. */
int rows_add(struct run *r, struct stream *t, uint64_t seq,
             const uint8_t *payload, size_t n);
/* Sorts and inserts what was taken. A SQLite code. */
int rows_insert(struct run *r);
/* A record of the queue into table refused. A SQLite code. */
int rows_refuse(struct run *r, const struct pending *p,
                const struct wire_record *m, int64_t id, const char *reason);
int loss_add(struct run *r, struct stream *t, uint64_t first, uint64_t last,
             const struct wire_loss *l);

/* The entry at p of a payload that was checked before. */
static inline struct entry entry_checked(const uint8_t *p)
{
    struct reader head = reader_of(p, ENTRY_HEADER_BYTES);
    uint32_t word = get_u32(&head);
    struct entry e = {.kind = word >> 24, .len = word & 0xffffff};
    get_u32(&head);
    e.number = get_u32(&head);
    e.body = p + ENTRY_HEADER_BYTES;
    e.body_n = e.len - ENTRY_HEADER_BYTES;
    return e;
}

#endif
