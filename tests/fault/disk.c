/* See disk.h. */
#undef _FORTIFY_SOURCE /* or some calls are inline functions already */
#undef _FILE_OFFSET_BITS /* or open would be another name of open64 */
#include "tests/fault/disk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

enum { HIGH_FD = 900 };

static const char *dir;
static int log_fd = -1;
static long fail_nth, fail_wal;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))real_##name())
#define FIND(name)                                                            \
    static void *real_##name(void)                                            \
    {                                                                         \
        static void *_Atomic at;                                              \
        if (!atomic_load(&at))                                                \
            atomic_store(&at, dlsym(RTLD_NEXT, #name));                       \
        return atomic_load(&at);                                              \
    }

static long number(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TRD_DISK_LOG");
    long fd;
    dir = getenv("TRD_DISK_DIR");
    if (!path || !dir)
        return;
    fail_nth = number("TRD_DISK_FAIL_NTH");
    fail_wal = number("TRD_DISK_FAIL_WAL");
    fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        return;
    log_fd = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH_FD);
    syscall(SYS_close, fd);
}

/* Behind the directory; NULL: not in it, or a file that no power cut can
 * hurt: the index of a log is made anew, what the self-test made goes, and
 * reserve and lock are empty. */
static const char *name_in(const char *path)
{
    size_t n = dir ? strlen(dir) : 0, k;
    if (log_fd < 0 || strncmp(path, dir, n) || path[n] != '/')
        return NULL;
    path += n + 1;
    k = strlen(path);
    if (!strcmp(path, ".reserve") || !strcmp(path, "tracerd.lock") ||
        !strncmp(path, ".selftest", 9) ||
        (k > 4 && !strcmp(path + k - 4, "-shm")))
        return NULL;
    return path;
}

/* The name of an open file; NULL as above. */
static const char *name_of(int fd, char path[PATH_MAX])
{
    char link[32] = "/proc/self/fd/";
    char digits[12];
    size_t k = sizeof digits;
    ssize_t n;
    int v = fd;
    if (log_fd < 0 || fd < 0)
        return NULL;
    digits[--k] = '\0';
    do {
        digits[--k] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    strcat(link, digits + k);
    n = syscall(SYS_readlink, link, path, PATH_MAX - 1);
    if (n < 0)
        return NULL;
    path[n] = '\0';
    return name_in(path);
}

static uint64_t ino_of(int fd)
{
    struct stat st;
    return syscall(SYS_fstat, fd, &st) ? 0 : st.st_ino;
}

static uint64_t ino_at(const char *path)
{
    struct stat st;
    return syscall(SYS_lstat, path, &st) ? 0 : st.st_ino;
}

/* [lock] */
static void put(uint32_t kind, uint64_t ino, uint64_t at, const void *bytes,
                size_t n)
{
    static const char zero[8];
    struct disk_entry e = {kind, (uint32_t)n, ino, at};
    struct iovec part[3] = {{&e, sizeof e},
                            {(void *)(uintptr_t)bytes, n},
                            {(void *)(uintptr_t)zero, -n % 8}};
    if (syscall(SYS_writev, log_fd, part, 3) !=
        (ssize_t)(sizeof e + n + -n % 8))
        abort(); /* the test would be about something else */
}

/* ---- files ---- */

static int open_as(int (*real)(const char *, int, ...), const char *path,
                   int flags, mode_t mode)
{
    const char *name = flags & O_CREAT ? name_in(path) : NULL;
    uint64_t before;
    int fd;
    if (!name)
        return real(path, flags, mode);
    pthread_mutex_lock(&lock);
    before = ino_at(path);
    fd = real(path, flags, mode);
    if (fd >= 0 && !before)
        put(DISK_CREATED, ino_of(fd), 0, name, strlen(name));
    pthread_mutex_unlock(&lock);
    return fd;
}

#define WRAP_OPEN(name)                                                       \
    FIND(name)                                                                \
    SHOWN int name(const char *path, int flags, ...)                          \
    {                                                                         \
        mode_t mode = 0;                                                      \
        va_list args;                                                         \
        va_start(args, flags);                                                \
        if (flags & (O_CREAT | O_TMPFILE))                                    \
            mode = va_arg(args, mode_t);                                      \
        va_end(args);                                                         \
        return open_as(REAL(name), path, flags, mode);                        \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)

FIND(pwrite64)
SHOWN ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
    char path[PATH_MAX];
    ssize_t got;
    if (!name_of(fd, path))
        return REAL(pwrite64)(fd, p, n, at);
    pthread_mutex_lock(&lock);
    got = REAL(pwrite64)(fd, p, n, at);
    if (got > 0)
        put(DISK_WRITTEN, ino_of(fd), (uint64_t)at, p, (size_t)got);
    pthread_mutex_unlock(&lock);
    return got;
}

FIND(ftruncate64)
SHOWN int ftruncate64(int fd, off64_t n)
{
    char path[PATH_MAX];
    int failed;
    if (!name_of(fd, path))
        return REAL(ftruncate64)(fd, n);
    pthread_mutex_lock(&lock);
    failed = REAL(ftruncate64)(fd, n);
    if (!failed)
        put(DISK_CUT, ino_of(fd), (uint64_t)n, NULL, 0);
    pthread_mutex_unlock(&lock);
    return failed;
}

/* [lock] */
static int sync_fails(int fd, const char *name)
{
    size_t n = name ? strlen(name) : 0;
    if (fail_nth && --fail_nth == 0)
        return 1;
    if (fail_wal && n > 4 && !strcmp(name + n - 4, "-wal") &&
        lseek(fd, 0, SEEK_END) >= fail_wal) {
        fail_wal = 0;
        return 1;
    }
    return 0;
}

static int sync_as(int (*real)(int), int fd)
{
    char path[PATH_MAX];
    const char *name = name_of(fd, path);
    int failed;
    if (!name && (log_fd < 0 || strcmp(path, dir)))
        return real(fd);
    pthread_mutex_lock(&lock);
    if (sync_fails(fd, name)) {
        put(name ? DISK_NOT_SYNCED : DISK_DIR_NOT_SYNCED, ino_of(fd), 0, NULL,
            0);
        pthread_mutex_unlock(&lock);
        errno = EIO;
        return -1;
    }
    failed = real(fd);
    if (!failed)
        put(name ? DISK_SYNCED : DISK_DIR_SYNCED, ino_of(fd), 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return failed;
}

FIND(fsync)
SHOWN int fsync(int fd)
{
    return sync_as(REAL(fsync), fd);
}

FIND(fdatasync)
SHOWN int fdatasync(int fd)
{
    return sync_as(REAL(fdatasync), fd);
}

/* ---- names ---- */

FIND(unlink)
SHOWN int unlink(const char *path)
{
    const char *name = name_in(path);
    uint64_t ino;
    int failed;
    if (!name)
        return REAL(unlink)(path);
    pthread_mutex_lock(&lock);
    ino = ino_at(path);
    failed = REAL(unlink)(path);
    if (!failed)
        put(DISK_UNLINKED, ino, 0, name, strlen(name));
    pthread_mutex_unlock(&lock);
    return failed;
}

FIND(rename)
SHOWN int rename(const char *from, const char *to)
{
    const char *old = name_in(from), *new = name_in(to);
    char both[2 * NAME_MAX + 2];
    uint64_t ino;
    size_t n;
    int failed;
    if (!old || !new)
        return REAL(rename)(from, to);
    n = strlen(old) + 1;
    memcpy(both, old, n);
    memcpy(both + n, new, strlen(new));
    n += strlen(new);
    pthread_mutex_lock(&lock);
    ino = ino_at(from);
    failed = REAL(rename)(from, to);
    if (!failed)
        put(DISK_RENAMED, ino, 0, both, n);
    pthread_mutex_unlock(&lock);
    return failed;
}
