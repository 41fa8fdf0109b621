/* tracectl verify: checks runs and journals, and with --repair saves what is
 * left of a damaged run. */
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/journal.h"
#include "proto/spool.h"
#include "proto/place.h"
#include "tools/data_dir.h"
#include "tools/run_file.h"
#include "tools/verify.h"

enum { PATH_BYTES = 4096 + TRD_MAX_RUN + 8, DETAIL_BYTES = 512 };

static void put_row(struct verify *v, const char *kind, int64_t count,
                    const char *detail)
{
    const struct cell row[4] = {
        {.type = CELL_TEXT, .s = slice_of(v->file)},
        {.type = CELL_TEXT, .s = slice_of(kind)},
        {.type = CELL_INT, .i = count, .s = {"", 0}},
        {.type = CELL_TEXT, .s = slice_of(detail)},
    };
    out_row(v->o, row);
}

static void worse(struct verify *v, int code)
{
    if (code > v->code)
        v->code = code;
}

void verify_found(struct verify *v, const char *kind, int64_t count,
                  const char *format, ...)
{
    char detail[DETAIL_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    for (char *p = detail; *p; p++)
        if (*p == '\n') /* as SQLite tells of pages */
            *p = ' ';
    v->findings++;
    worse(v, CTL_NOTHING);
    put_row(v, kind, count, detail);
}

void verify_cannot(struct verify *v, int code, const char *kind,
                   const char *why)
{
    v->findings++;
    worse(v, code);
    put_row(v, kind, 0, why);
}

/* A spool is checked as a journal is. */
static int is_journal(const char *path)
{
    const char *name = strrchr(path, '/');
    name = name ? name : path;
    return strstr(name, JOURNAL_SUFFIX) || strstr(name, SPOOL_SUFFIX);
}

static void check_file(struct verify *v, const char *path)
{
    char detail[DETAIL_BYTES];
    v->file = path;
    v->findings = v->records = v->losses = 0;
    (is_journal(path) ? verify_journal : verify_run)(v);
    if (v->findings)
        return;
    snprintf(detail, sizeof detail, "%llu records, %llu lost",
             (unsigned long long)v->records, (unsigned long long)v->losses);
    put_row(v, "good", (int64_t)v->records, detail);
}

static int ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), k = strlen(tail);
    return n > k && strcmp(name + n - k, tail) == 0 && name[0] != '.';
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_stored(const struct dirent *e)
{
    return ends_with(e->d_name, ".db") ||
           ends_with(e->d_name, JOURNAL_SUFFIX) ||
           ends_with(e->d_name, SPOOL_SUFFIX);
}

static int check_dir(struct verify *v, const char *dir)
{
    struct dirent **entries;
    int n = scandir(dir, &entries, is_stored, by_name);
    if (n < 0)
        return run_file_bad(dir, ctl_errno(errno));
    for (int i = 0; i < n; i++) {
        char *path = run_dir_join(dir, entries[i]->d_name);
        if (path)
            check_file(v, path);
        free(path);
        free(entries[i]);
    }
    free(entries);
    return 0;
}

/* The path of what a word means: a file, a directory, or a run. */
static int find_target(const struct ctl *ctl, const char *word,
                       char out[PATH_BYTES])
{
    char data[PATH_BYTES];
    struct stat st;
    int code;
    if (word && (strchr(word, '/') || stat(word, &st) == 0 ||
                 ends_with(word, ".db") || is_journal(word))) {
        snprintf(out, PATH_BYTES, "%s", word);
        return 0;
    }
    if (word && !place_run_ok(word, strlen(word)))
        return ctl_fail(CTL_BAD, "'%s' is no file, and cannot name a run",
                        word);
    code = data_dir_find(ctl, data, sizeof data);
    if (code)
        return code;
    if (word && snprintf(out, PATH_BYTES, "%s/%s.db", data, word) >=
                    PATH_BYTES)
        return ctl_fail(CTL_BAD, "the path is too long");
    if (!word)
        snprintf(out, PATH_BYTES, "%s", data);
    return 0;
}

static int repair(const char *path, const struct stat *st)
{
    if (S_ISDIR(st->st_mode))
        return ctl_fail(CTL_BAD, "--repair takes one run: name its file");
    if (is_journal(path))
        return ctl_fail(CTL_BAD,
                        "a journal is not repaired: 'tracectl import %s' "
                        "stores what is whole and counts what is not",
                        path);
    return salvage_run(path);
}

int cmd_verify(struct ctl *ctl, int argc, char **argv)
{
    static const struct slice names[] = {
        {"file", 4}, {"kind", 4}, {"count", 5}, {"detail", 6}};
    char path[PATH_BYTES];
    int mend = 0;
    const struct option options[] = {{OPTION_FLAG, "--repair", &mend},
                                     {OPTION_END, NULL, NULL}};
    struct out o;
    struct verify v = {.o = &o};
    struct stat st;
    int code;

    if (ctl_options(ctl, options, &argc, argv) ||
        out_open(&o, ctl->format, stdout))
        return CTL_BAD;
    if (argc > 1)
        return ctl_fail(CTL_BAD, "verify takes one run, file or directory");
    code = find_target(ctl, argc ? argv[0] : ctl->run, path);
    if (code)
        return code;
    if (stat(path, &st) != 0)
        return run_file_bad(path, ctl_errno(errno));
    if (mend)
        return repair(path, &st);
    o.empty_head = 1;
    out_table(&o, names, 4);
    if (S_ISDIR(st.st_mode))
        code = check_dir(&v, path);
    else
        check_file(&v, path);
    if (out_close(&o))
        code = CTL_FAILED;
    return code ? code : v.code;
}
