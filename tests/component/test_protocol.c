/* What several clients say to one tracerd, right and wrong, in any order, and
 * what it must answer and store: random actions against a small model.
 *
 * What becomes of a number is a function of the stream and the number alone,
 * so whoever sends it, however often and after whatever crash, the run's file
 * must in the end hold exactly that. Of the answers the model knows what they
 * must be, and of the marks between which they must lie: at least what was
 * acknowledged, at most what was sent.
 *
 * TRD_SEED repeats a walk, TRD_FAULT_CASES sets its length: with the same
 * seed a shorter one is the beginning of a longer. */
#include "tests/lib/fates.h"
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/crc32c.h"
#include "proto/place.h"
#include "tracerd/client.h"

enum {
    ACTIONS = 4000, /* unless TRD_FAULT_CASES says otherwise */
    STREAMS = 7,
    CONNS = 6,
    LOG_LINES = 60,
    QUIET_MS = 3000 /* a connection says something at least so often */
};

enum identity { SELF, OTHER, DEAD };

struct conn {
    struct rig_client c; /* fd -1: none */
    struct fates_stream *s;
    enum identity who;
    uint64_t have;  /* what the daemon takes comes behind it */
    uint32_t words; /* the dictionary as it was welcomed and sent since */
    long long spoke_ms;
    uint64_t acks, pongs; /* that came */
};

static struct {
    struct fates_stream s[STREAMS];
    struct conn c[CONNS];
    struct rig_entries e;
    uint8_t bytes[RIG_FRAME_BYTES];
    uint64_t seed, random;
    pid_t other; /* another process that lives */
    char log[LOG_LINES][160];
    unsigned long actions, wrong, repeated, kills;
    bool over;
} w;

/* ---- chance ---- */

static uint32_t chance(uint32_t n)
{
    w.random = fates_mix(w.random);
    return (uint32_t)(w.random % n);
}

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...)
{
    char *line = w.log[w.actions % LOG_LINES];
    int n = snprintf(line, sizeof *w.log, "%lu ", w.actions);
    va_list args;
    va_start(args, format);
    vsnprintf(line + n, sizeof *w.log - (size_t)n, format, args);
    va_end(args);
}

/* ---- what is heard ---- */

static void on_ack(struct conn *c)
{
    struct fates_stream *s = c->s;
    const struct ack *a = &c->c.ack;
    assert_in_range(a->committed_seq, s->acked, s->sent);
    assert_in_range(a->durable_seq, s->durable, a->committed_seq);
    assert_in_range(a->dict_n, s->words_told, s->words);
    s->acked = a->committed_seq;
    s->durable = a->durable_seq;
    s->words_told = a->dict_n;
    c->acks++;
}

/* The type of the next frame, 0 at the end. */
static int hear(struct conn *c)
{
    if (!rig_recv(&c->c))
        return 0;
    assert_int_equal(c->c.got.epoch, c->s ? c->s->epoch : 0);
    if (c->c.got.type == FRAME_ACK)
        on_ack(c);
    c->pongs += c->c.got.type == FRAME_PONG;
    return c->c.got.type;
}

/* What has come; nobody has a reason to hang up. */
static void hear_all(struct conn *c)
{
    struct pollfd p = {.fd = c->c.fd, .events = POLLIN};
    while (poll(&p, 1, 0) > 0) {
        int type = hear(c);
        if (type != FRAME_ACK && type != FRAME_PONG)
            fail_msg("a frame of type %d, reason %d", type,
                     type == FRAME_NACK ? c->c.refusal.reason : 0);
    }
}

static void drop(struct conn *c)
{
    rig_close(&c->c);
    c->s = NULL;
}

/* The other side hangs up, after it said no more than marks. */
static void hear_end(struct conn *c)
{
    int type;
    while ((type = hear(c)))
        if (type != FRAME_ACK && type != FRAME_PONG)
            fail_msg("a frame of type %d before the end", type);
    drop(c);
}

static void hear_no(struct conn *c, enum frame_type type, unsigned reason)
{
    int got;
    do {
        got = hear(c);
        if (!got)
            fail_msg("hung up without a word");
    } while (got == FRAME_ACK || got == FRAME_PONG);
    assert_int_equal(got, type);
    if (c->c.refusal.reason != reason)
        fail_msg("refused for %u, not %u: %.*s", c->c.refusal.reason, reason,
                 (int)c->c.refusal.text.n, c->c.refusal.text.text);
    assert_true(c->c.refusal.text.n > 0);
    assert_int_equal(hear(c), 0);
    drop(c);
    w.wrong++;
}

