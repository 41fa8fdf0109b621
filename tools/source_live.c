/* Asking the running daemon: one REQ socket of nanomsg, one page a request.
 *
 * libnanomsg aborts the process on a path that is too long, gives no
 * credentials of the peer and connects for ever. So directory, socket and
 * listener are checked with plain system calls before it is used: private to
 * this user, and somebody answers. */
#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/place.h"
#include "tools/source.h"

enum {
    DIR_MAX = 4096,
    STATUS_MS = 5000,  /* how long to wait for an answer */
    ANSWER_MS = 35000, /* the daemon gives a statement 30 s */
    RESEND_MS = 600000 /* never: a slow answer is not a lost question */
};

struct live {
    int fd;
    char dir[DIR_MAX];
};

/* It is there, or could be made. */
static int usable(char *path, size_t parent_n)
{
    struct stat st;
    char end = path[parent_n];
    if (lstat(path, &st) == 0)
        return 1;
    path[parent_n] = '\0';
    int able = access(parent_n ? path : ".", W_OK | X_OK) == 0;
    path[parent_n] = end;
    return able;
}

/* The place that client and daemon take, too; where there is none the first
 * of all. */
int source_where(const char *given, char *out, size_t cap)
{
    struct place_env env = {.tracerd_dir = given ? given
                                                 : getenv("TRACERD_DIR"),
                            .xdg_runtime_dir = getenv("XDG_RUNTIME_DIR"),
                            .uid = geteuid()};
    char path[DIR_MAX];
    size_t parent_n;
    int found = 0, code;
    for (unsigned i = 0;
         (code = place_dir(&env, i, path, sizeof path, &parent_n)) == 0;
         i++) {
        int taken = usable(path, parent_n);
        if (found && !taken)
            continue;
        snprintf(out, cap, "%s", path);
        if (taken)
            return 0;
        found = 1;
    }
    return found || code == TRD_ENOTFOUND ? 0 : code;
}

static int no_daemon(const char *dir, const char *why)
{
    return ctl_fail(CTL_FAILED,
                    "no daemon answers in '%s': %s; start one with "
                    "'tracerd --dir %s'",
                    dir, why, dir);
}

int source_dir(const char *given, char *out, size_t cap)
{
    struct stat st;
    out[0] = '\0';
    if (source_where(given, out, cap))
        return ctl_fail(CTL_FAILED, "the directory's path is too long");
    if (lstat(out, &st) != 0)
        return no_daemon(out, errno == ENOENT ? "no such directory"
                                              : ctl_errno(errno));
    if (!S_ISDIR(st.st_mode))
        return no_daemon(out, "not a directory");
    if (st.st_uid != geteuid() || (st.st_mode & 077))
        return ctl_fail(CTL_FAILED,
                        "'%s' is not private to this user (owner %lu, mode "
                        "%04o); it must be ours and 0700",
                        out, (unsigned long)st.st_uid,
                        (unsigned)st.st_mode & 07777);
    return 0;
}

/* The socket's path, checked. A directory that is too long for one of the
 * sockets is too long for a daemon. */
static int socket_path(const char *dir, const char *name,
                       char out[SOCKET_PATH_MAX + 1])
{
    struct stat st;
    if (place_socket(dir, PLACE_INGEST, out, SOCKET_PATH_MAX + 1))
        return ctl_fail(CTL_FAILED,
                        "the socket's path '%s/%s' has %zu bytes, the limit "
                        "is %d; use a shorter directory",
                        dir, PLACE_INGEST,
                        strlen(dir) + 1 + strlen(PLACE_INGEST),
                        SOCKET_PATH_MAX);
    place_socket(dir, name, out, SOCKET_PATH_MAX + 1);
    if (lstat(out, &st) != 0)
        return no_daemon(dir, errno == ENOENT ? "there is no socket"
                                              : ctl_errno(errno));
    if (!S_ISSOCK(st.st_mode))
        return ctl_fail(CTL_FAILED, "'%s' is not a socket", out);
    if (st.st_uid != geteuid() || (st.st_mode & 077))
        return ctl_fail(CTL_FAILED, "'%s' is not private to this user", out);
    return 0;
}

