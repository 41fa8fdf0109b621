/* Several users on one machine, users without a home, and what others have
 * planted where a user's directories go. Needs to be root: the users are
 * numbers that nobody has. */
#include "tests/lib/rig.h"

#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/lib/oracle.h"
#include "tests/lib/unit.h"

enum { ANNE = 61001, BEN = 61002, RECORDS = 100 };

static struct rig rig;       /* for its directory; no daemon of it runs */
static char text[64 * 1024]; /* what a command printed */
static uint64_t cases;       /* that held, of the test that runs */

/* ---- a client, in a process of its own ---- */

/* argv: client RUN N. Where it went, and whether a daemon has all of it. */
static int be_client(const char *run, uint64_t n)
{
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    struct trd_client_options o;
    struct trd_client *c;
    uint32_t site;
    int flushed = -1;
    trd_client_options_init(&o);
    o.run = run;
    if (trd_client_open(&o, &c) || trd_site(c, &s, &site))
        return 1;
    printf("client='%s' open=%d ", c->sender.dir, c->open_error);
    for (uint64_t i = 1; i <= n; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        if (trd_submit_cpu(c, site, &when, &t, 16))
            return 1;
    }
    if (n)
        flushed = trd_flush(c, RIG_WAIT_MS);
    printf("flushed=%d\n", flushed);
    trd_client_close(c);
    return 0;
}

/* ---- commands of a user ---- */

/* NULL: none of the user's own. */
struct user {
    uid_t uid;
    const char *home;
    mode_t mask;
};

static void become(const struct user *u)
{
    clearenv();
    setenv("PATH", "/usr/bin:/bin", 1);
    if (u->home)
        setenv("HOME", u->home, 1);
    umask(u->mask);
    if (chdir(rig.base) || setgroups(0, NULL) ||
        setresgid(u->uid, u->uid, u->uid) || setresuid(u->uid, u->uid, u->uid))
        _exit(126);
}

/* Runs a shell command as that user in the directory with the programs; what
 * it printed is in text. */
