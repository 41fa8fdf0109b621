/* Entries: the records, losses and dictionary words inside DATA and DICT
 * frames and in the journal. See FORMAT.md, "Entries".
 *
 * An entry starts on a multiple of 8 bytes:
 *   u32 word    length in bytes with this header, or-ed with kind << 24
 *   u32 crc     crc32c of word, then of everything after this field
 *   u32 number  record and loss: low half of seq; dictionary: its id
 *   body        by kind
 * Errors as in frame.h; slices point into the caller's bytes. */
#ifndef PROTO_RECORD_H
#define PROTO_RECORD_H

#include "proto/bytes.h"
#include "proto/wire.h"

struct entry {
    uint32_t kind;
    uint32_t len;    /* with header, without padding */
    uint32_t number;
    const uint8_t *body;
    size_t body_n;
};

static inline uint32_t entry_word(uint32_t kind, uint32_t len)
{
    return kind << 24 | len;
}

/* Bytes from an entry of this length to the next one. */
static inline size_t entry_span(size_t len)
{
    return (len + 7) & ~(size_t)7;
}

/* The checksum of an entry whose number and body are in place. */
uint32_t entry_crc(uint32_t word, const uint8_t *entry);

/* Puts number and crc into the header of an entry whose body is in place,
 * but not the word: a journal stores it last. The result is the word. */
uint32_t entry_seal(uint8_t *entry, uint32_t kind, uint32_t len,
                    uint32_t number);

/* Reads the entry at bytes, of which left are there, and checks it.
 * TRD_ETRUNC when left is too short, TRD_ECORRUPT when it does not hold. */
int entry_get(const void *bytes, size_t left, struct entry *out);

/* A histogram that was read: its counts as they lie. */
struct wire_histogram {
    uint32_t kind; /* enum trd_histogram_kind, 0: there is none */
    uint32_t first, n;
    struct slice counts; /* n varints */
};

/* A record as it travels: ids instead of names. */
struct wire_record {
    uint32_t site, shape; /* dictionary ids */
    uint32_t dtype;
    uint64_t t_ns;        /* since the stream's anchor */
    struct trd_when when;
    struct trd_stats stats; /* .histogram: to be written; NULL when read */
    const uint8_t *samples; /* stats.sample_n elements */
    struct wire_histogram histogram; /* when read */
};
/* What a body needs at most besides the samples: 2 codes, 10 varints of 10, a
 * mask and 5 counts of 10, 8 figures of 8, and with a histogram a mask, 2
 * codes and 3 varints more and one for each bin. */
enum {
    RECORD_HEAD_BYTES = 256,
    RECORD_HISTOGRAM_BYTES = RECORD_HEAD_BYTES + 10 * TRD_MAX_BINS
};
/* Whether a reader takes these figures of a tensor of this dtype, which is a
 * known one. */
bool record_figures_ok(uint32_t dtype, const struct trd_stats *s);
/* Writes the body; head leaves out the samples, which come last, so that
 * they can be copied straight from where they lie. */
int record_head_put(struct writer *w, const struct wire_record *r);
int record_put(struct writer *w, const struct wire_record *r);
int record_get(const struct entry *e, struct wire_record *out);

struct wire_loss {
    uint32_t cause; /* enum trd_cause */
    uint64_t count; /* records lost */
    uint64_t bytes; /* of them, 0 unknown */
    uint64_t t_ns;
};
int loss_put(struct writer *w, const struct wire_loss *l);
int loss_get(const struct entry *e, struct wire_loss *out);

struct wire_object {
    uint32_t instance;
    struct slice class_name, module;
};
int object_put(struct writer *w, const struct wire_object *o);
int object_get(const struct entry *e, struct wire_object *out);

struct wire_site {
    uint32_t object; /* dictionary id, 0 for none; always a smaller id */
    uint32_t pass, io, position;
    struct slice path;
};
int site_put(struct writer *w, const struct wire_site *s);
int site_get(const struct entry *e, struct wire_site *out);

struct wire_shape {
    uint32_t ndim;
    int64_t dim[TRD_MAX_DIMS];
};
int shape_put(struct writer *w, const struct wire_shape *s);
int shape_get(const struct entry *e, struct wire_shape *out);

int note_put(struct writer *w, struct slice text);
int note_get(const struct entry *e, struct slice *out);

#endif
