/* What a raw client says to a rig: frames, entries, journals. */
#include "tests/lib/rig.h"

#include "proto/crc32c.h"
#include "proto/journal.h"
#include "proto/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- frames ---- */

static void read_boot_id(uint8_t out[16])
{
    char text[64] = "";
    unsigned digits = 0;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    memset(out, 0, 16);
    if (f && fgets(text, sizeof text, f)) {
        for (const char *p = text; *p && digits < 32; p++) {
            int c = *p >= '0' && *p <= '9'   ? *p - '0'
                    : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10
                                             : -1;
            if (c < 0)
                continue;
            out[digits / 2] = (uint8_t)(out[digits / 2] << 4 | c);
            digits++;
        }
    }
    if (f)
        fclose(f);
}

static uint64_t read_start_time(void)
{
    char line[1024];
    unsigned long long v = 0;
    FILE *f = fopen("/proc/self/stat", "r");
    char *p = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    for (int i = 2; p && i < 22; i++)
        p = strchr(p + 1, ' ');
    if (p)
        v = strtoull(p + 1, NULL, 10);
    if (f)
        fclose(f);
    return v;
}

struct hello rig_hello(void)
{
    struct timespec real, mono;
    struct hello h;
    clock_gettime(CLOCK_REALTIME, &real);
    clock_gettime(CLOCK_MONOTONIC, &mono);
    memset(&h, 0, sizeof h);
    h.version_min = h.version_max = WIRE_VERSION;
    h.world = 1;
    h.pid = (uint32_t)getpid();
    h.start_time = read_start_time();
    read_boot_id(h.boot_id);
    h.mono_ns =
        (uint64_t)mono.tv_sec * UINT64_C(1000000000) + (uint64_t)mono.tv_nsec;
    h.real_ns =
        (uint64_t)real.tv_sec * UINT64_C(1000000000) + (uint64_t)real.tv_nsec;
    h.first_seq = 1;
    h.max_len = FRAME_MAX_BYTES;
    h.run = slice_of("run");
    h.job = slice_of("job");
    h.host = slice_of("host");
    h.client = slice_of("test");
    h.journal = slice_of("");
    h.info = slice_of("");
    return h;
}

size_t rig_frame(uint8_t *out, uint64_t epoch, uint16_t type, uint64_t seq,
                 const void *payload, size_t n)
{
    struct frame f = {
        .version = WIRE_VERSION,
        .type = type,
        .len = (uint32_t)n,
        .crc = crc32c(0, payload, n),
        .epoch = epoch,
        .seq = seq,
    };
    frame_put(out, &f);
    memmove(out + FRAME_HEADER_BYTES, payload, n);
    return FRAME_HEADER_BYTES + n;
}

size_t rig_hello_frame(uint8_t *out, uint64_t epoch, const struct hello *h)
{
    static uint8_t payload[FRAME_CONTROL_MAX_BYTES];
    size_t n;
    assert_int_equal(hello_put(h, payload, sizeof payload, &n), 0);
    return rig_frame(out, epoch, FRAME_HELLO, 0, payload, n);
}

void rig_send(struct rig_client *c, uint16_t type, uint64_t seq,
              const void *payload, size_t n)
{
    static uint8_t bytes[RIG_FRAME_BYTES];
    rig_write_any(c->fd, bytes,
                  rig_frame(bytes, c->epoch, type, seq, payload, n));
}

static void keep(struct rig_client *c)
{
    size_t n = c->got.len;
    switch (c->got.type) {
    case FRAME_WELCOME:
        assert_int_equal(welcome_get(c->payload, n, &c->welcome), 0);
        memcpy(c->run, c->welcome.run.text, c->welcome.run.n);
        c->run[c->welcome.run.n] = '\0';
        c->welcome.run.text = c->run;
        break;
    case FRAME_ACK:
        assert_int_equal(ack_get(c->payload, n, &c->ack), 0);
        break;
    case FRAME_REFUSE:
    case FRAME_NACK:
        assert_int_equal(refusal_get(c->payload, n, &c->refusal), 0);
        break;
    default:
        break;
    }
}

