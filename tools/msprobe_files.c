/* Looking for dumps of msprobe. */
#include "tools/msprobe_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/wire.h"
#include "tools/tracectl.h"

enum { DEPTH = 4 };

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* The number behind a word, as in "rank12"; -1: it is something else. */
static int64_t number_behind(const char *name, size_t n, const char *word)
{
    size_t i = strlen(word);
    int64_t v = 0;
    if (n <= i || n > i + 9 || memcmp(name, word, i) != 0)
        return -1;
    for (; i < n; i++) {
        if (name[i] < '0' || name[i] > '9')
            return -1;
        v = v * 10 + (name[i] - '0');
    }
    return v;
}

/* What a folder's name adds to what is known of the files in it. */
static void learn(struct msprobe_file *f, const char *name, size_t n)
{
    int64_t step = number_behind(name, n, "step");
    int64_t rank = number_behind(name, n, "rank");
    int64_t proc = number_behind(name, n, "proc");
    if (step >= 0)
        f->step = step;
    if (rank >= 0)
        f->rank = rank;
    if (proc >= 0)
        f->proc = proc;
}

static int add(struct msprobe_files *all, const struct msprobe_file *known,
               const char *path)
{
    struct msprobe_file *at;
    if (all->n == MSPROBE_MAX_FILES)
        return ctl_fail(CTL_BAD, "more than %d dumps below the folder",
                        MSPROBE_MAX_FILES);
    if (known->rank >= RANK_LIMIT)
        return ctl_fail(CTL_BAD, "'%s': a rank is below %d", path,
                        RANK_LIMIT);
    at = realloc(all->at, (all->n + 1) * sizeof *at);
    if (!at)
        return no_memory();
    all->at = at;
    at += all->n;
    *at = *known;
    at->path = strdup(path);
    if (!at->path)
        return no_memory();
    all->n++;
    return 0;
}

static int look_into(struct msprobe_files *all, const char *path,
                     const struct msprobe_file *known, int depth)
{
    DIR *dir = opendir(path);
    struct dirent *e;
    int code = 0;
    if (!dir)
        return ctl_fail(CTL_FAILED, "cannot read '%s': %s", path,
                        ctl_errno(errno));
    while (code == 0 && (e = readdir(dir))) {
        struct msprobe_file more = *known;
        struct stat st;
        char *below;
        if (e->d_name[0] == '.')
            continue;
        below = malloc(strlen(path) + strlen(e->d_name) + 2);
        if (!below) {
            code = no_memory();
            break;
        }
        sprintf(below, "%s/%s", path, e->d_name);
        learn(&more, e->d_name, strlen(e->d_name));
        if (stat(below, &st)) {
            /* it went away meanwhile */
        } else if (S_ISDIR(st.st_mode) && depth) {
            code = look_into(all, below, &more, depth - 1);
        } else if (S_ISREG(st.st_mode) &&
                   strcmp(e->d_name, "dump.json") == 0) {
            code = add(all, known, below);
        }
        free(below);
    }
    closedir(dir);
    return code;
}

/* The folders in which it lies, outermost first. */
static void learn_from_path(struct msprobe_file *f, const char *path)
{
    char *whole = realpath(path, NULL);
    const char *from = whole ? whole : path;
    for (const char *slash; (slash = strchr(from, '/')); from = slash + 1)
        learn(f, from, (size_t)(slash - from));
    free(whole);
}

static int by_step_and_proc(const void *a, const void *b)
{
    const struct msprobe_file *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->proc < y->proc ? -1 : x->proc > y->proc;
}

static int by_rank_and_step(const void *a, const void *b)
{
    const struct msprobe_file *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return strcmp(x->path, y->path);
}

static void number_processes(struct msprobe_files *f)
{
    int64_t step = -1, proc = -1, number = 0;
    qsort(f->at, f->n, sizeof *f->at, by_step_and_proc);
    for (size_t i = 0; i < f->n; i++) {
        struct msprobe_file *x = &f->at[i];
        if (x->rank >= 0)
            continue;
        number = x->step != step ? 0 : number + (x->proc != proc);
        step = x->step;
        proc = x->proc;
        x->rank = number;
    }
}

static int check_twice(const struct msprobe_files *f)
{
    for (size_t i = 1; i < f->n; i++) {
        const struct msprobe_file *x = &f->at[i - 1];
        if (x[0].rank == x[1].rank && x[0].step == x[1].step)
            return ctl_fail(CTL_BAD, "'%s' and '%s' are both step %lld of "
                                     "rank %lld: give the folder of one run",
                            x[0].path, x[1].path, (long long)x[0].step,
                            (long long)x[0].rank);
    }
    return 0;
}

int msprobe_files_find(const char *path, struct msprobe_files *out)
{
    struct msprobe_file known = {NULL, 0, -1, -1};
    struct stat st;
    int code;
    *out = (struct msprobe_files){NULL, 0};
    learn_from_path(&known, path);
    if (stat(path, &st))
        code = ctl_fail(CTL_FAILED, "cannot open '%s': %s", path,
                        ctl_errno(errno));
    else if (S_ISDIR(st.st_mode))
        code = look_into(out, path, &known, DEPTH);
    else
        code = add(out, &known, path);
    if (code == 0 && out->n == 0)
        code = ctl_fail(CTL_BAD, "no dump.json of msprobe below '%s'", path);
    if (code) {
        msprobe_files_free(out);
        return code;
    }
    number_processes(out);
    qsort(out->at, out->n, sizeof *out->at, by_rank_and_step);
    code = check_twice(out);
    if (code)
        msprobe_files_free(out);
    return code;
}

void msprobe_files_free(struct msprobe_files *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->at[i].path);
    free(f->at);
    *f = (struct msprobe_files){NULL, 0};
}
