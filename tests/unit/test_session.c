/* What each frame means and when it may come; which numbers are new. */
#include "daemon/order.h"
#include "daemon/session.h"
#include "tests/lib/unit.h"

#include "proto/crc32c.h"
#include "tests/lib/rig.h"
#include "tracerd/client.h"

static struct session s;
static struct rig_entries e;
static uint8_t payload[FRAME_MAX_BYTES];

static struct frame frame_of(uint16_t type, uint64_t seq, size_t n)
{
    struct frame f = {
        .version = WIRE_VERSION,
        .type = type,
        .len = (uint32_t)n,
        .epoch = 77,
        .seq = seq,
    };
    f.crc = crc32c(0, payload, n);
    return f;
}

static struct verdict say(uint16_t type, uint64_t seq, size_t n)
{
    struct frame f = frame_of(type, seq, n);
    return session_frame(&s, &f, payload, 1);
}

static struct verdict say_hello(const struct hello *h)
{
    size_t n = 0;
    assert_int_equal(hello_put(h, payload, sizeof payload, &n), 0);
    return say(FRAME_HELLO, 0, n);
}

static void open_at(uint64_t seq, uint32_t dict_n)
{
    struct hello h = rig_hello();
    session_init(&s);
    assert_int_equal(say_hello(&h).act, DO_STORE);
    assert_int_equal(s.state, SESSION_ASKED);
    session_welcome(&s, seq, dict_n);
}

static struct verdict say_data(uint64_t seq, uint32_t n)
{
    struct batch b = {n, 0};
    rig_fill_data(&e, seq, n);
    memcpy(payload, e.bytes, e.n_bytes);
    batch_put(payload, &b);
    return say(FRAME_DATA, seq, e.n_bytes);
}

static struct verdict say_dict(uint32_t first)
{
    struct batch b = {0, first};
    rig_fill_dict(&e);
    memcpy(payload, e.bytes, e.n_bytes);
    b.n = e.n;
    batch_put(payload, &b);
    return say(FRAME_DICT, 0, e.n_bytes);
}

static struct verdict say_gap(uint64_t first, uint64_t last)
{
    struct gap g = {first, last, 0, TRD_LOST_OOM};
    size_t n = 0;
    assert_int_equal(gap_put(&g, payload, sizeof payload, &n), 0);
    return say(FRAME_GAP, first, n);
}

static void closes(struct verdict v, unsigned reason)
{
    assert_int_equal(v.act, DO_CLOSE);
    assert_int_equal(v.reason, reason);
    assert_non_null(v.why);
}

static void test_order__ranges(void **state)
{
    uint64_t skip = 99;
    (void)state;
    assert_int_equal(order_check(0, 1, 1, &skip), ORDER_NEW);
    assert_int_equal(skip, 0);
    assert_int_equal(order_check(5, 6, 10, &skip), ORDER_NEW);
    assert_int_equal(skip, 0);
    assert_int_equal(order_check(5, 4, 3, &skip), ORDER_NEW);
    assert_int_equal(skip, 2);
    assert_int_equal(order_check(5, 4, 2, &skip), ORDER_DUP);
    assert_int_equal(order_check(5, 1, 1, &skip), ORDER_DUP);
    assert_int_equal(order_check(5, 7, 1, &skip), ORDER_JUMP);
    assert_int_equal(order_check(0, 2, 1, &skip), ORDER_JUMP);
    assert_int_equal(order_check(5, 6, 0, &skip), ORDER_BAD);
    assert_int_equal(order_check(5, 0, 1, &skip), ORDER_BAD);
    assert_int_equal(order_check(0, UINT64_MAX, 1, &skip), ORDER_BAD);
    assert_int_equal(order_check(0, 1, UINT64_MAX, &skip), ORDER_BAD);
    assert_int_equal(order_check(INT64_MAX - 1, INT64_MAX, 1, &skip),
                     ORDER_NEW);
    assert_int_equal(order_check(INT64_MAX - 1, INT64_MAX, 2, &skip),
                     ORDER_BAD);
}

