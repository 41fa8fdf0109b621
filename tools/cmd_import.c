/* tracectl import FILE... : text logs, journals and dumps of msprobe, through
 * the daemon. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/place.h"
#include "tools/import.h"
#include "tools/out.h"
#include "tools/source.h"
#include "tools/spawn.h"

enum { DIR_MAX = 4096, COLUMNS = 7, SAMPLES_DEFAULT = 16 };

static void on_signal(int number)
{
    (void)number;
    ingest_stop = 1;
}

/* Who reads the table or the bad lines may go; the import goes on. */
static void on_pipe(int number)
{
    (void)number;
}

/* A private daemon is to be stopped whatever happens. */
static void catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
    a.sa_handler = on_pipe;
    sigaction(SIGPIPE, &a, NULL);
}

static int check_numbers(int64_t rank, int64_t attempt, int64_t samples)
{
    if (rank >= RANK_LIMIT)
        return ctl_fail(CTL_BAD, "--rank is below %d", RANK_LIMIT);
    if (attempt >= ATTEMPT_LIMIT)
        return ctl_fail(CTL_BAD, "--attempt is below %d", ATTEMPT_LIMIT);
    if (samples > TRD_MAX_SAMPLES)
        return ctl_fail(CTL_BAD, "--samples is at most %d", TRD_MAX_SAMPLES);
    return 0;
}

static int check_run(const char *run)
{
    if (!run || place_run_ok(run, strlen(run)))
        return 0;
    return ctl_fail(CTL_BAD,
                    "'%s' cannot name a run: letters, digits, '.', '_' and "
                    "'-' only, at most %d, no '.' first",
                    run, TRD_MAX_RUN);
}

/* Where the daemon is; one that does not come is told once. */
struct place {
    const struct ctl *ctl;
    char dir[DIR_MAX];
    struct spawned own; /* with -d */
    int sought, code;
};

/* The directory of -d. Only its last component is made. */
static int make_data(const char *data)
{
    struct stat st;
    if (mkdir(data, 0700) == 0)
        return 0;
    if (errno == ENOENT)
        return ctl_fail(CTL_FAILED,
                        "cannot make '%s': the directory above it is not "
                        "there; run: mkdir -p '%s'",
                        data, data);
    if (errno != EEXIST)
        return ctl_fail(CTL_FAILED, "cannot make '%s': %s", data,
                        ctl_errno(errno));
    if (stat(data, &st) == 0 && !S_ISDIR(st.st_mode))
        return ctl_fail(CTL_BAD, "import stores into a directory of runs; "
                                 "'%s' is a file",
                        data);
    return 0;
}

static int seek_daemon(struct place *p)
{
    const struct ctl *ctl = p->ctl;
    if (!ctl->db)
        return source_dir(ctl->dir, p->dir, sizeof p->dir);
    int code = make_data(ctl->db);
    if (code == 0)
        code = spawn_daemon(ctl->db, &p->own);
    if (code == 0)
        snprintf(p->dir, sizeof p->dir, "%s", p->own.dir);
    return code;
}

static int find_daemon(void *context, const char **dir)
{
    struct place *p = context;
    if (!p->sought)
        p->code = seek_daemon(p);
    p->sought = 1;
    *dir = p->dir;
    return p->code;
}

static struct cell text_cell(const char *text)
{
    struct cell c = {.type = CELL_TEXT, .s = slice_of(text)};
    return c;
}

static struct cell int_cell(uint64_t v)
{
    struct cell c = {.type = CELL_INT, .i = (int64_t)v, .s = {"", 0}};
    return c;
}

static void report(struct out *o, const char *path,
                   const struct import_result *r)
{
    const struct cell none = {.type = CELL_NULL, .s = {"", 0}};
    const struct cell cells[COLUMNS] = {
        text_cell(path), *r->run ? text_cell(r->run) : none,
        int_cell(r->attempt),
        int_cell(r->rank), int_cell(r->records), int_cell(r->fresh),
        int_cell(r->bad)};
    out_row(o, cells);
}

/* What a file is, or is said to be by --format. */
enum kind { KIND_UNKNOWN = -1, KIND_TEXT, KIND_JOURNAL, KIND_MSPROBE };

static int kind_of_format(const char *format, enum kind *out)
{
    static const char *const name[] = {"text", "journal", "msprobe"};
    *out = KIND_UNKNOWN;
    for (int i = 0; format && i < 3; i++)
        if (strcmp(format, name[i]) == 0)
            *out = (enum kind)i;
    return !format || *out != KIND_UNKNOWN
               ? 0
               : ctl_fail(CTL_BAD, "--format is text, journal or msprobe, "
                                   "not '%s'",
                          format);
}

