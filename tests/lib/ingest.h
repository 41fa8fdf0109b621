/* What the tests of the ingest socket share: one tracerd, one raw client, and
 * questions to the run's file.
 *
 * Everything fails the running test by itself, as in rig.h. One of each a
 * program: every test begins with a new rig and a closed client. */
#ifndef TESTS_LIB_INGEST_H
#define TESTS_LIB_INGEST_H

#include "tests/lib/rig.h"
#include "tests/lib/unit.h"

struct ingest {
    struct rig rig;
    struct rig_client c;
    struct rig_entries e; /* what is sent next; no test relies on the last */
};
extern struct ingest ingest;

int ingest_set_up(void **state);
int ingest_tear_down(void **state);
#define ingest_test(name)                                                     \
    cmocka_unit_test_setup_teardown(name, ingest_set_up, ingest_tear_down)

/* ---- the run's file ---- */

/* One number out of data/RUN.db; -1 when it is not there. */
int64_t ingest_ask(const char *run, const char *sql);
/* One text, "" when it is not there; stays until the next question. */
char *ingest_ask_text(const char *run, const char *sql);
/* Every seq is in a record or covered by a loss, once. */
void ingest_contiguous(const char *run, int64_t last);

/* Whatever is stored is what rig_record() and rig_fill_dict() say, to the
 * bit. The stream of this epoch, which nobody harmed, has records 1 to 3. */
void ingest_values(const char *run, uint64_t epoch);

/* ---- the client ---- */

/* The dictionary of rig.h, from number 1. */
void ingest_send_dict(void);
/* n records from seq. */
void ingest_send_records(uint64_t seq, uint32_t n);
/* first to last are lost. */
void ingest_send_gap(uint64_t first, uint64_t last, uint32_t cause);
/* The daemon says NACK for this reason and hangs up. */
void ingest_nack(unsigned reason);

#endif
