/* The spool of a client. [sender], but for opening and closing.
 *
 * Only whole entries count: end moves when all bytes of an append are
 * written, and what a failed one has left is cut off or written over. A kill
 * in the middle leaves a tail that its checksum betrays, and its records are
 * still in the ring. Reading back trusts nothing, as others may have been at
 * the file. */
#include "client/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/sys.h"
#include "proto/crc32c.h"
#include "proto/point.h"

/* ---- opening and closing ---- */

/* 0 when nobody else can put anything there. */
static int is_safe(const char *dir)
{
    struct stat st;
    trd__sys.mkdir(dir, 0700);
    if (trd__sys.lstat(dir, &st) || !S_ISDIR(st.st_mode) ||
        st.st_uid != geteuid() || st.st_mode & 022)
        return TRD_EACCES;
    return 0;
}

/* The whole path, for a daemon that runs elsewhere. */
static int full_path(const char *dir, const char *name, char *out, size_t cap)
{
    char whole[PATH_MAX];
    if (!realpath(dir, whole))
        return TRD_EACCES;
    int n = snprintf(out, cap, "%s/%s", strcmp(whole, "/") ? whole : "",
                     name);
    return n < 0 || (size_t)n >= cap ? TRD_EPATH : 0;
}

int trd__spool_open(struct trd__spool *sp, const char *dir, uint64_t limit,
                    struct slice run, uint32_t rank, uint64_t epoch)
{
    char name[SPOOL_NAME_MAX];
    int failed = spool_name(run, rank, epoch, name);
    if (!failed)
        failed = is_safe(dir);
    if (!failed)
        failed = full_path(dir, name, sp->path, sizeof sp->path);
    if (!failed) {
        sp->buffer = malloc(SPOOL_BUFFER);
        failed = sp->buffer ? 0 : TRD_ENOMEM;
    }
    if (failed)
        sp->path[0] = 0;
    sp->limit = limit;
    return failed;
}

/* Makes sure that fd is the file: 0 or TRD_EIO. The application may have
 * closed it; what is in the file is still there then. */
