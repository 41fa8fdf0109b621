/* The spool: what a process moved from its journal to a disk while no daemon
 * took it. See FORMAT.md, "Spool".
 *
 *   0      head, 128 bytes: whose it is
 *   128    the hello of the process; zeros to a multiple of 8
 *   then   entries: records and losses in the order of seq, and before them
 *          the dictionary entries that they need
 *
 * Pure functions over bytes of the file; nothing here is trusted. */
#ifndef PROTO_SPOOL_H
#define PROTO_SPOOL_H

#include "proto/frame.h"
#include "proto/record.h"

#define SPOOL_MAGIC UINT64_C(0x314c4f5053445254) /* "TRDSPOL1" */
#define SPOOL_SUFFIX ".spool"

enum {
    SPOOL_HEAD_BYTES = 128,
    SPOOL_HELLO_MAX = 52 * 1024,
    SPOOL_NAME_MAX = TRD_MAX_RUN + 32,
    SPOOL_LOOK_BYTES = ENTRY_MAX_BYTES /* what a look must be able to see */
};

struct spool_head {
    uint64_t epoch;
    uint64_t start_time;  /* of pid, clock ticks since boot */
    uint32_t pid;
    uint8_t boot_id[16];
    uint32_t hello_bytes; /* at SPOOL_HEAD_BYTES */
    uint32_t hello_crc;   /* crc32c of them */
    uint64_t first_seq;   /* of the first record in it */
};

/* The name of the file, RUN.RANK.EPOCH.spool; TRD_ELIMIT. */
int spool_name(struct slice run, uint32_t rank, uint64_t epoch,
               char out[SPOOL_NAME_MAX]);

void spool_head_put(uint8_t out[SPOOL_HEAD_BYTES],
                    const struct spool_head *h);
/* TRD_ETRUNC, TRD_ECORRUPT, TRD_EVERSION. */
int spool_head_get(const void *bytes, size_t n, struct spool_head *out);
/* The hello in the file's first n bytes, whose strings then point into them.
 * TRD_ETRUNC, TRD_ECORRUPT, else as hello_get(). */
int spool_hello_get(const uint8_t *bytes, size_t n,
                    const struct spool_head *h, struct hello *out);

/* Where the first entry lies. */
static inline uint64_t spool_entries_at(const struct spool_head *h)
{
    return SPOOL_HEAD_BYTES + entry_span(h->hello_bytes);
}

/* Walks the entries. */
struct spool_walk {
    uint64_t seq;  /* of the next record */
    uint32_t word; /* id of the next dictionary entry */
};
void spool_walk_init(struct spool_walk *w, const struct spool_head *h);

/* Looks at the n bytes where the walk is; whole: the file ends behind them.
 * *used is how far the walk went on.
 *
 * SPOOL_WORD: *out is a dictionary entry; where its id is not the one that was
 * next, some are missing. SPOOL_ENTRY: *out is record or loss *seq. SPOOL_HOLE:
 * records *seq to w->seq - 1 cannot be read, and others follow. SPOOL_END:
 * nothing more. SPOOL_MORE: look again at what follows *used, with at least
 * SPOOL_LOOK_BYTES or to the end of the file. */
enum spool_step { SPOOL_END, SPOOL_MORE, SPOOL_WORD, SPOOL_ENTRY, SPOOL_HOLE };
enum spool_step spool_next(struct spool_walk *w, const uint8_t *bytes,
                           size_t n, bool whole, size_t *used,
                           struct entry *out, uint64_t *seq);

#endif
