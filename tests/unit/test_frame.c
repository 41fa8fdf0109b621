/* Frames: what goes in comes out, and what is broken is refused. */
#include "tests/lib/unit.h"

#include "proto/frame.h"
#include "tracerd/client.h"

static struct hello a_hello(void)
{
    struct hello h = {.version_min = 1,
                      .version_max = 1,
                      .rank = 3,
                      .attempt = 1,
                      .world = 8,
                      .pid = 4242,
                      .start_time = 77,
                      .boot_id = {1, 2, 3},
                      .mono_ns = 5,
                      .real_ns = 1700000000000000000,
                      .first_seq = 1,
                      .last_seq = 9,
                      .dict_n = 4,
                      .max_len = FRAME_MAX_BYTES,
                      .run = slice_of("train"),
                      .job = slice_of("job-1"),
                      .host = slice_of("node1"),
                      .client = slice_of("0.1.0"),
                      .journal = slice_of("train.3.journal"),
                      .info = slice_of("{\"a\":1}")};
    return h;
}

static void test_frame__header_survives_the_way(void **state)
{
    (void)state;
    uint8_t bytes[FRAME_HEADER_BYTES];
    struct frame f = {.version = WIRE_VERSION, .type = FRAME_DATA, .len = 100,
                      .crc = 0x01020304, .epoch = 0x1122334455667788,
                      .seq = 42, .flags = 0},
                 g;
    frame_put(bytes, &f);
    assert_int_equal(frame_get(bytes, &g), 0);
    uint8_t again[FRAME_HEADER_BYTES];
    frame_put(again, &g);
    assert_memory_equal(bytes, again, sizeof bytes);
    assert_true(g.epoch == f.epoch && g.seq == 42 && g.len == 100);
}

static void test_frame__every_flipped_bit_is_found(void **state)
{
    (void)state;
    uint8_t bytes[FRAME_HEADER_BYTES];
    struct frame f = {.version = WIRE_VERSION, .type = FRAME_ACK, .len = 24,
                      .epoch = 7, .seq = 1},
                 g;
    frame_put(bytes, &f);
    for (unsigned bit = 0; bit < 8 * FRAME_HEADER_BYTES; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(frame_get(bytes, &g), TRD_ECORRUPT);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void test_frame__length_over_the_limit_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[FRAME_HEADER_BYTES];
    struct frame f = {.version = WIRE_VERSION, .type = FRAME_DATA}, g;
    const struct {
        uint16_t type;
        uint32_t len;
        int result;
    } rows[] = {{FRAME_DATA, FRAME_MAX_BYTES, 0},
                {FRAME_DATA, FRAME_MAX_BYTES + 1, TRD_ELIMIT},
                {FRAME_HELLO, FRAME_CONTROL_MAX_BYTES, 0},
                {FRAME_HELLO, FRAME_CONTROL_MAX_BYTES + 1, TRD_ELIMIT},
                {FRAME_ACK, UINT32_MAX, TRD_ELIMIT}};
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        f.type = rows[i].type;
        f.len = rows[i].len;
        frame_put(bytes, &f);
        assert_int_equal(frame_get(bytes, &g), rows[i].result);
    }
}

static void test_frame__version_of_the_future_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[FRAME_HEADER_BYTES];
    struct frame f = {.version = WIRE_VERSION + 1, .type = FRAME_DATA}, g;
    frame_put(bytes, &f);
    assert_int_equal(frame_get(bytes, &g), TRD_EVERSION);
}

static void test_hello__survives_the_way(void **state)
{
    (void)state;
    uint8_t bytes[512];
    struct hello h = a_hello(), g;
    size_t n;
    assert_int_equal(hello_put(&h, bytes, sizeof bytes, &n), 0);
    assert_int_equal(hello_get(bytes, n, &g), 0);
    assert_int_equal(g.rank, 3);
    assert_int_equal(g.real_ns, 1700000000000000000);
    assert_slice(g.run, "train");
    assert_slice(g.job, "job-1");
    assert_slice(g.journal, "train.3.journal");
    assert_slice(g.info, "{\"a\":1}");
}

/* What a client does when its journal is full stands at the end, where older
 * ones have nothing. */
static void test_hello__with_a_policy_survives_the_way(void **state)
{
    (void)state;
    uint8_t bytes[512];
    struct hello h = a_hello(), g;
    size_t n, plain;
    assert_int_equal(hello_put(&h, bytes, sizeof bytes, &plain), 0);
    assert_int_equal(hello_get(bytes, plain, &g), 0);
    assert_slice(g.spool, "");
    assert_int_equal(g.block_ms, 0);
    assert_int_equal(g.spool_bytes, 0);
    h.spool = slice_of("/d/train.3.0000002a.spool");
    h.block_ms = 250;
    h.spool_bytes = UINT64_C(1) << 40;
    assert_int_equal(hello_put(&h, bytes, sizeof bytes, &n), 0);
    assert_int_equal(hello_get(bytes, n, &g), 0);
    assert_slice(g.spool, "/d/train.3.0000002a.spool");
    assert_int_equal(g.block_ms, 250);
    assert_true(g.spool_bytes == UINT64_C(1) << 40);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(hello_get(bytes, cut, &g) < 0, cut != plain);
    assert_int_equal(hello_get(bytes, n + 3, &g), 0); /* of a later version */
    h.spool_bytes = UINT64_MAX;
    assert_int_equal(hello_put(&h, bytes, sizeof bytes, &n), 0);
    assert_int_equal(hello_get(bytes, n, &g), TRD_EINVAL);
}

