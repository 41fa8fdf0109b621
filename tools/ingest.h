/* Speaking the ingest protocol as a client: how an import reaches the store
 * through its only writer. One stream at a time, blocking. */
#ifndef TOOLS_INGEST_H
#define TOOLS_INGEST_H

#include <signal.h>

#include "proto/frame.h"
#include "proto/record.h"
#include "tools/tracectl.h"

struct ingest;

/* Connects to the daemon in dir and says hello; waits while it is busy. The
 * functions give 0 or an exit code, told on stderr. */
int ingest_open(const char *dir, const struct hello *h, uint64_t epoch,
                struct ingest **out);

/* What the daemon has of the stream already, and the run's final name; the
 * string lives as long as the ingest. */
const struct welcome *ingest_welcome(const struct ingest *in);

/* A sealed entry. Dictionary ids and record numbers come in their order,
 * from 1; those the daemon has are not sent. */
int ingest_word(struct ingest *in, uint32_t id, const uint8_t *entry,
                size_t len);
int ingest_record(struct ingest *in, uint64_t seq, const uint8_t *entry,
                  size_t len);
/* Records first to last will not come. */
int ingest_gap(struct ingest *in, uint64_t first, uint64_t last,
               uint32_t cause);

/* Sends what is held back, says goodbye and waits until all up to last_seq
 * is durable, and how it ended too. dead: for a process that did not say it
 * itself. */
int ingest_finish(struct ingest *in, uint64_t last_seq, int dead);

/* NULL is fine. */
void ingest_close(struct ingest *in);

/* Set by a signal: the functions above then fail soon. */
extern volatile sig_atomic_t ingest_stop;

#endif
