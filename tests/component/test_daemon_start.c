/* Starting and not starting: options, directories, locks, sockets. */
#include "tests/lib/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/place.h"

static struct rig rig;
static char text[65536]; /* what a command printed */

static int set_up(void **state)
{
    (void)state;
    rig_init(&rig);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_fini(&rig);
    return 0;
}

/* Runs `tracerd ARGS` in a shell; the exit code, and its words in text. */
__attribute__((format(printf, 1, 2))) static int run(const char *format, ...)
{
    char args[4096], command[8192];
    va_list list;
    size_t n;
    FILE *f;
    va_start(list, format);
    vsnprintf(args, sizeof args, format, list);
    va_end(list);
    snprintf(command, sizeof command, "$TRD_TRACERD %s 2>&1", args);
    f = popen(command, "r");
    assert_non_null(f);
    n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    return WEXITSTATUS(pclose(f));
}

static void text_has(const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' does not say '%s'", text, part);
}

/* Starts, must fail with code and say part. */
static void refused(int code, const char *part)
{
    int rc = rig_try(&rig);
    if (rc != code)
        fail_msg("exit code %d, not %d", rc, code);
    rig_logged(&rig, part);
}

static void path_in(char out[2 * RIG_PATH], const char *name)
{
    snprintf(out, 2 * RIG_PATH, "%s/%s", rig.dir, name);
}

static void put_file(const char *path, const char *content)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
}

/* ---- options ---- */

static void test_daemon_start__options(void **state)
{
    (void)state;
    assert_int_equal(run("--version"), 0);
    assert_string_equal(text, "tracerd " TRD_VERSION "\n");
    assert_int_equal(run("--help"), 0);
    text_has("examples:");
    assert_int_equal(run("--no-such-option"), 2);
    assert_int_equal(run("stray"), 2);
    text_has("stray");
    assert_int_equal(run("--ready-fd 77 --foreground"), 2);
    assert_int_equal(run("--ready-fd x --foreground"), 2);
    assert_int_equal(run("--store postgres://u@h:1/d"), 2);
    text_has("another kind of address");
    assert_int_equal(run("--store clickhouse://u:word@h:1/d"), 2);
    text_has("TRACERD_STORE_PASSWORD has it");
    assert_null(strstr(text, "u:word"));
    assert_int_equal(run("--store 'clickhouse://u@h:1/d?x=1'"), 2);
    text_has("only cluster=NAME");
}

static void test_daemon_start__a_configuration_file(void **state)
{
    char path[2 * RIG_PATH];
    static const char *const bad[] = {"# fine\n\nclients = many\n",
                                      "speed = 9\n", "clients\n",
                                      "dir = relative\n", "queries = 0\n"};
    static const char *const where[] = {
        "conf:3:", "conf:1:", "conf:1:", "conf:1:", "conf:1:"};
    (void)state;
    snprintf(path, sizeof path, "%s/conf", rig.base);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_file(path, bad[i]);
        assert_int_equal(
            run("-n --config %s --dir %s --data %s", path, rig.dir, rig.data),
            2);
        text_has(where[i]);
    }
    assert_int_equal(run("-n --config %s/none", rig.base), 2);
    text_has("No such file");
    assert_int_equal(run("-n --config /dev/zero"), 2); /* one endless line */
    text_has("zero:1:");
    put_file(path, "# limits\n  clients=7\nmemory_mb = 16 \n");
    assert_int_equal(
        run("-n --config %s --dir %s --data %s", path, rig.dir, rig.data), 0);
    text_has(rig.dir);
    assert_int_not_equal(access(rig.dir, F_OK), 0); /* only looked */
}

static void test_daemon_start__environment_names_the_places(void **state)
{
    (void)state;
    setenv("TRACERD_DIR", rig.dir, 1);
    setenv("TRACERD_DATA", rig.data, 1);
    assert_int_equal(run("-n"), 0);
    text_has(rig.dir);
    text_has(rig.data);
    unsetenv("TRACERD_DIR");
    unsetenv("TRACERD_DATA");
    setenv("XDG_RUNTIME_DIR", rig.base, 1);
    setenv("XDG_STATE_HOME", rig.base, 1);
    assert_int_equal(run("-n"), 0);
    snprintf(text + 60000, 1000, "dir=%s/tracerd", rig.base);
    text_has(text + 60000);
    unsetenv("XDG_RUNTIME_DIR");
    unsetenv("XDG_STATE_HOME");
}

static int mode_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 ? (int)(st.st_mode & 07777) : -1;
}

