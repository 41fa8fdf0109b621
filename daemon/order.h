/* Sequence numbers: what of an arriving range is new. Pure. */
#ifndef DAEMON_ORDER_H
#define DAEMON_ORDER_H

#include <stdint.h>

enum order_verdict {
    ORDER_NEW,  /* it continues what is known; the first *skip are known */
    ORDER_DUP,  /* all of it is known */
    ORDER_JUMP, /* something between is missing */
    ORDER_BAD   /* no such range: empty, from 0, or above 2^63 - 1 */
};

/* have: all up to it are known. The range is first, first + 1, ... (n). */
enum order_verdict order_check(uint64_t have, uint64_t first, uint64_t n,
                               uint64_t *skip);

#endif
