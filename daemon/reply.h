/* Frames to a client. Loop thread. */
#ifndef DAEMON_REPLY_H
#define DAEMON_REPLY_H

#include <uv.h>

#include "proto/frame.h"

enum { REPLY_BYTES = FRAME_HEADER_BYTES + 1024 };

/* Sends a frame whose payload of n bytes stands at bytes +
 * FRAME_HEADER_BYTES; the head is written before it. What the socket does
 * not take now goes later. Negative: the connection is of no use any more. */
int reply_send(uv_stream_t *to, enum frame_type type, uint64_t epoch,
               uint64_t seq, uint8_t bytes[REPLY_BYTES], size_t n);

#endif
