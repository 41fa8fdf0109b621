/* The journal file as bytes: FORMAT.md, "Journal". Pure functions over an
 * image that a dying process left; nothing in it is trusted. */
#include "proto/journal.h"

#include "proto/crc32c.h"

enum {
    HEAD_VERSION = 1,
    HEAD_CRC_AT = 12,      /* over the rest of the head, this field zero */
    HEAD_BYTES = 128,
    STATE_CRC_AT = 8,
    STATE_BYTES = 256,
    SEARCH_TIMES = 8 /* of a damaged segment, that often its size is read */
};
#define SEGMENT_MAGIC UINT32_C(0x47455354) /* "TSEG" */

int journal_layout(uint64_t ring_bytes, struct journal_head *h)
{
    if (ring_bytes < JOURNAL_MIN_BYTES || ring_bytes > JOURNAL_MAX_BYTES ||
        (ring_bytes & (ring_bytes - 1)))
        return TRD_EINVAL;
    h->ring_bytes = ring_bytes;
    /* an eighth for names and shapes, but enough for a large model */
    h->dict_bytes = ring_bytes / 8 < JOURNAL_MIN_BYTES ? JOURNAL_MIN_BYTES
                                                       : ring_bytes / 8;
    h->size = JOURNAL_DICT_AT + h->dict_bytes + h->ring_bytes;
    return 0;
}

/* crc of n bytes with the four at skip counted as zero */
static uint32_t crc_without(const uint8_t *bytes, size_t n, size_t skip)
{
    static const uint8_t zero[4];
    uint32_t crc = crc32c(0, bytes, skip);
    crc = crc32c(crc, zero, 4);
    return crc32c(crc, bytes + skip + 4, n - skip - 4);
}

static void put_crc(uint8_t *bytes, size_t n, size_t at)
{
    struct writer w = writer_of(bytes + at, 4);
    put_u32(&w, crc_without(bytes, n, at));
}

static bool crc_holds(const uint8_t *bytes, size_t n, size_t at)
{
    struct reader r = reader_of(bytes + at, 4);
    return get_u32(&r) == crc_without(bytes, n, at);
}

void journal_head_put(uint8_t page[JOURNAL_PAGE],
                      const struct journal_head *h)
{
    memset(page, 0, HEAD_BYTES);
    struct writer w = writer_of(page, HEAD_BYTES);
    put_u64(&w, JOURNAL_MAGIC);
    put_u32(&w, HEAD_VERSION);
    put_u32(&w, 0); /* checksum */
    put_u64(&w, h->size);
    put_u64(&w, h->epoch);
    put_u64(&w, h->start_time);
    put_u32(&w, h->pid);
    put_u32(&w, h->hello_bytes);
    put_bytes(&w, h->boot_id, sizeof h->boot_id);
    put_u64(&w, h->dict_bytes);
    put_u64(&w, h->ring_bytes);
    put_u32(&w, h->hello_crc);
    put_crc(page, HEAD_BYTES, HEAD_CRC_AT);
}

int journal_head_get(const uint8_t *image, uint64_t size,
                     struct journal_head *out)
{
    if (size < JOURNAL_DICT_AT)
        return TRD_ETRUNC;
    struct reader r = reader_of(image, HEAD_BYTES);
    struct journal_head h, expected;
    memset(&h, 0, sizeof h);
    if (get_u64(&r) != JOURNAL_MAGIC)
        return TRD_ECORRUPT;
    if (get_u32(&r) != HEAD_VERSION)
        return TRD_EVERSION;
    if (!crc_holds(image, HEAD_BYTES, HEAD_CRC_AT))
        return TRD_ECORRUPT;
    get_u32(&r);
    h.size = get_u64(&r);
    h.epoch = get_u64(&r);
    h.start_time = get_u64(&r);
    h.pid = get_u32(&r);
    h.hello_bytes = get_u32(&r);
    const uint8_t *boot = get_bytes(&r, sizeof h.boot_id);
    if (boot)
        memcpy(h.boot_id, boot, sizeof h.boot_id);
    h.dict_bytes = get_u64(&r);
    h.ring_bytes = get_u64(&r);
    h.hello_crc = get_u32(&r);
    if (journal_layout(h.ring_bytes, &expected) ||
        h.dict_bytes != expected.dict_bytes || h.size != expected.size ||
        h.hello_bytes > JOURNAL_HELLO_MAX)
        return TRD_ECORRUPT;
    if (size < h.size)
        return TRD_ETRUNC;
    *out = h;
    return 0;
}

