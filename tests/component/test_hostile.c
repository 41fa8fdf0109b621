/* What no client says: garbage, cuts, flipped bits, hostile lengths, frames
 * out of place, silence, too many at once. The connection may end, the daemon
 * does not. */
#include "tests/lib/ingest.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/crc32c.h"
#include "proto/place.h"

/* The bytes are not a frame: the connection ends, the daemon does not. */
static void send_garbage(const void *bytes, size_t n)
{
    int fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
    assert_true(fd >= 0);
    rig_write_any(fd, bytes, n);
    rig_hung_up(fd);
    close(fd);
}

static void test_hostile__garbage_and_other_protocols(void **state)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    static const uint8_t tls[] = {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3};
    static const uint8_t sp[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    uint8_t noise[4096];
    uint32_t x = 12345;
    (void)state;
    rig_start(&ingest.rig);
    send_garbage(http, sizeof http - 1);
    send_garbage(tls, sizeof tls);
    send_garbage(sp, sizeof sp);
    for (int i = 0; i < 50; i++) {
        for (size_t k = 0; k < sizeof noise; k++) {
            x = x * 1664525 + 1013904223;
            noise[k] = (uint8_t)(x >> 24);
        }
        if (i % 2)
            memcpy(noise, "TRC1", 4);
        send_garbage(noise, sizeof noise);
    }
    assert_true(rig_alive(&ingest.rig));
    rig_open(&ingest.rig, &ingest.c, 77);
    rig_stop(&ingest.rig);
}

static void test_hostile__a_frame_cut_at_every_byte(void **state)
{
    static uint8_t bytes[FRAME_HEADER_BYTES + 2048];
    struct hello h = rig_hello();
    struct frame f = {.version = WIRE_VERSION, .type = FRAME_HELLO};
    size_t n;
    (void)state;
    assert_int_equal(hello_put(&h, bytes + FRAME_HEADER_BYTES, 2048, &n), 0);
    f.len = (uint32_t)n;
    f.epoch = 77;
    f.crc = crc32c(0, bytes + FRAME_HEADER_BYTES, n);
    frame_put(bytes, &f);
    n += FRAME_HEADER_BYTES;
    rig_start(&ingest.rig);
    for (size_t cut = 0; cut < n; cut++) {
        int fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
        assert_true(fd >= 0);
        rig_write(fd, bytes, cut);
        close(fd);
    }
    assert_true(rig_alive(&ingest.rig));
    rig_open(&ingest.rig, &ingest.c, 77);
    assert_int_equal(ingest.c.welcome.committed_seq, 0);
    rig_stop(&ingest.rig);
}

static void test_hostile__data_cut_and_bits_flipped(void **state)
{
    static uint8_t payload[FRAME_MAX_BYTES];
    uint8_t head[FRAME_HEADER_BYTES];
    struct batch b = {3, 0};
    struct frame f = {
        .version = WIRE_VERSION, .type = FRAME_DATA, .seq = 1, .epoch = 77};
    (void)state;
    rig_start(&ingest.rig);
    rig_fill_data(&ingest.e, 1, 3);
    memcpy(payload, ingest.e.bytes, ingest.e.n_bytes);
    batch_put(payload, &b);
    for (size_t bit = 0; bit < ingest.e.n_bytes * 8; bit += 13) {
        rig_open(&ingest.rig, &ingest.c, 77);
        assert_int_equal(ingest.c.welcome.committed_seq, 0);
        f.len = (uint32_t)ingest.e.n_bytes;
        payload[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (bit % 2) /* the frame's own checksum holds: the entry's must not */
            f.crc = crc32c(0, payload, ingest.e.n_bytes);
        frame_put(head, &f);
        rig_write_any(ingest.c.fd, head, sizeof head);
        rig_write_any(ingest.c.fd, payload, ingest.e.n_bytes);
        payload[bit / 8] ^= (uint8_t)(1 << bit % 8);
        /* padding is not checked by anybody but the frame */
        while (rig_recv(&ingest.c) && ingest.c.got.type != FRAME_NACK)
            if (ingest.c.got.type == FRAME_ACK && ingest.c.ack.committed_seq)
                break;
        rig_close(&ingest.c);
        if (ingest_ask("run", "SELECT count(*) FROM record") +
                ingest_ask("run", "SELECT count(*) FROM loss") >
            0)
            break;
    }
    assert_true(rig_alive(&ingest.rig));
    rig_stop(&ingest.rig);
}

static void test_hostile__hostile_lengths(void **state)
{
    static const uint32_t lengths[] = {0,
                                       1,
                                       FRAME_CONTROL_MAX_BYTES,
                                       FRAME_MAX_BYTES,
                                       FRAME_MAX_BYTES + 1,
                                       UINT32_MAX};
    uint8_t head[FRAME_HEADER_BYTES];
    (void)state;
    rig_start(&ingest.rig);
    for (unsigned type = 0; type < 14; type++) {
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct frame f = {.version = WIRE_VERSION,
                              .type = (uint16_t)type,
                              .len = lengths[i],
                              .epoch = 77,
                              .seq = UINT64_MAX};
            int fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
            frame_put(head, &f);
            rig_write_any(fd, head, sizeof head);
            shutdown(fd, SHUT_WR);
            rig_hung_up(fd);
            close(fd);
        }
    }
    /* counts that do not fit what is there */
    for (int i = 0; i < 4; i++) {
        static const uint32_t counts[] = {0, 4, UINT32_MAX, 1u << 31};
        struct batch b = {counts[i], 0};
        rig_open(&ingest.rig, &ingest.c, 77);
        ingest_send_dict();
        rig_fill_data(&ingest.e, 1, 3);
        batch_put(ingest.e.bytes, &b);
        rig_send(&ingest.c, FRAME_DATA, 1, ingest.e.bytes, ingest.e.n_bytes);
        ingest_nack(REASON_MALFORMED);
    }
    assert_true(rig_alive(&ingest.rig));
    rig_stop(&ingest.rig);
}

