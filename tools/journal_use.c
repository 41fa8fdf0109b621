/* Walks the journal of a process that may be writing to it: an entry that is
 * not whole ends the walk, so what comes out is a moment of it. */
#include "tools/journal_use.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/journal.h"

enum { PATH_BYTES = 4096 + 512 };

static void walk(const uint8_t *image, const struct journal_head *h,
                 struct journal_use *out)
{
    struct journal_state state;
    struct journal_walk w;
    struct entry e;
    uint64_t seq;

    memset(out, 0, sizeof *out);
    out->ring_bytes = h->ring_bytes;
    if (journal_state_get(image, &state))
        return;
    journal_walk_init(&w, image, h, &state);
    while (journal_next(&w, &e, &seq) != JOURNAL_END)
        continue;
    out->records = w.seq - state.durable_seq - 1;
    out->bytes = w.pos - w.start;
}

int journal_use_read(const char *dir, const char *name,
                     struct journal_use *out)
{
    char path[PATH_BYTES];
    struct journal_head h;
    struct stat st;
    void *image;
    int fd, rc = -1;

    if (!*name || strchr(name, '/') ||
        snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return -1;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        st.st_uid == geteuid() && st.st_size >= JOURNAL_DICT_AT) {
        image = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (image != MAP_FAILED) {
            rc = journal_head_get(image, (uint64_t)st.st_size, &h) ? -1 : 0;
            if (rc == 0)
                walk(image, &h, out);
            munmap(image, (size_t)st.st_size);
        }
    }
    close(fd);
    return rc;
}
