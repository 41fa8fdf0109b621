/* See shim.h. Wraps the C library's calls of the program it is loaded into;
 * a call that shall not fail goes on to the real one. */
#undef _FORTIFY_SOURCE /* or some calls are inline functions already */
#undef _FILE_OFFSET_BITS /* or open would be another name of open64 */
#include "tests/fault/shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static struct fault_page *page;

static const int usual[FAULT_N] = {
#define FAULT_ERROR(name, code, fault) [FAULT_##name] = code,
    FAULT_OPS(FAULT_ERROR)
#undef FAULT_ERROR
};

/* By system calls, so that nothing wrapped is called. Before main. */
__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TRD_FAULT_PAGE");
    long fd, at;
    if (!path)
        return;
    fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    at = syscall(SYS_mmap, NULL, sizeof *page, PROT_READ | PROT_WRITE,
                 MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (at != -1)
        page = (struct fault_page *)at;
}

/* Counts the call; whether it shall fail, with errno set. */
static int fails(enum fault_op op)
{
    int64_t left;
    int error;
    if (!page)
        return 0;
    atomic_fetch_add(&page->calls[op], 1);
    if (atomic_load(&page->op) != (int)op)
        return 0;
    left = atomic_fetch_sub(&page->countdown, 1) - 1;
    if (left > 0 || (left < 0 && !(atomic_load(&page->how) & FAULT_STICKY)))
        return 0;
    atomic_fetch_add(&page->fired, 1);
    error = atomic_load(&page->error);
    errno = error ? error : usual[op];
    return 1;
}

