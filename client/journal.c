/* The ring and the dictionary of this process, in one mapped file.
 *
 * Append: load tail, load next, take place and seq with one compare-and-
 * swap, copy, checksum, and store the entry's word last with release order.
 * A word of zero therefore means "not there yet", and free space is zero.
 * A kill at any instruction leaves whole entries and zeros or a torn entry
 * that its checksum betrays; entries of other threads behind it stay
 * readable since each carries its own seq.
 *
 * The sender alone frees: it publishes the state, zeroes, moves the tail. */
#include "client/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "client/sys.h"
#include "proto/crc32c.h"
#include "proto/point.h"

enum {
    DICT_SLOTS = 2 * DICT_MAX_ENTRIES,
    RESERVE_BYTES = 1024 /* a loss of every cause */
};
#define INDEX_BYTES                                                           \
    (DICT_SLOTS * sizeof(uint32_t) +                                          \
     (DICT_MAX_ENTRIES + 1) * sizeof(uint64_t))

/* Words are little endian in the file. */
static uint32_t le32(uint32_t v)
{
    uint8_t bytes[4];
    struct writer w = writer_of(bytes, 4);
    put_u32(&w, v);
    memcpy(&v, bytes, 4);
    return v;
}

static void publish_word(uint8_t *at, uint32_t word)
{
    atomic_store_explicit((_Atomic uint32_t *)(void *)at, le32(word),
                          memory_order_release);
}

static uint32_t read_word(const uint8_t *at)
{
    return le32(atomic_load_explicit((_Atomic uint32_t *)(uintptr_t)at,
                                     memory_order_acquire));
}

/* ---- opening ---- */

/* A new file under a temporary name, so that nobody sees half of it. */
static int create_file(struct trd__journal *j, const char *dir,
                       const char *name, char *fresh, size_t cap)
{
    int n = snprintf(j->path, sizeof j->path, "%s/%s", dir, name);
    int m = snprintf(fresh, cap, "%s/%s.new", dir, name);
    if (n < 0 || (size_t)n >= sizeof j->path || m < 0 || (size_t)m >= cap)
        return TRD_EPATH;
    int fd = trd__sys.open(fresh, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW,
                           0600);
    if (fd < 0)
        return TRD_EIO;
    POINT(journal_created);
    j->fd = trd__sys.move_high(fd);
    if (trd__remember(j->fd, &j->dev, &j->ino)) {
        trd__sys.unlink(fresh);
        trd__sys.close(j->fd);
        j->fd = -1;
        return TRD_EIO;
    }
    /* all of it now: a full disk must show here and never as SIGBUS */
    if (trd__sys.allocate(j->fd, (off_t)j->head.size) ||
        trd__lock_file(j->fd)) {
        trd__sys.unlink(fresh);
        return TRD_EIO;
    }
    POINT(journal_allocated);
    return 0;
}

