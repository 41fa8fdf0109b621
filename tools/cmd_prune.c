/* tracectl prune: takes iterations out of a run, or runs out of their
 * directory. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "tools/data_dir.h"
#include "tools/out.h"
#include "tools/prune.h"
#include "tools/run_file.h"
#include "tools/source.h"

enum { PATH_BYTES = 4096 + 264, DAY_S = 86400 };

struct request {
    struct prune_rule rule;
    int64_t days, mb; /* 0: not said */
    int dry;
};

/* A stored run, and when its file was written to last. */
struct stored {
    char *path;
    time_t used;
    int64_t records, bytes;
};

static void put_row(struct out *o, const char *file, const char *done,
                    int64_t records, int64_t bytes, const char *why)
{
    const struct cell row[] = {
        {.type = CELL_TEXT, .s = slice_of(file)},
        {.type = CELL_TEXT, .s = slice_of(done)},
        {.type = CELL_INT, .i = records, .s = {"", 0}},
        {.type = CELL_INT, .i = bytes, .s = {"", 0}},
        {.type = CELL_TEXT, .s = slice_of(why)},
    };
    out_row(o, row);
}

static int open_out(struct out *o, const char *format)
{
    static const struct slice names[] = {
        {"file", 4}, {"done", 4}, {"records", 7}, {"bytes", 5}, {"why", 3}};
    if (out_open(o, format, stdout))
        return CTL_BAD;
    out_table(o, names, 5);
    return 0;
}

/* ---- iterations of one run ---- */

static int prune_one(const struct ctl *ctl, const char *run,
                     const struct request *q)
{
    struct prune_result r;
    char why[64];
    char *path = NULL;
    struct out o;
    int code = source_path(ctl, run, &path);
    if (code == 0)
        code = prune_run(path, &q->rule, q->dry, &r);
    if (code == CTL_NOTHING)
        ctl_fail(0, "nothing of '%s' is to go", path);
    if (code == 0)
        code = open_out(&o, ctl->format);
    if (code == 0) {
        snprintf(why, sizeof why, "%" PRId64 " iterations", r.iterations);
        put_row(&o, path, q->dry ? "would prune" : "pruned", r.records,
                r.bytes, why);
        code = out_close(&o) ? CTL_FAILED : CTL_FOUND;
    }
    free(path);
    return code;
}

/* ---- runs of a directory ---- */

/* False: it cannot be read (told), so it is nothing of ours to remove. */
static int look_at(const char *path, struct stored *out)
{
    static const char sql[] = "SELECT coalesce(sum(records), 0) FROM v_run";
    sqlite3_stmt *s = NULL;
    sqlite3 *db = NULL;
    int ok = 0;
    if (run_file_open(path, &db))
        return 0;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW) {
        out->records = sqlite3_column_int64(s, 0);
        out->bytes = prune_bytes(path, &out->used);
        ok = 1;
    } else {
        run_file_bad(path, sqlite3_errmsg(db));
    }
    sqlite3_finalize(s);
    sqlite3_close(db);
    return ok;
}

static int by_use(const void *a, const void *b)
{
    const struct stored *x = a, *y = b;
    if (x->used != y->used)
        return x->used < y->used ? -1 : 1;
    return strcmp(x->path, y->path);
}

static void free_stored(struct stored *l, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(l[i].path);
    free(l);
}

/* The runs of a directory, the one that is unused for longest first. */
static int list(const char *dir, struct stored **out, size_t *out_n)
{
    struct stored *l;
    char **files;
    size_t files_n, n = 0;
    int code = run_dir_list(dir, &files, &files_n);
    if (code)
        return code;
    l = calloc(files_n + 1, sizeof *l);
    for (size_t i = 0; l && i < files_n; i++) {
        l[n].path = run_dir_join(dir, files[i]);
        if (l[n].path && look_at(l[n].path, &l[n]))
            n++;
        else
            free(l[n].path);
    }
    run_dir_free(files, files_n);
    if (!l)
        return ctl_fail(CTL_FAILED, "out of memory");
    qsort(l, n, sizeof *l, by_use);
    *out = l;
    *out_n = n;
    return 0;
}