static void hear_nack(struct conn *c, unsigned reason)
{
    hear_no(c, FRAME_NACK, reason);
}

/* ---- what is said ---- */

static void say_bytes(struct conn *c, size_t n)
{
    /* now and then in two parts */
    size_t part = chance(4) ? n : chance((uint32_t)n + 1);
    rig_write_any(c->c.fd, w.bytes, part);
    rig_write_any(c->c.fd, w.bytes + part, n - part);
    c->spoke_ms = rig_now_ms();
}

static void say(struct conn *c, uint16_t type, uint64_t seq,
                const void *payload, size_t n)
{
    say_bytes(c, rig_frame(w.bytes, c->s->epoch, type, seq, payload, n));
}

static void say_entries(struct conn *c, uint16_t type, uint64_t first)
{
    say_bytes(c, type == FRAME_DICT
                     ? rig_dict_frame(w.bytes, c->s->epoch, &w.e,
                                      (uint32_t)first)
                     : rig_data_frame(w.bytes, c->s->epoch, &w.e, first));
}

static void say_gap(struct conn *c, uint64_t first, uint64_t last,
                    uint64_t frame_seq)
{
    struct gap g = {first, last, 0,
                    fates_of(c->s, last ? last : 1).cause};
    uint8_t payload[64];
    size_t n;
    assert_int_equal(gap_put(&g, payload, sizeof payload, &n), 0);
    say(c, FRAME_GAP, frame_seq, payload, n);
}

static void say_ping(struct conn *c)
{
    struct ping p = {(uint64_t)rig_now_ms(), 1};
    uint8_t payload[16];
    size_t n;
    assert_int_equal(ping_put(&p, payload, sizeof payload, &n), 0);
    say(c, FRAME_PING, 0, payload, n);
}

/* All that was said before has been read then. */
static void ping(struct conn *c)
{
    uint64_t before = c->pongs;
    say_ping(c);
    while (c->pongs == before)
        if (!hear(c))
            fail_msg("hung up at a ping");
}

static void say_words(struct conn *c, uint32_t first, uint32_t n)
{
    fates_words(&w.e, first, n);
    say_entries(c, FRAME_DICT, first);
    if (c->words < first + n - 1)
        c->words = first + n - 1;
    if (c->s->words < c->words)
        c->s->words = c->words;
}

/* The numbers behind what the daemon has, and the words they need. */
static void go_on(struct conn *c, uint32_t n)
{
    uint64_t first = c->have + 1, last;
    if (c->words < FATES_WORDS)
        say_words(c, c->words + 1, FATES_WORDS - c->words);
    if (fates_of(c->s, first).kind == GAP) {
        last = (first - 1) / FATES_BLOCK * FATES_BLOCK + FATES_BLOCK;
        say_gap(c, first, last, first);
    } else {
        last = first + fates_numbers(&w.e, c->s, first, n) - 1;
        say_entries(c, FRAME_DATA, first);
    }
    c->have = last;
    if (c->s->sent < last)
        c->s->sent = last;
}

/* ---- hello ---- */

static struct hello hello_of(const struct fates_stream *s, enum identity who)
{
    struct hello h = rig_hello();
    h.run = slice_of(s->run);
    h.job = slice_of(s->job);
    h.rank = s->rank;
    if (who == OTHER) {
        h.pid = (uint32_t)w.other;
        h.start_time = 0;
    } else if (who == DEAD) {
        h.start_time = 1;
        h.pid = 1;
    }
    return h;
}

static struct conn *speaker_of(const struct fates_stream *s,
                               const struct conn *not)
{
    for (struct conn *c = w.c; c < w.c + CONNS; c++)
        if (c != not && c->c.fd >= 0 && c->s->epoch == s->epoch)
            return c;
    return NULL;
}

