/* Importing a journal: the file a client leaves behind when no daemon has
 * taken all of it over.
 *
 * Its hello is said again, so the daemon knows the stream and takes only
 * what it has not. What its process had moved to a spool comes first. Records
 * that the journal had given up as durable and neither has are a gap, as torn
 * ones are. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/journal.h"
#include "tools/import.h"
#include "tracerd/client.h"

struct image {
    const uint8_t *bytes;
    uint64_t size;
    struct journal_head head;
    struct journal_state state;
    struct hello hello;
    struct import_spool spool; /* what it gave up and no daemon had */
};

int import_is_journal(const char *path)
{
    uint8_t bytes[8] = {0};
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st)) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        ctl_fail(0, "cannot open '%s': %s", path, ctl_errno(error));
        return -1;
    }
    ssize_t n = S_ISREG(st.st_mode) ? pread(fd, bytes, sizeof bytes, 0) : -1;
    close(fd);
    if (n < 0) {
        ctl_fail(0, "cannot read '%s': it is not a regular file", path);
        return -1;
    }
    struct reader r = reader_of(bytes, sizeof bytes);
    return n == (ssize_t)sizeof bytes &&
           (get_u64(&r) == JOURNAL_MAGIC || import_is_spool(path));
}

static int damaged(const char *path, const char *what, int why)
{
    return ctl_fail(CTL_BAD, "the journal '%s' cannot be read: %s: %s", path,
                    what, trd_strerror(why));
}

static int map_image(const char *path, struct image *m)
{
    struct stat st;
    int bad;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        bad = errno;
        if (fd >= 0)
            close(fd);
        return ctl_fail(CTL_FAILED, "cannot open '%s': %s", path,
                        ctl_errno(bad));
    }
    m->size = (uint64_t)st.st_size;
    if (m->size < JOURNAL_DICT_AT) {
        close(fd);
        return damaged(path, "its head", TRD_ETRUNC);
    }
    void *bytes = mmap(NULL, (size_t)m->size, PROT_READ, MAP_PRIVATE, fd, 0);
    bad = errno;
    close(fd);
    if (bytes == MAP_FAILED)
        return ctl_fail(CTL_FAILED, "cannot map '%s': %s", path,
                        ctl_errno(bad));
    m->bytes = bytes;
    bad = journal_head_get(m->bytes, m->size, &m->head);
    if (bad)
        return damaged(path, "its head", bad);
    bad = journal_state_get(m->bytes, &m->state);
    if (bad)
        return damaged(path, "its state", bad);
    bad = journal_hello_get(m->bytes, &m->head, &m->hello);
    return bad ? damaged(path, "who wrote it", bad) : 0;
}

/* The spool that the journal names, if it is there and its own. */
static void find_spool(struct image *m, char path[WIRE_STRING_MAX + 1])
{
    path[0] = 0;
    if (!m->hello.spool.n)
        return;
    snprintf(path, WIRE_STRING_MAX + 1, "%.*s", (int)m->hello.spool.n,
             m->hello.spool.text);
    if (import_spool_open(&m->spool, path) == 0 &&
        m->spool.head.epoch != m->head.epoch)
        import_spool_close(&m->spool);
}

void import_apply(struct hello *h, const struct import_options *o)
{
    if (o->run)
        h->run = slice_of(o->run);
    if (o->rank >= 0)
        h->rank = (uint32_t)o->rank;
    if (o->attempt >= 0)
        h->attempt = (uint32_t)o->attempt;
    h->journal = h->spool = slice_of("");
    h->max_len = FRAME_MAX_BYTES;
}

int import_step(struct ingest *in, const struct entry *e, uint64_t seq,
                uint64_t end, uint64_t *last, struct import_result *out)
{
    int code;
    if (e && e->kind == ENTRY_RECORD) {
        out->records++;
        out->fresh += seq > *last;
    }
    out->bad += !e;
    if (end <= *last)
        return 0;
    if (e)
        code = ingest_record(in, seq, e->body - ENTRY_HEADER_BYTES, e->len);
    else
        code = ingest_gap(in, seq > *last ? seq : *last + 1, end,
                          TRD_LOST_TORN);
    *last = end;
    return code;
}

