/* From the ring to the spool. [sender]
 *
 * It is time when the ring is more than half full and the daemon has freed
 * nothing for a while, whatever the reason: it is not there, it is stopped, its
 * disk is full. A ring that is nearly full does not wait, nor does one whose
 * spool is not empty, since the daemon then cannot free it. Once begun, it goes
 * on until the ring has room again.
 *
 * Durable, in the journal's state, means from then on that the daemon has it
 * or the spool; what the daemon has is in the sender. */
#include "client/spill.h"

#include "client/sys.h"
#include "proto/point.h"

#define MS UINT64_C(1000000)

enum {
    CALM_MS = 1000,  /* the daemon has so long to free something */
    AGAIN_MS = 5000, /* after a failure */
    CHUNK = 256 * 1024
};

/* The frame on its way must not change when its part of the ring is freed. */
static void rescue_frame(struct trd__sender *s)
{
    const uint8_t *ring = s->journal->ring;
    if (!s->tail_n || s->tail < ring ||
        s->tail >= ring + s->journal->head.ring_bytes)
        return;
    trd__spool_keep(&s->spool, s->tail, s->tail_n);
    s->tail = s->spool.buffer;
}

static int move_some(struct trd__sender *s)
{
    struct journal_state *state = &s->journal->state;
    uint64_t pos = state->durable_pos;
    struct trd__run run;
    trd__journal_peek(s->journal, &pos, CHUNK, &run);
    if (!run.records)
        return 0;
    int failed = trd__spool_append(&s->spool, s->journal, &s->hello, &run,
                                   state->durable_seq + 1);
    atomic_store(&s->shared->spool_error, failed);
    atomic_store(&s->shared->spool_bytes, s->spool.end);
    if (failed) {
        s->spool_again_ns = trd__sys.mono_ns() + AGAIN_MS * MS;
        return 0;
    }
    POINT(spool_written);
    rescue_frame(s);
    state->durable_pos = run.end_pos;
    state->durable_seq += run.records;
    trd__journal_publish(s->journal);
    POINT(spool_freed);
    if (s->pos < state->durable_pos)
        s->pos = state->durable_pos;
    return 1;
}

static int is_time(struct trd__sender *s)
{
    /* taken here: acknowledgements of this turn have moved calm_ns */
    uint64_t at = trd__sys.mono_ns();
    uint64_t used = trd__journal_used(s->journal);
    uint64_t ring = s->journal->head.ring_bytes;
    s->crowded = used > ring / 4;
    if (used <= ring / 2)
        s->calm_ns = at;
    else if (s->spool.last_seq || used > ring / 8 * 7 ||
             at - s->calm_ns > CALM_MS * MS)
        s->spooling = 1;
    if (!s->crowded)
        s->spooling = 0;
    return s->spooling && at >= s->spool_again_ns;
}

int trd__spill(struct trd__sender *s)
{
    return s->spool.path[0] && is_time(s) && move_some(s);
}

void trd__spill_rest(struct trd__sender *s)
{
    if (!s->spool.path[0] || s->journal->fd >= 0 ||
        s->durable_seq == trd__journal_last(s->journal))
        return;
    while (trd__sys.mono_ns() < atomic_load(&s->shared->deadline) &&
           move_some(s))
        continue;
}

void trd__spill_free(struct trd__sender *s)
{
    if (!s->spool.last_seq || s->durable_seq < s->spool.last_seq)
        return;
    trd__spool_remove(&s->spool);
    s->spool_again_ns = 0;
    atomic_store(&s->shared->spool_bytes, 0);
}
