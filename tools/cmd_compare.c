/* tracectl compare A B */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/compare_out.h"
#include "tools/out.h"
#include "tools/rules.h"
#include "tools/source.h"

static int open_run(struct ctl *ctl, const char *run, int64_t attempt,
                    struct scan **out)
{
    char *path;
    int code = source_path(ctl, run, &path);
    if (code == 0)
        code = scan_open(path, attempt, out);
    free(path);
    return code;
}

/* How far it is, for eyes. */
static void show(void *state, uint64_t done, uint64_t of)
{
    (void)state;
    if (!isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r%3.0f %% of %llu records ",
            of ? 100.0 * (double)done / (double)of : 0,
            (unsigned long long)of);
}

static void show_first(void *state, const struct compare_pair *p)
{
    const struct scan *a = state;
    char name[2 * TRD_MAX_NAME + 128];
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%40s\r", "");
    compare_name(a, p, name, sizeof name);
    fputs("first divergence so far: ", stderr);
    out_plain(stderr, slice_of(name));
    if (*scan_module(a, p->object)) {
        fputs(" (", stderr);
        out_plain(stderr, slice_of(scan_module(a, p->object)));
        fputs(")", stderr);
    }
    fprintf(stderr, ", rank %u, iteration %lld\n", p->rank,
            (long long)p->iteration);
}

static int exit_code(enum compare_verdict v)
{
    return v <= COMPARE_ROUNDING ? CTL_FOUND : CTL_NOTHING;
}

int cmd_compare(struct ctl *ctl, int argc, char **argv)
{
    struct scan *a = NULL, *b = NULL, *c = NULL;
    struct compare_noise *noise = NULL;
    struct compare_result r = {0}, again = {0};
    const char *noise_run = NULL;
    struct compare_options o = {.skip = 0};
    int64_t attempt_a = -1, attempt_b = -1;
    int all = 0, progress = isatty(STDERR_FILENO), code;
    struct out probe;
    const struct option options[] = {
        {OPTION_TEXT, "--map", &o.map},
        {OPTION_TEXT, "--rules", &o.rules},
        {OPTION_TEXT, "--noise", &noise_run},
        {OPTION_NUMBER, "--skip", &o.skip},
        {OPTION_NUMBER, "--attempt", &attempt_a},
        {OPTION_NUMBER, "--attempt-b", &attempt_b},
        {OPTION_FLAG, "--all", &all},
        {OPTION_FLAG, "--progress", &progress},
        {OPTION_END, NULL, NULL}};
    if (ctl_options(ctl, options, &argc, argv) ||
        out_open(&probe, ctl->format, stdout))
        return CTL_BAD;
    if (argc != 2)
        return ctl_fail(CTL_BAD, "compare takes two runs, RUN_A and RUN_B");
    o.progress = progress ? show : NULL;
    code = open_run(ctl, argv[0], attempt_a, &a);
    if (code == 0)
        code = open_run(ctl, argv[1], attempt_b, &b);
    if (code == 0 && noise_run)
        code = open_run(ctl, noise_run, -1, &c);
    if (code == 0 && c)
        code = compare_runs(a, c, &o, NULL, &noise, &again);
    if (code == 0 && c)
        code = scan_goto(a, INT64_MIN, INT64_MIN);
    o.first = progress ? show_first : NULL;
    o.state = a;
    if (code == 0)
        code = compare_runs(a, b, &o, noise, NULL, &r);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%40s\r", "");
    if (code == 0) {
        struct compare_names n = {a, b, all != 0};
        code = compare_out(&n, &r, ctl->format);
        if (code == 0)
            code = exit_code(r.verdict);
    }
    compare_free(&r);
    compare_free(&again);
    compare_noise_free(noise);
    scan_close(a);
    scan_close(b);
    scan_close(c);
    return code;
}
