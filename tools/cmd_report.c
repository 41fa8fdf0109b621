/* tracectl report RUN [RUN_B] --out FILE */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/report.h"
#include "tools/source.h"
#include "tools/target.h"

/* How far it is, for eyes. */
struct meter {
    bool on;
    int part, parts;
};

static void show(void *state, uint64_t done, uint64_t of)
{
    const struct meter *m = state;
    if (m->on && of)
        fprintf(stderr, "\rreading %d of %d: %3.0f %% ", m->part, m->parts,
                100.0 * (double)done / (double)of);
}

static int open_run(const struct ctl *ctl, const char *run, int64_t attempt,
                    struct scan **out)
{
    char *path = NULL;
    int code = source_path(ctl, run, &path);
    if (code == 0)
        code = scan_open(path, attempt, out);
    free(path);
    return code;
}

/* A page is a regular file: a device or a pipe is a mistake, as is one of the
 * runs themselves. */
static int check_place(const char *path)
{
    static const char magic[] = "SQLite format 3";
    char head[sizeof magic] = "";
    struct stat st;
    FILE *f;
    if (!path)
        return ctl_fail(CTL_BAD, "report needs --out FILE, or - for stdout");
    if (strcmp(path, "-") == 0 || stat(path, &st) != 0)
        return 0;
    if (!S_ISREG(st.st_mode))
        return ctl_fail(CTL_BAD, "'%s' is no regular file: not replaced",
                        path);
    f = fopen(path, "re");
    if (f) {
        if (fread(head, 1, sizeof head, f) != sizeof head)
            head[0] = '\0';
        fclose(f);
    }
    if (memcmp(head, magic, sizeof magic) == 0)
        return ctl_fail(CTL_BAD, "'%s' is a run, no page: not replaced", path);
    return 0;
}

static int make(struct report *r, struct meter *m, const char *path)
{
    struct target *t = NULL;
    int code = target_open(path, &t), end;
    if (code)
        return code;
    r->progress = show;
    r->state = m;
    m->part = 1;
    m->parts = 2;
    code = report_survey(r);
    m->part = 2;
    if (code == 0)
        code = report_gather(r);
    if (m->on)
        fprintf(stderr, "\r%40s\r", "");
    if (code == 0)
        code = report_write(r, target_file(t));
    end = target_close(t, code == 0);
    return code ? code : end;
}

int cmd_report(struct ctl *ctl, int argc, char **argv)
{
    struct compare_options o = {.skip = 0};
    struct compare_noise *noise = NULL;
    struct compare_result again = {0};
    struct report *r = calloc(1, sizeof *r);
    struct scan *c = NULL;
    struct meter meter = {.on = isatty(STDERR_FILENO)};
    const char *path = NULL, *noise_run = NULL;
    int64_t attempt_a = -1, attempt_b = -1;
    int code = 0;
    const struct option options[] = {
        {OPTION_TEXT, "--out", &path},
        {OPTION_TEXT, "--map", &o.map},
        {OPTION_TEXT, "--rules", &o.rules},
        {OPTION_TEXT, "--noise", &noise_run},
        {OPTION_NUMBER, "--skip", &o.skip},
        {OPTION_NUMBER, "--attempt", &attempt_a},
        {OPTION_NUMBER, "--attempt-b", &attempt_b},
        {OPTION_END, NULL, NULL}};
    if (!r)
        return ctl_fail(CTL_FAILED, "out of memory");
    if (ctl_options(ctl, options, &argc, argv))
        code = CTL_BAD;
    else if (argc < 1 || argc > 2)
        code = ctl_fail(CTL_BAD, "report takes one run, or two to compare");
    else if (argc == 1 && (o.map || o.rules || noise_run || o.skip ||
                           attempt_b >= 0))
        code = ctl_fail(CTL_BAD, "--map, --rules, --noise, --skip and "
                                 "--attempt-b are for two runs");
    if (code == 0)
        code = check_place(path);
    if (code == 0)
        code = open_run(ctl, argv[0], attempt_a, &r->a);
    if (code == 0 && argc == 2)
        code = open_run(ctl, argv[1], attempt_b, &r->b);
    if (code == 0 && noise_run)
        code = open_run(ctl, noise_run, -1, &c);
    if (code == 0 && c)
        code = compare_runs(r->a, c, &o, NULL, &noise, &again);
    if (code == 0) {
        r->o = &o;
        r->noise = noise;
        code = make(r, &meter, path);
    }
    compare_free(&again);
    compare_noise_free(noise);
    scan_close(r->a);
    scan_close(r->b);
    scan_close(c);
    report_free(r);
    free(r);
    return code;
}