static void test_daemon_start__a_check_tries_the_places(void **state)
{
    (void)state;
    /* where even root can make nothing */
    assert_int_equal(run("-n --dir %s/d --data /proc/x", rig.base), 3);
    text_has("cannot create '/proc/x'");
    assert_int_equal(run("-n --dir /proc/x --data %s/r", rig.base), 3);
    text_has("cannot create '/proc/x'");
    assert_int_equal(run("-n --dir %s/d --data %s/none/r", rig.base, rig.base),
                     3);
    assert_int_equal(run("-n --dir %s/d --data %s/r", rig.base, rig.base), 0);
    /* and leaves nothing behind */
    assert_int_equal(run("--version; ls -A %s", rig.base), 0);
    assert_null(strstr(text, ".tracerd-"));
    assert_null(strstr(text, "\nr\n"));
}

static void test_daemon_start__everything_is_private(void **state)
{
    char path[2 * RIG_PATH];
    struct rig_client c;
    mode_t old = umask(0);
    (void)state;
    rig_start(&rig);
    umask(old);
    assert_int_equal(mode_of(rig.dir), 0700);
    assert_int_equal(mode_of(rig.data), 0700);
    path_in(path, PLACE_INGEST);
    assert_int_equal(mode_of(path), 0600);
    path_in(path, PLACE_QUERY);
    assert_int_equal(mode_of(path), 0600);
    rig_open(&rig, &c, 1);
    snprintf(path, sizeof path, "%s/run.db", rig.data);
    assert_int_equal(mode_of(path), 0600);
    rig_close(&c);
    rig_stop(&rig);
    path_in(path, PLACE_INGEST);
    assert_int_equal(mode_of(path), -1); /* taken away again */
}

static void test_daemon_start__in_the_background(void **state)
{
    char path[2 * RIG_PATH], line[64] = "";
    FILE *f;
    pid_t pid;
    (void)state;
    assert_int_equal(run("--dir %s --data %s < /dev/null", rig.dir, rig.data),
                     0);
    assert_string_equal(text, "");
    path_in(path, PLACE_LOCK);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    pid = (pid_t)strtol(line, NULL, 10);
    assert_true(pid > 1);
    /* it serves at once, and a second one is refused by its own words */
    int fd = rig_connect(rig.dir, PLACE_INGEST);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(run("--dir %s --data %s", rig.dir, rig.data), 3);
    text_has("already serves");
    kill(pid, SIGTERM);
    path_in(path, PLACE_INGEST);
    rig_until(access(path, F_OK) != 0);
    rig_until(kill(pid, 0) != 0);
    snprintf(path, sizeof path, "%s/tracerd.log", rig.data);
    assert_int_equal(mode_of(path), 0600);
}

static void test_daemon_start__errors_of_a_background_start(void **state)
{
    (void)state;
    assert_int_equal(run("--dir %s/no/such/dir --data %s", rig.base, rig.data),
                     3);
    text_has("create the directory above it first");
}

static void test_daemon_start__sighup_reads_again(void **state)
{
    char path[2 * RIG_PATH];
    (void)state;
    snprintf(path, sizeof path, "%s/conf", rig.base);
    put_file(path, "clients = 7\n");
    rig.args[0] = "--config";
    rig.args[1] = path;
    rig_start(&rig);
    put_file(path, "clients = 9\n");
    kill(rig.pid, SIGHUP);
    rig_logged(&rig, "clients=9");
    put_file(path, "nonsense = 9\n");
    kill(rig.pid, SIGHUP);
    rig_logged(&rig, "the old one stays");
    rig_stop(&rig);
}

/* ---- directories ---- */

static void test_daemon_start__directories_that_are_not_private(void **state)
{
    char other[2 * RIG_PATH];
    (void)state;
    assert_int_equal(mkdir(rig.dir, 0755), 0);
    chmod(rig.dir, 0755);
    refused(3, "chmod 700");
    assert_int_equal(mode_of(rig.dir), 0755);
    chmod(rig.dir, 0700);
    snprintf(other, sizeof other, "%s/elsewhere", rig.base);
    assert_int_equal(rename(rig.dir, other), 0);
    assert_int_equal(symlink(other, rig.dir), 0);
    refused(3, "is a symbolic link");
    strcat(rig.dir, "/"); /* must not help */
    refused(3, "is a symbolic link");
    rig.dir[strlen(rig.dir) - 1] = '\0';
    unlink(rig.dir);
    put_file(rig.dir, "user data");
    refused(3, "is not a directory");
    unlink(rig.dir);
    snprintf(rig.dir, sizeof rig.dir, "%.400s/no/dir", rig.base);
    refused(3, "create the directory above it first");
}