static void on_welcome(struct conn *c, uint64_t first_seq)
{
    struct fates_stream *s = c->s;
    const struct welcome *got = &c->c.welcome;
    if (first_seq > s->sent + 1)
        s->sent = first_seq - 1;
    assert_int_equal(got->version, 1);
    assert_in_range(got->committed_seq,
                    s->acked > first_seq - 1 ? s->acked : first_seq - 1,
                    s->sent);
    assert_in_range(got->durable_seq, s->durable, got->committed_seq);
    assert_in_range(got->dict_n, s->words_told, s->words);
    if (s->name[0] && (s->acked || s->job[0]))
        assert_string_equal(s->name, c->c.run);
    snprintf(s->name, sizeof s->name, "%s", c->c.run);
    s->acked = c->have = got->committed_seq;
    s->durable = got->durable_seq;
    s->words_told = c->words = got->dict_n;
}

static void greet(struct conn *c, struct fates_stream *s, enum identity who,
                  uint64_t first_seq)
{
    struct conn *before = speaker_of(s, c);
    struct hello h = hello_of(s, who);
    bool owned = before && before->who != who && before->who != DEAD;
    int type;

    c->s = s;
    c->who = who;
    h.first_seq = first_seq;
    for (uint64_t seq = s->acked + 1; seq < first_seq; seq++)
        s->dropped[seq] = 1;
    say_bytes(c, rig_hello_frame(w.bytes, s->epoch, &h));
    type = hear(c);
    if (owned || (!before && type == FRAME_REFUSE)) {
        /* who has left a moment ago may still be watched */
        assert_int_equal(type, FRAME_REFUSE);
        assert_int_equal(c->c.refusal.reason, REASON_OWNED);
        assert_true(c->c.refusal.retry_ms > 0);
        assert_int_equal(hear(c), 0);
        drop(c);
        return;
    }
    assert_int_equal(type, FRAME_WELCOME);
    if (before) {
        hear_end(before);
        w.repeated++;
    }
    on_welcome(c, first_seq);
}

static void open_conn(struct conn *c)
{
    memset(c, 0, sizeof *c);
    c->c.fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
    assert_true(c->c.fd >= 0);
}

/* ---- actions ---- */

/* A hello that must be refused. */
static void act_bad_hello(struct conn *c, struct fates_stream *s)
{
    struct hello h = hello_of(s, SELF);
    unsigned reason = REASON_VERSION;
    uint32_t kind = chance(6);
    size_t n;
    note("bad hello %u", kind);
    if (kind == 0) {
        h.version_min = 2;
        h.version_max = 3;
    } else if (kind == 1) {
        h.required = 1u << chance(32);
    } else if (kind == 2) {
        h.run = slice_of("../up");
        reason = REASON_MALFORMED;
    }
    n = rig_hello_frame(w.bytes, s->epoch, &h);
    if (kind == 3) { /* half of it, whole as a frame */
        n = rig_frame(w.bytes, s->epoch, FRAME_HELLO, 0,
                      w.bytes + FRAME_HEADER_BYTES,
                      (n - FRAME_HEADER_BYTES) / 2);
        reason = REASON_MALFORMED;
    } else if (kind == 4) {
        size_t at = chance((uint32_t)n - FRAME_HEADER_BYTES);
        w.bytes[FRAME_HEADER_BYTES + at] ^= 0x10;
        reason = REASON_CRC;
    } else if (kind == 5) { /* no hello at all */
        fates_words(&w.e, 1, 3);
        n = rig_dict_frame(w.bytes, s->epoch, &w.e, 1);
        reason = REASON_MALFORMED;
    }
    say_bytes(c, n);
    c->s = NULL; /* a refusal is of no stream, where none was named */
    if (!rig_recv(&c->c))
        fail_msg("hung up without a word");
    assert_int_equal(c->c.got.type, FRAME_REFUSE);
    assert_int_equal(c->c.refusal.reason, reason);
    assert_false(rig_recv(&c->c));
    drop(c);
    w.wrong++;
}

static void act_connect(struct conn *c)
{
    struct fates_stream *s = &w.s[chance(STREAMS)];
    open_conn(c);
    switch (chance(12)) {
    case 0:
    case 1:
        act_bad_hello(c, s);
        break;
    case 2:
        note("hello of stream %d as another", (int)(s - w.s));
        greet(c, s, OTHER, 1);
        break;
    case 3:
        note("hello of stream %d as a dead one", (int)(s - w.s));
        greet(c, s, DEAD, 1);
        break;
    case 4: {
        uint64_t first = s->acked + 1 + chance(20);
        note("hello of stream %d, keeping from %" PRIu64, (int)(s - w.s),
             first);
        greet(c, s, SELF, first < FATES_SEQ_MAX / 2 ? first : 1);
        break;
    }
    case 5: {
        uint8_t part[100];
        struct hello h = hello_of(s, SELF);
        note("half a hello");
        rig_hello_frame(w.bytes, s->epoch, &h);
        memcpy(part, w.bytes, sizeof part);
        rig_write(c->c.fd, part, 1 + chance(sizeof part));
        drop(c);
        break;
    }
    default:
        note("hello of stream %d", (int)(s - w.s));
        greet(c, s, SELF, 1);
        break;
    }
}

