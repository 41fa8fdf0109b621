/* tracectl runs */
#include <string.h>
#include <time.h>

#include "tools/out.h"
#include "tools/source.h"

/* The columns people see, and where they are in RUN_COLUMNS. */
enum { STARTED = 1, SHOWN = 7 };
static const char *const shown[SHOWN] = {
    "name", "started_ns", "ranks", "iterations", "records", "losses",
    "state"};

static int find(const struct source *s, const char *name)
{
    const struct slice *names = source_column_names(s);
    for (uint32_t i = 0; i < source_columns(s); i++)
        if (names[i].n == strlen(name) &&
            memcmp(names[i].text, name, names[i].n) == 0)
            return (int)i;
    return -1;
}

static struct cell local_time(const struct cell *ns, char *out, size_t cap)
{
    struct cell c = {.type = CELL_NULL, .s = {"", 0}};
    time_t t = (time_t)(ns->i / 1000000000);
    struct tm tm;
    if (ns->type == CELL_INT && localtime_r(&t, &tm) &&
        (c.s.n = strftime(out, cap, "%Y-%m-%d %H:%M:%S", &tm)) > 0) {
        c.type = CELL_TEXT;
        c.s.text = out;
    }
    return c;
}

/* For eyes: fewer columns, and the start as a local time. */
static int print_text(struct source *s, struct out *o)
{
    struct slice head[SHOWN];
    int at[SHOWN], got;
    const struct cell *cells;
    for (int i = 0; i < SHOWN; i++) {
        head[i] = slice_of(i == STARTED ? "started" : shown[i]);
        at[i] = find(s, shown[i]);
    }
    out_table(o, head, SHOWN);
    while ((got = source_row(s, &cells)) > 0) {
        struct cell row[SHOWN];
        char started[32];
        for (int i = 0; i < SHOWN; i++) {
            const struct cell none = {.type = CELL_NULL, .s = {"", 0}};
            row[i] = at[i] < 0 ? none : cells[at[i]];
        }
        row[STARTED] = local_time(&row[STARTED], started, sizeof started);
        out_row(o, row);
    }
    if (out_close(o))
        return CTL_FAILED;
    return got < 0 ? -got : CTL_FOUND;
}

static int print_data(struct source *s, struct out *o)
{
    const struct cell *cells;
    int got;
    out_table(o, source_column_names(s), source_columns(s));
    while ((got = source_row(s, &cells)) > 0)
        out_row(o, cells);
    if (out_close(o))
        return CTL_FAILED;
    return got < 0 ? -got : CTL_FOUND;
}

int cmd_runs(struct ctl *ctl, int argc, char **argv)
{
    static const struct option none[] = {{OPTION_END, NULL, NULL}};
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
    if (code == 0)
        code = o.format == &out_text ? print_text(s, &o) : print_data(s, &o);
    int told = s && source_status(s) == PAGE_NOTHING;
    source_close(s);
    if (code == CTL_FOUND && o.n == 0) {
        if (!told)
            ctl_fail(0, "no run is stored");
        return CTL_NOTHING;
    }
    return code;
}
