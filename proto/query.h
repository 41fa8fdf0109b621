/* Questions and answers of the query endpoint: one request message, one page
 * back, over nanomsg's REQ/REP. See FORMAT.md, "Queries".
 *
 * A page is a table: named columns, rows of typed cells. A request that has
 * more rows than fit a page gets a cursor to ask on with; nothing is kept in
 * the daemon between two pages. */
#ifndef PROTO_QUERY_H
#define PROTO_QUERY_H

#include "proto/bytes.h"
#include "proto/wire.h"

enum query_verb {
    QUERY_RUNS = 1,    /* the stored runs */
    QUERY_RECORDS = 2, /* records of one run, columns ROW_COLUMNS of row.h */
    QUERY_SQL = 3,     /* one read-only statement on one run */
    QUERY_STATUS = 4   /* key and value of the daemon and its clients */
};

enum query_order {
    ORDER_NAME = 0, /* step, object, pass, stream, io, position, seq */
    ORDER_SEQ = 1   /* stream (attempt, rank, epoch), seq */
};

struct query {
    uint32_t verb;
    uint32_t as;          /* enum name_as */
    uint32_t order;       /* enum query_order */
    int64_t rank, attempt, iteration, microbatch; /* -1: any */
    uint64_t limit;       /* rows in all, 0: no limit */
    struct slice run;     /* "" the newest */
    struct slice name;    /* "" all records */
    struct slice sql;
    struct slice cursor;  /* from the page before, "" for the first */
};
/* The defaults: verb, nothing else asked for. */
void query_init(struct query *q, uint32_t verb);
int query_put(const struct query *q, void *out, size_t cap, size_t *n);
/* TRD_ETRUNC, TRD_ECORRUPT (magic), TRD_EVERSION, TRD_ELIMIT, TRD_EINVAL
 * (unknown verb or value); unknown fields are skipped. */
int query_get(const void *message, size_t n, struct query *out);

enum cell_type {
    CELL_NULL = 0,
    CELL_INT = 1,  /* i */
    CELL_REAL = 2, /* f */
    CELL_TEXT = 3, /* s */
    CELL_BLOB = 4  /* s */
};
struct cell {
    enum cell_type type;
    int64_t i;
    double f;
    struct slice s;
};

/* Status of a page: the exit code a tool ends with. */
enum page_status {
    PAGE_OK = 0,
    PAGE_NOTHING = 1, /* no such run, object or record: message tells */
    PAGE_BAD = 2,     /* the question is wrong */
    PAGE_FAILED = 3   /* the run cannot be opened or read */
};

/* Writing a page into cap bytes (at least 4096). */
struct page_writer {
    struct writer w;
    uint8_t *start, *counts; /* where rows and flags are patched */
    uint32_t columns, rows, cells;
    uint8_t *row;            /* start of the row being written */
};
void page_open(struct page_writer *p, void *out, size_t cap,
               enum page_status status, struct slice message);
/* Once, before the first cell; n at most PAGE_MAX_COLUMNS. */
void page_columns(struct page_writer *p, const char *const *names,
                  uint32_t n);
/* One cell of the row; after the last of a row the row counts. TRD_ELIMIT
 * when it does not fit: the row is taken back and the page stays good. */
int page_cell(struct page_writer *p, const struct cell *c);
/* Ends the page; the result is its length, 0 if even the head did not fit. */
size_t page_close(struct page_writer *p, struct slice cursor);

/* Reading: page_get checks the whole page, so rows cannot fail after it. */
struct page {
    enum page_status status;
    struct slice message; /* what is wrong, or the run it is about */
    uint32_t columns, rows;
    struct slice name[PAGE_MAX_COLUMNS];
    struct slice cursor; /* "" when this was the last page */
    struct reader at;    /* next row */
};
int page_get(const void *message, size_t n, struct page *out);
/* 1 and cells[0..columns), or 0 behind the last row. */
int page_row(struct page *p, struct cell *cells);

#endif