/* False: it was left. */
static int remove_one(const struct request *q, struct out *o,
                      const struct stored *l, const char *why)
{
    const char *kept = q->dry ? prune_kept(l->path) : prune_remove(l->path);
    if (kept)
        put_row(o, l->path, "left", l->records, l->bytes, kept);
    else
        put_row(o, l->path, q->dry ? "would remove" : "removed", l->records,
                l->bytes, why);
    return !kept;
}

static void remove_runs(const struct request *q, struct out *o,
                        const struct stored *l, size_t n, int *any)
{
    int64_t total = 0, now = time(NULL);
    for (size_t i = 0; i < n; i++)
        total += l[i].bytes;
    for (size_t i = 0; i < n; i++) {
        char why[64];
        int64_t days = (now - l[i].used) / DAY_S;
        if (q->days && days >= q->days)
            snprintf(why, sizeof why, "unused for %" PRId64 " days", days);
        else if (q->mb && total > q->mb << 20)
            snprintf(why, sizeof why, "%" PRId64 " MB are stored",
                     total >> 20);
        else
            continue;
        if (!remove_one(q, o, &l[i], why))
            continue;
        total -= l[i].bytes;
        *any = 1;
    }
}

static int prune_dir(const struct ctl *ctl, const struct request *q)
{
    char dir[PATH_BYTES];
    struct stored *l = NULL;
    struct stat st;
    struct out o;
    size_t n = 0;
    int any = 0, code = data_dir_find(ctl, dir, sizeof dir);
    if (code == 0 && (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)))
        code = ctl_fail(CTL_BAD, "'%s' is no directory of runs", dir);
    if (code == 0)
        code = list(dir, &l, &n);
    if (code == 0)
        code = open_out(&o, ctl->format);
    if (code == 0) {
        remove_runs(q, &o, l, n, &any);
        code = out_close(&o) ? CTL_FAILED : any ? CTL_FOUND : CTL_NOTHING;
    }
    if (code == CTL_NOTHING)
        ctl_fail(0, "no run of '%s' is to go", dir);
    free_stored(l, n);
    return code;
}

int cmd_prune(struct ctl *ctl, int argc, char **argv)
{
    struct request q = {.rule.around = -1};
    const struct option options[] = {
        {OPTION_NUMBER, "--keep-every", &q.rule.every},
        {OPTION_NUMBER, "--keep-last", &q.rule.last},
        {OPTION_NUMBER, "--keep-around", &q.rule.around},
        {OPTION_NUMBER, "--keep-days", &q.days},
        {OPTION_NUMBER, "--keep-mb", &q.mb},
        {OPTION_FLAG, "--dry-run", &q.dry},
        {OPTION_END, NULL, NULL}};
    if (ctl_options(ctl, options, &argc, argv))
        return CTL_BAD;
    const char *run = argc ? argv[0] : ctl->run;
    int inside = q.rule.every || q.rule.last || q.rule.around >= 0;
    if (argc > 1)
        return ctl_fail(CTL_BAD, "prune takes one run");
    if (q.mb > INT64_MAX >> 20)
        return ctl_fail(CTL_BAD,
                        "--keep-mb %" PRId64 " is more than can be counted",
                        q.mb);
    if (inside && (q.days || q.mb))
        return ctl_fail(CTL_BAD, "--keep-days and --keep-mb remove runs, the "
                                 "others iterations of one: not both");
    if (!inside && !q.days && !q.mb)
        return ctl_fail(CTL_BAD, "prune needs what is to be kept; see "
                                 "'tracectl help prune'");
    if (inside && !run && (!ctl->db || strcmp(ctl->db, "") == 0))
        return ctl_fail(CTL_BAD, "name the run whose iterations are to go");
    if (!inside && run)
        return ctl_fail(CTL_BAD, "--keep-days and --keep-mb are of all runs: "
                                 "name none");
    return inside ? prune_one(ctl, run ? run : ctl->db, &q)
                  : prune_dir(ctl, &q);
}
