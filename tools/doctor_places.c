/* The doctor's look at directories, sockets, locks and the daemon. Plain
 * system calls, nothing is made, removed or locked. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/place.h"
#include "tools/doctor.h"
#include "tools/source.h"

#define SAY(d, check, state, mend, ...)                                       \
    doctor_say(d, check, DOCTOR_##state, mend, __VA_ARGS__)

/* A command on a path. */
static const char *command(char out[DOCTOR_TEXT + DOCTOR_PATH],
                           const char *words, const char *path)
{
    snprintf(out, DOCTOR_TEXT + DOCTOR_PATH, "%s '%s'", words, path);
    return out;
}

/* ---- a directory ---- */

/* What keeps a directory from being made; NULL: nothing. */
static const char *cannot_make(const char *path, char parent[DOCTOR_PATH])
{
    char *slash;
    snprintf(parent, DOCTOR_PATH, "%s", path);
    slash = strrchr(parent, '/');
    if (slash == parent)
        slash++;
    if (slash)
        *slash = '\0';
    else
        strcpy(parent, ".");
    return access(parent, W_OK | X_OK) == 0 ? NULL
           : errno == EROFS                 ? "a read-only file system"
                                            : ctl_errno(errno);
}

/* The default data directory and those above it are made at the start. */
static void look_at_missing(struct doctor *d, const char *check,
                            const char *path, int makes_parents)
{
    char parent[DOCTOR_PATH], mend[DOCTOR_TEXT + DOCTOR_PATH];
    const char *why = cannot_make(path, parent);
    if (!why || (makes_parents && errno == ENOENT)) {
        SAY(d, check, OK, "", "'%s' is not there yet; tracerd makes it",
            path);
        d->dir_good |= strcmp(check, "directory") == 0;
        return;
    }
    if (access(parent, F_OK) != 0)
        command(mend, "mkdir -p -m 700", parent);
    else
        snprintf(mend, sizeof mend, "export %s=/a/directory/of/your/own",
                 strcmp(check, "data") == 0 ? "TRACERD_DATA" : "TRACERD_DIR");
    SAY(d, check, BAD, mend, "'%s' is not there and cannot be made in '%s': "
                             "%s", path, parent, why);
}

/* forbidden: bits of the mode that a directory of ours may not have. */
static int look_at_dir(struct doctor *d, const char *check, const char *path,
                       int link_ok, mode_t forbidden, int makes_parents)
{
    char mend[DOCTOR_TEXT + DOCTOR_PATH];
    const char *variable =
        strcmp(check, "data") == 0 ? "export TRACERD_DATA=/your/own/directory"
                                   : "export TRACERD_DIR=/your/own/directory";
    struct stat st;
    if ((link_ok ? stat(path, &st) : lstat(path, &st)) != 0) {
        if (errno == ENOENT)
            look_at_missing(d, check, path, makes_parents);
        else
            SAY(d, check, BAD, variable, "cannot look at '%s': %s", path,
                ctl_errno(errno));
        return 0;
    }
    if (S_ISLNK(st.st_mode))
        SAY(d, check, BAD, variable,
            "'%s' is a symbolic link; name the directory itself", path);
    else if (!S_ISDIR(st.st_mode))
        SAY(d, check, BAD, variable,
            "'%s' is not a directory", path);
    else if (st.st_uid != geteuid())
        SAY(d, check, BAD, variable, "'%s' belongs to uid %lu, not to uid %lu",
            path, (unsigned long)st.st_uid, (unsigned long)geteuid());
    else if (st.st_mode & forbidden)
        SAY(d, check, BAD,
            command(mend, forbidden & 055 ? "chmod 700"
                                          : "chmod go-w", path),
            "'%s' is open to other users (mode %04o)", path,
            (unsigned)(st.st_mode & 07777));
    else if (access(path, W_OK | X_OK) != 0)
        SAY(d, check, BAD, errno == EROFS
                               ? variable
                               : command(mend, "chmod 700", path),
            "cannot write in '%s': %s", path,
            errno == EROFS ? "a read-only file system" : ctl_errno(errno));
    else
        return 1;
    return 0;
}

void doctor_directory(struct doctor *d)
{
    if (source_where(d->ctl->dir, d->dir, sizeof d->dir)) {
        SAY(d, "directory", BAD, "export TRACERD_DIR=/a/short/path",
            "the directory's path is too long");
        return;
    }
    d->dir_good = look_at_dir(d, "directory", d->dir, 0, 077, 0) ||
                  d->dir_good;
    if (d->dir_good && access(d->dir, F_OK) == 0)
        SAY(d, "directory", OK, "", "'%s' is private and of this user",
            d->dir);
}

