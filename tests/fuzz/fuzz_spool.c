/* A spool that somebody else has written.
 *
 * Input: u16 place, and pieces of u8 what, u8 length, i8 number. what below
 * 192: an entry that holds, of kind what % 6, with so much more than the next
 * number, and a body of that many bytes of the input; else bytes as they are.
 * They lie where a look at a part of the file ends. The walk ends, its numbers
 * only grow, and it finds the same whether it sees all at once or a part. */
#include "tests/fuzz/fuzz.h"

#include "proto/spool.h"

enum { ROOM = 2 * SPOOL_LOOK_BYTES, STEPS = ROOM / ENTRY_HEADER_BYTES };

struct found {
    enum spool_step step;
    uint64_t seq, next;
    uint32_t number;
};

static uint8_t image[ROOM];
static struct found all[STEPS], part[STEPS];

static size_t add(size_t at, struct fuzz_input *in, uint32_t *next)
{
    static const uint8_t kinds[6] = {ENTRY_RECORD, ENTRY_LOSS, ENTRY_OBJECT,
                                     ENTRY_SITE, ENTRY_SHAPE, ENTRY_NOTE};
    unsigned what = (unsigned)fuzz_take(in, 1);
    size_t n = (size_t)fuzz_take(in, 1);
    uint32_t number = *next + (uint32_t)(int8_t)fuzz_take(in, 1);
    size_t skip = what < 192 ? ENTRY_HEADER_BYTES : 0;
    if (n > in->left)
        n = in->left;
    if (at + entry_span(n + skip) > ROOM)
        return 0;
    memcpy(image + at + skip, in->at, n);
    in->at += n;
    in->left -= n;
    if (skip) {
        struct writer w = writer_of(image + at, 4);
        put_u32(&w, entry_seal(image + at, kinds[what % 6],
                               (uint32_t)(n + skip), number));
        *next = number + 1;
    }
    return entry_span(n + skip);
}

static size_t walk(size_t n, size_t window, struct found *out)
{
    const struct spool_head h = {.first_seq = 1};
    struct spool_walk w;
    struct entry e;
    size_t at = 0, used, count = 0;
    uint64_t seq = 0;
    spool_walk_init(&w, &h);
    for (;;) {
        bool whole = n - at <= window;
        uint64_t before = w.seq;
        enum spool_step step =
            spool_next(&w, image + at, whole ? n - at : window, whole, &used,
                       &e, &seq);
        FUZZ_CHECK(at + used <= n && w.seq >= before);
        at += used;
        if (step == SPOOL_MORE) {
            FUZZ_CHECK(!whole && used);
            continue;
        }
        if (step == SPOOL_END)
            return count;
        if (step == SPOOL_HOLE)
            FUZZ_CHECK(seq == before && w.seq > seq);
        if (step == SPOOL_ENTRY)
            FUZZ_CHECK(seq == before && w.seq == seq + 1);
        FUZZ_CHECK(count < STEPS);
        out[count++] = (struct found){
            step, step == SPOOL_WORD ? 0 : seq, w.seq,
            step == SPOOL_HOLE ? 0 : e.number};
    }
}

static void look_at_head(const uint8_t *data, size_t size)
{
    struct spool_head h;
    struct hello hello;
    if (!spool_head_get(data, size, &h))
        spool_hello_get(data, size, &h, &hello);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint32_t next = 1;
    size_t n, more, count;
    look_at_head(data, size);
    memset(image, 0, sizeof image);
    n = SPOOL_LOOK_BYTES - fuzz_take(&in, 2) % 1024 * 8;
    while (in.left && (more = add(n, &in, &next)))
        n += more;
    count = walk(n, ROOM, all);
    FUZZ_CHECK(walk(n, SPOOL_LOOK_BYTES, part) == count);
    for (size_t i = 0; i < count; i++)
        FUZZ_CHECK(all[i].step == part[i].step && all[i].seq == part[i].seq &&
                   all[i].next == part[i].next &&
                   all[i].number == part[i].number);
    return 0;
}
