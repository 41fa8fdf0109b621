/* What the columns of a record hold, whichever engine has them. Pure. */
#ifndef DAEMON_COLUMNS_H
#define DAEMON_COLUMNS_H

#include "proto/query.h"
#include "proto/record.h"

/* The figures that are not in every record, or not always of one type. */
struct columns {
    bool counts; /* nan, pinf, ninf, zero and subnormal are there */
    struct cell max, min, absmin, mean, std, l2;
    struct cell given;
};

void columns_of(const struct wire_record *m, struct columns *out);

#endif
