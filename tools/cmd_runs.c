/* tracectl runs: the stored runs, in the order of their start. */
#include <stdlib.h>
#include <string.h>

#include "tools/out.h"
#include "tools/source.h"

/* The columns people see, and where they are in RUN_COLUMNS. */
enum { NAME = 0, STARTED = 1, DEFAULT = 8, SHOWN = 9 };
static const char *const shown[SHOWN] = {
    "name", "started_ns", "ranks", "iterations", "records", "losses",
    "pruned", "state", "default"};

/* The rows of the answer, kept to be sorted. */
struct rows {
    struct cell **row; /* columns cells each; their text is theirs */
    size_t n, room;
    uint32_t columns;
};

static int find(const struct source *s, const char *name)
{
    const struct slice *names = source_column_names(s);
    for (uint32_t i = 0; i < source_columns(s); i++)
        if (names[i].n == strlen(name) &&
            memcmp(names[i].text, name, names[i].n) == 0)
            return (int)i;
    return -1;
}

/* ---- keeping the rows ---- */

static void free_rows(struct rows *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->row[i]);
    free(l->row);
}

/* The cells and their text in one piece. */
static struct cell *copy_row(const struct cell *cells, uint32_t columns)
{
    size_t n = columns * sizeof *cells;
    for (uint32_t i = 0; i < columns; i++)
        n += cells[i].s.n;
    struct cell *row = malloc(n ? n : 1);
    if (!row)
        return NULL;
    char *text = (char *)(row + columns);
    for (uint32_t i = 0; i < columns; i++) {
        row[i] = cells[i];
        memcpy(text, cells[i].s.text, cells[i].s.n);
        row[i].s.text = text;
        text += cells[i].s.n;
    }
    return row;
}

static int keep_row(struct rows *l, const struct cell *cells)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        struct cell **more = realloc(l->row, room * sizeof *more);
        if (!more)
            return ctl_fail(CTL_FAILED, "out of memory");
        l->row = more;
        l->room = room;
    }
    l->row[l->n] = copy_row(cells, l->columns);
    if (!l->row[l->n])
        return ctl_fail(CTL_FAILED, "out of memory");
    l->n++;
    return 0;
}

static int by_start(const void *a, const void *b)
{
    const struct cell *x = *(struct cell *const *)a;
    const struct cell *y = *(struct cell *const *)b;
    int64_t t = x[STARTED].type == CELL_INT ? x[STARTED].i : INT64_MIN;
    int64_t u = y[STARTED].type == CELL_INT ? y[STARTED].i : INT64_MIN;
    if (t != u)
        return t < u ? -1 : 1;
    size_t n = x[NAME].s.n < y[NAME].s.n ? x[NAME].s.n : y[NAME].s.n;
    int c = memcmp(x[NAME].s.text, y[NAME].s.text, n);
    return c ? c : x[NAME].s.n < y[NAME].s.n ? -1 : 1;
}

/* All rows, the newest run last. */
static int read_rows(struct source *s, struct rows *l)
{
    const struct cell *cells;
    int got, code = 0;
    l->columns = source_columns(s);
    while (code == 0 && (got = source_row(s, &cells)) != 0)
        code = got < 0 ? -got : keep_row(l, cells);
    if (code == 0 && l->n && l->columns > STARTED)
        qsort(l->row, l->n, sizeof *l->row, by_start);
    return code;
}

/* ---- printing them ---- */

/* For eyes: fewer columns, the start as a local time, and which run is meant
 * where none is named. */
static int print_text(struct source *s, struct out *o, const struct rows *l)
{
    const struct cell none = {.type = CELL_NULL, .s = {"", 0}};
    struct slice head[SHOWN];
    int at[SHOWN];
    for (int i = 0; i < SHOWN; i++) {
        head[i] = slice_of(i == STARTED ? "started" : shown[i]);
        at[i] = find(s, shown[i]);
    }
    const char *meant = l->n ? source_newest(s) : "";
    out_table(o, head, SHOWN);
    for (size_t k = 0; k < l->n; k++) {
        struct cell row[SHOWN];
        char started[OUT_TIME_MAX];
        for (int i = 0; i < SHOWN; i++)
            row[i] = at[i] < 0 ? none : l->row[k][at[i]];
        struct slice name = row[NAME].s;
        row[STARTED] = out_time(&row[STARTED], started);
        row[DEFAULT].type = CELL_TEXT;
        row[DEFAULT].s =
            slice_of(name.n == strlen(meant) &&
                             memcmp(name.text, meant, name.n) == 0
                         ? "*"
                         : "");
        out_row(o, row);
    }
    return out_close(o) ? CTL_FAILED : CTL_FOUND;
}

static int print_data(struct source *s, struct out *o, const struct rows *l)
{
    out_table(o, source_column_names(s), source_columns(s));
    for (size_t k = 0; k < l->n; k++)
        out_row(o, l->row[k]);
    return out_close(o) ? CTL_FAILED : CTL_FOUND;
}

int cmd_runs(struct ctl *ctl, int argc, char **argv)
{
    static const struct option none[] = {{OPTION_END, NULL, NULL}};
    struct rows l = {NULL, 0, 0, 0};
    struct source *s = NULL;
    struct query q;
    struct out o;
    if (ctl_options(ctl, none, &argc, argv) ||
        out_open(&o, ctl->format, stdout))
        return CTL_BAD;
    if (argc)
        return ctl_fail(CTL_BAD, "runs takes no words");
    query_init(&q, QUERY_RUNS);
    int code = source_open(ctl, NULL, &s);
    if (code == 0)
        code = source_ask(s, &q);
    int told = s && source_status(s) == PAGE_NOTHING;
    if (code == 0)
        code = read_rows(s, &l);
    if (code == 0)
        code = o.format == &out_text ? print_text(s, &o, &l)
                                     : print_data(s, &o, &l);
    free_rows(&l);
    source_close(s);
    if (code == CTL_FOUND && o.n == 0) {
        if (!told)
            ctl_fail(0, "no run is stored");
        return CTL_NOTHING;
    }
    return code;
}
