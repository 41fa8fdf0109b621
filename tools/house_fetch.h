/* Runs that are in a ClickHouse, as files of a temporary directory: so that
 * every command reads them as it reads any run, and says the same. */
#ifndef TOOLS_HOUSE_FETCH_H
#define TOOLS_HOUSE_FETCH_H

#include "proto/clickhouse/house.h"
#include "proto/query.h"

struct fetch;

/* Makes the directory, which goes when the program ends. Asks nothing yet. 0
 * or an exit code, told. */
int fetch_open(const char *url, struct fetch **out);
void fetch_close(struct fetch *f);
const char *fetch_dir(const struct fetch *f);
/* The store as it may be told. */
const char *fetch_shown(const struct fetch *f);

/* What is known of runs without their records: of all (run NULL), of the
 * newest (""), or of one. *n: how many there are. */
int fetch_heads(struct fetch *f, const char *run, size_t *n);
enum fetch_what {
    FETCH_ALL,  /* the records of the run */
    FETCH_SOME, /* those that q asks for, at least */
    FETCH_NEAR  /* where there are none: what can be said about that */
};
/* The records of a run whose head is there; q is for some and near. What was
 * fetched before is fetched again. */
int fetch_records(struct fetch *f, const char *run, const struct query *q,
                  enum fetch_what what);
/* The name of the run whose head came last. */
const char *fetch_last(const struct fetch *f);

#endif
