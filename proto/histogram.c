/* Stored histograms: schema.sql, table extra. Pure. */
#include "proto/histogram.h"

/* The bytes that the largest count needs: 1, 2, 4 or 8. */
static unsigned width_of(const struct wire_histogram *h)
{
    struct reader r = reader_of(h->counts.text, h->counts.n);
    unsigned width = 1;
    for (uint32_t i = 0; i < h->n; i++)
        for (uint64_t v = get_varint(&r); width < 8 && v >> 8 * width;)
            width *= 2;
    return width;
}

size_t histogram_put(const struct wire_histogram *h, uint32_t dtype,
                     uint8_t out[HISTOGRAM_MAX_BYTES])
{
    struct writer w = writer_of(out, HISTOGRAM_MAX_BYTES);
    struct reader r = reader_of(h->counts.text, h->counts.n);
    unsigned width = width_of(h);
    put_u8(&w, (uint8_t)h->kind);
    put_u8(&w, (uint8_t)dtype);
    put_u8(&w, (uint8_t)width);
    put_u16(&w, (uint16_t)h->first);
    for (uint32_t i = 0; i < h->n; i++)
        put_le(&w, get_varint(&r), width);
    return (size_t)(w.at - out);
}

int histogram_get(struct slice stored, int dtype, struct histogram *out)
{
    struct histogram h;
    uint32_t bins = trd_dtype_bins(dtype);
    if (stored.n < HISTOGRAM_HEAD_BYTES)
        return TRD_ECORRUPT;
    struct reader r = reader_of(stored.text, stored.n);
    h.kind = get_u8(&r);
    if (get_u8(&r) != dtype)
        r.bad = true;
    h.width = get_u8(&r);
    h.first = get_u16(&r);
    if (r.bad || !h.kind || !trd_histogram_name(h.kind) || !h.width ||
        h.width > 8 || (h.width & (h.width - 1)) ||
        reader_left(&r) % h.width || h.first > bins ||
        reader_left(&r) / h.width > bins - h.first)
        return TRD_ECORRUPT;
    h.n = (uint32_t)(reader_left(&r) / h.width);
    h.counts = r.at;
    *out = h;
    return 0;
}

uint64_t histogram_count(const struct histogram *h, uint32_t i)
{
    struct reader r = reader_of(h->counts + (size_t)i * h->width, h->width);
    return get_le(&r, h->width);
}
