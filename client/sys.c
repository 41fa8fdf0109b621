/* The real system calls behind the fault seam. [any thread] */
#include "client/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/proc.h"

enum { HIGH_FD = 256, STACK_BYTES = 256 * 1024 };

static uint64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t mono_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static uint64_t real_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

static int random_bytes(void *bytes, size_t n)
{
    return getrandom(bytes, n, 0) == (ssize_t)n ? 0 : -1;
}

static int open_file(const char *path, int flags, mode_t mode)
{
    return open(path, flags | O_CLOEXEC, mode);
}

static int allocate(int fd, off_t n)
{
    return posix_fallocate(fd, 0, n);
}

static void *map(size_t n, int flags, int fd)
{
    return mmap(NULL, n, PROT_READ | PROT_WRITE, flags, fd, 0);
}

static int stream_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* High numbers stay clear of those that applications count on or close. */
static int move_high(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
    if (high < 0)
        return fd;
    close(fd);
    return high;
}

static ssize_t send_parts(int fd, const struct iovec *part, size_t n)
{
    struct msghdr m = {.msg_iov = (struct iovec *)part, .msg_iovlen = n};
    return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t recv_bytes(int fd, void *bytes, size_t n)
{
    return recv(fd, bytes, n, MSG_DONTWAIT);
}

/* Not an eventfd: all of those are one file, so that ours could not be told
 * from the application's. */
static int event(void)
{
    struct sockaddr_un self = {.sun_family = AF_UNIX};
    socklen_t n = sizeof self.sun_family; /* the system chooses a name */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int failed = fd < 0 || bind(fd, (struct sockaddr *)&self, n);
    n = sizeof self;
    if (!failed)
        failed = getsockname(fd, (struct sockaddr *)&self, &n) ||
                 connect(fd, (struct sockaddr *)&self, n);
    if (failed && fd >= 0)
        close(fd);
    return failed ? -1 : fd;
}

/* No signal of the application is ever handled on our thread. */
static int thread(pthread_t *out, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    sigset_t all, old;
    if (pthread_attr_init(&attr))
        return -1;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(out, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return failed ? -1 : 0;
}

struct trd__sys trd__sys = {
    .mono_ns = mono_ns,
    .real_ns = real_ns,
    .random = random_bytes,
    .open = open_file,
    .allocate = allocate,
    .pread = pread,
    .pwrite = pwrite,
    .truncate = ftruncate,
    .map = map,
    .unmap = munmap,
    .rename = rename,
    .unlink = unlink,
    .mkdir = mkdir,
    .lstat = lstat,
    .fstat = fstat,
    .close = close,
    .socket = stream_socket,
    .connect = connect,
    .move_high = move_high,
    .send = send_parts,
    .recv = recv_bytes,
    .poll = poll,
    .event = event,
    .thread = thread,
};

int trd__remember(int fd, dev_t *dev, ino_t *ino)
{
    struct stat st;
    if (trd__sys.fstat(fd, &st))
        return -1;
    *dev = st.st_dev;
    *ino = st.st_ino;
    return 0;
}

int trd__is_still(int fd, dev_t dev, ino_t ino)
{
    struct stat st;
    return fd >= 0 && !trd__sys.fstat(fd, &st) && st.st_dev == dev &&
           st.st_ino == ino;
}

int trd__lock_file(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_SETLK, &lock);
}

/* The beginning of a file, "" where it cannot be read. */
static void read_small(const char *path, char *out, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, cap - 1);
    if (fd >= 0)
        close(fd);
    out[n < 0 ? 0 : n] = 0;
}

uint64_t trd__start_time(unsigned pid)
{
    char path[64], text[1024], state;
    uint64_t start_time = 0;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    read_small(path, text, sizeof text);
    return proc_stat(text, &state, &start_time) ? 0 : start_time;
}

void trd__boot_id(uint8_t out[16])
{
    char text[64];
    read_small("/proc/sys/kernel/random/boot_id", text, sizeof text);
    proc_boot_id(text, out);
}
