/* The formats' common part, and tables as text. */
#include "tools/out.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { TABLE_ROWS = 256, CELL_TEXT_MAX = 60 };

void out_number(double v, char out[OUT_NUMBER_MAX])
{
    if (isnan(v) || isinf(v)) {
        snprintf(out, OUT_NUMBER_MAX, "%s",
                 isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, OUT_NUMBER_MAX - 2, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            break;
    }
    if (!strpbrk(out, ".e"))
        strcat(out, ".0");
}

struct cell out_time(const struct cell *ns, char out[OUT_TIME_MAX])
{
    struct cell c = {.type = CELL_NULL, .s = {"", 0}};
    time_t t = (time_t)(ns->i / 1000000000);
    struct tm tm;
    if (ns->type == CELL_INT && localtime_r(&t, &tm) &&
        (c.s.n = strftime(out, OUT_TIME_MAX, "%Y-%m-%d %H:%M:%S", &tm)) > 0) {
        c.type = CELL_TEXT;
        c.s.text = out;
    }
    return c;
}

void out_plain(FILE *file, struct slice s)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char b = (unsigned char)s.text[i];
        putc(b < 0x20 || b == 0x7f ? '?' : b, file);
    }
}

static int wants_color(FILE *file)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(file)) && !(none && *none) &&
           !(term && strcmp(term, "dumb") == 0);
}

int out_open(struct out *o, const char *format, FILE *file)
{
    static const struct out_format *const formats[] = {&out_text, &out_json,
                                                       &out_csv};
    memset(o, 0, sizeof *o);
    o->file = file;
    o->run = "";
    o->items = -1;
    o->color = wants_color(file);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!format || strcmp(format, formats[i]->name) == 0) {
            o->format = formats[i];
            return 0;
        }
    return ctl_fail(CTL_BAD, "no format '%s': text, json or csv", format);
}

void out_record(struct out *o, const struct row *r)
{
    if (o->n++ == 0 && o->format->record_head)
        o->format->record_head(o);
    o->format->record(o, r);
}

void out_table(struct out *o, const struct slice *column, uint32_t columns)
{
    o->column = column;
    o->columns = columns;
    if (o->format->table_head)
        o->format->table_head(o);
}

void out_row(struct out *o, const struct cell *cells)
{
    o->n++;
    o->format->table_row(o, cells);
}

int out_close(struct out *o)
{
    if (o->format->end)
        o->format->end(o);
    free(o->list);
    o->list = NULL;
    if (fflush(o->file) || ferror(o->file))
        return ctl_fail(CTL_FAILED, "cannot write: %s", ctl_errno(errno));
    return 0;
}

/* ---- tables as text: aligned by the first rows ---- */

/* The columns a terminal shows: UTF-8 continuation bytes take none. */
static size_t shown(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static char *copy_text(struct slice s)
{
    size_t n = s.n;
    char *text = malloc(n + 1);
    for (size_t i = 0; text && i < n; i++) {
        unsigned char b = (unsigned char)s.text[i];
        text[i] = (char)(b < 0x20 || b == 0x7f ? '?' : b);
    }
    if (text)
        text[n] = '\0';
    return text;
}

static char *cell_text(const struct cell *c)
{
    char text[CELL_TEXT_MAX];
    switch (c->type) {
    case CELL_NULL:
        snprintf(text, sizeof text, "-");
        break;
    case CELL_INT:
        snprintf(text, sizeof text, "%lld", (long long)c->i);
        break;
    case CELL_REAL:
        if (c->f == floor(c->f) && fabs(c->f) < 1e15)
            snprintf(text, sizeof text, "%.1f", c->f);
        else
            snprintf(text, sizeof text, "%.6g", c->f);
        break;
    case CELL_TEXT:
        return copy_text(c->s);
    case CELL_BLOB:
        snprintf(text, sizeof text, "<%zu bytes>", c->s.n);
        break;
    }
    return strdup(text);
}

static void print_cells(struct out *o, char *const *cell, int head)
{
    struct out_table *t = &o->table;
    if (head && o->color)
        fputs("\033[1m", o->file);
    for (uint32_t i = 0; i < o->columns; i++) {
        const char *text = cell[i] ? cell[i] : "";
        size_t n = shown(text);
        int pad = n < t->width[i] ? (int)(t->width[i] - n) : 0;
        int last = i + 1 == o->columns;
        if (t->right[i])
            fprintf(o->file, "%*s%s%s", pad, "", text, last ? "" : "  ");
        else
            fprintf(o->file, "%s%*s%s", text, last ? 0 : pad, "",
                    last ? "" : "  ");
    }
    fputs(head && o->color ? "\033[0m\n" : "\n", o->file);
}

/* Prints and forgets the rows that were kept. */
static void flush_table(struct out *o)
{
    struct out_table *t = &o->table;
    char *head[PAGE_MAX_COLUMNS];
    if (!t->sized) {
        for (uint32_t i = 0; i < o->columns; i++) {
            head[i] = copy_text(o->column[i]);
            size_t n = head[i] ? shown(head[i]) : 0;
            if (n > t->width[i])
                t->width[i] = n;
        }
        if (t->n || o->empty_head)
            print_cells(o, head, 1);
        for (uint32_t i = 0; i < o->columns; i++)
            free(head[i]);
        t->sized = t->n > 0;
    }
    for (size_t i = 0; i + o->columns <= t->n; i += o->columns)
        print_cells(o, t->cell + i, 0);
    for (size_t i = 0; i < t->n; i++)
        free(t->cell[i]);
    t->n = 0;
}

static void text_head(struct out *o)
{
    for (uint32_t i = 0; i < o->columns; i++)
        o->table.right[i] = 1;
}

static void text_row(struct out *o, const struct cell *cells)
{
    struct out_table *t = &o->table;
    if (!t->cell)
        t->cell = calloc((size_t)TABLE_ROWS * PAGE_MAX_COLUMNS,
                         sizeof *t->cell);
    if (!t->cell)
        return;
    for (uint32_t i = 0; i < o->columns; i++) {
        char *text = cell_text(&cells[i]);
        size_t n = text ? shown(text) : 0;
        if (!t->sized && n > t->width[i])
            t->width[i] = n;
        if (!t->sized && cells[i].type == CELL_TEXT)
            t->right[i] = 0;
        t->cell[t->n++] = text;
    }
    if (t->n >= (size_t)TABLE_ROWS * o->columns)
        flush_table(o);
}

static void text_end(struct out *o)
{
    if (o->columns)
        flush_table(o);
    free(o->table.cell);
    o->table.cell = NULL;
}

const struct out_format out_text = {
    .name = "text",
    .record = out_text_record,
    .table_head = text_head,
    .table_row = text_row,
    .end = text_end,
};
