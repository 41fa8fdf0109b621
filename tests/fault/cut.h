/* What a power cut leaves of a disk, from the log of disk.h.
 *
 * What was synced is there. Of what was not, any part may be: writes come in
 * pieces of 512 bytes, in any order; a name that was made, changed or removed
 * needs a sync of its directory. What was written before a sync that failed
 * may never get there, whatever is synced later. */
#ifndef TESTS_FAULT_CUT_H
#define TESTS_FAULT_CUT_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/fault/disk.h"

struct rig;

/* The directory as it is now is on the disk, and a log of what comes begins.
 * Everything fails the running test by itself. */
void cut_begin(struct rig *r);
void cut_end(void);

/* A daemon that is started next writes to the log. */
void cut_record(struct rig *r, bool on);

/* All to seq is told to be durable. */
void cut_told(uint64_t seq);

/* Reads the log; how many entries it has. */
size_t cut_read(void);
/* Of the entry; NULL: there is no such one. */
const struct disk_entry *cut_entry(size_t i);
/* What was told to be durable before entry i. */
uint64_t cut_durable(size_t i);

/* Makes dir what a cut before entry i leaves, by this seed. */
void cut_make(const char *dir, size_t i, uint64_t seed);

#endif