/* Numbers or words that the daemon has already: said again, stored once. */
static void act_repeat(struct conn *c)
{
    uint64_t first = 1 + chance((uint32_t)c->have), acks = c->acks;
    uint32_t n = 1 + chance(20);
    bool known;
    if (chance(3) == 0 && c->words) {
        uint32_t from = 1 + chance(c->words);
        note("words %u to %u again", from, c->words);
        say_words(c, from, c->words - from + 1);
    } else if (fates_of(c->s, first).kind == GAP) {
        uint64_t last = (first - 1) / FATES_BLOCK * FATES_BLOCK + FATES_BLOCK;
        note("gap from %" PRIu64 " again", first);
        if (last > c->have) /* it is not lost from there on */
            last = c->have;
        say_gap(c, first, last, first);
    } else {
        known = first + fates_numbers(&w.e, c->s, first, n) - 1 <= c->have;
        note("numbers from %" PRIu64 " again", first);
        if (!known && c->words < FATES_WORDS)
            say_words(c, c->words + 1, FATES_WORDS - c->words);
        n = fates_numbers(&w.e, c->s, first, n);
        say_entries(c, FRAME_DATA, first);
        if (first + n - 1 > c->have)
            c->have = first + n - 1;
        if (c->s->sent < c->have)
            c->s->sent = c->have;
        if (!known)
            return;
    }
    w.repeated++;
    while (c->acks == acks)
        if (!hear(c))
            fail_msg("hung up at what it has already");
}

/* A batch that is wrong in one thing. */
static void act_wrong_batch(struct conn *c)
{
    uint64_t first = c->have + 1;
    struct batch b = {.first = 0};
    uint32_t kind = chance(8), n = 3;
    unsigned reason = REASON_MALFORMED;
    size_t at = BATCH_BYTES;

    note("batch wrong in %u", kind);
    rig_entries_init(&w.e);
    for (uint32_t i = 0; i < n; i++)
        fates_add(&w.e, c->s, first + i + (kind == 6 && i == 2));
    b.n = w.e.n;
    if (kind == 0)
        b.n = 4 + chance(1000);
    else if (kind == 1)
        b.n = 2;
    else if (kind == 2)
        b.n = 0;
    else if (kind == 3)
        b.first = 1 + chance(9); /* a codec */
    else if (kind == 4)
        b.n = UINT32_MAX - chance(2);
    if (kind == 5) {
        at += chance((uint32_t)w.e.n_bytes - BATCH_BYTES);
        w.e.bytes[BATCH_BYTES + ENTRY_HEADER_BYTES] ^= 1;
        reason = REASON_CRC;
    }
    batch_put(w.e.bytes, &b);
    n = (uint32_t)rig_frame(w.bytes, c->s->epoch, FRAME_DATA, first, w.e.bytes,
                            w.e.n_bytes);
    if (kind == 7) { /* on the way */
        w.bytes[FRAME_HEADER_BYTES + at] ^= 0x80;
        reason = REASON_CRC;
    }
    say_bytes(c, n);
    hear_nack(c, reason);
}

