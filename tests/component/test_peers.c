/* Peers of another user, who got as far as the sockets because somebody had
 * opened the directory: both ends look at who it is. Needs to be root: the
 * users are numbers that nobody has. */
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/place.h"
#include "tracerd/client.h"

enum { OWNER = 61003, STRANGER = 61004 };

static int set_up(void **state)
{
    ingest_set_up(state);
    if (geteuid() == 0)
        ingest.rig.uid = OWNER;
    return 0;
}

#define peers_test(name)                                                      \
    cmocka_unit_test_setup_teardown(name, set_up, ingest_tear_down)

/* Whether another user may run the daemon where it was built. */
static bool is_within_reach(void)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(setgroups(0, NULL) || setgid(OWNER) || setuid(OWNER) ||
              access(getenv("TRD_TRACERD"), X_OK));
    return waitpid(child, &status, 0) == child && status == 0;
}

static void need_users(void)
{
    if (geteuid() == 0 && is_within_reach())
        return;
    print_message("needs to be root, and a build that others can reach\n");
    skip();
}

/* As careless as can be. */
static void open_to_all(void)
{
    static const char *const names[] = {"", "/" PLACE_INGEST, "/" PLACE_QUERY};
    char path[2 * RIG_PATH];
    assert_int_equal(chmod(ingest.rig.base, 0777), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s%s", ingest.rig.dir, names[i]);
        assert_int_equal(chmod(path, 0777), 0);
    }
}

/* Asks both sockets as this user. 0: was refused at both; else what was
 * not. */
static int knock(uid_t uid)
{
    struct hello h = rig_hello();
    uint8_t byte;
    int fd;
    if (setgroups(0, NULL) || setgid(uid) || setuid(uid))
        return 1;
    if (rig_greet(&ingest.rig, &ingest.c, 78, &h))
        return 2;
    if (ingest.c.refusal.reason != REASON_DENIED || ingest.c.refusal.retry_ms)
        return 3;
    fd = rig_connect(ingest.rig.dir, PLACE_QUERY);
    if (fd < 0)
        return 4;
    return rig_read(fd, &byte, 1) ? 5 : 0; /* not even a greeting */
}

static void knock_as(uid_t uid, int expected)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(knock(uid));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), expected);
}

static void test_peers__another_user_at_the_daemon_s_sockets(void **state)
{
    static const uid_t who[] = {STRANGER, 65534, 0};
    (void)state;
    need_users();
    oracle_start(&ingest.rig);
    knock_as(OWNER, 2); /* its own is let in */
    open_to_all();
    for (size_t i = 0; i < sizeof who / sizeof *who; i++)
        knock_as(who[i], 0);
    rig_logged(&ingest.rig, "reason=denied");
    rig_logged(&ingest.rig, "uid=61004 why=\"this tracerd serves another user");
    rig_stop(&ingest.rig);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream"), 1);
    oracle_held(33, 2 * sizeof who / sizeof *who,
                "other users at sockets with mode 0777");
}

/* A socket in our directory with somebody else behind it. */
static pid_t listen_as(uid_t uid, const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int ready[2];
    char byte;
    pid_t child;
    assert_int_equal(place_socket(ingest.rig.dir, name, a.sun_path,
                                  sizeof a.sun_path),
                     0);
    unlink(a.sun_path);
    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(fd, (struct sockaddr *)&a, sizeof a) ||
            chmod(a.sun_path, 0600) || seteuid(uid) || listen(fd, 8) ||
            prctl(PR_SET_PDEATHSIG, SIGKILL) ||
            write(ready[1], "r", 1) < 0)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static int tracectl(char *out, size_t cap)
{
    char command[4 * RIG_PATH];
    size_t n;
    FILE *f;
    snprintf(command, sizeof command, "%s -s %s runs 2>&1",
             getenv("TRD_TRACECTL"), ingest.rig.dir);
    f = popen(command, "r");
    assert_non_null(f);
    n = fread(out, 1, cap - 1, f);
    out[n] = '\0';
    return WEXITSTATUS(pclose(f));
}

static void test_peers__another_user_s_daemon(void **state)
{
    struct trd_client_options o;
    struct trd_counters n;
    struct trd_client *c;
    char path[2 * RIG_PATH], said[1024];
    pid_t ingest_pid, query_pid;
    (void)state;
    need_users();
    assert_int_equal(mkdir(ingest.rig.dir, 0700), 0);
    ingest_pid = listen_as(STRANGER, PLACE_INGEST);
    query_pid = listen_as(STRANGER, PLACE_QUERY);
    trd_client_options_init(&o);
    o.dir = ingest.rig.dir;
    o.journal_bytes = 1 << 20;
    assert_int_equal(trd_client_open(&o, &c), 0);
    rig_until((trd_counters(c, &n), n.last_error == TRD_EACCES));
    assert_int_equal(n.connects, 0);
    trd_client_close(c);
    assert_int_equal(tracectl(said, sizeof said), 3);
    assert_non_null(strstr(said, "is another user's"));
    /* and a socket, a directory that is not ours, or that lets others in */
    snprintf(path, sizeof path, "%s/" PLACE_QUERY, ingest.rig.dir);
    assert_int_equal(chown(path, STRANGER, STRANGER), 0);
    assert_int_equal(tracectl(said, sizeof said), 3);
    assert_non_null(strstr(said, "is not private to this user"));
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(tracectl(said, sizeof said), 3);
    assert_non_null(strstr(said, "is not private to this user"));
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(chmod(ingest.rig.dir, 0770), 0);
    assert_int_equal(tracectl(said, sizeof said), 3);
    assert_non_null(strstr(said, "it must be ours and 0700"));
    assert_int_equal(chmod(ingest.rig.dir, 0700), 0);
    assert_int_equal(chown(ingest.rig.dir, STRANGER, STRANGER), 0);
    assert_int_equal(tracectl(said, sizeof said), 3);
    assert_non_null(strstr(said, "it must be ours and 0700"));
    kill(ingest_pid, SIGKILL);
    kill(query_pid, SIGKILL);
    waitpid(ingest_pid, NULL, 0);
    waitpid(query_pid, NULL, 0);
    oracle_held(33, 6, "another user's sockets met by client and tracectl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        peers_test(test_peers__another_user_at_the_daemon_s_sockets),
        peers_test(test_peers__another_user_s_daemon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
