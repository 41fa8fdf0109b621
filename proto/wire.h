/* The numbers of the protocol: types, sizes and every limit a peer meets.
 * FORMAT.md is the norm; this header is its transcription. */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H

#include "tracerd/record.h"

#define WIRE_MAGIC UINT32_C(0x31435254)  /* "TRC1" */
#define QUERY_MAGIC UINT32_C(0x31515254) /* "TRQ1" */
#define PAGE_MAGIC UINT32_C(0x31505254)  /* "TRP1" */

enum {
    WIRE_VERSION = 1,       /* version of frames and of the journal */
    FRAME_HEADER_BYTES = 40,
    FRAME_MAX_BYTES = 256 * 1024, /* payload */
    FRAME_CONTROL_MAX_BYTES = 64 * 1024, /* payload of all but DATA, DICT */
    FRAME_OPTIONAL = 1,     /* flag: an unknown type may be skipped */

    ENTRY_HEADER_BYTES = 12,
    ENTRY_MAX_BYTES = 96 * 1024, /* 4096 complex128 samples, a histogram of
                                    2048 bins, and room */
    DICT_MAX_ENTRIES = 1 << 20,  /* of one stream */
    WIRE_STRING_MAX = 1024,      /* names in entries and hellos */
    WIRE_INFO_MAX = 48 * 1024,   /* JSON about the process */
    WIRE_REASON_MAX = 512,       /* text of REFUSE and NACK */

    RANK_LIMIT = 1 << 24,
    ATTEMPT_LIMIT = 1 << 20,

    IDLE_MS = 5000,         /* client pings when idle this long */
    IDLE_MISSES = 3,        /* the daemon closes after as many */
    HELLO_MS = 1000,        /* from accept to a whole hello */
    FRAME_MS = 10000,       /* from a frame's first byte to its last */

    SP_MAX_BYTES = 1024 * 1024, /* message on the query endpoint */
    SP_REQUEST_MAX_BYTES = 64 * 1024,
    PAGE_MAX_COLUMNS = 64,
    PAGE_ROWS_BYTES = 512 * 1024, /* a page is closed when it reaches this */
    QUERY_MAX_FIELDS = 32,

    SOCKET_PATH_MAX = 107   /* bytes, without the NUL */
};

/* Frame types. c>d from client to daemon, d>c back. */
enum frame_type {
    FRAME_HELLO = 1,   /* c>d who I am */
    FRAME_WELCOME = 2, /* d>c what I have of you */
    FRAME_REFUSE = 3,  /* d>c not now or never, with a text; then closed */
    FRAME_DICT = 4,    /* c>d names and shapes */
    FRAME_DATA = 5,    /* c>d records, seq is the first one's */
    FRAME_ACK = 6,     /* d>c cumulative high-water marks */
    FRAME_NACK = 7,    /* d>c why I close */
    FRAME_GAP = 8,     /* c>d a range of seq that cannot be sent */
    FRAME_PING = 9,    /* c>d with the clocks */
    FRAME_PONG = 10,   /* d>c */
    FRAME_BYE = 11     /* c>d seq is the last one */
};

/* The only byte of a BYE that somebody else says, who found what it left. */
enum { BYE_DEAD = 1 };

/* Kinds of entries in DATA (below 16) and DICT (from 16). */
enum entry_kind {
    ENTRY_RESERVED = 0, /* in a journal: being written */
    ENTRY_RECORD = 1,
    ENTRY_LOSS = 2,
    ENTRY_PAD = 15,     /* in a journal: rest of a segment; no seq */
    ENTRY_OBJECT = 16,
    ENTRY_SITE = 17,
    ENTRY_SHAPE = 18,
    ENTRY_NOTE = 19
};

/* Why a peer is refused or closed; stored nowhere, names in names.c. */
#define WIRE_REASONS(X)                                                       \
    X(REASON_VERSION, 1, "version")   /* no common version */                 \
    X(REASON_BUSY, 2, "busy")         /* too many clients or bytes; retry */  \
    X(REASON_OWNED, 3, "owned")       /* the stream is alive elsewhere */     \
    X(REASON_MALFORMED, 4, "malformed")                                       \
    X(REASON_CRC, 5, "crc")                                                   \
    X(REASON_GAP, 6, "gap")           /* seq jumped */                        \
    X(REASON_TOO_BIG, 7, "too_big")                                           \
    X(REASON_QUOTA, 8, "quota")       /* too many names */                    \
    X(REASON_STORE, 9, "store")       /* the store failed; retry */           \
    X(REASON_STOPPING, 10, "stopping")                                        \
    X(REASON_DENIED, 11, "denied")    /* another user */

enum wire_reason {
#define WIRE_REASON_MEMBER(name, code, text) name = code,
    WIRE_REASONS(WIRE_REASON_MEMBER)
#undef WIRE_REASON_MEMBER
};

/* Name of a reason or of an enum trd_cause; NULL for an unknown one. */
const char *wire_reason_name(unsigned reason);
const char *wire_cause_name(unsigned cause);

#endif
