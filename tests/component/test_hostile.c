/* What no client says: garbage, cuts, flipped bits, hostile lengths, frames
 * out of place, silence, too many at once. The connection may end, the daemon
 * does not. */
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/place.h"
#include "proto/query.h"
#include "tracerd/client.h"

/* The bytes are not of this protocol: the connection ends, the daemon does
 * not. */
static void send_garbage(const char *name, const void *bytes, size_t n)
{
    int fd = rig_connect(ingest.rig.dir, name);
    assert_true(fd >= 0);
    rig_write_any(fd, bytes, n);
    rig_hung_up(fd);
    close(fd);
}

static size_t log_lines(const char *with)
{
    char *text = rig_log(&ingest.rig), *at = text;
    size_t n = 0;
    for (; (at = strstr(at, with)); at++)
        n++;
    free(text);
    return n;
}

static bool slow(void)
{
    const char *text = getenv("TRD_TEST_SLOW");
    return text && *text;
}

static void test_hostile__garbage_and_other_protocols(void **state)
{
    static const struct {
        const char *what, *bytes;
        size_t n;
    } other[] = {
#define OTHER(what, bytes) {what, bytes, sizeof(bytes) - 1}
        OTHER("http", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        OTHER("http 2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        OTHER("tls", "\x16\3\1\2\0\1\0\1\xfc\3\3"),
        OTHER("ssh", "SSH-2.0-OpenSSH_9.2\r\n"),
        OTHER("dbus", "\0AUTH EXTERNAL 30\r\n"),
        OTHER("a publisher of nanomsg", "\0SP\0\0\x20\0\0"),
        OTHER("zeros", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        OTHER("a line", "hello\n"),
#undef OTHER
    };
    static const char req[] = "\0SP\0\0\x30\0\0";
    static uint8_t noise[1 << 20];
    struct hello h = rig_hello();
    size_t n = 0, hello_n;
    uint32_t x = 12345;
    (void)state;
    oracle_start(&ingest.rig);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        send_garbage(PLACE_INGEST, other[i].bytes, other[i].n);
        send_garbage(PLACE_QUERY, other[i].bytes, other[i].n);
        n += 2;
    }
    send_garbage(PLACE_INGEST, req, sizeof req - 1);
    hello_n = rig_hello_frame(noise, 77, &h);
    send_garbage(PLACE_QUERY, noise, hello_n);
    n += 2;
    for (int i = 0; i < 50; i++) {
        for (size_t k = 0; k < sizeof noise; k++) {
            x = x * 1664525 + 1013904223;
            noise[k] = (uint8_t)(x >> 24);
        }
        if (i % 3 == 1)
            memcpy(noise, "TRC1", 4);
        else if (i % 3 == 2)
            memcpy(noise, req, sizeof req - 1);
        /* one of them may do */
        send_garbage(i % 3 == 2 ? PLACE_QUERY : PLACE_INGEST, noise,
                     i ? 4096 : sizeof noise);
        n++;
    }
    assert_true(rig_alive(&ingest.rig));
    rig_open(&ingest.rig, &ingest.c, 77);
    rig_stop(&ingest.rig);
    /* a line each, however much came */
    assert_int_equal(
        log_lines("peer_closed") + log_lines("asker_closed"), n);
    oracle_held(24, n, "other protocols and noise on both sockets");
}

/* ---- frames that are cut or damaged ---- */

enum { TALK_FRAMES = 5, TALK_MAX = 4096 };

/* A whole conversation: hello, dictionary, records 1 to 3, a gap to 5, bye. */
struct talk {
    uint8_t bytes[TALK_MAX];
    size_t end[TALK_FRAMES]; /* of each frame */
};
static const uint64_t talk_seq[TALK_FRAMES] = {0, 0, 3, 5, 5};

static void add_frame(struct talk *t, int i, const uint8_t *bytes, size_t n)
{
    size_t at = i ? t->end[i - 1] : 0;
    assert_true(at + n <= sizeof t->bytes);
    memcpy(t->bytes + at, bytes, n);
    t->end[i] = at + n;
}

/* attempt, rank: to tell streams apart. */
static void fill_talk(struct talk *t, uint64_t epoch, uint32_t attempt,
                      uint32_t rank)
{
    static uint8_t frame[RIG_FRAME_BYTES];
    struct hello h = rig_hello();
    struct gap g = {4, 5, 0, TRD_LOST_OOM};
    uint8_t payload[64];
    size_t n;
    h.attempt = attempt;
    h.rank = rank;
    add_frame(t, 0, frame, rig_hello_frame(frame, epoch, &h));
    rig_fill_dict(&ingest.e);
    add_frame(t, 1, frame, rig_dict_frame(frame, epoch, &ingest.e, 1));
    rig_fill_data(&ingest.e, 1, 3);
    add_frame(t, 2, frame, rig_data_frame(frame, epoch, &ingest.e, 1));
    assert_int_equal(gap_put(&g, payload, sizeof payload, &n), 0);
    add_frame(t, 3, frame, rig_frame(frame, epoch, FRAME_GAP, 4, payload, n));
    add_frame(t, 4, frame, rig_frame(frame, epoch, FRAME_BYE, 5, "", 0));
}

/* Says n bytes of it and waits until the daemon has hung up. */
static void say_talk(const struct talk *t, size_t n)
{
    int fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
    assert_true(fd >= 0);
    rig_write_any(fd, t->bytes, n);
    shutdown(fd, SHUT_WR);
    rig_hung_up(fd);
    close(fd);
}

static void say_whole_talk(void)
{
    static struct talk t;
    fill_talk(&t, 77, 5, 0);
    say_talk(&t, t.end[TALK_FRAMES - 1]);
}

/* attempt is what each stream must have come to. */
static void check_marks(int64_t streams)
{
    rig_until(ingest_ask("run", "SELECT count(*) FROM stream") == streams &&
              ingest_ask("run", "SELECT count(*) FROM stream WHERE seq != "
                                "attempt") == 0);
    ingest_values("run", 77);
    oracle_run(&ingest.rig, "run");
}

static void test_hostile__a_frame_cut_at_every_byte(void **state)
{
    static struct talk t;
    struct oracle_footprint before, after;
    int64_t streams = 1;
    size_t n;
    int i = 0;
    (void)state;
    oracle_start(&ingest.rig);
    say_whole_talk();
    before = oracle_footprint(ingest.rig.pid);
    fill_talk(&t, 1, 0, 1);
    n = t.end[TALK_FRAMES - 1];
    for (size_t cut = 0; cut < n; cut++) {
        i = 0;
        while (cut >= t.end[i])
            i++;
        /* up to the frame before, numbers of which the mark is known */
        fill_talk(&t, 1000 + cut, i ? (uint32_t)talk_seq[i - 1] : 0,
                  1 + (uint32_t)cut);
        say_talk(&t, cut);
        streams += i > 0;
    }
    check_marks(streams);
    assert_int_equal(
        ingest_ask("run", "SELECT count(*) FROM stream WHERE state = 'ended'"),
        1);
    assert_true(rig_alive(&ingest.rig));
    rig_until((after = oracle_footprint(ingest.rig.pid),
               after.descriptors <= before.descriptors));
    oracle_no_growth(&before, &after, RIG_GROWTH_KB(16 * 1024));
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
    oracle_held(20, n, "hello, dict, data, gap, bye cut, then closed");
}

static void test_hostile__every_bit_of_a_conversation_flipped(void **state)
{
    static struct talk t;
    size_t step = slow() ? 1 : 5, bits, n = 0;
    int64_t streams = 1;
    (void)state;
    oracle_start(&ingest.rig);
    say_whole_talk();
    fill_talk(&t, 1, 0, 1);
    bits = 8 * t.end[2];
    for (size_t bit = 0; bit < bits; bit += step) {
        fill_talk(&t, 1000 + bit, 0, 1 + (uint32_t)bit);
        t.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        say_talk(&t, t.end[2]);
        streams += bit / 8 >= t.end[0];
        n++;
    }
    check_marks(streams);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 3);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream WHERE "
                                       "dict_n NOT IN (0, 4)"),
                     0);
    assert_true(rig_alive(&ingest.rig));
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
    oracle_held(21, n, "bits of hello, dict, data flipped on the way");
}