bool rig_recv(struct rig_client *c)
{
    uint8_t head[FRAME_HEADER_BYTES];
    if (!rig_read(c->fd, head, sizeof head))
        return false;
    assert_int_equal(frame_get(head, &c->got), 0);
    if (c->got.len && !rig_read(c->fd, c->payload, c->got.len))
        return false;
    assert_int_equal(frame_check(&c->got, c->payload), 0);
    keep(c);
    return true;
}

void rig_expect(struct rig_client *c, enum frame_type type)
{
    do {
        if (!rig_recv(c))
            fail_msg("hung up before a frame of type %d", (int)type);
        if (c->got.type == FRAME_NACK && type != FRAME_NACK)
            fail_msg("nack: %.*s", (int)c->refusal.text.n,
                     c->refusal.text.text);
    } while (c->got.type != type);
}

void rig_committed(struct rig_client *c, uint64_t seq)
{
    while (c->ack.committed_seq < seq)
        rig_expect(c, FRAME_ACK);
}

void rig_durable(struct rig_client *c, uint64_t seq)
{
    while (c->ack.durable_seq < seq)
        rig_expect(c, FRAME_ACK);
}

bool rig_greet(struct rig *r, struct rig_client *c, uint64_t epoch,
               const struct hello *h)
{
    static uint8_t bytes[FRAME_HEADER_BYTES + FRAME_CONTROL_MAX_BYTES];
    memset(c, 0, sizeof *c);
    c->epoch = epoch;
    c->fd = rig_connect(r->dir, PLACE_INGEST);
    if (c->fd < 0)
        fail_msg("nobody answers in %s", r->dir);
    rig_write_any(c->fd, bytes, rig_hello_frame(bytes, epoch, h));
    if (!rig_recv(c))
        fail_msg("hung up at the hello");
    c->ack.committed_seq = c->welcome.committed_seq;
    c->ack.durable_seq = c->welcome.durable_seq;
    return c->got.type == FRAME_WELCOME;
}

void rig_open(struct rig *r, struct rig_client *c, uint64_t epoch)
{
    struct hello h = rig_hello();
    if (!rig_greet(r, c, epoch, &h))
        fail_msg("refused: %.*s", (int)c->refusal.text.n, c->refusal.text.text);
}