/* Somebody's directory is not to be closed for our sake. */
static void test_daemon_start__a_directory_of_others(void **state)
{
    char file[2 * RIG_PATH];
    (void)state;
    assert_int_equal(mkdir(rig.dir, 0755), 0);
    chmod(rig.dir, 0755);
    snprintf(file, sizeof file, "%s/passwd", rig.dir);
    put_file(file, "user data");
    refused(3, "holds other files; name a directory of its own, such as '");
    snprintf(file, sizeof file, "%s/tracerd.lock", rig.dir);
    put_file(file, ""); /* we were here before */
    refused(3, "chmod 700");
    if (geteuid() != 0)
        return;
    assert_int_equal(chown(rig.dir, 1, 1), 0);
    snprintf(file, sizeof file, "such as '%s/tracerd-0'", rig.dir);
    refused(3, file);
    assert_int_equal(chown(rig.dir, 0, 0), 0);
}

static void test_daemon_start__data_that_others_may_write(void **state)
{
    (void)state;
    assert_int_equal(mkdir(rig.data, 0700), 0);
    chmod(rig.data, 0777);
    refused(3, "chmod go-w");
    chmod(rig.data, 0755);
    rig_start(&rig);
    rig_stop(&rig);
}

static void test_daemon_start__a_directory_of_somebody_else(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(mkdir(rig.dir, 0700), 0);
    assert_int_equal(chown(rig.dir, 12345, 12345), 0);
    refused(3, "belongs to uid 12345");
}

/* ---- one daemon a directory ---- */

static void test_daemon_start__a_second_one_is_refused(void **state)
{
    struct rig second;
    char number[64];
    (void)state;
    rig_start(&rig);
    rig_init(&second);
    memcpy(second.dir, rig.dir, sizeof second.dir);
    assert_int_equal(rig_try(&second), 3);
    snprintf(number, sizeof number, "another tracerd (pid %d) already serves",
             (int)rig.pid);
    rig_logged(&second, number);
    rig_fini(&second);
    /* other sockets, the same data */
    rig_init(&second);
    memcpy(second.data, rig.data, sizeof second.data);
    assert_int_equal(rig_try(&second), 3);
    rig_logged(&second, number);
    rig_fini(&second);
    assert_true(rig_alive(&rig));
    struct rig_client c;
    rig_open(&rig, &c, 1); /* the first one still answers */
    rig_close(&c);
    rig_stop(&rig);
}

/* Starts the second in a child, which kills it when told is closed. */
static pid_t start_other(struct rig *second, int told[2])
{
    char byte;
    pid_t child = fork();
    int rc;
    if (child != 0)
        return child;
    close(told[1]);
    rc = rig_try(second);
    if (rc == -1) {
        while (read(told[0], &byte, 1) > 0)
            continue;
        rig_kill(second);
    }
    _exit(rc == -1 ? 0 : rc);
}

static void test_daemon_start__of_two_on_a_stale_socket_one_wins(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct rig second;
        int told[2], status, rc;
        pid_t child;
        rig_start(&rig);
        rig_kill(&rig); /* leaves its sockets behind */
        second = rig;
        snprintf(second.data, sizeof second.data, "%.400s/data2", rig.base);
        assert_int_equal(pipe2(told, O_CLOEXEC), 0);
        child = start_other(&second, told);
        close(told[0]);
        rc = rig_try(&rig);
        close(told[1]);
        waitpid(child, &status, 0);
        assert_true(WIFEXITED(status));
        if (rc == -1) {
            assert_int_equal(WEXITSTATUS(status), 3);
            rig_kill(&rig);
        } else {
            assert_int_equal(rc, 3);
            assert_int_equal(WEXITSTATUS(status), 0);
        }
    }
}

/* ---- H44: socket paths by their length in bytes ---- */

/* Makes base/dd.../ingest.sock exactly n bytes long. */
static void dir_of_length(size_t n, const char *letter)
{
    size_t want = n - strlen("/" PLACE_INGEST);
    size_t step = strlen(letter);
    snprintf(rig.dir, sizeof rig.dir, "%.400s/", rig.base);
    while (strlen(rig.dir) + step <= want) {
        size_t left = want - strlen(rig.dir);
        const char *slash = strrchr(rig.dir, '/');
        if (strlen(slash) > 40 && left > 1 + step) {
            mkdir(rig.dir, 0700);
            strcat(rig.dir, "/");
            left--;
        }
        strcat(rig.dir, left >= step ? letter : "x");
    }
    while (strlen(rig.dir) < want)
        strcat(rig.dir, "x");
    assert_int_equal(strlen(rig.dir) + strlen("/" PLACE_INGEST), n);
}

