/* Journals of dead processes: found, taken over, removed. */
#ifndef DAEMON_ADOPT_H
#define DAEMON_ADOPT_H

#include <uv.h>

#include "daemon/intake.h"

struct adopt;

struct adopt_counters {
    uint64_t adopted, bad, records;
    uint32_t waiting; /* journals of living processes seen last time */
};

/* Looks into dir at once and every few seconds. TRD_ENOMEM. */
int adopt_open(uv_loop_t *loop, struct hub *hub, const char *dir,
               struct adopt **out);
/* Looks soon: a process may have died. */
void adopt_poke(struct adopt *a);
/* Something came back from the writer: goes on with what is under way. */
void adopt_room(struct adopt *a);
const struct adopt_counters *adopt_counters(const struct adopt *a);
/* Gives up what is under way (it is found again next time). */
void adopt_close(struct adopt *a);
void adopt_free(struct adopt *a);

#endif
