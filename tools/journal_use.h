/* How full the journal of a running process is. */
#ifndef TOOLS_JOURNAL_USE_H
#define TOOLS_JOURNAL_USE_H

#include <stdint.h>

struct journal_use {
    uint64_t records;    /* written and not yet durable at the daemon */
    uint64_t bytes;      /* that they take of the ring */
    uint64_t ring_bytes; /* room for records */
};

/* Looks into dir/name without a lock and changes nothing. 0, or -1 when
 * there is no such journal of this user, or it does not hold. */
int journal_use_read(const char *dir, const char *name,
                     struct journal_use *out);

#endif
