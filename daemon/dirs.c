/* Directories, locks and sockets. Before the loop runs.
 *
 * Whoever holds the lock of the directory is the only tracerd that probes,
 * unlinks and binds there, so a race of two starters has one winner and the
 * loser touches nothing. Nothing but a socket is ever unlinked. */
#include "daemon/dirs.h"

#include "proto/place.h"
#include "proto/point.h"
#include "proto/wire.h"
#include "tracerd/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SAY(...) snprintf(why, DIRS_WHY_BYTES, __VA_ARGS__)

/* A file that a tracerd or a client left, by its name. */
static bool is_ours(const char *name)
{
    static const char end[] = ".journal";
    size_t n = strlen(name), k = sizeof end - 1;
    return strcmp(name, PLACE_LOCK) == 0 || strcmp(name, PLACE_INGEST) == 0 ||
           strcmp(name, PLACE_QUERY) == 0 ||
           (n > k && strcmp(name + n - k, end) == 0);
}

/* Does the directory serve something else? Then its mode is not to be
 * changed for our sake. */
static bool is_others(const char *path)
{
    struct dirent *e;
    bool some = false, ours = false;
    DIR *d = opendir(path);
    while (d && !ours && (e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        some = true;
        ours = is_ours(e->d_name);
    }
    if (d)
        closedir(d);
    return some && !ours;
}

/* The path of a subdirectory, to advise. */
static void below(const char *path, char out[PATH_MAX + 64])
{
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/')
        n--;
    snprintf(out, PATH_MAX + 64, "%.*s/tracerd-%lu", (int)n, path,
             (unsigned long)geteuid());
}

static int check_found(const char *path, const struct stat *st,
                       enum dirs_kind kind, char why[DIRS_WHY_BYTES])
{
    mode_t forbidden = kind == DIRS_PRIVATE ? 077 : 022;
    char sub[PATH_MAX + 64];

    if (S_ISLNK(st->st_mode)) {
        SAY("'%s' is a symbolic link; name the directory itself", path);
        return TRD_EACCES;
    }
    if (!S_ISDIR(st->st_mode)) {
        SAY("'%s' is not a directory; remove it or name another", path);
        return TRD_EACCES;
    }
    if (st->st_uid != geteuid()) {
        below(path, sub);
        if (access(path, W_OK | X_OK) != 0)
            snprintf(sub, sizeof sub, "/dev/shm/tracerd-%lu",
                     (unsigned long)geteuid());
        SAY("'%s' belongs to uid %lu, not to uid %lu; name a directory of "
            "your own, such as '%s'",
            path, (unsigned long)st->st_uid, (unsigned long)geteuid(), sub);
        return TRD_EACCES;
    }
    if ((st->st_mode & forbidden) && is_others(path)) {
        below(path, sub);
        SAY("'%s' is open to other users (mode %04o) and holds other files; "
            "name a directory of its own, such as '%s'",
            path, (unsigned)(st->st_mode & 07777), sub);
        return TRD_EACCES;
    }
    if (st->st_mode & forbidden) {
        SAY("'%s' is open to other users (mode %04o); run: chmod %s '%s'", path,
            (unsigned)(st->st_mode & 07777),
            kind == DIRS_PRIVATE ? "700" : "go-w", path);
        return TRD_EACCES;
    }
    if (access(path, W_OK | X_OK) != 0) {
        SAY("cannot write in '%s': %s", path, strerror(errno));
        return TRD_EIO;
    }
    return 0;
}

int dirs_sync_above(const char *path)
{
    char parent[PATH_MAX];
    char *slash;
    int fd, rc;
    snprintf(parent, sizeof parent, "%s", path);
    slash = strrchr(parent, '/');
    if (!slash)
        snprintf(parent, sizeof parent, ".");
    else
        slash[slash == parent] = '\0';
    fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    rc = fsync(fd);
    close(fd);
    return rc;
}

/* It must survive a power cut before a run in it does, but some file systems
 * cannot say that it will. */
static int make_one(const char *path)
{
    if (mkdir(path, 0700) != 0)
        return -1;
    (void)dirs_sync_above(path);
    return 0;
}

/* Creates every missing component above the last. */
static void make_above(const char *path)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *p = strchr(part + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        (void)make_one(part); /* or it is there */
        *p = '/';
    }
}

/* Tried, since access() lets root do what a file system does not. */
static bool can_make_in(const char *dir)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/.tracerd-XXXXXX", dir);
    return mkdtemp(path) && rmdir(path) == 0;
}

/* Whether the directory could be made, with those above it if make_parents
 * says so. */
static int check_could_be(const char *path, bool make_parents,
                          char why[DIRS_WHY_BYTES])
{
    char parent[PATH_MAX];
    struct stat st;
    snprintf(parent, sizeof parent, "%s", path);
    do {
        char *slash = strrchr(parent, '/');
        if (!slash)
            snprintf(parent, sizeof parent, ".");
        else
            slash[slash == parent] = '\0';
    } while (make_parents && lstat(parent, &st) != 0 && errno == ENOENT &&
             strcmp(parent, "/") != 0 && strcmp(parent, ".") != 0);
    if (can_make_in(parent))
        return 0;
    SAY("cannot create '%s': '%s': %s", path, parent, strerror(errno));
    return TRD_EIO;
}

