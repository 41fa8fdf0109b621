/* What to say when a question for records finds nothing: which part of it
 * does not fit, and what there is instead.
 *
 * The daemon and the tools say the same words, whoever opened the file. Text
 * and SQL only: who asks brings the means to run a statement. */
#ifndef PROTO_MISSING_H
#define PROTO_MISSING_H

#include "proto/row.h"

enum { MISSING_BYTES = 1024 };

/* Gets the rows of a statement, one by one. */
typedef void missing_take(void *to, const struct cell *cells);

struct missing {
    const char *run;
    const struct query *q;
    const struct name_query *names;     /* of q->name; NULL: there is none */
    const struct name_reading *reading; /* that the run knows; NULL: none */
    /* Runs sql and hands its rows to take. Not 0: it cannot. */
    int (*ask)(void *context, const struct sql *sql, missing_take *take,
               void *to);
    void *context;
};

/* Writes the sentence, without an end of line. sql is room to work in. 0, or
 * what ask() gave; then there is no sentence. */
int missing_say(const struct missing *m, struct sql *sql,
                char out[MISSING_BYTES]);

/* There is no run of this name; "" means the newest of a directory. */
void missing_run(const char *run, const char *dir, char out[MISSING_BYTES]);

#endif
