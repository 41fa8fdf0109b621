/* Frames: what goes over the ingest socket. See FORMAT.md, "Frames".
 *
 * The get functions check every length and never read past what they are
 * given; slices point into the caller's bytes. All return 0 or TRD_ETRUNC
 * (too short), TRD_ECORRUPT (checksum, magic), TRD_ELIMIT (a length above
 * its limit), TRD_EVERSION, TRD_EINVAL (a field out of range). The put
 * functions write at most cap bytes and give the length in *n; TRD_ELIMIT
 * when it does not fit or a string is too long. */
#ifndef PROTO_FRAME_H
#define PROTO_FRAME_H

#include "proto/bytes.h"
#include "proto/wire.h"

struct frame {
    uint16_t version;
    uint16_t type;  /* enum frame_type, or unknown */
    uint32_t len;   /* bytes of payload */
    uint32_t crc;   /* crc32c of the payload */
    uint64_t epoch;
    uint64_t seq;   /* meaning by type */
    uint32_t flags; /* FRAME_OPTIONAL */
};

/* Writes the header, its checksum included; f->crc must be set. */
void frame_put(uint8_t out[FRAME_HEADER_BYTES], const struct frame *f);

/* Reads a header of FRAME_HEADER_BYTES and checks magic, checksum, version
 * and the length limit of its type. */
int frame_get(const uint8_t in[FRAME_HEADER_BYTES], struct frame *out);

/* 0 if the payload of f->len bytes has f->crc, else TRD_ECORRUPT. */
int frame_check(const struct frame *f, const void *payload);

/* Who a client is. The frame's epoch is the stream's; its seq is 0. */
struct hello {
    uint16_t version_min, version_max;
    uint32_t features, required; /* bits; unknown required ones: refuse */
    uint32_t rank, attempt, world;
    uint32_t pid;
    uint64_t start_time;    /* of pid, clock ticks since boot */
    uint8_t boot_id[16];
    uint64_t mono_ns;       /* the anchor: record time 0, CLOCK_MONOTONIC */
    uint64_t real_ns;       /* the same moment, CLOCK_REALTIME */
    uint64_t first_seq;     /* oldest record still kept */
    uint64_t last_seq;      /* newest one at the time of the hello */
    uint32_t dict_n;        /* dictionary entries so far */
    uint32_t max_len;       /* largest payload the client wants to send */
    struct slice run, job, host, client; /* client: its version as text */
    struct slice journal;   /* file name in the directory, "" for none */
    struct slice info;      /* JSON object or "" */
    /* What a client does when its journal is full; older ones do not say. */
    struct slice spool;     /* path of the file, "" for none */
    uint32_t block_ms;      /* it waits so long for room */
    uint64_t spool_bytes;   /* the file's limit, 0 for none */
};
int hello_put(const struct hello *h, void *out, size_t cap, size_t *n);
int hello_get(const void *payload, size_t n, struct hello *out);

struct welcome {
    uint16_t version;
    uint32_t features;
    uint8_t store_id[16];   /* changes when the stored run is another file */
    uint64_t stream;        /* the stream's number in the store */
    uint64_t committed_seq; /* high-water marks */
    uint64_t durable_seq;
    uint32_t dict_n;        /* dictionary entries durably stored */
    uint32_t credit_bytes;  /* how much may be sent and not committed */
    uint32_t max_len;       /* largest payload accepted */
    uint32_t idle_ms;
    struct slice run;       /* the run's final name */
};
int welcome_put(const struct welcome *w, void *out, size_t cap, size_t *n);
int welcome_get(const void *payload, size_t n, struct welcome *out);

/* REFUSE and NACK. */
struct refusal {
    uint16_t reason;        /* enum wire_reason */
    uint32_t retry_ms;      /* 0: do not try again with this hello */
    struct slice text;
};
int refusal_put(const struct refusal *r, void *out, size_t cap, size_t *n);
int refusal_get(const void *payload, size_t n, struct refusal *out);

struct ack {
    uint64_t committed_seq; /* survives the death of the daemon */
    uint64_t durable_seq;   /* survives a power cut */
    uint32_t dict_n;        /* dictionary entries durably stored */
    uint32_t credit_bytes;
};
int ack_put(const struct ack *a, void *out, size_t cap, size_t *n);
int ack_get(const void *payload, size_t n, struct ack *out);

/* Records first..last will never come; frame seq is first. */
struct gap {
    uint64_t first, last;
    uint64_t bytes;         /* of them, 0 unknown */
    uint32_t cause;         /* enum trd_cause */
};
int gap_put(const struct gap *g, void *out, size_t cap, size_t *n);
int gap_get(const void *payload, size_t n, struct gap *out);

/* The clocks of the client; PONG has no payload. */
struct ping {
    uint64_t mono_ns, real_ns;
};
int ping_put(const struct ping *p, void *out, size_t cap, size_t *n);
int ping_get(const void *payload, size_t n, struct ping *out);

/* The 8 bytes before the entries of DATA (number: none) and DICT. */
struct batch {
    uint32_t n;      /* entries that follow */
    uint32_t first;  /* DICT: id of the first; DATA: codec, 0 */
};
enum { BATCH_BYTES = 8 };
void batch_put(uint8_t out[BATCH_BYTES], const struct batch *b);
int batch_get(const void *payload, size_t n, struct batch *out);

#endif
