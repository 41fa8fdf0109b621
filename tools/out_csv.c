/* csv: a head line, then a line a record; quoted as RFC 4180 says. */
#include <stdlib.h>

#include "tools/out.h"

static void put_field(FILE *f, struct slice s)
{
    int quote = 0;
    for (size_t i = 0; i < s.n && !quote; i++)
        quote = strchr(",\"\r\n", s.text[i]) != NULL;
    if (s.n && (s.text[0] == ' ' || s.text[s.n - 1] == ' '))
        quote = 1;
    if (!quote) {
        if (s.n) /* an empty one may have no memory */
            fwrite(s.text, 1, s.n, f);
        return;
    }
    putc('"', f);
    for (size_t i = 0; i < s.n; i++) {
        if (s.text[i] == '"')
            putc('"', f);
        putc(s.text[i], f);
    }
    putc('"', f);
}

/* Appends to the list under way, separated by spaces. */
static void add_item(struct out *o, struct slice s)
{
    size_t need = o->list_n + s.n + 2;
    if (need > o->list_room) {
        size_t room = 2 * need;
        char *list = realloc(o->list, room);
        if (!list)
            return;
        o->list = list;
        o->list_room = room;
    }
    if (o->items++)
        o->list[o->list_n++] = ' ';
    if (s.n)
        memcpy(o->list + o->list_n, s.text, s.n);
    o->list_n += s.n;
}

static void put(struct out *o, struct slice s)
{
    if (o->items >= 0) {
        add_item(o, s);
        return;
    }
    if (o->fields++)
        putc(',', o->file);
    put_field(o->file, s);
}

static void csv_start(struct out *o)
{
    o->fields = 0;
}

static void csv_null(struct out *o, const char *name)
{
    (void)name;
    put(o, slice_of(""));
}

static void csv_text(struct out *o, const char *name, struct slice s)
{
    (void)name;
    put(o, s);
}

static void csv_flag(struct out *o, const char *name, int v)
{
    (void)name;
    put(o, slice_of(v ? "1" : "0"));
}

static void csv_whole(struct out *o, const char *name, int64_t v)
{
    char text[OUT_NUMBER_MAX];
    (void)name;
    snprintf(text, sizeof text, "%lld", (long long)v);
    put(o, slice_of(text));
}

static void csv_natural(struct out *o, const char *name, uint64_t v)
{
    char text[OUT_NUMBER_MAX];
    (void)name;
    snprintf(text, sizeof text, "%llu", (unsigned long long)v);
    put(o, slice_of(text));
}

static void csv_real(struct out *o, const char *name, double v)
{
    char text[OUT_NUMBER_MAX];
    (void)name;
    out_number(v, text);
    put(o, slice_of(text));
}

static void csv_pair(struct out *o, const char *name, double re, double im)
{
    char a[OUT_NUMBER_MAX], b[OUT_NUMBER_MAX], text[2 * OUT_NUMBER_MAX + 2];
    (void)name;
    out_number(re, a);
    out_number(im, b);
    snprintf(text, sizeof text, "%s%s%sj", a, *b == '-' ? "" : "+", b);
    put(o, slice_of(text));
}

static void csv_list(struct out *o, const char *name)
{
    (void)name;
    o->items = 0;
    o->list_n = 0;
}

static void csv_list_end(struct out *o)
{
    struct slice s = {o->list, o->list_n};
    o->items = -1;
    put(o, s);
}

static void csv_histogram(struct out *o, const char *name, int dtype,
                          const struct histogram *h)
{
    csv_list(o, name);
    csv_text(o, NULL, slice_of(trd_histogram_name(h->kind)));
    csv_whole(o, NULL, trd_bin_exponent(dtype, h->first));
    for (uint32_t i = 0; i < h->n; i++)
        csv_natural(o, NULL, histogram_count(h, i));
    csv_list_end(o);
}

static void csv_stop(struct out *o)
{
    putc('\n', o->file);
}

static const struct out_fields csv_fields = {
    csv_start, csv_null, csv_text, csv_flag, csv_whole,    csv_natural,
    csv_real,  csv_pair, csv_list, csv_list_end, csv_histogram, csv_stop};

/* The head line is the fields' names, written by fields that print them. */
static void name_only(struct out *o, const char *name)
{
    if (name && o->items < 0)
        put(o, slice_of(name));
}

static void name_text(struct out *o, const char *name, struct slice s)
{
    (void)s;
    name_only(o, name);
}

static void name_flag(struct out *o, const char *name, int v)
{
    (void)v;
    name_only(o, name);
}

static void name_whole(struct out *o, const char *name, int64_t v)
{
    (void)v;
    name_only(o, name);
}

static void name_natural(struct out *o, const char *name, uint64_t v)
{
    (void)v;
    name_only(o, name);
}

static void name_real(struct out *o, const char *name, double v)
{
    (void)v;
    name_only(o, name);
}

static void name_pair(struct out *o, const char *name, double re, double im)
{
    (void)re;
    (void)im;
    name_only(o, name);
}

static void name_list(struct out *o, const char *name)
{
    name_only(o, name);
    o->items = 0;
}

static void name_list_end(struct out *o)
{
    o->items = -1;
}

static void name_histogram(struct out *o, const char *name, int dtype,
                           const struct histogram *h)
{
    (void)dtype;
    (void)h;
    name_only(o, name);
}

static const struct out_fields head_fields = {
    csv_start, name_only, name_text, name_flag, name_whole,    name_natural,
    name_real, name_pair, name_list, name_list_end, name_histogram, csv_stop};

static const struct out_format head_format = {
    .name = "csv", .always_all = 1, .fields = &head_fields};

static void csv_record_head(struct out *o)
{
    struct row r;
    memset(&r, 0, sizeof r);
    r.pass = TRD_USER;
    r.dtype = TRD_F32;
    r.class_name = r.module = r.path = r.note = r.samples = slice_of("");
    o->format = &head_format;
    out_fields_of(o, &r);
    o->format = &out_csv;
}

static void csv_table_head(struct out *o)
{
    for (uint32_t i = 0; i < o->columns; i++) {
        if (i)
            putc(',', o->file);
        put_field(o->file, o->column[i]);
    }
    putc('\n', o->file);
}

static void put_blob(FILE *f, struct slice s)
{
    for (size_t i = 0; i < s.n; i++)
        fprintf(f, "%02x", (unsigned char)s.text[i]);
}

static void csv_row(struct out *o, const struct cell *cells)
{
    char number[OUT_NUMBER_MAX];
    for (uint32_t i = 0; i < o->columns; i++) {
        if (i)
            putc(',', o->file);
        switch (cells[i].type) {
        case CELL_NULL:
            break;
        case CELL_INT:
            fprintf(o->file, "%lld", (long long)cells[i].i);
            break;
        case CELL_REAL:
            out_number(cells[i].f, number);
            fputs(number, o->file);
            break;
        case CELL_TEXT:
            put_field(o->file, cells[i].s);
            break;
        case CELL_BLOB:
            put_blob(o->file, cells[i].s);
            break;
        }
    }
    putc('\n', o->file);
}

const struct out_format out_csv = {
    .name = "csv",
    .always_all = 1,
    .fields = &csv_fields,
    .record_head = csv_record_head,
    .record = out_fields_of,
    .table_head = csv_table_head,
    .table_row = csv_row,
};