static void test_hello__cut_at_every_byte_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[512];
    struct hello h = a_hello(), g;
    size_t n;
    assert_int_equal(hello_put(&h, bytes, sizeof bytes, &n), 0);
    for (size_t cut = 0; cut < n; cut++)
        assert_true(hello_get(bytes, cut, &g) < 0);
}

static void test_hello__values_out_of_range_are_refused(void **state)
{
    (void)state;
    uint8_t bytes[512];
    struct hello g;
    size_t n;
    struct hello rank = a_hello(), seq = a_hello(), attempt = a_hello(),
                 required = a_hello(), version = a_hello();
    rank.rank = RANK_LIMIT;
    seq.first_seq = 0;
    attempt.attempt = ATTEMPT_LIMIT;
    required.required = 1;
    version.version_min = version.version_max = 9;
    const struct {
        const struct hello *hello;
        int result;
    } rows[] = {{&rank, TRD_EINVAL},
                {&seq, TRD_EINVAL},
                {&attempt, TRD_EINVAL},
                {&required, TRD_EVERSION},
                {&version, TRD_EVERSION}};
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(hello_put(rows[i].hello, bytes, sizeof bytes, &n),
                         0);
        assert_int_equal(hello_get(bytes, n, &g), rows[i].result);
    }
}

static void test_welcome_ack_gap_ping_refusal__survive_the_way(void **state)
{
    (void)state;
    uint8_t bytes[512];
    size_t n;
    struct welcome w = {.version = 1, .stream = 5, .committed_seq = 9,
                        .durable_seq = 8, .dict_n = 2, .credit_bytes = 100,
                        .max_len = FRAME_MAX_BYTES, .idle_ms = 1,
                        .run = slice_of("r")},
                   w2;
    assert_int_equal(welcome_put(&w, bytes, sizeof bytes, &n), 0);
    assert_int_equal(welcome_get(bytes, n, &w2), 0);
    assert_int_equal(w2.durable_seq, 8);
    assert_slice(w2.run, "r");
    struct ack a = {7, 6, 5, 4}, a2;
    assert_int_equal(ack_put(&a, bytes, sizeof bytes, &n), 0);
    assert_int_equal(ack_get(bytes, n, &a2), 0);
    assert_true(a2.committed_seq == 7 && a2.credit_bytes == 4);
    struct gap g = {3, 9, 0, TRD_LOST_TORN}, g2;
    assert_int_equal(gap_put(&g, bytes, sizeof bytes, &n), 0);
    assert_int_equal(gap_get(bytes, n, &g2), 0);
    assert_int_equal(g2.last, 9);
    struct ping p = {1, 2}, p2;
    assert_int_equal(ping_put(&p, bytes, sizeof bytes, &n), 0);
    assert_int_equal(ping_get(bytes, n, &p2), 0);
    assert_int_equal(p2.real_ns, 2);
    struct refusal r = {REASON_BUSY, 50, slice_of("full")}, r2;
    assert_int_equal(refusal_put(&r, bytes, sizeof bytes, &n), 0);
    assert_int_equal(refusal_get(bytes, n, &r2), 0);
    assert_slice(r2.text, "full");
}

static void test_ack_and_gap__contradictions_are_refused(void **state)
{
    (void)state;
    uint8_t bytes[64];
    size_t n;
    struct ack a = {5, 6, 0, 0};
    assert_int_equal(ack_put(&a, bytes, sizeof bytes, &n), 0);
    assert_int_equal(ack_get(bytes, n, &a), TRD_EINVAL);
    struct gap backwards = {9, 3, 0, 0}, cause = {1, 1, 0, 99};
    assert_int_equal(gap_put(&backwards, bytes, sizeof bytes, &n), 0);
    assert_int_equal(gap_get(bytes, n, &backwards), TRD_EINVAL);
    assert_int_equal(gap_put(&cause, bytes, sizeof bytes, &n), 0);
    assert_int_equal(gap_get(bytes, n, &cause), TRD_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame__header_survives_the_way),
        cmocka_unit_test(test_frame__every_flipped_bit_is_found),
        cmocka_unit_test(test_frame__length_over_the_limit_is_refused),
        cmocka_unit_test(test_frame__version_of_the_future_is_refused),
        cmocka_unit_test(test_hello__survives_the_way),
        cmocka_unit_test(test_hello__with_a_policy_survives_the_way),
        cmocka_unit_test(test_hello__cut_at_every_byte_is_refused),
        cmocka_unit_test(test_hello__values_out_of_range_are_refused),
        cmocka_unit_test(test_welcome_ack_gap_ping_refusal__survive_the_way),
        cmocka_unit_test(test_ack_and_gap__contradictions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
