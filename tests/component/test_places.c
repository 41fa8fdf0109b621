/* Sockets by the length of their path and by what stands in their place, and
 * daemons that are started at the same moment. All programs at each. */
#include "tests/lib/rig.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/place.h"
#include "tests/lib/oracle.h"
#include "tests/lib/unit.h"
#include "tracerd/client.h"

enum { RECORDS = 10 };

static struct rig rig;

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

/* ---- the programs ---- */

/* Opens, submits and flushes; the result is trd_flush()'s, *error the last
 * one of the connection. */
static int client(const char *dir, int ms, int *error)
{
    const float data[2] = {1, 2};
    const int64_t shape[1] = {2};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    struct trd_client_options o;
    struct trd_counters n;
    struct trd_client *c;
    uint32_t site;
    int rc;
    trd_client_options_init(&o);
    o.dir = dir;
    assert_int_equal(trd_client_open(&o, &c), 0);
    assert_int_equal(trd_site(c, &s, &site), 0);
    for (uint64_t i = 1; i <= RECORDS; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        assert_int_equal(trd_submit_cpu(c, site, &when, &t, 2), 0);
    }
    rc = trd_flush(c, ms);
    trd_counters(c, &n);
    *error = n.last_error;
    trd_client_close(c);
    return rc;
}

/* `tracectl -s dir status`; what it said goes to text. */
static int ask(const char *dir, char text[4096])
{
    char command[2048];
    size_t n;
    FILE *f;
    snprintf(command, sizeof command, "$TRD_TRACECTL -s %.1000s status 2>&1",
             dir);
    f = popen(command, "r");
    assert_non_null(f);
    n = fread(text, 1, 4095, f);
    text[n] = '\0';
    return WEXITSTATUS(pclose(f));
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

/* ---- H44, fault 34: by length ---- */

/* A directory, made, whose socket's path has n bytes. */
static void make_dir(size_t n, const char *letter)
{
    size_t want = n - strlen("/" PLACE_INGEST), step = strlen(letter), in = 0;
    snprintf(rig.dir, sizeof rig.dir, "%.400s/", rig.base);
    while (strlen(rig.dir) < want) {
        size_t left = want - strlen(rig.dir);
        if (in >= 40 && left > 1 + step) {
            mkdir(rig.dir, 0700);
            strcat(rig.dir, "/");
            in = 0;
            continue;
        }
        strcat(rig.dir, left >= step ? letter : "x");
        in += step;
    }
    mkdir(rig.dir, 0700);
    assert_int_equal(strlen(rig.dir) + strlen("/" PLACE_INGEST), n);
}

/* Sockets anywhere below: none, under whatever shortened name. */
static int sockets_below(void)
{
    char command[1024];
    snprintf(command, sizeof command, "test -z \"$(find %.400s -type s)\"",
             rig.base);
    return system(command);
}

static const struct {
    size_t bytes;
    const char *letter;
} lengths[] = {{60, "d"},  {106, "d"}, {107, "d"}, {107, "\xc3\xa6"},
               {108, "d"}, {109, "d"}, {127, "d"}, {128, "d"},
               {180, "d"}, {120, "\xc3\xa6"}, {108, "\xc3\xa6"}};

static void fits(void)
{
    char text[4096];
    int error;
    rig_start(&rig);
    assert_int_equal(client(rig.dir, RIG_WAIT_MS, &error), 0);
    assert_int_equal(error, 0);
    assert_int_equal(ask(rig.dir, text), 0);
    rig_stop(&rig);
}

static void does_not_fit(size_t bytes)
{
    char text[4096], words[128];
    int error;
    snprintf(words, sizeof words,
             "has %zu bytes, and 107 is the most a socket may have", bytes);
    assert_int_equal(rig_try(&rig), 3);
    rig_logged(&rig, words);
    rig_logged(&rig, rig.dir);
    assert_int_equal(client(rig.dir, 100, &error), TRD_ETIMEDOUT);
    assert_int_equal(error, TRD_EPATH);
    assert_non_null(strstr(trd_strerror(TRD_EPATH), "107"));
    assert_int_equal(ask(rig.dir, text), 3);
    snprintf(words, sizeof words, "has %zu bytes, the limit is 107", bytes);
    has(text, words);
    has(text, rig.dir);
    assert_int_equal(sockets_below(), 0);
}

static void test_places__by_the_length_of_the_path(void **state)
{
    size_t n = sizeof lengths / sizeof *lengths;
    (void)state;
    for (size_t i = 0; i < n; i++) {
        make_dir(lengths[i].bytes, lengths[i].letter);
        if (lengths[i].bytes <= 107)
            fits();
        else
            does_not_fit(lengths[i].bytes);
    }
    oracle_held(34, n, "60 to 180 bytes: daemon, client, tracectl");
}

/* ---- H45: by what stands there ---- */

static int bind_at(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%.107s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void put_text(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("user data, do not delete\n", f);
    fclose(f);
}

/* What is no socket is refused by all and left as it is. */
static void refuses(const char *path, const char *what)
{
    struct oracle_file f;
    char text[4096], words[128];
    int error;
    oracle_file(&f, path);
    snprintf(words, sizeof words, "is %s, not a socket", what);
    assert_int_equal(rig_try(&rig), 3);
    rig_logged(&rig, words);
    assert_int_equal(client(rig.dir, 100, &error), TRD_ETIMEDOUT);
    assert_int_equal(ask(rig.dir, text), 3);
    oracle_untouched(&f);
}

static void test_places__what_is_no_socket(void **state)
{
    static const char *const names[] = {PLACE_INGEST, PLACE_QUERY};
    char path[2 * RIG_PATH], target[2 * RIG_PATH];
    uint64_t cases = 0;
    struct oracle_file f;
    (void)state;
    mkdir(rig.dir, 0700);
    snprintf(target, sizeof target, "%s/target", rig.base);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", rig.dir, names[i]);
        put_text(path);
        refuses(path, "a regular file");
        unlink(path);
        assert_int_equal(symlink("/nonexistent/target", path), 0);
        refuses(path, "a symbolic link");
        unlink(path);
        put_text(target);
        oracle_file(&f, target);
        assert_int_equal(symlink(target, path), 0);
        refuses(path, "a symbolic link");
        oracle_untouched(&f);
        unlink(path);
        unlink(target);
        close(bind_at(target)); /* a stale socket behind a link */
        oracle_file(&f, target);
        assert_int_equal(symlink(target, path), 0);
        refuses(path, "a symbolic link");
        oracle_untouched(&f);
        unlink(path);
        unlink(target);
        assert_int_equal(mkdir(path, 0700), 0);
        refuses(path, "a directory");
        rmdir(path);
        assert_int_equal(mkfifo(path, 0600), 0);
        refuses(path, "something else");
        unlink(path);
        cases += 6;
    }
    oracle_held(33, cases, "files, links and folders in a socket's place");
    rig_start(&rig);
    rig_stop(&rig);
}

/* The lock's file likewise: a link is not followed. */
static void test_places__a_link_in_place_of_the_lock(void **state)
{
    char path[2 * RIG_PATH], target[2 * RIG_PATH];
    struct oracle_file f;
    (void)state;
    mkdir(rig.dir, 0700);
    mkdir(rig.data, 0700);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", i ? rig.data : rig.dir,
                 PLACE_LOCK);
        snprintf(target, sizeof target, "%s/target", rig.base);
        put_text(target);
        oracle_file(&f, target);
        assert_int_equal(symlink(target, path), 0);
        assert_int_equal(rig_try(&rig), 3);
        oracle_untouched(&f);
        unlink(path);
    }
    oracle_held(33, 2, "links in place of the locks");
}

