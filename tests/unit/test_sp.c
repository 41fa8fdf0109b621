/* nanomsg's framing, as bytes. */
#include "daemon/sp.h"
#include "tests/lib/unit.h"

#include <stdlib.h>

static const uint8_t req[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

/* A greeting and a message of n bytes that start with a bottom word. */
static size_t stream_of(uint8_t *out, size_t n)
{
    memcpy(out, req, 8);
    sp_head_put(out + 8, n);
    for (size_t i = 0; i < n; i++)
        out[17 + i] = (uint8_t)(i == 0 ? 0x80 : i);
    return 17 + n;
}

static void test_sp__a_message_in_pieces_of_every_size(void **state)
{
    uint8_t bytes[256];
    size_t n = stream_of(bytes, 100);
    (void)state;
    for (size_t piece = 1; piece <= n; piece++) {
        struct sp_reader r;
        enum sp_result rc = SP_MORE;
        size_t at = 0, used, got;
        uint8_t *message;
        sp_reader_init(&r, 1000);
        while (at < n) {
            size_t part = n - at < piece ? n - at : piece;
            rc = sp_reader_feed(&r, bytes + at, part, &used);
            assert_int_equal(used, part);
            at += used;
            assert_int_equal(rc, at == n ? SP_MESSAGE : SP_MORE);
        }
        message = sp_reader_take(&r, &got);
        assert_int_equal(got, 100);
        assert_memory_equal(message, bytes + 17, 100);
        free(message);
        sp_reader_fini(&r);
    }
}

static void test_sp__two_messages_in_one_piece(void **state)
{
    uint8_t bytes[256];
    struct sp_reader r;
    size_t n = stream_of(bytes, 10), used, got;
    (void)state;
    memcpy(bytes + n, bytes + 8, n - 8);
    n += n - 8;
    sp_reader_init(&r, 1000);
    assert_int_equal(sp_reader_feed(&r, bytes, n, &used), SP_MESSAGE);
    assert_int_equal(used, 27);
    free(sp_reader_take(&r, &got));
    assert_int_equal(sp_reader_feed(&r, bytes + used, n - used, &used),
                     SP_MESSAGE);
    free(sp_reader_take(&r, &got));
    assert_int_equal(got, 10);
    sp_reader_fini(&r);
}

static void test_sp__every_wrong_byte_of_a_greeting(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        for (int bit = 0; bit < 8; bit++) {
            uint8_t bytes[8];
            struct sp_reader r;
            size_t used;
            memcpy(bytes, req, 8);
            bytes[i] ^= (uint8_t)(1 << bit);
            sp_reader_init(&r, 1000);
            assert_int_equal(sp_reader_feed(&r, bytes, 8, &used), SP_WRONG);
            sp_reader_fini(&r);
        }
    }
}

static enum sp_result feed_head(const uint8_t head[9])
{
    uint8_t bytes[17];
    struct sp_reader r;
    enum sp_result rc;
    size_t used;
    memcpy(bytes, req, 8);
    memcpy(bytes + 8, head, 9);
    sp_reader_init(&r, 1000);
    rc = sp_reader_feed(&r, bytes, sizeof bytes, &used);
    sp_reader_fini(&r);
    return rc;
}

static void test_sp__lengths(void **state)
{
    static const uint64_t wrong[] = {
        0,         1, 3, 1001, UINT32_MAX, UINT64_C(1) << 32, UINT64_C(1) << 63,
        UINT64_MAX};
    uint8_t head[9];
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sp_head_put(head, wrong[i]);
        assert_int_equal(feed_head(head), SP_WRONG);
    }
    sp_head_put(head, 1000);
    assert_int_equal(feed_head(head), SP_MORE);
    sp_head_put(head, 4);
    assert_int_equal(feed_head(head), SP_MORE);
    for (int type = 0; type < 256; type++) {
        head[0] = (uint8_t)type;
        assert_int_equal(feed_head(head), type == 1 ? SP_MORE : SP_WRONG);
    }
}

static void test_sp__the_way_back(void **state)
{
    uint8_t m[64];
    (void)state;
    memset(m, 0, sizeof m);
    assert_int_equal(sp_back_bytes(m, sizeof m), 0); /* no bottom */
    m[0] = 0x80;
    assert_int_equal(sp_back_bytes(m, 4), 4);
    assert_int_equal(sp_back_bytes(m, 3), 0);
    assert_int_equal(sp_back_bytes(m, 0), 0);
    m[0] = 0;
    m[8] = 0xff;
    assert_int_equal(sp_back_bytes(m, 12), 12);
    assert_int_equal(sp_back_bytes(m, 11), 0);
    m[8] = 0;
    m[28] = 0x80; /* the last that is allowed */
    assert_int_equal(sp_back_bytes(m, sizeof m), SP_BACK_MAX);
    m[28] = 0;
    m[32] = 0x80;
    assert_int_equal(sp_back_bytes(m, sizeof m), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sp__a_message_in_pieces_of_every_size),
        cmocka_unit_test(test_sp__two_messages_in_one_piece),
        cmocka_unit_test(test_sp__every_wrong_byte_of_a_greeting),
        cmocka_unit_test(test_sp__lengths),
        cmocka_unit_test(test_sp__the_way_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