static int map_all(struct trd__journal *j)
{
    int flags = j->fd >= 0 ? MAP_SHARED | MAP_POPULATE
                           : MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    void *map = trd__sys.map(j->head.size, flags, j->fd);
    if (map == MAP_FAILED)
        return TRD_ENOMEM;
    j->map = map;
    void *index = trd__sys.map(INDEX_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (index == MAP_FAILED)
        return TRD_ENOMEM;
    j->slot = index;
    j->offset = (uint64_t *)(void *)((uint8_t *)index +
                                     DICT_SLOTS * sizeof(uint32_t));
    /* a forked child must not be able to touch it */
    madvise(j->map, j->head.size, MADV_DONTFORK);
    return 0;
}

int trd__journal_open(struct trd__journal *j, const char *dir,
                      const char *name, const struct journal_head *head,
                      const void *hello, size_t hello_n)
{
    char fresh[sizeof j->path];
    memset(j, 0, sizeof *j);
    j->fd = -1;
    fresh[0] = 0;
    if (hello_n > JOURNAL_HELLO_MAX)
        return TRD_ELIMIT;
    int failed = journal_layout(head->ring_bytes, &j->head);
    if (failed)
        return failed;
    j->head.epoch = head->epoch;
    j->head.pid = head->pid;
    j->head.start_time = head->start_time;
    memcpy(j->head.boot_id, head->boot_id, sizeof j->head.boot_id);
    j->head.hello_bytes = (uint32_t)hello_n;
    j->head.hello_crc = crc32c(0, hello, hello_n);
    if (pthread_mutex_init(&j->lock, NULL))
        return TRD_ENOMEM;
    if (dir)
        failed = create_file(j, dir, name, fresh, sizeof fresh);
    if (!failed)
        failed = map_all(j);
    if (failed)
        goto out;
    j->reserve = RESERVE_BYTES;
    j->ring = j->map + (journal_ring(j->map, &j->head) - j->map);
    memcpy(j->map + JOURNAL_HELLO_AT, hello, hello_n);
    journal_head_put(j->map, &j->head);
    trd__journal_publish(j);
    POINT(journal_written);
    if (dir && trd__sys.rename(fresh, j->path))
        failed = TRD_EIO;
    POINT(journal_named);
out:
    if (failed) {
        if (j->fd >= 0 && fresh[0])
            trd__sys.unlink(fresh);
        trd__journal_close(j, 0);
    }
    return failed;
}

void trd__journal_close(struct trd__journal *j, int unlink_file)
{
    if (unlink_file && j->fd >= 0) {
        trd__sys.unlink(j->path);
        POINT(journal_unlinked);
    }
    if (j->map)
        trd__sys.unmap(j->map, j->head.size);
    if (j->slot)
        trd__sys.unmap((void *)j->slot, INDEX_BYTES);
    if (trd__is_still(j->fd, j->dev, j->ino))
        trd__sys.close(j->fd);
    pthread_mutex_destroy(&j->lock);
    j->map = NULL;
    j->slot = NULL;
    j->fd = -1;
}

/* ---- appending ---- */

/* The full value of a 32-bit count that is not behind base. */
static uint64_t extend(uint64_t base, uint32_t low)
{
    return base + (uint32_t)(low - (uint32_t)base);
}

static uint64_t segment_left(uint64_t pos)
{
    return JOURNAL_SEGMENT - pos % JOURNAL_SEGMENT;
}

static uint8_t *place(const struct trd__journal *j, uint64_t pos)
{
    return j->ring + pos % j->head.ring_bytes;
}

/* Where an entry of this span goes when next is at pos. */
static uint64_t entry_pos(uint64_t pos, size_t span)
{
    if (pos % JOURNAL_SEGMENT && segment_left(pos) < span)
        pos += segment_left(pos);
    if (pos % JOURNAL_SEGMENT == 0)
        pos += JOURNAL_SEGMENT_HEADER;
    return pos;
}

/* Whoever crosses into a segment closes the old one and heads the new. */
static void cross_segment(struct trd__journal *j, uint64_t from, uint64_t at,
                          uint64_t seq)
{
    uint64_t start = at - JOURNAL_SEGMENT_HEADER;
    if (from < start && segment_left(from) >= ENTRY_HEADER_BYTES) {
        uint8_t *pad = place(j, from);
        publish_word(pad, entry_seal(pad, ENTRY_PAD, ENTRY_HEADER_BYTES,
                                     (uint32_t)seq));
    }
    uint8_t *segment = place(j, start);
    publish_word(segment, journal_segment_put(segment, start, seq));
}

int trd__journal_put(struct trd__journal *j, uint32_t kind,
                     const void *head, size_t head_n, const void *tail,
                     size_t tail_n)
{
    size_t len = ENTRY_HEADER_BYTES + head_n + tail_n;
    if (len > ENTRY_MAX_BYTES)
        return TRD_ELIMIT;
    size_t span = entry_span(len);
    uint64_t pos, at, seq, next, wanted;
    do {
        /* tail before next: so next is never behind it */
        uint64_t tail_seq =
            atomic_load_explicit(&j->tail_seq, memory_order_acquire);
        uint64_t tail_pos =
            atomic_load_explicit(&j->tail_pos, memory_order_acquire);
        next = atomic_load_explicit(&j->next, memory_order_acquire);
        pos = extend(tail_pos / 8, (uint32_t)next) * 8;
        seq = extend(tail_seq, (uint32_t)(next >> 32)) + 1;
        at = entry_pos(pos, span);
        if (at + span - tail_pos > j->head.ring_bytes - j->reserve)
            return TRD_EFULL;
        wanted = (uint64_t)(uint32_t)seq << 32 | (uint32_t)((at + span) / 8);
    } while (!atomic_compare_exchange_weak_explicit(
        &j->next, &next, wanted, memory_order_acq_rel,
        memory_order_relaxed));
    POINT(put_reserved);
    if (at != pos)
        cross_segment(j, pos, at, seq);
    POINT(put_crossed);
    uint8_t *entry = place(j, at);
    if (head_n)
        memcpy(entry + ENTRY_HEADER_BYTES, head, head_n);
    if (tail_n)
        memcpy(entry + ENTRY_HEADER_BYTES + head_n, tail, tail_n);
    POINT(put_copied);
    uint32_t word = entry_seal(entry, kind, (uint32_t)len, (uint32_t)seq);
    POINT(put_sealed);
    publish_word(entry, word);
    POINT(put_published);
    return 0;
}

uint64_t trd__journal_used(const struct trd__journal *j)
{
    /* tail before next, as in put */
    uint64_t tail = atomic_load_explicit(&j->tail_pos, memory_order_acquire);
    uint64_t next = atomic_load_explicit(&j->next, memory_order_acquire);
    return (uint64_t)((uint32_t)next - (uint32_t)(tail / 8)) * 8;
}

uint64_t trd__journal_last(const struct trd__journal *j)
{
    uint64_t tail_seq =
        atomic_load_explicit(&j->tail_seq, memory_order_acquire);
    uint64_t next = atomic_load_explicit(&j->next, memory_order_acquire);
    return extend(tail_seq, (uint32_t)(next >> 32));
}

/* ---- dictionary ---- */

static uint8_t *dict_at(const struct trd__journal *j, uint32_t id)
{
    return j->map + JOURNAL_DICT_AT + j->offset[id];
}

static int is_entry(const struct trd__journal *j, uint32_t id, uint32_t word,
                    const void *body, size_t n)
{
    const uint8_t *entry = dict_at(j, id);
    return read_word(entry) == word &&
           !memcmp(entry + ENTRY_HEADER_BYTES, body, n);
}

/* The slot that holds the entry, or the empty one where it would go. */
static uint32_t find_slot(const struct trd__journal *j, uint32_t word,
                          const void *body, size_t n, uint32_t *id)
{
    uint32_t i = crc32c(word, body, n) * UINT32_C(0x9e3779b1);
    for (i >>= 11;; i++) {
        i &= DICT_SLOTS - 1;
        *id = atomic_load_explicit(&j->slot[i], memory_order_acquire);
        if (!*id || is_entry(j, *id, word, body, n))
            return i;
    }
}

/* [lock] */
static int append_word(struct trd__journal *j, uint32_t i, uint32_t kind,
                       const void *body, size_t n, uint32_t *id)
{
    uint32_t len = (uint32_t)(ENTRY_HEADER_BYTES + n);
    uint32_t count = atomic_load_explicit(&j->dict_n, memory_order_relaxed);
    /* the last zero word is the end mark */
    if (count == DICT_MAX_ENTRIES ||
        j->head.dict_bytes - j->dict_used < entry_span(len) + 8)
        return TRD_ELIMIT;
    *id = count + 1;
    j->offset[*id] = j->dict_used;
    uint8_t *entry = dict_at(j, *id);
    memcpy(entry + ENTRY_HEADER_BYTES, body, n);
    POINT(word_copied);
    publish_word(entry, entry_seal(entry, kind, len, *id));
    POINT(word_published);
    j->dict_used += entry_span(len);
    atomic_store_explicit(&j->dict_n, *id, memory_order_release);
    atomic_store_explicit(&j->slot[i], *id, memory_order_release);
    return 0;
}

int trd__journal_intern(struct trd__journal *j, uint32_t kind,
                        const void *body, size_t n, uint32_t *id)
{
    uint32_t word = entry_word(kind, (uint32_t)(ENTRY_HEADER_BYTES + n));
    uint32_t found;
    int failed = 0;
    find_slot(j, word, body, n, &found);
    if (!found) {
        sigset_t all, old;
        /* a handler that submits must not wait for the thread it is in */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        pthread_mutex_lock(&j->lock);
        uint32_t i = find_slot(j, word, body, n, &found);
        if (!found)
            failed = append_word(j, i, kind, body, n, &found);
        pthread_mutex_unlock(&j->lock);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (!failed)
        *id = found;
    return failed;
}

void trd__journal_words(struct trd__journal *j, uint32_t after, size_t max,
                        struct trd__run *out)
{
    uint32_t n = atomic_load_explicit(&j->dict_n, memory_order_acquire);
    memset(out, 0, sizeof *out);
    if (after >= n)
        return;
    out->bytes = dict_at(j, after + 1);
    for (uint32_t id = after + 1; id <= n; id++) {
        size_t span = entry_span(read_word(dict_at(j, id)) & 0xffffff);
        if (out->n + span > max)
            break;
        out->n += span;
        out->records++;
    }
}

/* ---- reading and freeing ---- */

void trd__journal_peek(struct trd__journal *j, uint64_t *pos, size_t max,
                       struct trd__run *out)
{
    uint64_t tail_pos =
        atomic_load_explicit(&j->tail_pos, memory_order_relaxed);
    uint64_t next = atomic_load_explicit(&j->next, memory_order_acquire);
    uint64_t end = extend(tail_pos / 8, (uint32_t)next) * 8;
    memset(out, 0, sizeof *out);
    for (;;) {
        if (*pos >= end)
            return;
        if (*pos % JOURNAL_SEGMENT == 0) {
            *pos += JOURNAL_SEGMENT_HEADER;
            continue;
        }
        if (segment_left(*pos) >= ENTRY_HEADER_BYTES) {
            uint32_t word = read_word(place(j, *pos));
            if (!word)
                return;
            if (word >> 24 != ENTRY_PAD)
                break;
        }
        *pos += segment_left(*pos);
    }
    out->bytes = place(j, *pos);
    out->end_pos = *pos;
    while (out->end_pos < end && out->end_pos % JOURNAL_SEGMENT &&
           segment_left(out->end_pos) >= ENTRY_HEADER_BYTES) {
        uint32_t word = read_word(place(j, out->end_pos));
        size_t span = entry_span(word & 0xffffff);
        if (!word || word >> 24 == ENTRY_PAD || out->n + span > max)
            break;
        out->n += span;
        out->end_pos += span;
        out->records++;
    }
}

static void zero_ring(struct trd__journal *j, uint64_t from, uint64_t to)
{
    while (from < to) {
        uint64_t n = j->head.ring_bytes - from % j->head.ring_bytes;
        if (n > to - from)
            n = to - from;
        memset(place(j, from), 0, n);
        from += n;
    }
}

void trd__journal_publish(struct trd__journal *j)
{
    struct journal_state *s = &j->state;
    uint64_t from = atomic_load_explicit(&j->tail_pos, memory_order_relaxed);
    s->generation++;
    journal_state_put(j->map + JOURNAL_PAGE * (1 + s->generation % 2), s);
    /* the state is out before the space can be used again */
    atomic_thread_fence(memory_order_seq_cst);
    POINT(state_published);
    zero_ring(j, from, s->durable_pos);
    POINT(ring_zeroed);
    atomic_store_explicit(&j->tail_pos, s->durable_pos,
                          memory_order_release);
    atomic_store_explicit(&j->tail_seq, s->durable_seq,
                          memory_order_release);
    POINT(ring_freed);
}
