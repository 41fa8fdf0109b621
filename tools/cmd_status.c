/* tracectl status: key and value of the daemon and its clients, or of the
 * files. Losses make it end with 1. */
#include <string.h>

#include "tools/out.h"
#include "tools/source.h"

/* "lost", "run.x.lost", "run.x.lost.cause": a count of lost records. */
static int is_loss(struct slice key)
{
    for (size_t i = 0; i + 4 <= key.n; i++) {
        int starts = i == 0 || key.text[i - 1] == '.';
        int ends = i + 4 == key.n || key.text[i + 4] == '.';
        if (starts && ends && memcmp(key.text + i, "lost", 4) == 0)
            return 1;
    }
    return 0;
}

/* A number above 0; the daemon gives its values as text. */
static int is_some(const struct cell *c)
{
    if (c->type == CELL_INT)
        return c->i > 0;
    if (c->type != CELL_TEXT)
        return 0;
    for (size_t i = 0; i < c->s.n; i++)
        if (c->s.text[i] < '0' || c->s.text[i] > '9')
            return 0;
    return c->s.n > 0 && !(c->s.n == 1 && c->s.text[0] == '0');
}

int cmd_status(struct ctl *ctl, int argc, char **argv)
{
    static const struct option none[] = {{OPTION_END, NULL, NULL}};
    static const struct slice names[] = {{"key", 3}, {"value", 5}};
    const struct cell *cells;
    struct source *s = NULL;
    struct query q;
    struct out o;
    int got = 0, losses = 0;
    if (ctl_options(ctl, none, &argc, argv) ||
        out_open(&o, ctl->format, stdout))
        return CTL_BAD;
    if (argc)
        return ctl_fail(CTL_BAD, "status takes no words");
    query_init(&q, QUERY_STATUS);
    int code = source_open(ctl, NULL, &s);
    if (code == 0)
        code = source_ask(s, &q);
    if (code == 0 && source_columns(s) >= 2) {
        out_table(&o, names, 2);
        while ((got = source_row(s, &cells)) > 0) {
            out_row(&o, cells);
            if (cells[0].type == CELL_TEXT && is_loss(cells[0].s) &&
                is_some(&cells[1]))
                losses = 1;
        }
        code = got < 0 ? -got : CTL_FOUND;
        if (out_close(&o))
            code = CTL_FAILED;
    }
    source_close(s);
    if (code == CTL_FOUND && (losses || o.n == 0))
        return CTL_NOTHING;
    return code;
}
