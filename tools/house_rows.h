/* Rows of an answer of ClickHouse, as they come: as TabSeparated or as
 * RowBinary, which is several times cheaper for both sides. */
#ifndef TOOLS_HOUSE_ROWS_H
#define TOOLS_HOUSE_ROWS_H

#include <stdint.h>

#include "proto/bytes.h"

enum { HOUSE_FIELDS = 64 };

struct house_field {
    int null;
    char type;      /* of RowBinary, see below; 0: text */
    struct slice s; /* of text, unescaped, and a zero byte follows; or the
                       bytes of the value */
};

/* One row; not 0: enough, which house_rows_take() gives on. */
typedef int house_row(void *to, const struct house_field *field, int n);

struct house_rows {
    house_row *row;
    void *to;
    /* for RowBinary, a letter a column: b i l unsigned ones of 1, 4, 8 bytes
       (or signed ones of 8), f a double, s a string; capitals: Nullable. NULL:
       TabSeparated */
    const char *types;
    char *line;          /* the part of a row that came */
    size_t n, cap;
    int bad;             /* a row that is none, or out of memory */
    int enough;          /* row said so */
};
/* A house_take of proto/clickhouse/house.h; to is a struct house_rows. */
int house_rows_take(void *to, const char *bytes, size_t n);
/* Whether all that came was whole rows. */
int house_rows_good(const struct house_rows *r);
void house_rows_free(struct house_rows *r);

int64_t house_whole(const struct house_field *f);
double house_real(const struct house_field *f);

#endif