/* The frame's own checksum holds: that of the entry must tell. */
static void test_hostile__every_bit_below_a_frame_s_checksum(void **state)
{
    static struct talk t;
    static uint8_t frame[RIG_FRAME_BYTES];
    size_t step = slow() ? 1 : 7, n = 0;
    (void)state;
    oracle_start(&ingest.rig);
    say_whole_talk();
    fill_talk(&t, 1, 0, 1);
    for (size_t bit = 8 * t.end[0]; bit < 8 * t.end[2]; bit += step) {
        int i = bit / 8 < t.end[1] ? 1 : 2;
        size_t from = t.end[i - 1] + FRAME_HEADER_BYTES;
        if (bit / 8 < from)
            continue;
        fill_talk(&t, 1000 + bit, 0, 1 + (uint32_t)bit);
        t.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        rig_frame(frame, 1000 + bit, i == 1 ? FRAME_DICT : FRAME_DATA, i == 2,
                  t.bytes + from, t.end[i] - from);
        memcpy(t.bytes + t.end[i - 1], frame, FRAME_HEADER_BYTES);
        say_talk(&t, t.end[2]);
        n++;
    }
    rig_until(ingest_ask("run", "SELECT count(*) FROM stream") ==
              (int64_t)n + 1);
    rig_stop(&ingest.rig);
    /* padding is nobody's: such a batch is whole */
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream WHERE seq "
                                       "NOT IN (0, 3) AND rank != 0"),
                     0);
    ingest_values("run", 77);
    oracle_run(&ingest.rig, "run");
    oracle_verify(&ingest.rig, 0);
    oracle_held(21, n, "bits of entries flipped, the frame's checksum right");
}

