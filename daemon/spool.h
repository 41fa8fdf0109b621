/* The spool that a dead process left on a disk, as the journal of the process
 * names it. Of one guest; no two calls at once. */
#ifndef DAEMON_SPOOL_H
#define DAEMON_SPOOL_H

#include "proto/spool.h"

struct spool {
    int dir;                   /* -1: there is no file */
    int fd;
    char name[SPOOL_NAME_MAX]; /* in dir */
    struct spool_head head;
    struct spool_walk walk;
    uint8_t *buffer;
    size_t at, n;              /* what the walk has not seen of it */
    uint64_t file_at;          /* behind it in the file */
    bool whole;                /* the file ends there */
};

enum spool_found {
    SPOOL_NONE,
    SPOOL_THERE,
    SPOOL_BAD,   /* it is not what the process left */
    SPOOL_AWAY,  /* its directory is not there: a disk not mounted yet? */
    SPOOL_LATER  /* it cannot be read now */
};

void spool_init(struct spool *s);

/* Looks for the file of a stream that uid owns. What the hello says is not
 * trusted: the file is opened only by the name that it must have, in a
 * directory where nobody else can put one. *why: what is wrong. Waits for the
 * disk. */
enum spool_found spool_open(struct spool *s, const struct hello *h,
                            uint64_t epoch, uint32_t uid, const char **why);

/* What comes next; after SPOOL_MORE, spool_load(). Records end where they
 * cannot be read any more. */
enum spool_step spool_step(struct spool *s, struct entry *out, uint64_t *seq);

/* Reads on; what was given before is gone. Waits for the disk. False: it
 * cannot be read now. */
bool spool_load(struct spool *s);

/* All of it is durable: false when the file stays, errno tells why. */
bool spool_remove(struct spool *s);

void spool_fini(struct spool *s);

#endif
