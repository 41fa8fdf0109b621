/* Log lines. Any thread; one mutex keeps lines whole and guards the file.
 *
 * A line is formatted into a fixed buffer (longer ones are cut) and written
 * by one write(), so lines of two processes do not mix either. */
#include "daemon/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 2048, FILE_MAX_BYTES = 4 * 1024 * 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = STDERR_FILENO;
static uint64_t log_bytes;
static char log_path[PATH_MAX];

static int open_file(void)
{
    struct stat st;
    int fd = open(log_path,
                  O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    log_bytes = fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    log_fd = fd;
    return 0;
}

int log_open(const char *path)
{
    int rc;
    pthread_mutex_lock(&lock);
    snprintf(log_path, sizeof log_path, "%s", path);
    rc = open_file();
    pthread_mutex_unlock(&lock);
    return rc;
}

void log_close(void)
{
    pthread_mutex_lock(&lock);
    if (log_fd > STDERR_FILENO)
        close(log_fd);
    log_fd = STDERR_FILENO;
    pthread_mutex_unlock(&lock);
}

/* Keeps the file bounded: the full one replaces the one before it. */
static void rotate(void)
{
    char old[PATH_MAX + 8];
    snprintf(old, sizeof old, "%s.old", log_path);
    if (rename(log_path, old) != 0)
        return;
    close(log_fd);
    log_fd = STDERR_FILENO;
    (void)open_file();
}

static void put_line(const char *line, size_t n)
{
    pthread_mutex_lock(&lock);
    if (log_fd > STDERR_FILENO && log_bytes + n > FILE_MAX_BYTES)
        rotate();
    /* A log that cannot be written must not stop the daemon. */
    ssize_t rc = write(log_fd, line, n);
    if (rc > 0)
        log_bytes += (uint64_t)rc;
    pthread_mutex_unlock(&lock);
}

__attribute__((format(printf, 3, 0))) static void
log_va(const char *level, const char *event, const char *format, va_list args)
{
    char line[LINE_MAX_BYTES];
    struct timespec now;
    struct tm tm;
    size_t n;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %s %s ",
                          now.tv_nsec / 1000000, level, event);
    int more = vsnprintf(line + n, sizeof line - n - 1, format, args);
    if (more > 0)
        n += (size_t)more < sizeof line - n - 1 ? (size_t)more
                                                : sizeof line - n - 2;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    }
    line[n++] = '\n';
    put_line(line, n);
}

void log_info(const char *event, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_va("info", event, format, args);
    va_end(args);
}

void log_warn(const char *event, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_va("warn", event, format, args);
    va_end(args);
}

void log_error(const char *event, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_va("error", event, format, args);
    va_end(args);
}
