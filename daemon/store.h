/* Where records are kept: a table of functions, so that an engine is one
 * value. One engine is here: store_sqlite.
 *
 * All but ask() and keep() run on the writer thread only. A transaction begins
 * with the first change and ends with commit(): what was put between is there
 * completely or not at all, marks included. Payloads handed over stay valid
 * and unchanged until commit() returns. */
#ifndef DAEMON_STORE_H
#define DAEMON_STORE_H

#include <stdatomic.h>

#include "proto/frame.h"
#include "proto/query.h"
#include "tracerd/client.h"

/* How far a stream is, for the loop to read at any time. */
struct marks {
    _Atomic uint64_t committed; /* never above what is in the store */
    _Atomic uint64_t durable;   /* never above committed */
    _Atomic uint32_t dict_durable;
    _Atomic uint64_t lost;      /* records, told since this daemon knows it */
    _Atomic uint32_t failed;    /* enum wire_reason: nothing more is taken */
};

/* The part of an engine's stream that everybody sees. Owned by the engine
 * from hello() to leave(). */
struct store_stream {
    struct marks *marks; /* of the loop; valid until leave() */
};

struct store_hello {
    uint64_t epoch;
    uint32_t uid;
    struct hello hello;
};

/* The answer to a hello. reason 0: welcome. */
struct store_welcome {
    unsigned reason;   /* enum wire_reason */
    uint32_t retry_ms; /* 0: never again */
    char why[256];
    uint8_t store_id[16];
    uint64_t stream;
    uint64_t seq;      /* marks, as far as the store has them in memory */
    uint32_t dict_n;
    char run[TRD_MAX_RUN + 1];
};

enum store_end {
    STORE_LEFT,  /* may come back */
    STORE_ENDED, /* said bye */
    STORE_DEAD   /* its process is gone */
};

/* Since the start; any thread may read. */
struct store_counters {
    _Atomic uint64_t records, losses, commits, syncs, failures, bytes;
    _Atomic uint64_t lost[TRD_CAUSE_COUNT]; /* by enum trd_cause */
    _Atomic uint64_t lost_ns;      /* monotonic, of the last; 0: none */
    _Atomic uint32_t runs_open, streams_open;
    _Atomic uint64_t dict_entries; /* in memory */
    _Atomic uint64_t failed_ns;    /* monotonic, of the last; 0: none */
    const char *_Atomic failed_why; /* static text */
    _Atomic uint64_t runs_bytes, wal_bytes; /* of the open runs */
    _Atomic uint64_t wal_waits;    /* times that readers were waited for */
    _Atomic uint32_t disk_full;    /* nothing is taken */
    _Atomic uint64_t disk_free_bytes, disk_needed_bytes, reserve_bytes;
    /* on their way to a ClickHouse */
    _Atomic uint64_t queue_rows, queue_bytes, queue_fills;
    _Atomic uint32_t queue_full;   /* nothing is taken */
    _Atomic uint64_t forwarded, forward_refused; /* rows */
    _Atomic uint64_t forward_failures;
    _Atomic uint64_t forward_down_ns; /* monotonic, since when; 0: it is up */
    _Atomic int forward_code;      /* of the engine's error; 0: no answer */
};

struct store;
struct forward_options;

struct store_ops {
    const char *name;

    /* Opens the data directory, which exists and is locked. Writes a row,
     * commits it and reads it back before it returns 0. why is a sentence
     * of at most cap bytes. */
    int (*open)(const char *data, struct store **out, char *why, size_t cap);
    void (*close)(struct store *s); /* commits nothing */
    /* Once, before the first hello: from now on records go to another engine,
     * and wait here for it in at most limit bytes. o->counters is filled in
     * here. Errors of forward_open(). */
    int (*forward)(struct store *s, struct forward_options *o, uint64_t limit,
                   char *why);

    /* Finds or makes the run and the stream; *out is NULL when refused. */
    void (*hello)(struct store *s, const struct store_hello *h,
                  struct marks *marks, struct store_stream **out,
                  struct store_welcome *answer);
    /* False: another program has the run locked, and nothing of this stream
     * may be handed over until unlock() was called. writes: what comes needs
     * a transaction, which is begun. Never waits for longer than some ms; a
     * run that stays locked for seconds fails. */
    bool (*ready)(struct store *s, struct store_stream *t, bool writes);
    /* Runs that were found locked may be tried again. */
    void (*unlock)(struct store *s);
    /* Payloads that a session passed; entries that are known are left out.
     * Entries that do not decode count as lost.
     * A stream that failed takes nothing and says so by its marks. */
    void (*dict)(struct store *s, struct store_stream *t,
                 const uint8_t *payload, size_t n);
    void (*data)(struct store *s, struct store_stream *t, uint64_t seq,
                 const uint8_t *payload, size_t n);
    void (*gap)(struct store *s, struct store_stream *t, const struct gap *g);
    void (*clock)(struct store *s, struct store_stream *t,
                  const struct ping *p);
    /* How the stream ended, in the open transaction. */
    void (*end)(struct store *s, struct store_stream *t, enum store_end end);
    /* Nobody speaks for it any more; t is gone. */
    void (*leave)(struct store *s, struct store_stream *t);

    /* Ends the transactions of all runs. A run that fails loses what was
     * not committed, its streams fail, and it is opened anew for the next
     * hello. */
    void (*commit)(struct store *s);
    /* Makes all that was committed survive a power cut. */
    void (*sync)(struct store *s);
    /* Once a second: looks after files that were replaced, closes runs
     * nobody writes. */
    void (*tidy)(struct store *s);

    /* How much is kept: runs nobody wrote to for so many days go, and the
     * longest unused beyond so many MB. 0: no limit. Any thread. */
    void (*keep)(struct store *s, uint32_t days, uint32_t mb);

    const struct store_counters *(*counters)(const struct store *s);
};

extern const struct store_ops store_sqlite;

/* A question about stored runs, answered from the files alone. */
struct ask {
    const char *data;
    uint32_t seconds;           /* time limit */
    const _Atomic int *stop;    /* non-zero: give up at once */
};

/* Writes a page of at most cap bytes (SP_MAX_BYTES or less) to out. Any
 * thread, several at once; opens what it needs and closes it. The result is
 * the length; never 0. */
size_t store_ask(const struct ask *a, const struct query *q, uint8_t *out,
                 size_t cap);

#endif