static void test_order__gap_then_late(void **state)
{
    (void)state;
    open_at(0, 0);
    assert_int_equal(say_dict(1).act, DO_STORE);
    assert_int_equal(say_data(1, 5).act, DO_STORE);
    assert_int_equal(say_gap(6, 9).act, DO_STORE);
    assert_int_equal(s.have, 9);
    assert_int_equal(say_data(6, 3).act, DO_ACK);
    assert_int_equal(say_gap(6, 9).act, DO_ACK);
    assert_int_equal(say_data(10, 1).act, DO_STORE);
    closes(say_data(12, 1), REASON_GAP);
}

static void test_session__resumes_where_the_store_is(void **state)
{
    (void)state;
    open_at(100, RIG_DICT_N);
    assert_int_equal(say_dict(1).act, DO_ACK);
    assert_int_equal(say_data(91, 10).act, DO_ACK);
    assert_int_equal(say_data(95, 10).act, DO_STORE);
    assert_int_equal(s.have, 104);
    closes(say_dict(RIG_DICT_N + 2), REASON_GAP);
}

static void test_session__hello_first_and_once(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    session_init(&s);
    closes(say_data(1, 1), REASON_MALFORMED);
    closes(say(FRAME_PING, 0, 0), REASON_MALFORMED);
    open_at(0, 0);
    closes(say_hello(&h), REASON_MALFORMED);
    session_init(&s);
    assert_int_equal(say_hello(&h).act, DO_STORE);
    closes(say_data(1, 1), REASON_MALFORMED); /* before the welcome */
}

static void test_session__hellos_that_do_not_do(void **state)
{
    static const char *const names[] = {"",   ".hidden", "a/b",
                                        "..", "a b",     "\xc3\xa6"};
    struct hello h;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        h = rig_hello();
        h.run = slice_of(names[i]);
        session_init(&s);
        closes(say_hello(&h), REASON_MALFORMED);
    }
    h = rig_hello();
    h.version_min = 2;
    h.version_max = 9;
    session_init(&s);
    closes(say_hello(&h), REASON_VERSION);
    h = rig_hello();
    h.journal = slice_of("../../x.journal");
    session_init(&s);
    closes(say_hello(&h), REASON_MALFORMED);
    session_init(&s);
    closes(say(FRAME_HELLO, 0, 3), REASON_MALFORMED);
}

static void test_session__bye(void **state)
{
    (void)state;
    open_at(0, 0);
    say_dict(1);
    say_data(1, 5);
    closes(say(FRAME_BYE, 6, 0), REASON_GAP);
    assert_int_equal(say(FRAME_BYE, 5, 0).act, DO_STORE);
    assert_int_equal(s.state, SESSION_LEAVING);
    closes(say_data(6, 1), REASON_MALFORMED);
}

static struct verdict say_ping(uint64_t now_ns)
{
    struct ping p = {1, 2};
    struct frame f;
    size_t n = 0;
    assert_int_equal(ping_put(&p, payload, sizeof payload, &n), 0);
    f = frame_of(FRAME_PING, 0, n);
    return session_frame(&s, &f, payload, now_ns);
}

static void test_session__a_clock_a_minute(void **state)
{
    const uint64_t second = UINT64_C(1000000000);
    (void)state;
    open_at(0, 0);
    assert_int_equal(say_ping(10 * second).act, DO_PONG | DO_STORE);
    assert_int_equal(say_ping(20 * second).act, DO_PONG);
    assert_int_equal(say_ping(69 * second).act, DO_PONG);
    assert_int_equal(say_ping(70 * second).act, DO_PONG | DO_STORE);
    closes(say(FRAME_PING, 0, 3), REASON_MALFORMED);
}

static void test_session__frames_it_does_not_know(void **state)
{
    struct frame f;
    (void)state;
    open_at(0, 0);
    f = frame_of(99, 0, 0);
    closes(session_frame(&s, &f, payload, 1), REASON_MALFORMED);
    f.flags = FRAME_OPTIONAL;
    assert_int_equal(session_frame(&s, &f, payload, 1).act, 0);
    closes(say(FRAME_WELCOME, 0, 0), REASON_MALFORMED);
    f = frame_of(FRAME_DATA, 1, 0);
    f.epoch = 78;
    closes(session_frame(&s, &f, payload, 1), REASON_MALFORMED);
    f = frame_of(FRAME_DATA, 1, 8);
    f.crc ^= 1;
    closes(session_frame(&s, &f, payload, 1), REASON_CRC);
    static const uint8_t head[FRAME_HEADER_BYTES] = {'T', 'R', 'C', '1', 7};
    struct verdict v = session_bad_header(&s, TRD_EVERSION, head);
    closes(v, REASON_VERSION);
    assert_string_equal(
        v.why, "a frame of version 7; this daemon speaks version 1");
    closes(session_bad_header(&s, TRD_ELIMIT, head), REASON_TOO_BIG);
    closes(session_bad_header(&s, TRD_ECORRUPT, head), REASON_MALFORMED);
}