static void test_daemon_start__socket_paths_that_fit(void **state)
{
    static const size_t fits[] = {60, 106, 107};
    (void)state;
    for (size_t i = 0; i < sizeof fits / sizeof *fits; i++) {
        struct rig_client c;
        dir_of_length(fits[i], "d");
        rig_start(&rig);
        rig_open(&rig, &c, 1);
        rig_close(&c);
        rig_stop(&rig);
    }
}

static void test_daemon_start__socket_paths_that_are_too_long(void **state)
{
    static const size_t longer[] = {108, 109, 128, 180};
    char words[64];
    (void)state;
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) {
        dir_of_length(longer[i], "d");
        snprintf(words, sizeof words, "%zu bytes, and 107", longer[i]);
        refused(3, words);
        refused(3, rig.dir);
    }
    dir_of_length(120, "\xc3\xa6"); /* 90 characters or so */
    refused(3, "120 bytes, and 107");
    assert_int_equal(run("-n --dir %s --data %s", rig.dir, rig.data), 3);
    text_has("120 bytes");
}

/* ---- H45: what may stand where the socket goes ---- */

static int bind_at(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%.107s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void test_daemon_start__a_stale_socket_is_replaced(void **state)
{
    char path[2 * RIG_PATH];
    struct rig_client c;
    (void)state;
    mkdir(rig.dir, 0700);
    path_in(path, PLACE_INGEST);
    close(bind_at(path));
    path_in(path, PLACE_QUERY);
    close(bind_at(path));
    rig_start(&rig);
    rig_open(&rig, &c, 1);
    rig_close(&c);
    rig_stop(&rig);
}

static void test_daemon_start__a_live_socket_is_respected(void **state)
{
    char path[2 * RIG_PATH];
    int fd;
    (void)state;
    mkdir(rig.dir, 0700);
    path_in(path, PLACE_INGEST);
    fd = bind_at(path);
    assert_int_equal(listen(fd, 1), 0);
    refused(3, "already running");
    assert_true(mode_of(path) >= 0);
    close(fd);
}

static void test_daemon_start__nothing_but_a_socket_is_removed(void **state)
{
    static const char *const names[] = {PLACE_INGEST, PLACE_QUERY};
    char path[2 * RIG_PATH], line[64];
    struct stat st;
    (void)state;
    mkdir(rig.dir, 0700);
    for (int i = 0; i < 2; i++) {
        FILE *f;
        path_in(path, names[i]);
        put_file(path, "user data, do not delete\n");
        refused(3, "is a regular file, not a socket");
        f = fopen(path, "r");
        assert_non_null(fgets(line, sizeof line, f));
        fclose(f);
        assert_string_equal(line, "user data, do not delete\n");
        unlink(path);
        assert_int_equal(symlink("/nonexistent/target", path), 0);
        refused(3, "is a symbolic link, not a socket");
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISLNK(st.st_mode));
        unlink(path);
        assert_int_equal(mkdir(path, 0700), 0);
        refused(3, "is a directory, not a socket");
        assert_int_equal(rmdir(path), 0);
    }
    rig_start(&rig);
    rig_stop(&rig);
}

static void test_daemon_start__data_that_cannot_be_written(void **state)
{
    (void)state;
    if (geteuid() == 0)
        skip();
    mkdir(rig.data, 0500);
    refused(3, "cannot write");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_daemon_start__options),
        TEST(test_daemon_start__a_configuration_file),
        TEST(test_daemon_start__environment_names_the_places),
        TEST(test_daemon_start__a_check_tries_the_places),
        TEST(test_daemon_start__everything_is_private),
        TEST(test_daemon_start__in_the_background),
        TEST(test_daemon_start__errors_of_a_background_start),
        TEST(test_daemon_start__sighup_reads_again),
        TEST(test_daemon_start__directories_that_are_not_private),
        TEST(test_daemon_start__a_directory_of_others),
        TEST(test_daemon_start__data_that_others_may_write),
        TEST(test_daemon_start__a_directory_of_somebody_else),
        TEST(test_daemon_start__a_second_one_is_refused),
        TEST(test_daemon_start__of_two_on_a_stale_socket_one_wins),
        TEST(test_daemon_start__socket_paths_that_fit),
        TEST(test_daemon_start__socket_paths_that_are_too_long),
        TEST(test_daemon_start__a_stale_socket_is_replaced),
        TEST(test_daemon_start__a_live_socket_is_respected),
        TEST(test_daemon_start__nothing_but_a_socket_is_removed),
        TEST(test_daemon_start__data_that_cannot_be_written),
    };
    if (!getenv("TRD_TRACERD"))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