/* ---- lengths and counts ---- */

static void say_payload(uint16_t type, uint64_t seq, const void *payload,
                        size_t n)
{
    struct hello h = rig_hello();
    if (!rig_greet(&ingest.rig, &ingest.c, 77, &h))
        fail_msg("refused: %.*s", (int)ingest.c.refusal.text.n,
                 ingest.c.refusal.text.text);
    rig_send(&ingest.c, type, seq, payload, n);
    shutdown(ingest.c.fd, SHUT_WR);
    rig_hung_up(ingest.c.fd);
    rig_close(&ingest.c);
}

static const uint64_t hostile_n[] = {0,
                                     1,
                                     3,
                                     255,
                                     UINT16_MAX,
                                     FRAME_CONTROL_MAX_BYTES,
                                     FRAME_CONTROL_MAX_BYTES + 1,
                                     FRAME_MAX_BYTES,
                                     FRAME_MAX_BYTES + 1,
                                     UINT64_C(1) << 31,
                                     UINT32_MAX,
                                     UINT64_C(1) << 32,
                                     UINT64_C(1) << 61, /* times 8: nothing */
                                     UINT64_C(1) << 63,
                                     UINT64_MAX};
enum { HOSTILE_N = sizeof hostile_n / sizeof *hostile_n };

static uint64_t frames_of_hostile_length(void)
{
    uint8_t head[FRAME_HEADER_BYTES];
    uint64_t n = 0;
    for (unsigned type = 0; type < 14; type++) {
        for (size_t i = 0; i < HOSTILE_N; i++) {
            struct frame f = {.version = WIRE_VERSION,
                              .type = (uint16_t)type,
                              .len = (uint32_t)hostile_n[i],
                              .epoch = 77,
                              .seq = hostile_n[i]};
            int fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
            frame_put(head, &f);
            rig_write_any(fd, head, sizeof head);
            shutdown(fd, SHUT_WR);
            rig_hung_up(fd);
            close(fd);
            rig_open(&ingest.rig, &ingest.c, 77); /* the same, greeted */
            rig_write_any(ingest.c.fd, head, sizeof head);
            shutdown(ingest.c.fd, SHUT_WR);
            rig_hung_up(ingest.c.fd);
            rig_close(&ingest.c);
            n += 2;
        }
    }
    return n;
}

/* Every u16 and u32 at every place of the payload. */
static uint64_t numbers_anywhere(uint16_t type, uint64_t seq,
                                 const uint8_t *payload, size_t n)
{
    static uint8_t bytes[TALK_MAX];
    size_t step = slow() ? 1 : 9;
    uint64_t said = 0;
    assert_true(n <= sizeof bytes);
    for (size_t at = 0; at + 4 <= n; at += step) {
        uint32_t v = (uint32_t)hostile_n[said % HOSTILE_N];
        memcpy(bytes, payload, n);
        memcpy(bytes + at, &v, said % 3 ? 4 : 2);
        if (type == FRAME_HELLO) {
            ingest.c.fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
            ingest.c.epoch = 79;
            rig_send(&ingest.c, type, 0, bytes, n);
            shutdown(ingest.c.fd, SHUT_WR);
            rig_hung_up(ingest.c.fd);
            rig_close(&ingest.c);
        } else {
            say_payload(type, seq, bytes, n);
        }
        said++;
    }
    return said;
}

/* Bodies whose entry is whole and says that there is more than there is. */
static uint64_t entries_of_hostile_count(void)
{
    static const uint32_t kinds[] = {ENTRY_RECORD, ENTRY_LOSS,  ENTRY_OBJECT,
                                     ENTRY_SITE,   ENTRY_SHAPE, ENTRY_NOTE,
                                     ENTRY_PAD,    ENTRY_RESERVED};
    uint64_t n = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (size_t i = 0; i < HOSTILE_N; i++) {
            for (unsigned before = 0; before < 16; before += 3) {
                bool dict = kinds[k] >= ENTRY_OBJECT;
                uint8_t body[256];
                struct writer w = writer_of(body, sizeof body);
                struct batch b = {1, dict};
                for (unsigned j = 0; j < before; j++)
                    put_u8(&w, (uint8_t)(j == 1 ? 0x7f : 1));
                for (int j = 0; j < 4; j++)
                    put_varint(&w, hostile_n[i]);
                rig_entries_init(&ingest.e);
                rig_add_entry(&ingest.e, kinds[k], 1, body,
                              (size_t)(w.at - body));
                batch_put(ingest.e.bytes, &b);
                say_payload(dict ? FRAME_DICT : FRAME_DATA, dict ? 0 : 1,
                            ingest.e.bytes, ingest.e.n_bytes);
                n++;
            }
        }
    }
    return n;
}