/* ---- locks ---- */

long doctor_lock_holder(const char *dir)
{
    char path[DOCTOR_PATH + 32], line[256];
    struct stat st;
    long holder = 0;
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", dir, PLACE_LOCK);
    if (stat(path, &st) != 0)
        return 0;
    f = fopen("/proc/locks", "re");
    while (f && !holder && fgets(line, sizeof line, f)) {
        long pid;
        unsigned major, minor;
        unsigned long long inode;
        if (sscanf(line, "%*d: FLOCK %*s WRITE %ld %x:%x:%llu", &pid, &major,
                   &minor, &inode) == 4 &&
            inode == st.st_ino && major == major(st.st_dev) &&
            minor == minor(st.st_dev))
            holder = pid > 0 ? pid : -1;
    }
    if (f)
        fclose(f);
    return holder;
}

/* ---- sockets ---- */

enum socket_state { SOCKET_ANSWERS, SOCKET_ABSENT, SOCKET_WRONG };

static enum socket_state look_at_socket(struct doctor *d, const char *name)
{
    char path[SOCKET_PATH_MAX + 1], mend[DOCTOR_TEXT + DOCTOR_PATH];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;
    int fd, rc, error;
    if (place_socket(d->dir, name, path, sizeof path)) {
        SAY(d, "sockets", BAD, "export TRACERD_DIR=/a/short/path",
            "the path of '%s/%s' has %zu bytes, and %d is the most a socket "
            "may have",
            d->dir, name, strlen(d->dir) + 1 + strlen(name),
            SOCKET_PATH_MAX);
        return SOCKET_WRONG;
    }
    if (lstat(path, &st) != 0)
        return SOCKET_ABSENT;
    if (!S_ISSOCK(st.st_mode)) {
        snprintf(mend, sizeof mend, "mv '%s' '%s.old'", path, path);
        SAY(d, "sockets", BAD, mend, "'%s' is not a socket", path);
        return SOCKET_WRONG;
    }
    if (st.st_uid != geteuid() || (st.st_mode & 077)) {
        SAY(d, "sockets", BAD, command(mend, "chmod 600", path),
            "'%s' is open to other users, or another user's", path);
        return SOCKET_WRONG;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    rc = fd < 0 ? -1
                : connect(fd, (const struct sockaddr *)&address,
                          sizeof address);
    error = errno;
    if (fd >= 0)
        close(fd);
    if (rc == 0)
        return SOCKET_ANSWERS;
    command(mend, "tracerd --dir", d->dir);
    if (error == ECONNREFUSED)
        SAY(d, "sockets", BAD, mend,
            "'%s' is left from a daemon that is gone; a new one replaces it",
            path);
    else
        SAY(d, "sockets", BAD, mend, "cannot connect to '%s': %s", path,
            ctl_errno(error));
    return SOCKET_WRONG;
}

void doctor_sockets(struct doctor *d)
{
    enum socket_state ingest, query;
    char mend[DOCTOR_TEXT + DOCTOR_PATH];
    long holder;
    if (!d->dir_good)
        return;
    ingest = look_at_socket(d, PLACE_INGEST);
    if (ingest == SOCKET_WRONG)
        return; /* the other is alike */
    query = look_at_socket(d, PLACE_QUERY);
    if (query == SOCKET_WRONG)
        return;
    if (ingest == SOCKET_ANSWERS && query == SOCKET_ANSWERS) {
        d->daemon = 1;
        SAY(d, "sockets", OK, "", "somebody answers in '%s'", d->dir);
        return;
    }
    holder = doctor_lock_holder(d->dir);
    if (holder > 0) {
        snprintf(mend, sizeof mend, "kill %ld; tracerd --dir '%s'", holder,
                 d->dir);
        SAY(d, "daemon", BAD, mend,
            "a tracerd (pid %ld) serves '%s', but its sockets are gone",
            holder, d->dir);
        return;
    }
    SAY(d, "daemon", BAD, command(mend, "tracerd --dir", d->dir),
        "no tracerd runs in '%s'; processes keep what fits their journals",
        d->dir);
}

/* ---- the daemon ---- */

static int is(struct slice s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.text, word, s.n) == 0;
}