#define REAL(name) ((__typeof__(&name))real_##name())
#define FIND(name)                                                            \
    static void *real_##name(void)                                            \
    {                                                                         \
        static void *_Atomic at;                                              \
        if (!atomic_load(&at))                                                \
            atomic_store(&at, dlsym(RTLD_NEXT, #name));                       \
        return atomic_load(&at);                                              \
    }

/* ---- memory: glibc's own names, since dlsym() allocates ---- */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

SHOWN void *malloc(size_t n)
{
    return fails(FAULT_malloc) ? NULL : __libc_malloc(n);
}

SHOWN void *calloc(size_t n, size_t size)
{
    return fails(FAULT_malloc) ? NULL : __libc_calloc(n, size);
}

SHOWN void *realloc(void *p, size_t n)
{
    return fails(FAULT_malloc) ? NULL : __libc_realloc(p, n);
}

/* ---- calls of a fixed form ---- */

#define WRAP(op, type, failure, name, params, args)                           \
    FIND(name)                                                                \
    SHOWN type name params                                                    \
    {                                                                         \
        return fails(FAULT_##op) ? (failure) : REAL(name) args;               \
    }

WRAP(sync, int, -1, fsync, (int fd), (fd))
WRAP(sync, int, -1, fdatasync, (int fd), (fd))
WRAP(ftruncate, int, -1, ftruncate64, (int fd, off64_t n), (fd, n))
WRAP(unlink, int, -1, unlink, (const char *path), (path))
WRAP(rename, int, -1, rename, (const char *from, const char *to), (from, to))
WRAP(mkdir, int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(mmap, void *, MAP_FAILED, mmap64,
     (void *at, size_t n, int prot, int flags, int fd, off64_t from),
     (at, n, prot, flags, fd, from))
WRAP(lock, int, -1, flock, (int fd, int op), (fd, op))
WRAP(stat, int, -1, stat64, (const char *path, struct stat64 *st), (path, st))
WRAP(stat, int, -1, lstat64, (const char *path, struct stat64 *st),
     (path, st))
WRAP(stat, int, -1, fstat64, (int fd, struct stat64 *st), (fd, st))
WRAP(socket, int, -1, socket, (int domain, int type, int protocol),
     (domain, type, protocol))
WRAP(bind, int, -1, bind, (int fd, const struct sockaddr *a, socklen_t n),
     (fd, a, n))
WRAP(listen, int, -1, listen, (int fd, int n), (fd, n))
WRAP(accept, int, -1, accept4,
     (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
WRAP(connect, int, -1, connect,
     (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
WRAP(random, ssize_t, -1, getrandom, (void *p, size_t n, unsigned flags),
     (p, n, flags))

/* ---- the others ---- */

/* Pipes and event descriptors do not fail, and libuv rightly gives up where
 * its own ones do. */
static int is_socket(int fd)
{
    struct stat st;
    return !syscall(SYS_fstat, fd, &st) && S_ISSOCK(st.st_mode);
}

static int is_short(void)
{
    return (atomic_load(&page->how) & FAULT_SHORT) != 0;
}

static size_t half(size_t n)
{
    return n > 1 ? n / 2 : n;
}

#define WRAP_BYTES(op, name, params, args, half_args)                         \
    FIND(name)                                                                \
    SHOWN ssize_t name params                                                 \
    {                                                                         \
        if ((FAULT_##op == FAULT_pread || FAULT_##op == FAULT_pwrite ||       \
             is_socket(fd)) &&                                                \
            fails(FAULT_##op))                                                \
            return is_short() ? REAL(name) half_args : -1;                    \
        return REAL(name) args;                                               \
    }

WRAP_BYTES(pread, pread64, (int fd, void *p, size_t n, off64_t at),
           (fd, p, n, at), (fd, p, half(n), at))
WRAP_BYTES(pwrite, pwrite64, (int fd, const void *p, size_t n, off64_t at),
           (fd, p, n, at), (fd, p, half(n), at))
WRAP_BYTES(read, read, (int fd, void *p, size_t n), (fd, p, n),
           (fd, p, half(n)))
WRAP_BYTES(read, recv, (int fd, void *p, size_t n, int flags),
           (fd, p, n, flags), (fd, p, half(n), flags))
WRAP_BYTES(write, write, (int fd, const void *p, size_t n), (fd, p, n),
           (fd, p, half(n)))
WRAP_BYTES(write, send, (int fd, const void *p, size_t n, int flags),
           (fd, p, n, flags), (fd, p, half(n), flags))

/* Of several parts the half of the first. */
#define WRAP_PARTS(op, name)                                                  \
    FIND(name)                                                                \
    SHOWN ssize_t name(int fd, const struct iovec *v, int n)                  \
    {                                                                         \
        struct iovec part;                                                    \
        if (!is_socket(fd) || !fails(FAULT_##op))                             \
            return REAL(name)(fd, v, n);                                      \
        if (!is_short() || n < 1)                                             \
            return -1;                                                        \
        part = (struct iovec){v->iov_base, half(v->iov_len)};                 \
        return REAL(name)(fd, &part, 1);                                      \
    }

WRAP_PARTS(read, readv)
WRAP_PARTS(write, writev)

#define WRAP_MESSAGE(op, name, type)                                          \
    FIND(name)                                                                \
    SHOWN ssize_t name(int fd, type *m, int flags)                            \
    {                                                                         \
        struct msghdr one = *m;                                               \
        struct iovec part;                                                    \
        if (!is_socket(fd) || !fails(FAULT_##op))                             \
            return REAL(name)(fd, m, flags);                                  \
        if (!is_short() || m->msg_iovlen < 1)                                 \
            return -1;                                                        \
        part = (struct iovec){m->msg_iov->iov_base,                           \
                              half(m->msg_iov->iov_len)};                     \
        one.msg_iov = &part;                                                  \
        one.msg_iovlen = 1;                                                   \
        return REAL(name)(fd, (type *)&one, flags);                           \
    }

WRAP_MESSAGE(read, recvmsg, struct msghdr)
WRAP_MESSAGE(write, sendmsg, const struct msghdr)

/* libuv gives up where it gets no worker; the daemon tries that before. */
static int is_libuv(void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname &&
           strstr(info.dli_fname, "libuv");
}

FIND(pthread_create)
SHOWN int pthread_create(pthread_t *out, const pthread_attr_t *attr,
                         void *(*run)(void *), void *arg)
{
    if (!is_libuv(__builtin_return_address(0)) && fails(FAULT_thread))
        return errno;
    return REAL(pthread_create)(out, attr, run, arg);
}

FIND(posix_fallocate64)
SHOWN int posix_fallocate64(int fd, off64_t at, off64_t n)
{
    if (fails(FAULT_allocate))
        return errno;
    return REAL(posix_fallocate64)(fd, at, n);
}

static mode_t mode_of(int flags, va_list args)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
}

#define WRAP_OPEN(name)                                                       \
    FIND(name)                                                                \
    SHOWN int name(const char *path, int flags, ...)                          \
    {                                                                         \
        va_list args;                                                         \
        mode_t mode;                                                          \
        va_start(args, flags);                                                \
        mode = mode_of(flags, args);                                          \
        va_end(args);                                                         \
        return fails(FAULT_open) ? -1 : REAL(name)(path, flags, mode);        \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)

#define WRAP_FCNTL(name)                                                      \
    FIND(name)                                                                \
    SHOWN int name(int fd, int cmd, ...)                                      \
    {                                                                         \
        va_list args;                                                         \
        void *arg;                                                            \
        va_start(args, cmd);                                                  \
        arg = va_arg(args, void *);                                           \
        va_end(args);                                                         \
        if ((cmd == F_SETLK || cmd == F_SETLK64) && fails(FAULT_lock))        \
            return -1;                                                        \
        return REAL(name)(fd, cmd, arg);                                      \
    }

WRAP_FCNTL(fcntl)
WRAP_FCNTL(fcntl64)
