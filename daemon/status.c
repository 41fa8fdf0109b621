/* The page of the daemon's state. Filled on the loop thread, written out by
 * a worker. */
#include "daemon/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* "%u", "%llu", "%ld": the value is a number. */
static bool is_number(const char *format)
{
    size_t n = strlen(format);
    return n >= 2 && format[0] == '%' &&
           strspn(format + 1, "lhz") == n - 2 &&
           (format[n - 1] == 'u' || format[n - 1] == 'd');
}

void status_add(struct status *s, const char *key, const char *format, ...)
{
    va_list args;
    struct status_row *row;
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        row = realloc(s->row, cap * sizeof *row);
        if (!row)
            return;
        s->row = row;
        s->cap = cap;
    }
    row = &s->row[s->n++];
    snprintf(row->key, sizeof row->key, "%s", key);
    va_start(args, format);
    vsnprintf(row->value, sizeof row->value, format, args);
    va_end(args);
    row->number = is_number(format);
}

size_t status_page(const struct status *s, uint8_t *out, size_t cap)
{
    static const char *const names[] = {"key", "value"};
    struct page_writer p;
    page_open(&p, out, cap, PAGE_OK, slice_of(""));
    page_columns(&p, names, 2);
    for (size_t i = 0; i < s->n; i++) {
        struct cell key = {.type = CELL_TEXT, .s = slice_of(s->row[i].key)};
        struct cell value = {.type = CELL_TEXT, .s = slice_of(s->row[i].value)};
        if (s->row[i].number) {
            value.type = CELL_INT;
            value.i = strtoll(s->row[i].value, NULL, 10);
        }
        if (page_cell(&p, &key) || page_cell(&p, &value))
            break;
    }
    return page_close(&p, slice_of(""));
}
