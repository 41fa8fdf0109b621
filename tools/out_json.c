/* json: one object a line. JSON has no NaN: such numbers are strings. */
#include <math.h>

#include "tools/out.h"

/* Bytes of the UTF-8 character at p, 0 when it is none. */
static size_t utf8_length(const unsigned char *p, size_t left)
{
    size_t n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3
             : *p < 0xf5 ? 4 : 0;
    if (n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((n == 3 && ((*p == 0xe0 && p[1] < 0xa0) ||
                    (*p == 0xed && p[1] > 0x9f))) ||
        (n == 4 && ((*p == 0xf0 && p[1] < 0x90) ||
                    (*p == 0xf4 && p[1] > 0x8f))))
        return 0;
    return n;
}

void out_json_text(FILE *f, struct slice s)
{
    putc('"', f);
    for (size_t i = 0; i < s.n;) {
        const unsigned char *p = (const unsigned char *)s.text + i;
        size_t n = utf8_length(p, s.n - i);
        if (n == 0)
            fputs("\\ufffd", f);
        else if (*p == '"' || *p == '\\')
            fprintf(f, "\\%c", *p);
        else if (*p == '\n')
            fputs("\\n", f);
        else if (*p == '\t')
            fputs("\\t", f);
        else if (*p < 0x20 || *p == 0x7f)
            fprintf(f, "\\u%04x", *p);
        else
            fwrite(p, 1, n, f);
        i += n ? n : 1;
    }
    putc('"', f);
}

void out_json_real(FILE *f, double v)
{
    char number[OUT_NUMBER_MAX];
    out_number(v, number);
    fprintf(f, isfinite(v) ? "%s" : "\"%s\"", number);
}

/* What stands before a value: the comma, and the name outside lists. */
static void before(struct out *o, const char *name)
{
    if (o->items >= 0) {
        if (o->items++)
            putc(',', o->file);
        return;
    }
    if (o->fields++)
        putc(',', o->file);
    out_json_text(o->file, slice_of(name));
    putc(':', o->file);
}

static void json_start(struct out *o)
{
    o->fields = 0;
    putc('{', o->file);
}

static void json_null(struct out *o, const char *name)
{
    before(o, name);
    fputs("null", o->file);
}

static void json_text(struct out *o, const char *name, struct slice s)
{
    before(o, name);
    out_json_text(o->file, s);
}

static void json_flag(struct out *o, const char *name, int v)
{
    before(o, name);
    fputs(v ? "true" : "false", o->file);
}

static void json_whole(struct out *o, const char *name, int64_t v)
{
    before(o, name);
    fprintf(o->file, "%lld", (long long)v);
}

static void json_natural(struct out *o, const char *name, uint64_t v)
{
    before(o, name);
    fprintf(o->file, "%llu", (unsigned long long)v);
}

static void json_real(struct out *o, const char *name, double v)
{
    before(o, name);
    out_json_real(o->file, v);
}

static void json_pair(struct out *o, const char *name, double re, double im)
{
    before(o, name);
    putc('[', o->file);
    out_json_real(o->file, re);
    putc(',', o->file);
    out_json_real(o->file, im);
    putc(']', o->file);
}

static void json_list(struct out *o, const char *name)
{
    before(o, name);
    putc('[', o->file);
    o->items = 0;
}

static void json_list_end(struct out *o)
{
    putc(']', o->file);
    o->items = -1;
}

static void json_histogram(struct out *o, const char *name, int dtype,
                           const struct histogram *h)
{
    before(o, name);
    fprintf(o->file, "{\"kind\":\"%s\",\"first_exponent\":%d,\"counts\":[",
            trd_histogram_name(h->kind), trd_bin_exponent(dtype, h->first));
    for (uint32_t i = 0; i < h->n; i++)
        fprintf(o->file, "%s%llu", i ? "," : "",
                (unsigned long long)histogram_count(h, i));
    fputs("]}", o->file);
}

static void json_stop(struct out *o)
{
    fputs("}\n", o->file);
}

static void put_blob(FILE *f, struct slice s)
{
    putc('"', f);
    for (size_t i = 0; i < s.n; i++)
        fprintf(f, "%02x", (unsigned char)s.text[i]);
    putc('"', f);
}

static void json_row(struct out *o, const struct cell *cells)
{
    for (uint32_t i = 0; i < o->columns; i++) {
        putc(i ? ',' : '{', o->file);
        out_json_text(o->file, o->column[i]);
        putc(':', o->file);
        switch (cells[i].type) {
        case CELL_NULL:
            fputs("null", o->file);
            break;
        case CELL_INT:
            fprintf(o->file, "%lld", (long long)cells[i].i);
            break;
        case CELL_REAL:
            out_json_real(o->file, cells[i].f);
            break;
        case CELL_TEXT:
            out_json_text(o->file, cells[i].s);
            break;
        case CELL_BLOB:
            put_blob(o->file, cells[i].s);
            break;
        }
    }
    fputs("}\n", o->file);
}

static const struct out_fields json_fields = {
    json_start, json_null, json_text, json_flag, json_whole,   json_natural,
    json_real,  json_pair, json_list, json_list_end, json_histogram,
    json_stop};

const struct out_format out_json = {
    .name = "json",
    .fields = &json_fields,
    .record = out_fields_of,
    .table_row = json_row,
};
