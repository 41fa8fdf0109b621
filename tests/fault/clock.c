/* A wall clock that a test sets: a library that a program is started with
 * (LD_PRELOAD). The file named by TRD_CLOCK holds the nanoseconds, an i64, by
 * which real time is wrong; the program and the test share it. The clocks that
 * nobody can set are left alone. */
#undef _FORTIFY_SOURCE /* or some calls are inline functions already */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))
#define S INT64_C(1000000000)

static _Atomic int64_t none;
static _Atomic int64_t *wrong = &none;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TRD_CLOCK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *page;
    if (fd < 0)
        return;
    page = mmap(NULL, sizeof *wrong, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                0);
    close(fd);
    if (page != MAP_FAILED)
        wrong = page;
}

SHOWN int clock_gettime(clockid_t clock, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, t);
    if (rc == 0 &&
        (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = t->tv_sec * S + t->tv_nsec + *wrong;
        t->tv_sec = ns / S;
        t->tv_nsec = ns % S;
    }
    return rc;
}

SHOWN int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

SHOWN time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
