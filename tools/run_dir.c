/* A directory of runs: which files are in it, and which one is meant. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/place.h"
#include "tools/run_file.h"
#include "tools/tracectl.h"
#include "tracerd/record.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int is_run_file(const char *name)
{
    size_t n = strlen(name);
    return n > 3 && name[0] != '.' && strcmp(name + n - 3, ".db") == 0;
}

void run_dir_free(char **files, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(files[i]);
    free(files);
}

char *run_dir_join(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);
    if (path)
        snprintf(path, n, "%s/%s", dir, name);
    return path;
}

/* The names of the files of a directory, sorted. */
int run_dir_list(const char *dir, char ***out, size_t *out_n)
{
    char **files = NULL;
    size_t n = 0, room = 0;
    struct dirent *entry;
    DIR *d = opendir(dir);
    if (!d)
        return run_file_bad(dir, ctl_errno(errno));
    while ((entry = readdir(d))) {
        if (!is_run_file(entry->d_name))
            continue;
        if (n == room) {
            room = room ? 2 * room : 64;
            char **more = realloc(files, room * sizeof *files);
            if (!more)
                break;
            files = more;
        }
        files[n] = strdup(entry->d_name);
        n += files[n] != NULL;
    }
    closedir(d);
    if (n)
        qsort(files, n, sizeof *files, by_name);
    *out = files;
    *out_n = n;
    return 0;
}

static int newest_file(const char *dir, char **out)
{
    char **files;
    size_t n;
    int64_t best = INT64_MIN;
    int code = run_dir_list(dir, &files, &n);
    if (code)
        return code;
    for (size_t i = 0; i < n; i++) {
        char *path = run_dir_join(dir, files[i]);
        int64_t ns = path ? run_file_created(path) : INT64_MIN;
        if (!*out || ns > best) {
            free(*out);
            *out = path;
            best = ns;
        } else {
            free(path);
        }
    }
    run_dir_free(files, n);
    return 0;
}

/* The file of a run in a directory; NULL: there is none. */
int run_dir_find(const char *dir, const char *run, char **out)
{
    char name[TRD_MAX_RUN + 4];
    *out = NULL;
    if (*run) {
        snprintf(name, sizeof name, "%s.db", run);
        if (!place_run_ok(run, strlen(run)))
            return ctl_fail(CTL_BAD,
                            "'%s' cannot name a run: letters, digits, '.', "
                            "'_' and '-' only",
                            run);
        *out = run_dir_join(dir, name);
        if (*out && access(*out, F_OK) != 0) {
            free(*out);
            *out = NULL;
        }
        return 0;
    }
    return newest_file(dir, out);
}