static void apply(struct image *m, const struct import_options *o)
{
    struct hello *h = &m->hello;
    h->first_seq = m->state.durable_seq + 1;
    if (h->spool.n && !m->spool.bytes && !o->without_spool)
        h->first_seq = 1; /* or the daemon counts the spool as lost */
    if (m->spool.bytes && m->spool.head.first_seq < h->first_seq)
        h->first_seq = m->spool.head.first_seq;
    import_apply(h, o);
}

static int send_words(struct image *m, struct ingest *in)
{
    uint64_t at = 0;
    struct entry e;
    int got, code = 0;
    while (code == 0 &&
           (got = journal_dict_next(m->bytes, &m->head, &at, &e)) > 0)
        code = ingest_word(in, e.number, e.body - ENTRY_HEADER_BYTES, e.len);
    return code; /* behind damage nothing is known: records tell */
}

static int send_records(struct image *m, struct ingest *in, uint64_t *last,
                        struct import_result *out)
{
    struct journal_walk walk;
    struct entry e;
    enum journal_step step;
    uint64_t seq;
    int code = 0;
    *last = ingest_welcome(in)->committed_seq;
    if (m->spool.bytes)
        code = import_spool_send(&m->spool, in, 0, last, out);
    if (code == 0 && *last < m->state.durable_seq) {
        code = ingest_gap(in, *last + 1, m->state.durable_seq,
                          TRD_LOST_STORE);
        *last = m->state.durable_seq;
    }
    journal_walk_init(&walk, m->bytes, &m->head, &m->state);
    while (code == 0 &&
           (step = journal_next(&walk, &e, &seq)) != JOURNAL_END)
        code = import_step(in, step == JOURNAL_ENTRY ? &e : NULL, seq,
                           walk.seq - 1, last, out);
    return code;
}

/* Nothing was ever in it: it makes no run. */
static int is_bare(const struct image *m)
{
    struct journal_walk walk;
    struct entry e;
    uint64_t seq;
    journal_walk_init(&walk, m->bytes, &m->head, &m->state);
    return m->state.durable_seq == 0 &&
           journal_next(&walk, &e, &seq) == JOURNAL_END;
}

int import_journal(const char *path, const struct import_daemon *daemon,
                   const struct import_options *options,
                   struct import_result *out)
{
    struct image m = {0};
    struct ingest *in = NULL;
    const char *dir;
    char spool[WIRE_STRING_MAX + 1];
    uint64_t last = 0;
    if (import_is_spool(path))
        return import_spool(path, daemon, options, out);
    int code = map_image(path, &m);
    if (code)
        goto out;
    find_spool(&m, spool);
    apply(&m, options);
    out->rank = m.hello.rank;
    out->attempt = m.hello.attempt;
    if (is_bare(&m))
        goto out;
    code = daemon->find(daemon->context, &dir);
    if (code == 0)
        code = ingest_open(dir, &m.hello, m.head.epoch, &in);
    if (code)
        goto out;
    snprintf(out->run, sizeof out->run, "%.*s",
             (int)ingest_welcome(in)->run.n, ingest_welcome(in)->run.text);
    if (spool[0] && !m.spool.bytes && !options->without_spool &&
        ingest_welcome(in)->committed_seq < m.state.durable_seq)
        code = ctl_fail(CTL_BAD,
                        "before what is in '%s' comes the spool '%s', which is "
                        "not there: import that first, wherever it is, or say "
                        "--without-spool to count its records as lost",
                        path, spool);
    if (code == 0)
        code = send_words(&m, in);
    if (code == 0)
        code = send_records(&m, in, &last, out);
    if (code == 0)
        code = ingest_finish(in, last, !m.state.clean);
out:
    ingest_close(in);
    import_spool_close(&m.spool);
    if (m.bytes)
        munmap((void *)(uintptr_t)m.bytes, (size_t)m.size);
    return code;
}
