/* The spool of a dead process: found by its name, read piece by piece (it may
 * be larger than memory), removed. */
#include "daemon/spool.h"

#include "proto/point.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOAD_BYTES = 1024 * 1024 };

void spool_init(struct spool *s)
{
    memset(s, 0, sizeof *s);
    s->dir = s->fd = -1;
}

void spool_fini(struct spool *s)
{
    if (s->fd >= 0)
        close(s->fd);
    if (s->dir >= 0)
        close(s->dir);
    free(s->buffer);
    spool_init(s);
}

/* ---- finding ---- */

/* Whether it fails for a reason that may pass. */
static enum spool_found failure(const char **why)
{
    *why = strerror(errno);
    switch (errno) {
    case ENOENT:
    case ENOTDIR:
        return SPOOL_NONE;
    case EACCES:
    case EPERM:
    case ELOOP:
    case ENAMETOOLONG:
        return SPOOL_BAD;
    default:
        return SPOOL_LATER;
    }
}

/* The directory and the name of a path, when it is one the stream may have. */
static bool split(struct spool *s, const struct hello *h, uint64_t epoch,
                  char dir[WIRE_STRING_MAX + 1])
{
    size_t n;
    if (h->spool.n > WIRE_STRING_MAX || h->spool.text[0] != '/' ||
        spool_name(h->run, h->rank, epoch, s->name))
        return false;
    n = strlen(s->name);
    if (h->spool.n <= n || memcmp(h->spool.text + h->spool.n - n, s->name, n) ||
        h->spool.text[h->spool.n - n - 1] != '/')
        return false;
    memcpy(dir, h->spool.text, h->spool.n - n);
    dir[h->spool.n - n] = '\0';
    return !strchr(s->name, '/');
}

/* NULL, or what is wrong with it. */
static const char *check(const struct stat *dir, const struct stat *file,
                         uint32_t uid)
{
    if (dir->st_uid != uid || dir->st_mode & 022)
        return "others may write to its directory";
    if (!S_ISREG(file->st_mode))
        return "not a regular file";
    if (file->st_uid != uid)
        return "it belongs to another user";
    if (file->st_mode & 077)
        return "it is open to other users";
    return NULL;
}

static enum spool_found open_both(struct spool *s, const char *path,
                                  uint32_t uid, const char **why)
{
    struct stat dir, file;
    s->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    if (s->dir < 0)
        return failure(why) == SPOOL_NONE ? SPOOL_AWAY : failure(why);
    s->fd = openat(s->dir, s->name,
                   O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0 || fstat(s->dir, &dir) || fstat(s->fd, &file))
        return failure(why);
    *why = check(&dir, &file, uid);
    return *why ? SPOOL_BAD : SPOOL_THERE;
}

/* The head; reading goes on behind the hello, which the journal has, too. */
static enum spool_found read_head(struct spool *s, uint64_t epoch,
                                  const char **why)
{
    uint8_t head[SPOOL_HEAD_BYTES];
    ssize_t n = pread(s->fd, head, sizeof head, 0);
    if (n < 0)
        return failure(why);
    *why = "its head does not hold";
    if (spool_head_get(head, (size_t)n, &s->head) || s->head.epoch != epoch)
        return SPOOL_BAD;
    s->buffer = malloc(LOAD_BYTES);
    *why = "no memory";
    if (!s->buffer)
        return SPOOL_LATER;
    s->file_at = spool_entries_at(&s->head);
    spool_walk_init(&s->walk, &s->head);
    return SPOOL_THERE;
}

enum spool_found spool_open(struct spool *s, const struct hello *h,
                            uint64_t epoch, uint32_t uid, const char **why)
{
    char dir[WIRE_STRING_MAX + 1];
    enum spool_found found = SPOOL_BAD;
    if (h->spool.n == 0)
        return SPOOL_NONE;
    *why = "its path is not that of a spool";
    if (split(s, h, epoch, dir))
        found = open_both(s, dir, uid, why);
    if (found == SPOOL_THERE)
        found = read_head(s, epoch, why);
    if (found != SPOOL_THERE)
        spool_fini(s);
    return found;
}

/* ---- reading ---- */

enum spool_step spool_step(struct spool *s, struct entry *out, uint64_t *seq)
{
    size_t used = 0;
    enum spool_step step;
    if (s->fd < 0)
        return SPOOL_END;
    step = spool_next(&s->walk, s->buffer + s->at, s->n - s->at, s->whole,
                      &used, out, seq);
    s->at += used;
    return step;
}

bool spool_load(struct spool *s)
{
    memmove(s->buffer, s->buffer + s->at, s->n - s->at);
    s->n -= s->at;
    s->at = 0;
    while (!s->whole && s->n < LOAD_BYTES) {
        ssize_t got = pread(s->fd, s->buffer + s->n, LOAD_BYTES - s->n,
                            (off_t)s->file_at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return false;
        s->whole = got == 0;
        s->n += (size_t)got;
        s->file_at += (uint64_t)got;
    }
    return true;
}

/* ---- the end ---- */

/* The file goes, if it still is the one we read. */
bool spool_remove(struct spool *s)
{
    struct stat mine, there;
    bool done = true;
    if (s->fd < 0)
        return true;
    if (fstat(s->fd, &mine) == 0 &&
        fstatat(s->dir, s->name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        mine.st_ino == there.st_ino && mine.st_dev == there.st_dev)
        done = unlinkat(s->dir, s->name, 0) == 0;
    POINT(spool_cleared);
    return done;
}
