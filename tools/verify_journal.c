/* Checks a journal or a spool: its head, state, who wrote it, every word and
 * every record. The last entry of a process that was killed may be torn: that
 * is no damage, and what was torn was never accepted. Of a process that lives
 * an entry may be half written while the next is whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/journal.h"
#include "proto/spool.h"
#include "tools/verify.h"

static uint32_t check_words(struct verify *v, const uint8_t *image,
                            const struct journal_head *h)
{
    uint64_t at = 0;
    uint32_t n = 0;
    struct entry e;
    int got;
    while ((got = journal_dict_next(image, h, &at, &e)) == 1) {
        if (e.number != n + 1)
            break;
        n++;
    }
    if (got)
        verify_found(v, "word", 1, "the dictionary does not hold after %u "
                                   "entries", n);
    return n;
}

static void check_entry(struct verify *v, const struct entry *e, uint64_t seq,
                        uint32_t words, unsigned *bad)
{
    struct wire_record r;
    struct wire_loss l;
    const char *what = NULL;
    if (e->kind == ENTRY_LOSS) {
        if (loss_get(e, &l))
            what = "does not decode";
        else
            v->losses += l.count;
    } else if (record_get(e, &r)) {
        what = "does not decode";
    } else if (r.site > words || r.shape > words || r.when.note > words) {
        what = "uses a word that is not there";
    }
    v->records += e->kind == ENTRY_RECORD && !what;
    if (what && ++*bad <= VERIFY_SHOWN)
        verify_found(v, "record", 1, "seq %llu %s", (unsigned long long)seq,
                     what);
}

static void check_records(struct verify *v, const uint8_t *image,
                          const struct journal_head *h,
                          const struct journal_state *state, uint32_t words,
                          int alive)
{
    struct journal_walk w;
    enum journal_step step;
    unsigned bad = 0, holes = 0;
    struct entry e;
    uint64_t seq;
    journal_walk_init(&w, image, h, state);
    while ((step = journal_next(&w, &e, &seq)) != JOURNAL_END) {
        if (step == JOURNAL_ENTRY)
            check_entry(v, &e, seq, words, &bad);
        else if (!alive && ++holes <= VERIFY_SHOWN)
            verify_found(v, "torn", (int64_t)(w.seq - seq),
                         "seq %llu to %llu cannot be read",
                         (unsigned long long)seq,
                         (unsigned long long)w.seq - 1);
    }
    if (bad > VERIFY_SHOWN || holes > VERIFY_SHOWN)
        verify_found(v, "record", bad + holes, "in all");
}

static void check_spool_entries(struct verify *v, const uint8_t *bytes,
                                size_t n, const struct spool_head *h)
{
    struct spool_walk w;
    struct entry e;
    unsigned bad = 0;
    uint32_t words = 0;
    uint64_t seq;
    size_t at, used;
    enum spool_step step;
    spool_walk_init(&w, h);
    for (at = (size_t)spool_entries_at(h);; at += used) {
        step = spool_next(&w, bytes + at, n - at, true, &used, &e, &seq);
        if (step == SPOOL_END || step == SPOOL_MORE)
            return;
        if (step == SPOOL_ENTRY)
            check_entry(v, &e, seq, words, &bad);
        else if (step == SPOOL_HOLE)
            verify_found(v, "torn", (int64_t)(w.seq - seq),
                         "seq %llu to %llu cannot be read",
                         (unsigned long long)seq,
                         (unsigned long long)w.seq - 1);
        else if (e.number == words + 1)
            words++;
        else
            verify_found(v, "word", 1, "word %u comes after word %u",
                         e.number, words);
    }
}

static void check_spool(struct verify *v, const uint8_t *bytes, size_t n)
{
    struct spool_head h;
    struct hello hello;
    int rc = spool_head_get(bytes, n, &h);
    if (rc == TRD_EVERSION) {
        verify_cannot(v, CTL_FAILED, "newer",
                      "its format is newer than this tracectl; use a newer "
                      "one");
        return;
    }
    if (!rc && n < spool_entries_at(&h))
        rc = TRD_ETRUNC;
    if (rc) {
        verify_found(v, "head", 1, "%s", trd_strerror(rc));
        return;
    }
    if (spool_hello_get(bytes, n, &h, &hello))
        verify_found(v, "head", 1, "it does not tell who wrote it");
    check_spool_entries(v, bytes, n, &h);
}

static int is_spool(int fd)
{
    uint8_t bytes[8] = {0};
    struct reader r = reader_of(bytes, sizeof bytes);
    return pread(fd, bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes &&
           get_u64(&r) == SPOOL_MAGIC;
}

static void check_image(struct verify *v, const uint8_t *image, uint64_t size,
                        int alive)
{
    struct journal_head h;
    struct journal_state state;
    struct hello hello;
    struct reader r = reader_of(image, 8);
    int rc = journal_head_get(image, size, &h);
    if (rc == TRD_EVERSION) {
        verify_cannot(v, CTL_FAILED, "newer",
                      "its format is newer than this tracectl; use a newer "
                      "one");
        return;
    }
    if (rc) {
        if (get_u64(&r) != JOURNAL_MAGIC)
            verify_cannot(v, CTL_BAD, "not_ours", "not a journal of tracerd");
        else
            verify_found(v, "head", 1, "%s", trd_strerror(rc));
        return;
    }
    if (journal_hello_get(image, &h, &hello))
        verify_found(v, "head", 1, "it does not tell who wrote it");
    uint32_t words = check_words(v, image, &h);
    if (journal_state_get(image, &state))
        verify_found(v, "state", 1, "neither copy of its state holds");
    else
        check_records(v, image, &h, &state, words, alive);
}

/* Read into memory: the file may be cut while it is looked at. */
static uint8_t *read_file(int fd, size_t n)
{
    uint8_t *image = mmap(NULL, n, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t at = 0;
    if (image == MAP_FAILED)
        return NULL;
    while (at < n) {
        ssize_t got = pread(fd, image + at, n - at, (off_t)at);
        if (got <= 0)
            break;
        at += (size_t)got;
    }
    if (at == n)
        return image;
    munmap(image, n);
    return NULL;
}

/* Its process holds a lock as long as it lives. */
static int is_locked(int fd)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_GETLK, &l) == 0 && l.l_type != F_UNLCK;
}

void verify_journal(struct verify *v)
{
    struct stat st;
    uint8_t *image = NULL;
    int spool = 0;
    int fd = open(v->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        verify_cannot(v, CTL_FAILED, "unreadable", ctl_errno(errno));
    } else if (!S_ISREG(st.st_mode)) {
        verify_cannot(v, CTL_FAILED, "unreadable", "not a regular file");
    } else if (!(spool = is_spool(fd)) &&
               (st.st_size < JOURNAL_DICT_AT ||
                (uint64_t)st.st_size > 2 * JOURNAL_MAX_BYTES)) {
        verify_found(v, "head", 1, "its size is not that of a journal");
    } else if (!(image = read_file(fd, (size_t)st.st_size))) {
        verify_cannot(v, CTL_FAILED, "unreadable", "it cannot be read whole");
    } else {
        if (spool)
            check_spool(v, image, (size_t)st.st_size);
        else
            check_image(v, image, (uint64_t)st.st_size, is_locked(fd));
        munmap(image, (size_t)st.st_size);
    }
    if (fd >= 0)
        close(fd);
}
