/* What of an arriving range of sequence numbers is new. Pure; any thread.
 *
 * Numbers start at 1 and are stored as signed 64-bit integers. */
#include "daemon/order.h"

enum order_verdict order_check(uint64_t have, uint64_t first, uint64_t n,
                               uint64_t *skip)
{
    if (first == 0 || n == 0 || first > INT64_MAX ||
        n - 1 > (uint64_t)INT64_MAX - first)
        return ORDER_BAD;
    if (first > have && first - have > 1)
        return ORDER_JUMP;
    if (first + n - 1 <= have)
        return ORDER_DUP;
    *skip = have + 1 - first;
    return ORDER_NEW;
}
