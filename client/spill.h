/* When the ring goes to the spool, and when the spool goes. [sender] */
#ifndef CLIENT_SPILL_H
#define CLIENT_SPILL_H

#include "client/sender.h"

/* Moves some of the oldest records of the ring to the spool, if it is time:
 * 1 if some went. */
int trd__spill(struct trd__sender *s);

/* At the end: all of a ring that nobody will find. */
void trd__spill_rest(struct trd__sender *s);

/* The daemon has moved on: the spool goes when it has all of it. Until then
 * the ring keeps what lies behind. */
void trd__spill_free(struct trd__sender *s);

#endif
