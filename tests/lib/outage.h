/* Training processes while the daemon is away: a real client in a process of
 * its own that fills its journal, a spool for it, and what must hold in the
 * end.
 *
 * The test program runs itself again for it: main() is outage_main(). Programs
 * that link this are built with the places where a test may kill them. */
#ifndef TESTS_LIB_OUTAGE_H
#define TESTS_LIB_OUTAGE_H

#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include "tracerd/client.h"

enum {
    OUTAGE_RING = 1 << 20,
    OUTAGE_ELEMENTS = 1024, /* of a record: 4 KiB */
    OUTAGE_MANY = 4 * OUTAGE_RING / 4096, /* records that are four rings */
    OUTAGE_PATIENCE_MS = 60000,
    OUTAGE_THREADS = 4
};

/* What the training process is to do, and what became of it. */
struct told {
    char dir[RIG_PATH], spool[4 * RIG_PATH]; /* spool "": none */
    uint64_t spool_bytes;
    uint32_t block_ms, threads;
    uint64_t records; /* of each thread */
    int stay;         /* waits to be killed, or for go */
    int slow_us;      /* between two records */
    int close_spool;  /* closes the descriptor of it, as a program may */
    _Atomic int go;   /* says goodbye */
    _Atomic int submitted;
    _Atomic uint64_t accepted, refused;
    struct trd_counters at_end; /* when all is submitted */
    _Atomic int connected;
};

extern struct told *told;

/* Where its spool is to be, 0700. */
extern char outage_dir[2 * RIG_PATH];

/* An ingest rig, and the process that is to be: it submits OUTAGE_MANY records
 * with a spool and all patience. */
int outage_set_up(void **state);
int outage_tear_down(void **state);
#define outage_test(name)                                                     \
    cmocka_unit_test_setup_teardown(name, outage_set_up, outage_tear_down)

/* Starts it; point: where it is killed, or NULL. */
void outage_start(const char *point);
/* Its end: the status of waitpid(). */
int outage_end(void);
void outage_kill(void);

#define outage_until(expression)                                              \
    do {                                                                      \
        long long end_ = rig_now_ms() + OUTAGE_PATIENCE_MS;                   \
        while (!(expression)) {                                               \
            if (rig_now_ms() > end_)                                          \
                fail_msg("waited in vain for %s\n%s", #expression,            \
                         ingest.rig.pid ? rig_log(&ingest.rig) : "");         \
            rig_pause();                                                      \
        }                                                                     \
    } while (0)

void outage_nap_us(long us);

/* The first file in dir with this end; NULL: there is none. */
const char *outage_find(const char *dir, const char *tail);
const char *outage_spool(void);
const char *outage_journal(void);

/* All that was accepted is there once, and nothing is left of the files. At
 * most unsure more are there, which a kill kept from being counted. */
void outage_check(uint64_t unsure);
/* Records lost for this cause. */
int64_t outage_lost(const char *cause);

/* The whole program. */
int outage_main(int argc, char **argv, const struct CMUnitTest *tests,
                size_t n);

#endif
