/* Faults by order: the n-th call of one kind fails, once or from then on.
 *
 * shim.c is a library that a program is started with (LD_PRELOAD). It and the
 * test share one page of memory, a file whose name stands in TRD_FAULT_PAGE;
 * so the test sees what was called also after the program was killed. */
#ifndef TESTS_FAULT_SHIM_H
#define TESTS_FAULT_SHIM_H

#include <stdatomic.h>
#include <stdint.h>

/* X(name, errno): kinds of calls, and how they fail. */
#define FAULT_OPS(X)                                                          \
    X(malloc, ENOMEM) /* calloc, realloc */                                   \
    X(open, EMFILE)                                                           \
    X(pread, EIO)                                                             \
    X(pwrite, ENOSPC)                                                         \
    X(sync, EIO) /* fsync, fdatasync */                                       \
    X(ftruncate, EIO)                                                         \
    X(unlink, EACCES)                                                         \
    X(rename, EACCES)                                                         \
    X(mkdir, EACCES)                                                          \
    X(allocate, ENOSPC) /* posix_fallocate */                                 \
    X(mmap, ENOMEM)                                                           \
    X(lock, EAGAIN) /* fcntl(F_SETLK), flock */                               \
    X(stat, EACCES) /* fstat, lstat */                                        \
    X(socket, EMFILE)                                                         \
    X(bind, EACCES)                                                           \
    X(listen, EMFILE)                                                         \
    X(accept, EMFILE)                                                         \
    X(read, EIO)  /* recv, recvmsg, readv */                                  \
    X(write, EIO) /* send, sendmsg, writev */                                 \
    X(thread, EAGAIN)                                                         \
    X(random, EIO)

enum fault_op {
#define FAULT_MEMBER(name, code) FAULT_##name,
    FAULT_OPS(FAULT_MEMBER)
#undef FAULT_MEMBER
    FAULT_N
};

/* Bits of fault_page.how. */
enum {
    FAULT_STICKY = 1, /* every later call too */
    FAULT_SHORT = 2   /* a write does half of its work instead */
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
