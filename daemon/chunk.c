/* Records of the queue, one behind the other. */
#include "daemon/chunk.h"

#include <stdlib.h>

enum { HEAD_MAX = 2 * 10 + 5 * 5 + 2 };

static bool make_room(struct chunk *c, size_t n)
{
    size_t cap = c->cap ? c->cap : CHUNK_BYTES;
    uint8_t *more;
    if (n <= c->cap - c->n)
        return true;
    while (cap - c->n < n)
        cap *= 2;
    more = realloc(c->at, cap);
    if (!more)
        return false;
    c->at = more;
    c->cap = cap;
    return true;
}

bool chunk_add(struct chunk *c, const struct pending *p,
               const struct entry *e)
{
    struct writer w;
    if (!make_room(c, HEAD_MAX + e->len))
        return false;
    w = writer_of(c->at + c->n, c->cap - c->n);
    put_varint(&w, (uint64_t)p->stream);
    put_varint(&w, (uint64_t)p->seq);
    put_varint(&w, p->object);
    put_varint(&w, p->position);
    put_varint(&w, p->path);
    put_varint(&w, p->shape);
    put_varint(&w, p->note);
    put_u8(&w, p->pass);
    put_u8(&w, p->io);
    put_bytes(&w, p->entry, e->len);
    c->n = (size_t)(w.at - c->at);
    c->rows++;
    return true;
}

bool chunk_next(struct reader *r, struct pending *p, struct wire_record *m)
{
    struct entry e;
    p->stream = (int64_t)get_varint(r);
    p->seq = (int64_t)get_varint(r);
    p->object = get_varint32(r);
    p->position = get_varint32(r);
    p->path = get_varint32(r);
    p->shape = get_varint32(r);
    p->note = get_varint32(r);
    p->pass = get_u8(r);
    p->io = get_u8(r);
    p->entry = r->at;
    p->shape_n = -1;
    if (r->bad || entry_get(r->at, reader_left(r), &e) ||
        e.kind != ENTRY_RECORD || record_get(&e, m))
        return false;
    p->step = (int64_t)m->when.step;
    r->at += e.len;
    return true;
}
