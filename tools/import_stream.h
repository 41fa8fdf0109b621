/* A stream of records that an import makes itself, of a file that is no
 * journal: its hello, its words, its records one after the other. */
#ifndef TOOLS_IMPORT_STREAM_H
#define TOOLS_IMPORT_STREAM_H

#include "tools/import.h"
#include "tools/words.h"

enum { IMPORT_RECORD_MAX = ENTRY_MAX_BYTES };

struct import_stream {
    const char *path;      /* for the run's info */
    const struct import_daemon *daemon;
    const struct import_options *options;
    struct import_result *result; /* rank and attempt; records are counted */
    uint64_t epoch;        /* from import_epoch() */
    int64_t anchor_ns;     /* what records' times are from */
    struct ingest *in;     /* NULL: nothing was sent */
    struct words *words;
    uint64_t seq;
    uint8_t entry[IMPORT_RECORD_MAX];
};

uint64_t import_mix(uint64_t h, const void *bytes, size_t n);
/* What tells the stream from others: bytes of this hash and number, taken
 * with these options, are the same stream. */
uint64_t import_epoch(uint64_t hash, uint64_t size,
                      const struct import_options *o,
                      const struct import_result *r);

/* Says hello, if that was not done, so that words can be asked for. The
 * functions give 0 or an exit code, told on stderr. */
int import_stream_start(struct import_stream *s);
int import_stream_record(struct import_stream *s,
                         const struct wire_record *r);
/* All is durable then, and counted. */
int import_stream_finish(struct import_stream *s);
void import_stream_close(struct import_stream *s);

#endif
