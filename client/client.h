/* What the files of the client share: the client itself, and the last steps
 * of a record on its way into the journal. */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include "client/sender.h"
#include "proto/record.h"

struct trd_client {
    struct trd__journal journal;
    struct trd__shared shared;
    struct trd__sender sender;
    struct trd__devices devices; /* good where sender.devices is not NULL */
    pthread_mutex_t device_lock; /* the first GPU is opened once */
    struct trd_want want;        /* sampling and histogram of all tensors */
    volatile uint32_t *stamp; /* page that a forked child finds zeroed */
    unsigned generation;      /* the same where the kernel cannot do that */
    int open_error;           /* why there is no journal file, or 0 */
    uint64_t block_ns;        /* a submit waits so long for room */
    _Atomic uint64_t blocked_ns; /* they have waited, in all */
    _Atomic uint64_t in_vain; /* where the ring began, and 1, when one had
                                 waited in vain; 0: none */
    char *strings;            /* copies of the options */
};

/* Whether calls may touch it: not NULL, and this is no forked child.
 * [any thread] */
int trd__usable(const struct trd_client *c);

/* Counts one record as lost for the cause of an error, and returns that.
 * [any thread] */
int trd__lose(struct trd_client *c, int error);

/* Whether site and moment are ones that a record may have: 0, TRD_EINVAL,
 * TRD_ELIMIT. [any thread] */
int trd__check_place(const struct trd_client *c, uint32_t site,
                     const struct trd_when *when);

/* The dictionary's number of a shape: TRD_EINVAL (a negative extent),
 * TRD_ELIMIT. [any thread] */
int trd__intern_shape(struct trd_client *c, const struct trd_tensor *tensor,
                      uint32_t *id);

/* Waits for what is queued on GPUs, until a moment of the monotonic clock: 0
 * or TRD_ETIMEDOUT. [any thread] */
int trd__gpus_wait(struct trd_client *c, uint64_t end_ns);

/* Counts what did not come as lost and frees; how much that was. [close] */
uint64_t trd__gpus_close(struct trd_client *c);

/* Appends a record of which everything is known, or counts it as lost; never
 * waits for room. [any thread] */
int trd__append(struct trd_client *c, const struct wire_record *record,
                const void *samples);

#endif