void doctor_daemon(struct doctor *d)
{
    const struct ctl ctl = {.dir = d->dir};
    char mend[DOCTOR_TEXT + DOCTOR_PATH], version[64] = "";
    const struct cell *cells;
    struct source *s = NULL;
    struct query q;
    long long pid = 0;
    if (!d->daemon)
        return;
    query_init(&q, QUERY_STATUS);
    if (source_open(&ctl, "", &s) || source_ask(s, &q)) {
        snprintf(mend, sizeof mend, "kill %ld; tracerd --dir '%s'",
                 doctor_lock_holder(d->dir), d->dir);
        SAY(d, "daemon", BAD, mend, "it does not answer");
        source_close(s);
        return;
    }
    while (source_row(s, &cells) > 0) {
        struct slice v = cells[1].s;
        if (is(cells[0].s, "version"))
            snprintf(version, sizeof version, "%.*s", (int)v.n, v.text);
        else if (is(cells[0].s, "pid"))
            pid = (long long)cells[1].i;
        else if (is(cells[0].s, "data"))
            snprintf(d->data, sizeof d->data, "%.*s", (int)v.n, v.text);
        else if (is(cells[0].s, "problem"))
            SAY(d, "daemon", BAD, "tracectl status", "%.*s", (int)v.n,
                v.text);
    }
    source_close(s);
    snprintf(mend, sizeof mend, "kill %lld; tracerd --dir '%s'", pid, d->dir);
    if (strcmp(version, TRD_VERSION) != 0)
        SAY(d, "daemon", BAD, mend,
            "tracerd (pid %lld) is of version %s, tracectl of %s", pid,
            version, TRD_VERSION);
    else
        SAY(d, "daemon", OK, "", "tracerd %s, pid %lld", version, pid);
}

/* ---- the runs ---- */

/* The directory is there, or the nearest one above it may be written. */
static int could_be(const char *dir)
{
    char part[DOCTOR_PATH];
    struct stat st;
    snprintf(part, sizeof part, "%s", dir);
    if (lstat(part, &st) == 0)
        return 1;
    for (char *slash; (slash = strrchr(part, '/')) && slash > part;) {
        *slash = '\0';
        if (lstat(part, &st) == 0)
            return access(part, W_OK | X_OK) == 0;
    }
    return access("/", W_OK | X_OK) == 0;
}

/* Where a daemon would store that is started now. *makes_parents: it would
 * make the directories above, too. */
static void default_data(struct doctor *d, int *makes_parents, int *shared)
{
    const char *home = getenv("HOME");
    struct place_env env = {
        .uid = geteuid(),
        .tracerd_data = d->ctl->db ? d->ctl->db : getenv("TRACERD_DATA"),
        .xdg_state_home = getenv("XDG_STATE_HOME"),
        .home = home && access(home, X_OK) == 0 ? home : NULL,
    };
    int given = env.tracerd_data && *env.tracerd_data;
    for (unsigned i = 0;
         place_data(&env, i, d->data, sizeof d->data, shared) == 0; i++) {
        *makes_parents = !given && !*shared;
        if (given || could_be(d->data))
            return;
    }
    d->data[0] = '\0';
}

void doctor_data(struct doctor *d)
{
    char mend[DOCTOR_TEXT];
    int makes_parents = 0, shared = 0;
    long holder;
    if (!*d->data)
        default_data(d, &makes_parents, &shared);
    if (!*d->data) {
        SAY(d, "data", BAD, "export TRACERD_DATA=/a/directory/of/your/own",
            "no place for the runs: neither HOME nor /var/tmp nor /tmp can "
            "be written");
        return;
    }
    if (shared)
        SAY(d, "data", NOTE, "export TRACERD_DATA=/a/directory/of/your/own",
            "HOME is no directory that can be written: runs go to '%s'",
            d->data);
    if (!look_at_dir(d, "data", d->data, !shared, shared ? 077 : 022,
                     makes_parents))
        return;
    holder = doctor_lock_holder(d->data);
    if (holder && !d->daemon) {
        snprintf(mend, sizeof mend, "kill %ld", holder);
        SAY(d, "data", BAD, holder > 0 ? mend : "",
            "another tracerd (pid %ld), of another directory, stores in '%s'",
            holder, d->data);
        return;
    }
    SAY(d, "data", OK, "", "runs are stored in '%s'", d->data);
}
