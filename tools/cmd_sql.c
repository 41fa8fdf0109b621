/* tracectl sql 'SELECT ...' */
#include "tools/out.h"
#include "tools/source.h"

int cmd_sql(struct ctl *ctl, int argc, char **argv)
{
    static const struct option none[] = {{OPTION_END, NULL, NULL}};
    const struct cell *cells;
    struct source *s = NULL;
    struct query q;
    struct out o;
    int got = 0;
    if (ctl_options(ctl, none, &argc, argv) ||
        out_open(&o, ctl->format, stdout))
        return CTL_BAD;
    if (argc != 1 || !*argv[0])
        return ctl_fail(CTL_BAD, "sql takes one statement, in quotes");
    query_init(&q, QUERY_SQL);
    q.sql = slice_of(argv[0]);
    int code = source_open(ctl, NULL, &s);
    if (code == 0)
        code = source_ask(s, &q);
    if (code == 0) {
        o.empty_head = 1;
        out_table(&o, source_column_names(s), source_columns(s));
        while ((got = source_row(s, &cells)) > 0)
            out_row(&o, cells);
        code = got < 0 ? -got : CTL_FOUND;
        if (out_close(&o))
            code = CTL_FAILED;
    }
    source_close(s);
    if (code == CTL_FOUND && o.n == 0)
        return CTL_NOTHING;
    return code;
}
