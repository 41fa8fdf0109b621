/* nanomsg's SP wire format over a stream socket, the REP side, by hand:
 *
 *   greeting  00 53 50 00 00 31 00 00, both ways; the other says 30 (REQ)
 *   message   01, u64 big endian length, the bytes
 *   request   words of 4 bytes until one has its top bit set, then the body;
 *             the words are sent back before the answer
 *
 * Pure. */
#ifndef DAEMON_SP_H
#define DAEMON_SP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SP_GREETING_BYTES = 8,
    SP_HEAD_BYTES = 9,
    SP_HOPS_MAX = 8,  /* words before the body; devices add one each */
    SP_BACK_MAX = 4 * SP_HOPS_MAX
};

/* The greeting of a REP socket. */
extern const uint8_t sp_greeting[SP_GREETING_BYTES];

/* The head of a message of n bytes. */
void sp_head_put(uint8_t out[SP_HEAD_BYTES], uint64_t n);

/* Bytes of the words before the body; 0 when the message does not hold. */
size_t sp_back_bytes(const uint8_t *message, size_t n);

/* Takes a byte stream apart. */
struct sp_reader {
    size_t limit;        /* longest message */
    bool greeted;
    uint8_t head[SP_HEAD_BYTES];
    unsigned head_n;
    uint8_t *message;    /* allocated when a head holds; NULL: a head is read */
    size_t message_n, have;
};

enum sp_result {
    SP_MORE,    /* all was taken; more is needed */
    SP_MESSAGE, /* a message is whole: sp_reader_take() it */
    SP_WRONG,   /* not this protocol, or too long */
    SP_NOMEM
};

void sp_reader_init(struct sp_reader *r, size_t limit);
void sp_reader_fini(struct sp_reader *r);

/* Takes from bytes[0..n), at most up to the end of a message; *used tells
 * how many. */
enum sp_result sp_reader_feed(struct sp_reader *r, const uint8_t *bytes,
                              size_t n, size_t *used);

/* The whole message; the caller frees it. */
uint8_t *sp_reader_take(struct sp_reader *r, size_t *n);

#endif
