/* Columns of rows, and how they are said in format Native: the numbers of
 * columns and of rows, and of each column its name, its type and its values;
 * of a Nullable, before them, a byte for each row. */
#include "daemon/block.h"

#include <stdlib.h>
#include <string.h>

#include "proto/bytes.h"

enum {
    ROWS_MIN = 1024,
    TEXT_MIN = 65536,
    WORD = 8,       /* numbers are written whole and stepped over by width */
    VARINT_MAX = 10
};

/* ---- memory ---- */

static bool fit(uint8_t **at, size_t n)
{
    uint8_t *more = realloc(*at, n);
    if (more)
        *at = more;
    return more != NULL;
}

/* "Nullable(Int64)" is 8 wide, "String" 0. */
static unsigned width_of(const char *type)
{
    return (unsigned)atoi(type + strcspn(type, "0123456789")) / 8;
}

static void begin(struct block *b, const struct layout *of)
{
    block_free(b);
    memset(b, 0, sizeof *b);
    b->of = of;
    for (unsigned i = 0; i < of->n; i++) {
        struct block_column *c = &b->column[i];
        c->width = width_of(of->column[i].type);
        c->nullable = strncmp(of->column[i].type, "Nullable", 8) == 0;
        b->fixed += c->width + c->nullable;
    }
}

void block_clear(struct block *b, const struct layout *of)
{
    if (b->of != of)
        begin(b, of);
    for (unsigned i = 0; i < of->n; i++)
        b->column[i].n = 0;
    b->n = b->rows = 0;
    b->bad = b->full = false;
}

void block_free(struct block *b)
{
    for (unsigned i = 0; i < BLOCK_COLUMNS; i++) {
        free(b->column[i].at);
        free(b->column[i].nulls);
    }
    free(b->id);
}

static bool grow(struct block *b)
{
    size_t cap = b->cap ? 2 * b->cap : ROWS_MIN;
    int64_t *ids = realloc(b->id, cap * sizeof *ids);
    if (!ids)
        return false;
    b->id = ids;
    for (unsigned i = 0; i < b->of->n; i++) {
        struct block_column *c = &b->column[i];
        if ((c->width && !fit(&c->at, cap * c->width + WORD)) ||
            (c->nullable && !fit(&c->nulls, cap)))
            return false;
    }
    b->cap = cap;
    return true;
}

/* ---- values ---- */

bool block_row(struct block *b, int64_t id)
{
    if (b->bad || (b->rows == b->cap && !grow(b))) {
        b->bad = true;
        return false;
    }
    b->id[b->rows++] = id;
    b->n += b->fixed;
    b->next = 0;
    return true;
}

static void put(struct block *b, uint64_t v, uint8_t is_null)
{
    const struct block_column *c = &b->column[b->next++];
    const uint8_t word[WORD] = {
        (uint8_t)v,         (uint8_t)(v >> 8),  (uint8_t)(v >> 16),
        (uint8_t)(v >> 24), (uint8_t)(v >> 32), (uint8_t)(v >> 40),
        (uint8_t)(v >> 48), (uint8_t)(v >> 56)};
    memcpy(c->at + (b->rows - 1) * c->width, word, WORD);
    if (c->nullable)
        c->nulls[b->rows - 1] = is_null;
}

void block_number(struct block *b, uint64_t v)
{
    put(b, v, 0);
}

void block_null(struct block *b)
{
    put(b, 0, 1);
}

bool block_wants_text(const struct block *b)
{
    return b->column[b->next].width == 0;
}

void block_text(struct block *b, const void *text, size_t n)
{
    struct block_column *c = &b->column[b->next++];
    struct writer w;
    if (c->cap - c->n < VARINT_MAX + n) {
        size_t cap = c->cap ? c->cap : TEXT_MIN;
        while (cap - c->n < VARINT_MAX + n)
            cap *= 2;
        if (!fit(&c->at, cap)) {
            b->bad = true;
            return;
        }
        c->cap = cap;
    }
    w = writer_of(c->at + c->n, c->cap - c->n);
    put_varint(&w, n);
    put_bytes(&w, text, n);
    b->n += (size_t)(w.at - c->at) - c->n;
    c->n = (size_t)(w.at - c->at);
}

/* ---- Native ---- */

/* Where row is among a column's values. */
static size_t place_of(const struct block *b, const struct block_column *c,
                       size_t row)
{
    struct reader r = reader_of(c->at, c->n);
    if (c->width)
        return row * c->width;
    if (row == b->rows)
        return c->n;
    while (row-- > 0)
        get_bytes(&r, (size_t)get_varint(&r));
    return (size_t)(r.at - c->at);
}

static void put_name(struct writer *w, const char *name)
{
    put_varint(w, strlen(name));
    put_bytes(w, name, strlen(name));
}

static void put_column(struct writer *w, const struct block *b, unsigned i,
                       size_t first, size_t last)
{
    const struct block_column *c = &b->column[i];
    size_t from = place_of(b, c, first);
    put_name(w, b->of->column[i].name);
    put_name(w, b->of->column[i].type);
    if (c->nullable)
        put_bytes(w, c->nulls + first, last - first);
    put_bytes(w, c->at + from, place_of(b, c, last) - from);
}

/* More than any rows of the block are. */
static size_t room_for(const struct block *b)
{
    size_t n = 2 * VARINT_MAX + b->n;
    for (unsigned i = 0; i < b->of->n; i++)
        n += 2 * VARINT_MAX + strlen(b->of->column[i].name) +
             strlen(b->of->column[i].type);
    return n;
}

bool block_native(const struct block *b, size_t first, size_t last,
                  struct message *m)
{
    size_t room = room_for(b);
    struct writer w;
    if (m->cap < room) {
        if (!fit(&m->at, room))
            return false;
        m->cap = room;
    }
    w = writer_of(m->at, m->cap);
    put_varint(&w, b->of->n);
    put_varint(&w, last - first);
    for (unsigned i = 0; i < b->of->n; i++)
        put_column(&w, b, i, first, last);
    m->n = (size_t)(w.at - m->at);
    return !w.bad;
}