/* KIND_UNKNOWN: it cannot be read, told. */
static enum kind kind_of(const char *path)
{
    if (import_is_msprobe(path))
        return KIND_MSPROBE;
    switch (import_is_journal(path)) {
    case 0:
        return KIND_TEXT;
    case 1:
        return KIND_JOURNAL;
    default:
        return KIND_UNKNOWN;
    }
}

/* The files' rows, and what they come to. */
struct rows {
    struct out out;
    const char *path;
    struct import_result sum;
};

static void take_row(void *to, const struct import_result *r)
{
    struct rows *rows = to;
    rows->sum.records += r->records;
    rows->sum.bad += r->bad;
    report(&rows->out, rows->path, r);
}

static int import_file(const char *path, enum kind kind,
                       const struct import_daemon *daemon,
                       const struct import_options *options,
                       struct rows *rows)
{
    struct import_result r = {.rank = 0};
    int code;
    if (kind == KIND_UNKNOWN)
        kind = kind_of(path);
    if (kind == KIND_UNKNOWN)
        return CTL_FAILED;
    if (kind != KIND_JOURNAL && !options->run)
        return ctl_fail(CTL_BAD, "%s needs --run NAME",
                        kind == KIND_TEXT ? "a text log"
                                          : "a dump of msprobe");
    rows->path = path;
    if (kind == KIND_MSPROBE)
        return import_msprobe(path, daemon, options, take_row, rows);
    if (options->rank > 0)
        r.rank = (uint64_t)options->rank;
    if (options->attempt > 0)
        r.attempt = (uint64_t)options->attempt;
    code = kind == KIND_JOURNAL ? import_journal(path, daemon, options, &r)
                                : import_text(path, daemon, options, &r);
    if (code == 0)
        take_row(rows, &r);
    return code;
}

static int import_files(int n, char **files, enum kind kind,
                        const struct import_daemon *daemon,
                        const struct import_options *options,
                        const char *format)
{
    static const struct slice names[COLUMNS] = {
        {"file", 4}, {"run", 3},     {"attempt", 7}, {"rank", 4},
        {"records", 7}, {"new", 3}, {"bad", 3}};
    struct rows rows = {.sum = {.rank = 0}};
    int code = 0;
    if (out_open(&rows.out, format, stdout))
        return CTL_BAD;
    out_table(&rows.out, names, COLUMNS);
    for (int i = 0; i < n && !ingest_stop; i++) {
        int one = import_file(files[i], kind, daemon, options, &rows);
        if (one > code)
            code = one;
    }
    if (out_close(&rows.out))
        return CTL_FAILED;
    if (code == 0 && rows.sum.bad)
        return CTL_BAD;
    return code == 0 && rows.sum.records == 0 ? CTL_NOTHING : code;
}

int cmd_import(struct ctl *ctl, int argc, char **argv)
{
    struct import_options o = {.rank = -1, .attempt = -1};
    struct place place = {.ctl = ctl};
    const struct import_daemon daemon = {find_daemon, &place};
    int64_t samples = SAMPLES_DEFAULT;
    const char *format = NULL;
    enum kind kind;
    const struct option options[] = {
        {OPTION_TEXT, "--run", &o.run},
        {OPTION_TEXT, "--date", &o.date},
        {OPTION_TEXT, "--format", &format},
        {OPTION_NUMBER, "--rank", &o.rank},
        {OPTION_NUMBER, "--attempt", &o.attempt},
        {OPTION_NUMBER, "--samples", &samples},
        {OPTION_FLAG, "--without-spool", &o.without_spool},
        {OPTION_END, NULL, NULL}};
    if (ctl_options(ctl, options, &argc, argv))
        return CTL_BAD;
    if (!argc)
        return ctl_fail(CTL_BAD, "import needs a FILE");
    if (!o.run)
        o.run = ctl->run;
    if (check_numbers(o.rank, o.attempt, samples) || check_run(o.run) ||
        kind_of_format(format, &kind))
        return CTL_BAD;
    if (ctl->store)
        return ctl_fail(CTL_BAD, "import stores by a daemon, which knows its store: "
                                 "leave --store out");
    o.samples = (uint32_t)samples;
    catch_signals();
    int code = import_files(argc, argv, kind, &daemon, &o, ctl->format);
    if (spawn_stop(&place.own) && code <= CTL_BAD)
        code = ctl_fail(CTL_FAILED, "the private tracerd did not end well");
    return code;
}
