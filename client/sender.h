/* The one background thread of a client: drains the journal to the daemon.
 * Everything here runs on that thread unless marked otherwise. */
#ifndef CLIENT_SENDER_H
#define CLIENT_SENDER_H

#include <sys/types.h>

#include "client/device.h"
#include "client/journal.h"
#include "client/spool.h"
#include "proto/frame.h"
#include "tracerd/client.h"

enum {
    SENDER_WINDOW = 1024,     /* batches sent and not yet durable */
    SENDER_CREDIT_MAX = 4 << 20,
    SENDER_OUT = 64 * 1024 + FRAME_HEADER_BYTES,
    SENDER_IN = 8192,
    SENDER_CLOSE_MS = 100     /* how long closing may take */
};

/* A batch on its way. */
struct trd__sent {
    uint64_t last_seq;
    uint64_t end_pos;
    uint32_t bytes;
    int committed;
};

/* Numbers that other threads read. */
struct trd__shared {
    _Atomic uint64_t committed_seq, durable_seq, connects;
    _Atomic uint64_t lost[TRD_CAUSE_COUNT];    /* totals */
    _Atomic uint64_t pending[TRD_CAUSE_COUNT]; /* not yet in the journal */
    _Atomic int any_pending;
    _Atomic uint64_t told_ns; /* when they were put there last, since start */
    _Atomic int connected, last_error;
    _Atomic int spool_error;
    _Atomic uint64_t spool_bytes;
    _Atomic int stop;          /* 1: drain and end, 2: the thread has ended */
    _Atomic uint64_t deadline; /* monotonic ns, with stop */
};

struct trd__sender {
    struct trd__journal *journal;
    struct trd__shared *shared;
    struct hello hello;        /* strings owned by the client */
    char dir[4096];            /* "" when there is none to look in */
    pthread_mutex_t name_lock; /* guards run */
    char run[TRD_MAX_RUN + 1]; /* as the daemon said */
    struct trd__devices *_Atomic devices; /* NULL: no GPU */
    int wake;                  /* what is sent here cuts a sleep short */
    dev_t wake_dev;            /* of it, as below */
    ino_t wake_ino;
    pthread_t thread;
    int started;

    int fd;                    /* -1: not connected */
    dev_t dev;                 /* of fd, to notice when the application */
    ino_t ino;                 /* closed it and opened something else */
    int welcomed;
    uint64_t born_ns;          /* of the connection */
    uint64_t heard_ns, spoke_ns;
    uint64_t next_try_ns;
    uint32_t backoff_ms;
    uint32_t credit_bytes, unacked_bytes, max_len;
    uint32_t words_sent;       /* dictionary entries */
    uint64_t pos, seq;         /* next of the ring to send; last one sent */
    uint64_t durable_seq;      /* the daemon has up to here for good */
    struct trd__sent sent[SENDER_WINDOW];
    uint32_t sent_at, sent_n;
    int said_bye;

    uint8_t out[SENDER_OUT];   /* header and head of the frame being sent */
    size_t out_n;
    const uint8_t *tail;       /* its rest, in journal or spool.buffer */
    size_t tail_n;
    size_t done;               /* bytes of both already sent */
    uint8_t in[SENDER_IN];
    size_t in_n;

    struct trd__spool spool;
    int crowded;               /* the ring may get full soon */
    int spooling;              /* the ring goes to the spool until it has room
                                  again */
    uint64_t calm_ns;          /* when the ring had room last, or got some */
    uint64_t spool_again_ns;   /* not before: it failed */
    unsigned spool_unread;     /* reads of it that failed, one after another */
};

/* Starts the thread; TRD_EIO where that fails. [open] */
int trd__sender_start(struct trd__sender *s);

/* Ends it, waiting at most SENDER_CLOSE_MS; 1 if everything is durable.
 * [close] */
int trd__sender_stop(struct trd__sender *s);

/* Cuts its sleep short. [any thread] */
void trd__sender_wake(struct trd__sender *s);

/* Counts a loss; it becomes a LOSS entry as soon as one fits, of many losses
 * one where the ring is nearly full. [any thread] */
void trd__lost(struct trd__shared *shared, enum trd_cause cause,
               uint64_t count);

/* Puts pending losses into the journal when it is time. [any thread] */
void trd__lost_tell(struct trd__shared *shared, struct trd__journal *j,
                    uint64_t t_ns);
/* Puts them there now. [any thread] */
void trd__lost_flush(struct trd__shared *shared, struct trd__journal *j,
                     uint64_t t_ns);

#endif
