/* Starting and stopping a private tracerd. It dies with this process, and
 * its messages go to a file that is shown when it fails. */
#include "tools/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READY_MS = 30000, LOG_TAIL = 1024 };

static void path_of(const struct spawned *s, const char *name, char *out,
                    size_t cap)
{
    snprintf(out, cap, "%s/%s", s->dir, name);
}

/* tracerd in the directory of this program, else the name for PATH. */
static void program(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 16);
    char *slash;
    if (n > 0) {
        out[n] = '\0';
        slash = strrchr(out, '/');
        if (slash) {
            strcpy(slash + 1, "tracerd");
            if (access(out, X_OK) == 0)
                return;
        }
    }
    snprintf(out, cap, "tracerd");
}

static void child(const struct spawned *s, const char *data, int ready)
{
    char path[4096], log[128], number[16];
    char *args[] = {path,           "--foreground", "--dir",  NULL,
                    "--data",       NULL,           "--ready-fd", number,
                    NULL};
    program(path, sizeof path);
    path_of(s, "log", log, sizeof log);
    snprintf(number, sizeof number, "%d", ready);
    args[3] = strdup(s->dir);
    args[5] = strdup(data);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd >= 0) {
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
    }
    execvp(path, args);
    fprintf(stderr, "cannot run '%s': %s\n", path, strerror(errno));
    _exit(127);
}

/* The last line of its messages. */
static void show_log(const struct spawned *s)
{
    char path[128], text[LOG_TAIL + 1];
    path_of(s, "log", path, sizeof path);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    if (fseek(f, -(long)LOG_TAIL, SEEK_END) != 0)
        rewind(f);
    size_t n = fread(text, 1, LOG_TAIL, f);
    fclose(f);
    while (n && text[n - 1] == '\n')
        n--;
    text[n] = '\0';
    char *last = strrchr(text, '\n');
    if (n)
        ctl_fail(0, "its last words: %s", last ? last + 1 : text);
}

/* 0 when the daemon said that it is ready. */
static int wait_ready(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;
    int got;
    do
        got = poll(&p, 1, READY_MS);
    while (got < 0 && errno == EINTR);
    return got == 1 && read(fd, &byte, 1) == 1 ? 0 : -1;
}

int spawn_daemon(const char *data, struct spawned *out)
{
    int pipe_fd[2] = {-1, -1};
    memset(out, 0, sizeof *out);
    strcpy(out->dir, "/tmp/tracectl-XXXXXX");
    if (!mkdtemp(out->dir))
        return ctl_fail(CTL_FAILED, "no directory in /tmp: %s",
                        ctl_errno(errno));
    if (pipe(pipe_fd)) {
        ctl_fail(0, "no pipe: %s", ctl_errno(errno));
        goto fail;
    }
    fcntl(pipe_fd[0], F_SETFD, FD_CLOEXEC);
    out->pid = fork();
    if (out->pid == 0)
        child(out, data, pipe_fd[1]);
    close(pipe_fd[1]);
    int bad = out->pid < 0 || wait_ready(pipe_fd[0]);
    close(pipe_fd[0]);
    if (!bad)
        return 0;
    ctl_fail(0, "a private tracerd for '%s' does not start", data);
    show_log(out);
fail:
    spawn_stop(out);
    return CTL_FAILED;
}

/* The directory is ours alone and flat. */
static void remove_dir(const char *dir)
{
    char path[512];
    struct dirent *e;
    DIR *d = opendir(dir);
    while (d && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlink(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

int spawn_stop(struct spawned *s)
{
    int status = 0, code = 0;
    if (s->pid > 0) {
        kill(s->pid, SIGTERM);
        while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR)
            ;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            code = CTL_FAILED;
    }
    s->pid = 0;
    if (s->dir[0])
        remove_dir(s->dir);
    s->dir[0] = '\0';
    return code;
}