/* Messages and fields of the query socket. */
static uint64_t questions_of_hostile_length(void)
{
    static const char greeting[] = "\0SP\0\0\x30\0\0";
    uint64_t n = 0;
    for (size_t i = 0; i < HOSTILE_N; i++) {
        for (unsigned field = 0; field < 12; field++) {
            uint8_t bytes[512];
            struct writer w = writer_of(bytes, sizeof bytes);
            uint8_t *head;
            uint64_t len = hostile_n[i];
            int fd = rig_connect(ingest.rig.dir, PLACE_QUERY);
            put_bytes(&w, greeting, sizeof greeting - 1);
            put_u8(&w, 1);
            head = put_room(&w, 8);
            put_u32(&w, 0x80); /* 80 00 00 00 on the wire: the way back */
            put_u32(&w, QUERY_MAGIC);
            put_u16(&w, 1);
            put_u16(&w, (uint16_t)(1 + field % 4));
            put_u16(&w, (uint16_t)(field == 11 ? hostile_n[i] : 1));
            put_u8(&w, (uint8_t)(1 + field));
            put_u32(&w, (uint32_t)hostile_n[i]);
            put_u64(&w, hostile_n[i]);
            if (field) /* the message is as long as it says */
                len = (uint64_t)(w.at - head - 8);
            for (int j = 0; j < 8; j++)
                head[j] = (uint8_t)(len >> (56 - 8 * j));
            rig_write_any(fd, bytes, (size_t)(w.at - bytes));
            shutdown(fd, SHUT_WR);
            rig_hung_up(fd);
            close(fd);
            n++;
        }
    }
    return n;
}

static void test_hostile__hostile_lengths(void **state)
{
    static struct talk t;
    enum { WORKERS = 18 }; /* of daemon/main.c */
    struct oracle_footprint before, after;
    uint64_t n;
    (void)state;
    oracle_start(&ingest.rig);
    say_whole_talk();
    fill_talk(&t, 77, 0, 0);
    /* some of these are hellos of other runs, whose files stay open */
    n = numbers_anywhere(FRAME_HELLO, 0, t.bytes + FRAME_HEADER_BYTES,
                         t.end[0] - FRAME_HEADER_BYTES);
    /* what these need once, it has then */
    n += frames_of_hostile_length();
    n += questions_of_hostile_length();
    before = oracle_footprint(ingest.rig.pid);
    n += frames_of_hostile_length();
    for (int i = 1; i < 4; i++)
        n += numbers_anywhere(i == 1   ? FRAME_DICT
                              : i == 2 ? FRAME_DATA
                                       : FRAME_GAP,
                              i == 1 ? 0 : 1,
                              t.bytes + t.end[i - 1] + FRAME_HEADER_BYTES,
                              t.end[i] - t.end[i - 1] - FRAME_HEADER_BYTES);
    n += entries_of_hostile_count();
    n += questions_of_hostile_length();
    assert_true(rig_alive(&ingest.rig));
    /* the pool may have grown, and SQLite keeps, for the next connection, a
     * descriptor of a file as often as it was open at once */
    before.descriptors += WORKERS - 1;
    rig_until((after = oracle_footprint(ingest.rig.pid),
               after.descriptors <= before.descriptors));
    before.threads = after.threads;
    oracle_no_growth(&before, &after, RIG_GROWTH_KB(16 * 1024));
    rig_open(&ingest.rig, &ingest.c, 77);
    rig_stop(&ingest.rig);
    oracle_run(&ingest.rig, "run");
    oracle_verify(&ingest.rig, 0);
    oracle_held(23, n, "lengths and counts of 0 to 2^64 - 1 in every field");
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
    assert_true(rig_now_ms() - start > HELLO_MS - 100);
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
        ingest_test(test_hostile__every_bit_of_a_conversation_flipped),
        ingest_test(test_hostile__every_bit_below_a_frame_s_checksum),
        ingest_test(test_hostile__hostile_lengths),
        ingest_test(test_hostile__frames_out_of_place),
        ingest_test(test_hostile__silence_after_connecting_is_ended),
        ingest_test(test_hostile__silent_connections_are_few),
        ingest_test(test_hostile__too_many_clients_are_told_to_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
