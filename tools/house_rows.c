/* Reads format TabSeparated. */
#include "tools/house_rows.h"

#include <stdlib.h>
#include <string.h>

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

int house_rows_take(void *to, const char *bytes, size_t n)
{
    struct house_rows *r = to;
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        size_t some = end ? (size_t)(end - bytes) : n;
        if (keep(r, bytes, some))
            return 1;
        if (!end)
            return 0;
        size_t length = r->n;
        r->n = 0;
        if (read_line(r, r->line, length))
            return 1;
        bytes += some + 1;
        n -= some + 1;
    }
    return 0;
}

void house_rows_free(struct house_rows *r)
{
    free(r->line);
}

int64_t house_whole(const struct house_field *f)
{
    if (*f->s.text == '-')
        return strtoll(f->s.text, NULL, 10);
    return (int64_t)strtoull(f->s.text, NULL, 10);
}

double house_real(const struct house_field *f)
{
    return strtod(f->s.text, NULL);
}