int journal_hello_get(const uint8_t *image, const struct journal_head *h,
                      struct hello *out)
{
    const uint8_t *hello = image + JOURNAL_HELLO_AT;
    if (crc32c(0, hello, h->hello_bytes) != h->hello_crc)
        return TRD_ECORRUPT;
    return hello_get(hello, h->hello_bytes, out);
}

void journal_state_put(uint8_t page[JOURNAL_PAGE],
                       const struct journal_state *s)
{
    memset(page, 0, STATE_BYTES);
    struct writer w = writer_of(page, STATE_BYTES);
    put_u64(&w, s->generation);
    put_u32(&w, 0); /* checksum */
    put_u32(&w, s->clean);
    put_u64(&w, s->committed_seq);
    put_u64(&w, s->sent_seq);
    put_u64(&w, s->durable_seq);
    put_u64(&w, s->durable_pos);
    for (int i = 0; i < JOURNAL_CAUSES; i++)
        put_u64(&w, s->lost[i]);
    put_crc(page, STATE_BYTES, STATE_CRC_AT);
}

static int state_page(const uint8_t *page, struct journal_state *s)
{
    if (!crc_holds(page, STATE_BYTES, STATE_CRC_AT))
        return TRD_ECORRUPT;
    struct reader r = reader_of(page, STATE_BYTES);
    s->generation = get_u64(&r);
    get_u32(&r);
    s->clean = get_u32(&r);
    s->committed_seq = get_u64(&r);
    s->sent_seq = get_u64(&r);
    s->durable_seq = get_u64(&r);
    s->durable_pos = get_u64(&r);
    for (int i = 0; i < JOURNAL_CAUSES; i++)
        s->lost[i] = get_u64(&r);
    /* a page of zeros has no generation */
    return s->generation && s->durable_pos % 8 == 0 ? 0 : TRD_ECORRUPT;
}

int journal_state_get(const uint8_t *image, struct journal_state *out)
{
    struct journal_state a, b;
    int bad_a = state_page(image + JOURNAL_PAGE, &a);
    int bad_b = state_page(image + 2 * JOURNAL_PAGE, &b);
    if (bad_a && bad_b)
        return TRD_ECORRUPT;
    *out = bad_a || (!bad_b && b.generation > a.generation) ? b : a;
    return 0;
}

uint32_t journal_segment_put(uint8_t *segment, uint64_t pos, uint64_t seq)
{
    struct writer w = writer_of(segment + 8, JOURNAL_SEGMENT_HEADER - 8);
    put_u64(&w, pos);
    put_u64(&w, seq);
    put_u64(&w, 0);
    struct writer c = writer_of(segment + 4, 4);
    put_u32(&c, crc32c(0, segment + 8, JOURNAL_SEGMENT_HEADER - 8));
    return SEGMENT_MAGIC;
}

/* The seq in the header of the segment at pos, or 0 if there is none. */
static uint64_t segment_seq(const struct journal_walk *w, uint64_t pos)
{
    const uint8_t *segment = w->ring + pos % w->ring_bytes;
    struct reader r = reader_of(segment, JOURNAL_SEGMENT_HEADER);
    uint32_t magic = get_u32(&r);
    uint32_t crc = get_u32(&r);
    uint64_t at = get_u64(&r);
    uint64_t seq = get_u64(&r);
    if (magic != SEGMENT_MAGIC || at != pos ||
        crc != crc32c(0, segment + 8, JOURNAL_SEGMENT_HEADER - 8))
        return 0;
    return seq;
}

int journal_dict_next(const uint8_t *image, const struct journal_head *h,
                      uint64_t *at, struct entry *out)
{
    const uint8_t *dict = image + JOURNAL_DICT_AT;
    if (*at >= h->dict_bytes || h->dict_bytes - *at < ENTRY_HEADER_BYTES)
        return 0;
    uint64_t left = h->dict_bytes - *at;
    struct reader r = reader_of(dict + *at, 4);
    uint32_t word = get_u32(&r);
    if (word >> 24 == ENTRY_RESERVED) /* free, or being written at the end */
        return 0;
    if (entry_get(dict + *at, (size_t)left, out))
        return TRD_ECORRUPT;
    *at += entry_span(out->len);
    return 1;
}

