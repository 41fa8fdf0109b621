/* tracectl check [RUN] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/check.h"
#include "tools/out.h"
#include "tools/rules.h"
#include "tools/source.h"

enum { NAME_MAX_BYTES = 2 * TRD_MAX_NAME + 128 };

static void key_whole(const char *name, int64_t v)
{
    printf(",\"%s\":%" PRId64, name, v);
}

static void key_text(const char *name, const char *text)
{
    printf(",\"%s\":", name);
    out_json_text(stdout, slice_of(text));
}

static void put_json(const struct scan *s, const struct check_result *r)
{
    char name[NAME_MAX_BYTES];
    printf("{\"verdict\":\"%s\"",
           r->n > r->notes ? "unhealthy" : "healthy");
    key_whole("records", (int64_t)r->records);
    key_whole("nonfinite", (int64_t)r->carriers);
    printf(",\"findings\":[");
    for (size_t i = 0; i < r->n; i++) {
        const struct check_finding *f = &r->finding[i];
        compare_name(s, &f->at, name, sizeof name);
        printf("%s{\"kind\":\"%s\"", i ? "," : "", check_kind_name(f->kind));
        key_text("name", name);
        key_text("module", scan_module(s, f->at.object));
        key_whole("rank", f->at.rank);
        key_text("pass", trd_pass_name(f->at.pass));
        key_whole("step", f->at.step);
        key_whole("iteration", f->at.iteration);
        key_whole("records", (int64_t)f->records);
        if (f->note)
            printf(",\"note\":true");
        key_text("detail", f->detail);
        putchar('}');
    }
    printf("]}\n");
}

static int put_table(const struct scan *s, const struct check_result *r,
                     const char *format)
{
    static const char *const head[] = {"kind", "name",      "module",
                                       "rank", "iteration", "records",
                                       "detail"};
    enum { COLUMNS = sizeof head / sizeof *head };
    struct slice column[COLUMNS];
    char name[NAME_MAX_BYTES];
    struct out o;
    if (out_open(&o, format, stdout))
        return CTL_BAD;
    for (int i = 0; i < COLUMNS; i++)
        column[i] = slice_of(head[i]);
    out_table(&o, column, COLUMNS);
    for (size_t i = 0; i < r->n; i++) {
        const struct check_finding *f = &r->finding[i];
        compare_name(s, &f->at, name, sizeof name);
        const struct cell row[COLUMNS] = {
            {.type = CELL_TEXT, .s = slice_of(check_kind_name(f->kind))},
            {.type = CELL_TEXT, .s = slice_of(name)},
            {.type = CELL_TEXT, .s = slice_of(scan_module(s, f->at.object))},
            {.type = CELL_INT, .i = f->at.rank, .s = {"", 0}},
            {.type = CELL_INT, .i = f->at.iteration, .s = {"", 0}},
            {.type = CELL_INT, .i = (int64_t)f->records, .s = {"", 0}},
            {.type = CELL_TEXT, .s = slice_of(f->detail)},
        };
        out_row(&o, row);
    }
    return out_close(&o);
}

static int put(const struct scan *s, const struct check_result *r,
               const char *format)
{
    bool text = !format || strcmp(format, "text") == 0;
    if (format && strcmp(format, "json") == 0) {
        put_json(s, r);
        return 0;
    }
    if (text)
        printf("%s: %" PRIu64 " records, %" PRIu64 " with NaN or "
               "infinities\n",
               r->n > r->notes ? "unhealthy" : "healthy", r->records,
               r->carriers);
    return text && !r->n ? 0 : put_table(s, r, format);
}

int cmd_check(struct ctl *ctl, int argc, char **argv)
{
    struct check_result r = {0};
    struct scan *s = NULL;
    int64_t attempt = -1;
    struct out probe;
    char *path = NULL;
    int code;
    const struct option options[] = {{OPTION_NUMBER, "--attempt", &attempt},
                                     {OPTION_END, NULL, NULL}};
    if (ctl_options(ctl, options, &argc, argv) ||
        out_open(&probe, ctl->format, stdout))
        return CTL_BAD;
    if (argc > 1)
        return ctl_fail(CTL_BAD, "check takes one run");
    code = source_path(ctl, argc ? argv[0] : ctl->run ? ctl->run : "", &path);
    if (code == 0)
        code = scan_open(path, attempt, &s);
    if (code == 0)
        code = check_run(s, &r);
    if (code == 0)
        code = put(s, &r, ctl->format);
    if (code == 0 && r.records == 0)
        code = ctl_fail(CTL_NOTHING, "the run has no records: there was "
                                     "nothing to look at");
    if (code == 0 && r.n > r.notes)
        code = CTL_NOTHING;
    check_free(&r);
    scan_close(s);
    free(path);
    return code;
}