/* A frame that may not come, or not now. */
static void act_wrong_frame(struct conn *c)
{
    static const uint8_t clocks[16];
    uint64_t ahead = c->have + 2 + chance(100);
    uint32_t kind = chance(10);
    struct fates_stream *s = c->s;
    size_t n;

    note("frame wrong in %u", kind);
    switch (kind) {
    case 0:
        rig_entries_init(&w.e);
        fates_add(&w.e, s, ahead);
        say_entries(c, FRAME_DATA, ahead);
        hear_nack(c, REASON_GAP);
        break;
    case 1:
        fates_words(&w.e, s->words + 2, 1);
        say_entries(c, FRAME_DICT, s->words + 2);
        hear_nack(c, REASON_GAP);
        break;
    case 2:
        say_gap(c, ahead, ahead + 3, ahead);
        hear_nack(c, REASON_GAP);
        break;
    case 3:
        say_gap(c, c->have + 1, c->have + 1, c->have + 2);
        hear_nack(c, REASON_MALFORMED);
        break;
    case 4:
        say(c, FRAME_BYE, ahead - 1, "", 0);
        hear_nack(c, REASON_GAP);
        break;
    case 5: {
        struct hello h = hello_of(s, c->who);
        say_bytes(c, rig_hello_frame(w.bytes, s->epoch, &h));
        hear_nack(c, REASON_MALFORMED);
        break;
    }
    case 6: /* of another stream */
        n = rig_frame(w.bytes, s->epoch ^ 1, FRAME_PING, 0, clocks, 16);
        say_bytes(c, n);
        hear_nack(c, REASON_MALFORMED);
        break;
    case 7: /* a type that only we are told */
        say(c, (uint16_t)(chance(2) ? FRAME_ACK : 100 + chance(9)), 0, "x", 1);
        hear_nack(c, REASON_MALFORMED);
        break;
    case 8: /* the place is lost */
        n = rig_frame(w.bytes, s->epoch, FRAME_PING, 0, clocks, 16);
        w.bytes[4 + chance(FRAME_HEADER_BYTES - 4)] ^= 4;
        say_bytes(c, n);
        hear_nack(c, REASON_MALFORMED);
        break;
    default:
        fates_words(&w.e, 0, 1); /* ids count from 1 */
        say_entries(c, FRAME_DICT, 0);
        hear_nack(c, REASON_MALFORMED);
        break;
    }
}

static void act_bye(struct conn *c)
{
    uint64_t have = c->have;
    struct fates_stream *s = c->s;
    note("bye of stream %d", (int)(s - w.s));
    say(c, FRAME_BYE, have, "", 0);
    hear_end(c);
    assert_true(s->durable >= have);
}

/* What it had said before it died is a promise. */
static void act_kill(void)
{
    note("kill");
    rig_kill(&ingest.rig);
    for (struct conn *c = w.c; c < w.c + CONNS; c++)
        if (c->c.fd >= 0)
            hear_end(c);
    oracle_start(&ingest.rig);
    w.kills++;
}

static void act_stop(void)
{
    note("stop");
    for (struct conn *c = w.c; c < w.c + CONNS; c++)
        if (c->c.fd >= 0)
            ping(c);
    rig_stop(&ingest.rig);
    for (struct conn *c = w.c; c < w.c + CONNS; c++) {
        struct fates_stream *s = c->s;
        if (c->c.fd < 0)
            continue;
        hear_no(c, FRAME_NACK, REASON_STOPPING);
        assert_true(s->durable >= c->have);
        w.wrong--;
    }
    oracle_start(&ingest.rig);
}

static void act_part_of_a_frame(struct conn *c)
{
    uint64_t next = c->have + 1;
    size_t n;
    note("part of a frame, then the end");
    fates_numbers(&w.e, c->s, next, 3);
    n = rig_data_frame(w.bytes, c->s->epoch, &w.e, next);
    rig_write_any(c->c.fd, w.bytes, chance((uint32_t)n));
    drop(c);
}

static void act_on(struct conn *c)
{
    uint32_t kind = chance(100);
    hear_all(c);
    if (kind < 45 && c->have < FATES_SEQ_MAX - 200) {
        note("stream %d goes on behind %" PRIu64, (int)(c->s - w.s), c->have);
        go_on(c, 1 + chance(60));
    } else if (kind < 62 && c->have) {
        act_repeat(c);
    } else if (kind < 66) {
        note("ping");
        ping(c);
    } else if (kind < 72) {
        note("wait for %" PRIu64, c->have);
        while (c->s->acked < c->have)
            if (!hear(c))
                fail_msg("hung up instead of an acknowledgement");
    } else if (kind < 74) {
        note("wait until %" PRIu64 " is durable", c->have);
        while (c->s->durable < c->have)
            if (!hear(c))
                fail_msg("hung up instead of an acknowledgement");
    } else if (kind < 84) {
        act_wrong_batch(c);
    } else if (kind < 93) {
        act_wrong_frame(c);
    } else if (kind < 95) {
        act_bye(c);
    } else if (kind < 97) {
        act_part_of_a_frame(c);
    } else {
        note("close");
        drop(c);
    }
}