static struct verdict say_batch(uint32_t n, uint32_t first, size_t bytes)
{
    struct batch b = {n, first};
    batch_put(payload, &b);
    return say(FRAME_DATA, 1, bytes);
}

static void test_session__batches_that_do_not_hold(void **state)
{
    static const uint32_t counts[] = {0, 2, 4, 1u << 31, UINT32_MAX};
    size_t n;
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        open_at(0, 0);
        rig_fill_data(&e, 1, 3);
        memcpy(payload, e.bytes, e.n_bytes);
        closes(say_batch(counts[i], 0, e.n_bytes), REASON_MALFORMED);
    }
    open_at(0, 0);
    rig_fill_data(&e, 1, 3);
    memcpy(payload, e.bytes, e.n_bytes);
    n = e.n_bytes;
    closes(say_batch(3, 1, n), REASON_MALFORMED); /* a codec */
    for (size_t cut = 0; cut < n - 7; cut++) {
        open_at(0, 0);
        memcpy(payload, e.bytes, n);
        closes(say_batch(3, 0, cut), REASON_MALFORMED);
    }
    for (size_t bit = 8 * BATCH_BYTES; bit < 8 * n; bit++) {
        struct verdict v;
        open_at(0, 0);
        memcpy(payload, e.bytes, n);
        payload[bit / 8] ^= (uint8_t)(1 << bit % 8);
        v = say_batch(3, 0, n);
        /* only what pads an entry to eight bytes may differ */
        if (v.act == DO_STORE)
            assert_int_equal(s.have, 3);
        else
            assert_int_equal(v.act, DO_CLOSE);
    }
}

/* What would come again for ever is let through; the store knows what to do. */
static void test_session__bodies_that_do_not_hold_pass(void **state)
{
    static const uint32_t kinds[] = {ENTRY_RECORD, ENTRY_LOSS, 3,
                                     ENTRY_PAD,    ENTRY_NOTE, 255};
    struct batch b = {1, 1};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        open_at(0, 0);
        rig_entries_init(&e);
        rig_add_unreadable(&e, kinds[i], 1);
        memcpy(payload, e.bytes, e.n_bytes);
        assert_int_equal(say_batch(1, 0, e.n_bytes).act, DO_STORE);
        assert_int_equal(s.have, 1);
        batch_put(payload, &b);
        assert_int_equal(say(FRAME_DICT, 0, e.n_bytes).act, DO_STORE);
        assert_int_equal(s.dict_have, 1);
    }
    open_at(0, 0); /* but not out of its order */
    rig_entries_init(&e);
    rig_add_unreadable(&e, ENTRY_RECORD, 2);
    memcpy(payload, e.bytes, e.n_bytes);
    closes(say_batch(1, 0, e.n_bytes), REASON_MALFORMED);
}

static void test_session__too_many_names(void **state)
{
    (void)state;
    open_at(0, DICT_MAX_ENTRIES - 2);
    closes(say_dict(DICT_MAX_ENTRIES - 1), REASON_QUOTA);
    open_at(0, 0);
    closes(say_dict(UINT32_MAX), REASON_QUOTA);
    closes(say_dict(0), REASON_MALFORMED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order__ranges),
        cmocka_unit_test(test_order__gap_then_late),
        cmocka_unit_test(test_session__resumes_where_the_store_is),
        cmocka_unit_test(test_session__hello_first_and_once),
        cmocka_unit_test(test_session__hellos_that_do_not_do),
        cmocka_unit_test(test_session__bye),
        cmocka_unit_test(test_session__a_clock_a_minute),
        cmocka_unit_test(test_session__frames_it_does_not_know),
        cmocka_unit_test(test_session__batches_that_do_not_hold),
        cmocka_unit_test(test_session__bodies_that_do_not_hold_pass),
        cmocka_unit_test(test_session__too_many_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
