/* What one row of table queue holds: records as they came, each behind the
 * rows of the run's tables that its words stand for. See FORMAT.md. Pure. */
#ifndef DAEMON_CHUNK_H
#define DAEMON_CHUNK_H

#include "proto/record.h"

/* A record whose words are looked up. */
struct pending {
    int64_t step, stream, seq, shape_n;
    uint32_t object, position, path, shape, note;
    uint8_t pass, io;
    const uint8_t *entry; /* in somebody else's bytes */
};

/* Records that are gathered. at is to be freed. */
struct chunk {
    uint8_t *at;
    size_t n, cap;
    uint32_t rows;
};

enum { CHUNK_BYTES = 128 * 1024 }; /* then it is enough */

/* False: out of memory. */
bool chunk_add(struct chunk *c, const struct pending *p,
               const struct entry *e);
/* The next one, with its body; its shape_n is -1. False: it does not hold. */
bool chunk_next(struct reader *r, struct pending *p, struct wire_record *m);

#endif
