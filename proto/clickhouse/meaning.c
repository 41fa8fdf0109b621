/* What the errors of a ClickHouse mean that its users can mend. */
#include "proto/clickhouse/house.h"

const char *house_meaning(int code)
{
    static const struct {
        int code;
        const char *words;
    } known[] = {
        {HOUSE_UNTRUSTED, "its certificate is not trusted"},
        {159, "it takes too long"},
        {164, "it only reads"},
        {192, "it knows no such user"},
        {193, "the password is wrong"},
        {194, "it wants a password"},
        {195, "it takes no such user from here"},
        {202, "it has too much to do"},
        {210, "a shard is not reached"},
        {241, "its memory is full"},
        {242, "its table only reads"},
        {243, "its disk is full"},
        {252, "it has too many parts"},
        {279, "a shard is not reached"},
        {497, "the user may not do that"},
        {516, "user or password is wrong"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].code == code)
            return known[i].words;
    return code ? "see the log" : "no answer";
}
