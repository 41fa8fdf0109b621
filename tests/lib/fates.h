/* Streams whose numbers have a fate: whether a number is a record, a loss, in
 * a gap or unreadable is a function of the stream's epoch and the number, so
 * whoever sends it, however often and after whatever crash, the run's file
 * must in the end hold exactly that. */
#ifndef TESTS_LIB_FATES_H
#define TESTS_LIB_FATES_H

#include "tests/lib/rig.h"

enum {
    FATES_SEQ_MAX = 30000,
    FATES_WORDS = 64, /* the dictionary of every stream */
    FATES_BLOCK = 8   /* numbers that are lost together, or not */
};

struct fates_stream {
    const char *run, *job;
    uint32_t rank;
    uint64_t epoch;
    char name[TRD_MAX_RUN + 1]; /* as it was welcomed, "" before */
    uint64_t sent;              /* nothing above was ever taken */
    uint64_t acked, durable;    /* told */
    uint32_t words;             /* likewise, of the dictionary */
    uint32_t words_told;
    uint8_t dropped[FATES_SEQ_MAX + 1]; /* a hello may have said it is gone */
};

enum fates_kind { RECORD, LOSS, GAP, UNREADABLE, UNKNOWN };

struct fate {
    enum fates_kind kind;
    uint32_t cause; /* LOSS, GAP */
    uint64_t count; /* LOSS */
    uint32_t site;  /* RECORD, UNKNOWN */
    uint64_t hash;  /* RECORD */
};

struct fate fates_of(const struct fates_stream *s, uint64_t seq);

/* Words first and so on; an entry for a number that is in no gap; at most n
 * of them from first, up to a gap: how many. */
void fates_words(struct rig_entries *e, uint32_t first, uint32_t n);
void fates_add(struct rig_entries *e, const struct fates_stream *s,
               uint64_t seq);
uint32_t fates_numbers(struct rig_entries *e, const struct fates_stream *s,
                       uint64_t first, uint32_t n);

/* The run's file holds 1 to sent, each once, each what it must be. */
void fates_check(struct rig *r, const struct fates_stream *s);

/* A number that looks like chance. */
uint64_t fates_mix(uint64_t x);

#endif