static int hold(struct trd__spool *sp)
{
    if (trd__is_still(sp->fd, sp->dev, sp->ino))
        return 0;
    int fd = trd__sys.open(sp->path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return TRD_EIO;
    fd = trd__sys.move_high(fd);
    if (!trd__is_still(fd, sp->dev, sp->ino) || trd__lock_file(fd)) {
        trd__sys.close(fd);
        return TRD_EIO;
    }
    sp->fd = fd;
    return 0;
}

static void forget(struct trd__spool *sp)
{
    if (trd__is_still(sp->fd, sp->dev, sp->ino))
        trd__sys.close(sp->fd);
    sp->fd = -1;
    sp->end = sp->first_seq = sp->last_seq = 0;
    sp->words = 0;
    sp->at = sp->n = 0;
}

void trd__spool_remove(struct trd__spool *sp)
{
    if (!sp->end)
        return;
    trd__sys.unlink(sp->path);
    POINT(spool_removed);
    forget(sp);
}

void trd__spool_close(struct trd__spool *sp, int unlink_file)
{
    if (unlink_file)
        trd__spool_remove(sp);
    forget(sp);
    free(sp->buffer);
    sp->buffer = NULL;
}

/* ---- writing ---- */

/* All n bytes at a place, or TRD_EIO. */
static int write_all(struct trd__spool *sp, const uint8_t *bytes, size_t n,
                     uint64_t at)
{
    while (n) {
        ssize_t did = trd__sys.pwrite(sp->fd, bytes, n, (off_t)at);
        if (did < 0 && errno == EINTR)
            continue;
        if (did <= 0)
            return TRD_EIO;
        bytes += did;
        n -= (size_t)did;
        at += (uint64_t)did;
    }
    return 0;
}

/* Head and hello: how many bytes that is. */
static int introduce(struct trd__spool *sp, const struct journal_head *who,
                     const struct hello *hello, uint64_t seq)
{
    uint8_t bytes[SPOOL_HEAD_BYTES + SPOOL_HELLO_MAX];
    uint8_t *at = bytes + SPOOL_HEAD_BYTES;
    size_t n = 0;
    memset(bytes, 0, sizeof bytes);
    int failed = hello_put(hello, at, SPOOL_HELLO_MAX, &n);
    if (failed)
        return failed;
    memset(&sp->head, 0, sizeof sp->head);
    sp->head.epoch = who->epoch;
    sp->head.pid = who->pid;
    sp->head.start_time = who->start_time;
    memcpy(sp->head.boot_id, who->boot_id, sizeof sp->head.boot_id);
    sp->head.hello_bytes = (uint32_t)n;
    sp->head.hello_crc = crc32c(0, at, n);
    sp->head.first_seq = seq;
    spool_head_put(bytes, &sp->head);
    sp->end = spool_entries_at(&sp->head);
    return write_all(sp, bytes, (size_t)sp->end, 0);
}

static int make(struct trd__spool *sp, const struct journal_head *who,
                const struct hello *hello, uint64_t seq)
{
    int fd = trd__sys.open(sp->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW,
                           0600);
    if (fd < 0)
        return TRD_EIO;
    sp->fd = trd__sys.move_high(fd);
    if (trd__remember(sp->fd, &sp->dev, &sp->ino)) {
        trd__sys.unlink(sp->path);
        trd__sys.close(sp->fd);
        sp->fd = -1;
        return TRD_EIO;
    }
    int failed = trd__lock_file(sp->fd) ? TRD_EIO : 0;
    if (!failed)
        failed = introduce(sp, who, hello, seq);
    POINT(spool_made);
    if (!failed) {
        sp->first_seq = seq;
        spool_walk_init(&sp->walk, &sp->head);
        sp->file_at = sp->end;
        return 0;
    }
    trd__sys.unlink(sp->path);
    forget(sp);
    return failed;
}

/* The words that are not in it yet; *end goes on. */
static int append_words(struct trd__spool *sp, struct trd__journal *j,
                        uint32_t *words, uint64_t *end)
{
    struct trd__run run;
    int failed = 0;
    for (;;) {
        trd__journal_words(j, *words, JOURNAL_SEGMENT, &run);
        if (!run.records)
            return 0;
        if (*end + run.n > sp->limit)
            return TRD_ELIMIT;
        failed = write_all(sp, run.bytes, run.n, *end);
        if (failed)
            return failed;
        *end += run.n;
        *words += run.records;
    }
}

static int append(struct trd__spool *sp, struct trd__journal *j,
                  const struct trd__run *run, uint64_t seq)
{
    uint64_t end = sp->end;
    uint32_t words = sp->words;
    int failed = append_words(sp, j, &words, &end);
    if (!failed && end + run->n > sp->limit)
        failed = TRD_ELIMIT;
    if (!failed)
        failed = write_all(sp, run->bytes, run->n, end);
    if (failed) { /* where that fails, too, it is written over next time */
        trd__sys.truncate(sp->fd, (off_t)sp->end);
        return failed;
    }
    sp->end = end + run->n;
    sp->words = words;
    sp->last_seq = seq + run->records - 1;
    return 0;
}

int trd__spool_append(struct trd__spool *sp, struct trd__journal *j,
                      const struct hello *hello, const struct trd__run *run,
                      uint64_t seq)
{
    int failed = sp->end ? hold(sp) : make(sp, &j->head, hello, seq);
    if (failed)
        return failed;
    failed = append(sp, j, run, seq);
    if (failed && !sp->last_seq)
        trd__spool_remove(sp);
    return failed;
}

/* ---- reading ---- */

static void rewind_walk(struct trd__spool *sp)
{
    spool_walk_init(&sp->walk, &sp->head);
    sp->at = sp->n = 0;
    sp->file_at = spool_entries_at(&sp->head);
}

/* Fills the buffer behind what is not seen yet. */
static int fill(struct trd__spool *sp)
{
    memmove(sp->buffer, sp->buffer + sp->at, sp->n - sp->at);
    sp->n -= sp->at;
    sp->at = 0;
    while (sp->n < SPOOL_BUFFER && sp->file_at < sp->end) {
        size_t want = SPOOL_BUFFER - sp->n;
        if (want > sp->end - sp->file_at)
            want = (size_t)(sp->end - sp->file_at);
        ssize_t got = trd__sys.pread(sp->fd, sp->buffer + sp->n, want,
                                     (off_t)sp->file_at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return TRD_EIO;
        if (got == 0) { /* somebody cut it: zeros hold nothing */
            memset(sp->buffer + sp->n, 0, want);
            got = (ssize_t)want;
        }
        sp->n += (size_t)got;
        sp->file_at += (uint64_t)got;
    }
    return 0;
}

/* One step of the walk; the place is put back by the caller where it was not
 * wanted. */
static enum spool_step step_on(struct trd__spool *sp, struct entry *e,
                               uint64_t *seq)
{
    size_t used = 0;
    enum spool_step step =
        spool_next(&sp->walk, sp->buffer + sp->at, sp->n - sp->at,
                   sp->file_at == sp->end, &used, e, seq);
    sp->at += used;
    return step;
}

/* Adds an entry to a run of those behind after; 0 when it is not the next, or
 * not behind the last in memory, or too much. */
static int add(struct trd__run *out, const struct entry *e, uint64_t seq,
               uint64_t after, size_t max)
{
    const uint8_t *at = e->body - ENTRY_HEADER_BYTES;
    size_t n = entry_span(e->len);
    if (seq != after + out->records + 1 || out->n + n > max ||
        (out->records && at != out->bytes + out->n))
        return 0;
    if (!out->records)
        out->bytes = at;
    out->n += n;
    out->records++;
    return 1;
}

/* What a step tells, when nothing was found before it: the last of the records
 * behind after that are lost, or 0. */
static uint64_t last_lost(const struct trd__spool *sp, enum spool_step step,
                          uint64_t seq, uint64_t after)
{
    if (step == SPOOL_END)
        return sp->last_seq;
    if (step == SPOOL_HOLE)
        return sp->walk.seq - 1 > after ? sp->walk.seq - 1 : 0;
    return step == SPOOL_ENTRY && seq > after + 1 ? seq - 1 : 0;
}

int trd__spool_read(struct trd__spool *sp, uint64_t after, size_t max,
                    struct trd__run *out, uint64_t *lost)
{
    struct entry e;
    uint64_t seq = 0;
    memset(out, 0, sizeof *out);
    *lost = 0;
    if (hold(sp))
        return TRD_EIO;
    if (sp->walk.seq > after + 1)
        rewind_walk(sp);
    for (;;) {
        struct spool_walk walk = sp->walk;
        size_t at = sp->at;
        enum spool_step step = step_on(sp, &e, &seq);
        if (step == SPOOL_ENTRY &&
            (seq <= after || add(out, &e, seq, after, max)))
            continue;
        if (!out->records) {
            *lost = last_lost(sp, step, seq, after);
            if (step == SPOOL_MORE && fill(sp))
                return TRD_EIO;
            if (!*lost && step != SPOOL_ENTRY)
                continue;
        }
        /* what is not taken is for the next time */
        sp->walk = walk;
        sp->at = at;
        return 0;
    }
}

void trd__spool_keep(struct trd__spool *sp, const uint8_t *bytes, size_t n)
{
    memcpy(sp->buffer, bytes, n);
    sp->file_at -= sp->n - sp->at;
    sp->at = sp->n = 0;
}
