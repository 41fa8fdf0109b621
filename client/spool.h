/* The file on a disk that the sender moves the oldest records to while no
 * daemon takes them. Layout: proto/spool.h. [sender], but for opening and
 * closing. */
#ifndef CLIENT_SPOOL_H
#define CLIENT_SPOOL_H

#include <sys/types.h>

#include "client/journal.h"
#include "proto/spool.h"

struct trd__spool {
    char path[WIRE_STRING_MAX + 1]; /* "": there is none */
    uint64_t limit;      /* bytes that the file may have */
    int fd;              /* -1: no file */
    dev_t dev;           /* of fd, to notice when the application */
    ino_t ino;           /* closed it and opened something else */
    uint64_t end;        /* bytes of the file that hold */
    uint64_t first_seq;  /* records in it: first_seq to last_seq, */
    uint64_t last_seq;   /* none while that is 0 */
    uint32_t words;      /* dictionary entries in it */
    /* reading */
    struct spool_head head;
    struct spool_walk walk;
    uint8_t *buffer;     /* SPOOL_BUFFER bytes of the file */
    size_t at, n;        /* what the walk has not seen of them */
    uint64_t file_at;    /* behind buffer[n - 1] in the file */
};

enum { SPOOL_BUFFER = FRAME_MAX_BYTES };

/* Checks the directory and gets the memory; makes no file yet. Where it
 * fails, path is "". TRD_EACCES (not ours alone), TRD_EPATH, TRD_ENOMEM.
 * [open] */
int trd__spool_open(struct trd__spool *sp, const char *dir, uint64_t limit,
                    struct slice run, uint32_t rank, uint64_t epoch);
/* unlink_file: nothing in it is needed any more. [close] */
void trd__spool_close(struct trd__spool *sp, int unlink_file);

/* Appends the records of run, from seq on, and the words that are new; makes
 * the file when there is none. All of it or nothing: TRD_ELIMIT (the limit),
 * TRD_EIO. hello: of this process, for whoever reads the file later. */
int trd__spool_append(struct trd__spool *sp, struct trd__journal *j,
                      const struct hello *hello, const struct trd__run *run,
                      uint64_t seq);

/* The records after a seq, at most max bytes; the bytes stay until the next
 * read. No records: *lost is the last of those behind it that cannot be read,
 * or 0 when max is too little for one. TRD_EIO. */
int trd__spool_read(struct trd__spool *sp, uint64_t after, size_t max,
                    struct trd__run *out, uint64_t *lost);

/* Copies at most SPOOL_BUFFER bytes to where a read would put some, for the
 * ring is about to free them: how they are found until the next read is in
 * sp->buffer. */
void trd__spool_keep(struct trd__spool *sp, const uint8_t *bytes, size_t n);

/* All of it is durable elsewhere. */
void trd__spool_remove(struct trd__spool *sp);

#endif
