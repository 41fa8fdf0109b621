/* Puts records, as they come from a ClickHouse, into the file of their run.
 * What is there already stays. */
#ifndef TOOLS_HOUSE_PUT_H
#define TOOLS_HOUSE_PUT_H

#include <sqlite3.h>

#include "tools/house_rows.h"

/* A record's columns in the order in which they are taken; what extra has is
 * last. nans: see tables.sql. */
#define HOUSE_RECORD_COLUMNS                                                   \
    "step, class, instance, module, pass, epoch, io, position, seq, t_ns,"     \
    " iteration, microbatch, labels, note, path, dtype, shape, n,"             \
    " nans, pinf, ninf, zero, subnormal, max, min, absmin, mean, std, l2,"     \
    " hash, samples, given, max_int, min_int, absmin_int, sampling,"           \
    " sampling_arg, histogram"

/* As house_rows.h has them. */
#define HOUSE_RECORD_TYPES "lsisblbillliissbslLLLLLFFFFFFLsBLLLbls"

enum { HOUSE_RECORD_FIELDS = sizeof HOUSE_RECORD_TYPES - 1 };

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
