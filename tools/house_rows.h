/* Rows of an answer of ClickHouse, as they come: tabs between fields, lines
 * between rows. */
#ifndef TOOLS_HOUSE_ROWS_H
#define TOOLS_HOUSE_ROWS_H

#include <stdint.h>

#include "proto/bytes.h"

enum { HOUSE_FIELDS = 64 };

struct house_field {
    int null;
    struct slice s; /* unescaped; a zero byte follows */
};

/* One row; not 0: enough, which house_rows_take() gives on. */
typedef int house_row(void *to, const struct house_field *field, int n);

struct house_rows {
    house_row *row;
    void *to;
    char *line;          /* the part of a row that came */
    size_t n, cap;
    int bad;             /* a row that is none, or out of memory */
};
/* A house_take of proto/clickhouse/house.h; to is a struct house_rows. */
int house_rows_take(void *to, const char *bytes, size_t n);
void house_rows_free(struct house_rows *r);

int64_t house_whole(const struct house_field *f);
double house_real(const struct house_field *f);

#endif
