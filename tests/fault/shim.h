/* Faults by order: the n-th call of one kind fails, once or from then on.
 *
 * shim.c is a library that a program is started with (LD_PRELOAD). It and the
 * test share one page of memory, a file whose name stands in TRD_FAULT_PAGE;
 * so the test sees what was called also after the program was killed. */
#ifndef TESTS_FAULT_SHIM_H
#define TESTS_FAULT_SHIM_H

#include <stdatomic.h>
#include <stdint.h>

/* X(name, errno, fault): kinds of calls, how they fail, and which fault of the
 * table (faults.txt) that is. Those of files are how SQLite comes to the disk,
 * so each operation of its VFS is among them. */
#define FAULT_OPS(X)                                                          \
    X(malloc, ENOMEM, 14) /* calloc, realloc */                               \
    X(open, EMFILE, 27)                                                       \
    X(pread, EIO, 12)                                                         \
    X(pwrite, ENOSPC, 11)                                                     \
    X(sync, EIO, 12) /* fsync, fdatasync */                                   \
    X(ftruncate, EIO, 12)                                                     \
    X(unlink, EACCES, 33)                                                     \
    X(rename, EACCES, 33)                                                     \
    X(mkdir, EACCES, 33)                                                      \
    X(allocate, ENOSPC, 10) /* posix_fallocate */                             \
    X(mmap, ENOMEM, 14)                                                       \
    X(lock, EAGAIN, 40) /* fcntl(F_SETLK), flock */                           \
    X(stat, EACCES, 33) /* fstat, lstat */                                    \
    X(socket, EMFILE, 27)                                                     \
    X(bind, EACCES, 33)                                                       \
    X(listen, EMFILE, 27)                                                     \
    X(accept, EMFILE, 27)                                                     \
    X(read, EIO, 12)  /* recv, recvmsg, readv */                              \
    X(write, EIO, 12) /* send, sendmsg, writev */                             \
    X(thread, EAGAIN, 14)                                                     \
    X(random, EIO, 12)                                                        \
    X(connect, ECONNREFUSED, 7)

enum fault_op {
#define FAULT_MEMBER(name, code, fault) FAULT_##name,
    FAULT_OPS(FAULT_MEMBER)
#undef FAULT_MEMBER
    FAULT_N
};

/* Bits of fault_page.how. */
enum {
    FAULT_STICKY = 1, /* every later call too */
    FAULT_SHORT = 2   /* a read or write does half of its work instead */
};

struct fault_page {
    _Atomic int op;             /* enum fault_op, -1: only count */
    _Atomic int64_t countdown;  /* 1: the next call fails */
    _Atomic int how;
    _Atomic int error;          /* errno instead of the usual one, or 0 */
    _Atomic uint64_t fired;
    _Atomic uint64_t calls[FAULT_N];
};

#endif