__attribute__((format(printf, 2, 3))) static int as(const struct user *u,
                                                    const char *format, ...)
{
    char command[4096];
    va_list list;
    int fds[2], status;
    size_t n = 0;
    ssize_t got;
    pid_t pid;
    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        dup2(open("/dev/null", O_RDONLY), 0);
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        become(u);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    while ((got = read(fds[0], text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void text_has(const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

/* What stands behind key, up to a blank or the line's end, without quotes. */
static void text_value(const char *key, char out[PATH_MAX])
{
    const char *at = strstr(text, key);
    size_t n;
    if (!at)
        fail_msg("no '%s' in: %s", key, text);
    at += strlen(key);
    at += *at == '\'';
    n = strcspn(at, " '\n");
    snprintf(out, PATH_MAX, "%.*s", (int)n, at);
}

static bool private_of(const char *path, uid_t uid)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) &&
           (st.st_mode & 07777) == 0700 && st.st_uid == uid;
}

/* ---- set up ---- */

static void remove_places(uid_t uid)
{
    char command[512];
    snprintf(command, sizeof command,
             "rm -rf /dev/shm/tracerd-%d /tmp/tracerd-%d /var/tmp/tracerd-%d "
             "/tmp/tracerd-%d-runs",
             (int)uid, (int)uid, (int)uid, (int)uid);
    assert_int_equal(system(command), 0);
}

/* Where the sockets of a user go by default here. */
static void expected_dir(uid_t uid, char out[PATH_MAX])
{
    struct stat st;
    const char *where = stat("/dev/shm", &st) == 0 && (st.st_mode & S_IWOTH)
                            ? "/dev/shm"
                            : "/tmp";
    snprintf(out, PATH_MAX, "%s/tracerd-%d", where, (int)uid);
}

static int set_up(void **state)
{
    char command[4096];
    (void)state;
    rig_init(&rig);
    /* where every user may run them, wherever they were built */
    snprintf(command, sizeof command,
             "cd %s && chmod 711 . && cp \"$TRD_TRACERD\" \"$TRD_TRACECTL\" . "
             "&& cp /proc/%d/exe client && chmod 755 tracerd tracectl client",
             rig.base, (int)getpid());
    assert_int_equal(system(command), 0);
    remove_places(ANNE);
    remove_places(BEN);
    cases = 0;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_places(ANNE);
    remove_places(BEN);
    rig_fini(&rig);
    return 0;
}

/* ---- users side by side ---- */

/* Of a user that has started a daemon. */
static void stop(const struct user *u)
{
    char pid[PATH_MAX], dir[PATH_MAX], path[PATH_MAX + 32];
    assert_in_range(as(u, "./tracectl -o csv status"), 0, 1);
    text_value("\npid,", pid);
    text_value("\ndir,", dir);
    assert_int_equal(as(u, "kill %s", pid), 0);
    snprintf(path, sizeof path, "%s/query.sock", dir);
    rig_until(access(path, F_OK) != 0);
    rig_until(kill((pid_t)strtol(pid, NULL, 10), 0) != 0);
}

static void test_users__two_on_one_machine(void **state)
{
    static const mode_t masks[] = {077, 022, 0};
    (void)state;
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        struct user user[2] = {{ANNE, "/", masks[i]}, {BEN, "/", masks[i]}};
        char dir[2][PATH_MAX], data[2][PATH_MAX];
        for (int k = 0; k < 2; k++) {
            assert_int_equal(as(&user[k], "./tracerd"), 0);
            assert_int_equal(as(&user[k], "./client client run%d %d", k,
                                RECORDS * (k + 1)), 0);
            text_has("open=0 flushed=0");
        }
        for (int k = 0; k < 2; k++) {
            assert_int_equal(as(&user[k], "./tracectl -o csv sql 'SELECT "
                                          "count(*) FROM record'"), 0);
            snprintf(data[k], PATH_MAX, "%d\n", RECORDS * (k + 1));
            text_has(data[k]);
            assert_int_equal(as(&user[k], "./tracectl -o csv status"), 0);
            text_value("\ndir,", dir[k]);
            text_value("\ndata,", data[k]);
            assert_true(private_of(dir[k], user[k].uid));
            assert_true(private_of(data[k], user[k].uid));
            assert_int_equal(as(&user[k], "find %s %s ! -user %d -o -perm "
                                          "/077 -print", dir[k], data[k],
                                (int)user[k].uid), 0);
            assert_string_equal(text, "");
        }
        assert_string_not_equal(dir[0], dir[1]);
        assert_string_not_equal(data[0], data[1]);
        /* neither reads nor asks the other's */
        assert_int_not_equal(as(&user[1], "ls %s", dir[0]), 0);
        assert_int_not_equal(as(&user[1], "cat %s/run0.db", data[0]), 0);
        assert_int_equal(as(&user[1], "./tracectl -s %s status", dir[0]), 3);
        assert_int_equal(as(&user[1], "./tracectl -d %s/run0.db runs",
                            data[0]), 3);
        assert_int_equal(as(&user[1], "./tracerd --dir %s", dir[0]), 3);
        stop(&user[0]);
        stop(&user[1]);
        cases++;
    }
    oracle_held(33, cases, "two users with umask 077, 022 and 000");
}

/* ---- users without a home ---- */

/* All programs look in the same place, and say so. */
static void agree(const struct user *u, const char *data)
{
    char dir[PATH_MAX], got[PATH_MAX];
    expected_dir(u->uid, dir);
    assert_int_equal(as(u, "./tracerd -n"), 0);
    text_value("dir=", got);
    assert_string_equal(got, dir);
    text_value("data=", got);
    assert_string_equal(got, data);
    assert_int_equal(as(u, "./client client run 0"), 0);
    text_has("open=0");
    text_value("client=", got);
    assert_string_equal(got, dir);
    assert_int_equal(as(u, "./tracectl status"), 3);
    text_value("no daemon answers in ", got);
    assert_string_equal(got, dir);
    as(u, "./tracectl -o json doctor");
    text_has(dir);
    text_has(data);
    cases++;
}

/* A daemon serves there, and a line tells where the runs are. */
static void serves(const struct user *u, const char *data)
{
    char line[2 * PATH_MAX];
    snprintf(line, sizeof line,
             "tracerd: HOME is no directory that can be written: runs are "
             "stored in '%s'\n", data);
    assert_int_equal(as(u, "./tracerd"), 0);
    assert_string_equal(text, line);
    assert_int_equal(as(u, "./client client run %d", RECORDS), 0);
    text_has("open=0 flushed=0");
    assert_int_equal(as(u, "./tracectl query forward-Linear-1-7"), 0);
    assert_true(private_of(data, u->uid));
    stop(u);
    cases++;
}

static void test_users__without_a_home(void **state)
{
    char data[PATH_MAX], mine[PATH_MAX], closed[PATH_MAX];
    const char *const homes[] = {NULL, "", "/", "/nonexistent", "relative",
                                 closed};
    (void)state;
    snprintf(data, sizeof data, "/var/tmp/tracerd-%d", ANNE);
    snprintf(closed, sizeof closed, "%.400s/closed", rig.base);
    assert_int_equal(mkdir(closed, 0555), 0);
    assert_int_equal(chown(closed, ANNE, ANNE), 0);
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        struct user u = {ANNE, homes[i], 022};
        agree(&u, data);
        serves(&u, data);
        /* names that are given hold whatever HOME is */
        assert_int_equal(as(&u, "mkdir -m 700 /tmp/tracerd-%d; ./tracerd -n "
                                "--dir /tmp/tracerd-%d --data "
                                "/tmp/tracerd-%d/data", ANNE, ANNE, ANNE), 0);
        remove_places(ANNE);
    }
    snprintf(mine, sizeof mine, "%.400s/mine", rig.base);
    assert_int_equal(mkdir(mine, 0700), 0);
    assert_int_equal(chown(mine, ANNE, ANNE), 0);
    struct user u = {ANNE, mine, 022};
    snprintf(data, sizeof data, "%.400s/mine/.local/state/tracerd", rig.base);
    agree(&u, data);
    oracle_held(33, cases, "homes that are not there or closed");
}

/* ---- directories that are closed, or open to all ---- */

static void test_users__modes_that_are_refused(void **state)
{
    static const char *const modes[] = {"0000", "0500", "0400", "0777",
                                        "0770", "0701", "1777"};
    struct user u = {ANNE, NULL, 0};
    (void)state;
    assert_int_equal(as(&u, "mkdir -m 700 /tmp/tracerd-%d", ANNE), 0);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        static const char *const which[] = {"dir", "data"};
        for (int k = 0; k < 2; k++) {
            if (k == 1 && strcmp(modes[i], "0701") == 0)
                continue; /* others may look at runs where one lets them */
            assert_int_equal(as(&u, "cd /tmp/tracerd-%d && rm -rf dir data && "
                                    "mkdir -m 700 dir data && chmod %s %s",
                                ANNE, modes[i], which[k]), 0);
            assert_int_equal(as(&u, "./tracerd --dir /tmp/tracerd-%d/dir "
                                    "--data /tmp/tracerd-%d/data",
                                ANNE, ANNE), 3);
            text_has(which[k]);
            assert_int_equal(as(&u, "stat -c 0%%a /tmp/tracerd-%d/%s | sed "
                                    "'s/^00$/0000/;s/^01777$/1777/' | grep -x "
                                    "%s; chmod 700 /tmp/tracerd-%d/%s; ls -A "
                                    "/tmp/tracerd-%d/%s",
                                ANNE, which[k], modes[i], ANNE, which[k],
                                ANNE, which[k]), 0);
            /* its mode, and nothing in it */
            assert_int_equal(strlen(text), strlen(modes[i]) + 1);
            cases++;
        }
    }
    oracle_held(33, cases, "directories of modes 0000 to 1777");
}

