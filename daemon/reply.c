/* Frames to a client. Loop thread. A frame is small and nearly always fits
 * the socket; only the rest of one that does not is copied. */
#include "daemon/reply.h"

#include "proto/crc32c.h"

#include <stdlib.h>

struct rest {
    uv_write_t request;
    uint8_t bytes[REPLY_BYTES];
};

static void on_written(uv_write_t *request, int status)
{
    (void)status; /* the reading side learns that the peer is gone */
    free(request);
}

static int send_later(uv_stream_t *to, const uint8_t *bytes, size_t n)
{
    struct rest *rest = malloc(sizeof *rest);
    uv_buf_t buf;
    int rc;
    if (!rest)
        return TRD_ENOMEM;
    memcpy(rest->bytes, bytes, n);
    buf = uv_buf_init((char *)rest->bytes, (unsigned)n);
    rc = uv_write(&rest->request, to, &buf, 1, on_written);
    if (rc)
        free(rest);
    return rc;
}

int reply_send(uv_stream_t *to, enum frame_type type, uint64_t epoch,
               uint64_t seq, uint8_t bytes[REPLY_BYTES], size_t n)
{
    struct frame f = {
        .version = WIRE_VERSION,
        .type = (uint16_t)type,
        .len = (uint32_t)n,
        .epoch = epoch,
        .seq = seq,
    };
    size_t all = FRAME_HEADER_BYTES + n, done = 0;
    uv_buf_t buf = uv_buf_init((char *)bytes, (unsigned)all);

    f.crc = crc32c(0, bytes + FRAME_HEADER_BYTES, n);
    frame_put(bytes, &f);
    if (uv_stream_get_write_queue_size(to) == 0) {
        int rc = uv_try_write(to, &buf, 1);
        if (rc < 0 && rc != UV_EAGAIN)
            return rc;
        done = rc > 0 ? (size_t)rc : 0;
    }
    return done == all ? 0 : send_later(to, bytes + done, all - done);
}
