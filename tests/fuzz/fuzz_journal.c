/* A journal that somebody else has written.
 *
 * Input: pieces of u16 place (in units of 64 bytes; in the ring if the top bit
 * is set), u8 length, that many bytes: laid over a journal of 1 MiB with a few
 * records, whose checksums of head, state and touched entries stay as the
 * input leaves them. The walk ends, and its numbers only grow. */
#include "tests/fuzz/fuzz.h"

#include "proto/crc32c.h"
#include "proto/journal.h"

enum { RECORDS = 40, SPAN = 64 };

static uint8_t *image;
static struct journal_head head;
static size_t dirty_n;
static struct {
    size_t at, n;
    uint8_t was[255];
} dirty[256];

/* A good journal, made once. */
static void make(void)
{
    struct journal_state state = {.generation = 1};
    uint8_t *ring;
    uint64_t at = JOURNAL_SEGMENT_HEADER;
    FUZZ_CHECK(!journal_layout(JOURNAL_MIN_BYTES, &head));
    head.pid = 1;
    image = calloc(1, head.size);
    FUZZ_CHECK(image);
    journal_head_put(image, &head);
    journal_state_put(image + JOURNAL_PAGE, &state);
    ring = image + JOURNAL_DICT_AT + head.dict_bytes;
    struct writer m = writer_of(ring, 4);
    put_u32(&m, journal_segment_put(ring, 0, 1));
    for (uint32_t i = 1; i <= RECORDS; i++, at += SPAN) {
        struct writer w = writer_of(ring + at, 4);
        memset(ring + at + ENTRY_HEADER_BYTES, (int)i,
               SPAN - ENTRY_HEADER_BYTES);
        put_u32(&w, entry_seal(ring + at, ENTRY_RECORD, SPAN, i));
    }
}

static void spoil(struct fuzz_input *in)
{
    dirty_n = 0;
    while (in->left >= 4 && dirty_n < 256) {
        uint64_t place = fuzz_take(in, 2);
        size_t n = fuzz_take(in, 1);
        size_t base = place >> 15 ? JOURNAL_DICT_AT + head.dict_bytes : 0;
        size_t at = base + (place & 0x7fff) * 64;
        if (n > in->left)
            n = in->left;
        if (at + n > head.size)
            continue;
        dirty[dirty_n].at = at;
        dirty[dirty_n].n = n;
        memcpy(dirty[dirty_n++].was, image + at, n);
        memcpy(image + at, in->at, n);
        in->at += n;
        in->left -= n;
    }
}

static void mend(void)
{
    while (dirty_n--)
        memcpy(image + dirty[dirty_n].at, dirty[dirty_n].was,
               dirty[dirty_n].n);
}

static void walk(void)
{
    struct journal_head h;
    struct journal_state state;
    struct journal_walk w;
    struct hello hello;
    struct entry e;
    uint64_t at = 0, seq, last = 0, steps = 0;
    enum journal_step step;
    if (journal_head_get(image, head.size, &h))
        return;
    journal_hello_get(image, &h, &hello);
    while (journal_dict_next(image, &h, &at, &e) == 1)
        FUZZ_CHECK(++steps <= h.dict_bytes / ENTRY_HEADER_BYTES);
    if (journal_state_get(image, &state))
        return;
    journal_walk_init(&w, image, &h, &state);
    steps = 0;
    while ((step = journal_next(&w, &e, &seq)) != JOURNAL_END) {
        FUZZ_CHECK(seq > last && ++steps <= h.ring_bytes);
        if (step == JOURNAL_HOLE)
            FUZZ_CHECK(w.seq > seq);
        last = step == JOURNAL_HOLE ? w.seq - 1 : seq;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    if (!image)
        make();
    spoil(&in);
    walk();
    mend();
    return 0;
}