/* Nothing can be made in either any more while all run. */
static void test_users__closed_while_it_runs(void **state)
{
    struct user u = {ANNE, NULL, 022};
    char dir[PATH_MAX];
    (void)state;
    expected_dir(ANNE, dir);
    assert_int_equal(as(&u, "./tracerd"), 0);
    assert_int_equal(as(&u, "./client client before %d", RECORDS), 0);
    text_has("open=0 flushed=0");
    /* the runs': a new one waits until it can be made */
    assert_int_equal(as(&u, "chmod 500 /var/tmp/tracerd-%d; ./client client "
                            "after %d >/dev/null & sleep 1; chmod 700 "
                            "/var/tmp/tracerd-%d; wait", ANNE, RECORDS, ANNE),
                     0);
    rig_until(as(&u, "./tracectl -r after -o csv sql 'SELECT count(*) FROM "
                     "record' | grep -x %d", RECORDS) == 0);
    /* the sockets': a client without a journal reaches the daemon */
    assert_int_equal(as(&u, "chmod 500 %s; ./client client without %d", dir,
                        RECORDS), 0);
    assert_true(strstr(text, "open=0") == NULL);
    text_has("flushed=0");
    assert_int_equal(as(&u, "chmod 700 %s; ./tracectl -o csv sql -r without "
                            "'SELECT count(*) FROM record'", dir), 0);
    text_has("100\n");
    stop(&u);
    oracle_held(33, 2, "directories closed under a daemon and clients");
}

