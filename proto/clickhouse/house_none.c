/* For a build without libcurl. */
#include "proto/clickhouse/house.h"

#include <stdio.h>

#include "tracerd/base.h"

int house_open(const struct house_options *o, struct house **out,
               char why[HOUSE_WHY_BYTES])
{
    (void)o;
    *out = NULL;
    snprintf(why, HOUSE_WHY_BYTES,
             "this build has no ClickHouse: it was made without libcurl");
    return TRD_EINVAL;
}

void house_close(struct house *h)
{
    (void)h;
}

enum house_result house_ask(struct house *h, const char *sql,
                            const void *body, size_t n, house_take *take,
                            void *to)
{
    (void)h, (void)sql, (void)body, (void)n, (void)take, (void)to;
    return HOUSE_DOWN;
}

enum house_result house_is_none(struct house *h)
{
    (void)h;
    return HOUSE_DOWN;
}

const char *house_why(const struct house *h)
{
    (void)h;
    return "";
}

int house_code(const struct house *h)
{
    (void)h;
    return 0;
}