void journal_walk_init(struct journal_walk *w, const uint8_t *image,
                       const struct journal_head *h,
                       const struct journal_state *s)
{
    w->ring = journal_ring(image, h);
    w->ring_bytes = h->ring_bytes;
    w->start = w->pos = s->durable_pos;
    w->seq = s->durable_seq + 1;
    w->searched = UINT64_MAX;
    w->left = 0;
}

/* Bytes from pos to the end of its segment. */
static uint64_t segment_left(uint64_t pos)
{
    return JOURNAL_SEGMENT - pos % JOURNAL_SEGMENT;
}

static bool inside(const struct journal_walk *w, uint64_t pos)
{
    return pos - w->start < w->ring_bytes;
}

static bool is_kind(uint32_t kind)
{
    return kind == ENTRY_RECORD || kind == ENTRY_LOSS || kind == ENTRY_PAD;
}

/* The entry at pos if it is whole and belongs to seq or a later record
 * within what a ring can hold. *ahead is how many records lie between. */
static bool entry_at(const struct journal_walk *w, uint64_t pos,
                     struct entry *out, uint32_t *ahead)
{
    const uint8_t *at = w->ring + pos % w->ring_bytes;
    if (segment_left(pos) < ENTRY_HEADER_BYTES)
        return false;
    if (!(at[0] | at[1] | at[2])) /* no length: free space, most of a ring */
        return false;
    if (!is_kind(at[3]) || entry_get(at, (size_t)segment_left(pos), out))
        return false;
    *ahead = out->number - (uint32_t)w->seq;
    return *ahead < w->ring_bytes / ENTRY_HEADER_BYTES;
}

/* What looking at an entry costs: its bytes, if it is not seen at once that
 * it is none. */
static uint64_t entry_cost(const struct journal_walk *w, uint64_t pos)
{
    struct reader r = reader_of(w->ring + pos % w->ring_bytes, 4);
    uint32_t word = get_u32(&r), n = word & 0xffffff;
    return is_kind(word >> 24) && n <= ENTRY_MAX_BYTES ? n : 0;
}

/* Looks for the next readable record behind pos. Bytes that were made to look
 * like entries everywhere would be read again for each: of a segment no more
 * is looked at than some times its size, and then the next one's turn comes. */
static bool resume(struct journal_walk *w, uint64_t pos, uint64_t *found,
                   struct entry *out, uint32_t *ahead)
{
    for (pos += 8; inside(w, pos); pos += 8) {
        uint64_t segment = pos / JOURNAL_SEGMENT, cost;
        if (segment != w->searched) {
            w->searched = segment;
            w->left = SEARCH_TIMES * JOURNAL_SEGMENT;
        }
        cost = segment_left(pos) < ENTRY_HEADER_BYTES ? 0 : entry_cost(w, pos);
        if (cost > w->left) {
            pos += segment_left(pos) - 8;
            continue;
        }
        w->left -= cost;
        if (entry_at(w, pos, out, ahead) && out->kind != ENTRY_PAD) {
            *found = pos;
            return true;
        }
    }
    return false;
}

enum journal_step journal_next(struct journal_walk *w, struct entry *out,
                               uint64_t *seq)
{
    uint32_t ahead;
    uint64_t found;
    for (;;) {
        if (!inside(w, w->pos))
            return JOURNAL_END;
        if (w->pos % JOURNAL_SEGMENT == 0 && segment_seq(w, w->pos))
            w->pos += JOURNAL_SEGMENT_HEADER;
        if (segment_left(w->pos) < ENTRY_HEADER_BYTES) {
            w->pos += segment_left(w->pos);
            continue;
        }
        if (!entry_at(w, w->pos, out, &ahead) || ahead)
            break;
        if (out->kind == ENTRY_PAD) {
            w->pos += segment_left(w->pos);
            continue;
        }
        w->pos += entry_span(out->len);
        *seq = w->seq++;
        return JOURNAL_ENTRY;
    }
    if (!resume(w, w->pos - 8, &found, out, &ahead))
        return JOURNAL_END;
    w->pos = found;
    if (ahead == 0) { /* only padding or a segment header was damaged */
        w->pos += entry_span(out->len);
        *seq = w->seq++;
        return JOURNAL_ENTRY;
    }
    *seq = w->seq;
    w->seq += ahead;
    return JOURNAL_HOLE;
}
