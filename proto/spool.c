/* The spool as bytes: FORMAT.md, "Spool". Pure functions over what a process
 * left on a disk; nothing in it is trusted. */
#include "proto/spool.h"

#include "proto/crc32c.h"

#include <stdio.h>

enum { HEAD_VERSION = 1, CRC_AT = SPOOL_HEAD_BYTES - 4 };

int spool_name(struct slice run, uint32_t rank, uint64_t epoch,
               char out[SPOOL_NAME_MAX])
{
    if (run.n > TRD_MAX_RUN)
        return TRD_ELIMIT;
    int n = snprintf(out, SPOOL_NAME_MAX, "%.*s.%u.%08x" SPOOL_SUFFIX,
                     (int)run.n, run.text, rank, (unsigned)epoch);
    return n < 0 || n >= SPOOL_NAME_MAX ? TRD_ELIMIT : 0;
}

void spool_head_put(uint8_t out[SPOOL_HEAD_BYTES], const struct spool_head *h)
{
    memset(out, 0, SPOOL_HEAD_BYTES);
    struct writer w = writer_of(out, SPOOL_HEAD_BYTES);
    put_u64(&w, SPOOL_MAGIC);
    put_u32(&w, HEAD_VERSION);
    put_u32(&w, h->pid);
    put_u64(&w, h->epoch);
    put_u64(&w, h->start_time);
    put_bytes(&w, h->boot_id, sizeof h->boot_id);
    put_u64(&w, h->first_seq);
    put_u32(&w, h->hello_bytes);
    put_u32(&w, h->hello_crc);
    struct writer c = writer_of(out + CRC_AT, 4);
    put_u32(&c, crc32c(0, out, CRC_AT));
}

int spool_head_get(const void *bytes, size_t n, struct spool_head *out)
{
    if (n < SPOOL_HEAD_BYTES)
        return TRD_ETRUNC;
    struct reader r = reader_of(bytes, SPOOL_HEAD_BYTES);
    struct reader c = reader_of((const uint8_t *)bytes + CRC_AT, 4);
    struct spool_head h;
    memset(&h, 0, sizeof h);
    if (get_u64(&r) != SPOOL_MAGIC)
        return TRD_ECORRUPT;
    if (get_u32(&r) != HEAD_VERSION)
        return TRD_EVERSION;
    if (get_u32(&c) != crc32c(0, bytes, CRC_AT))
        return TRD_ECORRUPT;
    h.pid = get_u32(&r);
    h.epoch = get_u64(&r);
    h.start_time = get_u64(&r);
    const uint8_t *boot = get_bytes(&r, sizeof h.boot_id);
    if (boot)
        memcpy(h.boot_id, boot, sizeof h.boot_id);
    h.first_seq = get_u64(&r);
    h.hello_bytes = get_u32(&r);
    h.hello_crc = get_u32(&r);
    if (h.hello_bytes > SPOOL_HELLO_MAX || h.first_seq == 0 ||
        h.first_seq > INT64_MAX || h.epoch > INT64_MAX)
        return TRD_ECORRUPT;
    *out = h;
    return 0;
}

int spool_hello_get(const uint8_t *bytes, size_t n,
                    const struct spool_head *h, struct hello *out)
{
    if (n < spool_entries_at(h))
        return TRD_ETRUNC;
    if (crc32c(0, bytes + SPOOL_HEAD_BYTES, h->hello_bytes) != h->hello_crc)
        return TRD_ECORRUPT;
    return hello_get(bytes + SPOOL_HEAD_BYTES, h->hello_bytes, out);
}

void spool_walk_init(struct spool_walk *w, const struct spool_head *h)
{
    w->seq = h->first_seq;
    w->word = 1;
}

static bool is_word(uint32_t kind)
{
    return kind >= ENTRY_OBJECT && kind <= ENTRY_NOTE;
}

/* 0 when an entry that may be one of the walk's lies here, TRD_ETRUNC when
 * its end is not to be seen. A number that was passed is of a write that
 * failed and was done again. */
static int entry_here(const struct spool_walk *w, const uint8_t *at,
                      size_t left, struct entry *out, uint32_t *ahead)
{
    if (!(at[0] | at[1] | at[2]))
        return TRD_ECORRUPT;
    if (at[3] != ENTRY_RECORD && at[3] != ENTRY_LOSS && !is_word(at[3]))
        return TRD_ECORRUPT;
    int failed = entry_get(at, left, out);
    if (failed)
        return failed;
    *ahead = out->number - (is_word(out->kind) ? w->word : (uint32_t)w->seq);
    return *ahead <= INT32_MAX ? 0 : TRD_ECORRUPT;
}

enum spool_step spool_next(struct spool_walk *w, const uint8_t *bytes,
                           size_t n, bool whole, size_t *used,
                           struct entry *out, uint64_t *seq)
{
    uint32_t ahead;
    size_t at = 0;
    for (;; at += 8) {
        int failed = n - at < ENTRY_HEADER_BYTES
                         ? TRD_ETRUNC
                         : entry_here(w, bytes + at, n - at, out, &ahead);
        if (!failed)
            break;
        if (failed == TRD_ETRUNC && !whole) {
            *used = at;
            return SPOOL_MORE;
        }
        if (n - at <= 8) {
            *used = n;
            return SPOOL_END;
        }
    }
    size_t span = entry_span(out->len);
    *used = at + (span < n - at ? span : n - at);
    if (is_word(out->kind)) {
        w->word = out->number + 1;
        return SPOOL_WORD;
    }
    *seq = w->seq;
    w->seq += ahead;
    if (!ahead) {
        w->seq++;
        return SPOOL_ENTRY;
    }
    *used = at;
    return SPOOL_HOLE;
}
