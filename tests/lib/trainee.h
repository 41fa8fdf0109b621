/* A training process in C: threads that submit all the time, while the test
 * does something to it.
 *
 * It is a fork of the test program, traced to ingest.rig as run "run". What
 * it was told is accepted it counts in memory that it shares with the test,
 * so a kill takes nothing. Nothing in it may use cmocka: it says what is
 * wrong by demand(), and trainee_ended() tells the test. */
#ifndef TESTS_LIB_TRAINEE_H
#define TESTS_LIB_TRAINEE_H

#include <stdbool.h>
#include <sys/types.h>

#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include "tracerd/client.h"

enum {
    TRAINEE_THREADS = 4,
    TRAINEE_FAILED = 97 /* exit code of demand() */
};

struct trainee {
    _Atomic uint64_t accepted; /* submits that returned 0 */
    _Atomic uint64_t refused;  /* and that did not */
    _Atomic int stop;          /* the threads end */
    _Atomic int line;          /* of the demand() that failed */
    _Atomic pid_t child;       /* for the test to know */
    _Atomic uint64_t n[8];     /* whatever the test counts */
};
extern struct trainee *trainee;

/* What differs between trainings; the defaults are zero. */
struct trainee_how {
    void (*set_up)(void);      /* in it, before its client is opened */
    void (*thread)(void);      /* in each thread, before it submits */
    uint64_t journal_bytes;    /* 16 MiB */
    bool new_shapes;           /* every 64th record has one of its own */
    bool alone;                /* no threads */
};

/* Starts a training. When all threads submit, body runs in the main thread;
 * after it the threads end, the client is closed, and the exit code is 0. */
pid_t trainee_start(const struct trainee_how *how,
                    void (*body)(struct trd_client *c));
/* Waits for its end; fails when a demand() failed or it does not end. */
int trainee_ended(pid_t pid);
/* The same, and its exit code must be this; or minus a signal. */
void trainee_ends(pid_t pid, int code);

#define demand(condition)                                                     \
    do {                                                                      \
        if (!(condition))                                                     \
            trainee_fail(__LINE__);                                           \
    } while (0)
_Noreturn void trainee_fail(int line);

/* One record of any process, shape [rows]; what trd_submit() says. */
int trainee_submit(struct trd_client *c, uint32_t site, int64_t rows);
uint32_t trainee_site(struct trd_client *c);
/* A client of the calling process to ingest.rig; NULL: cannot open. */
struct trd_client *trainee_client(uint64_t journal_bytes);
void trainee_nap_ms(long ms);

#endif
