/* A tracerd of one's own: starting, stopping, its log, its sockets. */
#include "tests/lib/rig.h"

#include "proto/place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- time ---- */

long long rig_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

void rig_pause(void)
{
    struct timespec t = {.tv_nsec = 2000000};
    nanosleep(&t, NULL);
}

/* ---- the daemon ---- */

void rig_init(struct rig *r)
{
    memset(r, 0, sizeof *r);
    snprintf(r->base, sizeof r->base, "/tmp/tracerd-test-XXXXXX");
    if (!mkdtemp(r->base))
        fail_msg("no directory under /tmp: %s", strerror(errno));
    snprintf(r->dir, sizeof r->dir, "%.400s/dir", r->base);
    snprintf(r->data, sizeof r->data, "%.400s/data", r->base);
    snprintf(r->log, sizeof r->log, "%.400s/log", r->base);
}

static void remove_tree(const char *path)
{
    struct dirent *e;
    DIR *d = opendir(path);
    while (d && (e = readdir(d))) {
        char name[4096];
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (lstat(name, &st) == 0 && S_ISDIR(st.st_mode))
            remove_tree(name);
        else
            unlink(name);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

void rig_fini(struct rig *r)
{
    if (r->pid && waitpid(r->pid, NULL, WNOHANG) != 0) {
        char *text = rig_log(r); /* it died by itself */
        print_error("%s", text);
        free(text);
        r->pid = 0;
    }
    if (r->pid)
        rig_kill(r);
    remove_tree(r->base);
}

static void exec_daemon(struct rig *r, int ready_fd)
{
    const char *argv[RIG_ARGS + 10];
    const char *program = getenv("TRD_TRACERD");
    char fd_text[16];
    int n = 0;
    int log = open(r->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

    dup2(log, STDERR_FILENO);
    dup2(log, STDOUT_FILENO);
    if (r->uid && (setgroups(0, NULL) || setgid(r->uid) || setuid(r->uid)))
        _exit(126);
    snprintf(fd_text, sizeof fd_text, "%d", ready_fd);
    argv[n++] = program;
    argv[n++] = "--foreground";
    argv[n++] = "--ready-fd";
    argv[n++] = fd_text;
    argv[n++] = "--dir";
    argv[n++] = r->dir;
    argv[n++] = "--data";
    argv[n++] = r->data;
    for (int i = 0; r->args[i]; i++)
        argv[n++] = r->args[i];
    argv[n] = NULL;
    if (program)
        execv(program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* The exit code, or -1 when it is ready. */
int rig_try(struct rig *r)
{
    char word[16];
    int fds[2], status;
    ssize_t n;

    if (!getenv("TRD_TRACERD"))
        fail_msg("TRD_TRACERD names no tracerd");
    fflush(NULL);
    assert_int_equal(pipe(fds), 0);
    fcntl(fds[0], F_SETFD, FD_CLOEXEC);
    if (r->uid)
        assert_int_equal(chown(r->base, r->uid, r->uid), 0);
    r->pid = fork();
    if (r->pid == 0)
        exec_daemon(r, fds[1]);
    close(fds[1]);
    do {
        n = read(fds[0], word, sizeof word);
    } while (n < 0 && errno == EINTR);
    close(fds[0]);
    if (n == 6 && memcmp(word, "ready\n", 6) == 0)
        return -1;
    waitpid(r->pid, &status, 0);
    r->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The thread sanitizer puts off a signal that comes in the first turn of a
 * loop, and may never deliver it. */
static void settle(void)
{
#ifdef __SANITIZE_THREAD__
    usleep(200 * 1000);
#endif
}

void rig_start(struct rig *r)
{
    int rc = rig_try(r);
    settle();
    if (rc != -1) {
        char *text = rig_log(r);
        print_error("%s", text);
        fail_msg("tracerd did not start: exit code %d", rc);
    }
}

void rig_stop(struct rig *r)
{
    int status = 0;
    pid_t got = 0;
    long long end = rig_now_ms() + RIG_WAIT_MS;
    kill(r->pid, SIGTERM);
    while ((got = waitpid(r->pid, &status, WNOHANG)) == 0) {
        if (rig_now_ms() > end) {
            rig_kill(r);
            fail_msg("tracerd did not stop");
        }
        rig_pause();
    }
    r->pid = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        char *text = rig_log(r);
        print_error("%s", text);
        fail_msg("tracerd ended with status %x", (unsigned)status);
    }
}

void rig_kill(struct rig *r)
{
    kill(r->pid, SIGKILL);
    waitpid(r->pid, NULL, 0);
    r->pid = 0;
}

bool rig_alive(struct rig *r)
{
    return r->pid && waitpid(r->pid, NULL, WNOHANG) == 0;
}

char *rig_log(struct rig *r)
{
    FILE *f = fopen(r->log, "r");
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    if (f && fread(text, 1, (1 << 20) - 1, f) == 0)
        text[0] = '\0';
    if (f)
        fclose(f);
    return text;
}

static bool log_has(struct rig *r, const char *text)
{
    char *all = rig_log(r);
    bool has = strstr(all, text) != NULL;
    free(all);
    return has;
}

void rig_logged(struct rig *r, const char *text)
{
    long long end = rig_now_ms() + RIG_WAIT_MS;
    while (!log_has(r, text)) {
        if (rig_now_ms() > end) {
            char *all = rig_log(r);
            print_error("%s", all);
            fail_msg("the log has no '%s'", text);
        }
        rig_pause();
    }
}

/* ---- sockets ---- */

int rig_connect(const char *dir, const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd;
    if (place_socket(dir, name, a.sun_path, sizeof a.sun_path))
        return -1;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool write_some(int fd, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    while (n) {
        ssize_t rc = send(fd, p, n, MSG_NOSIGNAL);
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc <= 0)
            return false;
        p += rc;
        n -= (size_t)rc;
    }
    return true;
}

void rig_write(int fd, const void *bytes, size_t n)
{
    if (!write_some(fd, bytes, n))
        fail_msg("cannot send: %s", strerror(errno));
}

void rig_write_any(int fd, const void *bytes, size_t n)
{
    (void)write_some(fd, bytes, n);
}

bool rig_read(int fd, void *bytes, size_t n)
{
    uint8_t *p = bytes;
    while (n) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        ssize_t rc;
        if (poll(&poll_fd, 1, RIG_WAIT_MS) == 0)
            fail_msg("nothing came for %d ms", (int)RIG_WAIT_MS);
        rc = read(fd, p, n);
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc <= 0)
            return false;
        p += rc;
        n -= (size_t)rc;
    }
    return true;
}

void rig_hung_up(int fd)
{
    uint8_t byte;
    while (rig_read(fd, &byte, 1))
        continue;
}
