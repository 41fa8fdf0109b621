/* A file as lines. The buffer holds one line of LINES_MAX_BYTES at most;
 * what is longer is skipped up to its end and told to the caller. */
#include "tools/lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tracerd/base.h"

#define FNV_START UINT64_C(0xcbf29ce484222325)
#define FNV_PRIME UINT64_C(0x100000001b3)

int lines_open(struct lines *l, int fd, uint64_t size)
{
    memset(l, 0, sizeof *l);
    l->fd = fd;
    l->left = size;
    l->hash = FNV_START;
    if (lseek(fd, 0, SEEK_SET) != 0)
        return TRD_EIO;
    l->bytes = malloc(LINES_MAX_BYTES);
    return l->bytes ? 0 : TRD_ENOMEM;
}

void lines_close(struct lines *l)
{
    free(l->bytes);
    l->bytes = NULL;
}

static void mix(struct lines *l, const char *bytes, size_t n)
{
    uint64_t h = l->hash;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)bytes[i]) * FNV_PRIME;
    l->hash = h;
}

/* Reads more behind what is there; 0 at the end of the file. */
static ssize_t fill(struct lines *l)
{
    if (l->at) {
        memmove(l->bytes, l->bytes + l->at, l->n);
        l->at = 0;
    }
    size_t room = LINES_MAX_BYTES - l->n;
    if (room > l->left)
        room = (size_t)l->left;
    ssize_t got = 0;
    do
        got = room ? read(l->fd, l->bytes + l->n, room) : 0;
    while (got < 0 && errno == EINTR);
    if (got > 0) {
        mix(l, l->bytes + l->n, (size_t)got);
        l->n += (size_t)got;
        l->left -= (uint64_t)got;
    } else {
        l->left = 0;
    }
    return got;
}

static void take(struct lines *l, size_t n)
{
    l->at += n;
    l->n -= n;
}

static void give(struct lines *l, const char **line, size_t *n, size_t len,
                 size_t taken)
{
    static const char mark[] = "\xef\xbb\xbf";
    *line = l->bytes + l->at;
    *n = len;
    l->number++;
    if (l->number == 1 && len >= 3 && memcmp(*line, mark, 3) == 0) {
        *line += 3;
        *n -= 3;
    }
    take(l, taken);
}

int lines_next(struct lines *l, const char **line, size_t *n, int *too_long)
{
    size_t seen = 0;
    *too_long = 0;
    for (;;) {
        const char *start = l->bytes + l->at;
        const char *end = seen < l->n
                              ? memchr(start + seen, '\n', l->n - seen)
                              : NULL;
        if (end && l->skipping) {
            take(l, (size_t)(end - start) + 1);
            l->skipping = 0;
            seen = 0;
            continue;
        }
        if (end) {
            give(l, line, n, (size_t)(end - start),
                 (size_t)(end - start) + 1);
            return 1;
        }
        if (l->skipping)
            take(l, l->n);
        seen = l->n;
        if (seen == LINES_MAX_BYTES) {
            l->skipping = *too_long = 1;
            give(l, line, n, seen, seen);
            return 1;
        }
        ssize_t got = fill(l);
        if (got < 0)
            return -1;
        if (got == 0 && l->n == 0)
            return 0;
        if (got == 0) { /* a last line without an end */
            give(l, line, n, l->n, l->n);
            return 1;
        }
    }
}
