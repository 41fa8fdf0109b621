/* SQL functions that the daemon and tracectl add to SQLite's own. In a
 * library of its own: a training process links no SQLite. */
#ifndef PROTO_SQL_H
#define PROTO_SQL_H

#include <sqlite3.h>

/* Adds, for samples as v_record and the table of records have them; dtype is
 * a name (v_record) or a number (record):
 *
 *   sample(samples, dtype, i)        the i-th, from 0: a number, of complex
 *   sample(samples, dtype, i, part)  dtypes the real part, or with part 1 the
 *                                    imaginary one
 *   sample_count(samples, dtype)     how many there are
 *   sample_list(samples, dtype)      all as JSON, for json_each(): NaN and
 *                                    infinities as "nan", "inf", "-inf", of
 *                                    complex dtypes pairs
 *
 * NULL for NULL, and for a sample that is NaN or not there; an error for what
 * is no dtype. The result is SQLite's code. */
int sql_add_functions(sqlite3 *db);

#endif
