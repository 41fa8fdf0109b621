/* tracectl merge: the runs of several nodes of a job become one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/merge_run.h"
#include "tools/source.h"

static int check(int argc, const char *out)
{
    size_t n = out ? strlen(out) : 0;
    if (argc < 2)
        return ctl_fail(CTL_BAD, "merge takes two runs or more");
    if (n < 4 || strcmp(out + n - 3, ".db") != 0)
        return ctl_fail(CTL_BAD, "merge needs --out FILE.db");
    if (access(out, F_OK) == 0)
        return ctl_fail(CTL_BAD, "'%s' is there already", out);
    return 0;
}

int cmd_merge(struct ctl *ctl, int argc, char **argv)
{
    struct merge_result r;
    const char *out = NULL;
    int other_jobs = 0, code;
    const struct option options[] = {
        {OPTION_TEXT, "--out", &out},
        {OPTION_FLAG, "--other-jobs", &other_jobs},
        {OPTION_END, NULL, NULL}};
    char **path;
    if (ctl_options(ctl, options, &argc, argv))
        return CTL_BAD;
    code = check(argc, out);
    if (code)
        return code;
    path = calloc((size_t)argc, sizeof *path);
    if (!path)
        return ctl_fail(CTL_FAILED, "out of memory");
    for (int i = 0; code == 0 && i < argc; i++)
        code = source_path(ctl, argv[i], &path[i]);
    if (code == 0)
        code = merge_runs(path, (size_t)argc, out, other_jobs, &r);
    if (code == 0)
        printf("%s: %" PRId64 " records of %d runs\n", out, r.records, argc);
    for (int i = 0; i < argc; i++)
        free(path[i]);
    free(path);
    return code;
}
