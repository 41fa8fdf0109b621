/* Parquet is written by pyarrow: a python3 is started and waited for. What
 * it has to say it says on our stderr, in our words. */
#include "tools/export_parquet.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, NUMBER = 24, WORDS = 12 };

static const char script[] =
    "import sys\n"
    "try:\n"
    "    from tracerd.parquet import main\n"
    "except ImportError as e:\n"
    "    print(f'tracectl: {sys.executable} cannot write Parquet: {e}; it '\n"
    "          'needs the packages tracerd, torch, pyarrow and '\n"
    "          'adbc-driver-sqlite; TRACERD_PYTHON names another python3',\n"
    "          file=sys.stderr)\n"
    "    sys.exit(3)\n"
    "sys.exit(main(sys.argv[1:]))\n";

static void interpreter(char *out, size_t cap)
{
    const char *named = getenv("TRACERD_PYTHON");
    ssize_t n = readlink("/proc/self/exe", out, cap - 16);
    char *slash;
    if (named && *named) {
        snprintf(out, cap, "%s", named);
        return;
    }
    if (n > 0) {
        out[n] = '\0';
        slash = strrchr(out, '/');
        if (slash) {
            strcpy(slash + 1, "python3");
            if (access(out, X_OK) == 0)
                return;
        }
    }
    snprintf(out, cap, "python3");
}

static void add_number(char **args, int *n, char *name, int64_t value,
                       char text[NUMBER])
{
    if (value < 0)
        return;
    snprintf(text, NUMBER, "%" PRId64, value);
    args[(*n)++] = name;
    args[(*n)++] = text;
}

static int wait_for(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return ctl_fail(CTL_FAILED, "cannot wait for python3: %s",
                            ctl_errno(errno));
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    return ctl_fail(CTL_FAILED, "python3 was ended by signal %d",
                    WTERMSIG(status));
}

int export_parquet(const char *path, const char *out, int64_t rank,
                   int64_t attempt)
{
    char python[PATH_BYTES], rank_text[NUMBER], attempt_text[NUMBER];
    char *args[WORDS] = {python, "-c", (char *)script};
    int n = 3;
    pid_t pid;
    interpreter(python, sizeof python);
    add_number(args, &n, "--rank", rank, rank_text);
    add_number(args, &n, "--attempt", attempt, attempt_text);
    args[n++] = "--";
    args[n++] = (char *)path;
    args[n++] = (char *)out;
    fflush(stdout);
    pid = fork();
    if (pid < 0)
        return ctl_fail(CTL_FAILED, "cannot start python3: %s",
                        ctl_errno(errno));
    if (pid == 0) {
        execvp(python, args);
        fprintf(stderr,
                "tracectl: cannot run '%s': %s; TRACERD_PYTHON names a "
                "python3 that can import tracerd and pyarrow\n",
                python, ctl_errno(errno));
        _exit(CTL_FAILED);
    }
    return wait_for(pid);
}
