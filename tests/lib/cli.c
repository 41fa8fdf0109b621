/* Shell commands around the real programs. */
#include "tests/lib/cli.h"

#include "tests/lib/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COMMAND_MAX = 64 * 1024 };

static struct rig rig;
static struct cli last;

struct rig *cli_rig(void)
{
    return &rig;
}

/* name = value and tail. */
static void set(const char *name, const char *value, const char *tail)
{
    char text[4096];
    snprintf(text, sizeof text, "%s%s", value, tail);
    setenv(name, text, 1);
}

/* Programs that are built in another directory are found in PATH. */
static void set_path(void)
{
    char path[8192], dir[4096];
    const char *program = getenv("TRD_TRACERD");
    const char *slash = program ? strrchr(program, '/') : NULL;
    if (!slash)
        return;
    snprintf(dir, sizeof dir, "%.*s", (int)(slash - program), program);
    snprintf(path, sizeof path, "%s:%s", dir, getenv("PATH"));
    setenv("PATH", path, 1);
}

void cli_start_daemon(void)
{
    rig_start(&rig);
}

void cli_stop_daemon(void)
{
    rig_stop(&rig);
}

int cli_setup(void **state)
{
    char work[RIG_PATH + 8];
    (void)state;
    if (!getenv("TRD_TRACECTL") || !getenv("TRD_TRACERD") ||
        !getenv("TRD_TEST_DATA"))
        return -1;
    rig_init(&rig);
    snprintf(work, sizeof work, "%s/work", rig.base);
    if (mkdir(work, 0700) || chdir(work))
        return -1;
    set("T", getenv("TRD_TRACECTL"), "");
    set("CASES", getenv("TRD_TEST_DATA"), "/cases");
    set("GOLDEN", getenv("TRD_TEST_DATA"), "/golden");
    set("DIR", rig.dir, "");
    set("DATA", rig.data, "");
    set("TRACERD_DIR", rig.dir, "");
    setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    unsetenv("TRACERD_DATA");
    set_path();
    rig_start(&rig);
    return 0;
}

int cli_teardown(void **state)
{
    (void)state;
    if (rig.pid)
        rig_stop(&rig);
    free(last.out);
    free(last.err);
    if (chdir("/"))
        return -1;
    if (!getenv("TRD_KEEP"))
        rig_fini(&rig);
    return 0;
}

char *cli_read_file(const char *name, size_t *n)
{
    struct stat st;
    FILE *f = fopen(name, "rb");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    char *bytes = malloc((size_t)st.st_size + 1);
    assert_non_null(bytes);
    *n = fread(bytes, 1, (size_t)st.st_size, f);
    bytes[*n] = '\0';
    fclose(f);
    return bytes;
}

void cli_write_file(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(name, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void run_shell(const char *command)
{
    int status = 0;
    size_t n;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(open("/dev/null", O_RDONLY), 0);
        dup2(open("stdout", O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
        dup2(open("stderr", O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    free(last.out);
    free(last.err);
    last.out = cli_read_file("stdout", &n);
    last.err = cli_read_file("stderr", &n);
    last.code = WIFEXITED(status) ? WEXITSTATUS(status)
                                  : 128 + WTERMSIG(status);
}

static char command_text[COMMAND_MAX];

const struct cli *cli_run(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(command_text, sizeof command_text, format, args);
    va_end(args);
    run_shell(command_text);
    return &last;
}

const struct cli *cli_expect(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(command_text, sizeof command_text, format, args);
    va_end(args);
    run_shell(command_text);
    if (last.code != code)
        fail_msg("%s\nexit %d, not %d\nstdout: %.2000s\nstderr: %.2000s",
                 command_text, last.code, code, last.out, last.err);
    return &last;
}

void cli_has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in:\n%s", part, text);
}

void cli_has_not(const char *text, const char *part)
{
    if (strstr(text, part))
        fail_msg("'%s' is in:\n%s", part, text);
}

size_t cli_lines(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

int64_t cli_number(const char *name, const char *text)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int64_t v = -1;
    assert_int_equal(sqlite3_open(name, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &s, NULL), SQLITE_OK);
    if (sqlite3_step(s) == SQLITE_ROW)
        v = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return v;
}

void cli_sql(const char *name, const char *text)
{
    sqlite3 *db = NULL;
    char *why = NULL;
    assert_int_equal(sqlite3_open(name, &db), SQLITE_OK);
    if (sqlite3_exec(db, text, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s", why);
    sqlite3_close(db);
}
