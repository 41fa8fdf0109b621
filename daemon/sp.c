/* nanomsg's SP wire format, REP side. Pure; loop thread.
 *
 * Nothing is allocated before a length was compared with the limit, and any
 * byte that should not be there is an answer of SP_WRONG, never more. */
#include "daemon/sp.h"

#include <stdlib.h>
#include <string.h>

const uint8_t sp_greeting[SP_GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
static const uint8_t req_greeting[SP_GREETING_BYTES] = {0, 'S',  'P', 0,
                                                        0, 0x30, 0,   0};

void sp_head_put(uint8_t out[SP_HEAD_BYTES], uint64_t n)
{
    out[0] = 1;
    for (int i = 0; i < 8; i++)
        out[1 + i] = (uint8_t)(n >> (56 - 8 * i));
}

static uint64_t head_length(const uint8_t head[SP_HEAD_BYTES])
{
    uint64_t n = 0;
    for (int i = 1; i < SP_HEAD_BYTES; i++)
        n = n << 8 | head[i];
    return n;
}

size_t sp_back_bytes(const uint8_t *message, size_t n)
{
    for (size_t at = 0; at + 4 <= n && at < SP_BACK_MAX; at += 4) {
        if (message[at] & 0x80)
            return at + 4;
    }
    return 0;
}

void sp_reader_init(struct sp_reader *r, size_t limit)
{
    memset(r, 0, sizeof *r);
    r->limit = limit;
}

void sp_reader_fini(struct sp_reader *r)
{
    free(r->message);
    r->message = NULL;
}

uint8_t *sp_reader_take(struct sp_reader *r, size_t *n)
{
    uint8_t *message = r->message;
    *n = r->message_n;
    r->message = NULL;
    return message;
}

/* One more byte of the greeting or of a head. */
static enum sp_result feed_head(struct sp_reader *r, uint8_t byte)
{
    r->head[r->head_n++] = byte;
    if (!r->greeted) {
        if (byte != req_greeting[r->head_n - 1])
            return SP_WRONG;
        if (r->head_n == SP_GREETING_BYTES) {
            r->greeted = true;
            r->head_n = 0;
        }
        return SP_MORE;
    }
    if (r->head[0] != 1)
        return SP_WRONG;
    if (r->head_n < SP_HEAD_BYTES)
        return SP_MORE;
    r->head_n = 0;
    uint64_t n = head_length(r->head);
    if (n > r->limit || n < 4)
        return SP_WRONG;
    r->message = malloc((size_t)n);
    r->message_n = (size_t)n;
    r->have = 0;
    return r->message ? SP_MORE : SP_NOMEM;
}

enum sp_result sp_reader_feed(struct sp_reader *r, const uint8_t *bytes,
                              size_t n, size_t *used)
{
    enum sp_result result = SP_MORE;
    size_t at = 0;
    while (result == SP_MORE && at < n) {
        size_t part = n - at;
        if (!r->message) {
            result = feed_head(r, bytes[at++]);
            continue;
        }
        if (part > r->message_n - r->have)
            part = r->message_n - r->have;
        memcpy(r->message + r->have, bytes + at, part);
        r->have += part;
        at += part;
        if (r->have == r->message_n)
            result = SP_MESSAGE;
    }
    *used = at;
    return result;
}