static void act(void)
{
    struct conn *c = &w.c[chance(CONNS)];
    uint32_t kind = chance(400);
    w.actions++;
    if (kind < 4)
        act_kill();
    else if (kind < 5)
        act_stop();
    else if (c->c.fd < 0)
        act_connect(c);
    else
        act_on(c);
    for (c = w.c; c < w.c + CONNS; c++)
        if (c->c.fd >= 0 && rig_now_ms() - c->spoke_ms > QUIET_MS)
            ping(c);
}

/* ---- the end ---- */

static struct conn *finish(struct fates_stream *s)
{
    struct conn *c = w.c;
    open_conn(c);
    greet(c, s, SELF, 1);
    if (c->c.fd < 0)
        return NULL; /* another has just left */
    while (c->have < s->sent)
        go_on(c, 100);
    act_bye(c);
    return c;
}

/* ---- the test ---- */

static unsigned long number_of(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoul(text, NULL, 0) : otherwise;
}

static int set_up(void **state)
{
    static const struct {
        const char *run, *job;
        uint32_t rank;
    } as[STREAMS] = {
        {"a", "one", 0}, {"a", "one", 1}, {"a", "two", 0}, {"b", "one", 0},
        {"b", "one", 0}, {"c", "", 0},    {"c", "", 0},
    };
    memset(&w, 0, sizeof w);
    w.seed = number_of("TRD_SEED", (unsigned long)time(NULL));
    w.random = fates_mix(w.seed);
    for (int i = 0; i < STREAMS; i++) {
        w.s[i].run = as[i].run;
        w.s[i].job = as[i].job;
        w.s[i].rank = as[i].rank;
        w.s[i].epoch = fates_mix(w.random + (uint64_t)i) >> 1;
    }
    w.s[3].epoch = w.s[0].epoch; /* one number, two runs */
    for (int i = 0; i < CONNS; i++)
        w.c[i].c.fd = -1;
    w.other = fork();
    if (w.other == 0)
        for (;;)
            pause();
    return ingest_set_up(state);
}

static int tear_down(void **state)
{
    if (!w.over) {
        print_error("TRD_SEED=%" PRIu64 " TRD_FAULT_CASES=%lu repeats it; the "
                    "last actions:\n",
                    w.seed, w.actions);
        for (unsigned long i = 1; i <= LOG_LINES; i++)
            print_error("  %s\n", w.log[(w.actions + i) % LOG_LINES]);
    }
    for (int i = 0; i < CONNS; i++)
        rig_close(&w.c[i].c);
    kill(w.other, SIGKILL);
    waitpid(w.other, NULL, 0);
    return ingest_tear_down(state);
}

static void test_protocol__any_order_of_right_and_wrong(void **state)
{
    unsigned long n = number_of("TRD_FAULT_CASES", ACTIONS);
    uint64_t stored = 0;
    (void)state;
    print_message("TRD_SEED=%" PRIu64 "\n", w.seed);
    oracle_start(&ingest.rig);
    while (w.actions < n)
        act();
    for (struct conn *c = w.c; c < w.c + CONNS; c++)
        drop(c);
    for (struct fates_stream *s = w.s; s < w.s + STREAMS; s++) {
        rig_until(finish(s));
        stored += s->sent;
    }
    rig_stop(&ingest.rig);
    for (struct fates_stream *s = w.s; s < w.s + STREAMS; s++) {
        fates_check(&ingest.rig, s);
        oracle_run(&ingest.rig, s->name);
    }
    assert_string_equal(w.s[0].name, w.s[1].name);
    assert_string_not_equal(w.s[0].name, w.s[2].name);
    assert_string_not_equal(w.s[5].name, w.s[6].name);
    oracle_verify(&ingest.rig, 0);
    print_message("%lu actions, %lu wrong, %lu repeated, %lu kills, %" PRIu64
                  " numbers\n",
                  w.actions, w.wrong, w.repeated, w.kills, stored);
    oracle_held(18, w.repeated, "said again, or by two, among random actions");
    oracle_held(19, w.wrong, "out of order or wrong, among random actions");
    w.over = true;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_protocol__any_order_of_right_and_wrong, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
