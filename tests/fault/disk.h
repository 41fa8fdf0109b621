/* A disk that loses power: what a daemon did to the files of its data
 * directory, in order, so that a test can say what of it a power cut leaves.
 *
 * disk.c is a library that a daemon is started with (LD_PRELOAD). It writes
 * each call that changed a file under TRD_DISK_DIR, and each sync, to the log
 * TRD_DISK_LOG, after it was done and before it returns: what somebody was
 * told of is in the log. A test adds entries of its own. */
#ifndef TESTS_FAULT_DISK_H
#define TESTS_FAULT_DISK_H

#include <stdint.h>

enum disk_kind {
    DISK_CREATED = 1, /* text: its name */
    DISK_WRITTEN,     /* at, and the bytes */
    DISK_CUT,         /* at: its new length */
    DISK_SYNCED,
    DISK_NOT_SYNCED,  /* it failed; what was written may never get there */
    DISK_UNLINKED,    /* text: its name */
    DISK_RENAMED,     /* text: its old name, NUL, its new one */
    DISK_DIR_SYNCED,
    DISK_DIR_NOT_SYNCED,
    DISK_TOLD         /* by the test; at: this is told to be durable */
};

/* n bytes follow, and zeros up to a multiple of 8. ino tells files apart; of
 * two that had the same one, the first was gone when the second was made. */
struct disk_entry {
    uint32_t kind, n;
    uint64_t ino, at;
};

/* Environment: which syncs fail, each once. TRD_DISK_FAIL_NTH=N: the N-th, of
 * a file or the directory; TRD_DISK_FAIL_WAL=N: the first of a log of at least
 * N bytes. */

#endif
