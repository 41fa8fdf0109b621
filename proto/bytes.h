/* A bounds-checked cursor over bytes, for reading and for writing.
 *
 * After the first step over the end the cursor is `bad` and stays so: reads
 * give zeros, writes do nothing. A caller checks once, at the end. All
 * numbers are little endian whatever the machine. */
#ifndef PROTO_BYTES_H
#define PROTO_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct reader {
    const uint8_t *at;  /* next byte */
    const uint8_t *end; /* one past the last */
    bool bad;
};

struct writer {
    uint8_t *at;
    uint8_t *end;
    bool bad;
};

/* A string inside somebody else's bytes; not NUL-terminated. */
struct slice {
    const char *text;
    size_t n;
};

static inline struct reader reader_of(const void *bytes, size_t n)
{
    struct reader r = {bytes, (const uint8_t *)bytes + n, false};
    return r;
}

static inline size_t reader_left(const struct reader *r)
{
    return (size_t)(r->end - r->at);
}

/* The next n bytes, or NULL and bad. */
static inline const uint8_t *get_bytes(struct reader *r, size_t n)
{
    if (r->bad || n > reader_left(r)) {
        r->bad = true;
        return NULL;
    }
    r->at += n;
    return r->at - n;
}

static inline uint64_t get_le(struct reader *r, unsigned n)
{
    const uint8_t *p = get_bytes(r, n);
    uint64_t v = 0;
    for (unsigned i = 0; p && i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static inline uint8_t get_u8(struct reader *r)
{
    return (uint8_t)get_le(r, 1);
}

static inline uint16_t get_u16(struct reader *r)
{
    return (uint16_t)get_le(r, 2);
}

static inline uint32_t get_u32(struct reader *r)
{
    return (uint32_t)get_le(r, 4);
}

static inline uint64_t get_u64(struct reader *r)
{
    return get_le(r, 8);
}

static inline double get_f64(struct reader *r)
{
    uint64_t bits = get_u64(r);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* LEB128, at most 10 bytes; an overlong or overflowing one is bad. */
static inline uint64_t get_varint(struct reader *r)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t b = get_u8(r);
        if (r->bad)
            return 0;
        if (shift == 63 && b > 1)
            break;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80))
            return v;
    }
    r->bad = true;
    return 0;
}

/* A varint that must fit 32 bits. */
static inline uint32_t get_varint32(struct reader *r)
{
    uint64_t v = get_varint(r);
    if (v > UINT32_MAX)
        r->bad = true;
    return r->bad ? 0 : (uint32_t)v;
}

/* u16 length and bytes; bad when longer than max or holding a NUL. */
static inline struct slice get_string(struct reader *r, size_t max)
{
    size_t n = get_u16(r);
    struct slice s = {"", 0};
    const uint8_t *p = n > max ? NULL : get_bytes(r, n);
    if (!p || (n && memchr(p, 0, n))) {
        r->bad = true;
        return s;
    }
    s.text = (const char *)p;
    s.n = n;
    return s;
}

static inline struct writer writer_of(void *bytes, size_t n)
{
    struct writer w = {bytes, (uint8_t *)bytes + n, false};
    return w;
}

/* Room for n bytes, or NULL and bad. */
static inline uint8_t *put_room(struct writer *w, size_t n)
{
    if (w->bad || n > (size_t)(w->end - w->at)) {
        w->bad = true;
        return NULL;
    }
    w->at += n;
    return w->at - n;
}

static inline void put_bytes(struct writer *w, const void *bytes, size_t n)
{
    uint8_t *p = put_room(w, n);
    if (p && n)
        memcpy(p, bytes, n);
}

static inline void put_le(struct writer *w, uint64_t v, unsigned n)
{
    uint8_t *p = put_room(w, n);
    for (unsigned i = 0; p && i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static inline void put_u8(struct writer *w, uint8_t v)
{
    put_le(w, v, 1);
}

static inline void put_u16(struct writer *w, uint16_t v)
{
    put_le(w, v, 2);
}

static inline void put_u32(struct writer *w, uint32_t v)
{
    put_le(w, v, 4);
}

static inline void put_u64(struct writer *w, uint64_t v)
{
    put_le(w, v, 8);
}

static inline void put_f64(struct writer *w, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_u64(w, bits);
}

static inline void put_varint(struct writer *w, uint64_t v)
{
    while (v >= 0x80) {
        put_u8(w, (uint8_t)(v | 0x80));
        v >>= 7;
    }
    put_u8(w, (uint8_t)v);
}

static inline void put_string(struct writer *w, const char *text, size_t n)
{
    if (n > UINT16_MAX) {
        w->bad = true;
        return;
    }
    put_u16(w, (uint16_t)n);
    put_bytes(w, text, n);
}

static inline struct slice slice_of(const char *text)
{
    struct slice s = {text, strlen(text)};
    return s;
}

#endif
