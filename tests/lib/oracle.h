/* What holds after every fault, whatever it was. One oracle for all tests:
 *
 *   I1  the training goes on: no signal, no growth    oracle_footprint()
 *   I2  accepted is stored once, or lost with its     oracle_process()
 *       exact count and cause
 *   I3  the numbers of a stream have no gap           oracle_run()
 *   I4  the run's file is whole                       oracle_run()
 *   I5  the daemon is back in under two seconds       oracle_start()
 *   I6  the counters are what the test counted        oracle_process()
 *   I7  what belongs to others is untouched           oracle_file()
 *
 * Everything fails the running test by itself. */
#ifndef TESTS_LIB_ORACLE_H
#define TESTS_LIB_ORACLE_H

#include <sys/stat.h>

#include "tests/lib/rig.h"

enum { ORACLE_READY_MS = 2000 };

/* Every stream's records and losses cover 1 to its mark once, none of it
 * both; the file passes SQLite's check. A run that is not there is whole. */
void oracle_run(struct rig *r, const char *run);

/* Waits until all that this process was told is accepted is in the run: a
 * record each, or losses that count them. At most unsure more may be there,
 * which a kill kept from being counted. refused: submits that said no, each
 * of which is counted by a loss; UINT64_MAX: not known. */
void oracle_process(struct rig *r, const char *run, pid_t pid,
                    uint64_t accepted, uint64_t unsure, uint64_t refused);

/* rig_start() that fails when ready comes late. */
void oracle_start(struct rig *r);

/* `tracectl verify` of the rig's data ends with this exit code. */
void oracle_verify(struct rig *r, int exit_code);

/* What a process holds. */
struct oracle_footprint {
    int descriptors, threads;
    uint64_t memory_kb; /* resident */
};
struct oracle_footprint oracle_footprint(pid_t pid);
/* No more descriptors or threads, and at most that much more memory. */
void oracle_no_growth(const struct oracle_footprint *before,
                      const struct oracle_footprint *after,
                      uint64_t memory_kb);

/* A file of somebody else, as it must stay. */
struct oracle_file {
    char path[RIG_PATH];
    struct stat st;
};
void oracle_file(struct oracle_file *f, const char *path);
void oracle_untouched(const struct oracle_file *f);

/* ---- the table ---- */

/* For the table of faults (tests/fault/faults.txt): this one was injected so
 * often, in this way, and the invariants held. Say it at a test's end. */
void oracle_held(int fault, uint64_t cases, const char *how);

#endif
