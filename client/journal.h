/* The mapped ring of this process: lock-free append from any thread, one
 * reader (the sender). Layout: proto/journal.h. */
#ifndef CLIENT_JOURNAL_H
#define CLIENT_JOURNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "proto/journal.h"

struct trd__journal {
    uint8_t *map;
    struct journal_head head;
    int fd;                     /* -1: private memory, dies with us */
    dev_t dev;                  /* of fd, to notice when the application */
    ino_t ino;                  /* closed it and opened something else */
    char path[4096];            /* "" for private memory */
    uint8_t *ring;              /* in map */
    /* Next place and number: pos / 8 in the low half, seq in the high one,
     * both modulo 2^32, so that one compare-and-swap takes both. */
    _Atomic uint64_t next;
    uint64_t reserve;           /* bytes of the ring kept for the end, when
                                   what was lost must still be told */
    _Atomic uint64_t tail_pos;  /* freed up to here */
    _Atomic uint64_t tail_seq;  /* last record that was freed */
    struct journal_state state; /* [sender] what was last published */
    /* The dictionary: entries in the map, found by hash. Slots and offsets
     * lie in one lazily touched mapping. */
    pthread_mutex_t lock;       /* one appender at a time */
    _Atomic uint32_t *slot;     /* id or 0, DICT_SLOTS of them */
    uint64_t *offset;           /* of entry id, from the dictionary's start */
    _Atomic uint32_t dict_n;    /* entries, ids 1..dict_n */
    uint64_t dict_used;         /* [lock] bytes */
};

/* A range of whole entries, contiguous in memory. */
struct trd__run {
    const uint8_t *bytes;
    size_t n;         /* bytes with padding */
    uint32_t records; /* entries that carry a seq */
    uint64_t end_pos; /* position behind it */
};

/* Creates DIR/NAME.journal with everything allocated before use, or private
 * memory when dir is NULL. head must hold epoch, pid, start_time, boot_id
 * and ring_bytes; hello is stored for whoever takes the journal over.
 * TRD_EINVAL, TRD_EIO, TRD_EPATH, TRD_ENOMEM. [open] */
int trd__journal_open(struct trd__journal *j, const char *dir,
                      const char *name, const struct journal_head *head,
                      const void *hello, size_t hello_n);

/* Closes it; unlink_file: nothing in it is needed any more. [close] */
void trd__journal_close(struct trd__journal *j, int unlink_file);

/* Appends one entry whose body is head and tail; 0, TRD_EFULL, TRD_ELIMIT.
 * No lock, no system call. [any thread] */
int trd__journal_put(struct trd__journal *j, uint32_t kind,
                     const void *head, size_t head_n, const void *tail,
                     size_t tail_n);

/* The id of a dictionary entry with this body, made if it is new.
 * TRD_ELIMIT when there is no room. [any thread; locks to make one] */
int trd__journal_intern(struct trd__journal *j, uint32_t kind,
                        const void *body, size_t n, uint32_t *id);

/* Bytes of the ring that are taken. [any thread] */
uint64_t trd__journal_used(const struct trd__journal *j);

/* Seq of the newest reserved record. [any thread] */
uint64_t trd__journal_last(const struct trd__journal *j);

/* The committed entries from pos on, at most max bytes and within one
 * segment; *pos moves over padding first. 0 records: nothing to send now.
 * [sender] */
void trd__journal_peek(struct trd__journal *j, uint64_t *pos, size_t max,
                       struct trd__run *out);

/* The dictionary entries after id `after`, at most max bytes. [sender] */
void trd__journal_words(struct trd__journal *j, uint32_t after, size_t max,
                        struct trd__run *out);

/* Publishes j->state, whose durable_pos and durable_seq the caller has set,
 * and frees the ring up to there. [sender] */
void trd__journal_publish(struct trd__journal *j);

#endif
