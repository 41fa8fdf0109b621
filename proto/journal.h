/* The journal: one mapped file a process, read by whoever survives it.
 *
 *   page 0        head: who, how large, where what lies
 *   page 1, 2     state, written in turn; the newest valid one counts
 *   to 64 KiB     the hello that a live client would send
 *   dictionary    entries one after the other; a zero word is the end
 *   ring          segments of 1 MiB, each a segment header and entries;
 *                 no entry crosses a segment's end, a PAD fills it
 *
 * Positions in the ring count bytes from the first ever written and never
 * wrap; position modulo ring_bytes is the place. Space that is free is zero.
 * Pure functions over an image of the file; nothing here writes to disk. */
#ifndef PROTO_JOURNAL_H
#define PROTO_JOURNAL_H

#include "proto/frame.h"
#include "proto/record.h"

#define JOURNAL_MAGIC UINT64_C(0x314c4e524a445254) /* "TRDJRNL1" */
#define JOURNAL_SUFFIX ".journal"

enum {
    JOURNAL_PAGE = 4096,
    JOURNAL_HELLO_AT = 3 * JOURNAL_PAGE,
    JOURNAL_DICT_AT = 64 * 1024,
    JOURNAL_SEGMENT = 1024 * 1024,
    JOURNAL_SEGMENT_HEADER = 32,
    JOURNAL_HELLO_MAX = JOURNAL_DICT_AT - JOURNAL_HELLO_AT,
    JOURNAL_CAUSES = 16 /* room for enum trd_cause to grow */
};
#define JOURNAL_MIN_BYTES (UINT64_C(1) << 20)
#define JOURNAL_MAX_BYTES (UINT64_C(1) << 31)

struct journal_head {
    uint64_t size;        /* of the file */
    uint64_t epoch;
    uint64_t start_time;  /* of pid, clock ticks since boot */
    uint32_t pid;
    uint8_t boot_id[16];
    uint32_t hello_bytes; /* at JOURNAL_HELLO_AT */
    uint32_t hello_crc;   /* crc32c of them */
    uint64_t dict_bytes;  /* at JOURNAL_DICT_AT */
    uint64_t ring_bytes;  /* behind the dictionary; power of two */
};

struct journal_state {
    uint64_t generation;
    uint64_t committed_seq, sent_seq;
    uint64_t durable_seq; /* the walk starts with the record after it */
    uint64_t durable_pos; /* at this position */
    uint32_t clean;       /* 1: closed; nothing will be appended */
    uint64_t lost[JOURNAL_CAUSES]; /* by enum trd_cause, for status */
};

/* The sizes of a journal whose ring has ring_bytes (a power of two within
 * the limits): fills size, dict_bytes, ring_bytes of *h. */
int journal_layout(uint64_t ring_bytes, struct journal_head *h);

void journal_head_put(uint8_t page[JOURNAL_PAGE],
                      const struct journal_head *h);
/* Checks magic, version, checksum and that the parts fit size, which is the
 * file's true size. TRD_ECORRUPT, TRD_EVERSION, TRD_ETRUNC. */
int journal_head_get(const uint8_t *image, uint64_t size,
                     struct journal_head *out);

/* The hello that is kept in the image; its strings point into it.
 * TRD_ECORRUPT when its checksum does not hold, else as hello_get(). */
int journal_hello_get(const uint8_t *image, const struct journal_head *h,
                      struct hello *out);

void journal_state_put(uint8_t page[JOURNAL_PAGE],
                       const struct journal_state *s);
/* The newer valid one of both pages; TRD_ECORRUPT if none is. */
int journal_state_get(const uint8_t *image, struct journal_state *out);

static inline const uint8_t *journal_ring(const uint8_t *image,
                                          const struct journal_head *h)
{
    return image + JOURNAL_DICT_AT + h->dict_bytes;
}

/* Writes the header of the segment that starts at pos and whose first
 * record is seq. The caller stores the magic word last: it is the result. */
uint32_t journal_segment_put(uint8_t *segment, uint64_t pos, uint64_t seq);

/* The dictionary: *at is an offset from its start, 0 first. 1: *out is the
 * next entry and *at is behind it; 0: the end; TRD_ECORRUPT: it does not
 * hold from here on. */
int journal_dict_next(const uint8_t *image, const struct journal_head *h,
                      uint64_t *at, struct entry *out);

/* Walks the records after a state. */
struct journal_walk {
    const uint8_t *ring;
    uint64_t ring_bytes;
    uint64_t start; /* position the walk began at */
    uint64_t pos;
    uint64_t seq;   /* of the next record */
    uint64_t searched, left; /* segment behind damage, bytes to look at in it */
};
void journal_walk_init(struct journal_walk *w, const uint8_t *image,
                       const struct journal_head *h,
                       const struct journal_state *s);

/* JOURNAL_ENTRY: *out holds record or loss number *seq, complete.
 * JOURNAL_HOLE: records *seq to w->seq - 1 are unreadable (torn by a kill or
 * damaged) and records follow. JOURNAL_END: nothing more. */
enum journal_step { JOURNAL_END, JOURNAL_ENTRY, JOURNAL_HOLE };
enum journal_step journal_next(struct journal_walk *w, struct entry *out,
                               uint64_t *seq);

#endif