int dirs_check(const char *path, enum dirs_kind kind, bool make,
               bool make_parents, char why[DIRS_WHY_BYTES])
{
    struct stat st;
    int rc;

    if (make && make_parents)
        make_above(path);
    if (make && make_one(path) != 0 && errno != EEXIST) {
        int err = errno;
        SAY("cannot create '%s': %s%s", path, strerror(err),
            err == ENOENT ? "; create the directory above it first" : "");
        return TRD_EIO;
    }
    rc = kind == DIRS_PRIVATE ? lstat(path, &st) : stat(path, &st);
    if (rc != 0) {
        if (!make && errno == ENOENT)
            return check_could_be(path, make_parents, why);
        SAY("cannot look at '%s': %s", path, strerror(errno));
        return TRD_EIO;
    }
    rc = check_found(path, &st, kind, why);
    if (rc == 0 && !make && !can_make_in(path)) {
        SAY("cannot write in '%s': %s", path, strerror(errno));
        rc = TRD_EIO;
    }
    return rc;
}

static long lock_holder(int fd)
{
    char text[32];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return strtol(text, NULL, 10);
}

static bool is_no_space(int error)
{
    return error == ENOSPC || error == EDQUOT;
}

static bool is_directory(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
}

int dirs_lock(const char *dir, int *out, char why[DIRS_WHY_BYTES])
{
    char path[PATH_MAX + 32], text[32];
    int fd, n;

    snprintf(path, sizeof path, "%s/%s", dir, PLACE_LOCK);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && is_no_space(errno)) /* then the directory is locked */
        fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        SAY("cannot open '%s': %s", path, strerror(errno));
        return TRD_EIO;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int err = errno;
        if (err == EWOULDBLOCK)
            SAY("another tracerd (pid %ld) already serves '%s'",
                lock_holder(fd), dir);
        else
            SAY("cannot lock '%s': %s", path, strerror(err));
        close(fd);
        return err == EWOULDBLOCK ? TRD_EBUSY : TRD_EIO;
    }
    n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    /* the number is for whoever is refused: it may be missing */
    if (!is_directory(fd) &&
        (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n) &&
        !is_no_space(errno)) {
        SAY("cannot write '%s': %s", path, strerror(errno));
        close(fd);
        return TRD_EIO;
    }
    *out = fd;
    return 0;
}

int dirs_socket_name(const char *dir, const char *name,
                     char why[DIRS_WHY_BYTES])
{
    struct sockaddr_un address;
    size_t n = strlen(dir) + 1 + strlen(name);
    if (place_socket(dir, name, address.sun_path, sizeof address.sun_path) == 0)
        return 0;
    SAY("the socket path '%s/%s' has %zu bytes, and %d is the most a socket "
        "may have; name a shorter directory by --dir",
        dir, name, n, SOCKET_PATH_MAX);
    return TRD_EPATH;
}

/* 1 somebody answers, 0 nobody does, negative: cannot tell. */
static int probe(const struct sockaddr_un *address)
{
    int rc = -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ||
        errno == EAGAIN || errno == EINPROGRESS)
        rc = 1; /* a full backlog is an owner too */
    else if (errno == ECONNREFUSED || errno == ENOENT)
        rc = 0;
    close(fd);
    return rc;
}

static int clear_place(const struct sockaddr_un *address,
                       char why[DIRS_WHY_BYTES])
{
    const char *path = address->sun_path;
    struct stat st;

    if (lstat(path, &st) != 0) {
        if (errno == ENOENT)
            return 0;
        SAY("cannot look at '%s': %s", path, strerror(errno));
        return TRD_EIO;
    }
    if (!S_ISSOCK(st.st_mode)) {
        SAY("'%s' is %s, not a socket; it is left alone: move it away "
            "yourself",
            path,
            S_ISREG(st.st_mode)   ? "a regular file"
            : S_ISLNK(st.st_mode) ? "a symbolic link"
            : S_ISDIR(st.st_mode) ? "a directory"
                                  : "something else");
        return TRD_EACCES;
    }
    switch (probe(address)) {
    case 1:
        SAY("already running: somebody answers on '%s'", path);
        return TRD_EBUSY;
    case 0:
        if (unlink(path) == 0 || errno == ENOENT)
            return 0;
        SAY("cannot remove the stale socket '%s': %s", path, strerror(errno));
        return TRD_EIO;
    default:
        SAY("cannot tell whether somebody answers on '%s': %s", path,
            strerror(errno));
        return TRD_EIO;
    }
}

int dirs_bind(const char *dir, const char *name, int *out,
              char why[DIRS_WHY_BYTES])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;
    int fd;
    int rc = dirs_socket_name(dir, name, why);
    if (rc)
        return rc;
    place_socket(dir, name, address.sun_path, sizeof address.sun_path);
    rc = clear_place(&address, why);
    if (rc)
        return rc;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(address.sun_path, 0600) != 0 ||
        lstat(address.sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) {
        SAY("cannot bind '%s': %s", address.sun_path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return TRD_EIO;
    }
    POINT(socket_bound);
    *out = fd;
    return 0;
}
