/* Rows on their way to a ClickHouse: kept column by column, sent in its format
 * Native, which it takes in without looking at a value. Any rows of a block
 * can be sent, so that a bad one can be looked for. Pure. */
#ifndef DAEMON_BLOCK_H
#define DAEMON_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of a table, as tables.sql has it. */
struct column_type {
    const char *name, *type;
};

struct layout {
    const char *insert; /* the statement that rows are data of */
    const struct column_type *column;
    unsigned n;
};

enum { BLOCK_COLUMNS = 48 }; /* the most a layout has */

struct block_column {
    uint8_t *at;    /* the values, one behind the other */
    uint8_t *nulls; /* of a Nullable, a byte a row: 1 where it is NULL */
    size_t n, cap;  /* of strings, bytes */
    unsigned width; /* of a value; 0: strings */
    bool nullable;
};

struct block {
    const struct layout *of;
    struct block_column column[BLOCK_COLUMNS];
    unsigned next;     /* the column that the next value is of */
    size_t n;          /* bytes of all */
    size_t fixed;      /* of them, of a row without its strings */
    int64_t *id;       /* of its rows */
    size_t rows, cap;
    int64_t total;     /* of the last one */
    bool bad;          /* out of memory */
    bool full;         /* more may be there */
};

/* No rows, of that table; what an earlier block of it took is used again. */
void block_clear(struct block *b, const struct layout *of);
void block_free(struct block *b);

/* One more row; then a value for each column, in their order. False, and bad:
 * out of memory, then no value may follow. */
bool block_row(struct block *b, int64_t id);
void block_number(struct block *b, uint64_t v);
void block_null(struct block *b);
void block_text(struct block *b, const void *text, size_t n);
/* Whether the next value is a string. */
bool block_wants_text(const struct block *b);

/* at is to be freed. */
struct message {
    uint8_t *at;
    size_t n, cap;
};
/* Rows [first, last) as Native, in place of what is in m. Equal rows are equal
 * bytes. False: out of memory. */
bool block_native(const struct block *b, size_t first, size_t last,
                  struct message *m);

#endif
