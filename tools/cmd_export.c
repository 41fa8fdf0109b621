/* tracectl export: a run in the order of its processes and their records. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/export_parquet.h"
#include "tools/out.h"
#include "tools/seed.h"
#include "tools/source.h"
#include "tools/target.h"

static int export_rows(struct source *s, struct out *o, struct seed *seed)
{
    const struct cell *cells;
    struct row row;
    int got, code = 0;
    if (source_status(s) == PAGE_OK && source_columns(s) != ROW_COLUMN_COUNT)
        return ctl_fail(CTL_FAILED, "the daemon's records have another form");
    while (code == 0 && (got = source_row(s, &cells)) != 0) {
        if (got < 0)
            return -got;
        if (row_get(cells, &row))
            return ctl_fail(CTL_BAD, "a record of run '%s' is damaged",
                            source_run(s));
        if (seed)
            code = seed_record(seed, &row);
        else
            out_record(o, &row);
    }
    return code;
}

/* What a reader of the log should know of it. */
static void tell_seed(const struct seed_result *r)
{
    if (r->left_out)
        ctl_fail(0,
                 "%llu records left out: complex, packed or without figures; "
                 "the script's lines cannot show them",
                 (unsigned long long)r->left_out);
    if (r->other_samples)
        ctl_fail(0,
                 "%llu records left out: their samples are not equidistant, "
                 "as the script's are",
                 (unsigned long long)r->other_samples);
    if (r->several_ranks)
        ctl_fail(0,
                 "lines of several ranks follow one another, each with a "
                 "count of its own; import reads one rank a file: name one "
                 "by --rank");
    else if (r->streams > 1)
        ctl_fail(0, "lines of several processes of a rank follow one "
                    "another, each with a count of its own; --attempt gives "
                    "those of one attempt");
}

static int export_seed(struct source *s, FILE *file, uint64_t *n)
{
    struct seed *seed = NULL;
    struct seed_result r = {.lines = 0};
    int code = seed_open(file, &seed);
    if (code == 0)
        code = export_rows(s, NULL, seed);
    int end = seed_close(seed, &r);
    *n = r.lines;
    tell_seed(&r);
    if (code == 0)
        code = end;
    if (fflush(file) || ferror(file))
        return ctl_fail(CTL_FAILED, "cannot write: %s", ctl_errno(errno));
    return code;
}

static int export_fields(struct source *s, const char *format, FILE *file,
                         uint64_t *n)
{
    struct out o;
    if (out_open(&o, format, file))
        return CTL_BAD;
    o.run = source_run(s);
    int code = export_rows(s, &o, NULL);
    *n = o.n;
    return out_close(&o) ? CTL_FAILED : code;
}

static int check_format(const char *format)
{
    static const char *const known[] = {"seed", "csv", "json", "parquet"};
    if (!format)
        return ctl_fail(CTL_BAD,
                        "export needs --format seed, csv, json or parquet");
    for (int i = 0; i < 4; i++)
        if (strcmp(format, known[i]) == 0)
            return 0;
    return ctl_fail(CTL_BAD,
                    "no export format '%s': seed, csv, json or parquet",
                    format);
}

/* The file is touched only when there is a record for it. */
static int write_file(struct source *s, const char *format, const char *path)
{
    struct target *t = NULL;
    uint64_t n = 0;
    int code = target_open(path, &t);
    if (code)
        return code;
    if (strcmp(format, "seed") == 0)
        code = export_seed(s, target_file(t), &n);
    else
        code = export_fields(s, format, target_file(t), &n);
    if (target_close(t, code == 0 && n > 0) && code == 0)
        code = CTL_FAILED;
    if (code == 0 && n == 0)
        return ctl_fail(CTL_NOTHING, "no record to export");
    return code;
}

/* Not through a source: Python reads the file itself. */
static int write_parquet(const struct ctl *ctl, const char *run,
                         const char *out, const struct query *q)
{
    char *path = NULL;
    int code;
    if (!out || strcmp(out, "-") == 0)
        return ctl_fail(CTL_BAD, "--format parquet needs --out FILE");
    if (!run)
        run = ctl->run ? ctl->run : "";
    code = source_path(ctl, run, &path);
    if (code == 0)
        code = export_parquet(path, out, q->rank, q->attempt);
    free(path);
    return code;
}

int cmd_export(struct ctl *ctl, int argc, char **argv)
{
    struct query q;
    struct source *s = NULL;
    const char *format = NULL, *path = NULL;
    query_init(&q, QUERY_RECORDS);
    q.order = ORDER_SEQ;
    const struct option options[] = {
        {OPTION_TEXT, "--format", &format},
        {OPTION_TEXT, "--out", &path},
        {OPTION_NUMBER, "--rank", &q.rank},
        {OPTION_NUMBER, "--attempt", &q.attempt},
        {OPTION_END, NULL, NULL}};
    if (ctl_options(ctl, options, &argc, argv))
        return CTL_BAD;
    if (argc > 1)
        return ctl_fail(CTL_BAD, "export takes one RUN");
    if (!format)
        format = ctl->format;
    int code = check_format(format);
    if (code == 0 && strcmp(format, "parquet") == 0)
        return write_parquet(ctl, argc ? argv[0] : NULL, path, &q);
    if (code == 0)
        code = source_open(ctl, argc ? argv[0] : NULL, &s);
    if (code == 0)
        code = source_use_file(s);
    if (code == 0)
        code = source_ask(s, &q);
    if (code == 0)
        code = source_status(s) == PAGE_NOTHING ? CTL_NOTHING
                                                : write_file(s, format, path);
    source_close(s);
    return code;
}
