/* Puts records, as they come from a ClickHouse, into the file of their run.
 * What is there already stays. */
#ifndef TOOLS_HOUSE_PUT_H
#define TOOLS_HOUSE_PUT_H

#include <sqlite3.h>

#include "tools/house_rows.h"

/* X(name, column, type): a record's fields in the order in which they are
 * taken, types as house_rows.h has them; what extra has is last. nans: see
 * tables.sql. */
#define HOUSE_RECORD(X)                                                        \
    X(STEP, "step", "l")                                                       \
    X(CLASS, "class", "s")                                                     \
    X(INSTANCE, "instance", "i")                                               \
    X(MODULE, "module", "s")                                                   \
    X(PASS, "pass", "b")                                                       \
    X(EPOCH, "epoch", "l")                                                     \
    X(IO, "io", "b")                                                           \
    X(POSITION, "position", "i")                                               \
    X(SEQ, "seq", "l")                                                         \
    X(T_NS, "t_ns", "l")                                                       \
    X(ITERATION, "iteration", "l")                                             \
    X(MICROBATCH, "microbatch", "i")                                           \
    X(LABELS, "labels", "i")                                                   \
    X(NOTE, "note", "s")                                                       \
    X(PATH, "path", "s")                                                       \
    X(DTYPE, "dtype", "b")                                                     \
    X(SHAPE, "shape", "s")                                                     \
    X(N, "n", "l")                                                             \
    X(NANS, "nans", "L")                                                       \
    X(PINF, "pinf", "L")                                                       \
    X(NINF, "ninf", "L")                                                       \
    X(ZERO, "zero", "L")                                                       \
    X(SUBNORMAL, "subnormal", "L")                                             \
    X(MAX, "max", "F")                                                         \
    X(MIN, "min", "F")                                                         \
    X(ABSMIN, "absmin", "F")                                                   \
    X(MEAN, "mean", "F")                                                       \
    X(STD, "std", "F")                                                         \
    X(L2, "l2", "F")                                                           \
    X(HASH, "hash", "L")                                                       \
    X(SAMPLES, "samples", "s")                                                 \
    X(GIVEN, "given", "B")                                                     \
    X(MAX_INT, "max_int", "L")                                                 \
    X(MIN_INT, "min_int", "L")                                                 \
    X(ABSMIN_INT, "absmin_int", "L")                                           \
    X(SAMPLING, "sampling", "b")                                               \
    X(SAMPLING_ARG, "sampling_arg", "l")                                       \
    X(HISTOGRAM, "histogram", "s")

enum house_at {
#define HOUSE_AT(name, column, type) AT_##name,
    HOUSE_RECORD(HOUSE_AT)
#undef HOUSE_AT
    HOUSE_RECORD_FIELDS
};

/* "step, class, ..." and their types. */
extern const char *const house_record_columns;
extern const char house_record_types[];

struct house_put;

/* For a file of tracerd's schema with the run's streams, which stays the
 * caller's and open until the close. All return a code of SQLite. */
int house_put_open(sqlite3 *db, struct house_put **out);
/* The record's object is there, if it has one. */
int house_put_record(struct house_put *p,
                     const struct house_field field[HOUSE_RECORD_FIELDS]);
void house_put_close(struct house_put *p);

/* A parameter of a statement, NULL where the field is. */
void house_bind_text(sqlite3_stmt *q, int i, const struct house_field *f);
void house_bind_whole(sqlite3_stmt *q, int i, const struct house_field *f);
/* Runs it once, and forgets the parameters. */
int house_put_step(sqlite3_stmt *q);

#endif