/* ---- what others have planted ---- */

/* Shell commands that plant something of BEN's at $P; what refuses. */
static const char *const plants[] = {
    "mkdir -m 777 $P",
    "mkdir -m 700 $P",
    "mkdir -m 777 $P && touch $P/ingest.sock $P/query.sock",
    ("mkdir -m 755 $P && cd $P && { python3 -c 'import socket; s = "
     "socket.socket(socket.AF_UNIX); s.bind(\"ingest.sock\")' || touch x; }"),
    "echo text > $P",
    "mkfifo -m 666 $P",
    "ln -s /nonexistent $P",
    "mkdir -m 777 $P.real && ln -s $P.real $P",
    "ln -s /etc $P",
};

static void plant(const char *how, const char *at)
{
    struct user ben = {BEN, NULL, 0};
    assert_int_equal(as(&ben, "P=%s; %s", at, how), 0);
}

static void remove_plant(const char *at)
{
    char command[3 * PATH_MAX];
    snprintf(command, sizeof command, "rm -rf %s %s.real", at, at);
    assert_int_equal(system(command), 0);
}

/* What a place looks like to the last byte of its inodes. */
static char *listing(const char *at)
{
    static struct user root = {0, NULL, 022};
    /* not what is above it, where others may be at work */
    assert_int_equal(as(&root, "for f in -d -AR; do ls $f -lin --time-style="
                               "full-iso %s %s.real 2>/dev/null; done; true",
                        at, at), 0);
    return strdup(text);
}

static void test_users__planted_by_another(void **state)
{
    char dir[PATH_MAX], data[PATH_MAX];
    struct user anne = {ANNE, NULL, 022};
    (void)state;
    expected_dir(ANNE, dir);
    snprintf(data, sizeof data, "/var/tmp/tracerd-%d", ANNE);
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        char *before;
        plant(plants[i], dir);
        before = listing(dir);
        assert_int_equal(as(&anne, "./tracerd"), 3);
        text_has(dir);
        /* it keeps what it has in memory, and says why */
        assert_int_equal(as(&anne, "./client client run 0"), 0);
        text_has("client='' ");
        assert_true(strstr(text, "open=0") == NULL);
        assert_int_equal(as(&anne, "./tracectl status"), 3);
        text_has(dir);
        assert_int_equal(as(&anne, "./tracectl doctor"), 1);
        text_has("bad   directory");
        char *after = listing(dir);
        assert_string_equal(after, before);
        free(before);
        free(after);
        remove_plant(dir);
        cases++;

        plant(plants[i], data);
        before = listing(data);
        assert_int_equal(as(&anne, "./tracerd"), 3);
        text_has(data);
        after = listing(data);
        assert_string_equal(after, before);
        free(before);
        free(after);
        remove_plant(data);
        remove_places(ANNE);
        cases++;
    }
    oracle_held(33, cases, "planted by another user, left as it was");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_users__two_on_one_machine),
        TEST(test_users__without_a_home),
        TEST(test_users__modes_that_are_refused),
        TEST(test_users__closed_while_it_runs),
        TEST(test_users__planted_by_another),
    };
    if (argc > 3 && strcmp(argv[1], "client") == 0)
        return be_client(argv[2], strtoull(argv[3], NULL, 10));
    if (geteuid() != 0 || !getenv("TRD_TRACERD"))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