void rig_close(struct rig_client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* ---- entries ---- */

void rig_entries_init(struct rig_entries *e)
{
    memset(e, 0, sizeof *e);
    e->n_bytes = BATCH_BYTES;
}

static uint8_t *begin(struct rig_entries *e, struct writer *w)
{
    uint8_t *at = e->bytes + e->n_bytes;
    *w = writer_of(at + ENTRY_HEADER_BYTES,
                   sizeof e->bytes - e->n_bytes - ENTRY_HEADER_BYTES);
    return at;
}

static void end(struct rig_entries *e, const struct writer *w, uint8_t *at,
                uint32_t kind, uint32_t number)
{
    uint32_t len = (uint32_t)(w->at - at);
    uint32_t word;
    struct writer head = writer_of(at, 4);
    assert_false(w->bad);
    word = entry_seal(at, kind, len, number);
    put_u32(&head, word);
    e->n_bytes += entry_span(len);
    e->n++;
}

void rig_add_object(struct rig_entries *e, uint32_t id, const char *class_name,
                    uint32_t instance, const char *module)
{
    struct writer w;
    struct wire_object o = {instance, slice_of(class_name), slice_of(module)};
    uint8_t *at = begin(e, &w);
    assert_int_equal(object_put(&w, &o), 0);
    end(e, &w, at, ENTRY_OBJECT, id);
}

void rig_add_site(struct rig_entries *e, uint32_t id, uint32_t object, int pass,
                  int io, uint32_t position, const char *path)
{
    struct writer w;
    struct wire_site s = {object, (uint32_t)pass, (uint32_t)io, position,
                          slice_of(path)};
    uint8_t *at = begin(e, &w);
    assert_int_equal(site_put(&w, &s), 0);
    end(e, &w, at, ENTRY_SITE, id);
}

void rig_add_shape(struct rig_entries *e, uint32_t id, int64_t rows,
                   int64_t columns)
{
    struct writer w;
    struct wire_shape s = {.ndim = 2, .dim = {rows, columns}};
    uint8_t *at = begin(e, &w);
    assert_int_equal(shape_put(&w, &s), 0);
    end(e, &w, at, ENTRY_SHAPE, id);
}

void rig_add_note(struct rig_entries *e, uint32_t id, const char *text)
{
    struct writer w;
    uint8_t *at = begin(e, &w);
    assert_int_equal(note_put(&w, slice_of(text)), 0);
    end(e, &w, at, ENTRY_NOTE, id);
}

void rig_add_record(struct rig_entries *e, uint64_t seq,
                    const struct wire_record *m)
{
    struct writer w;
    uint8_t *at = begin(e, &w);
    assert_int_equal(record_put(&w, m), 0);
    end(e, &w, at, ENTRY_RECORD, (uint32_t)seq);
}

void rig_add_unreadable(struct rig_entries *e, uint32_t kind, uint64_t number)
{
    struct writer w;
    uint8_t *at = begin(e, &w);
    put_u64(&w, UINT64_MAX);
    end(e, &w, at, kind, (uint32_t)number);
}

void rig_add_entry(struct rig_entries *e, uint32_t kind, uint64_t number,
                   const void *body, size_t n)
{
    struct writer w;
    uint8_t *at = begin(e, &w);
    put_bytes(&w, body, n);
    end(e, &w, at, kind, (uint32_t)number);
}

void rig_add_loss(struct rig_entries *e, uint64_t seq, uint32_t cause,
                  uint64_t count)
{
    struct writer w;
    struct wire_loss l = {cause, count, 0, 5};
    uint8_t *at = begin(e, &w);
    assert_int_equal(loss_put(&w, &l), 0);
    end(e, &w, at, ENTRY_LOSS, (uint32_t)seq);
}

static size_t batch_frame(uint8_t *out, uint64_t epoch,
                          const struct rig_entries *e, uint16_t type,
                          uint32_t first, uint64_t seq)
{
    static uint8_t payload[FRAME_MAX_BYTES];
    struct batch b = {e->n, first};
    memcpy(payload, e->bytes, e->n_bytes);
    batch_put(payload, &b);
    return rig_frame(out, epoch, type, seq, payload, e->n_bytes);
}

size_t rig_dict_frame(uint8_t *out, uint64_t epoch,
                      const struct rig_entries *e, uint32_t first)
{
    return batch_frame(out, epoch, e, FRAME_DICT, first, 0);
}

size_t rig_data_frame(uint8_t *out, uint64_t epoch,
                      const struct rig_entries *e, uint64_t first)
{
    return batch_frame(out, epoch, e, FRAME_DATA, 0, first);
}

static uint8_t batch_bytes[RIG_FRAME_BYTES];

void rig_send_dict(struct rig_client *c, const struct rig_entries *e,
                   uint32_t first)
{
    rig_write_any(c->fd, batch_bytes,
                  rig_dict_frame(batch_bytes, c->epoch, e, first));
}

void rig_send_data(struct rig_client *c, const struct rig_entries *e,
                   uint64_t first)
{
    rig_write_any(c->fd, batch_bytes,
                  rig_data_frame(batch_bytes, c->epoch, e, first));
}

void rig_fill_dict(struct rig_entries *e)
{
    rig_entries_init(e);
    rig_add_object(e, RIG_OBJECT, "Linear", 1, "layer1");
    rig_add_site(e, RIG_SITE, RIG_OBJECT, TRD_FORWARD, TRD_INPUT, 0, "0");
    rig_add_shape(e, RIG_SHAPE, 4, 8);
    rig_add_note(e, RIG_NOTE, "note");
}

struct wire_record rig_record(uint64_t seq)
{
    static float samples[16];
    struct wire_record m;
    memset(&m, 0, sizeof m);
    for (int i = 0; i < 16; i++)
        samples[i] = (float)i + (float)seq;
    m.site = RIG_SITE;
    m.shape = RIG_SHAPE;
    m.dtype = TRD_F32;
    m.t_ns = seq * 1000;
    m.when.step = seq;
    m.when.iteration = seq;
    m.when.microbatch = 1;
    m.stats.n = 32;
    m.stats.zero = 1;
    m.stats.max.f = 2.5;
    m.stats.min.f = -2.5;
    m.stats.absmax.f = 2.5;
    m.stats.absmin.f = 0.25;
    m.stats.mean = 0.125;
    m.stats.std = 1.5;
    m.stats.l2 = 8;
    m.stats.hash = UINT64_C(0xfedcba9876543210) ^ seq;
    m.stats.has = TRD_HAS_ALL;
    m.stats.sample_n = 16;
    m.samples = (const uint8_t *)samples;
    return m;
}

void rig_fill_data(struct rig_entries *e, uint64_t seq, uint32_t n)
{
    rig_entries_init(e);
    for (uint32_t i = 0; i < n; i++) {
        struct wire_record m = rig_record(seq + i);
        rig_add_record(e, seq + i, &m);
    }
}

/* ---- journals ---- */

static void fill_ring(uint8_t *ring, uint32_t n, uint32_t torn,
                      uint32_t unreadable)
{
    struct rig_entries *e = malloc(sizeof *e);
    uint64_t pos = 0;
    uint32_t magic;
    assert_non_null(e);
    for (uint32_t i = 1; i <= n; i++) {
        size_t span;
        rig_fill_data(e, i, i != unreadable);
        if (i == unreadable)
            rig_add_unreadable(e, ENTRY_RECORD, i);
        span = e->n_bytes - BATCH_BYTES;
        if (pos / JOURNAL_SEGMENT !=
            (pos + span + ENTRY_HEADER_BYTES) / JOURNAL_SEGMENT) {
            uint32_t len = JOURNAL_SEGMENT - (uint32_t)(pos % JOURNAL_SEGMENT);
            struct writer w = writer_of(ring + pos, 4);
            if (len >= ENTRY_HEADER_BYTES)
                put_u32(&w, entry_seal(ring + pos, ENTRY_PAD,
                                       ENTRY_HEADER_BYTES, i));
            pos += len;
        }
        if (pos % JOURNAL_SEGMENT == 0) {
            struct writer w = writer_of(ring + pos, 4);
            magic = journal_segment_put(ring + pos, pos, i);
            put_u32(&w, magic);
            pos += JOURNAL_SEGMENT_HEADER;
        }
        memcpy(ring + pos, e->bytes + BATCH_BYTES, span);
        if (i == torn)
            ring[pos + 20] ^= 0x55;
        pos += span;
    }
    free(e);
}

void rig_journal(struct rig *r, const char *name, uint64_t epoch, uint32_t n,
                 uint32_t torn, bool clean)
{
    struct rig_entries *dict = malloc(sizeof *dict);
    struct hello h = rig_hello();
    struct journal_state state = {.generation = 1, .clean = clean};
    struct journal_head head;
    char path[2 * RIG_PATH];
    uint8_t *image;
    size_t hello_n;
    FILE *f;

    memset(&head, 0, sizeof head);
    assert_int_equal(journal_layout(JOURNAL_MIN_BYTES * 2, &head), 0);
    image = calloc(1, (size_t)head.size);
    assert_non_null(image);
    assert_non_null(dict);
    if (!r->journals_alive) {
        h.pid = 1; /* of a process that started at another time */
        h.start_time = 12345678;
    }
    h.run = slice_of("run");
    snprintf(path, sizeof path, "%s" JOURNAL_SUFFIX, name);
    h.journal = slice_of(path);
    assert_int_equal(
        hello_put(&h, image + JOURNAL_HELLO_AT, JOURNAL_HELLO_MAX, &hello_n),
        0);
    head.epoch = epoch;
    head.pid = h.pid;
    head.start_time = h.start_time;
    memcpy(head.boot_id, h.boot_id, sizeof head.boot_id);
    head.hello_bytes = (uint32_t)hello_n;
    head.hello_crc = crc32c(0, image + JOURNAL_HELLO_AT, hello_n);
    journal_head_put(image, &head);
    journal_state_put(image + JOURNAL_PAGE, &state);
    rig_fill_dict(dict);
    memcpy(image + JOURNAL_DICT_AT, dict->bytes + BATCH_BYTES,
           dict->n_bytes - BATCH_BYTES);
    fill_ring(image + JOURNAL_DICT_AT + head.dict_bytes, n, torn,
              r->journals_unreadable);
    mkdir(r->dir, 0700);
    snprintf(path, sizeof path, "%s/%s" JOURNAL_SUFFIX, r->dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    chmod(path, 0600);
    assert_int_equal(fwrite(image, 1, (size_t)head.size, f), head.size);
    fclose(f);
    free(image);
    free(dict);
}