static void test_hostile__frames_out_of_place(void **state)
{
    (void)state;
    rig_start(&ingest.rig);
    ingest.c.fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
    ingest.c.epoch = 77;
    ingest_send_records(1, 1); /* no hello */
    rig_expect(&ingest.c, FRAME_REFUSE);
    rig_hung_up(ingest.c.fd);
    rig_close(&ingest.c);
    rig_open(&ingest.rig, &ingest.c, 77);
    rig_send(&ingest.c, 200, 0, "abc", 3); /* unknown and not optional */
    ingest_nack(REASON_MALFORMED);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest.c.epoch = 78; /* of another stream */
    ingest_send_records(1, 1);
    ingest_nack(REASON_MALFORMED);
    rig_open(&ingest.rig, &ingest.c, 77);
    rig_send(&ingest.c, FRAME_BYE, 5, "", 0); /* records 1 to 5 never came */
    ingest_nack(REASON_GAP);
    rig_stop(&ingest.rig);
}

static void test_hostile__silence_after_connecting_is_ended(void **state)
{
    long long start;
    int fd;
    (void)state;
    rig_start(&ingest.rig);
    start = rig_now_ms();
    fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
    rig_write(fd, "TRC1", 4);
    rig_hung_up(fd);
    close(fd);
    assert_in_range(rig_now_ms() - start, HELLO_MS - 100, HELLO_MS + 2000);
    rig_stop(&ingest.rig);
}

/* Those that say nothing keep no place from others. */
static void test_hostile__silent_connections_are_few(void **state)
{
    enum { N = 80, ALLOWED = 64 };
    static struct rig_client silent[N];
    int busy = 0;
    (void)state;
    rig_start(&ingest.rig);
    for (int i = 0; i < N; i++) {
        memset(&silent[i], 0, sizeof silent[i]);
        silent[i].fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
        assert_true(silent[i].fd >= 0);
    }
    for (int i = 0; i < N; i++) {
        rig_expect(&silent[i], FRAME_REFUSE);
        busy += silent[i].refusal.reason == REASON_BUSY;
        rig_close(&silent[i]);
    }
    assert_int_equal(busy, N - ALLOWED);
    rig_open(&ingest.rig, &ingest.c, 77);
    rig_stop(&ingest.rig);
}

static void test_hostile__too_many_clients_are_told_to_wait(void **state)
{
    struct rig_client other;
    struct hello h = rig_hello();
    char path[2 * RIG_PATH];
    FILE *f;
    (void)state;
    snprintf(path, sizeof path, "%s/conf", ingest.rig.base);
    f = fopen(path, "w");
    fputs("clients = 1\n", f);
    fclose(f);
    ingest.rig.args[0] = "--config";
    ingest.rig.args[1] = path;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    memset(&other, 0, sizeof other);
    other.fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
    rig_expect(&other, FRAME_REFUSE);
    assert_int_equal(other.refusal.reason, REASON_BUSY);
    assert_true(other.refusal.retry_ms > 0);
    rig_close(&other);
    rig_close(&ingest.c);
    rig_until(rig_greet(&ingest.rig, &other, 78, &h) ||
              (rig_close(&other), false));
    rig_close(&other);
    rig_stop(&ingest.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_hostile__garbage_and_other_protocols),
        ingest_test(test_hostile__a_frame_cut_at_every_byte),
        ingest_test(test_hostile__data_cut_and_bits_flipped),
        ingest_test(test_hostile__hostile_lengths),
        ingest_test(test_hostile__frames_out_of_place),
        ingest_test(test_hostile__silence_after_connecting_is_ended),
        ingest_test(test_hostile__silent_connections_are_few),
        ingest_test(test_hostile__too_many_clients_are_told_to_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