static void test_places__stale_and_live_sockets(void **state)
{
    static const char *const names[] = {PLACE_INGEST, PLACE_QUERY};
    char path[2 * RIG_PATH];
    struct oracle_file f;
    int fd;
    (void)state;
    mkdir(rig.dir, 0700);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", rig.dir, names[i]);
        close(bind_at(path));
    }
    oracle_start(&rig); /* below two seconds */
    rig_kill(&rig);     /* stale again */
    oracle_start(&rig);
    rig_stop(&rig);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", rig.dir, names[i]);
        fd = bind_at(path);
        assert_int_equal(listen(fd, 1), 0);
        oracle_file(&f, path);
        assert_int_equal(rig_try(&rig), 3);
        rig_logged(&rig, "already running");
        oracle_untouched(&f);
        close(fd);
        unlink(path);
    }
}

/* ---- fault 35: at the same moment ---- */

enum { STARTERS = 3, ROUNDS = 15 };

/* A process that starts a daemon and keeps it until told is closed. */
struct starter {
    pid_t pid;
    int told, says;
};

static struct starter start_one(int number, int gate)
{
    int told[2], says[2];
    struct starter s;
    char byte;
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    assert_int_equal(pipe2(says, O_CLOEXEC), 0);
    fflush(NULL);
    s.pid = fork();
    assert_true(s.pid >= 0);
    if (!s.pid) {
        struct rig mine = rig;
        int rc;
        close(told[1]);
        snprintf(mine.data, sizeof mine.data, "%.400s/data%d", rig.base,
                 number);
        if (read(gate, &byte, 1) != 1)
            _exit(1);
        rc = rig_try(&mine);
        if (write(says[1], &rc, sizeof rc) != sizeof rc)
            _exit(1);
        if (rc == -1) {
            while (read(told[0], &byte, 1) > 0)
                continue;
            rig_kill(&mine); /* leaves its sockets behind */
        }
        _exit(0);
    }
    close(told[0]);
    close(says[1]);
    s.told = told[1];
    s.says = says[0];
    return s;
}

