/* One stream's conversation: what each frame means and whether it may come
 * now. Pure: no socket, no clock, no memory of its own. Both a connection
 * and the journal of a dead process speak through a session. */
#ifndef DAEMON_SESSION_H
#define DAEMON_SESSION_H

#include "proto/frame.h"

enum session_state {
    SESSION_NEW,    /* nothing came yet */
    SESSION_ASKED,  /* the hello is with the store */
    SESSION_OPEN,   /* welcome */
    SESSION_LEAVING /* bye came; nothing may follow */
};

struct session {
    enum session_state state;
    uint64_t epoch;
    uint64_t have;      /* records up to it were handed to the store */
    uint32_t dict_have; /* dictionary entries likewise */
    uint64_t clock_ns;  /* when a clock was last handed over, 0 never */
    char text[128];     /* of a verdict that names numbers */
};

/* What is to be done about a frame; or-ed. */
enum {
    DO_STORE = 1, /* hand it to the store */
    DO_ACK = 2,   /* all of it is known: say the marks again */
    DO_PONG = 4,
    DO_CLOSE = 8  /* say reason and why, then close */
};

struct verdict {
    unsigned act;
    unsigned reason;   /* enum wire_reason, with DO_CLOSE */
    const char *why;   /* with DO_CLOSE; static, or the session's text */
};

enum { SESSION_CLOCK_S = 60 }; /* a clock row at most this often */

void session_init(struct session *s);

/* Whether the frame may come now, by its head alone: nobody gets memory for a
 * payload who has not said hello. act is 0 or DO_CLOSE. */
struct verdict session_head(const struct session *s, const struct frame *f);

/* Judges a whole frame and moves the state. now_ns is any monotonic time. */
struct verdict session_frame(struct session *s, const struct frame *f,
                             const uint8_t *payload, uint64_t now_ns);

/* The store has answered the hello. */
void session_welcome(struct session *s, uint64_t committed_seq,
                     uint32_t dict_n);

/* Reason and text for a header that frame_get() refused. */
struct verdict session_bad_header(struct session *s, int error,
                                  const uint8_t head[FRAME_HEADER_BYTES]);

#endif
