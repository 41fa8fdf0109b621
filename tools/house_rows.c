/* Reads formats TabSeparated and RowBinary. */
#include "tools/house_rows.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { STRING_MAX = 1 << 24 }; /* of what a record has */

static char plain(char c)
{
    switch (c) {
    case '0':
        return '\0';
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    default:
        return c; /* a quote, the sign itself */
    }
}

/* Unescapes the field in place; at stands on what ended it. */
static void read_field(char *from, const char *at, struct house_field *out)
{
    char *to = from;
    out->type = 0;
    out->null = at - from == 2 && from[0] == '\\' && from[1] == 'N';
    out->s.text = from;
    for (const char *p = from; p < at; p++)
        *to++ = *p == '\\' && p + 1 < at ? plain(*++p) : *p;
    *to = '\0';
    out->s.n = (size_t)(to - from);
    if (out->null)
        out->s = slice_of("");
}

/* A whole line; its end is at n. */
static int read_line(struct house_rows *r, char *line, size_t n)
{
    struct house_field field[HOUSE_FIELDS];
    char *from = line;
    int fields = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && line[i] != '\t')
            continue;
        if (fields == HOUSE_FIELDS) {
            r->bad = 1;
            return 1;
        }
        char *next = line + i + 1;
        read_field(from, line + i, &field[fields++]);
        from = next;
    }
    return r->row(r->to, field, fields);
}

static int keep(struct house_rows *r, const char *bytes, size_t n)
{
    if (r->n + n + 1 > r->cap) {
        size_t cap = r->cap ? r->cap : 65536;
        while (cap < r->n + n + 1)
            cap *= 2;
        char *more = realloc(r->line, cap);
        if (!more) {
            r->bad = 1;
            return 1;
        }
        r->line = more;
        r->cap = cap;
    }
    memcpy(r->line + r->n, bytes, n);
    r->n += n;
    return 0;
}

static void take_lines(struct house_rows *r, const char *bytes, size_t n)
{
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        size_t some = end ? (size_t)(end - bytes) : n;
        if (keep(r, bytes, some) || !end)
            return;
        size_t length = r->n;
        r->n = 0;
        if (read_line(r, r->line, length)) {
            r->enough = 1;
            return;
        }
        bytes += some + 1;
        n -= some + 1;
    }
}

/* The length of a string; false: it is not all there, or none. */
static bool read_length(struct house_rows *r, struct reader *in, size_t *out)
{
    uint64_t n = 0;
    for (unsigned shift = 0; in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        n |= (uint64_t)(byte & 0x7f) << shift;
        if (n > STRING_MAX || shift > 21) {
            r->bad = 1;
            return false;
        }
        if (byte < 0x80) {
            *out = (size_t)n;
            return true;
        }
    }
    return false;
}

/* A value; false: it is not all there, or none. */
static bool read_value(struct house_rows *r, struct reader *in, char type,
                       struct house_field *out)
{
    bool nullable = type >= 'A' && type <= 'Z';
    size_t n = 8;
    out->type = nullable ? (char)(type - 'A' + 'a') : type;
    out->null = 0;
    if (nullable && in->at < in->end) {
        out->null = *in->at++;
        r->bad |= out->null > 1;
    } else if (nullable) {
        return false;
    }
    if (out->type == 's' && !out->null && !read_length(r, in, &n))
        return false;
    if (out->type == 'b' || out->type == 'i')
        n = out->type == 'b' ? 1 : 4;
    if (out->null)
        n = 0;
    if (r->bad || n > (size_t)(in->end - in->at))
        return false;
    out->s.text = (const char *)in->at;
    out->s.n = n;
    in->at += n;
    return true;
}

/* A row; false: it is not all there, or none. */
static bool read_row(struct house_rows *r, struct reader *in,
                     struct house_field field[HOUSE_FIELDS], int *n)
{
    for (*n = 0; r->types[*n] && *n < HOUSE_FIELDS; ++*n)
        if (!read_value(r, in, r->types[*n], &field[*n]))
            return false;
    return true;
}

static void take_binary(struct house_rows *r, const char *bytes, size_t n)
{
    struct house_field field[HOUSE_FIELDS];
    size_t used = 0;
    int fields;
    if (keep(r, bytes, n))
        return;
    while (used < r->n && !r->enough && !r->bad) {
        struct reader in = reader_of(r->line + used, r->n - used);
        if (!read_row(r, &in, field, &fields))
            break;
        used = (size_t)((const char *)in.at - r->line);
        r->enough = r->row(r->to, field, fields) != 0;
    }
    r->n -= used;
    memmove(r->line, r->line + used, r->n);
}

int house_rows_take(void *to, const char *bytes, size_t n)
{
    struct house_rows *r = to;
    if (r->types)
        take_binary(r, bytes, n);
    else
        take_lines(r, bytes, n);
    return r->bad || r->enough;
}

int house_rows_good(const struct house_rows *r)
{
    return !r->bad && (r->enough || !r->n);
}

void house_rows_free(struct house_rows *r)
{
    free(r->line);
}

static uint32_t four_bytes(const uint8_t *p)
{
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 |
           p[0];
}

static uint64_t bits_of(const struct house_field *f)
{
    const uint8_t *p = (const uint8_t *)f->s.text;
    if (f->null || f->type == 's')
        return 0;
    if (f->type == 'b')
        return *p;
    if (f->type == 'i')
        return four_bytes(p);
    return (uint64_t)four_bytes(p + 4) << 32 | four_bytes(p);
}

int64_t house_whole(const struct house_field *f)
{
    if (f->type)
        return (int64_t)bits_of(f);
    if (*f->s.text == '-')
        return strtoll(f->s.text, NULL, 10);
    return (int64_t)strtoull(f->s.text, NULL, 10);
}

double house_real(const struct house_field *f)
{
    if (f->type) {
        uint64_t bits = bits_of(f);
        double v;
        memcpy(&v, &bits, sizeof v);
        return v;
    }
    return strtod(f->s.text, NULL);
}
