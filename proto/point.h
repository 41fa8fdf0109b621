/* Places where a test kills the process: between two steps of which a crash
 * may let only the first happen.
 *
 * Empty in a build for users. In that of the tests (TRD_POINTS) the
 * environment arms one: TRACERD_POINT="NAME N" kills the process with SIGKILL
 * when it comes there for the N-th time. */
#ifndef PROTO_POINT_H
#define PROTO_POINT_H

/* X(name): in the order of the way of a record. */
#define POINTS(X)                                                             \
    /* client: making the journal */                                          \
    X(journal_created)                                                        \
    X(journal_allocated)                                                      \
    X(journal_written)                                                        \
    X(journal_named)                                                          \
    /* client: one record into the ring */                                    \
    X(put_reserved)                                                           \
    X(put_crossed)                                                            \
    X(put_copied)                                                             \
    X(put_sealed)                                                             \
    X(put_published)                                                          \
    X(word_copied)                                                            \
    X(word_published)                                                         \
    /* client: sender */                                                      \
    X(connected)                                                              \
    X(sending)                                                                \
    X(sent)                                                                   \
    X(acknowledged)                                                           \
    X(state_published)                                                        \
    X(ring_zeroed)                                                            \
    X(ring_freed)                                                             \
    X(spool_made)                                                             \
    X(spool_written)                                                          \
    X(spool_freed)                                                            \
    X(spool_removed)                                                          \
    X(closing)                                                                \
    X(journal_unlinked)                                                       \
    /* daemon: a frame into the store */                                      \
    X(frame_read)                                                             \
    X(transaction_begun)                                                      \
    X(rows_inserted)                                                          \
    X(committing)                                                             \
    X(committed)                                                              \
    X(syncing)                                                                \
    X(synced)                                                                 \
    X(answering)                                                              \
    X(answered)                                                               \
    /* daemon: files */                                                       \
    X(socket_bound)                                                           \
    X(run_created)                                                            \
    X(run_filled)                                                             \
    X(run_closed)                                                             \
    X(reserve_written)                                                        \
    X(journal_adopted)                                                        \
    X(spool_cleared)                                                          \
    X(journal_removed)

enum point {
#define POINT_MEMBER(name) POINT_##name,
    POINTS(POINT_MEMBER)
#undef POINT_MEMBER
    POINT_N
};

void point_reached(enum point p);

#ifdef TRD_POINTS
#define POINT(name) point_reached(POINT_##name)
#else
#define POINT(name) ((void)0)
#endif

#endif