/* Whoever comes late is refused, and touches nothing. */
static void is_served(void)
{
    struct oracle_file ingest, query;
    struct rig_client c;
    struct rig late = rig;
    char path[2 * RIG_PATH], text[4096];
    snprintf(path, sizeof path, "%s/" PLACE_INGEST, rig.dir);
    oracle_file(&ingest, path);
    snprintf(path, sizeof path, "%s/" PLACE_QUERY, rig.dir);
    oracle_file(&query, path);
    snprintf(late.data, sizeof late.data, "%.400s/late", rig.base);
    assert_int_equal(rig_try(&late), 3);
    oracle_untouched(&ingest);
    oracle_untouched(&query);
    rig_open(&rig, &c, 1);
    rig_close(&c);
    assert_int_equal(ask(rig.dir, text), 0);
}

static void test_places__of_those_that_start_together_one_wins(void **state)
{
    (void)state;
    mkdir(rig.dir, 0700);
    for (int round = 0; round < ROUNDS; round++) {
        struct starter s[STARTERS];
        int gate[2], won = 0, rc;
        assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
        for (int i = 0; i < STARTERS; i++)
            s[i] = start_one(i, gate[0]);
        for (int i = 0; i < STARTERS; i++)
            assert_int_equal(write(gate[1], "x", 1), 1);
        for (int i = 0; i < STARTERS; i++) {
            assert_int_equal(read(s[i].says, &rc, sizeof rc), sizeof rc);
            if (rc != -1)
                assert_int_equal(rc, 3);
            won += rc == -1;
        }
        assert_int_equal(won, 1);
        is_served();
        for (int i = 0; i < STARTERS; i++) {
            close(s[i].told);
            close(s[i].says);
        }
        for (int i = 0; i < STARTERS; i++)
            assert_int_equal(waitpid(s[i].pid, NULL, 0), s[i].pid);
        close(gate[0]);
        close(gate[1]);
    }
    oracle_held(35, ROUNDS, "three daemons at once on stale sockets");
}

/* The next one is tried again and again while the old one ends: what it
 * binds the old one does not take away. */
static void test_places__an_old_one_that_ends_late(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct rig_client c;
        struct rig next;
        long long end = rig_now_ms() + RIG_WAIT_MS;
        int rc;
        rig_start(&rig);
        rig_open(&rig, &c, 1); /* something to say goodbye to */
        next = rig;
        kill(rig.pid, SIGTERM);
        do {
            rc = rig_try(&next);
        } while (rc != -1 && rig_now_ms() < end);
        assert_int_equal(rc, -1);
        assert_int_equal(waitpid(rig.pid, NULL, 0), rig.pid);
        rig_close(&c);
        rig = next;
        is_served();
        rig_stop(&rig);
    }
    oracle_held(35, 5, "a daemon that ends while the next one starts");
}

/* ---- fault 33: a file system that is read-only ---- */

/* The way back is the end of the process: mounts are this one's only. */
static void in_own_mounts(const char *dir)
{
    struct rig r = rig;
    int rc;
    if (unshare(CLONE_NEWNS) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("x", dir, "tmpfs", 0, "mode=700") ||
        mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, "mode=700"))
        _exit(77);
    rc = rig_try(&r);
    if (rc == -1)
        rig_kill(&r);
    _exit(rc == 3 ? 0 : 1);
}

static void test_places__read_only_file_systems(void **state)
{
    const char *const dirs[] = {rig.dir, rig.data};
    (void)state;
    mkdir(rig.dir, 0700);
    mkdir(rig.data, 0700);
    for (int i = 0; i < 2; i++) {
        int status;
        pid_t pid;
        fflush(NULL);
        pid = fork();
        assert_true(pid >= 0);
        if (!pid)
            in_own_mounts(dirs[i]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77)
            skip(); /* nobody may mount here */
        assert_int_equal(WEXITSTATUS(status), 0);
        rig_logged(&rig, "Read-only file system");
    }
    oracle_held(33, 2, "read-only file systems");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_places__by_the_length_of_the_path),
        TEST(test_places__what_is_no_socket),
        TEST(test_places__a_link_in_place_of_the_lock),
        TEST(test_places__stale_and_live_sockets),
        TEST(test_places__of_those_that_start_together_one_wins),
        TEST(test_places__an_old_one_that_ends_late),
        TEST(test_places__read_only_file_systems),
    };
    if (!getenv("TRD_TRACERD"))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
