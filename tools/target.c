/* Writing a file that has its name only when it is complete.
 *
 * It is written beside the place, as PLACE.XXXXXX.tmp, and renamed. What is
 * no regular file (a device, a pipe) is written as it stands; of a symbolic
 * link the file behind it is replaced. A signal that ends the program takes
 * the unfinished file along. */
#include "tools/target.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct target {
    FILE *file;
    char *path;          /* final; NULL: stdout or no regular file */
    char name[PATH_MAX]; /* as the user called it */
};

/* For the signal handler: "" when there is nothing to remove. */
static char unfinished[PATH_MAX];

static void on_signal(int number)
{
    if (unfinished[0])
        unlink(unfinished);
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction a = {.sa_handler = on_signal}, old;
    sigemptyset(&a.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 &&
            old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &a, NULL);
}

static int cannot(const char *path)
{
    return ctl_fail(CTL_FAILED, "cannot write '%s': %s", path,
                    ctl_errno(errno));
}

/* The mode of the file that is there, else what a new one would get. */
static mode_t mode_of(const char *path)
{
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);
    return stat(path, &st) == 0 ? st.st_mode & 0777 : 0666 & ~mask;
}

static int open_beside(struct target *t, const char *path)
{
    static const char tail[] = ".XXXXXX.tmp";
    int fd = -1;
    t->path = realpath(path, NULL); /* NULL: there is none yet */
    if (!t->path)
        t->path = strdup(path);
    if (!t->path ||
        (size_t)snprintf(unfinished, sizeof unfinished, "%s%s", t->path,
                         tail) >= sizeof unfinished)
        errno = ENAMETOOLONG;
    else
        fd = mkstemps(unfinished, 4);
    if (fd < 0) {
        unfinished[0] = '\0';
        return cannot(path);
    }
    catch_signals();
    if (fchmod(fd, mode_of(t->path)) != 0 || !(t->file = fdopen(fd, "w"))) {
        cannot(path);
        unlink(unfinished);
        unfinished[0] = '\0';
        close(fd);
        return CTL_FAILED;
    }
    return 0;
}

int target_open(const char *path, struct target **out)
{
    struct stat st;
    int code = 0;
    struct target *t = calloc(1, sizeof *t);
    if (!t)
        return ctl_fail(CTL_FAILED, "out of memory");
    if (!path || strcmp(path, "-") == 0) {
        t->file = stdout;
    } else if (strlen(path) >= sizeof t->name) {
        errno = ENAMETOOLONG;
        code = cannot(path);
    } else {
        strcpy(t->name, path);
        if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
            code = open_beside(t, path);
        else if (!(t->file = fopen(path, "we")))
            code = cannot(path);
    }
    if (code) {
        free(t->path);
        free(t);
        return code;
    }
    *out = t;
    return 0;
}

FILE *target_file(const struct target *t)
{
    return t->file;
}

/* Gives the complete file its name. */
static int put_in_place(struct target *t)
{
    int bad = fflush(t->file) != 0 || fsync(fileno(t->file)) != 0;
    if (bad || rename(unfinished, t->path) != 0)
        return cannot(t->name);
    unfinished[0] = '\0';
    return 0;
}

int target_close(struct target *t, int keep)
{
    int code = 0;
    if (!t)
        return 0;
    if (t->path && keep)
        code = put_in_place(t);
    if (unfinished[0])
        unlink(unfinished);
    unfinished[0] = '\0';
    if (t->file != stdout && fclose(t->file) != 0 && keep && code == 0)
        code = cannot(t->name);
    free(t->path);
    free(t);
    return code;
}
