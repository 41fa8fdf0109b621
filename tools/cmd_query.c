/* tracectl query NAME */
#include <string.h>

#include "proto/name.h"
#include "tools/out.h"
#include "tools/source.h"

/* Does the name follow the grammar? Asked here, so that a malformed one is
 * told without a daemon. */
static int check_name(struct slice name, uint32_t as)
{
    struct name_query names;
    const char *why = "it is empty";
    if (name.n && name_parse(name, (enum name_as)as, &names, &why) == 0)
        return 0;
    return ctl_fail(CTL_BAD, "'%.*s' is not a name: %s", (int)name.n,
                    name.text, why);
}

/* Prints the rows; the exit code. */
static int print_rows(struct source *s, struct out *o)
{
    const struct cell *cells;
    struct row row;
    int got;
    if (source_status(s) == PAGE_OK && source_columns(s) != ROW_COLUMN_COUNT)
        return ctl_fail(CTL_FAILED, "the daemon's records have another form");
    while ((got = source_row(s, &cells)) > 0) {
        if (row_get(cells, &row))
            return ctl_fail(CTL_BAD, "a record of run '%s' is damaged",
                            o->run);
        out_record(o, &row);
    }
    return got < 0 ? -got : CTL_FOUND;
}

static int read_as(const char *word, uint32_t *out)
{
    if (!word)
        *out = NAME_AS_ANY;
    else if (strcmp(word, "object") == 0)
        *out = NAME_AS_OBJECT;
    else if (strcmp(word, "module") == 0)
        *out = NAME_AS_MODULE;
    else
        return ctl_fail(CTL_BAD, "--as is object or module, not '%s'", word);
    return 0;
}

int cmd_query(struct ctl *ctl, int argc, char **argv)
{
    struct query q;
    struct out o;
    struct source *s = NULL;
    const char *as = NULL;
    int64_t limit = 0;
    query_init(&q, QUERY_RECORDS);
    const struct option options[] = {
        {OPTION_NUMBER, "--rank", &q.rank},
        {OPTION_NUMBER, "--attempt", &q.attempt},
        {OPTION_NUMBER, "--iteration", &q.iteration},
        {OPTION_NUMBER, "--microbatch", &q.microbatch},
        {OPTION_NUMBER, "--limit", &limit},
        {OPTION_TEXT, "--as", &as},
        {OPTION_END, NULL, NULL}};
    if (ctl_options(ctl, options, &argc, argv) || read_as(as, &q.as) ||
        out_open(&o, ctl->format, stdout))
        return CTL_BAD;
    if (argc != 1)
        return ctl_fail(CTL_BAD, argc ? "query takes one NAME"
                                      : "query needs a NAME");
    q.name = slice_of(argv[0]);
    q.limit = (uint64_t)limit;
    int code = check_name(q.name, q.as);
    if (code == 0)
        code = source_open(ctl, NULL, &s);
    if (code == 0)
        code = source_ask(s, &q);
    if (code == 0) {
        o.run = source_run(s);
        code = print_rows(s, &o);
    }
    int status = s ? source_status(s) : 0;
    source_close(s);
    if (out_close(&o))
        return CTL_FAILED;
    if (code == CTL_FOUND && o.n == 0) {
        if (status == PAGE_OK)
            ctl_fail(0, "no record matches '%s'", argv[0]);
        return CTL_NOTHING;
    }
    return code;
}
