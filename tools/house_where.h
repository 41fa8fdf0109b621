/* A question for records as a condition for a ClickHouse. What it lets
 * through may be more than what is asked for, and is never less: SQLite has
 * the last word. Text only. */
#ifndef TOOLS_HOUSE_WHERE_H
#define TOOLS_HOUSE_WHERE_H

#include <stdbool.h>

#include "proto/row.h"

enum { HOUSE_WHERE_BYTES = 6144 };

struct house_where {
    char text[HOUSE_WHERE_BYTES]; /* "", or " AND " and a condition, ... */
    size_t n;
    bool bad; /* it did not fit, and a part is missing */
};

/* Of the reading (NULL: all records) with the filters of q. */
void house_where_records(const struct query *q, const struct name_reading *r,
                         struct house_where *out);
/* Whether that lets nothing more through. */
bool house_where_is_exact(const struct name_reading *r);
/* And only steps up to this one. */
void house_where_until(struct house_where *w, int64_t step);
/* Of the object, module or path alone, whatever its records are. */
void house_where_who(const struct name_reading *r, struct house_where *out);

#endif
