/* A stored record as programs pass it on, and the SQL that selects it.
 *
 * Both the daemon and the tools run this SQL over schema.sql, so that an
 * answer does not depend on who opened the file. Text only: nothing here
 * knows SQLite. */
#ifndef PROTO_ROW_H
#define PROTO_ROW_H

#include "proto/histogram.h"
#include "proto/name.h"
#include "proto/query.h"

/* X(member, SQL): the columns of a record page, in order. */
#define ROW_COLUMNS(X)                                                        \
    X(STREAM, "r.stream")                                                     \
    X(ATTEMPT, "s.attempt")                                                   \
    X(RANK, "s.rank")                                                         \
    X(SEQ, "r.seq")                                                           \
    X(TS_NS, "s.real_ns + r.t_ns")                                            \
    X(PASS, "r.pass")                                                         \
    X(OBJECT, "r.object")                                                     \
    X(CLASS, "o.class")                                                       \
    X(INSTANCE, "o.instance")                                                 \
    X(MODULE, "o.module")                                                     \
    X(STEP, "r.step")                                                         \
    X(ITERATION, "r.iteration")                                               \
    X(MICROBATCH, "r.microbatch")                                             \
    X(IO, "r.io")                                                             \
    X(POSITION, "r.position")                                                 \
    X(PATH, "p.text")                                                         \
    X(DTYPE, "r.dtype")                                                       \
    X(SHAPE, "h.dims")                                                        \
    X(N, "coalesce(r.n, h.n)")                                                \
    X(MAX, "r.max")                                                           \
    X(MIN, "r.min")                                                           \
    X(MEAN, "r.mean")                                                         \
    X(STD, "r.std")                                                           \
    X(L2, "r.l2")                                                             \
    X(ABSMIN, "r.absmin")                                                     \
    X(NAN, "r.nan")                                                           \
    X(PINF, "r.pinf")                                                         \
    X(NINF, "r.ninf")                                                         \
    X(ZERO, "r.zero")                                                         \
    X(SUBNORMAL, "r.subnormal")                                               \
    X(HASH, "r.hash")                                                         \
    X(SAMPLES, "r.samples")                                                   \
    X(LABELS, "r.labels")                                                     \
    X(NOTE, "t.text")                                                         \
    X(GIVEN, "r.given")                                                       \
    X(SAMPLING, "x.sampling")                                                 \
    X(SAMPLING_ARG, "x.sampling_arg")                                         \
    X(HISTOGRAM, "x.histogram")

enum row_column {
#define ROW_COLUMN_MEMBER(name, sql) ROW_##name,
    ROW_COLUMNS(ROW_COLUMN_MEMBER)
#undef ROW_COLUMN_MEMBER
    ROW_COLUMN_COUNT
};

/* The record of a row. Strings are slices into the cells' memory. */
struct row {
    uint64_t stream, seq;
    int64_t ts_ns;
    uint32_t attempt, rank;
    int pass, io, dtype;
    uint64_t object;           /* 0: none; then class and module are "" */
    struct slice class_name, module, path, note;
    uint64_t instance, step, iteration, position;
    uint32_t microbatch, labels;
    uint32_t ndim;
    int64_t shape[TRD_MAX_DIMS];
    struct trd_stats stats;    /* finite figures; has tells which hold;
                                  .histogram is NULL */
    struct slice samples;      /* stats.sample_n elements of dtype */
    struct histogram histogram;
};
/* Reads a row's cells. TRD_ECORRUPT when one has the wrong type or size. */
int row_get(const struct cell cells[ROW_COLUMN_COUNT], struct row *out);

/* `given` of a text record: two bits a figure, max lowest, then min, mean,
 * std. The figure's column is NULL unless the code is GIVEN_NUMBER. */
enum { GIVEN_NUMBER = 0, GIVEN_NAN = 1, GIVEN_PINF = 2, GIVEN_NINF = 3 };
uint32_t given_code(double v);
/* The figure of a code; v is the column's, if there is one. */
double given_value(uint32_t code, bool there, double v);

/* A statement and what to bind to ?1, ?2, ... */
enum { SQL_TEXT_MAX = 6144, SQL_MAX_BINDS = 24, SQL_PATTERN_MAX = 2200 };
struct sql {
    char text[SQL_TEXT_MAX];
    unsigned n;
    struct cell bind[SQL_MAX_BINDS];   /* CELL_INT or CELL_TEXT */
    char pattern[5][SQL_PATTERN_MAX]; /* memory of text that was escaped */
    unsigned patterns;
};

/* A statement with one row if what the reading names is in the dictionary,
 * and none if it is not. TRD_ELIMIT when the name is too long. */
int sql_exists(const struct name_reading *r, struct sql *out);

/* The records of a reading (NULL: all) with the filters, the order and the
 * limit of q, from behind q->cursor. Rows have the columns of ROW_COLUMNS.
 * TRD_EINVAL when the cursor is not one of ours. */
int sql_records(const struct query *q, const struct name_reading *r,
                struct sql *out);

/* The cursor that continues behind this row: 8 bytes a key part. */
enum { ROW_CURSOR_MAX = 64 };
size_t row_cursor(const struct row *r, uint32_t order,
                  uint8_t out[ROW_CURSOR_MAX]);

/* One row about a run, columns RUN_COLUMNS, to be read from its file. */
#define RUN_COLUMNS                                                           \
    "name", "started_ns", "ended_ns", "attempts", "ranks", "iterations",     \
        "records", "losses", "state", "block_ms", "spool_bytes", "pruned"
enum { RUN_STATE = 8, RUN_COLUMN_COUNT = 12 }; /* its column; how many */
extern const char sql_run[];

#endif
