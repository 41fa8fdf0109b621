/* Losses: counted at once, told in the journal as soon as it has room for it.
 * [any thread] */
#include "client/sender.h"

/* In a ring that stays nearly full, records and losses take turns: so often
 * the latter are told, and not one by one. */
#define CROWDED_NS UINT64_C(1000000000)

void trd__lost(struct trd__shared *shared, enum trd_cause cause,
               uint64_t count)
{
    atomic_fetch_add(&shared->lost[cause], count);
    atomic_fetch_add(&shared->pending[cause], count);
    atomic_store(&shared->any_pending, 1);
}

void trd__lost_tell(struct trd__shared *shared, struct trd__journal *j,
                    uint64_t t_ns)
{
    if (!atomic_load(&shared->any_pending) ||
        (trd__journal_used(j) > j->head.ring_bytes / 8 * 7 &&
         t_ns < atomic_load(&shared->told_ns) + CROWDED_NS))
        return;
    atomic_store(&shared->told_ns, t_ns);
    trd__lost_flush(shared, j, t_ns);
}

void trd__lost_flush(struct trd__shared *shared, struct trd__journal *j,
                     uint64_t t_ns)
{
    if (!atomic_exchange(&shared->any_pending, 0))
        return;
    for (uint32_t cause = 0; cause < TRD_CAUSE_COUNT; cause++) {
        uint64_t count = atomic_exchange(&shared->pending[cause], 0);
        uint8_t body[64];
        struct writer w = writer_of(body, sizeof body);
        struct wire_loss loss = {cause, count, 0, t_ns};
        if (!count || loss_put(&w, &loss))
            continue;
        if (trd__journal_put(j, ENTRY_LOSS, body, (size_t)(w.at - body),
                             NULL, 0)) {
            atomic_fetch_add(&shared->pending[cause], count);
            atomic_store(&shared->any_pending, 1);
        }
    }
}
