/* Frames and the messages in them.
 *
 * Input: u8 type of message, then its payload; the same bytes also as a
 * frame's header. A message that is read can be written and read again. */
#include "tests/fuzz/fuzz.h"

#include "proto/crc32c.h"
#include "proto/frame.h"

static uint8_t again[FRAME_MAX_BYTES];

#define ROUND(kind)                                                            \
    do {                                                                       \
        struct kind a, b;                                                      \
        size_t n = 0;                                                          \
        if (kind##_get(payload, size, &a))                                     \
            break;                                                             \
        FUZZ_CHECK(kind##_put(&a, again, sizeof again, &n) == 0);              \
        FUZZ_CHECK(kind##_get(again, n, &b) == 0);                             \
    } while (0)

static void check_header(const uint8_t *data, size_t size)
{
    uint8_t head[FRAME_HEADER_BYTES] = {0};
    struct frame f, g;
    memcpy(head, data, size < sizeof head ? size : sizeof head);
    frame_get(head, &f);
    /* the header's own checksum, so that the rest is looked at */
    struct writer w = writer_of(head + 36, 4);
    put_u32(&w, crc32c(0, head, 36));
    if (frame_get(head, &f))
        return;
    FUZZ_CHECK(f.len <= FRAME_MAX_BYTES);
    frame_put(head, &f);
    FUZZ_CHECK(frame_get(head, &g) == 0);
    FUZZ_CHECK(f.type == g.type && f.len == g.len && f.seq == g.seq);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *payload = data + (size > 0);
    struct batch batch;
    check_header(data, size);
    if (!size--)
        return 0;
    switch (data[0] % 8) {
    case 0:
        ROUND(hello);
        break;
    case 1:
        ROUND(welcome);
        break;
    case 2:
        ROUND(refusal);
        break;
    case 3:
        ROUND(ack);
        break;
    case 4:
        ROUND(gap);
        break;
    case 5:
        ROUND(ping);
        break;
    default:
        batch_get(payload, size, &batch);
        break;
    }
    return 0;
}