int source_connect(const char *dir, const char *name)
{
    char path[SOCKET_PATH_MAX + 1];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t n = sizeof peer;
    if (socket_path(dir, name, path))
        return -1;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        ctl_fail(0, "no socket: %s", ctl_errno(errno));
        return -1;
    }
    if (connect(fd, (const struct sockaddr *)&address, sizeof address)) {
        no_daemon(dir, errno == ECONNREFUSED ? "nobody listens"
                                             : ctl_errno(errno));
        goto fail;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) ||
        peer.uid != geteuid()) {
        ctl_fail(0, "the daemon in '%s' is another user's", dir);
        goto fail;
    }
    return fd;
fail:
    close(fd);
    return -1;
}

static int live_ask(void *state, const struct query *q, void *page,
                    size_t cap, size_t *n)
{
    struct live *l = state;
    int wait_ms = q->verb == QUERY_STATUS ? STATUS_MS : ANSWER_MS;
    char *request = malloc(SP_REQUEST_MAX_BYTES);
    size_t request_n;
    int code = CTL_FAILED, got;
    if (!request)
        return ctl_fail(CTL_FAILED, "out of memory");
    if (query_put(q, request, SP_REQUEST_MAX_BYTES, &request_n)) {
        code = ctl_fail(CTL_BAD, "the question is longer than %d bytes",
                        SP_REQUEST_MAX_BYTES);
        goto out;
    }
    nn_setsockopt(l->fd, NN_SOL_SOCKET, NN_RCVTIMEO, &wait_ms,
                  sizeof wait_ms);
    nn_setsockopt(l->fd, NN_SOL_SOCKET, NN_SNDTIMEO, &wait_ms,
                  sizeof wait_ms);
    got = nn_send(l->fd, request, request_n, 0);
    if (got >= 0)
        got = nn_recv(l->fd, page, cap, 0);
    if (got < 0 && nn_errno() == ETIMEDOUT)
        no_daemon(l->dir, "it does not answer");
    else if (got < 0)
        ctl_fail(0, "cannot ask the daemon in '%s': %s", l->dir,
                 nn_strerror(nn_errno()));
    else if ((size_t)got > cap)
        ctl_fail(0, "the daemon's answer is too long");
    else {
        *n = (size_t)got;
        code = 0;
    }
out:
    free(request);
    return code;
}

static void live_close(void *state)
{
    struct live *l = state;
    if (l->fd >= 0)
        nn_close(l->fd);
    free(l);
}

int source_live_open(const char *dir, const struct source_ops **ops,
                     void **state)
{
    static const struct source_ops live_ops = {live_ask, live_close};
    char path[SOCKET_PATH_MAX + 1], url[sizeof path + sizeof "ipc://"];
    int resend = RESEND_MS, most = SP_MAX_BYTES;
    struct live *l = calloc(1, sizeof *l);
    if (!l)
        return ctl_fail(CTL_FAILED, "out of memory");
    l->fd = -1;
    if (source_dir(dir, l->dir, sizeof l->dir))
        goto fail;
    int probe = source_connect(l->dir, PLACE_QUERY);
    if (probe < 0 || place_socket(l->dir, PLACE_QUERY, path, sizeof path))
        goto fail;
    close(probe);
    snprintf(url, sizeof url, "ipc://%s", path);
    l->fd = nn_socket(AF_SP, NN_REQ);
    if (l->fd < 0 ||
        nn_setsockopt(l->fd, NN_REQ, NN_REQ_RESEND_IVL, &resend,
                      sizeof resend) < 0 ||
        nn_setsockopt(l->fd, NN_SOL_SOCKET, NN_RCVMAXSIZE, &most,
                      sizeof most) < 0 ||
        nn_connect(l->fd, url) < 0) {
        ctl_fail(0, "cannot ask the daemon in '%s': %s", l->dir,
                 nn_strerror(nn_errno()));
        goto fail;
    }
    *ops = &live_ops;
    *state = l;
    return 0;
fail:
    live_close(l);
    return CTL_FAILED;
}
