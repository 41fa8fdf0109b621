/* Importing a spool: what a client had moved out of its journal to a disk, and
 * which is all that is left when a restart of the machine took the journal.
 *
 * It has the words that its records need and the hello of its process. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/import.h"
#include "tracerd/client.h"

int import_is_spool(const char *path)
{
    uint8_t bytes[8] = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : pread(fd, bytes, sizeof bytes, 0);
    if (fd >= 0)
        close(fd);
    struct reader r = reader_of(bytes, sizeof bytes);
    return n == (ssize_t)sizeof bytes && get_u64(&r) == SPOOL_MAGIC;
}

int import_spool_open(struct import_spool *m, const char *path)
{
    struct stat st;
    void *bytes = MAP_FAILED;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    m->bytes = NULL;
    if (fd < 0)
        return errno == ENOENT ? TRD_ENOTFOUND : TRD_EIO;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        bytes =
            mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED)
        return TRD_EIO;
    m->bytes = bytes;
    m->size = (uint64_t)st.st_size;
    int bad = spool_head_get(m->bytes, (size_t)m->size, &m->head);
    if (!bad && m->size < spool_entries_at(&m->head))
        bad = TRD_ETRUNC;
    if (bad)
        import_spool_close(m);
    return bad;
}

void import_spool_close(struct import_spool *m)
{
    if (m->bytes)
        munmap((void *)(uintptr_t)m->bytes, (size_t)m->size);
    m->bytes = NULL;
}

int import_spool_send(const struct import_spool *m, struct ingest *in,
                      int words, uint64_t *last, struct import_result *out)
{
    struct spool_walk walk;
    struct entry e;
    uint64_t at = spool_entries_at(&m->head), seq;
    enum spool_step step;
    uint32_t word = 1;
    size_t used = 0;
    int code = 0;
    if (*last < m->head.first_seq - 1) {
        code = ingest_gap(in, *last + 1, m->head.first_seq - 1,
                          TRD_LOST_STORE);
        *last = m->head.first_seq - 1;
    }
    spool_walk_init(&walk, &m->head);
    for (; code == 0; at += used) {
        step = spool_next(&walk, m->bytes + at, (size_t)(m->size - at), true,
                          &used, &e, &seq);
        if (step == SPOOL_END || step == SPOOL_MORE) {
            out->spool_last = walk.seq - 1;
            out->spool_cut = at < m->size;
            break;
        }
        if (step == SPOOL_WORD) {
            /* behind a missing one nothing is known: records tell */
            if (words && e.number == word)
                code = ingest_word(in, word++, e.body - ENTRY_HEADER_BYTES,
                                   e.len);
            continue;
        }
        code = import_step(in, step == SPOOL_ENTRY ? &e : NULL, seq,
                           walk.seq - 1, last, out);
    }
    return code;
}

static int damaged(const char *path, const char *what, int why)
{
    return ctl_fail(CTL_BAD, "the spool '%s' cannot be read: %s: %s", path,
                    what, trd_strerror(why));
}

/* Nothing says that this was the end. */
static void tell_end(const char *path, const struct import_result *r)
{
    ctl_fail(0,
             "the spool '%s' ends %s record %llu of rank %llu: what its "
             "process had behind it in its journal is not here, so the run "
             "says dead, not ended",
             path, r->spool_cut ? "in the middle of what came behind" : "with",
             (unsigned long long)r->spool_last, (unsigned long long)r->rank);
}

int import_spool(const char *path, const struct import_daemon *daemon,
                 const struct import_options *options,
                 struct import_result *out)
{
    struct import_spool m = {.bytes = NULL};
    struct ingest *in = NULL;
    struct hello h;
    const char *dir;
    uint64_t last = 0;
    int code = import_spool_open(&m, path);
    if (code)
        return damaged(path, "its head", code);
    code = spool_hello_get(m.bytes, (size_t)m.size, &m.head, &h);
    if (code) {
        code = damaged(path, "who wrote it", code);
        goto out;
    }
    h.first_seq = m.head.first_seq;
    import_apply(&h, options);
    out->rank = h.rank;
    out->attempt = h.attempt;
    code = daemon->find(daemon->context, &dir);
    if (code == 0)
        code = ingest_open(dir, &h, m.head.epoch, &in);
    if (code)
        goto out;
    snprintf(out->run, sizeof out->run, "%.*s",
             (int)ingest_welcome(in)->run.n, ingest_welcome(in)->run.text);
    last = ingest_welcome(in)->committed_seq;
    code = import_spool_send(&m, in, 1, &last, out);
    /* where the store had more, somebody else knows how it ended */
    if (code == 0)
        code = ingest_finish(in, last, last == out->spool_last);
    if (code == 0 && last == out->spool_last)
        tell_end(path, out);
out:
    ingest_close(in);
    import_spool_close(&m);
    return code;
}
